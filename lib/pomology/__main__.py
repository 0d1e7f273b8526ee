"""The command line: `pomology reproduce`, `check`, `list`, `report`, and those of the extras.

Exit status 0: all went well; 1: a case ended in `error`, or a notebook did not finish; 2: an
argument or a parameter is wrong, or the store fails, said in one line; 130: interrupted.
"""

import argparse
import math
import sys

from pomology import __version__, extras, format
from pomology.command_line import RUN, SELECTION, STORE, argument, extra, places, run_folder
from pomology.errors import PomologyError
from pomology.results.record import PROFILES
from pomology.runner import notebooks, plan

# What takes long to import is imported by the command that needs it.


class _Parser(argparse.ArgumentParser):
    """Says what is wrong with arguments in one line."""

    def error(self, message: str):
        raise PomologyError(f"{self.prog}: {message}")


def _reproduce(options: argparse.Namespace) -> int:
    """Run every notebook and build the page of results."""
    minutes = options.minutes
    if minutes and not (3 <= minutes <= 120 and options.profile == "quick"):
        raise PomologyError(f"MINUTES={minutes}: must be from 3 to 120, and PROFILE=quick")
    out, jobs = plan.prepare(options, options.run)
    if options.store:
        extra("store").check(options.store)
    from pomology.runner import batch

    limit = options.limit_minutes
    status = batch.reproduce(out, jobs, options.profile, limit, minutes or math.inf)
    if options.store and status != 130:
        print(f"put into the store as {extra('store').put(out, options.store)}")
    return status


def _check(_: argparse.Namespace) -> None:
    """Validate every notebook and parameter file; run nothing."""
    print(f"{plan.check()} notebooks and their parameters are as they should be")


def _list(_: argparse.Namespace) -> None:
    """List the notebooks."""
    for each in notebooks.notebooks():
        times = [f"{name} {format.clock_time(each.seconds(name))}" for name in PROFILES]
        print(f"{each.name:20} {each.title} ({', '.join(times)})")


def _report(options: argparse.Namespace) -> None:
    """Build the page of a run again."""
    folder = run_folder(options.run)
    from pomology.report import page

    print(page.build(folder, places("WITH", options.beside, options.store)))


LIMIT = argument("--limit-minutes", "time limit of one notebook (0: none)", None, type=float)
FITS = argument("--minutes", "only what fits this time (with the profile quick)", 0, type=int)
BESIDE = "other people's runs, shown next to it: names in outputs/, folders, or shared zips"
WITH = argument("--with", BESIDE, (), nargs="+", dest="beside", metavar="RUN")
CORE = {
    "reproduce": (_reproduce, *SELECTION, LIMIT, FITS, STORE),
    "check": (_check,),
    "list": (_list,),
    "report": (_report, RUN, WITH, STORE),
}


def _arguments(arguments: list[str] | None) -> argparse.Namespace:
    """Return the arguments with their command's function as `run_command`."""
    about = "How fast does this machine train neural networks, and why?"
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
    """Run a command; return the exit status."""
    sys.stdout.reconfigure(line_buffering=True)  # a line is seen at once, also through a pipe
    try:
        options = _arguments(arguments)
        return options.run_command(options) or 0
    except PomologyError as error:
        line = format.one_line(" ".join(str(error).split()), 1000)
        print(f"pomology: {line}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("pomology: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
