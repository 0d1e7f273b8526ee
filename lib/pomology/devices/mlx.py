"""The devices that MLX can train on here; the same methods as `device.Device` has for PyTorch.

MLX is lazy: `a @ b` writes down that a product is wanted, and nothing is computed before somebody asks for its numbers.
A fence alone waits for what was given to a device, and that is nothing. So what is timed goes through `eager`, which
hands every result over to be computed:

    product = backend.dispatch(lambda: a @ b)
    timing.measure(product, backend.synchronize)

A training step has to do so itself: `mx.eval(loss, model.parameters(), optimizer.state)` inside the timed loop.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from pomology.errors import PomologyError
from pomology.machine import snapshot

TF32 = "MLX_ENABLE_TF32"
GPU = "mlx-gpu"
# The smallest kernel there is: one thread writes one number.
KERNEL = "out[0] = one[0];"


def prepare() -> None:
    """Set what MLX reads when it first multiplies. Raises PomologyError if it may be too late for that."""
    if "mlx.core" in sys.modules:
        if os.environ.get(TF32) != "0":
            raise PomologyError(
                f"MLX was imported before {TF32}=0 was set, without which its fp32 is not fp32 on an M5 or an NVIDIA "
                "GPU: restart the kernel, and let device.prepare('mlx') come before any import of it"
            )
        return
    # fp32 means fp32: MLX would otherwise multiply in TF32 where the GPU can, as M5 and Ampere can, older ones not.
    os.environ[TF32] = "0"


def load() -> Any:
    """The module `mlx.core`, with true fp32. Raises PomologyError where MLX is not installed."""
    prepare()
    try:
        import mlx.core
    except ImportError as error:
        raise PomologyError(
            f"MLX cannot be loaded ({error}); on a Mac it needs macOS 14 and a native arm64 Python"
        ) from None
    return mlx.core


def backends() -> dict[str, str | None]:
    """Each backend of MLX, with None if it can train here and else the reason why not, in plain words."""
    mx = load()
    reasons: dict[str, str | None] = {"cpu": None}
    if mx.is_available(mx.gpu):
        reasons[GPU] = None
    elif sys.platform == "darwin":
        reasons[GPU] = "MLX finds no Metal GPU (a virtual machine, or macOS older than 14)"
    else:
        reasons[GPU] = "this MLX is built for processors only; Metal is on macOS only"
    return reasons


class MLXDevice:
    """One device as MLX sees it.

    `backend` is `cpu` or `mlx-gpu`; `kind` is `cpu` or `gpu`; `handle` is the device that MLX's functions take. Arrays
    belong to no device: the memory is one, and what computes is the default device, which `scope` sets.
    """

    framework = "mlx"
    compiles_at_launch = True  # a kernel of one's own, rather than when it is made

    def __init__(self, backend: str):
        self._mx = load()
        self.backend = backend
        self.kind = "cpu" if backend == "cpu" else "gpu"
        self.handle = self._mx.Device(self._mx.cpu if backend == "cpu" else self._mx.gpu)
        self.uncounted: str | None = None  # MLX counts everywhere

    def __repr__(self) -> str:
        return f"Device({self.framework}, {self.backend})"

    def _about(self) -> dict[str, Any]:
        return self._mx.device_info(self.handle)

    @property
    def name(self) -> str:
        """What people call it: the GPU's or the processor's name."""
        # On a Mac both have the chip's name.
        return (self._about().get("device_name") if self.kind == "gpu" else None) or snapshot.chip()

    @property
    def framework_version(self) -> str:
        return self._mx.__version__

    @property
    def threads(self) -> None:
        """MLX has no such setting: on a Mac Accelerate decides, elsewhere one thread multiplies."""
        return None

    def context(self) -> contextlib.AbstractContextManager:
        """Inside, everything is computed on this device."""
        return self._mx.stream(self.handle)

    def synchronize(self) -> None:
        """Wait until all work given to this device is done. What nobody asked to be computed was not given to it."""
        self._mx.synchronize(self.handle)

    def dispatch(self, function: Callable[[], Any]) -> Callable[[], Any]:
        """The same function, whose arrays are given to the device when it is called, and not when they are read.

        The call itself does not wait, as in PyTorch; `fence` does. Raises ValueError, when called, if the function
        returns no array: what it asked for would never be computed, and would take no time at all.
        """

        def call() -> Any:
            result = function()
            if not self._arrays(result):
                raise ValueError("returns no MLX array, so nothing of it would be computed: return what is timed")
            self._mx.async_eval(result)
            return result

        return call

    def product(self, precision: str, size: int) -> Callable[[], Any]:
        """A function that asks for the product of two `size` x `size` matrices of `fp32`, `fp16` or `bf16` numbers."""
        mx = self._mx
        kind = {"fp32": mx.float32, "fp16": mx.float16, "bf16": mx.bfloat16}[precision]
        # Given to this device as they are: a stream belongs to the operation, not to its numbers.
        a, b = (mx.random.uniform(shape=(size, size), stream=self.handle).astype(kind, self.handle) for _ in range(2))
        mx.eval(a, b)
        return lambda: mx.matmul(a, b, stream=self.handle)

    def smallest_kernel(self, own: bool = True) -> tuple[Callable[[], Any], str]:
        """A function that gives the device the smallest piece of work there is, and what that is, in words.

        With `own`, on Metal, a kernel of one thread, which MLX compiles in its first launch; else one of MLX's.
        """
        mx = self._mx
        number = mx.ones(1, stream=self.handle)
        mx.eval(number)
        if own and self.kind == "gpu" and mx.metal.is_available():
            kernel = mx.fast.metal_kernel(name="pomology_one", input_names=["one"], output_names=["out"], source=KERNEL)
            form = {"grid": (1, 1, 1), "threadgroup": (1, 1, 1), "output_shapes": [(1,)], "output_dtypes": [mx.float32]}
            launch = self.dispatch(lambda: kernel(inputs=[number], stream=self.handle, **form))
            return launch, "a Metal kernel of one thread"
        return self.dispatch(lambda: mx.add(number, 1, stream=self.handle)), "adding 1 to one number"

    def to_device(self, batch: Any) -> Any:
        """The same batch as MLX arrays: an array, a number, or tuples, lists and dicts of them.

        NumPy's float64 becomes float32, as everywhere in MLX.
        """
        if isinstance(batch, dict):
            return {key: self.to_device(value) for key, value in batch.items()}
        if isinstance(batch, (tuple, list)):
            return type(batch)(self.to_device(value) for value in batch)
        return batch if isinstance(batch, self._mx.array) else self._mx.array(batch)

    def device_of(self, item: Any) -> str:
        """This device. Arrays of MLX do not tell which one computed them, and none is ever swapped for another: an
        operator that a GPU lacks raises.

        Raises ValueError for a model without parameters.
        """
        if hasattr(item, "parameters") and not self._weights(item.parameters()):
            raise ValueError(f"{type(item).__name__} has no parameters that could tell its device")
        return self.backend

    def count(self, model: Any) -> int:
        """Parameters of a module, trained or not.

        The running statistics of a batch normalisation, which MLX keeps among them, are none, as in PyTorch.
        """
        from mlx.utils import tree_flatten

        named = tree_flatten(model.parameters())
        return sum(weight.size for name, weight in named if name.split(".")[-1] not in ("running_mean", "running_var"))

    def weight_sample(self, model: Any) -> list[float]:
        """A few of the weights that are trained, to see whether training changed them."""
        few = [weight.flatten()[:64] for weight in self._weights(model.trainable_parameters())[-4:]]
        return [value for weight in few for value in weight.astype(self._mx.float32).tolist()]

    def _weights(self, tree: Any) -> list[Any]:
        from mlx.utils import tree_flatten

        return [weight for _, weight in tree_flatten(tree)]

    def _arrays(self, result: Any) -> bool:
        """Whether there is an array in a result."""
        if isinstance(result, dict):
            result = list(result.values())
        if isinstance(result, (tuple, list)):
            return any(self._arrays(item) for item in result)
        return isinstance(result, self._mx.array)

    def precisions(self) -> dict[str, str | None]:
        """Which of fp32, fp16, bf16 and fp64 multiply matrices here: None for those that do, else why not."""
        mx = self._mx
        kinds = {"fp32": mx.float32, "fp16": mx.float16, "bf16": mx.bfloat16, "fp64": mx.float64}
        reasons: dict[str, str | None] = {}
        for name, kind in kinds.items():
            try:
                with self.context():
                    matrix = mx.ones((8, 8), dtype=kind)
                    reasons[name] = None if (matrix @ matrix)[0, 0].item() == 8 else "gives wrong products"
            except (RuntimeError, ValueError, TypeError) as error:
                reasons[name] = str(error).split("\n")[0]
        return reasons

    def reset_peak_memory(self) -> None:
        """Give back what is cached and begin a new peak."""
        self.release()
        self._mx.reset_peak_memory()

    def peak_memory(self) -> dict[str, int]:
        """Bytes of arrays at their most since the last reset, and of the allocator's pool (arrays and cache) now.

        `allocated_peak_bytes` and `reserved_peak_bytes`. The pool has no peak of its own; it hardly ever shrinks. Both
        are of the process, whichever device computed.
        """
        peak = self._mx.get_peak_memory()
        pool = self._mx.get_active_memory() + self._mx.get_cache_memory()
        return {"allocated_peak_bytes": peak, "reserved_peak_bytes": max(peak, pool)}

    def memory(self) -> dict[str, int]:
        """Bytes of arrays, and of the allocator's pool (arrays and cache), now: `allocated_bytes`, `reserved_bytes`."""
        active = self._mx.get_active_memory()
        return {"allocated_bytes": active, "reserved_bytes": active + self._mx.get_cache_memory()}

    def free_memory(self) -> int:
        """Bytes that a case may still take: without swapping, on a machine whose CPU and GPU share their memory."""
        available = snapshot.available_memory_bytes()
        limit = self._about().get("max_recommended_working_set_size") if self.kind == "gpu" else None
        if limit is None:  # only Metal tells; a count may come as a text
            return available
        return min(available, int(limit) - self._mx.get_active_memory() - self._mx.get_cache_memory())

    def release(self) -> None:
        """Free what the last case left behind."""
        gc.collect()
        self._mx.clear_cache()

    @contextlib.contextmanager
    def watch_fallbacks(self) -> Iterator[set[str]]:
        """MLX falls back on nothing: an operator that a GPU lacks raises. So this set stays empty."""
        yield set()
