"""An experiment: one notebook's cases on this machine."""

import itertools
import math
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pomology.devices import find
from pomology.devices.base import Device
from pomology.errors import PomologyError
from pomology.experiment.case import Case
from pomology.machine import snapshot
from pomology.report.display import Report
from pomology.results import journal
from pomology.results.record import PROFILES, UNTRIED, Record
from pomology.results.run import Run, by_hand, note_software

LIMIT = 5  # budgets that a case may take
LIMIT_LEAST_S = 10.0  # seconds that it may take in any case: a compilation alone may need them
# By so much both calibrations around a case must exceed the fastest of the run. On a virtual
# machine of two cores that was so for 38 of 1,069 cases.
SLOWED = 0.3
LOOK_S = 5.0  # a look at the machine is good for so long
TOO_LARGE = (*UNTRIED, "out-of-memory", "crashed", "timeout")  # a smaller sibling may fit


class Experiment:
    """One notebook's cases on this machine, and what it shows of them.

    name: the notebook's name, and the journal's. article: its number, as in the published values.
    devices: one of `find.choices()`. profile: `article` runs whole epochs. budget_s: seconds for
    the steady steps of a case. out: the run's folder; empty takes `by_hand`. repeat: which
    repetition of the run this is. precision: of cases without a setting of that name.
    expects_learning: whether a loss must fall (a GAN's need not). declared: how it is shown, see
    `report.article.Declaration`. Raises PomologyError for a wrong value.
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
            allowed = ", ".join(PROFILES)
            raise PomologyError(f"{name}: profile is {profile!r}; it must be one of {allowed}")
        if not 0 < budget_s < math.inf:
            raise PomologyError(f"{name}: budget_s is {budget_s!r}; it must be seconds above 0")
        self.devices = find.find(devices, framework)
        self._no_gpu = find.no_gpu(framework) if devices == "auto" else ""
        self.framework = framework
        self.profile = profile
        self.budget_s = float(budget_s)
        # What is timed ends there with what it has, as on a machine that others keep busy.
        limit_s = max(LIMIT * self.budget_s, LIMIT_LEAST_S)
        self.limit_s = math.inf if profile == "article" else limit_s
        self.repeat = repeat
        self.precision = precision
        self.expects_learning = expects_learning
        self.out = Path(out) if out else by_hand(name, profile, framework)
        self._hint = "" if out else " (run the set-up cell again to measure it anew)"
        places = {"profile": profile, "out": self.out, "devices": self.devices}
        self.report = Report(name, article=article, **places, **declared)
        # What a notebook shows of its records.
        self.show = self.report.show
        self.machine = self.report.machine
        self.table = self.report.table
        self.details = self.report.details
        self.printed = self.report.printed
        self.figure = self.report.figure
        self.claims = self.report.claims
        self.name = name
        self.article = article
        self.journal = journal.Journal(self.out / f"{name}.jsonl")
        self.data_kind = "none"
        self.data_origin = ""
        self.software = note_software(self.out, self.devices[0].threads)
        self._conditions: dict[str, Any] = {}
        self._looked_s = -math.inf
        # Backends of which the runner gives each case a kernel of its own.
        self._one_case_on = os.environ.get(journal.ONE_CASE_ON, "").split()
        self._kernel_is_used = False

    @property
    def run(self) -> Run:
        """The run as it is now."""
        return self.report.run

    @property
    def records(self) -> list[Record]:
        """The finished cases of this notebook."""
        return self.report.records

    def dataset(self, data: Any) -> None:
        """Say what the cases train on: anything with `kind` (`real` or `stand-in`) and `origin`."""
        self.data_kind = data.kind
        self.data_origin = data.origin

    def cases(
        self,
        rows: Iterable[dict] | None = None,
        on: Iterable[Device] | None = None,
        **axes: Iterable,
    ) -> Iterator[Case]:
        """Yield the cases to run: every row of settings on every device, which take turns.

        rows: settings by name; left out, every combination of the axes' values. on: only on these
        devices. What the journal has already is skipped, with a line that says so.
        """
        if rows is None:
            combinations = itertools.product(*axes.values())
            rows = [dict(zip(axes, values, strict=True)) for values in combinations]
        before = journal.read(self.journal.path)
        for config, device in itertools.product(rows, self.devices if on is None else on):
            case = Case(self, device, config)
            if self._no_gpu:
                case.note(self._no_gpu)
            if before.done(case.name, self.repeat):
                print(f"{case.name}: in the journal already; skipped{self._hint}")
            elif self._kernel_is_used:
                print(f"{case.name}: comes in a kernel of its own, whose memory holds no other row")
            else:
                self._free_others(case)
                yield case

    def _free_others(self, case: Case) -> None:
        """Free what the last case left on the other devices; of its own a case does so itself."""
        for device in self.devices:
            try:
                if device is not case.backend:
                    device.release()
            except Exception as error:  # a GPU that is lost must not end the CPU's cases
                case.note(f"the memory of {device.backend} could not be freed: {error}")

    def first_that_fits(
        self, rows: Iterable[dict], on: Iterable[Device] | None = None
    ) -> Iterator[Case]:
        """Yield on every device the first of these cases that fits it: the next where one does not.

        rows: from the article's own down to smaller siblings.
        """
        rows = list(rows)
        for device in self.devices if on is None else on:
            for config in rows:
                yield from self.cases([config], on=[device])
                name = Case(self, device, config).name
                statuses = {(each.case, each.repeat): each.status for each in self.records}
                if statuses.get((name, self.repeat)) not in TOO_LARGE:
                    break

    def conditions(self) -> dict[str, Any]:
        """Return whether the machine is fit to measure now, see `snapshot.conditions`."""
        if time.perf_counter() - self._looked_s > LOOK_S:
            self._conditions = snapshot.conditions()
            self._looked_s = time.perf_counter()
        return self._conditions

    def slowed(self, around_case_s: list[float]) -> bool:
        """Return whether the machine was slower around a case than at its best in this run."""
        records = self.run.records
        earlier_s = [seconds for record in records for seconds in record.calibration.values()]
        return min(around_case_s) > (1 + SLOWED) * min(earlier_s + around_case_s)

    def ended(self, case: Case, status: str) -> None:
        """Note that a case has ended: on some devices no other may follow in this kernel."""
        if case.backend.backend in self._one_case_on and journal.fills_kernel(status):
            self._kernel_is_used = True
