"""Versions of a package, measured in turn: each notebook as A B, then B A, in fresh processes.

Each version has a run of its own in outputs/, which every other command reads.
"""

import subprocess
from collections import defaultdict
from collections.abc import Callable

import pandas

from pomology.articles import published
from pomology.errors import PomologyError
from pomology.extras.versions import environments
from pomology.measure import intervals
from pomology.measure.estimate import Estimate
from pomology.paths import root
from pomology.results import frame
from pomology.runner import batch, plan

KEY = ["experiment", "case", "metric", "data", "scaled"]  # what times must share to be compared
Say = Callable[[str], None]
NOTE = """
ratio: time over that of the first version, so below 1 is faster. The versions ran in turn, and
each process counts as one number (Welch's t on logarithms). The rows of a notebook are judged
together: of those called faster or slower, at most 5 % are not, on average."""


def run(text: str, request: plan.Asked, say: Say) -> int:
    """Measure what a matrix still lacks, then show it; return the exit status.

    Raises:
        PomologyError: for an argument that is wrong, or a version that cannot be installed.
    """
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
    shown = table(runs)
    shown.to_csv(out / "matrix.csv", index=False)
    say(shown.to_string(index=False, float_format="{:.4g}".format, na_rep="") + NOTE)
    say(f"written to outputs/{out.name}/matrix.csv")
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


def table(runs: dict[str, str]) -> pandas.DataFrame:
    """Return a row for each case and version, with its time over that of the first version.

    Args:
        runs: the name of each version's run in outputs/.
    """
    times = frame.load(*runs.values())
    times = times[times["headline"] & (times["status"] == "ok")]
    rows = []
    differences = defaultdict(list)  # of an experiment
    for (experiment, case, *_), group in times.groupby(KEY, sort=False):
        first = None
        for version, run_name in runs.items():
            values = group.loc[group["run"] == run_name, "value"]
            row = {"experiment": experiment, "case": case, "version": version}
            row["repeats"] = len(values)
            if len(values):
                time = intervals.repeats([Estimate(value, "s") for value in values])
                row.update(seconds=time.value, low=time.low, high=time.high)
            rows.append(row)
            if first is None:
                first = values
            elif difference := intervals.difference(values, first):
                differences[experiment].append((row, difference))
    for pairs in differences.values():
        confidence = intervals.joint_confidence([each.p_value for _, each in pairs])
        for row, difference in pairs:
            judged = difference.judged(confidence)
            ratio = judged.ratio
            row.update(ratio=ratio.value, ratio_low=ratio.low, ratio_high=ratio.high)
            row["verdict"] = judged.verdict
    return pandas.DataFrame(rows)
