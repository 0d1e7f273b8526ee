"""The notebook that fine-tunes GPT-2: what a step costs by hand, what LoRA trains and what it saves, which case runs on
which machine, and whether the step is the one that it says."""

from __future__ import annotations

import contextlib
import math
import statistics

import psutil
import pytest
import test_notebooks
import test_sizes
import torch
import yaml
from counting import by_layers

from pomology import errors
from pomology.articles import claims as articles_claims
from pomology.articles import published
from pomology.data import text
from pomology.devices import torch as devices_torch
from pomology.experiment import case as experiment_case
from pomology.experiment import experiment
from pomology.report import claims, declaration
from pomology.results import cases
from pomology.workloads import offload, pretrained
from pomology.workloads.cost import Workload

NAME, TOKENS = "gpt2_finetuning", 16
GIB = 2**30


@pytest.fixture
def scope() -> dict:
    """The notebook's functions, with the article's parameters, and a few short reviews."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(test_notebooks.FACTS, NAME, test_notebooks.Facts([], [], []))
        found = test_notebooks.definitions(NAME)
    found["corpus"] = text.imdb("stand-in", length=TOKENS, size=64)
    found["limit_s"] = 600.0
    return found


@pytest.fixture(autouse=True)
def counted_soon(monkeypatch):
    monkeypatch.setattr(offload, "plain_workload", by_layers)


def enter(scope: dict, folder, profile: str = "quick") -> experiment.Experiment:
    """An experiment on the CPU in the notebook's place, with short texts."""
    made = experiment.Experiment(
        NAME, article="001", devices="cpu", profile=profile, budget_s=0.1, out=str(folder), expects_learning=False
    )
    made.declaration = declaration.of(NAME)  # as the notebook declares it
    made.dataset(scope["corpus"])
    scope["experiment"] = made
    scope["text_tokens"] = TOKENS
    return made


def row(model="gpt2-smoke", batch_size=4, lora=False, offload="none", task="classification") -> dict:
    return {"model": model, "batch_size": batch_size, "lora": lora, "offload": offload, "task": task}


# On paper -------------------------------------------------------------------------------------------------------------


def by_hand(width: int, layers: int, head: int, lora: bool, batch: int = 16, tokens: int = 128) -> tuple[float, float]:
    """FLOP of the forward and the backward pass of a GPT-2 with a head of so many outputs for each token."""
    rows = batch * tokens
    attention = 4 * batch * tokens**2 * width  # scores, and their product with the values
    dense, narrow = 2 * rows * 12 * width**2, 2 * rows * 8 * (width + 3 * width)
    last = 2 * rows * width * head
    forward = layers * (dense + attention + lora * narrow) + last
    if not lora:
        return forward, 2 * forward
    # Of frozen matrices only the gradient of what came in, but for the first one; of adapters both; of the score both.
    first = 2 * rows * width * 3 * width
    return forward, layers * (dense + 2 * attention + 2 * narrow) - first - 2 * rows * 8 * width + 2 * last


@pytest.mark.parametrize(
    ("model", "shape", "task", "lora", "forward", "backward"),
    [
        ("gpt2-large", (1280, 36), "classification", False, 2.947, 5.895),
        ("gpt2-large", (1280, 36), "classification", True, 2.953, 2.988),
        ("gpt2-large", (1280, 36), "language-model", False, 3.211, 6.422),
    ],
)
def test_operations_of_a_step_are_those_counted_by_hand(scope, model, shape, task, lora, forward, backward):
    counted = scope["count"](model, 16, lora, task, "mps")
    ours = counted.forward_flops, counted.flops - counted.forward_flops
    hand = by_hand(*shape, 2 if task == "classification" else 50_257, lora)
    assert [flops / 1e12 for flops in ours] == pytest.approx([forward, backward], abs=6e-4)
    assert ours == pytest.approx(hand, rel=1e-9)


def test_parameters_and_what_is_trained(scope):
    score = 2 * 1280
    with torch.device("meta"):
        for task, extra in (("classification", score), ("language-model", 0)):
            plain, lora = (scope["build"]("gpt2-large", lora, task)[0] for lora in (False, True))
            assert sum(weight.numel() for weight in plain.parameters()) == 774_030_080 + extra
            names = [name for name, weight in lora.named_parameters() if weight.requires_grad]
            assert sum(weight.numel() for weight in scope["trained"](lora)) == 1_474_560 + extra
            assert {name.split(".")[-2] for name in names if "lora_" in name} == {"default"}
            assert all("lora_" in name or "score" in name for name in names)
            assert len([name for name in names if "c_attn" in name]) == 2 * 36
            assert lora.training and all(module.training for module in lora.modules())


def test_lora_needs_gradients_and_optimiser_of_what_it_trains_only(scope):
    plain, lora = (scope["count"]("gpt2-large", 16, lora, "classification", "mps") for lora in (False, True))
    everything, trained = 774_030_080 + 2560, 1_474_560 + 2560
    assert plain.state_bytes == 16 * everything
    assert lora.state_bytes == 4 * (everything + trained) + 12 * trained  # peft keeps the score that it replaces
    assert plain.saved_bytes / GIB == pytest.approx(12.69, abs=0.01)
    assert 0.8 < lora.saved_bytes / plain.saved_bytes < 0.9


def test_memory_with_offload_is_less_on_the_device(scope):
    zero = scope["count"]("gpt2-medium", 1, False, "classification", "cuda", "zero")
    plain = scope["count"]("gpt2-medium", 1, False, "classification", "cuda")
    assert plain.state_bytes / 4 <= zero.state_bytes < plain.state_bytes / 3 and zero.saved_bytes == plain.saved_bytes
    assert zero.host_bytes >= 3 * plain.state_bytes / 4 and not plain.host_bytes


# Which case runs ------------------------------------------------------------------------------------------------------

mac = test_sizes.mac


def test_16_gb_refuse_gpt2_large_without_lora_and_take_it_with(scope, mac, tmp_path, monkeypatch):
    """Told from shapes: nothing is allocated, and no weight is drawn."""
    made = enter(scope, tmp_path)
    scope["text_tokens"] = 128
    made.devices = [mac(16)]
    monkeypatch.setattr(devices_torch.TorchDevice, "name", "Apple M2")
    for method in ("synchronize", "reset_peak_memory"):
        monkeypatch.setattr(devices_torch.TorchDevice, method, lambda self: None)
    build = pretrained.build

    def only_on_paper(*arguments):
        assert torch.get_default_device().type == "meta", "weights were made before it was asked whether they fit"
        return build(*arguments)

    monkeypatch.setattr(pretrained, "build", only_on_paper)
    given = yaml.safe_load((test_notebooks.ROOT / "params" / "quick" / f"{NAME}.yaml").read_text())
    scope["batch_sizes"] = given["batch_sizes"]

    class Fits(Exception):
        """Raised in place of training."""

    def stop(case, limit_s):
        assert case._workload.bytes <= case.backend.free_memory()
        raise Fits

    monkeypatch.setattr(experiment_case.Case, "require_time", stop)
    before = psutil.Process().memory_info().rss
    ended = []
    for case in scope["planned"]():
        with case:
            with contextlib.suppress(Fits):
                scope["train"](case)
            case.metric("step_s", 1.0, "s")
        record = made.records[-1]
        ended.append((case.model, case.batch_size, case.lora, record.status))
        if case.model == "gpt2-large" and not case.lora:
            assert record.status == "too-big"
            assert record.reason.startswith("needs ") and record.reason.endswith(" GB are free")
    assert psutil.Process().memory_info().rss - before < 2**26
    took = [(model, batch_size, lora) for model, batch_size, lora, status in ended if status == "ok"]
    assert took == [("gpt2-medium", 4, False), ("gpt2-large", 4, True), ("gpt2-medium", 4, True)]
    assert ended[-1] == ("gpt2-xl", 16, False, "too-big")


def test_a_machine_that_is_too_slow_takes_a_sibling_whose_steps_end(scope, tmp_path):
    """Two cores with 100 GFLOP/s: three steps of the smallest GPT2-large would take 17 s at the least."""
    made = enter(scope, tmp_path)
    made._rates = {("cpu", "fp32"): 100e9}
    work = {
        name: Workload(1, int(flops * 1e12), 1, 1)
        for name, flops in (("gpt2-large", 0.5526), ("gpt2-medium", 0.2426), ("gpt2", 0.0656))
    }
    ended = []
    for case in made.first_that_fits([row(name, 1) for name in work]):
        with case:
            case.require_memory(work[case.model])
            case.require_time(10.0)
            case.metric("step_s", 1.0, "s")
        ended.append((case.model, made.records[-1].status))
    assert ended == [("gpt2-large", "too-big"), ("gpt2-medium", "ok")]


def test_lora_also_runs_where_training_without_it_ran(scope, tmp_path):
    made = enter(scope, tmp_path)
    scope |= {"siblings": ["gpt2-medium", "gpt2"], "batch_sizes": [2, 1], "larger": "gpt2-xl", "offload": "zero"}
    seen = []
    for case in scope["planned"]():
        seen.append((case.model, case.batch_size, case.lora, case.offload))
        with case:
            if case.model == "gpt2-xl" or (case.model == "gpt2-medium" and not case.lora):
                raise errors.TooBig("in this test")
            case.metric("step_s", 1.0, "s")
    plain = [("gpt2-medium", 2), ("gpt2-medium", 1), ("gpt2", 2)]
    assert seen[:3] == [(*one, False, "none") for one in plain]
    assert seen[3:5] == [("gpt2-medium", 2, True, "none"), ("gpt2", 2, True, "none")]
    assert seen[5:] == [("gpt2-xl", 2, False, "none"), ("gpt2-xl", 2, False, "zero")]
    made.journal.path.unlink()
    scope |= {"siblings": ["gpt2"], "larger": "none"}
    for case in scope["planned"]():
        with case:
            case.metric("step_s", 1.0, "s")
    assert [(one.config["batch_size"], one.config["lora"]) for one in made.records] == [(2, False), (2, True)]


def test_offload_is_refused_where_there_is_one_memory(scope, tmp_path):
    made = enter(scope, tmp_path)
    for case in made.cases([row("gpt2-xl", offload="zero")]):
        with case:
            scope["train"](case)
    assert made.records[0].status == "unsupported" and "memory of its own" in made.records[0].reason


# The step -------------------------------------------------------------------------------------------------------------


class Case:
    """What the notebook's step asks of a case; `left` gets the name of each phase and what is true at its end."""

    def __init__(self, look=lambda: None, offload: str = "none"):
        self.device, self.look, self.offload = torch.device("cpu"), look, offload
        self.backend = devices_torch.TorchDevice("cpu")
        self.left, self.losses, self.phase_now = [], [], None

    def steps(self, batches):
        return iter(batches)

    @contextlib.contextmanager
    def phase(self, name):
        self.phase_now = name
        yield
        self.phase_now = None
        self.left.append((name, self.look()))

    def loss(self, value):
        self.losses.append(value)

    def ran_on(self, tensor):
        assert tensor.device == self.device

    def watch_model(self, model):
        return model


def batches(count: int, size: int = 4, **more) -> list[dict]:
    reviews = text.imdb("stand-in", length=TOKENS, size=count * size, **more)
    return [
        torch.utils.data.default_collate([reviews[number] for number in range(start, start + size)])
        for start in range(0, count * size, size)
    ]


def without_dropout(network):
    for module in network.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return network


@pytest.mark.parametrize("lora", [False, True])
def test_a_step_has_its_parts_in_their_phases(scope, monkeypatch, lora):
    torch.manual_seed(0)
    network, _ = scope["build"]("gpt2-smoke", lora, "classification")
    weights, asked = scope["trained"](network), []

    class AdamW(torch.optim.AdamW):
        def __init__(self, parameters, **settings):
            parameters = list(parameters)
            assert {id(weight) for weight in parameters} == {id(weight) for weight in weights}
            asked.append(settings)
            super().__init__(parameters, **settings)

        def step(self, *arguments):
            norm = math.sqrt(sum(float(weight.grad.square().sum()) for weight in weights))
            asked.append((case.phase_now, norm))
            return super().step(*arguments)

    monkeypatch.setattr(torch.optim, "AdamW", AdamW)
    with torch.no_grad():  # so that gradients are longer than 1
        next(weight for name, weight in network.named_parameters() if "score" in name and weight.requires_grad).mul_(99)

    def look():
        return sum(weight.grad is not None for weight in weights), [weight.sum().item() for weight in weights]

    case = Case(look)
    before = look()[1]
    scope["train_here"](case, network, batches(2))
    assert [name for name, _ in case.left] == ["forward", "backward", "update"] * 2
    (_, forward), (_, backward), (_, update) = case.left[:3]
    assert forward == (0, before)
    assert backward == (len(weights), before)
    assert update[0] == 0 and update[1] != before
    wanted = {"lr": 5e-5, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0, "fused": True}
    assert asked[0] == wanted
    assert [phase for phase, _ in asked[1:]] == ["update"] * 2
    assert [norm for _, norm in asked[1:]] == pytest.approx([1.0, 1.0], abs=1e-4), "clipped, and before the update"


def test_lora_changes_its_adapters_and_nothing_else(scope, tmp_path):
    made = enter(scope, tmp_path)
    scope["lr"] = 1e-3
    build, kept = scope["build"], []

    def keep(*arguments, **config):
        network, note = build(*arguments, **config)
        if torch.get_default_device().type == "meta":
            return network, note
        kept.append((network, {name: tensor.clone() for name, tensor in network.state_dict().items()}))
        return network, note

    scope["build"] = keep
    for case in made.cases([row(lora=True), row(lora=False)]):
        with case:
            scope["train"](case)
    assert [one.status for one in made.records] == ["ok", "ok"], [one.reason for one in made.records]
    scope["build"] = build
    (network, before), (plain, untrained) = kept
    after = network.state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    trained = {name for name, weight in network.named_parameters() if weight.requires_grad}
    assert len(trained) == 2 * 2 + 1
    assert changed == trained
    weights = dict(plain.named_parameters())
    assert {name for name in weights if torch.equal(untrained[name], weights[name])} == set()
    record = made.records[0]
    for name, flops in (("forward", 0), ("backward", 1)):
        count = scope["count"]("gpt2-smoke", 4, True, "classification", "cpu")
        part = (count.forward_flops, count.flops - count.forward_flops)[flops]
        metrics = record.metrics
        assert metrics[f"{name}_flops_per_s"].value * metrics[f"{name}_s"].value == pytest.approx(part)
    assert record.metrics["step_s"].value > sum(
        record.metrics[f"{name}_s"].value for name in ("forward", "backward", "update")
    )
    assert record.parameters == sum(weight.numel() for weight in network.parameters())


@pytest.mark.parametrize("task", ["classification", "language-model"])
def test_a_padded_review_gives_what_it_gives_alone(scope, task):
    """The mean loss of a padded batch against those of its reviews, each without padding, by their texts' lengths."""
    scope["task"] = task
    torch.manual_seed(0)
    network, _ = scope["build"]("gpt2-smoke", False, task)
    network.eval()
    (batch,) = batches(1, size=8)
    lengths = [3, 16, 7, 12, 1 + (task == "language-model"), 9, 16, 5]
    for number, length in enumerate(lengths):
        batch["input_ids"][number, length:] = text.END_OF_TEXT
        batch["attention_mask"][number, length:] = 0
    with torch.no_grad():
        together = scope["loss_function"](network, **scope["on"](torch.device("cpu"), batch)).item()
        alone, weights = [], []
        for number, length in enumerate(lengths):
            # Neither padding nor a mask, and the classes' logits read by hand.
            tokens = batch["input_ids"][number : number + 1, :length]
            hidden = network.transformer(input_ids=tokens, attention_mask=torch.ones_like(tokens)).last_hidden_state
            if task == "classification":
                logits, wanted, weight = network.score(hidden)[:, -1], batch["labels"][number : number + 1], 1
            else:
                logits, wanted, weight = network.lm_head(hidden)[0, :-1], tokens[0, 1:], length - 1
            alone.append(weight * torch.nn.functional.cross_entropy(logits, wanted).item())
            weights.append(weight)
    assert together == pytest.approx(sum(alone) / sum(weights), abs=2e-6)
    assert len(set(alone)) > 4


@pytest.mark.parametrize(("task", "lora", "lr"), [("classification", True, 1e-2), ("language-model", False, 3e-3)])
def test_a_loss_falls(scope, task, lora, lr):
    """Adapters can do little for random weights; a few reviews by heart they can."""
    scope |= {"lr": lr, "task": task}
    torch.manual_seed(0)
    network, _ = scope["build"]("gpt2-smoke", lora, task)
    case = Case()
    scope["train_here"](case, network, batches(1, size=32) * 40 if lora else batches(40))
    assert statistics.mean(case.losses[-10:]) < (0.7 if lora else 0.95) * case.losses[0]


def test_it_learns_to_tell_praise_from_blame(scope):
    scope["lr"] = 3e-3
    torch.manual_seed(0)
    network, _ = scope["build"]("gpt2-smoke", False, "classification")
    reviews, held_out = (text.imdb("stand-in", split=split, length=64, size=3840) for split in ("train", "test"))
    case = Case()
    scope["train_here"](case, network, torch.utils.data.DataLoader(reviews, 32))
    network.eval()
    with torch.no_grad():
        tokens, mask = torch.from_numpy(held_out.tokens[:400]), torch.from_numpy(held_out.mask[:400])
        classes = network(input_ids=tokens, attention_mask=mask).logits.argmax(-1)
    right = (classes.numpy() == held_out.labels[:400]).mean()
    assert right > 0.5 + 3 * math.sqrt(0.25 / 400), f"{right:.1%} right; a guesser may reach 57.5 %"


def test_with_offload_the_same_losses(scope):
    """FSDP2 on the CPU, which this PyTorch has; the other engine has tests of its own."""
    torch.manual_seed(0)
    scope["lr"] = 1e-3
    given, losses = batches(6), {}
    weights = without_dropout(scope["build"]("gpt2-smoke", False, "classification")[0]).state_dict()
    for kind in ("none", "fsdp"):
        network = without_dropout(scope["build"]("gpt2-smoke", False, "classification")[0])
        network.load_state_dict(weights)
        case = Case(offload=kind)
        if kind == "none":
            scope["train_here"](case, network, given)
        else:
            assert "host" in scope["train_offloaded"](case, network, given)
        assert [name for name, _ in case.left] == ["forward", "backward", "update"] * 6
        losses[kind] = case.losses
    assert losses["fsdp"] == pytest.approx(losses["none"], abs=1e-5)


# What the reader sees -------------------------------------------------------------------------------------------------


@pytest.fixture
def ran(scope, tmp_path):
    """The article's case and one smaller are too big; the smallest ran, and so did the article's with LoRA."""
    made = enter(scope, tmp_path)
    steps = {"forward_s": 1.5, "backward_s": 3.25, "update_s": 0.75, "step_s": 5.5}
    ends = [("gpt2-large", 16, False), ("gpt2-large", 1, False), ("gpt2", 1, False), ("gpt2-large", 16, True)]
    for case in made.cases([row(*one) for one in ends]):
        with case:
            case.scaled = (case.model, case.batch_size) != ("gpt2-large", 16)
            if case.model == "gpt2-large" and not case.lora:
                raise errors.TooBig(f"needs {case.batch_size} more computers")
            case._workload = Workload(1, int(6e11), 1, 1, forward_flops=int(2e11))
            for name, value in steps.items():
                case.metric(name, value, "s")
            case.metric("flops_per_s", 6e11 / 5.5, "FLOP/s")
            case.note("classification, random weights: the same work as the checkpoint")
    return made


def test_a_scaled_case_shows_flops_in_the_table_and_seconds_in_the_details(ran):
    table = ran.table()
    columns = {heading: place for place, heading in enumerate(table.columns)}
    ours = [one.cells for one in table.rows if one.kind == "measured"]
    assert [(one[1], one[2], one[3]) for one in ours] == [
        ("gpt2-large", "16", "False"),
        ("gpt2", "1", "False"),
        ("gpt2-large", "16", "True"),
    ]
    refused, scaled, own = ours
    assert refused[columns["Forward"]] == "too-big" and "needs 16 more computers" in refused[-1]
    assert any("1 smaller case" in note for note in table.notes)
    for name in ("Forward", "Backward", "Update"):
        assert scaled[columns[name]] == "see the details"
    assert scaled[columns["Forward achieves"]] == "133 GFLOP/s"
    assert scaled[columns["Backward achieves"]] == "123 GFLOP/s"
    assert "scaled" in scaled[-1] and "random weights" in scaled[-1]
    assert [own[columns[name]] for name in ("Forward", "Backward", "Update")] == ["1.50 s", "3.25 s", "0.750 s"]
    assert "scaled" not in own[-1]
    line = cases.line(ran.records[-1])
    assert "forward 1.50 s, backward 3.25 s" in line and "epoch" not in line
    details = ran.details()
    places = {heading: place for place, heading in enumerate(details.columns)}
    shown = [[one.cells[places[name]] for name in ("Forward", "Backward", "Update")] for one in details.rows]
    assert shown == [[""] * 3, [""] * 3, ["1.50 s", "3.25 s", "0.750 s"], ["1.50 s", "3.25 s", "0.750 s"]]
    published_rows = [one.cells for one in table.rows if one.kind == "published"]
    assert len(published_rows) == 6


def test_the_claims_name_the_notebook_s_settings(ran):
    """Each term about an Apple GPU finds one case of a machine that ran all there is; and no setting is misspelt."""
    record = ran.records[-1]
    settings = [row("gpt2-large", 16), row("gpt2-large", 16, True), row("gpt2-medium", 4, True), row("gpt2-xl", 16)]
    records = [
        record.replace(
            **{"backend": "mps", "device": "gpu", "profile": "article", "config": config, "case": f"mps {config}"},
            scaled=config["model"] == "gpt2-medium",
        )
        for config in settings
    ]
    look, asked = claims.MeasuredLookup(records), []

    def spy(name, metric, role, config):
        asked.append((name, role, config, look(name, metric, role, config)))
        return asked[-1][-1]

    spy.devices = look.devices
    for claim in published.claims(article="001"):
        if claim.id in ("001-C15", "001-C16"):
            assert NAME in claim.experiments
            articles_claims.test(claim, spy)
    ours = [one for one in asked if one[0] == NAME]
    assert {role for _, role, _, _ in ours} == {"gpu", "rival"}
    for _, role, config, found in ours:
        assert set(config) - {"backend"} <= set(row()), config
        if role == "gpu":
            assert found.value in (1.5, 3.25), (config, found.reason)
