"""The command line: `pomology reproduce`, `check`, `list`, `report`, and the extras' commands.

Exit status 0: success; 1: a case ended in `error`, a notebook did not finish, or the disk is full;
2: a wrong argument or parameter, or a store that fails, with one line on stderr; 130: interrupted;
141: nobody reads the output.
"""

import argparse
import math
import os
import signal
import sys
from pathlib import Path
from typing import Any

from pomology import __version__, extras, format
from pomology.command_line import (
    RUN,
    SELECTION,
    STORE,
    argument,
    require_checkout,
    run_folder,
    run_paths,
)
from pomology.errors import PomologyError
from pomology.paths import redact
from pomology.results.record import PROFILES
from pomology.runner import notebooks, plan

# Each command imports its slow modules itself.


UNREAD = 128 + signal.SIGPIPE  # the status of a program that SIGPIPE ends


class _Parser(argparse.ArgumentParser):
    """An argument parser that raises PomologyError, for an error in one line."""

    def error(self, message: str):
        raise PomologyError(f"{message}; see `{self.prog} --help`")


def _reproduce(options: argparse.Namespace) -> int:
    """Run all notebooks on this machine and build the report."""
    require_checkout("reproduce")
    minutes = options.minutes
    if minutes and not (3 <= minutes <= 120 and options.profile == "quick"):
        raise PomologyError(f"MINUTES={minutes}: expected 3 to 120, with PROFILE=quick")
    out, jobs = plan.prepare(options, options.run)
    if options.store:
        from pomology.extras.store import check, put

        check(options.store)
    from pomology.runner import batch

    limit = options.limit_minutes
    status = batch.reproduce(out, jobs, options.profile, limit, minutes or math.inf)
    if options.store and status != 130:
        print(f"stored the run as {put(out, options.store)}")
    return status


def _check(_: argparse.Namespace) -> None:
    """Validate all notebooks and parameter files without running them."""
    require_checkout("check")
    print(f"{plan.check()} notebooks and their parameter files are valid")


def _list(_: argparse.Namespace) -> None:
    """List all notebooks with their titles and times."""
    for row in notebooks.listed():
        times = [f"{name} {format.clock_time(float(row[name]))}" for name in PROFILES]
        print(f"{row['name']:20} {row['title']} ({', '.join(times)})")


def _report(options: argparse.Namespace) -> None:
    """Rebuild the report of a run."""
    require_checkout("report")
    folder = run_folder(options.run)
    from pomology.report import page

    others = run_paths("WITH", options.others, options.store, options.fetch)
    print(page.build(folder, others, told=True))


def _fetch(run: str, address: str) -> Path:
    """Download a run from a store; return the path of its zip."""
    from pomology.extras.store import fetch

    return fetch(run, address)


def _fit_command(*words: str) -> str:
    """Return the command of `fit` for a model, batch size and length, or "" for no model."""
    if "fit" not in extras.names():
        return ""
    from pomology.extras.fit import instead

    return instead(*words)


def _obstacles(machine: dict[str, Any]) -> list[str]:
    """Return why `submit` refuses a run; there is no `submit` without the doctor."""
    if "doctor" not in extras.names():
        return []
    from pomology.extras.doctor import obstacles

    return obstacles(machine)


# What a command may need of an extra that its own package does not import, as options.
SERVICES = {"fetch": _fetch, "fit_command": _fit_command, "obstacles": _obstacles}
LIMIT = argument("--limit-minutes", "time limit of each notebook; 0: none", None, type=float)
MINUTES = argument("--minutes", "time limit of the run: 3 to 120 minutes awake", 0, type=int)
OTHERS = "other runs to show next to it: names in outputs/, folders, or shared zips"
WITH = argument("--with", OTHERS, (), nargs="+", dest="others", metavar="RUN")
CORE = {
    "reproduce": (_reproduce, *SELECTION, LIMIT, MINUTES, STORE),
    "check": (_check,),
    "list": (_list,),
    "report": (_report, RUN, WITH, STORE),
}


def _arguments(arguments: list[str] | None) -> argparse.Namespace:
    """Return the arguments with their command's function as `run_command`."""
    description = "Reproducible training benchmarks for Apple Silicon, NVIDIA GPUs and CPUs."
    parser = _Parser(prog="pomology", description=description)
    parser.add_argument("--version", action="version", version=f"pomology {__version__}")
    parsers = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, (run_command, *options) in (CORE | extras.commands()).items():
        subparser = parsers.add_parser(name, help=run_command.__doc__)
        subparser.set_defaults(run_command=run_command, **SERVICES)
        for option, settings in options:
            subparser.add_argument(option, **settings)
    return parser.parse_args(arguments)


def _missing(error: ImportError) -> str:
    """Return the line for a command whose package is not installed, or whose extra was removed.

    Where git leaves `__pycache__` in the folder of an extra, Python imports it without its names.
    """
    module = (error.name or "").split(".")
    if module[:2] == ["pomology", "extras"] and module[2:3] and module[2] not in extras.names():
        return f"lib/pomology/extras/{module[2]}/ is missing; restore it"
    if not isinstance(error, ModuleNotFoundError):
        raise error
    package = (error.name or "a package").partition(".")[0]
    install = "`make env` in a checkout installs it, or `pip install '.[run]'` there"
    return f"{package}, which this command needs, is not installed; {install}"


def _run(arguments: list[str] | None) -> int:
    """Run a command and return its exit status; an error is one line on stderr."""
    try:
        try:
            options = _arguments(arguments)
            return options.run_command(options) or 0
        finally:  # also where argparse exits after its help
            sys.stdout.flush()
    except ImportError as error:
        print(f"pomology: {_missing(error)}", file=sys.stderr)
        return 2
    except PomologyError as error:
        line = format.one_line(" ".join(str(error).split()), 1000)
        print(f"pomology: {line}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader of a pipe, such as head, has ended
        return UNREAD
    except OSError as error:  # for example a full disk
        line = format.one_line(redact(str(error)), 1000)
        print(f"pomology: {line}; finished results remain in outputs/", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("pomology: interrupted", file=sys.stderr)
        return 130


def main(arguments: list[str] | None = None) -> int:
    """Run a command and return its exit status."""
    if sys.stdout is None:  # the shell has closed it, with `>&-`
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    sys.stdout.reconfigure(line_buffering=True, errors="replace")  # shows progress in a pipe, too
    try:
        return _run(arguments)
    except BrokenPipeError:  # nobody reads the line on stderr
        return UNREAD
    finally:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except OSError:  # Python would try once more at its end, and print a traceback
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


if __name__ == "__main__":
    sys.exit(main())
