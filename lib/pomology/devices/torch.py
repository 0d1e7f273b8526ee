"""The devices that a framework can train on here: how to wait for them, what they hold, what they refuse.

A *fence* waits until a device has finished everything that was asked of it. GPUs work behind the program's back, so a
time read without a fence is the time of asking. PyTorch's devices are here; those of another framework have a module
and a class of their own with the same methods. Nothing is imported before a device is asked for.
"""

from __future__ import annotations

import contextlib
import gc
import math
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pomology.errors import PomologyError, Unsupported
from pomology.machine import snapshot

FALLBACK_VARIABLE = "PYTORCH_ENABLE_MPS_FALLBACK"

WATERMARKS = ("PYTORCH_MPS_HIGH_WATERMARK_RATIO", "PYTORCH_MPS_LOW_WATERMARK_RATIO")

# One thread writes one number: PyTorch starts as many threads as its first tensor has numbers.
SMALLEST_KERNEL = "kernel void pomology_one(device float* out) { out[0] = 1.0f; }"

FALLBACK_WARNING = re.compile(r"The operator '([^']+)' is not currently supported on the MPS backend")


class Device:
    """One device as PyTorch sees it.

    `backend` is `cpu`, `cuda` or `mps`; `kind` is `cpu` or `gpu`; `handle` is the `torch.device` that `.to()` takes.
    A class for another framework has the same attributes and methods.
    """

    framework = "torch"
    compiles_at_launch = False  # a kernel of one's own, rather than when it is made

    def __init__(self, backend: str):
        import torch

        self.backend = backend
        self.kind = "cpu" if backend == "cpu" else "gpu"
        self.handle = torch.device(backend)
        self.uncounted: str | None = None  # why the memory counters do not answer, where they do not
        self._torch = torch
        if backend == "cuda":
            # fp32 means fp32: cuDNN would otherwise convolve in TF32 on Ampere and later, but not on older cards.
            torch.backends.cuda.matmul.allow_tf32 = False
            torch.backends.cudnn.allow_tf32 = False
        if backend == "mps":
            os.environ.update(watermarks(os.environ))  # read when the first tensor is allocated there

    def __repr__(self) -> str:
        return f"Device({self.framework}, {self.backend})"

    @property
    def name(self) -> str:
        """What people call it: the GPU's or the processor's name."""
        if self.backend == "cuda":
            return self._torch.cuda.get_device_name()
        if self.backend == "mps":
            return self._torch.backends.mps.get_name()
        return snapshot.chip()

    @property
    def framework_version(self) -> str:
        return self._torch.__version__

    @property
    def threads(self) -> int:
        """CPU threads that an operator may use."""
        return self._torch.get_num_threads()

    def context(self) -> contextlib.AbstractContextManager:
        """What a case runs in; nothing in PyTorch, where a model is on a device since it was moved there."""
        return contextlib.nullcontext()

    def synchronize(self) -> None:
        """Wait until all work given to this device is done."""
        if self.backend == "cuda":
            self._torch.cuda.synchronize()
        elif self.backend == "mps":
            self._torch.mps.synchronize()

    def dispatch(self, function: Callable[[], Any]) -> Callable[[], Any]:
        """A function that gives its work to the device when it is called: the same one, since PyTorch is not lazy."""
        return function

    def product(self, precision: str, size: int) -> Callable[[], Any]:
        """A function that multiplies two `size` x `size` matrices of `fp32`, `fp16` or `bf16` numbers here."""
        kind = {"fp32": self._torch.float32, "fp16": self._torch.float16, "bf16": self._torch.bfloat16}[precision]
        a, b = (self._torch.rand(size, size).to(kind).to(self.handle) for _ in range(2))
        return lambda: a @ b

    def smallest_kernel(self, own: bool = True) -> tuple[Callable[[], Any], str]:
        """A function that gives the device the smallest piece of work there is, and what that is, in words.

        With `own`, on MPS, a kernel of one thread, which is compiled here; else one of PyTorch's.
        """
        number = self._torch.ones(1, device=self.handle)
        if own and self.backend == "mps":
            kernel = self._torch.mps.compile_shader(SMALLEST_KERNEL).pomology_one
            return lambda: kernel(number), "a Metal kernel of one thread"
        return lambda: number.add_(1), "adding 1 to one number"

    def to_device(self, batch: Any) -> Any:
        """The same batch on this device: a tensor, tuples, lists and dicts of them, or what has `.to()` itself.

        Raises Unsupported for float64 and complex128 on MPS.
        """
        if isinstance(batch, self._torch.Tensor):
            if self.backend == "mps" and batch.dtype in (self._torch.float64, self._torch.complex128):
                raise Unsupported(f"MPS has no {str(batch.dtype).removeprefix('torch.')}: convert to float32 first")
            return batch.to(self.handle)
        if isinstance(batch, dict):
            return {key: self.to_device(value) for key, value in batch.items()}
        if isinstance(batch, tuple) and hasattr(batch, "_fields"):
            return type(batch)(*(self.to_device(value) for value in batch))
        if isinstance(batch, (tuple, list)):
            return type(batch)(self.to_device(value) for value in batch)
        if hasattr(batch, "to"):  # a tokenizer's or a packed sequence's own kind of batch
            return batch.to(self.handle)
        return batch

    def device_of(self, item: Any) -> str:
        """The backend that really holds a module's parameters or a tensor; `mixed` if there is more than one.

        Raises ValueError for a module without parameters.
        """
        tensors = item.parameters() if hasattr(item, "parameters") else [item]
        found = {tensor.device.type for tensor in tensors}
        if not found:
            raise ValueError(f"{type(item).__name__} has no parameters that could tell its device")
        return found.pop() if len(found) == 1 else "mixed"

    def count(self, model: Any) -> int:
        """Parameters of a module, trained or not."""
        return sum(parameter.numel() for parameter in model.parameters())

    def weight_sample(self, model: Any) -> list[float]:
        """A few of the weights that are trained, to see whether training changed them."""
        trained = [parameter.detach() for parameter in model.parameters() if parameter.requires_grad][-4:]
        # FSDP's parameters are distributed tensors, whose own numbers any process may read by itself.
        trained = [one.to_local() if hasattr(one, "to_local") else one for one in trained]
        return [value for one in trained for value in one.flatten()[:64].float().tolist()]

    def precisions(self) -> dict[str, str | None]:
        """Which of fp32, fp16, bf16 and fp64 multiply matrices here: None for those that do, else why not."""
        kinds = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp64": "float64"}
        reasons: dict[str, str | None] = {}
        for name, kind in kinds.items():
            try:
                matrix = self._torch.ones(8, 8, dtype=getattr(self._torch, kind), device=self.handle)
                reasons[name] = None if (matrix @ matrix)[0, 0].item() == 8 else "gives wrong products"
            except (RuntimeError, TypeError) as error:
                reasons[name] = str(error).split("\n")[0]
        return reasons

    def reset_peak_memory(self) -> None:
        """Give back what is cached and begin a new peak. Where the counters fail, `uncounted` says why."""
        self.release()
        self.uncounted = None
        try:
            if self.backend == "cuda":
                self._torch.cuda.reset_peak_memory_stats()
            elif self.backend == "mps":
                self._torch.accelerator.reset_peak_memory_stats()
        except RuntimeError as error:  # a case must not be lost for a counter
            self.uncounted = str(error).split("\n")[0]

    def peak_memory(self) -> dict[str, int]:
        """`allocated_peak_bytes` (tensors) and `reserved_peak_bytes` (the allocator's pool) since the last reset.

        Empty on the CPU, where PyTorch keeps no count: see the process footprint of `telemetry`. Empty also where the
        counters fail; then `uncounted` says why.
        """
        if self.backend == "cpu" or self.uncounted:
            return {}
        source = self._torch.cuda if self.backend == "cuda" else self._torch.accelerator
        try:
            return {
                "allocated_peak_bytes": source.max_memory_allocated(),
                "reserved_peak_bytes": source.max_memory_reserved(),
            }
        except RuntimeError as error:
            self.uncounted = str(error).split("\n")[0]
            return {}

    def memory(self) -> dict[str, int]:
        """`allocated_bytes` (tensors) and `reserved_bytes` (the allocator's pool; on MPS all that Metal gave) now.

        Empty on the CPU, as `peak_memory`, and where the counters fail; then `uncounted` says why.
        """
        if self.backend == "cpu":
            return {}
        cuda, mps = self._torch.cuda, self._torch.mps
        try:
            if self.backend == "cuda":
                return {"allocated_bytes": cuda.memory_allocated(), "reserved_bytes": cuda.memory_reserved()}
            return {
                "allocated_bytes": mps.current_allocated_memory(),
                "reserved_bytes": mps.driver_allocated_memory(),
            }
        except RuntimeError as error:
            self.uncounted = str(error).split("\n")[0]
            return {}

    def free_memory(self) -> int:
        """Bytes that a case may still take: without swapping, on a machine whose CPU and GPU share their memory."""
        if self.backend == "cuda":
            return self._torch.cuda.mem_get_info()[0]
        available = snapshot.available_memory_bytes()
        if self.backend == "mps":
            # By default MPS raises only at 1.7 times the recommended working set, after long swapping.
            limit = self._torch.mps.recommended_max_memory() - self._torch.mps.driver_allocated_memory()
            return min(available, limit)
        return available

    def release(self) -> None:
        """Free what the last case left behind."""
        gc.collect()
        if self.backend == "cuda":
            self._torch.cuda.empty_cache()
        elif self.backend == "mps":
            self._torch.mps.empty_cache()

    @contextlib.contextmanager
    def watch_fallbacks(self) -> Iterator[set[str]]:
        """Collect the operators that MPS hands to the CPU inside the block.

        PyTorch warns of the first operator only, unless told to always warn, and Python shows a text once per line of
        code, which would hide it from the next case. Shown is each operator once.
        """
        seen: set[str] = set()
        if self.backend != "mps":
            yield seen
            return
        show, always = warnings.showwarning, self._torch.is_warn_always_enabled()

        def collect(message, *arguments, **named):
            match = FALLBACK_WARNING.search(str(message))
            if match and match[1] in seen:
                return
            if match:
                seen.add(match[1])
            show(message, *arguments, **named)

        self._torch.set_warn_always(True)
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("always", message=FALLBACK_WARNING.pattern)
                warnings.showwarning = collect
                yield seen
        finally:
            self._torch.set_warn_always(always)


def fallback_enabled() -> bool:
    """Whether operators that MPS lacks may run on the CPU instead (read by PyTorch when it is loaded)."""
    return os.environ.get(FALLBACK_VARIABLE, "0") not in ("", "0")


def watermarks(environment: Mapping[str, str]) -> dict[str, str]:
    """The two variables that bound what MPS may allocate, as shares of what Metal recommends: always both.

    By themselves they let MPS take 1.7 times as much, most of it swapped, before it says that memory is out; here it
    says so at 1. One alone is refused by PyTorch when the low one (1.4) exceeds the high one; so what is set in
    `environment` stays and the other follows. Raises PomologyError for what is no number, or no such pair.
    """
    given = {}
    for name in WATERMARKS:
        if name in environment:
            try:
                given[name] = float(environment[name])
            except ValueError:
                given[name] = math.nan
            if not 0 <= given[name] < math.inf:
                raise PomologyError(f"{name}={environment[name]}: must be a number from 0 on; 0 is no limit")
    high, low = (given.get(name) for name in WATERMARKS)
    if high is None:
        high = 1.0 if low is None else max(low, 1.0)
    if low is None:
        low = min(high, 1.0)
    if 0 < high < low:
        raise PomologyError(f"{WATERMARKS[1]}={low:g}: must not exceed {WATERMARKS[0]}, which is {high:g}")
    return dict(zip(WATERMARKS, (f"{high:g}", f"{low:g}"), strict=True))
