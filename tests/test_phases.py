"""Phases of a step, smaller siblings and what surely cannot end: against simulated time and pretended rates."""

from __future__ import annotations

import time
from types import SimpleNamespace

import fakes
import numpy as np
import pytest
from fakes import Clock, SimulatedDevice

from pomology.devices import find
from pomology.devices.torch import TorchDevice as Device
from pomology.errors import Mismatch, TooBig
from pomology.experiment.experiment import Experiment
from pomology.measure import calls
from pomology.measure.clock import Block, StepClock
from pomology.measure.epochs import epoch_metrics
from pomology.models.cost import Workload
from pomology.results import folders, journal
from pomology.results.record import Record

pytestmark = pytest.mark.usefixtures("quiet_machine")

COSTS = {"forward": 0.3, "backward": 0.5, "update": 0.1}


@pytest.mark.parametrize(("budget_s", "slow"), [(1000, 1), (50, 2)], ids=["whole", "estimated"])
def test_each_phase_has_its_own_time_though_the_device_works_later(budget_s, slow):
    device = SimulatedDevice(Clock(), launch_s=0.0001)
    clock = StepClock(device.synchronize, clock=device.clock, budget_s=budget_s)
    for number, _ in enumerate(clock.steps(range(200))):
        for name, seconds in COSTS.items():
            with clock.phase(name):
                device.launch(seconds * (10 if number < slow else 1))  # the first step and warm-up are in no phase
        device.launch(0.05)  # and something that is no phase
    metrics = epoch_metrics(clock)
    for name, seconds in COSTS.items():
        # The launch of a phase's work counts: the device waits for it.
        assert metrics[f"{name}_s"].value == pytest.approx(seconds + 0.0001, rel=1e-6)
        assert metrics[f"{name}_s"].n == metrics["step_s"].n
    assert metrics["step_s"].value == pytest.approx(0.95 + 0.0004, rel=1e-6)
    assert clock.parts["training"].warmup[0].phases["forward"] == pytest.approx(3.0001 if slow == 2 else 0.3001)


def test_a_block_of_several_steps_gives_the_mean_of_a_step_without_ready_ones_and_asides():
    now = Clock()
    clock = StepClock(clock=now, budget_s=3.0, to_device=lambda batch: batch)
    for number, _ in enumerate(clock.steps(range(100_000))):
        now.pass_s(0.0 if clock.on_ready else 0.001)  # loading
        if number < 500:
            with clock.phase("update"):
                now.pass_s(0.0)
        with clock.phase("forward"):
            now.pass_s(0.0005 if clock.on_ready else 0.001 if number % 2 else 0.003)
            with clock.occasional("checkpoint", per_epoch=1):
                now.pass_s(0.01)
    part = clock.parts["training"]
    assert max(block.steps for block in part.blocks) > 2 and part.ready_blocks
    assert epoch_metrics(clock)["forward_s"].value == pytest.approx(0.002, rel=0.01)
    assert "update_s" not in epoch_metrics(clock), "not every block has it"


def test_wrong_phases_are_refused():
    clock, told = StepClock(), "one of forward, backward, update, in a loop over steps and in no other phase"
    with pytest.raises(ValueError, match=f"phase 'forward': {told}"), clock.phase("forward"):
        pass
    for _ in clock.steps(range(1)):
        with pytest.raises(ValueError, match=f"phase 'first_step': {told}"), clock.phase("first_step"):
            pass
        with pytest.raises(ValueError, match=f"'backward': {told}"), clock.phase("forward"), clock.phase("backward"):
            pass
        with clock.phase("update"):  # and a phase that failed does not bar the next
            pass


@pytest.fixture
def make(tmp_path):
    def make(**changes) -> Experiment:
        settings = {"article": "001", "devices": "cpu", "profile": "quick", "budget_s": 0.1, "out": str(tmp_path)}
        return Experiment("whisper", **settings | changes)

    return make


def test_phases_stand_in_the_record_with_their_raw_times(make):
    experiment, now = make(), Clock()
    for case in experiment.cases([{"batch_size": 8}]):
        with case:
            case.clock.clock = now
            for _ in case.steps(range(60)):
                for number, name in enumerate(COSTS):
                    with case.phase(name):
                        now.pass_s(0.0005 * number)
    (record,) = experiment.records
    metrics, raw = record.metrics, record.blocks["training"]
    steps = sum(count for count, _ in raw["steady"])
    for name in COSTS:
        assert len(raw[f"steady_{name}"]) == len(raw["steady"])
        assert len(raw[f"warmup_{name}"]) == len(raw["warmup"]) > 0
        assert metrics[f"{name}_s"].value == pytest.approx(sum(raw[f"steady_{name}"]) / steps, rel=1e-3)
        assert metrics[f"{name}_s"].value == pytest.approx(0.0005 * [*COSTS].index(name))
    assert metrics["step_s"].value == pytest.approx(0.0015)


def test_what_is_timed_without_a_loop_stands_in_the_record_with_its_raw_times(make):
    experiment = make()
    for case in experiment.cases([{"batch_size": 8}]):
        with case:
            found = case.measure("step_s", lambda: time.sleep(0.0005), budget_s=0.02)
            both = calls.in_pairs(lambda: None, lambda: None, budget_s=0.001)
            case.kernel("kernel_s", both.timed)
            case.raw("reference", both.reference.blocks)
            case.raw("launch_cold_s", [0.25, 0.5])
    (record,) = experiment.records
    raw = record.blocks["step_s"]
    assert [count for count, _ in raw["warmup"]] == [block.steps for block in found.warmup] and raw["warmup"]
    assert raw["steady"] == [[block.steps, pytest.approx(block.seconds, abs=1e-9)] for block in found.blocks]
    assert raw["first_call_s"] == found.first_call_s and raw["stopped"] == "budget"
    assert record.metrics["step_s"].value == pytest.approx(
        np.median([s / count for count, s in raw["steady"]]), rel=1e-4
    )
    assert len(record.blocks["reference"]["steady"]) == len(record.blocks["kernel_s"]["steady"]) >= 6
    assert record.blocks["launch_cold_s"] == {"steady": [[1, 0.25], [1, 0.5]]}


ROWS = [{"model": "medium"}, {"model": "small"}, {"model": "tiny"}]


@pytest.mark.parametrize(
    ("endings", "tried"),
    [
        ([MemoryError(), None], ["medium", "small"]),
        ([TooBig("9 GB")] * 3, ["medium", "small", "tiny"]),
        ([ValueError("a bug")], ["medium"]),  # a smaller model does not mend it
    ],
)
def test_the_first_sibling_that_fits_is_the_last_that_is_tried(make, endings, tried):
    experiment, left = make(), iter(endings)
    for case in experiment.first_that_fits(ROWS):
        with case:
            if (ending := next(left)) is not None:
                raise ending
            case.metric("step_s", 1.0, "s")
    assert [record.config["model"] for record in experiment.records] == tried


def test_the_next_run_carries_on_where_siblings_were_left_on_every_device(make, capsys):
    def run(body):
        experiment, other = make(), Device("cpu")
        other.backend = "pretended"
        experiment.devices.append(other)
        for case in experiment.first_that_fits(ROWS):
            with case:
                body(case)

    def cut_off(case):
        if case["model"] == "medium":
            raise TooBig("9 GB")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(cut_off)
    run(lambda case: case.metric("step_s", 1.0, "s"))
    ended = [(record.backend, record.config["model"], record.status) for record in make().records]
    assert ended == [("cpu", "medium", "too-big"), ("cpu", "small", "ok"), ("pretended", "medium", "ok")]
    run(lambda case: pytest.fail(f"{case['model']} was run again"))
    assert "skipped" in capsys.readouterr().out


@pytest.mark.parametrize(("teraflops", "refused"), [(9.0, False), (11.0, True)])
def test_what_surely_cannot_end_is_refused_with_the_arithmetic(make, monkeypatch, teraflops, refused):
    monkeypatch.setattr(
        Experiment, "peak_matmul_rate", lambda self, backend, precision: 1e12 if precision == "fp16" else 1.0
    )
    experiment = make()
    for case in experiment.cases([{"precision": "fp16"}]):
        with case:
            case.require_memory(Workload(parameters=1, flops=int(teraflops * 1e12), state_bytes=1, saved_bytes=1))
            case.require_time(30.0, steps=3)
            case.metric("step_s", 1.0, "s")
    (record,) = experiment.records
    assert record.status == ("too-slow" if refused else "ok")
    if refused:
        assert record.reason == (
            "a step of 11 TFLOP would take 11.0 s at the least, at 1,000 GFLOP/s, the most that a product in fp16 "
            "reaches here; 3 steps must end within 30.0 s"
        )


def test_the_rate_is_that_of_the_fastest_product_found_once_or_of_this_runs_ceilings(make, monkeypatch):
    def ceiling(framework: str, rate: float, precision: str = "fp16", flags: tuple = ("contended",)) -> Record:
        metrics, config = {"flops_per_s": fakes.metric(rate, unit="FLOP/s")}, {"operation": "matmul"}
        about = {"experiment": "ceilings", "config": config, "metrics": metrics, "flags": list(flags)}
        return fakes.record(**about, framework=framework, precision=precision)

    asked, times = [], {512: 0.001, 1024: 0.004, 2048: 0.080}  # the last is the fastest, and no longer one is tried
    found = 2 * 1024**3 / 0.004
    monkeypatch.setattr(Device, "product", lambda self, *about: asked.append(about))
    monkeypatch.setattr(
        "pomology.measure.calls.measure", lambda *_, **__: SimpleNamespace(blocks=[Block(1, times[asked[-1][1]])])
    )
    for known, expected in (
        ([ceiling("torch", 7e12), ceiling("mlx", 9e12), ceiling("torch", 8e12, "fp32")], 7e12),
        ([ceiling("torch", found / 2)], found),
        ([ceiling("mlx", 9e12)], found),
        ([], found),
        ([ceiling("torch", found / 2, flags=())], found / 2),  # nothing speaks against it
    ):
        experiment = make()
        monkeypatch.setattr(experiment, "_read", lambda names, known=known: known)
        asked.clear()
        for _ in range(2):
            assert experiment.peak_matmul_rate(experiment.devices[0], "fp16") == pytest.approx(expected)
            assert asked == ([("fp16", 512), ("fp16", 1024), ("fp16", 2048)] if expected != found / 2 else [])


GRAPHS_BYTES, OWN_BYTES = 50_000_000, 1_000_000


class KeepsGraphs(Device):
    """Of each new shape it keeps 50 MB until the process ends, as MPS does (pytorch/pytorch issue 132596)."""

    keeps_graphs, counts_on_cpu = True, True
    shapes: set[int] = set()  # noqa: RUF012  of this process

    def _peak_bytes(self):
        return {"reserved_peak_bytes": OWN_BYTES + GRAPHS_BYTES * len(self.shapes)}

    def _reset_peak(self):
        pass


@pytest.fixture
def process(tmp_path, monkeypatch):
    """Runs the rows of a notebook in what is a process of their own there; says which ran, and which wait."""
    monkeypatch.setattr(find, "find", lambda *_: [KeepsGraphs("cpu")])
    (tmp_path / ".partial").mkdir()

    def run(*rows: int, fails: int = 0, wrong: int = 0):
        KeepsGraphs.shapes = set()
        experiment, ran = Experiment("vae", article="003", devices="cpu", profile="smoke", out=str(tmp_path)), []
        for case in experiment.cases([{"number": number} for number in rows]):
            with case:
                ran.append(case["number"])
                if case["number"] >= 10:  # a product, which is no training
                    case.metric("step_s", 1.0, "s")
                    continue
                KeepsGraphs.shapes.add(case["number"])
                if case["number"] == wrong:
                    raise Mismatch("a step on the GPU against the CPU")
                for _ in case.steps([1, 2]):
                    pass
                if case["number"] == fails:
                    raise ValueError("it fails each time")
        return ran, waits()

    def waits():
        path = folders.waiting(tmp_path, "vae")
        return [int(line.rpartition("=")[2]) for line in path.read_text().split("\n")[:-1]] if path.exists() else []

    run.begin = lambda: folders.waiting(tmp_path, "vae").touch()
    return run


def test_what_a_row_of_a_run_takes_holds_no_graphs_of_other_rows(process, tmp_path):
    rows = 1, 2, 10, 3
    process.begin()
    assert [process(*rows) for _ in range(3)] == [([1], [2, 10, 3]), ([2], [10, 3]), ([10, 3], [])]
    took = {each.config["number"]: each.metrics.get("reserved_peak_bytes") for each in records(tmp_path)}
    assert {number: took[number].value for number in (1, 2, 3)} == dict.fromkeys((1, 2, 3), OWN_BYTES + GRAPHS_BYTES)


def test_in_jupyterlab_rows_share_a_process_and_its_graphs(process, tmp_path):
    assert process(4, 5) == ([4, 5], [])
    took = [each.metrics["reserved_peak_bytes"].value for each in records(tmp_path)]
    assert took == [OWN_BYTES + GRAPHS_BYTES, OWN_BYTES + 2 * GRAPHS_BYTES]


def test_a_row_that_fails_keeps_no_other_waiting_and_leaves_it_no_graphs(process, tmp_path):
    process.begin()
    assert [process(1, 2, 3, fails=1, wrong=2) for _ in range(3)] == [([1], [2, 3]), ([2], [3]), ([3], [])]
    process.begin()  # the same command again
    assert process(1, 2, 3) == ([1], [])


def test_what_was_slowed_runs_again_in_a_process_of_its_own(process, tmp_path, monkeypatch):
    """That a row was slow may show only when a later one, in another process, was not."""
    monkeypatch.setattr(Experiment, "slowed", lambda *_: len(records(tmp_path)) > 1)
    process.begin()
    assert [process(1, 2) for _ in range(4)] == [([1], [2]), ([2, 2], [1]), ([1], []), ([], [])]


def test_a_row_that_crashed_twice_does_not_keep_a_slowed_one_from_its_second_attempt(make, monkeypatch):
    monkeypatch.setattr(Experiment, "slowed", lambda *_: True)
    begun = fakes.record(experiment="whisper", case="torch-cpu number=1").line()
    for _ in range(2):
        make().journal.start(begun | {"event": "start"})
    ran = []
    for case in make().cases(number=[1, 2]):
        with case:
            ran.append(case["number"])
            case.metric("step_s", 1.0, "s")
    assert ran == [2, 2]


def records(folder):
    return journal.read(folder / "vae.jsonl").records
