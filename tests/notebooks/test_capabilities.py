"""The notebook `capabilities`: the status of a feature that fails, or only seems to be there."""

import itertools
import re

import capabilities
import fakes
import pytest
import torch

from pomology.experiment.experiment import Experiment

pytestmark = pytest.mark.usefixtures("quiet_machine")


@pytest.fixture(scope="module")
def notebook(tmp_path_factory) -> dict:
    """The notebook's names, up to where its cases begin, with few and small images."""
    small = {"batch_size": 2, "model_batch_size": 2, "image_size": 32, "budget_s": 0.05}
    run = {"devices": "cpu", "profile": "smoke", "out": str(tmp_path_factory.mktemp("run"))}
    scope: dict = {}
    cells = fakes.cells("capabilities")
    for source in itertools.takewhile(lambda cell: "experiment.table" not in cell, cells):
        exec(source.split("\nwith tempfile")[0], scope)
        if "batch_size: int" in source:
            scope |= small | run
    return scope


@pytest.fixture
def tried(notebook, tmp_path):
    """A function that tries one feature on the CPU, as the notebook does, and gives the record."""

    def attempt(feature: str, **model: str):
        options = {"devices": "cpu", "expects_learning": False, "profile": "smoke"}
        own = Experiment("capabilities", article="000", out=str(tmp_path / "run"), **options)
        (case,) = own.cases([{"feature": feature, **model}])
        with case:
            notebook["train"](case)
        (record,) = own.records
        return record

    return attempt


def test_a_model_that_draws_random_numbers_is_compared_in_bf16(tried):
    """They must be the same in fp32 and bf16."""
    record = tried("autocast bf16", model="vae")
    assert (record.status, record.precision, record.parameters) == ("ok", "bf16", 652_824)
    assert "computes in bfloat16, batch 2" in record.note and record.scaled
    assert {"speedup", "step_s", "first_step_s", "max_abs_error"} <= record.metrics.keys()
    assert record.metrics["speedup"].low < record.metrics["speedup"].high
    found = re.search(r"gradients within (\S+) % of plain fp32's, (\S+) %", record.note)
    assert float(found[1]) < float(found[2])


def test_the_articles_models_are_theirs(notebook):
    counts = {}
    with torch.device("meta"):
        for name, work in notebook["WORKS"].items():
            model = work.build()
            capabilities.backward(work, model, 2)
            trained = [weight for weight in model.parameters() if weight.requires_grad]
            assert all(weight.grad is not None for weight in trained)
            counts[name] = sum(weight.numel() for weight in model.parameters())
    assert counts == {
        "resnet18": 11_689_512,
        "vae": 652_824,
        "siamese": 11_432_897,
        "dcgan": 3_576_704 + 2_765_568,
        "transformer_lm": 13_828_478,
        "gpt2": 124_439_808,
        "whisper": 37_760_640,
        "simclr": 11_497_792,
    }


def test_one_wrong_gradient_in_bf16_is_found(tried, monkeypatch):
    right = capabilities.gradients

    def wrong(trainer):
        found = right(trainer)
        if trainer.feature != "fp32":
            found[next(iter(found))] *= 0
        return found

    monkeypatch.setattr(capabilities, "gradients", wrong)
    record = tried("autocast bf16", model="vae")
    assert record.status == "mismatch" and "speedup" not in record.metrics
    assert record.reason.startswith("the gradient of hidden.weight differs by 9")


def out_of_memory(images):
    """A compiled model that does not fit."""
    raise RuntimeError("MPS backend out of memory (MPS allocated: 9 GB)")


def wrong_backward(model):
    """A compiled model with the right numbers, and gradients three times too large."""
    torch._dynamo.utils.counters["stats"]["unique_graphs"] = 1

    def run(images):
        outputs = model(images)
        return outputs + 2 * (outputs - outputs.detach())

    return run


AUTOCAST, SCALER = torch.autocast, torch.amp.GradScaler
DISABLED = {"enabled": False}
# Feature, what it is replaced by, and the status and words of the reason that the case gets.
PRETENDED = [
    ("torch.compile", lambda model: out_of_memory, "out-of-memory", "out of memory"),
    ("torch.compile", lambda model: model, "unsupported", "nothing was compiled"),
    ("torch.compile", wrong_backward, "mismatch", "the gradient of"),
    ("autocast", lambda kind, **_: AUTOCAST(kind, **DISABLED), "unsupported", "silently switched"),
    # As Lightning does with 16-mixed on a CPU.
    (
        "autocast",
        lambda kind, **_: AUTOCAST(kind, dtype=torch.bfloat16),
        "unsupported",
        "computes in torch.bfloat16",
    ),
    ("GradScaler", lambda kind, **_: SCALER(kind, **DISABLED), "unsupported", "the scaler"),
]


@pytest.mark.parametrize(("feature", "instead", "status", "words"), PRETENDED)
def test_a_feature_that_fails_or_only_pretends_is_found_out(
    tried, monkeypatch, feature, instead, status, words
):
    names = {"torch.compile": "torch.compile", "GradScaler": "torch.amp.GradScaler"}
    monkeypatch.setattr(names.get(feature, "torch.autocast"), instead)
    record = tried(feature)
    assert record.status == status and words in record.reason and "\n" not in record.reason
    assert not record.traceback and "speedup" not in record.metrics
