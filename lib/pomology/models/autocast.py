"""Mixed precision of a forward pass in PyTorch."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from pomology.errors import Mismatch, Unsupported

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def forward_context(precision: str, kind: str) -> contextlib.AbstractContextManager:
    """Return the context of forward passes: autocast in bf16 and fp16, none in fp32 and TF32.

    kind: that of the case's device, such as `mps`. The context has no effect on other devices, so
    the CPU verifies a GPU's step in fp32. It can be entered again after it was left.
    """
    if precision not in DTYPES:
        return contextlib.nullcontext()
    return torch.autocast(kind, DTYPES[precision])


def require(case: Any) -> None:
    """Raise Unsupported, which ends the case, if its device has no autocast to its precision.

    Raises Mismatch in a case of fp32 or TF32.
    """
    if case.precision not in DTYPES:
        raise Mismatch(f"other than declared: autocast in a case of {case.precision}")
    reason = case.backend.precisions()[case.precision]
    if reason:
        raise Unsupported(f"no matmul in {case.precision}: {reason}")
    # For a device without autocast PyTorch only warns, and computes in fp32.
    with forward_context(case.precision, case.device.type):
        ones = torch.ones(8, 8, device=case.device)
        dtype = (ones @ ones).dtype
    if dtype != DTYPES[case.precision]:
        raise Unsupported(f"autocast to {case.precision} computes a matmul in {dtype}")


def missing(precision: str, autocast: bool, model: Any) -> Iterator[str]:
    """Yield, as a sentence, that nothing makes a model compute in a half precision.

    autocast: whether its forward pass runs in autocast; else weights have to be of that type.
    """
    dtypes = {weight.dtype for weight in model.parameters()}
    if precision in DTYPES and not autocast and DTYPES[precision] not in dtypes:
        yield f"the forward pass has no autocast, and no weight is in {precision}"
