"""A training that offloads against the same one that does not, on the CPU."""

import copy
import os

import pytest
import torch
from torch import distributed, nn
from torch.nn import functional as F

from pomology.experiment.experiment import Experiment
from pomology.models import offload
from pomology.models.cost import workload
from pomology.models.workload import Workload


@pytest.fixture(autouse=True)
def nothing_stays(quiet_machine):
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


def losses_of(model, clip, **options):
    """Train for 20 steps on one batch."""
    x = torch.randn(16, 6, generator=torch.Generator().manual_seed(1))
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.01, **options)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), x.square().sum(1))
        loss.backward()
        nn.utils.clip_grad_norm_(trained, clip)
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize(("frozen", "weight_decay", "clip"), [(False, 0.0, 1e9), (True, 0.1, 0.5)])
def test_a_training_that_offloads_has_the_losses_of_a_plain_loop(frozen, weight_decay, clip):
    model = Tiny(frozen)
    expected = losses_of(copy.deepcopy(model), clip, weight_decay=weight_decay)
    assert expected[-1] < 0.9 * expected[0]
    with offload.fsdp(model, "cpu"):
        losses = losses_of(model, clip, weight_decay=weight_decay, fused=True)
    assert losses == pytest.approx(expected, abs=1e-5)  # of losses from 5 down to 0.05


class Wide(nn.Module):
    """20 MB of weights: 8 in two blocks, 4 of them frozen, and 12 outside."""

    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(3000, 1000, bias=False)
        self.blocks = nn.ModuleList(nn.Linear(1000, 1000, bias=False) for _ in range(2))
        self.blocks[0].requires_grad_(False)

    def forward(self, x):
        return self.blocks[1](self.blocks[0](self.enter(x))).sum()


def test_what_lies_where_is_predicted():
    plain = workload(Wide, lambda model: model(torch.zeros(1, 3000)).backward(), optimizer_slots=2)
    found = offload.placed(plain, Wide)
    assert (found.flops, found.saved_bytes) == (plain.flops, plain.saved_bytes)
    assert (found.state_bytes, found.host_bytes) == ((12 + 4) * 1e6, (20 + 3 * 16) * 1e6)


def test_a_case_trains_a_workload_with_offload(tmp_path):
    def step(model, optimizer, inputs):
        loss = F.mse_loss(model(inputs), inputs.square().sum(1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    declared = Workload(
        build=Tiny,
        batch=lambda count: (torch.randn(count, 6),),
        optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=0.01, fused=True),
        step=step,
        parameters=3 * 42,
        optimizer_class="AdamW",
        slots=2,
    )
    settings = {"article": "001", "devices": "cpu", "profile": "smoke", "out": str(tmp_path)}
    experiment = Experiment("whisper_finetuning", **settings)
    (case,) = experiment.cases([{"batch_size": 16}])
    with case:
        model, optimizer = case.prepare(declared, put=offload.fsdp)
        (inputs,) = declared.batch(16)
        for _ in case.steps(range(40), ready=False):
            loss = step(model, optimizer, inputs)
            case.ran_on(loss)
            case.loss(loss.item())
        assert distributed.is_initialized()
    (record,) = experiment.records
    assert record.status == "ok" and "loss_last" in record.metrics, record.reason


@pytest.mark.parametrize(
    ("offloaded", "outputs_on", "status"),
    [(True, ["meta"], "ok"), (True, [], "fallback"), (False, ["meta"], "fallback")],
)
def test_weights_on_the_host_are_no_fallback_if_the_device_computes(
    offloaded, outputs_on, status, tmp_path
):
    """The meta device stands for a GPU here."""
    settings = {"article": "001", "devices": "cpu", "profile": "smoke", "out": str(tmp_path)}
    experiment = Experiment("whisper_finetuning", **settings)
    experiment.devices[0].backend = "meta"
    (case,) = experiment.cases([{"batch_size": 1}])
    with case:
        case.watch_model(Tiny(), offloaded=offloaded)
        for device in outputs_on:
            case.ran_on(torch.ones(1, device=device))
        case.metric("loss_last", 1.0, "")
    (record,) = experiment.records
    assert record.status == status


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
