"""The report of a run: index.html joins what its notebooks have shown, and makes nothing again.

Pages run and request nothing, and a content security policy forbids both. Texts from journals are
escaped, and figures are pictures.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pomology.articles import published
from pomology.machine import snapshot
from pomology.paths import redact, write_atomic
from pomology.report import table
from pomology.report.article import details_table
from pomology.report.display import ABOUT, software
from pomology.results import cases
from pomology.results.record import CALIBRATION
from pomology.results.run import Run

LAST = {published.KIT: "This machine", "": "Other notebooks"}
IMAGE = re.compile(r"!\[[^]]*\]\(\.\./.*?\)")  # in the text of a notebook: of the reference run


def build(folder: Path, others: Iterable[Path] = ()) -> Path:
    """Write index.html of a run's folder, and render its new notebooks; return the page.

    others: folders or zips of other runs, whose cases follow. Raises PomologyError without one.
    """
    run = Run(folder)
    runs = [run, *(Run(place) for place in others)]
    problems = [problem for each in runs for problem in each.problems]
    endings = Counter(record.status for record in run.records)
    good = [record for record in run.records if record.status == "ok"]
    endings.update(flag for record in good for flag in record.flags)
    checks = [record for record in good if record.config.get("check") == "same thing twice"]
    problems += _render_notebooks(run.path)
    by_time = sorted(run.records, key=lambda record: record.started)
    for last in {(record.framework, record.backend): record for record in by_time}.values():
        slow = [text for text in last.note.split("; ") if text.startswith(CALIBRATION)]
        problems += [f"{cases.chip_name(last)}, last case: {text}." for text in slow]
    sections = [_section(runs, about) for about in _shown(run)]
    notes = Counter(note for part in sections for item in part["shown"] for note in item["notes"])
    page = table.template("run.html.j2").render(
        run=run,
        chip=cases.short_chip(run.machine.get("chip")),
        machine=snapshot.describe(run.machine) if run.machine else "not known",
        software=software(run.machine) if run.machine else "",
        endings=endings.most_common(),
        noise={record.backend: record.note for record in checks},
        problems=problems,
        unfinished=sorted(place.stem for place in run.path.glob(".partial/[!.]*.ipynb")),
        notes=[note for note, count in notes.items() if count > 1],
        sections=sections,
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
    for notebook in sorted(folder.glob("[!.]*.ipynb")):
        page = notebook.with_suffix(".html")
        if page.exists() and page.stat().st_mtime_ns >= notebook.stat().st_mtime_ns:
            continue
        try:
            source = IMAGE.sub("", redact(notebook.read_text(encoding="utf-8")))
            document = nbformat.reads(source, as_version=4)
            text, _ = exporter.from_notebook_node(document, {"metadata": {"name": notebook.stem}})
            write_atomic(page, text)
        except Exception as error:  # whatever nbconvert raises
            page.unlink(missing_ok=True)
            problems.append(f"{notebook.name} cannot be rendered: {type(error).__name__}: {error}.")
    return problems


def _shown(run: Run) -> list[dict[str, Any]]:
    """Return what every notebook has shown; of one that has shown nothing its name."""
    places = run.path.glob(f"shown/[!.]*/{ABOUT}")
    found = [json.loads(place.read_bytes()) for place in places]
    for name in run.journals.keys() - {about["name"] for about in found}:
        article = next((record.article for record in run.journals[name].records), "")
        found.append({"name": name, "title": name, "article": article, "items": []})
    return sorted(found, key=lambda each: (each["article"] in LAST, each["article"], each["name"]))


def _section(runs: Sequence[Run], about: dict[str, Any]) -> dict[str, Any]:
    """Return one notebook's part of the page: its tables and figures in order, and links."""
    name = about["name"]
    folder = runs[0].path / "shown" / name
    unshown = [run for run in (runs[1:] if about["items"] else runs) if name in run.journals]
    files = [*runs[0].path.glob(f"{name}.html"), *sorted(folder.glob("*.csv"))]
    files += runs[0].path.glob(f"{name}.jsonl*")
    article = next((each for each in published.articles() if each.id == about["article"]), None)
    return about | {
        "part": article.title if article else LAST.get(about["article"], LAST[""]),
        "article": article,
        "links": {place.name: quote(place.relative_to(runs[0].path).as_posix()) for place in files},
        "shown": [_contents(folder, item) for item in about["items"]],
        "plain": [details_table(run.journals[name].records, run.name) for run in unshown],
    }


def _contents(folder: Path, item: dict[str, Any]) -> dict[str, Any]:
    """Return a saved figure or table for the template."""
    name = item["file"]
    shown = {"title": name.partition("-")[2].replace("-", " "), "notes": []} | item
    drawing = folder / f"{name}.svg"
    if drawing.exists():
        return shown | {"figure": address(drawing.read_text(encoding="utf-8"))}
    text = (folder / f"{name}.html").read_text(encoding="utf-8")
    return shown | {"table": text.partition("</style>")[2]}  # the page has its own style
