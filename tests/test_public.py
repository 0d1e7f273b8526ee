"""The public face: `from pomology import …` gives what it names, importing takes next to nothing, and
the pages in docs/ name what is there."""

import importlib
import re
import subprocess
import sys

import pytest

import pomology
from pomology import errors
from pomology.paths import root


def test_names_come_from_their_modules():
    names = {name: getattr(pomology, name).__module__ for name in pomology.__all__ if name != "__version__"}
    modules = {"Experiment": "experiment.experiment", "Run": "results.run", "Estimate": "measure.estimate"}
    modules |= {"workload": "models.cost", "load": "results.frame", "published": "results.frame"}
    modules |= {name: "errors" for name, kind in vars(errors).items() if isinstance(kind, type)}
    assert names == {name: f"pomology.{module}" for name, module in modules.items()}
    assert {*pomology.__all__} <= {*dir(pomology)}
    with pytest.raises(AttributeError, match="no attribute 'experiments'"):
        _ = pomology.experiments
    assert pomology.measure is importlib.import_module("pomology.measure")  # the package, not the function of calls


def test_importing_takes_nothing_until_a_name_is_asked_for():
    program = """
import sys
import pomology, pomology.measure
from pomology import TooBig, __version__
heavy = [name for name in sys.modules if name.split(".")[0] in {"numpy", "torch", "msgspec", "psutil", "IPython"}]
own = sorted(name for name in sys.modules if name.startswith("pomology"))
from pomology import Estimate, Experiment
print(heavy, own, [name for name in ("torch", "tensorflow", "mlx", "keras", "jax") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[] ['pomology', 'pomology.errors', 'pomology.measure'] []\n"


PAGES = ["README.md", *sorted(f"docs/{path.name}" for path in (root() / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES)
def test_files_that_a_page_names_are_there(page):
    text = (root() / page).read_text(encoding="utf-8")
    files = re.findall(r"`([\w./-]+/[\w.-]+\.(?:py|csv|md))`", text) + re.findall(r"\]\((?!http)([^)#]+)\)", text)
    places = [root(), root() / "lib" / "pomology", (root() / page).parent]
    missing = {file for file in files if not any((place / file).exists() for place in places)}
    assert not missing
    for names in re.findall(r"`from pomology import ([\w, ]+)`", text):
        assert {*names.split(", ")} <= {*pomology.__all__}
