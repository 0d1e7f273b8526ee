"""The notebooks of article 000: the loss against its definition, and what a capability is called that fails, or only
pretends to be there."""

from __future__ import annotations

import itertools
import json
import math
import re
from types import SimpleNamespace

import fakes
import pytest
import test_notebooks
import torch
from fakes import Clock
from torch.nn import functional as F

from pomology import format
from pomology.errors import PomologyError
from pomology.experiment.experiment import Experiment
from pomology.measure import clock as measure_clock
from pomology.measure import epochs
from pomology.models import definitions

pytestmark = pytest.mark.usefixtures("quiet_machine")


@pytest.fixture(scope="module")
def simclr() -> dict:
    """The notebook's functions and classes, with the article's parameters."""
    return test_notebooks.definitions("simclr")


@pytest.fixture(scope="module")
def capabilities(tmp_path_factory) -> dict:
    """The notebook's names, up to where its cases begin, with few and small pictures."""
    scope: dict = {}
    for source in itertools.takewhile(
        lambda source: "experiment.table" not in source, fakes.cells("capabilities")
    ):
        exec(source.split("\nwith tempfile")[0], scope)
        if "batch_size: int" in source:
            small = {"batch_size": 2, "model_batch_size": 2, "image_size": 32, "budget_s": 0.05}
            scope |= small | {
                "devices": "cpu",
                "profile": "smoke",
                "out": str(tmp_path_factory.mktemp("run")),
            }
    return scope


def test_a_part_may_stand_in_an_epoch_one_and_a_half_times():
    """SimCLR's feature bank: once an epoch, and once more before the first of two."""
    clock = Clock()
    steps = measure_clock.StepClock(whole=True, clock=clock)
    for part, per_epoch, step_s in (
        ("training", 1.0, 0.2),
        ("feature bank", 1.5, 0.1),
        ("kNN", 1.0, 0.05),
    ):
        for _ in steps.steps(range(10), part, per_epoch=per_epoch):
            clock.pass_s(step_s)
    parts = {name: part.value for name, part in epochs.part_metrics(steps).items()}
    assert parts == pytest.approx({"training": 2.0, "feature bank": 1.5, "kNN": 0.5})
    epoch = epochs.epoch_metrics(steps)["epoch_s"]
    assert (
        epoch.value == pytest.approx(4.0) and epoch.how == "estimated"
    )  # no epoch was seen to have 1.5


@pytest.mark.parametrize(
    ("loop_s", "waiting"), [(5.0, r"100 s ± .+ %"), (4.02, r"not told apart \(20 steps\)")]
)
def test_waiting_for_data_is_printed_where_it_is_resolved(simclr, loop_s, waiting):
    noise = [0.1, -0.1] * 10
    part = measure_clock.Part("training", 100.0, first_step_s=loop_s)
    part.blocks = [measure_clock.Block(1, loop_s + off) for off in noise]
    part.ready_blocks = [measure_clock.Block(1, 4.0 + off) for off in noise]
    clock = measure_clock.StepClock()
    clock.parts = dict.fromkeys(("training", "feature bank", "kNN"), part)
    found = {}
    simclr["note_split"](SimpleNamespace(clock=clock, metric=found.__setitem__))
    assert re.fullmatch(r"400 s ± .+ %", format.resolved(found["training_epoch_s"]))
    assert re.fullmatch(waiting, format.resolved(found["loop_epoch_s"] - found["training_epoch_s"]))


def test_loss_is_nt_xent(simclr):
    """Against its definition, view by view: Chen et al. 2020, equation 1."""
    n, temperature = 5, 0.5
    halves = torch.randn(2, n, 128, generator=torch.Generator().manual_seed(3))
    views = F.normalize(halves.flatten(0, 1), dim=1)
    similar = torch.exp(views @ views.T / temperature).fill_diagonal_(0)
    losses = [-math.log(similar[i, (i + n) % (2 * n)] / similar[i].sum()) for i in range(2 * n)]
    assert float(simclr["nt_xent"](*halves)) == pytest.approx(sum(losses) / (2 * n), rel=1e-5)


@pytest.fixture
def tried(capabilities, tmp_path):
    """A function that tries one feature on the CPU, as the notebook does, and gives the record."""

    def attempt(feature: str, **model: str) -> dict:
        about = {"article": "000", "devices": "cpu", "expects_learning": False, "profile": "smoke"}
        here = Experiment("capabilities", out=str(tmp_path / "run"), **about)
        (case,) = here.cases([{"feature": feature, **model}])
        with case:
            capabilities["train"](case)
        (record,) = here.records
        return record

    return attempt


def test_an_article_s_model_is_tried_in_bf16_as_its_notebook_defines_it(tried):
    """It draws random numbers in its forward pass, which must be the same in fp32 and bf16."""
    record = tried("autocast bf16", model="vae")
    assert (record.status, record.precision, record.parameters) == ("ok", "bf16", 652_824), (
        record.reason
    )
    assert "computes in bfloat16, batch 2" in record.note and record.scaled
    assert {"speedup", "step_s", "first_step_s", "max_abs_error"} <= record.metrics.keys()
    assert record.metrics["speedup"].low < record.metrics["speedup"].high
    found, allowed = map(
        float, re.search(r"gradients within (\S+) % of plain fp32's, (\S+) %", record.note).groups()
    )
    assert found < allowed


def test_every_article_s_model_can_be_counted_and_is_the_article_s(capabilities):
    counts = {}
    with torch.device("meta"):
        for name, work in capabilities["WORKS"].items():
            model = work.build()
            capabilities["backward"](work, model, *work.inputs(2))
            trained = [weight for weight in model.parameters() if weight.requires_grad]
            assert all(weight.grad is not None for weight in trained)
            counts[name] = sum(weight.numel() for weight in model.parameters())
    assert counts == {
        **{
            "resnet18": 11_689_512,
            "vae": 652_824,
            "siamese": 11_432_897,
            "dcgan": 3_576_704 + 2_765_568,
        },
        **{
            "transformer_lm": 13_828_478,
            "gpt2": 124_439_808,
            "whisper": 37_760_640,
            "simclr": 11_497_792,
        },
    }


def test_one_wrong_gradient_in_bf16_is_found_out(tried, capabilities, monkeypatch):
    right = capabilities["gradients"]

    def wrong(trainer):
        found = right(trainer)
        if trainer.feature != "fp32":
            found[next(iter(found))] *= 0
        return found

    monkeypatch.setitem(capabilities, "gradients", wrong)
    record = tried("autocast bf16", model="vae")
    assert record.status == "mismatch" and record.reason.startswith(
        "the gradient of hidden.weight differs by 9"
    )
    assert "speedup" not in record.metrics


def test_definitions_of_a_notebook_come_without_what_it_computes(monkeypatch, tmp_path):
    lines = [
        "import math\nsize: int = 3  # of it\ndata = 1 / 0\n",
        "def area(r):\n    return scale() * r**size\n",
    ]
    lines += ["def scale():\n    return math.pi * factor\n", "def unused():\n    return data\n"]
    cells = [{"cell_type": "code", "source": [line]} for line in lines] + [
        {"cell_type": "markdown", "source": ["1 /"]}
    ]
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks" / "circle.ipynb").write_text(json.dumps({"cells": cells}))
    monkeypatch.setattr(definitions, "root", lambda: tmp_path)
    assert definitions.definitions("circle", "area", factor=2.0).area(2) == pytest.approx(
        2 * math.pi * 8
    )
    own = definitions.definitions("circle", "area", "size", factor=1.0, scale=lambda: 5)
    assert own.area(2) == 40 and own.size == 3 and not hasattr(own, "scale")
    for name, asked in (("circle", "data"), ("square", "area")):
        with pytest.raises(
            PomologyError, match=rf"^{name}.ipynb in notebooks/ defines no {asked}$"
        ):
            definitions.definitions(name, asked)


def full(images):
    """A compiled model that does not fit."""
    raise RuntimeError("MPS backend out of memory (MPS allocated: 9 GB)")


def turned(model):
    """A compiled model with the right numbers, and gradients three times too large."""
    torch._dynamo.utils.counters["stats"]["unique_graphs"] = 1

    def run(images):
        made = model(images)
        return made + 2 * (made - made.detach())

    return run


AUTOCAST, SCALER = torch.autocast, torch.amp.GradScaler
REPLACED = {
    "torch.compile": "torch.compile",
    "autocast": "torch.autocast",
    "GradScaler": "torch.amp.GradScaler",
}
# Feature, what PyTorch does instead, and the status and words of the reason that the case gets.
PRETENDED = [
    ("torch.compile", lambda model: full, "out-of-memory", "out of memory"),
    ("torch.compile", lambda model: model, "unsupported", "nothing was compiled"),
    ("torch.compile", turned, "mismatch", "the gradient of"),
    (
        "autocast",
        lambda kind, **_: AUTOCAST(kind, enabled=False),
        "unsupported",
        "switched off behind the program's",
    ),
    # As Lightning does with 16-mixed on a CPU.
    (
        "autocast",
        lambda kind, **_: AUTOCAST(kind, dtype=torch.bfloat16),
        "unsupported",
        "computes in torch.bfloat16",
    ),
    (
        "GradScaler",
        lambda kind, **_: SCALER(kind, enabled=False),
        "unsupported",
        "the scaler switched itself off",
    ),
]


@pytest.mark.parametrize(("feature", "instead", "status", "words"), PRETENDED)
def test_a_feature_that_fails_or_only_pretends_is_found_out(
    tried, monkeypatch, feature, instead, status, words
):
    monkeypatch.setattr(REPLACED[feature], instead)
    record = tried(feature)
    assert record.status == status and words in record.reason and "\n" not in record.reason
    assert not record.traceback and "speedup" not in record.metrics
