"""Verification of a step on a mock MPS, with injected faults and with rounding only."""

from types import SimpleNamespace

import numpy as np
import planted
import pretended_mps
import pytest
import torch
from planted import times

from pomology.experiment.experiment import Experiment
from pomology.models import verify

pytestmark = [pytest.mark.process("torch"), pytest.mark.usefixtures("quiet_machine")]
aten, rehearsal = torch.ops.aten, pretended_mps.become(False)
PRECISIONS = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def verified(folder, faults, precision="fp32"):
    """Return the record of a case on a device with injected faults."""
    with rehearsal.entered(), planted.faults(faults):
        return train(precision, str(folder))


def train(precision, folder):
    experiment = Experiment("sustained_load", article="kit", budget_s=0.3, out=folder)
    (case,) = experiment.cases(batch_size=[12], precision=[precision])
    with case:
        torch.manual_seed(1)
        model = case.watch_model(planted.Network().to(case.device))
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        half = {"dtype": PRECISIONS[precision], "enabled": precision != "fp32"}
        with torch.autocast(case.device.type, **half):
            before = {name: item.cpu().clone() for name, item in model.state_dict().items()}
            random = torch.get_rng_state()
            verify.step(case, model, planted.one_step, optimizer)
            after = model.state_dict()
            assert all(torch.equal(before[name], after[name].cpu()) for name in before)
            assert all(weight.grad is None for weight in model.parameters())
            assert torch.equal(random, torch.get_rng_state()) and not optimizer.state
        batch = case.backend.to_device(planted.draw(12))
        for _ in case.steps([batch] * 5, ready=False):
            optimizer.zero_grad()
            loss = planted.loss_of(model, *batch)
            loss.backward()
            optimizer.step()
            case.loss(loss.item())
    return experiment.records[0]


def one_row(result, *_, **__):
    if len(result) > 20:
        result[len(result) // 3] = 0.0
    return result


FAULTS = {
    "matmul": {aten.mm.default: times(1.01)},
    "matmul, the second shape": {aten.addmm.default: planted.second_size()},
    "matmul, a row": {aten.mm.default: one_row},
    "matmul, a NaN": {aten.mm.default: planted.one_nan},
    "gradient of images": {aten.convolution_backward.default: times(1.02)},
    "gradient of weights": {aten.convolution_backward.default: times(1.02, 1)},
    "update": {aten.addcdiv_.default: lambda result, x, *_, **__: x.mul_(1.001)},
    "average of gradients": {aten.lerp_.Scalar: lambda result, x, y, w: x.copy_(y)},
    "gradient of repeated words": {
        aten.embedding_dense_backward.default: planted.without_repeats,
    },
    "gradient of ReLU": {aten.threshold_backward.default: planted.moved},
    "random numbers that repeat": {aten.randn_like.default: planted.the_same_again()},
    "random numbers that are too large": {aten.randn_like.default: times(1.1)},
    "a loss that is late": {aten._local_scalar_dense.default: planted.previous()},
}
SAID = {"update": "the update of", "matmul, a NaN": "is not finite"}


@pytest.mark.parametrize("fault", FAULTS)
def test_an_injected_fault_ends_as_a_mismatch_before_anything_is_timed(tmp_path, fault):
    record = verified(tmp_path, FAULTS[fault])
    assert record.status == "mismatch" and "step_s" not in record.metrics, record.reason
    assert SAID.get(fault, "") in record.reason


LATER = {
    "every 60th matmul": {aten.addmm.default: planted.after(0, times(3), every=60)},
    "convolutions after 14": {aten.convolution.default: planted.after(14, times(1.1))},
    "images lost after 900 copies": dict.fromkeys(
        (aten.copy_.default, aten._to_copy.default), planted.after(900, planted.lost_images)
    ),
    "updates after 160": {
        aten.addcdiv_.default: planted.after(160, lambda result, x, *_, **__: x.mul_(1.001))
    },
}


@pytest.mark.parametrize("fault", LATER)
def test_a_fault_that_comes_later_ends_as_a_mismatch_with_the_times(tmp_path, fault):
    record = verified(tmp_path, LATER[fault])
    assert record.status == "mismatch" and "step_s" in record.metrics, record.reason


def rounded(result, *_, **__):
    """Change the last digits of a result, as a sum in another order does."""
    return result * (1 + 1e-6 * torch.randn(result.shape, generator=NOISE))


NOISE = torch.Generator().manual_seed(1)
MATMULS = (aten.mm.default, aten.addmm.default, aten.bmm.default, aten.convolution.default)


@pytest.mark.parametrize("precision", [*PRECISIONS, "rounding"])
def test_a_correct_device_passes_with_a_note(tmp_path, precision):
    if precision == "rounding":
        record = verified(tmp_path, dict.fromkeys(MATMULS, rounded))
    else:
        record = verified(tmp_path, {}, precision)
    assert record.status == "ok", record.reason
    assert {"step_s", "proof_s"} <= set(record.metrics) and "unproved" not in record.flags
    assert record.note.startswith("verified against the CPU before it was timed")


class Sides:
    """A model on two devices. seconds: of the CPU per sample."""

    def __init__(self, clock, wrong_above=99, rounded=(), seconds=0.02):
        self.clock, self.wrong_above, self.rounded, self.sizes = clock, wrong_above, rounded, []
        self.seconds = seconds
        self.optimizers, self.unverified = (), {"dropout"}

    def gradients(self, size, seed, on_cpu=False, change=0.0):
        if on_cpu:
            self.clock[0] += self.seconds * size
        else:
            self.sizes.append(size)
        wrong = not on_cpu and (size > self.wrong_above or seed in self.rounded)
        return {"the gradient of x": np.ones(4) + 0.1 * wrong + change}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.sizes.append("restored")


@pytest.fixture
def run(monkeypatch):
    """Function that verifies a case of 64 samples with given sides, and returns its notes."""

    def run(sides, budget_s=1.0, batch_size=64, again=False):
        notes = []
        backend = SimpleNamespace(kind="gpu", backend="mps", tf32=False)
        backend.reset_peak_memory = lambda: None
        case = SimpleNamespace(backend=backend, config={}, precision="fp32")
        case.experiment = SimpleNamespace(budget_s=budget_s, profile="quick")
        case.note, case.metric = lambda *note: notes.append(note), lambda *_: None
        case.at_end = lambda check: check(10.0) if again else None
        monkeypatch.setattr(verify, "both_devices", lambda *_: sides)
        monkeypatch.setattr(verify.time, "perf_counter", lambda: sides.clock[0])
        verify.step(case, None, None, batch_size=batch_size)
        return notes

    return run


def test_a_batch_that_takes_the_cpu_too_long_is_verified_with_fewer_samples(run):
    sides = Sides([0.0])
    notes = run(sides)
    assert sides.sizes == [2, 50, "restored"]  # a budget of 1 s is enough for 50
    assert notes[1] == ("verified with 50 of the 64 samples of a step", "unproved")
    assert notes[2] == ("not verified: dropout, the update of the weights",)
    assert len(run(Sides([0.0]), budget_s=2.0)) == 2


def test_the_verification_after_the_timing_takes_half_a_second_on_the_cpu(run):
    sides = Sides([0.0])
    notes = run(sides, again=True)
    assert sides.sizes[3:] == 12 * [2] + ["restored"]  # 12 steps of 2 samples take 0.48 s
    assert notes[-1] == ("verified after the timing in 12 steps against the CPU",)
    slow = Sides([0.0], seconds=0.3)
    notes = run(slow, again=True)
    assert slow.sizes[-3:] == [2, 2, "restored"]
    assert notes[-1] == ("verified after the timing by repeating a step",)


def test_rounding_changes_a_gradient_with_some_inputs_and_a_fault_with_all(run):
    run(Sides([0.0], rounded=(0, 1)))
    with pytest.raises(verify.Mismatch, match=r"^the gradient of x .* of 2 samples on the mps"):
        run(Sides([0.0], rounded=(0, 1, 2)))
    with pytest.raises(verify.Mismatch, match="in a step of 50 samples on the mps"):
        run(Sides([0.0], wrong_above=2))
