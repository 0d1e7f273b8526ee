"""The model of the time of a step, against sums by hand."""

import json
import math
import re

import pytest

from pomology.extras.fit import times
from pomology.extras.fit.counts import Need
from pomology.extras.fit.plan import Plan
from pomology.extras.prediction.devices import Hardware
from pomology.paths import root

GPU = Hardware("G", {"fp32": 10e12, "tf32": 20e12, "half": 40e12}, 1e12, "cuda", "")
WORK = {
    "flops": 5e12,
    "attention": 1e12,
    "bytes": 2e11,
    "dequantized": 4e9,
    "launches": 1000.0,
}
NEED = Need(10**9, 10**8, {"optimizer": 8e8}, 1e10, WORK)
NUMBERS = {
    "products half": 1.25,
    "products fp32": 1.5,
    "products Apple": 2.0,
    "attention": 0.5,
    "traffic": 0.8,
    "traffic fused": 0.4,
    "traffic MLX": 0.2,
    "dequantized": 10.0,
    "dequantized Apple": 20.0,
    "launch": 1e-5,
    "launch Apple": 3e-5,
    "power": 2.0,
}


@pytest.fixture(autouse=True)
def fitted(monkeypatch):
    kept = {"numbers": NUMBERS, "spread": [math.log(0.5), math.log(2)]}
    monkeypatch.setattr(times, "kept", lambda: kept)


def test_a_step_in_half_precision_is_the_sum_by_hand():
    plan = Plan("qlora", precision="bf16")
    operations = 1.25 * (4e12 + 0.5 * 1e12) / 40e12
    traffic = 0.8 * 2e11 / 1e12
    dequantized = 10 * 2.5 * 4e9 / 1e12
    updated = (3 * 4 * 1e8 + 2 * 8e8) / 1e12  # adapters in fp32; states read and written
    busy = operations + traffic + dequantized + updated
    step, bound = times.predict(NEED, plan, GPU)
    assert step.value == pytest.approx(math.hypot(busy, 0.01))
    assert (step.low, step.high) == pytest.approx((step.value / 2, step.value * 2))
    assert bound == "memory traffic"


@pytest.mark.parametrize(
    ("plan", "backend", "numbers"),
    [
        (Plan("full", precision="fp32"), "cuda", ("products fp32", "traffic", "launch")),
        (Plan("full", loss="fused"), "cuda", ("products half", "traffic fused", "launch")),
        (Plan("lora", loss="in-place"), "cuda", ("products half", "traffic fused", "launch")),
        (Plan("lora", loss="chunked"), "cuda", ("products half", "traffic", "launch")),
        (Plan("lora"), "mps", ("products Apple", "traffic", "launch Apple")),
        (Plan("lora", framework="mlx"), "mps", ("products Apple", "traffic MLX", "launch Apple")),
    ],
)
def test_each_kind_of_step_has_its_numbers(plan, backend, numbers):
    names = times.names(plan, backend, plan.loss in times.WITH_FUSED_KERNELS)
    assert (names.products, names.traffic, names.launches) == numbers
    assert names.dequantized == ("dequantized Apple" if backend == "mps" else "dequantized")


def test_many_launches_are_what_takes_most():
    many = NEED._replace(work=WORK | {"launches": 1e6})
    step, bound = times.predict(many, Plan("full"), GPU)
    assert bound == "launches" and step.value > 10


def test_more_work_takes_longer():
    least = times.predict(NEED, Plan("full"), GPU)[0].value
    for part in WORK:
        more = NEED._replace(work=WORK | {part: 2 * WORK[part]})
        longer = times.predict(more, Plan("full"), GPU)[0].value
        # Attention is part of the operations, and takes half as long here.
        assert longer < least if part == "attention" else longer > least


def test_the_page_has_the_fitted_numbers():
    numbers = list(json.loads(times.KEPT.read_text(encoding="utf-8"))["numbers"].values())
    page = (root() / "docs" / "fit.md").read_text(encoding="utf-8")
    lines = page.partition("| number | fitted | meaning |")[2].split("\n\n")[0]
    cells = [line.split(" | ")[1] for line in lines.splitlines()[2:]]
    shown = [float(text) for cell in cells for text in re.findall(r"[\d.]+", cell)]
    launches = [1e6 if number < 1e-3 else 1 for number in numbers]
    assert shown == [
        pytest.approx(unit * number, rel=0.05)
        for unit, number in zip(launches, numbers, strict=True)
    ]
