"""A run: its folder or zip, its journals, its repeats."""

from __future__ import annotations

import gzip
import json
import zipfile

import pytest
from journal_lines import ENDED

from pomology.errors import PomologyError
from pomology.measure.estimate import Estimate
from pomology.results import archive, cases, run
from pomology.results import journal as results_journal
from pomology.results.journal import Journal
from pomology.results.run import Run

MACHINE = {"chip": "Apple M9", "cpu_cores": 8, "memory_bytes": 2**34, "python": "3.11.9"}


def test_a_run_reads_what_is_asked_for_once_and_again_when_it_has_grown(journal, monkeypatch):
    parsed = []
    contents = results_journal.contents

    def counted(path, data):
        parsed.append(path.stem)
        return contents(path, data)

    monkeypatch.setattr(results_journal, "contents", counted)
    folder = journal.path.parent
    Journal(folder / "dcgan.jsonl").end(ENDED | {"case": "d"})
    journal.end(ENDED)
    found = Run(folder)
    assert found.machine == {} and parsed == []
    assert [record.case for record in found.records] == ["d", "a"] and parsed == ["dcgan", "vae"]
    journal.end(ENDED | {"case": "b"})
    assert [record.case for record in found.records] == ["d", "a", "b"]
    assert list(found.journals) == ["dcgan", "vae"] and parsed == ["dcgan", "vae", "vae"]
    assert found.problems == ["machine.json is missing: nothing tells which machine this was."]
    (folder / "machine.json").write_text("[]")
    assert found.machine == {} and found.problems[0].startswith("machine.json cannot be read")
    (folder / "machine.json").write_text(json.dumps(MACHINE))
    assert found.machine == MACHINE and found.problems == []
    (folder / "dcgan.jsonl").write_text(json.dumps(ENDED | {"schema": 2}) + "\n")
    assert found.problems[0].startswith("dcgan.jsonl, line 1: its schema is not 1")
    (folder / "dcgan.jsonl").unlink()
    assert found.problems == [] and list(found.journals) == ["vae"]


def test_journals_of_a_run_that_is_kept_may_be_packed(journal, monkeypatch):
    journal.end(ENDED)
    records = Run(journal.path.parent).records
    packed = journal.path.with_suffix(".jsonl.gz")
    packed.write_bytes(gzip.compress(journal.path.read_bytes()))
    size = journal.path.stat().st_size
    journal.path.unlink()
    found = Run(packed.parent)
    assert list(found.journals) == ["vae"] and found.records == records
    assert run.is_run(packed.parent)
    monkeypatch.setattr(archive, "MOST_BYTES", size - 1)
    assert Run(packed.parent).problems[0].startswith("vae.jsonl.gz: more than ")
    packed.write_bytes(b"no gzip")
    assert Run(packed.parent).problems[0].startswith("vae.jsonl.gz: cannot be read: ")


def test_repeats_of_too_few_steps_have_a_mean_and_no_interval():
    few = Estimate(2.0, "s", n=2)
    many = Estimate(2.42, "s", 2.3, 2.5, 30)
    assert cases.together([few, many]) == Estimate(pytest.approx(2.2), "s", n=2)
    assert cases.together([many, many.replace(value=2.0)]).covers == "repeats"
    epochs = [Estimate(s, "s", n=1, how="estimated") for s in (2016, 2042, 2126)]
    steps = [Estimate(4.2, "s", n=1)] * 3
    assert cases.together(epochs, steps).covers == "none"  # one step of 390 each
    assert cases.together(epochs, [step.replace(n=30) for step in steps]).covers == "repeats"
    # Bytes that were counted are the same every time, and not rounded.
    same = cases.together([Estimate(22_345_678_901, "B", n=None)] * 3)
    assert (same.value, same.low, same.high) == (22_345_678_901,) * 3


def test_a_run_is_opened_by_its_name_its_folder_or_its_zip(journal, tmp_path, monkeypatch):
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
        assert Run.open(name).records == records
    with pytest.raises(PomologyError, match="nothing: no such run; outputs/ has none"):
        Run.open("nothing")
    with pytest.raises(PomologyError, match="nothing: no such folder or zip; runs are in outputs/"):
        Run(tmp_path / "nothing")
