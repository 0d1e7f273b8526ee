"""The memory of a process over steps: traces, growth, and what is not counted."""

from __future__ import annotations

import multiprocessing
import os

import numpy as np
import pytest

from pomology.experiment.experiment import Experiment
from pomology.machine import memory as machine_memory
from pomology.machine import quiet
from pomology.results import journal

pytestmark = pytest.mark.usefixtures("quiet_machine")


MB = 10**6


@pytest.fixture
def trace_of(monkeypatch):
    """A trace of simulated counters, with five page faults a step."""

    def make(allocated, footprint=lambda step: 10**8, steps=200):
        def device():
            return allocated(len(trace.rows))

        monkeypatch.setattr(machine_memory, "footprint", lambda: footprint(len(trace.rows)))
        faults = {"page_ins": 0}
        monkeypatch.setattr(
            machine_memory, "page_faults", lambda: faults | {"page_faults": 5 * len(trace.rows)}
        )
        trace = machine_memory.MemoryTrace(device, 0.0, lambda: 0.1 * len(trace.rows))
        for _ in range(steps):
            trace.note()
        return trace

    return make


def test_a_leaking_device_a_flat_one_and_one_that_grows_by_steps(trace_of):
    def leaking(step):
        return {"allocated_bytes": 10**9 + 3 * MB * step, "reserved_bytes": 2 * 10**9}

    metrics = trace_of(leaking).metrics(20)
    leak = metrics["allocated_slope_bytes"]
    assert leak.value == pytest.approx(3 * MB) and leak.low > 0
    ends = [metrics[f"allocated_{end}_bytes"].value for end in ("start", "end")]
    assert ends == [1_060 * MB, 1_597 * MB]
    flat = metrics["reserved_slope_bytes"]
    assert flat.low <= 0 <= flat.high
    # A page more or less is not seen, where a framework counts bytes.
    assert metrics["footprint_slope_bytes"].high > 1000 * flat.high > 0
    faults = metrics["page_faults_slope"]
    assert faults.value == pytest.approx(5) and faults.low > 0

    def slope(allocated):
        trace = trace_of(lambda step: {"allocated_bytes": allocated(step)})
        return trace.metrics(20)["allocated_slope_bytes"]

    by_steps = slope(lambda step: 64 * MB * (step // 16))
    assert 0 < by_steps.low <= 4 * MB <= by_steps.high
    # Once in the whole trace is not enough to call it a growth.
    once = slope(lambda step: 64 * MB * (step > 110))
    assert once.low < 0 < once.high


def test_what_is_not_counted_in_every_step_is_absent(trace_of):
    def footprint(step):
        return None if step == 152 else 10**8 + 4096 * step

    metrics = trace_of(lambda step: {}, footprint).metrics(10)
    assert not [name for name in metrics if name.startswith(("allocated", "reserved", "footprint"))]
    assert metrics["page_faults_slope"].value == pytest.approx(5)


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
    assert trace["columns"] == list(machine_memory.MemoryTrace.COLUMNS)
    assert [row[0] for row in trace["rows"]] == [*range(60)]
    assert trace["rows"][0][2:4] == [None, None]  # PyTorch counts nothing on a CPU
    assert {"footprint_slope_bytes", "page_faults_slope", "page_faults"} <= record.metrics.keys()
    times = [row[1] for row in trace["rows"]]
    assert times == sorted(times) and 0 < times[-1] <= record.seconds


def random_walk(rng, steps, rho, per_step):
    noise = rng.standard_normal(steps + 300)
    for step in range(1, len(noise)):
        noise[step] += rho * noise[step - 1]
    return noise[300:] + per_step * np.arange(steps)


SERIES = {  # name -> a trace, and its growth a step
    "autocorrelated": lambda rng: (random_walk(rng, 300, 0.9, 0.02), 0.02),
    "wandering": lambda rng: (np.cumsum(rng.normal(0.02, 1, 300)), 0.02),
    "wandering, six values": lambda rng: (np.cumsum(rng.normal(0.02, 1, 6)), 0.02),
    "stairs": lambda rng: (np.floor((np.arange(300) + rng.uniform(0, 40)) / 40), 1 / 40),
    "sawtooth": lambda rng: ((np.arange(300) + rng.uniform(0, 70)) % 70 / 70, 0.0),
}


@pytest.mark.parametrize("name", SERIES)
def test_the_interval_of_a_slope_holds_the_truth_nine_times_in_ten(name):
    rng = np.random.default_rng(3)
    hits, draws = 0, 400
    for _ in range(draws):
        values, truth = SERIES[name](rng)
        found = machine_memory.slope(values, np.arange(len(values)))
        hits += found.low <= truth <= found.high
    assert hits / draws >= 0.90
