"""Tests in a file of another framework, run in a process of their own: no process may hold two frameworks."""

from __future__ import annotations

import ast
import multiprocessing
import os
import runpy
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def names(file: Path) -> list[str]:
    """The test functions of a file, which is not imported for it."""
    nodes = ast.parse(file.read_text(encoding="utf-8")).body
    return [node.name for node in nodes if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]


def outcomes(file: Path, folder: Path) -> dict[str, list[str]]:
    """Run them. Test function -> for each of its cases nothing, or why it failed; what did not run is absent."""
    report = folder / "report.xml"
    command = [sys.executable, "-m", "pytest", str(file), "-q", f"--junitxml={report}", "-p", "no:cacheprovider"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=file.parents[1])
    assert report.exists(), done.stdout[-2000:] + done.stderr[-2000:]
    found: dict[str, list[str]] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        bad = [item.text or "" for item in case if item.tag in ("failure", "error")]
        found.setdefault(case.get("name").partition("[")[0], []).append("\n".join(bad))
    return found


def tests_of(file: Path) -> Callable:
    """A test for each test function of a file. All are run by the first, in one process."""
    results: dict[str, list[str]] = {}

    @pytest.mark.parametrize("name", names(file))
    def test(name, tmp_path):
        if not results:
            results.update(outcomes(file, tmp_path))
        assert name in results, "it was not run"
        assert not any(results[name]), "\n".join(results[name])[-4000:]

    return test


# Other processes with PyTorch -----------------------------------------------------------------------------------------


def run_python(command: list[str], out: str, err: str) -> None:
    """What `python -m MODULE ARGUMENTS...` or `python -c PROGRAM ARGUMENTS...` does, in this process."""
    for place, number in ((out, 1), (err, 2)):
        os.dup2(os.open(place, os.O_WRONLY | os.O_CREAT), number)
    sys.argv = ["-c", *command[3:]]
    if command[1] == "-m":
        runpy.run_module(command[2], run_name="__main__", alter_sys=True)
    else:
        exec(command[2], {"__name__": "__main__"})


def start_with_torch(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let `subprocess.run` of another Python fork a process that has loaded PyTorch, which takes seconds, and has done
    nothing else. Each still has a process of its own. A Mac forbids such forks: there all are started anew.

    folder: for what they print.
    """
    if sys.platform == "darwin":
        return
    honest, forks = subprocess.run, multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload(["torch"])

    def run(command: list[str], **named: Any) -> subprocess.CompletedProcess:
        plain = named == {"capture_output": True, "text": True, "check": False, "timeout": None}
        if not plain or command[0] != sys.executable or command[1] not in ("-m", "-c"):
            return honest(command, **named)
        out, err = folder / "stdout", folder / "stderr"
        process = forks.Process(target=run_python, args=(command, str(out), str(err)))
        process.start()
        process.join()
        texts = [place.read_text(encoding="utf-8") if place.exists() else "" for place in (out, err)]
        out.unlink(missing_ok=True), err.unlink(missing_ok=True)
        return subprocess.CompletedProcess(command, process.exitcode, *texts)

    patch.setattr(subprocess, "run", run)
