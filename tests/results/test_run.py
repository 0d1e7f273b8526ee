"""A run: its folder or zip, its journals, its repeats."""

from __future__ import annotations

import gzip
import json
import zipfile

import pytest
from journal_lines import ENDED

from pomology.errors import PomologyError
from pomology.format import seconds, with_interval
from pomology.measure.estimate import Estimate
from pomology.results import archive as results_archive
from pomology.results import cases as results_cases
from pomology.results import journal as results_journal
from pomology.results import run as results_run
from pomology.results.journal import Journal
from pomology.results.run import Run


@pytest.fixture
def journal(tmp_path) -> Journal:
    return Journal(tmp_path / "run" / "vae.jsonl")


def test_a_run_reads_what_is_asked_for_once_and_again_when_it_has_grown(journal, monkeypatch):
    parsed, contents = [], results_journal.contents

    def counted(path, *more):
        parsed.append(path.stem)
        return contents(path, *more)

    monkeypatch.setattr(results_journal, "contents", counted)
    folder = journal.path.parent
    Journal(folder / "dcgan.jsonl").end(ENDED | {"case": "d"})
    journal.end(ENDED)
    run = Run(folder)
    assert run.machine == {} and parsed == []
    assert [record.case for record in run.records] == ["d", "a"] and parsed == ["dcgan", "vae"]
    journal.end(ENDED | {"case": "b"})
    assert [record.case for record in run.records] == ["d", "a", "b"] and parsed == [
        "dcgan",
        "vae",
        "vae",
    ]
    assert list(run.journals) == ["dcgan", "vae"] and len(parsed) == 3
    assert run.problems == ["machine.json is missing: nothing tells which machine this was."]
    (folder / "machine.json").write_text("[]")
    assert run.machine == {} and run.problems == ["machine.json cannot be read (AttributeError)."]
    machine = {
        "chip": "Apple M9",
        "cpu_cores": 8,
        "memory_bytes": 2**34,
        "os": "macOS",
        "python": "3.11.9",
    }
    (folder / "machine.json").write_text(json.dumps(machine))
    assert run.machine == machine and run.problems == []
    (folder / "dcgan.jsonl").write_text('{"schema": 2}\n')
    assert run.problems == [
        "dcgan.jsonl, line 1: schema 2 is newer than this kit's 1; update pomology to read it."
    ]
    (folder / "dcgan.jsonl").unlink()
    assert run.problems == [] and list(run.journals) == ["vae"]


def test_journals_of_a_run_that_is_kept_may_be_packed(journal, monkeypatch):
    journal.end(ENDED)
    plain = Run(journal.path.parent).journals["vae"]
    packed = journal.path.with_suffix(".jsonl.gz")
    packed.write_bytes(gzip.compress(journal.path.read_bytes()))
    journal.path.unlink()
    run = Run(journal.path.parent)
    assert list(run.journals) == ["vae"] and run.records == plain.records
    assert run.journals["vae"].size == plain.size  # what was made of it is known to be so
    assert run.journals["vae"].path == packed and results_run.is_run(packed.parent)
    monkeypatch.setattr(results_archive, "MOST_BYTES", plain.size - 1)
    assert Run(packed.parent).problems[0].startswith("vae.jsonl.gz: more than ")
    packed.write_bytes(b"no gzip")
    assert Run(packed.parent).problems[0].startswith("vae.jsonl.gz: cannot be read: ")


def test_repeats_of_too_few_steps_have_a_mean_and_no_interval():
    few, many = Estimate(2.0, "s", n=2), Estimate(2.42, "s", 2.3, 2.5, 30)
    mean = results_cases.together([few, many])
    assert (
        mean == Estimate(pytest.approx(2.2), "s", n=2)
        and with_interval(mean, seconds) == "about 2.2 s"
    )
    assert results_cases.together([many, many.replace(value=2.0)]).covers == "repeats"
    epochs, steps = (
        [Estimate(s, "s", n=1, how="estimated") for s in (2016, 2042, 2126)],
        [Estimate(4.2, "s", n=1)] * 3,
    )
    assert results_cases.together(epochs, steps).covers == "none"  # one step of 390 each
    assert (
        results_cases.together(epochs, [step.replace(n=30) for step in steps]).covers == "repeats"
    )
    # Bytes that were counted are the same every time: neither rounded nor with an interval that they do not have.
    same = results_cases.together([Estimate(22_345_678_901, "B", n=None)] * 3)
    assert (same.value, same.low, same.high) == (22_345_678_901,) * 3 and "±" not in with_interval(
        same
    )


def test_a_run_is_opened_by_its_name_its_folder_or_its_zip(journal, tmp_path, monkeypatch):
    monkeypatch.setattr(results_run, "root", lambda: tmp_path)
    journal.end(ENDED)
    outputs = tmp_path / "outputs"
    outputs.mkdir()
    journal.path.parent.rename(outputs / "one")
    with zipfile.ZipFile(outputs / "two.zip", "w") as packed:
        packed.write(outputs / "one" / "vae.jsonl", "two/vae.jsonl")
    records = Run(outputs / "one").records
    assert len(records) == 1 and Run(outputs / "one").name == "one"
    assert (
        Run.open("one").records
        == Run.open("two").records
        == Run.open(str(outputs / "two.zip")).records
        == records
    )
    with pytest.raises(PomologyError, match="nothing: no such run; outputs/ has none"):
        Run.open("nothing")
    with pytest.raises(PomologyError, match="nothing: no such folder or zip; runs are in outputs/"):
        Run(tmp_path / "nothing")
