"""The page on how to add an experiment: exactly its files, in a copy of the kit, make an experiment that runs."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat import v4

from pomology.paths import root

TEXT = (root() / "docs" / "add-an-experiment.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
PYTHON = [text.strip() for kind, text in BLOCKS if kind == "python"]


def in_the_copy(kit: Path, *arguments: str) -> str:
    variables = os.environ | {"PYTHONPATH": str(kit / "lib")}
    command = [sys.executable, *arguments]
    done = subprocess.run(
        command, cwd=kit, env=variables, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def kit(tmp_path_factory) -> Path:
    """A copy of the kit with the files of the page, and nothing else of it changed."""
    folder = tmp_path_factory.mktemp("added") / "pomology"
    for name in ("lib", "notebooks", "params"):
        shutil.copytree(
            root() / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", ".ipynb*")
        )
    (words,) = (text for kind, text in BLOCKS if kind == "markdown")
    parameters, *code = PYTHON
    cells = [
        v4.new_markdown_cell(words),
        v4.new_code_cell(parameters, metadata={"tags": ["parameters"]}),
    ]
    metadata = json.loads("{" + re.search(r'`("pomology": .*)`', TEXT)[1] + "}")
    (place,) = re.findall(r"`(notebooks/\S+\.ipynb)`", TEXT)
    # As JupyterLab writes it.
    metadata["kernelspec"] = {
        "name": "python3",
        "display_name": "Python 3 (ipykernel)",
        "language": "python",
    }
    cells += [v4.new_code_cell(text) for text in code]
    nbformat.write(v4.new_notebook(cells=cells, metadata=metadata), folder / place)
    for path, text in re.findall(r"`(params/\S+\.yaml)`\n\n```yaml\n(.*?)```", TEXT, re.DOTALL):
        (folder / path).write_text(text)
    (rows,) = (text for kind, text in BLOCKS if kind == "csv")
    with open(
        folder / "lib" / "pomology" / "articles" / "data" / "published.csv", "a", newline=""
    ) as file:
        file.write(rows)
    return folder


def test_it_is_small():
    lines = [[line for line in text.splitlines() if line.strip()] for text in PYTHON]
    assert sum(map(len, lines)) < 45 and sum(map(len, lines[1:])) < 40


def test_it_runs_and_stands_on_the_page_beside_its_published_rows(kit):
    in_the_copy(kit, "-m", "pomology", "check")
    command = (
        "-m",
        "pomology",
        "reproduce",
        "--profile=smoke",
        "--only=linear",
        "--device=cpu",
        "--run=a",
    )
    assert "cpu, width 16" in in_the_copy(kit, *command)
    out = kit / "outputs" / "a"
    page = (out / "index.html").read_text(encoding="utf-8").replace("\N{NO-BREAK SPACE}", " ")
    assert ">One linear layer</h3>" in page and "0.41 ms" in page and ">Width</th>" in page
    with open(out / "shown" / "linear" / "01-article.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["width"], float(row["step_s"])) for row in rows] == [
        ("1024", 0.41e-3),
        ("1024", 0.35e-3),
    ]
    in_the_copy(kit, "-m", "pomology", "report", "a")
    assert (out / "index.html").read_text(encoding="utf-8").replace(
        "\N{NO-BREAK SPACE}", " "
    ) == page
