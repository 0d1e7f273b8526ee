"""What a run will do, checked before its first kernel starts."""

import contextlib
import math
import re
import time
from collections.abc import Callable, Collection, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from pomology.devices import find
from pomology.errors import PomologyError
from pomology.format import clock_time
from pomology.paths import root
from pomology.results import folders
from pomology.results.record import PROFILES
from pomology.runner import parameters
from pomology.runner.notebooks import Notebook, Variant, notebooks, read_notebook, select
from pomology.runner.parameters import Parameter

DATA = ("auto", "real", "stand-in")
GOING = ".partial/going"  # in a run's folder until the run has come to its end
MINUTES = range(3, 121)
PAGE_S = 6.0  # that the page takes on two CPU cores
PRIOR_S = 20.0  # of expected time: the weight of 1 in the pace of the first notebooks


class Asked(NamedTuple):
    """What is asked of a run; `run` names its folder in outputs/."""

    profile: str
    devices: str
    only: str = ""
    run: str = ""
    data: str = "auto"
    repeats: int = 1


class Job(NamedTuple):
    """One execution of a notebook's variant. suffix: "" for the last, which shows all."""

    notebook: Notebook
    variant: Variant
    parameters: dict[str, Any]
    repeat: int
    suffix: str = ""

    @property
    def name(self) -> str:
        """The name of its file, as `blas`, `blas-mlx`, or `blas-mlx-1` for its first repeat."""
        return self.notebook.name + self.suffix + (f"-{self.repeat}" if self.repeat else "")

    @property
    def label(self) -> str:
        repeat = f" (repeat {self.repeat + 1})" if self.repeat else ""
        return self.notebook.name + self.suffix + repeat

    def output(self, out: Path) -> Path:
        return (out / "repeats" if self.repeat or self.suffix else out) / f"{self.name}.ipynb"

    def partial(self, out: Path) -> Path:
        return out / ".partial" / f"{self.name}.ipynb"


class Schedule:
    """The jobs that a run executes, in order; with MINUTES by priority, as far as they fit.

    left_out: the label of a job -> why it is not executed.
    """

    def __init__(
        self,
        jobs: Collection[Job],
        profile: str,
        minutes: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.left_out: dict[str, str] = {}
        self.waiting = list(jobs)
        self._profile = profile
        self._clock = clock
        self._begun_s = clock()
        self._expected_s = 0.0
        self._end_s = self._begun_s + 60 * minutes
        if minutes < math.inf:
            self.waiting.sort(key=_importance)

    def __iter__(self) -> Iterator[Job]:
        while self.waiting:
            job = self.waiting.pop(0)
            # What shows the others' numbers takes seconds, and time was kept for it.
            shows = [each for each in self.waiting if each.notebook.after]
            ends_s = self._clock() + self.expected_s(job, *shows) + PAGE_S
            if not job.notebook.after and ends_s > self._end_s:
                takes = clock_time(self.expected_s(job))
                self.left_out[job.label] = f"takes about {takes} here, and less was left"
                continue
            yield job
            self._expected_s += job.variant.seconds.get(self._profile, 0)

    def expected_s(self, *jobs: Job) -> float:
        """Return the seconds that jobs are expected to take on this machine."""
        pace = (PRIOR_S + self._clock() - self._begun_s) / (PRIOR_S + self._expected_s)
        return pace * sum(job.variant.seconds.get(self._profile, 0) for job in jobs)


def _importance(job: Job) -> tuple:
    return job.repeat, bool(job.notebook.after), job.notebook.priority or math.inf


def prepare(asked: Asked) -> tuple[Path, list[Job]]:
    """Return the folder of a run, and all its jobs, finished or not.

    Raises PomologyError for whatever cannot be, before anything runs.
    """
    check_choices(asked.profile, asked.devices, asked.data)
    out = run_folder(asked.run, asked.profile)
    values = {"devices": asked.devices, "data": asked.data, "out": str(out)}
    planned = jobs(asked.profile, values, asked.only, asked.repeats)
    if asked.devices != "auto":
        find.find(asked.devices)
    _check_resumable(out, planned, asked.profile)
    return out, planned


def check_choices(profile: str, devices: str, data: str) -> None:
    """Raise PomologyError for a value that cannot be."""
    choices = (
        ("PROFILE", profile, PROFILES),
        ("DEVICE", devices, find.choices()),
        ("DATA", data, DATA),
    )
    for name, value, allowed in choices:
        if value not in allowed:
            raise PomologyError(f"{name}={value}: must be one of {', '.join(allowed)}")


def left_out(only: str) -> list[str]:
    """Return a line for each chosen notebook whose extra was removed from this copy."""
    chosen = [(each.name, each.missing_extras()) for each in select(_known(), only)]
    place = "lib/pomology/extras"
    return [f"{name} is left out: it needs {place}/{lost[0]}" for name, lost in chosen if lost]


def minutes_of(text: str, profile: str) -> float:
    """Return what MINUTES says, infinite where it is empty. Raises PomologyError."""
    if not text:
        return math.inf
    if not re.fullmatch("[0-9]{1,3}", text) or int(text) not in MINUTES:
        bounds = f"from {MINUTES[0]} to {MINUTES[-1]}"
        raise PomologyError(f"MINUTES={text}: must be a whole number {bounds}")
    if profile != "quick":
        raise PomologyError(f"MINUTES={text}: is for PROFILE=quick, not for {profile}")
    return int(text)


def jobs(profile: str, values: dict[str, Any], only: str = "", repeats: int = 1) -> list[Job]:
    """Return the executions of a run in order: all notebooks, then their first repeat, and so on.

    values: parameters in place of the profile's; `auto` leaves what the profile says.
    """
    if not 1 <= repeats <= 100:
        raise PomologyError(f"REPEATS={repeats}: must be from 1 to 100")
    planned: list[Job] = []
    for notebook in select(_known(), only):
        if notebook.missing_extras():
            continue
        declared = parameters.declared(notebook.path)
        of_profile = _profile_values(notebook, profile, declared)
        for name in values.keys() & declared.keys():
            if values[name] != "auto" or name not in of_profile:
                of_profile[name] = values[name]
        for repeat in range(repeats):
            numbered = {"repeat": repeat} if "repeat" in declared else {}
            planned += _variants(notebook, of_profile | numbered, repeat)
    return sorted(planned, key=lambda job: job.repeat)


def _variants(notebook: Notebook, values: dict[str, Any], repeat: int) -> list[Job]:
    """Return the executions of a notebook's variants; the last one shows the results of all."""
    found = []
    for variant in notebook.variants:
        changed = values | variant.parameters
        if variant.only:
            if values.get("devices") == "cpu" or not find.has(variant.only):
                continue
            changed["devices"] = "gpu"
        suffix = "" if variant is notebook.variants[-1] else variant.name
        found.append(Job(notebook, variant, changed, repeat, suffix))
    return found


def check() -> list[Notebook]:
    """Validate every notebook and parameter file of every profile; run nothing."""
    known = _known()
    for notebook in known:
        declared = parameters.declared(notebook.path)
        for profile in PROFILES:
            _profile_values(notebook, profile, declared)
        for variant in notebook.variants:
            parameters.check_all(variant.parameters, declared, f"{notebook.path.name}: variants")
    return known


def _known() -> list[Notebook]:
    """Return the notebooks. Raises PomologyError for a parameter file that none of them has."""
    known = notebooks()
    names = sorted(notebook.name for notebook in known)
    for path in sorted((root() / "params").glob("[!.]*/[!.]*")):
        if path.parent.name not in PROFILES or path.name not in [f"{name}.yaml" for name in names]:
            where = path.relative_to(root())
            there_are = f"there are {', '.join(PROFILES)} and {', '.join(names)}"
            raise PomologyError(f"{where}: no such profile or notebook; {there_are}")
    return known


def _profile_values(
    notebook: Notebook, profile: str, declared: dict[str, Parameter]
) -> dict[str, Any]:
    """Return what a profile's YAML file says for a notebook, checked."""
    needed = ["profile", "out"]
    if not notebook.after:  # what only shows others' numbers measures nothing
        needed += ["devices", "repeat"]
    for name in needed:
        if name not in declared:
            raise PomologyError(f"{notebook.path.name}: parameters cell: {name} is missing")
    where = f"params/{profile}/{notebook.name}.yaml"
    values = parameters.read_yaml(root() / where, declared, where)
    if values.get("profile") != profile:
        raise PomologyError(f"{where}: profile is {values.get('profile')!r}; must be {profile!r}")
    return values


def run_folder(run: str, profile: str) -> Path:
    """Return a run's folder. Without a name: today's, or one of the last 3 days that was stopped.

    Raises PomologyError if the name is no plain folder name, or has another meaning.
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
    if re.fullmatch(r"lab(-.*)?|.*\.(zip|html|csv|json|part)", run, re.IGNORECASE):
        raise PomologyError(f"RUN={run}: begins as a folder of JupyterLab, or ends as a file does")
    return outputs / run


def _check_resumable(out: Path, planned: list[Job], profile: str) -> None:
    """Refuse a second profile or set of parameters: no table may mix the numbers of two."""
    if not (out / "machine.json").exists():
        return
    before = folders.noted(out).get("profile")
    if before != profile:
        message = f"RUN={out.name}: holds profile {before!r}, not {profile!r}; choose another RUN"
        raise PomologyError(message)
    for job in planned:
        used: dict[str, Any] = {}  # in the notebook's last run in this folder, finished or not
        for place in (job.partial(out), job.output(out)):
            # A file that is missing or cut off will be written anew.
            with contextlib.suppress(PomologyError, KeyError):
                used = dict(read_notebook(place)["metadata"]["papermill"]["parameters"])
        for name in used.keys() - {"out", "repeat"}:  # the folder may have moved
            if used[name] != job.parameters.get(name):
                was = f"{name}={used[name]}, not {job.parameters.get(name)}"
                message = f"RUN={out.name}: {job.notebook.name} was run with {was}"
                raise PomologyError(f"{message}; choose another RUN")
