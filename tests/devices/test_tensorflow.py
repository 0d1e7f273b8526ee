"""TensorFlow's devices with a mock of TensorFlow."""

import contextlib
import os
import sys
from types import SimpleNamespace
from unittest import mock

import pytest

from pomology.devices import find
from pomology.devices.tensorflow import REMAPPER, TensorFlowDevice
from pomology.errors import PomologyError
from pomology.machine import snapshot

GB = 10**9


class FakeTensorFlow:
    """Mock of the TensorFlow functions that `devices.tensorflow` uses, with a log of calls."""

    __version__ = "2.16.2"

    def __init__(self, gpus: int = 1, counted: bool = True):
        self.log: list[str] = []
        unsupported = ValueError("Memory stats are not supported on this device\nand more")
        fails = None if counted else unsupported
        info = {"current": 1, "peak": 5 * GB}
        experimental = SimpleNamespace(
            enable_tensor_float_32_execution=lambda on: self.log.append(f"tf32 {on}"),
            set_memory_growth=lambda gpu, on: self.log.append(f"growth {gpu} {on}"),
            get_memory_info=mock.Mock(return_value=info, side_effect=fails),
            reset_memory_stats=mock.Mock(side_effect=fails),
            get_device_details=lambda gpu: {"device_name": "Tesla P100-PCIE-16GB"},
        )
        self.config = SimpleNamespace(
            list_physical_devices=lambda kind: [f"GPU:{number}" for number in range(gpus)],
            experimental=experimental,
        )
        waits = SimpleNamespace(sync_devices=lambda: self.log.append("sync"))
        self.test = SimpleNamespace(experimental=waits)
        self.device = lambda name: contextlib.nullcontext(self.log.append(f"on {name}"))
        self.numpy = lambda: self.log.append("read")

    def __add__(self, other):
        return self

    zeros = __add__


@pytest.fixture
def tensorflow(monkeypatch):
    def pretend(platform: str = "linux", **facts) -> FakeTensorFlow:
        framework = FakeTensorFlow(**facts)
        monkeypatch.setitem(sys.modules, "tensorflow", framework)
        monkeypatch.setattr(sys, "platform", platform)
        monkeypatch.setenv(REMAPPER, "1")
        monkeypatch.setattr(snapshot, "chip", lambda: "Apple M2 Max")
        monkeypatch.setattr(snapshot, "available_memory_bytes", lambda: 10 * GB)
        return framework

    return pretend


def test_the_remapper_is_off_before_tensorflow_is_imported_and_later_is_an_error(
    tensorflow, monkeypatch
):
    monkeypatch.setattr(TensorFlowDevice, "_remapper_off", "1")
    monkeypatch.setattr(os, "environ", {"TF_CPP_MIN_LOG_LEVEL": "before", REMAPPER: "0"})
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    find.prepare("tensorflow")
    assert os.environ[REMAPPER] == "1" and os.environ["KERAS_BACKEND"] == "tensorflow"
    assert os.environ["TF_CPP_MIN_LOG_LEVEL"] == "before"
    find.prepare("tensorflow", fusion=True)
    find.prepare("tensorflow")  # leaves what was chosen
    assert os.environ[REMAPPER] == "0"
    find.prepare("tensorflow", fusion=False)
    tensorflow("darwin")
    find.prepare("tensorflow")  # it was set in time
    monkeypatch.delenv(REMAPPER)
    for _ in range(2):  # the first error must not change the result of the second call
        with pytest.raises(PomologyError, match=r"TURN_OFF_REMAPPER=1[^\n]* restart the kernel"):
            find.find("auto", "tensorflow")


@pytest.mark.parametrize(
    ("platform", "facts", "wanted", "backends", "lacks"),
    [
        ("darwin", {}, "auto", ["cpu", "metal"], {"cuda": "no NVIDIA GPU"}),
        ("darwin", {}, "mps", ["metal"], {}),  # DEVICE=mps is Apple's GPU in every framework
        ("darwin", {"gpus": 0}, "cpu", ["cpu"], {"metal": "tensorflow-metal"}),
        ("linux", {}, "gpu", ["cuda"], {"metal": "no tensorflow-metal"}),
        ("linux", {"gpus": 0}, "auto", ["cpu"], {"cuda": "no NVIDIA GPU"}),
    ],
)
def test_find_gives_tensorflow_s_devices_too(tensorflow, platform, facts, wanted, backends, lacks):
    framework = tensorflow(platform, **facts)
    devices = find.find(wanted, "tensorflow")
    assert [each.backend for each in devices] == backends
    handles = ["/CPU:0" if name == "cpu" else "/GPU:0" for name in backends]
    assert [each.handle for each in devices] == handles
    assert "tf32 False" in framework.log
    assert ("growth GPU:0 True" in framework.log) == ("gpus" not in facts)
    reasons = find.frameworks()["tensorflow"].backends()
    assert list(reasons) == ["cpu", "cuda", "metal"]
    assert all(words in reasons[name] for name, words in lacks.items())


@pytest.mark.parametrize(
    ("backend", "log"), [("cuda", ["sync"]), ("metal", ["sync", "on /GPU:0", "read"])]
)
def test_synchronize_of_tensorflow_waits_and_on_metal_reads_back(tensorflow, backend, log):
    framework = tensorflow()
    device = TensorFlowDevice(backend)
    framework.log.clear()
    device.synchronize()
    assert framework.log == log


def test_tensorflow_s_memory_is_counted_on_a_gpu_where_the_plugin_counts(tensorflow, monkeypatch):
    monkeypatch.setattr(TensorFlowDevice, "release", lambda self: None)
    tensorflow()
    gpu = TensorFlowDevice("cuda")
    gpu.reset_peak_memory()
    assert gpu.peak_memory() == {"allocated_peak_bytes": 5 * GB}
    assert gpu.memory()["allocated_bytes"] == 1 and gpu.name == "Tesla P100-PCIE-16GB"
    tensorflow("darwin", counted=False)
    metal = TensorFlowDevice("metal")
    metal.reset_peak_memory()
    assert metal.peak_memory() == {} and metal.counters_failed
    assert metal.name == "Apple M2 Max" and metal.free_memory() == 10 * GB


def test_free_memory_of_tensorflow_s_cuda_is_that_of_nvml(tensorflow, monkeypatch):
    nvml = SimpleNamespace(nvmlDeviceGetMemoryInfo=lambda gpu: SimpleNamespace(free=3 * GB))
    monkeypatch.setattr("pomology.machine.energy.nvml_gpu", lambda: (nvml, "gpu"))
    tensorflow()
    assert TensorFlowDevice("cuda").free_memory() == 3 * GB
    assert TensorFlowDevice("cpu").free_memory() == 10 * GB


def test_a_batch_goes_to_the_device_and_a_random_matrix_has_its_type(tensorflow):
    framework = tensorflow()
    framework.identity = lambda item: ("copy of", item)
    framework.random = SimpleNamespace(uniform=lambda shape: shape)
    framework.cast = lambda item, dtype: (item, dtype)
    gpu = TensorFlowDevice("cuda")
    framework.log.clear()
    assert gpu.to_device([1, 2]) == [("copy of", 1), ("copy of", 2)]
    assert framework.log == ["on /GPU:0"] * 2
    assert gpu._random("bfloat16", 3) == ((3, 3), "bfloat16")
