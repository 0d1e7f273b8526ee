"""The tests of `keras_side.py`, in a process of their own: TensorFlow must not share one with PyTorch."""

from __future__ import annotations

import ast
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

SIDE = Path(__file__).with_name("keras_side.py")
NAMES = [
    node.name
    for node in ast.parse(SIDE.read_text(encoding="utf-8")).body
    if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory) -> dict[str, list[str]]:
    """Test function -> for each of its cases nothing, or why it failed."""
    report = tmp_path_factory.mktemp("keras") / "report.xml"
    command = [sys.executable, "-m", "pytest", str(SIDE), "-q", f"--junitxml={report}", "-p", "no:cacheprovider"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=SIDE.parents[1])
    assert report.exists(), done.stdout[-2000:] + done.stderr[-2000:]
    found: dict[str, list[str]] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        bad = [item.text or "" for item in case if item.tag in ("failure", "error")]
        found.setdefault(case.get("name").partition("[")[0], []).append("\n".join(bad))
    return found


@pytest.mark.parametrize("name", NAMES)
def test_in_tensorflow(outcomes, name):
    assert name in outcomes, "it was not run"
    assert not any(outcomes[name]), "\n".join(outcomes[name])[-4000:]
