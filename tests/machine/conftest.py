"""Mocked PCs and Macs."""

import functools
import sys
import types

import pytest
from fakes import Clock
from macs import LibSystem, Mac
from watched import FakeChip, work_j

from pomology.machine import memory, snapshot


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def linux(monkeypatch):
    """A PC without energy meters and sensors."""
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.fixture
def apple(monkeypatch, clock):
    """apple(folder, monitor): mock a recorded Mac with this energy monitor; return its commands."""

    def install(folder="m4-max", monitor=lambda: FakeChip(clock)):
        module = types.SimpleNamespace(AppleEnergyMonitor=monitor)
        monkeypatch.setitem(sys.modules, "zeus_apple_silicon", module)
        monkeypatch.setattr(sys, "platform", "darwin")
        monkeypatch.setattr(memory.ctypes, "CDLL", lambda *given, **named: LibSystem())
        monkeypatch.setattr(snapshot, "thermal_level", lambda: 1)
        mac = Mac(folder)
        monkeypatch.setattr(snapshot, "run_command", mac)
        return mac

    return install


@pytest.fixture
def nvidia(linux, monkeypatch, clock):
    """nvidia(gpus): mock a PC, 0 for one GPU in MIG mode; return NVML with its calls, `asked`."""

    def install(gpus=1):
        failed = type("NVMLError", (Exception,), {})
        nvml = types.SimpleNamespace(NVMLError=failed, NVML_TEMPERATURE_GPU=0, NVML_CLOCK_SM=1)
        nvml.asked = []

        def by_uuid(uuid):
            if uuid not in ("GPU-a", "GPU-b", "MIG-a"):
                raise failed("Not Found")
            return "handle"

        answers = {
            "Init": lambda: None,
            "DeviceGetCount": lambda: max(1, gpus),
            "DeviceGetMigMode": lambda handle: [int(not gpus), 0],
            "DeviceGetHandleByIndex": lambda index: "handle",
            "DeviceGetHandleByUUID": by_uuid,
            "DeviceGetTotalEnergyConsumption": lambda handle: int(1e3 * work_j(clock())),
            "DeviceGetClockInfo": lambda handle, clock_of: 1980 if clock.now < 5 else 1500,
            "DeviceGetTemperature": lambda handle, sensor: 70 - abs(clock() - 3),
            "DeviceGetUtilizationRates": lambda handle: types.SimpleNamespace(
                gpu=90 if clock() < 5 else 50, memory=20
            ),
        }

        def ask(name, *given):
            nvml.asked.append((name, *given))
            return answers[name](*given)

        for name in answers:
            setattr(nvml, f"nvml{name}", functools.partial(ask, name))
        monkeypatch.setitem(sys.modules, "pynvml", nvml)
        return nvml

    return install
