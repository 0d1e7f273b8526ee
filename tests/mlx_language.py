"""The notebook `gpt2_pretraining_mlx` against its reference in PyTorch. `test_in_mlx.py` runs these tests in a
process of their own: MLX must not share one with PyTorch.

python -m pytest tests/mlx_language.py
"""

from __future__ import annotations

import functools
import subprocess
import sys
import types

import apart
import fakes
import pytest

from pomology.devices import find
from pomology.errors import PomologyError
from pomology.experiment.experiment import Experiment
from pomology.models import gpt2
from pomology.results.record import Record

find.prepare("mlx")
import mlx.nn as nn  # noqa: E402
import mlx.optimizers as optim  # noqa: E402


@pytest.fixture(autouse=True)
def quiet_machine(monkeypatch, tmp_path):
    fakes.quiet_machine(monkeypatch)
    apart.start_with_torch(monkeypatch, tmp_path)


def notebook(bias_correction: bool = True) -> dict:
    """The notebook's model, loss and step, anew."""
    scope = {"bias_correction": bias_correction, "functools": functools}
    for source in fakes.cells("gpt2_pretraining_mlx"):
        if "nn.Module" in source or "def training" in source:
            exec(source, scope)
    return scope


def proved(folder, trial: gpt2.Trial, scope: dict) -> Record:
    about = {"article": "001", "framework": "mlx", "devices": "cpu", "budget_s": 0.01}
    experiment = Experiment("gpt2_pretraining_mlx", out=str(folder), **about)
    (case,) = experiment.cases([{"model": "small"}])
    with case:
        code = types.SimpleNamespace(**scope)
        code = code.LanguageModel, code.loss_function, code.training
        gpt2.prove(case, trial.shape.architecture, *code, trial.bias_correction)
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
    (cpu,) = find.find("cpu", "mlx")
    shape = gpt2.shape("gpt2-micro", 64, architecture)
    assert cpu.count(notebook()["LanguageModel"](shape)) == shape.parameters


def no_mask(scope):
    honest = scope["Block"].__call__
    scope["Block"].__call__ = lambda self, x, mask: honest(self, x, None)


def adamw(**changes):
    functions = types.SimpleNamespace(**vars(optim))
    functions.AdamW = lambda lr, **named: optim.AdamW(lr, **(named | changes))
    return lambda scope: scope.update({"optim": functions})


def without_bias(self, shape):
    self.linear2 = nn.Linear(4 * shape.width, shape.width, bias=False)


CHANGES = {
    "exact GELU": ("true_gpt2", fakes.after("Block", lambda self, shape: setattr(self, "activation", nn.gelu))),
    "bias left out": ("true_gpt2", fakes.after("Block", without_bias)),
    "no mask": ("transformer_lm", no_mask),
    "no weight decay": ("transformer_lm", adamw(weight_decay=0.0)),
    "no bias correction": ("transformer_lm", adamw(bias_correction=False)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_different_is_refused_before_it_is_timed(tmp_path, name):
    scope, (architecture, change) = notebook(), CHANGES[name]
    change(scope)
    record = proved(tmp_path, gpt2.trial(architecture), scope)
    assert record.status == "mismatch" and "step_s" not in record.metrics, record.reason


def test_a_reference_that_fails_says_why_in_one_line(monkeypatch):
    failed = subprocess.CompletedProcess([], 1, "", "Traceback\nImportError: no module named torch\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    words = "^the reference in PyTorch ended with status 1: ImportError: no module named torch$"
    with pytest.raises(PomologyError, match=words):
        gpt2.in_reference(gpt2.Trial(gpt2.trial("true_gpt2").shape, lr=0.5))
