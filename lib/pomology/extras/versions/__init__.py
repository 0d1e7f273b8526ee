"""Compare versions of a package, measured in turn: `pomology matrix`."""

import argparse

from pomology.command_line import Command, request, say


def _arguments(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    option("--versions", default="", help="two or more of one package, as 'torch==2.13.0 torch==2.14.1'")
    for name, text in (("profile", "quick"), ("device", "auto"), ("only", ""), ("run", ""), ("data", "auto")):
        option(f"--{name}", default=text, help="as of reproduce")
    option("--repeats", type=int, default=5, help="how often to run each notebook with each version (default: 5)")


def _run(options: argparse.Namespace) -> int:
    from pomology.extras.versions import matrix

    return matrix.run(options.versions, request(options), say)


COMMANDS = {"matrix": Command("compare versions of a package, measured in turn", _arguments, _run)}
