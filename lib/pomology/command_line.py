"""Options and lookups that the commands of the core and of the extras share."""

import importlib.util
import shlex
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from pomology.errors import PomologyError
from pomology.results.record import PROFILES
from pomology.results.run import find, locate, unknown


def argument(name: str, help: str, default: Any = "", **settings: Any) -> tuple[str, dict]:
    """Return an argument of a command: its name and its options for `add_argument`."""
    return name, {"help": help, "default": default, **settings}


RUN = argument("run", "name of the run's folder in outputs/, or its path")
STORE = argument("--store", "storage of runs: a folder, s3://bucket/prefix or ssh://host/folder")
DATA = "auto: real data where available, else synthetic; real; synthetic (default: auto)"
# The notebooks of a run, their devices and data, and their repeats.
SELECTION = (
    argument("--profile", "how much to measure (default: quick)", "quick", choices=PROFILES),
    argument("--device", "devices to time: auto (all), cpu, gpu, cuda or mps", "auto"),
    argument("--only", "notebooks to run: names or globs, separated by spaces"),
    argument("--run", "name of the run's folder in outputs/ (default: the date and the profile)"),
    argument("--data", DATA, "auto", choices=("auto", "real", "synthetic", "stand-in")),
    argument("--repeats", "times to run each notebook, each in a fresh process", 1, type=int),
)


def extra(name: str) -> ModuleType:
    """Import an extra by the name of its folder. Raises PomologyError if the folder is missing."""
    spec = importlib.util.find_spec(f"pomology.extras.{name}")
    if spec is None or spec.origin is None:  # without an origin the folder has no Python files
        raise PomologyError(f"lib/pomology/extras/{name}/ is missing; restore it")
    return importlib.import_module(spec.name)


def places(variable: str, texts: Sequence[str], address: str) -> list[Path]:
    """Return the paths of runs; fetch those that are not on this machine from a store.

    texts: names of runs, separated by spaces, with quotes around a name with spaces.
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
    """Return the folder of a run that is named by its folder in outputs/ or its path."""
    place = locate(run)
    if place is None or not place.is_dir():
        raise unknown(f"RUN={run}")
    return place
