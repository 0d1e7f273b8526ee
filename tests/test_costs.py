"""Prices, times and energies together, against numbers by hand from the article's tables."""

import sys

import pytest
from records import product, rate, record

from pomology.measure.estimate import Estimate
from pomology.paths import root
from pomology.report import peaks
from pomology.results import frame

sys.path.append(str(root() / "notebooks" / "profiling_apple_silicon"))
import costs

GIB = 2**30
LARGE, SMALL = {"model": "gpt2-large", "batch_size": 4}, {"model": "gpt2", "batch_size": 1}


def case(experiment, backend, config, metrics, **more):
    metrics = {name: Estimate(value) for name, value in metrics.items()}
    framework = "mlx" if backend == "mlx-gpu" else "torch"
    return record(
        experiment,
        metrics,
        config,
        backend=backend,
        chip="Apple M3 Max",
        framework=framework,
        **more,
    )


RUN = [
    case("gpt2_pretraining", "mps", LARGE, {"pass_s": 4.0, "flops_per_s": 5e12}),
    case("gpt2_pretraining", "mlx-gpu", SMALL, {"pass_s": 0.5, "flops_per_s": 4e12}, scaled=True),
    case(
        "energy",
        "mps",
        SMALL,
        {"energy_j_per_step": 5.0, "step_s": 0.2},
        flops_per_step=10**12,
        scaled=True,
    ),
]
BEST = peaks.peaks([product(12e12, backend="mps"), product(99e12, "fp16", backend="mps")])


def offers(records=(), price=3000.0, memory=36 * GIB):
    return costs.offers(frame.of_records(records), BEST, memory, price)


def data(table, **wanted):
    return [
        row
        for row in table.data
        if all(row[name].startswith(value) for name, value in wanted.items())
    ]


def test_the_articles_devices_cost_what_a_pencil_says():
    table = costs.prices_table(offers(), 3.0)
    assert (
        len(table.rows) == 3 + 1 + 3 * 2
    )  # without a pass; the A6000; three Macs with two frameworks
    (card,) = data(table, device="NVIDIA RTX A6000")
    assert card["peak_flops_per_s_per_usd"] == pytest.approx(39e12 / 4650)
    assert card["memory_bytes_per_usd"] == pytest.approx(48 * GIB / 4650)
    assert card["flops_per_s_per_usd"] == pytest.approx(40.06e12 / 2.771 / 4650, rel=1e-3)
    assert card["share_of_peak"] == pytest.approx(40.06 / 2.771 / 39, rel=1e-3)
    assert card["usd_seconds_per_sequence"] == pytest.approx(4650 * 2.771 / 8)
    # A million sequences take 346,375 s; three years have 94,672,800.
    assert card["usd_per_million"] == pytest.approx(4650 * 346_375 / 94_672_800)
    (mlx,) = data(table, device="M2 Ultra", work="gpt2-large, mlx-gpu")
    assert mlx["usd_seconds_per_sequence"] / card["usd_seconds_per_sequence"] == pytest.approx(
        1.388, abs=1e-3
    )
    (without,) = data(table, device="NVIDIA GeForce RTX 4090")
    assert without["usd_per_million"] != without["usd_per_million"], "not a number"


def test_this_machine_stands_beside_them_at_its_price():
    table = costs.prices_table(offers(RUN), 3.0)
    large, small = data(table, device="Apple M3 Max GPU")
    assert {row.kind for row in table.rows[-2:]} == {"measured"}
    assert (
        large["share_of_peak"] == pytest.approx(5 / 12)
        and large["usd_seconds_per_sequence"] == 3000
    )
    assert large["memory_bytes_per_usd"] == pytest.approx(36 * GIB / 3000)
    assert small["work"] == "gpt2, mlx-gpu (scaled), batch 1" and small["pass_s"] != small["pass_s"]
    unpriced = costs.prices_table(offers(RUN, price=0.0), 3.0).rows[-1]
    assert unpriced.cells[2] == "" and unpriced.cells[4] == "12.0 TFLOP/s"
    nothing = [case("gpt2_pretraining", "mps", LARGE, {"flops_per_s": 1e12}, profile="smoke")]
    nothing.append(case("gpt2_pretraining", "mps", LARGE, {}, status="too-big"))
    assert len(offers(nothing)) == len(offers())
    card = [record("gpt2_pretraining", rate(1e12), LARGE, backend="cuda")]
    assert offers(card).memory_bytes.isna().iloc[-1]


def test_pairs_are_those_of_similar_price_and_no_others():
    printed = {
        (row["one"].split(" (")[0], row["other"].split(" (")[0])
        for row in costs.pairs_table(offers()).data
    }
    assert printed == {("M2 Ultra", "NVIDIA RTX A6000"), ("M2 Pro", "NVIDIA GeForce RTX 4090")}
    (first, *_) = costs.pairs_table(offers()).data
    assert (
        first["price"] == pytest.approx(6599 / 4650)
        and first["speed_per_usd"] == first["speed"] * first["price"]
    )
    with_ours = costs.pairs_table(offers(RUN, price=4650.0)).data
    ours = [row for row in with_ours if row["one"].startswith("Apple M3 Max")]
    assert {row["other"].split(" (")[0] for row in ours} == {"M2 Ultra", "NVIDIA RTX A6000"}
    assert all("gpt2-large" in row["one"] for row in ours), "the article's own model"


def test_energy_has_its_electricity_and_its_share_of_the_price():
    table = costs.energy_table(frame.of_records(RUN), 3000.0, 0.36, 3.0)
    assert [row["j_per_tflop"] for row in table.data][-1] == pytest.approx(5.0)
    ours = table.data[-1]
    assert ours["electricity_usd"] == pytest.approx(1000 * 5 * 0.36 / 3.6e6)
    assert ours["use_usd"] == pytest.approx(200 * 3000 / 94_672_800)
    assert ours["together_usd"] == pytest.approx(ours["electricity_usd"] + ours["use_usd"])
    (apple, *_) = [row for row in table.data if row["device"] == "M2 Ultra"]
    assert apple["use_usd"] != apple["use_usd"] and apple["electricity_usd"] > 0


def test_every_priced_device_is_drawn_once_and_each_pass():
    first, second = costs.figure(offers(RUN)).axes
    labels = [[label.get_text() for label in axis.get_yticklabels()] for axis in (first, second)]
    assert len(labels[0]) == len({*labels[0]}) == 8 and len(labels[1]) == 7 + 2
