"""What the commands of the core and of the extras share: their form, options and output."""

import argparse
import functools
import importlib
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from pomology.errors import PomologyError

say = functools.partial(print, flush=True)  # at once, also into a pipe or a file


class Command(NamedTuple):
    """A command: its line in the help, what runs it, and its arguments, each by `argument`."""

    help: str
    run: Callable[[argparse.Namespace], int | None]
    arguments: Sequence[tuple] = ()


def argument(name: str, help: str, default: Any = "", **settings: Any) -> tuple[str, dict]:
    """Return an argument of a command, with the settings of `ArgumentParser.add_argument`."""
    return name, {"help": help, "default": default, **settings}


RUN = argument("run", "name of the folder in outputs/")
STORE = argument("--store", "where runs are kept: a folder, s3://bucket/prefix, ssh://host/folder")
# Which notebooks run, on what, and how often.
SELECTION = (
    argument("--profile", "smoke, quick or article (default: quick)", "quick"),
    argument("--device", "auto (every device here), cpu, gpu, cuda or mps", "auto"),
    argument("--only", "names or globs of notebooks, separated by spaces"),
    argument("--run", "name of the folder in outputs/ (default: one with the date)"),
    argument("--data", "auto, real or stand-in", "auto"),
    argument("--repeats", "how often to run each notebook, in fresh kernels", 1, type=int),
)
LIMIT = argument("--limit-minutes", "time limit of one notebook (0: none)", None, type=float)


def extra(name: str) -> ModuleType:
    """Import an extra by the name of its folder. Raises PomologyError where that was removed."""
    try:
        return importlib.import_module(f"pomology.extras.{name}")
    except ModuleNotFoundError as error:
        if error.name not in ("pomology.extras", f"pomology.extras.{name}"):
            raise
        raise PomologyError(f"this copy of pomology has no lib/pomology/extras/{name}") from None


def request(options: argparse.Namespace):
    """Return the `plan.Asked` of a command that runs notebooks."""
    from pomology.runner.plan import Asked

    return Asked(
        options.profile, options.device, options.only, options.run, options.data, options.repeats
    )


def places(variable: str, texts: Sequence[str], address: str) -> list[Path]:
    """Return the places of runs; those that are not here come from the store at an address.

    texts: each names a run, or several, separated by spaces, those with spaces in quotes.
    """
    from pomology.results.run import find, locate

    try:
        names = shlex.split(" ".join(texts))
    except ValueError as error:
        raise PomologyError(f"{variable}={' '.join(texts)}: {error}") from None
    found = []
    for name in names:
        here = locate(name) is not None or Path(name).exists()
        if not here and (address or "://" in name):
            name = str(extra("store").fetch(name, address))
        found.append(name)
    return find(found, variable)


def run_folder(run: str) -> Path:
    """Return a run's folder, by its name in outputs/ or its path."""
    from pomology.results import run as results_run

    place = results_run.locate(run)
    if place is None or not place.is_dir():
        raise results_run.unknown(f"RUN={run}")
    return place
