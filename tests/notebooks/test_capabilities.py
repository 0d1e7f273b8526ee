"""The notebook `capabilities`: its workloads, and the status of a feature that fails."""

import itertools

import fakes
import pytest
import torch

from pomology.experiment.experiment import Experiment
from pomology.models import workload
from pomology.models.article_workloads import article_workloads

pytestmark = pytest.mark.usefixtures("quiet_machine")


@pytest.fixture(scope="module")
def notebook(tmp_path_factory) -> dict:
    """The notebook's names, up to where its cases begin, with few and small images."""
    small = {"batch_size": 2, "model_batch_size": 2, "image_size": 32, "budget_s": 0.05}
    small |= {"devices": "cpu", "profile": "smoke", "out": str(tmp_path_factory.mktemp("run"))}
    scope: dict = {}
    cells = fakes.cells("capabilities")
    for source in itertools.takewhile(lambda cell: "experiment.answer" not in cell, cells):
        exec(source.split("\nwith tempfile")[0], scope)
        if "batch_size: int" in source:
            scope |= small
    return scope


@pytest.fixture
def tried(notebook, tmp_path):
    """Try one feature on the CPU, as the notebook does; give the record."""

    def attempt(feature: str, **model: str):
        options = {"devices": "cpu", "expects_learning": False, "profile": "smoke"}
        own = Experiment("capabilities", article="000", out=str(tmp_path / "run"), **options)
        (case,) = own.cases([{"feature": feature, **model}])
        with case:
            notebook["train"](case)
        return own.records[0]

    return attempt


@pytest.mark.parametrize("name", article_workloads(0.01))
def test_an_articles_model_is_trained_as_declared(name):
    declared, _ = article_workloads(0.01)[name]
    counted = workload.count(declared, 2)
    assert list(workload.differences(declared, counted)) == []
    # Weights and gradients of three models, and the optimizer's tensors.
    trained = declared.trained or declared.parameters
    expected = 12 * (declared.parameters + (1 + declared.slots) * trained)
    assert counted.cost.state_bytes == expected


def test_a_model_that_draws_random_numbers_is_compared_in_bf16(tried):
    """They must be the same in fp32 and bf16."""
    record = tried("autocast bf16", model="vae")
    assert (record.status, record.precision, record.parameters) == ("ok", "bf16", 652_824)
    assert "computes in bfloat16, batch 2" in record.note and record.scaled
    assert {"speedup", "step_s", "first_step_s", "max_abs_error"} <= record.metrics.keys()


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


AUTOCAST = torch.autocast


def not_enabled(kind, **_):
    return AUTOCAST(kind, enabled=False)


# Feature, the function and what it is replaced by, the status and words of the reason.
PRETENDED = [
    ("torch.compile", "torch.compile", lambda model: out_of_memory, "out-of-memory", "memory"),
    ("torch.compile", "torch.compile", wrong_backward, "mismatch", "the gradient of"),
    ("autocast", "torch.autocast", not_enabled, "unsupported", "silently switched"),
]


@pytest.mark.parametrize(("feature", "name", "instead", "status", "words"), PRETENDED)
def test_a_feature_that_fails_or_only_pretends_is_found_out(
    tried, monkeypatch, feature, name, instead, status, words
):
    monkeypatch.setattr(name, instead)
    record = tried(feature)
    assert record.status == status and words in record.reason and "\n" not in record.reason
    assert "speedup" not in record.metrics
