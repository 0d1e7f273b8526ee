"""The public face: `from pomology import …` gives what it names, and importing takes next to nothing."""

import importlib
import re
import subprocess
import sys

import pytest

import pomology
from pomology.paths import root


def test_names_come_from_their_modules():
    for name in pomology.__all__:
        assert getattr(pomology, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'experiments'"):
        _ = pomology.experiments
    assert pomology.measure is importlib.import_module(
        "pomology.measure"
    )  # the package, not the function of calls


def test_importing_takes_nothing_until_a_name_is_asked_for():
    program = """
import sys
import pomology
from pomology import TooBig
heavy = {"numpy", "torch", "msgspec", "psutil", "IPython"}
print([name for name in sys.modules if name.split(".")[0] in heavy])
from pomology import Estimate, Experiment
print([name for name in ("torch", "tensorflow", "mlx", "keras", "jax") if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n[]\n"


# Findings are of their time, and name files that have gone since.
PAGES = sorted(
    f"docs/{path.name}" for path in (root() / "docs").glob("*.md") if path.stem != "findings"
)


@pytest.mark.parametrize("page", ["README.md", *PAGES])
def test_files_that_a_page_names_are_there(page):
    text = (root() / page).read_text(encoding="utf-8")
    files = re.findall(r"`([\w./-]+/[\w.-]+\.(?:py|csv|md))`", text) + re.findall(
        r"\]\((?!http)([^)#]+)\)", text
    )
    places = [root(), root() / "lib" / "pomology", (root() / page).parent]
    assert not {file for file in files if not any((place / file).exists() for place in places)}
