"""The devices of PyTorch: the CPU, and those of `torch.accelerator`.

An entry in `BACKENDS` holds what `torch.accelerator` does not say of a backend."""

import contextlib
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pomology.devices.base import DTYPES, SAMPLED_NUMBERS, SAMPLED_TENSORS, Device
from pomology.errors import PomologyError, Unsupported
from pomology.machine import quiet, snapshot

FALLBACK_VARIABLE = "PYTORCH_ENABLE_MPS_FALLBACK"
WATERMARKS = ("PYTORCH_MPS_HIGH_WATERMARK_RATIO", "PYTORCH_MPS_LOW_WATERMARK_RATIO")
# One thread writes one number: PyTorch starts as many threads as its first tensor has numbers.
SMALLEST_KERNEL = "kernel void pomology_one(device float* out) { out[0] = 1.0f; }"
FALLBACK_WARNING = re.compile(r"The operator '([^']+)' is not currently supported on the MPS")


@dataclass(frozen=True)
class Backend:
    """What differs between GPUs. Every function takes the module `torch`; sizes are in bytes."""

    absent: Callable[[Any], str | None]  # why it cannot train here, None if it can
    name: Callable[[Any], str]  # what people call the GPU
    set_up: Callable[[Any], None] = lambda torch: None  # before its first tensor
    lacks: tuple[str, ...] = ()  # types of numbers that it does not have
    allocated: Callable[[Any], int] = lambda torch: torch.accelerator.memory_allocated()
    reserved: Callable[[Any], int] = lambda torch: torch.accelerator.memory_reserved()
    free: Callable[[Any], int] = lambda torch: torch.accelerator.get_memory_info()[0]
    own_kernel: Callable[[Any], Callable[[Any], Any]] | None = None  # makes a kernel of one thread
    warns_of_fallbacks: bool = False  # it says which operators run on the CPU


def _no_driver(torch: Any, name: str, maker: str) -> str | None:
    if getattr(torch, name).is_available():
        return None
    if getattr(torch.version, name) is None:
        return f"this PyTorch is built without {name.upper()}"
    return f"no {maker} GPU or driver answers"


def _no_mps(torch: Any) -> str | None:
    if torch.backends.mps.is_available():
        return None
    return "no Metal GPU (MPS needs macOS 14, a native arm64 Python and no virtual machine)"


def _own_tf32(torch: Any) -> None:
    # As PyTorch ships and the articles had it: on Ampere and later only convolutions are in TF32.
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = True


BACKENDS: dict[str, Backend] = {
    "cuda": Backend(
        lambda torch: _no_driver(torch, "cuda", "NVIDIA"),
        lambda torch: torch.cuda.get_device_name(),
        _own_tf32,
    ),
    "mps": Backend(
        _no_mps,
        lambda torch: torch.backends.mps.get_name(),
        # Read when the first tensor is allocated there.
        set_up=lambda torch: os.environ.update(watermarks(os.environ)),
        lacks=("float64", "complex128"),
        allocated=lambda torch: torch.mps.current_allocated_memory(),
        reserved=lambda torch: torch.mps.driver_allocated_memory(),  # with that of MPSGraph
        # MPS itself raises at 1.7 times the recommended working set, after long swapping.
        free=lambda torch: min(
            snapshot.available_memory_bytes(),
            torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory(),
        ),
        own_kernel=lambda torch: torch.mps.compile_shader(SMALLEST_KERNEL).pomology_one,
        warns_of_fallbacks=True,
    ),
    "xpu": Backend(
        lambda torch: _no_driver(torch, "xpu", "Intel"),
        lambda torch: torch.xpu.get_device_name(),
    ),
}


class TorchDevice(Device):
    """One device of PyTorch; `handle` is a `torch.device`."""

    framework = "torch"
    title = "PyTorch"
    gpus = BACKENDS
    apple_gpu = "mps"

    def __init__(self, backend: str):
        import torch

        self._torch = torch
        super().__init__(torch, backend, torch.device(backend))
        # More threads than cores would spin while one of them waits for a core.
        if quiet.usable_threads() < self.threads:
            torch.set_num_threads(quiet.usable_threads())
        if self._gpu:
            self._gpu.set_up(torch)

    @property
    def _gpu(self) -> Backend | None:
        return BACKENDS.get(self.backend)

    @classmethod
    def backends(cls) -> dict[str, str | None]:
        import torch

        return {"cpu": None} | {name: backend.absent(torch) for name, backend in BACKENDS.items()}

    @property
    def name(self) -> str | None:
        return self._gpu.name(self._torch) if self._gpu else super().name

    @property
    def threads(self) -> int:
        return self._torch.get_num_threads()

    @property
    def memory_limit(self) -> str:
        if self.backend != "mps":
            return ""
        high = os.environ[WATERMARKS[0]]
        return f"the limit is {high} times Metal's recommended working set; PyTorch's is 1.7 times"

    @property
    def tf32(self) -> bool:
        return self.backend == "cuda" and self._torch.cuda.get_device_capability() >= (8, 0)

    @contextlib.contextmanager
    def context(self, strict: bool = False) -> Iterator[None]:
        cudnn = self._torch.backends.cudnn
        if strict:
            before, cudnn.allow_tf32 = cudnn.allow_tf32, False
        try:
            yield
        finally:
            if strict:
                cudnn.allow_tf32 = before

    def synchronize(self) -> None:
        if self._gpu:
            self._torch.accelerator.synchronize()

    def product(self, precision: str, size: int) -> Callable[[], Any]:
        dtype = getattr(self._torch, DTYPES[precision])
        a, b = (self._torch.rand(size, size).to(dtype).to(self.handle) for _ in range(2))
        return lambda: a @ b

    def smallest_kernel(self, own: bool = True) -> tuple[Callable[[], Any], str]:
        number = self._torch.ones(1, device=self.handle)
        if own and self._gpu and self._gpu.own_kernel:
            kernel = self._gpu.own_kernel(self._torch)
            return lambda: kernel(number), "a Metal kernel of one thread"
        return lambda: number.add_(1), "adding 1 to one number"

    def _ones(self, dtype: str, size: int) -> Any:
        return self._torch.ones(size, size, dtype=getattr(self._torch, dtype), device=self.handle)

    def _move(self, item: Any) -> Any:
        dtype = str(getattr(item, "dtype", "")).removeprefix("torch.")
        if self._gpu and dtype in self._gpu.lacks:
            raise Unsupported(f"{self.backend.upper()} has no {dtype}: convert to float32 first")
        return item.to(self.handle) if hasattr(item, "to") else item

    def device_of(self, item: Any) -> str:
        tensors = item.parameters() if hasattr(item, "parameters") else [item]
        backends = {tensor.device.type for tensor in tensors}
        if not backends:
            raise ValueError(f"{type(item).__name__} has no parameters, so no device")
        return backends.pop() if len(backends) == 1 else "mixed"

    def count(self, model: Any) -> int:
        return sum(parameter.numel() for parameter in model.parameters())

    def weight_sample(self, model: Any) -> list[float]:
        weights = [weight.detach() for weight in model.parameters() if weight.requires_grad]
        numbers: list[float] = []
        for weight in weights[-SAMPLED_TENSORS:]:
            # Of FSDP's distributed tensors a process reads its own part.
            local = weight.to_local() if hasattr(weight, "to_local") else weight
            numbers += local.flatten()[:SAMPLED_NUMBERS].float().tolist()
        return numbers

    def free_memory(self) -> int:
        return self._gpu.free(self._torch) if self._gpu else super().free_memory()

    def release(self) -> None:
        super().release()
        if self._gpu:
            self._torch.accelerator.empty_cache()

    def _reset_peak(self) -> None:
        self._torch.accelerator.reset_peak_memory_stats()

    def _peak_bytes(self) -> dict[str, int]:
        gpu = self._torch.accelerator
        peaks = {"allocated_peak_bytes": gpu.max_memory_allocated()}
        return peaks | {"reserved_peak_bytes": gpu.max_memory_reserved()}

    def _bytes_now(self) -> dict[str, int]:
        allocated = self._gpu.allocated(self._torch)
        return {"allocated_bytes": allocated, "reserved_bytes": self._gpu.reserved(self._torch)}

    @contextlib.contextmanager
    def watch_fallbacks(self) -> Iterator[set[str]]:
        # PyTorch warns of the first operator only, and Python shows a text once per line of code,
        # which would hide it from the next case. The case's status shows what is collected.
        operators: set[str] = set()
        if not (self._gpu and self._gpu.warns_of_fallbacks):
            yield operators
            return
        show = warnings.showwarning
        always = self._torch.is_warn_always_enabled()

        def collect(message, *arguments, **named):
            match = FALLBACK_WARNING.search(str(message))
            if match:
                operators.add(match[1])
            else:
                show(message, *arguments, **named)

        self._torch.set_warn_always(True)
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("always", message=FALLBACK_WARNING.pattern)
                warnings.showwarning = collect
                yield operators
        finally:
            self._torch.set_warn_always(always)


def fallback_enabled() -> bool:
    """Whether operators that MPS lacks may run on the CPU instead."""
    return os.environ.get(FALLBACK_VARIABLE, "0") not in ("", "0")


def watermarks(environment: Mapping[str, str]) -> dict[str, str]:
    """The two variables that bound what MPS may allocate, as shares of what Metal recommends.

    By default 1, not PyTorch's 1.7. If only one is set, the other follows, as PyTorch refuses a low
    one above the high one. Raises PomologyError for no number, or for such a pair."""
    shares: dict[str, float] = {}
    for name in WATERMARKS:
        text = environment.get(name)
        if text is None:
            continue
        if not re.fullmatch(r"\d+\.?\d*|\.\d+", text):
            raise PomologyError(f"{name}={text}: must be a number from 0 on; 0 is no limit")
        shares[name] = float(text)
    high_name, low_name = WATERMARKS
    high = shares.get(high_name, max(shares.get(low_name, 0), 1.0))
    low = shares.get(low_name, min(high, 1.0))
    if 0 < high < low:
        raise PomologyError(f"{low_name}={low:g}: must not exceed {high_name}, which is {high:g}")
    return {high_name: f"{high:g}", low_name: f"{low:g}"}
