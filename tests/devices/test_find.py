"""Lookup of frameworks and devices, and what a device has that defines nothing of its own."""

import importlib.metadata
import sys
from types import SimpleNamespace

import pytest

from pomology.devices import find
from pomology.devices.base import Device
from pomology.devices.torch import TorchDevice
from pomology.errors import PomologyError
from pomology.machine import snapshot


def test_an_unknown_device_or_framework_is_one_line():
    with pytest.raises(PomologyError, match=r"^devices: unknown 'tpu'; must be one of auto, cpu,"):
        find.find("tpu")
    words = r"^framework: unknown 'jax'; must be one of torch, tensorflow, mlx$"
    with pytest.raises(PomologyError, match=words):
        find.find("cpu", "jax")


def test_an_error_that_is_no_fault_of_the_installation_is_raised_as_it_is(monkeypatch):
    def backends():
        raise RuntimeError("a bug")

    monkeypatch.setattr(TorchDevice, "backends", backends)
    with pytest.raises(RuntimeError, match=r"^a bug$"):
        find.find("auto")


@pytest.mark.parametrize(("chip", "tf32"), [("Apple M4 Max", False), ("Apple M5", True)])
def test_features_that_a_mac_may_have(monkeypatch, chip, tf32):
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(snapshot, "chip", lambda: chip)
    assert (find.has("metal"), find.has("tf32")) == (True, tf32)


@pytest.mark.parametrize(("package", "tf32"), [("mlx-cuda-13", True), ("mlx-cpu", False)])
def test_features_that_a_linux_machine_may_have(monkeypatch, package, tf32):
    monkeypatch.setattr(sys, "platform", "linux")
    installed = [SimpleNamespace(name=package), SimpleNamespace(name=None)]
    monkeypatch.setattr(importlib.metadata, "distributions", lambda: installed)
    assert (find.has("metal"), find.has("tf32")) == (False, tf32)


class PlainDevice(Device):
    """A device of a framework that has no default device, and no counters."""

    framework, title, gpus, apple_gpu, threads = "plain", "Plain", ("plain-gpu",), "plain-gpu", None

    @classmethod
    def backends(cls):
        return {"cpu": None, "plain-gpu": None}

    def synchronize(self):
        return None

    def device_of(self, item):
        return self.backend

    count = _trained = _random = _move = device_of


def test_a_device_without_counters_and_contexts_has_none():
    gpu = PlainDevice(SimpleNamespace(__version__="1.0"), "plain-gpu", None)
    with gpu.context(strict=True):
        assert gpu.memory() == gpu.peak_memory() == {}
    assert not gpu.counters_failed and gpu.kind == "gpu" and gpu.unified_memory
    assert "plain" not in find.frameworks()
