"""The extras reproduce the tables that were committed with the reference run."""

import pytest
import ranking
from declared import of

import pomology
from pomology.extras.frameworks import side_by_side
from pomology.extras.roofline import table
from pomology.extras.roofline.roofs import roofs
from pomology.paths import read_csv, root
from pomology.results.run import Run

REFERENCE = root() / "outputs" / "reference-cpu"


@pytest.fixture(scope="module")
def run():
    return pomology.load(REFERENCE), roofs(Run(REFERENCE).records)


def committed(notebook, name):
    (place,) = (REFERENCE / "shown" / notebook).glob(f"*-{name}.csv")
    return read_csv(place)


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
    same(table.roofline_table(*run).data, committed("roofline", "article"), names)
    names = ["flops_per_s", "bytes_per_s", "blocks"]
    same(table.peaks_table(run[1]).data, committed("roofline", "peaks"), names)


def test_ranking(run):
    shown = ranking.ranking_table(run[0])
    kept = {row["device"]: row for row in committed("summary", "ranking")}
    assert {row["against"] for row in shown.data} == {row["against"] for row in kept.values()}
    assert [row["device"] for row in shown.data] == list(kept)
    for row in shown.data:
        names = ("speed", "low", "high", "models", "doubtful")
        assert [row[name] for name in names] == pytest.approx(
            [float(kept[row["device"]][name]) for name in names]
        )
    repeated = ranking.headline(run[0])
    assert repeated.endswith(" is 5.1× slower than the M1 Ultra GPU (2 models, 3.0 to 8.8×).")
    single = ranking.headline(run[0][run[0].repeat.eq(1)], "M1 Ultra CPU")
    assert "1.2× slower than the M1 Ultra CPU (3 models, 0.20 to 2.3× the speed)" in single
    assert single.endswith(", which is within run-to-run variation.")


@pytest.mark.parametrize("name", ["blas", "gpt2_pretraining", "mlx_or_pytorch"])
def test_frameworks(run, name):
    shown = side_by_side.side_by_side(run[0], of(name)).data
    time = of(name).time
    names = [f"torch_{time}", f"mlx_{time}", "ratio"]
    same(shown, committed(name, "side-by-side"), names)
    assert all(row["remark"].startswith("the same") == bool(row["ratio"]) for row in shown)
