"""Compare versions of a package, measured in turn: `pomology matrix`."""

import argparse

from pomology.command_line import Command, add_selection, request, say


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--versions", default="", help="as 'torch==2.13.0 torch==2.14.1'")
    add_selection(parser, repeats=5)


def _run(options: argparse.Namespace) -> int:
    from pomology.extras.versions import matrix

    return matrix.run(options.versions, request(options), say)


COMMANDS = {"matrix": Command("compare versions of a package, measured in turn", _arguments, _run)}
