"""The notebook `whisper_pretraining`: its counts by hand, and its cases against planted faults."""

from __future__ import annotations

import math

import pytest
import test_sizes
import torch
from test_notebooks import definitions

from pomology.errors import TooBig, TooSlow, Unsupported
from pomology.experiment import feasibility
from pomology.experiment.case import Case
from pomology.experiment.experiment import Experiment
from pomology.models import cost, pretrained
from pomology.results import journal
from pomology.results.record import Record

pytestmark = pytest.mark.usefixtures("quiet_machine")

GIB = 2**30
NAME = "whisper_pretraining"


@pytest.fixture(scope="module")
def article() -> dict:
    return definitions(NAME, "article")


@pytest.fixture
def smoke() -> dict:
    """With a few clips of noise."""
    torch.manual_seed(5)
    clips = [(torch.randn(80, 3000).numpy(), torch.randint(50_000, (32,)).numpy()) for _ in range(2)]
    return definitions(
        NAME, "smoke", heard=[dict(zip(("input_features", "labels"), clip, strict=True)) for clip in clips]
    )


def flops(d: int, layers: int, batch: int, tokens: int = 32, places: int = 1500, words: int = 51_865) -> int:
    """By hand: two operations a multiply-add; each product once forward and twice backward, but for the first one."""
    first = 2 * places * 80 * 3 * d
    second = places * d * 3 * d
    encoder = layers * (places * (4 * d * d + 8 * d * d) + 2 * places**2 * d)
    within = tokens * (4 * d * d + 8 * d * d) + 2 * tokens**2 * d
    across = tokens * 2 * d * d + places * 2 * d * d + 2 * tokens * places * d
    decoder = layers * (within + across) + tokens * d * words
    return 2 * batch * (2 * first + 3 * (second + encoder + decoder))


def test_operations_and_parameters(article):
    """The numbers of the specification, and the same by hand. What is computed twice counts once."""
    work, shape = article["work"](article["large"], "cuda"), pretrained.SIZES["whisper-large"]
    assert work.parameters == 1_543_304_960 and work.flops / 1e12 == pytest.approx(254.0, rel=0.001)
    assert work.flops == pytest.approx(flops(shape["d_model"], shape["encoder_layers"], 32), rel=0.001)


def test_recomputing_changes_no_gradient(smoke):
    torch.manual_seed(2)
    model, _ = smoke["build"]("whisper-smoke", False)
    batch = {name: torch.as_tensor(value)[None] for name, value in smoke["heard"][0].items()}
    found = []
    for checkpointing in (False, True):
        other, _ = smoke["build"]("whisper-smoke", checkpointing)
        other.load_state_dict(model.state_dict())
        with cost.saved_tensors(other) as kept:
            loss = other(**batch).loss
            after_forward = kept["now"]
            loss.backward()
        found.append((loss.item(), after_forward, {name: p.grad for name, p in other.named_parameters()}))
    (loss, kept, gradients), (again, less, recomputed) = found
    assert again == pytest.approx(loss, rel=1e-6) and less < 0.6 * kept
    for name, gradient in gradients.items():
        assert (gradient is None) == (name == "model.encoder.embed_positions.weight")
        if gradient is not None:
            torch.testing.assert_close(recomputed[name], gradient, atol=1e-7, rtol=1e-4)


def test_autocast_keeps_no_less_than_is_said(article):
    """Against what a real step with autocast keeps; here attention is fused, as on CUDA."""
    said = article["work"]({"model": "whisper-tiny", "batch_size": 1, "precision": "bf16"}, "cpu").saved_bytes
    model, _ = article["build"]("whisper-tiny", False)
    with cost.saved_tensors(model) as kept, torch.autocast("cpu", torch.bfloat16):
        model(input_features=torch.zeros(1, 80, 3000), labels=torch.zeros(1, 32, dtype=torch.long)).loss.backward()
    assert 0.75 * kept["peak"] < said <= kept["peak"]


mac, Nobody = test_sizes.mac, test_sizes.Nobody


@pytest.fixture(autouse=True)
def products_take_no_time(monkeypatch):
    monkeypatch.setattr(feasibility, "peak_matmul_rate", lambda *_: math.inf)


def test_the_large_model_fits_the_article_s_mac_and_no_smaller_one(article, mac):
    """An M2 Max with 64 GB trained it: with recomputing that is possible, without it is not."""
    case = Case(Nobody(), mac(64), article["large"])
    assert article["prepare"](case) == 32 and not case.scaled
    for gigabytes, more in ((64, {"gradient_checkpointing": False}), (36, {})):
        with pytest.raises(TooBig, match=r"^needs \d+\.\d GB at the least"):
            article["prepare"](Case(Nobody(), mac(gigabytes), article["large"] | more))


def test_scenario_3_fills_nine_tenths_with_a_smaller_model_on_a_smaller_mac(article, mac):
    backend = mac(20)
    medium, small, _ = article["near_limit"][1:]
    with pytest.raises(TooBig, match="may be filled"):
        article["prepare"](Case(Nobody(), backend, medium))
    case = Case(Nobody(), backend, small)
    size = article["prepare"](case)
    needed = [article["work"](small | {"batch_size": size + more}, "mps").bytes for more in (0, 1)]
    assert needed[0] <= 0.9 * backend.free_memory() < needed[1] and case.scaled and case["model"] == "whisper-small"


@pytest.mark.parametrize(
    ("fp32", "bf16", "reason"),
    [
        (1e11, 1e15, r"would take 158 s at the least.* in fp32 reaches .*; in every .* same model"),
        (1e15, 1e11, r"would take 158 s at the least.* in bf16 reaches here; \d+ steps [^;]*$"),
    ],
)
def test_half_precision_is_judged_by_its_own_rate_and_not_tried_where_fp32_cannot_end(
    article, mac, monkeypatch, fp32, bf16, reason
):
    experiment = Nobody()
    rates = {"fp32": fp32, "bf16": bf16}
    monkeypatch.setattr(feasibility, "peak_matmul_rate", lambda _, device, precision: rates[precision])
    row = {"model": "whisper-medium", "batch_size": 4, "precision": "bf16", "scenario": 1}
    monkeypatch.setitem(article, "limit_s", 10.0)
    case = Case(experiment, mac(192), row)
    with pytest.raises(TooSlow, match=reason):
        article["prepare"](case)
    assert case.precision == "bf16"


@pytest.fixture
def one(smoke, tmp_path, monkeypatch):
    """Run one case of the notebook on the CPU; returns its record."""
    monkeypatch.setattr(feasibility, "peak_matmul_rate", lambda *_: math.inf)

    def run(precision) -> Record:
        row = {"model": "whisper-smoke", "batch_size": 2, "precision": precision, "scenario": 1}
        made = Experiment(NAME, article="001", devices="cpu", profile="smoke", budget_s=0.2, out=str(tmp_path))
        for case in made.cases([row]):
            with case:
                smoke["train"](case)
        return journal.read(made.journal.path).records[-1]

    return run


def test_a_case_times_its_passes(one):
    record = one(precision="bf16")
    found = {name: metric.value for name, metric in record.metrics.items()}
    assert (record.status, record.precision, record.scaled) == ("ok", "bf16", True)
    parts = found["forward_s"], found["backward_s"], found["update_s"]
    assert sum(parts) == pytest.approx(found["pass_s"], rel=1e-6) and found["pass_s"] <= found["step_s"]
    assert found["step_flops"] == record.flops_per_step and found["parameters"] == 3_705_152
    assert record.note == pretrained.RANDOM
    assert len(record.memory_trace["rows"]) >= 3


@pytest.mark.parametrize(
    ("place", "name", "precision", "reason"),
    [
        (torch, "autocast", "bf16", "asked for torch.bfloat16; autocast computes in torch.float32 here"),
        (torch.amp, "GradScaler", "fp16", "the gradient scaler that fp16 needs switched itself off"),
    ],
)
def test_autocast_or_a_scaler_that_is_off_is_noticed(one, monkeypatch, place, name, precision, reason):
    """Both only warn of what a device lacks, and go on in fp32."""
    plain = getattr(place, name)
    monkeypatch.setattr(place, name, lambda *given, **named: plain(*given, **named | {"enabled": False}))
    record = one(precision=precision)
    assert (record.status, record.reason) == ("unsupported", reason)


def test_a_step_with_overflowing_gradients_is_left_out(one, monkeypatch):
    """The fused AdamW of MPS may not look at what the scaler found, so in fp16 the plain one must be asked."""

    def note(*_, fused, **named):
        raise Unsupported(f"fused: {fused}")

    monkeypatch.setattr(torch.optim, "AdamW", note)
    assert one(precision="fp16").reason == "fused: False"
