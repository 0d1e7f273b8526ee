"""The collection of shared runs: `pomology submit`, `pomology check-zip`, `pomology collect`."""

import argparse
import os
from pathlib import Path

from pomology.command_line import RUN, argument, require_checkout, run_folder
from pomology.errors import PomologyError
from pomology.paths import redact, root


def _check_zip(options: argparse.Namespace) -> int:
    """Check shared runs by their own numbers, the reference run and the collection."""
    from pomology.extras.collection import kept, page

    asked = list(dict.fromkeys(Path(os.path.realpath(name)) for name in options.files))
    for path in asked:
        if not path.is_file():
            raise PomologyError(f"{redact(str(path))}: not a file; expected the zip of a run")
    zips = (root() / "collection").glob("[!.]*.zip")
    collected = {Path(os.path.realpath(path)) for path in zips}
    # A copy is told of the later run, so those of the collection come first.
    paths = [*sorted(collected.difference(asked)), *asked]
    folder = root() / "collection" / kept.FOLDER
    checked = [one.checked for one in page.checked(paths, folder, asked)[-len(asked) :]]
    print("\n".join(line for one in checked for line in one.lines()))
    return int(any(one.refused for one in checked))


def _collect(options: argparse.Namespace) -> int:
    """Check all zips of the collection, and build the pages of devices."""
    require_checkout("collect")
    from pomology.extras.collection import page

    folder = Path(options.folder or root() / "collection")
    if not folder.is_dir():
        raise PomologyError(f"{redact(str(folder))}: no such folder; expected one of shared zips")
    own = run_folder(options.run) if options.run else None
    out = Path(options.out or folder)
    lines = page.build(folder, out, own)
    print("\n".join(lines), redact(str(out / "index.html")), sep="\n")
    return int(any(": refused: " in line for line in lines))


def _submit(options: argparse.Namespace) -> int:
    """Say whether the collection accepts a run, and write its zip for an issue; nothing is sent."""
    require_checkout("submit")
    folder = run_folder(options.run)
    from pomology.extras.collection import submit

    return submit.submit(folder, options.yes)


FILES = argument("files", "zips of shared runs", nargs="+", metavar="FILE")
FOLDER = argument("--folder", "folder of the zips (default: collection/)")
OUT = argument("--out", "folder for the pages (default: that of the zips)")
OWN = argument("--run", "a run of this machine, shown next to the others, not checked")
YES = argument("--yes", "write the zip without asking", False, action="store_true")
COMMANDS = {
    "check-zip": (_check_zip, FILES),
    "collect": (_collect, FOLDER, OUT, OWN),
    "submit": (_submit, RUN, YES),
}
