"""Cases with a small model on the CPU: their records, and every way to end."""

import gc
import json
import math
import os
import re
import time
import weakref
from datetime import datetime
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch
from fakes import Clock
from small_model import FEATURES, WORK, batches, fit, run
from torch import nn

from pomology.errors import Mismatch, TooSlow
from pomology.experiment import case as experiment_case
from pomology.machine import calibration, cgroups, energy, memory, other_programs, waiting
from pomology.measure import clock, epochs
from pomology.models import verify
from pomology.results.cases import JUDGED_STEPS


def test_a_finished_case_is_one_line_with_its_metrics_and_raw_times(make):
    experiment = make(budget_s=0.5, profile="article")
    experiment.dataset(SimpleNamespace(kind="stand-in", origin="digits drawn by hand"))
    ready = []

    def body(case):
        (open_case,) = experiment.records  # it is journalled before it starts
        assert (open_case.status, open_case.case) == ("crashed", case.name)
        case.require_memory(WORK)
        ready.extend(fit(case, 200))

    run(experiment, body, batch_size=[8])
    lines = experiment.journal.path.read_text(encoding="utf-8").splitlines()
    start, end = map(json.loads, lines)
    assert (start["event"], end["event"]) == ("start", "end")
    assert start["case"] == end["case"] == "torch-cpu batch_size=8"
    expected = {
        "schema": 1,
        "config": {"batch_size": 8},
        "framework_version": torch.__version__,
        "device": "cpu",
        "profile": "article",
        "data": "stand-in",
        "data_origin": "digits drawn by hand",
        "parameters": 5,
        "flops_per_step": 1_000_000,
        "power_source": "ac",
        "power_mode": "automatic",
        "status": "ok",
        "canary": {"before_s": 0.0005, "after_s": 0.0005},
    }
    assert {key: end[key] for key in expected} == expected and "traceback" not in end
    assert datetime.fromisoformat(end["started"]).tzinfo is not None

    metrics = end["metrics"]
    values = {name: metric["value"] for name, metric in metrics.items()}
    assert values["footprint_peak_bytes"] > 1e6 and "reserved_peak_bytes" not in values
    assert values["loss_last"] < values["loss_first"]
    assert metrics["loss_last"]["n"] == ready.count(False) == 200 and ready.count(True) > 0
    # Raw times are kept and agree with the metrics.
    blocks = end["blocks"]["training"]
    steps, seconds = map(sum, zip(*blocks["steady"], strict=True))
    warmup, _ = map(sum, zip(*blocks["warmup"], strict=True))
    assert values["step_s"] == pytest.approx(seconds / steps, rel=1e-4)
    assert metrics["step_s"]["n"] == steps and blocks["epoch_steps"] == 200 == 1 + warmup + steps
    assert values["first_step_s"] == blocks["first_step_s"]
    assert metrics["epoch_s"]["how"] == "measured"
    ready_steps, ready_s = map(sum, zip(*blocks["ready"], strict=True))
    assert values["compute_epoch_s"] == pytest.approx(200 * ready_s / ready_steps, rel=1e-4)
    assert values["flops_per_s"] == pytest.approx(1_000_000 * ready_steps / ready_s, rel=1e-4)


def test_memory_is_that_of_the_loop_without_pre_loaded_batches(make):
    experiment = make()
    kept = []
    (device,) = experiment.devices
    device.to_device = lambda batch: kept.append(batch) or batch
    device.peak_memory = lambda: {"reserved_peak_bytes": 9 if kept else 5}
    record = run(experiment)
    assert len(kept) == 3 and record.metrics["reserved_peak_bytes"].value == 5


def test_a_trace_synchronizes_the_device_at_each_step(make, monkeypatch):
    synchronized = []

    def body(case):
        monkeypatch.setattr(case.backend, "synchronize", lambda: synchronized.append(1))
        for _ in case.steps(range(60), ready=False):
            before = len(synchronized)
            case.trace()
            assert len(synchronized) > before, "the memory of unfinished work is not traced"

    record = run(make(budget_s=5.0), body)
    trace = record.memory_trace
    assert trace["columns"] == memory.TRACED
    assert [row[0] for row in trace["rows"]] == [*range(60)]
    assert trace["rows"][0][2:4] == [None, None]  # PyTorch counts nothing on a CPU
    times = [row[1] for row in trace["rows"]]
    assert times == sorted(times) and 0 < times[-1] <= record.seconds


def test_parts_phases_occasional_work_and_notebook_metrics_are_in_the_record(make):
    now = Clock()

    def body(case):
        case.clock.clock = now
        for _ in case.steps(range(9), ready=False):
            with case.phase("forward"):
                now.pass_s(0.0005)
            with case.occasional("image", per_epoch=1):
                now.pass_s(0.002)
        for _ in case.steps(range(5), part="evaluation"):
            now.pass_s(0.001)
        case.metric("drift", torch.tensor(0.5), low=0.4, high=0.6, n=100)
        case.metric("kernel_s", 2, "s", how="estimated")
        case.accuracy(0.9, 1000, trained=0.25)
        case.ran_on(torch.ones(1))

    record = run(make(profile="article"), body)
    assert (record.status, record.device) == ("ok", "cpu")
    assert set(record.blocks) == {"training", "evaluation"}
    assert record.asides["image"] == pytest.approx([0.002] * 9)
    assert len(record.blocks["training"]["steady_forward"]) == len(record.steady())
    assert record.metrics["forward_s"].value == pytest.approx(0.0005)
    form = {"value": 0.5, "unit": "", "low": 0.4, "high": 0.6, "n": 100, "how": "measured"}
    assert record.metrics["drift"].metric() == form
    assert record.metrics["accuracy_unfinished"].value == 0.9 and "accuracy" not in record.metrics
    assert "accuracy 90.0 % after 25 % of the training" in record.note
    assert record.metrics["kernel_s"].how == "estimated"


@pytest.mark.parametrize(("profile", "whole"), [("quick", False), ("article", True)])
def test_only_the_article_profile_runs_an_epoch_that_does_not_fit_the_budget(make, profile, whole):
    seen = []
    experiment = make(profile=profile, budget_s=0.02)
    record = run(experiment, lambda case: seen.extend(fit(case, 80, step_s=0.003)))
    assert (seen.count(False) == 80) == whole
    assert record.metrics["epoch_s"].how == ("measured" if whole else "estimated")
    assert record.metrics["epoch_s"].value == pytest.approx(80 * 0.003)
    assert record.blocks["training"]["stopped"] == ("whole epoch" if whole else "budget")
    assert ("few-steps" in record.flags) == (not whole)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_is_journalled_re_raised_and_tried_again(make, kind):
    experiment = make()
    (case,) = experiment.cases()
    with pytest.raises(kind), case:
        fit(case)
        raise kind
    (record,) = experiment.records
    assert record.status == "interrupted" and "epoch_s" in record.metrics
    assert [case.name for case in make().cases()] == [record.case]


def other_model(case):
    case.require_memory(WORK)
    case.watch_model(nn.Linear(FEATURES + 1, 1))


def left_at_once(case):
    case.watch_model(nn.Linear(FEATURES, 1))
    for _ in case.steps(batches(10)):
        break


def no_number(case):
    fit(case)
    case.metric("max_abs_error", math.nan, "")


def on_meta(case):
    case.ran_on(torch.ones(1, device="meta"))
    fit(case)


def late_error(case):
    fit(case)
    case.backend.synchronize = mock.Mock(side_effect=RuntimeError("CUDA error: out of memory"))


def other_result(case):
    values, reference = {"weight": np.ones(3)}, {"weight": np.array([1, 1, 1.5])}
    verify.check(case, values, reference, 0.1, "against the CPU")


ENDINGS = [
    (late_error, "out-of-memory", "CUDA error: out of memory"),
    (other_model, "mismatch", "the model has 6 parameters; 5"),
    (left_at_once, "error", "nothing was timed"),
    (no_number, "error", "ValueError: max_abs_error is nan"),
    (on_meta, "fallback", "asked for cpu, computed on meta"),
    (other_result, "mismatch", "against the CPU: weight"),
]


@pytest.mark.parametrize(("body", "status", "reason"), ENDINGS)
def test_an_ending_has_its_status_and_reason_and_keeps_earlier_times(make, body, status, reason):
    record = run(make(profile="article"), body)
    assert record.status == status and record.reason.startswith(reason)
    assert ("epoch_s" in record.metrics) == (body in (late_error, no_number, on_meta))
    assert ("max_abs_error" in record.metrics) == (body is other_result)


def test_a_traceback_is_kept_without_the_folders_of_this_machine(make, monkeypatch):
    monkeypatch.setenv("HOME", "/Users/jo")

    def body(case):
        raise ValueError("no /Users/jo/data, /Users/jo or /Users/john/data\nand more")

    record = run(make(), body)
    assert record.reason == "ValueError: no ~/data, ~ or /Users/john/data"
    assert "in body" in record.traceback and "/Users/jo/" not in record.traceback


LEARNING = [
    (60, {"lr": 0.0}, False, "no step changed the weights"),  # a GAN's weights change too
    (60, {"losses": lambda number: math.nan}, True, "the loss is not a finite number"),
    (JUDGED_STEPS, {"losses": lambda number: 1.0}, True, "the loss went from 1 to 1 in 50 steps"),
    (JUDGED_STEPS, {"losses": float}, False, None),
    (JUDGED_STEPS - 1, {"losses": float}, True, None),
]


@pytest.mark.parametrize(("count", "options", "learns", "reason"), LEARNING)
def test_a_model_that_does_not_learn_has_its_status(make, count, options, learns, reason):
    experiment = make(expects_learning=learns, profile="article")
    record = run(experiment, lambda case: fit(case, count, **options))
    assert (record.status, record.reason) == ("not-learning" if reason else "ok", reason)


def test_nothing_of_a_case_stays_in_memory(make):
    kept = []

    def body(case):
        model = case.watch_model(nn.Linear(FEATURES, 1))
        kept.append(weakref.ref(model))
        raise ValueError("held by its traceback?")

    (case,) = make().cases()
    with case:
        body(case)
    gc.collect()
    assert kept[0]() is None


def test_the_record_of_timed_calls_has_their_raw_times(make):
    found = []

    def body(case):
        case.require_memory(WORK)
        found.append(case.measure("step_s", lambda: time.sleep(0.0005), budget_s=0.02))
        case.raw("launch_cold_s", [0.25, 0.5])

    record = run(make(), body)
    raw = record.blocks["step_s"]
    blocks = found[0].blocks
    assert [count for count, _ in raw["steady"]] == [block.steps for block in blocks]
    assert raw["first_call_s"] == found[0].first_call_s and raw["stopped"] == "budget"
    median = np.median([seconds / count for count, seconds in raw["steady"]])
    assert record.metrics["step_s"].value == pytest.approx(median, rel=1e-4)
    assert record.metrics["flops_per_s"].value == pytest.approx(WORK.flops / median, rel=1e-4)
    assert record.blocks["launch_cold_s"] == {"steady": [(1, 0.25), (1, 0.5)]}


def test_flags_contended_and_slowed(make, monkeypatch):
    speeds = iter([1.0, 1.0, 1.4, 1.5, 1.4, 1.2])  # constant, slow on both sides, slow on one
    monkeypatch.setattr(calibration, "calibrate", lambda: next(speeds))
    contended = iter([False, False, True, False, False, False])  # of each loop, and of the rest
    monkeypatch.setattr(other_programs, "contended", lambda *_: next(contended))
    experiment = make()
    for case in experiment.cases(number=[1, 2, 3]):
        with case:
            case.measure("kernel_s", lambda: None, budget_s=0.01)
    first, second, third = experiment.records
    # A busy machine may add the flag of few steps.
    of_others = {"contended", "slowed"}
    assert of_others.isdisjoint([*first.flags, *third.flags])
    assert of_others <= {*second.flags}
    assert second.calibration == {"before_s": 1.4, "after_s": 1.5}
    monkeypatch.setattr(other_programs, "contended", lambda *_: False)
    experiment = make(profile="smoke", out=str(experiment.out / "smoke"))
    assert not run(experiment).calibration  # times of the profile `smoke` do not matter


def test_a_case_that_a_quota_stopped_is_throttled(make, monkeypatch):
    stopped_s = [0.0]
    monkeypatch.setattr(cgroups, "throttled_s", lambda: {"group": stopped_s[0]})

    def body(case):
        stopped_s[0] += 60.0  # before the timing
        fit(case)

    assert "throttled" not in run(make(), body).flags

    def stop(number):
        stopped_s[0] += 1.0

    record = run(make("siamese"), lambda case: fit(case, at=stop))
    assert record.status == "ok" and record.flags.count("throttled") == 1


def test_a_gpu_is_calibrated_outside_of_its_case_and_flagged_if_slower(make, monkeypatch):
    experiment = make()
    (device,) = experiment.devices
    device.backend, device.kind = "mps", "gpu"
    times = iter([0.005, 0.005, 0.005, *[0.0065] * 6])
    order = []

    def calibrate(device):
        order.append("calibrated")
        for seconds in times:
            return seconds
        raise RuntimeError("MPS backend out of memory\nand more")

    monkeypatch.setattr(calibration, "calibrate_gpu", calibrate)
    monkeypatch.setattr(waiting, "late_result", lambda device: None)
    device.reset_peak_memory = lambda: order.append("reset")
    device.peak_memory = lambda: order.append("peaks") or {}
    for case in experiment.cases(number=range(5)):
        if case["number"] == 3:
            experiment.software = "other"  # in which the same matmul may take another time
        with case:
            case.metric("step_s", 1.0, "s")
    assert order == 5 * ["calibrated", "reset", "peaks", "calibrated"]
    slow = "the calibration matmul on the GPU took 30 % longer than the run's fastest"
    out = "no calibration matmul on the GPU: MPS backend out of memory"
    seen = [(record.note, *record.flags) for record in experiment.records]
    assert seen == [("",), (slow, "slowed"), (slow, "slowed"), ("",), (out,)]
    both = {"before_s": 0.0005, "device_before_s": 0.005, "after_s": 0.0005}
    assert experiment.records[1].calibration == both | {"device_after_s": 0.0065}


def test_times_of_a_device_that_does_not_wait_are_a_mismatch(make, monkeypatch):
    experiment = make()
    (device,) = experiment.devices
    device.backend, device.kind = "mps", "gpu"
    monkeypatch.setattr(calibration, "calibrate_gpu", lambda device: 0.005)
    monkeypatch.setattr(waiting, "late_result", lambda device: "the result came later")
    device.synchronize = lambda: None
    (case,) = experiment.cases()
    with case:
        case.metric("step_s", 1.0, "s")
    (record,) = experiment.records
    assert (record.status, record.reason) == ("mismatch", "the result came later")


ABORTED = b"Execution of the command buffer was aborted due to an error during execution. "
MEMORY = b"Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)\n"
INTERNAL = b"Internal Error (0000000e:Internal Error)\n"
FALLS_BACK = b"W x.cc:1] ptxas too old. Falling back to the driver to compile.\n"


@pytest.mark.parametrize("where", ["block", "synchronize"])
@pytest.mark.parametrize(
    ("line", "status"),
    [
        (ABORTED + MEMORY, "out-of-memory"),
        (ABORTED + INTERNAL, "mismatch"),
        (b"Error: command buffer exited with error status.\n", "mismatch"),
        (b"Error: an ordinary one\n", "ok"),
        (FALLS_BACK, "ok"),
    ],
)
def test_what_a_driver_writes_to_the_process_s_stderr_decides(make, capfd, where, line, status):
    experiment = make(profile="smoke")
    (device,) = experiment.devices
    device.backend, device.kind = "mps", "gpu"
    device.synchronize = lambda: None
    (case,) = experiment.cases()
    with case:
        if where == "block":
            os.write(2, line)
        else:  # as by a command buffer that ends at the case's last synchronization
            device.synchronize = lambda: os.write(2, line)
        case.metric("step_s", 1.0, "s")
    (record,) = experiment.records
    said = line.decode().strip()
    assert record.status == status
    assert record.reason == (None if status == "ok" else f"the driver reported: {said}")
    assert (said in record.note) is (line is FALLS_BACK)
    assert said in capfd.readouterr().err, "it is still there to be read"


def test_a_driver_s_report_explains_a_difference_and_no_other_exception(make):
    for raised, status in (
        (Mismatch("the loss differs"), "out-of-memory"),
        (None, "out-of-memory"),
        (TooSlow("it takes a week"), "too-slow"),
        (KeyError("size"), "error"),
    ):
        experiment = make(profile="smoke", out=str(make().out / status / str(raised)))
        (device,) = experiment.devices
        device.backend, device.kind = "mps", "gpu"
        device.synchronize = lambda: None
        (case,) = experiment.cases()
        with case:
            case.metric("step_s", 1.0, "s")
            os.write(2, ABORTED + MEMORY)
            if raised:
                raise raised
        (record,) = experiment.records
        assert record.status == status
        assert ("the driver reported" in record.note) is (status != "out-of-memory")


def test_a_gpu_s_driver_does_not_decide_over_a_case_on_the_cpu(make):
    def body(case):
        fit(case)
        os.write(2, ABORTED + INTERNAL)

    record = run(make(), body)
    assert record.status == "ok" and "the driver reported: Execution" in record.note
    assert "the driver reported" not in run(make("siamese")).note, "it is that case's alone"


def test_an_interruption_of_a_case_s_end_leaves_stderr_as_it_was(make, monkeypatch):
    reading, writing = os.pipe()
    saved = os.dup(2)
    os.dup2(writing, 2)
    try:
        before = os.stat(2)
        (case,) = make().cases()
        with pytest.raises(KeyboardInterrupt), case:
            assert not os.path.samestat(os.stat(2), before)
            monkeypatch.setattr(case._monitor, "stop", mock.Mock(side_effect=KeyboardInterrupt))
            os.write(2, b"said\n")
        assert os.path.samestat(os.stat(2), before) and os.read(reading, 100) == b"said\n"
    finally:
        os.dup2(saved, 2)
        for descriptor in (saved, reading, writing):
            os.close(descriptor)


def test_an_interrupted_case_is_no_other_run_to_those_that_follow(make, monkeypatch):
    (case,) = make().cases()
    with pytest.raises(KeyboardInterrupt), case:
        ended = mock.Mock()
        case._stack.callback(ended)
        monkeypatch.setattr(case._monitor, "stop", mock.Mock(side_effect=KeyboardInterrupt))
    ended.assert_called_once_with()
    record = run(make("siamese"))
    assert "contended" not in record.flags and "another run" not in record.note


def test_a_training_on_a_gpu_that_nobody_verified_is_unproved(make):
    experiment = make(profile="smoke")
    experiment.devices[0].kind = "gpu"
    experiment.devices[0].synchronize = lambda: None
    record = run(experiment)
    assert record.status == "ok" and "unproved" in record.flags
    assert "the step was not verified against the CPU" in record.note
    assert "unproved" not in run(make("siamese")).flags


def test_a_check_after_the_timing_that_breaks_leaves_the_times_unproved(make):
    def body(case):
        fit(case)

        def check(_seconds):
            raise RuntimeError("lost")

        case.at_end(check)

    record = run(make(), body)
    assert record.status == "ok" and record.flags.count("unproved") == 1
    assert "not verified after the timing: RuntimeError: lost" in record.note


def test_a_rate_above_the_measured_peak_has_a_flag(make):
    """Steps timed without synchronization are too fast; 1.5 times the peak is allowed."""
    experiment = make()
    rates = {"matmul": 1e9, "convolution": 2e9, "correct": 2.9e9, "unsynchronized": 3.1e9}
    rows = [{"operation": "matmul"}, {"operation": "convolution"}]
    for case in experiment.cases([*rows, {"step": "correct"}, {"step": "unsynchronized"}]):
        with case:
            case.metric("flops_per_s", rates[next(iter(case.config.values()))], "FLOP/s")
    assert [record.flags for record in experiment.records] == [[], [], [], ["too-fast"]]


@pytest.mark.parametrize(("kind", "name"), [("gpu", "unknown"), ("gpu", "Apple M2"), ("cpu", "")])
def test_a_gpu_s_rate_without_a_known_peak_says_that_it_is_not_judged(
    make, monkeypatch, kind, name
):
    experiment = make()
    device = experiment.devices[0]
    device.kind = kind
    monkeypatch.setattr(type(device), "name", name)
    with next(experiment.cases([{"size": 1}])) as case:
        case.metric("flops_per_s", 1e18, "FLOP/s")
    (record,) = experiment.records
    assert ("not judged whether this is too fast" in record.note) is (name == "unknown")
    assert ("too-fast" in record.flags) is (name == "Apple M2")


def test_the_spread_of_steps_is_that_of_their_blocks():
    blocks = [clock.Block(2, 2.0 * seconds) for seconds in range(1, 101)]  # 1 to 100 s a step
    spread = epochs.spread(blocks)
    assert spread["step_median_s"].value == 50.5 and spread["step_p95_s"].value == 95.05
    assert spread["step_p95_s"].n == 100
    assert epochs.spread(blocks[:19]) == {}


def test_a_growing_pool_of_memory_is_recorded_and_flagged(make, monkeypatch):
    """A GPU's pool grows by 1 MB with each step, and 100 MB are recommended."""
    experiment = make(budget_s=0.3)
    (case,) = experiment.cases(batch_size=[8])
    steps = []
    monkeypatch.setattr(case.backend, "memory", lambda: {"reserved_bytes": 10**6 * len(steps)})
    monkeypatch.setattr(case.backend, "recommended_memory", lambda: 10**8)
    notice = case._note_reserved

    def as_on_a_gpu(*given, **named):
        monkeypatch.setattr(case.backend, "kind", "gpu")
        notice(*given, **named)
        monkeypatch.setattr(case.backend, "kind", "cpu")

    monkeypatch.setattr(case, "_note_reserved", as_on_a_gpu)
    with case:
        case.require_memory(WORK)
        fit(case, 120, at=steps.append)
    record = experiment.records[-1]
    values = {name: record.metrics[f"reserved_{name}_bytes"].value for name in ("after_5", "end")}
    # A block of quick steps is not interrupted.
    assert 5e6 <= values["after_5"] <= values["end"] == 10**6 * len(steps)
    assert record.metrics["reserved_after_50_bytes"].value >= 50e6
    assert ("over-memory" in record.flags) == (len(steps) > 100)
    if len(steps) > 100:
        assert "the driver recommends 0.1 GB at most" in record.note


def test_the_record_has_joules_of_steady_steps(make, monkeypatch):
    joules = iter(range(0, 10_000, 10))
    meter = energy.Meter({"cpu": 0.0001}, lambda: {"cpu": next(joules)}, most_w=1e9)
    monkeypatch.setattr(energy, "meter", lambda kind: meter)

    def body(case):
        case.require_memory(WORK)
        fit(case, 200, at=lambda number: time.sleep(0.002))

    record = run(make(profile="article"), body)
    step = record.metrics["energy_j_per_step"]
    assert step.low < step.value < step.high and record.rails == ["cpu"]
    per_tflop = record.metrics["energy_j_per_tflop"].value
    assert per_tflop == pytest.approx(step.value * 1e12 / WORK.flops)


def test_a_notebook_shows_the_progress_of_a_case_and_then_its_result(make, monkeypatch, capsys):
    shown = []
    line = SimpleNamespace(update=lambda text: shown.append(text.data))
    first = lambda text, display_id: shown.append(text.data) or line  # noqa: E731
    monkeypatch.setattr(experiment_case, "get_ipython", lambda: True)
    monkeypatch.setattr(experiment_case, "display", first)
    monkeypatch.setattr(experiment_case, "UPDATE_S", 0.0)
    run(make())
    assert shown[0] == "torch-cpu" and shown[-1].startswith("vae: torch-cpu · epoch ")
    progress = [text for text in shown if ": training, step " in text]
    assert len(progress) > 1 and all(" of 60, " in text for text in progress)
    steps = [int(re.search(r"step (\d+) of", text)[1]) for text in progress]
    assert steps == sorted(steps) and capsys.readouterr().out == ""
