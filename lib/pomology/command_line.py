"""Options and lookups that the commands of the core and of the extras share."""

import argparse
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pomology.errors import PomologyError
from pomology.paths import in_checkout
from pomology.results.record import PROFILES
from pomology.results.run import find, locate, unknown


def argument(name: str, help: str, default: Any = "", **settings: Any) -> tuple[str, dict]:
    """Return an argument of a command: its name and its options for `add_argument`."""
    return name, {"help": help, "default": default, **settings}


def stated(expected: str) -> Callable[[str], str]:
    """Return a `type` for `argument` that refuses an empty text. expected: such as `a device`.

    The default of such an argument is None, since argparse checks a text.
    """

    def checked(text: str) -> str:
        if not text.strip():
            raise argparse.ArgumentTypeError(f"expected {expected}, not an empty text")
        return text

    return checked


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


def require_checkout(command: str) -> None:
    """Raise PomologyError outside of a checkout, for a command that needs the notebooks."""
    if not in_checkout():
        remedy = "clone the repository, and run the command in its folder after `make env`"
        raise PomologyError(f"{command} needs the notebooks, which are not installed; {remedy}")


def split_names(variable: str, texts: Sequence[str]) -> list[str]:
    """Return names that are separated by spaces, with quotes around a name with spaces."""
    try:
        return shlex.split(" ".join(texts))
    except ValueError as error:
        raise PomologyError(f"{variable}={' '.join(texts)}: {error}") from None


def name_and_kind(text: str) -> tuple[str, str]:
    """Return the name of a run, and `cpu` or `gpu` if it ends in `:cpu` or `:gpu`, else ""."""
    name, _, kind = text.rpartition(":")
    is_kind = bool(name) and kind.lower() in ("cpu", "gpu")
    return (name, kind.lower()) if is_kind else (text, "")


def run_paths(
    variable: str, texts: Sequence[str], address: str, fetch: Callable[[str, str], Path]
) -> list[Path]:
    """Return the paths of runs; fetch those that are not on this machine from a store.

    texts: names of runs, see `split_names`. address, fetch: see `named_paths`.
    """
    return named_paths(variable, split_names(variable, texts), address, fetch)


def named_paths(
    variable: str, names: Sequence[str], address: str, fetch: Callable[[str, str], Path]
) -> list[Path]:
    """Return the paths of runs by their names, see `run_paths`.

    address: of the store. fetch: downloads a run, of its name and this address; `options.fetch` of
    a command.
    """
    local_names = []
    for name in names:
        if (address or "://" in name) and not (locate(name) or Path(name).exists()):
            name = str(fetch(name, address))
        local_names.append(name)
    return find(local_names, variable)


def run_folder(run: str) -> Path:
    """Return the folder of a run that is named by its folder in outputs/ or its path.

    Raises PomologyError for other names, also for that of a zip.
    """
    folder = locate(run)
    if folder is None or not folder.is_dir():
        raise unknown(f"RUN={run}")
    return folder
