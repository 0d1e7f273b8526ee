"""A device as an experiment sees it, whichever framework computes.

A framework is a file of this package with a subclass of `Device`. `find` imports these files; none
of them may import its framework before one of its devices is asked for."""

import abc
import contextlib
import gc
from collections.abc import Callable, Collection, Iterator
from typing import Any, ClassVar, NamedTuple

from pomology.errors import PomologyError
from pomology.machine import snapshot

# A precision as notebooks name it -> the data type in PyTorch, TensorFlow and MLX.
DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp64": "float64"}
SAMPLED_TENSORS = 4  # the last ones, of which `weight_sample` keeps
SAMPLED_NUMBERS = 64  # so many each


class UnusableDevice(NamedTuple):
    """A GPU that its framework cannot use here: its cases end as `unsupported`, for this reason."""

    framework: str
    framework_version: str
    backend: str
    name: str | None
    reason: str
    handle: None = None
    threads: None = None


class Device(abc.ABC):
    """One device of one framework.

    backend: its name in the journal, such as `mps`. kind: `cpu` or `gpu`. handle: what the
    framework's functions take for it. unified_memory: whether it shares the host's memory.
    uncounted: why the memory counters fail, None if they do not."""

    framework: ClassVar[str]  # as in the journal
    title: ClassVar[str]  # as its makers write it
    gpus: ClassVar[Collection[str]]  # its backends that are GPUs, present or not
    apple_gpu: ClassVar[str]  # the backend that is the GPU of an Apple chip
    threads: int | None  # CPU threads of an operator; None if the framework has no such setting

    compiles_at_launch = False  # an own kernel is compiled by its first launch
    memory_limit = ""  # a sentence, where the kit sets another limit than the framework
    tf32 = False  # whether fp32 convolutions (in MLX: products) are in TF32
    counts_on_cpu = False  # whether its memory counters are of use there

    def __init__(self, module: Any, backend: str, handle: Any):
        """module: the framework's own, which has `__version__`."""
        self.backend = backend
        self.handle = handle
        self.framework_version = module.__version__
        self.kind = "cpu" if backend == "cpu" else "gpu"
        self.unified_memory = backend in ("cpu", self.apple_gpu)
        self.uncounted: str | None = None

    @classmethod
    def unusable(cls) -> dict[str, str]:
        """GPUs for which a package has no build for this Python: backend -> reason."""
        return {}

    @classmethod
    @abc.abstractmethod
    def backends(cls) -> dict[str, str | None]:
        """Each backend, the CPU first: None if it can train here, else why not."""

    @abc.abstractmethod
    def synchronize(self) -> None:
        """Wait until the device has done all its work. A time without this is that of a launch."""

    @abc.abstractmethod
    def product(self, precision: str, size: int) -> Callable[[], Any]:
        """A function that multiplies two random square matrices; time it through `dispatch`."""

    @abc.abstractmethod
    def smallest_kernel(self, own: bool = True) -> tuple[Callable[[], Any], str]:
        """A function that is the least work, and what that is. own: a Metal kernel of the kit."""

    @abc.abstractmethod
    def device_of(self, item: Any) -> str:
        """The backend that holds an array or a model's weights, or `mixed`.

        Raises ValueError for a model without weights."""

    @abc.abstractmethod
    def count(self, model: Any) -> int:
        """Parameters of a model, trained or not, without running statistics."""

    @abc.abstractmethod
    def weight_sample(self, model: Any) -> list[float]:
        """A few of the trained weights, to see whether training changed them."""

    @abc.abstractmethod
    def _ones(self, dtype: str, size: int) -> Any:
        """A square matrix of ones."""

    @abc.abstractmethod
    def _move(self, item: Any) -> Any:
        """One array, or whatever else a batch holds, on this device."""

    @classmethod
    def prepare(cls) -> None:
        """Set what the framework reads when it is loaded. Raises PomologyError if too late."""

    @classmethod
    def too_late(cls, setting: str, why: str) -> PomologyError:
        advice = f"restart the kernel, and call find.prepare('{cls.framework}') before importing it"
        return PomologyError(f"{cls.title} was imported before {setting} was set, {why}: {advice}")

    @staticmethod
    def _one_of(backends: set[str], item: Any) -> str:
        """The backend of all weights of an item, or `mixed`; raises ValueError without any."""
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

    def precisions(self) -> dict[str, str | None]:
        """Of fp32, fp16, bf16 and fp64: None if matrices multiply here in it, else why not."""
        reasons: dict[str, str | None] = {}
        for precision, dtype in DTYPES.items():
            reasons[precision] = None
            try:
                with self.context():
                    ones = self._ones(dtype, 8)
                    product = ones @ ones
                    computed_on = self.device_of(product)
                    value = float(product[0, 0])
            except Exception as error:  # whatever a framework raises for a precision that it lacks
                reasons[precision] = str(error).split("\n")[0]
                continue
            if computed_on != self.backend:
                reasons[precision] = f"computed on {computed_on}"
            elif value != 8:
                reasons[precision] = "gives wrong products"
        return reasons

    def to_device(self, batch: Any) -> Any:
        """The same array, or tuple, list or dict of arrays, on this device.

        Raises Unsupported for a type of numbers that the device lacks."""
        if isinstance(batch, dict):
            return {key: self.to_device(value) for key, value in batch.items()}
        # What has `to` moves itself: a packed sequence is a tuple whose lengths stay on the CPU.
        if isinstance(batch, (tuple, list)) and not hasattr(batch, "to"):
            moved = [self.to_device(value) for value in batch]
            return type(batch)(*moved) if hasattr(batch, "_fields") else type(batch)(moved)
        return self._move(batch)

    # Memory, in bytes

    def free_memory(self) -> int:
        """What a case may still take; with shared memory, what it may take without swapping."""
        return snapshot.available_memory_bytes()

    def reset_peak_memory(self) -> None:
        """Free what the last case left and begin a new peak."""
        self.release()
        self.uncounted = None
        self._counted(self._reset_peak)

    def peak_memory(self) -> dict[str, int]:
        """`allocated_peak_bytes` (arrays) and `reserved_peak_bytes` (the allocator's pool).

        Since the last reset. Empty on most CPUs, and if the counters fail: see `uncounted`."""
        return {} if self.uncounted else self._counted(self._peak_bytes)

    def memory(self) -> dict[str, int]:
        """`allocated_bytes` and `reserved_bytes` now; empty as `peak_memory` is."""
        return self._counted(self._bytes_now)

    def release(self) -> None:
        """Free what the last case left."""
        gc.collect()

    def _counted(self, read: Callable[[], dict[str, int] | None]) -> dict[str, int]:
        """What a counter answers. No case is lost for an error of it, which `uncounted` keeps."""
        if self.kind == "cpu" and not self.counts_on_cpu:
            return {}
        try:
            return read() or {}
        except Exception as error:
            self.uncounted = str(error).split("\n")[0]
            return {}

    def _bytes_now(self) -> dict[str, int]:
        return {}

    _reset_peak = _peak_bytes = _bytes_now
