"""Engines that offload against a training loop written out here, on the CPU."""

import gc
import importlib.util
import os
from types import SimpleNamespace

import fakes
import pytest
import torch
from torch import distributed, nn
from torch.nn import functional as F

from pomology.errors import PomologyError, TooBig, Unsupported
from pomology.experiment.case import Case
from pomology.experiment.experiment import Experiment
from pomology.models import offload
from pomology.models.cost import Workload, workload

STEPS, LR = 20, 0.01
TOLERANCE = 1e-5  # of losses from 5 down to 0.05
VARIABLES = {
    "LOCAL_RANK",
    "RANK",
    "WORLD_SIZE",
    "MASTER_ADDR",
    "DS_ACCELERATOR",
    "GLOO_SOCKET_IFNAME",
}

needs_deepspeed = pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None, reason=offload.HOW_TO_GET_DEEPSPEED
)
OFFLOADING = [pytest.param("zero", marks=needs_deepspeed), "fsdp"]


@pytest.fixture(autouse=True)
def nothing_stays(monkeypatch):
    fakes.quiet_machine(monkeypatch)
    yield
    assert not distributed.is_initialized() and not VARIABLES & set(os.environ)


class Tiny(nn.Module):
    """Two blocks, and a weight of two modules outside them. `frozen` trains one block alone."""

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
    """AdamW as in the paper (Loshchilov and Hutter 2017), with no optimizer of PyTorch."""
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    first, second = ([torch.zeros_like(weight) for weight in trained] for _ in range(2))
    x, y = batch()
    losses = []
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
                root = (v / (1 - 0.999**step)).sqrt() + 1e-8
                weight.sub_(LR * (m / (1 - 0.9**step)) / root)
        losses.append(loss.item())
    return losses


def engine_losses(engine: offload.Engine) -> list[float]:
    x, y = batch()
    losses = []
    for _ in range(STEPS):
        engine.zero_grad()
        loss = F.mse_loss(engine.model(x), y)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize(
    ("frozen", "settings"), [(False, {}), (True, {"weight_decay": 0.1, "clip": 0.5})]
)
@pytest.mark.parametrize("kind", ["none", *OFFLOADING])
def test_an_engine_has_the_losses_of_a_plain_loop(kind, frozen, settings):
    expected = plain_losses(Tiny(frozen), **settings)
    assert expected[-1] < 0.9 * expected[0]
    with offload.KINDS[kind](Tiny(frozen), LR, "cpu", **settings) as engine:
        assert engine_losses(engine) == pytest.approx(expected, abs=TOLERANCE)


class Wide(nn.Module):
    """20 MB of weights: 8 in two blocks, 4 of them frozen, and 12 outside."""

    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(3000, 1000, bias=False)
        self.blocks = nn.ModuleList(nn.Linear(1000, 1000, bias=False) for _ in range(2))
        self.blocks[0].requires_grad_(False)

    def forward(self, x):
        return self.blocks[1](self.blocks[0](self.enter(x))).sum()


def wide_placed(kind: str) -> Workload:
    plain = workload(Wide, lambda model: model(torch.zeros(1, 3000)).backward(), optimizer_slots=2)
    return offload.placed(plain, Wide, kind)


@pytest.mark.parametrize(
    ("kind", "device_mb", "host_mb"),
    [
        ("none", 20 + 3 * 16, 0),
        ("zero", 20 + 12, 5 * 16 + 12),
        ("fsdp", 12 + 4, 20 + 3 * 16),
    ],
)
def test_what_lies_where_is_predicted(kind, device_mb, host_mb):
    found, plain = wide_placed(kind), wide_placed("none")
    assert (found.state_bytes, found.host_bytes) == (device_mb * 1e6, host_mb * 1e6)
    assert (found.flops, found.saved_bytes) == (plain.flops, plain.saved_bytes)


def test_an_unknown_kind_is_refused():
    with pytest.raises(PomologyError, match="none, zero, fsdp"):
        wide_placed("disk")


def held_storages() -> dict:
    """The storages of all tensors and gradients by address; they live as long as the dict."""
    gc.collect()
    tensors = [item for item in gc.get_objects() if issubclass(type(item), torch.Tensor)]
    tensors += [item.grad for item in tensors if item.is_leaf and item.grad is not None]
    local = [item.to_local() if hasattr(item, "to_local") else item for item in tensors]
    storages = [item.detach().untyped_storage() for item in local]
    return {storage.data_ptr(): storage for storage in storages}


def bytes_beyond(before: dict) -> int:
    return sum(one.nbytes() for address, one in held_storages().items() if address not in before)


@pytest.mark.parametrize("kind", OFFLOADING)
def test_what_is_predicted_lies_there(kind):
    """On the CPU device and host are one, and all that is kept can be counted."""
    predicted = wide_placed(kind)
    before, ones = held_storages(), torch.ones(1, 3000)
    with offload.KINDS[kind](Wide(), LR, "cpu") as engine:
        for _ in range(3):
            engine.zero_grad()
            loss = engine.model(ones)
            engine.backward(loss)
            held = bytes_beyond(before)
            engine.step()
    # A block that FSDP moves to the device is not there between the steps.
    expected = predicted.host_bytes + (0 if kind == "fsdp" else predicted.state_bytes)
    assert expected <= held + 1000 < 1.15 * expected  # ZeRO still has the last gradients
    del engine, loss
    assert bytes_beyond(before) < 0.05 * expected


@pytest.mark.parametrize(("unified", "needed_gb"), [(False, "20.0"), (True, "25.0")])
def test_a_case_is_too_big_for_the_host(monkeypatch, unified, needed_gb):
    """On a processor the host's memory is the device's, too."""
    free = "pomology.machine.snapshot.available_memory_bytes"
    needed = Workload(10, 100, state_bytes=4 * 10**9, saved_bytes=10**9, host_bytes=20 * 10**9)
    backend = SimpleNamespace(unified_memory=unified, free_memory=lambda: 10**11)
    monkeypatch.setattr(free, lambda: int(25.1e9 if unified else 20.1e9))
    Case.require_memory(SimpleNamespace(backend=backend), needed)
    monkeypatch.setattr(free, lambda: int(19.9e9))
    with pytest.raises(TooBig, match=rf"^needs {needed_gb} GB of the host's memory"):
        Case.require_memory(SimpleNamespace(backend=backend), needed)


@pytest.mark.parametrize(
    ("weights_on", "outputs_on", "status"),
    [("cpu", ["meta"], "ok"), ("cpu", [], "fallback"), (None, ["meta"], "fallback")],
)
def test_weights_on_the_host_are_no_fallback_if_the_device_computes(
    weights_on, outputs_on, status, tmp_path
):
    """The meta device stands for a GPU here."""
    experiment = Experiment(
        "whisper_finetuning", article="001", devices="cpu", profile="smoke", out=str(tmp_path)
    )
    experiment.devices[0].backend = "meta"
    (case,) = experiment.cases([{"batch_size": 1}])
    with case:
        case.watch_model(Tiny(), weights_on=weights_on)
        for device in outputs_on:
            case.ran_on(torch.ones(1, device=device))
        case.metric("loss_last", 1.0, "")
    (record,) = experiment.records
    assert (record.status, record.device) == (status, "gpu" if status == "ok" else "cpu")


@pytest.mark.parametrize("kind", OFFLOADING)
def test_an_engine_leaves_nothing_when_it_is_interrupted_or_cannot_be_made(
    kind, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(KeyboardInterrupt), offload.KINDS[kind](Tiny(), LR, "cpu"):
        raise KeyboardInterrupt
    assert not distributed.is_initialized() and not list(tmp_path.iterdir())
    with pytest.raises(TypeError):
        offload.KINDS[kind](Tiny(), LR, "cpu", no_setting=1)
    assert not distributed.is_initialized()


def test_gloo_listens_on_this_computer_alone(monkeypatch):
    """By itself it listens to the network, which macOS asks its user about."""
    seen = {}

    def stop(*_, **options):
        seen.update(options, name=os.environ.get("GLOO_SOCKET_IFNAME"))
        raise KeyboardInterrupt

    interfaces = [(2, "en0"), (1, "lo0"), (3, "utun0")]
    monkeypatch.setattr(offload.socket, "if_nameindex", lambda: interfaces)
    monkeypatch.setattr(distributed, "init_process_group", stop)
    with pytest.raises(KeyboardInterrupt):
        offload.fsdp(Tiny(), LR, "cpu")
    assert seen["name"] == "lo0" and isinstance(seen["store"], distributed.HashStore)


@pytest.mark.parametrize(
    ("make", "device", "platform", "words"),
    [
        (offload.fsdp, "mps", None, "share their memory"),
        (offload.zero, "cpu", "linux", "make env EXTRAS=offload"),
        (offload.zero, "cpu", "darwin", "macOS"),
    ],
)
def test_where_there_is_no_engine_one_line_says_why(make, device, platform, words, monkeypatch):
    monkeypatch.setattr(offload.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(offload.sys, "platform", platform)
    with pytest.raises(Unsupported, match=words):
        make(Tiny(), LR, device)


@needs_deepspeed
def test_without_a_compiler_the_adamw_of_pytorch_takes_over_and_says_so(monkeypatch):
    import deepspeed.ops.adam

    def broken(*_, **__):
        raise RuntimeError("Error building extension 'cpu_adam'\nmuch more")

    monkeypatch.setattr(deepspeed.ops.adam, "DeepSpeedCPUAdam", broken)
    cuda = torch.device("cuda")
    optimizer, words = offload._host_adamw(nn.Linear(2, 1), cuda, {"lr": 0.1})
    assert type(optimizer) is torch.optim.AdamW and "\n" not in words and "Error building" in words
