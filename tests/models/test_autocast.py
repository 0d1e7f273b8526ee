"""Autocast of a forward pass to half precision."""

import contextlib
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from pomology.errors import Mismatch, Unsupported
from pomology.models import autocast


def case(precision, reason=None):
    backend = SimpleNamespace(precisions=lambda: {"bf16": reason})
    return SimpleNamespace(precision=precision, device=torch.device("cpu"), backend=backend)


def test_a_forward_pass_computes_in_the_precision_of_the_case_again_and_again():
    ones = torch.ones(4, 4)
    kinds = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16}
    for precision, kind in (kinds | {"fp16": torch.float16}).items():
        context = autocast.forward_context(precision, "cpu")
        for _ in range(2):
            with context:
                assert (ones @ ones).dtype == kind
            assert (ones @ ones).dtype == torch.float32


def test_the_cpu_computes_in_fp32_what_another_device_computes_in_bf16():
    ones = torch.ones(4, 4)
    with autocast.forward_context("bf16", "mps"):
        assert (ones @ ones).dtype == torch.float32


def test_a_device_without_autocast_to_the_precision_ends_the_case(monkeypatch):
    autocast.require(case("bf16"))
    with pytest.raises(Unsupported, match="no matmul in bf16: too old"):
        autocast.require(case("bf16", "too old"))
    with pytest.raises(Mismatch, match="autocast in a case of fp32"):
        autocast.require(case("fp32"))
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: contextlib.nullcontext())
    with pytest.raises(Unsupported, match=r"computes a matmul in torch\.float32"):
        autocast.require(case("bf16"))


def test_half_precision_needs_autocast_or_weights_of_that_type():
    model = nn.Linear(2, 2)
    assert not list(autocast.missing("fp32", False, model))
    assert not list(autocast.missing("bf16", True, model))
    assert "no weight is in bf16" in next(autocast.missing("bf16", False, model))
    assert not list(autocast.missing("bf16", False, model.to(torch.bfloat16)))
