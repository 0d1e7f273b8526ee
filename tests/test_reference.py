"""The committed runs that the README leads to: whole, small, of clean code, and naming nobody."""

from __future__ import annotations

import csv
import gzip
import re
from pathlib import Path
from urllib.parse import unquote

import pytest

from pomology.extras.share import share
from pomology.paths import root
from pomology.results import run as results_run
from pomology.results.record import RENAMED
from pomology.runner import notebooks

RUNS = sorted(place for place in root().glob("outputs/reference-*") if place.is_dir())
MEGABYTE = 10**6


def test_there_is_one_of_a_machine_without_a_gpu():
    assert root() / "outputs" / "reference-cpu" in RUNS


def test_the_readme_shows_results_that_the_report_calls_reliable():
    place = root() / "outputs" / "reference-cpu" / "tables" / "mlp-article.csv"
    with open(place, encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["source"] == "measured"]
    reliable = [row for row in rows if row["status"] == "ok" and not row["flags"]]
    lines = ["| batch size | time per epoch | 95 % confidence interval |", "| --- | --- | --- |"]
    for row in reliable:
        value, low, high = (float(row[key]) for key in ("epoch_s", "epoch_s_low", "epoch_s_high"))
        interval = f"{low:.2f} to {high:.2f} s"
        lines.append(f"| {row['batch_size']} | {value:.2f} s | {interval} |")
    table = "\n".join(lines)
    text = (root() / "README.md").read_text(encoding="utf-8")
    assert len(reliable) == 3 and f"\n{table}\n" in text, f"README.md must say\n\n{table}"


@pytest.mark.parametrize("folder", RUNS, ids=lambda folder: folder.name)
class TestReference:
    def test_it_is_complete(self, folder):
        run = results_run.Run(folder)
        assert not run.problems
        assert {record.profile for record in run.records} == {"quick"}
        assert {record.scaled for record in run.records} == {True, False}
        problems = [problem for contents in run.journals.values() for problem in contents.problems]
        assert not problems
        assert {record.status for record in run.records} <= {
            "ok",
            "too-big",
            "too-slow",
            "unsupported",
        }
        # Some of its notebooks have another name since, or are parts of one.
        shown = {RENAMED.get(place.stem, (place.stem,))[0] for place in folder.glob("*.html")}
        known = {notebook.name for notebook in notebooks.notebooks()}
        assert shown - known == {"index", "memory_over_time", "trainings"} and known < shown
        assert run.machine["git"]["dirty"] is False
        assert re.fullmatch("[0-9a-f]{40}", run.machine["git"]["commit"])

    def test_it_is_small(self, folder):
        sizes = {
            place: place.stat().st_size
            for place in folder.rglob("*")
            if place.is_file() and tracked(place)
        }
        assert sum(sizes.values()) < 6 * MEGABYTE
        assert max(size for place, size in sizes.items() if place.suffix == ".html") < 2 * MEGABYTE

    def test_every_link_leads_somewhere(self, folder):
        for page in folder.glob("*.html"):
            text = page.read_text(encoding="utf-8")
            names = set(re.findall(r'\bid="([^"]+)"', text))
            for link in map(unquote, re.findall(r'<a\b[^>]*\bhref="([^"]+)"', text)):
                if link.startswith(("https://", "http://")):
                    continue
                place, _, anchor = link.partition("#")
                assert not place or (folder / place).is_file(), f"{page.name}: {link}"
                assert not anchor or place or anchor in names, f"{page.name}: {link}"

    def test_it_names_nobody(self, folder):
        files = {place for place in folder.rglob("*") if place.is_file() and tracked(place)}
        data = {place.name: place.read_bytes() for place in files}
        texts = {
            name: (gzip.decompress(raw) if name.endswith(".gz") else raw).decode()
            for name, raw in data.items()
        }
        own = share.own_names()
        assert [(name, one) for name, text in texts.items() for one in own if one in text] == []

    def test_the_readme_leads_to_it(self, folder):
        assert f"outputs/{folder.name}/" in (root() / "README.md").read_text(encoding="utf-8")


def tracked(place: Path) -> bool:
    """Notebooks, figures and what tables are shown from stay out of git: the pages have them."""
    return place.suffix == ".csv" or (
        place.parent.name != "tables" and place.suffix in (".gz", ".json", ".html")
    )
