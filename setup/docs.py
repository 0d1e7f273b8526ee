"""Write the generated tables of docs/: `make docs`. A test compares the pages with them.

A page marks the place of a table: `<!-- generated: flags -->`, the table, `<!-- end -->`. Models
and data, which no code declares, are in docs/experiments.csv.
"""

import re
from collections.abc import Iterable
from pathlib import Path

from pomology import paths
from pomology.articles import published
from pomology.format import clock_time
from pomology.results import cases, metrics
from pomology.runner import notebooks

SOURCES = {article.id: article.short for article in published.articles()}
SOURCES |= {"today": "community results", "kit": "this machine"}
TYPES = {"str": "text", "Int64": "integer", "float64": "number", "boolean": "boolean"}
MARKED = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
FOLDER = paths.root() / "docs"


def markdown(headings: str, rows: Iterable[Iterable[str]]) -> str:
    lines = [headings, re.sub(r"[^|]+", " --- ", headings).strip(), *map(" | ".join, rows)]
    return "".join(f"| {line} |\n" for line in lines)


def experiments() -> Iterable[tuple[str, ...]]:
    about = {line["notebook"]: line for line in paths.read_csv(FOLDER / "experiments.csv")}
    for each in sorted(notebooks.notebooks(skipped={}), key=lambda each: (each.article, each.name)):
        used = [variant.parameters.get("framework") for variant in each.variants]
        used += re.findall(r'framework=\\"(\w+)', each.path.read_text(encoding="utf-8"))
        names = dict.fromkeys(map(cases.framework_name, filter(None, used))) or ["PyTorch"]
        link = f"[`{each.name}`](../{each.path.relative_to(paths.root()).as_posix()})"
        of, frameworks = about[each.name], "none" if each.after else ", ".join(names)
        time = clock_time(each.seconds("quick"))
        yield link, SOURCES[each.article], of["model"], of["data"], frameworks, time


def pages() -> dict[Path, str]:
    """Return the pages of docs/ with their tables as they should be, by path."""
    verdict = {flag: "no" if flag in cases.DOUBTS else "yes" for flag in cases.FLAGS}
    flags = [(f"`{flag}`", text, verdict[flag]) for flag, text in cases.FLAGS.items()]
    lines = paths.read_csv(paths.RESOURCES / "columns.csv")
    columns = [(f"`{x['column']}`", TYPES[x["type"]], x["meaning"]) for x in lines]
    shown = [(f"`{name}`", metrics.Metric(name)) for name in sorted(metrics.TABLE)]
    of_metrics = [(name, x.heading, x.unit, x.meaning) for name, x in shown]
    known = {"flags": markdown("flag | meaning | allows a verdict", flags)}
    known |= {"columns": markdown("column | type | meaning", columns)}
    known |= {"metrics": markdown("metric | heading | unit | note", of_metrics)}
    headings = "notebook | source | model | data | frameworks | time"
    known |= {"experiments": markdown(headings, experiments())}
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*.md"))}
    return {at: MARKED.sub(lambda x: x[1] + known[x[2]] + x[3], s) for at, s in texts.items()}


if __name__ == "__main__":
    for place, text in pages().items():
        place.write_text(text, encoding="utf-8")
