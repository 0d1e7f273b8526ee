"""Zips and folders from strangers."""

import io
import json
import os
import re
import struct
import tracemalloc
import zipfile
from pathlib import Path

import pytest
from test_report import MACHINE, record, run

from pomology.__main__ import main
from pomology.errors import PomologyError
from pomology.report import compare
from pomology.results import archive as results_archive

# What strangers send --------------------------------------------------------------------------------------------------

JOURNAL = (json.dumps(record().line()) + "\n").encode()


def member(name: str, mode: int = 0o100644, method: int = zipfile.ZIP_DEFLATED) -> zipfile.ZipInfo:
    about = zipfile.ZipInfo(name)
    about.external_attr, about.compress_type, about.create_system = mode << 16, method, 3
    return about


def zipped(*files: tuple[str | zipfile.ZipInfo, bytes]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in (("vae.jsonl", JOURNAL), *files):
            archive.writestr(name, data)
    return packed.getvalue()


def patched(data: bytes, place: int, value: bytes) -> bytes:
    """With some bytes of each entry in the list of contents replaced."""
    entry = re.compile(rb"(PK\x01\x02.{%d}).{%d}" % (place - 4, len(value)), re.DOTALL)
    return entry.sub(lambda found: found[1] + value, data)


PLAIN = zipped(("b.jsonl", b"x" * 1000))
STORED = zipped((member("b.jsonl", method=zipfile.ZIP_STORED), b"x" * 1000))
MANY = [zipped(*((f"{n}.jsonl", b"") for n in range(number))) for number in (99, results_archive.MOST_FILES)]
HOSTILE = {  # what is wrong -> the zip, and what is said
    "nothing": (b"", "not a zip that can be read"),
    "torn": (PLAIN[:-30], "not a zip that can be read"),
    "list of gigabytes": (bytes(100) + b"PK\5\6" + struct.pack("<QIIH", 0, 2**31, 0, 0), "it lists more than"),
    "bomb": (patched(MANY[0], 24, struct.pack("<I", 60 * 2**20)), "bytes unpacked; a run has at most"),
    "large file": (patched(PLAIN, 24, struct.pack("<I", 2**27)), "bytes unpacked; at most"),
    "more than it says": (patched(PLAIN, 24, struct.pack("<I", 10)), "vae.jsonl cannot be unpacked"),
    "too many files": (MANY[1], "files; a run has at most"),
    "climbs": (zipped(("../b.jsonl", b"x")), "../b.jsonl has a path that leads out of its folder"),
    "drive": (zipped(("C:/b.jsonl", b"x")), "has a name that no file of a run has"),
    "zero byte": (zipped(("b.jsonlX.html", b"x")).replace(b"b.jsonlX", b"b.jsonl\0"), "has a name that no file"),
    "deep": (zipped(("a/" * 40 + "b.jsonl", b"x")), "lies deeper than any file of a run"),
    "link": (zipped((member("b.jsonl", 0o120777), b"/etc/passwd")), "b.jsonl is a link or another special file"),
    "by case": (zipped(("VAE.jsonl", b"x")), "VAE.jsonl and vae.jsonl are one file on a Mac"),
    "twice": (zipped(("vaf.jsonl", b"x")).replace(b"vaf.jsonl", b"vae.jsonl"), "vae.jsonl is in it twice"),
    "encrypted": (patched(PLAIN, 8, b"\1\0"), "vae.jsonl is encrypted"),
    "other method": (zipped((member("b.jsonl", method=zipfile.ZIP_LZMA), b"x")), "is packed in another way"),
    "damaged": (STORED.replace(b"x" * 1000, b"y" * 1000), "b.jsonl cannot be unpacked: Bad CRC-32"),
    "archive in it": (zipped(("more.ZIP", PLAIN)), "more.ZIP is an archive inside the archive"),
    "no run": (zipped().replace(b"vae.jsonl", b"vae.jsonX"), "not a run: neither machine.json nor a journal"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_zip_is_refused_in_a_line_and_leaves_nothing(tmp_path, name, capsys, monkeypatch):
    data, why = HOSTILE[name]
    good, place = run(tmp_path / "good", record()), tmp_path / "bad.zip"
    place.write_bytes(data)
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    tracemalloc.start()
    try:
        with pytest.raises(PomologyError) as refusal:
            compare.load(place)
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()
    said = str(refusal.value)
    assert said.startswith("bad.zip: ") and why in said and said.isprintable() and len(said) < 300
    assert main(["compare", str(good), str(place)]) == 2
    assert capsys.readouterr().err == f"pomology: {said}\n"
    assert sorted(tmp_path.rglob("*")) == before


def test_zips_of_other_hands_are_read(tmp_path):
    """As the Finder packs a folder, and as one packs what is in it."""
    beside = ("m9/", "__MACOSX/m9/._vae.jsonl", "m9/.DS_Store", "m9/notes.txt", "m9/vae.ipynb", "m9/tables/a.csv")
    machine = json.dumps(MACHINE).encode()
    with zipfile.ZipFile(tmp_path / "m9.zip", "w") as archive:
        for name in beside:
            archive.writestr(name, b"" if name.endswith("/") else b"\0\5")
        archive.writestr("m9/vae.jsonl", JOURNAL)
        archive.writestr("m9/machine.json", machine)
    (tmp_path / "flat.zip").write_bytes(zipped(("machine.json", machine)))
    for name in ("m9", "flat"):
        loaded = compare.load(tmp_path / f"{name}.zip")
        assert loaded.name == name and len(loaded.cases) == 1 and loaded.machine == MACHINE and not loaded.problems


def large(place: Path, size: int = results_archive.MOST_BYTES + 1) -> None:
    with open(place, "wb") as file:
        file.truncate(size)


def test_hostile_files_in_a_folder_are_not_read_nor_a_zip_too_large_opened(tmp_path):
    folder = run(tmp_path / "b", record())
    for number, make in enumerate((lambda place: place.symlink_to(__file__), os.mkfifo, os.mkdir, large)):
        make(folder / f"x{number}.jsonl")
    side = compare.load(folder)
    assert len(side.problems) == 4 and len(side.cases) == 1
    assert all(re.match(r"b/x\d\.jsonl: (not a file of its own|too large)", problem) for problem in side.problems)
    large(tmp_path / "bad.zip", results_archive.MOST_ZIP_BYTES + 1)
    with pytest.raises(PomologyError, match=r"bad\.zip: 134,217,729 bytes; at most"):
        compare.load(tmp_path / "bad.zip")
