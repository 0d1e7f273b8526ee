"""The report of a run: index.html joins what its notebooks have shown, and makes nothing again.

Pages run and request nothing, and a content security policy forbids both. Texts from journals are
escaped, and figures are pictures.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
from markupsafe import Markup

from pomology.articles import published
from pomology.format import with_interval
from pomology.machine import snapshot
from pomology.paths import redact, write_atomic
from pomology.report import details, table
from pomology.report.display import ABOUT, About, Item
from pomology.report.table import PAGE, Table, grouped
from pomology.results import cases, metrics
from pomology.results.record import Record
from pomology.results.run import Run

PROFILES = {
    "smoke": "smoke: tiny shapes that test the kit; the numbers say nothing about speed",
    "quick": "quick: the article's models and shapes; most epochs are estimates from steady steps",
    "article": "article: whole epochs, as the article ran them",
}
PARTS = {published.KIT: "This machine, and the kit itself", "": "Other notebooks"}
EMPTY = "Nothing has been measured yet."
PLAIN = "These are plain tables of the journals: no notebook has shown anything here."
SMOKE = "This is a smoke run: it shows that the kit works here. No article's table has its numbers."
UNFINISHED = "Not finished: it is still running, or was stopped. The same command carries on."


def build(folder: Path, others: Iterable[Path] = ()) -> Path:
    """Write index.html of a run's folder, and render its new notebooks; return the page.

    others: folders or zips of other people's runs, whose cases stand after this run's.
    Raises PomologyError if there is no such folder or zip.
    """
    run = Run(folder)
    other_runs = [Run(place) for place in others]
    problems = [each for place in (run, *other_runs) for each in place.problems]
    problems += _render_notebooks(run.path)
    shown = _shown(run)
    articles = {article.id: article for article in published.articles()}
    parts = []
    for group in grouped([each for each in shown if not each.opens_report], attrgetter("article")):
        article = articles.get(group[0].article)
        title = article.title if article else PARTS.get(group[0].article, PARTS[""])
        sections = [_section(run, each, other_runs) for each in group]
        parts.append({"title": title, "article": article, "sections": sections})
    content = table.filled(
        "run.html.j2",
        title=_title(run),
        notices=[*problems, *_notes(run, shown)],
        facts=_facts(run),
        opening=[_section(run, each, other_runs) for each in shown if each.opens_report],
        parts=parts,
    )
    index = run.path / "index.html"
    write_atomic(index, content)
    return index


# The notebooks ------------------------------------------------------------------------------------


def render(notebook: Path) -> str:
    """Return an executed notebook as an HTML page that opens offline; raise what nbconvert does."""
    import nbformat
    from nbconvert import HTMLExporter

    document = nbformat.reads(redact(notebook.read_text(encoding="utf-8")), as_version=4)
    exporter = HTMLExporter(
        template_name=PAGE.name,
        extra_template_basedirs=[str(PAGE.parent)],
        exclude_anchor_links=True,
        filters={"address": address},
    )
    return exporter.from_notebook_node(document, {"metadata": {"name": notebook.stem}})[0]


def address(svg: str) -> str:
    """Return a drawing as the address of a picture, which can neither load nor run anything."""
    return "data:image/svg+xml," + quote(svg, safe=" =/:;,.()-+*!?@$[]~_{}")


def _render_notebooks(folder: Path) -> list[str]:
    """Render the notebooks that are newer than their pages; return a line for each failure."""
    problems = []
    for notebook in sorted(folder.glob("*.ipynb")):
        page = notebook.with_suffix(".html")
        if page.exists() and page.stat().st_mtime_ns >= notebook.stat().st_mtime_ns:
            continue
        try:
            write_atomic(page, render(notebook))
        except Exception as error:  # whatever nbconvert raises
            page.unlink(missing_ok=True)
            problems.append(f"{notebook.name} cannot be rendered: {type(error).__name__}: {error}.")
    return problems


# The sections -------------------------------------------------------------------------------------


def _shown(run: Run) -> list[About]:
    """Return what every notebook has shown; of one that has shown nothing its name."""
    found = {}
    for place in run.path.glob(f"shown/*/{ABOUT}"):
        about = msgspec.json.decode(place.read_bytes(), type=About)
        found[about.name] = about
    for name, contents in run.journals.items():
        article = contents.records[0].article if contents.records else ""
        found.setdefault(name, About(name, name, article))
    for place in run.path.glob(".partial/*.ipynb"):
        name = place.stem.partition("-")[0]  # the rest is its variant and repeat
        found.setdefault(name, About(name, name, ""))
    last = (published.KIT, "")  # after the articles
    return sorted(found.values(), key=lambda each: (each.article in last, each.article, each.name))


def _section(run: Run, about: About, others: Sequence[Run]) -> dict[str, Any]:
    """Return one notebook's part of the page: links, notes, and its tables and figures in order."""
    name = about.name
    folder = run.path / "shown" / name
    journal = run.journals.get(name)
    unfinished = sorted((run.path / ".partial").glob(f"{name}*.ipynb"))
    unfinished = [place.name for place in unfinished if place.stem.partition("-")[0] == name]
    notes = [UNFINISHED] if unfinished else []
    if journal:
        notes += [
            f"{each.case}: under way, or cut off with its process." for each in journal.open_starts
        ]
    items = [_item(folder, item) for item in about.items]
    if journal and journal.records and not items:
        items = [{"table": plain_table(journal.records)}]
    for other in others:
        if name in other.journals:
            theirs = plain_table(other.journals[name].records, other.name, "other")
            items.append({"table": theirs})
    links = {"the notebook, rendered": f"{name}.html"}
    links |= {f"unfinished: {each}": f".partial/{each}" for each in unfinished}
    for place in sorted(folder.glob("*.csv")):
        links[f"{place.stem.partition('-')[2]} (CSV)"] = f"shown/{name}/{place.name}"
    links["journal"] = next((place.name for place in run.path.glob(f"{name}.jsonl*")), "none")
    links = {text: quote(place) for text, place in links.items() if (run.path / place).exists()}
    return {"name": name, "title": about.title, "links": links, "notes": notes, "content": items}


def _item(folder: Path, item: Item) -> dict[str, Any]:
    """Return a saved table or figure for the template."""
    shown = {"title": item.file.partition("-")[2].replace("-", " "), "folded": item.folded}
    drawing = folder / f"{item.file}.svg"
    saved = folder / f"{item.file}.html"
    if drawing.exists():
        source = Markup(address(drawing.read_text(encoding="utf-8")))
        return shown | {"figure": source, "caption": item.caption}
    if saved.exists():
        return shown | {"table": Markup(table.saved_html(saved))}
    return shown | {"missing": f"{saved.name} is missing."}


def plain_table(records: Iterable[Record], title: str = "", kind: str = "plain") -> Table:
    """Return the cases of one experiment, a row each, where no notebook has shown them."""
    lines = []
    for record in records:
        # The number of a case that computed wrongly stays in its journal.
        name = "" if record.status == "mismatch" else cases.headline(record)
        value = with_interval(record.metrics[name], metrics.show(name)) if name else ""
        cells = [cases.chip_name(record), cases.framework_name(record), cases.settings(record)]
        cells += [record.status, value, "; ".join(filter(None, [record.reason, *record.flags]))]
        lines.append((cells, {}, kind))
    return Table.of(title, ("Device", "Framework", "Case", "Status", "Value", "Remarks"), lines)


# The first lines ----------------------------------------------------------------------------------


def _title(run: Run) -> str:
    chip = cases.short_chip(run.machine.get("chip"))
    cores = run.machine.get("cpu_cores")  # a server's chip may be two cores of a virtual machine
    title = chip[:1].upper() + chip[1:]
    return f"{title}, {cores} cores" if isinstance(cores, int) else title


def _notes(run: Run, shown: Sequence[About]) -> list[str]:
    """Return what a reader must know before any number: what is missing, and what says nothing."""
    notes = []
    if not run.records:
        notes.append(EMPTY)
    elif not any(about.items for about in shown):
        notes.append(PLAIN)
    if any(record.profile == "smoke" for record in run.records):
        notes.append(SMOKE)
    left_out = run.machine.get("left_out") or {}
    if left_out:
        names = ", ".join(f"{name} ({why})" for name, why in left_out.items())
        command = f"make reproduce RUN={run.name} carries on"
        notes.append(f"Left out: MINUTES={run.machine.get('minutes')}: {names}. {command}.")
    return notes


def _facts(run: Run) -> dict[str, str]:
    """Return the machine, the profile, how the cases ended, and each flag with its meaning."""
    records = run.records
    machine = run.machine
    profiles = sorted({record.profile for record in records})
    statuses = Counter(record.status for record in records)
    data = Counter(record.data for record in records if record.data != "none")
    times = sorted(record.started for record in records)
    facts = {
        "Machine": snapshot.describe(machine) if machine else "not known",
        "Power": str(machine.get("power_source") or ""),
        "Profile": "; ".join(PROFILES.get(profile, profile) for profile in profiles),
        "Data": ", ".join(f"{kind} in {count:,} cases" for kind, count in data.items()),
        "Measured": f"{times[0]} to {times[-1]}" if times else "",
        "Software": details.software(machine) if machine else "",
        "Noise": details.same_twice(records) if records else "",
        "Cases": ", ".join(f"{count:,} {status}" for status, count in statuses.most_common()),
    }
    flags = Counter(flag for record in records if record.status == "ok" for flag in record.flags)
    for flag, count in flags.most_common():
        facts[flag] = f"{count:,} of the cases: {cases.FLAGS.get(flag, flag)}"
    return {term: text for term, text in facts.items() if text}
