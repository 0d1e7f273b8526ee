"""A forward pass in the precision of its case, where that is half of what its weights have."""

from __future__ import annotations

from typing import Any

import torch

from pomology.errors import Unsupported


def autocast(case: Any) -> Any:
    """Return the context of a forward pass: autocast to bf16 where that is the case's precision.

    Raises Unsupported, which ends the case, where the device computes no product in it.
    """
    half = case.precision == "bf16"
    context = torch.autocast(case.device.type, torch.bfloat16, enabled=half)
    if half:
        reason = case.backend.precisions()["bf16"]
        if reason:
            raise Unsupported(f"no product in bf16: {reason}")
        with context:  # which PyTorch leaves out, with a warning, where it has none for a device
            ones = torch.ones(8, 8, device=case.device)
            kind = (ones @ ones).dtype
        if kind != torch.bfloat16:
            raise Unsupported(f"autocast to bf16 leaves a product in {kind}")
    return context
