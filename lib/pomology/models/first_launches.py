"""First kernel launches in a process, and the compilation of a kernel on an Apple GPU."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable
from typing import Any

from pomology.devices import find
from pomology.models import isolated

LIMIT_S = 300  # for one process, which starts the framework and the device, and launches once


def addition(device: Any) -> Callable[[], Any]:
    """Return a function that adds 1 to one number on a device of PyTorch or MLX."""
    if device.framework == "mlx":
        import mlx.core as mx

        number = mx.ones(1, stream=device.handle)
        mx.eval(number)
        return device.dispatch(lambda: mx.add(number, 1, stream=device.handle))
    import torch

    number = torch.ones(1, device=device.handle)
    return lambda: number.add_(1)


def metal_kernel(device: Any) -> Callable[[], Any] | None:
    """Return a function that launches a Metal kernel of one thread; None without Metal.

    PyTorch compiles it in this call, MLX in its first launch.
    """
    if device.backend == "mps":
        import torch

        # PyTorch starts as many threads as the first tensor has elements.
        source = "kernel void pomology_one(device float* out) { out[0] = 1.0f; }"
        compiled = torch.mps.compile_shader(source)  # noqa: TID251 - only on MPS
        kernel = compiled.pomology_one
        number = torch.ones(1, device=device.handle)
        return lambda: kernel(number)
    if device.backend != "mlx-gpu" or sys.platform != "darwin":
        return None
    import mlx.core as mx

    number = mx.ones(1, stream=device.handle)
    mx.eval(number)
    names = {"input_names": ["number"], "output_names": ["out"]}
    kernel = mx.fast.metal_kernel(name="pomology_one", **names, source="out[0] = number[0];")
    launch = functools.partial(
        kernel,
        inputs=[number],
        grid=(1, 1, 1),
        threadgroup=(1, 1, 1),
        output_shapes=[(1,)],
        output_dtypes=[mx.float32],
        stream=device.handle,
    )
    return device.dispatch(launch)


def smallest_kernel(device: Any) -> tuple[Callable[[], Any], str]:
    """Return a function that launches the smallest kernel of a device, and its description."""
    kernel = metal_kernel(device)
    if kernel:
        return kernel, "a Metal kernel of one thread"
    return addition(device), "adding 1 to one number"


def first(device: Any, clock: Callable[[], float] = time.perf_counter) -> dict[str, float]:
    """Time the first launch of a kernel on a device, and its compilation on an Apple GPU.

    Returns `launch_cold_s`, and on an Apple GPU `compile_s`. MLX compiles a kernel in its first
    launch, so `compile_s` is that launch. `launch_cold_s` is then that of MLX's own addition, which
    is compiled already and launched before.
    """

    def timed(function: Callable[[], Any]) -> tuple[float, Any]:
        device.synchronize()
        start = clock()
        result = function()
        device.synchronize()
        return clock() - start, result

    with device.context():
        device.precisions()  # starts the device, whose time is not part of a launch
        if device.backend == "mps":
            compile_s, launch = timed(lambda: metal_kernel(device))
            launch_cold_s, _ = timed(launch)
            return {"launch_cold_s": launch_cold_s, "compile_s": compile_s}
        launch_cold_s, _ = timed(addition(device))
        kernel = metal_kernel(device)
        if kernel is None:
            return {"launch_cold_s": launch_cold_s}
        compile_s, _ = timed(kernel)
        return {"launch_cold_s": launch_cold_s, "compile_s": compile_s}


def cold(framework: str, backend: str, count: int) -> list[dict[str, float]]:
    """Return the results of `first` in `count` fresh processes, one after another."""
    what = f"the process of a first launch on {backend}"
    arguments = (what, f"{__name__}:_first", framework, backend)
    return [isolated.call(*arguments, limit_s=LIMIT_S) for _ in range(count)]


def _first(framework: str, backend: str) -> dict[str, float]:
    find.prepare(framework)
    (device,) = [device for device in find.find("auto", framework) if device.backend == backend]
    return first(device)
