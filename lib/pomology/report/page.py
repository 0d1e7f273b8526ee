"""The rendered page of a run.

`build` makes each finished notebook one HTML file and writes `index.html` over all of them: it joins the tables and
figures that the notebooks have saved. It is called after every notebook of a run, so it works on whatever is there;
what no notebook has saved is made from the journals. The pages are whole by themselves: no script, no request, and a
content security policy that forbids both. Journals, tables and notebooks may come from other people's machines: texts
are escaped, figures are pictures, and a notebook's own HTML passes a list of harmless tags, attributes and styles.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from pomology import format
from pomology.articles import published
from pomology.machine import snapshot
from pomology.paths import redact, write_atomic
from pomology.report import claims as report_claims
from pomology.report import declaration, roofline, summary
from pomology.report.declaration import Declaration
from pomology.report.figures import style
from pomology.report.figures import summary as figures_summary
from pomology.report.notebook_page import PAGE, render
from pomology.report.showing import Report
from pomology.report.table import Table
from pomology.results import cases, journal
from pomology.results.run import MALFORMED, Run

MOST_LINES, MOST_CHARACTERS = 20, 1000  # of the cases that a section tells in words, and of each

PROFILES = {
    "smoke": "smoke: tiny shapes, made to test the kit; its numbers say nothing about speed",
    "quick": "quick: the article's models and shapes, some seconds a case; most epochs are estimated from steady steps",
    "article": "article: whole epochs, as the article ran them",
}

# What a notebook shows, by its method, and the name under which that is saved; a section has the first of these.
MAIN = {
    "summary": "rates",
    "roofline": "roofline",
    "ceilings": "ceilings",
    "checks": "checks",
    "side_by_side": "side-by-side",
    "table": "article",
    "details": "details",
}
PICTURE = "data:image/svg+xml,"
LONG = 40  # rows of a table that the page shows only when asked; its notebook shows it all


def build(out: Path) -> Path:
    """Render what is new in a run's folder; returns its `index.html`. Raises PomologyError if there is no folder."""
    run = Run(out)
    failed = {}
    for notebook in sorted(run.path.glob("*.ipynb")):
        page = notebook.with_suffix(".html")
        sources = (notebook, *PAGE.iterdir())
        if page.exists() and page.stat().st_mtime_ns > max(source.stat().st_mtime_ns for source in sources):
            continue
        try:
            write_atomic(page, render(notebook))
        except (*MALFORMED, RecursionError) as error:
            page.unlink(missing_ok=True)  # a page of an older notebook would be taken for this one
            failed[notebook.stem] = f"The notebook cannot be rendered: {type(error).__name__}: {error}."
    index = run.path / "index.html"
    write_atomic(index, _index(run, failed))
    return index


def links_into(page: str, present: Container[str]) -> str:
    """A page without links to files that are not beside it, as where a part of a run's folder is sent to somebody.

    present: the names of those that are, relative to the page.
    """

    def kept(link: re.Match) -> str:
        return link[0] if unquote(link[1]) in present else f"{link[2]} (not in this copy)"

    return re.sub(r'<a href="([^"#:]+)">(.*?)</a>', kept, page)


def _index(run: Run, failed: dict[str, str]) -> str:
    import jinja2

    present = {*run.journals, *(place.stem for end in ("ipynb", "html") for place in run.path.glob(f"*.{end}"))}
    present.discard("index")
    present |= {re.sub(r"-\d+$", "", place.stem) for place in run.path.glob(".partial/*.ipynb")}  # name or name-repeat
    by_article: dict[str, list[Declaration]] = {}
    order = list(dict.fromkeys(row["experiment"] for row in published.rows()))
    abouts = [_declaration(run, name) for name in sorted(present)]
    for about in sorted(abouts, key=lambda about: (*order, about.experiment).index(about.experiment)):
        by_article.setdefault(about.article, []).append(about)
    notes = list(run.problems)
    if not run.journals:
        notes.append("Nothing has been measured yet.")
    if any(record.profile == "smoke" for record in run.records):
        notes.append("A smoke run: it shows that the kit works here. Its numbers are left out of the articles' tables.")
    title = cases.short_chip(run.machine.get("chip"))
    environment = jinja2.Environment(autoescape=True, loader=jinja2.FileSystemLoader(PAGE), trim_blocks=True)
    return environment.get_template("run.html.j2").render(
        title=title[:1].upper() + title[1:],
        style=_markup((PAGE / "style.css").read_text(encoding="utf-8")),
        facts=_facts(run),
        compared=_compared(run, notes),
        articles=[_article(run, article, there, failed) for article, there in sorted(by_article.items())],
        notes=_few(notes),
    )


def _declaration(run: Run, name: str) -> Declaration:
    """Of a notebook that this kit lacks: what its copy in the run says, or else what can be derived."""
    about = declaration.of(name)
    copy = run.path / f"{name}.ipynb"
    if not about.title and copy.exists():
        try:
            about = declaration.read(copy)
        except (*MALFORMED, RecursionError):
            about = Declaration(name)
    records = run.journals[name].records if name in run.journals else []
    return about if about.article or not records else replace(about, article=records[0].article)


def _few(lines: list[str]) -> list[str]:
    """As many lines as somebody reads: of a thousand cases each may have one."""
    few = [line if len(line) <= MOST_CHARACTERS else f"{line[:MOST_CHARACTERS]}…" for line in lines[:MOST_LINES]]
    return few + ([f"And {len(lines) - MOST_LINES:,} more like these."] if len(lines) > MOST_LINES else [])


def _markup(text: str) -> Any:
    from markupsafe import Markup

    return Markup(text)


def _table(table: Table, title: str = "") -> Any:
    """A table as markup, by default without a title: where a heading above says it already."""
    return _markup(replace(table, title=title).html())


def _picture(svg: str) -> str:
    """A figure as an address: as a picture it can neither load nor run anything, nor touch the rest of the page."""
    # Not in base64, which is a third longer. With single quotes only, so that it can stand between double ones.
    single = svg.replace("'", "&#39;").replace('"', "'")
    return _markup(PICTURE + quote(single, safe=" '=/:;,.()-+*!?@$[]~_"))


def _facts(run: Run) -> list[tuple[str, str]]:
    """What to know before reading any number."""
    records, git, packages = run.records, run.machine.get("git"), run.machine.get("packages")
    kit = f"version {packages['pomology']}, " if isinstance(packages, dict) and "pomology" in packages else ""
    if isinstance(git, dict):
        kit += f"commit {str(git.get('commit'))[:10]}" + (", with changes" if git.get("dirty") else "")
    else:
        kit += "commit not known"
    profiles = sorted({record.profile for record in records} or {str(run.machine.get("profile") or "not told")})
    kinds: dict[str, dict[str, None]] = defaultdict(dict)
    for record in records:
        kinds["none needed" if record.data == "none" else record.data][record.experiment] = None
    # Text of this form sorts by time.
    times = sorted(record.started for record in records if re.fullmatch(r"[\d-]{10}T[\d:]{8}Z", record.started))
    when = [time[:16].replace("T", " ") for time in (times[:1] + times[-1:])]
    ended = Counter(record.status for record in records)
    power = run.machine.get("power_source")
    return [
        ("Machine", snapshot.describe(run.machine) if run.machine else "not told"),
        *([("Power", str(power))] if power else []),
        ("Profile", "; ".join(PROFILES.get(profile, profile) for profile in profiles)),
        ("Data", "; ".join(f"{kind} ({_names(names)})" for kind, names in sorted(kinds.items())) or "none yet"),
        ("Measured", " to ".join(dict.fromkeys(when)) + " UTC" if when else "nothing yet"),
        *_checks(records),
        *_best(records),
        ("Cases", ", ".join(f"{count} {status}" for status, count in ended.most_common()) or "none yet"),
        ("Kit", kit),
    ]


def _names(names: Iterable[str], most: int = 6) -> str:
    """`dcgan, vae`, or of many only how many they are: each section tells it of itself."""
    names = list(names)
    return ", ".join(names) if len(names) <= most else f"{len(names)} notebooks"


def _compared(run: Run, notes: list[str]) -> dict[str, Any] | None:
    """The chart of all devices and a sentence on it; None where this machine has no rate, as of a smoke run."""
    try:
        said = summary.sentence(run.records)
        drawing = style.svg(figures_summary.summary_figure(run.records, compact=True)) if said else ""
    except MALFORMED as error:
        notes.append(f"This machine cannot be compared: {type(error).__name__}: {error}.")
        return None
    drawn = {"sentence": said, "drawing": _picture(drawing), "kind": "compact", "caption": summary.CAPTION}
    return drawn if said else None


def _checks(records: list[dict]) -> list[tuple[str, str]]:
    """How the kit's check of itself ended, if it was run."""
    found = [r for r in records if r.article == published.KIT and r.experiment not in roofline.CEILINGS]
    if not found:
        return []
    ended: dict[str, dict[str, None]] = {"passed": {}, "not passed": {}, "cannot be told": {}, "not to be had here": {}}
    for record in found:
        kind = {"ok": "passed", "unsupported": "not to be had here"}.get(record.status, "not passed")
        if kind == "passed" and "too-noisy" in record.flags:
            kind = "cannot be told"
        ended[kind][f"{record.config.get('check', record.case)} ({record.backend})"] = None
    parts = [f"{kind}: {', '.join(names)}" for kind, names in ended.items() if names and kind != "passed"]
    other = {name for kind, names in ended.items() for name in names if kind != "passed"}  # in one repeat is enough
    good = len(ended["passed"].keys() - other)
    return [("Instrument", "; ".join([f"{good} of {good + len(other)} checks of the kit itself passed", *parts]))]


def _best(records: list[dict]) -> list[tuple[str, str]]:
    """The machine's ceilings in a line, if they were measured."""
    best, parts = roofline.ceilings(records), []
    for kind, word in (("cpu", "processor"), ("gpu", "GPU")):
        rates = [(precision, one.value) for (where, precision), one in sorted(best.rates.items()) if where == kind]
        shown = [f"{precision} {format.quantity_per_s(value, 'FLOP/s')}" for precision, value in rates]
        if kind in best.bandwidths:
            shown.append(f"memory {format.quantity_per_s(best.bandwidths[kind].value, 'B/s')}")
        parts += [f"{word}: {', '.join(shown)}"] if shown else []
    return [("At its best", "; ".join(parts))] if parts else []


def _article(run: Run, article: str, abouts: list[Declaration], failed: dict[str, str]) -> dict[str, Any]:
    # What several notebooks have measured of an experiment stands together below the one that combines them.
    showing = [about for about in abouts if "claims" in about.shows]
    combined = {
        name for about in showing for name in about.sources if published.experiment_of(name) == about.experiment
    }
    sections = [_section(run, about, failed.get(about.name), about.name not in combined) for about in abouts]
    known = next((known for known in published.articles() if known.id == article), None)
    if article == published.KIT:
        return {"title": "The kit itself, and what this machine can do", "sections": sections}
    if known is None:
        return {"title": f"Article {article}" if article else "Not of an article", "sections": sections}
    linked = known.url_or_source.startswith("https://")
    there = {name for about in abouts for name in (about.name, about.experiment)}
    claims = [claim for claim in published.claims(article=article) if len(claim.experiments) > 1]
    return {
        "title": known.title,
        "byline": ", ".join([known.author, known.date, *([] if linked else [known.url_or_source])]),
        "link": known.url_or_source if linked else "",
        "sections": sections,
        "claims": _claims(run, [claim for claim in claims if there & set(claim.experiments)]),
    }


def _claims(run: Run, claims: list[published.Claim]) -> Any:
    """Those that need more than one experiment, and so more than any notebook alone has."""
    if not claims:
        return ""
    try:
        return _table(report_claims.claims_table(claims, run.records))
    except MALFORMED as error:
        return f"The claims cannot be tested: {type(error).__name__}: {error}."


def _section(run: Run, about: Declaration, failure: str | None, with_claims: bool) -> dict[str, Any]:
    """One experiment: its table, figure and claims, or what is known about why there are none."""
    name = about.name
    contents = run.journals.get(name, journal.Contents(run.path / f"{name}.jsonl"))
    notes = [failure] if failure else []
    if not any((run.path / f"{name}.{ending}").exists() for ending in ("ipynb", "html")):
        notes.append(_unfinished(run.path / ".partial" / f"{name}.ipynb"))
        notes += [f"{start.case}: under way, or cut off with its process." for start in contents.open_starts]
    notes += [f"{problem}." for problem in contents.problems]
    section = {"name": name, "title": about.title or name}
    try:
        section |= _shown(Report.of(about, run), with_claims)
    except MALFORMED as error:
        notes.append(f"The numbers of this experiment cannot be shown: {type(error).__name__}: {error}.")
    main = section.pop("main", "details")
    section["endings"] = _few([] if main == "checks" else _endings(contents.records, main))
    return section | {"notes": _few(notes), "links": _links(run.path, name)}


def _shown(report: Report, with_claims: bool) -> dict[str, Any]:
    """What a notebook has saved: its main table, its figure and claims, and folded what else was measured."""
    shows = report.declaration.shows or ("details",)
    main = next((name for name in MAIN if name in shows), "")
    others = [
        name for name in (*(["details"] if main == "table" else []), "details", "numbers", "table") if name != main
    ]
    folded = next((name for name in others if name in shows or (name, main) == ("details", "table")), "")

    def table(name: str) -> Table | None:
        make: Callable = getattr(report, name) if name else str
        return report.saved(MAIN.get(name, name), make) if name else None

    section: dict[str, Any] = {"main": main}
    # Each notebook of ceilings has shown those of the run until then; beside each other, each shows its own.
    if shown := roofline.ceilings_table(report.records) if main == "ceilings" else table(main):
        section |= {"table": _table(shown), "folded": len(shown.rows) if len(shown.rows) > LONG else 0}
    about = report.records if report.declaration.framework else report.run_records()
    measured = any(record.status == "ok" and record.profile != "smoke" for record in about)
    if "figure" in shows and measured:
        section |= {"drawing": _picture(report.drawn()), "kind": "drawing", "caption": report.declaration.caption}
    if "claims" in shows and with_claims:
        claims = table("claims")
        alone = {claim.id for claim in published.claims() if len(claim.experiments) == 1}
        claims = replace(claims, rows=tuple(row for row in claims.rows if row.cells[0] in alone))
        section["claims"] = _table(claims, "The article's claims") if claims.rows else ""
    # What a notebook combines has its numbers below the notebooks that measured them.
    repeated = report.declaration.sources and not report.declaration.whole_run
    if report.records and not repeated and (shown := table(folded)):
        section["details"] = _table(shown)
    return section


def _endings(records: Iterable[Any], main: str) -> list[str]:
    """The cases that did not end well, of those that are in no table above.

    Of a row of siblings each larger one is too big; the table says how many.
    """
    apart = [
        record for record in records if main in ("ceilings", "details") or record.scaled or record.profile == "smoke"
    ]
    bad = [record for record in apart if record.status != "ok"]
    siblings = main == "ceilings"
    return [cases.line(record) for record in bad if record.status != "too-big" or not (siblings or record.scaled)]


def _unfinished(partial: Path) -> str:
    """Why there is no finished notebook, as far as an unfinished one tells."""
    if not partial.exists():
        return "No finished notebook is beside these numbers: it was run by hand, or is not here."
    try:
        cells = json.loads(partial.read_bytes())["cells"]
        errors = [o for cell in cells for o in cell.get("outputs", ()) if o["output_type"] == "error"]
        stopped = f" It stopped at {errors[-1]['ename']}: {errors[-1]['evalue']}." if errors else ""
    except (*MALFORMED, RecursionError):
        stopped = " What it holds cannot be read."
    return redact(
        "Not finished: this notebook is still running, or its run was stopped. What it had measured until then is "
        f"below; the same command carries on.{stopped}"
    )


def _links(out: Path, name: str) -> list[tuple[str, str]]:
    """What there is to open, by addresses inside the run's folder."""
    places = {
        "The notebook, rendered": f"{name}.html",
        "numbers as CSV": f"tables/{name}-article.csv",
        "shares as CSV": f"tables/{name}-roofline.csv",
        "rates as CSV": f"tables/{name}-rates.csv",
        "checks as CSV": f"tables/{name}-checks.csv",
        "journal": f"{name}.jsonl",
    }
    return [(text, quote(place)) for text, place in places.items() if (out / place).exists()]
