"""Tests in a file of another framework, run in a process of their own: no process may hold two frameworks."""

from __future__ import annotations

import ast
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path


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
