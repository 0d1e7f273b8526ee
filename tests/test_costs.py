"""Prices, times and energies laid together, against numbers worked out by hand from the article's tables."""

from __future__ import annotations

import pytest
from pomology.report.showing import Report
from records import record as record_of
from records import write

from pomology.articles import published
from pomology.measure.estimate import Estimate
from pomology.report import costs, declaration
from pomology.report import table as report_table
from pomology.results.record import Record
from pomology.results.run import Run

GIB = 2**30


def record(experiment: str, backend: str, config: dict, metrics: dict, **more) -> Record:
    metrics = {name: Estimate(value) for name, value in metrics.items()}
    more |= {"framework": "mlx" if backend == "mlx-gpu" else "torch", "precision": config.get("precision", "fp32")}
    return record_of(experiment, metrics, config, **{"backend": backend, "chip": "Apple M3 Max"} | more)


LARGE, SMALL = {"model": "gpt2-large", "batch_size": 4}, {"model": "gpt2", "batch_size": 1}
RUN = [
    record("gpt2_pretraining_torch", "mps", LARGE, {"pass_s": 4.0, "flops_per_s": 5e12}),
    record("gpt2_pretraining_mlx", "mlx-gpu", SMALL, {"pass_s": 0.5, "flops_per_s": 4e12}, scaled=True),
    record("blas_torch", "mps", {"operation": "matmul", "precision": "fp32"}, {"flops_per_s": 12e12}),
    record("blas_mlx", "mlx-gpu", {"operation": "matmul", "precision": "fp16"}, {"flops_per_s": 99e12}),
    record("energy", "mps", SMALL, {"energy_j_per_step": 5.0, "step_s": 0.2}, flops_per_step=10**12, scaled=True),
]


def priced(price: float = 3000.0) -> list[Record]:
    return costs.priced(RUN, 36 * GIB, price)


def data(table: report_table.Table, **wanted) -> list[dict]:
    return [row for row in table.data if all(row[key] == value for key, value in wanted.items())]


def test_the_articles_devices_cost_what_a_pencil_says():
    table = costs.table([], 3.0)
    assert len(table.rows) == 3 + 1 + 3 * 2  # without a pass; the A6000; three Macs with two frameworks
    (card,) = data(table, device="NVIDIA RTX A6000")
    assert card["peak_flops_per_s_per_usd"] == pytest.approx(39e12 / 4650)
    assert card["memory_bytes_per_usd"] == pytest.approx(48 * GIB / 4650)
    assert card["flops_per_s_per_usd"] == pytest.approx(40.06e12 / 2.771 / 4650, rel=1e-3)
    assert card["share_of_peak"] == pytest.approx(40.06 / 2.771 / 39, rel=1e-3)
    assert card["usd_seconds_per_sequence"] == pytest.approx(4650 * 2.771 / 8)
    # A million sequences take 346,375 s; three years have 94,672,800.
    assert card["usd_per_million"] == pytest.approx(4650 * 346_375 / 94_672_800)
    (mlx,) = data(table, device="M2 Ultra", work="gpt2-large, mlx-gpu")
    assert mlx["usd_seconds_per_sequence"] / card["usd_seconds_per_sequence"] == pytest.approx(1.388, abs=1e-3)
    (without,) = data(table, device="NVIDIA GeForce RTX 4090")
    assert without["usd_seconds_per_sequence"] is without["flops_per_s_per_usd"] is without["usd_per_million"] is None
    assert costs.table([], 6.0).data[3]["usd_per_million"] == pytest.approx(card["usd_per_million"] / 2)


def test_this_machine_stands_beside_them_at_its_price():
    table = costs.table(priced(), 3.0)
    large, small = (row for row in table.data if row["maker"] == "here")
    assert [row.kind for row in table.rows].count("measured") == 2
    assert large["usd_seconds_per_sequence"] == pytest.approx(3000 * 4.0 / 4)
    assert large["peak_flops_per_s_per_usd"] == pytest.approx(12e12 / 3000), "the best fp32, not fp16"
    assert large["share_of_peak"] == pytest.approx(5 / 12)
    assert large["memory_bytes_per_usd"] == pytest.approx(36 * GIB / 3000)
    assert "scaled" in small["work"] and small["usd_seconds_per_sequence"] is None, "a smaller model has no such time"
    assert small["flops_per_s_per_usd"] == pytest.approx(4e12 / 3000)
    # A price that is not told is said, and nothing is made of it.
    table = costs.table(priced(0.0), 3.0)
    (row, _) = (row for row in table.rows if row.kind == "measured")
    assert row.cells[1] == "not told" and "5.00 TFLOP/s" in row.cells
    (large, _) = (row for row in table.data if row["maker"] == "here")
    assert {large[key] for key in large if "usd" in key} == {None} and large["share_of_peak"] == pytest.approx(5 / 12)
    assert not [row for row in costs.pairs(priced(0.0)).data if "M3" in row["one"]]


def test_pairs_are_those_of_similar_price_and_no_others():
    assert {(row["one"].split(" (")[0], row["other"].split(" (")[0]) for row in costs.pairs([]).data} == {
        ("M2 Ultra", "NVIDIA RTX A6000"),
        ("M2 Pro", "NVIDIA GeForce RTX 4090"),
    }
    mlx, mps, pro = costs.pairs([]).data
    assert mlx["price"] == pytest.approx(6599 / 4650) and mlx["peak"] == pytest.approx(39 / 27)
    assert mlx["memory_per_usd"] == pytest.approx((192 / 6599) / (48 / 4650))
    assert mlx["speed"] == pytest.approx(2.710 / 2.771) and mps["speed"] == pytest.approx(3.239 / 2.771)
    assert mlx["speed_per_usd"] == pytest.approx(2.710 / 2.771 * 6599 / 4650)
    assert pro["peak"] == pytest.approx(83 / 7) and pro["speed"] is None and pro["speed_per_usd"] is None
    # This machine for 3,000 USD: M2 Max (2,599, both frameworks) and M2 Pro (1,999 is 1.5007 times less, so not).
    ours = [row for row in costs.pairs(priced()).data if "M3 Max" in row["one"]]
    assert [row["other"] for row in ours] == ["M2 Max (gpt2-large, mlx-gpu)", "M2 Max (gpt2-large, mps)"]
    assert "scaled" not in ours[0]["one"]


def test_energy_has_its_electricity_and_its_share_of_the_price():
    table = costs.energy(RUN, 3000.0, 0.36, 2.0)
    (card,) = data(table, device="A6000")
    assert card["electricity_usd"] == pytest.approx(1000 * 212.39 / 3.6e6 * 0.36)
    assert card["j_per_tflop"] == pytest.approx(212.39 / 15.83) and card["use_usd"] is None
    (mine,) = data(table, source="measured")
    assert mine["j_per_tflop"] == pytest.approx(5.0)
    assert mine["electricity_usd"] == pytest.approx(5000 / 3.6e6 * 0.36)
    assert mine["use_usd"] == pytest.approx(3000 * 200 / (2 * 365.25 * 86400))
    assert mine["together_usd"] == pytest.approx(mine["use_usd"] + mine["electricity_usd"])
    (untold,) = data(costs.energy(RUN, 0.0, 0.36, 2.0), source="measured")
    assert untold["use_usd"] is untold["together_usd"] is None
    assert any("not told" in note for note in costs.energy(RUN, 0.0, 0.36, 2.0).notes)
    assert any("measured no energy" in note for note in costs.energy([], 3000.0, 0.36, 2.0).notes)


def test_smoke_tests_and_failures_cost_nothing_and_a_card_has_its_own_memory():
    for more in ({"profile": "smoke"}, {"status": "too-big", "metrics": {}}):
        run = [one.replace(**more) for one in RUN]
        assert not data(costs.table(costs.priced(run, 36 * GIB, 3000.0), 3.0), maker="here")
        assert not data(costs.energy(run, 3000.0, 0.36, 2.0), source="measured")
    run = [record("gpt2_pretraining_torch", "cuda", LARGE, {"pass_s": 4.0, "flops_per_s": 5e12}, chip="NVIDIA L4")]
    (mine,) = data(costs.table(costs.priced(run, 512 * GIB, 2500.0), 3.0), maker="here")
    assert mine["memory_bytes_per_usd"] is None and mine["flops_per_s_per_usd"] == pytest.approx(2e9)


def test_the_notebook_s_experiment_reads_the_whole_run_and_shows_what_is_made_of_it(tmp_path):
    write(tmp_path, RUN)
    experiment = Report.of(declaration.of("costs"), Run(tmp_path))
    run = experiment.run_records()
    assert {one.experiment for one in run} == {one.experiment for one in RUN} and not experiment.records
    experiment.show(costs.priced(run, 36 * GIB, 3000.0))
    table = experiment.table()
    assert [row.kind for row in table.rows] == ["published"] * 7 + ["measured"] * 2
    assert table.rows[2].cells[0] == "NVIDIA GeForce RTX 4090" and {"24", "83", "1599"} <= set(table.rows[2].cells)
    small, large = (set(row.cells) for row in table.rows[7:])
    assert {"36", "12.0", "3,000", "4.00 s"} <= large and "0.500 s" not in small, (
        "a smaller model's time stands nowhere"
    )
    assert not (tmp_path / "costs.jsonl").exists(), "what is made of others' records is in no journal"
    assert {"001-C21", "001-C22", "001-C23"} <= {row.cells[0] for row in experiment.claims().rows}
    prices = [row["si"] for row in published.rows("001", "costs") if row["metric"] == "launch_price_usd"]
    assert prices == [899, 999, 1599, 4650, 6599, 2599, 1999]
