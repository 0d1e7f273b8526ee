"""The notebooks of article 000 and what they alone use: models against torchvision's numbers, the loss against its
definition, and what a device's capability is called when it fails, or only pretends to be there."""

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
from torch.utils._python_dispatch import TorchDispatchMode

from pomology import format
from pomology.errors import PomologyError
from pomology.experiment.experiment import Experiment
from pomology.measure import calls as measure_calls
from pomology.measure import clock as measure_clock
from pomology.measure import epochs
from pomology.measure.estimate import Estimate
from pomology.models import cost, definitions, vision
from pomology.report import epoch_parts

pytestmark = pytest.mark.usefixtures("quiet_machine")

NAMES = ("simclr", "model_sizes")


@pytest.fixture(scope="module")
def scopes() -> dict[str, dict]:
    """Each notebook's functions and classes, with the article's parameters."""
    return {name: test_notebooks.definitions(name) for name in NAMES}


@pytest.fixture(scope="module")
def capabilities(tmp_path_factory) -> dict:
    """The notebook's names, up to where its cases begin, with few and small pictures."""
    scope: dict = {}
    for source in itertools.takewhile(lambda source: "experiment.table" not in source, fakes.cells("capabilities")):
        exec(source.split("\nwith tempfile")[0], scope)
        if "batch_size: int" in source:
            small = {"batch_size": 2, "model_batch_size": 2, "image_size": 32, "budget_s": 0.05}
            scope |= small | {"devices": "cpu", "profile": "smoke", "out": str(tmp_path_factory.mktemp("run"))}
    return scope


@pytest.mark.parametrize(
    ("build", "side", "parameters", "macs"),
    [
        (vision.vgg16, 224, 138_357_544, 15.470e9),
        (vision.resnet18, 224, 11_689_512, 1.814e9),
        (vision.resnet50, 224, 25_557_032, 4.089e9),  # 3.858e9 with the stride in the first convolution of a block
        (lambda: vision.vgg16(classes=10, batch_norm=True), 224, 134_309_962, 15.466e9),
        (vision.cifar_resnet18, 32, 11_168_832, 0.5554e9),
        (vision.simclr_resnet18, 32, 11_497_792, 0.5557e9),
    ],
)
def test_sizes_are_the_published_ones(build, side, parameters, macs):
    def forward(model):
        with torch.no_grad():
            model(torch.empty(2, 3, side, side))

    counted = cost.workload(build, forward)
    assert counted.parameters == parameters
    assert counted.flops / 4 == pytest.approx(macs, rel=5e-4)


def test_residual_blocks_add_their_input():
    """With the last normalisation of every block at zero, only shortcuts remain."""
    torch.manual_seed(0)
    model = vision.resnet18().eval()
    blocks = [layer for layer in model if hasattr(layer, "shortcut")]
    assert len(blocks) == 8
    images = torch.rand(2, 3, 64, 64)
    by_hand = model[:4](images)
    for block in blocks:
        torch.nn.init.zeros_(block.layers[-1].weight)
        by_hand = block.shortcut(by_hand).clamp(min=0)
    with torch.no_grad():
        assert torch.allclose(model(images), model[-3:](by_hand), atol=1e-6)


# ReLUs and sums in place, and ReLUs that are not: of each block two (in ResNet-50 three) and a sum, and those of the
# stem and of the head.
IN_PLACE = [("resnet18", 17, 8, 0), ("resnet50", 49, 16, 0), ("simclr_resnet18", 0, 8, 17), ("Siamese", 35, 16, 0)]


@pytest.mark.parametrize(("name", "relus", "sums", "copies"), IN_PLACE)
def test_what_works_in_place_upstream_works_in_place_here(name, relus, sums, copies):
    class Names(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append((str(function), bool(args) and getattr(args[0], "ndim", 0) > 1))
            return function(*args, **(kwargs or {}))

    build = test_notebooks.definitions("siamese")[name] if name == "Siamese" else getattr(vision, name)
    with torch.device("meta"):
        inputs = [torch.empty(2, 1, 28, 28)] * 2 if name == "Siamese" else [torch.empty(2, 3, 32, 32)]
        model, seen = build(), []
        with Names():
            model(*inputs)
    counts = [seen.count((f"aten.{operator}", True)) for operator in ("relu_.default", "add_.Tensor", "relu.default")]
    assert counts == [relus, sums, copies]


def test_pairs_are_not_fooled_by_a_machine_that_becomes_slower():
    clock = Clock()

    def work(seconds):
        clock.pass_s(seconds * (1 + clock.now / 20))  # twice as slow after 20 s

    calls = itertools.chain([3.0], itertools.repeat(0.5))  # the first call stands apart
    pairs = measure_calls.in_pairs(lambda: work(next(calls)), lambda: work(1.0), budget_s=20.0, clock=clock)
    assert pairs.timed.first_call_s == 3 and pairs.ratio.n >= 8
    assert pairs.ratio.low <= 2 <= pairs.ratio.high and pairs.ratio.value == pytest.approx(2, rel=0.02)


def test_a_part_may_stand_in_an_epoch_one_and_a_half_times():
    """SimCLR's feature bank: once an epoch, and once more before the first of two."""
    clock = Clock()
    steps = measure_clock.StepClock(whole=True, clock=clock)
    for part, per_epoch, step_s in (("training", 1.0, 0.2), ("feature bank", 1.5, 0.1), ("kNN", 1.0, 0.05)):
        for _ in steps.steps(range(10), part, per_epoch=per_epoch):
            clock.pass_s(step_s)
    parts = {name: part.value for name, part in epochs.part_metrics(steps).items()}
    assert parts == pytest.approx({"training": 2.0, "feature bank": 1.5, "kNN": 0.5})
    epoch = epochs.epoch_metrics(steps)["epoch_s"]
    assert epoch.value == pytest.approx(4.0) and epoch.how == "estimated"  # no epoch was seen to have 1.5


@pytest.mark.parametrize(
    ("loop_s", "ready_s", "count", "training", "waiting"),
    [
        (5.0, 4.0, 20, r"400 s ± .+ %", r"100 s ± .+ %"),
        (4.0, 5.0, 20, r"500 s ± .+ %", r"not told apart \(20 steps\)"),  # never below 0
        (4.02, 4.0, 20, r"400 s ± .+ %", r"not told apart \(20 steps\)"),  # within their intervals
        (5.0, 4.0, 2, r"not told apart \(2 steps\)", r"not told apart \(2 steps\)"),
        (5.0, 4.0, 1, r"not told apart \(1 step\)", r"not told apart \(1 step\)"),
    ],
)
def test_parts_of_an_epoch_are_printed_where_they_are_resolved(scopes, loop_s, ready_s, count, training, waiting):
    scope, found = scopes["simclr"], {}
    noise = [0.1 * (-1) ** number for number in range(count)]
    part = measure_clock.Part("training", 100.0, first_step_s=loop_s)
    part.blocks = [measure_clock.Block(1, loop_s + off) for off in noise]
    part.ready_blocks = [measure_clock.Block(1, ready_s + off) for off in noise]
    clock = measure_clock.StepClock()
    clock.parts = dict.fromkeys(("training", "feature bank", "kNN"), part)
    scope["note_split"](SimpleNamespace(clock=clock, metric=found.__setitem__))
    assert "waiting_epoch_s" not in found, "a difference is formed where it is shown"
    shown = epoch_parts.parts(found)
    assert re.fullmatch(training, format.resolved(shown["Training"]))
    assert re.fullmatch(waiting, format.resolved(shown["Waiting for data"]))
    assert format.resolved(Estimate(5.0, "s", 2.0, 8.0, 10)) == "about 5.0 s: 2.0 to 8.0 s"
    assert format.resolved(Estimate(5.0, "s", 4.0, 6.0, 9)) == "not told apart (9 steps)"


def test_loss_is_nt_xent(scopes):
    """Against its definition, view by view: Chen et al. 2020, equation 1."""
    n, temperature = 5, 0.5
    halves = torch.randn(2, n, 128, generator=torch.Generator().manual_seed(3))
    views = F.normalize(halves.flatten(0, 1), dim=1)
    similar = torch.exp(views @ views.T / temperature).fill_diagonal_(0)
    losses = [-math.log(similar[i, (i + n) % (2 * n)] / similar[i].sum()) for i in range(2 * n)]
    assert float(scopes["simclr"]["nt_xent"](*halves)) == pytest.approx(sum(losses) / (2 * n), rel=1e-5)


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize(("workers", "keep", "kept"), [(8, 0, False), (2, 1, True), (0, 1, False)])
def test_loaders_are_made_as_asked(scopes, workers, keep, kept):
    case = fakes.FakeCase(batch_size=128, workers=workers, persistent="yes" if keep else "no")
    loaders = [scopes["simclr"]["loader"](case, range(50_000), shuffle) for shuffle in (True, False)]
    assert [len(loader) for loader in loaders] == [390, 391]
    assert {(loader.num_workers, loader.persistent_workers) for loader in loaders} == {(workers, kept)}


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


def test_a_feature_that_works(tried):
    record = tried("autocast bf16")
    assert record.status == "ok", record.reason
    assert "computes in bfloat16," in record.note and record.precision == "bf16"
    assert record.metrics["speedup"].low < record.metrics["speedup"].high
    found, allowed = map(float, re.search(r"gradients within (\S+) % of plain fp32's, (\S+) %", record.note).groups())
    assert 0.1 < found < allowed


@pytest.mark.parametrize(("name", "parameters"), [("vae", 652_824), ("transformer_lm", 13_828_478)])
def test_an_article_s_model_is_tried_in_bf16_as_its_notebook_defines_it(tried, name, parameters):
    """Both draw random numbers in their forward pass, which must be the same in fp32 and bf16."""
    record = tried("autocast bf16", model=name)
    assert (record.status, record.precision, record.parameters) == ("ok", "bf16", parameters), record.reason
    assert "gradients within" in record.note and "computes in bfloat16, batch 2" in record.note and record.scaled
    assert {"speedup", "step_s", "first_step_s", "max_abs_error"} <= record.metrics.keys()


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
        **{"resnet18": 11_689_512, "vae": 652_824, "siamese": 11_432_897, "dcgan": 3_576_704 + 2_765_568},
        **{"transformer_lm": 13_828_478, "gpt2": 124_439_808, "whisper": 37_760_640, "simclr": 11_497_792},
    }


@pytest.mark.parametrize(
    ("kinds", "asked", "rows"), [(["cpu"], False, []), (["cpu"], True, ["cpu"]), (["cpu", "gpu"], False, ["gpu"])]
)
def test_the_articles_models_run_on_gpus_and_on_a_processor_where_asked(capabilities, monkeypatch, kinds, asked, rows):
    def cases(rows=(), on=(), feature=()):
        return [(row, device.kind) for row in rows for device in on]

    here = SimpleNamespace(devices=[SimpleNamespace(kind=kind) for kind in kinds], cases=cases)
    monkeypatch.setitem(capabilities, "experiment", here)
    monkeypatch.setitem(capabilities, "article_models_on_cpu", asked)
    rows_of = [{"feature": "autocast bf16", "model": name} for name in capabilities["article_models"]]
    wanted = [(row, kind) for row in rows_of for kind in rows]
    assert list(capabilities["to_run"]()) == wanted


def test_one_wrong_gradient_in_bf16_is_found_out(tried, capabilities, monkeypatch):
    right = capabilities["gradients"]

    def wrong(trainer):
        found = right(trainer)
        if trainer.feature != "fp32":
            found[next(iter(found))] *= 0
        return found

    monkeypatch.setitem(capabilities, "gradients", wrong)
    record = tried("autocast bf16", model="vae")
    assert record.status == "mismatch" and record.reason.startswith("the gradient of hidden.weight differs by 9")
    assert "speedup" not in record.metrics


def test_definitions_of_a_notebook_come_without_what_it_computes(monkeypatch, tmp_path):
    lines = ["import math\nsize: int = 3  # of it\ndata = 1 / 0\n", "def area(r):\n    return scale() * r**size\n"]
    lines += ["def scale():\n    return math.pi * factor\n", "def unused():\n    return data\n"]
    cells = [{"cell_type": "code", "source": [line]} for line in lines] + [{"cell_type": "markdown", "source": ["1 /"]}]
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks" / "circle.ipynb").write_text(json.dumps({"cells": cells}))
    monkeypatch.setattr(definitions, "root", lambda: tmp_path)
    assert definitions.definitions("circle", "area", factor=2.0).area(2) == pytest.approx(2 * math.pi * 8)
    own = definitions.definitions("circle", "area", "size", factor=1.0, scale=lambda: 5)
    assert own.area(2) == 40 and own.size == 3 and not hasattr(own, "scale")
    for name, asked in (("circle", "data"), ("square", "area")):
        with pytest.raises(PomologyError, match=rf"^{name}.ipynb in notebooks/ defines no {asked}$"):
            definitions.definitions(name, asked)


def failing(words: str):
    """In place of `torch.compile`, on a device that cannot do it."""

    def run(images):
        raise RuntimeError(words)

    return lambda model: run


def wrong(model):
    """A compiled model that computes something else."""
    torch._dynamo.utils.counters["stats"]["unique_graphs"] = 1
    return lambda images: 3 * model(images)


def turned(model):
    """A compiled model with the right numbers, and gradients three times too large."""
    torch._dynamo.utils.counters["stats"]["unique_graphs"] = 1

    def run(images):
        made = model(images)
        return made + 2 * (made - made.detach())

    return run


AUTOCAST, SCALER = torch.autocast, torch.amp.GradScaler
REPLACED = {"torch.compile": "torch.compile", "autocast": "torch.autocast", "GradScaler": "torch.amp.GradScaler"}
UNKNOWN, FULL = "Unsupported device type: mps\nSet TORCH_LOGS", "MPS backend out of memory (MPS allocated: 9 GB)"
# Feature, what PyTorch does instead, and the status and words of the reason that the case gets.
PRETENDED = [
    ("torch.compile", failing(UNKNOWN), "unsupported", "Unsupported device type"),
    ("torch.compile", failing(FULL), "out-of-memory", "out of memory"),
    ("torch.compile", lambda model: model, "unsupported", "nothing was compiled"),
    ("torch.compile", wrong, "mismatch", "the first loss"),
    ("torch.compile", turned, "mismatch", "the gradient of"),
    ("autocast", lambda kind, **_: AUTOCAST(kind, enabled=False), "unsupported", "switched off behind the program's"),
    # As Lightning does with 16-mixed on a CPU.
    ("autocast", lambda kind, **_: AUTOCAST(kind, dtype=torch.bfloat16), "unsupported", "computes in torch.bfloat16"),
    ("GradScaler", lambda kind, **_: SCALER(kind, enabled=False), "unsupported", "the scaler switched itself off"),
]


@pytest.mark.parametrize(("feature", "instead", "status", "words"), PRETENDED)
def test_a_feature_that_fails_or_only_pretends_is_found_out(tried, monkeypatch, feature, instead, status, words):
    monkeypatch.setattr(REPLACED[feature], instead)
    record = tried(feature)
    assert record.status == status and words in record.reason and "\n" not in record.reason
    assert not record.traceback and "speedup" not in record.metrics
