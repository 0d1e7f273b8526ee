"""The memory of a process over steps: traces, growth, and what is not counted."""

from __future__ import annotations

import sys

import macs
import psutil
import pytest

from pomology.experiment.experiment import Experiment
from pomology.machine import memory as machine_memory
from pomology.machine import snapshot
from pomology.results import journal

pytestmark = pytest.mark.usefixtures("quiet_machine")


MB = 10**6


def trace_of(allocated, footprint=lambda step: 10**8, steps=200):
    """A trace of simulated counters, with five page faults a step."""
    trace = machine_memory.MemoryTrace(
        lambda: allocated(trace.steps), 0.0, lambda: 0.1 * trace.steps
    )
    counted = {
        "footprint_bytes": footprint,
        "page_faults": lambda step: 5 * step,
        "page_ins": lambda step: 0,
    }
    trace.counters = lambda: {name: count(trace.steps) for name, count in counted.items()}
    for _ in range(steps):
        trace.note()
    return trace


def value(metrics, name):
    return metrics[name].value


def test_a_leaking_device_a_flat_one_and_one_that_grows_by_steps():
    leaking = trace_of(
        lambda step: {"allocated_bytes": 10**9 + 3 * MB * step, "reserved_bytes": 2 * 10**9}
    ).metrics(20)
    assert value(leaking, "allocated_slope_bytes") == pytest.approx(3 * MB)
    assert leaking["allocated_slope_bytes"].low > 0
    assert (value(leaking, "allocated_start_bytes"), value(leaking, "allocated_end_bytes")) == (
        1_060 * MB,
        1_597 * MB,
    )
    assert leaking["reserved_slope_bytes"].low <= 0 <= leaking["reserved_slope_bytes"].high
    # A page more or less is not seen, where a framework counts bytes.
    assert leaking["footprint_slope_bytes"].high > 1000 * leaking["reserved_slope_bytes"].high > 0
    assert (
        value(leaking, "page_faults_slope") == pytest.approx(5)
        and leaking["page_faults_slope"].low > 0
    )
    by_steps = trace_of(lambda step: {"allocated_bytes": 64 * MB * (step // 16)}).metrics(20)[
        "allocated_slope_bytes"
    ]
    assert 0 < by_steps.low <= 4 * MB <= by_steps.high
    # Once in the whole trace is not enough to call it a growth.
    once = trace_of(lambda step: {"allocated_bytes": 64 * MB * (step > 110)}).metrics(20)[
        "allocated_slope_bytes"
    ]
    assert once.low < 0 < once.high


def test_what_is_not_counted_is_absent_and_long_traces_stay_short():
    trace = trace_of(
        lambda step: {},
        footprint=lambda step: None if step == 150 else 10**8 + 4096 * step,
        steps=5_000,
    )
    steps = [row[0] for row in trace.rows]
    assert (
        len(steps) <= machine_memory.MOST_TRACED + 1
        and steps[-1] == 4_999
        and steps == sorted(set(steps))
    )
    metrics = trace.metrics(10)
    assert not [name for name in metrics if name.startswith(("allocated", "reserved", "resident"))]
    assert value(metrics, "page_faults_slope") == pytest.approx(5)


def test_on_a_mac_the_footprint_is_macos_s_and_no_process_is_started(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(machine_memory.ctypes, "CDLL", lambda *given, **named: macs.LibSystem())
    monkeypatch.setattr(
        psutil.Process, "memory_info", lambda self: macs.ProcessMemory(10**9, 10**11, 1, 1)
    )
    monkeypatch.setattr(psutil, "swap_memory", lambda: macs.Swap(2**30, 2**29, 2**29, 50.0, 0, 0))
    monkeypatch.setattr(
        snapshot, "run_command", lambda *command, **more: pytest.fail(f"asks {command}")
    )
    values = machine_memory.MemoryTrace(dict, 0.0).counters()
    assert (values["footprint_bytes"], values["resident_bytes"]) == (3 * 10**9, 10**9)
    assert values["swap_used_bytes"] == 2**29 and values["page_faults"] > 0


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
    assert trace["columns"] == list(machine_memory.MemoryTrace.COLUMNS)
    assert [row[0] for row in trace["rows"]] == [*range(60)]
    uncounted = "PyTorch keeps no count of it on this device"
    assert trace["absent"] == dict.fromkeys(("allocated_bytes", "reserved_bytes"), uncounted)
    assert {"footprint_slope_bytes", "page_faults_slope", "page_faults"} <= record.metrics.keys()
    times = [row[1] for row in trace["rows"]]
    assert times == sorted(times) and 0 < times[-1] <= record.seconds
