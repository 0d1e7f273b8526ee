"""Publish a finished run as outputs/reference-cpu: `python setup/reference.py outputs/NAME`.

It has the report, the executed notebooks and their pages, the journals (packed), and the tables
that the report offers as CSV: every file to which a page of it leads. Answers, tables and figures
are made anew from the journals, so that they are those of today's code; nothing is measured.
"""

import gzip
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pomology.errors import PomologyError
from pomology.extras.share import results
from pomology.extras.share.pages import INJECTED
from pomology.paths import redact, root, write_atomic
from pomology.report import page
from pomology.runner.notebooks import answered, default_values, notebooks, read_notebook, relinked

TARGET = root() / "outputs" / "reference-cpu"
SOURCES = "SOURCES.md"  # of the run's data; written by hand, and kept
# The journals of a run that was published before are packed already.
AS_THEY_ARE = ("machine.json", "*.ipynb", "*.html", "*.jsonl.gz", "shown/*/*.csv")
DECLARING = ("Experiment(", "Report(")  # in cells that say how results are shown


def publish(run: Path, target: Path) -> None:
    """Copy a run's folder, without the files that only its own continuation needs."""
    sources = (target / SOURCES).read_bytes()
    shutil.rmtree(target)
    target.mkdir()
    (target / SOURCES).write_bytes(sources)
    for pattern in AS_THEY_ARE:
        for path in run.glob(pattern):
            copy = target / path.relative_to(run)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy)
    for journal in run.glob("*.jsonl"):
        packed = gzip.compress(journal.read_bytes(), mtime=0)  # equal bytes for equal journals
        (target / f"{journal.name}.gz").write_bytes(packed)
    index = target / "index.html"
    text = index.read_text(encoding="utf-8").replace('.jsonl"', '.jsonl.gz"')
    index.write_text(text.replace(".jsonl<", ".jsonl.gz<"), encoding="utf-8")


def refresh(run: Path) -> None:
    """Make the results in a run's notebooks and report anew. Changes the folder."""
    for notebook in notebooks(skipped={}):
        executed = run / f"{notebook.name}.ipynb"
        if executed.exists():
            print(f"{notebook.name}: results from its journal", flush=True)
            document = refreshed(read_notebook(executed), notebook.path, run)
            text = relinked(answered(document), notebook.path, TARGET)
            write_atomic(executed, redact(text))
    for rendered in run.glob("*.html"):
        rendered.unlink()
    page.build(run, told=True)


def refreshed(executed: Mapping[str, Any], path: Path, run: Path) -> dict[str, Any]:
    """Return a notebook with the outputs of its execution, but for results, which are made anew.

    executed: as JSON. path: of the notebook. run: folder of the journals. Raises PomologyError if
    code that is not about showing results differs from what was executed, or if a result fails.
    """
    document = read_notebook(path)
    of_execution = {cell["id"]: cell for cell in executed["cells"]}
    values = default_values(path) | executed["metadata"]["papermill"]["parameters"]
    made, failed = results.outputs(document["cells"], values, run)
    if failed:
        raise PomologyError(f"{path.name}: {'; '.join(failed)}")
    cells = []
    for number, cell in enumerate(document["cells"]):
        cells.append(cell)
        if cell["cell_type"] != "code":
            continue
        before = of_execution.get(cell["id"], {"source": "", "outputs": []})
        source = "".join(cell["source"])
        declares = any(call in source for call in DECLARING)
        if number in made and ".machine(" not in source:
            printed = [each for each in before["outputs"] if each["output_type"] == "stream"]
            outputs = [*printed, *made[number]]
        elif declares or without_imports(source) == without_imports("".join(before["source"])):
            outputs = before["outputs"]
        else:
            raise PomologyError(f"{path.name}: cell {cell['id']} has changed; measure anew")
        outputs = [once(each) for each in outputs]
        cells[-1] = cell | {"outputs": outputs, "execution_count": before.get("execution_count")}
        if "parameters" in tags(cell):
            cells += [each for each in executed["cells"] if INJECTED in tags(each)]
    return {**executed, "cells": cells}


def once(output: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an output whose photographs are JPEG alone: PNG is four times as large."""
    data = output.get("data", {})
    if "image/jpeg" not in data:
        return output
    return {**output, "data": {kind: each for kind, each in data.items() if kind != "image/png"}}


def without_imports(source: str) -> list[str]:
    """Return the lines of a cell that import nothing."""
    return [line for line in source.splitlines() if not line.startswith(("import ", "from "))]


def tags(cell: Mapping[str, Any]) -> list[str]:
    """Return the tags of a cell."""
    return cell["metadata"].get("tags", [])


def main(run: Path) -> None:
    """Publish a run. Its own folder stays as it is."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / run.name
        shutil.copytree(run, copy, ignore=shutil.ignore_patterns(".*"))
        refresh(copy)
        publish(copy, TARGET)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
