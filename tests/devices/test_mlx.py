"""MLX's devices on a mocked Mac, through a fake `mlx.core`."""

import contextlib
import os
import sys
from types import SimpleNamespace

import pytest
from fakes import Clock, SimulatedDevice

from pomology.devices import find, mlx
from pomology.errors import NoSuchDevice, PomologyError
from pomology.machine import snapshot
from pomology.measure import calls

GB = 10**9


class Array:
    """A lazy array, whose evaluation takes `seconds` of a device's time."""

    def __init__(self, seconds: float):
        self.seconds = seconds


class FakeMLX:
    """`mlx.core` on a Mac, in simulated time, with lazy evaluation."""

    __version__ = "0.32.4"
    cpu, gpu, array = "cpu", "gpu", Array

    def __init__(self, present: bool = True):
        self.calls = []
        self.clock = Clock()
        self.queue = SimulatedDevice(self.clock, launch_s=1e-6, fence_s=1e-4)
        self.active = 4 * GB
        self.cache = 5 * GB
        self.get_peak_memory = lambda: 7 * GB
        self.get_active_memory = lambda: self.active
        self.get_cache_memory = lambda: self.cache
        self.clear_cache = lambda: self.calls.append("clear_cache")
        self.reset_peak_memory = lambda: self.calls.append("reset_peak_memory")
        self.Device = "Device({}, 0)".format
        self.is_available = lambda kind: kind == "cpu" or present

    def device_info(self, handle):
        # Sizes as texts, which is how some versions give them.
        most = str(24 * GB)
        return {"device_name": "Apple M2 Ultra", "max_recommended_working_set_size": most}

    @contextlib.contextmanager
    def stream(self, handle):
        self.calls.append(("enter", handle))
        yield
        self.calls.append(("leave", handle))

    def synchronize(self, handle):
        self.calls.append(("synchronize", handle))
        self.queue.synchronize()

    def async_eval(self, result):
        self.queue.launch(result.seconds)


@pytest.fixture
def mac(monkeypatch):
    """A Mac with a GPU; `mac(present=False)` makes one without."""

    def make(**facts) -> FakeMLX:
        mx = FakeMLX(**facts)
        monkeypatch.setattr(mlx, "load", lambda: mx)
        return mx

    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(snapshot, "chip", lambda: "Apple M2 Ultra")
    monkeypatch.setattr(snapshot, "available_memory_bytes", lambda: 100 * GB)
    return make


def test_find_on_a_mac_and_why_there_is_no_gpu(mac):
    mac()
    for wanted, backends in (("auto", ["cpu", "mlx-gpu"]), ("mps", ["mlx-gpu"])):
        devices = find.find(wanted, "mlx")
        assert [each.backend for each in devices] == backends
        assert [each.kind for each in devices] == [name[-3:] for name in backends]
        facts = {(each.framework, each.name, each.threads) for each in devices}
        assert facts == {("mlx", "Apple M2 Ultra", None)}
    mac(present=False)
    words = r"^devices: this machine has no 'gpu' .*mlx-gpu: MLX finds no Metal GPU.*has cpu$"
    with pytest.raises(PomologyError, match=words):
        find.find("gpu", "mlx")
    assert find.no_gpu("mlx").startswith("MLX times no GPU here: MLX finds no Metal GPU")
    mac()
    assert find.no_gpu("mlx") == ""


def test_a_dispatched_function_is_timed_with_its_work(mac):
    """Only the time of a function that passes through `dispatch` grows with its work."""
    mx = mac()
    seconds = 0.3
    gpu = mlx.MLXDevice("mlx-gpu")

    def matmul():
        return Array(seconds)

    settings = {"calls_per_block": 1, "clock": mx.clock}
    dispatched = gpu.dispatch(matmul)
    timed = calls.measure(dispatched, gpu.synchronize, budget_s=10 * seconds, **settings)
    assert timed.seconds.value == pytest.approx(seconds + 1.01e-4, rel=0.01)
    bare = calls.measure(matmul, gpu.synchronize, budget_s=0.1 * seconds, repeats=30, **settings)
    assert bare.seconds.value < 0.04 * seconds + 1.1e-4
    before = mx.clock.now
    gpu.dispatch(lambda: Array(5.0))()
    assert mx.clock.now - before < 1e-3 and mx.queue.busy, "launching must not wait"
    with pytest.raises(ValueError, match="MLX would compute nothing"):
        gpu.dispatch(lambda: {"loss": [None]})()


def test_functions_of_mlx_that_a_gpu_calls(mac):
    mx = mac()
    cpu, gpu = find.find("auto", "mlx")
    with gpu.context():
        gpu.synchronize()
    assert mx.calls == [(name, "Device(gpu, 0)") for name in ("enter", "synchronize", "leave")]
    assert gpu.peak_memory() == {"allocated_peak_bytes": 7 * GB, "reserved_peak_bytes": 9 * GB}
    assert cpu.free_memory() == 100 * GB
    assert gpu.free_memory() == (24 - 4 - 5) * GB  # also limited by Metal
    mx.active = mx.cache = GB  # given back since: the pool was at least as large as the peak
    assert gpu.peak_memory() == {"allocated_peak_bytes": 7 * GB, "reserved_peak_bytes": 7 * GB}
    gpu.reset_peak_memory()
    assert mx.calls[-2:] == ["clear_cache", "reset_peak_memory"]


def test_tf32_is_set_before_mlx_is_imported_and_later_is_an_error_of_one_line(monkeypatch):
    monkeypatch.setattr(mlx.MLXDevice, "_tf32", "0")
    monkeypatch.setattr(os, "environ", {"MLX_ENABLE_TF32": "1"})
    monkeypatch.delitem(sys.modules, "mlx.core", raising=False)
    monkeypatch.setitem(sys.modules, "mlx", None)
    with pytest.raises(NoSuchDevice, match=r"^MLX cannot be loaded \(.*native arm64 Python on a M"):
        mlx.load()
    assert os.environ == {"MLX_ENABLE_TF32": "0"}  # fp32 is fp32
    for settings, wanted in (({"tf32": True}, "1"), ({}, "1"), ({"tf32": False}, "0")):
        find.prepare("mlx", **settings)
        assert os.environ["MLX_ENABLE_TF32"] == wanted
    monkeypatch.setitem(sys.modules, "mlx.core", SimpleNamespace())
    find.prepare("mlx")  # it was set in time
    late = r"^MLX was imported before MLX_ENABLE_TF32=1 was set.*restart the kernel"
    with pytest.raises(PomologyError, match=late):
        find.prepare("mlx", tf32=True)
