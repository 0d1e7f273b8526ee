"""Devices of PyTorch: the CPU, and the GPUs that `torch.accelerator` supports."""

import contextlib
import os
import re
import warnings
from collections.abc import Iterator
from typing import Any

from pomology.devices.base import Device
from pomology.machine import messages, snapshot

# GPU backends, each with the reason if it cannot train.
GPUS = {
    "cuda": "no NVIDIA GPU or driver answers, or this PyTorch is built without CUDA",
    "mps": "no Metal GPU (MPS needs macOS 14, a native arm64 Python and no virtual machine)",
}
FALLBACK_VARIABLE = "PYTORCH_ENABLE_MPS_FALLBACK"
FALLBACK_WARNING = re.compile(r"The operator '([^']+)' is not currently supported on the MPS")


class TorchDevice(Device):
    """Device of PyTorch. `handle` is a `torch.device`."""

    framework = "torch"
    title = "PyTorch"
    gpus = GPUS
    apple_gpu = "mps"

    def __init__(self, backend: str):
        import torch

        self._torch = torch
        super().__init__(torch, backend, torch.device(backend))
        # Surplus threads would spin while one of them waits for a core.
        if snapshot.usable_threads() < self.threads:
            torch.set_num_threads(snapshot.usable_threads())
        if backend == "cuda":
            # PyTorch's default, which the articles used: TF32 for convolutions only.
            torch.backends.cuda.matmul.allow_tf32 = False
            torch.backends.cudnn.allow_tf32 = True
        if backend == "mps":
            # PyTorch's default is 1.7 times Metal's recommendation, which a Mac reaches only after
            # long swapping. The first allocation reads both; the low one must not be higher.
            high = os.environ.setdefault("PYTORCH_MPS_HIGH_WATERMARK_RATIO", "1.0")
            os.environ.setdefault("PYTORCH_MPS_LOW_WATERMARK_RATIO", high)

    @classmethod
    def backends(cls) -> dict[str, str | None]:
        import torch

        reasons = {"cpu": None} | GPUS
        for name in GPUS:
            # PyTorch warns of a driver that it cannot use, once per process.
            with warnings.catch_warnings(record=True, action="always") as raised:
                usable = torch.get_device_module(name).is_available()
            fault = messages.fault(" ".join(str(warning.message) for warning in raised))
            reasons[name] = None if usable else fault or reasons[name]
        return reasons

    @property
    def name(self) -> str | None:
        if self.unified_memory:
            return super().name
        return self._torch.get_device_module(self.backend).get_device_name()

    @property
    def threads(self) -> int:
        return self._torch.get_num_threads()

    @property
    def tf32(self) -> bool:
        return self.backend == "cuda" and self._torch.cuda.get_device_capability() >= (8, 0)

    @contextlib.contextmanager
    def context(self, strict: bool = False) -> Iterator[None]:
        # cuDNN has the convolutions, cuBLAS the matmuls. A notebook may have set either.
        backends = self._torch.backends
        switches = (backends.cudnn, backends.cuda.matmul) if strict else ()
        on = [switch for switch in switches if switch.allow_tf32]
        try:
            for switch in on:
                switch.allow_tf32 = False
            yield
        finally:
            for switch in on:
                switch.allow_tf32 = True

    def synchronize(self) -> None:
        if self.kind == "gpu":
            self._torch.accelerator.synchronize()

    def _random(self, dtype: str, size: int) -> Any:
        numbers = self._torch.rand(size, size)
        return numbers.to(getattr(self._torch, dtype)).to(self.handle)

    def _move(self, item: Any) -> Any:
        return item.to(self.handle) if hasattr(item, "to") else item

    def device_of(self, item: Any) -> str:
        tensors = item.parameters() if hasattr(item, "parameters") else [item]
        return self._backend_of({tensor.device.type for tensor in tensors}, item)

    def count(self, model: Any) -> int:
        return sum(parameter.numel() for parameter in model.parameters())

    def _trained(self, model: Any) -> list[Any]:
        weights = [weight.detach() for weight in model.parameters() if weight.requires_grad]
        # A process can read only its own part of FSDP's distributed tensors.
        return [weight.to_local() if hasattr(weight, "to_local") else weight for weight in weights]

    def free_memory(self) -> int:
        available = super().free_memory()
        if self.kind == "cpu":
            return available
        if self.backend != "mps":
            return self._torch.accelerator.get_memory_info()[0]
        # MPS raises only at 1.7 times the recommended working set, after long swapping.
        used = self._torch.mps.driver_allocated_memory()
        return min(available, self.recommended_memory() - used)

    def recommended_memory(self) -> int | None:
        return self._torch.mps.recommended_max_memory() if self.backend == "mps" else None

    def release(self) -> None:
        super().release()
        if self.kind == "gpu":
            self._torch.accelerator.empty_cache()

    def _reset_peak(self) -> None:
        self._torch.accelerator.reset_peak_memory_stats()

    def _memory(self) -> dict[str, int]:
        gpu = self._torch.accelerator
        counts = {
            "allocated_bytes": gpu.memory_allocated(),
            "reserved_bytes": gpu.memory_reserved(),
            "allocated_peak_bytes": gpu.max_memory_allocated(),
            "reserved_peak_bytes": gpu.max_memory_reserved(),
        }
        if self.backend == "mps":
            counts["allocated_bytes"] = self._torch.mps.current_allocated_memory()
            counts["reserved_bytes"] = self._torch.mps.driver_allocated_memory()  # also MPSGraph's
        return counts

    @contextlib.contextmanager
    def watch_fallbacks(self) -> Iterator[set[str]]:
        # PyTorch warns of the first operator only, and Python once per line: later cases, too.
        operators: set[str] = set()
        if self.backend != "mps":
            yield operators
            return
        show = warnings.showwarning

        def collect(message, *arguments, **options):
            match = FALLBACK_WARNING.search(str(message))
            if match:
                operators.add(match[1])
            else:
                show(message, *arguments, **options)

        self._torch.set_warn_always(True)
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("always", message=FALLBACK_WARNING.pattern)
                warnings.showwarning = collect
                yield operators
        finally:
            self._torch.set_warn_always(False)
