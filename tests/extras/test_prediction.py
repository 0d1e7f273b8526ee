"""Predictions compared with sums by hand and simulated times; counts compared with PyTorch's."""

import numpy as np
import pandas
import pytest
import torch
import validate
from records import product, rate, record, stream, write
from torch import nn

from pomology.__main__ import main
from pomology.errors import PomologyError
from pomology.extras.prediction import model, times, work
from pomology.extras.prediction.devices import Device
from pomology.extras.prediction.model import Model
from pomology.extras.prediction.work import Work
from pomology.results import frame

PEAKS = {"fp32": 10e12, "tf32": None, "half": 100e12}
CARD = Device("a card", PEAKS, 500e9, "cuda", "by hand")
# Shares for convolutions in half, matmuls in fp32, other computing, memory, memory in half.
NUMBERS = np.array([1 / 0.25, 1 / 0.8, 1 / 0.5, 1 / 0.6, 1 / 0.5, 1e-5])
MODEL = Model(NUMBERS, (-0.1, 0.2))
STEP = Work(convolutions=1e12, products=8e11, bytes=3e10, launches=400)


def test_a_step_is_the_sum_of_computing_moving_and_launching():
    """1e12 / (0.5 · 10e12) + 8e11 / (0.8 · 10e12) + 3e10 / (0.6 · 500e9) + 400 · 10 µs."""
    step_s, bound = MODEL.predict(STEP, CARD)
    assert step_s.value == pytest.approx(0.2 + 0.1 + 0.1 + 0.004) and step_s.how == "estimated"
    assert step_s.low == pytest.approx(0.404 * np.exp(-0.1)) and bound == "operations"
    # 1e12 / (0.25 · 100e12) + 8e11 / (0.5 · 100e12) + 3e10 / (0.5 · 500e9) + 4 ms
    step_s, bound = MODEL.predict(STEP, CARD, "bf16")
    assert step_s.value == pytest.approx(0.04 + 0.016 + 0.12 + 0.004) and bound == "memory traffic"
    _, bound = MODEL.predict(STEP._replace(launches=1e6), CARD)
    assert bound == "launches"
    with pytest.raises(PomologyError, match=r"^fp16: a card has no such peak in by hand"):
        MODEL.predict(STEP, CARD._replace(measured=True), "fp16")


def simulated(spread: float = 0.0, cards: int = 12, factor: float = 1.0) -> pandas.DataFrame:
    """Return times by the model with NUMBERS, with normal errors of their logarithms."""
    random = np.random.default_rng(0)
    rows = []
    for number in range(cards):
        peaks = {key: peak and peak * random.uniform(0.2, 5) for key, peak in PEAKS.items()}
        bandwidth = random.uniform(1e11, 2e12)
        card = CARD._replace(name=f"card {number}", flops_per_s=peaks, bytes_per_s=bandwidth)
        for workload in range(8):
            convolutions, products = 10 ** random.uniform(9, 13, 2)
            step = Work(convolutions, products, 10 ** random.uniform(8, 10), 99)
            columns = model.columns(step, card, ("fp32", "half")[workload % 2])
            seconds = factor * float(np.array(list(columns.values())) @ NUMBERS)
            time = {"workload": f"w{workload}", "device": card.name}
            time["step_s"] = seconds * float(np.exp(random.normal(0, spread)))
            rows.append(time | columns)
    return pandas.DataFrame(rows)


def test_the_interval_covers_90_percent_of_normal_errors():
    row = validate.summary(model.left_out(simulated(0.3), "device"))
    assert 0.8 <= row["covered"] <= 0.97
    assert row["median"] == pytest.approx(0.2, abs=0.08)  # exp(0.3 · 0.674) - 1 = 0.22


def test_other_workloads_calibrate_and_a_users_model_has_the_general_interval():
    seen = simulated(cards=1, factor=1.7)
    card = CARD._replace(name="card 0", measured=True)
    general = Model(NUMBERS, (-0.55, 0.55))
    calibrated = general.calibrated(card, seen, "w0")
    assert model.errors_of(seen[:1], calibrated.numbers) == pytest.approx([0], abs=0.05)
    assert calibrated.spread[1] < 0.5 and general.calibrated(card, seen).spread == (-0.55, 0.55)
    cpu = card._replace(backend="cpu")
    assert MODEL.calibrated(cpu, seen[:0]).spread == model.CPU_UNSEEN


def test_the_stored_parameters_fit_published_times_as_well_as_a_new_fit():
    seen = times.published()
    assert f"of {len(seen):,} published times" in model.fitted().evidence
    errors = [
        model.errors_of(seen, numbers) for numbers in (model.fitted().numbers, model.fit(seen))
    ]
    kept, new = np.abs(errors) @ model.weights_of(seen["workload"])
    assert kept == pytest.approx(new, rel=1e-3)


def empty(*sizes: int) -> torch.Tensor:
    return torch.empty(sizes, device="meta")


def counted(build, *inputs, **settings) -> Work:
    with torch.device("meta"):
        module = build()
    return work.count(module, work.step(inputs), **settings)


@pytest.mark.parametrize(
    ("layer", "forward"),
    [
        (lambda: nn.Conv2d(8, 16, 3, padding=1, groups=2), 2 * 100 * 16 * 4 * 9),
        (lambda: nn.ConvTranspose2d(8, 16, 2, stride=2), 2 * 100 * 8 * 16 * 4),
    ],
)
def test_a_convolution_by_hand(layer, forward):
    """10 x 10 positions times the kernel's elements; backward twice that, after a first layer."""
    first = 2 * (2 * 2 * 100 * 3 * 8)  # 1 x 1, forward and the kernel's gradient
    step = counted(lambda: nn.Sequential(nn.Conv2d(3, 8, 1), layer()), empty(2, 3, 10, 10))
    assert (step.convolutions, step.products) == (first + 3 * 2 * forward, 0)


def test_memory_is_weights_gradients_state_and_tensors_of_autograd():
    """8 x 4 weights, their gradients, Adam's two moments, its counter, and the 16 x 8 inputs."""
    step = counted(lambda: nn.Linear(8, 4, bias=False), empty(16, 8))
    assert step.memory_bytes == 4 * (4 * 8 * 4 + 1 + 16 * 8)
    half = counted(lambda: nn.Linear(8, 4, bias=False), empty(16, 8), precision="bf16")
    assert half.memory_bytes == step.memory_bytes - 2 * 16 * 8


FILE = """
from torch import nn
class Model(nn.Linear):
    def __init__(self, change):
        super().__init__(8, 8)
        self.change = change
    def forward(self, data):
        return self.change(super().forward(data))
def plain(): return Model(lambda y: y)
def nonzero(): return Model(lambda y: y[y > 0])
def detached(): return Model(lambda y: y.detach())
"""
ASKED = {
    "plain": (0, "predicted for M2 Max GPU from published peaks"),
    "nonzero": (2, "mine.py: NotImplementedError: "),
    "detached": (2, "the model's output does not depend on its weights"),
}


@pytest.mark.parametrize("function", ASKED)
def test_a_users_model_is_predicted_or_refused_in_one_line(tmp_path, capsys, function):
    place = tmp_path / "mine.py"
    place.write_text(FILE, encoding="utf-8")
    status, words = ASKED[function]
    assert main(["predict", f"{place}:{function}", "--input=4x8", "--on=M2 Max GPU"]) == status
    output, errors = capsys.readouterr()
    assert words in output + errors and errors.count("\n") == (status == 2)


STEPS = {"flops_per_step": 10**9, "bytes_per_step": 10**8}


def test_a_runs_steps_are_the_sums_of_its_records():
    """0.01 s for 1e9 operations at 10e12/s, and for 1e8 bytes at 500e9/s; no half precision."""
    cases = [record("vae", rate(1e11), **STEPS)]
    cases.append(record("vae", rate(1e11), {"offload": True}, **STEPS))
    cases.append(record("vae", rate(1e11), {"batch_size": 1}, precision="bf16", **STEPS))
    (step,) = times.of_run(frame.of_records(cases), {"cpu": CARD}).to_dict("records")
    assert (step["workload"], step["device"], step["launches"]) == ("vae", "a card", 0)
    found = (step["step_s"], step["fp32_products"], step["memory"])
    assert found == pytest.approx((0.01, 1e-4, 2e-4))


def test_a_workload_of_pomology_is_predicted_on_a_run(tmp_path, capsys):
    """Its step has 420 MFLOP at 2e11 FLOP/s; another workload of the run calibrates."""
    case = record("mlp", rate(1e11), **STEPS)
    write(tmp_path / "mine", [product(2e11), stream(1e10), case], {"chip": "Apple M9"})
    assert main(["predict", "vae 128", f"--from={tmp_path / 'mine'}"]) == 0
    assert "predicted for cpu from the peaks measured in the run mine" in capsys.readouterr().out
