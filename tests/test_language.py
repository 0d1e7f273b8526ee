"""GPT-2's shapes, the proof of a notebook's model against its reference, and what table 4 makes of the times.

The model, loss and optimiser are those of the notebook `gpt2_pretraining_torch`; MLX's are tested in `mlx_language.py`,
in a process of its own.
"""

from __future__ import annotations

import contextlib
import math
import types

import fakes
import numpy as np
import pytest
import torch
from test_roofline import metric, record
from torch import nn
from torch.nn import functional as F

from pomology.errors import Mismatch, PomologyError
from pomology.experiment import case as case_module
from pomology.experiment.experiment import Experiment
from pomology.models import gpt2
from pomology.models.cost import workload
from pomology.report import article

pytestmark = pytest.mark.usefixtures("quiet_machine")

LARGE = {"transformer_lm": 733_816_080, "true_gpt2": 774_030_080}
# TFLOP of a step of the default architecture with 1,024 tokens a sequence, counted operator by operator elsewhere.
TFLOP = {8: 40.06, 4: 20.03, 2: 10.01, 1: 5.01}

both = pytest.mark.parametrize("architecture", gpt2.ARCHITECTURES)


def notebook(change=None) -> types.SimpleNamespace:
    """The notebook's model, loss and optimiser, anew. change: something else for its names."""
    scope = {"fused": True, "torch": torch, "nn": nn, "F": F, "math": math}
    for source in fakes.cells("gpt2_pretraining_torch"):
        if "nn.Module" in source:
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
    assert gpt2.shape("gpt2", 128, "true_gpt2").parameters == 124_439_808  # as many positions as ever
    for batch_size, expected in TFLOP.items():
        flops = large["transformer_lm"].workload(batch_size).flops
        assert flops / 1e12 == pytest.approx(expected, abs=0.005)
    more = gpt2.shape("gpt2-large", 1024, "transformer_lm", vocabulary=50_257)
    assert more.workload(1).flops / flops == pytest.approx(1.06, abs=0.01)


@both
def test_the_formulas_are_what_pytorch_counts(architecture):
    shape, batch = gpt2.shape("gpt2-mini", 1024, architecture), 2
    ours, theirs = shape.workload(batch), counted(shape, batch)
    assert (ours.parameters, ours.flops, ours.state_bytes) == (theirs.parameters, theirs.flops, theirs.state_bytes)
    assert ours.saved_bytes == pytest.approx(theirs.saved_bytes, rel=0.001)
    squares = 4 * shape.blocks * shape.heads * batch * 1024**2  # a fused kernel keeps no matrices of attention
    assert counted(shape, batch, "cuda").saved_bytes < theirs.saved_bytes - 0.9 * squares


def test_settings_and_which_of_them_are_the_article_s():
    assert gpt2.row("gpt2-large 8x1024") == {"model": "gpt2-large", "batch_size": 8, "context_size": 1024}
    rows = {"gpt2-large 8x1024": False, "gpt2-large 1x1024": True, "gpt2-large 8x512": True, "gpt2-medium 8x1024": True}
    assert {text: gpt2.scaled(gpt2.row(text)) for text in rows} == rows
    for text in ("gpt2-large 8", "gpt3 1x2", "gpt2 0x4", "gpt2  1x4", "gpt2 1x2x3"):
        with pytest.raises(PomologyError, match=r"must read `MODEL BATCHxCONTEXT`.*gpt2-medium") as error:
            gpt2.row(text)
        assert "\n" not in str(error.value) and repr(text) in str(error.value)
    for asked, words in (
        (("gpt2", 8, "gpt2"), r"^architecture is 'gpt2'; it must be one of transformer_lm, true_gpt2$"),
        (("gpt2-huge", 8, "true_gpt2"), r"^model 'gpt2-huge' is not known; one of gpt2-large, .* is$"),
        (("gpt2", 8, "true_gpt2", 99, 10_000), r"^vocabulary is 99; it must be at least 10,000, the words of"),
    ):
        with pytest.raises(PomologyError, match=words):
            gpt2.shape(*asked)


def proved(folder, trial: gpt2.Trial, code: types.SimpleNamespace, optimizer=None) -> dict:
    """The record of a case that proves a notebook's code, and then does something that takes time."""
    experiment = Experiment("gpt2_pretraining_torch", article="001", devices="cpu", budget_s=0.01, out=str(folder))
    (case,) = experiment.cases([{"model": "small"}])
    with case:
        code = code.LanguageModel, code.loss_function, optimizer or code.adamw
        gpt2.prove(case, trial.shape.architecture, *code, trial.bias_correction)
        case.measure("step_s", lambda: None, warmup_calls=0, repeats=1)
    (record,) = experiment.records
    return record


@pytest.mark.parametrize(("architecture", "fused"), [("transformer_lm", True), ("true_gpt2", False)])
def test_the_notebook_s_model_and_optimiser_are_the_reference_s(tmp_path, architecture, fused):
    code = notebook()
    code.scope["fused"] = fused
    record = proved(tmp_path, gpt2.trial(architecture), code)
    assert record.status == "ok", record.reason
    # fp32 differs from float64 in its last digits.
    assert 0 < record.metrics["max_abs_error"].value < 1e-4
    known = {"transformer_lm": "PyTorch's own encoder", "true_gpt2": "transformers' GPT-2"}
    assert record.note == f"the same as {known[architecture]}"
    assert record.metrics["inputs_checksum"].value == gpt2.trial(architecture).checksum


def sees_the_future(scope):
    scope["F"] = functions = types.SimpleNamespace(**vars(F))
    functions.scaled_dot_product_attention = lambda *given, is_causal: F.scaled_dot_product_attention(*given)


def sum_for_mean(model, inputs, targets):
    return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), reduction="sum")


def without_bias(self, shape):
    self.out_proj = nn.Linear(32, 32, bias=False)


def other_waves(self, shape):
    self.waves = 1.01 * self.waves


# Architecture, and the notebook's code with something else in it.
DIFFERENT = {
    "exact GELU": ("true_gpt2", fakes.after("Block", lambda self, shape: setattr(self, "activation", nn.GELU()))),
    "bias left out": ("true_gpt2", fakes.after("Attention", without_bias)),
    "sees the future": ("transformer_lm", sees_the_future),
    "other waves": ("transformer_lm", fakes.after("LanguageModel", other_waves)),
    "sum for mean": ("transformer_lm", lambda scope: scope.update(loss_function=sum_for_mean)),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_a_different_model_is_refused_before_it_is_timed(tmp_path, name):
    architecture, change = DIFFERENT[name]
    record = proved(tmp_path, gpt2.trial(architecture), notebook(change))
    assert record.status == "mismatch" and "step_s" not in record.metrics
    bias = "the weight layers.0.attention.out_proj.bias is None, (32,) in the reference's model"
    assert record.reason.startswith(bias if name == "bias left out" else "against the reference: ")


OPTIMIZERS = {
    "another epsilon": lambda weights, lr, decay: torch.optim.AdamW(weights, lr, eps=1e-4, weight_decay=decay),
    "bias correction": lambda weights, lr, decay: torch.optim.AdamW(weights, lr, weight_decay=decay),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_another_optimiser_is_refused(tmp_path, name):
    def optimizer(model, lr, decay):
        return OPTIMIZERS[name](model.parameters(), lr, decay)

    # MLX's AdamW has no bias correction unless asked; PyTorch's always does.
    record = proved(tmp_path, gpt2.trial("transformer_lm", name != "bias correction"), notebook(), optimizer)
    assert record.status == "mismatch" and record.reason.startswith("against the reference: losses [")


@pytest.mark.parametrize(
    ("precision", "error", "right"), [("tf32", 0.01, True), ("tf32", 0.1, False), ("fp32", 0.01, False)]
)
def test_what_is_computed_in_tf32_may_err_as_tf32_does(precision, error, right):
    trial = gpt2.trial("transformer_lm")
    given = {name: array * np.float32(1 + error) for name, array in gpt2.in_reference(trial).items()}
    case = case_module.Case.__new__(case_module.Case)
    case.__dict__ |= {"precision": precision, "_metrics": {}, "_notes": [], "_flags": []}
    with contextlib.nullcontext() if right else pytest.raises(Mismatch, match="against the reference: logits"):
        gpt2.check(case, trial, given)


def test_weights_are_the_same_for_everyone_and_each_another():
    one, other = gpt2.trial("true_gpt2"), gpt2.trial("true_gpt2")
    assert one.checksum == other.checksum
    assert one.checksum != gpt2.trial("transformer_lm").checksum
    # MLX's example leaves out the bias correction, which changes two numbers of a step: still the same beginning.
    assert one.checksum == gpt2.trial("true_gpt2", False).checksum
    arrays = [array for array in one.weights.values() if array.size > 1]
    assert all(np.unique(array).size > 0.99 * array.size and array.dtype == np.float32 for array in arrays)


def test_both_times_of_a_device_stand_in_one_line_as_in_the_article():
    """Times of an invented Mac: at every batch size MPS takes a quarter more than MLX; and of one smaller model."""
    records = []
    for model, batch_size, context_size in (*(("gpt2-large", size, 1024) for size in (8, 4, 2)), ("gpt2-micro", 2, 64)):
        for framework, backend, slower in (("torch", "mps", 1.25), ("mlx", "mlx-gpu", 1.0)):
            config = {"model": model, "batch_size": batch_size, "context_size": context_size}
            times = {"pass_s": metric(batch_size * slower, unit="s"), "flops_per_s": metric(5e12 / slower)}
            about = {"framework": framework, "backend": backend, "chip": "Apple M3 Max", "article": "001"}
            scaled = gpt2.scaled(config)
            records.append(record(f"gpt2_pretraining_{framework}", times, config=config, scaled=scaled, **about))
    table = article.article_table("gpt2_pretraining", records)
    assert table.columns[4:7] == ("MLX", "PyTorch with MPS", "PyTorch with CUDA or on a CPU")
    # Behind a device are its software and year.
    lines = {(row.cells[0].partition(" (")[0], *row.cells[1:3]): row.cells[3:] for row in table.rows}
    assert lines["M2 Ultra", "gpt2-large", "8"] == ("", "2.710", "3.239", "", "", "published")
    assert lines["A6000", "gpt2-large", "8"] == ("", "", "-", "2.771", "", "published")
    ours = ("Apple M3 Max GPU", "gpt2-large", "8")
    assert lines[ours][:4] == ("1024", "8.00 s", "10.0 s", "")
    assert lines[ours][4] == "PyTorch 4.00 TFLOP/s; MLX 5.00 TFLOP/s"
    # Seconds of a smaller model are no numbers for this table.
    assert lines["Apple M3 Max GPU", "gpt2-micro", "2"][:4] == ("64", "scaled", "scaled", "")
