"""What a process has once, timed in fresh ones: the first launch of a kernel, and a training step made anew."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from pomology.devices import find
from pomology.measure import calls
from pomology.models import isolated

LIMIT_S = 300  # of one process: the framework's start, the device's, and a launch


def first(backend: Any, clock: Callable[[], float] = time.perf_counter) -> dict[str, float]:
    """The first launch of a kernel on a device, and the wait for it; and what compiling takes, where that is done here.

    `launch_cold_s`, and `compile_s` where the kernel is one's own. A framework that compiles in the first launch itself
    has the cold launch of a kernel that came compiled, and `compile_s` is the first launch of one's own, both in one.
    """

    def timed(function: Callable[[], Any]) -> tuple[float, Any]:
        backend.synchronize()
        start = clock()
        result = function()
        backend.synchronize()
        return clock() - start, result

    with backend.context():
        backend.precisions()  # starts the device: what that takes is no launch
        if backend.compiles_at_launch:
            launch, plain = backend.smallest_kernel(own=False)
            launch_cold_s, _ = timed(launch)
            own, words = backend.smallest_kernel()
            compile_s, _ = timed(own)
        else:
            compile_s, (launch, words) = timed(backend.smallest_kernel)
            plain = backend.smallest_kernel(own=False)[1]
            launch_cold_s, _ = timed(launch)
    return {"launch_cold_s": launch_cold_s} | ({"compile_s": compile_s} if words != plain else {})


def cold(framework: str, backend: str, count: int) -> list[dict[str, float]]:
    """What `first` gives in `count` fresh processes, one after another. Raises PomologyError in one line if one fails.

    framework: `torch`, `tensorflow` or `mlx`. backend: as a device of the kit names it.
    """
    what = f"the process of a first launch on {backend}"
    return [isolated.call(what, f"{__name__}:_first", framework, backend, limit_s=LIMIT_S) for _ in range(count)]


def _first(framework: str, backend: str) -> dict[str, float]:
    find.prepare(framework)
    (device,) = [device for device in find.find("auto", framework) if device.backend == backend]
    return first(device)


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


def step_in_fresh_process(backend: str, budget_s: float) -> float:
    """The same in a process of its own. Raises PomologyError in one line if that fails."""
    what = f"a training step in a process of its own on {backend}"
    return isolated.call(what, f"{__name__}:_step_s", backend, budget_s, limit_s=LIMIT_S + 3 * budget_s)


def _step_s(backend: str, budget_s: float) -> float:
    find.prepare("torch")
    return step_s(*find.find(backend), budget_s)
