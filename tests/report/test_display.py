"""What a notebook displays of the modules that it imports."""

import functools
from pathlib import Path

import pytest

import pomology
from pomology import errors
from pomology.report import display
from pomology.report.table import Row, Table


def whole(number):
    """Return a number in ```backticks```."""
    return f"```{number}```"


OWN, ERRORS = (Path(place).read_text(encoding="utf-8") for place in (__file__, errors.__file__))
SOURCES = {
    "function": (whole, OWN[OWN.index("def whole") : OWN.index("\n\n\nOWN")]),
    "cached function": (
        functools.cache(whole),
        OWN[OWN.index("def whole") : OWN.index("\n\n\nOWN")],
    ),
    "module": (errors, ERRORS.rstrip()),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_the_source_of_what_a_notebook_imports_is_shown(kind, monkeypatch):
    item, source = SOURCES[kind]
    shown = []
    monkeypatch.setattr(display, "display", shown.append)
    pomology.show(item, item)
    assert [each.data for each in shown] == 2 * [f"````python\n{source}\n````"]


def test_a_notebook_folds_the_tables_that_its_report_folds(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shown = []
    report = display.Report("vae", title="Title", out=str(tmp_path / "run"), receive=shown.append)
    for name, folded in (("article", False), ("details", True)):
        table = Table(f"Table of {name}", [Row({"Device": "M3"})], ["A note."])
        report.show(table, name, folded=folded)
    open_one, folded_one = (each._repr_html_() for each in shown)
    assert "<details" not in open_one and '<p class="title">Table of article</p>' in open_one
    title, _, rest = folded_one.partition("<summary>Table of details: 1 row</summary>")
    assert title.endswith('<details class="more">') and rest.endswith("</details></div>")
    assert "<td>M3</td>" in rest and "A note." in rest
    saved = (tmp_path / "run" / "shown" / "vae" / "02-details.html").read_text()
    assert "<details" not in saved


def test_a_figure_without_values_is_a_sentence_and_no_picture(tmp_path):
    shown = []
    report = display.Report("vae", out=str(tmp_path / "run"), receive=shown.append)
    report.show(None, "figure")
    report.show(Table("Numbers", [Row({"Device": "M3"})]), "numbers")
    assert shown[0].data == "*Nothing was measured that this figure could show.*"
    assert sorted(path.name for path in (tmp_path / "run" / "shown" / "vae").iterdir()) == [
        "01-numbers.html",
        "about.json",
    ]
