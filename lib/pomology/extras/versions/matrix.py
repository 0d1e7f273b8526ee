"""Versions of a package, measured in turn: each notebook in fresh processes, as A B, B A, A B and so on.

Every version has a run's folder in that of the matrix, written by the kit under the version's own Python; a notebook
that has ended there is not run again.
"""

import contextlib
import json
import math
import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from statistics import fmean

from pomology.articles import published
from pomology.errors import PomologyError
from pomology.extras.versions import environments
from pomology.extras.versions import report as versions
from pomology.extras.versions.environments import Unusable, Wanted
from pomology.format import clock_time, one_line
from pomology.machine import quiet, snapshot
from pomology.measure import intervals
from pomology.paths import root, write_atomic
from pomology.report import compare, details
from pomology.results import folders, journal
from pomology.results.record import RETRIED
from pomology.results.run import Run
from pomology.runner import batch, plan

STATE = "matrix.json"  # what a matrix compares: only the same is continued
ROUNDS = 3  # behind which the matrix itself says how small a difference it will be able to show


def run(versions_text: str, asked: plan.Asked, say: Callable[[str], None]) -> int:
    """Measure what is missing of a matrix, and build its page. Returns the exit status: 0, 1 or 130."""
    wanted = environments.parse(versions_text)
    if not 2 <= asked.repeats <= 100:
        raise PomologyError(f"REPEATS={asked.repeats}: must be from 2 to 100")
    out = plan.run_folder(asked.run, f"matrix-{wanted[0].package}-{asked.profile}")
    jobs = {each: _jobs(out / each.name, asked) for each in wanted}
    keys = {each.name: environments.key(each) for each in wanted}
    _check(out, keys)
    (out / ".partial").mkdir(parents=True, exist_ok=True)
    with folders.locked(out, out.name, "matrix"), batch.stopped_by_signals() as stop:
        (out / plan.GOING).touch()
        write_atomic(out / STATE, json.dumps(keys, indent=1) + "\n")
        return _Matrix(out, jobs, asked, stop, say).run()


def order(names: Sequence[str], wanted: Sequence[Wanted], repeats: int) -> Iterator[tuple[int, str, Wanted]]:
    """A B, B A and so on for each notebook: what drifts evenly is the same for all."""
    for repeat in range(repeats):
        for name in names:
            for version in wanted[:: -1 if repeat % 2 else 1]:
                yield repeat, name, version


def _jobs(folder: Path, asked: plan.Asked) -> list[plan.Job]:
    """What a version executes: of the notebooks that are asked for, those whose times can be compared."""
    _, planned = plan.prepare(asked, folder=folder)
    if jobs := [job for job in planned if job.notebook.article != published.KIT and not job.notebook.after]:
        return jobs
    why = "names only notebooks about the kit or other notebooks, which time nothing to compare"
    raise PomologyError(f"ONLY={asked.only}: {why}")


def _check(out: Path, keys: dict[str, str]) -> None:
    if any(out.glob("*.jsonl*")) or (out / "machine.json").exists():
        raise PomologyError(f"RUN={out.name}: is a run, not a matrix; choose another RUN")
    if (out / STATE).exists() and (before := json.loads((out / STATE).read_text(encoding="utf-8"))) != keys:
        what = "in environments of other packages" if before.keys() == keys.keys() else f"of {' and '.join(before)}"
        raise PomologyError(f"RUN={out.name}: is a matrix {one_line(what, 200)}; choose another RUN")


@dataclass
class _Matrix:
    """One under way. jobs: of each version, all. had: what each environment has; why: what could not be measured, by
    version and notebook; notes: what was said of noise before it began."""

    out: Path
    jobs: dict[Wanted, list[plan.Job]]
    asked: plan.Asked
    stop: threading.Event
    say: Callable[[str], None]
    had: dict[Wanted, dict[str, str]] = field(default_factory=dict)
    why: dict[Wanted, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))
    notes: list[str] = field(default_factory=list)

    def run(self) -> int:
        profile, jobs = self.asked.profile, chain(*self.jobs.values())
        expected = {job.notebook.name: job.notebook.seconds.get(profile, 0) for job in jobs}
        took: dict[str, list[float]] = defaultdict(list)
        for version in self.jobs:
            self._prepare(version)
        there = list(self.had) if len(self.had) > 1 else []  # one alone has nothing to be compared with
        if there and not self.stop.is_set():
            known = self._beforehand(list(expected))
            self.notes = [f"Before it began: {line}" for line in known]
            for line in known or ["how small a difference can be shown is not known: nothing here was measured twice"]:
                self.say(line)
        waiting = [each for each in order(list(expected), there, self.asked.repeats) if self._missing(*each)]
        self.say(f"{len(waiting)} executions to run into outputs/{self.out.name}/")
        for number, (repeat, name, version) in enumerate(waiting, start=1):
            if self.stop.is_set():
                break
            if name in self.why[version]:
                continue
            left = sum(fmean(took[each] or [expected[each]]) for _, each, _ in waiting[number - 1 :])
            about = f"{name}, {version.label} (repeat {repeat + 1})"
            self.say(f"[{number}/{len(waiting)}] {about}; about {clock_time(left)} to go")
            begun_s = time.monotonic()
            self._execute(repeat, name, version)
            took[name].append(time.monotonic() - begun_s)
            if number < len(waiting) and waiting[number][0] != repeat:
                versions.write(self._arms(), self.out, self.notes)
                for line in self._own(list(expected)) if repeat + 1 == ROUNDS else ():
                    self.say(f"so far, {line}")
        self.say(str(versions.write(self._arms(), self.out, self.notes)))
        if self.stop.is_set():
            self.say(f"interrupted; what was finished is in outputs/{self.out.name}/. The same command carries on.")
            return 130
        (self.out / plan.GOING).unlink(missing_ok=True)
        self.say(f"written to outputs/{self.out.name}/index.html and matrix.csv")
        return 1 if any(self.why.values()) else 0

    def _prepare(self, version: Wanted) -> None:
        def command(words: Sequence[str | Path]) -> tuple[int, list[str]]:
            printed: list[str] = []
            return environments.command(words, self.stop, printed.append, env=_environment()), printed

        if not self.stop.is_set():
            try:
                self.had[version] = environments.make(version, command, self.say)
            except Unusable as error:
                if not self.stop.is_set():
                    self.why[version][""] = str(error)
                    self.say(f"{version.label} {error}")

    def _missing(self, repeat: int, name: str, version: Wanted) -> bool:
        jobs = [job for job in self.jobs[version] if (job.repeat, job.notebook.name) == (repeat, name)]
        return not all(batch.finished(job, self.out / version.name) for job in jobs)

    def _execute(self, repeat: int, name: str, version: Wanted) -> None:
        """Run a notebook once by a version's Python; note why, where no case of it came to an end."""
        printed: list[str] = []

        def hear(line: str) -> None:
            printed.append(line)
            if line.startswith("  "):
                self.say(line)

        folder, python = self.out / version.name, environments.python_of(version)
        given = self.asked.profile, self.asked.devices, self.asked.data
        words = [python, "-P", "-m", "pomology.extras.versions.matrix", folder, *given, name, str(repeat)]
        status = environments.command(words, self.stop, hear, env=_environment(), cwd=root())
        records = [record for record in journal.read(folder / f"{name}.jsonl").records if record.repeat == repeat]
        if not self.stop.is_set() and all(record.status in RETRIED for record in records):
            ends = [f"ended with status {status}", *filter(str.strip, printed)]
            ends += [f"{record.status}: {record.reason}" for record in records]
            self.why[version][name] = one_line(ends[-1].strip(), 300)

    def _arms(self) -> list[versions.Arm]:
        first, arms = next(iter(self.had.values()), {}), []
        for version in self.jobs:
            journals = any((self.out / version.name).glob("*.jsonl"))
            side, had = compare.load(self.out / version.name) if journals else None, self.had.get(version, first)
            names = sorted({name for name, _ in had.items() ^ first.items()} - {version.package, "pip"})
            also = ", ".join(f"{name} {had.get(name, 'none')} ({first.get(name, 'none')})" for name in names)
            arms.append(versions.Arm(version.label, side, self.why[version], one_line(also, 600)))
        return arms

    def _own(self, names: list[str]) -> list[str]:
        return _sentences([arm.side for arm in self._arms() if arm.side], names, self.asked.repeats)

    def _beforehand(self, names: list[str]) -> list[str]:
        """How small a difference can be shown, from what this machine has measured twice."""
        if known := self._own(names):
            return known
        here, repeats = snapshot.snapshot(), self.asked.repeats
        for place in sorted((root() / "outputs").glob("*/machine.json"), key=lambda path: -path.stat().st_mtime):
            run = Run(place.parent)
            if run.machine.get("profile") != self.asked.profile or folders.of_another_machine(run.machine, here):
                continue
            sides = [compare.load(place.parent)] if run.journals else []
            if known := _sentences(sides, names, repeats) or versions.beforehand(_instrument(run), repeats):
                return [f"from outputs/{run.name}/: {line}" for line in known]
        return []


def _sentences(sides: Sequence[compare.Side], names: list[str], repeats: int) -> list[str]:
    known: dict[str, list[float]] = defaultdict(list)
    for case, deviation in versions.noise(sides).items():
        known[case.experiment].append(deviation)
    return versions.beforehand({name: known[name] for name in names if name in known}, repeats)


def _instrument(run: Run) -> dict[str, list[float]]:
    """What instrument_check says of its own training step: 90 % of pairs of processes differ by less than that."""
    known = {}
    for record in run.records:
        if (share := record.metrics.get(details.BETWEEN)) and record.profile != "smoke":
            scatter = math.log1p(share.value) / intervals.t_quantile(0.9, max(1, (share.n or 2) - 1)) / math.sqrt(2)
            known[f"a training step of instrument_check ({record.backend})"] = [scatter]
    return known


def _environment() -> dict[str, str]:
    """That of this process, with this checkout's kit, and nothing else that Python would find beside a version."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    return kept | {"PYTHONPATH": str(root() / "lib")}


def _once(out: str, profile: str, devices: str, data: str, name: str, repeat: str) -> int:
    """In a version's own process: run a notebook once. It ends when what started it does."""
    batch.end_with_stdin()
    asked = plan.Asked(profile, devices, name, data=data, repeats=int(repeat) + 1)
    place, jobs = plan.prepare(asked, folder=Path(out))
    with quiet.alone(print) if profile != "smoke" else contextlib.nullcontext():
        return batch.reproduce(place, [job for job in jobs if job.repeat == int(repeat)], profile)


if __name__ == "__main__":
    try:
        sys.exit(_once(*sys.argv[1:]))
    except PomologyError as error:
        print(f"  {one_line(error, 300)}")
        sys.exit(2)
