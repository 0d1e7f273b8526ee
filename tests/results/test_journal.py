"""Journals with crashes, torn lines and untrusted contents."""

import contextlib
import errno
import fcntl
import json
import math
import os
from typing import get_args
from unittest.mock import Mock

import pytest
from journal_lines import ENDED, METRIC, STARTED

from pomology.results import record as results_record
from pomology.results.journal import Journal, read


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
    end = ENDED | {"reason": "µs × 2\n“quoted”", "blocks": {"training": {"steady": [[3, 0.1]]}}}
    journal.end(end)
    assert [len(each.splitlines()) for each in seen] == [1, 2] and seen[1].endswith(b"\n")
    assert [json.loads(line) for line in seen[1].splitlines()] == [STARTED, end]
    (record,) = read(journal.path).records
    assert json.loads(json.dumps(record.line())) == end
    assert "µs × 2" in journal.path.read_text(encoding="utf-8")  # readable for people too
    with pytest.raises(ValueError):  # no JSON has it
        journal.end(ENDED | {"asides": {"pause": float("nan")}})
    assert len(seen) == 2


@pytest.mark.parametrize("name", ["ENOTSUP", "ENOTTY", "EINVAL", "EIO", "ENOSPC"])
def test_only_a_failing_drive_fails_where_macos_s_flush_is_refused(journal, monkeypatch, name):
    synchronize = Mock()
    monkeypatch.setattr(os, "fsync", synchronize)
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", Mock(side_effect=OSError(getattr(errno, name), "planned")))
    fails = name in ("EIO", "ENOSPC")
    with pytest.raises(OSError, match="planned") if fails else contextlib.nullcontext():
        journal.end(ENDED)
    assert synchronize.call_count == 1 and cases(journal) == ["a"]


@pytest.mark.parametrize("name", ["EINVAL", "ENOSYS", "ENOTSUP", "EIO", "EDQUOT"])
def test_a_file_system_that_refuses_fsync_keeps_its_lines(journal, monkeypatch, name):
    error = OSError(getattr(errno, name), "planned")
    monkeypatch.setattr(os, "fsync", Mock(side_effect=error))
    fails = name in ("EIO", "EDQUOT")
    with pytest.raises(OSError, match="planned") if fails else contextlib.nullcontext():
        journal.end(ENDED)
    assert cases(journal) == ["a"]


@pytest.mark.parametrize("keep", [1, 200, -2])
def test_a_torn_last_line_is_reported_and_does_not_join_the_next_one(journal, keep):
    journal.end(ENDED)
    first = journal.path.stat().st_size
    journal.end(ENDED | {"case": "b"})
    torn = journal.path.read_bytes()[: first + keep if keep > 0 else keep]
    journal.path.write_bytes(torn)
    (problem,) = read(journal.path).problems
    assert problem.startswith("vae.jsonl: skipped 1 unreadable lines, the first in line 2 (")
    assert cases(journal) == ["a"]
    Journal(journal.path).end(ENDED | {"case": "c"})
    assert cases(journal) == ["a", "c"] and read(journal.path).problems == [problem]
    assert journal.path.read_bytes().startswith(torn)
    journal.path.write_bytes(journal.path.read_bytes().rstrip(b"\n"))  # no torn line
    journal.end(ENDED | {"case": "d"})
    assert cases(journal) == ["a", "c", "d"] and read(journal.path).problems == [problem]


def test_a_case_that_began_and_never_ended_reads_as_crashed(journal):
    journal.start(STARTED)
    journal.start(STARTED | {"case": "b"})
    journal.end(ENDED | {"case": "b"})
    crashed, ok = read(journal.path).records  # in the order in which they began
    assert (crashed.case, crashed.status, ok.case, ok.status) == ("a", "crashed", "b", "ok")
    assert results_record.checked(crashed.line()) == crashed
    assert (crashed.metrics, crashed.seconds) == ({}, None) and "never ended" in crashed.reason
    assert [start.case for start in read(journal.path).open_starts] == ["a"]


def test_the_last_line_of_a_case_counts_and_repeats_are_separate(journal):
    for repeat in (0, 1):
        journal.start(STARTED | {"repeat": repeat})
        journal.end(ENDED | {"repeat": repeat, "status": "error", "reason": "first attempt"})
    journal.end(ENDED | {"repeat": 1})
    assert statuses(journal) == {("a", 0): "error", ("a", 1): "ok"}
    journal.start(STARTED)
    assert statuses(journal) == {("a", 0): "crashed", ("a", 1): "ok"}


def test_only_errors_interrupts_and_cases_killed_once_are_tried_again(journal):
    assert not read(journal.path).done("a", 0)
    for status in get_args(results_record.Status):
        journal.start(STARTED)
        journal.end(ENDED | {"status": status})
        assert read(journal.path).done("a", 0) == (status not in ("interrupted", "error"))
        assert not read(journal.path).done("a", 1) and not read(journal.path).done("b", 0)
    journal.start(STARTED)  # attempts that ended do not count
    assert not read(journal.path).done("a", 0)
    journal.start(STARTED)
    assert read(journal.path).done("a", 0) and statuses(journal) == {("a", 0): "crashed"}


def line(changes: dict) -> bytes:
    return json.dumps(ENDED | changes).encode()


MALFORMED = {
    "another schema": line({"schema": 2}),
    "wrong status": line({"status": "great"}),
    "half an interval": line({"metrics": {"epoch_s": METRIC | {"high": None}}}),
    "raw times without steps": line({"blocks": {"training": {"steady": [[0.1]]}}}),
    "NaN": line({"metrics": {"epoch_s": METRIC | {"low": math.nan}}}),
    "deeply nested": b"[" * 200_000,
    "not UTF-8": line({"reason": "<x>"}).replace(b"<x>", b"\xff"),
}


@pytest.mark.parametrize("malformed", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_line_is_skipped_and_reported(journal, malformed):
    journal.path.write_bytes(line({}) + b"\n" + malformed + b"\n" + line({"case": "b"}) + b"\n")
    contents = read(journal.path)
    assert [record.case for record in contents.records] == ["a", "b"] and not contents.open_starts
    (problem,) = contents.problems
    assert problem.startswith("vae.jsonl: skipped 1 unreadable lines, the first in line 2 (")
    assert "\n" not in problem and len(problem) < 300


def test_a_journal_of_an_older_version_still_loads(journal):
    """It has calibrations as `canary`, and pauses of the device before a case."""
    older = ENDED | {"canary": {"before_s": 0.5, "after_s": 0.6}, "flags": ["slowed", "cut-short"]}
    older |= {"thermal": {"before": {"level": 0}, "after": {}, "rested_s": 3.0}, "rested_s": 3.0}
    journal.path.write_text(json.dumps(older) + "\n")
    (record,) = read(journal.path).records
    assert record.calibration == older["canary"]
    assert record.line()["canary"] == older["canary"] and "calibration" not in record.line()
    # The last attempt of a case counts.
    journal.end(ENDED | {"seconds": 1.0})
    assert [record.seconds for record in read(journal.path).records] == [1.0]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"metrics": {"step_s": {"value": 0, "unit": "s"}}},
            "step_s is 0; a time must be positive",
        ),
        ({"metrics": {"epoch_s": {"value": -2.76, "unit": "s"}}}, "epoch_s is -2.76; a time must"),
        ({"metrics": {"kernel_s": {"value": 1e-320, "unit": "s"}}}, "a time must be positive"),
        ({"metrics": {"loss_last": {"value": 1e305}}}, "expected a finite number"),
        ({"metrics": {"step_s": {"value": 1.0, "n": 2**63}}}, "n of step_s is 9223372036854775808"),
        ({"repeat": 2**63}, "repeat is 9223372036854775808; expected 0 to"),
        ({"flops_per_step": -1}, "flops_per_step is -1"),
        ({"config": {"batch_size": {"a": 1}}}, "the setting batch_size is nested"),
        ({"config": {"batch_size": 10**30}}, "the setting batch_size exceeds"),
        ({"seconds": -1.0}, "seconds is -1.0"),
    ],
)
def test_a_number_that_no_case_has_is_named_and_the_rest_is_read(tmp_path, changes, said):
    path = tmp_path / "vae.jsonl"
    lines = [ENDED | {"case": "a"}, ENDED | {"case": "b"} | changes]
    path.write_text("\n".join(map(json.dumps, lines)))
    found = read(path)
    assert [record.case for record in found.records] == ["a"]
    (problem,) = found.problems
    assert problem.startswith("vae.jsonl: skipped 1 unreadable lines, the first in line 2 (")
    assert said in problem
    # A clock that stood still ended its case as an error, which is kept.
    if "step_s is 0" in said:
        lines[1] |= {"status": "error", "reason": "the clock stood still"}
        path.write_text("\n".join(map(json.dumps, lines)))
        assert read(path).problems == []
