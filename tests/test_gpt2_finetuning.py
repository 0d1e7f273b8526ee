"""The notebook that fine-tunes GPT-2: what a step costs by hand, what LoRA trains and what it saves, which case runs on
which machine, and whether the step is the one that it says."""

from __future__ import annotations

import contextlib
import math

import pytest
import test_notebooks
import test_sizes
import torch
import yaml

from pomology import errors
from pomology.data import text
from pomology.devices import torch as devices_torch
from pomology.experiment import case as experiment_case
from pomology.experiment import experiment
from pomology.models import pretrained
from pomology.report import declaration

pytestmark = pytest.mark.usefixtures("quiet_machine")

NAME, TOKENS = "gpt2_finetuning", 16
GIB = 2**30


@pytest.fixture
def scope() -> dict:
    """The notebook's functions, with the article's parameters, and a few short reviews."""
    found = test_notebooks.definitions(NAME)
    found["corpus"] = text.imdb("stand-in", size=64, length=TOKENS)
    found["limit_s"] = 600.0
    return found


def enter(scope: dict, folder) -> experiment.Experiment:
    """An experiment on the CPU in the notebook's place, with short texts."""
    about = {"article": "001", "devices": "cpu", "profile": "quick", "budget_s": 0.1, "expects_learning": False}
    made = experiment.Experiment(NAME, out=str(folder), **about)
    made.declaration = declaration.of(NAME)  # as the notebook declares it
    made.dataset(scope["corpus"])
    scope["experiment"] = made
    scope["text_tokens"] = TOKENS
    return made


def row(model="gpt2-smoke", batch_size=4, lora=False, offload="none", task="classification") -> dict:
    return {"model": model, "batch_size": batch_size, "lora": lora, "offload": offload, "task": task}


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
    ("head", "lora", "forward", "backward"),
    [(2, False, 2.947, 5.895), (2, True, 2.953, 2.988), (50_257, False, 3.211, 6.422)],
)
def test_operations_of_a_step_are_those_counted_by_hand(scope, head, lora, forward, backward):
    counted = scope["count"]("gpt2-large", 16, lora, "classification" if head == 2 else "language-model", "mps")
    ours = counted.forward_flops, counted.flops - counted.forward_flops
    assert [flops / 1e12 for flops in ours] == pytest.approx([forward, backward], abs=6e-4)
    assert ours == pytest.approx(by_hand(1280, 36, head, lora), rel=1e-9)


def test_memory_with_lora_and_with_offload(scope):
    plain, lora = (scope["count"]("gpt2-large", 16, lora, "classification", "mps") for lora in (False, True))
    everything, trained = 774_030_080 + 2560, 1_474_560 + 2560
    assert plain.state_bytes == 16 * everything
    assert lora.state_bytes == 4 * (everything + trained) + 12 * trained  # peft keeps the score that it replaces
    assert plain.saved_bytes / GIB == pytest.approx(12.69, abs=0.01)
    assert 0.8 < lora.saved_bytes / plain.saved_bytes < 0.9
    # CUDA's dropout keeps a byte where others keep a float: 73 of them, and 36 more of the adapters' inputs.
    fused, written = (scope["count"]("gpt2-large", 16, True, "classification", backend) for backend in ("cuda", "cpu"))
    assert fused.saved_bytes / GIB == pytest.approx(9.85 - 109 * 16 * 128 * 1280 * 3 / GIB, rel=0.01)
    assert written.saved_bytes == lora.saved_bytes
    zero, plain = (scope["count"]("gpt2", 1, False, "classification", "cuda", kind) for kind in ("zero", "none"))
    assert plain.state_bytes / 4 <= zero.state_bytes < plain.state_bytes / 3 and zero.saved_bytes == plain.saved_bytes
    assert zero.host_bytes >= 3 * plain.state_bytes / 4 and not plain.host_bytes


mac = test_sizes.mac


def test_16_gb_refuse_gpt2_large_without_lora_and_take_it_with(scope, mac, tmp_path, monkeypatch):
    """Told from shapes: no weight is drawn."""
    made, build = enter(scope, tmp_path), pretrained.build
    made.devices = [mac(16)]
    monkeypatch.setattr(devices_torch.TorchDevice, "name", "Apple M2")
    for method in ("synchronize", "reset_peak_memory"):
        monkeypatch.setattr(devices_torch.TorchDevice, method, lambda self: None)

    def only_on_paper(*arguments):
        assert torch.get_default_device().type == "meta", "weights were made before it was asked whether they fit"
        return build(*arguments)

    def stop(case, limit_s):
        assert case._workload.bytes <= case.backend.free_memory()
        raise InterruptedError("in place of training")

    monkeypatch.setattr(pretrained, "build", only_on_paper)
    monkeypatch.setattr(experiment_case.Case, "require_time", stop)
    given = yaml.safe_load((test_notebooks.ROOT / "params" / "quick" / f"{NAME}.yaml").read_text())
    scope |= {"batch_sizes": given["batch_sizes"], "text_tokens": 128}
    took = []
    for case in scope["planned"]():
        with case:
            with contextlib.suppress(InterruptedError):
                scope["train"](case)
            case.metric("step_s", 1.0, "s")
            took.append((case["model"], case["batch_size"], case["lora"]))
        record = made.records[-1]
        assert record.status == "ok" or (record.status == "too-big" and record.reason.endswith(" GB are free"))
    assert took == [("gpt2-medium", 4, False), ("gpt2-large", 4, True), ("gpt2-medium", 4, True)]
    assert (case["model"], case["batch_size"], case["lora"]) == ("gpt2-xl", 16, False)


def test_lora_also_runs_where_training_without_it_ran(scope, tmp_path):
    enter(scope, tmp_path)
    scope |= {"siblings": ["gpt2-medium", "gpt2"], "batch_sizes": [2, 1], "larger": "gpt2-xl", "offload": "zero"}
    seen = []
    for case in scope["planned"]():
        seen.append((case["model"], case["batch_size"], case["lora"], case["offload"]))
        with case:
            if case["model"] == "gpt2-xl" or (case["model"] == "gpt2-medium" and not case["lora"]):
                raise errors.TooBig("in this test")
            case.metric("step_s", 1.0, "s")
    plain = [(*size, False, "none") for size in (("gpt2-medium", 2), ("gpt2-medium", 1), ("gpt2", 2))]
    lora = [("gpt2-medium", 2, True, "none"), ("gpt2", 2, True, "none")]
    assert seen == [*plain, *lora, ("gpt2-xl", 2, False, "none"), ("gpt2-xl", 2, False, "zero")]


def test_offload_is_refused_where_there_is_one_memory(scope, tmp_path):
    made = enter(scope, tmp_path)
    (case,) = made.cases([row("gpt2-xl", offload="zero")])
    with case:
        scope["train"](case)
    assert made.records[0].status == "unsupported" and "memory of its own" in made.records[0].reason


class Case:
    """What the notebook's step asks of a case; `left` gets the name of each phase and what is true at its end."""

    def __init__(self, look=lambda: None, offload: str = "none"):
        self.device, self.look, self.offload = torch.device("cpu"), look, offload
        self.backend = devices_torch.TorchDevice("cpu")
        self.left, self.losses, self.phase_now = [], [], None

    def __getitem__(self, name):
        return getattr(self, name)

    def steps(self, batches, per_epoch):
        assert not per_epoch  # the article times passes
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


def batches(count: int, size: int = 4) -> list[dict]:
    return list(torch.utils.data.DataLoader(text.imdb("stand-in", length=TOKENS, size=count * size), size))


@pytest.mark.parametrize("lora", [False, True])
def test_a_step_has_its_parts_in_their_phases(scope, monkeypatch, lora):
    torch.manual_seed(0)
    network, _ = scope["build"]("gpt2-smoke", lora, "classification")
    weights, asked = scope["trained"](network), []

    class AdamW(torch.optim.AdamW):
        def __init__(self, parameters, **settings):
            super().__init__(parameters, **settings)
            assert {*map(id, self.param_groups[0]["params"])} == {*map(id, weights)}
            asked.append(settings)

        def step(self, *arguments):
            asked.append((case.phase_now, math.sqrt(sum(float(weight.grad.square().sum()) for weight in weights))))
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
    assert forward == (0, before) and backward == (len(weights), before)
    assert update[0] == 0 and update[1] != before
    assert asked[0] == {"lr": 5e-5, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0, "fused": False}
    assert [phase for phase, _ in asked[1:]] == ["update"] * 2
    assert [norm for _, norm in asked[1:]] == pytest.approx([1.0, 1.0], abs=1e-4), "clipped, and before the update"


def test_lora_changes_its_adapters_and_nothing_else(scope, tmp_path):
    made = enter(scope, tmp_path)
    scope["lr"] = 1e-3
    build, kept = scope["build"], []

    def keep(*arguments, **config):
        network, note = build(*arguments, **config)
        if torch.get_default_device().type != "meta":
            kept.append((network, {name: tensor.clone() for name, tensor in network.state_dict().items()}))
        return network, note

    scope["build"] = keep
    for case in made.cases([row(lora=True), row(lora=False)]):
        with case:
            scope["train"](case)
    record, other = made.records
    assert record.status == other.status == "ok", (record.reason, other.reason)
    for (network, before), count in zip(kept, (2 * 2 + 1, len(dict(kept[1][0].named_parameters()))), strict=True):
        changed = {name for name, tensor in network.state_dict().items() if not torch.equal(before[name], tensor)}
        trained = {name for name, weight in network.named_parameters() if weight.requires_grad}
        assert changed == trained and len(trained) == count
    counted = scope["count"]("gpt2-smoke", 4, True, "classification", "cpu")
    values = {name: metric.value for name, metric in record.metrics.items()}
    backward = counted.flops - counted.forward_flops
    for name, flops in (("forward", counted.forward_flops), ("backward", backward)):
        assert values[f"{name}_flops_per_s"] * values[f"{name}_s"] == pytest.approx(flops)
    assert values["step_s"] > sum(values[f"{name}_s"] for name in ("forward", "backward", "update"))


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


def test_with_offload_the_same_losses(scope):
    """FSDP2 on the CPU, which this PyTorch has; the other engine has tests of its own."""
    torch.manual_seed(0)
    scope["lr"] = 1e-3
    given, losses = batches(1, size=16) * 6, {}  # a few reviews by heart
    first, _ = scope["build"]("gpt2-smoke", False, "classification")
    for kind, train in {"none": "train_here", "fsdp": "train_offloaded"}.items():
        network, _ = scope["build"]("gpt2-smoke", False, "classification")
        network.load_state_dict(first.state_dict())
        for module in network.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        case = Case(offload=kind)
        assert "host" in (scope[train](case, network, given) or "host")
        assert [name for name, _ in case.left] == ["forward", "backward", "update"] * 6
        losses[kind] = case.losses
    assert losses["fsdp"] == pytest.approx(losses["none"], abs=1e-5) and losses["none"][-1] < losses["none"][0]
