"""Memory over time: slopes of traces whose truth is known, devices that leak, and the notebooks' own steps."""

from __future__ import annotations

import dataclasses
import math
import sys
from pathlib import Path

import apart
import fakes
import macs
import nbformat
import numpy as np
import psutil
import pytest

from pomology.errors import PomologyError
from pomology.experiment.experiment import Experiment
from pomology.experiment.feasibility import HOLES
from pomology.machine import memory as machine_memory
from pomology.machine import snapshot
from pomology.measure.intervals import slope
from pomology.report import article
from pomology.results import journal

pytestmark = pytest.mark.usefixtures("quiet_machine")

FOLDER = Path(__file__).resolve().parents[1] / "notebooks" / "profiling_apple_silicon"
MB = 10**6


def autoregressive(rng, steps, rho, per_step):
    noise = rng.standard_normal(steps + 300)
    for step in range(1, len(noise)):
        noise[step] += rho * noise[step - 1]
    return noise[300:] + per_step * np.arange(steps)


SERIES = {  # name -> a trace, and its growth a step
    "independent": lambda rng: (autoregressive(rng, 300, 0.0, 0.02), 0.02),
    "autocorrelated": lambda rng: (autoregressive(rng, 300, 0.9, 0.02), 0.02),
    "wandering": lambda rng: (np.cumsum(rng.normal(0.02, 1, 300)), 0.02),
    "wandering, six values": lambda rng: (np.cumsum(rng.normal(0.02, 1, 6)), 0.02),
    "even stairs": lambda rng: (np.floor((np.arange(300) + rng.uniform(0, 40)) / 40), 1 / 40),
    "uneven stairs by chance": lambda rng: (np.cumsum(rng.poisson(0.1, 300) * rng.exponential(1.0, 300)), 0.1),
    "sawtooth": lambda rng: ((np.arange(300) + rng.uniform(0, 70)) % 70 / 70, 0.0),
}


@pytest.mark.parametrize("name", SERIES)
def test_the_interval_of_a_slope_holds_the_truth_nine_times_in_ten(name):
    rng = np.random.default_rng(3)
    hits, draws = 0, 400
    for _ in range(draws):
        values, truth = SERIES[name](rng)
        found = slope(values, np.arange(len(values)))
        hits += found.low <= truth <= found.high
    assert hits / draws >= 0.90


def test_a_growth_is_told_from_noise_and_from_nothing():
    leak = slope(autoregressive(np.random.default_rng(5), 400, 0.5, 0.1), np.arange(400))
    assert leak.low > 0 and leak.value == pytest.approx(0.1, rel=0.2) and leak.n == 400
    assert slope(np.full(400, 7.0), np.arange(400)).high == 0
    # A page more or less is not seen.
    flat = slope(np.full(400, 7.0), np.arange(400), resolution=4096)
    assert flat.low < 0 < flat.high < 4096 / 300
    steps = np.array([0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 56, 57])  # some are left out
    straight = slope(-2.5 * steps + 10, steps)
    assert straight.value == pytest.approx(-2.5) and straight.low <= -2.5 <= straight.high
    for values, steps in (([1.0, 2.0], [0, 1]), ([1, 2, math.nan], [0, 1, 2]), ([1, 2, 3], [0, 2, 2])):
        with pytest.raises(ValueError, match="a slope needs"):
            slope(values, steps)


def trace_of(allocated, footprint=lambda step: 10**8, steps=200):
    """A trace of simulated counters, with five page faults a step."""
    trace = machine_memory.MemoryTrace(lambda: allocated(trace.steps), 0.0, lambda: 0.1 * trace.steps)
    counted = {"footprint_bytes": footprint, "page_faults": lambda step: 5 * step, "page_ins": lambda step: 0}
    trace.counters = lambda: {name: count(trace.steps) for name, count in counted.items()}
    for _ in range(steps):
        trace.note()
    return trace


def value(metrics, name):
    return metrics[name].value


def test_a_leaking_device_a_flat_one_and_one_that_grows_by_steps():
    leaking = trace_of(lambda step: {"allocated_bytes": 10**9 + 3 * MB * step, "reserved_bytes": 2 * 10**9}).metrics(20)
    assert value(leaking, "allocated_slope_bytes") == pytest.approx(3 * MB)
    assert leaking["allocated_slope_bytes"].low > 0
    assert (value(leaking, "allocated_start_bytes"), value(leaking, "allocated_end_bytes")) == (1_060 * MB, 1_597 * MB)
    assert leaking["reserved_slope_bytes"].low <= 0 <= leaking["reserved_slope_bytes"].high
    # A page more or less is not seen, where a framework counts bytes.
    assert leaking["footprint_slope_bytes"].high > 1000 * leaking["reserved_slope_bytes"].high > 0
    assert value(leaking, "page_faults_slope") == pytest.approx(5) and leaking["page_faults_slope"].low > 0
    by_steps = trace_of(lambda step: {"allocated_bytes": 64 * MB * (step // 16)}).metrics(20)["allocated_slope_bytes"]
    assert 0 < by_steps.low <= 4 * MB <= by_steps.high
    # Once in the whole trace is not enough to call it a growth.
    once = trace_of(lambda step: {"allocated_bytes": 64 * MB * (step > 110)}).metrics(20)["allocated_slope_bytes"]
    assert once.low < 0 < once.high


def test_the_warmup_is_left_out_of_slopes_and_ends():
    filling = trace_of(lambda step: {"allocated_bytes": min(step, 20) * 50 * MB})
    assert value(filling.metrics(20), "allocated_slope_bytes") == 0
    assert value(filling.metrics(20), "allocated_start_bytes") == 1_000 * MB
    assert value(filling.metrics(0), "allocated_slope_bytes") > MB
    assert not [name for name in filling.metrics(198) if "slope" in name]
    assert value(filling.metrics(198), "allocated_end_bytes") == 1_000 * MB and filling.metrics(300) == {}


def test_what_is_not_counted_is_absent_and_long_traces_stay_short():
    trace = trace_of(lambda step: {}, footprint=lambda step: None if step == 150 else 10**8 + 4096 * step, steps=5_000)
    steps = [row[0] for row in trace.rows]
    assert len(steps) <= machine_memory.MOST_TRACED + 1 and steps[-1] == 4_999 and steps == sorted(set(steps))
    metrics = trace.metrics(10)
    assert not [name for name in metrics if name.startswith(("allocated", "reserved", "resident"))]
    assert value(metrics, "page_faults_slope") == pytest.approx(5)


def test_a_counter_that_breaks_is_absent_with_the_reason(monkeypatch):
    trace = machine_memory.MemoryTrace(dict, 0.0)
    monkeypatch.setattr(psutil, "swap_memory", lambda: 1 / 0)
    for _ in range(2):
        values = trace.counters()
        assert values["swap_used_bytes"] is None and values["footprint_bytes"] > 0
        assert trace.absent == {"swap_used_bytes": "ZeroDivisionError: division by zero"}


def test_on_a_mac_the_footprint_is_macos_s_and_no_process_is_started(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(machine_memory.ctypes, "CDLL", lambda *given, **named: macs.LibSystem())
    monkeypatch.setattr(psutil.Process, "memory_info", lambda self: macs.ProcessMemory(10**9, 10**11, 1, 1))
    monkeypatch.setattr(psutil, "swap_memory", lambda: macs.Swap(2**30, 2**29, 2**29, 50.0, 0, 0))
    monkeypatch.setattr(snapshot, "run_command", lambda *command, **more: pytest.fail(f"asks {command}"))
    values = machine_memory.MemoryTrace(dict, 0.0).counters()
    assert (values["footprint_bytes"], values["resident_bytes"]) == (3 * 10**9, 10**9)
    assert values["swap_used_bytes"] == 2**29 and values["page_faults"] > 0


def experiment(folder, **more):
    return Experiment(
        "memory_torch", article="001", devices="cpu", budget_s=5.0, out=str(folder), expects_learning=False, **more
    )


def test_the_budget_is_nine_tenths_of_the_free_memory_and_spares_the_machine(tmp_path, monkeypatch):
    case = next(experiment(tmp_path).cases(load=["near"]))
    for free, wanted in ((100e9, 90e9), (20e9, 18e9), (8e9, 6.5e9), (2e9, 0.5e9)):
        monkeypatch.setattr(case.backend, "free_memory", lambda free=free: int(free))
        monkeypatch.setattr(case.backend, "kind", "gpu")
        assert case.memory_budget() == pytest.approx(wanted)
        monkeypatch.setattr(case.backend, "kind", "cpu")
        # Of a processor's heap: tensors take up to 1.22 times their size, as was measured.
        assert case.memory_budget() == pytest.approx(wanted / HOLES) and HOLES > 1.22 and not case.scaled
        assert "holes between tensors may take 25 % more" in case._notes[-1]
    monkeypatch.setattr(case.backend, "free_memory", lambda: int(20e9))
    assert case.memory_budget(0.5, most_bytes=9e9) == pytest.approx(10e9 / HOLES) and not case.scaled
    assert case.memory_budget(0.9, most_bytes=1e9) == 1e9 and case.scaled and "not near the limit" in case._notes[-1]
    monkeypatch.setattr(case.backend, "free_memory", lambda: int(1.4e9))
    with pytest.raises(PomologyError, match=r"1.4 GB are free, of which 1.5 GB must stay so"):
        case.memory_budget()
    with pytest.raises(PomologyError, match=r"near is 1\.5"):
        case.memory_budget(1.5)


def test_a_case_keeps_its_trace_and_what_is_not_counted_with_the_reason(tmp_path, monkeypatch):
    fenced = []
    (case,) = experiment(tmp_path).cases(load=["easy"])
    monkeypatch.setattr(case.backend, "synchronize", lambda: fenced.append(1))
    with case:
        for _ in case.steps(range(60), ready=False):
            before = len(fenced)
            case.trace()
            assert len(fenced) > before, "what a GPU still does is not in its memory yet"
    (record,) = journal.read(tmp_path / "memory_torch.jsonl").records
    trace = record.memory_trace
    assert trace["columns"] == list(machine_memory.MemoryTrace.COLUMNS)
    assert [row[0] for row in trace["rows"]] == [*range(60)]
    uncounted = "PyTorch keeps no count of it on this device"
    assert trace["absent"] == dict.fromkeys(("allocated_bytes", "reserved_bytes"), uncounted)
    assert {"footprint_slope_bytes", "page_faults_slope", "page_faults"} <= record.metrics.keys()
    times = [row[1] for row in trace["rows"]]
    assert times == sorted(times) and 0 < times[-1] <= record.seconds


def notebook_scope(name, folder, source=lambda text: text, **given):
    """What the notebook defines, up to its cases, with a `train` that `source` may have changed."""
    cells = [cell for cell in nbformat.read(FOLDER / f"{name}.ipynb", 4).cells if cell.cell_type == "code"]
    scope: dict = {}
    for cell in cells:
        text = source(cell.source.split("\n\n\nfor case in")[0])
        exec(compile(text, f"{name}.ipynb", "exec"), scope)
        if "parameters" in cell.metadata.get("tags", []):
            scope |= {"devices": "cpu", "out": str(folder)} | given
        if "def train(case)" in cell.source:
            return scope
    raise AssertionError("no training")


# In this process's memory are holes that earlier tests left.
test_in_a_fresh_process = apart.tests_of("fresh_memory_side.py")


def test_near_the_limit_is_what_the_prediction_says_and_no_more(tmp_path, monkeypatch):
    import torch

    from pomology.models.cost import workload

    scope = notebook_scope("memory_torch", tmp_path)
    (case,) = scope["experiment"].cases(load=["near"])
    for free in (3e9, 24e9, 128e9):
        monkeypatch.setattr(case.backend, "free_memory", lambda free=free: int(free))
        room, count = case.memory_budget(), scope["samples"](case)
        inputs = count * (4 * scope["WIDTH"] + 8)
        assert 0.9 * room < scope["work"](count, "cpu").bytes + inputs <= room and count % scope["PART"] == 0
        more = count + scope["PART"]
        assert scope["work"](more, "cpu").bytes + more * (4 * scope["WIDTH"] + 8) > room
    # Four parts, each counted.
    build, loss, part = scope["build"], scope["loss_function"], scope["PART"]

    def step(model):
        loss(model, torch.empty(4 * part, 32), torch.zeros(4 * part, dtype=torch.long)).backward()

    counted = workload(build, step, optimizer_slots=2, backend="cpu")
    assert dataclasses.asdict(scope["work"](4 * part, "cpu")) == dataclasses.asdict(counted)
    monkeypatch.setattr(case.backend, "free_memory", lambda: int(1.55e9))
    with pytest.raises(
        PomologyError, match=r"one part of 16,384 samples needs at least 10\d MB; 40\.0 MB may be filled"
    ):
        scope["samples"](case)


def test_the_reference_in_pytorch_is_the_notebooks_network(tmp_path):
    import torch

    model = notebook_scope("memory_torch", tmp_path)["build"]()
    numbers = torch.randn(7, 32)
    *blocks, last, last_bias = model.parameters()
    x = numbers
    for norm, norm_bias, matrix, bias in zip(*(blocks[place::4] for place in range(4)), strict=True):
        inner = torch.nn.functional.linear(torch.layer_norm(x, norm.shape, norm, norm_bias), matrix, bias)
        x = x + torch.nn.functional.gelu(inner)
    assert torch.allclose(model(numbers), torch.nn.functional.linear(x, last, last_bias))


def record(framework, backend, load, **slopes):
    """A record as the notebooks leave it. slopes: metric -> (value, low, high)."""
    metrics = {
        name: {"value": v, "low": low, "high": high, "n": 90, "how": "measured", "unit": "B" if "bytes" in name else ""}
        for name, (v, low, high) in slopes.items()
    }
    metrics |= {f"footprint_{end}_bytes": fakes.metric(10**9, unit="B") for end in ("start", "end")}
    form = {"experiment": f"memory_{framework}", "article": "001", "case": f"{framework}-{backend} load={load}"}
    form |= {"config": {"load": load}, "framework": framework, "backend": backend, "chip": "Apple M2 Max"}
    return fakes.record(**form, parameters=18_250, flops_per_step=1, metrics=metrics)


def test_the_table_shows_slopes_with_their_intervals_and_both_ends():
    records = [record("torch", "mps", "easy", footprint_slope_bytes=(1.2e6, 0.9e6, 1.5e6), page_faults_slope=(0, 0, 0))]
    records[0].metrics["footprint_end_bytes"] = records[0].metrics["footprint_end_bytes"].replace(value=1.25 * 10**9)
    table = article.article_table("memory_torch", records)
    (row,) = [row.cells for row in table.rows if row.kind == "measured"]
    shown = dict(zip(table.columns, row, strict=True))
    assert shown["Footprint growth per step"] == "+1.20 MB (+900 kB to +1.50 MB)"
    assert shown["Footprint"] == "1.00 GB → 1.25 GB" and shown["Page faults per step"] == "0 (0 to 0)"
    assert not {"Allocated", "Step"} & shown.keys() and "allocated, " in table.notes[-1]
    assert "step (not measured)" in table.notes[-1]
    assert any("One that holds 0" in text for text in table.meaning)
