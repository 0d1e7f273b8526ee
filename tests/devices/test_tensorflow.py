"""TensorFlow's devices without TensorFlow: the real one is in keras_side.py, in a process of its own."""

from __future__ import annotations

import contextlib
import os
import sys
from collections import namedtuple
from types import SimpleNamespace
from unittest import mock

import pytest

from pomology.devices import find
from pomology.devices import tensorflow as devices_tensorflow
from pomology.errors import PomologyError
from pomology.machine import quiet, snapshot

GB = 10**9


class PretendedTensorFlow:
    """What `devices.tensorflow` asks TensorFlow for, and a log of it."""

    __version__ = "2.16.2"

    def __init__(self, gpus: int = 1, counted: bool = True):
        self.log: list[str] = []
        unknown = (
            None
            if counted
            else ValueError("Memory stats are not supported on this device\nand more")
        )
        experimental = SimpleNamespace(
            enable_tensor_float_32_execution=lambda on: self.log.append(f"tf32 {on}"),
            set_memory_growth=lambda gpu, on: self.log.append(f"growth {gpu} {on}"),
            get_memory_info=mock.Mock(
                return_value={"current": 1, "peak": 5 * GB}, side_effect=unknown
            ),
            reset_memory_stats=mock.Mock(side_effect=unknown),
            get_device_details=lambda gpu: {"device_name": "Tesla P100-PCIE-16GB"},
        )
        listed = [f"GPU:{number}" for number in range(gpus)]
        threading = SimpleNamespace(get_intra_op_parallelism_threads=lambda: 0)
        about = {"experimental": experimental, "threading": threading}
        self.config = SimpleNamespace(list_physical_devices=lambda kind: listed, **about)
        waits = SimpleNamespace(sync_devices=lambda: self.log.append("sync"))
        self.test = SimpleNamespace(experimental=waits)
        self.device = lambda name: contextlib.nullcontext(self.log.append(f"on {name}"))
        self.numpy = lambda: self.log.append("read")

    def __add__(self, other):
        return self

    zeros = __add__


@pytest.fixture
def tensorflow(monkeypatch):
    def pretend(platform: str = "linux", **facts) -> PretendedTensorFlow:
        made = PretendedTensorFlow(**facts)
        monkeypatch.setitem(sys.modules, "tensorflow", made)
        monkeypatch.setattr(sys, "platform", platform)
        monkeypatch.setenv(devices_tensorflow.REMAPPER, "1")
        monkeypatch.setattr(snapshot, "chip", lambda: "Apple M2 Max")
        monkeypatch.setattr(snapshot, "available_memory_bytes", lambda: 10 * GB)
        return made

    return pretend


def test_tensorflow_takes_no_more_threads_than_can_run(tensorflow, monkeypatch):
    monkeypatch.setattr(quiet, "usable_threads", lambda: 3)
    for quotas, chosen, variable in (({}, "", None), ({"/": 3.5}, "", "3"), ({"/": 3.5}, "2", "2")):
        monkeypatch.setattr(quiet, "quotas", lambda quotas=quotas: quotas)
        monkeypatch.setattr(os, "environ", {"TF_NUM_INTRAOP_THREADS": chosen} if chosen else {})
        monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
        find.prepare("tensorflow")
        assert os.environ.get("TF_NUM_INTRAOP_THREADS") == variable
        tensorflow()
        (cpu,) = find.find("cpu", "tensorflow")
        assert cpu.threads == int(chosen or 3)


def test_the_remapper_is_off_before_tensorflow_is_loaded_and_on_a_mac_it_may_be_too_late(
    tensorflow, monkeypatch
):
    names = (devices_tensorflow.REMAPPER, "KERAS_BACKEND", "TF_CPP_MIN_LOG_LEVEL")
    monkeypatch.setattr(os, "environ", dict.fromkeys(names, "before"))
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    monkeypatch.delitem(sys.modules, "keras", raising=False)
    find.prepare("tensorflow")
    assert os.environ == dict(zip(names, ("1", "tensorflow", "before"), strict=True)), (
        "who wants to see the log may"
    )
    find.prepare("tensorflow", fusion=True)
    find.prepare("tensorflow")  # leaves what was asked for
    assert os.environ[devices_tensorflow.REMAPPER] == "0"
    find.prepare("tensorflow", fusion=False)
    tensorflow("darwin")
    find.prepare("tensorflow")  # it was set in time
    with pytest.raises(PomologyError, match="TURN_OFF_REMAPPER=0 was set, by which"):
        find.prepare("tensorflow", fusion=True)
    monkeypatch.delenv(devices_tensorflow.REMAPPER)
    for _ in range(2):  # the first refusal must not make the second call believe
        with pytest.raises(
            PomologyError, match=r"^[^\n]*TURN_OFF_REMAPPER=1[^\n]* restart the kernel[^\n]*$"
        ):
            find.find("auto", "tensorflow")
    tensorflow("linux")
    monkeypatch.delenv(devices_tensorflow.REMAPPER)
    find.prepare("tensorflow")  # it does no harm there
    monkeypatch.setitem(sys.modules, "keras", SimpleNamespace())
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    with pytest.raises(PomologyError, match="KERAS_BACKEND"):
        find.prepare("tensorflow")


@pytest.mark.parametrize(
    ("platform", "facts", "wanted", "backends", "lacks"),
    [
        ("darwin", {}, "auto", ["cpu", "metal"], {"cuda": "no CUDA on macOS"}),
        (
            "darwin",
            {},
            "mps",
            ["metal"],
            {},
        ),  # DEVICE=mps of a whole run means Apple's GPU in every framework
        ("darwin", {"gpus": 0}, "cpu", ["cpu"], {"metal": "tensorflow-metal"}),
        ("linux", {}, "gpu", ["cuda"], {"metal": "macOS only"}),
        ("linux", {"gpus": 0}, "auto", ["cpu"], {"cuda": "no NVIDIA GPU"}),
    ],
)
def test_find_gives_tensorflow_s_devices_too(tensorflow, platform, facts, wanted, backends, lacks):
    made = tensorflow(platform, **facts)
    devices = find.find(wanted, "tensorflow")
    assert [each.backend for each in devices] == backends
    assert [each.handle for each in devices] == [
        "/CPU:0" if name == "cpu" else "/GPU:0" for name in backends
    ]
    assert "tf32 False" in made.log and ("growth GPU:0 True" in made.log) == ("gpus" not in facts)
    reasons = find.frameworks()["tensorflow"].backends()
    assert list(reasons) == ["cpu", "cuda", "metal"] and all(
        words in reasons[name] for name, words in lacks.items()
    )


def test_a_fence_of_tensorflow_waits_and_on_metal_reads_back(tensorflow):
    read_back = ["on /GPU:0", "read"]
    for backend, log in (("cuda", ["sync"]), ("metal", ["sync", *read_back])):
        made = tensorflow()
        device = devices_tensorflow.TensorFlowDevice(backend)
        made.log.clear()
        device.synchronize()
        assert made.log == log


def test_tensorflow_s_memory_is_counted_on_a_gpu_where_the_plugin_counts(tensorflow, monkeypatch):
    monkeypatch.setattr(devices_tensorflow.TensorFlowDevice, "release", lambda self: None)
    tensorflow()
    gpu = devices_tensorflow.TensorFlowDevice("cuda")
    gpu.reset_peak_memory()
    assert (
        gpu.peak_memory() == {"allocated_peak_bytes": 5 * GB} and gpu.name == "Tesla P100-PCIE-16GB"
    )
    assert gpu.memory() == {"allocated_bytes": 1}
    tensorflow("darwin", counted=False)
    metal = devices_tensorflow.TensorFlowDevice("metal")
    metal.reset_peak_memory()
    assert (
        metal.peak_memory() == {}
        and metal.uncounted == "Memory stats are not supported on this device"
    )
    assert metal.name == "Apple M2 Max" and metal.free_memory() == 10 * GB


@pytest.mark.parametrize(
    ("system", "minor", "has"), [("darwin", 13, True), ("darwin", 12, False), ("linux", 13, False)]
)
def test_python_3_13_has_no_metal_plug_in(system, minor, has, monkeypatch):
    version = namedtuple("Version", "major minor micro")(3, minor, 0)
    monkeypatch.setattr(
        devices_tensorflow, "sys", SimpleNamespace(platform=system, version_info=version)
    )
    reasons = devices_tensorflow.TensorFlowDevice.unusable()
    assert list(reasons) == ["metal"] * has
    assert not has or "Python 3.13" in reasons["metal"]
