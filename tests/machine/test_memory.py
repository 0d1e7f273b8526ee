"""The memory of a process: traces, and whose children are counted."""

from __future__ import annotations

import multiprocessing
import os

import pytest

from pomology.experiment.experiment import Experiment
from pomology.machine import memory as machine_memory
from pomology.machine import quiet
from pomology.results import journal

pytestmark = pytest.mark.usefixtures("quiet_machine")


@pytest.mark.skipif(not hasattr(os, "waitid"), reason="macOS has no waitid")
def test_asking_for_children_takes_the_end_of_none_away_from_whoever_waits_for_it():
    worker = multiprocessing.get_context("fork").Process(target=str)
    worker.start()
    os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
    assert machine_memory.live_children() == [worker.pid]
    quiet.own_s()
    assert os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
    worker.join()
    assert machine_memory.live_children() == []


def test_a_case_keeps_its_trace_and_what_is_not_counted_with_the_reason(tmp_path, monkeypatch):
    fenced = []
    settings = {"article": "001", "devices": "cpu", "budget_s": 5.0, "out": str(tmp_path)}
    experiment = Experiment("memory", expects_learning=False, **settings)
    (case,) = experiment.cases(load=["easy"])
    monkeypatch.setattr(case.backend, "synchronize", lambda: fenced.append(1))
    with case:
        for _ in case.steps(range(60), ready=False):
            before = len(fenced)
            case.trace()
            assert len(fenced) > before, "what a GPU still does is not in its memory yet"
    (record,) = journal.read(tmp_path / "memory.jsonl").records
    trace = record.memory_trace
    assert trace["columns"] == machine_memory.TRACED
    assert [row[0] for row in trace["rows"]] == [*range(60)]
    assert trace["rows"][0][2:4] == [None, None]  # PyTorch counts nothing on a CPU
    times = [row[1] for row in trace["rows"]]
    assert times == sorted(times) and 0 < times[-1] <= record.seconds
