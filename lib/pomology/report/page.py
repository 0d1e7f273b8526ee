"""The report of a run: index.html joins what its notebooks have shown, and makes nothing again.

Pages run and request nothing, and a content security policy forbids both. Texts from journals are
escaped, and figures are pictures.
"""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pomology.articles import published
from pomology.machine import snapshot
from pomology.paths import redact, write_atomic
from pomology.report import details, table
from pomology.report.display import ABOUT
from pomology.results import cases
from pomology.results.run import Run

PROFILES = {
    "smoke": "smoke: tiny shapes that test the kit; the numbers say nothing about speed",
    "quick": "quick: the article's models; most epochs are estimates from steady steps",
    "article": "article: whole epochs, as the article ran them",
}
LAST = {published.KIT: "This machine, and the kit itself", "": "Other notebooks"}


def build(folder: Path, others: Iterable[Path] = ()) -> Path:
    """Write index.html of a run's folder, and render its new notebooks; return the page.

    others: folders or zips of other people's runs, whose cases stand after this run's.
    Raises PomologyError if there is no such folder or zip.
    """
    run = Run(folder)
    runs = [run, *(Run(place) for place in others)]
    problems = [problem for each in runs for problem in each.problems]
    problems += _render_notebooks(run.path)
    page = table.template("run.html.j2").render(
        chip=cases.short_chip(run.machine.get("chip")),
        notices=problems + _notes(run),
        facts=_facts(run),
        sections=[_section(runs, about) for about in _shown(run)],
    )
    write_atomic(run.path / "index.html", page)
    return run.path / "index.html"


def address(svg: str) -> str:
    """Return a drawing as the address of a picture, which can neither load nor run anything."""
    return "data:image/svg+xml," + quote(svg, safe=" =/:;,.()-+*!?@$[]~_{}")


def _render_notebooks(folder: Path) -> list[str]:
    """Render the notebooks that are newer than their pages; return a line for each failure."""
    import nbformat
    from nbconvert import HTMLExporter

    exporter = HTMLExporter(
        template_name=table.PAGE.name,
        extra_template_basedirs=[str(table.PAGE.parent)],
        exclude_anchor_links=True,
        filters={"address": address},
    )
    problems = []
    for notebook in sorted(folder.glob("*.ipynb")):
        page = notebook.with_suffix(".html")
        if page.exists() and page.stat().st_mtime_ns >= notebook.stat().st_mtime_ns:
            continue
        try:
            document = nbformat.reads(redact(notebook.read_text(encoding="utf-8")), as_version=4)
            text, _ = exporter.from_notebook_node(document, {"metadata": {"name": notebook.stem}})
            write_atomic(page, text)
        except Exception as error:  # whatever nbconvert raises
            page.unlink(missing_ok=True)
            problems.append(f"{notebook.name} cannot be rendered: {type(error).__name__}: {error}.")
    return problems


def _shown(run: Run) -> list[dict[str, Any]]:
    """Return what every notebook has shown; of one that has shown nothing its name."""
    places = run.path.glob(f"shown/*/{ABOUT}")
    found = [json.loads(place.read_bytes()) for place in places]
    for name in run.journals.keys() - {about["name"] for about in found}:
        article = next((record.article for record in run.journals[name].records), "")
        found.append({"name": name, "title": name, "article": article, "items": []})
    return sorted(found, key=lambda each: (each["article"] in LAST, each["article"], each["name"]))


def _section(runs: Sequence[Run], about: dict[str, Any]) -> dict[str, Any]:
    """Return one notebook's part of the page: its tables and figures in order, and links."""
    name = about["name"]
    folder = runs[0].path / "shown" / name
    others = [run for run in (runs[1:] if about["items"] else runs) if name in run.journals]
    files = [*runs[0].path.glob(f"{name}.html"), *sorted(folder.glob("*.csv"))]
    files += runs[0].path.glob(f"{name}.jsonl*")
    article = next((each for each in published.articles() if each.id == about["article"]), None)
    return about | {
        "part": article.title if article else LAST.get(about["article"], LAST[""]),
        "article": article,
        "links": {place.name: quote(place.relative_to(runs[0].path).as_posix()) for place in files},
        "shown": [item | _contents(folder / item["file"]) for item in about["items"]],
        "plain": [_plain_table(run, name) for run in others],
    }


def _contents(place: Path) -> dict[str, Any]:
    """Return a saved figure or table for the template. place: without an ending."""
    title = place.name.partition("-")[2].replace("-", " ")
    drawing = place.with_name(f"{place.name}.svg")
    if drawing.exists():
        return {"title": title, "figure": address(drawing.read_text(encoding="utf-8"))}
    text = place.with_suffix(".html").read_text(encoding="utf-8")
    return {"title": title, "table": text.partition("</style>")[2]}  # the page has its own style


def _plain_table(run: Run, name: str) -> table.Table:
    """Return the number that each case of a notebook is about, where nothing was shown of it."""
    records = []
    for record in run.journals[name].records:
        about = cases.headline(record) or next(iter(record.metrics), "")
        metrics = {about: record.metrics[about]} if about else {}
        records.append(record.replace(metrics=metrics))
    return details.details_table(records, run.name)


def _notes(run: Run) -> list[str]:
    """Return what a reader must know before any number: what is missing or says nothing."""
    notes = [] if run.records else ["Nothing has been measured yet."]
    if any(record.profile == "smoke" for record in run.records):
        notes.append(f"This is a run of the profile {PROFILES['smoke']}.")
    unfinished = sorted(place.stem for place in run.path.glob(".partial/*.ipynb"))
    missing = dict.fromkeys(unfinished, "running, or was stopped")
    missing |= {name: f"left out: {why}" for name, why in run.machine.get("left_out", {}).items()}
    again = f"make reproduce RUN={run.name} carries on"
    return notes + [f"{name} is {why}; {again}." for name, why in missing.items()]


def _facts(run: Run) -> dict[str, str]:
    """Return the machine, the software, the profile, how the cases ended, and the noise."""
    records = run.records
    profiles = sorted({record.profile for record in records})
    endings = Counter(record.status for record in records)
    endings.update(flag for record in records if record.status == "ok" for flag in record.flags)
    facts = {
        "Machine": snapshot.describe(run.machine) if run.machine else "not known",
        "Software": details.software(run.machine) if run.machine else "",
        "Profile": "; ".join(PROFILES.get(profile, profile) for profile in profiles),
        "Cases": ", ".join(f"{count:,} {name}" for name, count in endings.most_common()),
        "Noise": details.same_twice(records) if records else "",
    }
    return {term: text for term, text in facts.items() if text}
