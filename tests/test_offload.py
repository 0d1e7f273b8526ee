"""Engines that keep the optimiser in the host's memory, against a training loop written out here, on the CPU."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from packaging.requirements import Requirement
from torch import nn
from torch.nn import functional as F

from pomology import errors
from pomology.devices import failures
from pomology.errors import PomologyError, TooBig
from pomology.experiment.case import Case
from pomology.experiment.experiment import Experiment
from pomology.workloads import offload
from pomology.workloads.cost import Workload, workload

STEPS, LR = 20, 0.01
TOLERANCE = 1e-5  # of losses from 5 down to 0.05

needs_deepspeed = pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None, reason=f"{offload.HOW_TO_GET_DEEPSPEED} (CI does)"
)
OFFLOADING = [pytest.param("zero", marks=needs_deepspeed), "fsdp"]


@pytest.fixture(autouse=True)
def nothing_stays():
    yield
    offload.close()
    assert not torch.distributed.is_initialized()
    said = ("LOCAL_RANK", "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "DS_ACCELERATOR", "GLOO_SOCKET_IFNAME")
    assert not set(said) & set(os.environ)


class Tiny(nn.Module):
    """Two blocks, and weights outside of them, of which one belongs to two modules."""

    def __init__(self):
        super().__init__()
        self.enter, self.leave = nn.Linear(6, 6), nn.Linear(6, 6, bias=False)
        self.leave.weight = self.enter.weight
        self.blocks = nn.ModuleList(nn.Linear(6, 6) for _ in range(2))

    def forward(self, x):
        x = self.enter(x)
        for block in self.blocks:
            x = x + torch.tanh(block(x))
        return self.leave(x).sum(1)


def tiny(frozen: bool = False) -> Tiny:
    """Always the same; `frozen` trains one block alone, as adapters are trained."""
    torch.manual_seed(0)
    model = Tiny()
    if frozen:
        model.requires_grad_(False)
        model.blocks[1].requires_grad_(True)
    return model


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(16, 6, generator=torch.Generator().manual_seed(1))
    return x, x.square().sum(1)


def plain_losses(model: nn.Module, clip: float = 0.0, weight_decay: float = 0.0) -> list[float]:
    """AdamW as in the paper (Loshchilov and Hutter 2017), weight by weight, with no optimiser of PyTorch."""
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    first, second = ([torch.zeros_like(weight) for weight in trained] for _ in range(2))
    (x, y), losses = batch(), []
    for step in range(1, STEPS + 1):
        loss = F.mse_loss(model(x), y)
        gradients = torch.autograd.grad(loss, trained)
        norm = torch.sqrt(sum(gradient.square().sum() for gradient in gradients))
        shrink = min(1.0, clip / float(norm)) if clip else 1.0
        with torch.no_grad():
            for weight, gradient, m, v in zip(trained, gradients, first, second, strict=True):
                gradient = gradient * shrink
                m.mul_(0.9).add_(0.1 * gradient)
                v.mul_(0.999).add_(0.001 * gradient.square())
                weight.mul_(1 - LR * weight_decay)
                weight.sub_(LR * (m / (1 - 0.9**step)) / ((v / (1 - 0.999**step)).sqrt() + 1e-8))
        losses.append(loss.item())
    return losses


def engine_losses(engine: offload.Engine) -> list[float]:
    (x, y), losses = batch(), []
    for _ in range(STEPS):
        engine.zero_grad()
        loss = F.mse_loss(engine.model(x), y)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


def difference(found: list[float], expected: list[float]) -> float:
    return max(abs(one - other) for one, other in zip(found, expected, strict=True))


# The same training ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, {"weight_decay": 0.1, "clip": 0.5}], ids=["plain", "decay and clipped"])
@pytest.mark.parametrize("frozen", [False, True], ids=["all", "adapters"])
@pytest.mark.parametrize("kind", ["none", *OFFLOADING])
def test_an_engine_has_the_losses_of_a_plain_loop(kind, frozen, settings):
    expected = plain_losses(tiny(frozen), **settings)
    assert expected[-1] < 0.9 * expected[0]
    model = tiny(frozen)
    still = model.blocks[0].weight.detach().clone()
    with offload.KINDS[kind](model, LR, **settings) as engine:
        losses = engine_losses(engine)
    assert difference(losses, expected) < TOLERANCE
    if frozen:
        kept = model.blocks[0].weight
        assert torch.equal(kept.to_local() if hasattr(kept, "to_local") else kept, still)


@pytest.mark.parametrize("kind", ["none", *OFFLOADING])
def test_a_model_of_transformers_trains_the_same_with_recomputing_and_with_lora(kind):
    from peft import LoraConfig, get_peft_model

    from pomology.workloads import pretrained

    tokens = torch.randint(1000, (2, 12), generator=torch.Generator().manual_seed(1))

    def build() -> nn.Module:
        torch.manual_seed(0)
        model, _ = pretrained.build("gpt2-smoke", "language-model", "random")
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        adapters = LoraConfig(target_modules=["c_attn"], r=4, lora_dropout=0.0, fan_in_fan_out=True)
        return get_peft_model(model, adapters)

    losses, model = {"plain": [], kind: []}, build()
    optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad], LR, weight_decay=0)
    with offload.KINDS[kind](build(), LR) as engine:
        for _ in range(5):
            loss = model(input_ids=tokens, labels=tokens).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses["plain"].append(loss.item())
            loss = engine.model(input_ids=tokens, labels=tokens).loss
            engine.backward(loss)
            engine.step()
            engine.zero_grad()
            losses[kind].append(loss.item())
    assert difference(losses[kind], losses["plain"]) < TOLERANCE
    assert losses[kind][-1] < losses[kind][0]


# What lies where ------------------------------------------------------------------------------------------------------


def held_storages() -> dict:
    """All tensors' storages by their address, gradients' too. Whoever keeps it keeps them: no address comes twice."""
    import gc

    gc.collect()
    found = {}
    for item in gc.get_objects():
        if not issubclass(type(item), torch.Tensor):
            continue
        local = item.to_local() if hasattr(item, "to_local") else item
        gradients = [item.grad] if item.is_leaf and item.grad is not None else []
        gradients = [one.to_local() if hasattr(one, "to_local") else one for one in gradients]
        for one in (local.detach(), *(gradient.detach() for gradient in gradients)):
            found[one.untyped_storage().data_ptr()] = one.untyped_storage()
    return found


def bytes_beyond(before: dict) -> int:
    """Other tests' tensors may end meanwhile, so that a difference of two sums tells less than what came since."""
    return sum(one.nbytes() for address, one in held_storages().items() if address not in before)


class Wide(nn.Module):
    """20 MB of weights: 8 in two blocks, 4 of them frozen, and 12 outside."""

    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(3000, 1000, bias=False)
        self.blocks = nn.ModuleList(nn.Linear(1000, 1000, bias=False) for _ in range(2))
        self.blocks[0].requires_grad_(False)

    def forward(self, x):
        return self.blocks[1](self.blocks[0](self.enter(x)))


def wide_step(model: nn.Module) -> None:
    model(torch.zeros(1, 3000)).sum().backward()


def test_what_lies_where_is_predicted():
    plain = workload(Wide, wide_step, optimizer_slots=2)
    none, zero, fsdp = (offload.workload(Wide, wide_step, kind) for kind in ("none", "zero", "fsdp"))
    assert none == plain and none.host_bytes == 0
    assert none.state_bytes == 20e6 + 3 * 16e6
    assert (zero.state_bytes, zero.host_bytes) == (20e6 + 12e6, 5 * 16e6 + 12e6)
    assert (fsdp.state_bytes, fsdp.host_bytes) == (12e6 + 4e6, 20e6 + 3 * 16e6)
    for one in (zero, fsdp):
        assert (one.parameters, one.flops, one.saved_bytes) == (plain.parameters, plain.flops, plain.saved_bytes)
    with pytest.raises(PomologyError, match="'disk'; it must be one of none, zero, fsdp"):
        offload.placed(plain, Wide, "disk")


@pytest.mark.parametrize("kind", ["none", *OFFLOADING])
def test_what_is_predicted_lies_there(kind):
    """On the CPU device and host are one, and all that is kept between the steps can be counted."""
    predicted = offload.workload(Wide, wide_step, kind)
    before = held_storages()
    with offload.KINDS[kind](Wide(), LR) as engine:
        for _ in range(2):
            loss = engine.model(torch.ones(1, 3000)).sum()
            engine.backward(loss)
            engine.step()
            engine.zero_grad()
        loss = engine.model(torch.ones(1, 3000)).sum()
        engine.backward(loss)  # gradients are there now
        held = bytes_beyond(before)
    # A block that FSDP takes to the device it takes from there, and so none is there between the steps.
    expected = predicted.host_bytes + (0 if kind == "fsdp" else predicted.state_bytes)
    assert expected <= held + 1000 < 1.15 * expected  # ZeRO still has the last gradients in its hands
    del engine, loss
    assert bytes_beyond(before) < 0.05 * expected  # of which the next case has nothing


def test_a_case_is_too_big_for_the_device_or_for_the_host(monkeypatch):
    needed = Workload(10, 100, state_bytes=4 * 10**9, saved_bytes=10**9, host_bytes=20 * 10**9)

    def requires(backend: str, free: float, available: float) -> None:
        monkeypatch.setattr("pomology.machine.snapshot.available_memory_bytes", lambda: int(available))
        fake = SimpleNamespace(unified_memory=backend != "cuda", free_memory=lambda: int(free))
        Case.require_memory(SimpleNamespace(backend=fake), needed)

    requires("cuda", 5.1e9, 20.1e9)
    requires("cpu", 25.1e9, 25.1e9)
    with pytest.raises(TooBig, match=r"^needs 5\.0 GB at the least .* 4\.9 GB are free$"):
        requires("cuda", 4.9e9, 64e9)
    with pytest.raises(TooBig, match=r"^needs 20\.0 GB of the host's memory .* 19\.9 GB are free$"):
        requires("cuda", 24e9, 19.9e9)
    with pytest.raises(TooBig, match=r"^needs 25\.0 GB of the host's memory"):
        requires("cpu", 24.9e9, 24.9e9)


@pytest.mark.parametrize(
    ("weights_on", "seen", "status"),
    [("cpu", ["meta"], "ok"), ("cpu", [], "fallback"), ("cpu", ["cpu"], "fallback"), (None, ["meta"], "fallback")],
)
def test_weights_that_lie_on_the_host_are_no_fallback_if_the_device_computes(weights_on, seen, status, tmp_path):
    """The meta device stands for a GPU here."""
    experiment = Experiment("whisper_finetuning", article="001", devices="cpu", profile="smoke", out=str(tmp_path))
    (backend,) = experiment.devices
    backend.backend = "meta"
    model = tiny()
    for case in experiment.cases([{"batch_size": 1}]):
        with case:
            case.watch_model(model, weights_on=weights_on)
            for where in seen:
                case.ran_on(torch.ones(1, device=where))
            case.metric("loss_last", 1.0, "")
    (record,) = experiment.records
    assert (record.status, record.device) == (status, "gpu" if status == "ok" else "cpu")


# The process group ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", OFFLOADING)
def test_an_engine_ends_the_one_before_it_and_leaves_nothing(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first = offload.KINDS[kind](tiny(), LR)
    with offload.fsdp(tiny(), LR) as second:
        assert first.model is None
        first.close()  # may be called twice, and ends no other
        assert difference(engine_losses(second), plain_losses(tiny())) < TOLERANCE
    assert not torch.distributed.is_initialized()
    with pytest.raises(KeyboardInterrupt), offload.KINDS[kind](tiny(), LR) as third:
        engine_losses(third)
        raise KeyboardInterrupt
    assert not torch.distributed.is_initialized()
    assert not list(tmp_path.iterdir())


def test_an_engine_that_cannot_be_made_leaves_no_process_group(monkeypatch):
    monkeypatch.setattr(torch.optim, "AdamW", lambda *_, **__: [][0])
    with pytest.raises(IndexError):
        offload.fsdp(tiny(), LR)
    assert not torch.distributed.is_initialized()


def test_a_process_group_of_somebody_else_is_left_alone():
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        with pytest.raises(PomologyError, match="a process group already"):
            offload.fsdp(tiny(), LR)
        assert torch.distributed.is_initialized()
    finally:
        torch.distributed.destroy_process_group()


PROGRAM = """
import atexit, torch
atexit.register(lambda: print("left:", torch.distributed.is_initialized()))  # the first one runs last
from pomology.workloads import offload
engine = offload.{kind}(torch.nn.Linear(3, 1), 0.1)
engine.backward(engine.model(torch.ones(2, 3)).sum())
engine.step()
"""


@pytest.mark.parametrize("kind", OFFLOADING)
def test_a_process_that_closes_nothing_ends_silently(kind):
    """A notebook's output is a page: no banner of a library belongs there."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(kind=kind)], capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "left: False\n", "")


@pytest.mark.parametrize("name", ["lo", "lo0"])
def test_gloo_listens_on_this_computer_alone(name, monkeypatch):
    """By itself it listens to the network, which macOS asks its user about; there the interface is called lo0."""
    given = {}

    def stop(*_, **options):
        given.update(options, name=os.environ.get("GLOO_SOCKET_IFNAME"))
        raise KeyboardInterrupt

    monkeypatch.setattr(offload.socket, "if_nameindex", lambda: [(2, "en0"), (1, name), (3, "utun0")])
    monkeypatch.setattr(torch.distributed, "init_process_group", stop)
    with pytest.raises(KeyboardInterrupt):
        offload.fsdp(tiny(), LR)
    assert given["name"] == name and (given["rank"], given["world_size"]) == (0, 1)
    assert isinstance(given["store"], torch.distributed.HashStore) and "init_method" not in given


# Where there is none --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [offload.zero, offload.fsdp], ids=["zero", "fsdp"])
def test_a_gpu_that_shares_its_memory_has_nowhere_to_offload_to(make, monkeypatch):
    monkeypatch.setattr(offload.importlib.util, "find_spec", lambda name: object())
    with pytest.raises(errors.Unsupported, match="share their memory") as caught:
        make(tiny(), LR, "mps")
    assert failures.failure(caught.value) == "unsupported"


@pytest.mark.parametrize(("platform", "said"), [("linux", r"pip install -e '\.\[offload\]'"), ("darwin", "macOS")])
def test_without_deepspeed_one_line_says_how_to_get_it(platform, said, monkeypatch):
    monkeypatch.setattr(offload.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(offload.sys, "platform", platform)
    with pytest.raises(errors.Unsupported, match=said) as caught:
        offload.zero(tiny(), LR)
    assert "\n" not in str(caught.value)


@needs_deepspeed
@pytest.mark.parametrize("killed", [False, True])
def test_where_deepspeed_s_adam_cannot_be_built_pytorch_s_takes_its_place_and_says_so(killed, tmp_path, monkeypatch):
    """PyTorch would wait for the lock of a build that was killed to go, for ever."""
    import deepspeed.ops.adam

    def broken(*_, **__):
        raise RuntimeError("Error building extension 'cpu_adam'\nmuch more")

    monkeypatch.setattr(deepspeed.ops.adam, "DeepSpeedCPUAdam", broken)
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    if killed:
        (tmp_path / "py311_cu128" / "cpu_adam").mkdir(parents=True)
        (tmp_path / "py311_cu128" / "cpu_adam" / "lock").touch()
    optimizer, words = offload._host_adamw(nn.Linear(2, 1), torch.device("cuda"), {"lr": 0.1})
    assert type(optimizer) is torch.optim.AdamW and "\n" not in words
    assert words.startswith("PyTorch's fused AdamW (DeepSpeed's CPUAdam cannot be built here: ")
    assert ("if none is running, remove that" if killed else "Error building") in words


def test_the_extra_is_one_pinned_release_and_asks_a_mac_for_nothing():
    """It has no wheel, and what a Mac installs has. uv pinned what it needs in turn, on Linux alone."""
    root = Path(__file__).resolve().parents[1]
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (line,) = map(Requirement, project["optional-dependencies"]["offload"])
    locked = {}
    for pin in map(Requirement, (root / "constraints.txt").read_text(encoding="utf-8").splitlines()):
        locked.setdefault(pin.name, []).append(pin)
    mac = {"sys_platform": "darwin", "platform_machine": "arm64", "python_full_version": "3.11.9"}
    linux = {"sys_platform": "linux", "platform_machine": "x86_64", "python_full_version": "3.11.9"}
    for name in ("deepspeed", "einops", "hjson", "msgpack", "ninja", "py-cpuinfo"):
        (pin,) = locked[name]
        assert pin.marker.evaluate(linux) and not pin.marker.evaluate(mac), name
    assert line.name == "deepspeed" and line.specifier == locked["deepspeed"][0].specifier
    assert line.marker.evaluate(linux) and not line.marker.evaluate(mac)
    assert "deepspeed" not in " ".join(project["dependencies"] + project["optional-dependencies"]["dev"])
    assert "--extra offload" in (root / "Makefile").read_text(encoding="utf-8")
    assert "-e '.[offload]'" in (root / ".ci" / "run").read_text(encoding="utf-8")
