"""Pack a run into a zip for others, without what names its owner: `pomology share`."""

import argparse

from pomology.command_line import Command, run_folder, say
from pomology.paths import redact


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", help="name of the folder in outputs/")
    parser.add_argument(
        "--notebooks", action="store_true", help="with the rendered notebooks, as they are"
    )


def _run(options: argparse.Namespace) -> None:
    folder = run_folder(options.run)
    from pomology.extras.share import share

    place = share.write(folder, options.notebooks)
    say(f"{redact(str(place))} ({place.stat().st_size / 2**20:.1f} MB)")


COMMANDS = {"share": Command("pack the numbers of a run into a zip for others", _arguments, _run)}
