"""The rendered page of a run.

`build` makes each finished notebook one HTML file and writes `index.html` over all of them; it is called after every
notebook of a run, so it works on whatever is there. The pages are whole by themselves: no script, no request, and a
content security policy that forbids both. Journals and notebooks may come from other people's machines: texts are
escaped, and a notebook's own HTML passes a list of harmless tags, attributes and styles.
"""

from __future__ import annotations

import functools
import html
import json
import re
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from pomology import format
from pomology.articles import layout as articles_layout
from pomology.articles import published
from pomology.machine import snapshot
from pomology.paths import redact, write_atomic
from pomology.report import article as report_article
from pomology.report import claims as report_claims
from pomology.report import details as report_details
from pomology.report import roofline, side_by_side, summary
from pomology.report import table as report_table
from pomology.report.figures import draw, style
from pomology.report.figures import summary as figures_summary
from pomology.report.notebook_page import MOST_PAGE_BYTES, PAGE, lean, render
from pomology.results import cases, journal
from pomology.results.run import MALFORMED, Run, load

MOST_LINES, MOST_CHARACTERS = 20, 1000  # of the cases that a section tells in words, and of each

PROFILES = {
    "smoke": "smoke: tiny shapes, made to test the kit; its numbers say nothing about speed",
    "quick": "quick: the article's models and shapes, some seconds a case; most epochs are estimated from steady steps",
    "article": "article: whole epochs, as the article ran them",
}

CAPTION = (
    "Seconds per epoch, less is faster. Filled marks: the whole epoch, this machine's with its 95 % interval. "
    "Hollow marks: its computing alone."
)


def build(out: Path) -> Path:
    """Render what is new in a run's folder; returns its `index.html`. Raises PomologyError if there is no folder."""
    run = load(out)
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


# Beside those that bleach lets through.
LONG = 40  # rows of a table that the page shows only when asked; its notebook shows it all


def _index(run: Run, failed: dict[str, str]) -> str:
    import jinja2

    present = {*run.journals, *(place.stem for place in run.path.glob("*.ipynb"))}
    present |= {re.sub(r"-\d+$", "", place.stem) for place in run.path.glob(".partial/*.ipynb")}  # name or name-repeat
    order = {row[1]: row[0] for row in published.values()[["article", "experiment"]].itertuples(index=False, name=None)}
    by_article: dict[str, list[str]] = {}
    for name in [name for name in order if name in present] + sorted(present - order.keys()):
        records = run.journals[name].records if name in run.journals else []
        article = order.get(name) or (records[0]["article"] if records else _article_of(run.path / f"{name}.ipynb"))
        by_article.setdefault(article, []).append(name)
    notes = list(run.problems)
    if not run.journals:
        notes.append("Nothing has been measured yet.")
    if any(record["profile"] == "smoke" for record in run.records):
        notes.append("A smoke run: it shows that the kit works here. Its numbers are left out of the articles' tables.")
    title = cases.chip_name({"chip": run.machine.get("chip"), "backend": "cpu"}).removesuffix(" CPU")
    environment = jinja2.Environment(autoescape=True, loader=jinja2.FileSystemLoader(PAGE), trim_blocks=True)
    shown = {
        "title": title[:1].upper() + title[1:],
        "style": _markup((PAGE / "style.css").read_text(encoding="utf-8")),
        "facts": _facts(run),
        "compared": _compared(run, notes),
        "articles": [_article(run, article, names, failed) for article, names in sorted(by_article.items())],
        "notes": _few(notes),
    }
    template = environment.get_template("run.html.j2")
    while True:
        page = template.render(shown)
        if len(page.encode()) <= MOST_PAGE_BYTES or not _leave_out(shown):
            return page


PIECES = {
    "table": "its table",
    "details": "what else was measured",
    "drawing": "its figure",
    "claims": "its claims",
    "endings": "how cases ended",
    "notes": "what is to be said of it",
}


def _leave_out(shown: dict[str, Any]) -> bool:
    """Take the largest piece off the page of a run, with a word of it in its place; False if there is none."""
    sections = [section for article in shown["articles"] for section in article["sections"]]
    sections += [shown["compared"]] if shown["compared"] else []
    sizes = [(len("".join(section.get(key, ""))), section, key) for section in sections for key in PIECES]
    size, section, key = max(sizes, key=lambda one: one[0], default=(0, {}, ""))
    if size:
        section[key] = ""
        section.setdefault("left_out", []).append(PIECES[key])
    return bool(size)


def _few(lines: list[str]) -> list[str]:
    """As many lines as somebody reads: of a thousand cases each may have one."""
    few = [line if len(line) <= MOST_CHARACTERS else f"{line[:MOST_CHARACTERS]}…" for line in lines[:MOST_LINES]]
    return few + ([f"And {len(lines) - MOST_LINES:,} more like these."] if len(lines) > MOST_LINES else [])


def _markup(text: str) -> Any:
    from markupsafe import Markup

    return Markup(text)


def _table(table: report_table.Table, title: str = "") -> Any:
    """A table as markup, by default without a title: where a heading above says it already."""
    return _markup(lean(replace(table, title=title)._repr_html_()))


def _facts(run: Run) -> list[tuple[str, str]]:
    """What to know before reading any number."""
    records, git, packages = run.records, run.machine.get("git"), run.machine.get("packages")
    kit = f"version {packages['pomology']}, " if isinstance(packages, dict) and "pomology" in packages else ""
    if isinstance(git, dict):
        kit += f"commit {str(git.get('commit'))[:10]}" + (", with changes" if git.get("dirty") else "")
    else:
        kit += "commit not known"
    profiles = sorted({record["profile"] for record in records} or {str(run.machine.get("profile") or "not told")})
    kinds: dict[str, dict[str, None]] = defaultdict(dict)
    for record in records:
        kinds["none needed" if record["data"] == "none" else record["data"]][record["experiment"]] = None
    # Text of this form sorts by time.
    times = sorted(record["started"] for record in records if re.fullmatch(r"[\d-]{10}T[\d:]{8}Z", record["started"]))
    when = [time[:16].replace("T", " ") for time in (times[:1] + times[-1:])]
    ended = Counter(record["status"] for record in records)
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
        drawing = _drawing("summary", _slim(run.records), compact=True) if said else ""
    except MALFORMED as error:
        notes.append(f"This machine cannot be compared: {type(error).__name__}: {error}.")
        return None
    return {"sentence": said, "drawing": drawing, "caption": summary.CAPTION} if said else None


def _slim(records: Sequence[dict]) -> str:
    """Records as JSON, without what is long and in no figure."""
    return json.dumps([record.without_samples().line() for record in records])


def _checks(records: list[dict]) -> list[tuple[str, str]]:
    """How the kit's check of itself ended, if it was run."""
    found = [r for r in records if r["article"] == published.KIT and r["experiment"] not in roofline.CEILINGS]
    if not found:
        return []
    ended: dict[str, dict[str, None]] = {"passed": {}, "not passed": {}, "cannot be told": {}, "not to be had here": {}}
    for record in found:
        kind = {"ok": "passed", "unsupported": "not to be had here"}.get(record["status"], "not passed")
        if kind == "passed" and "too-noisy" in record["flags"]:
            kind = "cannot be told"
        ended[kind][f"{record['config'].get('check', record['case'])} ({record['backend']})"] = None
    parts = [f"{kind}: {', '.join(names)}" for kind, names in ended.items() if names and kind != "passed"]
    other = {name for kind, names in ended.items() for name in names if kind != "passed"}  # in one repeat is enough
    good = len(ended["passed"].keys() - other)
    return [("Instrument", "; ".join([f"{good} of {good + len(other)} checks of the kit itself passed", *parts]))]


def _article_of(notebook: Path) -> str:
    """The article that a notebook says it is about; of one that lays others together nothing else tells."""
    try:
        return str(json.loads(notebook.read_bytes())["metadata"]["pomology"]["article"])
    except (*MALFORMED, OSError, RecursionError):  # not there, or somebody else's: it stands apart on the page
        return ""


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


def _article(run: Run, article: str, names: list[str], failed: dict[str, str]) -> dict[str, Any]:
    sections = [_section(run, name, failed.get(name)) for name in names]
    about = next((known for known in published.articles() if known.id == article), None)
    if article == published.KIT:
        return {"title": "The kit itself, and what this machine can do", "sections": sections}
    if about is None:
        return {"title": f"Article {article}" if article else "Not of an article", "sections": sections}
    linked = about.url_or_source.startswith("https://")
    claims = [claim for claim in published.claims(article=article) if len(claim.experiments) > 1]
    return {
        "title": about.title,
        "byline": ", ".join([about.author, about.date, *([] if linked else [about.url_or_source])]),
        "link": about.url_or_source if linked else "",
        "sections": sections,
        "claims": _claims([claim for claim in claims if set(names) & set(claim.experiments)], run.records, ""),
    }


def _section(run: Run, name: str, failure: str | None) -> dict[str, Any]:
    """One experiment: its table, figure and claims, or what is known about why there are none."""
    contents = run.journals.get(name, journal.Contents(run.path / f"{name}.jsonl"))
    layout = articles_layout.LAYOUTS.get(name)
    notes = [failure] if failure else []
    if not (run.path / f"{name}.ipynb").exists():
        notes.append(_unfinished(run.path / ".partial" / f"{name}.ipynb"))
        notes += [f"{start['case']}: under way, or cut off with its process." for start in contents.open_starts]
    notes += [f"{problem}." for problem in contents.problems]
    section = {"name": name, "title": layout.title if layout else name, "notes": notes, "links": _links(run.path, name)}
    try:
        section |= _numbers(name, layout, contents.records, run.records)
    except MALFORMED as error:
        notes.append(f"The numbers of this experiment cannot be shown: {type(error).__name__}: {error}.")
    section["notes"] = _few(notes)
    section["endings"] = _few(section.get("endings", []))
    return section


def _numbers(
    name: str, layout: articles_layout.Layout | None, records: list[dict], everything: Sequence[dict] = ()
) -> dict[str, Any]:
    """everything: what all notebooks of the run have measured; some share an experiment, or lay others together."""
    if name in roofline.CEILINGS and records:
        table = report_article.article_table(name, records)
        failed = [record for record in records if record["status"] != "too-big"]  # a larger size than is needed
        return {
            "table": _table(roofline.ceilings_table(records)),
            "details": _table(table),
            "endings": _endings(failed),
        }
    if name == "summary":
        table = summary.table(list(everything))
        return {"table": _table(table), "folded": len(table.rows)}
    if layout is not None and layout.everything:
        table, best = roofline.roofline_table(everything), report_article.article_table(name, everything)
        drawing = _drawing(name, _slim(everything)) if roofline.roofline_points(everything) else ""
        shown = {"table": _table(table), "drawing": drawing, "caption": _caption(layout)}
        return shown | {"details": _table(best)}
    if records and all(record["article"] == published.KIT for record in records):
        numbers = _table(report_details.numbers_table(records))
        return {"table": _table(report_details.checks_table(records)), "details": numbers}
    best = roofline.ceilings(everything)
    details = _table(report_details.details_table(name, records, best)) if records else ""
    comparable = cases.comparable(records)
    if layout is None:
        return {"table": details, "endings": _endings(records)}
    experiment = articles_layout.experiment_of(name)
    shared = [record for record in everything if articles_layout.experiment_of(record["experiment"]) == experiment]
    alone = records or not shared
    if layout.metric.endswith(report_article.SLOPES):  # growth is no time, of which one could be laid over the other
        table = report_article.article_table(name, records or shared, best)
    else:
        table = report_article.article_table(name, records, best) if alone else side_by_side.side_by_side(name, shared)
    # Once, where a notebook has the experiment's own name.
    about = name if experiment in articles_layout.LAYOUTS else experiment
    drawn = cases.comparable(records, layout.metric)
    timed = any(cases.combined(repeats, layout.metric) for repeats in cases.groups(drawn))
    return {
        "table": _table(table),
        "folded": len(table.rows) if len(table.rows) > LONG else 0,
        "endings": _endings([record for record in records if record not in comparable]),
        "drawing": _drawing(name, json.dumps([record.line() for record in drawn])) if timed else "",
        "caption": _caption(layout),
        "claims": _claims(
            [claim for claim in published.claims(experiment=about) if len(claim.experiments) == 1],
            shared or records,
            "The article's claims",
        ),
        "details": details,
    }


def _endings(records: list[dict]) -> list[str]:
    """The cases that did not end well, of those that are in no article's table."""
    # Of a row of siblings each larger one is too big; the table says how many.
    told = [record for record in records if not (record["scaled"] and record["status"] == "too-big")]
    return [cases.line(record) for record in told if record["status"] != "ok"]


def _claims(claims: list[published.Claim], records: list[dict], title: str) -> Any:
    if not claims:
        return ""
    try:
        return _table(report_claims.claims_table(claims, records), title)
    except MALFORMED as error:
        return f"The claims cannot be tested: {type(error).__name__}: {error}."


@functools.lru_cache(maxsize=64)  # the page is built after every notebook, and drawing is most of the work
def _drawing(name: str, records: str, compact: bool = False) -> Any:
    """The figure as an SVG element that can stand beside others: its own identifiers, and a text for who cannot see.

    compact: the summary's small form, for the top of the page.
    """
    found = json.loads(records)
    text = style.svg(figures_summary.summary_figure(found, compact=True) if compact else draw.draw(name, found))
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", text)
    label = html.escape(summary.CAPTION if compact else _caption(articles_layout.LAYOUTS[name]))
    kind = 'class="compact" ' if compact else ""
    return _markup(text.replace("<svg ", f'<svg {kind}role="img" aria-label="{label}" ', 1))


def _caption(layout: articles_layout.Layout) -> str:
    """What the figure shows, in words."""
    return CAPTION if layout.metric == "epoch_s" else f"{layout.axis[:1].upper()}{layout.axis[1:]}."


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
