"""The public face: `from pomology import …` gives what it names, and importing pomology takes next to nothing."""

import importlib
import json
import subprocess
import sys

import pytest

import pomology
from pomology import errors


def test_names_come_from_their_modules():
    names = {name: getattr(pomology, name).__module__ for name in pomology.__all__ if name != "__version__"}
    assert names.pop("Experiment") == "pomology.experiment.experiment"
    assert names.pop("Run") == "pomology.results.run"
    assert names.pop("Estimate") == "pomology.measure.estimate"
    assert names.pop("workload") == "pomology.workloads.cost"
    assert names == {name: "pomology.errors" for name, kind in vars(errors).items() if isinstance(kind, type)}
    assert {*pomology.__all__} <= {*dir(pomology)}
    with pytest.raises(AttributeError, match="no attribute 'experiments'"):
        _ = pomology.experiments


def test_measure_is_the_package_at_the_top_and_the_function_below():
    assert pomology.measure is importlib.import_module("pomology.measure")
    from pomology.measure import calls, measure

    assert measure is calls.measure
    with pytest.raises(AttributeError, match="no attribute 'mesure'"):
        _ = pomology.measure.mesure


def test_importing_takes_nothing_until_a_name_is_asked_for():
    program = """
import json, sys
before = {*sys.modules}
import pomology, pomology.measure
from pomology import TooBig, __version__
heavy = [name for name in sys.modules if name.split(".")[0] in {"numpy", "torch", "msgspec", "psutil", "IPython"}]
own = sorted(name for name in sys.modules if name.startswith("pomology"))
from pomology import Estimate, Experiment
frameworks = [name for name in ("torch", "tensorflow", "mlx", "keras", "jax") if name in sys.modules]
print(json.dumps([heavy, own, frameworks]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [[], ["pomology", "pomology.errors", "pomology.measure"], []]
