"""The article's table: what it printed, and this machine's numbers with what makes them credible.

Expected means and intervals are computed by hand; those of the reference run are committed with it.
"""

from __future__ import annotations

import csv
import shutil

import pytest
from declared import article_table, declaration
from fakes import metric

from pomology.articles import published
from pomology.paths import notebook_paths, root
from pomology.report.claims import claims_table
from pomology.report.display import Report
from pomology.report.table import YEARS
from pomology.results.cases import FLAGS
from pomology.results.frame import of_records
from pomology.results.run import Run

REFERENCE = root() / "outputs" / "reference-cpu"
VERDICTS = root() / "tests" / "fixtures" / "reference_verdicts.csv"
TABLES = {
    place.stem.removesuffix("-article"): place for place in REFERENCE.glob("tables/*-article.csv")
}
NOTEBOOKS = [path for path in notebook_paths(root() / "notebooks") if path.stem in TABLES]
NOTEBOOKS = [path for path in NOTEBOOKS if path.stem not in ("costs", "roofline")]  # own tables
DEVICE = "Intel Core i7-9750H CPU (PyTorch 2.13.0, 2026)"


def shown(table, kind="measured") -> list[dict]:
    """The rows of this machine, by heading."""
    rows = [row.cells for row in table.rows if row.kind == kind]
    return [dict(zip(table.columns, cells, strict=True)) for cells in rows]


# The reference run --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def reference(tmp_path_factory) -> Run:
    """The journals alone, where tables can be written next to them."""
    copy = tmp_path_factory.mktemp("runs") / REFERENCE.name
    copy.mkdir()
    for place in [*REFERENCE.glob("*.jsonl.gz"), REFERENCE / "machine.json"]:
        shutil.copy(place, copy)
    return Run(copy)


def numbers(row: dict) -> dict:
    """The cells of a row that hold something, as numbers where they are."""
    found = {}
    for name, cell in row.items():
        cell = str(cell)
        if cell in ("", "None"):
            continue
        if name == "status" and cell == "too-slow":  # the run is older than this status
            cell = "too-big"
        try:
            found[name] = float(f"{float(cell):.9g}")
        except ValueError:
            found[name] = cell
    return found


@pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def test_a_table_has_the_committed_numbers(reference, path):
    made = Report.of(declaration(path), reference).table()
    with open(TABLES[path.stem], encoding="utf-8", newline="") as file:
        kept = list(csv.DictReader(file))
    rows = list(made.data)
    if path.parent.name == "today":  # of several measurements of others the fastest is a row since
        rows = [row for row in rows if row["source"] == "measured"]
        kept = [row for row in kept if row["source"] == "measured"]
    rows = [numbers(row) for row in rows]
    for committed in map(numbers, kept):  # a framework of table 4 was a column once
        names = committed.keys() - {"backend", "framework"}
        wanted = {name: committed[name] for name in names}
        assert any(wanted.items() <= row.items() for row in rows), committed


def test_claims_have_the_committed_verdicts(reference):
    with open(VERDICTS, encoding="utf-8", newline="") as file:
        kept = [
            (row["claim"], row["published"], row["reference-cpu"]) for row in csv.DictReader(file)
        ]
    made = [
        (row["id"], row["published"], row["here"])
        for article in published.articles()
        for row in claims_table(published.claims(article.id), of_records(reference.records)).data
    ]
    words = {
        "supported": "holds",
        "contradicted": "does not hold",
        "inconclusive": "cannot be told here",
        "not testable here": "cannot be told here",
    }
    assert [(name, words[own], words[here]) for name, own, here in made] == kept


# Published rows -----------------------------------------------------------------------------------


@pytest.mark.parametrize("experiment", ["dcgan", "siamese", "transformer_lm", "vae"])
def test_every_published_row_stands_as_printed_and_in_order(experiment, vae):
    table = article_table(experiment, [vae(experiment=experiment)])
    lines: dict[int, list[str]] = {}
    for value in published.rows(experiment=experiment):
        line = lines.setdefault(value["row"], [f"{value['device']} (PyTorch, 2022)"])
        line.append(value["printed"])
    headings = ("Device", "Time per epoch", "Temperature", "Memory", "Power")
    rows = shown(table, "published")
    assert [[row[heading] for heading in headings] for row in rows] == list(lines.values())
    assert [row.kind for row in table.rows] == ["published"] * len(lines) + ["measured"]
    assert all((row["status"] == "ok") == ("epoch_s" in row) for row in table.data)
    assert YEARS in table.notes and YEARS not in article_table(experiment, []).notes


def test_a_published_time_with_counted_operations_has_a_rate():
    table = article_table("gpt2_pretraining", [])
    rows = {row["Device"]: row for row in shown(table, "published") if row["Pass"] != "-"}
    assert rows["M2 Ultra (MLX, 2025)"]["Pass"] == "2.710"
    assert rows["A6000 (PyTorch, 2025)"]["Achieved"] == "14.5 TFLOP/s"  # 40.06 TFLOP in 2.771 s
    assert any("the work on paper over the printed time" in note for note in table.notes)


# This machine's rows ------------------------------------------------------------------------------


def test_a_measured_row_shows_value_interval_and_where_it_comes_from(vae):
    table = article_table("vae", [vae(flags=["drift"])])
    assert shown(table) == [
        {
            "Device": DEVICE,
            "Batch size": "128",
            "Time per epoch": "4.50 s ± 2.0 %",
            "Of it computing": "2.25 s ± 1.2 %",
            "Temperature": "64 °C",
            "Memory": "412 MB",
            "Power": "41.6 W",
            "Remarks": "estimated from 400 steps, 85 % of the epoch; stand-in; drift",
        }
    ]
    assert {"Data: digits drawn by hand.", f"drift: {FLAGS['drift']}."} <= {*table.notes}
    assert "within this run" in table.meaning[0]


def test_a_gpu_shows_what_the_framework_reserved_and_what_was_not_measured_has_no_column(vae):
    values = {"epoch_s": metric(4.5), "footprint_peak_bytes": metric(1e9, unit="B")}
    values["reserved_peak_bytes"] = metric(3e9, unit="B")
    gpu = vae(backend="mps", device="gpu", chip="Apple M2", data="real", metrics=values)
    table = article_table("vae", [gpu])
    (row,) = shown(table)
    assert row["Device"] == "Apple M2 GPU (PyTorch 2.13.0, 2026)"
    assert (row["Memory"], row["Power"], row["Remarks"]) == ("3.00 GB", "", "measured; real")
    assert "Of it computing" not in row
    assert "Not measured, and so without a column: of it computing." in table.notes


def test_a_case_that_did_not_end_well_shows_its_status_and_no_number(vae):
    bad = vae(status="mismatch", reason="<why>", flags=["busy"])  # with all its metrics
    table = article_table("vae", [bad])
    (row,) = shown(table)
    assert [*row.values()] == [DEVICE, "128", "mismatch", "", "", "", "<why>; busy"]
    assert "epoch_s" not in table.data[-1] and table.data[-1]["status"] == "mismatch"


def test_smoke_never_stands_beside_published(vae):
    smoke = vae(profile="smoke", flags=["drift"])
    table = article_table("vae", [smoke])
    assert table.rows == article_table("vae", []).rows
    assert any("smoke test" in note for note in table.notes)
    rows = shown(article_table("vae", [smoke, vae()]))
    assert [row["Time per epoch"] for row in rows] == ["4.50 s ± 2.0 %"]


@pytest.mark.parametrize(
    ("compute", "text"),
    [
        (metric(4.2, 4.1, 4.3), "4.20 s ± 2.4 %"),
        (metric(4.2, 3.9, 4.5), "not told apart (20 steps)"),
        (metric(9.0, 8.9, 9.1), "not told apart (20 steps)"),  # longer than the whole epoch
        (metric(2.0).replace(n=1), "not told apart (1 step)"),
    ],
)
def test_a_part_is_shown_only_where_it_is_resolved(vae, compute, text):
    case = vae()
    case.metrics["compute_epoch_s"] = compute
    assert shown(article_table("vae", [case]))[0]["Of it computing"] == text


# 2.0, 2.2 and 2.42: the geometric mean is 2.2, and the interval as in test_intervals.
THREE, HIGH = (2.0, 2.2, 2.42), 2.787711


@pytest.mark.parametrize("place", [0, 3, None])
def test_repeats_become_their_mean_and_one_that_failed_hides_no_value(vae, place):
    cases = []
    for number, value in enumerate(THREE):
        time = metric(value, value * 0.99, value * 1.01, how="estimated")
        cases.append(vae(repeat=number, metrics={"epoch_s": time}))
    remark = "3 repeats"
    if place is not None:
        bad = vae(status="crashed", reason="its kernel died", metrics={}, flags=["busy"], repeat=9)
        cases.insert(place, bad)
        remark = "3 of 4 repeats (crashed); busy"
    table = article_table("vae", cases)
    (row,) = shown(table)
    assert row["Time per epoch"] == "2.2 s ± 24 %"
    steps = "estimated from 400 steps, 85 % of the epoch; stand-in"
    assert row["Remarks"] == f"{steps}; {remark}"
    data = table.data[-1]
    assert (data["repeats"], data["status"]) == (3, "ok")
    assert (data["epoch_s"], data["epoch_s_high"]) == pytest.approx((2.2, HIGH), rel=1e-6)


@pytest.mark.parametrize(("flags", "text"), [([], "yes"), (["too-noisy"], "cannot be told")])
def test_a_verdict_is_a_status(vae, flags, text):
    def check(**changes):
        config = {"check": "clock"}
        return vae(experiment="instrument_check", config=config, metrics={}, **changes)

    heading = "May it be trusted?"
    assert shown(article_table("instrument_check", [check(flags=flags)]))[0][heading] == text
    failed = check(status="mismatch", repeat=1)
    rows = shown(article_table("instrument_check", [check(flags=flags), failed]))
    assert rows[0][heading] == "mismatch"
