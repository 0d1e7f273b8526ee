"""The extras reproduce the tables that were committed with the reference run."""

import csv

import pytest
from declared import of

import pomology
from pomology.extras.frameworks import side_by_side
from pomology.extras.ranking import ranking
from pomology.extras.roofline import table
from pomology.extras.roofline.roofs import roofs
from pomology.paths import root
from pomology.results.run import Run

REFERENCE = root() / "outputs" / "reference-cpu"
HALF = {"precision=fp16", "feature=autocast"}


@pytest.fixture(scope="module")
def run():
    return pomology.load(REFERENCE), roofs(Run(REFERENCE).records)


def committed(name):
    with (REFERENCE / "tables" / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def numbers(rows, *names):
    """Return the sorted numbers of rows, with 0 for NaN and missing numbers."""
    found = []
    for row in rows:
        values = [float(row.get(name) or 0) for name in names]
        found.append([0.0 if value != value else value for value in values])
    return [pytest.approx(values, rel=1e-9) for values in sorted(found)]


def same(rows, kept, names):
    assert len(rows) == len(kept)
    assert [approx.expected for approx in numbers(rows, *names)] == numbers(kept, *names)


def test_roofline(run):
    names = ["flops_per_s", "share_of_best", "flops_per_byte", "share_of_roof"]
    # The MLP, CNN and LSTM are now one experiment, with one best case.
    shown = [row for row in table.roofline_table(*run).data if not HALF & {*row["case"].split()}]
    # The committed peak in fp16 is that of a matvec.
    kept = [row for row in committed("roofline-roofline") if not HALF & {*row["case"].split()}]
    assert len(shown) == len(kept) - 2
    merged = [row for row in kept if row["experiment"] in ("mlp", "cnn", "lstm")]
    best = max(float(row["flops_per_s"]) for row in merged)
    kept = [row for row in kept if row not in merged or float(row["flops_per_s"]) == best]
    same(shown, kept, names)
    kept = [row for row in committed("roofline-article") if row["source"] == "measured"]
    (fp16,) = [row for row in kept if row["precision"] == "fp16"]
    fp16 |= {"flops_per_s": 37263075061.90446, "blocks": 6}
    same(table.peaks_table(run[1]).data, kept, ["flops_per_s", "bytes_per_s", "blocks"])


def test_ranking(run):
    shown = ranking.ranking_table(run[0])
    kept = {row["device"]: row for row in committed("summary-ranking")}
    assert {row["against"] for row in shown.data} == {row["against"] for row in kept.values()}
    assert [row["device"] for row in shown.data] == list(kept)
    for row in shown.data:
        names = ("speed", "low", "high", "models", "doubtful")
        assert [row[name] for name in names] == pytest.approx(
            [float(kept[row["device"]][name]) for name in names]
        )
    repeated = ranking.headline(run[0])
    assert (
        repeated == "The AMD EPYC CPU is 6.8× slower than the M1 Ultra GPU (2 models, 4.3 to 11×)."
    )
    single = ranking.headline(run[0][run[0].repeat.eq(0)], "M1 Ultra CPU")
    assert "2.0× slower than the M1 Ultra CPU (3 models, 0.17 to 1.4× the speed)" in single
    assert single.endswith(", which is within run-to-run variation.")


@pytest.mark.parametrize("name", ["blas", "gpt2_pretraining", "mlx_or_pytorch"])
def test_frameworks(run, name):
    shown = side_by_side.side_by_side(run[0], of(name)).data
    time = of(name).time
    names = [f"torch_{time}", f"mlx_{time}", "ratio", "ratio_low", "ratio_high"]
    same(shown, committed(f"{name}-side-by-side".replace("mlx_or_pytorch", "trainings")), names)
    assert all(row["remark"].startswith("the same") == bool(row["ratio"]) for row in shown)
