"""A device as the kit sees it: the methods that an experiment calls, whichever framework computes.

`synchronize` waits until a device has finished all its work. A GPU works asynchronously: a time read without that wait
is the time of asking. No framework is imported before one of its devices is asked for.

A framework is a file of this package with a subclass of `Device`; `find` imports them all.
"""

from __future__ import annotations

import abc
import contextlib
import gc
from collections.abc import Callable, Collection, Iterator
from typing import Any, ClassVar

from pomology.machine import snapshot

# A precision as notebooks name it -> the data type, which PyTorch, TensorFlow and MLX call alike.
DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp64": "float64"}
# How much `weight_sample` keeps: of the last tensors, that many numbers each.
SAMPLED_TENSORS, SAMPLED_NUMBERS = 4, 64


class Device(abc.ABC):
    """One device of one framework.

    backend: its name in the journal, such as `cpu`, `cuda`, `mps`. kind: `cpu` or `gpu`. handle: what the framework's
    own functions take for it. uncounted: why the memory counters do not answer, None while they do.
    """

    framework: ClassVar[str]  # as in the journal, and as `Experiment` takes it
    title: ClassVar[str]  # as its makers write it
    gpus: ClassVar[Collection[str]]  # its backends that are GPUs, whether this machine has them or not
    apple_gpu: ClassVar[str]  # the backend that is the GPU of an Apple chip
    apple_plugin: ClassVar[str] = ""  # a package that this GPU needs beside the framework's own
    cuda_install: ClassVar[str] = ""  # what to install for an NVIDIA GPU
    # A kernel of the kit's own is compiled when it is launched for the first time, rather than when it is made.
    compiles_at_launch: ClassVar[bool] = False

    def __init__(self, module: Any, backend: str, handle: Any):
        """module: the framework's own, which has `__version__`."""
        self._module, self.backend, self.handle = module, backend, handle
        self.kind = "cpu" if backend == "cpu" else "gpu"
        self.uncounted: str | None = None

    def __repr__(self) -> str:
        return f"Device({self.framework}, {self.backend})"

    # Which there are

    @classmethod  # noqa: B027 - most frameworks need nothing
    def prepare(cls) -> None:
        """Set what the framework reads when it is loaded. Raises PomologyError if it is too late for that."""

    @classmethod
    @abc.abstractmethod
    def backends(cls) -> dict[str, str | None]:
        """Each backend, the CPU first, with None if it can train here, else the reason why not, in plain words."""

    # What it is

    @property
    def framework_version(self) -> str:
        """The version of the framework that is loaded."""
        return self._module.__version__

    @property
    def name(self) -> str | None:
        """What people call it: the GPU's or the processor's name, which on an Apple chip is the same."""
        return snapshot.chip()

    @property
    @abc.abstractmethod
    def threads(self) -> int | None:
        """CPU threads that an operator may use; None where the framework has no such setting."""

    @property
    def unified_memory(self) -> bool:
        """Whether the device takes its memory from the host's, as Apple's GPUs and processors do."""
        return self.backend in ("cpu", self.apple_gpu)

    # Work

    def context(self) -> contextlib.AbstractContextManager:
        """What a case runs in; inside, new arrays are computed on this device where the framework has a default."""
        return contextlib.nullcontext()

    @abc.abstractmethod
    def synchronize(self) -> None:
        """Wait until all work given to this device is done."""

    def dispatch(self, function: Callable[[], Any]) -> Callable[[], Any]:
        """A function that gives its work to the device when it is called: the same one where nothing is lazy."""
        return function

    @abc.abstractmethod
    def product(self, precision: str, size: int) -> Callable[[], Any]:
        """A function that multiplies two `size` x `size` matrices of random numbers of a precision on this device.

        precision: `fp32`, `fp16`, `bf16` or `fp64`. Time it through `dispatch`.
        """

    @abc.abstractmethod
    def smallest_kernel(self, own: bool = True) -> tuple[Callable[[], Any], str]:
        """A function that gives the device the smallest piece of work there is, and what that is, in words.

        own: a kernel of the kit's own where the framework compiles some (Metal), else one of the framework's.
        """

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
                reasons[precision] = _first_line(error)
        return reasons

    @abc.abstractmethod
    def _ones(self, dtype: str, size: int) -> Any:
        """A square matrix of ones on this device."""

    @contextlib.contextmanager
    def watch_fallbacks(self) -> Iterator[set[str]]:
        """Collect the operators that run on the CPU inside the block, as far as the framework warns of them."""
        yield set()

    # Data and models

    def to_device(self, batch: Any) -> Any:
        """The same batch on this device: an array, or tuples, lists and dicts of them, in the same form.

        Raises Unsupported for numbers that the device does not have.
        """
        if isinstance(batch, dict):
            return {key: self.to_device(value) for key, value in batch.items()}
        # What can move by itself knows best what of it must stay: a packed sequence is a tuple with lengths on the CPU.
        if isinstance(batch, (tuple, list)) and not hasattr(batch, "to"):
            moved = [self.to_device(value) for value in batch]
            return type(batch)(*moved) if hasattr(batch, "_fields") else type(batch)(moved)
        return self._move(batch)

    @abc.abstractmethod
    def _move(self, item: Any) -> Any:
        """One array, or whatever else a batch holds, on this device."""

    @abc.abstractmethod
    def device_of(self, item: Any) -> str:
        """The backend that really holds a model's weights or an array; `mixed` if there is more than one.

        Raises ValueError for a model without weights.
        """

    @abc.abstractmethod
    def count(self, model: Any) -> int:
        """Parameters of a model, trained or not. Running statistics are none."""

    def weight_sample(self, model: Any) -> list[float]:
        """A few of the weights that are trained, to see whether training changed them."""
        last = self._trained(model)[-SAMPLED_TENSORS:]
        return [number for weight in last for number in self._numbers(weight, SAMPLED_NUMBERS)]

    @abc.abstractmethod
    def _trained(self, model: Any) -> list[Any]:
        """The weights of a model that training changes."""

    @abc.abstractmethod
    def _numbers(self, weight: Any, count: int) -> list[float]:
        """The first numbers of a weight."""

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

        Empty where nothing is counted, as on the CPU by most frameworks (see the footprint of `Telemetry`), and where
        the counters fail; then `uncounted` says why.
        """
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
            return read() or {}
        except Exception as error:
            self.uncounted = _first_line(error)
            return {}

    def _reset_peak(self) -> None:  # noqa: B027 - the CPU has no counters
        """Begin a new peak."""

    def _peak_bytes(self) -> dict[str, int]:
        return {}

    def _bytes_now(self) -> dict[str, int]:
        return {}


def _first_line(error: Exception) -> str:
    return str(error).split("\n")[0]
