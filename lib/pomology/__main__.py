"""The command line: `pomology reproduce`, `check`, `list`, `report`, and those of the extras.

Exit status 0: all went well; 1: a case ended in `error`, or a notebook did not finish; 2: an
argument or a parameter is wrong, or the store fails, said in one line; 130: interrupted.
"""

import argparse
import sys

from pomology import __version__, command_line, extras, format
from pomology.command_line import Command, argument, extra, say
from pomology.errors import PomologyError

# Each command imports what it needs, so that help and wrong arguments are answered at once.


class _Parser(argparse.ArgumentParser):
    """Says what is wrong with arguments in one line."""

    def error(self, message: str):
        raise PomologyError(f"{self.prog}: {message}")


def _reproduce(options: argparse.Namespace) -> int:
    from pomology.runner import plan

    minutes = plan.minutes_of(options.minutes, options.profile)
    out, jobs = plan.prepare(command_line.request(options))
    for line in plan.left_out(options.only):
        say(line)
    if options.store:
        extra("store").check(options.store)
    from pomology.runner import batch

    limit = options.limit_minutes
    status = batch.reproduce(out, jobs, options.profile, limit, say=say, minutes=minutes)
    if options.store and status != 130:
        say(f"put into the store as {extra('store').put(out, options.store)}")
    return status


def _check(_: argparse.Namespace) -> None:
    from pomology.runner import plan

    say(f"{len(plan.check())} notebooks and their parameters are as they should be")


def _list(_: argparse.Namespace) -> None:
    from pomology.results.record import PROFILES
    from pomology.runner import notebooks

    for each in notebooks.notebooks():
        times = [f"{name} {format.clock_time(each.seconds(name))}" for name in PROFILES]
        say(f"{each.name:20} {each.title} ({', '.join(times)})")


def _report(options: argparse.Namespace) -> None:
    folder = command_line.run_folder(options.run)
    from pomology.report import page

    say(page.build(folder, command_line.places("WITH", options.beside, options.store)))


MINUTES = argument("--minutes", "choose notebooks that end in this time (with the profile quick)")
BESIDE = "other people's runs, shown next to it: names in outputs/, folders, or shared zips"
WITH = argument("--with", BESIDE, (), nargs="+", dest="beside", metavar="RUN")
REPRODUCE = (*command_line.SELECTION, command_line.LIMIT, command_line.STORE, MINUTES)
REPORT = (command_line.RUN, WITH, command_line.STORE)
CORE = {
    "reproduce": Command("run every notebook and build the page of results", _reproduce, REPRODUCE),
    "check": Command("validate every notebook and parameter file; run nothing", _check),
    "list": Command("the notebooks", _list),
    "report": Command("build the page of a run again", _report, REPORT),
}


def _arguments(arguments: list[str] | None) -> argparse.Namespace:
    """Return the arguments with their command's function as `run_command`."""
    parser = _Parser(
        prog="pomology", description="How fast does this machine train neural networks, and why?"
    )
    parser.add_argument("--version", action="version", version=f"pomology {__version__}")
    parsers = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=_Parser)
    commands = dict(CORE)
    for name in extras.names():
        commands |= getattr(extra(name), "COMMANDS", {})
    for name, command in commands.items():
        subparser = parsers.add_parser(name, help=command.help)
        subparser.set_defaults(run_command=command.run)
        for option, settings in command.arguments:
            subparser.add_argument(option, **settings)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Run a command; return the exit status."""
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
