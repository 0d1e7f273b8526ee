"""What the commands of the core and of the extras share: their form, options and output."""

import argparse
import importlib
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from pomology import format
from pomology.errors import PomologyError
from pomology.paths import redact


class Command(NamedTuple):
    """A command: its line in the help, what adds its arguments to a parser, and what runs it."""

    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int | None]


def extra(name: str) -> ModuleType:
    """Import an extra by the name of its folder. Raises PomologyError where that was removed."""
    try:
        return importlib.import_module(f"pomology.extras.{name}")
    except ModuleNotFoundError as error:
        if error.name not in ("pomology.extras", f"pomology.extras.{name}"):
            raise
        raise PomologyError(f"this copy of pomology has no lib/pomology/extras/{name}") from None


def no_arguments(parser: argparse.ArgumentParser) -> None:
    """Add nothing."""


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a command that runs notebooks."""
    add_selection(parser)
    limit = "time limit of one notebook (0: none)"
    parser.add_argument("--limit-minutes", type=_minutes, metavar="MINUTES", help=limit)
    where = "where to put the run at its end: a folder, s3://bucket/prefix, ssh://host/folder"
    parser.add_argument("--store", default="", help=where)


def add_selection(parser: argparse.ArgumentParser, repeats: int = 1) -> None:
    """Add the options that say which notebooks run, on what, and how often."""
    option = parser.add_argument
    option("--profile", default="quick", help="smoke, quick or article (default: quick)")
    option("--device", default="auto", help="auto (every device here), cpu, gpu, cuda or mps")
    option("--only", default="", help="names or globs of notebooks, separated by spaces")
    option("--run", default="", help="name of the folder in outputs/ (default: one with the date)")
    option("--data", default="auto", help="auto, real or stand-in")
    often = "how often to run each notebook, in fresh kernels"
    option("--repeats", type=int, default=repeats, help=often)


def add_store_option(parser: argparse.ArgumentParser) -> None:
    """Add the option of a command that reads runs."""
    where = "where those runs are looked for that are not in outputs/"
    parser.add_argument("--store", default="", help=where)


def _minutes(text: str) -> float:
    minutes = float(text)
    if not 0 <= minutes <= 10_000:
        raise argparse.ArgumentTypeError(f"{text}: must be from 0 to 10000")
    return minutes


def say(line: str) -> None:
    """Print a line; where nobody reads it any more, as behind `| head`, go on in silence."""
    try:
        print(line, flush=True)
    except OSError:  # the reader is gone, or a disk is full
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def request(options: argparse.Namespace):
    """Return the `plan.Asked` of a command that runs notebooks."""
    from pomology.runner.plan import Asked

    return Asked(
        options.profile, options.device, options.only, options.run, options.data, options.repeats
    )


def put_into_store(out: Path, address: str, run: str = "") -> int:
    """Put a run that has come to its end into the store.

    run: the name of a fleet's run, of which `out` is a machine's folder.
    Returns 0, or the exit status 3 for a store that failed.
    """
    try:
        say(f"put into the store as {extra('store').put(out, address, run)}")
        return 0
    except (PomologyError, OSError) as error:
        later = f"the same command with RUN={run or out.name} puts it later"
        print(f"pomology: {format.one_line(redact(str(error)), 1000)}; {later}", file=sys.stderr)
        return 3


def places(variable: str, texts: Sequence[str], address: str) -> list[Path]:
    """Return the places of runs; those that are not here come from the store at an address.

    texts: each names a run, or several, separated by spaces, those with spaces in quotes.
    """
    from pomology.results.run import find, locate

    def is_here(name: str) -> bool:
        return bool(name) and (locate(name) is not None or Path(name).exists())

    found = []
    for text in texts:
        try:
            names = [text] if is_here(text) else shlex.split(text)
        except ValueError as error:
            raise PomologyError(f"{variable}={text}: {error}") from None
        for name in names:
            if (address or "://" in name) and not is_here(name):
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
