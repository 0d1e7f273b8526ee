"""The work of any PyTorch module, against counts by hand and published ones; what a user's own file may do wrong."""

from __future__ import annotations

import math
import re
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from pomology.__main__ import main
from pomology.errors import PomologyError
from pomology.extras.prediction import operators, own_model, predict, rates
from pomology.extras.prediction.model import Model
from pomology.extras.prediction.rates import Device
from pomology.models import cost


def empty(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(sizes, dtype=dtype, device="meta")


def counted(build, *inputs, **more) -> operators.Counted:
    with torch.device("meta"):
        module = build()
    return operators.count(module, operators.step(inputs), **more)


def of(kind: str, work: operators.Counted) -> list[operators.Operator]:
    return [operator for operator in work.operators if operator.kind == kind]


def flops(work: operators.Counted) -> float:
    return sum(operator.flops for operator in work.operators)


def test_a_product_by_hand():
    """16 x 8 times 8 x 4; the input needs no gradient, so backward is one more of the same operations."""
    work = counted(lambda: nn.Linear(8, 4), empty(16, 8))
    forward, backward = of("product", work)
    assert forward[:5] == ("product", 2 * 16 * 8 * 4, 4 * (16 * 8 + 8 * 4 + 4 + 16 * 4), 1, 4 * 16 * 8)
    assert backward[:4] == ("product", 2 * 16 * 8 * 4, 4 * (16 * 4 + 16 * 8 + 8 * 4), 1)
    whole = operators.count(nn.Linear(8, 4), operators.step([torch.ones(16, 8)]))
    assert whole.operators == work.operators  # from wherever they are
    two = counted(lambda: nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 4)), empty(16, 8))
    assert flops(two) == 2 * (2 * 16 * 8 * 4) + 3 * (2 * 16 * 4 * 4)
    # Attention's products are those of one sequence: 10 x 6 times 6 x 10, and as many sizes a batch.
    (scores, *_) = of("product", counted(lambda: Products(), empty(7, 10, 6)))
    assert scores.flops == 7 * 2 * 10 * 6 * 10


class Products(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(6))

    def forward(self, data):
        return data @ (data * self.scale).transpose(1, 2)


@pytest.mark.parametrize(
    "layer, forward, kind",
    [
        (lambda: nn.Conv2d(8, 16, 3, padding=1), 2 * 100 * 16 * 8 * 9, "convolution"),
        (lambda: nn.Conv2d(8, 8, 3, padding=1, groups=8), 2 * 100 * 8 * 9, "depthwise"),
        (lambda: nn.Conv2d(8, 16, 3, padding=1, groups=2), 2 * 100 * 16 * 4 * 9, "convolution"),
        (lambda: nn.ConvTranspose2d(8, 16, 2, stride=2), 2 * 100 * 8 * 16 * 4, "convolution"),
    ],
    ids=("dense", "depthwise", "grouped", "transposed"),
)
def test_a_convolution_by_hand(layer, forward, kind):
    """Places of the input or output (10 x 10), times the kernel's numbers; backward twice that, after a first layer."""
    first = 2 * (2 * 2 * 100 * 3 * 8)  # 1 x 1, forward and the kernel's gradient
    work = counted(lambda: nn.Sequential(nn.Conv2d(3, 8, 1), layer()), empty(2, 3, 10, 10))
    assert flops(work) == first + 3 * 2 * forward
    assert sum(one.launches for one in of(kind, work)) == (4 if kind == "depthwise" else 7)


@pytest.mark.parametrize("directions, first", [(1, True), (2, False)])
def test_an_lstm_is_its_matrices_at_each_place(directions, first):
    """As many operations as where PyTorch writes the time steps out, which is counted by its own counter."""

    def build() -> nn.Module:
        before = nn.Identity() if first else nn.Linear(8, 8)
        return nn.Sequential(before, nn.LSTM(8, 16, 2, batch_first=True, bidirectional=directions == 2))

    def step(module):
        operators.default_loss(module(empty(4, 10, 8))).backward()

    work = counted(build, empty(4, 10, 8))
    assert flops(work) == cost.workload(build, step).flops
    forward, _ = of("recurrent", work)
    matrices = directions * 4 * 16 * ((8 + 16) + (directions * 16 + 16))
    assert forward.flops == 2 * 10 * 4 * matrices
    assert forward.launches == 2 * directions * (1 + 2 * 10)
    kept = 7 * 2 * directions * 10 * 4 * 16 * 4 + 4 * 10 * 8 * 4
    assert kept <= work.memory.activations <= kept + 2 * 4 * 10 * 8 * 4 + 4 * 4 * 10 * 16 * directions


def test_a_bag_reads_the_rows_of_its_words_and_makes_a_gradient_of_all():
    """Eight bags of forty words. Words, their bags, and the bags' places and sizes are whole numbers of 8 bytes."""
    work = counted(lambda: nn.EmbeddingBag(100_000, 64), empty(8, 40, dtype=torch.int64))
    forward, backward = of("embedding", work)
    assert forward.bytes == 4 * 64 * (8 * 40 + 8) + 8 * 2 * (8 * 40 + 8)
    assert 4 * 64 * 100_000 < backward.bytes < 1.01 * 4 * 64 * 100_000


def test_attention_is_two_products_forward_and_four_backward():
    layer = {"d_model": 32, "nhead": 4, "dim_feedforward": 64, "dropout": 0.0, "batch_first": True}
    works = {
        b: counted(lambda: nn.TransformerEncoderLayer(**layer), empty(4, 10, 32), backend=b) for b in ("mps", "cpu")
    }
    product = 2 * 4 * 4 * 10 * 10 * 8
    assert [operator.flops for operator in of("attention", works["cpu"])] == [2 * product, 4 * product]
    assert not of("attention", works["mps"]) and flops(works["mps"]) == flops(works["cpu"])
    # Of 3 + 1 + 2 + 2 matrices of 32 x 32, the first three need no gradient of their input.
    assert flops(works["cpu"]) == 6 * product + 2 * 40 * 32 * 32 * (3 * 8 - 3)


def test_resnet_50_takes_its_published_operations():
    """4.09 billion multiply-adds an image forward (torchvision's table of models); the first layer, 7 x 7 x 3 x 64 at
    112 x 112 places, needs no gradient of its input."""
    from transformers import ResNetConfig, ResNetForImageClassification

    work = counted(lambda: ResNetForImageClassification(ResNetConfig(num_labels=1000)), empty(8, 3, 224, 224))
    first = 2 * 7 * 7 * 3 * 64 * 112 * 112
    assert flops(work) == pytest.approx(8 * (3 * 2 * 4.09e9 - first), rel=1e-3)
    assert sum(operator.launches for operator in of("convolution", work)) == 53 * 3 - 1


def test_bf16_is_what_autocast_makes_of_it():
    """What is kept for the backward pass is as PyTorch's own autocast keeps it on the CPU, which meta does not have."""

    def build() -> nn.Module:
        features = [nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.Flatten()]
        return nn.Sequential(*features, nn.Linear(16 * 12 * 12, 32), nn.GELU(), nn.Linear(32, 5), nn.Softmax(1))

    module, data = build(), torch.randn(4, 3, 16, 16)
    with cost.saved_tensors(module) as kept, torch.autocast("cpu", torch.bfloat16):
        loss = operators.default_loss(module(data))
        assert loss.dtype == torch.float32
    full, half = (counted(build, data, precision=precision) for precision in ("fp32", "bf16"))
    # The softmax's few numbers are kept in fp32 on CUDA and MPS, in bf16 on the CPU.
    assert 0 <= half.memory.activations - kept["peak"] <= 4 * 5 * 4
    assert flops(half) == flops(full) and half.memory[:3] == full.memory[:3]
    moved = [sum(operator.bytes for operator in of("convolution", work)) for work in (half, full)]
    assert moved[0] == moved[1] / 2


def test_gpt2_takes_what_the_rule_of_six_says_with_attention():
    """6 operations a weight in a matrix and token, and 12 x layers x tokens x length x width (PaLM, appendix B)."""
    from transformers import GPT2Config, GPT2LMHeadModel

    with torch.device("meta"):
        module = GPT2LMHeadModel(GPT2Config(attn_pdrop=0.0))
    tokens = empty(2, 512, dtype=torch.int64)
    work = operators.count(module, operators.step({"input_ids": tokens, "labels": tokens}))
    matrices = 12 * 12 * 768**2 + 50257 * 768
    assert flops(work) == 6 * 1024 * matrices + 12 * 12 * 1024 * 512 * 768
    assert work.memory[:3] == pytest.approx((4 * 124_439_808, 4 * 124_439_808, 8 * 124_439_808), rel=1e-5)
    # Adam, weight by weight, reads and writes at the least gradient, weight and two moments.
    assert sum(one.bytes for one in of("optimizer", work)) >= 7 * 4 * 124_439_808 and len(of("embedding", work)) == 4


def measured_peak(module: nn.Module, data: torch.Tensor) -> int:
    """Bytes at the highest point of a second step with Adam on the CPU, by what its allocator reports."""
    optimizer = torch.optim.Adam(module.parameters())

    def step():
        optimizer.zero_grad()
        operators.default_loss(module(data)).backward()
        optimizer.step()

    step()
    state = [tensor for kept in optimizer.state.values() for tensor in kept.values()]
    now = peak = sum(tensor.nbytes for tensor in [*module.parameters(), *module.buffers(), *state])
    optimizer.zero_grad()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        step()
    for event in profiled.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            peak = max(peak, now)
    return peak


MODELS = {
    "wide, small batch": (lambda: nn.Sequential(*(nn.Linear(512, 512) for _ in range(6))), (8, 512), 0.01),
    "narrow, large batch": (lambda: nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 8)), (4096, 64), 0.01),
    # Its convolutions reorder their numbers in memory of their own.
    "convolutions": (lambda: nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3)), (16, 3, 64, 64), 0.3),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_memory_of_a_step_is_what_the_allocator_reports(name):
    build, sizes, tolerance = MODELS[name]
    measured = measured_peak(build(), torch.randn(sizes))
    memory = counted(build, empty(*sizes), backend="cpu").memory
    assert measured * (1 - tolerance) <= memory.peak <= measured * 1.01


# What a user's file may do wrong --------------------------------------------------------------------------------------

FILE = """
import dataclasses
import torch
from torch import nn

@dataclasses.dataclass
class Fields:
    logits: torch.Tensor

class Model(nn.Module):
    def __init__(self, body):
        super().__init__()
        self.layer, self.body = nn.Linear(8, 8), body
    def forward(self, data):
        return self.body(self.layer(data))

def plain(): return Model(lambda y: y)
def several(): return Model(lambda y: {"first": y, "more": (y.argmax(1), y.sum())})
def fields(): return Model(lambda y: Fields(y))
def own_loss(): return Model(lambda y: {"loss": y.sum(), "logits": y})
def reads_values():  # while it builds, as models with stochastic depth do
    model = plain()
    model.rates = [rate.item() for rate in torch.linspace(0, 1, 3)]
    return model
def fft(): return Model(lambda y: torch.fft.rfft(y).abs())
def nonzero(): return Model(lambda y: y[y > 0])
def item(): return Model(lambda y: y if y.sum().item() > 0 else -y)
def sparse(): return Model(lambda y: torch.sparse.mm(torch.eye(8).to_sparse(), y))
def quantized(): return Model(torch.ao.nn.quantized.Linear(8, 8))
def custom():
    how = {"mutates_args": (), "schema": "(Tensor y) -> Tensor"}
    return Model(torch.library.custom_op("kit_test::mine", lambda y: y.clone(), **how))
def numpy(): return Model(lambda y: torch.from_numpy(y.detach().numpy()))
def weights(): return torch.hub.load_state_dict_from_url("https://download.pytorch.org/none.pth", model_dir="none")
def a_file(): return torch.load("weights.pt")
def number(): return 7
def raises(): raise ValueError("no\\nluck")
def needs(classes): return nn.Linear(8, classes)
def leaves(): raise SystemExit(3)
def frozen(): return plain().requires_grad_(False)
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("own") / "mine.py"
    place.write_text(FILE, encoding="utf-8")
    return place


def asked(place: Path, function: str, inputs: str = "4x8"):
    """What the process that counts it answers, asked here: PyTorch is loaded once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(own_model, "SETTINGS", {})
        patch.setattr(own_model.socket, "getaddrinfo", None)
        patch.setattr(own_model.socket.socket, "connect", None)
        patch.setattr("sys.path", [*sys.path])
        patch.chdir(place.parent)  # where user code writes, as torch.hub does
        return own_model._answer(str(place), function, own_model.parse_inputs(inputs), "fp32", "adam", "mps")


@pytest.mark.parametrize(
    "function, launches", [("plain", 1), ("several", 4), ("fields", 1), ("own_loss", 1), ("reads_values", 1)]
)
def test_what_a_model_gives_becomes_a_loss(place, function, launches):
    work = asked(place, function)
    assert flops(work) == 2 * (2 * 4 * 8 * 8), work
    assert len(of("reduction", work)) == launches + 1  # with the bias's gradient


WRONG = {
    "fft": "step with --input 4x8: operator aten._fft_r2c is not counted",
    "nonzero": "operator aten.index is not counted: what it does depends on the values",
    "item": r"operator aten._local_scalar_dense is not counted: what it does depends on .* \(mine.py, line 27\)$",
    "sparse": "operator aten._to_sparse is not counted",
    "quantized": "operator quantized.linear is not counted",
    "custom": "operator kit_test.mine is not counted",
    "numpy": "step with --input 4x8: TypeError: can't convert meta device type tensor to numpy",
    "weights": r"weights\(\): it asks the network",
    "a_file": r"a_file\(\): FileNotFoundError: .*weights.pt",
    "number": r"number\(\) gives a int, not a torch.nn.Module",
    "raises": r"raises\(\): ValueError: no luck \(mine.py, line 37\)$",
    "needs": r"needs\(\): TypeError: .*missing 1 required positional argument: 'classes'",
    "leaves": r"leaves\(\): SystemExit: 3",
    "frozen": "the model has no weights to train",
    "plane": "no function plane in it; it has plain",
}


@pytest.mark.parametrize("function", WRONG)
def test_what_is_wrong_with_a_file_is_one_line(place, function):
    answer = asked(place, function)
    assert isinstance(answer, str) and "\n" not in answer
    assert re.search(WRONG[function], answer), answer


def test_shapes_that_do_not_fit_and_files_that_do_not_import(place, tmp_path):
    assert re.search(r"--input 4x9: RuntimeError: .* \(mine.py, line 15\)$", asked(place, "plain", "4x9"))
    assert "--input 4x8, 4x8: TypeError" in asked(place, "plain", "4x8,4x8")
    for text, words in (("import nonsense_42", "ModuleNotFoundError"), ("def f(:", "SyntaxError"), ("0/0", "ZeroDiv")):
        (tmp_path / "bad.py").write_text(text, encoding="utf-8")
        assert f"it does not import: {words}" in asked(tmp_path / "bad.py", "build")


@pytest.mark.parametrize(
    "line, words",
    [
        ("mine.py: --input 4x8", "mine.py:: must be a file and a function"),
        ("none.py:build --input 4x8", "none.py: no such file"),
        ("mine.txt:build --input 4x8", "mine.txt: no such file of Python"),
        ("mine.py:plain", "--input"),
        ("mine.py:plain --input 4by8", "--input 4by8: must be sizes"),
        ("mine.py:plain --input 4x0", "--input 4x0: must be sizes"),
        ("mine.py:plain --input x=4x8,4x8", "all with a name= or none"),
        ("mine.py:plain --input 4x8 --precision fp8", "--precision fp8: must be one of fp32, bf16, fp16"),
        ("mine.py:plain --input 4x8 --optimizer lion", "--optimizer lion: must be one of adam"),
        ("mine.py:plain --input 4x8 --epoch 0", "--epoch 0: must be a number of samples, 1 or more"),
        ("mine.py:plain --input 4x8 --epoch many", "argument --epoch: invalid int value: 'many'"),
        ("mine.py:plain --input 4x8 --on Abacus", "--on Abacus: no such device; close to it: "),
    ],
)
def test_wrong_arguments_are_one_line_and_start_no_process(place, monkeypatch, capsys, line, words):
    monkeypatch.chdir(place.parent)
    (place.parent / "mine.txt").touch()
    monkeypatch.setattr(own_model.isolated, "call", lambda *_, **__: pytest.fail("started"))
    assert main(["predict", *line.split()]) == 2
    out, err = capsys.readouterr()
    assert not out and err.startswith("pomology: ") and words in err and err.count("\n") == 1


PROCESSES = {
    "print": ("subprocess.Popen(['sleep', '77.7'])\nwhile True: print(1e99)", "it was not counted within 3 s"),
    "exit": ("os._exit(0)", "ended with status 0: it left no answer"),
    "kill": ("subprocess.Popen(['sleep', '77.7']); os.kill(os.getpid(), 9)", "ended by SIGKILL: it left no answer"),
}


@pytest.mark.parametrize("name", PROCESSES)
def test_a_process_that_does_not_come_back_leaves_nothing_behind(name, tmp_path, monkeypatch, capfd):
    code, words = PROCESSES[name]
    place = tmp_path / "mine.py"
    place.write_text(f"import os, subprocess\n{code}\n", encoding="utf-8")
    monkeypatch.setattr(own_model, "LIMIT_S", 3.0)
    assert main(["predict", f"{place}:build", "--input", "4x8"]) == 2
    out, err = capfd.readouterr()
    assert not out and err.startswith("pomology: mine.py: ") and words in err and err.count("\n") == 1
    end = time.monotonic() + 5
    while left := [p for p in psutil.process_iter(["cmdline"]) if "77.7" in (p.info["cmdline"] or ())]:
        assert time.monotonic() < end, left
        time.sleep(0.05)


def test_a_whole_file_is_counted_in_a_process_of_its_own_and_predicted(place, capfd, monkeypatch):
    """1,024 operations at 10 MFLOP/s are 0.1024 ms, give or take a fifth; its bytes take no time."""
    text = FILE + "\nprint('loud')\ndef loss(output): return output.square().mean()\n"
    place = place.with_name("whole.py")
    place.write_text(text, encoding="utf-8")
    slow = Device("M4 Max GPU", {"fp32": 1e7}, 1e15, "mps", "a shared run")
    ends = math.log(0.8), math.log(1.2)
    monkeypatch.setattr(predict, "known", lambda *_: predict.Known({slow.name: slow}, [], []))
    monkeypatch.setattr(predict, "model", lambda: Model(np.array([1.0] * 8 + [0.0, 1.0]), ends, 10, 0.9))
    lines = predict.answer(f"{place}:plain", 4001, input="4x8", on="M4 Max GPU")
    assert capfd.readouterr() == ("", "")
    assert lines[0].startswith("whole.py:plain, --input 4x8, fp32, adam; counted of a step: 1.024e-06 GFLOP, ")
    step = "a step takes 0.102 ms (90 %: 81.9 µs to 0.123 ms), most of it operations"
    assert lines[2] == f"predicted for M4 Max GPU from a shared run: {step}"
    assert "4,001 samples, 1,001 steps, take 0.103 s (90 %: 82.0 ms to 0.123 s)" in lines[3]
    assert lines[5].startswith("such 90 % intervals held 90 % of 10 published times")


def test_devices_and_inputs():
    with pytest.raises(PomologyError, match=r"--on M4 Max: no such device; close to it: M4 Max GPU"):
        rates.chosen("M4 Max", {"M4 Max GPU": None, "Quadro RTX 4000": None})
    assert own_model.parse_inputs("32x3x224x224, 32:int")[1] == (None, (32,), True)
