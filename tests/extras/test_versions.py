"""Interleaved versions: a mock uv makes environments whose mock Python writes planned times."""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas
import pytest
import records
from checkouts import PARAMETERS
from notebook_code import notebook_text, write_notebook

import pomology
from pomology.errors import PomologyError
from pomology.extras.versions import matrix

# Replaces a shebang, because the checkout's path may contain a space.
RUN = '#!/bin/sh\n"exec" "{python}" "$0" "$@"\n'
UV = """
import pathlib, sys
arguments = sys.argv[1:]
if arguments[0] == "venv":
    place = pathlib.Path(arguments[-1], "bin", "python")
    place.parent.mkdir(parents=True)
    place.write_text(pathlib.Path("python.txt").read_text())
    place.chmod(0o755)
if "numpy==9.9.9" in arguments:
    sys.exit("× No solution found:\\n  there is no version of numpy==9.9.9")
"""
# Mock of `python -P -m pomology reproduce` of a version: numpy 1.26.4 takes 1.2 times as long.
PYTHON = """
import json, pathlib, sys, time
options = dict(word[2:].split("=", 1) for word in sys.argv[5:])
repeat = int(options["repeats"]) - 1
out = pathlib.Path("outputs", options["run"])
with open("log", "a") as log:
    print(options["run"], repeat, file=log)
if pathlib.Path("hang").exists() and repeat == 1:
    pathlib.Path("hang").unlink()
    time.sleep(600)
record = json.loads(pathlib.Path("record.json").read_text()) | {{"repeat": repeat}}
factor = 1.2 if out.name.endswith("1.26.4") else 1.0
record["metrics"]["step_s"]["value"] = factor * (1 + 0.01 * repeat)
for name in ("repeats", ".partial"):
    (out / name).mkdir(parents=True, exist_ok=True)
(out / "machine.json").write_text('{{"chip": "Apple M9", "python": "3.11.7", "profile": "smoke"}}')
with open(out / "zeta.jsonl", "a") as journal:
    print(json.dumps(record), file=journal)
name = f"repeats/zeta-{{repeat}}.ipynb" if repeat else "zeta.ipynb"
(out / name).write_text(pathlib.Path("notebooks/an_article/zeta.ipynb").read_text())
"""
TWO = "numpy==1.26.3 numpy==1.26.4"


class Checkout:
    """A copy of pomology with one notebook, and a mock uv on PATH."""

    def __init__(self, folder: Path):
        self.folder = folder
        shutil.copytree(Path(pomology.__file__).parent, folder / "lib" / "pomology")
        text = notebook_text("# Zeta", PARAMETERS, article="003", seconds={"smoke": 1})
        write_notebook(folder, "zeta", text)
        case = records.record("zeta", {"step_s": records.metric(1.0)}, profile="smoke")
        (folder / "record.json").write_text(json.dumps({"event": "end"} | case.line()))
        (folder / "python.txt").write_text((RUN + PYTHON).format(python=sys.executable))
        write_uv(folder / "bin")

    def start(self, *options: str) -> subprocess.Popen:
        command = [sys.executable, "-m", "pomology", "matrix", f"--versions={TWO}", "--run=m"]
        settings = {"cwd": self.folder, "start_new_session": True, "text": True}
        settings["env"] = os.environ | {"PATH": str(self.folder / "bin"), "PYTHONPATH": "lib"}
        settings |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen([*command, "--profile=smoke", *options], **settings)

    def run(self, *options: str) -> tuple[int, str, str]:
        """Run `pomology matrix`; return its exit status, stdout and stderr."""
        process = self.start(*options)
        output, errors = process.communicate(timeout=60)
        return process.returncode, output, errors

    def log(self) -> list[str]:
        """Return the measured runs and repeats in order."""
        place = self.folder / "log"
        return place.read_text().split("\n")[:-1] if place.exists() else []


def write_uv(folder: Path) -> Path:
    folder.mkdir()
    (folder / "uv").write_text((RUN + UV).format(python=sys.executable))
    (folder / "uv").chmod(0o755)
    return folder / "uv"


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_versions_are_interleaved_and_a_slower_one_is_found(checkout):
    status, output, errors = checkout.run("--repeats=3")
    assert (status, errors) == (0, "")
    a, b = "m-numpy-1.26.3", "m-numpy-1.26.4"
    assert checkout.log() == [f"{a} 0", f"{b} 0", f"{b} 1", f"{a} 1", f"{a} 2", f"{b} 2"]
    rows = pandas.read_csv(checkout.folder / "outputs" / "m" / "compare.csv")
    assert rows["base_s"].tolist() == ["[1.0, 1.01, 1.02]"]
    assert rows["ratio"][0] == pytest.approx(1.2) and rows["verdict"][0] == "slower"
    assert rows["low"][0] < 1.2 < rows["high"][0]
    assert "slower" in output


def test_an_interrupted_matrix_resumes(checkout):
    (checkout.folder / "hang").touch()
    process = checkout.start("--repeats=2")
    while len(checkout.log()) < 3:
        assert process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(timeout=30) == 130
    assert checkout.run("--repeats=2")[0] == 0
    assert checkout.log()[-2:] == ["m-numpy-1.26.4 1", "m-numpy-1.26.3 1"]


def test_wrong_options_are_refused_before_anything_runs(monkeypatch, tmp_path):
    options = argparse.Namespace(versions=TWO, profile="smoke", repeats=1)
    monkeypatch.setattr(matrix.shutil, "which", lambda *_: "uv")
    with pytest.raises(PomologyError, match="REPEATS=1: expected 2"):
        matrix.run(options, print)
    monkeypatch.setattr(matrix.shutil, "which", lambda *_: None)
    with pytest.raises(PomologyError, match="uv is not installed"):
        matrix.run(options, print)
    uv = write_uv(tmp_path / "bin")
    (tmp_path / "python.txt").touch()
    monkeypatch.setattr(matrix, "root", lambda: tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PomologyError, match="cannot be installed: × No solution found"):
        matrix.make_environment("numpy==9.9.9", str(uv))


WRONG = """
numpy==1.26.3, numpy=1 numpy=2, -r==1 -r==2, numpy==1.* numpy==2, numpy==1 numpy==1,
numpy==1 torch==2, jax==1 jax==2, numpy==$(x) numpy==2
"""


@pytest.mark.parametrize("text", ["", *WRONG.split(",")])
def test_invalid_versions_are_refused(text):
    with pytest.raises(PomologyError, match=r"^VERSIONS="):
        matrix.parse(text)
