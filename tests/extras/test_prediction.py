"""Predictions against sums by hand and times that obey the model; counts against PyTorch's own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from records import metric, product, rate, record, stream
from torch import nn

from pomology.__main__ import main
from pomology.errors import PomologyError
from pomology.extras.prediction import devices, model, operators, times, validate
from pomology.extras.prediction.devices import Device
from pomology.extras.prediction.model import Model, Stack, Times
from pomology.extras.prediction.operators import Operator
from pomology.models import cost

PEAKS = {"fp32": 10e12, "tf32": None, "half": 100e12}
CARD = Device("a card", PEAKS, 500e9, "cuda", "by hand")
SHARES = np.array([0.5, 0.8, 0.1, 0.3, 0.4, 0.25, 0.6, 0.6, 1e-5, 1.0])
MODEL = Model(SHARES, (-0.1, 0.2))
STEP = [Operator("convolution", 1e12, 1e9, 100), Operator("elementwise", 0, 3e10, 300)]


def test_an_operator_takes_the_larger_of_computing_and_moving():
    """1e12 / (0.5 · 10e12) = 0.2 s; 3e10 / 300e9 = 0.1 s; 400 launches of 10 µs = 4 ms."""
    step_s, bound = MODEL.predict(STEP, CARD)
    assert step_s.value == pytest.approx(0.304) and step_s.how == "estimated"
    assert step_s.low == pytest.approx(0.304 * np.exp(-0.1)) and bound == "operations"
    step_s, bound = MODEL.predict(STEP, CARD, "bf16")  # 1e12 / (0.25 · 100e12) = 0.04 s
    assert step_s.value == pytest.approx(0.144) and bound == "memory traffic"
    late = CARD._replace(launch_s=1e-3)
    step_s, bound = MODEL.on(late).predict(STEP, late)
    assert step_s.value == pytest.approx(0.7) and bound == "launches"
    with pytest.raises(PomologyError, match=r"^fp16: a card has no ceiling in it in by hand"):
        MODEL.predict(STEP, CARD._replace(measured=True), "fp16")


def single(name: str, count: int, value: float):
    metrics = {"flops_per_s" if name == "depthwise" else "bytes_per_s": metric(value)}
    config = {"operation": name, "shape": f"{count // 10}x10", "precision": "fp32"}
    return record("peaks", metrics, config)


def test_a_processor_has_the_ceilings_and_single_operators_of_its_run():
    """An addition of 10 MB is between those of 1 and 100 MB, which reach 40 and 10 GB/s: 20, of
    which a training has 0.6. A convolution moves twice what it reads and writes, besides."""
    kernels = [product(2e11), product(1.9e11), stream(1e10)]
    assert not devices.measured_devices(kernels, "a run")  # no single operators
    timed = [single(name, 10**6, 1e10) for name in devices.SINGLE - {"addition", "depthwise"}]
    timed += [single("addition", 250_000, 4e10), single("addition", 25_000_000, 1e10)]
    timed += [single("depthwise", 10**6, value) for value in (4e9, 5e9, 9e9)]
    records = [*kernels, product(5e11, operation="convolution"), *timed]
    processor = devices.measured_devices(records, "a run")["cpu"]
    assert (processor.flops_per_s, processor.convolution) == ({"fp32": 2e11}, 5e11)
    assert processor.single["depthwise"] == [(4e6, 5e9)]
    small = {"largest": 10**7}
    for operator, seconds in (
        (Operator("elementwise", 0, 1e9, 0, **small), 1 / 12),
        (Operator("elementwise", 0, 1e9, 0, largest=10**8, fresh=False), 1 / 10),
        (Operator("depthwise", 1e10, 0, 0, **small), 2),
        (Operator("product", 1e11, 1e9, 0, **small), 1 / 1.6 + 1 / 12),
        (Operator("convolution", 1e11, 1e9, 0, **small, filled=0.5), 2 / 4 + 2 / 12),
        (Operator("elementwise", 0, 1e9, 0), 1 / 5),
    ):
        step_s, _ = MODEL.on(processor).predict([operator], processor)
        assert step_s.value == pytest.approx(seconds)


def simulated(spread: float = 0.0, cards: int = 12, factor: float = 1.0) -> list[Times]:
    """Return times that obey the model with SHARES, but for this spread of their logarithms."""
    random = np.random.default_rng(0)
    found = []
    for number in range(cards):
        peaks = {key: peak and peak * random.uniform(0.2, 5) for key, peak in PEAKS.items()}
        bandwidth = random.uniform(1e11, 2e12)
        card = CARD._replace(name=f"card {number}", flops_per_s=peaks, bytes_per_s=bandwidth)
        for workload in range(8):
            step = []
            for kind in ("convolution", "product", "depthwise", "elementwise"):
                flops, moved = 10 ** random.uniform(9, 13), 10 ** random.uniform(8, 10)
                step.append(Operator(kind, flops, moved, 99))
            work = model.work_of(step, card, ("fp32", "half")[workload % 2])
            one = Times(f"w{workload}", card, 1.0, work)
            seconds = factor * float(Stack.of([one]).parts(SHARES).sum())
            found.append(one._replace(step_s=seconds * float(np.exp(random.normal(0, spread)))))
    return found


def test_the_interval_covers_nine_of_ten_where_the_spread_is_known():
    row = validate.validation(simulated(0.3))[0].row()
    assert 0.8 <= row["covered"] <= 0.97
    assert row["median"] == pytest.approx(0.2, abs=0.08)  # exp(0.3 · 0.674) - 1 = 0.22


def test_a_device_that_is_left_out_cannot_tell_its_own_time():
    seen = simulated()
    slow = np.array([one.device.name == "card 3" for one in seen])
    seen = [one._replace(step_s=s * one.step_s) for one, s in zip(seen, 1 + 9 * slow, strict=True)]
    errors, inside = model.left_out(seen, [one.device.name for one in seen])
    assert np.median(errors[slow]) == pytest.approx(np.log(10), abs=0.15) and not inside[slow].any()
    assert np.median(np.abs(errors[~slow])) < 0.05


def test_other_workloads_calibrate_and_a_users_model_has_the_general_interval():
    seen = simulated(cards=1, factor=1.7)
    card = seen[0].device._replace(measured=True)
    seen = [one._replace(device=card) for one in seen]
    general = Model(SHARES, (-0.55, 0.55))
    kit = general.calibrated(card, seen, seen[0].workload)
    assert Stack.of(seen[:1]).errors(kit.shares) == pytest.approx([0], abs=0.05)
    assert kit.spread[1] < 0.5 and general.calibrated(card, seen).spread == (-0.55, 0.55)
    assert MODEL.calibrated(card._replace(backend="cpu"), []).spread == devices.CPU_UNSEEN


def test_the_kept_shares_are_the_fit_to_the_published_times():
    seen = times.published()
    assert f"of {len(seen):,} published times" in model.fitted().evidence
    assert model.fit(Stack.of(seen)) == pytest.approx(model.fitted().shares, rel=0.01)


def empty(*sizes: int) -> torch.Tensor:
    return torch.empty(sizes, device="meta")


def counted(build, *inputs, **settings) -> operators.Counted:
    with torch.device("meta"):
        module = build()
    return operators.count(module, operators.step(inputs), **settings)


def of(kind: str, work: operators.Counted) -> list[Operator]:
    return [operator for operator in work.operators if operator.kind == kind]


def flops(work: operators.Counted) -> float:
    return sum(operator.flops for operator in work.operators)


def test_a_product_by_hand():
    """16 x 8 times 8 x 4; the input needs no gradient, so backward is as much once more."""
    forward, backward = of("product", counted(lambda: nn.Linear(8, 4), empty(16, 8)))
    moved = 4 * (16 * 8 + 8 * 4 + 4 + 16 * 4)
    assert forward[1:4] == (2 * 16 * 8 * 4, moved, 1)
    assert backward[:4] == ("product", 2 * 16 * 8 * 4, 4 * (16 * 4 + 16 * 8 + 8 * 4), 1)


LAYERS = {
    "convolution": (lambda: nn.Conv2d(8, 16, 3, padding=1, groups=2), 2 * 100 * 16 * 4 * 9),
    "depthwise": (lambda: nn.Conv2d(8, 8, 3, padding=1, groups=8), 2 * 100 * 8 * 9),
    "transposed": (lambda: nn.ConvTranspose2d(8, 16, 2, stride=2), 2 * 100 * 8 * 16 * 4),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_convolution_by_hand(name):
    """Places (10 x 10) times the kernel's numbers; backward twice that, after a first layer."""
    layer, forward = LAYERS[name]
    first = 2 * (2 * 2 * 100 * 3 * 8)  # 1 x 1, forward and the kernel's gradient
    work = counted(lambda: nn.Sequential(nn.Conv2d(3, 8, 1), layer()), empty(2, 3, 10, 10))
    assert flops(work) == first + 3 * 2 * forward
    assert bool(of("depthwise", work)) == (name == "depthwise")


def test_an_lstm_is_its_matrices_at_each_place():
    """As many operations as where PyTorch writes the time steps out, by PyTorch's own counter."""

    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(8, 8), nn.LSTM(8, 16, 2, bidirectional=True))

    work = counted(build, empty(10, 4, 8))
    assert flops(work) == cost.workload(build, operators.step([empty(10, 4, 8)])).flops
    assert of("recurrent", work)[0].launches == 4 * (1 + 2 * 10)


def test_bf16_moves_half_and_computes_as_much():
    settings = ({}, {"precision": "bf16"})
    full, half = (
        counted(lambda: nn.Conv2d(8, 8, 3), empty(64, 8, 9, 9), **each) for each in settings
    )
    moved = [sum(one.bytes for one in of("convolution", work)) for work in (full, half)]
    assert moved[1] == moved[0] / 2 and flops(half) == flops(full)


def test_memory_is_weights_gradients_state_and_what_autograd_keeps():
    """8 x 4 weights four times with Adam's two, its counter, and the 16 x 8 numbers of the input."""
    work = counted(lambda: nn.Linear(8, 4, bias=False), empty(16, 8))
    assert work.memory_bytes == 4 * (4 * 8 * 4 + 1 + 16 * 8)
    half = counted(lambda: nn.Linear(8, 4, bias=False), empty(16, 8), precision="bf16")
    assert half.memory_bytes == work.memory_bytes - 2 * 16 * 8


FILE = """
import torch
from torch import nn
class Model(nn.Module):
    def __init__(self, body):
        super().__init__()
        self.layer, self.body = nn.Linear(8, 8), body
    def forward(self, data):
        return self.body(self.layer(data))
def plain(): return Model(lambda y: y)
def reads_values(): return Model(nn.Dropout(torch.linspace(0, 1, 3)[1].item()))
def fft(): return Model(lambda y: torch.fft.rfft(y).abs())
def nonzero(): return Model(lambda y: y[y > 0])
def raises(): raise ValueError("no\\nluck")
"""


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("plain", "predicted for M2 Max GPU from published peaks"),
        ("reads_values", "predicted for M2 Max GPU"),
        ("fft", "operator aten._fft_r2c is not counted"),
        ("nonzero", "operator aten.index is not counted"),
        ("raises", "mine.py: ValueError: no luck"),
    ],
)
def test_a_users_model_is_predicted_or_refused_in_one_line(tmp_path, capsys, function, words):
    place = tmp_path / "mine.py"
    place.write_text(FILE, encoding="utf-8")
    command = ["predict", f"{place}:{function}", "--input=4x8", "--on=M2 Max GPU"]
    status, (output, errors) = main(command), capsys.readouterr()
    assert words in output + errors
    assert (status, errors) == (0, "") or (status == 2 and errors.count("\n") == 1)


@pytest.mark.parametrize("words", ["--on=M2_Maxx", "--precision=int8"])
def test_wrong_arguments_get_one_line(capsys, words):
    assert main(["predict", "mlp 128", words]) == 2
    assert words.split("=")[1] in capsys.readouterr().err


def test_a_training_of_the_kit_is_counted_by_operators_where_they_add_up():
    vae = times.count({"workload": "vae", "batch_size": 128}, backend="cuda").operators
    total = int(sum(one.flops for one in vae))
    for stated, parts in ((total, len(vae)), (2 * total, 2)):
        case = record("vae", rate(1e11), flops_per_step=stated, bytes_per_step=10**8)
        assert len(times.of_run([case], {"cpu": CARD})[0][1].work) == parts


def test_a_runs_steps_are_shown_beside_their_predictions():
    case = record("vae", rate(1e11), flops_per_step=10**9, bytes_per_step=10**8)
    own = [(case, one) for one in simulated(cards=1)]
    own[0] = case, own[0][1]._replace(step_s=own[0][1].step_s / 1.25)
    alone, calibrated, vae = validate.own_errors(own, "a run", Model(SHARES, (-0.2, 0.2)))
    row = {"n": 8, "median": 0, "mean": 0.25 / 8, "within_30": 1, "covered": 7 / 8}
    assert alone.row() == pytest.approx(row, abs=1e-9)
    assert vae.name == "card 0: vae" and vae.row() == calibrated.row()
    assert validate.table("errors", [alone]).rows[0].cells[1:5] == ("8", "0 %", "3 %", "100 %")
