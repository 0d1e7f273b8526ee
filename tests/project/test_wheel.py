"""The wheel answers look-ups from any folder; other commands say what is missing.

The wheel is built and installed without a network: its dependencies are links to packages of the
environment that runs the tests, so frameworks, IPython and papermill cannot be imported.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import venv
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from pomology.paths import root

HEAVY = ("torch", "tensorflow", "mlx", "transformers", "IPython", "papermill", "matplotlib")
ZIPS = sorted(root().glob("collection/*.zip"))[:2]
IN_CHECKOUT = (
    "reproduce",
    "report r",
    "matrix",
    "fleet",
    "share r",
    "submit r",
    "collect",
    "check",
)


def closure(names: list[str]) -> set[str]:
    """Return the packages that these packages need, and themselves."""
    needed: set[str] = set()
    waiting = [canonicalize_name(name) for name in names]
    while waiting:
        name = waiting.pop()
        if name in needed:
            continue
        needed.add(name)
        for text in metadata.requires(name) or ():
            requirement = Requirement(text)
            if not requirement.marker or requirement.marker.evaluate({"extra": ""}):
                waiting.append(canonicalize_name(requirement.name))
    return needed


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Return an environment with the wheel and its light packages."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    # setuptools writes next to the sources.
    source = folder / "source"
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(root() / "lib", source / "lib", ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(root() / name, source)
    build = ["wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, *build, "--wheel-dir", folder, source], check=True)
    environment = folder / "environment"
    venv.create(environment, symlinks=True)
    (wheel,) = folder.glob("*.whl")
    install = ["install", "--quiet", "--no-deps", "--no-index", "--no-compile", wheel]
    subprocess.run([*pip, "--python", environment / "bin" / "python", *install], check=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    (facts,) = packages.glob("pomology-*.dist-info")
    needs = map(Requirement, metadata.Distribution.at(facts).requires)
    for name in closure([each.name for each in needs if not each.marker]):
        files = metadata.files(name)
        for top in {file.parts[0] for file in files} - {"..", "__pycache__"}:
            (packages / top).symlink_to(metadata.distribution(name).locate_file(top))
    return environment


@pytest.fixture
def run(installed, tmp_path):
    """Return a function that runs a program of the environment in an empty folder."""

    def run(program: str, *arguments: str, status: int = 0) -> str:
        kept = {name: text for name, text in os.environ.items() if not name.startswith("PYTHON")}
        command = [installed / "bin" / program, *arguments]
        options = {"cwd": tmp_path, "env": kept, "capture_output": True, "text": True}
        done = subprocess.run(command, check=False, **options)
        assert done.returncode == status, done.stderr
        return done.stdout if status == 0 else done.stderr

    return run


def test_it_brings_no_framework(run):
    imports = "import importlib.util; print([n for n in {} if importlib.util.find_spec(n)])"
    assert run("python", "-c", imports.format(HEAVY)) == "[]\n"


def test_it_lists_notebooks_and_compares_runs(run, tmp_path):
    assert "vae                  Variational autoencoder on MNIST" in run("pomology", "list")
    compared = run("pomology", "compare", *map(str, ZIPS))
    assert " takes " in compared and "./compare.html and compare.csv" in compared
    assert "claims of the articles on these runs together: " in compared
    files = [f"{name}.{kind}" for name in ("compare-claims", "compare") for kind in ("csv", "html")]
    assert sorted(path.name for path in tmp_path.iterdir()) == files


def test_it_lists_devices_and_models(run):
    assert "\nM3 Max GPU (40 cores) " in run("pomology", "devices", "m3", "max")
    listed = run("pomology", "models")
    assert "\nllama-3.1-8b " in listed and "\nvae 128 " in listed
    assert "unknown device" in run("pomology", "devices", "M9", status=2)


def test_it_predicts_a_workload_from_the_packages_own_counts(run):
    said = run("pomology", "predict", "vae 128", "--on", "M3 Max")
    assert "vae 128, fp32; per step: 0.4198 GFLOP" in said
    assert "predicted for M3 Max GPU (30 cores) from peaks of a data sheet" in said


def test_python_loads_measured_and_published_results(run):
    code = (
        f"import pomology; print(len(pomology.load({str(ZIPS[0])!r})), len(pomology.published()))"
    )
    rows, published = map(int, run("python", "-c", code).split())
    assert rows > 1000 and published > 4000


@pytest.mark.parametrize("command", IN_CHECKOUT)
def test_commands_that_need_the_notebooks_say_so_in_one_line(run, command):
    said = run("pomology", *shlex.split(command), status=2)
    missing = "needs the notebooks, which are not installed"
    assert re.fullmatch(f"pomology: {command.split()[0]} {missing}; .*\n", said)


def test_it_says_whether_a_model_of_the_table_fits(run):
    said = run("pomology", "fit", "gpt2", "--on", "M3 Max", "--memory", "36GB")
    assert said.startswith("fits: LoRA of gpt2 needs ")


NEED_A_FRAMEWORK = [
    ("predict", "model.py:build", "--input", "1x1"),
    ("fit", "gpt2", "--on", "M3 Max", "--precision", "fp32"),  # which the table has not
]


@pytest.mark.parametrize("arguments", NEED_A_FRAMEWORK, ids=lambda arguments: arguments[1])
def test_a_command_that_needs_a_framework_names_it(run, tmp_path, arguments):
    Path(tmp_path, "model.py").write_text("def build():\n    import torch\n")
    said = run("pomology", *arguments, status=2)
    assert re.fullmatch("pomology: torch, which this command needs, is not installed; .*\n", said)
