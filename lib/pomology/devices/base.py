"""A device as an experiment sees it, whichever framework computes.

A framework is a file of this package with a subclass of `Device`. `find` imports these files; none
of them may import its framework before one of its devices is asked for."""

import abc
import contextlib
import gc
import os
import sys
from collections.abc import Callable, Collection, Iterator
from typing import Any, ClassVar

from pomology.errors import PomologyError
from pomology.machine import snapshot

# A precision as notebooks name it -> the data type in PyTorch, TensorFlow and MLX.
DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp64": "float64"}


class Device(abc.ABC):
    """One device of one framework.

    backend: its name in the journal, such as `mps`. kind: `cpu` or `gpu`. handle: what the
    framework's functions take for it. unified_memory: whether it shares the host's memory."""

    framework: ClassVar[str]  # as in the journal
    title: ClassVar[str]  # as its makers write it
    gpus: ClassVar[Collection[str]]  # its backends that are GPUs, present or not
    apple_gpu: ClassVar[str]  # the backend that is the GPU of an Apple chip
    threads: int | None  # CPU threads of an operator; None if the framework has no such setting

    tf32 = False  # whether fp32 convolutions (in MLX: products) are in TF32
    counts_on_cpu = False  # whether its memory counters are of use there
    uncounted = False  # whether they have failed

    def __init__(self, module: Any, backend: str, handle: Any):
        """module: the framework's own, which has `__version__`."""
        self.backend = backend
        self.handle = handle
        self.framework_version = str(module.__version__)  # PyTorch has a type of its own
        self.kind = "cpu" if backend == "cpu" else "gpu"
        self.unified_memory = backend in ("cpu", self.apple_gpu)

    @classmethod
    @abc.abstractmethod
    def backends(cls) -> dict[str, str | None]:
        """Each backend, the CPU first: None if it can train here, else why not."""

    @abc.abstractmethod
    def synchronize(self) -> None:
        """Wait until the device has done all its work. A time without this is that of a launch."""

    @abc.abstractmethod
    def device_of(self, item: Any) -> str:
        """The backend that holds an array or a model's weights, or `mixed`.

        Raises ValueError for a model without weights."""

    @abc.abstractmethod
    def count(self, model: Any) -> int:
        """Parameters of a model, trained or not, without running statistics."""

    @abc.abstractmethod
    def _trained(self, model: Any) -> list[Any]:
        """The arrays of trained weights."""

    @abc.abstractmethod
    def _random(self, dtype: str, size: int) -> Any:
        """A square matrix of random numbers from 0 to 1."""

    @abc.abstractmethod
    def _move(self, item: Any) -> Any:
        """One array, or whatever else a batch holds, on this device."""

    @classmethod
    def prepare(cls) -> None:
        """Set what the framework reads when it is loaded. Raises PomologyError if too late."""

    @classmethod
    def _before_import(cls, module: str, name: str, value: str) -> None:
        """Set a variable of the environment that a module reads when it is loaded."""
        if module not in sys.modules:
            os.environ[name] = value
        elif os.environ.get(name) != value:
            raise PomologyError(
                f"{cls.title} was imported before {name}={value} was set: restart the kernel, and "
                f"call find.prepare('{cls.framework}') before importing it"
            )

    @staticmethod
    def _one_of(backends: set[str], item: Any) -> str:
        """What `device_of` answers for an item whose weights these backends hold."""
        if not backends:
            raise ValueError(f"{type(item).__name__} has no parameters, so no device")
        return backends.pop() if len(backends) == 1 else "mixed"

    @property
    def name(self) -> str | None:
        """The GPU's or the processor's name, which on an Apple chip is the same."""
        return snapshot.chip()

    def context(self, strict: bool = False) -> contextlib.AbstractContextManager:
        """What a case runs in; inside, a framework with a default device computes on this one.

        strict: convolutions in true fp32 even where `tf32` is true."""
        return contextlib.nullcontext()

    def dispatch(self, function: Callable[[], Any]) -> Callable[[], Any]:
        """A function that gives its work to the device at once, also if the framework is lazy."""
        return function

    @contextlib.contextmanager
    def watch_fallbacks(self) -> Iterator[set[str]]:
        """Collect the operators that run on the CPU inside, as far as the framework says so."""
        yield set()

    def product(self, precision: str, size: int) -> Callable[[], Any]:
        """A function that multiplies two random square matrices; time it through `dispatch`."""
        dtype = DTYPES[precision.replace("tf32", "fp32")]  # a way to compute in fp32
        with self.context():
            a = self._random(dtype, size)
            b = self._random(dtype, size)

        def multiply() -> Any:
            with self.context():
                return a @ b

        return multiply

    def precisions(self) -> dict[str, str | None]:
        """Of fp32, fp16, bf16 and fp64: None if matrices multiply here in it, else why not."""
        reasons: dict[str, str | None] = {}
        for precision in DTYPES:
            try:
                product = self.product(precision, 8)()
                right = 0 < float(product[0, 0]) < 8 and self.device_of(product) == self.backend
                reasons[precision] = None if right else "computed elsewhere, or wrong"
            except Exception as error:  # whatever a framework raises for a precision that it lacks
                reasons[precision] = str(error).split("\n")[0]
        return reasons

    def to_device(self, batch: Any) -> Any:
        """The same array, or tuple, list or dict of arrays, on this device."""
        if isinstance(batch, dict):
            return {key: self.to_device(value) for key, value in batch.items()}
        if isinstance(batch, (tuple, list)):
            return type(batch)(self.to_device(value) for value in batch)
        return self._move(batch)

    def weight_sample(self, model: Any) -> list[float]:
        """A few of the trained weights, to see whether training changed them."""
        weights = self._trained(model)[-4:]
        return [number for weight in weights for number in weight.reshape(-1)[:64].tolist()]

    # Memory, in bytes

    def free_memory(self) -> int:
        """What a case may still take; with shared memory, what it may take without swapping."""
        return snapshot.available_memory_bytes()

    def reset_peak_memory(self) -> None:
        """Free what the last case left and begin a new peak."""
        self.release()
        self.uncounted = False
        self._counted(self._reset_peak)

    def memory(self) -> dict[str, int]:
        """`allocated_bytes` (arrays) and `reserved_bytes` (the allocator's pool) now, and peaks.

        Peaks: `allocated_peak_bytes` and `reserved_peak_bytes` since the last reset. Empty on most
        CPUs, and if the counters fail."""
        return self._counted(self._memory)

    def peak_memory(self) -> dict[str, int]:
        """Of `memory` the peaks."""
        return {name: count for name, count in self.memory().items() if "peak" in name}

    def release(self) -> None:
        """Free what the last case left."""
        gc.collect()

    def _counted(self, read: Callable[[], dict[str, int] | None]) -> dict[str, int]:
        """What a counter answers. No case is lost for an error of it: it has no number then."""
        if self.uncounted or (self.kind == "cpu" and not self.counts_on_cpu):
            return {}
        try:
            return read() or {}
        except Exception:
            self.uncounted = True
            return {}

    def _memory(self) -> dict[str, int]:
        return {}

    _reset_peak = _memory
