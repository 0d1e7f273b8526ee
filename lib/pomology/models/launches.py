"""What happens once in a process: the first launch of a kernel, and how memory lies in a step."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from pomology.devices import find
from pomology.measure import calls
from pomology.models import isolated

LIMIT_S = 300  # of one process: the framework's start, the device's, and a launch


def first(backend: Any, clock: Callable[[], float] = time.perf_counter) -> dict[str, float]:
    """Time the first launch of a kernel on a device, and compiling where the kernel is the kit's.

    Returns `launch_cold_s`, and `compile_s` if the kit has a kernel. A framework that compiles in
    the first launch has the launch of a compiled kernel as the first, and as the second that of the
    kit's kernel with its compilation.
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
    own_kernel = {"compile_s": compile_s} if words != plain else {}
    return {"launch_cold_s": launch_cold_s} | own_kernel


def cold(framework: str, backend: str, count: int) -> list[dict[str, float]]:
    """Return what `first` gives in `count` fresh processes, one after another."""
    what = f"the process of a first launch on {backend}"
    arguments = (what, f"{__name__}:_first", framework, backend)
    return [isolated.call(*arguments, limit_s=LIMIT_S) for _ in range(count)]


def _first(framework: str, backend: str) -> dict[str, float]:
    find.prepare(framework)
    (device,) = [device for device in find.find("auto", framework) if device.backend == backend]
    return first(device)


def training_step(device: Any, batch_size: int = 256) -> Callable[[], None]:
    """Return a function that makes a training step of a perceptron on a device of PyTorch."""
    import torch
    from torch import nn

    torch.manual_seed(1)
    hidden = (nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU())
    model = nn.Sequential(*hidden, nn.Linear(1024, 10)).to(device.handle)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    inputs = torch.randn(batch_size, 784).to(device.handle)
    targets = torch.randint(10, (batch_size,)).to(device.handle)

    def train() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()

    return train


def step_s(device: Any, budget_s: float) -> float:
    """Return the median seconds of a training step of a new model."""
    with device.context():
        measured = calls.measure(training_step(device), device.synchronize, budget_s=budget_s)
    return measured.seconds.value


def step_in_fresh_process(backend: str, budget_s: float) -> float:
    """Return `step_s` of a process of its own."""
    what = f"a training step in a process of its own on {backend}"
    limit_s = LIMIT_S + 3 * budget_s
    return isolated.call(what, f"{__name__}:_step_s", backend, budget_s, limit_s=limit_s)


def _step_s(backend: str, budget_s: float) -> float:
    find.prepare("torch")
    return step_s(*find.find(backend), budget_s)
