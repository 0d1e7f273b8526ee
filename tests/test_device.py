"""Devices without the devices: calls to GPUs are replaced by ones that note who was asked; and what can be added."""

from __future__ import annotations

import builtins
import contextlib
import os
import re
import subprocess
import sys
import warnings
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch

from pomology.devices import find
from pomology.devices import tensorflow as devices_tensorflow
from pomology.devices import torch as devices_torch
from pomology.devices.failures import failure
from pomology.devices.torch import TorchDevice as Device
from pomology.errors import PomologyError, Unsupported
from pomology.machine import quiet, snapshot

ROOT = Path(__file__).resolve().parents[1]
GB = 10**9
FALLBACK = (
    "The operator '{}' is not currently supported on the MPS backend and will fall back to run on the CPU. "
    "This may have performance implications. (Triggered internally at MPSFallback.mm:14.)"
)


@pytest.fixture
def calls(monkeypatch):
    """Every call to a GPU's runtime, by name; none reaches a real one. Values are those of an invented machine."""
    log: list[str] = []
    answers = {
        **{f"accelerator.{name}": None for name in ("synchronize", "empty_cache", "reset_peak_memory_stats")},
        **{"accelerator.max_memory_allocated": 7 * GB, "accelerator.max_memory_reserved": 9 * GB},
        **{"accelerator.memory_allocated": 2 * GB, "accelerator.memory_reserved": 3 * GB},
        "accelerator.get_memory_info": (6 * GB, 8 * GB),
        **{"mps.recommended_max_memory": 24 * GB, "mps.driver_allocated_memory": 5 * GB},
        "mps.current_allocated_memory": 4 * GB,
        **{"cuda.get_device_name": "GeForce RTX 2070 SUPER", "xpu.get_device_name": "Intel Arc B580"},
    }
    for name, answer in answers.items():
        # Raises if this PyTorch has no such function.
        monkeypatch.setattr(f"torch.{name}", lambda *_, name=name, answer=answer: log.append(name) or answer)
    monkeypatch.setattr(torch.backends.mps, "get_name", lambda: "Apple M1 Ultra")
    monkeypatch.setattr(snapshot, "chip", lambda: "Some Processor")
    monkeypatch.setattr(snapshot, "available_memory_bytes", lambda: 10 * GB)
    return log


@pytest.fixture
def has(monkeypatch):
    """Say which GPUs this machine has, and which PyTorch is built for."""

    def say(*present: str, built: tuple[str, ...] = ()) -> None:
        built = (*present, *built)
        for name in ("cuda", "xpu"):
            monkeypatch.setattr(getattr(torch, name), "is_available", lambda name=name: name in present)
            monkeypatch.setattr(torch.version, name, "12.8" if name in built else None)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: "mps" in present)
        monkeypatch.setattr(torch.backends.mps, "is_built", lambda: "mps" in built)

    return say


@pytest.mark.parametrize(
    ("built", "wanted", "words"),
    [
        ((), "mps", ["'mps'", "built without MPS", "arm64", "it has cpu"]),
        (("mps",), "mps", ["'mps'", "no Metal GPU"]),
        (("cuda",), "cuda", ["'cuda'", "driver"]),
        ((), "gpu", ["'gpu'", "cuda: ", "mps: ", "it has cpu"]),
        ((), "tpu", ["'tpu' is not known", "auto, cpu, gpu, cuda, mps"]),
    ],
)
def test_a_device_that_is_not_here_gets_one_line_that_says_why(has, built, wanted, words):
    has(built=built)
    with pytest.raises(PomologyError) as error:
        find.find(wanted)
    line = str(error.value)
    assert "\n" not in line and all(word in line for word in ("devices: ", *words)), line


@pytest.mark.parametrize(
    ("present", "wanted", "backends"),
    [
        ("mps", "auto", ["cpu", "mps"]),
        ("cuda", "gpu", ["cuda"]),
        ("mps", "metal", ["mps"]),  # Apple's GPU by TensorFlow's name
        ("xpu", "xpu", ["xpu"]),
    ],
)
def test_find_gives_what_was_wanted_the_cpu_first(calls, has, present, wanted, backends):
    has(present)
    assert [(device.backend, device.handle) for device in find.find(wanted)] == [(b, torch.device(b)) for b in backends]
    for function in (find.prepare, lambda name: find.find("cpu", name)):
        with pytest.raises(PomologyError, match=r"^framework: 'theano' is not known; one of torch, tensorflow"):
            function("theano")


# The programs of docs/add-a-device.md.
TEXT = (ROOT / "docs" / "add-a-device.md").read_text(encoding="utf-8")
ENTRY, FILE = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


def test_a_new_backend_of_pytorch_is_one_entry(calls, has, monkeypatch):
    has()
    hpu = SimpleNamespace(is_available=lambda: True, get_device_name=lambda: "Gaudi 3")
    monkeypatch.setattr(torch, "hpu", hpu, raising=False)
    monkeypatch.setitem(devices_torch.BACKENDS, "hpu", None)  # which takes it out after the test
    exec(ENTRY, vars(devices_torch))
    cpu, hpu = find.find("auto")
    assert [device.backend for device in find.find("hpu")] == ["hpu"] and "hpu" in find.choices()
    assert (hpu.kind, hpu.name, hpu.handle, hpu.unified_memory) == ("gpu", "Gaudi 3", torch.device("hpu"), False)
    calls.clear()
    hpu.synchronize()
    assert calls == ["accelerator.synchronize"] and hpu.free_memory() == 6 * GB
    assert hpu.memory() == {"allocated_bytes": 2 * GB, "reserved_bytes": 3 * GB}
    assert not cpu.peak_memory() and cpu.unified_memory


EXPERIMENT = """
import sys
import numpy
from pomology import devices
devices.__path__.append(sys.argv[1])
from pomology.devices import base, find
from pomology.experiment.experiment import Experiment
from pomology.models.cost import Workload

assert list(find.frameworks()) == ["torch", "tensorflow", "mlx", "numpy"]
(cpu,) = find.find("auto", "numpy")
assert cpu.precisions() == {"fp32": None, "fp16": None, "bf16": "data type 'bfloat16' not understood", "fp64": None}
experiment = Experiment("vae", article="003", framework="numpy", out=sys.argv[2], profile="smoke",
                        expects_learning=False)
(case,) = experiment.cases(batch_size=[8])
with case:
    weights = case.watch_model([numpy.zeros((4, 4))])
    case.require_memory(Workload(16, 100, state_bytes=64, saved_bytes=0))
    case.require_time(10)
    for (batch,) in case.steps([[numpy.ones(2)]] * 30):
        assert case.backend.to_device(batch).dtype == "float32"
        weights[0] += 1
assert not {"torch", "tensorflow", "mlx"} & set(sys.modules)
(record,) = experiment.records
print(record.status, record.reason, record.framework, record.framework_version == numpy.__version__)
"""


def test_a_new_framework_is_one_file(tmp_path):
    (tmp_path / "numpy_.py").write_text(FILE)
    command = [sys.executable, "-c", EXPERIMENT, tmp_path, tmp_path / "run"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "ok None numpy True"


@pytest.mark.parametrize(
    ("backend", "free", "peak", "now"),
    [
        ("cpu", 100, (), ()),
        ("cuda", 6, (7, 9), (2, 3)),
        ("mps", 24 - 5, (7, 9), (4, 5)),  # of MPS all that Metal gave, to MPSGraph too
        ("xpu", 6, (7, 9), (2, 3)),
    ],
)
def test_what_a_gpu_is_asked(calls, monkeypatch, backend, free, peak, now):
    device, asked = Device(backend), backend != "cpu"
    device.synchronize()
    assert calls == ["accelerator.synchronize"] * asked, f"times on {backend} would be too short"
    calls.clear()
    device.reset_peak_memory()
    assert calls == ["accelerator.empty_cache", "accelerator.reset_peak_memory_stats"] * asked
    for suffix, counted, expected in (("_peak", device.peak_memory(), peak), ("", device.memory(), now)):
        names = (f"{name}{suffix}_bytes" for name in ("allocated", "reserved"))
        assert counted == dict(zip(names, (GB * count for count in expected), strict=False))
    # Free memory of MPS is bound by Metal and by the machine.
    monkeypatch.setattr(snapshot, "available_memory_bytes", lambda: 100 * GB)
    assert device.free_memory() == free * GB
    monkeypatch.setattr(snapshot, "available_memory_bytes", lambda: 5 * GB)
    assert device.free_memory() == (free if free == 6 else 5) * GB


def test_counters_that_fail_cost_no_case(calls, monkeypatch):
    """What `torch.accelerator` of PyTorch 2.13 says without an accelerator, where it is built for none."""
    mps, words = Device("mps"), "Cannot access accelerator device when none is available."
    with monkeypatch.context() as patch:
        patch.setattr(
            torch.accelerator, "max_memory_reserved", mock.Mock(side_effect=RuntimeError(f"{words}\nAnd more."))
        )
        mps.reset_peak_memory()
        assert mps.peak_memory() == {} and mps.uncounted == words
        assert mps.memory() == {"allocated_bytes": 4 * GB, "reserved_bytes": 5 * GB}  # by other counters
    mps.reset_peak_memory()  # the next case asks again
    assert mps.uncounted is None and mps.peak_memory()["allocated_peak_bytes"] == 7 * GB


@pytest.mark.parametrize(("capability", "tf32"), [((7, 5), False), ((8, 0), True)])
def test_cuda_convolves_in_tf32_as_pytorch_comes_and_in_fp32_where_asked(calls, monkeypatch, capability, tf32):
    matmul, cudnn = (SimpleNamespace(allow_tf32=value) for value in (True, False))
    cuda = SimpleNamespace(matmul=matmul)
    monkeypatch.setattr(torch.backends, "cuda", cuda)
    monkeypatch.setattr(torch.backends, "cudnn", cudnn)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    device = Device("cuda")
    assert not matmul.allow_tf32 and cudnn.allow_tf32 and device.tf32 is tf32
    with pytest.raises(KeyError), device.context(strict=True):
        assert not cudnn.allow_tf32
        raise KeyError
    with device.context():
        assert cudnn.allow_tf32
    assert Device("cpu").tf32 is False


def test_the_cpu_works_for_real():
    cpu = Device("cpu")
    cpu.synchronize()
    cpu.reset_peak_memory()
    assert cpu.peak_memory() == cpu.memory() == {}
    assert cpu.free_memory() > 10**7 and cpu.name == snapshot.chip()
    assert (cpu.framework_version, cpu.threads) == (torch.__version__, torch.get_num_threads())
    assert cpu.precisions() == dict.fromkeys(("fp32", "fp16", "bf16", "fp64"))


def elsewhere(backend: str) -> Device:
    """A device of that name whose tensors go to `meta`, which exists on every machine."""
    there = Device(backend)
    there.handle = torch.device("meta")
    return there


def test_a_batch_moves_whole_and_keeps_its_form_and_mps_takes_no_double_precision():
    Pair = namedtuple("Pair", "image label")

    class Packed:
        def to(self, handle):
            self.handle = handle
            return self

    x, packed = torch.ones(2), Packed()
    sequence = torch.nn.utils.rnn.pack_sequence([torch.ones(2, 1), torch.ones(1, 1)])
    moved = elsewhere("mps").to_device([x, (x, "name", 3, None), {"a": x, "b": [x]}, Pair(x, x), packed, sequence])
    tensors = [moved[0], moved[1][0], moved[2]["a"], moved[2]["b"][0], moved[3].image, moved[3].label]
    assert {tensor.device.type for tensor in tensors} == {"meta"}
    assert moved[1][1:] == ("name", 3, None) and isinstance(moved[3], Pair)
    assert moved[4] is packed and packed.handle == torch.device("meta")
    assert (moved[5].data.device.type, moved[5].batch_sizes.device.type) == ("meta", "cpu")  # PyTorch wants it there
    batch = {"x": [torch.zeros(2, dtype=torch.float64)]}
    with pytest.raises(Unsupported, match=r"^MPS has no float64: convert to float32 first$") as error:
        elsewhere("mps").to_device(batch)
    assert failure(error.value) == "unsupported"
    assert elsewhere("cuda").to_device(batch)["x"][0].dtype == torch.float64


def test_where_weights_really_are():
    here, there, cpu = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2, device="meta"), Device("cpu")
    both = torch.nn.Sequential(here, there)
    places = [cpu.device_of(item) for item in (here, there, both, torch.ones(2, device="meta"))]
    assert places == ["cpu", "meta", "mixed", "meta"]
    with pytest.raises(ValueError, match="ReLU has no parameters"):
        cpu.device_of(torch.nn.ReLU())


FAILURES = [
    ("RuntimeError: MPS backend out of memory (MPS allocated: 13.50 GB, max allowed: 18.13 GB)", "out-of-memory"),
    ("RuntimeError: Invalid buffer size: 23.27 GiB", "out-of-memory"),
    ("RuntimeError: Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)", "out-of-memory"),
    ("RuntimeError: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "out-of-memory"),
    ("RuntimeError: [metal::malloc] Attempting to allocate 48736917632 bytes which is greater than", "out-of-memory"),
    ("OutOfMemoryError: no such words", "out-of-memory"),
    ("NotImplementedError: The operator 'x' is not currently implemented for the MPS device.", "unsupported"),
    ("TypeError: the MPS framework doesn't support float64. Please use float32 instead.", "unsupported"),
    ("RuntimeError: ConvTranspose 3D with BF16 or FP16 types is not supported on MPS", "unsupported"),
    ("RuntimeError: MPS does not support cumsum op with int64 input", "unsupported"),
    ("RuntimeError: Non-divisible input sizes are not implemented on MPS device yet.", "unsupported"),
    ("RuntimeError: \"binary_cross_entropy\" not implemented for 'Half'", "unsupported"),
    ("NotImplementedError: Could not run 'x' with arguments from the 'SparseMPS' backend.", "unsupported"),
    ("ValueError: [linalg::svd] This op is not yet supported on the GPU. Explicitly pass a CPU stream", "unsupported"),
    ("Unsupported: no such precision", "unsupported"),
    ("RuntimeError: Expected all tensors to be on the same device, but found at least two, mps:0 and cpu!", None),
    ("RuntimeError: [METAL] Command buffer execution failed: Caused GPU Timeout Error", None),
    ("ValueError: out of memory", None),
    ("AssertionError: not supported on MPS", None),
    ("KeyboardInterrupt: ", None),
]


def test_failures_are_told_apart():
    known = vars(builtins) | {"OutOfMemoryError": torch.OutOfMemoryError, "Unsupported": Unsupported}
    for exception, status in FAILURES:
        kind, text = exception.split(": ", 1)
        assert failure(known[kind](text)) == status, exception
    for make in (lambda: torch.empty(10**15), lambda: np.empty(10**15)):
        with pytest.raises((RuntimeError, MemoryError)) as error:
            make()
        assert failure(error.value) == "out-of-memory"


def step(*names: str) -> None:
    """MPS hands operators to the CPU: one warning each, always from the same line, as in a training loop."""
    for name in names:
        warnings.warn(FALLBACK.format(name), UserWarning, stacklevel=1)


@pytest.fixture
def shown(monkeypatch):
    """The warnings that a person would see, under Python's default of once per line of code."""
    texts: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        monkeypatch.setattr(warnings, "showwarning", lambda message, *arguments, **named: texts.append(str(message)))
        yield texts


def test_fallbacks_are_collected_in_every_case_and_shown_once(shown):
    show, filters = warnings.showwarning, list(warnings.filters)
    mps = Device("mps")
    for _ in range(3):  # three cases of one process run the same lines
        shown.clear()
        with mps.watch_fallbacks() as seen:
            assert torch.is_warn_always_enabled()
            for _ in range(4):
                step("aten::_ctc_loss", "aten::mode")
                warnings.warn("something else", stacklevel=1)
        assert seen == {"aten::_ctc_loss", "aten::mode"}
        # Each once, as Python does by itself for a line.
        assert [sum(text in each for each in shown) for text in ("_ctc_loss", "aten::mode", "something else")] == [
            1
        ] * 3
    with pytest.raises(RuntimeError), mps.watch_fallbacks() as seen:
        step("aten::take")
        raise RuntimeError("MPS backend out of memory")
    assert seen == {"aten::take"}
    with Device("cpu").watch_fallbacks() as seen:
        assert warnings.showwarning is show and seen == set()
    assert warnings.showwarning is show and warnings.filters == filters
    assert not torch.is_warn_always_enabled()
    warnings.simplefilter("error")
    with mps.watch_fallbacks() as seen:
        step("aten::take")
    assert seen == {"aten::take"}


HIGH, LOW = devices_torch.WATERMARKS


def test_watermarks_are_set_as_a_pair_and_only_for_mps_and_no_pair_is_one_line(monkeypatch):
    for given, high, low in (
        ({}, "1", "1"),
        ({HIGH: "0.8"}, "0.8", "0.8"),  # PyTorch's own low one, 1.4, would be refused beside it
        ({HIGH: "0.0"}, "0", "0"),  # no limit
        ({LOW: "1.2"}, "1.2", "1.2"),
        ({LOW: "0.5"}, "1", "0.5"),
        ({HIGH: "0", LOW: "1.4"}, "0", "1.4"),
    ):
        assert devices_torch.watermarks(given | {"OTHER": "x"}) == {HIGH: high, LOW: low}
    for given in ({HIGH: "all"}, {LOW: "-1"}, {HIGH: "1", LOW: "1.4"}):
        with pytest.raises(PomologyError, match=r"^PYTORCH_MPS_(HIGH|LOW)_WATERMARK_RATIO=\S+: must [^\n]+$"):
            devices_torch.watermarks(given)
    monkeypatch.setattr(os, "environ", {LOW: "0.5"})
    assert Device("cpu").memory_limit == "" and os.environ == {LOW: "0.5"}
    limit = Device("mps").memory_limit
    assert os.environ == {HIGH: "1", LOW: "0.5"} and "here is 1 times the working set" in limit and "1.7" in limit


# --- TensorFlow without TensorFlow: the real one is in keras_side.py, in a process of its own ------------------------


class PretendedTensorFlow:
    """What `devices.tensorflow` asks TensorFlow for, and a log of it."""

    __version__ = "2.16.2"

    def __init__(self, gpus: int = 1, counted: bool = True, cuda: bool = True):
        self.log: list[str] = []
        unknown = None if counted else ValueError("Memory stats are not supported on this device\nand more")
        experimental = SimpleNamespace(
            enable_tensor_float_32_execution=lambda on: self.log.append(f"tf32 {on}"),
            set_memory_growth=lambda gpu, on: self.log.append(f"growth {gpu} {on}"),
            get_memory_info=mock.Mock(return_value={"current": 1, "peak": 5 * GB}, side_effect=unknown),
            reset_memory_stats=mock.Mock(side_effect=unknown),
            get_device_details=lambda gpu: {"device_name": "Tesla P100-PCIE-16GB"},
        )
        listed = [f"GPU:{number}" for number in range(gpus)]
        threading = SimpleNamespace(get_intra_op_parallelism_threads=lambda: 0)
        about = {"experimental": experimental, "threading": threading}
        self.config = SimpleNamespace(list_physical_devices=lambda kind: listed, **about)
        waits = SimpleNamespace(sync_devices=lambda: self.log.append("sync"))
        self.test = SimpleNamespace(experimental=waits, is_built_with_cuda=lambda: cuda)
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


def test_the_remapper_is_off_before_tensorflow_is_loaded_and_on_a_mac_it_may_be_too_late(tensorflow, monkeypatch):
    names = (devices_tensorflow.REMAPPER, "KERAS_BACKEND", "TF_CPP_MIN_LOG_LEVEL")
    monkeypatch.setattr(os, "environ", dict.fromkeys(names, "before"))
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    monkeypatch.delitem(sys.modules, "keras", raising=False)
    find.prepare("tensorflow")
    assert os.environ == dict(zip(names, ("1", "tensorflow", "before"), strict=True)), "who wants to see the log may"
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
        with pytest.raises(PomologyError, match=r"^[^\n]*TURN_OFF_REMAPPER=1[^\n]* restart the kernel[^\n]*$"):
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
        ("darwin", {}, "mps", ["metal"], {}),  # DEVICE=mps of a whole run means Apple's GPU in every framework
        ("darwin", {"gpus": 0}, "cpu", ["cpu"], {"metal": "tensorflow-metal "}),
        ("linux", {}, "gpu", ["cuda"], {"metal": "macOS only"}),
        ("linux", {"gpus": 0, "cuda": False}, "auto", ["cpu"], {"cuda": "built without CUDA"}),
    ],
)
def test_find_gives_tensorflow_s_devices_too(tensorflow, platform, facts, wanted, backends, lacks):
    made = tensorflow(platform, **facts)
    devices = find.find(wanted, "tensorflow")
    assert [each.backend for each in devices] == backends
    assert [each.handle for each in devices] == ["/CPU:0" if name == "cpu" else "/GPU:0" for name in backends]
    assert "tf32 False" in made.log and ("growth GPU:0 True" in made.log) == ("gpus" not in facts)
    reasons = find.frameworks()["tensorflow"].backends()
    assert list(reasons) == ["cpu", "cuda", "metal"] and all(words in reasons[name] for name, words in lacks.items())


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
    assert gpu.peak_memory() == {"allocated_peak_bytes": 5 * GB} and gpu.name == "Tesla P100-PCIE-16GB"
    assert gpu.memory() == {"allocated_bytes": 1}
    tensorflow("darwin", counted=False)
    metal = devices_tensorflow.TensorFlowDevice("metal")
    metal.reset_peak_memory()
    assert metal.peak_memory() == {} and metal.uncounted == "Memory stats are not supported on this device"
    assert metal.name == "Apple M2 Max" and metal.free_memory() == 10 * GB


@pytest.mark.parametrize(
    ("system", "minor", "has"), [("darwin", 13, True), ("darwin", 12, False), ("linux", 13, False)]
)
def test_python_3_13_has_no_metal_plug_in(system, minor, has, monkeypatch):
    version = namedtuple("Version", "major minor micro")(3, minor, 0)
    monkeypatch.setattr(devices_tensorflow, "sys", SimpleNamespace(platform=system, version_info=version))
    reasons = devices_tensorflow.TensorFlowDevice.unusable()
    assert list(reasons) == ["metal"] * has
    assert not has or "Python 3.13" in reasons["metal"]
