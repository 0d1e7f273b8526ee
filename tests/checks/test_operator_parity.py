"""Operators of a step on a mock MPS backend: correct ones, and ones with injected faults."""

import fakes
import planted
import pretended_mps
import pytest
import torch
from torch.nn import functional as F

from pomology.checks import operator_parity
from pomology.errors import Mismatch

pytestmark = pytest.mark.process("torch")
aten, rehearsal = torch.ops.aten, pretended_mps.Rehearsal()


def one_step(model, count):
    """Run forward and backward pass of a network of `planted`."""
    planted.loss_of(model, *planted.draw(count)).backward()


def prove(faults, precision="fp32"):
    """Verify a step on a device with faults; return the notes."""
    notes = []
    backend = fakes.FakeCase(kind="gpu", backend="mps", tf32=precision == "tf32")
    backend.reset_peak_memory = lambda: None
    case = fakes.FakeCase(backend=backend, device=rehearsal.handle)
    case.note = lambda *said: notes.extend(said)
    half = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(precision)
    torch.manual_seed(1)
    with rehearsal.entered(), planted.faults(faults):
        network = planted.Network().to(rehearsal.handle)
        with torch.autocast(rehearsal.handle.type, dtype=half, enabled=half is not None):
            operator_parity.verify(case, network, one_step, 6)
    return notes


def in_tf32(result, *_, **__):
    """Round a result from fp32 to TF32."""
    return (result.view(torch.int32) & ~0x1FFF).view(torch.float32)


def rolled(result, *_, **__):
    return result[0], result[1].roll(1, 0), *result[2:]


TF32 = {aten.convolution.default: in_tf32}
# Injected faults, precision of the step, words of the error.
FAULTS = [
    (TF32, "fp32", "convolution of"),
    ({aten.convolution_backward.default: rolled}, "fp32", "convolution_backward of"),
    ({aten.addmm.default: planted.second_size()}, "fp32", "addmm of"),
    ({aten.mm.default: planted.one_nan}, "fp32", "is not finite"),
    ({aten.mm.default: planted.times(1.1)}, "bf16", "mm of"),
]


@pytest.mark.parametrize(("faults", "precision", "words"), FAULTS)
def test_a_fault_of_a_kernel_is_found_and_named(faults, precision, words):
    with pytest.raises(Mismatch, match=words):
        prove(faults, precision)


@pytest.mark.parametrize(("faults", "precision"), [({}, "fp32"), ({}, "fp16"), (TF32, "tf32")])
def test_a_correct_step_passes_and_names_operators_that_were_not_compared(faults, precision):
    text, flag = prove(faults, precision)
    assert "it draws random numbers" in text and flag == "unproved"


def test_gradients_of_a_linear_layer_on_a_mac_are_compared():
    """MPS has one operator for all of them, which a CPU lacks."""
    shapes = ((5, 70, 8), (90, 8), (90,), (5, 70, 90))
    x, weight, bias, grad = (torch.randn(shape, requires_grad=True) for shape in shapes)
    F.linear(x, weight, bias).backward(grad)
    mine = operator_parity._on_cpu(aten.linear_backward.default, (x, grad, weight, [True] * 3), {})
    for ours, right in zip(mine(torch.float32), (x.grad, weight.grad, bias.grad), strict=True):
        assert torch.allclose(ours, right, atol=1e-4)
