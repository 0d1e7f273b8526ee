"""What a run will do, checked before its first kernel starts."""

import argparse
import math
import re
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from pomology.devices import find
from pomology.errors import PomologyError
from pomology.format import clock_time
from pomology.paths import root
from pomology.results.record import PROFILES
from pomology.results.run import Run
from pomology.runner.notebooks import Notebook, notebooks, read_notebook, select

GOING = ".partial/going"  # in a run's folder until the run has come to its end
PAGE_S = 6.0  # that the page takes on two CPU cores
PRIOR_S = 20.0  # of expected time: the weight of 1 in the pace of the first notebooks


class Job(NamedTuple):
    """One execution of a notebook, of one of its variants.

    name: of its file, as `blas` for the variant that shows all, `blas-mlx`, or `blas-mlx-1` for the
    first repeat of that. seconds: that it takes on two CPU cores, roughly.
    """

    notebook: Notebook
    name: str
    parameters: dict[str, Any]
    repeat: int
    seconds: float

    def output(self, out: Path) -> Path:
        """Return where its notebook lies in a run's folder, once it has ended."""
        folder = out if self.name == self.notebook.name else out / "repeats"
        return folder / f"{self.name}.ipynb"


def schedule(
    jobs: list[Job], minutes: float, left_out: dict[str, str]
) -> Iterator[tuple[Job, float, float]]:
    """Yield each job with the seconds that it, and all from it on, are expected to take here.

    In a run of so many minutes they come by priority, as far as they fit. left_out: gets the names
    of the others, and why.
    """
    begun_s = time.monotonic()
    expected_s = 0.0
    waiting = list(jobs)
    if minutes < math.inf:
        waiting.sort(key=lambda job: (job.repeat, bool(job.notebook.after), job.notebook.priority))
    while waiting:
        elapsed_s = time.monotonic() - begun_s
        pace = (PRIOR_S + elapsed_s) / (PRIOR_S + expected_s)
        ends_s = pace * sum(job.seconds for job in waiting)
        job = waiting.pop(0)
        takes_s = pace * job.seconds
        # What shows the others' numbers takes seconds, and time was kept for it.
        kept_s = pace * sum(each.seconds for each in waiting if each.notebook.after) + PAGE_S
        if not job.notebook.after and elapsed_s + takes_s + kept_s > 60 * minutes:
            left_out[job.name] = f"takes about {clock_time(takes_s)} here, and less was left"
            continue
        yield job, takes_s, ends_s
        expected_s += job.seconds


def prepare(options: argparse.Namespace, run: str) -> tuple[Path, list[Job]]:
    """Return the folder of a run, and all its jobs, finished or not.

    options: of the command. Raises PomologyError for whatever cannot be, before anything runs.
    """
    out = run_folder(run, options.profile)
    values = {"devices": options.device, "data": options.data, "out": str(out)}
    planned = jobs(options.profile, values, options.only, options.repeats)
    if options.device != "auto":
        find.find(options.device)
    _check_resumable(out, planned, options.profile)
    return out, planned


def jobs(profile: str, values: dict[str, Any], only: str = "", repeats: int = 1) -> list[Job]:
    """Return the executions of a run in order: all notebooks, then their first repeat, and so on.

    Of a notebook's variants the last one shows the results of all. values: parameters in place of
    the profile's; `auto` leaves what the profile says.
    """
    if not 1 <= repeats <= 100:
        raise PomologyError(f"REPEATS={repeats}: must be from 1 to 100")
    planned = []
    for notebook in select(only):
        lost = [name for name in notebook.extras if not find_spec(f"pomology.extras.{name}")]
        if lost:
            print(f"{notebook.name} is left out: it needs lib/pomology/extras/{lost[0]}")
            continue
        of_all = notebook.values(profile, {"repeat": 0} | values)
        for variant in notebook.variants:
            settings = of_all | variant.parameters
            if variant.only:
                if settings.get("devices") == "cpu" or not find.has(variant.only):
                    continue
                settings["devices"] = "gpu"
            suffix = "" if variant is notebook.variants[-1] else variant.name
            for repeat in range(repeats):
                name = notebook.name + suffix + (f"-{repeat}" if repeat else "")
                numbered = {"repeat": repeat} if "repeat" in settings else {}
                seconds = variant.seconds.get(profile, 0)
                planned.append(Job(notebook, name, settings | numbered, repeat, seconds))
    return sorted(planned, key=lambda job: job.repeat)


def check() -> int:
    """Validate every notebook and parameter file of every profile; return how many notebooks."""
    known = notebooks()
    for notebook in known:
        for profile in PROFILES:
            notebook.values(profile, {})
    files = [f"{notebook.name}.yaml" for notebook in known]
    for path in sorted((root() / "params").glob("[!.]*/[!.]*")):
        if path.parent.name not in PROFILES or path.name not in files:
            raise PomologyError(f"{path.relative_to(root())}: no such profile or notebook")
    return len(known)


def run_folder(run: str, profile: str) -> Path:
    """Return a run's folder. Without a name: today's, or one of the last 3 days that was stopped.

    Raises PomologyError for a name that no folder should have.
    """
    outputs = root() / "outputs"
    if not run:
        now = datetime.now()
        run, *before = [f"{now - timedelta(days):%Y%m%d}-{profile}" for days in range(4)]
        if not (outputs / run).exists():
            run = next((name for name in before if (outputs / name / GOING).exists()), run)
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}", run):
        allowed = "letters, digits, points, dashes, underscores"
        raise PomologyError(f"RUN={run}: must be a name of {allowed}")
    return outputs / run


def _check_resumable(out: Path, planned: list[Job], profile: str) -> None:
    """Refuse a second profile or set of parameters: no table may mix the numbers of two."""
    if not (out / "machine.json").exists():
        return
    before = Run(out).machine.get("profile")
    if before != profile:
        raise PomologyError(f"RUN={out.name}: holds profile {before!r}, not {profile!r}")
    for job in planned:
        for path in (out / ".partial" / f"{job.name}.ipynb", job.output(out)):
            try:
                used = read_notebook(path)["metadata"]["papermill"]["parameters"]
            except (PomologyError, KeyError):  # missing or cut off: it will be written anew
                continue
            for name in used.keys() - {"out", "repeat"}:  # the folder may have moved
                if used[name] != job.parameters.get(name):
                    was = f"{name}={used[name]}, not {job.parameters.get(name)}"
                    raise PomologyError(f"RUN={out.name}: {job.name} was run with {was}")
