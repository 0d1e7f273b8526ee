"""Export a run as an anonymized zip: `pomology share`."""

import argparse

from pomology.command_line import RUN, argument, run_folder
from pomology.paths import redact


def _run(options: argparse.Namespace) -> None:
    """Export the numbers of a run as an anonymized zip."""
    folder = run_folder(options.run)
    from pomology.extras.share import share

    place = share.write(folder, options.notebooks)
    print(f"{redact(str(place))} ({place.stat().st_size / 2**20:.1f} MB)")


NOTEBOOKS = argument("--notebooks", "add the rendered notebooks", False, action="store_true")
COMMANDS = {"share": (_run, RUN, NOTEBOOKS)}
