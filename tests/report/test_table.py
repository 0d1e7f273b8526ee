"""A table as HTML, text and file."""

from __future__ import annotations

import csv
import html
import re

from declared import article_table
from fakes import metric

from pomology.report import table as report_table
from pomology.report.table import Row, Table

TAGS = {"style", "div", "p", "table", "thead", "tbody", "tr", "th", "td", "span"}
NASTY = '<script>alert("1")</script> & <img src=x onerror=y>'


def cells_of(text: str) -> list[str]:
    """The cells of a table, as a browser would read them; no tag but those of a table."""
    assert {*re.findall(r"<(\w+)", text)} <= TAGS
    return [html.unescape(cell) for cell in re.findall(r"<(?:t[dh]|span)\b[^>]*>([^<]+|)</", text)]


def test_html_shows_texts_as_they_are_and_runs_nothing(vae):
    rows = (Row((NASTY, "&lt;"), "measured"), Row(("1", "2")))
    text = Table(NASTY, (NASTY, "b"), rows, (NASTY,))._repr_html_()
    assert cells_of(text) == [NASTY, "b", NASTY, "&lt;", "1", "2"]
    assert '<tr class="measured"' in text
    names = dict.fromkeys(("chip", "data", "case", "data_origin"), NASTY)
    bad = vae(status="error", reason=NASTY, config={"batch_size": NASTY}, flags=[NASTY], **names)
    assert sum(NASTY in cell for cell in cells_of(article_table("vae", [bad]).html())) > 2


def test_columns_without_a_text_are_left_out_of_texts_by_heading():
    lines = [({"b": "1", "a": "2"}, {}), ({"c": "", "a": "3"}, {})]
    table = Table.of("T", ("a", "c", "b"), lines)
    assert table.columns == ("a", "b") and table.rows[1].cells == ("3", "")
    assert str(table) == "T\n\na  b\n2  1\n3\n"


def test_numbers_in_a_file_read_back_exactly(tmp_path, vae):
    value = 0.1 + 0.2
    metrics = {"epoch_s": metric(value, value / 3, 1e299), "step_s": metric(5e-324)}
    config = {"batch_size": 128, "name": 'a "quoted", text\nof two lines'}
    path = tmp_path / "new" / "vae"
    table = article_table("vae", [vae(metrics=metrics, config=config)])
    report_table.save(table, path)
    assert report_table.saved_html(path.with_suffix(".html")).strip() == table.html()
    with open(path.with_suffix(".csv"), newline="", encoding="utf-8") as file:
        first, *_, last = lines = list(csv.DictReader(file))
    assert len(lines) == 6 + 1
    assert (last["name"], last["batch_size"]) == (config["name"], "128")
    numbers = [float(last[name]) for name in ("epoch_s", "epoch_s_low", "epoch_s_high", "step_s")]
    assert numbers == [value, value / 3, 1e299, 5e-324]
    found = (first["source"], first["device"], first["step_s"], float(first["epoch_s"]))
    assert found == ("published", "M1 Ultra CPU", "", 3.746)
    assert sorted(place.name for place in path.parent.iterdir()) == ["vae.csv", "vae.html"]
