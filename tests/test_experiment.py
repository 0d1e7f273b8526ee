"""A small model on the CPU inside the cases of an experiment: what is journalled, and every way for a case to end."""

from __future__ import annotations

import contextlib
import functools
import gc
import getpass
import json
import math
import os
import re
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import fakes
import numpy as np
import pytest
import torch
from torch import nn

from pomology import errors
from pomology.devices.torch import TorchDevice as Device
from pomology.errors import Mismatch, PomologyError, TooBig, TooSlow
from pomology.experiment import outcome
from pomology.experiment.case import Case
from pomology.experiment.experiment import Experiment
from pomology.machine import energy, rails, snapshot
from pomology.machine.sources import SOURCES, Source
from pomology.models.cost import Workload
from pomology.paths import root
from pomology.report import claims
from pomology.results import cases
from pomology.results.cases import JUDGED_STEPS
from pomology.results.record import Record

FEATURES = 4
WORK = Workload(parameters=FEATURES + 1, flops=1_000_000, state_bytes=40, saved_bytes=2_000)
MPS_OUT = (
    "MPS backend out of memory (MPS allocated: 17.94 GB, other allocations: 384.00 KB, max allowed: 18.13 GB). "
    "Tried to allocate 256.00 MB on private pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit."
)


this_machine = functools.cache(snapshot.snapshot)


@pytest.fixture(autouse=True)
def quiet_machine(monkeypatch):
    """Not watched for a quarter of a second before every case, asked once what it is, and plugged in."""
    fakes.quiet_machine(monkeypatch)
    monkeypatch.setattr(snapshot, "snapshot", this_machine)
    return snapshot.conditions()


@pytest.fixture
def make(tmp_path):
    """Make an experiment of a run in this test's folder."""

    def make(**changes) -> Experiment:
        settings = {"article": "003", "devices": "cpu", "profile": "quick", "budget_s": 0.1, "out": str(tmp_path)}
        return Experiment(changes.pop("name", "vae"), **settings | changes)

    return make


def batches(count: int) -> list:
    inputs = torch.randn(count, 8, FEATURES, generator=torch.Generator().manual_seed(1))
    return [(x, x.sum(1, keepdim=True)) for x in inputs]


def fit(case: Case, count: int = 60, *, lr: float = 0.02, losses=None, at=lambda number: None, step_s: float = 0.0):
    """Train a linear model for an epoch of `count` steps. `losses` replaces what is noted as the loss of a step, and
    `at` is called in every step; step_s: what a step takes, in simulated time, where it is given. Returns for every
    step whether it was one on a ready batch."""
    torch.manual_seed(1)
    clock = fakes.Clock()
    case.clock.clock = clock if step_s else case.clock.clock
    model = case.watch_model(nn.Linear(FEATURES, 1).to(case.device))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    ready = []
    for number, (inputs, targets) in enumerate(case.steps(batches(count))):
        ready.append(case.clock.on_ready)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        case.loss(loss.item() if losses is None else losses(number))
        at(number)
        clock.pass_s(step_s)
    return ready


def run(experiment: Experiment, body: Callable[[Case], object] = fit, **axes) -> Record:
    """The record of the only case of an experiment, as it is in the journal."""
    (case,) = experiment.cases(**axes)
    with case:
        body(case)
    return experiment.records[-1]


# A case that ends well ------------------------------------------------------------------------------------------------


def test_memory_is_that_of_the_loop_without_the_batches_that_are_kept_ready(make):
    experiment, kept = make(), []
    (device,) = experiment.devices
    device.to_device = lambda batch: kept.append(batch) or batch
    device.peak_memory = lambda: {"reserved_peak_bytes": 9 if kept else 5}
    record = run(experiment)
    assert len(kept) == 3 and record.metrics["reserved_peak_bytes"].value == 5
    assert record.metrics["footprint_peak_bytes"].value > 1e6


def test_a_finished_case_is_one_line_with_all_that_the_design_promises(make):
    experiment = make(budget_s=0.5, profile="article")
    experiment.dataset(SimpleNamespace(kind="stand-in", origin="digits drawn by hand"))
    ready = []

    def body(case):
        (begun,) = experiment.records
        assert (begun.status, begun.case) == ("crashed", case.name), "it is journalled before it starts"
        case.require_memory(WORK)
        ready.extend(fit(case, 200))

    run(experiment, body, batch_size=[8])
    start, end = map(json.loads, experiment.journal.path.read_text(encoding="utf-8").splitlines())
    assert (start["event"], end["event"]) == ("start", "end")
    assert start["case"] == end["case"] == "torch-cpu batch_size=8"
    expected = {"schema": 1, "experiment": "vae", "article": "003", "config": {"batch_size": 8}, "framework": "torch"}
    expected |= {"framework_version": torch.__version__, "backend": "cpu", "device": "cpu", "chip": snapshot.chip()}
    expected |= {"precision": "fp32", "profile": "article", "data": "stand-in", "data_origin": "digits drawn by hand"}
    expected |= {"scaled": False, "parameters": 5, "flops_per_step": 1_000_000, "repeat": 0, "power_source": "ac"}
    expected |= {"threads": torch.get_num_threads(), "status": "ok", "reason": None}
    assert {key: end[key] for key in expected} == expected and "traceback" not in end
    assert datetime.fromisoformat(end["started"]).tzinfo is not None and end["seconds"] > 0

    metrics = end["metrics"]
    assert metrics["footprint_peak_bytes"]["value"] > 1e6
    assert metrics["loss_last"]["value"] < metrics["loss_first"]["value"]
    assert metrics["loss_last"]["n"] == ready.count(False) == 200 and ready.count(True) > 0
    assert not {"allocated_peak_bytes", "reserved_peak_bytes"} & set(metrics)  # PyTorch counts none on a CPU
    # Raw times are kept and agree with the metrics.
    blocks, values = end["blocks"]["training"], {name: metric["value"] for name, metric in metrics.items()}
    steps, seconds = map(sum, zip(*blocks["steady"], strict=True))
    assert values["step_s"] == pytest.approx(seconds / steps, rel=1e-4) and metrics["step_s"]["n"] == steps
    assert values["first_step_s"] == blocks["first_step_s"]
    assert blocks["epoch_steps"] == 200 == 1 + sum(count for count, _ in blocks["warmup"]) + steps
    every = blocks["first_step_s"] + seconds + sum(seconds for _, seconds in blocks["warmup"])
    assert values["epoch_s"] >= every * (1 - 1e-6) and metrics["epoch_s"]["how"] == "measured"
    ready_steps, ready_s = map(sum, zip(*blocks["ready"], strict=True))
    assert values["compute_epoch_s"] == pytest.approx(200 * ready_s / ready_steps, rel=1e-4)
    assert values["flops_per_s"] == pytest.approx(1_000_000 * ready_steps / ready_s, rel=1e-4)


def test_parts_asides_and_own_metrics_stand_in_the_record_and_nothing_observed_is_no_device(make):
    def body(case):
        for _ in case.steps(range(9), ready=False):
            with case.occasional("picture", per_epoch=1):
                time.sleep(0.002)
        assert list(case.steps(range(5), part="evaluation")) == list(range(5))
        case.metric("accuracy", torch.tensor(0.5), low=0.4, high=0.6, n=100)  # a framework's scalar becomes a number
        case.metric("kernel_s", 2, "s", how="estimated")
        case.ran_on(torch.ones(1))

    record = run(make(profile="article"), body)
    assert (record.status, record.device, set(record.blocks)) == ("ok", None, {"training", "evaluation"})
    assert len(record.asides["picture"]) == 9 and min(record.asides["picture"]) >= 0.002
    form = {"value": 0.5, "unit": "", "low": 0.4, "high": 0.6, "n": 100, "how": "measured"}
    assert record.metrics["accuracy"].metric() == form and record.metrics["kernel_s"].how == "estimated"


@pytest.mark.parametrize(("profile", "whole"), [("quick", False), ("article", True)])
def test_only_the_article_profile_runs_an_epoch_that_does_not_fit_the_budget(make, profile, whole):
    seen = []
    experiment = make(profile=profile, budget_s=0.02)
    record = run(experiment, lambda case: seen.extend(fit(case, 80, step_s=0.003)))
    assert record.profile == profile and (seen.count(False) == 80) == whole
    assert record.metrics["epoch_s"].how == ("measured" if whole else "estimated")
    assert record.metrics["epoch_s"].value == pytest.approx(80 * 0.003)
    assert record.metrics["loss_first"].n == seen.count(False)
    assert record.blocks["training"]["stopped"] == ("whole epoch" if whole else "budget")
    assert ("few-steps" in record.flags) == (not whole)


def test_rows_and_axes_make_the_cases_whose_settings_are_attributes_and_items(make):
    experiment = make()
    assert [case.precision for case in experiment.cases(precision=["fp16", "bf16"])] == ["fp16", "bf16"]
    names = [case.name for case in experiment.cases(batch_size=(64, 128), layers=iter([1, 2]))]
    assert names == [f"torch-cpu batch_size={size} layers={layers}" for size in (64, 128) for layers in (1, 2)]
    rows = [{"a": 2}, {"a": 1}]
    assert [case.config for case in experiment.cases(iter(rows))] == rows
    assert [case.name for case in experiment.cases()] == ["torch-cpu"]
    (case,) = experiment.cases([{"batch_size": 8, "check": "memory"}])
    assert (case["batch_size"], case["check"], case.device) == (8, "memory", torch.device("cpu")) and callable(
        case.check
    )
    with pytest.raises(KeyError):
        case["hidden_size"]


# Every other way to end -----------------------------------------------------------------------------------------------

EXCEPTIONS = [
    (RuntimeError(MPS_OUT), "out-of-memory", "MPS backend out of memory (MPS allocated: 17.94 GB"),
    (errors.Unsupported("MPS has no float64"), "unsupported", "MPS has no float64"),
    (Mismatch("off by 0.3"), "mismatch", "off by 0.3"),
    (TooBig("needs 99 GB"), "too-big", "needs 99 GB"),
    (TooSlow("needs a week"), "too-slow", "needs a week"),
    (RuntimeError("shapes differ\nat layer 3"), "error", "RuntimeError: shapes differ"),
]


def test_an_exception_ends_its_case_and_not_the_notebook(make, monkeypatch):
    experiment = make()
    (device,) = experiment.devices
    monkeypatch.setattr(type(device), "memory_limit", "the limit here is 1 times")
    for case in experiment.cases(number=range(len(EXCEPTIONS) + 1)):
        with case:
            fit(case)
            if case["number"] < len(EXCEPTIONS):
                raise EXCEPTIONS[case["number"]][0]
    *records, following = experiment.records
    assert following.status == "ok"
    for record, (_, status, reason) in zip(records, EXCEPTIONS, strict=True):
        assert record.status == status and record.reason.startswith(reason) and "\n" not in record.reason
        assert (bool(record.traceback)) == (status == "error")
        assert "epoch_s" in record.metrics  # what had been measured is kept
        assert (record.note == device.memory_limit) == (status == "out-of-memory")


def test_a_traceback_is_kept_without_the_folders_of_this_machine(make, monkeypatch):
    monkeypatch.setenv("HOME", "/Users/jo")

    def body(case):
        raise ValueError(f"no /Users/jo/data, /Users/jo, /Users/john/data or {root()}/outputs/x")

    record = run(make(), body)
    assert record.reason == "ValueError: no ~/data, ~, /Users/john/data or ./outputs/x"
    assert "Traceback (most recent call last)" in record.traceback and "in body" in record.traceback
    text = json.dumps(record.line(), default=str)
    assert "/Users/jo/" not in text and str(root()) not in text


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_is_journalled_passed_on_and_tried_again(make, kind):
    experiment = make()
    (case,) = experiment.cases()
    with pytest.raises(kind), case:
        fit(case)
        raise kind
    (record,) = experiment.records
    assert record.status == "interrupted" and "epoch_s" in record.metrics
    assert [case.name for case in make().cases()] == [record.case]


@pytest.mark.parametrize("free", [WORK.bytes, WORK.bytes - 1])
def test_what_cannot_fit_is_not_tried(make, monkeypatch, free):
    monkeypatch.setattr(Device, "free_memory", lambda self: free)
    built = []

    def body(case):
        case.require_memory(WORK)
        built.append(fit(case))

    record = run(make(), body)
    if free < WORK.bytes:
        assert (record.status, record.parameters, record.device, record.metrics) == ("too-big", 5, None, {})
        assert record.reason.startswith("needs 0.0 GB at the least (weights, gradients and optimiser 0.0, kept")
    assert bool(built) == (record.status == "ok") == (free == WORK.bytes)


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


def step_990(case):
    for number, _ in enumerate(case.steps(batches(1000))):
        time.sleep(0.0002)
        if number == 990:
            raise ValueError("step 990")


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        (other_model, "mismatch", "the model has 6 parameters; 5 were counted beforehand"),
        (left_at_once, "error", "nothing was timed"),
        (no_number, "error", "ValueError: max_abs_error is nan; what could not be measured is left out"),
        (on_meta, "fallback", "asked for cpu, computed on meta"),
        (step_990, "error", "ValueError: step 990"),
    ],
)
def test_what_goes_wrong_is_said_and_what_was_timed_before_is_kept(make, body, status, reason):
    record = run(make(profile="article"), body)
    assert (record.status, record.reason) == (status, reason)
    assert bool(record.traceback) == reason.startswith("ValueError") and "max_abs_error" not in record.metrics
    assert ("epoch_s" in record.metrics) == (body in (no_number, on_meta, step_990))
    if body is step_990:
        assert record.metrics["step_s"].value >= 0.0002 and record.metrics["epoch_s"].how == "estimated"


def test_what_ran_elsewhere_is_a_fallback(make, monkeypatch):
    monkeypatch.setattr(Device, "device_of", lambda self, item: "cuda")
    record = run(make(), at=[1])
    assert (record.status, record.device, record.reason) == ("fallback", "gpu", "asked for cpu, computed on cuda")
    operators = contextlib.nullcontext({"aten::b", "aten::a"})
    monkeypatch.setattr(Device, "watch_fallbacks", lambda self: operators)
    record = run(make(), at=[2])
    assert (record.status, record.reason) == ("fallback", "ran on the CPU: aten::a, aten::b")


def test_an_error_that_a_device_reports_late_still_ends_the_case(make, monkeypatch):
    def synchronize():
        raise RuntimeError("CUDA error: out of memory")

    def body(case):
        fit(case)
        monkeypatch.setattr(case.backend, "synchronize", synchronize)

    assert run(make(), body).status == "out-of-memory"


# Whether it learned ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "options", "learns", "reason"),
    [
        (60, {"lr": 0.0}, False, "no step changed the weights"),  # a GAN's weights change too
        (60, {"losses": lambda number: math.nan if number > 50 else -number}, True, "the loss is not a finite number"),
        (60, {"losses": float}, True, "the loss went from 1 to 49.5 in 60 steps"),  # medians of 0, 1, 2 and 40 to 59
        (JUDGED_STEPS, {"losses": lambda number: 1.0}, True, f"the loss went from 1 to 1 in {JUDGED_STEPS} steps"),
        (JUDGED_STEPS, {"losses": float}, False, None),
        (JUDGED_STEPS - 1, {"losses": float}, True, None),
    ],
)
def test_a_model_that_does_not_learn_is_said(make, count, options, learns, reason):
    experiment = make(expects_learning=learns, profile="article")
    record = run(experiment, lambda case: fit(case, count, **options))
    assert (record.status, record.reason) == ("not-learning" if reason else "ok", reason)
    (row,) = experiment.details().rows
    for shown in (row.cells[experiment.details().columns.index("Loss")], cases.line(record)):
        assert f" (not judged: {count} steps)" in shown if count < JUDGED_STEPS else "judged" not in shown


@pytest.mark.parametrize(
    ("value", "samples", "count", "status"),
    [
        (0.128, 1000, 20, "not-learning"),  # a guesser gets up to 12.8 % of 1,000 right
        (0.13, 1000, 60, "ok"),
        (0.11, 10_000, 60, "ok"),  # and up to 10.9 % of 10,000
        (0.02, 1000, 19, "ok"),  # too few steps to conclude anything
    ],
)
def test_a_model_that_does_no_better_than_guessing_is_said_not_to_learn(make, value, samples, count, status):
    def body(case):
        fit(case, count)
        case.accuracy(value, samples, classes=10)

    record = run(make(profile="article"), body)
    assert record.status == status, record.reason
    assert record.metrics["accuracy"].value == value and record.metrics["accuracy"].n == samples
    assert status == "ok" or record.reason.startswith(f"{value:.1%} right after {count} steps; guessing gives 10.0%")


@pytest.mark.parametrize(
    ("profile", "epochs", "done", "data"),
    [
        ("article", 1, None, "real"),
        ("article", 1, None, "stand-in"),
        ("article", 3, "1", "real"),
        ("quick", 1, r"0\.\d+", "stand-in"),
        ("quick", 3, r"0\.\d+", "real"),
    ],
)
def test_an_accuracy_says_how_much_of_the_training_ran_and_that_it_is_a_stand_in_s(make, profile, epochs, done, data):
    def body(case):
        fit(case, 60 if profile == "article" else 600, step_s=0.001)
        case.accuracy(0.592, 1000, classes=10, epochs=epochs)

    experiment = make(profile=profile, columns=["epoch_s", "accuracy"])
    experiment.dataset(SimpleNamespace(kind=data, origin="somewhere"))
    whose = " of the stand-in" if data == "stand-in" else ""
    record, (name, other) = run(experiment, body, batch_size=[128]), ("accuracy", "accuracy_unfinished")
    assert record.status == "ok" and record.metrics[other if done else name].value == 0.592
    assert (name if done else other) not in record.metrics
    (row,) = [row for row in experiment.table().rows if row.kind == "measured"]
    shown = f"59.2 % ({whose.strip()})" if whose else "59.2 %"
    assert (shown in row.cells) == (not done), "no column holds the number of an unfinished one"
    assert not done or re.search(rf"59\.2 %{whose} right after {done} of {epochs} epochs", row.cells[-1])


# Going on -------------------------------------------------------------------------------------------------------------


def test_what_the_journal_holds_is_skipped_and_said(make, capsys):
    for case in make().cases(batch_size=[8, 16, 32]):
        if case["batch_size"] == 32:
            break
        with case:
            fit(case)
            if case["batch_size"] == 16:
                raise ValueError("a bug")
    capsys.readouterr()
    again = make()
    assert [case["batch_size"] for case in again.cases(batch_size=[8, 16, 32])] == [16, 32]
    assert capsys.readouterr().out.startswith("torch-cpu batch_size=8: in the journal already; skipped")
    assert [case["batch_size"] for case in make(repeat=1).cases(batch_size=[8, 16])] == [8, 16]
    for case in again.cases(batch_size=[8, 16, 32]):
        with case:
            fit(case)
    assert [record.status for record in again.records] == ["ok"] * 3
    assert list(make().cases(batch_size=[8, 16, 32])) == []


@pytest.mark.parametrize(
    ("changes", "rows", "instead", "ran"),
    [
        # A step takes 8 ms a sample, so 0.2 s are three steps of 8. Of 30 steps in the budget none could be larger.
        ({}, [{"batch_size": 8}, {"batch_size": 16}], {}, [8, 16, 2]),
        ({}, [{"batch_size": 8}, {"batch_size": 1}], {}, [8, 1]),  # that has 25
        ({}, [{"batch_size": 8, "way": "a"}, {"batch_size": 1, "way": "b"}], {}, [8, 1, 2]),  # of another way
        ({}, [{"batch_size": 2, "width": 9}], {"width": 1}, [2, 2]),  # a batch that can hardly be smaller
        ({}, [{"batch_size": 2, "width": 9}], {}, [2]),
        ({"budget_s": 20}, [{"batch_size": 64}], {}, [64]),  # 39 steps
        ({"profile": "article"}, [{"batch_size": 64}], {}, [64]),
        ({"profile": "smoke"}, [{"batch_size": 64}], {}, [64]),
    ],
)
def test_beside_a_case_of_few_steps_a_smaller_one_runs(make, changes, rows, instead, ran):
    def train(experiment):
        for case in experiment.smaller_beside(experiment.cases(rows), **instead):
            with case:
                fit(case, 60, step_s=0.008 * case["batch_size"] * case.config.get("width", 1))
        return experiment.records

    records = train(make(**{"budget_s": 0.2} | changes))
    assert [(record.config["batch_size"], record.status) for record in records] == [(size, "ok") for size in ran]
    assert [record.scaled for record in records] == [False] * len(rows) + [True] * (len(ran) - len(rows))
    if len(ran) > len(rows):
        steps, first = outcome.steady_steps(records[-1]), records[0].config
        assert steps >= 10 > outcome.steady_steps(records[0])
        assert records[-1].config == first | instead | {"batch_size": ran[-1]}
        assert records[-1].metrics["step_s"].low is not None
    assert len(train(make(**{"budget_s": 0.2} | changes))) == len(ran), "not once more"
    # A repeat whose own steps would have it otherwise: on a machine that is twice as slow.
    again = train(make(**{"budget_s": 0.1, "repeat": 1} | changes))[len(ran) :]
    assert [record.config for record in again if record.scaled] == [record.config for record in records[len(rows) :]]


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


# The experiment -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"profile": "Quick"}, "vae: profile is 'Quick'; it must be one of smoke, quick, article"),
        ({"budget_s": 0}, "vae: budget_s is 0; it must be a number of seconds above 0"),
        ({"framework": "theano"}, "framework: 'theano' is not known"),
        ({"devices": "tpu"}, "devices: 'tpu' is not known; one of auto, cpu, gpu, cuda, mps, xpu, metal"),
    ],
)
def test_a_wrong_setting_is_said_in_one_line_and_leaves_nothing(make, tmp_path, settings, words):
    with pytest.raises(PomologyError) as error:
        make(**settings)
    assert str(error.value).startswith(words) and "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_bad_input_is_one_line_in_a_notebook():
    """As IPython shows it."""
    line = "from pomology.experiment.experiment import Experiment; Experiment('vae', article='003', profile='fast')"
    command = [sys.executable, "-m", "IPython", "--no-banner", "--colors=NoColor", "-c", line]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    (shown,) = done.stdout.splitlines()
    assert shown.startswith("PomologyError: vae: profile is 'fast'; it must be one of") and not done.stderr


def test_the_machine_is_noted_once_and_names_nobody(make, tmp_path, monkeypatch):
    make()
    text = (tmp_path / "machine.json").read_text(encoding="utf-8")
    noted = json.loads(text)
    assert {"chip", "cpu_cores", "memory_bytes", "os", "os_version", "python", "packages", "git"} <= noted.keys()
    assert (noted["profile"], noted["power_source"]) == ("quick", "ac")
    monkeypatch.setattr(snapshot, "snapshot", lambda: pytest.fail("asked again"))
    assert make(name="dcgan").snapshot == noted
    assert [name for name in os.listdir(tmp_path) if name != ".partial"] == ["machine.json"]  # no draft beside it
    assert str(Path.home()) not in text or str(Path.home()) == "/"
    for name in {socket.gethostname(), getpass.getuser()}:
        assert not re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w.-])", text)


@pytest.mark.parametrize("error", [None, RuntimeError(MPS_OUT)])
def test_notes_and_flags_are_each_said_once_however_the_case_ends(make, quiet_machine, error):
    quiet_machine |= {"power_source": "battery", "flags": ["on-battery", "low-power"]}

    def body(case):
        case.memory_budget(0.9, most_bytes=1e6)
        for text in ("random weights", "batch 12", "random weights"):
            case.note(text, "a-flag")
        fit(case)
        if error:
            raise error

    record = run(make(), body)
    held, *others = record.note.split("; ")
    assert held.startswith("not near the limit: held at 0.001 GB") and others == ["random weights", "batch 12"]
    assert record.scaled and "held at 0.001 GB" in cases.line(record) and record.power_source == "battery"
    assert record.flags[:3] == ["on-battery", "low-power", "a-flag"]
    assert record.status == ("out-of-memory" if error else "ok")


@pytest.mark.parametrize("profile", ["quick", "smoke"])
def test_table_figure_and_claims_of_a_notebook(make, tmp_path, profile):
    experiment = make(profile=profile)
    run(experiment, batch_size=[128])
    table, stated = experiment.table(), {row.cells[0]: row.cells[3] for row in experiment.claims().rows}
    measured = [row.cells for row in table.rows if row.kind == "measured"]
    if profile == "smoke":  # is journalled, but stands in no table
        assert len(experiment.records) == 1 and measured == []
        assert any("smoke test" in note for note in table.notes)
        assert {verdict.split(":")[0] for verdict in stated.values()} == {"cannot be told here"}
        return
    assert measured[0][1] == "128" and re.search(" m?s", measured[0][2]) and len(experiment.details().rows) == 1
    assert "<svg" in experiment.figure().data and "003-C1" in stated
    assert (tmp_path / "figures" / "vae-epoch.svg").read_text(encoding="utf-8").startswith("<svg")
    assert {"vae-article.csv", "vae-details.json"} <= set(os.listdir(tmp_path / "tables"))
    assert experiment.machine().rows[0].cells[0] == "Chip"


def test_claims_stand_with_the_notebooks_that_they_need_and_see_what_others_have_measured(make, monkeypatch):
    for name in ("lstm", "vae"):  # the one shares claims with the MLP, the other is of another article
        run(make(name=name, article="004"))
    seen, honest = [], claims.claims_table
    monkeypatch.setattr(claims, "claims_table", lambda *given: seen.append(given[1]) or honest(*given))
    declared = make(name="mlp", article="004", claims_of=["hardware"])  # as its notebook declares
    shown = {row.cells[0] for row in declared.claims().rows}
    assert {"004-C2", "004-C7", "004-C10", "004-C11", "004-C13"} <= shown
    others = {row.cells[0] for row in make(name="cnn", article="004").claims().rows}
    assert "004-C8" in others and not {"004-C7", "004-C10"} & others
    assert [record.experiment for record in seen[0]] == ["lstm"]


# Checks against a reference -------------------------------------------------------------------------------------------


def checked(experiment: Experiment, *check, **named) -> Record:
    """The record of a case that makes two checks, the first of which agrees, and then trains."""

    def body(case):
        case.check(torch.tensor([0.25]), np.zeros(1, np.float32), 0.5, "A")
        case.check(*check, **named)
        fit(case)

    return run(experiment, body)


def test_what_differs_ends_the_case_in_a_line_that_names_the_worst_element(make):
    reference = {"outputs": np.zeros((2, 3), np.float32), "gradient": np.zeros(4, np.float32)}
    values = {name: array.copy() for name, array in reference.items()} | {"last": np.ones(1, np.float32)}
    values["outputs"][1, 2], values["gradient"][3] = 0.25, -2.0
    record = checked(make(), values, reference | {"last": np.zeros(1, np.float32)}, 0.125, "GPU against CPU")
    expected = "GPU against CPU: gradient [3] is -2, the reference has 0: 2 apart, where 0.12 is allowed"
    assert (record.status, record.reason) == ("mismatch", expected)
    assert record.metrics["max_abs_error"].value == 2.0, "kept also when the check fails"
    assert record.blocks == {}, "nothing was timed after it"


ONES, FAINT = np.ones((2, 3), np.float32), np.array([1e-6, 1e-3], np.float32)


@pytest.mark.parametrize(
    ("values", "reference", "relative", "words"),
    [
        (np.ones((3, 2), np.float32), ONES, False, "has shape (3, 2); the reference has (2, 3)"),
        (torch.ones(2, 3, dtype=torch.float64), ONES, False, "has elements of float64; the reference has float32"),
        (np.full((2, 3), np.nan, np.float32), ONES, False, "not finite"),
        ({"a": ONES}, {"a": ONES, "b": ONES}, False, "gives a; the reference gives a, b"),
        (1.02 * FAINT, FAINT, False, None),  # by less than is allowed
        (1.02 * FAINT, FAINT, True, "apart, where 1e-06 is allowed"),  # by more than a thousandth of the largest
    ],
)
def test_names_shapes_types_and_values_must_agree(make, values, reference, relative, words):
    record = checked(make(), values, reference, 1e-3, "product", relative=relative)
    assert record.status == ("mismatch" if words else "ok"), record.reason
    assert words or record.metrics["max_abs_error"].value == 0.25, "the largest difference of a case"
    assert not words or (record.reason.startswith("product: ") and words in record.reason)


# Progress -------------------------------------------------------------------------------------------------------------


def test_outside_of_a_notebook_one_line_a_case_is_printed(make, capsys, monkeypatch):
    monkeypatch.setattr("IPython.get_ipython", lambda: None)  # whatever another test has left
    run(make(profile="article"), lambda case: fit(case, 3, losses=lambda number: 3 - number))
    (line,) = capsys.readouterr().out.splitlines()
    assert re.match(r"torch-cpu · epoch .* measured · loss 3 → 1 \(not judged: 3 steps\) · .*took \d+", line)


def test_in_a_notebook_one_line_is_shown_and_then_replaced(make, capsys, monkeypatch):
    shown = []
    handle = SimpleNamespace(update=lambda line: shown.append(line.data))

    def display(line, *, display_id):
        assert display_id is True and shown == []
        return shown.append(line.data) or handle

    monkeypatch.setattr("IPython.get_ipython", object)
    monkeypatch.setattr("IPython.display.display", display)
    begun = time.perf_counter()
    run(make(profile="article"), lambda case: fit(case, 100, at=lambda number: time.sleep(0.012)), batch_size=[8])
    assert 3 <= len(shown) <= 3 + 2 * (time.perf_counter() - begun)  # two a second
    assert re.fullmatch(r"torch-cpu batch_size=8: training, step 1 of 100, \d+ s", shown[0])
    assert re.fullmatch(r"torch-cpu batch_size=8: training, step \d+ of 100, \d+ s", shown[1])
    assert shown[-1].startswith("vae: cpu, batch size 8 · epoch ") and capsys.readouterr().out == ""


# Devices in turn ------------------------------------------------------------------------------------------------------


def test_devices_take_turns_and_what_another_holds_is_freed(make):
    experiment, other, freed = make(), Device("cpu"), []
    other.backend = "pretended"
    experiment.devices.append(other)
    for device in experiment.devices:
        device.release = lambda device=device: freed.append(device.backend)
    cases = experiment.cases(batch_size=[8, 16])
    order = [(case["batch_size"], case.backend.backend, freed[-1]) for case in cases]
    assert order == [
        *[(8, "cpu", "pretended"), (8, "pretended", "cpu")],
        *[(16, "cpu", "pretended"), (16, "pretended", "cpu")],
    ]

    def lost():
        raise RuntimeError("CUDA error: unspecified launch failure")

    other.release = lost
    (case,) = experiment.cases(batch_size=[32], on=experiment.devices[:1])
    with case:
        fit(case, 20)
    record = experiment.records[-1]
    assert record.status == "ok" and "of pretended could not be freed: CUDA error" in record.note


@pytest.fixture
def warm(monkeypatch):
    """warm(experiment, ...): its device cools by 1 °C a second of rest; a case leaves it `hot`. In simulated time."""
    state = SimpleNamespace(now=0.0, hot=0.0, looks=0)
    fake = SimpleNamespace(time=time.time, perf_counter=lambda: state.now, sleep=lambda seconds: rest(seconds))
    monkeypatch.setattr("pomology.experiment.experiment.time", fake)

    def rest(seconds):
        state.now, state.hot = state.now + seconds, max(0.0, state.hot - seconds)

    def heat(kind):
        state.looks += 1
        return {"temperature_c": 40 + state.hot, "level": 0}

    def cases(experiment, hot, work_s=60.0, count=1):
        experiment.heat = heat
        rested = []
        for case in experiment.cases(number=range(count)):
            rested.append(case.rested_s)
            state.now, state.hot = state.now + work_s, hot
        return rested

    cases.state = state
    return cases


@pytest.mark.parametrize(
    ("profile", "hot", "work_s", "rested"),
    [
        ("quick", 12, 60, [0, 9, 9, 9, 9, 9]),  # within 3 °C of the start
        ("quick", 90, 60, [0, 30, 30, 30, 30, 0]),  # at most half a minute, and two minutes in all
        ("quick", 12, 2, [0, 0, 0, 9, 0, 0]),  # looked at after 5 s of work
        ("smoke", 12, 60, [0] * 6),
    ],
)
def test_a_device_rests_until_it_is_as_cool_as_at_the_start(make, warm, capsys, profile, hot, work_s, rested):
    assert warm(make(profile=profile), hot, work_s, count=6) == rested
    assert profile == "quick" or warm.state.looks == 0


def test_a_machine_without_sensors_or_meter_never_waits(make, monkeypatch):
    experiment = make()
    experiment.heat = lambda kind: {}
    monkeypatch.setattr("pomology.experiment.experiment.WORK_S", -1.0)
    assert [case.rested_s for case in experiment.cases(number=range(3))] == [0, 0, 0]


def test_thermal_state_before_and_after_is_in_the_record(make, monkeypatch):
    degrees = iter(range(41, 1000))
    monkeypatch.setitem(SOURCES, "temperature", Source({"temperature_c": "°C"}, lambda watch: lambda: next(degrees)))
    thermal = run(make(), lambda case: fit(case, 20)).thermal
    assert thermal["before"]["temperature_c"] < thermal["after"]["temperature_c"] and thermal["rested_s"] == 0
    assert "level" not in thermal["before"]  # macOS alone has it


def test_power_at_rest_is_looked_at_where_there_is_no_temperature(make, monkeypatch):
    """On a Mac: 3 W of a chip whose GPU is off, so that its counter stands still; then a thermometer is enough."""
    now = time.perf_counter
    meter = energy.Meter({"cpu": 0.01, "gpu": 0.01}, lambda: {"cpu": 3 * now(), "gpu": 7.0}, {})
    monkeypatch.setattr(rails, "meter", lambda device: meter)
    monkeypatch.setitem(SOURCES, "thermal", Source({"thermal_level": ""}, lambda watch: lambda: 2))
    refused = Source({"temperature_c": "°C"}, lambda watch: next(iter(())))
    monkeypatch.setitem(SOURCES, "temperature", refused)
    assert make().heat("gpu") == {"level": 2, "power_w": pytest.approx(3, rel=0.05)}
    monkeypatch.setitem(SOURCES, "temperature", Source({"temperature_c": "°C"}, lambda watch: lambda: 55.0))
    assert make().heat("gpu") == {"level": 2, "temperature_c": 55.0}


# A GPU that the framework cannot use ----------------------------------------------------------------------------------


def test_a_gpu_without_a_package_for_this_python_ends_as_unsupported(make, monkeypatch):
    reason = "tensorflow-metal has no build for Python 3.13: PYTHON=python3.12 has one"
    monkeypatch.setattr(Device, "unusable", classmethod(lambda cls: {"mps": reason}))
    experiment = make(devices="auto")
    for case in experiment.cases(width=[1, 2]):
        with case:
            case.metric("kernel_s", 1.0, "s")
    records = experiment.run_records()
    ended = {(record.backend, record.config["width"], record.status, record.reason) for record in records}
    assert {each for each in ended if each[0] == "mps"} == {("mps", width, "unsupported", reason) for width in (1, 2)}
    assert {each[2] for each in ended if each[0] == "cpu"} == {"ok"}
    assert [case.name for case in make(devices="auto").cases(width=[1, 2])] == []  # nothing is journalled twice
    assert len(experiment.run_records()) == 4 and not make(devices="cpu").unusable


def test_packages_of_another_environment_are_not_measured(make, monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(root() / "lib"), str(Path(torch.__file__).parents[1]))))
    with pytest.raises(
        PomologyError, match=r"^torch comes from \S+, by PYTHONPATH: unset it and start the kernel again$"
    ):
        make()
    monkeypatch.setenv("PYTHONPATH", str(root() / "lib"))
    make()
