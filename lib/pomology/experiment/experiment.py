"""An experiment: one notebook's cases on this machine."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from pomology.devices import find
from pomology.devices.base import Device
from pomology.errors import PomologyError
from pomology.experiment.case import Case
from pomology.machine import quiet, snapshot
from pomology.measure import calls
from pomology.report import roofline
from pomology.report.declaration import Declaration
from pomology.report.showing import Report
from pomology.results import folders, journal
from pomology.results.record import PROFILES

AGAIN_S = 300.0  # that a notebook spends on cases that it runs again
LIMIT, LIMIT_LEAST_S = 5, 10.0  # budgets that a case may take, and seconds, which a compilation alone may need
TOO_LARGE = ("too-big", "out-of-memory", "crashed", "timeout")  # a smaller sibling of such a case may fit


class Experiment(Report):
    """One notebook's cases on this machine, and what it shows of them.

    name: the notebook's name, and the journal's. article: its number, as in the published values. framework: what the
    cases train with, one a notebook. devices: one of `find.choices()`. profile: `article` runs whole epochs. budget_s:
    seconds for the steady steps of a case. out: the run's folder; empty takes this day's, see `folders.by_hand`.
    repeat: which repetition of the run this is. precision: of every case that has no setting of that name.
    expects_learning: whether a loss that does not fall means that the model does not learn (a GAN's says nothing).
    declared: how it is shown, see `report.declaration.Declaration`. Raises PomologyError for a value that cannot be.
    """

    def __init__(
        self,
        name: str,
        *,
        article: str,
        framework: str = "torch",
        devices: str = "auto",
        profile: str = "quick",
        budget_s: float = 10.0,
        out: str = "",
        repeat: int = 0,
        precision: str = "fp32",
        expects_learning: bool = True,
        **declared: Any,
    ):
        if profile not in PROFILES:
            raise PomologyError(f"{name}: profile is {profile!r}; it must be one of {', '.join(PROFILES)}")
        if isinstance(budget_s, bool) or not isinstance(budget_s, (int, float)) or not 0 < budget_s < math.inf:
            raise PomologyError(f"{name}: budget_s is {budget_s!r}; it must be a number of seconds above 0")
        about = Declaration(name, article, framework, **declared)
        self.devices = find.find(devices, framework)
        self.framework, self.profile, self.budget_s = framework, profile, float(budget_s)
        # What is timed ends there with what it has, as on a machine that others keep busy.
        self.limit_s = math.inf if profile == "article" else max(LIMIT * self.budget_s, LIMIT_LEAST_S)
        self.repeat, self.precision, self.expects_learning = repeat, precision, expects_learning
        self._anew = "" if out else " (run the set-up cell again to measure it anew)"
        folder = Path(out) if out else folders.by_hand(name, profile)
        self._begin(about, folder, profile)
        self.journal = journal.Journal(folder / f"{name}.jsonl")
        self.data_kind, self.data_origin = "none", ""
        self._looked: tuple[float, dict] | None = None
        self.software = folders.note_software(folder, self.devices[0].threads)
        self._canaries = [s for record in self.run_records() for s in (record.canary or {}).values()]
        self._rates: dict[tuple[str, str], float] = {}
        self._again_s = 0.0

    def dataset(self, data: Any) -> None:
        """Say what the cases train on: anything with `kind` (`real` or `stand-in`) and `origin`, a line about it."""
        self.data_kind, self.data_origin = data.kind, data.origin

    def cases(
        self, rows: Iterable[dict] | None = None, on: Iterable[Device] | None = None, **axes: Iterable
    ) -> Iterator[Case]:
        """The cases to run: every row (or every combination of the axes' values) on every device of this machine.

        on: only on these devices. What the journal holds already is skipped, with a line that says so. Raises
        PomologyError for an axis `name` where `case.name` is something else.
        """
        if name := next((name for name in axes if hasattr(Case, name)), None):
            how = f"give {name!r} in rows, as in cases([{{{name!r}: ...}}]), and read it by case[{name!r}]"
            raise PomologyError(f"case.{name} is no setting: {how}")
        if rows is None:
            rows = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
        before = journal.read(self.journal.path)
        asked = list(itertools.product(self.devices if on is None else on, list(rows)))
        for backend, config in asked:
            case = Case(self, backend, config)
            if before.done(case.name, self.repeat):
                print(f"{case.name}: in the journal already; skipped{self._anew}")
            else:
                yield case
        # Once more what ended well while the machine was slow, as far as its best is known by now.
        after = journal.read(self.journal.path)
        known = {record.case: record for record in after.records if record.repeat == self.repeat}
        for case in (Case(self, backend, config) for backend, config in asked):
            record = known.get(case.name)
            once = record and record.status == "ok" and after.begun[case.name, self.repeat] == 1
            if once and self.slowed(record.canary) and self._again_s + record.seconds <= AGAIN_S:
                self._again_s += record.seconds
                yield case

    def canary(self, when: str) -> dict[str, float]:
        """How fast the machine is now, see `quiet.canary`; not in the profile `smoke`, whose numbers say nothing."""
        if self.profile == "smoke":
            return {}
        self._canaries.append(quiet.canary())
        return {when: self._canaries[-1]}

    def slowed(self, canary: dict[str, float]) -> bool:
        """Whether the machine was slower around a case than at its best in this run so far, see `quiet.slowed`."""
        return bool(canary) and quiet.slowed(max(canary.values()), self._canaries)

    def first_that_fits(self, rows: Iterable[dict], on: Iterable[Device] | None = None) -> Iterator[Case]:
        """On every device the first of these cases that fits it: rows from the article's own down to smaller siblings,
        of which the next is tried where a case is `TOO_LARGE`. on: as for `cases`."""
        rows = list(rows)
        for backend in self.devices if on is None else on:
            for config in rows:
                yield from self.cases([config], on=[backend])
                key = Case(self, backend, config).name, self.repeat
                ended = {(each.case, each.repeat): each.status for each in journal.read(self.journal.path).records}
                if ended.get(key) not in TOO_LARGE:
                    break

    def peak_matmul_rate(self, backend: Device, precision: str) -> float:
        """The most FLOP/s that a matrix product reaches on a device: of 512 to 4096 squared, timed once per process as
        long as they are short, or of this run's ceilings with the same framework, if they have reached more."""
        key = backend.backend, precision
        if key not in self._rates:
            known = roofline.ceilings([one for one in self._read(roofline.SOURCES) if one.framework == self.framework])
            ceiling = known.rates.get((backend.kind, precision))
            best = ceiling.value if ceiling else 0.0
            for size in (512, 1024, 2048, 4096):
                function = backend.dispatch(backend.product(precision, size))
                timed = calls.measure(function, backend.synchronize, budget_s=0.1, warmup_s=0.02, warmup_calls=1)
                fastest_s = min(block.step_s for block in timed.blocks)
                best = max(best, 2 * size**3 / fastest_s)
                if fastest_s > 0.02:  # the next takes eight times as long
                    break
            self._rates[key] = best
        return self._rates[key]

    def conditions(self, say: Callable[[str], Any] = print) -> dict[str, Any]:
        """Whether the machine is fit to measure now, but for the profile `smoke` after `quiet.wait`. A look takes a
        quarter of a second, so it is good for five. Cores that others do not give up are left to them."""
        if self._looked is None or time.perf_counter() - self._looked[0] > 5:
            smoke = self.profile == "smoke"
            state = snapshot.conditions() if smoke else quiet.wait(self.out / quiet.WAITED, say)
            taken = round(state["others"]) if "busy" in state["flags"] and not smoke else 0
            for device in self.devices:
                device.limit_threads(max(1, quiet.usable_threads() - taken))
            self._looked = time.perf_counter(), state
        return self._looked[1]
