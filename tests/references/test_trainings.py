"""Every model of `notebooks/mlx_or_pytorch` in MLX against PyTorch in float64."""

import pytest
from references import trainings_reference

from pomology.models import isolated

ROWS = ["vae 4", "mlp 4", "cnn 4", "lstm 4", "siamese 4", "dcgan 1", "simclr 4", "resnet50 2 64"]
ROWS += ["transformer_lm 3 16x2x16x101", "whisper 1 whisper-smoke", "bert_base 1 16x1"]


@pytest.fixture(scope="module")
def results():
    """By framework and row."""
    function = "references.trainings_reference:results"
    return {name: isolated.call(name, function, name, ROWS) for name in ("torch", "mlx")}


@pytest.mark.parametrize("row", ROWS)
def test_a_training_in_mlx_is_that_in_pytorch(results, row):
    assert trainings_reference.complaint(results["mlx"][row], results["torch"][row]) is None
