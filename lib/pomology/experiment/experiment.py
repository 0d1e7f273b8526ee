"""An experiment: one notebook's cases on this machine."""

import functools
import itertools
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from pomology.articles.published import KIT
from pomology.devices import find
from pomology.devices.base import Device
from pomology.errors import PomologyError
from pomology.experiment import outcome
from pomology.experiment.case import Case
from pomology.machine import quiet, snapshot
from pomology.machine.sampler import Telemetry
from pomology.measure import calls, intervals
from pomology.paths import foreign_paths, redact
from pomology.report import details, roofline
from pomology.report.declaration import Declaration
from pomology.report.display import Report
from pomology.report.table import Table
from pomology.results import folders, journal
from pomology.results.cases import DOUBTS
from pomology.results.record import PROFILES, UNTRIED, Record
from pomology.results.run import Run

AGAIN_S = 15.0  # that a notebook spends at most on cases that it runs again
LIMIT, LIMIT_LEAST_S = 5, 10.0  # budgets that a case may take, and seconds, which a compilation alone may need
# Before a case a device rests until it is as cool as when the experiment began, or as quiet where no sensor shows heat:
# so many seconds at the most, and no more in all of a notebook. After less than WORK_S of work it is not looked at.
REST_S, REST_IN_ALL_S, WORK_S = 30.0, {"smoke": 0.0, "quick": 120.0, "article": 1200.0}, 5.0
WARMER = {"level": 0, "temperature_c": 3, "power_w": 2}  # which counts as the same
ENOUGH, BESIDE = 10, 30  # steady steps that a rate should rest on, and that a smaller case is to have
TOO_LARGE = (*UNTRIED, "out-of-memory", "crashed", "timeout")  # a smaller sibling of such a case may fit


def _check_packages(framework: str) -> None:
    """Raise PomologyError where what would be measured comes from another environment, by PYTHONPATH."""
    for name in (framework, "numpy"):
        places = list(getattr(sys.modules.get(name), "__path__", []))
        for entry in foreign_paths():
            if any(Path(place).is_relative_to(Path(entry).resolve()) for place in places):
                place = redact(entry)
                raise PomologyError(f"{name} comes from {place}, by PYTHONPATH: unset it and start the kernel again")


class Experiment:
    """One notebook's cases on this machine, and what it shows of them.

    name: the notebook's name, and the journal's. article: its number, as in the published values. framework: what the
    cases train with, one a notebook. devices: one of `find.choices()`. profile: `article` runs whole epochs. budget_s:
    seconds for the steady steps of a case. out: the run's folder; empty takes this day's, see `folders.by_hand`.
    repeat: which repetition of the run this is. precision: of every case that has no setting of that name.
    expects_learning: whether a loss that does not fall means that the model does not learn (a GAN's says nothing).
    declared: how it is shown, see `report.declaration.Declaration`. Raises PomologyError for a value that cannot be."""

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
        _check_packages(framework)
        self.unusable = find.unusable(devices, framework, self.devices[0].framework_version)
        self.framework, self.profile, self.budget_s = framework, profile, float(budget_s)
        # What is timed ends there with what it has, as on a machine that others keep busy.
        self.limit_s = math.inf if profile == "article" else max(LIMIT * self.budget_s, LIMIT_LEAST_S)
        self.repeat, self.precision, self.expects_learning = repeat, precision, expects_learning
        self._anew = "" if out else " (run the set-up cell again to measure it anew)"
        folder = Path(out) if out else folders.by_hand(name, profile)
        folders.note_machine(folder, profile)
        self.run = Run(folder)
        self.report = Report.of(about, self.run)
        self.report.devices = self.devices
        self.name, self.article, self.out = name, article, folder
        self.journal = journal.Journal(folder / f"{name}.jsonl")
        self.data_kind, self.data_origin = "none", ""
        self._looked: tuple[float, dict] | None = None
        self.software = folders.note_software(folder, self.devices[0].threads)
        self._rates: dict[tuple[str, str], float] = {}
        self.keeper: str | None = None  # the row of this process that left graphs in its memory
        self._turn, self._until = folders.turn(folder, name), folders.until(folder)
        self._calm: dict[str, dict[str, float]] = {}
        self._rest_left_s, self._rested = REST_IN_ALL_S[profile], 0.0

    @property
    def records(self) -> list[Record]:
        """The finished cases of this notebook."""
        return self.report.records

    def show(self, shown: Any, name: str = "", caption: str = "", folded: bool = False) -> None:
        """Display a table or a figure and save it for the report, see `Report.show`."""
        self.report.show(shown, name, caption, folded)

    def machine(self) -> Table:
        return self.report.machine()

    def table(self) -> Table:
        return self.report.table()

    def details(self) -> Table:
        return self.report.details()

    def numbers(self) -> Table:
        return self.report.numbers()

    def checks(self) -> Table:
        return self.report.checks()

    def printed(self) -> Table:
        return self.report.printed()

    def figure(self) -> Any:
        return self.report.figure()

    def claims(self) -> Table:
        return self.report.claims()

    def ratios(self) -> Table:
        return self.report.ratios()

    def ceilings(self) -> Table:
        return self.report.ceilings()

    def dataset(self, data: Any) -> None:
        """Say what the cases train on: anything with `kind` (`real` or `stand-in`) and `origin`, a line about it."""
        self.data_kind, self.data_origin = data.kind, data.origin

    def cases(
        self, rows: Iterable[dict] | None = None, on: Iterable[Device] | None = None, **axes: Iterable
    ) -> Iterator[Case]:
        """The cases to run: every row (or every combination of the axes' values) on every device of this machine. The
        devices take turns, so that none is always measured after hours of another's work.

        on: only on these devices. What the journal holds already is skipped, with a line that says so."""
        if rows is None:
            rows = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
        before = journal.read(self.journal.path)
        devices = self.devices if on is None else list(on)
        rows = list(rows)
        asked = [Case(self, backend, config) for config in rows for backend in devices]
        if on is None:
            for backend, config in itertools.product(self.unusable, rows):
                case = Case(self, backend, config)
                if not before.done(case.name, self.repeat):
                    case.end_unsupported(backend.reason)
        for case in asked:
            tried = self._turn and case.name not in self._turn and before.begun[case.name, self.repeat]
            if tried or before.done(case.name, self.repeat):
                print(f"{case.name}: in the journal already; skipped{self._anew}")
            elif time.time() > self._until:
                print(f"{case.name}: left out for now, as the time of its notebook is over")
                folders.wait(self.out, self.name, case.name)
            elif not self._waits(case):
                for other in self.devices:
                    try:  # what the last case left there; of its own device a case does so itself
                        _ = other is case.backend or other.release()
                    except Exception as error:  # a GPU that is lost must not end the CPU's cases
                        case.note(f"the memory of {other.backend} could not be freed: {error}")
                self._rest(case)
                yield case
        # Checks of the kit say themselves what may be trusted; in MINUTES another case says more.
        if self.article != KIT and self._until == math.inf:
            yield from self._again(asked)

    def _again(self, asked: Iterable[Case]) -> Iterator[Case]:
        """Once more what ended well while the machine was slow, as far as its best is known now; within `AGAIN_S`."""
        held = journal.read(self.journal.path)
        ended = {record.case: record for record in held.records if record.repeat == self.repeat}
        again = {name for name in ended if held.begun[name, self.repeat] > 1}
        for first in asked:
            record = ended.get(first.name)
            if first.name in again or record is None or record.status != "ok" or not self.slowed(record.canary):
                continue
            case = Case(self, first.backend, first.config)
            spent_s = sum(ended[name].seconds or 0.0 for name in again)  # none of what crashed
            if spent_s + record.seconds <= AGAIN_S and not self._waits(case):
                again.add(case.name)
                yield case

    def _waits(self, case: Case) -> bool:
        """Whether a case of a run is left to a process of its own, as its memory would hold another row's graphs."""
        if self._turn is None or self.keeper in (None, case.name):
            return False
        print(f"{case.name}: waits for a process of its own, whose memory no other row has used")
        folders.wait(self.out, self.name, case.name)
        return True

    @functools.cached_property
    def canaries(self) -> list[list[float]]:
        """Of every case of this run so far the seconds of its canaries."""
        return [[*record.canary.values()] for record in self.run.records if record.canary]

    def canary(self, when: str, patience: int = 0) -> dict[str, float]:
        """How fast the machine is now, see `quiet.canary`; not in the profile `smoke`, whose numbers say nothing.
        patience: how often to ask again while that is slow for this run, since a neighbour of a moment goes by."""
        if self.profile == "smoke":
            return {}
        canary = {when: quiet.canary()}
        if patience and self.canaries and self.slowed(canary):
            time.sleep(quiet.MOMENT_S)
            return self.canary(when, patience - 1)
        return canary

    def slowed(self, canary: dict[str, float]) -> bool:
        """Whether the machine was slower around a case than at its best in this run so far, see `quiet.slowed`."""
        return bool(canary) and quiet.slowed([*canary.values()], self.canaries)

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

    def smaller_beside(self, cases: Iterable[Case], **instead: Any) -> Iterator[Case]:
        """These cases, and on each device one more behind them, `scaled`, where one has fewer than 10 steady steps, and
        none of it at another batch size has more: so few steps have no interval, those of the smaller case do.

        It is the first such case with a smaller `batch_size`, of which 30 steps should fit the budget; if its batch is
        at most 2 or its model a smaller one already, with other settings `instead`. What an earlier repeat ran so runs
        again, that they are repeats of one case. The profile `smoke` has none."""
        yield from cases
        for backend in self.devices if self.profile != "smoke" else ():
            if smaller := self._smaller(backend, instead):
                for case in self.cases([smaller], on=[backend]):
                    case.scaled = True
                    yield case

    def _smaller(self, backend: Device, instead: dict) -> dict | None:
        of_any = {"batch_size": None}
        everything = [record for record in journal.read(self.journal.path).records if record.backend == backend.backend]
        here = [record for record in everything if record.repeat == self.repeat]
        asked = {record.case for record in here}
        before = [record for record in everything if record.repeat < self.repeat and record.scaled]
        if before := [record.config for record in before if record.case not in asked]:
            return before[-1]
        ran = [record for record in here if record.status == "ok" and "training" in (record.blocks or ())]
        for record in ran:
            like = [other for other in ran if other.config | of_any == record.config | of_any]
            if max(map(outcome.steady_steps, like)) < ENOUGH:
                size, step = record.config.get("batch_size"), record.metrics.get("step_s")
                smaller = instead
                if step and isinstance(size, int) and size > 2 and not record.scaled:
                    fits = min(size // 2, int(size * self.budget_s / (BESIDE * step.value)))
                    smaller = {"batch_size": 1 << max(1, fits.bit_length() - 1)}  # a power of two
                if record.config | smaller != record.config:
                    return record.config | smaller
        return None

    def apart(self, backend: Device) -> float | None:
        """By which share two trainings on a device differ at most, in 19 pairs of 20, as this run's instrument_check
        measured it in processes of their own; None where it did not."""
        here = [record for record in self.run.records if record.backend == backend.backend]
        shares = [record.metrics.get(details.BETWEEN) for record in here if record.profile != "smoke"]
        for share in filter(None, reversed(shares)):
            dof = max(1, (share.n or 2) - 1)
            wider = intervals.t_quantile(intervals.CONFIDENCE, dof) / intervals.t_quantile(0.9, dof)
            return math.expm1(wider * math.log1p(share.value))
        return None

    @property
    def with_tf32(self) -> list[Device]:
        """The devices whose convolutions are in TF32, unless a case's setting `tf32` is `off`."""
        return [device for device in self.devices if device.tf32]

    def rate_on_cpu(self, case: Case, *settings: str) -> float | None:
        """FLOP/s of this machine's CPU in the case whose `settings` are the same; None if it was not timed."""
        wanted = [case.config.get(name) for name in settings], "cpu", "ok", self.repeat
        for record in self.records:
            if ([record.config.get(name) for name in settings], record.backend, record.status, record.repeat) == wanted:
                return record.metrics["flops_per_s"].value
        return None

    def peak_matmul_rate(self, backend: Device, precision: str) -> float:
        """The most FLOP/s that an operator reaches on a device: this run's ceiling with the same framework; where it is
        doubtful, also products of 512 to 4096 squared, timed once per process as long as they are short."""
        key = backend.backend, precision
        if key not in self._rates:
            known = roofline.ceilings([one for one in self.run.records if one.framework == self.framework])
            ceiling = known.rates.get((backend.kind, precision))
            best = ceiling.value if ceiling else 0.0
            for size in () if ceiling and DOUBTS.isdisjoint(ceiling.record.flags) else (512, 1024, 2048, 4096):
                function = backend.dispatch(backend.product(precision, size))
                timed = calls.measure(function, backend.synchronize, budget_s=0.1, warmup_s=0.02, warmup_calls=1)
                fastest_s = min(block.step_s for block in timed.blocks)
                best = max(best, 2 * size**3 / fastest_s)
                if fastest_s > 0.02:  # the next takes eight times as long
                    break
            self._rates[key] = best
        return self._rates[key]

    def _rest(self, case: Case) -> None:
        """Wait until the case's device is calm, see `REST_S`."""
        begun, kind, most_s = time.perf_counter(), case.backend.kind, min(REST_S, self._rest_left_s)
        if most_s > 0 and not self._calm:
            self._calm = {kind: self.heat(kind) for kind in dict.fromkeys(device.kind for device in self.devices)}
            self._rested = begun
        if not (start := self._calm.get(kind)) or begun - self._rested < WORK_S:
            return
        while case.rested_s < most_s:
            now = self.heat(kind)
            warm = [name for name in now if now[name] > start.get(name, math.inf) + WARMER[name]]
            if not warm:
                break
            words = ", ".join(f"{name} {now[name]:.3g}, {start[name]:.3g} at the start" for name in warm)
            case.say(f"{case.name}: resting ({words})")
            time.sleep(1)
            case.rested_s = time.perf_counter() - begun
        self._rest_left_s, self._rested = self._rest_left_s - case.rested_s, time.perf_counter()

    def heat(self, kind: str) -> dict[str, float]:
        """How warm a kind of device is: its thermal level and temperature, and without the latter its power over a
        second; what the system does not say is left out."""
        with Telemetry(0.1, kind, only=("energy", "temperature", "thermal")) as look:
            time.sleep(1.1 if look.rails and "temperature_c" in look.absent else 0)
        # Not its metric: a counter that stands still is no power of a case, but that of a device at rest.
        known, samples = look.thermal["after"], look.samples
        watts = [sample.power_w for sample in samples if sample.power_w is not None]
        return known | ({"power_w": sum(watts) / len(watts)} if watts and "temperature_c" not in known else {})

    def conditions(self, say: Callable[[str], Any] = print) -> dict[str, Any]:
        """Whether the machine is fit to measure now, but for the profile `smoke` after `quiet.wait`. A look takes a
        quarter of a second, so it is good for five. Cores that others do not give up are left to them."""
        if self._looked is None or time.perf_counter() - self._looked[0] > 5:
            smoke, timed = self.profile == "smoke", self._until < math.inf
            state = snapshot.conditions() if smoke or timed else quiet.wait(self.out / quiet.WAITED, say)
            taken = round(state["others"]) if "busy" in state["flags"] and not smoke else 0
            for device in self.devices:
                device.limit_threads(max(1, quiet.usable_threads() - taken))
            self._looked = time.perf_counter(), state
        return self._looked[1]
