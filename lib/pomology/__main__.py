"""The command line: `pomology reproduce`, `check`, `list`, `report`, and the commands of the extras.

Exit status 0: all went well; 1: a case ended in `error`, or a notebook did not finish; 2: arguments or parameters are
wrong, said in one line before anything ran; 3: the run is at its end, and the store did not take it; 130: interrupted.
"""

import argparse
import contextlib
import errno
import os
import sys

from pomology import __version__, extras, format
from pomology.command_line import (
    Command,
    add_run_options,
    add_store_option,
    extra,
    limit_minutes,
    places,
    put_into_store,
    request,
    run_folder,
    say,
)
from pomology.errors import PomologyError
from pomology.paths import foreign_paths, redact

# Each command imports what it needs, so that help and wrong arguments are answered before much is loaded.


class _Parser(argparse.ArgumentParser):
    """Says what is wrong with arguments in one line."""

    def error(self, message: str):
        raise PomologyError(f"{self.prog}: {message}")


def _reproduce_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_options(parser)
    minutes = "choose notebooks so that the run ends in this time (with the profile quick)"
    parser.add_argument("--minutes", default="", help=minutes)


def _report_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", help="name of the folder in outputs/")
    beside = "other people's runs, shown next to it: names in outputs/, folders, or shared zips"
    parser.add_argument("--with", nargs="+", default=(), dest="beside", metavar="RUN", help=beside)
    add_store_option(parser)


def _no_arguments(parser: argparse.ArgumentParser) -> None:
    """Add nothing."""


def _reproduce(options: argparse.Namespace) -> int:
    from pomology.runner import plan

    limit = limit_minutes(options)
    minutes = plan.minutes_of(options.minutes, options.profile)
    out, jobs = plan.prepare(request(options))
    for line in plan.left_out(options.only):
        say(line)
    if options.store:
        extra("store").check(options.store)
    from pomology.machine import quiet
    from pomology.runner import batch

    # The profile smoke measures nothing that counts: it waits for nobody.
    with quiet.alone(say) if options.profile != "smoke" else contextlib.nullcontext():
        status = batch.reproduce(out, jobs, options.profile, limit, say=say, minutes=minutes)
    if options.store and status != 130:
        status = put_into_store(out, options.store) or status
    return status


def _check(options: argparse.Namespace) -> None:
    from pomology.runner import plan

    say(f"{len(plan.check())} notebooks and their parameters are as they should be")


def _list(options: argparse.Namespace) -> None:
    from pomology.results.record import PROFILES
    from pomology.runner import notebooks

    for notebook in notebooks.notebooks():
        about = [
            f"{name} {format.clock_time(notebook.seconds[name])}"
            for name in PROFILES
            if name in notebook.seconds
        ]
        say(f"{notebook.name:20} {notebook.title} ({', '.join(about)})")


def _report(options: argparse.Namespace) -> None:
    folder = run_folder(options.run)
    from pomology.report import page

    say(page.build(folder, places("WITH", options.beside, options.store)))


CORE = {
    "reproduce": Command(
        "run every notebook and build the page of results", _reproduce_arguments, _reproduce
    ),
    "check": Command(
        "validate every notebook and parameter file; run nothing", _no_arguments, _check
    ),
    "list": Command("the notebooks", _no_arguments, _list),
    "report": Command("build the page of a run again", _report_arguments, _report),
}


def commands() -> dict[str, Command]:
    """Return the commands of the core, and of every extra that is there."""
    found = dict(CORE)
    for name in extras.names():
        found |= getattr(extra(name), "COMMANDS", {})
    return found


def _arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = _Parser(
        prog="pomology", description="How fast does this machine train neural networks, and why?"
    )
    parser.add_argument("--version", action="version", version=f"pomology {__version__}")
    parsers = parser.add_subparsers(
        dest="command", required=True, metavar="COMMAND", parser_class=_Parser
    )
    for name, command in commands().items():
        command.add_arguments(parsers.add_parser(name, help=command.help))
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    if hasattr(sys.stdout, "reconfigure"):  # a terminal without a sign must not cost a line
        sys.stdout.reconfigure(errors="replace")
    try:
        options = _arguments(arguments)
        return commands()[options.command].run(options) or 0
    except PomologyError as error:
        print(
            "pomology:", format.one_line(" ".join(str(error).splitlines()), 1000), file=sys.stderr
        )
        return 2
    except OSError as error:  # a full disk, a folder that may not be written
        where = format.one_line(redact(str(error.filename or "")), 300)
        print(f"pomology: {error.strerror or error}: {where}".rstrip(": "), file=sys.stderr)
        return 2 if error.errno == errno.ENAMETOOLONG else 1
    except KeyboardInterrupt:
        print("pomology: interrupted", file=sys.stderr)
        return 130


def run() -> int:
    """Run the command of this process, without packages that PYTHONPATH takes from other environments."""
    foreign = foreign_paths()
    if foreign:
        entries = os.environ["PYTHONPATH"].split(os.pathsep)
        os.environ["PYTHONPATH"] = os.pathsep.join(
            entry for entry in entries if entry not in foreign
        )
        os.execv(sys.executable, [sys.executable, "-m", "pomology", *sys.argv[1:]])
    return main()


if __name__ == "__main__":
    sys.exit(run())
