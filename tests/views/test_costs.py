"""Prices, times and energies together, against numbers by hand from the article's tables."""

import pytest
from msgspec.structs import replace
from records import product, rate, record

from pomology.measure.estimate import Estimate
from pomology.report import peaks
from pomology.views import costs

GIB = 2**30
LARGE, SMALL = {"model": "gpt2-large", "batch_size": 4}, {"model": "gpt2", "batch_size": 1}
BEST = peaks.best([product(12e12, backend="mps"), product(99e12, "fp16", backend="mps")])


def case(experiment, config, metrics, **more):
    metrics = {name: Estimate(value) for name, value in metrics.items()}
    return record(experiment, metrics, config, backend="mps", chip="Apple M3 Max", **more)


WORK = {"flops_per_step": 10**12, "scaled": True}
RUN = [
    case("gpt2_pretraining", LARGE, {"pass_s": 4.0, "flops_per_s": 5e12}),
    case("energy", SMALL, {"energy_j_per_step": 5.0, "step_s": 0.2}, **WORK),
]


def offers(records=(), price=3000.0, memory=36 * GIB):
    return costs.offers(records, BEST, memory, price)


def rows_of(table, device):
    return [row for row in table.data if row["device"].startswith(device)]


def test_the_articles_devices_cost_what_a_pencil_says():
    table = costs.prices_table(offers(), 3.0)
    assert len(table.rows) == 3 + 1 + 3 * 2  # without a pass; the A6000; Macs, two frameworks each
    (card,) = rows_of(table, "NVIDIA RTX A6000")
    assert card["peak_flops_per_s_per_usd"] == pytest.approx(39e12 / 4650)
    assert card["memory_bytes_per_usd"] == pytest.approx(48 * GIB / 4650)
    assert card["flops_per_s_per_usd"] == pytest.approx(40.06e12 / 2.771 / 4650, rel=1e-3)
    assert card["share_of_peak"] == pytest.approx(40.06 / 2.771 / 39, rel=1e-3)
    assert card["usd_seconds_per_sequence"] == pytest.approx(4650 * 2.771 / 8)
    # A million sequences take 346,375 s; three years have 94,672,800.
    assert card["usd_per_million"] == pytest.approx(4650 * 346_375 / 94_672_800)
    (without,) = rows_of(table, "NVIDIA GeForce RTX 4090")
    prices = [row.cells["Price"] for row in table.rows if "4090" in row.cells["Device"]]
    assert prices == ["1,599 USD"]  # as table 1 prints it
    assert without["usd_per_million"] != without["usd_per_million"], "not a number"


def test_this_machine_stands_beside_them_at_its_price():
    table = costs.prices_table(offers(RUN), 3.0)
    (ours,) = rows_of(table, "Apple M3 Max GPU")
    assert table.rows[-1].kind == "measured"
    assert ours["share_of_peak"] == pytest.approx(5 / 12)
    assert ours["usd_seconds_per_sequence"] == 3000
    assert ours["memory_bytes_per_usd"] == pytest.approx(36 * GIB / 3000)
    unpriced = costs.prices_table(offers(RUN, price=0.0), 3.0)
    assert rows_of(unpriced, "Apple M3 Max GPU") == []
    nothing = [case("gpt2_pretraining", LARGE, {"flops_per_s": 1e12}, profile="smoke")]
    nothing.append(case("gpt2_pretraining", LARGE, {}, status="too-big"))
    assert len(offers(nothing)) == len(offers())
    card = [record("gpt2_pretraining", rate(1e12), LARGE, backend="cuda")]
    assert offers(card).memory_bytes.isna().iloc[-1]


def test_pairs_are_those_of_similar_price_and_no_others():
    rows = costs.pairs_table(offers(RUN, price=4650.0)).data
    pairs = {(row["one"].split(" (")[0], row["other"].split(" (")[0]) for row in rows}
    theirs = {("M2 Ultra", "NVIDIA RTX A6000"), ("M2 Pro", "NVIDIA GeForce RTX 4090")}
    ours = {(one, other) for one, other in pairs if one.startswith("Apple M3 Max")}
    assert pairs - ours == theirs
    assert {other for _, other in ours} == {"M2 Ultra", "NVIDIA RTX A6000"}
    first = rows[0]
    assert first["price"] == pytest.approx(6599 / 4650)
    assert first["speed_per_usd"] == first["speed"] * first["price"]


def test_the_answer_is_what_training_achieves_for_a_thousand_dollars():
    # M2 Pro with MPS: 10.015 TFLOP in 10.704 s for 1999 USD; the A6000: 40.06 in 2.771 s for 4650.
    article = (
        "The article's devices reach 0.468 TFLOP/s per 1,000 USD (M2 Pro, PyTorch: gpt2-large, "
        "batch 2) to 3.11 TFLOP/s per 1,000 USD (NVIDIA RTX A6000, PyTorch: gpt2-large, batch 8),"
        " at launch prices."
    )
    own = "1.67 TFLOP/s per 1,000 USD (Apple M3 Max GPU, PyTorch: gpt2-large, batch 4)"
    faster = case("gpt2_pretraining", SMALL, {"flops_per_s": 9e12}, scaled=True)
    assert (
        costs.answer(offers([*RUN, faster])) == f"In training this machine reaches {own}. {article}"
    )
    alone = costs.answer(offers([faster]))
    assert "3.00 TFLOP/s per 1,000 USD (Apple M3 Max GPU, PyTorch: gpt2 (scaled), batch 1)" in alone
    unpriced = costs.answer(offers(RUN, price=0.0))
    assert unpriced == f"No price was given for this machine: set price_usd. {article}"
    unmeasured = costs.answer(offers())
    assert unmeasured == f"No pass of gpt2_pretraining was measured on this machine. {article}"


def test_the_same_work_in_two_frameworks_is_told_apart_in_each_table_and_in_the_figure():
    mlx = {"framework": "mlx", "backend": "mlx-gpu"}
    both = [*RUN, *(replace(record, case=f"mlx-gpu {record.case}", **mlx) for record in RUN)]
    offered = offers(both, price=4650.0)
    tables = [
        costs.prices_table(offered, 3.0),
        costs.pairs_table(offered),
        costs.energy_table(both, 4650.0, 0.2, 3.0),
    ]
    own = [[row.cells for row in table.rows if row.kind == "measured"] for table in tables]
    prices, pairs, energy = own
    for cells in (prices, energy):
        assert [each["Framework"] for each in cells] == ["PyTorch", "MLX"]
    named = [f"Apple M3 Max GPU ({name}, gpt2-large)" for name in ("PyTorch", "MLX")]
    assert {each["Device 1"] for each in pairs} == {*named}
    printed = {(row["device"], row["framework"]) for row in tables[0].data if row["pass_s"] > 0}
    assert {("M2 Ultra", "MLX"), ("M2 Ultra", "PyTorch")} < printed
    (_, achieved) = costs.figure(offered).axes
    labels = [label.get_text().replace("\n", " ") for label in achieved.get_yticklabels()]
    assert {"Apple M3 Max GPU, PyTorch: batch 4", "Apple M3 Max GPU, MLX: batch 4"} <= {*labels}


def test_a_heading_says_what_its_column_is():
    """Each names its quantity: none is a word such as `Peak`, `Pass`, `One` or `Together` alone."""
    priced = offers(RUN, price=4650.0)
    energy = costs.energy_table(RUN, 4650.0, 0.2, 3.0)
    headings = {*costs.prices_table(priced, 3.0).columns, *costs.pairs_table(priced).columns}
    headings |= {*energy.columns}
    vague = {"Peak", "Pass", "Achieved", "One", "Other of similar price", "Together"}
    assert not headings & vague and not any(heading.startswith("Use ") for heading in headings)
    # 5 J a step are 1.39e-6 kWh: 1,000 steps take 0.0278 US cents at 0.2 USD.
    assert energy.rows[-1].cells["Price of electricity, 1,000 steps"] == "0.0278 US cents"
