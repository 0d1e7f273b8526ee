"""Compare versions of a package, measured in turn: `pomology matrix`."""

import argparse

from pomology.command_line import SELECTION, argument


def _run(options: argparse.Namespace) -> int:
    """Compare versions of a package, measured in turn."""
    from pomology.extras.versions import matrix

    return matrix.run(options, print)


VERSIONS = argument("--versions", "as 'torch==2.13.0 torch==2.14.1'")
COMMANDS = {"matrix": (_run, VERSIONS, *SELECTION)}
