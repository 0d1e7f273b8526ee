"""What a run will do, checked before its first kernel starts: notebooks, parameters, folder.

It imports little, so that a wrong argument is answered at once.
"""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from pomology.errors import PomologyError
from pomology.paths import root
from pomology.runner import notebooks as runner_notebooks
from pomology.runner import parameters as rules
from pomology.runner.notebooks import Notebook, select


@dataclass(frozen=True)
class Job:
    """One execution of a notebook: its parameters, and where it ends up."""

    notebook: Notebook
    parameters: dict[str, Any]
    repeat: int

    @property
    def label(self) -> str:
        return self.notebook.name + (f" (repeat {self.repeat + 1})" if self.repeat else "")

    def output(self, out: Path) -> Path:
        return out / "repeats" / self._file if self.repeat else out / self._file

    def partial(self, out: Path) -> Path:
        return out / ".partial" / self._file

    @property
    def _file(self) -> str:
        return self.notebook.name + (f"-{self.repeat}" if self.repeat else "") + ".ipynb"


def prepare(
    profile: str, devices: str, only: str = "", run: str = "", data: str = "auto", repeats: int = 1
) -> tuple[Path, list[Job]]:
    """The folder of a run, and all that it executes there, finished or not.

    Raises PomologyError if an argument, a notebook or a parameter file is wrong.
    """
    choices = {"PROFILE": (profile, rules.PROFILES), "DEVICE": (devices, rules.DEVICES), "DATA": (data, rules.DATA)}
    for name, (value, allowed) in choices.items():
        if value not in allowed:
            raise PomologyError(f"{name}={value}: must be one of {', '.join(allowed)}")
    out = run_folder(run, profile)
    planned = jobs(profile, {"devices": devices, "data": data, "out": str(out)}, only, repeats)
    if devices != "auto":
        from pomology.devices import find

        find.find(devices)
    _check_resumable(out, planned, profile)
    return out, planned


def jobs(profile: str, given: dict[str, Any], only: str = "", repeats: int = 1) -> list[Job]:
    """The executions of a run, in order, repeats interleaved. `given` overrides the profile's YAML, unless `auto`.

    Raises PomologyError, in one line, for anything that is wrong in any notebook or parameter file concerned.
    """
    if not 1 <= repeats <= 100:
        raise PomologyError(f"REPEATS={repeats}: must be from 1 to 100")
    planned = []
    for notebook in select(_known(), only):
        declared = rules.declared(notebook.path)
        values = _profile_values(notebook, profile, declared)
        taken = {name: value for name, value in given.items() if name in declared}
        rules.merge(declared, taken, "command line")
        # `auto` is the command's default: it leaves what the profile says.
        chosen = values | {name: value for name, value in taken.items() if value != "auto" or name not in values}
        for repeat in range(repeats):
            numbered = {"repeat": repeat} if "repeat" in declared else {}
            planned.append(Job(notebook, chosen | numbered, repeat))
    return sorted(planned, key=lambda job: job.repeat)


def check() -> list[Notebook]:
    """Validate every notebook and parameter file of every profile; run nothing."""
    all_notebooks = _known()
    for notebook in all_notebooks:
        declared = rules.declared(notebook.path)
        for profile in rules.PROFILES:
            _profile_values(notebook, profile, declared)
    return all_notebooks


def _profile_values(notebook: Notebook, profile: str, declared: dict) -> dict[str, Any]:
    """What a profile's YAML file says for a notebook, checked."""
    # What measures must take these of a run; what only reads the others' numbers takes no devices.
    for name in ("profile", "out", *(() if notebook.after else ("devices", "repeat"))):
        if name not in declared:
            raise PomologyError(f"{notebook.path.name}: parameters cell: {name} is missing, which a run gives")
    where = f"params/{profile}/{notebook.name}.yaml"
    if not (root() / where).is_file():
        raise PomologyError(f"{where}: missing; every notebook needs its parameters in every profile")
    values = rules.merge(declared, rules.read_yaml(root() / where, where), where)
    if values.get("profile") != profile:
        raise PomologyError(f"{where}: profile is {values.get('profile')!r}; in this folder it must be {profile!r}")
    return values


def _known() -> list[Notebook]:
    """The notebooks of the checkout. Raises PomologyError if a parameter file belongs to no notebook or profile."""
    all_notebooks = runner_notebooks.notebooks()
    names = {notebook.name for notebook in all_notebooks}
    for path in sorted((root() / "params").glob("*/*")):
        where = path.relative_to(root())
        if path.parent.name not in rules.PROFILES:
            raise PomologyError(f"{where}: no profile is named {path.parent.name!r}; {', '.join(rules.PROFILES)} are")
        if path.suffix != ".yaml" or path.stem not in names:
            raise PomologyError(f"{where}: no notebook has this name; there are {', '.join(sorted(names))}")
    return all_notebooks


def run_folder(run: str, profile: str) -> Path:
    """Where a run's files go. Raises PomologyError if the name would climb out of `outputs/`."""
    run = run or f"{datetime.now():%Y%m%d}-{profile}"
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}", run):
        raise PomologyError(f"RUN={run}: must be a folder name of letters, digits, points, dashes and underscores")
    if run.startswith("lab-"):  # whose parameters nobody has noted
        raise PomologyError(f"RUN={run}: lab-… are folders of notebooks that are run by hand; choose another RUN")
    return root() / "outputs" / run


def _check_resumable(out: Path, planned: list[Job], profile: str) -> None:
    """A run has one profile and one set of parameters: numbers of two must not stand in one table."""
    path = out / "machine.json"
    if not path.exists():
        return
    try:
        before = json.loads(path.read_text(encoding="utf-8"))["profile"]
    except (ValueError, KeyError, TypeError):
        raise PomologyError(f"RUN={out.name}: its machine.json cannot be read; choose another RUN") from None
    if before != profile:
        raise PomologyError(f"RUN={out.name}: holds profile {before!r}, not {profile!r}; choose another RUN")
    for job in planned:
        used = _parameters_used(job, out)
        for name, parameter in rules.declared(job.notebook.path).items() if used else ():
            value, wanted = (values.get(name, parameter.default) for values in (used, job.parameters))
            if name not in ("out", "repeat") and value != wanted:  # the folder may have moved
                raise PomologyError(
                    f"RUN={out.name}: {job.notebook.name} was run with {name}={value}, not {wanted}; choose another RUN"
                )


def _parameters_used(job: Job, out: Path) -> dict[str, Any]:
    """The parameters of a notebook's last run in this folder, finished or not; empty if no file has them."""
    for place in (job.output(out), job.partial(out)):
        # A file may be missing, or cut off while it was being written: it will be written anew.
        with contextlib.suppress(PomologyError, KeyError):
            return runner_notebooks.read_notebook(place)["metadata"]["papermill"]["parameters"]
    return {}
