"""A workload's step in a case: what it declares is compared before and after the timing."""

import contextlib
import dataclasses
import functools
import itertools
from types import SimpleNamespace

import psutil
import pytest
import torch
from torch import nn

from pomology.errors import Mismatch
from pomology.experiment.experiment import Experiment
from pomology.models import autocast, verify_torch, workload
from pomology.models.workload import Workload

SIZE = 8  # samples of a step


def step(model, optimizer, inputs):
    optimizer.zero_grad()
    loss = model(inputs).square().mean()
    loss.backward()
    optimizer.step()
    return loss


LINEAR = Workload(
    build=lambda: nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5)),
    batch=lambda size: (torch.rand(size, 4),),
    optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
    step=step,
    parameters=15,
    flops_per_sample=2 * 2 * 12,  # forward pass, and the weights' gradient
    optimizer_class="SGD",
    slots=1,
)


SCALED = 3000.0  # times a gradient scale over 16 is too large for fp16


def scaled_step(model, optimizers, inputs):
    """Make a step whose gradient overflows in fp16, until its scale of 65,536 is halved to 16."""
    optimizer, scaler = optimizers
    optimizer.zero_grad()
    loss = (model(inputs).square().mean().half() * SCALED).float()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9)
    scaler.step(optimizer)
    scaler.update()
    return loss


def with_scaler(model):
    return LINEAR.optimizer(model), torch.amp.GradScaler("cpu")


WITH_SCALER = dataclasses.replace(LINEAR, step=scaled_step, optimizer=with_scaler)


@pytest.fixture
def train(tmp_path, quiet_machine):
    """Return a function that trains a workload in a case, and returns its record."""

    number = itertools.count()

    def train(declared=LINEAR, size=SIZE, prepared=lambda model: None, precision="fp32"):
        settings = {"article": "kit", "devices": "cpu", "budget_s": 0.05, "out": str(tmp_path)}
        settings |= {"repeat": next(number), "expects_learning": False}
        experiment = Experiment("w", **settings)
        (case,) = experiment.cases(batch_size=[SIZE], precision=[precision])
        with case:
            model, optimizer = case.prepare(declared)
            prepared(model)
            for batch in case.steps([torch.rand(size, 4) for _ in range(40)]):
                case.loss(declared.step(model, optimizer, batch).item())
        return experiment.records[-1]

    return train


def test_a_step_as_declared_is_timed_and_counted(train):
    record = train()
    assert (record.status, record.parameters) == ("ok", 15)
    assert record.flops_per_step == SIZE * 48
    step_s, samples = record.metrics["step_s"], record.metrics["samples_per_s"]
    assert samples.value == pytest.approx(SIZE / step_s.value) and samples.unit == "samples/s"


def test_the_count_equals_the_sum_by_hand():
    counted = workload.count(LINEAR, SIZE)
    assert counted.slot_bytes == 4 * 15 and counted.cost.state_bytes == 3 * 4 * 15
    assert counted.updated == {"0.weight", "0.bias"} and counted.optimizers == ["SGD"]
    assert list(workload.differences(LINEAR, counted)) == []


WRONG = [
    ({"parameters": 16}, "the model has 15 parameters, not 16"),
    ({"trained": 12}, "15 parameters are trained, not 12"),
    ({"slots": 2}, "the optimizer's state has 60 bytes, not 120"),
    ({"unchanged": ["*.bias"]}, "a step updates 0.bias, which it should leave"),
    ({"evaluated": ["1"]}, "the module 1 is in training mode"),
    ({"autocast": True}, "autocast in a case of fp32"),
]


@pytest.mark.parametrize(("changes", "words"), WRONG)
def test_another_declaration_ends_the_case_before_its_timing(train, changes, words):
    record = train(dataclasses.replace(LINEAR, **changes))
    assert (record.status, record.reason) == ("mismatch", f"other than declared: {words}")
    assert not record.blocks


def test_what_the_timed_loop_does_otherwise_ends_the_case_after_it(train):
    assert "the module itself gets (4, 4), not (8, 4)" in train(size=SIZE // 2).reason
    assert "is in evaluation mode" in train(prepared=lambda model: model.eval()).reason

    def in_autocast(*arguments):
        with torch.autocast("cpu", torch.bfloat16, enabled=arguments[2].device.type == "cpu"):
            return step(*arguments)

    declared = dataclasses.replace(LINEAR, step=in_autocast)
    assert "runs in autocast" in train(declared).reason


def test_a_case_computes_in_its_own_precision(train):
    def in_autocast(model, optimizer, inputs):
        with autocast.forward_context("bf16", "cpu"):
            return step(model, optimizer, inputs)

    declared = dataclasses.replace(LINEAR, step=in_autocast, autocast=True)
    assert train(declared, precision="bf16").status == "ok"
    assert "autocast in a case of fp32" in train(declared).reason
    assert "has no autocast, and no weight is in bf16" in train(precision="bf16").reason
    declared = dataclasses.replace(LINEAR, autocast=True)
    assert "pass does not run in autocast" in train(declared, precision="bf16").reason


class Descent:
    """An optimizer that is none of PyTorch's, and does not list its weights."""

    def __init__(self, weights):
        self.weights = weights

    def zero_grad(self):
        for weight in self.weights:
            weight.grad = None

    def step(self):
        for weight in self.weights:
            weight.data.add_(weight.grad, alpha=-0.1)


@pytest.mark.parametrize(
    ("count", "texts"), [(2, []), (1, ["a step does not update 0.bias"])], ids=["all", "one"]
)
def test_an_update_is_what_an_optimizer_writes_to(count, texts):
    changes = {"optimizer": lambda model: Descent([*model.parameters()][:count])}
    changes |= {"optimizer_class": "Descent", "slots": 0}
    declared = dataclasses.replace(LINEAR, **changes)
    assert list(workload.differences(declared, workload.count(declared, SIZE))) == texts


def test_a_module_is_watched_in_its_first_call_only():
    model = LINEAR.build()
    with workload.watched(model) as seen:
        model(torch.rand(SIZE, 4))
        model.eval()
        model(torch.rand(1, 4))
        assert not any(module._forward_pre_hooks for module in model.modules())
    assert seen.shapes["0"] == (SIZE, 4) and all(seen.training.values())


def test_autocast_of_another_device_is_none():
    model, inputs = LINEAR.build(), torch.rand(SIZE, 4)
    for kind, seen_autocast in (("mps", {False}), ("cpu", {True})):
        with workload.watched(model) as seen, torch.autocast(kind, torch.bfloat16):
            model(inputs)
        assert seen.autocast == seen_autocast
    with workload.watched(model.to("meta")) as seen, torch.autocast("mps", torch.bfloat16):
        model(inputs.to("meta"))
    assert seen.autocast == {True}


def test_a_measured_step_is_watched_in_its_first_call_only(tmp_path, quiet_machine):
    settings = {"article": "kit", "devices": "cpu", "budget_s": 0.05, "out": str(tmp_path)}
    experiment = Experiment("w", **settings)
    hooks = []
    for case, size in zip(experiment.cases(batch_size=[SIZE, 2 * SIZE]), [SIZE, SIZE], strict=True):
        with case:
            model, optimizer = case.prepare(LINEAR)
            batch = LINEAR.batch(size)

            def measured(model=model, optimizer=optimizer, batch=batch):
                hooks.append(len(model._forward_pre_hooks))
                return LINEAR.step(model, optimizer, *batch)

            case.measure("step_s", measured)
            assert hooks[0] == 1 and len(hooks) > 2 and not any(hooks[1:])
            hooks.clear()
    same, other = experiment.records
    assert same.status == "ok" and "the module itself gets (8, 4), not (16, 4)" in other.reason


TWO_LAYERS = dataclasses.replace(
    LINEAR,
    build=lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)),
    parameters=40,
    flops_per_sample=5 * 2 * 16,  # twice forward, twice of weights, once of inputs
)


def in_loop(name, model, optimizer):
    """Return a timed step other than the workload's, with the fault of this name."""
    first, second = model
    others = {
        "optimizer": torch.optim.RMSprop(model.parameters(), lr=0.1),
        "group": torch.optim.SGD([*model.parameters()][:-1], lr=0.1, momentum=0.9),
    }
    chosen = others.get(name, optimizer)

    def timed(inputs):
        chosen.zero_grad()
        hidden = first(inputs)
        hidden = hidden.detach() if name == "detached" else hidden
        loss = second(hidden).square().mean()
        loss.backward()
        chosen.step()

    return timed


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("", None),
        ("detached", "the timed steps compute no gradient of 0.bias"),
        ("group", "the timed steps do not update 1.bias"),
        ("optimizer", "the timed optimizer is RMSprop, not SGD"),
    ],
)
def test_a_timed_loop_trains_what_its_workload_declares(tmp_path, quiet_machine, fault, reason):
    """A loop is a notebook's own, and may call another function than the step that was counted."""
    experiment = Experiment("w", article="kit", devices="cpu", budget_s=0.05, out=str(tmp_path))
    for case in experiment.cases(batch_size=[SIZE]):
        with case:
            timed = in_loop(fault, *case.prepare(TWO_LAYERS))
            for inputs in case.steps([torch.rand(SIZE, 4)] * 30):
                timed(inputs)
    (record,) = experiment.records
    assert record.reason == (reason and f"other than declared: {reason}")
    assert record.status == ("mismatch" if fault else "ok")


def test_shared_weights_and_a_closure_are_watched_and_no_hook_stays():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def closure():  # as Lightning trains
        optimizer.zero_grad()
        loss = model(torch.rand(2, 4)).square().mean()
        loss.backward()
        return loss

    with workload.watched_training(model) as trained:
        optimizer.step(closure)
        optimizer.step(closure)
    weights = {"0.weight", "0.bias", "1.bias"}
    assert trained.watched == trained.graded == trained.updated == weights
    assert trained.optimizers == {"SGD"}
    optimizer.step(closure)
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert not any(weight._post_accumulate_grad_hooks for weight in model.parameters())


def test_an_inference_has_no_optimizer_and_nothing_to_update():
    def infer(model, _optimizer, inputs):
        with torch.no_grad():
            return model(inputs)

    changes = {"step": infer, "optimizer": lambda model: None, "flops_per_sample": 2 * 12}
    changes |= {"optimizer_class": None, "slots": 0, "trained": 0, "evaluated": ["*"]}
    changes |= {"build": lambda: LINEAR.build().eval().requires_grad_(False)}
    inference = dataclasses.replace(LINEAR, **changes)
    counted = workload.count(inference, SIZE)
    assert list(workload.differences(inference, counted)) == []
    assert counted.cost.state_bytes == 4 * 15 and counted.cost.saved_bytes == 0
    without = dataclasses.replace(LINEAR, optimizer=lambda model: None, step=infer)
    texts = list(workload.differences(without, workload.count(without, SIZE)))
    assert "the step has no optimizer" in texts and "a step does not update 0.bias" in texts


def test_values_are_not_read_while_counting():
    def reads(model, optimizer, inputs):
        loss = step(model, optimizer, inputs)
        return loss.item()

    counted = workload.count(dataclasses.replace(LINEAR, step=reads), SIZE)
    assert counted.cost.flops == SIZE * 48
    assert torch.ones(()).item() == 1.0


def stack(layers, extrapolated=True):
    """Return a workload of so many layers, 4 wide, before one of another width."""

    def build():
        return nn.Sequential(*(nn.Linear(4, 4) for _ in range(layers)), nn.Linear(4, 3))

    few = {"layers": layers, "with_layers": functools.cache(stack)} if extrapolated else {}
    macs = 16 * layers + 12
    declared = {"parameters": 20 * layers + 15, "flops_per_sample": 6 * macs - 2 * 16}
    return dataclasses.replace(LINEAR, build=build, **few, **declared)


@pytest.mark.parametrize("layers", [2, 3, 9])
def test_a_step_of_many_layers_is_counted_from_those_of_two_and_three(layers):
    few, whole = (workload.count(stack(layers, way), SIZE) for way in (True, False))
    assert dataclasses.astuple(few.cost) == dataclasses.astuple(whole.cost)
    assert few.trained == whole.trained == 20 * layers + 15
    assert len(few.trainable) == 2 + 2 * min(layers, 3)
    assert list(workload.differences(stack(layers), few)) == []
    wrong = dataclasses.replace(stack(layers), trained=7, slots=2)
    texts = list(workload.differences(wrong, few))
    assert texts[0] == f"{20 * layers + 15} parameters are trained, not 7"
    assert texts[1].startswith("the optimizer's state has ") and len(texts) == 2


def test_a_cost_can_be_other_than_that_of_the_counted_step():
    def on_the_host(counted, batch_size, backend):
        assert (batch_size, backend) == (SIZE, "cuda")
        return dataclasses.replace(counted, state_bytes=0, host_bytes=counted.state_bytes)

    adjusted = dataclasses.replace(stack(9), adjust=on_the_host).cost(SIZE, "cuda")
    plain = stack(9).cost(SIZE, "cuda")
    assert (adjusted.state_bytes, adjusted.host_bytes) == (0, plain.state_bytes)
    assert (adjusted.flops, adjusted.saved_bytes) == (plain.flops, plain.saved_bytes)


def test_a_fused_optimizer_is_counted_as_one_of_single_operators():
    def adamw(fused):
        return lambda model: torch.optim.AdamW(model.parameters(), fused=fused)

    changes = {"optimizer_class": "AdamW", "slots": 2}
    fused, single = (
        dataclasses.replace(LINEAR, optimizer=adamw(fused), **changes) for fused in (True, False)
    )
    assert list(workload.differences(fused, workload.count(fused, SIZE))) == []
    assert fused.cost(SIZE) == single.cost(SIZE)


def test_a_step_with_a_gradient_scaler_is_counted_as_one_without():
    counted = workload.count(WITH_SCALER, SIZE)
    assert list(workload.differences(WITH_SCALER, counted)) == []
    assert counted.optimizers == ["SGD"] and counted.cost.flops == LINEAR.cost(SIZE).flops


def on_the_cpu(declared):
    """Return both sides of a verification, which are the CPU."""
    torch.manual_seed(1)
    case = SimpleNamespace(device=torch.device("cpu"))
    model = declared.build()
    return verify_torch.StepOnBothDevices(case, model, declared, declared.optimizer(model))


def test_a_step_that_a_gradient_scaler_left_out_is_verified_with_a_smaller_scale():
    optimizers = []

    def optimizer(model):
        optimizers.append(with_scaler(model))
        return optimizers[-1]

    with on_the_cpu(dataclasses.replace(WITH_SCALER, optimizer=optimizer)) as both:
        scaled = both.reference(SIZE, 0).arrays
        tries = {}
        for _, scaler in optimizers[1:]:  # after each try
            tries[scaler.get_scale()] = True
        assert list(tries) == [65_536 / 2**number for number in range(1, 13)]
        assert not both.model[0].weight.grad
        updates = both.updates(2)
    with on_the_cpu(LINEAR) as plain:
        expected = plain.reference(SIZE, 0).arrays
    assert len(scaled) == 2 + 2
    for name in expected:
        assert scaled[name].numpy() == pytest.approx(SCALED * expected[name].numpy(), rel=2e-3)
    assert {"the update of 0.weight", "the update of 0.bias"} <= updates.keys()
    assert all(deviation.difference <= 1 for deviation in updates.values())


def test_gradients_that_are_never_finite_are_a_mismatch():
    def step(model, optimizers, inputs):
        return scaled_step(model, optimizers, inputs / 0)

    with (
        on_the_cpu(dataclasses.replace(WITH_SCALER, step=step)) as both,
        pytest.raises(Mismatch, match=r"not finite with any gradient scale down to 0\.0039"),
    ):
        both.reference(SIZE, 0)


def test_a_model_can_be_put_on_its_device_in_another_way(tmp_path, quiet_machine):
    """Meta stands for a GPU, on which the results are while the weights stay on the CPU."""
    events = []

    @contextlib.contextmanager
    def put(model, device):
        events.append((type(model).__name__, device.type))
        try:
            yield
        finally:
            events.append("after the case")

    settings = {"article": "kit", "devices": "cpu", "budget_s": 0.05, "out": str(tmp_path)}
    experiment = Experiment("w", **settings, expects_learning=False)
    experiment.devices[0].backend = "meta"
    (case,) = experiment.cases(batch_size=[SIZE])
    with case:
        case.count(LINEAR)
        case.backend.kind = "gpu"
        model, optimizer = case.prepare(LINEAR, put=put)
        case.backend.kind = "cpu"
        for _ in case.steps(range(40), ready=False):
            step(model, optimizer, *LINEAR.batch(SIZE))
        case.ran_on(torch.ones(1, device="meta"))
        events.append("training")
    assert events == [("Sequential", "cpu"), "training", "after the case"]
    (record,) = experiment.records
    assert (record.status, record.flags.count("unproved")) == ("ok", 1)
    assert "not verified against the CPU" in record.note


def test_a_case_refuses_what_its_memory_cannot_hold(train, monkeypatch):
    monkeypatch.setattr("pomology.devices.base.Device.free_memory", lambda self: 10)
    assert train().status == "too-big"


def test_a_trillion_parameters_are_counted_without_being_allocated():
    """4 TB of weights, as many of gradients, and three matmuls less the inputs' gradient."""
    side = 10**6
    giant = Workload(
        build=lambda: nn.Linear(side, side, bias=False),
        batch=lambda size: (torch.rand(size, side),),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), 0.1),
        step=one_step_of_sum,
    )
    before = psutil.Process().memory_info().rss
    counted = giant.cost(2)
    assert counted.parameters == side**2 and counted.state_bytes == 8 * side**2
    assert counted.flops == 2 * 2 * 2 * side**2
    assert psutil.Process().memory_info().rss - before < 2**30


def one_step_of_sum(model, optimizer, inputs):
    optimizer.zero_grad()
    loss = model(inputs).sum()
    loss.backward()
    optimizer.step()
    return loss
