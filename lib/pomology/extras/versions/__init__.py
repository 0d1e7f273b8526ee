"""Compare versions of a package, measured in turn: `pomology matrix`."""

import argparse

from pomology.command_line import Command, request, say


def _arguments(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    option("--versions", default="", help="as 'torch==2.13.0 torch==2.14.1'")
    option("--profile", default="quick", help="smoke, quick or article (default: quick)")
    option("--device", default="auto", help="auto (every device), cpu, gpu, cuda or mps")
    option("--only", default="", help="names or globs of notebooks, separated by spaces")
    option("--run", default="", help="the folder in outputs/ (default: date and package)")
    option("--data", default="auto", help="auto, real or stand-in")
    option("--repeats", type=int, default=5, help="runs of each notebook with each version")


def _run(options: argparse.Namespace) -> int:
    from pomology.extras.versions import matrix

    return matrix.run(options.versions, request(options), say)


COMMANDS = {"matrix": Command("compare versions of a package, measured in turn", _arguments, _run)}
