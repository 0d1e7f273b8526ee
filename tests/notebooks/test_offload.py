"""A training that offloads against a loop written out here, on the CPU."""

import gc
import os

import fakes
import offload
import pytest
import torch
from torch import distributed, nn
from torch.nn import functional as F

from pomology.errors import Unsupported
from pomology.experiment.experiment import Experiment
from pomology.models.cost import Workload, workload

STEPS, LR = 20, 0.01
TOLERANCE = 1e-5  # of losses from 5 down to 0.05


@pytest.fixture(autouse=True)
def nothing_stays(monkeypatch):
    fakes.quiet_machine(monkeypatch)
    yield
    assert not distributed.is_initialized() and "GLOO_SOCKET_IFNAME" not in os.environ


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


@pytest.mark.parametrize(("frozen", "weight_decay", "clip"), [(False, 0.0, 0.0), (True, 0.1, 0.5)])
def test_a_training_that_offloads_has_the_losses_of_a_plain_loop(frozen, weight_decay, clip):
    expected = plain_losses(Tiny(frozen), clip, weight_decay)
    assert expected[-1] < 0.9 * expected[0]
    model = Tiny(frozen)
    x, y = batch()
    losses = []
    with offload.fsdp(model, "cpu"):
        trained = [weight for weight in model.parameters() if weight.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=LR, weight_decay=weight_decay, fused=True)
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            if clip:
                nn.utils.clip_grad_norm_(trained, clip)
            optimizer.step()
            losses.append(loss.item())
    assert losses == pytest.approx(expected, abs=TOLERANCE)


class Wide(nn.Module):
    """20 MB of weights: 8 in two blocks, 4 of them frozen, and 12 outside."""

    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(3000, 1000, bias=False)
        self.blocks = nn.ModuleList(nn.Linear(1000, 1000, bias=False) for _ in range(2))
        self.blocks[0].requires_grad_(False)

    def forward(self, x):
        return self.blocks[1](self.blocks[0](self.enter(x))).sum()


def wide_placed() -> Workload:
    plain = workload(Wide, lambda model: model(torch.zeros(1, 3000)).backward(), optimizer_slots=2)
    found = offload.placed(plain, Wide)
    assert (found.flops, found.saved_bytes) == (plain.flops, plain.saved_bytes)
    return found


def test_what_lies_where_is_predicted():
    found = wide_placed()
    assert (found.state_bytes, found.host_bytes) == ((12 + 4) * 1e6, (20 + 3 * 16) * 1e6)


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


def test_what_is_predicted_lies_there():
    """On the CPU device and host are one, and all that is kept can be counted."""
    expected = (
        wide_placed().host_bytes
    )  # a block that moves to the device is not there between steps
    before, ones, model = held_storages(), torch.ones(1, 3000), Wide()
    with offload.fsdp(model, "cpu"):
        trained = [weight for weight in model.parameters() if weight.requires_grad]
        optimizer = torch.optim.AdamW(trained, fused=True)
        for _ in range(3):
            optimizer.zero_grad()
            model(ones).backward()
            held = bytes_beyond(before)
            optimizer.step()
    assert expected <= held + 1000 < 1.15 * expected


@pytest.mark.parametrize(
    ("offloaded", "outputs_on", "status"),
    [(True, ["meta"], "ok"), (True, [], "fallback"), (False, ["meta"], "fallback")],
)
def test_weights_on_the_host_are_no_fallback_if_the_device_computes(
    offloaded, outputs_on, status, tmp_path
):
    """The meta device stands for a GPU here."""
    experiment = Experiment(
        "whisper_finetuning", article="001", devices="cpu", profile="smoke", out=str(tmp_path)
    )
    experiment.devices[0].backend = "meta"
    (case,) = experiment.cases([{"batch_size": 1}])
    with case:
        case.watch_model(Tiny(), offloaded=offloaded)
        for device in outputs_on:
            case.ran_on(torch.ones(1, device=device))
        case.metric("loss_last", 1.0, "")
    (record,) = experiment.records
    assert record.status == status


def test_nothing_is_left_when_it_is_interrupted_or_cannot_be_made(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(KeyboardInterrupt), offload.fsdp(Tiny(), "cpu"):
        raise KeyboardInterrupt
    assert not distributed.is_initialized() and not list(tmp_path.iterdir())
    with pytest.raises(AttributeError), offload.fsdp(None, "cpu"):
        pass


def test_gloo_listens_on_this_computer_alone(monkeypatch):
    """By itself it listens to the network, which macOS asks its user about."""
    seen = {}

    def stop(*_, **options):
        seen.update(options, name=os.environ.get("GLOO_SOCKET_IFNAME"))
        raise KeyboardInterrupt

    interfaces = [(2, "en0"), (1, "lo0"), (3, "utun0")]
    monkeypatch.setattr(offload.socket, "if_nameindex", lambda: interfaces)
    monkeypatch.setattr(distributed, "init_process_group", stop)
    with pytest.raises(KeyboardInterrupt), offload.fsdp(Tiny(), "cpu"):
        pass
    assert seen["name"] == "lo0" and isinstance(seen["store"], distributed.HashStore)


def test_a_mac_has_nothing_to_offload_to():
    with pytest.raises(Unsupported, match="share their memory"), offload.fsdp(Tiny(), "mps"):
        pass
