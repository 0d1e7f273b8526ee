"""The command line: `pomology reproduce`, `check`, `list`, `report`, and those of the extras.

Exit status 0: all went well; 1: a case ended in `error`, or a notebook did not finish; 2: arguments
or parameters are wrong, said in one line before anything ran; 3: the run is at its end, and the
store did not take it; 130: interrupted.
"""

import argparse
import contextlib
import errno
import sys

from pomology import __version__, command_line, extras, format
from pomology.command_line import Command, extra, say
from pomology.errors import PomologyError
from pomology.paths import redact

# Each command imports what it needs, so that help and wrong arguments are answered at once.


class _Parser(argparse.ArgumentParser):
    """Says what is wrong with arguments in one line."""

    def error(self, message: str):
        raise PomologyError(f"{self.prog}: {message}")


def _reproduce_arguments(parser: argparse.ArgumentParser) -> None:
    command_line.add_run_options(parser)
    minutes = "choose notebooks so that the run ends in this time (with the profile quick)"
    parser.add_argument("--minutes", default="", help=minutes)


def _report_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", help="name of the folder in outputs/")
    beside = "other people's runs, shown next to it: names in outputs/, folders, or shared zips"
    parser.add_argument("--with", nargs="+", default=(), dest="beside", metavar="RUN", help=beside)
    command_line.add_store_option(parser)


def _reproduce(options: argparse.Namespace) -> int:
    from pomology.runner import plan

    minutes = plan.minutes_of(options.minutes, options.profile)
    out, jobs = plan.prepare(command_line.request(options))
    for line in plan.left_out(options.only):
        say(line)
    if options.store:
        extra("store").check(options.store)
    from pomology.machine import quiet
    from pomology.runner import batch

    limit = options.limit_minutes
    # The profile smoke measures nothing that counts: it waits for nobody.
    with quiet.alone(say) if options.profile != "smoke" else contextlib.nullcontext():
        status = batch.reproduce(out, jobs, options.profile, limit, say=say, minutes=minutes)
    if options.store and status != 130:
        status = command_line.put_into_store(out, options.store) or status
    return status


def _check(options: argparse.Namespace) -> None:
    from pomology.runner import plan

    say(f"{len(plan.check())} notebooks and their parameters are as they should be")


def _list(options: argparse.Namespace) -> None:
    from pomology.results.record import PROFILES
    from pomology.runner import notebooks

    for each in notebooks.notebooks():
        times = [f"{name} {format.clock_time(each.seconds(name))}" for name in PROFILES]
        say(f"{each.name:20} {each.title} ({', '.join(times)})")


def _report(options: argparse.Namespace) -> None:
    folder = command_line.run_folder(options.run)
    from pomology.report import page

    say(page.build(folder, command_line.places("WITH", options.beside, options.store)))


CORE = {
    "reproduce": Command(
        "run every notebook and build the page of results", _reproduce_arguments, _reproduce
    ),
    "check": Command(
        "validate every notebook and parameter file; run nothing", command_line.no_arguments, _check
    ),
    "list": Command("the notebooks", command_line.no_arguments, _list),
    "report": Command("build the page of a run again", _report_arguments, _report),
}


def commands() -> dict[str, Command]:
    """Return the commands of the core, and of every extra that is there."""
    found = dict(CORE)
    for name in extras.names():
        found |= getattr(extra(name), "COMMANDS", {})
    return found


def _arguments(arguments: list[str] | None) -> argparse.Namespace:
    """Return the arguments with their command's function as `run`."""
    parser = _Parser(
        prog="pomology", description="How fast does this machine train neural networks, and why?"
    )
    parser.add_argument("--version", action="version", version=f"pomology {__version__}")
    parsers = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=_Parser)
    for name, command in commands().items():
        subparser = parsers.add_parser(name, help=command.help)
        subparser.set_defaults(run_command=command.run)
        command.add_arguments(subparser)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Run a command; return the exit status."""
    if hasattr(sys.stdout, "reconfigure"):  # a terminal without a sign must not cost a line
        sys.stdout.reconfigure(errors="replace")
    try:
        options = _arguments(arguments)
        return options.run_command(options) or 0
    except PomologyError as error:
        text = str(error)
        status = 2
    except OSError as error:  # a full disk, a folder that may not be written
        text = f"{error.strerror or error}: {redact(str(error.filename or ''))}".rstrip(": ")
        status = 2 if error.errno == errno.ENAMETOOLONG else 1
    except KeyboardInterrupt:
        text = "interrupted"
        status = 130
    print("pomology:", format.one_line(" ".join(text.split()), 1000), file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
