"""What plays an NVIDIA machine for the notebooks: the pretended CUDA and its NVML."""

import contextlib
import sys
import time

import pytest

pytestmark = pytest.mark.process("torch")
pytest.importorskip("pynvml", reason="nvidia-ml-py is for Linux")
import pretended_cuda  # noqa: E402
import torch  # noqa: E402

from pomology.devices import find  # noqa: E402
from pomology.devices.base import DTYPES  # noqa: E402
from pomology.machine import energy, sensors, snapshot  # noqa: E402

rehearsal = pretended_cuda.become(lightning=False)
(device,) = find.find()


def test_a_device_of_pytorch_gets_the_answers_of_a_gpu():
    answers = (device.backend, device.kind, device.name, device.tf32)
    assert answers == ("cuda", "gpu", "NVIDIA H200", True)
    with rehearsal.entered():
        assert device.precisions() == dict.fromkeys(DTYPES)
        device.reset_peak_memory()
        before = device.memory()["allocated_bytes"]
        tensor = torch.ones(2**20, dtype=torch.float64, device=device.handle)
        assert device.device_of(tensor) == "cuda"
        counts = device.memory()
        assert counts["allocated_bytes"] - before == 8 * 2**20
        assert device.free_memory() == 141 * 2**30 - counts["reserved_bytes"]
        del tensor
        device.reset_peak_memory()
        assert device.peak_memory()["allocated_peak_bytes"] == before
    assert rehearsal.faults == []


def test_pytorch_s_own_code_is_told_that_there_is_no_cuda():
    assert eval("torch.cuda.is_available()", {"torch": torch, "__name__": "pomology.any"})
    asks = {"torch": torch, "__name__": "torch.any"}
    assert not eval("torch.cuda.is_available()", asks)


def test_readers_of_nvml_get_a_gpu_s_energy_and_sensors(monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    gpu = {"name": "NVIDIA H200", "memory_bytes": 141 * 2**30, "cores": None}
    assert snapshot.gpus() == [gpu | {"power_limit_w": None}]
    with contextlib.ExitStack() as started:
        gauges = sensors.gauges("gpu", started, time.perf_counter)
        of_gpu = {name: gauges[name]() for name in ("temperature_c", "clock_hz", "gpu_load")}
    assert of_gpu == {"temperature_c": 41, "clock_hz": 1.98e9, "gpu_load": 0.5}
    meter = energy.meter("gpu")
    assert meter.rails == {"gpu": 0.1}
    start_s, before = time.perf_counter(), meter.joules()["gpu"]
    time.sleep(0.05)
    drawn_w = (meter.joules()["gpu"] - before) / (time.perf_counter() - start_s)
    assert 70 < drawn_w < 300  # 75 W at rest, 200 W more for a busy core
