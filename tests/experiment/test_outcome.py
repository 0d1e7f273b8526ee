"""Drift, and cases that cannot fit or end in time, which are not tried."""

import functools
import math
import time
from types import SimpleNamespace

import fakes
import numpy as np
import pytest
import torch
from small_model import WORK, fit, run

from pomology.devices.torch import TorchDevice as Device
from pomology.errors import TooBig
from pomology.experiment import case as experiment_case
from pomology.experiment import outcome
from pomology.experiment.outcome import drift, of_exception
from pomology.machine import snapshot
from pomology.measure.clock import Block, Part
from pomology.models.cost import Cost
from pomology.paths import root
from pomology.results.run import Run


@pytest.mark.parametrize("allocate", [torch.empty, np.empty])
def test_the_cpu_s_error_for_too_much_memory_is_out_of_memory(allocate):
    with pytest.raises((RuntimeError, MemoryError)) as error:
        allocate(10**15)
    assert of_exception(error.value)[0] == "out-of-memory"


def test_drift_is_the_change_between_thirds_above_their_noise():
    assert drift([1.0] * 17) is drift([0.0] * 18) is None
    assert drift([1.0] * 12 + [2.0] * 6) == pytest.approx(1.0)
    assert drift([2.0] * 7 + [1.0] * 14) == pytest.approx(-0.5)
    assert drift([2.0] * 6 + [9.0] * 6 + [2.0] * 6) == pytest.approx(3.5)  # and came back
    assert drift([0.1] * 50 + [0.2] * 10) == pytest.approx(1.0)  # in the last sixth
    generator = np.random.default_rng(3)
    noise = generator.normal(1.0, 0.1, (400, 60))
    assert np.mean([abs(drift(times)) > 0.1 for times in noise]) <= 0.01
    slower = noise * np.where(np.arange(60) < 30, 1.0, 1.2)
    assert np.mean([abs(drift(times)) > 0.1 for times in slower]) >= 0.95


@pytest.mark.parametrize("free", [WORK.bytes, WORK.bytes - 1])
def test_a_case_that_cannot_fit_is_not_tried(make, monkeypatch, free):
    monkeypatch.setattr(Device, "free_memory", lambda self: free)
    built = []

    def body(case):
        case.require_memory(WORK)
        built.append(fit(case))

    record = run(make(), body)
    assert bool(built) == (record.status == "ok") == (free == WORK.bytes)
    if not built:
        assert (record.status, record.parameters, record.metrics) == ("too-big", 5, {})
        assert record.reason.startswith("needs 0.000 GB at least (weights, gradients and")


@pytest.mark.parametrize(("teraflops", "refused"), [(9.0, False), (11.0, True)])
def test_a_case_that_cannot_end_in_time_has_the_estimate_in_its_reason(
    make, monkeypatch, teraflops, refused
):
    monkeypatch.setattr(experiment_case, "peak_matmul_rate", lambda *_: 1e12)
    work = Cost(parameters=1, flops=int(teraflops * 1e12), state_bytes=1, saved_bytes=1)

    def body(case):
        case.require_memory(work)
        case.require_time(30.0, steps=3)
        case.metric("step_s", 1.0, "s")

    record = run(make(), body, precision=["fp16"])
    assert record.status == ("too-slow" if refused else "ok")
    if refused:
        words = "a step of 11 TFLOP takes about 11.0 s at 1,000 GFLOP/s"
        assert record.reason.startswith(words)


def test_the_peak_is_that_of_the_fastest_matmul_and_is_timed_once(make, monkeypatch):
    sizes = []
    times_s = {512: 0.001, 1024: 0.004, 2048: 0.080}  # after a slow one no larger one is tried
    monkeypatch.setattr(Device, "product", lambda self, precision, size: sizes.append(size))
    monkeypatch.setattr(
        experiment_case.calls,
        "measure",
        lambda *_, **__: SimpleNamespace(blocks=[Block(1, times_s[sizes[-1]])]),
    )
    (device,) = make().devices
    for _ in range(2):
        rate = experiment_case.peak_matmul_rate(device, "fp16")
        assert rate == pytest.approx(2 * 1024**3 / 0.004)
    assert sizes == [512, 1024, 2048]


@pytest.mark.parametrize(("unified", "needed_gb"), [(False, "20.0"), (True, "25.0")])
def test_offloaded_state_must_fit_the_host(make, monkeypatch, unified, needed_gb):
    """On a CPU the device uses the host's memory, too."""
    needed = Cost(10, 100, state_bytes=4 * 10**9, saved_bytes=10**9, host_bytes=20 * 10**9)
    (case,) = make().cases()
    case.backend = SimpleNamespace(unified_memory=unified, free_memory=lambda: 10**11)
    free = int(25.1e9 if unified else 20.1e9)
    monkeypatch.setattr(snapshot, "available_memory_bytes", lambda: free)
    case.require_memory(needed)
    monkeypatch.setattr(snapshot, "available_memory_bytes", lambda: int(19.9e9))
    with pytest.raises(TooBig, match=rf"^needs {needed_gb} GB of the host's memory"):
        case.require_memory(needed)


def test_tf32_is_another_method_on_devices_that_have_it(make, monkeypatch):
    record = run(make(), lambda case: case.require_tf32(), number=[1])
    assert record.status == "unsupported"
    monkeypatch.setattr(Device, "tf32", True)

    def body(case):
        case.require_tf32()
        fit(case)

    record = run(make(), body, number=[2])
    assert record.note == "fp32 by the default of PyTorch, which is TF32 on this device"
    assert "other-way" in record.flags


def computing(count=40, seconds=0.025, **changed):
    """Return blocks on two threads with 3 % noise. changed: number -> seconds and CPU seconds."""
    noise = np.random.default_rng(1).normal(1, 0.03, count)
    blocks = [Block(3, seconds * part, cpu_s=1.9 * seconds * part) for part in noise]
    for number, (more_s, more_cpu_s) in changed.items():
        block = blocks[int(number[1:])]
        blocks[int(number[1:])] = Block(3, block.seconds + more_s, cpu_s=block.cpu_s + more_cpu_s)
    return blocks


@pytest.mark.parametrize(
    ("blocks", "on_cpu", "on_gpu"),
    [
        (computing(), False, False),
        (computing(_20=(0.4, 0.0)), True, True),  # stopped by SIGSTOP
        (computing(_0=(3600.0, 0.0)), True, True),  # a clock that jumped
        (computing(_20=(0.4, 0.76)), False, True),  # it computed all the time
        (computing(_20=(0.2, 0.0)), False, False),  # too short
        (computing(seconds=4.0), False, False),  # 3 % of it are 0.12 s
        (computing(seconds=4.0, _9=(0.4, 0.0)), False, False),  # within 8 deviations
        (computing(seconds=4.0, _9=(3.0, 0.0)), True, True),
        (computing(4, _3=(0.4, 0.0)), True, True),  # 17 times a usual block of 25 ms
        (computing(4, seconds=4.0, _3=(7.0, 0.0)), False, False),  # of few blocks twice a usual one
        (computing(4, seconds=4.0, _3=(60.0, 0.0)), True, True),
        (computing(2, _1=(0.4, 0.0)), False, False),  # too few to know what is usual
    ],
)
def test_a_block_that_lasts_long_without_cpu_time_shows_a_pause(blocks, on_cpu, on_gpu):
    assert (outcome.paused(blocks, "cpu"), outcome.paused(blocks, "gpu")) == (on_cpu, on_gpu)


def spin(seconds):
    """Compute for so long, in this thread's own time."""
    end_s = time.thread_time() + seconds
    while time.thread_time() < end_s:
        pass


def test_a_stopped_process_is_a_flag_and_a_clock_that_goes_back_an_error(make):
    """A process stands still for 0.4 s; then its clock jumps back by 5 s, or does not move."""

    def still(case):
        for number in case.steps(range(60), ready=False):
            spin(0.01)
            if number == 40:
                time.sleep(0.4)  # as after SIGSTOP: no CPU time

    record = run(make(budget_s=5.0), still)
    assert (record.status, "paused" in record.flags) == ("ok", True)
    now = fakes.Clock()

    def back(case):
        case.clock.clock = now
        for number in case.steps(range(60), ready=False):
            now.pass_s(-5.0 if number == 40 else 0.01)

    record = run(make(budget_s=5.0), back, batch_size=[2])
    assert record.status == "error"
    assert record.reason.startswith("the part 'training': ")
    assert record.reason.endswith(" s: the clock stood still or went back")


def epoch(case, pause=lambda place: None):
    """Compute an epoch: 7 steps, the last of them smaller, a checkpoint, and 3 of evaluation."""
    batches = torch.utils.data.DataLoader(range(13), batch_size=2)
    for number, _ in enumerate(case.steps(batches, ready=False)):
        spin(0.05)
        pause(f"step {number}")
    with case.occasional("checkpoint", per_epoch=1):
        spin(0.05)
        pause("checkpoint")
    for number, _ in enumerate(case.steps(range(3), "evaluation")):
        spin(0.05)
        pause(f"evaluation {number}")


PLACES = ("step 0", "step 1", "step 3", "step 6", "checkpoint", "evaluation 0", "evaluation 2")


def test_a_pause_is_seen_at_every_place_of_an_epoch(make):
    """First step, warm-up, few steady steps, the smaller last one, a checkpoint, evaluation."""
    experiment = make(budget_s=5.0)
    for number, place in enumerate(PLACES):
        pause = lambda here, place=place: time.sleep(1.5 * (here == place))  # noqa: E731
        record = run(experiment, functools.partial(epoch, pause=pause), batch_size=[number + 1])
        assert (record.status, "paused" in record.flags) == ("ok", True), place
        assert record.metrics["epoch_s"].value > 1.5
    record = run(experiment, epoch, batch_size=[99])
    assert (record.status, "paused" in record.flags) == ("ok", False)


@pytest.mark.parametrize(
    ("block", "single", "once"),
    [
        (Block(1, 3.1, cpu_s=0.1), True, True),
        (Block(1, 0.5, cpu_s=0.1), True, False),  # a disk may take so long
        (Block(1, 0.5, cpu_s=0.3), False, False),  # it computed more than half of it
        (Block(1, 0.25, cpu_s=0.0), False, False),
        (Block(1, 9.0, cpu_s=None), False, False),  # as in a journal
        (Block(1, 3.0, cpu_s=5.7), False, False),  # on two threads
    ],
)
def test_a_block_alone_shows_a_pause_by_its_idle_time(block, single, once):
    flags = lambda backend, **blocks: outcome.flags(None, [], backend, **blocks)  # noqa: E731
    assert ("paused" in flags("cpu", single=[block]), "paused" in flags("cpu", once=[block])) == (
        single,
        once,
    )
    assert "paused" not in flags("mps", single=[block], once=[block])


def test_fewer_than_one_in_a_hundred_undisturbed_cases_is_called_paused():
    """Of the reference run, by its blocks alone: all parts, warm-up and pre-loaded batches."""
    records = Run(root() / "outputs" / "reference-cpu").records
    timed = [record for record in records if record.status == "ok" and record.blocks]
    assert len(timed) > 700
    called = 0
    for record in timed:
        series = [raw.get(name) for raw in record.blocks.values() for name in KINDS]
        called += any(outcome.paused(outcome.blocks_of(pairs or ()), "cpu") for pairs in series)
    assert called < 0.01 * len(timed)


KINDS = ("warmup", "steady", "ready")


def test_a_case_whose_limit_left_the_first_step_alone_is_too_slow(make):
    """A row that is `ok` has a number."""

    def body(limit_s, case):
        now = fakes.Clock()
        case.clock.clock, case.clock.limit_s = now, limit_s
        for _ in case.steps(range(390), ready=False):
            now.pass_s(10.5)

    record = run(make(), functools.partial(body, 10.0))
    assert record.status == "too-slow"
    expected = "its first step took 10.5 s, 390 of them take 4,095 s: the limit left no other"
    assert record.reason == expected and record.metrics["first_step_s"].value == 10.5
    record = run(make(), functools.partial(body, 30.0), batch_size=[2])
    assert record.status == "ok" and record.metrics["epoch_s"].value == pytest.approx(4095.0)

    def from_a_rate_of_0(limit_s, case):
        """A schedule begins with a learning rate of 0, so the first step changes no weight."""
        case.watch_model(torch.nn.Linear(2, 1))
        body(limit_s, case)

    record = run(make(), functools.partial(from_a_rate_of_0, 10.0), batch_size=[3])
    assert (record.status, record.reason) == ("too-slow", expected)
    record = run(make(), functools.partial(from_a_rate_of_0, 30.0), batch_size=[4])
    assert (record.status, record.reason) == ("not-learning", "no step changed the weights")


@pytest.mark.parametrize(
    ("flops", "settings", "refused"),
    [
        (11e9, {}, True),
        (9e9, {}, False),
        (11e9, {"precision": "bf16"}, False),
    ],
)
def test_a_step_that_this_run_knows_to_exceed_the_limit_is_not_waited_for(
    make, flops, settings, refused
):
    steps_run = []

    def body(flops, case):
        now = fakes.Clock()
        case.clock.clock = now
        cost = Cost(parameters=1, flops=int(flops), state_bytes=1, saved_bytes=1)
        case.require_memory(cost)
        for _ in case.steps(range(390), ready=False):
            steps_run.append(flops)
            now.pass_s(flops / 1e9)

    made = make(budget_s=2.0)  # so the limit is 10 s
    assert run(made, functools.partial(body, 1e9), batch_size=[2]).status == "ok"
    steps_run.clear()
    settings = {"batch_size": 22} | settings
    record = run(made, functools.partial(body, flops), **{key: [settings[key]] for key in settings})
    assert bool(steps_run) != refused
    if refused:
        assert record.status == "too-slow"
        assert record.reason == (
            "a step takes about 11.0 s at 1 GFLOP/s, the highest rate of this experiment here; 390 "
            "of them take 1:11:30 h, and the limit of the case is 10.0 s"
        )


@pytest.mark.parametrize("seconds", [0.0, -2.76, math.nan, math.inf])
def test_a_time_that_is_no_time_is_named(seconds):
    part = Part("training", 4.0, first_step_s=0.1)
    part.blocks += [Block(1, 0.1), Block(2, seconds)]
    said = outcome.wrong_clock([part], [])
    assert said.startswith("the part 'training': 2 steps or calls took ")
    part.blocks.pop()
    assert outcome.wrong_clock([part], []) is None
