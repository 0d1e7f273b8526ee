"""The collection of shared runs: `pomology submit`, `pomology check-zip`, `pomology collect`."""

import argparse
import os
import re
import sys
from pathlib import Path

from pomology.command_line import RUN, argument, require_checkout, run_folder
from pomology.errors import PomologyError
from pomology.machine.snapshot import run_command
from pomology.paths import redact, root

HOLDS = """\
The zip holds the times, memory, settings and statuses of {cases:,} cases of
{names}; the names of chips, sizes of memory, and versions of this machine.
It holds no name of a person, machine, file or network, and no text but known words.
In the collection it is public, under the license of this repository."""


def _check_zip(options: argparse.Namespace) -> int:
    """Check shared runs by their own numbers, the reference run and the collection."""
    from pomology.extras.collection import page

    asked = list(dict.fromkeys(Path(os.path.realpath(name)) for name in options.files))
    for path in asked:
        if not path.is_file():
            raise PomologyError(f"{redact(str(path))}: not a file; expected the zip of a run")
    zips = (root() / "collection").glob("[!.]*.zip")
    collected = {Path(os.path.realpath(path)) for path in zips}
    # A copy is told of the later run, so those of the collection come first.
    checked = page.checked([*sorted(collected.difference(asked)), *asked])[-len(asked) :]
    print("\n".join(line for one, _ in checked for line in one.lines()))
    return int(any(one.refused for one, _ in checked))


def _collect(options: argparse.Namespace) -> int:
    """Check all zips of the collection and build its page."""
    require_checkout("collect")
    from pomology.extras.collection import page

    folder = Path(options.folder or root() / "collection")
    if not folder.is_dir():
        raise PomologyError(f"{redact(str(folder))}: no such folder; expected one of shared zips")
    lines = page.build(folder)
    print("\n".join(lines), redact(str(folder / "index.html")), sep="\n")
    return int(any(": refused: " in line for line in lines))


def _submit(options: argparse.Namespace) -> int:
    """Show what the zip of a run holds, and write it for an issue; nothing is sent."""
    require_checkout("submit")
    folder = run_folder(options.run)
    from pomology.extras.collection import check

    run = check.Run(folder)
    if reasons := check.obstacles(run.machine):
        raise PomologyError(f"RUN={folder.name}: not accepted: {'; '.join(reasons)}")
    print(HOLDS.format(cases=len(run.records), names=", ".join(sorted(run.journals))))
    if not options.yes and not (sys.stdin.isatty() and input("Write it? [y/N] ") in ("y", "yes")):
        print("nothing was written; the answer y or the option --yes writes it")
        return 1
    name = f"{check.cases.chip_word(run.machine['chip'])}-{run.records[0].started[:10]}.zip"
    packed = check.share.write(folder).rename(folder.resolve().parent / name)
    one = check.check(packed)
    print("\n".join(one.lines()))
    remote = run_command("git", "-C", str(root()), "remote", "get-url", "origin") or ""
    repository = re.search(r"github\.com[:/]([\w.-]+/[\w.-]+?)(\.git)?$", remote.strip())
    page = (
        f": https://github.com/{repository[1]}/issues/new" if repository else " of this repository"
    )
    print(f"Nothing was sent. Attach {redact(str(packed))} to a new issue{page}")
    return int(one.refused)


FILES = argument("files", "zips of shared runs", nargs="+", metavar="FILE")
FOLDER = argument("--folder", "folder of the zips (default: collection/)")
YES = argument("--yes", "write the zip without asking", False, action="store_true")
COMMANDS = {
    "check-zip": (_check_zip, FILES),
    "collect": (_collect, FOLDER),
    "submit": (_submit, RUN, YES),
}
