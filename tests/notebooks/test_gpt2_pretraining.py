"""GPT-2's shapes, and what table 4 makes of the times.

The model, loss and optimizer are those of the notebook `gpt2_pretraining`, in PyTorch.
"""

from __future__ import annotations

import functools
import math
import types

import fakes
import pytest
import torch

from pomology.errors import PomologyError
from pomology.models import gpt2
from pomology.models.cost import workload

pytestmark = pytest.mark.usefixtures("quiet_machine")

LARGE = {"transformer_lm": 733_816_080, "true_gpt2": 774_030_080}
# TFLOP of a step of the default architecture with 1,024 tokens per sequence, by operators.
TFLOP = {8: 40.06, 4: 20.03, 2: 10.01, 1: 5.01}

both = pytest.mark.parametrize("architecture", gpt2.ARCHITECTURES)


def notebook(change=None) -> types.SimpleNamespace:
    """The notebook's model, loss and optimiser, anew. change: something else for its names."""
    scope = {"fused": True, "framework": "torch", "functools": functools, "math": math}
    for source in fakes.cells("gpt2_pretraining"):
        if source.startswith('if framework == "torch"'):
            exec(source, scope)
    if change:
        change(scope)
    return types.SimpleNamespace(**scope, scope=scope)


def counted(shape: gpt2.Shape, batch_size: int, backend: str = "mps"):
    code = notebook()

    def step(model):
        tokens = torch.zeros(batch_size, shape.context, dtype=torch.long)
        code.loss_function(model, tokens, tokens).backward()

    return workload(lambda: code.LanguageModel(shape), step, optimizer_slots=2, backend=backend)


def test_parameters_and_operations_are_those_that_were_counted_elsewhere():
    large = {name: gpt2.shape("gpt2-large", 1024, name) for name in LARGE}
    assert {name: shape.parameters for name, shape in large.items()} == LARGE
    assert (
        gpt2.shape("gpt2", 128, "true_gpt2").parameters == 124_439_808
    )  # as many positions as ever
    for batch_size, expected in TFLOP.items():
        flops = large["transformer_lm"].workload(batch_size).flops
        assert flops / 1e12 == pytest.approx(expected, abs=0.005)
    more = gpt2.shape("gpt2-large", 1024, "transformer_lm", vocabulary=50_257)
    assert more.workload(1).flops / flops == pytest.approx(1.06, abs=0.01)


@both
def test_the_formulas_are_what_pytorch_counts(architecture):
    shape, batch = gpt2.shape("gpt2-mini", 1024, architecture), 2
    ours, theirs = shape.workload(batch), counted(shape, batch)
    assert (ours.parameters, ours.flops, ours.state_bytes) == (
        theirs.parameters,
        theirs.flops,
        theirs.state_bytes,
    )
    assert ours.saved_bytes == pytest.approx(theirs.saved_bytes, rel=0.001)
    squares = (
        4 * shape.blocks * shape.heads * batch * 1024**2
    )  # a fused kernel keeps no matrices of attention
    assert counted(shape, batch, "cuda").saved_bytes < theirs.saved_bytes - 0.9 * squares


def test_settings_are_read_from_a_text():
    assert gpt2.row("gpt2-large 8x1024") == {
        "model": "gpt2-large",
        "batch_size": 8,
        "context_size": 1024,
    }
    for text in ("gpt2-large 8", "gpt3 1x2", "gpt2 0x4", "gpt2  1x4", "gpt2 1x2x3"):
        with pytest.raises(
            PomologyError, match=r"must read `MODEL BATCHxCONTEXT`.*gpt2-medium"
        ) as error:
            gpt2.row(text)
        assert "\n" not in str(error.value) and repr(text) in str(error.value)
    for asked, words in (
        (
            ("gpt2", 8, "gpt2"),
            r"^architecture is 'gpt2'; it must be one of transformer_lm, true_gpt2$",
        ),
        (
            ("gpt2-huge", 8, "true_gpt2"),
            r"^model 'gpt2-huge' is not known; one of gpt2-large, .* is$",
        ),
        (
            ("gpt2", 8, "true_gpt2", 99, 10_000),
            r"^vocabulary is 99; it must be at least 10,000, the words of",
        ),
    ):
        with pytest.raises(PomologyError, match=words):
            gpt2.shape(*asked)
