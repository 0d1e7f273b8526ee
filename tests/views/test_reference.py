"""The views reproduce the tables that were committed with the reference run."""

import pytest
from declared import of
from records import run_of

from pomology import format
from pomology.paths import read_csv, root
from pomology.results import repeats
from pomology.results.run import Run
from pomology.views import ranking, side_by_side
from pomology.views.roofline import table
from pomology.views.roofline.roofs import roofs

REFERENCE = root() / "outputs" / "reference-cpu"


@pytest.fixture
def run():
    records = Run(REFERENCE).records
    return records, roofs(records)


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
    shown, kept = table.roofline_table(*run).data, committed("roofline", "article")
    same(shown, kept, ["flops_per_s", "flops_per_byte", "share_of_roof"])
    same(shown, kept, ["flops_per_s", "share_of_best"])
    names = ["flops_per_s", "bytes_per_s", "blocks"]
    same(table.peaks_table(run[1]).data, committed("roofline", "peaks"), names)


def test_ranking(run):
    runs = [run_of(*run[0])]
    shown = ranking.ranking_table(runs)
    kept = {row["device"]: row for row in committed("summary", "ranking")}
    assert {row["against"] for row in shown.data} == {row["against"] for row in kept.values()}
    assert [row["device"] for row in shown.data] == list(kept)
    for row in shown.data:
        names = ("speed", "low", "high", "models", "doubtful")
        assert [row[name] for name in names] == pytest.approx(
            [float(kept[row["device"]][name]) for name in names]
        )
    repeated = ranking.headline(runs)
    evidence = (
        "Siamese network 4.8× slower, Transformer language model 10× slower; few clean repeats; "
        "all times extrapolated from 1 to 18 steps; single settings from 2.3× slower to 25× "
        "slower; "
    )
    evidence += "software of 2026 against 2022; left out, with a known problem: 1 model"
    flags = "busy, contended, drift, paused, slowed"
    said = f" is 7.1× slower than the M1 Ultra GPU ({evidence}). 24 of 734 measured runs of cases "
    assert repeated.endswith(f"{said}were disturbed ({flags}).")
    one = run_of(*(record for record in run[0] if record.repeat == 1))
    single = ranking.headline([one], "M1 Ultra CPU")
    models = (
        "DCGAN 1.3× slower, Siamese network 1.1× faster, Transformer language model 5.6× slower"
    )
    assert f"1.9× slower than the M1 Ultra CPU ({models}; single" in single
    assert single.endswith(f" 9 of 244 measured runs of cases were disturbed ({flags}).")


def test_frameworks_of_all_experiments(run):
    shown = side_by_side.joined(run[0]).data
    same(shown, committed("mlx_or_pytorch", "side-by-side"), ["other_s", "mlx_s", "ratio"])


@pytest.mark.parametrize("name", ["blas", "gpt2_pretraining"])
def test_frameworks(run, name):
    about = of(name)
    shown = side_by_side.side_by_side(run[0], about).data
    time = about.time
    names = [f"torch_{time}", f"mlx_{time}", "ratio"]
    same(shown, committed(name, "side-by-side"), names)
    assert all(row["remark"].startswith("the same") == bool(row["ratio"]) for row in shown)


def test_the_docs_state_the_run_to_run_variation_of_the_reference_run(run):
    pooled = repeats.pool(run[0])
    sentence = repeats.variation_text(pooled)
    ((_, share),) = repeats.run_to_run(pooled).items()
    percent = f"{format.rounded_up(100 * share)} %"
    docs = root() / "docs"
    method = (docs / "how-it-measures.md").read_text(encoding="utf-8")
    assert sentence in method
    factor = repeats.allowed([float(percent.split()[0]) / 100] * 2)
    assert f"With {percent} on both sides that is a factor of {factor:.2f}." in method
    assert f"| {percent} on two shared cores " in (docs / "findings.md").read_text(encoding="utf-8")
    readme = (root() / "README.md").read_text(encoding="utf-8")
    assert f"of a step differ by less than {percent} on the CPU" in readme
