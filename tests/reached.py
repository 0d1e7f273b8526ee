"""Which lines of notebooks, lib/pomology/devices/ and lib/pomology/machine/ the tests run.

The kernels of the long smoke runs are measured, with the processes that they start. A cell has a
file of its own, since coverage.py reports on files.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from smoke import Execution

from pomology.paths import notebook_paths, root

CONFIGURATION = """
[run]
data_file = {folder}/data/lines
parallel = true
include =
    {folder}/cells/*
    {root}/notebooks/*
    {root}/lib/pomology/devices/*
    {root}/lib/pomology/machine/*
disable_warnings = no-data-collected, already-imported, module-not-measured
"""


class Reached:
    """The folder in which the measured processes of a session meet, whichever worker has them."""

    def __init__(self, factory: pytest.TempPathFactory):
        base = factory.getbasetemp()
        shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
        self.folder = shared / "reached"
        for name in ("cells", "data", "ran"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        self.configuration = self.folder / "coverage.ini"
        text = CONFIGURATION.format(folder=self.folder, root=root())
        self.configuration.write_text(text, encoding="utf-8")
        self.environment = {"COVERAGE_PROCESS_START": str(self.configuration)}

    def measure(self, execution: Execution) -> None:
        """Let a run be measured, which is about to begin."""
        stem = execution.path.stem
        names = {}
        for file, source in self._cells(execution.path):
            file.write_text(source, encoding="utf-8")
            names[source] = str(file)
        listed = self.folder / "cells" / f"{stem}.json"
        listed.write_text(json.dumps(names), encoding="utf-8")
        execution.cells = str(listed)
        execution.environment |= self.environment

    def note(self, run: str) -> None:
        """Note that a run has been measured."""
        (self.folder / "ran" / run).touch()

    def has(self, run: str) -> bool:
        """Return whether a run has been measured."""
        return (self.folder / "ran" / run).exists()

    def unreached(self) -> tuple[dict[str, int], dict[str, list[tuple[str, str]]]]:
        """Return the number of lines of each part, and its lines that did not run, with the file's.

        A statement over several lines is one line.
        """
        import coverage

        measured = coverage.Coverage(config_file=str(self.configuration))
        measured.combine([str(self.folder / "data")], keep=True)
        counts: dict[str, int] = {}
        lines: dict[str, list[tuple[str, str]]] = {}
        for part, name, file in self._files():
            _, statements, _, missing, _ = measured.analysis2(str(file))
            text = file.read_text(encoding="utf-8").splitlines()
            counts[part] = counts.get(part, 0) + len(statements)
            lines.setdefault(part, []).extend((name, text[n - 1].strip()) for n in missing)
        return counts, lines

    def _cells(self, path: Path) -> Iterator[tuple[Path, str]]:
        """Yield the file and the source of each cell of a notebook with code."""
        for cell in nbformat.read(path, 4).cells:
            if cell.cell_type == "code":
                yield self.folder / "cells" / f"{path.stem}+{cell.id}.py", cell.source

    def _files(self) -> Iterator[tuple[str, str, Path]]:
        """Yield each file that is looked at, with its part and its name in a report."""
        for path in notebook_paths(root() / "notebooks"):
            for file, source in self._cells(path):
                file.write_text(source, encoding="utf-8")
                yield "notebooks", path.name, file
        for path in sorted((root() / "notebooks").glob("*/*.py")):
            yield "notebooks", path.name, path
        for part in ("devices", "machine"):
            for path in sorted((root() / "lib" / "pomology" / part).glob("*.py")):
                yield part, path.name, path
