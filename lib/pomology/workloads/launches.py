"""The first launch of a kernel, which a process has once: `python -m pomology.workloads.launches FRAMEWORK BACKEND`.

Each is made in a process of its own, after the device has done something else, and printed as one line of JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from pomology.devices import find

LIMIT_S = 300  # of one process: the framework's start, the device's, and a launch


def first(backend: Any, clock: Callable[[], float] = time.perf_counter) -> dict[str, float]:
    """The first launch of a kernel on a device, and the wait for it; and what compiling takes, where that is done here.

    `launch_cold_s`, and `compile_s` where the kernel is one's own. A framework that compiles in the first launch itself
    has the cold launch of a kernel that came compiled, and `compile_s` is the first launch of one's own, both in one.
    """

    def timed(function: Callable[[], Any]) -> float:
        start = clock()
        function()
        backend.synchronize()
        return clock() - start

    with backend.context():
        backend.precisions()  # starts the device: what that takes is no launch
        backend.synchronize()
        if backend.compiles_at_launch:
            launch, plain = backend.smallest_kernel(own=False)
            backend.synchronize()
            found = {"launch_cold_s": timed(launch)}
            own, words = backend.smallest_kernel()
            backend.synchronize()
            return found | ({"compile_s": timed(own)} if words != plain else {})
        made: list[tuple] = []
        compile_s = timed(lambda: made.append(backend.smallest_kernel()))
        ((launch, words),) = made
        compiled = words != backend.smallest_kernel(own=False)[1]
        backend.synchronize()
        return {"launch_cold_s": timed(launch)} | ({"compile_s": compile_s} if compiled else {})


def cold(framework: str, backend: str, count: int) -> list[dict[str, float]]:
    """What `first` gives in `count` fresh processes, one after another. Raises RuntimeError if one fails."""
    command = [sys.executable, "-m", "pomology.workloads.launches", framework, backend]
    found = []
    for _ in range(count):
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise RuntimeError(f"the process of a first launch on {backend} failed ({done.returncode}): {last}")
        found.append(json.loads(done.stdout.strip().splitlines()[-1]))
    return found


def main(framework: str, backend: str) -> None:
    find.prepare(framework)
    (found,) = [one for one in find.find("auto", framework) if one.backend == backend]
    print(json.dumps(first(found)))


if __name__ == "__main__":
    main(*sys.argv[1:])
