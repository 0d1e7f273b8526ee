"""The command line: `pomology reproduce`, `check`, `list`, `report`, and the extras' commands.

Exit status 0: success; 1: a case ended in `error`, a notebook did not finish, or the disk is full;
2: a wrong argument or parameter, or a store that fails, with one line on stderr; 130: interrupted.
"""

import argparse
import math
import os
import signal
import sys

from pomology import __version__, extras, format
from pomology.command_line import RUN, SELECTION, STORE, argument, extra, places, run_folder
from pomology.errors import PomologyError
from pomology.paths import redact
from pomology.results.record import PROFILES
from pomology.runner import notebooks, plan

# Each command imports its slow modules itself.


class _Parser(argparse.ArgumentParser):
    """An argument parser that raises PomologyError, for an error in one line."""

    def error(self, message: str):
        raise PomologyError(f"{message}; see `{self.prog} --help`")


def _reproduce(options: argparse.Namespace) -> int:
    """Run all notebooks on this machine and build the report."""
    minutes = options.minutes
    if minutes and not (3 <= minutes <= 120 and options.profile == "quick"):
        raise PomologyError(f"MINUTES={minutes}: expected 3 to 120, with PROFILE=quick")
    out, jobs = plan.prepare(options, options.run)
    if options.store:
        extra("store").check(options.store)
    notes = extra("doctor").obstacles_here(options.profile) if "doctor" in extras.names() else []
    from pomology.runner import batch

    limit = options.limit_minutes
    status = batch.reproduce(out, jobs, options.profile, limit, minutes or math.inf, notes)
    if options.store and status != 130:
        print(f"stored the run as {extra('store').put(out, options.store)}")
    return status


def _check(_: argparse.Namespace) -> None:
    """Validate all notebooks and parameter files without running them."""
    print(f"{plan.check()} notebooks and their parameter files are valid")


def _list(_: argparse.Namespace) -> None:
    """List all notebooks with their titles and times."""
    for each in notebooks.select():
        times = [f"{name} {format.clock_time(each.seconds(name))}" for name in PROFILES]
        print(f"{each.name:20} {each.title} ({', '.join(times)})")


def _report(options: argparse.Namespace) -> None:
    """Rebuild the report of a run."""
    folder = run_folder(options.run)
    from pomology.report import page

    print(page.build(folder, places("WITH", options.others, options.store)))


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
    about = "Reproducible training benchmarks for Apple Silicon, NVIDIA GPUs and CPUs."
    parser = _Parser(prog="pomology", description=about)
    parser.add_argument("--version", action="version", version=f"pomology {__version__}")
    parsers = parser.add_subparsers(required=True, metavar="COMMAND")
    commands = dict(CORE)
    for name in extras.names():
        commands |= getattr(extra(name), "COMMANDS", {})
    for name, (run_command, *options) in commands.items():
        subparser = parsers.add_parser(name, help=run_command.__doc__)
        subparser.set_defaults(run_command=run_command)
        for option, settings in options:
            subparser.add_argument(option, **settings)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Run a command and return its exit status."""
    sys.stdout.reconfigure(line_buffering=True, errors="replace")  # shows progress in a pipe, too
    try:
        options = _arguments(arguments)
        return options.run_command(options) or 0
    except PomologyError as error:
        line = format.one_line(" ".join(str(error).split()), 1000)
        print(f"pomology: {line}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader of a pipe, such as head, has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except OSError as error:  # for example a full disk
        line = format.one_line(redact(str(error)), 1000)
        print(f"pomology: {line}; finished results remain in outputs/", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("pomology: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
