"""Devices of MLX: the CPU and GPU of an Apple chip, or an NVIDIA GPU with MLX for CUDA.

MLX is lazy: `a @ b` only records an operation, for which `synchronize` does not wait. A timed
function must therefore pass through `dispatch`, and a timed training step must call `mx.eval`."""

import contextlib
import functools
import sys
from collections.abc import Callable
from typing import Any

from pomology.devices.base import Device
from pomology.errors import NoSuchDevice

GPU = "mlx-gpu"


def load() -> Any:
    """Return the module `mlx.core`, with true fp32. Raises NoSuchDevice if MLX does not load."""
    MLXDevice.prepare()
    try:
        import mlx.core
    except ImportError as error:
        needs = "it needs glibc 2.35 on Linux, and macOS 14 with a native arm64 Python on a Mac"
        raise NoSuchDevice(f"MLX cannot be loaded ({error}); {needs}") from None
    return mlx.core


class MLXDevice(Device):
    """Device of MLX, whose arrays belong to no device: `context` selects the one that computes."""

    framework = "mlx"
    title = "MLX"
    gpus = (GPU,)
    apple_gpu = GPU
    counts_on_cpu = True  # the counters cover the process, on every device
    _tf32 = "0"
    threads = None  # Accelerate decides on a Mac; other systems use one thread for a matmul

    def __init__(self, backend: str):
        self._mx = load()
        from mlx.utils import tree_flatten

        self._flat = tree_flatten
        kind = self._mx.cpu if backend == "cpu" else self._mx.gpu
        super().__init__(self._mx, backend, self._mx.Device(kind))

    @classmethod
    def prepare(cls, tf32: bool | None = None) -> None:
        """Set what MLX reads at its first matmul. Raises PomologyError if MLX is imported.

        tf32: keep MLX's default, which computes fp32 in TF32 on GPUs such as M5 and Ampere. Without
        it the last call's value holds, at first false: fp32 then means true fp32."""
        if tf32 is not None:
            cls._tf32 = str(int(tf32))
        cls._before_import("mlx.core", "MLX_ENABLE_TF32", cls._tf32)

    @functools.cached_property
    def tf32(self) -> bool:
        # A matmul in bf16 drops the bits of the probe, too, so TF32 has to be asked for.
        if self._tf32 == "0":
            return False
        with self.context():  # the 10-bit mantissa of TF32 drops 2^-20
            number = self._mx.ones((64, 64)) * (1 + 2.0**-20)
            return not (number @ self._mx.eye(64) == number).all().item()

    @property
    def tf32_products(self) -> bool:
        return self.tf32

    @classmethod
    def backends(cls) -> dict[str, str | None]:
        mx = load()
        reason = "this MLX is built for CPUs only; `make env EXTRAS=cuda` supports NVIDIA GPUs"
        if sys.platform == "darwin":
            reason = "MLX finds no Metal GPU (a virtual machine, or macOS older than 14)"
        return {"cpu": None, GPU: None if mx.is_available(mx.gpu) else reason}

    @property
    def name(self) -> str | None:
        if self.kind == "cpu":
            return super().name
        return self._mx.device_info(self.handle).get("device_name") or super().name

    def context(self, strict: bool = False) -> contextlib.AbstractContextManager:
        return self._mx.stream(self.handle)

    def synchronize(self) -> None:
        self._mx.synchronize(self.handle)

    def dispatch(self, function: Callable[[], Any]) -> Callable[[], Any]:
        """Return the function so that it launches its arrays; it raises ValueError without any."""

        def call() -> Any:
            result = function()
            if not any(isinstance(leaf, self._mx.array) for _, leaf in self._flat(result)):
                raise ValueError("the function returns no MLX array, so MLX would compute nothing")
            self._mx.async_eval(result)
            return result

        return call

    def _random(self, dtype: str, size: int) -> Any:
        numbers = self._mx.random.uniform(shape=(size, size)).astype(getattr(self._mx, dtype))
        self._mx.eval(numbers)
        return numbers

    def _move(self, item: Any) -> Any:
        return item if isinstance(item, self._mx.array) else self._mx.array(item)

    def device_of(self, item: Any) -> str:
        # An array does not record its device. An operator that a GPU lacks raises an error.
        if hasattr(item, "parameters") and not self._flat(item.parameters()):
            return self._backend_of(set(), item)
        return self.backend

    def count(self, model: Any) -> int:
        statistics = ("running_mean", "running_var")  # MLX lists them as parameters
        named = self._flat(model.parameters())
        return sum(weight.size for name, weight in named if not name.endswith(statistics))

    def _trained(self, model: Any) -> list[Any]:
        return [weight for _, weight in self._flat(model.trainable_parameters())]

    def free_memory(self) -> int:
        available = super().free_memory()
        if self.kind == "cpu":
            return available
        # The limit is of all of this process's arrays, so those of the pool count against it.
        limit = self.recommended_memory()
        return min(available, limit - self._memory()["reserved_bytes"]) if limit else available

    def recommended_memory(self) -> int | None:
        if self.kind == "cpu":
            return None
        limit = self._mx.device_info(self.handle).get("max_recommended_working_set_size")
        return int(limit) if limit else None  # only Metal has one

    def release(self) -> None:
        super().release()
        self._mx.clear_cache()

    def _reset_peak(self) -> None:
        self._mx.reset_peak_memory()

    def _memory(self) -> dict[str, int]:
        active = self._mx.get_active_memory()
        peak = self._mx.get_peak_memory()
        pool = active + self._mx.get_cache_memory()
        return {
            "allocated_bytes": active,
            "reserved_bytes": pool,
            "allocated_peak_bytes": peak,
            # MLX reports no peak of the pool, which rarely shrinks.
            "reserved_peak_bytes": max(peak, pool),
        }
