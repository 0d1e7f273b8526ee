"""PCs and Macs that are not there."""

import sys
import types

import psutil
import pytest
from fakes import Clock
from macs import LibSystem, Mac
from watched import FakeChip

from pomology.machine import energy, memory, sampler, snapshot


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def linux(monkeypatch, tmp_path):
    """A PC without any meter or sensor."""
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(energy, "POWERCAP", tmp_path / "powercap")
    monkeypatch.setattr(sampler, "CPUFREQ", tmp_path / "cpu")
    monkeypatch.setattr(psutil, "sensors_temperatures", dict, raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tmp_path


@pytest.fixture
def apple(monkeypatch, clock):
    """apple(folder, monitor): a Mac of the fixtures with this energy monitor.

    It returns what answers the Mac's commands.
    """

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
