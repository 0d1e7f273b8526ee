"""The devices that a framework can train on here: how to wait for them, what they hold, what they refuse.

A *fence* waits until a device has finished everything that was asked of it. GPUs work behind the program's back, so a
time read without a fence is the time of asking. PyTorch only, so far; TensorFlow and MLX get a class of the same shape.
Nothing is imported before a device is asked for.
"""

from __future__ import annotations

import contextlib
import gc
import os
import re
import warnings
from collections.abc import Iterator
from typing import Any, Literal

from pomology import PomologyError, machine

FALLBACK_VARIABLE = "PYTORCH_ENABLE_MPS_FALLBACK"
BACKENDS = ("cpu", "cuda", "mps")
WANTED = ("auto", "cpu", "gpu", "cuda", "mps")

# MPS and the CPU allocator raise plain RuntimeErrors; only CUDA has a class of its own, which its libraries do not use.
# A single MPS buffer larger than the Metal limit is an "Invalid buffer size"; what Metal itself notices while it runs a
# command buffer is "Insufficient Memory".
OUT_OF_MEMORY = re.compile(
    r"out of memory|Invalid buffer size|(can't|cannot) allocate memory|Unable to allocate|Insufficient Memory|"
    r"(CUBLAS|CUDNN)_STATUS_ALLOC_FAILED",
    re.IGNORECASE,
)
UNSUPPORTED = re.compile(
    r"not currently (implemented|supported) (for|on) the MPS|(doesn't|does not) support (float64|complex128)|"
    r"(unsupported|not (yet )?(supported|implemented)) (on|for) (the )?MPS|MPS (doesn't|does not) support|"
    r"not implemented for '(Half|BFloat16)'|Could not run '[^']+' with arguments from the",
    re.IGNORECASE,
)
FALLBACK_WARNING = re.compile(r"The operator '([^']+)' is not currently supported on the MPS backend")


class Unsupported(PomologyError):
    """The device lacks an operator, a precision or a feature that was asked of it."""


class Device:
    """One device as PyTorch sees it.

    `backend` is `cpu`, `cuda` or `mps`; `kind` is `cpu` or `gpu`; `handle` is the `torch.device` that `.to()` takes.
    """

    framework = "torch"

    def __init__(self, backend: str):
        import torch

        self.backend = backend
        self.kind = "cpu" if backend == "cpu" else "gpu"
        self.handle = torch.device(backend)
        self._torch = torch
        if backend == "cuda":
            # fp32 means fp32: cuDNN would otherwise convolve in TF32 on Ampere and later, but not on older cards.
            torch.backends.cuda.matmul.allow_tf32 = False
            torch.backends.cudnn.allow_tf32 = False

    def __repr__(self) -> str:
        return f"Device({self.framework}, {self.backend})"

    @property
    def name(self) -> str:
        """What people call it: the GPU's or the processor's name."""
        if self.backend == "cuda":
            return self._torch.cuda.get_device_name()
        if self.backend == "mps":
            return self._torch.backends.mps.get_name()
        return machine.chip()

    @property
    def framework_version(self) -> str:
        return self._torch.__version__

    @property
    def threads(self) -> int:
        """CPU threads that an operator may use."""
        return self._torch.get_num_threads()

    def fence(self) -> None:
        """Wait until all work given to this device is done."""
        if self.backend == "cuda":
            self._torch.cuda.synchronize()
        elif self.backend == "mps":
            self._torch.mps.synchronize()

    def put(self, batch: Any) -> Any:
        """The same batch on this device: a tensor, tuples, lists and dicts of them, or what has `.to()` itself.

        Raises Unsupported for float64 and complex128 on MPS.
        """
        if isinstance(batch, self._torch.Tensor):
            if self.backend == "mps" and batch.dtype in (self._torch.float64, self._torch.complex128):
                raise Unsupported(f"MPS has no {str(batch.dtype).removeprefix('torch.')}: convert to float32 first")
            return batch.to(self.handle)
        if isinstance(batch, dict):
            return {key: self.put(value) for key, value in batch.items()}
        if isinstance(batch, tuple) and hasattr(batch, "_fields"):
            return type(batch)(*(self.put(value) for value in batch))
        if isinstance(batch, (tuple, list)):
            return type(batch)(self.put(value) for value in batch)
        if hasattr(batch, "to"):  # a tokenizer's or a packed sequence's own kind of batch
            return batch.to(self.handle)
        return batch

    def observed(self, item: Any) -> str:
        """The backend that really holds a module's parameters or a tensor; `mixed` if there is more than one.

        Raises ValueError for a module without parameters.
        """
        tensors = item.parameters() if hasattr(item, "parameters") else [item]
        found = {tensor.device.type for tensor in tensors}
        if not found:
            raise ValueError(f"{type(item).__name__} has no parameters that could tell its device")
        return found.pop() if len(found) == 1 else "mixed"

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
        """Give back what is cached and begin a new peak."""
        self.release()
        if self.backend == "cuda":
            self._torch.cuda.reset_peak_memory_stats()
        elif self.backend == "mps":
            self._torch.accelerator.reset_peak_memory_stats()

    def peak_memory(self) -> dict[str, int]:
        """`allocated_peak_bytes` (tensors) and `reserved_peak_bytes` (the allocator's pool) since the last reset.

        Empty on the CPU, where PyTorch keeps no count: see the process footprint of `telemetry`.
        """
        if self.backend == "cpu":
            return {}
        source = self._torch.cuda if self.backend == "cuda" else self._torch.accelerator
        return {
            "allocated_peak_bytes": source.max_memory_allocated(),
            "reserved_peak_bytes": source.max_memory_reserved(),
        }

    def free_memory(self) -> int:
        """Bytes that a case may still take: without swapping, on a machine whose CPU and GPU share their memory."""
        if self.backend == "cuda":
            return self._torch.cuda.mem_get_info()[0]
        available = machine.available_memory_bytes()
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


def failure(exception: BaseException) -> Literal["out-of-memory", "unsupported"] | None:
    """Which known status an exception stands for, or None for a bug.

    Told by class where there is one and by text where not: PyTorch on MPS raises a plain RuntimeError when memory is
    out, NotImplementedError for a missing operator and TypeError for float64.
    """
    text = str(exception)
    kinds = {kind.__name__ for kind in type(exception).__mro__}
    if isinstance(exception, MemoryError) or "OutOfMemoryError" in kinds:
        return "out-of-memory"
    if isinstance(exception, RuntimeError) and OUT_OF_MEMORY.search(text):
        return "out-of-memory"
    if isinstance(exception, Unsupported):
        return "unsupported"
    if isinstance(exception, (NotImplementedError, RuntimeError, TypeError)) and UNSUPPORTED.search(text):
        return "unsupported"
    return None


def backends() -> dict[str, str | None]:
    """Each backend of PyTorch, with None if it can train here and else the reason why not, in plain words."""
    import torch

    reasons: dict[str, str | None] = {"cpu": None}
    if torch.cuda.is_available():
        reasons["cuda"] = None
    elif torch.version.cuda is None:
        reasons["cuda"] = "this PyTorch is built without CUDA"
    else:
        reasons["cuda"] = "no NVIDIA GPU or driver answers"
    if torch.backends.mps.is_available():
        reasons["mps"] = None
    elif not torch.backends.mps.is_built():
        reasons["mps"] = "this PyTorch is built without MPS (it needs macOS 14 and a native arm64 Python)"
    else:
        reasons["mps"] = "PyTorch finds no Metal GPU (a virtual machine, or macOS older than 14)"
    return reasons


def find(wanted: str = "auto") -> list[Device]:
    """The devices to time: `auto` is every one this machine has, the CPU first; `gpu` is CUDA or MPS.

    Raises PomologyError if the wish is unknown or cannot be met here.
    """
    if wanted not in WANTED:
        raise PomologyError(f"devices: {wanted!r} is not known; one of {', '.join(WANTED)} is")
    reasons = backends()
    present = [backend for backend in BACKENDS if reasons[backend] is None]
    if wanted == "auto":
        chosen = present
    elif wanted == "gpu":
        chosen = [backend for backend in present if backend != "cpu"]
    else:
        chosen = [backend for backend in present if backend == wanted]
    if not chosen:
        missing = [wanted] if wanted in reasons else ["cuda", "mps"]
        why = "; ".join(f"{backend}: {reasons[backend]}" for backend in missing)
        raise PomologyError(f"devices: {wanted!r} is not on this machine ({why}); it has {', '.join(present)}")
    return [Device(backend) for backend in chosen]
