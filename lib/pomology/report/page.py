"""The report of a run: index.html joins what its notebooks have shown.

It makes nothing again but the shares of the measured peaks, which are known at the end only.

Pages run and request nothing, and a content security policy forbids both. Texts from journals are
escaped, and figures are pictures.
"""

import os
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
from pomology.format import counted, one_line
from pomology.machine import snapshot
from pomology.paths import read_file, read_text, redact, write_atomic
from pomology.report import peaks, shares, table
from pomology.report.article import details_table
from pomology.report.claims import joined_table
from pomology.report.display import CONTENTS
from pomology.results import calibration, cases, repeats
from pomology.results.frame import software
from pomology.results.record import Record
from pomology.results.run import Run


class Item(msgspec.Struct):
    """A table or figure in `about.json`, see `Report.save`."""

    file: str
    caption: str = ""
    folded: bool = False
    heading: str = ""
    notes: list[str] = []
    rows: list[Any] = []
    rates: list[Any] = []


class Contents(msgspec.Struct):
    """The file `about.json` of a notebook, see `Report.save`."""

    name: str
    items: list[Item]
    title: str = ""
    article: str = ""
    answer: str = ""
    evidence: list[str] = []
    opens_report: bool = False


# What an item raises whose fields in `about.json` have other types, or whose file is damaged.
UNUSABLE = (PomologyError, OSError, LookupError, AttributeError, ArithmeticError)
UNUSABLE += (TypeError, ValueError)
LAST = {published.KIT: "This machine", "": "Other notebooks"}
CELLS = re.compile(r'<div class="scroll"><table.*</table></div>', re.DOTALL)
DEFINED = re.compile(r"^(?:def|class) (\w+)|^(\w+)(?= = )", re.MULTILINE)
NAMES = 3  # of a folded cell
# Cells that a reader came for: the model, and what the clock times.
TIMED = re.compile(
    r"^class (Trainer\b|\w+\((nn|LightningModule))"
    r"|^ {0,4}def (\w*step|build|network|random_model|mlp|lstm|one_pass|multiply|convolve)\("
    r"|^def (train|measure|fit|run|sustain|count|require)\("
    r"|^def (cold|follow_up)\(|^run\(|case\.trace\(\)",
    re.MULTILINE,
)
# What a cell does, by what it calls; by the second ones if it defines no names.
CALLS = {
    ".answer(": "the answer",
    ".figure(": "a figure",
    ".table(": "the table",
    ".claims(": "the claims",
    ".details(": "all measured values",
    ".printed(": "other published values",
    ".twin(": "the same step in MLX",
    "with case": "runs the cases",
    ".show(": "a table or figure",
}
OTHER_CALLS = {"show(": "source of the kit", "display(": "pictures", "print(": "prints counts"}
FILE = r"[\w-]+"  # a name that `Report.save` gives, without its end
# Code without a colour of its own in style.css: names, operators, punctuation, spaces.
UNCOLOURED = re.compile(r'<span class="(?:bp|fm|n|nb|nc|nd|nf|nn|o|p|w)">([^<]*)</span>')
QUESTION = re.compile(r"\*\*Question\.\*\* (.+)")
MARKUP = re.compile(r"[*`]|\[|\]\([^)]*\)")  # of Markdown
LONGEST_QUESTION = 400  # characters
IMAGE = re.compile(r"!\[[^]]*\]\(\.\./.*?\)")  # in the text of a notebook: of the reference run


def build(folder: Path, others: Iterable[Path] = (), told: bool = False) -> Path:
    """Write index.html of a run's folder, and render its new notebooks; return the page.

    told: whether to print a line for each file that cannot be used, too.
    others: folders or zips of other runs, whose cases follow. The articles' claims are then tested
    on all of them together. Raises PomologyError without one.
    """
    run = Run(folder)
    runs = [run, *map(Run, others)]
    problems = [problem for source in runs for problem in source.problems]
    checks = [record for record in run.records if repeats.VARIATION in record.metrics]
    unusable = _render_notebooks(run.path)
    shown = _shown(run, unusable)
    problems += unusable
    if told:
        for source in runs:
            source.print_problems()
        for problem in unusable:
            print(f"note: {one_line(run.name)}: {problem}")
    # Cases have the flag `slowed`. The last one of each device tells how the machine ended.
    by_time = sorted(run.records, key=lambda record: record.started)
    lasts = {(record.framework, record.backend): record for record in by_time}
    for last in lasts.values():
        earlier = by_time[: by_time.index(last)]
        fields = (last.framework, last.backend, last.software, last.calibration)
        for text in calibration.slowed_by(earlier, *fields):
            framework = cases.framework_name(last.framework)
            problems.append(f"{cases.chip_name(last)} in {framework}, last case: {text}.")
    sections = [_section(runs, contents) for contents in shown]
    notes = Counter(note for part in sections for item in part["shown"] for note in item["notes"])
    page = table.template("run.html.j2").render(
        run=run,
        chip=cases.short_chip(run.machine.get("chip")),
        machine=snapshot.describe(run.machine) if run.machine else "not known",
        software=software(run.machine) if run.machine else "",
        endings=endings(run.records),
        variation=repeats.variation_text(repeats.pool(checks)),
        problems=problems,
        unfinished=sorted(path.stem for path in run.path.glob(".partial/[!.]*.ipynb")),
        notes=[note for note, count in notes.items() if count > 1],
        sections=sections,
        joined=joined_table(runs) if len(runs) > 1 else None,
    )
    write_atomic(run.path / "index.html", page)
    return run.path / "index.html"


def endings(records: Sequence[Record]) -> str:
    """Return how the cases of a run ended: all of them by status, the measured ones by flag.

    A case has one status and any number of flags, so the flags are counted apart. A repeat of a
    case counts as a run of it.
    """
    cases_run = {(record.experiment, record.case) for record in records}
    head = counted(len(records), "case")
    if len(cases_run) < len(records):
        head = f"{len(records):,} runs of {len(cases_run):,} cases"
    measured = [record for record in records if record.status == "ok"]
    statuses = Counter(record.status for record in records if record.status != "ok")
    flags = Counter(flag for record in measured for flag in record.flags)
    by_status, by_flag = (
        [f"{count:,} {name.replace('-', ' ')}" for name, count in counts.most_common()]
        for counts in (statuses, flags)
    )
    text = f"{head}: {', '.join([f'{len(measured):,} measured', *by_status])}"
    several = sum(flags.values()) > sum(bool(record.flags) for record in measured)
    text += f"; of the measured {', '.join(by_flag)}" if by_flag else ""
    return f"{text} (one may have several flags)" if several else text


def address(svg: str) -> Markup:
    """Return a drawing as the address of a picture, which can neither load nor run anything.

    It stands in double quotes, so that the drawing has single ones: a third of their length.
    """
    quoted = svg.replace("'", "&apos;").replace('"', "'")
    return Markup("data:image/svg+xml," + quote(quoted, safe=" '<>=/:;,.()-+*!?@$[]~_{}"))


def code_label(source: str) -> str:
    """Return the summary of a folded cell of code: what it does, or the names that it defines."""
    names = dict.fromkeys(first or second for first, second in DEFINED.findall(source))
    calls = CALLS if names else CALLS | OTHER_CALLS
    does = next((words for call, words in calls.items() if call in source), "")
    if does and not source.startswith(("def ", "class ")):
        return f"code: {does}"
    if names:
        return f"code: {', '.join([*names][:NAMES])}"
    return "code: imports" if re.search(r"^(import|from) ", source, re.MULTILINE) else "code"


def run_parameters(source: str) -> list[str]:
    """Return the parameters of a run as lines of papermill's cell.

    Without its number of the repeat and its folder: the page shows the results of all repeats.
    """
    lines = source.splitlines()[1:]
    return [line for line in lines if not line.startswith(("repeat = ", "out = "))]


def run_repeats(source: str) -> int:
    """Return how many repeats a run had when its cell of parameters was executed, at least 1."""
    repeat = re.search(r"^repeat = (\d+)$", source, re.MULTILINE)
    return 1 + int(repeat[1]) if repeat else 1


def kit_source(markdown: str) -> str:
    """Return the code of the kit that `show` displays as Markdown, "" of other texts."""
    shown = re.fullmatch(r"````python\n(.*)\n````", markdown, re.DOTALL)
    return shown[1] if shown else ""


def shows_kit(source: str) -> bool:
    """Return whether a cell does nothing but show code of the kit, which stands below it."""
    return bool(re.fullmatch(r"show\([^()]*\)", source.strip()))


def is_experiment(source: str) -> bool:
    """Return whether a cell is what a reader came for: the model, or what is timed."""
    return bool(TIMED.search(source))


def rendered(notebook: str, name: str, drawings: Path, shared: bool = False) -> str:
    """Return a notebook as a page. Raises what nbformat and nbconvert raise.

    notebook: the text of its file. drawings: folder of what it has shown, whose figures replace
    their pictures, since they stay sharp in print. shared: the page stands alone, see
    `pomology.extras.share`.
    """
    import nbformat
    from nbconvert import HTMLExporter

    def drawing(file: str) -> str:
        """Return a figure as SVG; "" if the folder has none, as that of a published run."""
        path = drawings / f"{file}.svg"
        return read_text(path) if re.fullmatch(FILE, file) and path.is_file() else ""

    filters = {"address": address, "code_label": code_label, "is_experiment": is_experiment}
    filters |= {"run_parameters": run_parameters, "run_repeats": run_repeats}
    filters |= {"kit_source": kit_source, "shows_kit": shows_kit}
    exporter = HTMLExporter(
        template_name=table.PAGE.name,
        extra_template_basedirs=[str(table.PAGE.parent)],
        exclude_anchor_links=True,
        filters=filters | {"drawing": drawing},
    )
    document = nbformat.reads(IMAGE.sub("", notebook), as_version=4)
    for cell in document.cells:
        if cell.cell_type == "code":
            cell.outputs = joined_prints(cell.outputs)
    resources = {"metadata": {"name": name}, "shared": shared}
    text, _ = exporter.from_notebook_node(document, resources)
    return UNCOLOURED.sub(r"\1", text)


def joined_prints(outputs: Sequence[Any]) -> list[Any]:
    """Return a cell's outputs, texts that follow each other as one print.

    A line of a finished case is displayed as text. The outputs change in place.
    """
    from nbformat import v4

    joined: list[Any] = []
    for output in outputs:
        if set(output.get("data", ())) == {"text/plain"}:
            output = v4.new_output("stream", text=output["data"]["text/plain"] + "\n")
        name = output.get("name")  # of a stream
        if name and joined and joined[-1].get("name") == name:
            joined[-1]["text"] += output["text"]
        else:
            joined.append(output)
    return joined


def _render_notebooks(folder: Path) -> list[str]:
    """Render the notebooks that are newer than their pages; return a line for each failure."""
    problems = []
    for notebook in sorted(folder.glob("[!.]*.ipynb")):
        page = notebook.with_suffix(".html")
        try:
            if page.is_file() and page.stat().st_mtime_ns >= notebook.stat().st_mtime_ns:
                continue
            text = redact(read_text(notebook))
            drawings = folder / "shown" / notebook.stem
            write_atomic(page, rendered(text, notebook.stem, drawings))
        except Exception as error:  # whatever nbconvert raises
            if page.is_file():
                page.unlink()
            reason = f"{type(error).__name__}: {one_line(redact(str(error)), 200)}"
            problems.append(f"{one_line(notebook.name)} cannot be rendered: {reason}.")
    return problems


def _is_there(folder: Path, file: str) -> bool:
    """Return whether a folder has the file of an item, by a name that `Report.save` gives.

    An empty file shows nothing.
    """
    if not re.fullmatch(FILE, file):
        return False
    paths = [folder / f"{file}{end}" for end in (".html", ".svg")]
    return any(path.is_file() and path.stat().st_size for path in paths)


def _shown(run: Run, problems: list[str]) -> list[dict[str, Any]]:
    """Return what every notebook has shown; of one that has shown nothing its name.

    problems: receives a sentence for each file that cannot be used.
    """
    best = peaks.best(run.records)
    entries = []
    shown = run.path / "shown"
    folders = [shown] if os.path.lexists(shown) else []
    if shown.is_dir():
        folders = sorted(shown.glob("[!.]*"))
    for folder in folders:
        path = folder / CONTENTS
        place = one_line(folder.relative_to(run.path).as_posix())
        if not os.path.isdir(folder):
            problems.append(f"{place} cannot be read: it is no folder.")
            continue
        if not os.path.lexists(path):
            continue
        try:
            entry = msgspec.to_builtins(msgspec.json.decode(read_file(path), type=Contents))
            if entry["name"] != folder.name:
                raise ValueError(f"it is of {one_line(entry['name'])}")
        except (PomologyError, OSError, ValueError, RecursionError) as error:
            problems.append(f"{place}/{CONTENTS} cannot be read: {one_line(error)}.")
            continue
        missing = [item["file"] for item in entry["items"] if not _is_there(folder, item["file"])]
        if missing:
            names = one_line(", ".join(missing), 200)
            problems.append(f"{place}/ lacks files that its {CONTENTS} names: {names}.")
        entry["shown"] = []
        for item in entry["items"]:
            if item["file"] in missing:
                continue
            try:
                entry["shown"].append(_item(folder, shares.fill(folder, item, best)))
            except UNUSABLE as error:
                text = f"{place}/{one_line(item['file'])} cannot be shown: {one_line(error)}."
                problems.append(text)
        entries.append(entry)
    for name in run.journals.keys() - {entry["name"] for entry in entries}:
        article = next((record.article for record in run.journals[name].records), "")
        entries.append({"name": name, "title": name, "article": article, "shown": []})

    # Articles in the order of their numbers, then what belongs to none.
    def order(entry: dict[str, Any]) -> tuple[bool, str, str]:
        return entry["article"] in LAST, entry["article"], entry["name"]

    return sorted(entries, key=order)


def _section(runs: Sequence[Run], contents: dict[str, Any]) -> dict[str, Any]:
    """Return one notebook's part of the page: its tables and figures in order, and links.

    runs: that of the page first. contents: of the notebook, see `Report.save`.
    """
    name = contents["name"]
    folder = runs[0].path / "shown" / name
    # Other runs, and a notebook that has shown nothing, have their records listed.
    unshown = [run for run in (runs[1:] if contents["shown"] else runs) if name in run.journals]
    files = [*runs[0].path.glob(f"{name}.html"), *sorted(folder.glob("*.csv"))]
    files += runs[0].path.glob(f"{name}.jsonl*")
    articles = {article.id: article for article in published.articles()}
    article = articles.get(contents["article"])
    return contents | {
        "part": article.title if article else LAST.get(contents["article"], LAST[""]),
        "article": article,
        "question": question(runs[0].path / f"{name}.ipynb"),
        "answer": contents.get("answer", "").replace("`", ""),
        "links": {path.name: quote(path.relative_to(runs[0].path).as_posix()) for path in files},
        "plain": [details_table(run.journals[name].records, run.name) for run in unshown],
    }


def question(notebook: Path) -> str:
    """Return the question at the top of an executed notebook, "" without a readable one."""
    try:
        cells = msgspec.json.decode(read_file(notebook))["cells"]
        text = "".join(cells[0]["source"])
    except (msgspec.MsgspecError, *UNUSABLE, TypeError, ValueError, RecursionError):
        return ""
    asked = QUESTION.search(text)
    return one_line(MARKUP.sub("", asked[1]), LONGEST_QUESTION) if asked else ""


def _item(folder: Path, item: dict[str, Any]) -> dict[str, Any]:
    """Return a saved figure or table for the template."""
    name = item["file"]
    content = {"title": name.partition("-")[2].replace("-", " "), "notes": []} | item
    drawing = folder / f"{name}.svg"
    if drawing.exists():
        return content | {"figure": address(read_text(drawing))}
    text = read_text(folder / f"{name}.html")
    # Runs of older versions have files with a style, the title and the notes around the cells.
    cells = None if text.startswith("<div") else CELLS.search(text)
    return content | {"table": cells[0] if cells else text}
