"""GPT-2's shapes against the model, loss and optimizer of the notebook `gpt2_pretraining`."""

import pytest
import torch

from pomology.errors import PomologyError
from pomology.models import gpt2
from pomology.models.cost import Workload, workload
from pomology.models.definitions import definitions

# Of the default architecture with 1,024 tokens a sequence, by operators: TFLOP of a step.
TFLOP = {8: 40.06, 4: 20.03, 2: 10.01, 1: 5.01}


def counted(shape: gpt2.Shape, batch_size: int, backend: str = "mps") -> Workload:
    """What PyTorch counts of the notebook's own step."""
    names = ("LanguageModel", "loss_function")
    notebook = definitions("gpt2_pretraining", *names, framework="torch", fused=True)

    def step(model):
        tokens = torch.zeros(batch_size, shape.context, dtype=torch.long)
        notebook.loss_function(model, tokens, tokens).backward()

    build = lambda: notebook.LanguageModel(shape)  # noqa: E731
    return workload(build, step, optimizer_slots=2, backend=backend)


def test_parameters_and_operations_are_those_that_were_counted_elsewhere():
    shape = gpt2.shape("gpt2-large", 1024, "transformer_lm")
    assert shape.parameters == 733_816_080
    assert gpt2.shape("gpt2-large", 1024, "true_gpt2").parameters == 774_030_080
    # As many positions as ever.
    assert gpt2.shape("gpt2", 128, "true_gpt2").parameters == 124_439_808
    for batch_size, expected in TFLOP.items():
        assert shape.workload(batch_size).flops / 1e12 == pytest.approx(expected, abs=0.005)


@pytest.mark.parametrize("architecture", gpt2.ARCHITECTURES)
def test_the_formulas_are_what_pytorch_counts(architecture):
    shape, batch = gpt2.shape("gpt2-mini", 1024, architecture), 2
    ours, theirs = shape.workload(batch), counted(shape, batch)
    for name in ("parameters", "flops", "state_bytes"):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert ours.saved_bytes == pytest.approx(theirs.saved_bytes, rel=0.001)
    # A fused kernel keeps no matrices of attention.
    squares = 4 * shape.blocks * shape.heads * batch * 1024**2
    assert counted(shape, batch, "cuda").saved_bytes < theirs.saved_bytes - 0.9 * squares


def test_settings_are_read_from_a_text():
    row = {"model": "gpt2-large", "batch_size": 8, "context_size": 1024}
    assert gpt2.row("gpt2-large 8x1024") == row
    with pytest.raises(PomologyError, match=r"must read `MODEL BATCHxCONTEXT`.*gpt2-medium"):
        gpt2.row("gpt2 1x2x3")
    with pytest.raises(PomologyError, match="vocabulary is 99; it must be at least 10,000"):
        gpt2.shape("gpt2", 8, "true_gpt2", 99, 10_000)
