"""A forward pass in the precision of its case, where that is half of what its weights have."""

from __future__ import annotations

from typing import Any

import torch

from pomology.errors import Unsupported


def autocast(case: Any) -> Any:
    """The context of a forward pass: PyTorch's autocast to bf16 where that is the case's precision, else none.

    Raises Unsupported, which ends the case, where the device computes no product in it.
    """
    half = case.precision == "bf16"
    context = torch.autocast(case.device.type, torch.bfloat16, enabled=half)
    if half:
        if reason := case.backend.precisions()["bf16"]:
            raise Unsupported(f"no product in bf16: {reason}")
        with context:  # which PyTorch leaves out, with a warning, where it has none for a device
            ones = torch.ones(8, 8, device=case.device)
            if (kind := (ones @ ones).dtype) != torch.bfloat16:
                raise Unsupported(f"autocast to bf16 leaves a product in {kind}")
    return context
