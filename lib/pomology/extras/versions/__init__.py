"""Benchmark versions of a package, interleaved: `pomology matrix`."""

import argparse

from pomology.command_line import SELECTION, argument, require_checkout


def _run(options: argparse.Namespace) -> int:
    """Benchmark versions of a package, interleaved."""
    require_checkout("matrix")
    from pomology.extras.versions import matrix

    return matrix.run(options, print)


VERSIONS = argument("--versions", "versions of a package: 'torch==2.13.0 torch==2.14.1'")
COMMANDS = {"matrix": (_run, VERSIONS, *SELECTION)}
