"""The journal: what is on the disk when, what a killed process costs, and what a malformed line cannot do."""

from __future__ import annotations

import gzip
import json
import math
import os
import signal
import subprocess
import sys
import time
import zipfile
from typing import get_args

import pytest

from pomology.errors import PomologyError
from pomology.format import seconds, with_interval
from pomology.measure.estimate import Estimate
from pomology.results import archive as results_archive
from pomology.results import cases as results_cases
from pomology.results import journal as results_journal
from pomology.results import record as results_record
from pomology.results import run as results_run
from pomology.results.journal import Journal, read
from pomology.results.run import Run

METRIC = {"value": 2.5, "unit": "s", "low": 2.25, "high": 2.75, "n": 40, "how": "estimated"}
# What is known before a case begins, and of a finished one, key by key as the design of the kit lists them.
STARTED = {"event": "start", "schema": 1, "experiment": "vae", "article": "003", "case": "a", "config": {"lr": 1}}
STARTED |= {"framework": "torch", "framework_version": "2.13.0", "backend": "cpu", "device": None, "chip": "Apple M2"}
STARTED |= {"precision": "fp32", "profile": "quick", "data": "stand-in", "scaled": False, "repeat": 0, "threads": 24}
STARTED |= {"power_source": "ac", "started": "2026-01-02T03:04:05Z"}
ENDED = STARTED | {"event": "end", "device": "cpu", "parameters": 652824, "flops_per_step": 501350400}
ENDED |= {"foreign_load": 0.05, "flags": ["few-steps"], "status": "ok", "reason": None, "seconds": 12.5}
ENDED |= {"metrics": {"epoch_s": METRIC}}


@pytest.fixture
def journal(tmp_path) -> Journal:
    return Journal(tmp_path / "run" / "vae.jsonl")


def statuses(journal: Journal) -> dict:
    return {(record.case, record.repeat): record.status for record in read(journal.path).records}


def cases(journal: Journal) -> list[str]:
    return [record.case for record in read(journal.path).records]


def test_a_line_is_on_the_disk_before_anything_else_happens(journal, monkeypatch):
    seen = []

    def fsync(descriptor):
        # Read through another descriptor: what is still in the program's buffer is not there yet.
        assert os.fstat(descriptor).st_ino == journal.path.stat().st_ino
        seen.append(journal.path.read_bytes())

    monkeypatch.setattr(os, "fsync", fsync)
    journal.start(STARTED)
    assert len(seen) == 1 and seen[0].endswith(b"\n") and json.loads(seen[0]) == STARTED
    end = ENDED | {"reason": "µs × 2\n“quoted”", "blocks": {"training": {"steady": [[3, 0.1]]}}}
    journal.end(end)
    assert len(seen) == 2 and seen[1].startswith(seen[0]) and json.loads(seen[1].split(b"\n")[1]) == end
    (record,) = read(journal.path).records
    assert record.line() == end
    assert "µs × 2" in journal.path.read_text(encoding="utf-8")  # readable for people too


def test_a_record_against_the_schema_is_refused_and_nothing_is_written(journal):
    journal.start(STARTED)
    before = journal.path.read_bytes()
    for key in set(ENDED) - {"schema", "event"}:
        with pytest.raises(ValueError, match=f"^record of case .*: Object missing required field `{key}`"):
            journal.end({name: value for name, value in ENDED.items() if name != key})
    for wrong, told in (
        ({"status": "fine"}, r"Invalid enum value 'fine' - at `\$.status`"),
        ({"metrics": {"epoch_s": METRIC | {"value": math.nan}}}, "Expected `float`"),
        ({"metrics": {"epoch_s": METRIC | {"value": math.inf}}}, "Expected `float`"),
        ({"config": {"lr": math.nan}}, "JSON"),
    ):
        with pytest.raises(ValueError, match=told):
            journal.end(ENDED | wrong)
    assert journal.path.read_bytes() == before


def test_a_reason_that_is_no_text_does_not_lose_the_case(journal):
    journal.end(ENDED | {"status": "error", "reason": "no such file: caf\udce9.txt"})  # as of a Latin-1 file name
    (record,) = read(journal.path).records
    assert record.reason.startswith("no such file: caf")


@pytest.mark.parametrize("keep", [1, 200, -2])
def test_a_torn_last_line_is_reported_and_the_next_one_is_not_glued_to_it(journal, keep):
    journal.end(ENDED)
    first = journal.path.stat().st_size
    journal.end(ENDED | {"case": "b"})
    torn = journal.path.read_bytes()[: first + keep if keep > 0 else keep]
    journal.path.write_bytes(torn)
    told = ["vae.jsonl, line 2: torn or not JSON; passed over"]
    assert cases(journal) == ["a"] and read(journal.path).problems == told
    Journal(journal.path).end(ENDED | {"case": "c"})
    assert cases(journal) == ["a", "c"] and read(journal.path).problems == told
    assert journal.path.read_bytes().startswith(torn)
    journal.path.write_bytes(journal.path.read_bytes().rstrip(b"\n"))  # that is no tear
    journal.end(ENDED | {"case": "d"})
    assert cases(journal) == ["a", "c", "d"] and read(journal.path).problems == told


def test_torn_lines_in_the_middle_cost_themselves_only(journal):
    good = [json.dumps(ENDED | {"case": name}).encode() for name in "abc"]
    torn = [good[1][:100], b"", b"  ", b"\0" * 300, b"x", b"y", b"z"]
    journal.path.write_bytes(b"\n".join([good[0], *torn, good[2]]) + b"\n")
    assert cases(journal) == ["a", "c"]
    told = [problem.split(":")[0] for problem in read(journal.path).problems]
    assert told == ["vae.jsonl, line 2", "vae.jsonl, line 5", "vae.jsonl, line 6", "vae.jsonl"]
    assert read(journal.path).problems[-1] == "vae.jsonl: 2 more lines that cannot be used"


@pytest.mark.parametrize("times", [[[1, -0.1]], [[1, "s"]], [[1]], [[-1, 2.0]], None, "abc"])
def test_raw_times_that_are_none_cost_their_line_and_say_where(journal, times):
    journal.end(ENDED)
    line = json.dumps(ENDED | {"case": "b", "blocks": {"kernel_s": {"steady": times}}}) + "\n"
    with open(journal.path, "a") as file:
        file.write(line)
    assert cases(journal) == ["a"]
    (problem,) = read(journal.path).problems
    assert problem.startswith("vae.jsonl, line 2: steady of `$.blocks.kernel_s`: Expected")


WRITER = """
import sys
from pomology.results.journal import Journal
sys.path.insert(0, sys.argv[2])
from test_results import ENDED, STARTED
journal, number = Journal(sys.argv[1]), 0
while True:
    journal.start(STARTED | {"case": f"case {number}"})
    journal.end(ENDED | {"case": f"case {number}", "reason": "x" * 20_000})
    print(number, flush=True)
    number += 1
"""


def test_a_killed_process_loses_at_most_the_case_it_was_in(journal):
    command = [sys.executable, "-c", WRITER, str(journal.path), os.path.dirname(__file__)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        said = [int(process.stdout.readline()) for _ in range(20)]
        time.sleep(0.0137)
        process.send_signal(signal.SIGKILL)
        said += [int(line) for line in process.stdout.read().split(b"\n")[:-1]]
    contents = read(journal.path)
    finished = [record.case for record in contents.records if record.status == "ok"]
    assert set(finished) >= {f"case {number}" for number in said} and len(finished) <= len(said) + 1
    assert len(contents.open_starts) + len(contents.problems) <= 2  # a case that was open, and one torn line
    journal.end(ENDED | {"case": "afterwards"})
    assert statuses(journal)["afterwards", 0] == "ok"


def test_a_case_that_began_and_never_ended_reads_as_crashed(journal):
    journal.start(STARTED)
    journal.start(STARTED | {"case": "b"})
    journal.end(ENDED | {"case": "b"})
    crashed, ok = read(journal.path).records  # in the order in which they began
    assert (crashed.case, crashed.status, ok.case, ok.status) == ("a", "crashed", "b", "ok")
    assert results_record.checked(crashed.line()) == crashed
    assert (crashed.metrics, crashed.seconds) == ({}, None) and "never ended" in crashed.reason
    assert [start.case for start in read(journal.path).open_starts] == ["a"]


def test_the_last_line_of_a_case_wins_and_repeats_are_kept_apart(journal):
    for repeat in (0, 1):
        journal.start(STARTED | {"repeat": repeat})
        journal.end(ENDED | {"repeat": repeat, "status": "error", "reason": "first attempt"})
    journal.end(ENDED | {"repeat": 1})
    assert statuses(journal) == {("a", 0): "error", ("a", 1): "ok"}
    journal.start(STARTED)
    assert statuses(journal) == {("a", 0): "crashed", ("a", 1): "ok"}


def test_a_watcher_gives_open_cases_their_status_once(journal):
    journal.start(STARTED)
    journal.start(STARTED | {"case": "b", "repeat": 1, "chip": "Apple M1"})
    journal.end(ENDED | {"case": "c"})
    assert journal.finish_open("timeout", "over the time limit") == ["a", "b"]
    assert statuses(journal) == {("a", 0): "timeout", ("b", 1): "timeout", ("c", 0): "ok"}
    found = read(journal.path).records[1]
    assert (found.reason, found.chip) == ("over the time limit", "Apple M1")
    before = journal.path.read_bytes()
    assert journal.finish_open("crashed", "again") == [] and journal.path.read_bytes() == before


def test_a_second_attempt_at_what_was_slowed_stands_only_if_it_ends_well_beside_a_better_canary(journal):
    def ran(seconds, canary_s, **more):
        journal.start(STARTED)
        journal.end(ENDED | {"seconds": seconds, "canary": {"before_s": 0.1, "after_s": canary_s}} | more)
        held = read(journal.path)
        assert held.open_starts == [] and held.done("a", 0)
        return [record.seconds for record in held.records]

    assert ran(1, 0.2) == [1] and ran(2, 0.3) == [1] and ran(3, 0.1, status="error", reason="x") == [1]
    journal.start(STARTED)  # its process dies
    held = read(journal.path)
    assert [record.status for record in held.records] == ["ok"] and len(held.open_starts) == 1
    assert journal.finish_open("crashed", "killed") == ["a"] and journal.finish_open("crashed", "killed") == []
    assert [record.status for record in read(journal.path).records] == ["ok"]
    assert ran(4, 0.15) == [4] and read(journal.path).begun["a", 0] == 5


def test_only_what_may_end_differently_or_vanished_once_is_tried_again(journal):
    assert not read(journal.path).done("a", 0)
    for status in {each for part in get_args(results_record.Status) for each in get_args(part) or (part,)}:
        journal.start(STARTED)
        journal.end(ENDED | {"status": status})
        assert read(journal.path).done("a", 0) == (status not in ("interrupted", "error"))
        assert not read(journal.path).done("a", 1) and not read(journal.path).done("b", 0)
    journal.start(STARTED)  # attempts that ended do not count
    assert not read(journal.path).done("a", 0)
    journal.start(STARTED)
    assert read(journal.path).done("a", 0) and statuses(journal) == {("a", 0): "crashed"}


def line(changes: dict, **replaced: str) -> bytes:
    """A record as JSON, with literals that json.dumps would not write."""
    text = json.dumps(ENDED | changes)
    for key, literal in replaced.items():
        text = text.replace(f'"<{key}>"', literal)
    return text.encode()


WRONG = {"schema": "1", "event": 3, "config": "lr=1", "device": 0, "scaled": 0, "parameters": 1.5, "repeat": True}
WRONG |= {"flags": ["drift", 3], "status": "great", "started": 1700000000, "seconds": "12", "metrics": []}
METRICS = {key: {k: v for k, v in METRIC.items() if k != key} for key in METRIC}
METRICS |= {"number": 3.5, "text": METRIC | {"value": "3.5"}, "guessed": METRIC | {"how": "guessed"}}
METRICS |= {"half an interval": METRIC | {"high": None}}
LITERALS = ("NaN", "-Infinity", "1e999", "1" * 5000)
MALFORMED = {
    **{f"no {key}": json.dumps({k: v for k, v in ENDED.items() if k != key}).encode() for key in ENDED},
    **{f"wrong {key}": line({key: value}) for key, value in WRONG.items()},
    **{f"metric {key}": line({"metrics": {"epoch_s": metric}}) for key, metric in METRICS.items()},
    **{f"low {x[:5]}": line({"metrics": {"epoch_s": METRIC | {"low": "<x>"}}}, x=x) for x in LITERALS},
    "seconds Infinity": line({"seconds": "<x>"}, x="Infinity"),
    "parameters huge": line({"parameters": "<x>"}, x="1" + "0" * 400),
    "NaN in config": line({"config": {"lr": "<x>"}}, x="NaN"),
    "nested bomb": b"[" * 200_000,
    "not UTF-8": line({"reason": "<x>"}, x='"\xff"').decode().encode("latin-1"),
    "pickle": b"cos system (S'true' tR.",
    "text": b"\"__import__('os')\"",
    "two on a line": line({}) * 2,
    "very long text": line({"status": "x" * 1_000_000}),
    "start without its case": json.dumps({k: v for k, v in STARTED.items() if k != "case"}).encode(),
}


@pytest.mark.parametrize("malformed", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_line_is_passed_over_and_named(journal, malformed):
    journal.path.write_bytes(line({}) + b"\n" + malformed + b"\n" + line({"case": "b"}) + b"\n")
    contents = read(journal.path)
    assert [record.case for record in contents.records] == ["a", "b"] and not contents.open_starts
    (problem,) = contents.problems
    assert problem.startswith("vae.jsonl, line 2: ") and "\n" not in problem and len(problem) < 300


def test_another_schema_and_endless_lines_are_refused_in_one_line(journal):
    for schema, told in ((2, "newer than this kit's 1; update pomology"), (0, "older than this kit's 1")):
        journal.path.write_bytes(line({}) + b"\n" + json.dumps({"schema": schema, "what": "nobody knows yet"}).encode())
        with pytest.raises(PomologyError, match=rf"^vae\.jsonl, line 2: schema {schema} is {told}.*$"):
            read(journal.path)
    journal.path.write_bytes(b"\n" * 100_001)
    with pytest.raises(PomologyError, match=r"^vae\.jsonl: more than 100,000 lines$"):
        read(journal.path)


def test_a_record_is_typed_and_its_line_is_that_of_the_journal(journal):
    between = METRIC | {"value": 8, "how": "measured", "repeats": True}
    more = {"metrics": {"epoch_s": METRIC, "page_faults": between}, "note": "x", "trace": [[0, 1.5]]}
    record = results_record.checked(ENDED | more | {"thermal_level": None})
    assert (record.config, record.seconds, record.status) == ({"lr": 1}, 12.5, "ok")
    assert record.metrics["epoch_s"] == Estimate(2.5, "s", 2.25, 2.75, 40, "estimated", "run")
    assert (record.metrics["page_faults"].covers, type(record.metrics["page_faults"].value)) == ("repeats", int)
    assert not record.blocks and record.thermal_level is None  # missing, and known to be nothing
    assert record.line() == ENDED | more | {"thermal_level": None}
    assert list(record.line())[:3] == ["event", "schema", "experiment"]
    journal.end(record)
    assert read(journal.path).records == [record]


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
    assert [record.case for record in run.records] == ["d", "a", "b"] and parsed == ["dcgan", "vae", "vae"]
    assert list(run.journals) == ["dcgan", "vae"] and len(parsed) == 3
    assert run.problems == ["machine.json is missing: nothing tells which machine this was."]
    (folder / "machine.json").write_text("[]")
    assert run.machine == {} and run.problems == ["machine.json cannot be read (AttributeError)."]
    machine = {"chip": "Apple M9", "cpu_cores": 8, "memory_bytes": 2**34, "os": "macOS", "python": "3.11.9"}
    (folder / "machine.json").write_text(json.dumps(machine))
    assert run.machine == machine and run.problems == []
    (folder / "dcgan.jsonl").write_text('{"schema": 2}\n')
    assert run.problems == ["dcgan.jsonl, line 1: schema 2 is newer than this kit's 1; update pomology to read it."]
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
    assert mean == Estimate(pytest.approx(2.2), "s", n=2) and with_interval(mean, seconds) == "about 2.2 s"
    assert results_cases.together([many, many.replace(value=2.0)]).covers == "repeats"
    epochs, steps = [Estimate(s, "s", n=1, how="estimated") for s in (2016, 2042, 2126)], [Estimate(4.2, "s", n=1)] * 3
    assert results_cases.together(epochs, steps).covers == "none"  # one step of 390 each
    assert results_cases.together(epochs, [step.replace(n=30) for step in steps]).covers == "repeats"
    # Bytes that were counted are the same every time: neither rounded nor with an interval that they do not have.
    same = results_cases.together([Estimate(22_345_678_901, "B", n=None)] * 3)
    assert (same.value, same.low, same.high) == (22_345_678_901,) * 3 and "±" not in with_interval(same)


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
    assert Run.open("one").records == Run.open("two").records == Run.open(str(outputs / "two.zip")).records == records
    with pytest.raises(PomologyError, match="nothing: no such run; outputs/ has none"):
        Run.open("nothing")
    with pytest.raises(PomologyError, match="nothing: no such folder or zip; runs are in outputs/"):
        Run(tmp_path / "nothing")
