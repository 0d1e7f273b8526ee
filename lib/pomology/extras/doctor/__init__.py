"""Diagnose a machine, and what keeps its runs from the collection: `pomology doctor`."""

import argparse
import functools
import re
from datetime import datetime
from typing import Any

from pomology.command_line import argument
from pomology.machine.snapshot import describe, run_command, snapshot, software
from pomology.paths import root

COMMIT = re.compile("[0-9a-f]{40}")
ACCEPTED = ("quick", "article")  # profiles


def _run(options: argparse.Namespace) -> None:
    """Diagnose this machine: chip, frameworks, GPUs, and how to fix what is missing."""
    from pomology.extras.doctor import doctor

    machine = snapshot()
    print(describe(machine))
    print("Loading each framework in its own process; this can take a minute.\n")
    print(doctor.examine(machine))
    if options.submit:
        print("\n".join(obstacles_here() or ["The collection would accept a run."]))


def obstacles(machine: dict[str, Any]) -> list[str]:
    """Return why a run with these facts of machine.json is not accepted."""
    git = machine.get("git") or {}
    commit = str(git.get("commit"))
    reasons = []
    if not COMMIT.fullmatch(commit) or git.get("dirty") is not False:
        reasons.append("the checkout has uncommitted changes, or no commit")
    if machine.get("profile") not in ACCEPTED:
        reasons.append(f"profile {machine.get('profile')}, not {' or '.join(ACCEPTED)}")
    for name, version in machine.get("packages", {}).items():
        # A requirement may have a version for each platform.
        pattern = rf"^{re.escape(name)}==([\w.]+)"
        versions = re.findall(pattern, locked(commit) or "", re.MULTILINE)
        # A shared zip has three parts of cuDNN's four.
        stated = version.partition("+")[0]
        if versions and not any(f"{each}.".startswith(f"{stated}.") for each in versions):
            reasons.append(f"{name} {version}, but requirements.txt has {' or '.join(versions)}")
    return reasons


@functools.cache
def locked(commit: str) -> str | None:
    """Return requirements.txt at a commit; None for one that is not in this repository."""
    if not COMMIT.fullmatch(commit):
        return None
    return run_command("git", "-C", str(root()), "show", f"{commit}:requirements.txt")


@functools.cache
def committed(commit: str) -> datetime | None:
    """Return the date of a commit; None for one that is not in this repository."""
    if not COMMIT.fullmatch(commit):
        return None
    text = run_command("git", "-C", str(root()), "show", "--no-patch", "--format=%cI", commit)
    return datetime.fromisoformat(text.strip()) if text else None


def obstacles_here() -> list[str]:
    """Return sentences on why a run of this checkout would not be accepted."""
    reasons = obstacles(software() | {"profile": ACCEPTED[0]})
    return [f"not for the collection of runs: {reason}" for reason in reasons]


SUBMIT = argument("--submit", "whether a run could be submitted", False, action="store_true")
COMMANDS = {"doctor": (_run, SUBMIT)}
