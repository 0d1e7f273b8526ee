"""Compare versions of a package, measured in turn: `pomology matrix`."""

import argparse

from pomology.command_line import SELECTION, Command, argument, request, say


def _run(options: argparse.Namespace) -> int:
    from pomology.extras.versions import matrix

    return matrix.run(options.versions, request(options), say)


VERSIONS = argument("--versions", "as 'torch==2.13.0 torch==2.14.1'")
HELP = "compare versions of a package, measured in turn"
COMMANDS = {"matrix": Command(HELP, _run, (VERSIONS, *SELECTION))}
