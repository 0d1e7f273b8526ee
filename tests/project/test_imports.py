"""Imports: few modules for quick commands, and no framework at the top of a module."""

import importlib.util
import os
import re
import subprocess
import sys

import pomology
from pomology.paths import root

PACKAGE = root() / "lib" / "pomology"
FRAMEWORKS = ["torch", "lightning", "transformers", "peft", "tensorflow", "keras", "mlx", "jax"]
FRAMEWORKS += ["datasets", "sklearn"]
NAMES = "|".join(FRAMEWORKS)
AT_THE_TOP = re.compile(rf"^(?:import|from) ({NAMES})(?:vision)?\b", re.MULTILINE)
# Modules that are too slow to import for a quick command.
HEAVY = [*FRAMEWORKS, "numpy", "pandas", "matplotlib", "papermill", "nbformat", "IPython", "jinja2"]
COMMANDS = ["--help", "list", "reproduce --profile=x", "report gone", "share gone", "frobnicate"]
PROGRAM = """
import contextlib, importlib, sys
import pomology
from pomology.__main__ import main
for command in {commands}:
    with contextlib.suppress(SystemExit):
        main(command.split())
    loaded = [name for name in {heavy} if name in sys.modules]
    assert not loaded, f"{{command}} imports {{loaded}}"
from pomology import Estimate, Experiment
for module in {modules}:
    importlib.import_module(module)
    loaded = [name for name in {frameworks} if name in sys.modules]
    assert not loaded, f"{{module}} imports {{loaded}}"
"""


def test_quick_commands_load_few_modules_and_modules_load_no_framework():
    """Functions import frameworks, except in shared models, which have one framework each."""
    modules = []
    for place in sorted(PACKAGE.rglob("*.py")):
        own = set(AT_THE_TOP.findall(place.read_text(encoding="utf-8")))
        assert not own or (
            len(own) == 1 and {"models", "data", "checks", "extras"} & {*place.parts}
        ), place
        if place.name not in ("__init__.py", "__main__.py") and not own:
            parts = place.relative_to(PACKAGE).with_suffix("").parts
            modules.append(".".join(("pomology", *parts)))
    if importlib.util.find_spec("distributed") is None:  # `make env EXTRAS=fleet` installs it
        modules = [name for name in modules if ".fleet" not in name]
    program = PROGRAM.format(commands=COMMANDS, heavy=HEAVY, modules=modules, frameworks=FRAMEWORKS)
    command = [sys.executable, "-c", program]
    environment = os.environ | {"PYTHONPATH": str(root() / "lib")}
    options = {"cwd": root(), "env": environment, "capture_output": True, "text": True}
    done = subprocess.run(command, check=False, **options)
    assert done.returncode == 0, done.stderr


# What may import by a name that is text, so that import-linter does not see it.
BY_NAME = {
    "__init__.py": "public names, when they are first used",
    "devices/find.py": "each file in its own folder is a framework",
    "extras/__init__.py": "each folder in its own that exists is an extra",
    "experiment/twin.py": "a file of the user, next to a notebook",
    "extras/prediction/predict.py": "a file of the user",
    "models/isolated.py": "a function that its caller names, in a new process",
}
IMPORTS = re.compile(
    r"\b(import_module|find_spec|resolve_name|spec_from_\w+|__import__|sys\.path)\b"
)


def test_modules_import_each_other_by_import_statements_alone():
    for place in sorted(PACKAGE.rglob("*.py")):
        if place.relative_to(PACKAGE).as_posix() not in BY_NAME:
            assert not IMPORTS.findall(place.read_text(encoding="utf-8")), place


def test_public_names_come_from_their_modules():
    assert all(getattr(pomology, name) is not None for name in pomology.__all__)
    # The name is the package, not the function of `measure.calls`.
    assert pomology.measure is importlib.import_module("pomology.measure")
