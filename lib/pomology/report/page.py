"""The rendered page of a run.

It joins what the notebooks have saved, and works on whatever is there. The pages run and request nothing, and a content
security policy forbids both. Journals, tables and notebooks may come from other people's machines: texts are escaped,
figures are pictures, and a notebook's own HTML passes a list of harmless tags, attributes and styles.
"""

import contextlib
import os
import re
from collections import Counter
from collections.abc import Callable, Container, Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from pomology.articles import published
from pomology.errors import PomologyError
from pomology.format import one_line
from pomology.machine import snapshot
from pomology.paths import redact, write_atomic
from pomology.report import claims as report_claims
from pomology.report import compare, declaration, details, ranking, roofline, summary
from pomology.report.declaration import Declaration
from pomology.report.figures import of_this_machine, style
from pomology.report.figures.ranking import chosen, on_an_axis
from pomology.report.figures.summary import peaks_figure
from pomology.report.notebook_page import address, render
from pomology.report.showing import CHECK, SAVED_AS, Report
from pomology.report.table import PAGE, Row, Table, filled, grouped, saved
from pomology.results import cases, journal
from pomology.results.notebook_file import read_notebook
from pomology.results.record import UNTRIED, Record
from pomology.results.run import MALFORMED, Run

MOST_LINES, MOST_CHARACTERS = 20, 1000  # of the cases that a section tells in words, and of each
SECTION = r'<section id="([^"]+)">'
MOST_LEFT = 200  # of what a run has left out
LONG = 40  # rows of a table that the page shows only when asked, or not at all; its notebook shows it all
PROFILES = {
    "smoke": "smoke: tiny shapes, made to test the kit; its numbers say nothing about speed",
    "quick": "quick: the article's models and shapes, some seconds a case; most epochs are estimated from steady steps",
    "article": "article: whole epochs, as the article ran them",
}

# What a notebook shows, by its method; a section has the first of these.
MAIN = ("summary", "roofline", "ceilings", "checks", "side_by_side", "table", "details")
WITH_SHARES = ("table", "details", "ceilings")  # which depend on the ceilings of the run

OF_THIS_MACHINE = " It is of this machine alone: the runs of other people are not in this figure."
UNTUNED = "On x86 Linux MLX multiplies without a tuned BLAS: these times say nothing of the processor, nor of a Mac."

# What the notebook `prediction` saves for the page, which cannot be made here: it is above this floor.
PREDICTED = ("prediction-here", "prediction-machines")

CSV = {"numbers": "article", "shares": "roofline", "rates": "rates", "checks": "checks"}  # saved tables that are linked


def build(out: Path, abouts: Sequence[Declaration] | None = None, beside: Sequence[Path] = ()) -> Path:
    """Make each finished notebook that is new a page, and `index.html` over all of them, which is returned.

    abouts: what the index shows; left out, what the run's folder has. Of a folder with journals alone, as from a zip,
    that is what the notebooks of this kit make of them. beside: runs of other people, as further rows and marks.

    It is called after every notebook of a run: what no notebook has saved is made from the journals, and a page again
    where a ceiling above its shares has risen. Raises PomologyError if there is no folder.
    """
    run = Run(out)
    run.others = compare.beside(beside, run)
    failed = {}
    for notebook in sorted(run.path.glob("*.ipynb")):
        page = notebook.with_suffix(".html")
        try:
            _render(run, notebook, page)
        except Exception as error:  # whatever nbconvert raises is a line on the page
            failed[notebook.stem] = f"The notebook cannot be rendered: {type(error).__name__}: {error}."
            with contextlib.suppress(OSError):
                page.unlink()  # a page of an older notebook would be taken for this one
    index = run.path / "index.html"
    page = _index(run, failed, abouts)
    if index.exists() and not _others(run):
        old = re.findall(SECTION, index.read_text(encoding="utf-8", errors="replace"))
        if lost := sorted({*old} - {*re.findall(SECTION, page)}):
            raise PomologyError(f"{index.name} stays as it is: {', '.join(lost)} cannot be made without a notebook")
    write_atomic(index, page)
    return index


def _render(run: Run, notebook: Path, page: Path) -> None:
    """Make a notebook's page, unless it is there, and as new as what it is made from."""
    tables: dict[str, Table] = {}
    with contextlib.suppress(*MALFORMED):  # then the notebook's own stay
        report = Report.of(declaration.read(notebook), run)
        tables = {name: report.saved(name) for name in WITH_SHARES if name in report.declaration.shows}
    kept = [run.path / "tables" / f"{notebook.stem}-{SAVED_AS.get(name, name)}.html" for name in tables]
    sources = (notebook, *PAGE.iterdir(), *filter(Path.exists, kept), *run.path.glob(f"{CHECK}.jsonl*"))
    times = [source.stat().st_mtime_ns for source in sources]
    made_of = max(times) // 10**9 * 10**9 + sum(times) % 999_999_937  # a stamp of them all: a clock may have gone back
    if not (page.exists() and page.stat().st_mtime_ns == made_of):
        write_atomic(page, render(notebook, tables, details.same_twice(run.records)))
        os.utime(page, ns=(made_of, made_of))


def links_into(page: str, present: Container[str]) -> str:
    """A page without links to files that are not beside it, as where a part of a run's folder is sent to somebody.
    present: the names of those that are, relative to the page."""

    def kept(link: re.Match) -> str:
        return link[0] if unquote(link[1]) in present else f"{link[2]} (not in this copy)"

    return re.sub(r'<a href="([^"#:]+)">(.*?)</a>', kept, page)


def _others(run: Run) -> set[str]:
    """The names of notebooks in a run's folder, finished or not."""
    begun = {re.sub(r"(-end)?(-\d+)?$", "", place.stem) for place in run.path.glob(".partial/*.ipynb")}  # see plan.Job
    return begun | {place.stem for end in ("ipynb", "html") for place in run.path.glob(f"*.{end}")} - {"index"}


def _index(run: Run, failed: dict[str, str], abouts: Sequence[Declaration] | None) -> str:
    names, notebooks = {*run.journals} | _others(run), bool(_others(run))
    known = abouts if abouts is not None else () if notebooks else declaration.of_journals(names)
    names |= {about.name for about in known}
    order = list(dict.fromkeys(row["experiment"] for row in published.rows()))
    unprintable = {name for name in names if not name.isprintable()}  # no text in UTF-8, or of several lines
    abouts = [_declaration(run, name, known) for name in sorted(names - unprintable - {"index"})]
    abouts.sort(key=lambda about: (*order, about.experiment).index(about.experiment))
    abouts.sort(key=lambda about: (about.article == published.KIT, about.article))
    notes = [*compare.beside_notes(run), *run.problems]
    notes += [f"{one_line(name)}: not shown, for its name." for name in sorted(unprintable)]
    notes += [] if run.journals else ["Nothing has been measured yet."]
    notes += [] if notebooks or not run.journals else ["Made of the journals alone: no notebook is beside them."]
    if any(record.profile == "smoke" for record in run.records):
        notes.append("A smoke run: it shows that the kit works here. Its numbers are left out of the articles' tables.")
    if (left := _left_out(run)).rows:
        notes.append(f"{left.title}: {len(left.rows)} notebooks (below). make reproduce RUN={run.name} carries on.")
    ranked = _tried(notes, "There is no ranking", lambda: _ranked(run))
    compared = _tried(notes, "This machine cannot be compared", lambda: _compared(run))
    articles = [_article(run, part, failed, notebooks) for part in grouped(abouts, attrgetter("article"))]
    cores = run.machine.get("cpu_cores")  # a server's chip may be two cores of a virtual machine
    title = cases.short_chip(run.machine.get("chip"))
    return filled(
        "run.html.j2",
        title=title[:1].upper() + title[1:] + (f", {cores} cores" if isinstance(cores, int) else ""),
        ranked=ranked,
        compared=compared,
        trust=_trust(run.records) if run.records else None,
        facts=_facts(run),
        left=left,
        software=details.software_table(run.machine, run.records),
        contradicted=_contradicted(articles),
        articles=articles,
        notes=_few(notes),
    )


def _declaration(run: Run, name: str, known: Sequence[Declaration]) -> Declaration:
    """One of those that are known; else the kit's; of a notebook that it lacks, what its copy in the run says, or what
    can be derived."""
    about, copy = Declaration(name), run.path / f"{name}.ipynb"
    with contextlib.suppress(*MALFORMED, OSError):
        about = next((about for about in known if about.name == name), None) or declaration.of(name)
        if not about.title and copy.exists():
            about = declaration.read(copy)
    records = run.journals[name].records if name in run.journals else []
    return about if about.article or not records else replace(about, article=records[0].article)


def _few(lines: list[str]) -> list[str]:
    """As many lines as somebody reads: of a thousand cases each may have one."""
    few = [line if len(line) <= MOST_CHARACTERS else f"{line[:MOST_CHARACTERS]}…" for line in lines[:MOST_LINES]]
    return few + ([f"And {len(lines) - MOST_LINES:,} more like these."] if len(lines) > MOST_LINES else [])


def _facts(run: Run) -> list[tuple[str, str]]:
    """What to know before reading any number."""
    records, machine, minutes = run.records, run.machine, one_line(run.machine.get("minutes") or "", 9)
    packages = details.named(machine.get("packages"))
    kit = [f"version {packages['pomology']}"] if "pomology" in packages else []
    kit += [f"commit {details.commit(machine['git'])}"] if machine.get("git") else []
    profiles = sorted({record.profile for record in records} or {str(machine.get("profile") or "not told")})
    data = []
    for of in grouped(sorted(records, key=attrgetter("data")), attrgetter("data")):
        names = list(dict.fromkeys(record.experiment for record in of))
        named = ", ".join(names) if len(names) <= 6 else f"{len(names)} notebooks"  # each section tells it of itself
        data.append(f"{'none needed' if of[0].data == 'none' else of[0].data} ({named})")
    # Text of this form sorts by time.
    times = sorted(record.started for record in records if re.fullmatch(r"[\d-]{10}T[\d:]{8}Z", record.started))
    when = dict.fromkeys(time[:16].replace("T", " ") for time in times[:1] + times[-1:])
    facts = {
        "Machine": snapshot.describe(machine) if machine else "not told",
        "Power": str(machine.get("power_source") or ""),
        "Profile": "; ".join(PROFILES.get(profile, profile) for profile in profiles),
        "MINUTES": f"{minutes}: with less than 20, cases had fewer seconds than in other quick runs" * bool(minutes),
        "Data": "; ".join(data) or "none yet",
        "Measured": f"{' to '.join(when)} UTC" if when else "nothing yet",
        "Kit": ", ".join(kit),
    }
    return [(term, text) for term, text in facts.items() if text]


def _left_out(run: Run) -> Table:
    """What a run has left out as the time of MINUTES was over, and why."""
    left = [*details.named(run.machine.get("left_out")).items()][:MOST_LEFT]
    rows = tuple(Row((one_line(name, 60), one_line(why, 200))) for name, why in left)
    return Table(f"Left out: MINUTES={one_line(run.machine.get('minutes'), 9)}", ("Notebook", "Why"), rows)


def _trust(records: list[Record]) -> Table:
    """What may be trusted of this run, the word first: the kit's checks of itself, and how its cases ended."""
    checks = details.checks_table([r for r in records if r.article == published.KIT and "check" in r.config])
    kinds: dict[str, list[str]] = {}
    for row, numbers in zip(checks.rows, checks.data, strict=True):
        kinds.setdefault(row.cells[2].partition(" (")[0], []).append(f"{numbers['check']} ({numbers['device']})")
    of_all = f"of {len(checks.rows)} checks of the kit itself"
    rows = [(word, f"{len(names)} {of_all}", ", ".join(names)) for word, names in kinds.items()]
    good = [record for record in records if record.status == "ok" and record.profile != "smoke"]
    flagged = [record for record in good if cases.DOUBTS.intersection(record.flags)]
    flags = Counter(flag for record in flagged for flag in record.flags if flag in cases.DOUBTS).most_common()
    words = (f"{count} {flag} ({cases.FLAGS[flag].partition(':')[0]})" for flag, count in flags)
    ended = Counter(record.status for record in records if record.status != "ok").most_common()
    smoke = sum(record.profile == "smoke" and record.status == "ok" for record in records)
    for word, count, why in (
        ("yes", len(good) - len(flagged), "ended well, with nothing that casts doubt on the time"),
        ("roughly", len(flagged), f"ended well, with a doubt: {', '.join(words)}"),
        ("no", smoke, "smoke runs, which are made to test the kit"),
        ("no number", sum(count for _, count in ended), ", ".join(f"{count} {status}" for status, count in ended)),
    ):
        rows += [(word, f"{count:,} of {len(records):,} cases", why)] if count else []
    columns = ("May it be trusted?", "What", "Why")
    return Table("", columns, tuple(map(Row, rows)), (details.same_twice(records),))


def _contradicted(articles: list[dict]) -> Table | None:
    """The articles' sentences that numbers contradict: their own, or this machine's."""
    parts = [part for article in articles for part in (article, *article["sections"])]
    tables = [part["claims"] for part in parts if isinstance(part.get("claims"), Table)]
    known = dict.fromkeys(row.cells for table in tables for row in table.rows)
    wrong = [cells for cells in known if any(cell.startswith("does not hold") for cell in cells[2:])]
    rows = tuple(Row((f"Article {name.partition('-')[0]}", *rest)) for name, *rest in wrong)
    return Table("", ("", *tables[0].columns[1:]), rows) if rows else None


def _tried(notes: list[str], what: str, make: Callable[[], Any]) -> Any:
    """A part of the page; None, and a note of what is missing, where malformed records do not give it."""
    try:
        return make()
    except MALFORMED as error:
        notes.append(f"{what}: {type(error).__name__}: {error}.")
    return None


def _ranked(run: Run) -> dict[str, Any] | None:
    """The ranking against the usual device as a figure, and against each as a table; None where nothing was run."""
    known = ranking.Ranking(run.records, [other.records for other in run.others])
    if not known.here:
        return {"why": ranking.NOTHING} if run.records else None
    names = [name for of in known.references.values() for name in of]
    *answers, sure = known.sentences()
    models, frameworks = replace(known.by_model(), title=""), known.frameworks()

    def trusted(row: Row) -> str:
        return re.split("[:;]", row.cells[2])[0]

    return {
        "sentences": [*answers, f"{sure} {details.same_twice(run.records)}"],
        "usual": known.usual,
        "axis": on_an_axis(shown := chosen(beside := known.places(known.usual), known.usual)),
        "more": len(beside) - len(shown),
        "colours": [(*look, style.COLOURS[name]) for look, name in style.DEVICES.items()],
        "table": replace(known.table(), title=""),
        "frameworks": frameworks,
        "untuned": UNTUNED if frameworks and run.machine.get("architecture") == "x86_64" else "",
        "models": models,
        "sure": {trusted(of[0]): [row.cells[0] for row in of] for of in grouped(models.rows, trusted)},
        "kinds": [(kind, [(names.index(name), name) for name in of]) for kind, of in known.references.items()],
        "against": [(number, name, on_an_axis(known.places(name))) for number, name in enumerate(names)],
    }


def _compared(run: Run) -> dict[str, Any] | None:
    """The chart of all devices and a sentence on it; None where this machine has no rate, as of a smoke run."""
    if not (sentence := summary.sentence(run.records)):
        return None
    slowest = summary.slowest(known := summary.reaches(run.records))
    figure = address(style.svg(peaks_figure(known)))
    return {"sentence": f"{slowest} {sentence}".strip(), "slowest": slowest.rstrip("."), "figure": figure}


def _article(run: Run, abouts: list[Declaration], failed: dict[str, str], notebooks: bool) -> dict[str, Any]:
    # What several notebooks have measured of an experiment stands together below the one that combines them.
    pairs = [(about, name) for about in abouts if "claims" in about.shows for name in about.sources]
    combined = {name for about, name in pairs if published.experiment_of(name) == about.experiment}
    sections = [_section(run, about, failed.get(about.name), about.name not in combined, notebooks) for about in abouts]
    article, there = abouts[0].article, {name for about in abouts for name in (about.name, about.experiment)}
    known = next((known for known in published.articles() if known.id == article), None)
    title = f"Article {article}" if article else "Not of an article"
    title = "The kit itself, and what this machine can do" if article == published.KIT else title
    claims = [claim for claim in published.claims(article=article) if len(claim.experiments) > 1]
    claims = [claim for claim in claims if there & set(claim.experiments)]
    try:
        tested = replace(report_claims.claims_table(claims, run.records), title="") if claims else ""
    except MALFORMED as error:
        tested = f"The claims cannot be tested: {type(error).__name__}: {error}."
    return {"title": known.title if known else title, "known": known, "sections": sections, "claims": tested}


def _section(run: Run, about: Declaration, failure: str | None, with_claims: bool, notebooks: bool) -> dict[str, Any]:
    """One experiment: its table, figure and claims, or what is known about why there are none."""
    name = about.name
    contents = run.journals.get(name, journal.Contents(run.path / f"{name}.jsonl"))
    notes = [failure] if failure else []
    if notebooks and not any((run.path / f"{name}.{ending}").exists() for ending in ("ipynb", "html")):
        notes.append(_unfinished(run.path / ".partial" / f"{name}.ipynb"))
        notes += [f"{start.case}: under way, or cut off with its process." for start in contents.open_starts]
    notes += [f"{problem}." for problem in contents.problems]
    left = _left_out(run)
    notes += [f"{left.title}: {row.cells[1]}." for row in left.rows if row.cells[0] == name]
    shows = about.shows or ("details",)
    main = next((method for method in MAIN if method in shows), "")
    section = {"name": name, "title": about.title or name}
    try:
        section |= _shown(report := Report.of(about, run), shows, main, with_claims)
        if name == "prediction":
            places = [run.path / "tables" / table for table in PREDICTED]
            kept = [table for place in places if (table := saved(place, report.sources("")))]
            section["predicted"] = [(table.title, replace(table, title="")) for table in kept]
            old = len(kept) < sum(place.with_suffix(".json").exists() for place in places)
            notes += ["Its tables are older than numbers of this run: run the notebook prediction once more."] * old
        on_cpu = any((record.framework, record.backend) == ("mlx", "cpu") for record in report.records)
        notes += [UNTUNED] * (on_cpu and run.machine.get("architecture") == "x86_64")
    except MALFORMED as error:
        main = "details"
        notes.append(f"The numbers of this experiment cannot be shown: {type(error).__name__}: {error}.")
    # Those in no table above. Of a row of siblings each larger one is too big; the table says how many.
    ended = [r for r in contents.records if main in ("ceilings", "details") or r.scaled or r.profile == "smoke"]
    ended = [r for r in ended if r.status != "ok" and (r.status not in UNTRIED or not (main == "ceilings" or r.scaled))]
    ended = {(record.case, record.status): record for record in ended}  # once for all repeats
    endings = _few([cases.line(record) for record in ended.values()] if main != "checks" else [])
    tables = [(f"{what} as CSV", f"tables/{name}-{saved_as}.csv") for what, saved_as in CSV.items()]
    links = [("The notebook, rendered", f"{name}.html"), *tables, ("journal", contents.path.name)]
    links = [(text, quote(place)) for text, place in links if (run.path / place).exists()]
    return section | {"endings": endings, "notes": _few(notes), "links": links}


def _shown(report: Report, shows: tuple[str, ...], main: str, with_claims: bool) -> dict[str, Any]:
    """What a notebook has saved: its main table, its figure and claims, and folded what else was measured."""
    about, section = report.declaration, {}
    if main:
        # Each notebook of ceilings has shown those of the run until then; beside each other, each shows its own.
        table = roofline.ceilings_table(report.records) if main == "ceilings" else report.saved(main)
        table = report.beside(table) if main == "table" else table
        section |= {"table": replace(table, title=""), "folded": len(table.rows) if len(table.rows) > LONG else 0}
        section["trust"] = details.trust(report.records) if main == "table" else ""
    records = report.records if about.framework else report.run_records()
    if "figure" in shows and any(record.status == "ok" and record.profile != "smoke" for record in records):
        alone = report.run.others and of_this_machine(about)
        section["figure"] = (address(report.drawn()), about.caption + OF_THIS_MACHINE * bool(alone))
    if "claims" in shows and with_claims:
        claims = report.saved("claims")
        alone = {claim.id for claim in published.claims() if len(claim.experiments) == 1}
        rows = tuple(row for row in claims.rows if row.cells[0] in alone)
        section["claims"] = replace(claims, title="The article's claims", rows=rows) if rows else ""
    others = [method for method in ("details", "numbers", "table") if method in shows and method != main]
    folded = "details" if main == "table" and "numbers" not in shows else next(iter(others), "")
    folded = "parts" if "parts" in shows else folded
    # What a notebook combines has its numbers below the notebooks that measured them.
    if folded and report.records and (folded == "parts" or about.whole_run or not about.sources):
        table = report.saved(folded)
        section["details"] = replace(table, title="") if len(table.rows) <= LONG else ""  # else in its notebook alone
    return section


def _unfinished(partial: Path) -> str:
    """Why there is no finished notebook, as far as an unfinished one tells."""
    if not partial.exists():
        return "No finished notebook is beside these numbers: it was run by hand, or is not here."
    try:
        outputs = [output for cell in read_notebook(partial)["cells"] for output in cell.get("outputs", ())]
        errors = [output for output in outputs if output["output_type"] == "error"]
        stopped = f" It stopped at {errors[-1]['ename']}: {errors[-1]['evalue']}." if errors else ""
    except MALFORMED:
        stopped = " What it holds cannot be read."
    return redact(
        "Not finished: this notebook is still running, or its run was stopped. What it had measured until then is "
        f"below; the same command carries on.{stopped}"
    )
