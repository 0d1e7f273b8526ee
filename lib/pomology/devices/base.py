"""A device as the kit sees it: the methods that an experiment calls, whichever framework computes.

A framework is a file of this package with a subclass of `Device`. `find` imports these files; none of them may import
its framework before one of its devices is asked for."""

import abc
import contextlib
import gc
from collections.abc import Callable, Collection, Iterator
from typing import Any, ClassVar, NamedTuple

from pomology.errors import PomologyError
from pomology.machine import snapshot

# A precision as notebooks name it -> the data type, which PyTorch, TensorFlow and MLX call alike.
DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp64": "float64"}
# How much `weight_sample` keeps: of the last tensors, that many numbers each.
SAMPLED_TENSORS, SAMPLED_NUMBERS = 4, 64


class UnusableDevice(NamedTuple):
    """A GPU that is here and that its framework cannot use: its cases end as `unsupported`, for this reason."""

    framework: str
    framework_version: str
    backend: str
    name: str | None
    reason: str
    handle: None = None
    threads: None = None


class Device(abc.ABC):
    """One device of one framework.

    backend: its name in the journal, such as `mps`. kind: `cpu` or `gpu`. handle: what the framework's own functions
    take for it. unified_memory: whether that is the host's. uncounted: why the memory counters fail, None where not."""

    # What a framework has to define, beside `__init__(self, backend)` and the abstract methods:
    framework: ClassVar[str]  # as in the journal, and as `Experiment` takes it
    title: ClassVar[str]  # as its makers write it
    gpus: ClassVar[Collection[str]]  # its backends that are GPUs, whether this machine has them or not
    apple_gpu: ClassVar[str]  # the backend that is the GPU of an Apple chip
    threads: int | None  # CPU threads that an operator may use; None where the framework has no such setting

    # What it may define:
    compiles_at_launch = False  # a kernel of the kit's own is compiled in its first launch, not when it is made
    memory_limit = ""  # where the kit has set another one than the framework comes with: a sentence about it
    tf32 = False  # whether convolutions (of MLX, products) in fp32 are computed in TF32, as the framework does itself
    counts_on_cpu = False  # whether its memory counters are of use there

    def __init__(self, module: Any, backend: str, handle: Any):
        """module: the framework's own, which has `__version__`."""
        self.backend, self.handle, self.framework_version = backend, handle, module.__version__
        self.kind = "cpu" if backend == "cpu" else "gpu"
        self.unified_memory = backend in ("cpu", self.apple_gpu)
        self.uncounted: str | None = None

    def __repr__(self) -> str:
        return f"Device({self.framework}, {self.backend})"

    @classmethod
    def unusable(cls) -> dict[str, str]:
        """Return the GPUs of this machine for which a package has no build for this Python: backend -> reason."""
        return {}

    @classmethod
    @abc.abstractmethod
    def backends(cls) -> dict[str, str | None]:
        """Each backend, the CPU first: None if it can train here, else why not."""

    @abc.abstractmethod
    def synchronize(self) -> None:
        """Wait until all work given to the device is done. A GPU is asynchronous: a time read without is of asking."""

    @abc.abstractmethod
    def product(self, precision: str, size: int) -> Callable[[], Any]:
        """A function that multiplies two random square matrices; time it through `dispatch`."""

    @abc.abstractmethod
    def smallest_kernel(self, own: bool = True) -> tuple[Callable[[], Any], str]:
        """A function that is the least work for the device, and what that is. own: by a Metal kernel of the kit."""

    @abc.abstractmethod
    def device_of(self, item: Any) -> str:
        """The backend that really holds an array or a model's weights, or `mixed`. ValueError for a model without."""

    @abc.abstractmethod
    def count(self, model: Any) -> int:
        """Parameters of a model, trained or not; running statistics are none."""

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
        """Set what the framework reads when it is loaded. Raises PomologyError if it is too late for that."""

    @classmethod
    def other_ways(cls) -> dict[str, tuple[bool, str]]:
        """Settings of `prepare` that a process starts with, and that matter on this machine's GPU, which a run has in
        both ways: a notebook's parameter -> its other value, and what the name of that process ends with."""
        return {}

    @classmethod
    def too_late(cls, setting: str, why: str) -> PomologyError:
        advice = f"restart the kernel, and let find.prepare('{cls.framework}') come before any import of it"
        return PomologyError(f"{cls.title} was imported before {setting} was set, {why}: {advice}")

    @property
    def name(self) -> str | None:
        """What people call it: the GPU's or the processor's name, which on an Apple chip is the same."""
        return snapshot.chip()

    def context(self, strict: bool = False) -> contextlib.AbstractContextManager:
        """What a case runs in; inside, new arrays are computed on this device where the framework has a default.
        strict: convolutions in true fp32 where `tf32` says that they would not be."""
        return contextlib.nullcontext()

    def dispatch(self, function: Callable[[], Any]) -> Callable[[], Any]:
        """A function that gives its work to the device when it is called: the same one where nothing is lazy."""
        return function

    @contextlib.contextmanager
    def watch_fallbacks(self) -> Iterator[set[str]]:
        """Collect the operators that run on the CPU inside the block, as far as the framework warns of them."""
        yield set()

    def precisions(self) -> dict[str, str | None]:
        """Which of fp32, fp16, bf16 and fp64 multiply matrices here: None for those that do, else why not."""
        reasons: dict[str, str | None] = {}
        for precision, dtype in DTYPES.items():
            try:
                with self.context():
                    ones = self._ones(dtype, 8)
                    product = ones @ ones
                    computed_on, value = self.device_of(product), float(product[0, 0])
                wrong = None if value == 8 else "gives wrong products"
                reasons[precision] = wrong if computed_on == self.backend else f"computed on {computed_on}"
            except Exception as error:  # whatever a framework raises for a precision that it lacks
                reasons[precision] = str(error).split("\n")[0]
        return reasons

    def to_device(self, batch: Any) -> Any:
        """The same array, or tuple, list or dict of them, on this device. Raises Unsupported for numbers it lacks."""
        if isinstance(batch, dict):
            return {key: self.to_device(value) for key, value in batch.items()}
        # What can move by itself knows best what of it must stay: a packed sequence is a tuple with lengths on the CPU.
        if isinstance(batch, (tuple, list)) and not hasattr(batch, "to"):
            moved = [self.to_device(value) for value in batch]
            return type(batch)(*moved) if hasattr(batch, "_fields") else type(batch)(moved)
        return self._move(batch)

    # Memory, in bytes

    def free_memory(self) -> int:
        """Bytes that a case may still take: without swapping, on a machine whose CPU and GPU share their memory."""
        return snapshot.available_memory_bytes()

    def reset_peak_memory(self) -> None:
        """Free what the last case left behind and begin a new peak. Where the counters fail, `uncounted` says why."""
        self.release()
        self.uncounted = None
        self._counted(self._reset_peak)

    def peak_memory(self) -> dict[str, int]:
        """`allocated_peak_bytes` (arrays) and `reserved_peak_bytes` (the allocator's pool) since the last reset.

        Empty where nothing is counted, as on most CPUs, and where the counters fail; then `uncounted` says why."""
        return {} if self.uncounted else self._counted(self._peak_bytes)

    def memory(self) -> dict[str, int]:
        """`allocated_bytes` (arrays) and `reserved_bytes` (the allocator's pool) now; empty as `peak_memory` is."""
        return self._counted(self._bytes_now)

    def release(self) -> None:
        """Free what the last case left behind."""
        gc.collect()

    def _counted(self, read: Callable[[], dict[str, int] | None]) -> dict[str, int]:
        """What a counter answers. A case must not be lost for one: what it raises is kept in `uncounted`."""
        try:
            return (read() or {}) if self.kind == "gpu" or self.counts_on_cpu else {}
        except Exception as error:
            self.uncounted = str(error).split("\n")[0]
            return {}

    def _bytes_now(self) -> dict[str, int]:
        return {}

    _reset_peak = _peak_bytes = _bytes_now
