"""Benchmark versions of a package, interleaved: `pomology matrix`."""

import argparse

from pomology.command_line import SELECTION, argument, require_checkout


def _run(options: argparse.Namespace) -> int:
    """Benchmark versions of a package, interleaved."""
    require_checkout("matrix")
    from pomology.extras.versions import matrix

    return matrix.run(options, print)


VERSIONS = argument("--versions", "versions of a package: 'torch==2.13.0 torch==2.14.1'")
# One repeat, the default of the other commands, cannot be compared.
TIMES = "times to run each notebook with each version, in a fresh process (default: 5)"
REPEATS = argument("--repeats", TIMES, 5, type=int)
OTHERS = (option for option in SELECTION if option[0] != REPEATS[0])
COMMANDS = {"matrix": (_run, VERSIONS, *OTHERS, REPEATS)}
