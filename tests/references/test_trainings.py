"""Every training of `notebooks/mlx_or_pytorch` in MLX against the same one in PyTorch and float64."""

import subprocess
import sys

import numpy as np
import pytest
from references import trainings_reference

ROWS = ["vae 4", "mlp 4", "cnn 4", "lstm 4", "siamese 4", "dcgan 1", "simclr 4", "resnet50 2 64"]
ROWS += ["transformer_lm 3 16x2x16x101", "whisper 1 whisper-smoke"]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """By framework and row."""
    found = {}
    for framework in ("torch", "mlx"):
        folder = tmp_path_factory.mktemp(framework)
        command = [sys.executable, trainings_reference.__file__, framework, str(folder), *ROWS]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        for row in ROWS:
            with np.load(folder / f"{row}.npz") as file:
                found[framework, row] = dict(file)
    return found


@pytest.mark.parametrize("row", ROWS)
def test_a_training_in_mlx_is_that_in_pytorch(results, row):
    assert trainings_reference.complaint(results["mlx", row], results["torch", row]) is None


@pytest.mark.parametrize(
    ("name", "factor"),
    [("output 0", 1.001), ("gradient hidden.weight", 1.01), ("later losses", 1.001)],
)
def test_a_difference_that_rounding_does_not_explain_is_named(results, name, factor):
    right = results["torch", "vae 4"]
    wrong = right | {name: right[name] * np.float32(factor)}
    assert trainings_reference.complaint(wrong, right).startswith(name)
