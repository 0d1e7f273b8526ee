"""What a run will do, checked before its first kernel starts: notebooks, parameters, folder.

It imports little, so that a wrong argument is answered at once.
"""

import contextlib
import math
import re
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from pomology.devices import find
from pomology.errors import PomologyError
from pomology.paths import root
from pomology.results import folders
from pomology.results.record import PROFILES
from pomology.runner import parameters
from pomology.runner.notebooks import Notebook, check_runnable, notebooks, read_notebook, select

DATA = ("auto", "real", "stand-in")
GOING = ".partial/going"  # in a run's folder until the run has come to its end
END = "-end"  # the second run of a notebook, at the end
LEAST, MOST = 3, 120  # of MINUTES
FILL = 20  # repeats that MINUTES may fill with, where all else is done
WHOLE = 20  # from so many minutes on a case has its whole budget; with fewer less, and half of it at the least


class Asked(NamedTuple):
    """What is asked of a run; `run` names its folder in outputs/."""

    profile: str
    devices: str
    only: str = ""
    run: str = ""
    data: str = "auto"
    repeats: int = 1


class Job(NamedTuple):
    """One execution of a notebook: its parameters, and where it ends up."""

    notebook: Notebook
    parameters: dict[str, Any]
    repeat: int
    way: str = ""  # `END`, or of several that need processes of their own another than the article's

    @property
    def ends(self) -> bool:
        """Whether it is the second run of a notebook, at the end."""
        return self.way == END

    @property
    def name(self) -> str:
        """Of its file: `vae`, of its first repeat `vae-1`, at the end `instrument_check-end`."""
        return self.notebook.name + self.way + (f"-{self.repeat}" if self.repeat else "")

    @property
    def label(self) -> str:
        name = self.notebook.name + (" (again, at the end)" if self.ends else self.way)
        return name + (f" (repeat {self.repeat + 1})" if self.repeat else "")

    def output(self, out: Path) -> Path:
        return (out / "repeats" if self.repeat or self.way else out) / f"{self.name}.ipynb"

    def partial(self, out: Path) -> Path:
        return out / ".partial" / f"{self.name}.ipynb"


def prepare(asked: Asked, minutes: float = math.inf, folder: Path | None = None) -> tuple[Path, list[Job]]:
    """The folder of a run, and all that it executes there, finished or not; in `minutes`, all that it may choose from.
    folder: in place of `run`'s. Raises PomologyError if an argument, a notebook or a parameter file is wrong."""
    profile, devices, only, run, data, repeats = asked
    check_choices(profile, devices, data)
    out = folder or run_folder(run, profile)
    fill = FILL if repeats > 0 and minutes < math.inf else 0
    share = min(1.0, max(0.5, minutes / WHOLE))
    planned = jobs(profile, {"devices": devices, "data": data, "out": str(out)}, only, max(repeats, fill), share)
    if devices != "auto":
        find.find(devices)
    _check_resumable(out, planned, profile, minutes)
    return out, planned


def left_out(only: str) -> list[str]:
    """Return a line for each chosen notebook that needs an extra which was removed from this copy."""
    chosen = [notebook for notebook in select(_known(), only) if notebook.missing_extras()]
    return [f"{each.name} is left out: it needs lib/pomology/extras/{each.missing_extras()[0]}" for each in chosen]


def check_choices(profile: str, devices: str, data: str) -> None:
    """Raises PomologyError for a value that cannot be."""
    choices = {"PROFILE": (profile, PROFILES), "DEVICE": (devices, find.choices()), "DATA": (data, DATA)}
    for name, (value, allowed) in choices.items():
        if value not in allowed:
            raise PomologyError(f"{name}={value}: must be one of {', '.join(allowed)}")


def minutes_of(text: str, profile: str) -> float:
    """What MINUTES says, infinite where it is empty. Raises PomologyError for what cannot be."""
    if not text:
        return math.inf
    if not re.fullmatch(r"[0-9]{1,9}", text) or not LEAST <= int(text) <= MOST:
        raise PomologyError(f"MINUTES={text}: must be a whole number from {LEAST} to {MOST}")
    if profile != "quick":
        raise PomologyError(f"MINUTES={text}: is for PROFILE=quick, not for {profile}; leave one of the two out")
    return int(text)


def jobs(profile: str, given: dict[str, Any], only: str = "", repeats: int = 1, share: float = 1.0) -> list[Job]:
    """The executions of a run, in order, repeats interleaved. `given` overrides the profile's YAML, unless `auto`.
    share: of each budget_s. A notebook with `again` runs once more in every repeat, before what only shows its numbers.
    Raises PomologyError, in one line, for anything that is wrong in any notebook or parameter file concerned."""
    if not 1 <= repeats <= 100:
        raise PomologyError(f"REPEATS={repeats}: must be from 1 to 100")
    planned: list[Job] = []
    others = [
        (name, kind.apple_gpu, *way) for kind in find.frameworks().values() for name, way in kind.other_ways().items()
    ]
    for notebook in select(_known(), only):
        if notebook.missing_extras():
            continue
        declared = parameters.declared(notebook.path)
        values = _profile_values(notebook, profile, declared)
        if "budget_s" in declared and share < 1:
            values["budget_s"] = round(share * values.get("budget_s", declared["budget_s"].default), 3)
        # `auto` is the command's default: it leaves what the profile says.
        own = {key for key, value in given.items() if value == "auto" and key in values}
        for repeat in range(repeats):
            more = {key: value for key, value in (given | {"repeat": repeat}).items() if key in declared.keys() - own}
            job = Job(notebook, values | more, repeat)
            # Before the article's way, whose tables then show both.
            for name, gpu, value, way in others if job.parameters.get("devices") != "cpu" else ():
                if name in declared:
                    planned.append(Job(notebook, job.parameters | {name: value, "devices": gpu}, repeat, way))
            planned.append(job)
            if notebook.again:
                short = notebook._replace(seconds=notebook.again)
                planned.append(Job(short, job.parameters | {"moment": "end"}, repeat, END))
    twice = {job.notebook.name for job in planned if job.ends}
    return sorted(planned, key=lambda job: (job.repeat, job.ends or 2 * (not twice.isdisjoint(job.notebook.after))))


def check() -> list[Notebook]:
    """Validate every notebook and parameter file of every profile; run nothing."""
    known = _known()
    for notebook in known:
        for profile in PROFILES:
            _profile_values(notebook, profile, parameters.declared(notebook.path))
    return known


def _known() -> list[Notebook]:
    """The notebooks of the checkout. Raises PomologyError if a parameter file belongs to no notebook or profile."""
    known = notebooks()
    for notebook in known:
        check_runnable(notebook)
    expected = {Path("params", profile, f"{notebook.name}.yaml") for profile in PROFILES for notebook in known}
    for path in sorted((root() / "params").glob("[!.]*/[!.]*")):
        if (where := path.relative_to(root())) not in expected:
            names = ", ".join(sorted(notebook.name for notebook in known))
            profiles = ", ".join(PROFILES)
            raise PomologyError(f"{where}: no such profile or notebook; there are {profiles} and {names}")
    return known


def _profile_values(notebook: Notebook, profile: str, declared: dict) -> dict[str, Any]:
    """What a profile's YAML file says for a notebook, checked."""
    # What measures must take these of a run; what only reads the others' numbers takes no devices.
    for name in ("profile", "out", *(() if notebook.after else ("devices", "repeat"))):
        if name not in declared:
            raise PomologyError(f"{notebook.path.name}: parameters cell: {name} is missing, which a run gives")
    where = f"params/{profile}/{notebook.name}.yaml"
    values = parameters.read_yaml(root() / where, declared, where)
    if values.get("profile") != profile:
        raise PomologyError(f"{where}: profile is {values.get('profile')!r}; in this folder it must be {profile!r}")
    return values


def run_folder(run: str, profile: str) -> Path:
    """Where a run's files go: of no name this day's, or of the last three days' that was stopped or killed. Raises
    PomologyError if the name would climb out of `outputs/`, or is that of something else there."""
    if not run:
        outputs, now = root() / "outputs", datetime.now()
        run, *before = (f"{now - timedelta(days):%Y%m%d}-{profile}" for days in range(4))
        if not (outputs / run).exists():
            run = next((name for name in before if (outputs / name / GOING).exists()), run)
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}", run):
        raise PomologyError(f"RUN={run}: must be a folder name of letters, digits, points, dashes and underscores")
    name = run.lower()  # one to a Mac
    if name.startswith("lab-") or name == "lab":  # whose parameters nobody has noted
        raise PomologyError(f"RUN={run}: lab and lab-… are of notebooks that are run by hand; choose another RUN")
    if name.endswith((".zip", ".html", ".csv", ".json", ".part")):
        raise PomologyError(f"RUN={run}: ends as a file of another kind does; choose another RUN")
    return root() / "outputs" / run


def _check_resumable(out: Path, planned: list[Job], profile: str, minutes: float) -> None:
    """A run has one profile and one set of parameters: numbers of two must not stand in one table. Of MINUTES the
    budgets may differ, as the page says: they are in the intervals."""
    if not (out / "machine.json").exists():
        return
    if (before := folders.noted(out).get("profile")) != profile:
        raise PomologyError(f"RUN={out.name}: holds profile {before!r}, not {profile!r}; choose another RUN")
    timed = minutes < math.inf or "minutes" in folders.noted(out)
    free = ("out", "repeat", "budget_s") if timed else ("out", "repeat")  # the folder may have moved
    for job in planned:
        used: dict[str, Any] = {}  # in the notebook's last run in this folder, finished or not
        for place in (job.partial(out), job.output(out)):
            # A file may be missing, or cut off while it was being written: it will be written anew.
            with contextlib.suppress(PomologyError, KeyError, TypeError, AttributeError):
                used = dict(read_notebook(place)["metadata"]["papermill"]["parameters"].items())
        for name, parameter in parameters.declared(job.notebook.path).items() if used else ():
            value, wanted = (values.get(name, parameter.default) for values in (used, job.parameters))
            if name not in free and value != wanted:
                was = f"{job.notebook.name} was run with {name}={value}, not {wanted}"
                raise PomologyError(f"RUN={out.name}: {was}; choose another RUN")
