"""The report of a run: index.html joins what its notebooks have shown, in order, and makes nothing again.

Pages run and request nothing, and a content security policy forbids both. Texts from journals are escaped, and figures
are pictures.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
from markupsafe import Markup

from pomology.articles import published
from pomology.errors import PomologyError
from pomology.format import with_interval
from pomology.machine import snapshot
from pomology.paths import redact, write_atomic
from pomology.report import details, table
from pomology.report.display import ABOUT, About, Item
from pomology.report.table import PAGE, Row, Table, grouped
from pomology.results import cases, metrics
from pomology.results.notebook_file import read_notebook
from pomology.results.record import Record
from pomology.results.run import Run

PROFILES = {
    "smoke": "smoke: tiny shapes that test the kit; the numbers say nothing about speed",
    "quick": "quick: the article's models and shapes, some seconds a case; most epochs are estimated from steady steps",
    "article": "article: whole epochs, as the article ran them",
}
KIT_TITLE = "This machine, and the kit itself"


def build(folder: Path, others: Iterable[Path] = ()) -> Path:
    """Write index.html of a run's folder, and render its new notebooks; return the page.

    others: folders or zips of other people's runs, whose cases stand in each section after this run's.
    Raises PomologyError if there is no such folder, or nothing in one of the others.
    """
    run = Run(folder)
    other_runs = [_other(place, run) for place in others]
    problems = _render_notebooks(run.path)
    shown = _shown(run)
    known = published.articles()
    sections = [about for about in shown if not about.opens_report]
    content = table.filled(
        "run.html.j2",
        title=_title(run),
        notes=[*problems, *run.problems, *_notes(run, shown), *map(_other_note, other_runs)],
        facts=_facts(run),
        endings=_endings(run.records),
        left_out=_left_out(run),
        software=details.software_table(run.machine, run.records),
        opening=[_section(run, about, other_runs) for about in shown if about.opens_report],
        parts=[
            {
                "title": _part_title(about[0].article, known),
                "article": next((each for each in known if each.id == about[0].article), None),
                "sections": [_section(run, each, other_runs) for each in about],
            }
            for about in grouped(sections, lambda about: about.article)
        ],
    )
    index = run.path / "index.html"
    write_atomic(index, content)
    return index


# The notebooks --------------------------------------------------------------------------------------------------------


def render(notebook: Path) -> str:
    """Return an executed notebook as one HTML page that opens offline. Raises what nbconvert raises."""
    import nbformat
    from nbconvert import HTMLExporter

    document = nbformat.reads(redact(notebook.read_text(encoding="utf-8")), as_version=4)
    headings = [
        line.lstrip("# ")
        for cell in document.cells
        if cell.cell_type == "markdown"
        for line in cell.source.splitlines()
        if line.startswith("# ")
    ]
    exporter = HTMLExporter(
        template_name=PAGE.name,
        extra_template_basedirs=[str(PAGE.parent)],
        exclude_anchor_links=True,
        filters={"address": address},
    )
    name = headings[0] if headings else notebook.stem
    return exporter.from_notebook_node(document, {"metadata": {"name": name}})[0]


def address(svg: str) -> str:
    """Return a drawing as the address of a picture: as such it can neither load nor run anything."""
    return "data:image/svg+xml," + quote(svg, safe=" =/:;,.()-+*!?@$[]~_{}")


def _render_notebooks(folder: Path) -> list[str]:
    """Render the notebooks that are newer than their pages; return a line for each that cannot be rendered."""
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


# What they have shown -------------------------------------------------------------------------------------------------


def _shown(run: Run) -> list[About]:
    """Return what every notebook has shown, and of the journals whose notebook has shown nothing their names."""
    found = {}
    for place in sorted(run.path.glob(f"shown/*/{ABOUT}")):
        about = msgspec.json.decode(place.read_bytes(), type=About)
        found[about.name] = about
    for name, contents in run.journals.items():
        if name not in found:
            article = contents.records[0].article if contents.records else ""
            found[name] = About(name, name, article)
    for place in run.path.glob(".partial/*.ipynb"):
        name = re.sub(r"(-end)?(-\d+)?$", "", place.stem)
        found.setdefault(name, About(name, name, ""))
    order = list(dict.fromkeys(row["experiment"] for row in published.rows()))
    last = len(order)

    def place_of(about: About) -> tuple:
        experiment = about.name
        place = order.index(experiment) if experiment in order else last
        return about.article in (published.KIT, ""), about.article, place, about.name

    return sorted(found.values(), key=place_of)


def _section(run: Run, about: About, others: Sequence[Run]) -> dict[str, Any]:
    """Return one notebook's part of the page: links, notes, and its tables and figures in order."""
    name = about.name
    contents = run.journals.get(name)
    records = contents.records if contents else []
    notes = _unfinished(run.path / ".partial" / f"{name}.ipynb")
    if contents:
        notes += [
            f"{start.case}: under way, or cut off with its process."
            for start in contents.open_starts
        ]
    items = [_item(run.path / "shown" / name, item) for item in about.items]
    if not about.items and records:
        items = [{"table": plain_table(records), "title": ""}]
    theirs = [
        (other.name, other.journals[name].records) for other in others if name in other.journals
    ]
    if theirs:
        items.append({"table": others_table(theirs), "title": "other machines"})
    links = [("the notebook, rendered", f"{name}.html")]
    links += [
        (f"{place.stem.partition('-')[2]} (CSV)", f"shown/{name}/{place.name}")
        for place in sorted((run.path / "shown" / name).glob("*.csv"))
    ]
    links += [("journal", place.name) for place in run.path.glob(f"{name}.jsonl*")]
    return {
        "name": name,
        "title": about.title,
        "links": [(text, quote(place)) for text, place in links if (run.path / place).exists()],
        "notes": notes,
        "content": items,
        "endings": [] if about.items else _unwell(records),
    }


def _item(folder: Path, item: Item) -> dict[str, Any]:
    """Return a saved table or figure for the template."""
    title = item.file.partition("-")[2].replace("-", " ")
    drawing = folder / f"{item.file}.svg"
    if drawing.exists():
        source = address(drawing.read_text(encoding="utf-8"))
        return {
            "figure": Markup(source),
            "caption": item.caption,
            "title": title,
            "folded": item.folded,
        }
    place = folder / f"{item.file}.html"
    if not place.exists():
        return {"missing": f"{place.name} is missing.", "title": title}
    return {"table": Markup(table.saved_html(place)), "title": title, "folded": item.folded}


def plain_table(records: Sequence[Record]) -> Table:
    """Return the cases of one experiment, a row each, where no notebook has shown them."""
    lines = []
    for record in records:
        # The number of a case that computed wrongly stays in its journal.
        name = "" if record.status == "mismatch" else cases.headline(record)
        value = with_interval(record.metrics[name], metrics.show(name)) if name else ""
        flags = ", ".join(record.flags)
        cells = (
            cases.chip_name(record),
            cases.framework_name(record),
            cases.settings(record),
            record.status,
        )
        lines.append(((*cells, value, flags), {}))
    return Table.of("", ("Device", "Framework", "Case", "Status", "Value", "Flags"), lines)


def others_table(runs: Sequence[tuple[str, Sequence[Record]]]) -> Table:
    """Return the cases of other people's runs, by the run's name, a row each."""
    parts = [(name, plain_table(records)) for name, records in runs]
    rows = [Row((name, *row.cells), "other") for name, part in parts for row in part.rows]
    return Table("Other people's runs", ("Run", *parts[0][1].columns), tuple(rows))


def _other(place: Path, run: Run) -> Run:
    other = Run(place)
    if place.resolve() == run.path.resolve():
        raise PomologyError(
            f"WITH={other.name}: this is the run whose page is built; name another one"
        )
    if not other.records:
        raise PomologyError(f"WITH={other.name}: no case has ended in it")
    return other


def _other_note(other: Run) -> str:
    machine = snapshot.describe(other.machine) if other.machine else "an unknown machine"
    problems = " ".join(other.problems)
    return f"{other.name}: {machine}; {len(other.records):,} cases. {problems}".strip()


def _unwell(records: Iterable[Record]) -> list[str]:
    """Return a line for each case that did not end well, once for all of its repeats."""
    failed = {(record.case, record.status): record for record in records if record.status != "ok"}
    return [cases.line(record)[:1000] for record in failed.values()][:20]


def _unfinished(partial: Path) -> list[str]:
    """Return why there is no finished notebook, as far as its unfinished copy tells."""
    if not partial.exists():
        return []
    text = (
        "Not finished: this notebook is still running, or was stopped. The same command carries on."
    )
    try:
        outputs = [
            output for cell in read_notebook(partial)["cells"] for output in cell.get("outputs", ())
        ]
    except PomologyError:
        return [text]
    errors = [output for output in outputs if output["output_type"] == "error"]
    if errors:
        text += f" It stopped at {errors[-1]['ename']}: {errors[-1]['evalue']}."
    return [redact(text)]


# The first lines ------------------------------------------------------------------------------------------------------


def _title(run: Run) -> str:
    chip = cases.short_chip(run.machine.get("chip"))
    cores = run.machine.get("cpu_cores")  # a server's chip may be two cores of a virtual machine
    title = chip[:1].upper() + chip[1:]
    return f"{title}, {cores} cores" if isinstance(cores, int) else title


def _part_title(article: str, known: Sequence[Any]) -> str:
    if article == published.KIT:
        return KIT_TITLE
    for each in known:
        if each.id == article:
            return f"Article {each.id}: {each.title}" if each.id.isdigit() else each.title
    return "Other notebooks"


def _notes(run: Run, shown: Sequence[About]) -> list[str]:
    records = run.records
    notes = []
    if not records:
        notes.append("Nothing has been measured yet.")
    elif not any(about.items for about in shown):
        notes.append("These are plain tables of the journals: no notebook has shown anything here.")
    if any(record.profile == "smoke" for record in records):
        notes.append(
            "This is a smoke run: it shows that the kit works here. Its numbers are left out of the articles' tables."
        )
    left = _left_out(run)
    if left.rows:
        notes.append(
            f"{left.title}: {len(left.rows)} notebooks. make reproduce RUN={run.name} carries on."
        )
    return notes


def _facts(run: Run) -> list[tuple[str, str]]:
    """Return what to know before reading any number, as terms and texts."""
    records = run.records
    machine = run.machine
    profiles = sorted({record.profile for record in records})
    kinds = Counter(record.data for record in records if record.data != "none")
    times = sorted(record.started for record in records)
    facts = {
        "Machine": snapshot.describe(machine) if machine else "not known",
        "Power": str(machine.get("power_source") or ""),
        "Profile": "; ".join(PROFILES.get(profile, profile) for profile in profiles),
        "Data": ", ".join(f"{kind} in {count} cases" for kind, count in kinds.items()),
        "Measured": f"{times[0]} to {times[-1]}" if times else "",
        "Kit": f"commit {details.commit(machine['git'])}" if machine.get("git") else "",
        "Noise": details.same_twice(records) if records else "",
    }
    return [(term, text) for term, text in facts.items() if text]


def _endings(records: Sequence[Record]) -> list[str]:
    """Return how the cases ended, and the flags of those that ended well, with their meaning."""
    if not records:
        return []
    statuses = Counter(record.status for record in records)
    lines = [", ".join(f"{count:,} {status}" for status, count in statuses.most_common())]
    flags = Counter(flag for record in records if record.status == "ok" for flag in record.flags)
    for flag, count in flags.most_common():
        cases_text = "1 case" if count == 1 else f"{count} cases"
        lines.append(f"{flag} ({cases_text}): {cases.FLAGS.get(flag, flag)}")
    return lines


def _left_out(run: Run) -> Table:
    """Return what a run has left out as the time of MINUTES was over, and why."""
    left = details.named(run.machine.get("left_out"))
    rows = tuple(Row((str(name), str(why))) for name, why in left.items())
    return Table(f"Left out: MINUTES={run.machine.get('minutes')}", ("Notebook", "Why"), rows)
