"""What a machine of a fleet does: `pomology reproduce` in its checkout, as a task of dask."""

import secrets
import subprocess
import sys
from pathlib import Path

import distributed
import filelock

import pomology
from pomology.machine import snapshot
from pomology.paths import root
from pomology.results import cases, folders


def name() -> str:
    """Return the name of this machine in a fleet: its chip, and digits drawn for its checkout.

    The digits are in `outputs/.fleet`. They tell equal machines apart, without a host's name.
    """
    path = root() / "outputs" / ".fleet"
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        path.write_text(secrets.token_hex(6))
    return f"{cases.chip_word(snapshot.chip())}-{path.read_text()}"


def describe() -> dict[str, str]:
    """Return the name of this machine, what it is, and the state of its checkout."""
    git = snapshot.software()["git"]
    commit = git["commit"][:7] if git else "not known"
    changes = " with changes" if git and git["dirty"] else ""
    kit = f"pomology {pomology.__version__}, commit {commit}{changes}"
    return {"name": name(), "machine": snapshot.describe(snapshot.snapshot()), "kit": kit}


def reproduce(run: str, options: list[str]) -> tuple[str, dict[str, bytes]]:
    """Run notebooks on this machine, and send each line of output to the dask topic `run`.

    Returns the last line of a command that failed, and the contents of the run's files.
    """
    worker = distributed.get_worker()
    folder = root() / "outputs" / run
    lock = folder / folders.LOCK
    if lock.exists():  # a run that was copied here has none, and must get none
        filelock.FileLock(lock).acquire().lock.release()  # a run whose worker was killed goes on
    command = [sys.executable, "-m", "pomology", "reproduce", f"--run={run}", *options]
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    line = ""
    with subprocess.Popen(command, cwd=root(), **output) as process:
        for text in process.stdout:
            line = text.rstrip()
            worker.log_event(run, f"{name()}: {line}")
    failure = f"{line} (exit status {process.returncode})" if process.returncode else ""
    refused = process.returncode == 2  # nothing was run
    return failure, {} if refused else read_files(folder)


def read_files(folder: Path) -> dict[str, bytes]:
    """Return the contents of a run's files, by path. Hidden ones stay on the machine."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    names = [path.relative_to(folder).as_posix() for path in paths]
    return {name: (folder / name).read_bytes() for name in names if name[0] != "."}
