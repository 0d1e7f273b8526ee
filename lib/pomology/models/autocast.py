"""Mixed precision of a forward pass in PyTorch."""

from typing import Any

import torch

from pomology.errors import Unsupported


def autocast(case: Any) -> Any:
    """Return the context of a forward pass: autocast to bf16 if that is the case's precision.

    Raises Unsupported, which ends the case, if the device computes no matmul in bf16.
    """
    half = case.precision == "bf16"
    context = torch.autocast(case.device.type, torch.bfloat16, enabled=half)
    if half:
        reason = case.backend.precisions()["bf16"]
        if reason:
            raise Unsupported(f"no matmul in bf16: {reason}")
        with context:  # for a device without autocast PyTorch only warns, and computes in fp32
            ones = torch.ones(8, 8, device=case.device)
            dtype = (ones @ ones).dtype
        if dtype != torch.bfloat16:
            raise Unsupported(f"autocast to bf16 computes a matmul in {dtype}")
    return context
