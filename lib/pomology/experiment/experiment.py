"""Experiments: the cases of a notebook on this machine."""

import itertools
import math
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pomology.devices import find
from pomology.devices.base import Device
from pomology.errors import PomologyError
from pomology.experiment.case import Case
from pomology.machine import quiet, snapshot
from pomology.report.display import Report
from pomology.results import journal
from pomology.results.record import CALIBRATION, PROFILES, UNTRIED, Record
from pomology.results.run import by_hand, note_software

LIMIT = 5  # time limit of a case, in budgets
LIMIT_LEAST_S = 10.0  # least time limit of a case, since a compilation can take as long
CONDITIONS_S = 5.0  # the machine's conditions are checked again after this time
TOO_LARGE = (*UNTRIED, "out-of-memory", "crashed", "timeout")  # a smaller variant may fit


class Experiment:
    """The cases of one notebook on this machine, with their tables and figures.

    name: name of the notebook and its journal. article: number of the published values. devices:
    one of `find.choices()`. profile: `article` runs whole epochs. budget_s: seconds for the steady
    steps of a case. out: the run's folder; "" selects `by_hand`. repeat: number of the repeat in
    the run. expects_learning: whether the loss must fall (not in a GAN). declared: fields of
    `Declaration`. Raises PomologyError for a wrong value.
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
        expects_learning: bool = True,
        **declared: Any,
    ):
        if profile not in PROFILES:
            allowed = ", ".join(PROFILES)
            raise PomologyError(f"{name}: profile is {profile!r}; it must be one of {allowed}")
        if not 0 < budget_s < math.inf:
            raise PomologyError(f"{name}: budget_s is {budget_s!r}; it must be positive and finite")
        self.devices = find.find(devices, framework)
        self._no_gpu = find.no_gpu(framework) if devices == "auto" else ""
        self.profile = profile
        self.budget_s = float(budget_s)
        # Timing stops at this limit, for example on a busy machine.
        self.limit_s = math.inf if profile == "article" else max(LIMIT * budget_s, LIMIT_LEAST_S)
        self.repeat = repeat
        self.expects_learning = expects_learning
        self.out = Path(out) if out else by_hand(name, profile, framework)
        self._hint = "" if out else " (run the set-up cell again to repeat it)"
        places = {"profile": profile, "out": self.out, "devices": self.devices}
        self.report = Report(name, article=article, **places, **declared)
        # Notebooks call the report's methods on the experiment.
        for method in ("show", "machine", "table", "details", "printed", "figure", "claims"):
            setattr(self, method, getattr(self.report, method))
        self.name = name
        self.article = article
        self.journal = journal.Journal(self.out / f"{name}.jsonl")
        self.data = {"data": "none"}
        self.software = note_software(self.out, self.devices[0].threads)
        self._conditions: dict[str, Any] = {}
        self._conditions_at_s = -math.inf
        # On these backends the runner starts a new kernel for each case.
        self._one_case_on = os.environ.get(journal.ONE_CASE_ON, "").split()
        self._kernel_is_used = False

    @property
    def records(self) -> list[Record]:
        """Records of this notebook's finished cases."""
        return self.report.records

    def dataset(self, data: Any) -> None:
        """Set the data of the cases, with attributes `kind` (`real`, `stand-in`) and `origin`."""
        self.data = {"data": data.kind, "data_origin": data.origin}

    def cases(
        self,
        rows: Iterable[dict] | None = None,
        on: Iterable[Device] | None = None,
        **axes: Iterable,
    ) -> Iterator[Case]:
        """Yield the cases to run: each row of settings on every device, in alternation.

        rows: settings by name; by default every combination of the axes' values. on: devices, by
        default all. Cases that the journal already has are skipped with a message.
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
                print(f"{case.name}: skipped, since the journal already has it{self._hint}")
            elif self._kernel_is_used:
                print(f"{case.name}: runs in a separate kernel, without memory of other cases")
            else:
                self._free_other_devices(case)
                yield case

    def _free_other_devices(self, case: Case) -> None:
        """Free the last case's memory on other devices; a case frees that of its own device."""
        for device in self.devices:
            try:
                if device is not case.backend:
                    device.release()
            except Exception as error:  # a lost GPU must not end cases on the CPU
                case.note(f"the memory of {device.backend} could not be freed: {error}")

    def first_that_fits(
        self, rows: Iterable[dict], on: Iterable[Device] | None = None
    ) -> Iterator[Case]:
        """Yield cases on each device until one fits. rows: from the article's to smaller ones."""
        rows = list(rows)
        for device in self.devices if on is None else on:
            for config in rows:
                yield from self.cases([config], on=[device])
                name = Case(self, device, config).name
                statuses = {(each.case, each.repeat): each.status for each in self.records}
                if statuses.get((name, self.repeat)) not in TOO_LARGE:
                    break

    def conditions(self) -> dict[str, Any]:
        """Return recent conditions of the machine, see `snapshot.conditions`."""
        if time.perf_counter() - self._conditions_at_s > CONDITIONS_S:
            self._conditions = snapshot.conditions()
            self._conditions_at_s = time.perf_counter()
        return self._conditions

    def slowed(self, case: Case, earlier: Sequence[Record]) -> Iterator[str]:
        """Yield how much longer a case's calibrations took than the run's fastest, if by too much.

        earlier: the run's records. On a GPU only those of the same device and software compare.
        """
        place = (case.backend.framework, case.backend.backend, self.software)
        alike = [each for each in earlier if (each.framework, each.backend, each.software) == place]
        for kind, prefix, among in (("cpu", "", earlier), ("gpu", "device_", alike)):
            sides = (f"{prefix}before_s", f"{prefix}after_s")
            times = [each.calibration.get(side) for each in (*among, case) for side in sides]
            *_, before_s, after_s = times
            if not (before_s and after_s):
                continue
            # A CPU's calibrations vary more, so both sides of the case must be slow.
            seconds = min(before_s, after_s) if kind == "cpu" else after_s
            by = quiet.slower(kind, seconds, min(filter(None, times)))
            if by:
                yield f"{CALIBRATION} {kind.upper()} took {by} longer than the run's fastest"

    def ended(self, case: Case, status: str) -> None:
        """Record a case's end, after which some devices need a new kernel for the next case."""
        if case.backend.backend in self._one_case_on and journal.fills_kernel(status):
            self._kernel_is_used = True
