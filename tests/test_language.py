"""GPT-2's shapes, the proof of a notebook's model against its reference, and what table 4 makes of the times.

The model, loss and optimiser are those of the notebook `gpt2_pretraining_torch`; MLX's are tested in `mlx_language.py`,
in a process of its own.
"""

from __future__ import annotations

import types
from pathlib import Path

import apart
import nbformat
import numpy as np
import pytest
import torch
from test_roofline import metric, record
from torch import nn
from torch.nn import functional as F

from pomology.articles import claims, published
from pomology.errors import PomologyError
from pomology.experiment.experiment import Experiment
from pomology.machine import snapshot
from pomology.report import article, side_by_side
from pomology.report import claims as report_claims
from pomology.results.record import Record
from pomology.workloads import gpt2, gpt2_reference
from pomology.workloads.cost import workload

SIDE = Path(__file__).with_name("mlx_language.py")
FOLDER = SIDE.parents[1] / "notebooks" / "profiling_apple_silicon"
LARGE = {"transformer_lm": 733_816_080, "true_gpt2": 774_030_080}
# TFLOP of a step of the default architecture with 1,024 tokens a sequence, counted operator by operator elsewhere.
TFLOP = {8: 40.06, 4: 20.03, 2: 10.01, 1: 5.01}

both = pytest.mark.parametrize("architecture", gpt2.ARCHITECTURES)


def notebook() -> types.SimpleNamespace:
    """The notebook's model, loss and optimiser, anew."""
    scope = {"fused": True}
    for cell in nbformat.read(FOLDER / "gpt2_pretraining_torch.ipynb", 4).cells:
        if cell.cell_type == "code" and "nn.Module" in cell.source:
            scope |= {"torch": torch, "nn": nn, "F": F, "math": __import__("math")}
            exec(cell.source, scope)
    return types.SimpleNamespace(**scope, scope=scope)


def counted(shape: gpt2.Shape, batch_size: int, backend: str = "mps"):
    code = notebook()

    def step(model):
        tokens = torch.zeros(batch_size, shape.context, dtype=torch.long)
        code.loss_function(model, tokens, tokens).backward()

    return workload(lambda: code.LanguageModel(shape), step, optimizer_slots=2, backend=backend)


# On paper -------------------------------------------------------------------------------------------------------------


@both
def test_the_article_s_size_has_its_parameters(architecture):
    assert gpt2.shape("gpt2-large", 1024, architecture).parameters == LARGE[architecture]


def test_the_true_sizes_are_those_of_gpt2():
    sizes = {"gpt2": 124_439_808, "gpt2-large": 774_030_080}
    for model, count in sizes.items():
        shape = gpt2.shape(model, 128, "true_gpt2")  # as many positions as ever
        with torch.device("meta"):
            theirs = gpt2_reference.reference_model(shape)
        assert sum(weight.numel() for weight in theirs.parameters()) == shape.parameters == count


def test_a_step_has_the_operations_that_were_counted_elsewhere():
    for batch_size, expected in TFLOP.items():
        shape = gpt2.shape("gpt2-large", 1024, "transformer_lm")
        assert shape.workload(batch_size).flops / 1e12 == pytest.approx(expected, abs=0.005)
    more = gpt2.shape("gpt2-large", 1024, "transformer_lm", vocabulary=50_257)
    assert more.workload(8).flops / shape.workload(8).flops == pytest.approx(1.06, abs=0.01)


@both
@pytest.mark.parametrize(("model", "context", "batch"), [("gpt2-mini", 1024, 2), ("gpt2-micro", 64, 3)])
def test_the_formulas_are_what_pytorch_counts(architecture, model, context, batch):
    shape = gpt2.shape(model, context, architecture)
    ours, theirs = shape.workload(batch), counted(shape, batch)
    assert (ours.parameters, ours.flops, ours.state_bytes) == (theirs.parameters, theirs.flops, theirs.state_bytes)
    assert ours.saved_bytes == pytest.approx(theirs.saved_bytes, rel=0.001)
    if context == 1024:  # a fused kernel keeps no row of attention for each head
        squares = 4 * shape.blocks * shape.heads * batch * context**2
        assert counted(shape, batch, "cuda").saved_bytes < theirs.saved_bytes - 0.9 * squares


def test_settings_from_text():
    assert gpt2.row("gpt2-large 8x1024") == {"model": "gpt2-large", "batch_size": 8, "context_size": 1024}
    for text in ("gpt2-large 8", "gpt3 1x2", "gpt2 0x4", "gpt2  1x4", "gpt2 1x2x3"):
        with pytest.raises(PomologyError, match=r"must read `MODEL BATCHxCONTEXT`.*gpt2-medium") as error:
            gpt2.row(text)
        assert "\n" not in str(error.value) and repr(text) in str(error.value)


def test_what_cannot_be_is_one_line():
    with pytest.raises(PomologyError, match=r"^architecture is 'gpt2'; it must be one of transformer_lm, true_gpt2$"):
        gpt2.shape("gpt2", 8, "gpt2")
    with pytest.raises(PomologyError, match=r"^model 'gpt2-huge' is not known; one of gpt2-large, .* is$"):
        gpt2.shape("gpt2-huge", 8, "true_gpt2")
    with pytest.raises(PomologyError, match=r"^vocabulary is 99; it must be at least 10,000, the words of the text$"):
        gpt2.shape("gpt2", 8, "true_gpt2", 99, 10_000)


def test_only_the_rows_of_the_table_are_the_article_s():
    rows = {"gpt2-large 8x1024": False, "gpt2-large 2x1024": False, "gpt2-large 1x1024": True}
    rows |= {"gpt2-large 8x512": True, "gpt2-medium 8x1024": True, "gpt2-large 16x1024": True}
    assert {text: gpt2.scaled(gpt2.row(text)) for text in rows} == rows


# The proof ------------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def quiet_machine(monkeypatch):
    state = {"power_source": "ac", "low_power_mode": False, "thermal_level": None, "load": 0.1, "flags": []}
    monkeypatch.setattr(snapshot, "conditions", lambda: state)
    monkeypatch.setattr(snapshot, "snapshot", dict)  # takes seconds to find out


def proved(folder, trial: gpt2.Trial, code: types.SimpleNamespace, optimizer=None) -> dict:
    """The record of a case that proves a notebook's code, and then does something that takes time."""
    experiment = Experiment("gpt2_pretraining_torch", article="001", devices="cpu", budget_s=0.01, out=str(folder))
    (case,) = experiment.cases([{"model": "small"}])
    with case:
        found = gpt2.torch_pass(trial, code.LanguageModel, code.loss_function, optimizer or code.adamw, case.device)
        gpt2.check(case, trial, found)
        case.measure("step_s", lambda: None, warmup_calls=0, repeats=1)
    (record,) = experiment.records
    return record


@both
@pytest.mark.parametrize("fused", [True, False])
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


def exact_gelu(scope):
    class Exact(scope["Block"]):
        def __init__(self, shape):
            super().__init__(shape)
            self.activation = nn.GELU()

    scope["Block"] = Exact


def norm_behind(scope):
    class Behind(scope["Block"]):
        def forward(self, x):
            x = self.ln1(x + self.attention(x))
            return self.ln2(x + self.linear2(self.activation(self.linear1(x))))

    scope["Block"] = Behind


def bias_left_out(scope):
    class Without(scope["Attention"]):
        def __init__(self, shape):
            super().__init__(shape)
            self.out_proj = nn.Linear(shape.width, shape.width, bias=not shape.true)

    scope["Attention"] = Without


def bias_unused(scope):
    class Unused(scope["Block"]):
        def forward(self, x):
            x = x + self.attention(self.ln1(x))
            return x + F.linear(self.activation(self.linear1(self.ln2(x))), self.linear2.weight) + 0 * x

    scope["Block"] = Unused


def sees_the_future(scope):
    functions = types.SimpleNamespace(**vars(F))
    functions.scaled_dot_product_attention = lambda *given, is_causal: F.scaled_dot_product_attention(*given)
    scope["F"] = functions


def other_positions(scope):
    class Places(scope["LanguageModel"]):
        def __init__(self, shape):
            super().__init__(shape)
            if not self.true:
                self.waves = self.waves.roll(1, 1)

        def forward(self, tokens):
            if self.true:
                return super().forward(tokens).roll(1, 1)
            return super().forward(tokens)

    scope["LanguageModel"] = Places


def last_norm_left_out(scope):
    class Bare(scope["LanguageModel"]):
        def __init__(self, shape):
            super().__init__(shape)
            self.ln.forward = lambda x: x * self.ln.weight + self.ln.bias

    scope["LanguageModel"] = Bare


def sum_for_mean(scope):
    scope["loss_function"] = lambda model, inputs, targets: F.cross_entropy(
        model(inputs).flatten(0, 1), targets.flatten(), reduction="sum"
    )


DIFFERENT = (exact_gelu, norm_behind, bias_left_out, bias_unused, sees_the_future, other_positions)
DIFFERENT += (last_norm_left_out, sum_for_mean)


@both
@pytest.mark.parametrize("change", DIFFERENT, ids=lambda change: change.__name__)
def test_a_different_model_is_refused_before_it_is_timed(tmp_path, architecture, change):
    if change is bias_left_out and architecture == "transformer_lm":
        pytest.skip("is so there")
    code = notebook()
    change(code.scope)
    record = proved(tmp_path, gpt2.trial(architecture), types.SimpleNamespace(**code.scope))
    assert record.status == "mismatch" and "step_s" not in record.metrics, record.reason
    if change is bias_left_out:
        assert record.reason.startswith("the weight layers.0.attention.out_proj.bias is None, (32,) in the reference")


OPTIMIZERS = {
    "no weight decay": lambda weights, lr, decay: torch.optim.AdamW(weights, lr, weight_decay=0),
    "decay in the gradient": lambda weights, lr, decay: torch.optim.Adam(weights, lr, weight_decay=decay),
    "another beta": lambda weights, lr, decay: torch.optim.AdamW(weights, lr, (0.9, 0.99), weight_decay=decay),
    "half the rate": lambda weights, lr, decay: torch.optim.AdamW(weights, lr / 2, weight_decay=decay),
    "another epsilon": lambda weights, lr, decay: torch.optim.AdamW(weights, lr, eps=1e-4, weight_decay=decay),
    "plain": lambda weights, lr, decay: torch.optim.SGD(weights, lr, weight_decay=decay),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_another_optimiser_is_refused(tmp_path, name):
    def optimizer(model, lr, decay):
        return OPTIMIZERS[name](model.parameters(), lr, decay)

    record = proved(tmp_path, gpt2.trial("transformer_lm"), notebook(), optimizer)
    assert record.status == "mismatch"
    assert record.reason.startswith("against the reference: losses [")


def test_bias_correction_is_told_from_none(tmp_path):
    """MLX's AdamW has none unless asked; PyTorch's always does."""
    trial = gpt2.trial("transformer_lm", bias_correction=False)
    record = proved(tmp_path, trial, notebook())
    assert record.status == "mismatch" and "losses [" in record.reason
    assert trial.checksum != gpt2.trial("transformer_lm").checksum


def test_weights_are_the_same_for_everyone_and_each_another():
    one, other = gpt2.trial("true_gpt2"), gpt2.trial("true_gpt2")
    assert one.checksum == other.checksum != gpt2.trial("transformer_lm").checksum
    assert all((one.weights[name] == other.weights[name]).all() for name in one.weights)
    arrays = [array for array in one.weights.values() if array.size > 1]
    assert all(np.unique(array).size > 0.99 * array.size and array.dtype == np.float32 for array in arrays)


@both
def test_it_learns(architecture):
    torch.manual_seed(1)
    code = notebook()
    shape = gpt2.Shape(architecture, blocks=2, width=32, heads=2, vocabulary=50, context=16)
    model = code.LanguageModel(shape)
    optimizer, tokens, losses = code.adamw(model, 3e-3, 1e-5), torch.arange(4 * 17).view(4, 17) % 50, []
    for _ in range(60):
        optimizer.zero_grad(set_to_none=True)
        loss = code.loss_function(model, tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(np.log(50), abs=1.0) and losses[-1] < 0.5


# MLX ------------------------------------------------------------------------------------------------------------------


test_in_mlx = apart.tests_of(SIDE)


# The article's table --------------------------------------------------------------------------------------------------


def made(backend: str, batch_size: int, pass_s: float | None, model="gpt2-large", context_size=1024, **more) -> Record:
    framework = "mlx" if backend == "mlx-gpu" else "torch"
    config = {"model": model, "batch_size": batch_size, "context_size": context_size}
    flops = 5e12 * batch_size
    metrics = {"max_abs_error": metric(1e-6, unit=""), "inputs_checksum": metric(7, unit="")}
    if pass_s:
        metrics |= {"pass_s": metric(pass_s, unit="s"), "flops_per_s": metric(flops / pass_s)}
    more |= {"status": "ok", "reason": None} if pass_s else {"status": "too-big", "reason": "needs more"}
    more |= {"framework": framework, "backend": backend, "chip": "Apple M3 Max", "data": "stand-in", "article": "001"}
    name = f"gpt2_pretraining_{framework}"
    return record(name, metrics, config=config, scaled=gpt2.scaled(config), data_origin="", **more)


def a_mac() -> list[dict]:
    """Times of an invented Mac: at every batch size MPS takes a quarter more than MLX."""
    records = [
        made(backend, batch, batch * (1.25 if backend == "mps" else 1.0))
        for backend in ("mps", "mlx-gpu")
        for batch in (8, 4, 2)
    ]
    records += [made(backend, 2, 0.1, "gpt2-micro", 64) for backend in ("mps", "mlx-gpu")]
    records.append(made("mlx-gpu", 1, None, "gpt2", 128))
    return records


def test_both_times_of_a_device_stand_in_one_line_as_in_the_article():
    table = article.article_table("gpt2_pretraining", a_mac())
    assert table.columns[4:7] == ("MLX", "PyTorch with MPS", "PyTorch with CUDA or on a CPU")
    lines = {row.cells[:3]: row.cells[3:] for row in table.rows}
    assert lines["M2 Ultra", "gpt2-large", "8"] == ("", "2.710", "3.239", "", "", "published")
    assert lines["A6000", "gpt2-large", "8"] == ("", "", "-", "2.771", "", "published")
    ours = ("Apple M3 Max GPU", "gpt2-large", "8")
    assert lines[ours][:4] == ("1024", "8.00 s", "10.0 s", "")
    assert lines[ours][4] == "PyTorch 4.00 TFLOP/s; MLX 5.00 TFLOP/s"
    # Seconds of a smaller model are no numbers for this table.
    assert lines["Apple M3 Max GPU", "gpt2-micro", "2"][:4] == ("64", "scaled", "scaled", "")
    assert ("Apple M3 Max GPU", "gpt2", "1") not in lines


def test_a_case_that_did_not_end_well_shows_how_and_why():
    table = article.article_table("gpt2_pretraining_torch", [made("cpu", 8, None), made("cuda", 8, 3.0)])
    (cpu,) = [row.cells for row in table.rows if "too-big" in row.cells]
    assert cpu[4:7] == ("", "", "too-big")
    assert cpu[-1] == "needs more"


def test_the_claims_find_the_times():
    found = {claim.id: claims.test(claim, report_claims.MeasuredLookup(a_mac())) for claim in published.claims("001")}
    assert found["001-C2"].status == claims.HOLDS and len(found["001-C2"].numbers) == 3
    assert {made.left.value for made in found["001-C2"].numbers} == {1.25}
    assert found["001-C4"].status == claims.DOES_NOT_HOLD
    assert found["001-C3"].status == claims.CANNOT_BE_TOLD  # no NVIDIA GPU
    with_cuda = [*a_mac(), made("cuda", 8, 8.4)]
    assert (
        claims.test(
            next(c for c in published.claims("001") if c.id == "001-C3"), report_claims.MeasuredLookup(with_cuda)
        ).status
        == claims.HOLDS
    )


def test_side_by_side_compares_equal_settings_only():
    records = [*a_mac(), made("mps", 1, 3.0, "gpt2", 128)]
    table = side_by_side.side_by_side("gpt2_pretraining", records)
    ratios = {tuple(row.cells[:4]): row.cells[6] for row in table.rows}
    assert ratios["GPU", "gpt2-large", "4", "1024"] == "1.25×" and ratios["GPU", "gpt2-micro", "2", "64"] == "1.00×"
    assert ratios["GPU", "gpt2", "1", "128"] == ""
    assert any("reference in float64" in note for note in table.notes)
