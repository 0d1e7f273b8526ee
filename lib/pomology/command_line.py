"""What the commands of the core and of the extras share: their form, common options, and one line per output."""

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


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a command that runs notebooks."""
    add_selection(parser)
    option = parser.add_argument
    option("--limit-minutes", type=float, help="time limit of one notebook (0: none)")
    where = "where to put the run at its end: a folder, s3://bucket/prefix, ssh://host/folder"
    option("--store", default="", help=where)


def add_selection(parser: argparse.ArgumentParser, repeats: int = 1) -> None:
    """Add the options that say which notebooks run, on what, and how often."""
    option = parser.add_argument
    option("--profile", default="quick", help="smoke, quick or article (default: quick)")
    option("--device", default="auto", help="auto (every device here), cpu, gpu, cuda or mps")
    option("--only", default="", help="names or globs of notebooks, separated by spaces")
    option(
        "--run",
        default="",
        help="name of the folder in outputs/ (default: a new one, with the date)",
    )
    option("--data", default="auto", help="auto, real or stand-in")
    option(
        "--repeats",
        type=int,
        default=repeats,
        help="how often to run each notebook, in fresh kernels",
    )


def add_store_option(parser: argparse.ArgumentParser) -> None:
    """Add the option of a command that reads runs."""
    parser.add_argument(
        "--store", default="", help="where those runs are looked for that are not in outputs/"
    )


def say(line: str) -> None:
    """Print a line; where nobody reads any more, as behind `| head`, or it has no space, go on in silence."""
    try:
        print(line, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def limit_minutes(options: argparse.Namespace) -> float | None:
    limit = options.limit_minutes
    if limit is not None and not 0 <= limit <= 10_000:
        raise PomologyError(f"--limit-minutes={limit}: must be from 0 to 10000")
    return limit


def request(options: argparse.Namespace):
    """Return the `plan.Asked` of a command that runs notebooks."""
    from pomology.runner.plan import Asked

    return Asked(
        options.profile, options.device, options.only, options.run, options.data, options.repeats
    )


def put_into_store(out: Path, address: str, run: str = "") -> int:
    """Put a run that has come to its end into the store; returns 0, or the exit status for a store that failed. run:
    the name of a fleet's, of which this is a machine's folder."""
    from pomology.runner.plan import GOING

    (out / GOING).parent.mkdir(exist_ok=True)
    (
        out / GOING
    ).touch()  # until it is there, the same command carries on with this run, also tomorrow
    try:
        say(f"put into the store as {extra('store').put(out, address, run)}")
    except (PomologyError, OSError) as error:
        place = f"outputs/{run}-fleet/{out.name}" if run else f"outputs/{out.name}"
        kept = f"the run is in {place}/, and the same command puts it later"
        print(f"pomology: {format.one_line(redact(str(error)), 1000)}; {kept}", file=sys.stderr)
        return 3
    (out / GOING).unlink()
    return 0


def places(variable: str, texts: Sequence[str], address: str) -> list[Path]:
    """Of runs by texts, each of which names one, or several, those with spaces in quotes; address: of a store."""
    from pomology.results.run import find, locate

    there = [text for text in texts if text and (locate(text) or Path(text).exists())]
    try:
        names = [
            name for text in texts for name in ([text] if text in there else shlex.split(text))
        ]
    except ValueError as error:
        raise PomologyError(f"{variable}={' '.join(texts)}: {error}") from None
    named = []
    for name in names:
        if address or "://" in name:
            here = locate(name) or (name and Path(name).exists())
            named.append(name if here else str(extra("store").fetch(name, address)))
        else:
            named.append(name)
    return find(named, variable)


def run_folder(run: str) -> Path:
    """A run's folder: a name in outputs/, or a path."""
    from pomology.results import run as results_run

    place = results_run.locate(run)
    if place is None or not place.is_dir():
        raise results_run.unknown(f"RUN={run}")
    return place
