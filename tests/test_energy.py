"""The energy notebook with a meter that a test commands: what it puts into a record, and what it leaves out."""

from __future__ import annotations

import math
import platform
import random
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
from fakes import Clock
from macs import ReplayedEnergy

from pomology import format
from pomology.articles import claims as articles_claims
from pomology.articles import published
from pomology.experiment import outcome
from pomology.experiment.experiment import Experiment
from pomology.machine import energy, rails, snapshot
from pomology.machine.sampler import Telemetry
from pomology.measure.clock import StepClock
from pomology.report import article
from pomology.report import claims as report_claims
from pomology.results import metrics
from pomology.results.record import Record

PATH = Path(__file__).resolve().parents[1] / "notebooks" / "profiling_apple_silicon" / "energy.ipynb"
CELLS = [cell.source for cell in nbformat.read(PATH, 4).cells if cell.cell_type == "code"]
REST_W, WORK_W = 5.0, 40.0


class Meter:
    """So many watts from now on."""

    def __init__(self):
        self.power_w, self.energy, self.last = REST_W, 0.0, time.perf_counter()

    def joules(self, power_w: float | None = None) -> dict[str, float]:
        now = time.perf_counter()
        self.energy, self.last = self.energy + self.power_w * (now - self.last), now
        self.power_w = power_w or self.power_w
        return {"cpu": self.energy}


def run(tmp_path, monkeypatch, meter: Meter | None, budget_s: float, rest_s: float) -> Record:
    """The notebook's one case; its record."""
    monkeypatch.setattr(snapshot, "conditions", lambda: {"power_source": "ac", "flags": []})

    def opened(*_) -> energy.Meter:
        if not meter:
            raise energy.Absent("there is none")
        return energy.Meter({"cpu": 0.001}, meter.joules, {})

    for module in (rails, energy):
        monkeypatch.setattr(module, "meter", opened)
    experiment = Experiment("energy", article="001", devices="cpu", budget_s=budget_s, out=str(tmp_path))
    scope = {"batch_sizes": [1], "energy_models": ["small transformer"], "limit_s": 1.0, "steps": 20_000}
    scope |= {
        "meter": opened,
        "Absent": energy.Absent,
        "rest_s": rest_s,
        "lr": 1e-3,
        "seed": 1,
        "experiment": experiment,
    }
    for mark in ("import torch", "class Transformer", "def work", "def train"):
        (source,) = [source for source in CELLS if mark in source]
        definitions = source.split("experiment = ")[0].split("\nfor ")[0]
        exec(compile(definitions, "energy.ipynb", "exec"), scope)
    for case in experiment.cases(model=["small transformer"], batch_size=[1]):
        if meter:
            steps = case.steps
            case.steps = lambda batches, steps=steps, **more: meter.joules(WORK_W) and steps(batches, **more)
        with case:
            scope["train"](case)
    (record,) = experiment.records
    return record


def test_joules_of_a_step_and_the_power_at_rest(tmp_path, monkeypatch):
    record = run(tmp_path, monkeypatch, Meter(), 1.5, 1.2)
    assert (record.status, record.scaled, record.parameters) == ("ok", True, 3_704_808)
    value = {name: metric.value for name, metric in record.metrics.items()}
    assert value["power_rest_w"] == pytest.approx(REST_W, rel=0.01)
    assert value["power_w"] == pytest.approx(WORK_W, rel=0.05)
    # The power at rest is not subtracted.
    assert value["energy_j_per_step"] == pytest.approx(WORK_W * value["step_s"], rel=0.2)  # on a noisy machine
    assert value["energy_j_per_tflop"] == pytest.approx(value["energy_j_per_step"] / record.flops_per_step * 1e12)
    (cells,) = [row.cells for row in article.article_table("energy", [record]).rows if row.kind == "measured"]
    counted = "Step, all rails (J)"
    assert (
        format.with_interval(record.metrics["energy_j_per_step"], metrics.show("energy_j_per_step", counted)) in cells
    )
    assert "not told" in cells and "counted: cpu" in cells[-1]  # no GPU, which table 5 is about
    # Joules of another model are no verdict on the article's.
    claims = [claim for claim in published.claims("001") if "energy" in claim.experiments]
    claims = report_claims.claims_table(claims, [record])
    assert {row["here"] for row in claims.data} == {articles_claims.INCONCLUSIVE}


def test_without_a_meter_nothing_is_said_about_energy(tmp_path, monkeypatch):
    record = run(tmp_path, monkeypatch, None, 0.2, 0.01)
    assert record.status == "ok" and record.metrics["step_s"].value > 0 and record.absent
    assert not [name for name in record.metrics if "power" in name or "energy" in name]


# Windows between movements of a counter -------------------------------------------------------------------------------


class Chip:
    """A chip whose power a test commands, in simulated time. Its counters move when they are read, the GPU's every
    `gpu_s`."""

    def __init__(self, gpu_s: float = 0.0):
        self.clock, self.watts, self.taken = Clock(), {"cpu": 3.0, "gpu": 1.0, "dram": 0.5}, 0.0
        self.true, self.shown, self.gpu_s, self.due_s = dict.fromkeys(self.watts, 0.0), {}, gpu_s, gpu_s

    def spend(self, seconds: float, **watts: float) -> None:
        """Let time pass at this power, a millisecond at a time."""
        for _ in range(round(1000 * seconds)):
            self.clock.pass_s(1e-3)
            self.true = {rail: joules + 1e-3 * (self.watts | watts)[rail] for rail, joules in self.true.items()}
            if self.clock.now >= self.due_s:
                self.shown, self.due_s = {"gpu": self.true["gpu"]}, self.due_s + self.gpu_s

    def joules(self) -> dict[str, float]:
        self.clock.pass_s(self.taken)
        return self.true | {"gpu": self.shown.get("gpu", 0.0) if self.gpu_s else self.true["gpu"]}

    def meter(self) -> energy.Meter:
        return energy.Meter({"cpu": 0.01, "gpu": self.gpu_s or 0.01, "dram": 0.01}, self.joules, {})


def of_a_training(chip: Chip, monkeypatch, budget_s: float = 10.0, step_s: float = 0.04, steps: int = 10**5, **options):
    """A case of a step of 40 W on the GPU and 12 W on the CPU, which draws far more in its first step, warm-up and on
    ready batches: what the telemetry says of it, and the joules of the GPU that the old way gave it."""
    monkeypatch.setattr(rails, "meter", lambda device: chip.meter())
    watch = Telemetry(device="gpu", clock=chip.clock)
    watch._open()
    watch._sample(edge=True)
    before = dict(chip.true)
    timed = StepClock(lambda: None, budget_s=budget_s, clock=chip.clock, to_device=lambda batch: batch)
    timed.on_progress = lambda *_: watch.mark(*outcome.edge(timed))
    chance = random.Random(1)
    for number, _ in enumerate(timed.steps(range(steps), **options)):
        part = timed.parts["training"]
        warmed_s = sum(block.seconds for block in part.warmup)
        calm = part.warmup and warmed_s >= min(2.0, budget_s / 5) and not timed.on_ready
        watts = {"gpu": 40.0, "cpu": 12.0} if calm else {"gpu": 90.0, "cpu": 30.0}
        chip.spend(step_s * chance.uniform(0.9, 1.1) if number else 3.0, **watts)
        if number % 10 == 0:
            watch._sample()
    watch._sample(edge=True)
    watch._close()
    (part,) = timed.parts.values()
    mean_w = (chip.true["gpu"] - before["gpu"]) / watch.seconds
    return watch, mean_w * sum(block.seconds for block in part.blocks) / sum(block.steps for block in part.blocks)


@pytest.mark.parametrize("gpu_s", [0.0, 0.1])
def test_joules_are_those_of_steady_steps_alone_whatever_came_before_and_between(monkeypatch, gpu_s):
    chip = Chip(gpu_s)
    chip.taken = 1e-4
    watch, old = of_a_training(chip, monkeypatch)
    step = watch.metrics()["energy_gpu_j_per_step"]
    assert step.value == pytest.approx(1.6, rel=0.02) and old > 1.9  # with the first step, warm-up and ready batches
    assert step.n >= 6 and step.low < 1.6 < step.high < 1.7 and step.covers == "run"
    whole = watch.metrics()["energy_j_per_step"]
    assert whole.value == pytest.approx(0.04 * (40 + 12 + 0.5), rel=0.02)
    watts = {name: watch.metrics()[f"power_{name}w"].value for name in ("", "gpu_", "cpu_", "dram_")}
    assert watts == pytest.approx({"": 52.5, "gpu_": 40, "cpu_": 12, "dram_": 0.5}, rel=0.02)


def test_slow_steps_have_a_window_each_where_the_counter_is_fast(monkeypatch):
    watch, _ = of_a_training(Chip(0.1), monkeypatch, budget_s=30, step_s=3.0, steps=1000, ready=False)
    step = watch.metrics()["energy_gpu_j_per_step"]
    assert step.value == pytest.approx(120, rel=0.05) and step.n >= 6


def test_a_counter_that_stands_still_under_load_is_absent(monkeypatch):
    chip = Chip()
    chip.watts["dram"] = 0.0
    watch, _ = of_a_training(chip, monkeypatch, budget_s=2)
    assert watch.rails == ["cpu", "gpu"] and watch.absent["power_dram_w"] == "its counter stood still"
    assert watch.metrics()["energy_j_per_step"].value == pytest.approx(0.04 * 52, rel=0.03)
    stuck = Chip()
    monkeypatch.setattr(stuck, "joules", lambda: stuck.true | {"gpu": 7.0})
    watch, _ = of_a_training(stuck, monkeypatch, budget_s=2)  # on the GPU, which is what it is about
    assert watch.absent["power_w"] == "the energy counter stood still" and watch.rails == []


@pytest.fixture
def replay(monkeypatch):
    """replay(name, begin_s, step_s): 4 s of other work and then steps on the GPU of a Mac with the counters of a file
    of fixtures/macos/energy, from begin_s on. Returns its telemetry, and the true power of the steps by rail."""

    def run(name, begin_s, step_s, version="27.0", steady_s=40.0):
        chip = ReplayedEnergy(name, clock := Clock(), begin_s)
        library = SimpleNamespace(AppleEnergyMonitor=lambda: chip)
        monkeypatch.setitem(sys.modules, "zeus_apple_silicon", library)
        monkeypatch.setattr(sys, "platform", "darwin")
        monkeypatch.setattr(platform, "mac_ver", lambda: (version, ("", "", ""), "arm64"))
        monkeypatch.setattr(snapshot, "virtual_machine", lambda: False)
        monkeypatch.setattr(snapshot, "chip", lambda: "Apple M1 Ultra" if name == "m1-ultra" else "Apple M5 Max")
        watch = Telemetry(device="gpu", clock=clock, only=["energy"])
        watch._open()
        watch._sample(edge=True)

        def work(until_s):
            for due_s in [k / 2 + 1e-3 for k in range(200) if clock.now < k / 2 + 1e-3 < until_s]:  # as its thread does
                clock.now = due_s
                watch._sample()
            clock.now = until_s

        work(4.0)
        watch.mark("steady", 0)
        together = max(1, round(0.1 / step_s))  # of which blocks are
        for number in range(1, 1 + math.ceil(steady_s / step_s / together)):
            work(4.0 + number * together * step_s)
            watch.mark("steady", number * together)
        work(clock.now + 0.01)
        watch._sample(edge=True)
        watch._close()
        return watch, {rail: chip.watts(rail, 4.0, 4.0 + steady_s) for rail in chip.rails}

    return run


@pytest.mark.parametrize(
    "step_s", [0.005, 0.3, 1.05, 2.1, 6.0]
)  # some as long as the counters' period, and half as long
@pytest.mark.parametrize(("name", "version"), [("m1-ultra", "27.0"), ("m5-max", "27.0"), ("m5-max", "26.4")])
def test_macos_27s_counters_give_the_true_power_whenever_a_case_begins(replay, name, version, step_s):
    """The last is a macOS of which nobody has told that it publishes seldom: the period is measured too."""
    inside = []
    for offset in range(20):
        watch, true = replay(name, 0.105 * offset, step_s, version)
        told, rails = watch.metrics(), ["gpu", "dram"] if name == "m1-ultra" else ["cpu", "gpu", "dram"]
        assert watch.rails == rails and ("energy of the cpu" in watch.absent) == ("cpu" not in rails)
        for rail in rails:
            power = told[f"power_{rail}_w"]
            assert power.value == pytest.approx(true[rail], rel=0.03) and power.n >= 6, (rail, offset)
            assert told[f"energy_{rail}_j_per_step"].value == pytest.approx(step_s * true[rail], rel=0.03)
            inside.append(power.low <= true[rail] <= power.high)
        assert told["power_w"].value == pytest.approx(sum(true[rail] for rail in rails), rel=0.03)
        assert told["energy_j"].value == pytest.approx(told["power_w"].value * watch.seconds, rel=0.06)
        traced = [sample.power_w for sample in watch.samples if sample.power_w is not None]
        assert len(traced) > 10 and all(0.6 < power / sum(true.values()) < 1.4 for power in traced)
    assert sum(inside) >= 0.92 * len(inside)


@pytest.mark.parametrize("name", ["m1-ultra", "m5-max"])
def test_a_window_of_a_second_reads_nothing_or_more_than_double(name):
    chip = ReplayedEnergy(name, lambda: 0.0)
    naive = [chip.joules("dram", 0.05 * k + 1) - chip.joules("dram", 0.05 * k) for k in range(800)]
    assert min(naive) == 0 and max(naive) > 2 * chip.watts("dram", 0, 40)


@pytest.mark.parametrize("step_s", [0.04, 2.1, 6.0])
def test_a_counter_that_stops_or_shows_nothing_is_absent_and_not_spread_over_the_rest(replay, step_s):
    for offset in range(5):
        watch, true = replay("m3-max-slept", 0.42 * offset, step_s)
        assert watch.rails == ["gpu"] and watch.metrics()["power_w"].value == pytest.approx(true["gpu"], rel=0.01)
        assert watch.absent["power_cpu_w"] == watch.absent["power_dram_w"] == "its counter stood still"
        watch, true = replay("m5-pro", 0.42 * offset, step_s)
        assert watch.rails == ["gpu", "dram"] and watch.absent["power_cpu_w"] == "its counter stood still"
        assert watch.metrics()["power_w"].value == pytest.approx(true["gpu"] + true["dram"], rel=0.02)


@pytest.mark.parametrize("step_s", [0.04, 0.3, 4.0])
def test_power_without_an_interval_is_as_good_or_absent(replay, step_s):
    for offset in range(20):
        watch, true = replay("m5-max", 0.105 * offset, step_s, steady_s=8.0)
        for rail, watts in true.items():
            power = watch.metrics().get(f"power_{rail}_w")
            assert power is None or power.value == pytest.approx(watts, rel=0.05), (rail, offset)
            assert power or watch.absent[f"power_{rail}_w"] == f"the counter of the {rail} moved too seldom"


def test_a_block_too_short_for_its_counters_tells_no_energy_of_them(replay):
    watch, true = replay("m5-max", 0.0, 0.04, steady_s=2.0)
    why = "the counter of the cpu moved too seldom"
    assert watch.absent["energy_j"] == why and watch.absent["energy_j_per_step"] == f"{why} while steady steps ran"
    assert watch.metrics()["power_gpu_w"].value == pytest.approx(true["gpu"], rel=0.02)


def test_readings_cost_a_twohundredth_of_the_time(monkeypatch):
    chip = Chip()
    chip.taken = 2e-3  # of which 25 ms blocks would lose 8 %
    watch, _ = of_a_training(chip, monkeypatch, budget_s=10, ready=False)
    readings = [each for stretch in watch._read["energy"]._stretches for each in stretch]
    assert 15 <= len(readings) <= 10 / (200 * chip.taken) + 3


def test_a_checkpoint_is_in_no_window(monkeypatch):
    timed = StepClock(lambda: None, budget_s=10, clock=Clock())
    seen = []
    timed.on_progress = lambda *_: seen.append(outcome.edge(timed))
    for number, _ in enumerate(timed.steps(range(60))):
        timed.clock.pass_s(0.05)
        if number == 30:
            with timed.occasional("checkpoint", 1):
                timed.clock.pass_s(5.0)
    stretches = list(dict.fromkeys(stretch for stretch, _ in seen))
    assert len(stretches) == 3  # the first step; from the warm-up to the checkpoint; behind it
