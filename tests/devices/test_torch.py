"""PyTorch's devices without the devices: calls to GPUs are replaced by ones that note who was asked."""

from __future__ import annotations

import os
import warnings
from collections import namedtuple
from types import SimpleNamespace
from unittest import mock

import pytest
import torch

from pomology.devices import find
from pomology.devices import torch as devices_torch
from pomology.devices.failures import failure
from pomology.devices.torch import TorchDevice as Device
from pomology.errors import PomologyError, Unsupported
from pomology.machine import snapshot

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
        **{
            f"accelerator.{name}": None
            for name in ("synchronize", "empty_cache", "reset_peak_memory_stats")
        },
        **{"accelerator.max_memory_allocated": 7 * GB, "accelerator.max_memory_reserved": 9 * GB},
        **{"accelerator.memory_allocated": 2 * GB, "accelerator.memory_reserved": 3 * GB},
        "accelerator.get_memory_info": (6 * GB, 8 * GB),
        **{"mps.recommended_max_memory": 24 * GB, "mps.driver_allocated_memory": 5 * GB},
        "mps.current_allocated_memory": 4 * GB,
        **{
            "cuda.get_device_name": "GeForce RTX 2070 SUPER",
            "xpu.get_device_name": "Intel Arc B580",
        },
    }
    for name, answer in answers.items():
        # Raises if this PyTorch has no such function.
        monkeypatch.setattr(
            f"torch.{name}", lambda *_, name=name, answer=answer: log.append(name) or answer
        )
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
            monkeypatch.setattr(
                getattr(torch, name), "is_available", lambda name=name: name in present
            )
            monkeypatch.setattr(torch.version, name, "12.8" if name in built else None)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: "mps" in present)

    return say


@pytest.mark.parametrize(
    ("built", "wanted", "words"),
    [
        ((), "mps", ["'mps'", "no Metal GPU", "arm64", "it has cpu"]),
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
    assert [(device.backend, device.handle) for device in find.find(wanted)] == [
        (b, torch.device(b)) for b in backends
    ]
    for function in (find.prepare, lambda name: find.find("cpu", name)):
        with pytest.raises(
            PomologyError, match=r"^framework: 'theano' is not known; one of torch, tensorflow"
        ):
            function("theano")


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
    for suffix, counted, expected in (
        ("_peak", device.peak_memory(), peak),
        ("", device.memory(), now),
    ):
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
            torch.accelerator,
            "max_memory_reserved",
            mock.Mock(side_effect=RuntimeError(f"{words}\nAnd more.")),
        )
        mps.reset_peak_memory()
        assert mps.peak_memory() == {} and mps.uncounted == words
        assert mps.memory() == {
            "allocated_bytes": 4 * GB,
            "reserved_bytes": 5 * GB,
        }  # by other counters
    mps.reset_peak_memory()  # the next case asks again
    assert mps.uncounted is None and mps.peak_memory()["allocated_peak_bytes"] == 7 * GB


@pytest.mark.parametrize(("capability", "tf32"), [((7, 5), False), ((8, 0), True)])
def test_cuda_convolves_in_tf32_as_pytorch_comes_and_in_fp32_where_asked(
    calls, monkeypatch, capability, tf32
):
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
    moved = elsewhere("mps").to_device(
        [x, (x, "name", 3, None), {"a": x, "b": [x]}, Pair(x, x), packed, sequence]
    )
    tensors = [
        moved[0],
        moved[1][0],
        moved[2]["a"],
        moved[2]["b"][0],
        moved[3].image,
        moved[3].label,
    ]
    assert {tensor.device.type for tensor in tensors} == {"meta"}
    assert moved[1][1:] == ("name", 3, None) and isinstance(moved[3], Pair)
    assert moved[4] is packed and packed.handle == torch.device("meta")
    assert (moved[5].data.device.type, moved[5].batch_sizes.device.type) == (
        "meta",
        "cpu",
    )  # PyTorch wants it there
    batch = {"x": [torch.zeros(2, dtype=torch.float64)]}
    with pytest.raises(
        Unsupported, match=r"^MPS has no float64: convert to float32 first$"
    ) as error:
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


def step(*names: str) -> None:
    """MPS hands operators to the CPU: one warning each, always from the same line, as in a training loop."""
    for name in names:
        warnings.warn(FALLBACK.format(name), UserWarning, stacklevel=1)


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
        with pytest.raises(
            PomologyError, match=r"^PYTORCH_MPS_(HIGH|LOW)_WATERMARK_RATIO=\S+: must [^\n]+$"
        ):
            devices_torch.watermarks(given)
    monkeypatch.setattr(os, "environ", {LOW: "0.5"})
    assert Device("cpu").memory_limit == "" and os.environ == {LOW: "0.5"}
    limit = Device("mps").memory_limit
    assert os.environ == {HIGH: "1", LOW: "0.5"} and "1 times Metal" in limit


def test_the_smallest_kernel_is_an_addition_and_on_mps_a_metal_kernel_of_one_thread(monkeypatch):
    for own in (True, False):
        launch, words = Device("cpu").smallest_kernel(own)
        assert (
            launch().item() == 2.0 and launch().item() == 3.0 and words == "adding 1 to one number"
        )
    launched = []
    shader = SimpleNamespace(
        pomology_one=lambda *tensors: launched.append([tensor.numel() for tensor in tensors])
    )
    monkeypatch.setattr(torch.mps, "compile_shader", lambda source: shader)
    mps = Device("mps")
    mps.handle = torch.device("cpu")
    launch, words = mps.smallest_kernel()
    launch()
    assert words == "a Metal kernel of one thread" and launched == [
        [1]
    ]  # as many threads as the tensor has numbers
    assert mps.smallest_kernel(own=False)[1] == "adding 1 to one number"
