"""One training step, timed again in this process and in fresh ones: how much two runs of the same thing differ."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pomology.devices import find
from pomology.measure import calls
from pomology.models import isolated

LIMIT_S = 300  # of one process: the framework's start, the device's, and the step


def training_step(device: Any, batch_size: int = 256) -> Callable[[], None]:
    """A function that makes a training step of a perceptron on a device of PyTorch."""
    import torch

    torch.manual_seed(1)
    layers = (torch.nn.Linear(784, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1024), torch.nn.ReLU())
    model = torch.nn.Sequential(*layers, torch.nn.Linear(1024, 10)).to(device.handle)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    inputs, targets = torch.randn(batch_size, 784).to(device.handle), torch.randint(10, (batch_size,)).to(device.handle)

    def train() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()

    return train


def step_s(device: Any, budget_s: float) -> float:
    """Seconds of a training step, made anew; the median over the budget."""
    with device.context():
        return calls.measure(training_step(device), device.synchronize, budget_s=budget_s).seconds.value


def in_fresh_process(backend: str, budget_s: float) -> float:
    """The same in a process of its own. Raises PomologyError in one line if that fails."""
    what = f"a training step in a process of its own on {backend}"
    return isolated.call(what, f"{__name__}:_step_s", backend, budget_s, limit_s=LIMIT_S + 3 * budget_s)


def _step_s(backend: str, budget_s: float) -> float:
    find.prepare("torch")
    return step_s(*find.find(backend), budget_s)
