"""Autocast of a forward pass to bf16."""

import contextlib
from types import SimpleNamespace

import pytest
import torch

from pomology.errors import Unsupported
from pomology.models.autocast import autocast


def case(precision, reason=None):
    backend = SimpleNamespace(precisions=lambda: {"bf16": reason})
    return SimpleNamespace(precision=precision, device=torch.device("cpu"), backend=backend)


def test_autocast_computes_in_the_precision_of_the_case_or_ends_it():
    ones = torch.ones(4, 4)
    for precision, kind in (("tf32", torch.float32), ("bf16", torch.bfloat16)):
        with autocast(case(precision)):
            assert (ones @ ones).dtype == kind
    with pytest.raises(Unsupported, match="no matmul in bf16: too old"):
        autocast(case("bf16", "too old"))


def test_an_autocast_without_effect_is_unsupported(monkeypatch):
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: contextlib.nullcontext())
    with pytest.raises(Unsupported, match=r"computes a matmul in torch\.float32"):
        autocast(case("bf16"))
