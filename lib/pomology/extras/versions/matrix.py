"""Versions of a package, measured in turn: each notebook as A B, then B A, in fresh processes.

Each version has a run of its own in outputs/, which every other command reads.
"""

import subprocess
from collections.abc import Callable

from pomology import command_line
from pomology.articles import published
from pomology.errors import PomologyError
from pomology.extras.versions import environments
from pomology.paths import root
from pomology.runner import batch, plan

Say = Callable[[str], None]


def run(text: str, request: plan.Asked, say: Say) -> int:
    """Measure what a matrix still lacks, then show it; return the exit status.

    Raises:
        PomologyError: for an argument that is wrong, or a version that cannot be installed.
    """
    compare = command_line.extra("compare")
    versions = environments.parse(text)
    uv = environments.find_uv()
    if request.repeats < 2:
        raise PomologyError(f"REPEATS={request.repeats}: must be 2 or more")
    package = versions[0].partition("==")[0]
    out = plan.run_folder(request.run, f"matrix-{package}-{request.profile}")
    runs = {version: f"{out.name}-{environments.folder_name(version)}" for version in versions}
    _, jobs = plan.prepare(request._replace(run=runs[versions[0]]))
    jobs = [job for job in jobs if job.notebook.article != published.KIT and not job.notebook.after]
    if not jobs:
        raise PomologyError(f"ONLY={request.only}: names no notebook whose times are compared")
    going = out / plan.GOING  # by which the same command finds this folder on another day
    going.parent.mkdir(parents=True, exist_ok=True)
    going.touch()
    for version in versions:
        say(f"{version}: its environment in .venv-matrix/ is made unless it is there")
        environments.make(version, uv)
    status = _measure(runs, jobs, request, say)
    if status > 1:
        return status
    going.unlink()
    places = [root() / "outputs" / name for name in runs.values()]
    say(str(compare.write(places, out, in_turn=True)))
    say(f"written to outputs/{out.name}/compare.csv and compare.html")
    return status


def _measure(runs: dict[str, str], jobs: list[plan.Job], request: plan.Asked, say: Say) -> int:
    """Run what is missing of each version; return the exit status."""
    status = 0
    with batch.stopped_by_signals() as stop:
        for name, repeat, version in turns(jobs, list(runs)):
            planned = [job for job in jobs if (job.notebook.name, job.repeat) == (name, repeat)]
            if all(batch.finished(job, root() / "outputs" / runs[version]) for job in planned):
                continue
            say(f"{name}, {version}, repeat {repeat + 1} of {request.repeats}")
            command = [environments.python_of(version), "-m", "pomology", "reproduce"]
            command += [f"--profile={request.profile}", f"--device={request.devices}"]
            command += [f"--data={request.data}", f"--run={runs[version]}"]
            command += [f"--only={name}", f"--repeats={repeat + 1}"]
            # It is of this process's group, so that Ctrl-C reaches it, too.
            ended = subprocess.run(command, cwd=root(), env=environments.variables())
            if stop.is_set():
                return 130
            if ended.returncode > 1:
                return ended.returncode
            status = max(status, ended.returncode)
    return status


def turns(jobs: list[plan.Job], versions: list[str]) -> list[tuple[str, int, str]]:
    """Return who runs when, as A B, then B A: what drifts evenly is the same for all versions."""
    found = []
    for repeat, name in dict.fromkeys((job.repeat, job.notebook.name) for job in jobs):
        order = reversed(versions) if repeat % 2 else versions
        found += [(name, repeat, version) for version in order]
    return found
