"""Submit a run: say what the collection would say, and write the zip that goes into an issue."""

from __future__ import annotations

import re
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from pomology.errors import PomologyError
from pomology.extras.collection import check, kept, page, shared
from pomology.extras.share import share
from pomology.format import counted
from pomology.machine.snapshot import run_command
from pomology.paths import redact, root
from pomology.results import cases
from pomology.results.run import Run

FORM = "run.yml"  # of .github/ISSUE_TEMPLATE
HOLDS = """\
The zip holds the times, memory, settings and statuses of {cases:,} cases of
{names}; the names of chips, sizes of memory, and versions of this machine.
It holds no name of a person, machine, file or network, and no text but known words.
In the collection it is public, under the license of this repository."""


def submit(folder: Path, yes: bool) -> int:
    """Say whether a run is accepted; write its zip if it is and `yes`, or the person agrees.

    Return the status of the command: 1 if there is no zip to send. A zip that has the same run is
    named, and no second one is written. Raises PomologyError for a run that cannot be accepted,
    before anything is packed.
    """
    run = Run(folder)
    if not run.records:
        raise PomologyError(f"RUN={folder.name}: no finished case; run `make reproduce` first")
    if reasons := check.obstacles(run.machine):
        raise PomologyError(f"RUN={folder.name}: not accepted: {'; '.join(reasons)}")
    collection = root() / "collection"
    name = free_name(run, (collection, folder.resolve().parent))
    with tempfile.TemporaryDirectory() as drafts:
        draft = share.write(folder, target=Path(drafts) / name)
        zips = [*sorted(collection.glob("[!.]*.zip")), draft]
        one = page.checked(zips, collection / kept.FOLDER, [draft])[-1]
        print("\n".join(one.checked.lines()))
        if one.checked.refused:
            print("Nothing was written: the collection would refuse this run.")
            return 1
        print(summary(one))
        written = same_zip(draft, folder.resolve().parent)
        if written:
            print(f"This run is already in {redact(str(written))}, so nothing was written.")
            print(f"Nothing was sent. Attach that zip to the form “Send a run”{_form()}")
            return 0
        print(HOLDS.format(cases=len(run.records), names=", ".join(sorted(run.journals))))
        if not yes and not (sys.stdin.isatty() and input("Write it? [y/N] ") in ("y", "yes")):
            print("nothing was written; the answer y or the option --yes writes it")
            return 1
        target = folder.resolve().parent / name
        # Another command may have written this name meanwhile.
        with target.open("xb") as file:
            file.write(draft.read_bytes())
    print(f"Nothing was sent. Attach {redact(str(target))} to the form “Send a run”{_form()}")
    return 0


def free_name(run: Run, folders: tuple[Path, ...]) -> str:
    """Return a name of chip and date for a run's zip that no folder has: `apple-m4-max-….zip`."""
    chip = cases.chip_word(run.machine.get("chip"))
    stem = f"{chip}-{run.records[0].started[:10]}"
    return next(
        name for name in _numbered(stem) if not any((folder / name).exists() for folder in folders)
    )


def same_zip(draft: Path, folder: Path) -> Path | None:
    """Return the zip of a folder that has the same files as a draft, None without one."""
    written = _files(draft)
    return next(
        (path for path in sorted(folder.glob("[!.]*.zip")) if _files(path) == written), None
    )


def _files(path: Path) -> list[tuple[str, int, int]]:
    """Return the names, sizes and checksums of a zip's files, none of what is no zip.

    The bytes of two zips of a run differ, since a zip has the times at which it was written.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return [(info.filename, info.file_size, info.CRC) for info in archive.infolist()]
    except (OSError, zipfile.BadZipFile):
        return []


def _numbered(stem: str) -> Iterator[str]:
    yield f"{stem}.zip"
    number = 2
    while True:
        yield f"{stem}-{number}.zip"
        number += 1


def summary(one: kept.OneZip) -> str:
    """Return what the pages would show of an accepted run, and its proof, in a line."""
    devices = dict.fromkeys(time.device for time in one.times)
    training = [time for time in one.times if time.experiment != shared.PEAKS]
    count = counted(len(training), "time")
    times = f"{count} of training on {' and '.join(devices)}" if training else "peaks"
    return f"The pages would show {times}; {one.proof.text}."


def _form() -> str:
    """Return where the form is: its address, if the checkout has a remote on GitHub."""
    remote = run_command("git", "-C", str(root()), "remote", "get-url", "origin") or ""
    repository = re.search(r"github\.com[:/]([\w.-]+/[\w.-]+?)(\.git)?$", remote.strip())
    if not repository:
        return " of this repository's issues"
    return f": https://github.com/{repository[1]}/issues/new?template={FORM}"
