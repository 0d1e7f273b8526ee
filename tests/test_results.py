"""The journal: what is on the disk when, what a killed process costs, and what a malformed line cannot do."""

from __future__ import annotations

import builtins
import copy
import json
import math
import os
import signal
import subprocess
import sys
import textwrap
import time
import zipfile

import pytest

from pomology.errors import PomologyError
from pomology.measure.estimate import Estimate
from pomology.results import journal as results_journal
from pomology.results import record as results_record
from pomology.results import run as results_run
from pomology.results.journal import Journal
from pomology.results.run import Run

METRIC = {"value": 2.5, "unit": "s", "low": 2.25, "high": 2.75, "n": 40, "how": "estimated"}
# A finished case, key by key as the design of the kit lists them.
ENDED = {
    "schema": 1,
    "event": "end",
    "experiment": "vae",
    "article": "003",
    "case": "torch-cpu batch_size=128",
    "config": {"batch_size": 128},
    "framework": "torch",
    "framework_version": "2.13.0",
    "backend": "cpu",
    "device": "cpu",
    "chip": "Apple M2 Ultra",
    "precision": "fp32",
    "profile": "quick",
    "data": "stand-in",
    "scaled": False,
    "parameters": 652824,
    "flops_per_step": 501350400,
    "repeat": 0,
    "threads": 24,
    "foreign_load": 0.05,
    "power_source": "ac",
    "flags": ["few-steps"],
    "status": "ok",
    "reason": None,
    "started": "2026-01-02T03:04:05Z",
    "seconds": 12.5,
    "metrics": {"epoch_s": METRIC},
}
# What is known before a case begins.
STARTED = {key: value for key, value in ENDED.items() if key not in ("schema", "event", "status", "reason", "metrics")}


def ended(**changes) -> dict:
    return copy.deepcopy(ENDED) | changes


def started(case: str = ENDED["case"], repeat: int = 0, **changes) -> dict:
    unknown = ("seconds", "parameters", "flops_per_step", "foreign_load", "flags")
    record = {key: value for key, value in STARTED.items() if key not in unknown}
    return record | {"case": case, "repeat": repeat, "device": None, **changes}


@pytest.fixture
def journal(tmp_path) -> Journal:
    return Journal(tmp_path / "run" / "vae.jsonl")


def lines(journal: Journal) -> list[str]:
    return journal.path.read_bytes().decode().split("\n")


def write(journal: Journal, *records) -> None:
    journal.path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


def statuses(journal: Journal) -> dict:
    return {(record.case, record.repeat): record.status for record in results_journal.read(journal.path).records}


# Writing --------------------------------------------------------------------------------------------------------------


def test_a_line_is_on_the_disk_before_anything_else_happens(journal, monkeypatch):
    seen = []

    def fsync(descriptor):
        # Read through another descriptor: what is still in the program's buffer is not there yet.
        assert os.fstat(descriptor).st_ino == journal.path.stat().st_ino
        seen.append(journal.path.read_bytes())

    monkeypatch.setattr(os, "fsync", fsync)
    journal.start(started())
    assert len(seen) == 1
    assert seen[0].endswith(b"\n")
    assert json.loads(seen[0]) == {"event": "start", "schema": 1, **started()}
    journal.end(ended())
    assert len(seen) == 2
    assert seen[1].startswith(seen[0])
    assert json.loads(seen[1].split(b"\n")[1]) == ENDED


def test_what_was_written_reads_back_and_the_file_only_grows(journal):
    journal.start(started())
    before = journal.path.read_bytes()
    journal.end(ended(reason="µs × 2\n“quoted”", blocks={"training": {"steady": [[3, 0.1]]}}))
    assert journal.path.read_bytes().startswith(before)
    (record,) = results_journal.read(journal.path).records
    assert record.line() == ended(reason="µs × 2\n“quoted”", blocks={"training": {"steady": [[3, 0.1]]}})
    assert "µs × 2" in journal.path.read_text(encoding="utf-8")  # readable for people too


def test_a_record_against_the_schema_is_refused_and_nothing_is_written(journal):
    journal.start(started())
    before = journal.path.read_bytes()
    for key in ENDED:
        if key not in ("schema", "event"):
            record = ended()
            del record[key]
            with pytest.raises(ValueError, match=f"{key} is missing"):
                journal.end(record)
    with pytest.raises(ValueError, match="status is 'fine'; it must be one of ok, out-of-memory, "):
        journal.end(ended(status="fine"))
    for value in (math.nan, math.inf):
        with pytest.raises(ValueError, match="'epoch_s': value is"):
            journal.end(ended(metrics={"epoch_s": METRIC | {"value": value}}))
        with pytest.raises(ValueError, match="JSON"):
            journal.end(ended(config={"lr": value}))
    assert journal.path.read_bytes() == before


def test_a_reason_that_is_no_text_does_not_lose_the_case(journal):
    journal.end(ended(status="error", reason="no such file: caf\udce9.txt"))  # as Python spells a Latin-1 file name
    (record,) = results_journal.read(journal.path).records
    assert record.reason.startswith("no such file: caf")


def test_a_journal_is_readable_at_once_and_makes_its_folder(journal):
    assert journal.path.parent.is_dir()
    assert results_journal.read(journal.path).records == []
    assert results_journal.read(journal.path).problems == []


# Torn lines -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [1, 10, 200, -1])
def test_a_torn_last_line_is_reported_and_the_next_one_is_not_glued_to_it(journal, keep):
    journal.end(ended(case="a"))
    journal.end(ended(case="b"))
    whole = journal.path.read_bytes()
    first = whole.index(b"\n") + 1
    torn = whole[: len(whole) - 2] if keep == -1 else whole[: first + keep]
    journal.path.write_bytes(torn)
    contents = results_journal.read(journal.path)
    assert [record.case for record in contents.records] == ["a"]
    assert contents.problems == ["vae.jsonl, line 2: torn or not JSON; passed over"]
    Journal(journal.path).end(ended(case="c"))
    contents = results_journal.read(journal.path)
    assert [record.case for record in contents.records] == ["a", "c"]
    assert contents.problems == ["vae.jsonl, line 2: torn or not JSON; passed over"]
    assert journal.path.read_bytes().startswith(torn)


def test_a_last_line_that_lacks_only_its_newline_counts(journal):
    journal.end(ended(case="a"))
    journal.path.write_bytes(journal.path.read_bytes().rstrip(b"\n"))
    journal.end(ended(case="b"))
    contents = results_journal.read(journal.path)
    assert [record.case for record in contents.records] == ["a", "b"]
    assert contents.problems == []
    assert len([line for line in lines(journal) if line]) == 2


def test_a_torn_line_in_the_middle_costs_itself_only(journal):
    good = [json.dumps(ended(case=name)).encode() for name in "abc"]
    journal.path.write_bytes(b"\n".join([good[0], good[1][:100], b"", b"  ", b"\0" * 300, good[2]]) + b"\n")
    contents = results_journal.read(journal.path)
    assert [record.case for record in contents.records] == ["a", "c"]
    assert [problem.split(":")[0] for problem in contents.problems] == ["vae.jsonl, line 2", "vae.jsonl, line 5"]


WRITER = """
import sys
from pomology.results.journal import Journal
sys.path.insert(0, sys.argv[2])
from test_results import ended, started
journal, number = Journal(sys.argv[1]), 0
while True:
    journal.start(started(case=f"case {number}"))
    journal.end(ended(case=f"case {number}", reason="x" * 20_000))
    sys.stdout.write(f"{number}\\n")
    sys.stdout.flush()
    number += 1
"""


@pytest.mark.parametrize("lines_before_the_kill", [3, 40])
def test_a_killed_process_loses_at_most_the_case_it_was_in(journal, lines_before_the_kill):
    command = [sys.executable, "-c", WRITER, str(journal.path), os.path.dirname(__file__)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        said = [int(process.stdout.readline()) for _ in range(lines_before_the_kill)]
        time.sleep(0.0137)
        process.send_signal(signal.SIGKILL)
        said += [int(line) for line in process.stdout.read().split(b"\n")[:-1]]
    contents = results_journal.read(journal.path)
    finished = [record.case for record in contents.records if record.status == "ok"]
    assert set(finished) >= {f"case {number}" for number in said}
    assert len(finished) <= len(said) + 1
    assert len(contents.open_starts) + len(contents.problems) <= 2  # a case that was open, and one torn line
    journal.end(ended(case="afterwards"))
    assert statuses(journal)["afterwards", 0] == "ok"


# How a case ended -----------------------------------------------------------------------------------------------------


def test_a_case_that_began_and_never_ended_reads_as_crashed(journal):
    journal.start(started(case="a"))
    journal.start(started(case="b"))
    journal.end(ended(case="b"))
    contents = results_journal.read(journal.path)
    crashed, ok = contents.records  # in the order in which they began
    assert (crashed.case, crashed.status, ok.case, ok.status) == ("a", "crashed", "b", "ok")
    assert results_record.problem(crashed) is None
    assert crashed.metrics == {}
    assert crashed.seconds is None
    assert "never ended" in crashed.reason
    assert [start.case for start in contents.open_starts] == ["a"]


def test_the_last_line_of_a_case_wins_and_repeats_are_kept_apart(journal):
    for repeat in (0, 1):
        journal.start(started(case="a", repeat=repeat))
        journal.end(ended(case="a", repeat=repeat, status="error", reason="first attempt"))
    journal.start(started(case="a", repeat=1))
    journal.end(ended(case="a", repeat=1))
    assert statuses(journal) == {("a", 0): "error", ("a", 1): "ok"}
    journal.start(started(case="a", repeat=0))
    assert statuses(journal) == {("a", 0): "crashed", ("a", 1): "ok"}


def test_a_watcher_gives_open_cases_their_status_once(journal):
    journal.start(started(case="a"))
    journal.start(started(case="b", repeat=1, chip="Apple M1"))
    journal.start(started(case="c"))
    journal.end(ended(case="c"))
    assert journal.finish_open("timeout", "over the time limit") == ["a", "b"]
    found = {record.case: record for record in results_journal.read(journal.path).records}
    assert {name: found[name].status for name in "abc"} == {"a": "timeout", "b": "timeout", "c": "ok"}
    assert found["b"].reason == "over the time limit"
    assert (found["b"].repeat, found["b"].chip) == (1, "Apple M1")
    before = journal.path.read_bytes()
    assert journal.finish_open("crashed", "again") == []
    assert journal.path.read_bytes() == before


@pytest.mark.parametrize("status", results_record.STATUSES)
def test_only_what_may_end_differently_is_tried_again(journal, status):
    assert not results_journal.read(journal.path).done("a", 0)
    journal.start(started(case="a"))
    journal.end(ended(case="a", status=status))
    assert results_journal.read(journal.path).done("a", 0) == (status not in ("interrupted", "error"))
    assert not results_journal.read(journal.path).done("a", 1)
    assert not results_journal.read(journal.path).done("b", 0)


def test_a_case_whose_process_vanished_is_tried_once_more(journal):
    journal.start(started(case="a"))
    assert not results_journal.read(journal.path).done("a", 0)
    journal.start(started(case="a"))
    assert results_journal.read(journal.path).done("a", 0)
    assert statuses(journal) == {("a", 0): "crashed"}


@pytest.mark.parametrize("status", ["interrupted", "error"])
def test_attempts_that_ended_do_not_use_up_the_one_after_a_crash(journal, status):
    for _ in range(3):
        journal.start(started(case="a"))
        journal.end(ended(case="a", status=status))
    journal.start(started(case="a"))
    assert not results_journal.read(journal.path).done("a", 0)  # the first time that its process vanished
    journal.start(started(case="a"))
    assert results_journal.read(journal.path).done("a", 0)


def test_a_retry_that_succeeds_is_final(journal):
    journal.start(started(case="a"))
    journal.start(started(case="a"))
    journal.end(ended(case="a"))
    assert results_journal.read(journal.path).done("a", 0)
    assert statuses(journal) == {("a", 0): "ok"}


def test_the_statuses_are_those_of_the_design():
    assert set(results_record.STATUSES) == {
        *("ok", "out-of-memory", "unsupported", "fallback", "mismatch", "not-learning", "too-big", "crashed"),
        *("timeout", "interrupted", "error"),
    }


# Journals of other people ---------------------------------------------------------------------------------------------


def test_another_schema_is_refused_in_one_line(journal):
    for schema, age in ((2, "newer"), (0, "older")):
        write(journal, ended(case="a"), {"schema": schema, "what": "nobody knows yet"})
        with pytest.raises(PomologyError) as refusal:
            results_journal.read(journal.path)
        message = str(refusal.value)
        assert "\n" not in message
        assert f"vae.jsonl, line 2: schema {schema} is {age} than this kit's 1" in message


def test_an_oversized_file_is_refused_before_it_is_read(journal, monkeypatch):
    with open(journal.path, "wb") as file:
        file.truncate(64 * 2**20 + 1)  # a sparse file: takes no space
    monkeypatch.setattr(type(journal.path), "read_bytes", lambda path: pytest.fail("was read"))
    with pytest.raises(PomologyError, match=r"vae\.jsonl: 67,108,865 bytes; a journal has at most 67,108,864"):
        results_journal.read(journal.path)
    with pytest.raises(PomologyError, match="at most 10"):
        results_journal.read(journal.path, most_bytes=10)


def without(key: str) -> dict:
    record = ended()
    del record[key]
    return record


def line(record, **replaced: str) -> bytes:
    """A record as JSON, with literals that json.dumps would not write."""
    text = json.dumps(record)
    for key, literal in replaced.items():
        text = text.replace(f'"<{key}>"', literal)
    return text.encode()


WRONG_TYPES = {
    "schema": "1",
    "event": 3,
    "experiment": None,
    "article": 3,
    "case": ["a"],
    "config": "batch_size=128",
    "framework": {},
    "framework_version": 2.13,
    "backend": False,
    "device": 0,
    "chip": ["M1"],
    "precision": 32,
    "profile": None,
    "data": True,
    "scaled": 0,
    "parameters": 1.5,
    "flops_per_step": "many",
    "repeat": True,
    "threads": [8],
    "foreign_load": "low",
    "power_source": 1,
    "flags": "contended",
    "status": None,
    "reason": ["why"],
    "started": 1700000000,
    "seconds": "12",
    "metrics": [],
}
MALFORMED = {
    **{f"no {key}": line(without(key)) for key in ENDED},
    **{f"wrong {key}": line(ended(**{key: value})) for key, value in WRONG_TYPES.items()},
    "schema true": line(ended(schema=True)),
    "another event": line(ended(event="note")),
    "unknown status": line(ended(status="great")),
    "flags that are no texts": line(ended(flags=["drift", 3])),
    "metric that is a number": line(ended(metrics={"epoch_s": 3.5})),
    "metric that is null": line(ended(metrics={"epoch_s": None})),
    **{
        f"metric without {key}": line(ended(metrics={"epoch_s": {k: v for k, v in METRIC.items() if k != key}}))
        for key in METRIC
    },
    "metric of text": line(ended(metrics={"epoch_s": METRIC | {"value": "3.5"}})),
    "metric of a boolean": line(ended(metrics={"epoch_s": METRIC | {"value": True}})),
    "metric guessed": line(ended(metrics={"epoch_s": METRIC | {"how": "guessed"}})),
    "half an interval": line(ended(metrics={"epoch_s": METRIC | {"high": None}})),
    **{
        f"{key} {literal[:6]}": line(ended(metrics={"epoch_s": METRIC | {key: "<x>"}}), x=literal)
        for key in ("value", "low", "high")
        for literal in ("NaN", "Infinity", "-Infinity", "1e999", "1" + "0" * 400, "1" * 5000)
    },
    "seconds Infinity": line(ended(seconds="<x>"), x="Infinity"),
    "seconds 1e999": line(ended(seconds="<x>"), x="1e999"),
    "parameters huge": line(ended(parameters="<x>"), x="1" + "0" * 400),
    "NaN in config": line(ended(config={"lr": "<x>"}), x="NaN"),
    "nested bomb": b"[" * 200_000,
    "nested bomb of objects": b'{"a":' * 200_000,
    "nested bomb, closed": line(ended(status="<x>"), x="[" * 5000 + "]" * 5000),
    "nested below the limit": line(ended(status="<x>"), x="[" * 900 + "]" * 900),
    "not UTF-8": line(ended(reason="<x>"), x='"\xff"').decode().encode("latin-1"),
    "UTF-16": "{}".encode("utf-16"),
    "gzip": b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03",
    "pickle": b"cos\nsystem\n(S'true'\ntR.".replace(b"\n", b" "),
    "list": b"[]",
    "number": b"17",
    "text": b"\"__import__('os')\"",
    "null": b"null",
    "NaN": b"NaN",
    "Python": b"{'schema': 1}",
    "trailing comma": b'{"schema": 1,}',
    "two on a line": line(ENDED) + line(ENDED),
    "HTML": b"<html><script>alert(1)</script></html>",
    "carriage returns": b"\r\r\r",
    "very long text": line(ended(status="x" * 1_000_000)),
    "very long key": line(ended(metrics={"x" * 1_000_000: None})),
}


@pytest.mark.parametrize("malformed", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_line_is_passed_over_and_named(journal, malformed):
    journal.path.write_bytes(line(ended(case="a")) + b"\n" + malformed + b"\n" + line(ended(case="b")) + b"\n")
    contents = results_journal.read(journal.path)
    assert [record.case for record in contents.records] == ["a", "b"]
    if malformed.strip():
        (problem,) = contents.problems
        assert problem.startswith("vae.jsonl, line 2: ")
        assert "\n" not in problem
        assert len(problem) < 300
    assert not results_journal.read(journal.path).done("c", 0)
    journal.end(ended(case="d"))
    assert len(results_journal.read(journal.path).records) == 3


@pytest.mark.parametrize("key", started())
def test_a_malformed_start_line_is_passed_over_too(journal, key):
    start = {"event": "start", "schema": 1, **started()}
    del start[key]
    write(journal, start)
    contents = results_journal.read(journal.path)
    assert contents.records == []
    assert contents.open_starts == []
    assert contents.problems[0].startswith(f"vae.jsonl, line 1: {key} ")


def test_nothing_in_a_journal_is_evaluated(journal, monkeypatch):
    def forbidden(*arguments, **named):
        pytest.fail("a journal was evaluated")

    code = "__import__('os').system('true')"
    write(journal, ended(case=code, reason=code, config={code: code, "__class__": "x"}, metrics={code: METRIC}))
    for name in ("eval", "exec", "__import__"):
        with monkeypatch.context() as patch:
            patch.setattr(builtins, name, forbidden)
            (record,) = results_journal.read(journal.path).records
    assert record.case == record.reason == record.config[code] == code
    assert list(record.metrics) == [code]


# Records and runs ---------------------------------------------------------------------------------------------------


def test_a_record_is_typed_and_its_line_is_that_of_the_journal(journal):
    between = METRIC | {"value": 8, "how": "measured", "repeats": True}
    line = ended(metrics={"epoch_s": METRIC, "page_faults": between}, note="x", trace=[[0, 1.5]], thermal_level=None)
    record = results_record.checked(line)
    assert (record.config, record.seconds, record.status) == ({"batch_size": 128}, 12.5, "ok")
    assert record.metrics["epoch_s"] == Estimate(2.5, "s", 2.25, 2.75, 40, "estimated", "run")
    assert (record.metrics["page_faults"].covers, type(record.metrics["page_faults"].value)) == ("repeats", int)
    assert not record.blocks and record.thermal_level is None  # missing, and known to be nothing
    assert record.line() == line and list(record.line())[:3] == ["event", "schema", "experiment"]
    journal.end(record)
    assert results_journal.read(journal.path).records == [record]
    assert "trace" not in record.without_samples().line()
    assert results_record.problem(ended(threads="8")) == "threads is '8'; it must be int or null"
    assert results_record.problem(record.replace(threads="8")) == "threads is '8'; it must be int or null"


def test_a_run_reads_what_is_asked_for_once_and_again_when_it_has_grown(journal, monkeypatch):
    parsed = []
    contents = results_journal.contents
    monkeypatch.setattr(
        results_journal, "contents", lambda path, *more: parsed.append(path.stem) or contents(path, *more)
    )
    folder = journal.path.parent
    Journal(folder / "dcgan.jsonl").end(ended(case="d"))
    journal.end(ended(case="a"))
    run = Run(folder)
    assert run.machine == {} and parsed == []
    assert [record.case for record in run.records_of(["vae", "nowhere"])] == ["a"] and parsed == ["vae"]
    assert [record.case for record in run.records] == ["d", "a"] and parsed == ["vae", "dcgan"]
    journal.end(ended(case="b"))
    assert [record.case for record in run.records] == ["d", "a", "b"] and parsed == ["vae", "dcgan", "vae"]
    assert list(run.journals) == ["dcgan", "vae"] and len(parsed) == 3
    (missing,) = run.problems
    assert missing.startswith("machine.json is missing")
    machine = {"chip": "Apple M9", "cpu_cores": 8, "memory_bytes": 2**34, "os": "macOS", "python": "3.11.9"}
    (folder / "machine.json").write_text(json.dumps(machine))
    assert run.machine == machine and run.problems == []
    (folder / "dcgan.jsonl").write_text('{"schema": 2}\n')
    assert run.problems == ["dcgan.jsonl, line 1: schema 2 is newer than this kit's 1; update pomology to read it."]
    (folder / "dcgan.jsonl").unlink()
    assert run.problems == [] and list(run.journals) == ["vae"]


def test_a_run_is_opened_by_its_name_its_folder_or_its_zip(journal, tmp_path, monkeypatch):
    monkeypatch.setattr(results_run, "root", lambda: tmp_path)
    journal.end(ended())
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


# What reading takes ---------------------------------------------------------------------------------------------------


def test_reading_needs_no_pandas_and_no_framework():
    script = textwrap.dedent("""
        import sys
        from pomology.results import journal as results
        assert not {"pandas", "torch", "numpy", "pickle"} & set(sys.modules), set(sys.modules)
    """)
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_thousand_journals_are_read(tmp_path, record_testsuite_property):
    """Reports how long it takes; a busy machine proves nothing about it."""
    text = "".join(json.dumps(ended(case=f"case {number}")) + "\n" for number in range(150))
    path = tmp_path / "vae.jsonl"
    path.write_text(text, encoding="utf-8")
    begun = time.perf_counter()
    count = 50
    for _ in range(count):
        assert len(results_journal.read(path).records) == 150
    seconds = (time.perf_counter() - begun) * 1000 / count
    record_testsuite_property("seconds_to_read_1000_journals_of_150_cases", round(seconds, 2))
    print(f"1,000 journals of 150 cases: {seconds:.1f} s")
