"""Runs in folders and zips, with their machine and journals; wrong ones are one line."""

import functools
import gzip
import io
import json
import re
import zipfile

import pytest
import records
from journal_lines import ENDED

from pomology.__main__ import main
from pomology.errors import PomologyError
from pomology.results import journal, record, run
from pomology.results.journal import Journal
from pomology.results.run import Run

MACHINE = {"chip": "Apple M9", "cpu_cores": 8, "memory_bytes": 2**34, "python": "3.11.9"}
METRICS = {"epoch_s": records.metric(7.9, 7.5, 8.3, "s")}
JOURNAL = (json.dumps(records.record(metrics=METRICS).line()) + "\n").encode()


def zipped(files, method=zipfile.ZIP_DEFLATED, comment=b""):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", method) as out:
        out.comment = comment
        for name, data in files.items():
            out.writestr(name, data)
    return packed.getvalue()


def test_a_run_has_records_machine_and_problems_of_its_files(journal):
    folder = journal.path.parent
    Journal(folder / "dcgan.jsonl").end(ENDED | {"case": "d"})
    journal.end(ENDED)
    found = Run(folder)
    assert [record.case for record in found.records] == ["d", "a"]
    assert list(found.journals) == ["dcgan", "vae"] and found.machine == {}
    assert found.problems == ["machine.json is missing, so the machine is unknown."]
    (folder / "machine.json").write_text("[]")
    assert Run(folder).machine == {}
    assert Run(folder).problems[0].startswith("machine.json cannot be read")
    (folder / "machine.json").write_text(json.dumps(MACHINE))
    assert Run(folder).machine == MACHINE and Run(folder).problems == []
    # What Finder and iCloud add; and two things that no journal can be.
    (folder / "._vae.jsonl").write_bytes(b"\0\5\x16\7")
    (folder / "vae 2.jsonl").write_bytes(JOURNAL)
    (folder / "gpt2.jsonl").mkdir()
    (folder / "gone.jsonl").symlink_to("nowhere")
    names = ("gone.jsonl", "gpt2.jsonl", "vae 2.jsonl")
    lines = [f"{name} is not read: no journal." for name in names]
    assert list(Run(folder).journals) == ["dcgan", "vae"] and Run(folder).problems == lines
    (folder / "dcgan.jsonl").write_text(json.dumps(ENDED | {"schema": 2}) + "\n")
    assert Run(folder).problems[0].startswith("dcgan.jsonl: skipped 1 unreadable lines")


def test_journals_may_be_packed(tmp_path):
    packed = tmp_path / "vae.jsonl.gz"
    packed.write_bytes(gzip.compress(JOURNAL))
    assert len(Run(tmp_path).journals["vae"].records) == 1
    packed.write_bytes(b"no gzip")
    assert Run(tmp_path).problems[0].startswith("vae.jsonl.gz: cannot be read: ")


def test_a_run_is_found_by_its_name_its_folder_or_its_zip(journal, tmp_path, monkeypatch):
    monkeypatch.setattr(run, "root", lambda: tmp_path)
    journal.end(ENDED)
    outputs = tmp_path / "outputs"
    outputs.mkdir()
    journal.path.parent.rename(outputs / "one")
    with zipfile.ZipFile(outputs / "two.zip", "w") as packed:
        packed.write(outputs / "one" / "vae.jsonl", "two/vae.jsonl")
    records = Run(outputs / "one").records
    assert len(records) == 1 and Run(outputs / "one").name == "one"
    for name in ("one", "two", str(outputs / "two.zip")):
        assert Run(run.locate(name)).records == records
    for name in ("._two.zip", "broken.zip", "file", ".DS_Store", "one/machine.json.part"):
        (outputs / name).write_bytes(b"\0\5\x16\7")
    (outputs / ".hidden").mkdir()
    (outputs / ".hidden" / "machine.json").touch()
    assert run.find([str(outputs)], "RUN") == [outputs / "one", outputs / "two.zip"]
    with pytest.raises(PomologyError, match="RUN: nothing: no such run; outputs/ has none"):
        run.find(["nothing"], "RUN")


PACKED = {
    "m9/": b"",
    "m9/vae.jsonl": JOURNAL,
    "m9/machine.json": json.dumps(MACHINE),
    "m9/earlier/vae-1.jsonl": JOURNAL,
    "m9/notes.txt": b"\0",
    "__MACOSX/m9/._vae.jsonl": b"\0\5",
    "__MACOSX/vae.jsonl": b"\0\5",
    "m9/._vae.jsonl": b"\0\5",
    "../../vae-2.jsonl": JOURNAL,
}


@pytest.mark.parametrize("comment", [b"", b"4" * 40, b"PK" * (2**15 - 1)])
@pytest.mark.parametrize("folder", ["m9", "m9 (2)", "m9.apple~1"])
def test_a_zip_of_macos_s_finder_is_readable(tmp_path, folder, comment):
    files = {name.replace("m9/", f"{folder}/"): data for name, data in PACKED.items()}
    (tmp_path / "m9.zip").write_bytes(zipped(files, comment=comment))
    found = Run(tmp_path / "m9.zip")
    assert (found.name, len(found.records), found.machine) == ("m9", 1, MACHINE)
    assert found.problems == []


def test_an_empty_journal_is_named(tmp_path):
    records.write(tmp_path / "own", [records.record()], MACHINE)
    (tmp_path / "own" / "dcgan.jsonl").touch()
    assert Run(tmp_path / "own").problems == ["dcgan.jsonl is empty."]


ONE = {"vae.jsonl": JOURNAL}
ENCRYPTED = bytearray(zipped(ONE))
ENCRYPTED[6] = ENCRYPTED[ENCRYPTED.index(b"PK\1\2") + 8] = 1  # a flag in both headers
BAD = {
    "encrypted": bytes(ENCRYPTED),
    "no run": zipped({"notes.txt": b"x"}),
    "two runs": zipped({"a/vae.jsonl": JOURNAL, "b/vae.jsonl": JOURNAL}),
    "damaged": zipped(ONE, zipfile.ZIP_STORED).replace(b"Apple", b"Pears"),
}


# Arguments of a command, and the contents of `a bad.zip` -> words of the error.
REFUSED = [
    (["report", "own", "--with", "gone.zip"], b"", "WITH: gone.zip: no such run"),
    (["report", "own", "--with", "'open"], b"", "WITH='open: No closing quotation"),
    (["report", "own", "--with", "'a bad.zip'"], b"text", "a bad.zip: not the zip of a run"),
    (["compare", "--runs", "'a b.zip' c"], b"", "RUNS: a b.zip: no such run"),
    (["share", "gone"], b"", "RUN=gone: no such run"),
]
COMPARED = ["compare", "own", "a bad.zip"]
REFUSED += [(COMPARED, data, "a bad.zip: not the zip of a run: ") for data in BAD.values()]


@pytest.mark.parametrize(("arguments", "data", "words"), REFUSED, ids=[*range(5), *BAD])
def test_a_wrong_run_is_an_error_of_one_line_and_writes_nothing(
    tmp_path, monkeypatch, capsys, arguments, data, words
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a bad.zip").write_bytes(data)
    records.write(tmp_path / "own", [records.record()], MACHINE)
    before = sorted(tmp_path.rglob("*"))
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"pomology: {words}") and error.count("\n") == 1 and len(error) < 300
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("name", ["vae.jsonl", "vae.jsonl.gz"])
def test_a_zip_over_a_limit_is_an_error(tmp_path, monkeypatch, name):
    monkeypatch.setattr(run, "MAX_UNPACKED_BYTES", 5000)
    data = b" " * 10**6
    files = {name: gzip.compress(data) if name.endswith("gz") else data, "blas.jsonl": JOURNAL}
    (tmp_path / "m9.zip").write_bytes(zipped(files))
    with pytest.raises(PomologyError, match=r"^m9\.zip: not the zip of a run: over "):
        print(Run(tmp_path / "m9.zip").records)


def test_a_failed_check_of_the_measurement_flags_the_rows_of_its_device(tmp_path):
    """The fence is that of one device; the clock is that of all."""
    vae = [records.record(backend=backend) for backend in ("cpu", "mps")]
    vae.append(records.record(backend="gpu", framework="mlx"))
    checks = {"article": "kit", "status": "mismatch", "reason": "too slow"}

    def flags(check, backend, status="mismatch"):
        config = {"check": check}
        failed = records.record(
            "instrument_check", config=config, backend=backend, **checks | {"status": status}
        )
        folder = tmp_path / f"{check} {status}"
        records.write(folder, [*vae, failed])
        found = {record.case: record.flags for record in Run(folder).records}
        assert found.pop(failed.case) == []
        return [found[record.case] for record in vae]

    assert flags("fence", "mps") == [[], ["refuted"], []]
    assert flags("clock", "cpu") == [["refuted"]] * 3
    assert flags("memory counters", "mps") == [[], [], []]
    assert flags("fence", "mps", "error") == [[], [], []]


def journal_lines(count):
    """The start and end lines of some cases."""
    lines = []
    for number in range(count):
        entry = records.record(config={"batch_size": number + 1}, case=f"case {number}")
        start = {name: getattr(entry, name) for name in record.Start.__struct_fields__}
        begun = record.checked({"schema": 1} | start | {"event": "start"})
        lines += [begun.line() | {"event": "start"}, entry.line() | {"event": "end"}]
    return [json.dumps(line).encode() for line in lines]


def metric_of(name, value, unit="s", low=None, high=None):
    return {name: records.metric(value, low, high, unit).metric()}


NESTED = functools.reduce(lambda inner, _: [inner], range(30), [])


def test_a_damaged_end_is_no_killed_process(tmp_path):
    lines = [json.loads(line) for line in journal_lines(2)]
    for damage in (b'{"event": "end", "step_s": 0}', b"", b"\xff"):
        path = tmp_path / "vae.jsonl"
        sound = [json.dumps(line).encode() for line in lines]
        sound[1] = damage or sound[1][:40]
        path.write_bytes(b"\n".join(sound) + b"\n")
        first, second = journal.read(path).records
        assert (first.status, first.reason) == ("error", journal.UNREAD)
        assert second.status == "ok"
    path.write_bytes(b"\n".join(sound[:1]) + b"\n")
    assert [each.reason for each in journal.read(path).records] == [journal.KILLED]


def test_a_file_that_cannot_be_read_is_named_and_the_rest_goes_on(tmp_path):
    (tmp_path / "vae.jsonl").write_bytes(b"\xef\xbb\xbf" + b"\n".join(journal_lines(1)))
    machine = b"\xef\xbb\xbf" + json.dumps({"chip": "AMD EPYC"}).encode()
    (tmp_path / "machine.json").write_bytes(machine)
    (tmp_path / "blas.jsonl.gz").write_bytes(b"junk")
    (tmp_path / "peaks.jsonl.gz").write_bytes(b"")
    (tmp_path / "memory.jsonl.gz").mkdir()
    one = run.Run(tmp_path)
    assert [each.status for each in one.records] == ["ok"]
    assert one.machine == {"chip": "AMD EPYC"}
    named = [problem.partition(".jsonl.gz")[0] for problem in one.problems]
    assert sorted(named) == ["blas", "memory", "peaks"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"metrics": metric_of("step_s", -1.0)}, "step_s is -1.0"),
        ({"metrics": metric_of("energy_j", -5.0, "J")}, "energy_j is -5.0 J; expected 0 to"),
        ({"metrics": metric_of("flops_per_s", 1e299, "FLOP/s")}, "expected 0 to 1e+21"),
        ({"metrics": metric_of("step_s", 1.0, "s", 2.0, 0.5)}, "the interval of step_s is"),
        ({"blocks": {"training": {"steady": [[1, -1.0]]}}}, "steady of training has 1 steps in"),
        ({"canary": {"before_s": 0.0}}, "the calibration before_s is 0.0"),
        ({"config": {"batch_size": -5}}, "the setting batch_size is -5; expected at least 1"),
        ({"trace": NESTED}, "trace is nested more than 20 times"),
    ],
)
def test_a_number_that_no_case_has_is_no_record(change, words):
    line = json.loads(journal_lines(1)[1]) | change
    with pytest.raises(ValueError, match=re.escape(words)):
        record.parse(json.dumps(line).encode())
