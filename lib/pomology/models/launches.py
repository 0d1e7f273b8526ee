"""The first launch of a kernel, which a process has once: each is made in a process of its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from pomology.devices import find
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
