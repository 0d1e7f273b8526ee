"""What the commands of the core and of the extras share: their form and their options."""

import importlib
import shlex
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from pomology.errors import PomologyError
from pomology.results.record import PROFILES
from pomology.results.run import find, locate, unknown


def argument(name: str, help: str, default: Any = "", **settings: Any) -> tuple[str, dict]:
    """Return an argument of a command, with the settings of `ArgumentParser.add_argument`."""
    return name, {"help": help, "default": default, **settings}


RUN = argument("run", "name of the folder in outputs/")
STORE = argument("--store", "where runs are kept: a folder, s3://bucket/prefix, ssh://host/folder")
# Which notebooks run, on what, and how often.
SELECTION = (
    argument("--profile", "how much to measure (default: quick)", "quick", choices=PROFILES),
    argument("--device", "auto (every device here), cpu, gpu, cuda or mps", "auto"),
    argument("--only", "names or globs of notebooks, separated by spaces"),
    argument("--run", "name of the folder in outputs/ (default: one with the date)"),
    argument("--data", "where it comes from", "auto", choices=("auto", "real", "stand-in")),
    argument("--repeats", "how often to run each notebook, in fresh kernels", 1, type=int),
)


def extra(name: str) -> ModuleType:
    """Import an extra by the name of its folder. Raises PomologyError where that was removed."""
    try:
        return importlib.import_module(f"pomology.extras.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"pomology.extras.{name}":
            raise
        raise PomologyError(f"this copy of pomology has no lib/pomology/extras/{name}") from None


def places(variable: str, texts: Sequence[str], address: str) -> list[Path]:
    """Return the places of runs; those that are not here come from the store at an address.

    texts: each names a run, or several, separated by spaces, those with spaces in quotes.
    """
    try:
        names = shlex.split(" ".join(texts))
    except ValueError as error:
        raise PomologyError(f"{variable}={' '.join(texts)}: {error}") from None
    found = []
    for name in names:
        if (address or "://" in name) and not (locate(name) or Path(name).exists()):
            name = str(extra("store").fetch(name, address))
        found.append(name)
    return find(found, variable)


def run_folder(run: str) -> Path:
    """Return a run's folder, by its name in outputs/ or its path."""
    place = locate(run)
    if place is None or not place.is_dir():
        raise unknown(f"RUN={run}")
    return place
