"""Engines that keep the optimiser in the host's memory, against a training loop written out here, on the CPU."""

from __future__ import annotations

import gc
import importlib.util
import os
import sys
from types import SimpleNamespace

import fakes
import pytest
import torch
from torch import distributed, nn
from torch.nn import functional as F

from pomology.devices import failures
from pomology.errors import PomologyError, TooBig, Unsupported
from pomology.experiment.case import Case
from pomology.experiment.experiment import Experiment
from pomology.models import offload
from pomology.models.cost import Workload, workload

STEPS, LR = 20, 0.01
TOLERANCE = 1e-5  # of losses from 5 down to 0.05

needs_deepspeed = pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None, reason=f"{offload.HOW_TO_GET_DEEPSPEED} (CI does)"
)
OFFLOADING = [pytest.param("zero", marks=needs_deepspeed), "fsdp"]


@pytest.fixture(autouse=True)
def nothing_stays(monkeypatch):
    fakes.quiet_machine(monkeypatch)
    yield
    offload.close()
    assert not distributed.is_initialized()
    said = ("LOCAL_RANK", "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "DS_ACCELERATOR", "GLOO_SOCKET_IFNAME")
    assert not set(said) & set(os.environ)


class Tiny(nn.Module):
    """Two blocks, and weights outside of them, of which one belongs to two modules. `frozen` trains one block alone."""

    def __init__(self, frozen: bool = False):
        super().__init__()
        torch.manual_seed(0)
        self.enter, self.leave = nn.Linear(6, 6), nn.Linear(6, 6, bias=False)
        self.leave.weight = self.enter.weight
        self.blocks = nn.ModuleList(nn.Linear(6, 6) for _ in range(2))
        if frozen:
            self.requires_grad_(False).blocks[1].requires_grad_(True)

    def forward(self, x):
        x = self.enter(x)
        for block in self.blocks:
            x = x + torch.tanh(block(x))
        return self.leave(x).sum(1)


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


def engine_losses(engine: offload.Engine, loss_of=None, steps: int = STEPS) -> list[float]:
    (x, y), losses = batch(), []
    for _ in range(steps):
        engine.zero_grad()
        loss = loss_of(engine.model) if loss_of else F.mse_loss(engine.model(x), y)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize(
    ("frozen", "settings"), [(False, {}), (True, {"weight_decay": 0.1, "clip": 0.5})], ids=["all", "adapters"]
)
@pytest.mark.parametrize("kind", ["none", *OFFLOADING])
def test_an_engine_has_the_losses_of_a_plain_loop(kind, frozen, settings):
    expected = plain_losses(Tiny(frozen), **settings)
    assert expected[-1] < 0.9 * expected[0]
    model = Tiny(frozen)
    still = model.blocks[0].weight.detach().clone()
    with offload.KINDS[kind](model, LR, **settings) as engine:
        assert engine_losses(engine) == pytest.approx(expected, abs=TOLERANCE)
    if frozen:
        kept = model.blocks[0].weight
        assert torch.equal(kept.to_local() if hasattr(kept, "to_local") else kept, still)


def held_storages() -> dict:
    """All tensors' storages by their address, gradients' too. Whoever keeps it keeps them: no address comes twice."""
    gc.collect()
    tensors = [item for item in gc.get_objects() if issubclass(type(item), torch.Tensor)]
    tensors += [item.grad for item in tensors if item.is_leaf and item.grad is not None]
    local = ((item.to_local() if hasattr(item, "to_local") else item).detach().untyped_storage() for item in tensors)
    return {one.data_ptr(): one for one in local}


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
    none, zero, fsdp = (offload.placed(plain, Wide, kind) for kind in ("none", "zero", "fsdp"))
    assert none == plain and (none.state_bytes, none.host_bytes) == (20e6 + 3 * 16e6, 0)
    assert (zero.state_bytes, zero.host_bytes) == (20e6 + 12e6, 5 * 16e6 + 12e6)
    assert (fsdp.state_bytes, fsdp.host_bytes) == (12e6 + 4e6, 20e6 + 3 * 16e6)
    for one in (zero, fsdp):
        assert (one.parameters, one.flops, one.saved_bytes) == (plain.parameters, plain.flops, plain.saved_bytes)
    with pytest.raises(PomologyError, match="'disk'; it must be one of none, zero, fsdp"):
        offload.placed(plain, Wide, "disk")


@pytest.mark.parametrize("kind", OFFLOADING)
def test_what_is_predicted_lies_there(kind):
    """On the CPU device and host are one, and all that is kept between the steps can be counted."""
    predicted = offload.placed(workload(Wide, wide_step, optimizer_slots=2), Wide, kind)
    before, ones = held_storages(), torch.ones(1, 3000)
    with offload.KINDS[kind](Wide(), LR) as engine:
        engine_losses(engine, lambda model: model(ones).sum(), 2)
        engine.zero_grad()
        loss = engine.model(ones).sum()
        engine.backward(loss)  # gradients are there now
        held = bytes_beyond(before)
    # A block that FSDP takes to the device it takes from there, and so none is there between the steps.
    expected = predicted.host_bytes + (0 if kind == "fsdp" else predicted.state_bytes)
    assert expected <= held + 1000 < 1.15 * expected  # ZeRO still has the last gradients in its hands
    del engine, loss
    assert bytes_beyond(before) < 0.05 * expected  # of which the next case has nothing


@pytest.mark.parametrize(("unified", "needed_gb"), [(False, "20.0"), (True, "25.0")])
def test_a_case_is_too_big_for_the_host(monkeypatch, unified, needed_gb):
    """On a processor the host's memory is the device's, too."""
    needed = Workload(10, 100, state_bytes=4 * 10**9, saved_bytes=10**9, host_bytes=20 * 10**9)
    fake = SimpleNamespace(backend=SimpleNamespace(unified_memory=unified, free_memory=lambda: 10**11))
    monkeypatch.setattr("pomology.machine.snapshot.available_memory_bytes", lambda: int(25.1e9 if unified else 20.1e9))
    Case.require_memory(fake, needed)
    monkeypatch.setattr("pomology.machine.snapshot.available_memory_bytes", lambda: int(19.9e9))
    with pytest.raises(TooBig, match=rf"^needs {needed_gb} GB of the host's memory .* 19\.9 GB are free$"):
        Case.require_memory(fake, needed)


@pytest.mark.parametrize(
    ("weights_on", "seen", "status"),
    [("cpu", ["meta"], "ok"), ("cpu", [], "fallback"), (None, ["meta"], "fallback")],
)
def test_weights_that_lie_on_the_host_are_no_fallback_if_the_device_computes(weights_on, seen, status, tmp_path):
    """The meta device stands for a GPU here."""
    experiment = Experiment("whisper_finetuning", article="001", devices="cpu", profile="smoke", out=str(tmp_path))
    experiment.devices[0].backend = "meta"
    (case,) = experiment.cases([{"batch_size": 1}])
    with case:
        case.watch_model(Tiny(), weights_on=weights_on)
        for where in seen:
            case.ran_on(torch.ones(1, device=where))
        case.metric("loss_last", 1.0, "")
    (record,) = experiment.records
    assert (record.status, record.device) == (status, "gpu" if status == "ok" else "cpu")


@pytest.mark.parametrize("kind", OFFLOADING)
def test_an_engine_ends_the_one_before_it_and_leaves_nothing(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first = offload.KINDS[kind](Tiny(), LR)
    with offload.fsdp(Tiny(), LR) as second:
        assert first.model is None
        first.close()  # may be called twice, and ends no other
        assert engine_losses(second) == pytest.approx(plain_losses(Tiny()), abs=TOLERANCE)
    assert not distributed.is_initialized()
    with pytest.raises(KeyboardInterrupt), offload.KINDS[kind](Tiny(), LR) as third:
        engine_losses(third)
        raise KeyboardInterrupt
    assert not distributed.is_initialized() and not list(tmp_path.iterdir())
    monkeypatch.setattr(torch.optim, "AdamW", lambda *_, **__: [][0])
    with pytest.raises(IndexError):  # one that cannot be made
        offload.fsdp(Tiny(), LR)
    assert not distributed.is_initialized()


def test_a_process_group_of_somebody_else_is_left_alone():
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        with pytest.raises(PomologyError, match="a process group already"):
            offload.fsdp(Tiny(), LR)
        assert distributed.is_initialized()
    finally:
        distributed.destroy_process_group()


def test_gloo_listens_on_this_computer_alone(monkeypatch):
    """By itself it listens to the network, which macOS asks its user about."""
    given = {}

    def stop(*_, **options):
        given.update(options, name=os.environ.get("GLOO_SOCKET_IFNAME"))
        raise KeyboardInterrupt

    monkeypatch.setattr(offload.socket, "if_nameindex", lambda: [(2, "en0"), (1, "lo0"), (3, "utun0")])
    monkeypatch.setattr(distributed, "init_process_group", stop)
    with pytest.raises(KeyboardInterrupt):
        offload.fsdp(Tiny(), LR)
    assert given["name"] == "lo0" and (given["rank"], given["world_size"]) == (0, 1)
    assert isinstance(given["store"], distributed.HashStore) and "init_method" not in given


@pytest.mark.parametrize(
    ("make", "device", "platform", "words"),
    [
        (offload.zero, "mps", None, "share their memory"),
        (offload.fsdp, "mps", None, "share their memory"),
        (offload.zero, "cpu", "linux", "make env EXTRAS=offload"),
        (offload.zero, "cpu", "darwin", "macOS"),
    ],
)
def test_where_there_is_no_engine_one_line_says_why(make, device, platform, words, monkeypatch):
    monkeypatch.setattr(offload.importlib.util, "find_spec", lambda name: None if platform else object())
    monkeypatch.setattr(offload.sys, "platform", platform or sys.platform)
    with pytest.raises(Unsupported, match=words) as caught:
        make(Tiny(), LR, device)
    assert failures.failure(caught.value) == "unsupported" and "\n" not in str(caught.value)


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
