"""The articles' tables of the reference run have the numbers that are committed with it."""

from __future__ import annotations

import csv
import shutil

import pytest
from declared import declaration

from pomology.articles import published
from pomology.paths import notebook_paths, root
from pomology.report.claims import claims_table
from pomology.report.display import Report
from pomology.results.frame import of_records
from pomology.results.run import Run

REFERENCE = root() / "outputs" / "reference-cpu"
VERDICTS = root() / "tests" / "fixtures" / "reference_verdicts.csv"
TABLES = {
    place.stem.removesuffix("-article"): place for place in REFERENCE.glob("tables/*-article.csv")
}
NOTEBOOKS = [path for path in notebook_paths(root() / "notebooks") if path.stem in TABLES]


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
            found[name] = pytest.approx(float(cell), rel=1e-9)
        except ValueError:
            found[name] = cell
    return found


@pytest.fixture(scope="module")
def reference(tmp_path_factory) -> Run:
    """The journals alone, where tables can be written next to them."""
    copy = tmp_path_factory.mktemp("runs") / REFERENCE.name
    copy.mkdir()
    for place in [*REFERENCE.glob("*.jsonl.gz"), REFERENCE / "machine.json"]:
        shutil.copy(place, copy)
    return Run(copy)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def test_a_table_has_the_committed_numbers(reference, path):
    if path.stem in ("costs", "roofline"):
        pytest.skip("its notebook makes its own tables")
    if path.stem in ("blas", "gpt2_pretraining", "model_sizes"):
        pytest.skip("the committed run has a table for each framework; test_frame has its values")
    made = Report.of(declaration(path), reference).table()
    with open(TABLES[path.stem], encoding="utf-8", newline="") as file:
        kept = list(csv.DictReader(file))
    rows = list(made.data)
    if path.parent.name == "today":  # of several measurements of others the fastest is a row since
        rows = [row for row in rows if row["source"] == "measured"]
        kept = [row for row in kept if row["source"] == "measured"]
    assert [numbers(row) for row in rows] == [numbers(row) for row in kept]


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
