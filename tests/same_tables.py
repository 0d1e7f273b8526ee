"""Build the tables and verdicts of the reference run again, and hold them against what is committed, byte by byte.

    python tests/same_tables.py [--write]

Exit status 1 and a list of differences where a change of the code moved a number, a word of a table or a verdict.
`--write` keeps the new ones: only where that change was meant.
"""

from __future__ import annotations

import ast
import contextlib
import csv
import io
import json
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from pomology.articles import published
from pomology.paths import root
from pomology.report import declaration
from pomology.report.claims import claims_table
from pomology.report.showing import Report
from pomology.results.run import Run

REFERENCE = root() / "outputs" / "reference-cpu"
VERDICTS = Path(__file__).parent / "fixtures" / "reference_verdicts.csv"


def verdicts(folder: Path) -> str:
    """Of every claim: the verdict on the article's own numbers and on those of a run, as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("claim", "published", folder.name))
    for article in published.articles():
        for row in claims_table(published.claims(article.id), Run(folder).records).data:
            writer.writerow((row["id"], row["published"], row["here"]))
    return text.getvalue()


def tables(folder: Path, copy: Path) -> dict[str, bytes]:
    """The tables of a run as its notebooks write them: file name -> bytes.

    A notebook with cases is not run: only its calls that make tables are, on the journal that is there. One that reads
    the journals of others is run as it is.
    """
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("tables", "figures", "*.html"))
    for place in sorted(root().glob("notebooks/**/*.ipynb")):
        cells = json.loads(place.read_text(encoding="utf-8"))["cells"]
        code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
        made = next(call for name in declaration.CALLED for call in calls_in(code, name))
        if ast.unparse(made.args[0]) != repr(place.stem):
            raise SystemExit(f"{place.name}: its experiment has another name")
        with contextlib.redirect_stdout(io.StringIO()):
            if ast.unparse(made.func) == "Report":
                variables: dict = {"display": lambda *_: None}
                for cell in code:
                    exec(cell, variables)
                    if "out" in variables and not variables["out"]:
                        variables["out"] = str(copy)
            else:
                report = Report.of(declaration.read(place), Run(copy))
                for name in report.declaration.shows:
                    if name in ("table", "ratios", "checks", "ceilings"):
                        getattr(report, name)()
    return {place.name: place.read_bytes() for place in sorted((copy / "tables").glob("*.csv"))}


def calls_in(cells: Iterable[str], name: str) -> Iterator[ast.Call]:
    for cell in cells:
        for node in ast.walk(ast.parse(cell)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == name:
                yield node


def main(arguments: list[str]) -> int:
    kept = {place.name: place.read_bytes() for place in sorted((REFERENCE / "tables").glob("*.csv"))}
    with tempfile.TemporaryDirectory() as folder:
        built = tables(REFERENCE, Path(folder, REFERENCE.name))
    told = verdicts(REFERENCE)
    differences = [name for name in sorted({*kept, *built}) if kept.get(name) != built.get(name)]
    differences += [VERDICTS.name] if not VERDICTS.is_file() or VERDICTS.read_text(encoding="utf-8") != told else []
    if "--write" in arguments:
        for name, content in built.items():
            (REFERENCE / "tables" / name).write_bytes(content)
        VERDICTS.write_text(told, encoding="utf-8")
        differences = []
    print("\n".join(differences) or f"{len(built)} tables and {told.count(chr(10)) - 1} verdicts as they were")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
