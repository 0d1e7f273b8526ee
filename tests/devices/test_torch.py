"""PyTorch's devices with mocked GPUs, whose calls are logged."""

import os
import warnings
from types import SimpleNamespace
from unittest import mock

import pytest
import torch

from pomology.devices import find
from pomology.devices.torch import TorchDevice as Device
from pomology.errors import NoSuchDevice, PomologyError
from pomology.machine import snapshot

GB = 10**9
ANSWERS = {  # mocked results of PyTorch's functions
    "accelerator.synchronize": None,
    "accelerator.empty_cache": None,
    "accelerator.reset_peak_memory_stats": None,
    "accelerator.max_memory_allocated": 7 * GB,
    "accelerator.max_memory_reserved": 9 * GB,
    "accelerator.memory_allocated": 2 * GB,
    "accelerator.memory_reserved": 3 * GB,
    "accelerator.get_memory_info": (6 * GB, 8 * GB),
    "mps.recommended_max_memory": 24 * GB,
    "mps.driver_allocated_memory": 5 * GB,
    "mps.current_allocated_memory": 4 * GB,
    "cuda.get_device_name": "GeForce RTX 2070 SUPER",
}


@pytest.fixture
def calls(monkeypatch):
    """Names of the calls to a GPU's runtime; none reaches a real GPU."""
    log: list[str] = []

    def noted(name):
        return lambda *_: log.append(name) or ANSWERS[name]

    for name in ANSWERS:
        monkeypatch.setattr(f"torch.{name}", noted(name))  # raises if there is no such function
    monkeypatch.setattr(snapshot, "chip", lambda: "Some Processor")
    monkeypatch.setattr(snapshot, "available_memory_bytes", lambda: 10 * GB)
    return log


@pytest.fixture
def has(monkeypatch):
    """Function that sets which GPUs this machine seems to have."""

    def pretend(*present: str) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: "cuda" in present)
        monkeypatch.setattr(torch.mps, "is_available", lambda: "mps" in present)

    return pretend


def test_a_missing_device_an_unusable_driver_and_a_missing_library_are_one_line(has, monkeypatch):
    has()
    words = r"^devices: this machine has no 'gpu' [^\n]*cuda: [^\n]*mps: no Metal GPU[^\n]*has cpu$"
    with pytest.raises(PomologyError, match=words):
        find.find("gpu")
    text = "The NVIDIA driver on your system is too old (found version 1). Please update"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: warnings.warn(text, stacklevel=1))
    with pytest.raises(NoSuchDevice, match=r"found version 1\); needs a newer NVIDIA driver"):
        find.find("cuda")
    libraries = ImportError("libcudnn.so.9: cannot open shared object file")
    monkeypatch.setattr(torch.cuda, "is_available", mock.Mock(side_effect=libraries))
    with pytest.raises(NoSuchDevice, match=r"^PyTorch has no devices here: .*run `make env`"):
        find.find("auto")


@pytest.mark.parametrize(
    ("present", "wanted", "backends"),
    [
        ("mps", "auto", ["cpu", "mps"]),
        ("cuda", "gpu", ["cuda"]),
        ("mps", "metal", ["mps"]),  # Apple's GPU by TensorFlow's name
    ],
)
def test_find_returns_the_requested_devices_cpu_first(calls, has, present, wanted, backends):
    has(present)
    found = find.find(wanted)
    assert [device.backend for device in found] == backends
    assert [device.handle for device in found] == [torch.device(name) for name in backends]
    names = {"cpu": "Some Processor", "mps": "Some Processor"}
    names["cuda"] = ANSWERS["cuda.get_device_name"]
    assert [device.name for device in found] == [names[name] for name in backends]


@pytest.mark.parametrize(
    ("backend", "free", "peak", "now"),
    [
        ("cpu", 100, (), ()),
        ("cuda", 6, (7, 9), (2, 3)),
        ("mps", 24 - 5, (7, 9), (4, 5)),  # on MPS all memory from Metal, also MPSGraph's
    ],
)
def test_functions_of_pytorch_that_a_device_calls(calls, monkeypatch, backend, free, peak, now):
    device = Device(backend)
    gpu = backend != "cpu"
    device.synchronize()
    assert calls == ["accelerator.synchronize"] * gpu, f"times on {backend} would be too short"
    calls.clear()
    device.reset_peak_memory()
    assert calls == ["accelerator.empty_cache", "accelerator.reset_peak_memory_stats"] * gpu
    peaks = ("allocated_peak_bytes", "reserved_peak_bytes")
    assert device.peak_memory() == dict(zip(peaks, (GB * each for each in peak), strict=False))
    names = ("allocated_bytes", "reserved_bytes")
    counts = dict(zip(names, (GB * each for each in now), strict=False))
    assert counts.items() <= device.memory().items() and bool(device.memory()) is gpu
    # Free memory of MPS is bound by Metal and by the machine.
    monkeypatch.setattr(snapshot, "available_memory_bytes", lambda: 100 * GB)
    assert device.free_memory() == free * GB
    monkeypatch.setattr(snapshot, "available_memory_bytes", lambda: 5 * GB)
    assert device.free_memory() == (6 if backend == "cuda" else 5) * GB


@pytest.mark.parametrize(("capability", "tf32"), [((7, 5), False), ((8, 0), True)])
def test_cuda_convolves_in_tf32_by_default_and_in_fp32_on_request(
    calls, monkeypatch, capability, tf32
):
    matmul = SimpleNamespace(allow_tf32=True)
    cudnn = SimpleNamespace(allow_tf32=False)
    monkeypatch.setattr(torch.backends, "cuda", SimpleNamespace(matmul=matmul))
    monkeypatch.setattr(torch.backends, "cudnn", cudnn)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    device = Device("cuda")
    assert not matmul.allow_tf32 and cudnn.allow_tf32 and device.tf32 is tf32
    matmul.allow_tf32 = True  # by a notebook
    with pytest.raises(KeyError), device.context(strict=True), device.context():
        assert not cudnn.allow_tf32 and not matmul.allow_tf32
        raise KeyError
    with device.context():
        assert cudnn.allow_tf32 and matmul.allow_tf32
    assert Device("cpu").tf32 is False


def test_device_of_a_model_is_that_of_its_weights():
    on_cpu = torch.nn.Linear(2, 2)
    on_meta = torch.nn.Linear(2, 2, device="meta")
    items = (on_cpu, on_meta, torch.nn.Sequential(on_cpu, on_meta), torch.ones(2, device="meta"))
    cpu = Device("cpu")
    assert [cpu.device_of(item) for item in items] == ["cpu", "meta", "mixed", "meta"]
    with pytest.raises(ValueError, match="ReLU has no parameters"):
        cpu.device_of(torch.nn.ReLU())


def step(*names: str) -> None:
    """Warn of fallbacks as MPS does: once per operator, always from the same line of code."""
    for name in names:
        text = f"The operator '{name}' is not currently supported on the MPS backend and will fall"
        warnings.warn(f"{text} back to run on the CPU.", UserWarning, stacklevel=1)


def test_fallbacks_are_collected_in_every_case():
    show = warnings.showwarning
    mps = Device("mps")
    for _ in range(2):  # two cases of one process run the same lines
        with mps.watch_fallbacks() as seen:
            step("aten::_ctc_loss", "aten::mode")
        assert seen == {"aten::_ctc_loss", "aten::mode"}
    with pytest.raises(RuntimeError), mps.watch_fallbacks() as seen:
        step("aten::take")
        raise RuntimeError("MPS backend out of memory")
    assert seen == {"aten::take"}
    assert warnings.showwarning is show
    assert not torch.is_warn_always_enabled()


def test_watermarks_are_set_as_a_pair_and_only_for_mps(monkeypatch):
    high = "PYTORCH_MPS_HIGH_WATERMARK_RATIO"
    low = "PYTORCH_MPS_LOW_WATERMARK_RATIO"
    for given, wanted in (
        ({}, {high: "1.0", low: "1.0"}),
        ({high: "0.8"}, {high: "0.8", low: "0.8"}),  # PyTorch rejects its default low one, 1.4
    ):
        monkeypatch.setattr(os, "environ", dict(given))
        Device("cpu")
        assert os.environ == given
        Device("mps")
        assert os.environ == wanted


def test_a_quota_of_threads_is_kept(monkeypatch):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        monkeypatch.setattr(snapshot, "usable_threads", lambda: 1)
        assert Device("cpu").threads == torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


def test_another_warning_than_of_a_fallback_is_shown(monkeypatch):
    shown = []
    monkeypatch.setattr(warnings, "showwarning", lambda message, *_: shown.append(str(message)))
    with Device("mps").watch_fallbacks() as seen:
        warnings.warn("something else", UserWarning, stacklevel=1)
        step("aten::mode")
    assert (shown, seen) == (["something else"], {"aten::mode"})
