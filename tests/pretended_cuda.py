"""A pretended NVIDIA GPU: the mock tensors of `pretended_mps`, called cuda, and NVML.

PyTorch's own code gets the answer that there is no CUDA, since it would call the runtime; pomology
and the notebooks get those of a GPU. NVML answers through its real package, so that a function that
this lacks is an error. Not pretended: CPU offload, which PyTorch's FSDP does on real GPUs only.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pretended_mps
import torch

from pomology.devices.torch import TorchDevice

GIB = 2**30
NAME, UUID = "NVIDIA H200", "5e1f0ace-0000-4ace-8ace-00000000face"
CAPABILITY = (9, 0)
MEMORY_BYTES = 141 * GIB
# Of the idle GPU, and in addition while a core of this process is busy.
IDLE_W, BUSY_W = 75, 200
TEMPERATURE_C, CLOCK_MHZ = 41, 1980


class PretendedCUDA(TorchDevice):
    """What a notebook takes for CUDA; there is nothing to wait for."""

    def __init__(self, rehearsal: pretended_mps.Rehearsal):
        super().__init__("cuda")
        self.handle = rehearsal.handle

    def device_of(self, item: Any) -> str:
        return super().device_of(item).replace(pretended_mps.PRETENDED, self.backend)


class Event:
    """`torch.Event` on a device that works at once."""

    def __init__(self, device: Any, enable_timing: bool = False):
        assert enable_timing, "Events were not created with argument 'enable_timing=True'"

    def record(self) -> None:
        self.recorded_s = time.perf_counter()

    def elapsed_time(self, other: Event) -> float:
        return 1e3 * (other.recorded_s - self.recorded_s)


def become(lightning: bool, beside_the_cpu: bool = False) -> pretended_mps.Rehearsal:
    """From here on, CUDA is the device that is found in this process, or the second one.

    lightning: by Lightning too.
    """
    rehearsal = pretended_mps.Rehearsal(metal=False)
    rehearsal.memory.answer(lambda: MEMORY_BYTES)
    _answer_as_cuda()
    _answer_as_nvml()
    pretended_mps.be_found(PretendedCUDA(rehearsal), beside_the_cpu)
    if lightning:
        from lightning.pytorch.accelerators.cuda import CUDAAccelerator

        pretended_mps.be_lightning_s(CUDAAccelerator, rehearsal.handle)
        for name in ("setup_device", "setup", "teardown"):
            setattr(CUDAAccelerator, name, lambda *_: None)
    return rehearsal


def _answer_as_cuda() -> None:
    """Let torch.cuda answer what pomology and notebooks ask, and pin memory that stays as it is."""
    real = torch.cuda.is_available

    def is_available() -> bool:
        asks = sys._getframe(1).f_globals.get("__name__", "").split(".")[0]
        return asks in ("pomology", "__main__") or real()

    properties = SimpleNamespace(name=NAME, uuid=UUID, total_memory=MEMORY_BYTES)
    answers = {
        "is_available": is_available,
        "get_device_name": lambda *_: NAME,
        "get_device_capability": lambda *_: CAPABILITY,
        "get_device_properties": lambda *_: properties,
        "get_arch_list": lambda: ["sm_80", "sm_90"],
    }
    _replace(torch.cuda, answers)
    _replace(torch.Tensor, {"pin_memory": lambda tensor, *_: tensor})
    indices = {"current_device_index": lambda: 0, "set_device_index": lambda _: None}
    _replace(torch.accelerator, indices)
    torch.Event = Event


def _answer_as_nvml() -> None:
    """Let NVML answer about one GPU, whose energy follows this process's CPU time."""
    import pynvml

    def energy_mj(_: str) -> int:
        return int(1e3 * (IDLE_W * time.perf_counter() + BUSY_W * time.process_time()))

    def by_uuid(uuid: str) -> str:
        assert uuid == f"GPU-{UUID}", uuid
        return uuid

    memory = pynvml.c_nvmlMemory_t(total=MEMORY_BYTES, free=MEMORY_BYTES - GIB, used=GIB)
    answers = {
        "Init": lambda: None,
        "DeviceGetCount": lambda: 1,
        "DeviceGetHandleByIndex": lambda index: f"GPU-{UUID}",
        "DeviceGetHandleByUUID": by_uuid,
        "DeviceGetName": lambda _: NAME,
        "DeviceGetMigMode": lambda _: [pynvml.NVML_DEVICE_MIG_DISABLE] * 2,
        "DeviceGetMemoryInfo": lambda _: memory,
        "DeviceGetTotalEnergyConsumption": energy_mj,
        "DeviceGetTemperature": lambda _, sensor: TEMPERATURE_C,
        "DeviceGetClockInfo": lambda _, clock: CLOCK_MHZ,
        "DeviceGetUtilizationRates": lambda _: pynvml.c_nvmlUtilization_t(gpu=50, memory=20),
    }
    _replace(pynvml, {f"nvml{name}": function for name, function in answers.items()})


def _replace(owner: Any, functions: dict[str, Callable]) -> None:
    for name, function in functions.items():
        assert hasattr(owner, name), f"{owner.__name__} has no {name}"
        setattr(owner, name, function)
