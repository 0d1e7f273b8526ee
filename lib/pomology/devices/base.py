"""Base class of devices, with the same interface for every framework.

A framework is a file of this package with a subclass of `Device`. `find` imports these files, so
they must not import their framework before one of its devices is requested."""

import abc
import contextlib
import gc
import os
import sys
from collections.abc import Callable, Collection, Iterator
from typing import Any, ClassVar

from pomology.errors import PomologyError
from pomology.machine import messages, snapshot

# Precision in notebooks -> data type in PyTorch, TensorFlow and MLX.
DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp64": "float64"}


class Device(abc.ABC):
    """One device of one framework.

    backend: name in the journal, such as `mps`. kind: `cpu` or `gpu`. handle: the framework's own
    object or name of the device. unified_memory: whether it shares the host's memory."""

    framework: ClassVar[str]  # name in the journal
    title: ClassVar[str]  # official spelling
    gpus: ClassVar[Collection[str]]  # backends that are GPUs, present or not
    apple_gpu: ClassVar[str]  # backend of an Apple chip's GPU
    threads: int | None  # CPU threads of an operator; None if the framework has no such setting

    tf32 = False  # fp32 convolutions (in MLX: matmuls) run in TF32
    tf32_products = False  # fp32 matmuls run in TF32, as was asked for
    counts_on_cpu = False  # the memory counters also count on the CPU
    counters_failed = False

    def __init__(self, module: Any, backend: str, handle: Any):
        """module: the framework's module with `__version__`."""
        self.backend = backend
        self.handle = handle
        self.framework_version = str(module.__version__)  # a subclass of str in PyTorch
        self.kind = "cpu" if backend == "cpu" else "gpu"
        self.unified_memory = backend in ("cpu", self.apple_gpu)

    @classmethod
    @abc.abstractmethod
    def backends(cls) -> dict[str, str | None]:
        """Return each backend, CPU first, with None if it can train here, else the reason."""

    @abc.abstractmethod
    def synchronize(self) -> None:
        """Wait until the device has finished; a time without this covers only the launch."""

    @abc.abstractmethod
    def device_of(self, item: Any) -> str:
        """Return the backend that holds an array or a model's weights, or `mixed`.

        Raises ValueError for a model without weights."""

    @abc.abstractmethod
    def count(self, model: Any) -> int:
        """Return the number of a model's parameters, trained or not, without running statistics."""

    @abc.abstractmethod
    def _trained(self, model: Any) -> list[Any]:
        """Return the arrays of trained weights."""

    @abc.abstractmethod
    def _random(self, dtype: str, size: int) -> Any:
        """Return a square matrix of random elements from 0 to 1."""

    @abc.abstractmethod
    def _move(self, item: Any) -> Any:
        """Return one item of a batch on this device; a non-array may stay as it is."""

    @classmethod
    def prepare(cls) -> None:
        """Set what the framework reads on import. Raises PomologyError if it is imported."""

    @classmethod
    def _before_import(cls, module: str, name: str, value: str) -> None:
        """Set an environment variable that a module reads on import."""
        if module not in sys.modules:
            os.environ[name] = value
        elif os.environ.get(name) != value:
            raise PomologyError(
                f"{cls.title} was imported before {name}={value} was set: restart the kernel, and "
                f"call find.prepare('{cls.framework}') before the import"
            )

    @staticmethod
    def _backend_of(backends: set[str], item: Any) -> str:
        """Return the answer of `device_of` for an item whose weights these backends hold."""
        if not backends:
            raise ValueError(f"{type(item).__name__} has no parameters, so no device")
        return backends.pop() if len(backends) == 1 else "mixed"

    @property
    def name(self) -> str | None:
        """Name of the GPU or CPU; on an Apple chip, the chip's."""
        return snapshot.chip()

    def context(self, strict: bool = False) -> contextlib.AbstractContextManager:
        """Return a context in which a framework with a default device computes on this one.

        strict: compute in true fp32 even if `tf32` is true; MLX needs another process for that."""
        return contextlib.nullcontext()

    def dispatch(self, function: Callable[[], Any]) -> Callable[[], Any]:
        """Return the function so that it launches its work at once, also in a lazy framework."""
        return function

    @contextlib.contextmanager
    def watch_fallbacks(self) -> Iterator[set[str]]:
        """Collect the operators that fall back to the CPU, as far as the framework reports them."""
        yield set()

    def product(self, precision: str, size: int) -> Callable[[], Any]:
        """Return a matmul of two random square matrices, which `dispatch` must wrap for timing."""
        dtype = DTYPES[precision.replace("tf32", "fp32")]  # TF32 computes on fp32 data
        with self.context():
            left = self._random(dtype, size)
            right = self._random(dtype, size)

        def multiply() -> Any:
            with self.context():
                return left @ right

        return multiply

    def precisions(self) -> dict[str, str | None]:
        """Return each precision with None if a matmul in it works here, else the reason."""
        reasons: dict[str, str | None] = {}
        for precision in DTYPES:
            try:
                product = self.product(precision, 8)()
                # Each element is a sum of eight products of values from 0 to 1.
                plausible = 0 < float(product[0, 0]) < 8
                works = plausible and self.device_of(product) == self.backend
                reasons[precision] = None if works else "wrong values, or computed elsewhere"
            except Exception as error:  # frameworks raise many types for a missing precision
                reasons[precision] = messages.fault(str(error)) or str(error).split("\n")[0]
        return reasons

    def to_device(self, batch: Any) -> Any:
        """Return an array, or a tuple, list or dict of arrays, on this device."""
        if isinstance(batch, dict):
            return {key: self.to_device(value) for key, value in batch.items()}
        if isinstance(batch, (tuple, list)):
            return type(batch)(self.to_device(value) for value in batch)
        return self._move(batch)

    def weight_sample(self, model: Any) -> list[float]:
        """Return some trained weights, to check whether training changes them."""
        weights = self._trained(model)[-4:]
        return [number for weight in weights for number in weight.reshape(-1)[:64].tolist()]

    def free_memory(self) -> int:
        """Return the bytes that a case can still use, without swapping if the memory is shared."""
        return snapshot.available_memory_bytes()

    def recommended_memory(self) -> int | None:
        """Return the bytes up to which the driver recommends to fill a GPU; None if it has none."""
        return None

    def reset_peak_memory(self) -> None:
        """Free the memory of the last case and reset the peak counters."""
        self.release()
        self.counters_failed = False
        self._read_counter(self._reset_peak)

    def memory(self) -> dict[str, int]:
        """Return `allocated_bytes` (arrays), `reserved_bytes` (the allocator's pool) and peaks.

        Peaks count since the last reset. It is empty on most CPUs, and if the counters fail."""
        return self._read_counter(self._memory)

    def peak_memory(self) -> dict[str, int]:
        """Return the peaks of `memory`."""
        return {name: count for name, count in self.memory().items() if "peak" in name}

    def release(self) -> None:
        """Free the memory of the last case."""
        gc.collect()

    def _read_counter(self, read: Callable[[], dict[str, int] | None]) -> dict[str, int]:
        """Return a counter's values; none after an error, which must not end a case."""
        if self.counters_failed or (self.kind == "cpu" and not self.counts_on_cpu):
            return {}
        try:
            return read() or {}
        except Exception:  # drivers raise many types
            self.counters_failed = True
            return {}

    def _memory(self) -> dict[str, int]:
        """Read the framework's counters; see `memory`."""
        return {}

    # By default there are no counters, so nothing is reset either.
    _reset_peak = _memory
