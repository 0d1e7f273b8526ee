"""Interleaved versions: a mock uv makes environments whose mock Python writes planned times."""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from email.message import Message
from pathlib import Path
from unittest.mock import Mock

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
with open("uv.log", "a") as log:
    print(*arguments, file=log)
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


def test_without_repeats_each_version_runs_five_times(checkout):
    status, output, _ = checkout.run()
    assert status == 0 and "zeta, numpy==1.26.3, repeat 5 of 5" in output
    assert len(checkout.log()) == 10


def test_only_notebooks_that_are_skipped_are_refused_before_an_environment_is_made(checkout):
    text = notebook_text("# Kappa", PARAMETERS, article="kit", seconds={"smoke": 1})
    write_notebook(checkout.folder, "kappa", text)
    status, output, errors = checkout.run("--only=kappa")
    assert status == 2 and errors.startswith("pomology: ONLY=kappa: a notebook about this machine")
    assert "preparing" not in output


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


def test_a_part_of_a_package_gets_its_version(monkeypatch, tmp_path):
    """On Linux MLX computes in mlx-cpu; with another one both versions would be the same."""
    about = Message()
    needs = {
        "cpu": 'mlx-cpu==0.32.4; platform_system != "none" and extra == "cpu"',
        "cuda": 'mlx-cuda-13==0.32.4; extra == "cuda"',
        "dev": 'numpy>=2; extra == "dev"',
    }
    for extra in needs:
        about["Provides-Extra"] = extra
    needs["always"] = 'mlx-metal==0.32.4; platform_system != "none"'
    mlx = Mock(version="0.32.4", metadata=about, requires=[*needs.values(), "numpy==0.32.4"])
    known = dict.fromkeys(("mlx", "mlx-cpu", "mlx-metal", "numpy"), "0.32.4")
    packages = {"mlx": mlx, "torch": Mock(version="2.14.1")}
    monkeypatch.setattr(matrix.metadata, "distribution", packages.get)
    monkeypatch.setattr(matrix, "installed", lambda: known)
    assert matrix.parts("mlx") == {"cpu": "mlx-cpu"}
    uv = write_uv(tmp_path / "bin")
    (tmp_path / "python.txt").touch()
    monkeypatch.setattr(matrix, "root", lambda: tmp_path)
    monkeypatch.chdir(tmp_path)
    matrix.make_environment("mlx==0.31.2", str(uv))
    _, kept, version = (tmp_path / "uv.log").read_text().splitlines()
    assert kept.endswith("--no-deps mlx-metal==0.32.4 numpy==0.32.4")
    assert version.endswith(" mlx[cpu]==0.31.2 mlx-metal numpy")


INVALID = {
    "": "got no version; expected two or more",
    "numpy==1.26.3": "got 1 version; expected two or more",
    "numpy=1 numpy=2": "got 'numpy=1'; expected PACKAGE==VERSION",
    "-r==1 -r==2": "got '-r==1'; expected PACKAGE==VERSION",
    "numpy==1.* numpy==2": "got 'numpy==1.*'; expected PACKAGE==VERSION",
    "numpy==$(x) numpy==2": r"got 'numpy==$(x)'; expected PACKAGE==VERSION",
    "numpy==1 numpy==1": "got numpy==1 twice; expected different versions",
    "numpy==1 torch==2": "got versions of numpy and torch; expected those of one package",
    "jax==1": "jax is not among the packages that pomology installs; expected one of these",
    "jax==1 jax==2": "jax is not among the packages that pomology installs; expected one of these",
    "pomology==1 pomology==2": "pomology is not among the packages that pomology installs",
}


@pytest.mark.parametrize("text", INVALID)
def test_invalid_versions_are_refused(text):
    message = re.escape(f"VERSIONS={text}: {INVALID[text]}")
    with pytest.raises(PomologyError, match=f"^{message}"):
        matrix.parse(text)
