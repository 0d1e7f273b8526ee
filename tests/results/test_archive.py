"""Files of a run as strangers may have made them: each is read, or refused in a line."""

import gzip
import io
import json
import os
import random
import struct
import tracemalloc
import zipfile

import fakes
import pytest
import records

from pomology.__main__ import main
from pomology.errors import PomologyError
from pomology.results import archive, journal
from pomology.results.run import Run

MACHINE = {"chip": "Apple M9", "cpu_cores": 8, "memory_bytes": 2**34, "python": "3.11.9"}
METRICS = {"epoch_s": records.metric(7.9, 7.5, 8.3, "s")}
JOURNAL = (json.dumps(fakes.record(metrics=METRICS).line()) + "\n").encode()


def zipped(files, method=zipfile.ZIP_DEFLATED):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", method) as out:
        for name, data in files.items():
            out.writestr(name, data)
    return packed.getvalue()


def with_size(data, size):
    """A zip whose list says this size of each file."""
    parts = data.split(b"PK\1\2")
    listed = [part[:20] + struct.pack("<I", size) + part[24:] for part in parts[1:]]
    return b"PK\1\2".join([parts[0], *listed])


GOOD = {
    "flat": {"vae.jsonl": JOURNAL, "machine.json": json.dumps(MACHINE)},
    "a folder": {
        "m9/": b"",
        "m9/vae.jsonl": JOURNAL,
        "m9/machine.json": json.dumps(MACHINE),
        "m9/earlier/vae-1.jsonl": JOURNAL,
        "m9/notes.txt": b"\0",
        "__MACOSX/m9/._vae.jsonl": b"\0\5",
        "../../vae-2.jsonl": JOURNAL,
    },
    "gzip": {"vae.jsonl.gz": gzip.compress(JOURNAL), "machine.json": json.dumps(MACHINE)},
}


@pytest.mark.parametrize("files", GOOD.values(), ids=GOOD)
def test_a_zip_is_read_however_it_was_packed(tmp_path, files):
    (tmp_path / "m9.zip").write_bytes(zipped(files))
    run = Run(tmp_path / "m9.zip")
    assert (run.name, len(run.records), run.machine, run.problems) == ("m9", 1, MACHINE, [])


ONE = {"vae.jsonl": JOURNAL}
BAD = {
    "empty": b"",
    "torn": zipped(ONE)[:-30],
    "no run": zipped({"notes.txt": b"x"}),
    "two runs": zipped({"a/vae.jsonl": JOURNAL, "b/vae.jsonl": JOURNAL}),
    "damaged": zipped(ONE, zipfile.ZIP_STORED).replace(b"Apple", b"Pears"),
    "encrypted": zipped(ONE).replace(b"PK\1\2\x14\3\x14\0\0\0", b"PK\1\2\x14\3\x14\0\1\0"),
    "too large": with_size(zipped(ONE), archive.MOST_ALL_BYTES + 1),
    "larger than it says": with_size(zipped({"vae.jsonl": bytes(2**26)}), 100),
    "too many files": zipped({f"{number}.txt": b"" for number in range(archive.MOST_FILES)} | ONE),
}


@pytest.mark.parametrize("data", BAD.values(), ids=BAD)
def test_a_bad_zip_is_a_line_and_leaves_nothing(tmp_path, monkeypatch, capsys, data):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.zip").write_bytes(data)
    tracemalloc.start()
    try:
        with pytest.raises(PomologyError, match=r"^bad\.zip: not the zip of a run: "):
            print(Run(tmp_path / "bad.zip").records)
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()
    records.write(tmp_path / "good", [fakes.record()], MACHINE)
    assert main(["compare", "good", "bad.zip"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("pomology: bad.zip: ") and error.count("\n") == 1 and len(error) < 300
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.zip", "good"]


def spoiled(data, rng):
    """Bytes of which a part is missing, doubled, or noise."""
    start, end = sorted(rng.choices(range(len(data)), k=2))
    return rng.choice(
        [
            data[:start],
            data[:start] + data[end:],
            data[:end] + data[start:],
            data[:start] + rng.randbytes(9) + data[start + 9 :],
        ]
    )


def test_a_zip_spoiled_at_random_is_read_or_is_a_line(tmp_path):
    rng = random.Random(7)
    place = tmp_path / "bad.zip"
    refused = 0
    for _ in range(200):
        place.write_bytes(spoiled(zipped(GOOD["a folder"]), rng))
        try:
            assert all(problem.isprintable() for problem in Run(place).problems)
        except PomologyError as error:
            assert str(error).isprintable() and len(str(error)) < 300
            refused += 1
    assert 50 < refused < 200


VALUES = [None, True, -1, 1e308, 10**400, float("nan"), "\ud800", "a\nb\x1b[31m", [[[]]], {}]


def test_a_journal_spoiled_at_random_costs_the_line_that_is_spoiled(tmp_path):
    rng = random.Random(7)
    whole = json.loads(JOURNAL)
    lost = 0
    for _ in range(200):
        line = whole | {rng.choice(sorted(whole.keys() - {"schema"})): rng.choice(VALUES)}
        data = rng.choice([json.dumps(line).encode(), spoiled(JOURNAL, rng)])
        held = journal.contents(tmp_path / "vae.jsonl", data.strip() + b"\n" + JOURNAL)
        assert held.records and len(held.problems) <= 2
        assert all(problem.isprintable() for problem in held.problems)
        lost += bool(held.problems)
    assert 50 < lost < 200


def test_pipes_links_and_large_files_in_a_folder_do_not_hang(tmp_path):
    out = records.write(tmp_path / "run", [fakes.record()])
    os.mkfifo(out / "pipe.jsonl")
    (out / "zero.jsonl").symlink_to("/dev/zero")
    (out / "machine.json").symlink_to("nowhere")
    with open(out / "large.jsonl", "wb") as file:
        file.truncate(archive.MOST_BYTES + 1)
    run = Run(out)
    assert len(run.records) == 1
    large, machine = run.problems
    assert large.startswith("large.jsonl: ") and machine.startswith("machine.json is missing")
