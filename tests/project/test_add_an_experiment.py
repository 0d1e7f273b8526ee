"""CONTRIBUTING.md: its files make an experiment that runs in a copy of pomology."""

import csv
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from notebook_code import notebook_text

from pomology.paths import root

TEXT = (root() / "CONTRIBUTING.md").read_text(encoding="utf-8").split("\n## Add a")[1]
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
PYTHON = [text.strip() for kind, text in BLOCKS if kind == "python"]
OF_KIND = {kind: text for kind, text in BLOCKS if kind != "python"}


def add_files(checkout: Path) -> None:
    """Copy pomology into a folder, and write the files of the page into it."""
    for name in ("lib", "notebooks", "params"):
        ignored = shutil.ignore_patterns("__pycache__", ".ipynb*")
        shutil.copytree(root() / name, checkout / name, ignore=ignored)
    about = json.loads("{" + re.search(r'`"pomology": (.*)`', TEXT)[1][1:])
    (place,) = re.findall(r"`(notebooks/\S+\.ipynb)`", TEXT)
    (checkout / place).write_text(notebook_text(OF_KIND["markdown"], *PYTHON, **about))
    for path, text in re.findall(r"`(params/\S+\.yaml)`\n\n```yaml\n(.*?)```", TEXT, re.DOTALL):
        (checkout / path).write_text(text)
    published = checkout / "lib" / "pomology" / "articles" / "data" / "published.csv"
    with open(published, "a", newline="") as file:
        file.write(OF_KIND["csv"])


def test_it_runs_and_the_report_shows_it_with_its_published_rows(tmp_path):
    add_files(tmp_path)
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "lib")}
    command = [sys.executable, "-m", "pomology", "reproduce", "--profile=smoke", "--only=linear"]
    command += ["--device=cpu", "--run=a"]
    options = {"cwd": tmp_path, "env": environment, "capture_output": True, "text": True}
    done = subprocess.run(command, check=False, **options)
    assert done.returncode == 0 and "cpu, width 16" in done.stdout, done.stdout + done.stderr
    out = tmp_path / "outputs" / "a"
    page = (out / "index.html").read_text(encoding="utf-8").replace("\N{NO-BREAK SPACE}", " ")
    assert ">One linear layer</summary>" in page and "0.41 ms" in page and ">Width</th>" in page
    with open(out / "shown" / "linear" / "01-article.csv", newline="") as file:
        rows = [(row["width"], float(row["step_s"])) for row in csv.DictReader(file)]
    assert rows == [("1024", 0.41e-3), ("1024", 0.35e-3)]
