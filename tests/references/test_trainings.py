"""Models in MLX against PyTorch, or what it and transformers ship, in float64."""

import pytest
from references.trainings_reference import complaint

from pomology.models import gpt2, isolated

ROWS = ["vae 4", "mlp 4", "cnn 4", "lstm 4", "siamese 4", "dcgan 1", "simclr 4", "resnet50 2 64"]
ROWS += ["transformer_lm 3 16x2x16x101", "whisper 1 whisper-smoke", "bert_base 1 16x1"]


@pytest.fixture(scope="module")
def results():
    """By framework and row."""
    function = "references.trainings_reference:results"
    return {name: isolated.call(name, function, name, ROWS) for name in ("torch", "mlx")}


@pytest.mark.parametrize("row", ROWS)
def test_a_training_in_mlx_is_that_in_pytorch(results, row):
    assert complaint(results["mlx"][row], results["torch"][row]) is None


# Of what trainings may be off: GELU without tanh is a part in ten thousand off.
STRICTNESS = 10


@pytest.mark.parametrize("architecture", gpt2.ARCHITECTURES)
def test_the_notebook_computes_what_others_do(architecture):
    place = "references.gpt2_reference"
    found = isolated.call("PyTorch", f"{place}:in_torch", architecture)
    mlx = isolated.call("MLX", f"{place}:in_mlx", architecture)
    reference = found["reference"]
    assert complaint(found["notebook"], reference, STRICTNESS) is None
    assert complaint(mlx, reference, STRICTNESS) is None
    assert complaint(found["half the decay"], reference, STRICTNESS).startswith("later losses")
