"""The devices of PyTorch: the CPU, and the GPUs that `torch.accelerator` speaks to."""

import contextlib
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pomology.devices.base import DTYPES, SAMPLED_NUMBERS, SAMPLED_TENSORS, Device
from pomology.errors import PomologyError, Unsupported
from pomology.machine import quiet

# Each GPU that PyTorch may have, and what is missing where it cannot train.
GPUS = {
    "cuda": "no NVIDIA GPU or driver answers, or this PyTorch is built without CUDA",
    "mps": "no Metal GPU (MPS needs macOS 14, a native arm64 Python and no virtual machine)",
}
FALLBACK_VARIABLE = "PYTORCH_ENABLE_MPS_FALLBACK"
WATERMARKS = ("PYTORCH_MPS_HIGH_WATERMARK_RATIO", "PYTORCH_MPS_LOW_WATERMARK_RATIO")
# One thread writes one number: PyTorch starts as many threads as its first tensor has numbers.
SMALLEST_KERNEL = "kernel void pomology_one(device float* out) { out[0] = 1.0f; }"
FALLBACK_WARNING = re.compile(r"The operator '([^']+)' is not currently supported on the MPS")
NOT_ON_MPS = ("float64", "complex128")


class TorchDevice(Device):
    """One device of PyTorch; `handle` is a `torch.device`."""

    framework = "torch"
    title = "PyTorch"
    gpus = GPUS
    apple_gpu = "mps"

    def __init__(self, backend: str):
        import torch

        self._torch = torch
        super().__init__(torch, backend, torch.device(backend))
        # More threads than cores would spin while one of them waits for a core.
        if quiet.usable_threads() < self.threads:
            torch.set_num_threads(quiet.usable_threads())
        if backend == "cuda":
            # As PyTorch ships and the articles had it: on Ampere and later only convolutions are in
            # TF32.
            torch.backends.cuda.matmul.allow_tf32 = False
            torch.backends.cudnn.allow_tf32 = True
        if backend == "mps":  # reads them when its first tensor is allocated
            os.environ.update(watermarks(os.environ))

    @classmethod
    def backends(cls) -> dict[str, str | None]:
        import torch

        reasons: dict[str, str | None] = {"cpu": None}
        for name, reason in GPUS.items():
            reasons[name] = None if torch.get_device_module(name).is_available() else reason
        return reasons

    @property
    def name(self) -> str | None:
        if self.kind == "cpu":
            return super().name
        if self.backend == "mps":
            return self._torch.backends.mps.get_name()
        return self._torch.get_device_module(self.backend).get_device_name()

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
        if not strict:
            yield
            return
        cudnn = self._torch.backends.cudnn
        before = cudnn.allow_tf32
        cudnn.allow_tf32 = False
        try:
            yield
        finally:
            cudnn.allow_tf32 = before

    def synchronize(self) -> None:
        if self.kind == "gpu":
            self._torch.accelerator.synchronize()

    def product(self, precision: str, size: int) -> Callable[[], Any]:
        dtype = getattr(self._torch, DTYPES[precision])
        a, b = (self._torch.rand(size, size).to(dtype).to(self.handle) for _ in range(2))
        return lambda: a @ b

    def smallest_kernel(self, own: bool = True) -> tuple[Callable[[], Any], str]:
        number = self._torch.ones(1, device=self.handle)
        if own and self.backend == "mps":
            kernel = self._torch.mps.compile_shader(SMALLEST_KERNEL).pomology_one
            return lambda: kernel(number), "a Metal kernel of one thread"
        return lambda: number.add_(1), "adding 1 to one number"

    def _ones(self, dtype: str, size: int) -> Any:
        return self._torch.ones(size, size, dtype=getattr(self._torch, dtype), device=self.handle)

    def _move(self, item: Any) -> Any:
        dtype = str(getattr(item, "dtype", "")).removeprefix("torch.")
        if self.backend == "mps" and dtype in NOT_ON_MPS:
            raise Unsupported(f"MPS has no {dtype}: convert to float32 first")
        return item.to(self.handle) if hasattr(item, "to") else item

    def device_of(self, item: Any) -> str:
        tensors = item.parameters() if hasattr(item, "parameters") else [item]
        return self._one_of({tensor.device.type for tensor in tensors}, item)

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
        available = super().free_memory()
        if self.kind == "cpu":
            return available
        if self.backend != "mps":
            return self._torch.accelerator.get_memory_info()[0]
        # MPS itself raises at 1.7 times the recommended working set, after long swapping.
        mps = self._torch.mps
        return min(available, mps.recommended_max_memory() - mps.driver_allocated_memory())

    def release(self) -> None:
        super().release()
        if self.kind == "gpu":
            self._torch.accelerator.empty_cache()

    def _reset_peak(self) -> None:
        self._torch.accelerator.reset_peak_memory_stats()

    def _peak_bytes(self) -> dict[str, int]:
        gpu = self._torch.accelerator
        peaks = {"allocated_peak_bytes": gpu.max_memory_allocated()}
        return peaks | {"reserved_peak_bytes": gpu.max_memory_reserved()}

    def _bytes_now(self) -> dict[str, int]:
        if self.backend == "mps":
            allocated = self._torch.mps.current_allocated_memory()
            reserved = self._torch.mps.driver_allocated_memory()  # with that of MPSGraph
        else:
            allocated = self._torch.accelerator.memory_allocated()
            reserved = self._torch.accelerator.memory_reserved()
        return {"allocated_bytes": allocated, "reserved_bytes": reserved}

    @contextlib.contextmanager
    def watch_fallbacks(self) -> Iterator[set[str]]:
        # PyTorch warns of the first operator only, and Python shows a text once per line of code,
        # which would hide it from the next case. The case's status shows what is collected.
        operators: set[str] = set()
        if self.backend != "mps":
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

    By default 1, not PyTorch's 1.7; the low one follows the high one. Raises PomologyError for what
    PyTorch would refuse: no number, or a low one above the high one."""
    high_name, low_name = WATERMARKS
    high = environment.get(high_name, "1")
    low = environment.get(low_name, high)
    for name, text in ((high_name, high), (low_name, low)):
        if not re.fullmatch(r"\d+\.?\d*|\.\d+", text):
            raise PomologyError(f"{name}={text}: must be a number from 0 on; 0 is no limit")
    if 0 < float(high) < float(low):
        raise PomologyError(f"{low_name}={low}: must not exceed {high_name}, which is {high}")
    return {high_name: high, low_name: low}
