"""Plan a run: its jobs, their order and its folder, all checked before the first kernel starts."""

import argparse
import math
import os
import re
import time
from collections.abc import Container, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from pomology.articles import published
from pomology.devices import find
from pomology.errors import PomologyError
from pomology.format import clock_time, one_line
from pomology.paths import EXTRAS, notebook_paths, read_csv, root
from pomology.results import journal
from pomology.results.record import PROFILES
from pomology.results.run import Run
from pomology.runner.notebooks import (
    Notebook,
    code_digits,
    library_digits,
    missing_twins,
    notebooks,
    read_notebook,
    select,
)

DESCRIBED = "docs/experiments.csv"  # model and data of each notebook
GOING = ".partial/going"  # a file in the run's folder until the run has finished
PAGE_S = 6.0  # seconds that the report takes on two CPU cores
PRIOR_S = 20.0  # seconds of expected time that a prior pace of 1 weighs


class Job(NamedTuple):
    """One execution of a variant of a notebook.

    name: the stem of its file, `blas` for the variant that shows all results, `blas-mlx` for
    another, `blas-mlx-1` for its first repeat. seconds: approximate time on two CPU cores.
    """

    notebook: Notebook
    name: str
    parameters: dict[str, Any]
    repeat: int
    seconds: float

    def output(self, out: Path) -> Path:
        """Return the path of the executed notebook in a run's folder."""
        folder = out if self.name == self.notebook.name else out / "repeats"
        return folder / f"{self.name}.ipynb"


def schedule(
    jobs: list[Job], minutes: float, left_out: dict[str, str]
) -> Iterator[tuple[Job, float, float]]:
    """Yield each job with the expected seconds of the job and of the rest of the run.

    minutes: with a limit, jobs come by priority, while they fit. left_out: receives the others.
    """
    begun_s = time.monotonic()
    expected_s = 0.0
    waiting = list(jobs)
    if minutes < math.inf:
        waiting.sort(key=lambda job: (job.repeat, bool(job.notebook.after), job.notebook.priority))
    while waiting:
        # The pace so far, drawn towards 1 while little has run.
        elapsed_s = time.monotonic() - begun_s
        pace = (PRIOR_S + elapsed_s) / (PRIOR_S + expected_s)
        ends_s = pace * sum(job.seconds for job in waiting)
        job = waiting.pop(0)
        takes_s = pace * job.seconds
        # Notebooks that show other notebooks' results take seconds; time is reserved for them.
        showing_s = sum(other.seconds for other in waiting if other.notebook.after)
        reserved_s = pace * showing_s + PAGE_S
        if not job.notebook.after and elapsed_s + takes_s + reserved_s > 60 * minutes:
            left_out[job.name] = f"takes about {clock_time(takes_s)} here, more than was left"
            continue
        yield job, takes_s, ends_s
        expected_s += job.seconds


def prepare(options: argparse.Namespace, run: str) -> tuple[Path, list[Job]]:
    """Return the folder of a run and all its jobs, finished or not.

    options: the command's. Raises PomologyError for wrong options, notebooks or parameters.
    """
    out = run_folder(run, options.profile)
    values = {"devices": options.device, "data": options.data, "out": str(out)}
    planned = jobs(options.profile, values, options.only, options.repeats)
    if options.device != "auto":
        find.find(options.device)  # raises here, before the first kernel starts
    _check_resumable(out, planned, options.profile)
    foreign = _foreign_parameters()
    if foreign:
        print(f"skipping {len(foreign)} of the files in params/: no notebook has {foreign[0]}")
    return out, planned


def jobs(profile: str, values: dict[str, Any], only: str = "", repeats: int = 1) -> list[Job]:
    """Return the jobs of a run in order: all notebooks, then their first repeats, and so on.

    A notebook's last variant shows all results. values: replace the profile's, except `auto`.
    """
    if not 1 <= repeats <= 100:
        raise PomologyError(f"REPEATS={repeats}: expected a number from 1 to 100")
    planned = []
    for notebook in select(only):
        lost = [name for name in notebook.extras if not (EXTRAS / name / "__init__.py").exists()]
        if lost:
            print(f"{notebook.name} is skipped: lib/pomology/extras/{lost[0]}/ is missing")
            continue
        of_all = notebook.values(profile, {"repeat": 0} | values)
        for variant in notebook.variants:
            settings = of_all | variant.parameters
            if variant.only:
                if settings.get("devices") == "cpu" or not find.has(variant.only):
                    continue
                settings["devices"] = "gpu"
            # The last variant runs last, so its notebook can show the results of all.
            suffix = "" if variant is notebook.variants[-1] else variant.name
            for repeat in range(repeats):
                name = notebook.name + suffix + (f"-{repeat}" if repeat else "")
                numbered = {"repeat": repeat} if "repeat" in settings else {}
                seconds = variant.seconds.get(profile, 0)
                planned.append(Job(notebook, name, settings | numbered, repeat, seconds))
    return sorted(planned, key=lambda job: job.repeat)


def check() -> int:
    """Validate all notebooks and parameter files; return the number of notebooks.

    Raises PomologyError for the first error.
    """
    valid = notebooks()
    file = root() / DESCRIBED
    # A copy of the code alone has no pages.
    described = {line["notebook"] for line in read_csv(file)} if file.is_file() else None
    for notebook in valid:
        try:
            published.check_source(notebook.article)
        except PomologyError as error:
            raise PomologyError(f"{notebook.path.name}: metadata: {error}") from None
        if described is not None:
            require_line(notebook, described)
        for missing in missing_twins(notebook.path):
            raise PomologyError(f"{notebook.path.name}: {missing}")
        for profile in PROFILES:
            notebook.values(profile, {})
    for file in _foreign_parameters():
        raise PomologyError(f"{file}: no notebook or profile of this name")
    return len(valid)


def require_line(notebook: Notebook, described: Container[str]) -> None:
    """Raise PomologyError unless a notebook is among those that docs/experiments.csv describes."""
    if notebook.name not in described:
        line = f"add {notebook.name},MODEL,DATA"
        raise PomologyError(f"{DESCRIBED} has no line for {notebook.path.name}: {line}")


def _foreign_parameters() -> list[str]:
    """Return the files in params/ that are of no notebook or profile, without hidden ones."""
    folder = root() / "params"
    names = [path.stem for path in notebook_paths(root() / "notebooks")]
    expected = [folder / profile / f"{name}.yaml" for profile in PROFILES for name in names]
    foreign = sorted(set(folder.glob("[!.]*/[!.]*")).difference(expected))
    return [one_line(path.relative_to(root())) for path in foreign]


def run_folder(run: str, profile: str) -> Path:
    """Return a run's folder. Without a name: today's, or an unfinished one of the last 3 days."""
    outputs = root() / "outputs"
    if not run:
        now = datetime.now()
        run, *before = [f"{now - timedelta(days):%Y%m%d}-{profile}" for days in range(4)]
        if not (outputs / run).exists():
            run = next((name for name in before if (outputs / name / GOING).exists()), run)
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}", run):
        allowed = "1 to 80 letters, digits, dots, dashes or underscores, no dot or dash first"
        raise PomologyError(f"RUN={run}: expected {allowed}")
    return outputs / run


def of_other_code(job: Job, out: Path) -> str:
    """Return why a job cannot add cases to those that its notebook has in a run; "" if it can."""
    notebook = job.notebook
    if not journal.read(out / f"{notebook.name}.jsonl").records:
        return ""
    noted = Run(out).machine
    now = code_of(notebook)
    for fact, place in (("code", notebook.path.name), ("library", "lib/pomology")):
        # Runs of older versions have noted none.
        if noted.get(fact, {}).get(notebook.name, now[fact]) != now[fact]:
            file = f"outputs/{out.name}/{notebook.name}.jsonl"
            remedy = f"name another RUN, or remove {file} to measure them again"
            return f"{notebook.name} has cases of other code than {place} has now; {remedy}"
    return ""


def code_of(notebook: Notebook) -> dict[str, str]:
    """Return digits of the code that makes a notebook's numbers: its own, and the library's."""
    return {"code": code_digits(notebook.path), "library": library_digits(notebook.path)}


def _check_resumable(out: Path, planned: list[Job], profile: str) -> None:
    """Raise PomologyError if a run has another profile, parameters or code: tables never mix.

    The same for what is no file in the place of one, before anything is measured.
    """
    for name in ("results.parquet", *(f"{job.notebook.name}.jsonl" for job in planned)):
        if os.path.lexists(out / name) and not (out / name).is_file():
            problem = f"{name}: cannot be read: not a regular file"
            raise PomologyError(f"RUN={out.name}: {problem}; remove it, or name another RUN")
    if not os.path.lexists(out / "machine.json"):
        return
    machine = Run(out).machine
    if not machine:
        problem = "has a machine.json that cannot be read; name another RUN"
        raise PomologyError(f"RUN={out.name}: {problem}")
    profile_before = machine.get("profile")
    if profile_before != profile:
        problem = f"has PROFILE={profile_before}, not {profile}; name another RUN"
        raise PomologyError(f"RUN={out.name}: {problem}")
    for job in planned:
        problem = of_other_code(job, out)
        if problem:
            raise PomologyError(f"RUN={out.name}: {problem}")
        for path in (out / ".partial" / f"{job.name}.ipynb", job.output(out)):
            try:
                parameters = read_notebook(path)["metadata"]["papermill"]["parameters"]
            except (PomologyError, KeyError, TypeError):  # missing or broken: written again
                continue
            for name in parameters.keys() - {"out", "repeat"}:  # the folder may have moved
                before, now = parameters[name], job.parameters.get(name)
                if before != now:
                    problem = f"{job.name} ran with {name}={before}, not {now}"
                    raise PomologyError(f"RUN={out.name}: {problem}; name another RUN")
