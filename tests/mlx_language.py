"""The notebook `gpt2_pretraining_mlx` against its reference in PyTorch. `test_language.py` runs these tests in a
process of their own: MLX must not share one with PyTorch.

python -m pytest tests/mlx_language.py
"""

from __future__ import annotations

import functools
import subprocess
import sys
import types
from pathlib import Path

import apart
import nbformat
import numpy as np
import pytest

from pomology.devices import find
from pomology.errors import PomologyError
from pomology.experiment.experiment import Experiment
from pomology.machine import snapshot
from pomology.workloads import gpt2, gpt2_reference

find.prepare("mlx")
import mlx.core as mx  # noqa: E402
import mlx.nn as nn  # noqa: E402
import mlx.optimizers as optim  # noqa: E402

PATH = Path(__file__).resolve().parents[1] / "notebooks" / "profiling_apple_silicon" / "gpt2_pretraining_mlx.ipynb"

both = pytest.mark.parametrize("architecture", gpt2.ARCHITECTURES)


@pytest.fixture(autouse=True)
def quiet_machine(monkeypatch, tmp_path):
    state = {"power_source": "ac", "low_power_mode": False, "thermal_level": None, "load": 0.1, "flags": []}
    monkeypatch.setattr(snapshot, "conditions", lambda: state)
    apart.start_with_torch(monkeypatch, tmp_path)
    monkeypatch.setattr(snapshot, "snapshot", dict)  # takes seconds to find out


def notebook(bias_correction: bool = True) -> dict:
    """The notebook's model, loss and step, anew."""
    scope = {"bias_correction": bias_correction, "functools": functools}
    for cell in nbformat.read(PATH, 4).cells:
        if cell.cell_type == "code" and ("nn.Module" in cell.source or "def training" in cell.source):
            exec(cell.source, scope)
    return scope


def proved(folder, trial: gpt2.Trial, scope: dict) -> dict:
    experiment = Experiment(
        "gpt2_pretraining_mlx", article="001", framework="mlx", devices="cpu", budget_s=0.01, out=str(folder)
    )
    (case,) = experiment.cases([{"model": "small"}])
    with case:
        code = types.SimpleNamespace(**scope)
        gpt2.check(case, trial, gpt2.mlx_pass(trial, code.LanguageModel, code.loss_function, code.training))
        case.measure("step_s", lambda: None, warmup_calls=0, repeats=1)
    (record,) = experiment.records
    return record


@pytest.mark.parametrize(
    ("architecture", "bias_correction"), [("transformer_lm", True), ("true_gpt2", True), ("transformer_lm", False)]
)
def test_model_and_compiled_step_are_those_of_pytorch(tmp_path, architecture, bias_correction):
    trial = gpt2.trial(architecture, bias_correction)
    record = proved(tmp_path, trial, notebook(bias_correction))
    assert record.status == "ok", record.reason
    assert 0 < record.metrics["max_abs_error"].value < 1e-4
    assert record.metrics["inputs_checksum"].value == trial.checksum
    assert "torch" not in sys.modules


@both
def test_it_has_the_parameters_that_were_counted(architecture):
    (cpu,) = find.find("cpu", "mlx")
    shape = gpt2.shape("gpt2-micro", 64, architecture)
    assert cpu.count(notebook()["LanguageModel"](shape)) == shape.parameters


def exact_gelu(scope):
    class Exact(scope["Block"]):
        def __init__(self, shape):
            super().__init__(shape)
            self.activation = nn.gelu

    scope["Block"] = Exact


def norm_behind(scope):
    class Behind(scope["Block"]):
        def __call__(self, x, mask):
            x = self.ln1(x + self.attention(x, x, x, mask))
            return self.ln2(x + self.linear2(self.activation(self.linear1(x))))

    scope["Block"] = Behind


def bias_left_out(scope):
    class Without(scope["Block"]):
        def __init__(self, shape):
            super().__init__(shape)
            self.linear2 = nn.Linear(4 * shape.width, shape.width, bias=False)

    scope["Block"] = Without


def no_mask(scope):
    class Sees(scope["Block"]):
        def __call__(self, x, mask):
            return super().__call__(x, None)

    scope["Block"] = Sees


def cosines_first(scope):
    class Places(scope["LanguageModel"]):
        def __init__(self, shape):
            super().__init__(shape)
            self.positions = nn.SinusoidalPositionalEncoding(shape.width, cos_first=True)

    scope["LanguageModel"] = Places


def _adamw(**changes):
    def change(scope):
        class Other:
            def __getattr__(self, name):
                return getattr(optim, name)

            def AdamW(self, lr, **named):
                return optim.AdamW(lr, **(named | changes))

        scope["optim"] = Other()

    return change


CHANGES = {
    **{change.__name__: change for change in (exact_gelu, norm_behind, bias_left_out, no_mask, cosines_first)},
    "no weight decay": _adamw(weight_decay=0.0),
    "another beta": _adamw(betas=[0.9, 0.99]),
    "no bias correction": _adamw(bias_correction=False),
    "another epsilon": _adamw(eps=1e-4),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_different_is_refused_before_it_is_timed(tmp_path, name):
    scope = notebook()
    CHANGES[name](scope)
    # GELU is the true one's; sines are the other's.
    architecture = "true_gpt2" if name in ("exact_gelu", "bias_left_out") else "transformer_lm"
    record = proved(tmp_path, gpt2.trial(architecture), scope)
    assert record.status == "mismatch", record.reason
    assert "step_s" not in record.metrics


@both
def test_it_learns(architecture):
    mx.random.seed(1)
    scope = notebook()
    model = scope["LanguageModel"](gpt2.Shape(architecture, blocks=2, width=32, heads=2, vocabulary=50, context=16))
    step, optimizer = scope["training"](model, 3e-3, 1e-5)
    tokens = mx.array(np.arange(4 * 17).reshape(4, 17) % 50)
    losses = [step(tokens[:, :-1], tokens[:, 1:]) for _ in range(60)]
    assert losses[0] == pytest.approx(np.log(50), abs=1.0) and losses[-1] < 0.5
    # The compiled step reads the learning rate anew.
    optimizer.learning_rate = 0.0
    assert step(tokens[:, :-1], tokens[:, 1:]) == step(tokens[:, :-1], tokens[:, 1:])


def test_a_reference_that_fails_says_why_in_one_line(monkeypatch):
    def fails(command, **named):
        return subprocess.CompletedProcess(command, 1, "", "Traceback\nImportError: no module named torch\n")

    monkeypatch.setattr(subprocess, "run", fails)
    words = "^the reference in PyTorch ended with status 1: ImportError: no module named torch$"
    with pytest.raises(PomologyError, match=words):
        gpt2_reference.in_reference(gpt2.Trial(gpt2.trial("true_gpt2").shape, lr=0.5))
