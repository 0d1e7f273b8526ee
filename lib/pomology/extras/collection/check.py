"""Check a shared run by its own numbers; docs/collection.md describes the rules."""

import functools
import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pandas
from msgspec import structs

from pomology.articles import devices as names
from pomology.experiment import outcome
from pomology.extras.collection import expected
from pomology.extras.compare.many import REPLACED, Broken, Traits, key_of
from pomology.extras.doctor import committed, locked, obstacles
from pomology.extras.share import foreign, share
from pomology.format import one_line
from pomology.measure import epochs, intervals
from pomology.measure.estimate import Estimate
from pomology.paths import root
from pomology.report import peaks
from pomology.results import cases
from pomology.results.record import Record
from pomology.results.run import Run

# Rules that mark a run; others refuse it. CHANGING mark one at another commit than the reference.
MARKS = {
    "unknown commit",
    "interval",  # medians of older versions have intervals of an earlier method
    "system",
    "learning",
    "time",
    "slow peaks",
    "scaled copy",
    "ratio between cases",
    "same chip",
    "repeats",
    "few cases",
    "prediction",
    "replaces",
}
CHANGING = {"flags", "work", "precision", "calibration"}
# Checks of the instrument without which no time is valid, and those that refute times.
INSTRUMENT, VARIATION = "instrument_check", "between_process_difference"
NEEDED = ("clock", "fence", "work not waited for", "same thing twice")
REFUTES = (*NEEDED, "against another clock", "same results")
# Rates of work -> the time that they are over, if not that of a step or call.
RATES = {
    "flops_per_s": "",
    "throughput": "",
    "bytes_per_s": "",
    "samples_per_s": "step_s",
    "forward_flops_per_s": "forward_s",
    "backward_flops_per_s": "backward_s",
}
STEPS = ("step_s", *cases.TIMES)  # the first of these in raw times is the time of a case
EQUAL = 2e-4  # relative, for the rounding of raw times
ROUNDING_S = 3e-9  # raw times are in whole nanoseconds
NEARLY = 0.3  # relative, for what depends on the machine
BOOST = 1.2  # a boost clock may exceed a data sheet's peak by up to 20 %
MOST_FILLED = 1.05  # share of the time of cases in raw times
FILLED = 0.7  # least share of the time of cases in raw times, relative to the reference run
CLOCKS = timedelta(days=1)  # by which the clock of a machine may be wrong
# Watts of a device that trains: less than an iPhone's, more than any card's.
POWER_W = (0.1, 2500.0)
ENERGY = 2.0  # factor between the energy of a step and its time with the power
_same = functools.partial(math.isclose, rel_tol=EQUAL, abs_tol=ROUNDING_S)


class CheckedCase(NamedTuple):
    """A case, and its metrics and flags by its raw times."""

    record: Record
    recomputed: dict[str, Estimate]
    flags: list[str]
    step_s: float | None  # time of a step or call
    rate_s: float | None  # the same without loading, if known: its rates are over this time
    spent_s: float  # sum of its raw times


class Checked(NamedTuple):
    """A checked zip, and the rules that it breaks. marks: those that do not refuse it."""

    name: str
    machine: dict[str, Any]
    cases: list[CheckedCase]
    broken: list[Broken]
    marks: set[str]
    traits: Traits

    def read(self, run: Run) -> None:
        """Add the cases and the machine of a run."""
        self.cases.extend(checked_case(record) for record in run.records)
        self.machine.update(run.machine)

    @property
    def refused(self) -> bool:
        """Whether it breaks a rule that does more than mark it, or another run continues it."""
        return any(rule not in self.marks for rule, _ in self.broken)

    @property
    def replaced(self) -> bool:
        """Whether it would be accepted, were it not for another run that continues it."""
        rules = {rule for rule, _ in self.broken} - self.marks
        return rules == {REPLACED}

    @property
    def marked(self) -> list[str]:
        """The rules that mark it."""
        return sorted({rule for rule, _ in self.broken if rule in self.marks})

    def lines(self) -> list[str]:
        """Return a line per broken rule, or one that the run is accepted."""
        texts: dict[str, list[str]] = defaultdict(list)
        for rule, text in sorted(self.broken, key=lambda broken: broken[0] in self.marks):
            kind = "marked" if rule in self.marks else "refused"
            texts[f"{'left out' if rule == REPLACED else kind}: {rule}"].append(text)
        lines = []
        for rule, of_rule in texts.items():
            more = f" (and {len(of_rule) - 1:,} more)" if len(of_rule) > 1 else ""
            lines.append(f"{rule}: {one_line(of_rule[0], 200)}{more}")
        return [f"{self.name}: {line}" for line in lines or ["accepted"]]


def check(path: Path) -> Checked:
    """Check a zip by itself, the reference run and the history of this repository."""
    one = Checked(short_name(path), {}, [], [], set(), Traits(path.name))
    try:
        reason = foreign.unreadable(path)
        if reason:
            one.broken.append(("foreign", reason))
            return one
        run = Run(path)
        one.read(run)
        commit = str((one.machine.get("git") or {}).get("commit"))
        one.marks.update(MARKS if commit == reference()["commit"] else MARKS | CHANGING)
        one.broken.extend(("foreign", text) for text in foreign.foreign(run))
        one.broken.extend(("not reproducible", text) for text in obstacles(one.machine))
        if locked(commit) is None:
            text = f"{commit} is not in this repository, or has no requirements.txt"
            one.broken.append(("unknown commit", text))
        predicted: set[str] = set()
        for case in one.cases:
            record = case.record
            title = f"{record.experiment}, {record.case} #{record.repeat}"
            for rule, text in (*_of_machine(record, one.machine), *_values(case), *_work(case)):
                one.broken.append((rule, f"{title}: {text}"))
            device = device_name(record, one.machine)
            one.broken.extend(one.traits.add(record, case.step_s, device))
            one.broken.extend(("prediction", text) for text in _predicted(case, device, predicted))
        one.traits.predicted = len(predicted)
        one.broken.extend((*_instrument(one.cases), *_rates(one.cases), *_time(one.cases)))
        one.broken.extend(_dates(one.cases, committed(commit)))
    # A zip is written by anybody: whatever it breaks is its fault, refuses it, and stops no other.
    except Exception as error:
        one.broken.append(unreadable(error))
    return one


def unreadable(error: Exception) -> Broken:
    """Return the rule that an error breaks, with its words, without a path of this machine."""
    words = error.strerror if isinstance(error, OSError) and error.strerror else error
    return "cannot be read", f"{type(error).__name__}: {words}"


def short_name(path: Path) -> str:
    """Return the name of a zip, in one line."""
    return one_line(path.name, 80)


def of_run(run: Run) -> Checked:
    """Return a run of this machine in the form of a checked zip, without checking it."""
    one = Checked(run.name, {}, [], [], set(), Traits(run.name))
    one.read(run)
    return one


def device_name(record: Record, machine: dict[str, Any]) -> str:
    """Return the name of a case's device, with its size: `M4 Max GPU (40 cores)`."""
    kind = cases.kind(record.backend)
    return names.measured(cases.short_chip(record.chip), kind, machine)


def _predicted(case: CheckedCase, device: str, predicted: set[str]) -> Iterator[str]:
    """Yield that a step is far faster than predicted of its device.

    predicted: takes the name of the case, which is equal for its repeats.
    """
    record = case.record
    prediction = expected.step(record, device) if "step_s" in case.recomputed else None
    if prediction is None or cases.DOUBTS.intersection(record.flags):
        return
    predicted.add(key_of(record))
    low, high = prediction.bounds
    if case.step_s < low / expected.BEYOND:
        between = f"{low:.3g} to {high:.3g} s"
        yield f"{record.experiment}, {record.case}: {case.step_s:.3g} s, predicted {between}"


def _dates(checked: Sequence[CheckedCase], of_commit: datetime | None) -> Iterator[Broken]:
    """Yield times of cases before their commit, or after now."""
    now = datetime.now(UTC)
    for started in sorted({case.record.started for case in checked}):
        time = datetime.fromisoformat(started)
        if time > now + CLOCKS:
            yield "date", f"{started} is after now"
        elif of_commit and time < of_commit - CLOCKS:
            yield "date", f"{started} is before its commit, of {of_commit:%Y-%m-%d}"


def checked_case(record: Record) -> CheckedCase:
    """Compute what follows from a record's raw times, by the functions that timed it.

    The instrument's checks time in ways of their own, so nothing follows from theirs.
    """
    raws = record.blocks if record.experiment != INSTRUMENT else {}
    loops = [outcome.part(name, raw) for name, raw in raws.items() if "epoch_steps" in raw]
    timed = {name: raw for name, raw in raws.items() if name in record.metrics}
    loop = loops[0] if loops else None
    parts = {"training": loop} if loop else {}
    recomputed = epochs.epoch_metrics(SimpleNamespace(parts=parts, occasional_work={}))
    for name, raw in timed.items():
        calls_s = [seconds / calls for calls, seconds in raw["steady"]]
        recomputed[name] = intervals.median_interval(calls_s)
    step_s = next((recomputed[name].value for name in STEPS if name in recomputed), None)
    rate_s = epochs.interval(loop.ready_blocks).value if loop and loop.ready_blocks else step_s
    spent_s = sum(raw.get("first_step_s") or raw.get("first_call_s") or 0 for raw in raws.values())
    for raw, name in itertools.product(raws.values(), ("warmup", "steady", "ready")):
        spent_s += sum(block_s for _, block_s in raw.get(name) or ())
    calls = [outcome.blocks_of(raw["steady"]) for raw in timed.values()]
    flags = outcome.flags(loop, calls, record.backend)
    if cases.kind(record.backend) == "cpu" and "paused" in flags:
        flags.remove("paused")  # it needs the CPU time of each block, which no journal has
    return CheckedCase(record, recomputed, flags, step_s, rate_s, spent_s)


def _of_machine(record: Record, machine: dict[str, Any]) -> Iterator[Broken]:
    """Yield what does not fit between a case and its run's machine."""
    chips = {machine.get("chip")}
    if cases.kind(record.backend) == "gpu":
        chips |= {gpu["name"] for gpu in machine["gpus"]}
    version = machine["packages"].get(record.framework, "none")
    varies = "feature" in record.config  # of `capabilities`, which is a precision itself
    on_mac = (machine.get("os"), machine.get("architecture")) == ("macOS", "arm64")
    wrong = {
        "chip": record.chip not in chips,
        "system": on_mac != ("Apple" in str(machine.get("chip"))),
        "profile": record.profile != machine.get("profile"),
        "version": not record.framework_version.startswith(version.partition("+")[0]),
        "precision": record.config.get("precision", "fp32") != record.precision and not varies,
        "calibration": record.status == "ok" and not record.calibration,
    }
    stated = f"{record.chip}, {record.profile}, {record.framework_version}, {record.precision}"
    for rule, is_wrong in wrong.items():
        if is_wrong:
            yield rule, f"{stated}: its {rule} does not fit"


def _values(case: CheckedCase) -> Iterator[Broken]:
    """Yield metrics, flags and times that do not follow from a case's raw times."""
    record = case.record
    for name, raw in case.recomputed.items():
        stated = record.metrics.get(name, Estimate(math.nan))
        if name in ("epoch_s", "compute_epoch_s"):  # these also have other work than training
            if name == "epoch_s" and record.framework == "mlx":
                # A twin makes the steps of all epochs of a fit in one loop.
                stated = record.metrics.get("fit_s", stated)
            if stated.value < 0.99 * raw.value:
                yield "raw times", f"{name} is {stated.value:.4g}; its steps take {raw.value:.4g}"
        elif not _same(stated.value, raw.value):
            yield "raw times", f"{name} is {stated.value:.4g}; its raw times give {raw.value:.4g}"
        elif raw.low is not None:
            # Rounded times give a median another tie.
            allowed = 0.3 * (raw.high - raw.low) + ROUNDING_S
            ends = zip(stated.bounds, raw.bounds, strict=True)
            if max(abs(end - of_raw) for end, of_raw in ends) > allowed:
                yield "interval", f"{name}: its raw times give another one"
    yield from _energy(case)
    for flag in case.flags:
        if flag not in record.flags:
            yield "flags", f"{flag} is missing"
    has_times = not record.metrics.keys().isdisjoint(STEPS)
    timed = has_times and record.experiment != INSTRUMENT and record.status == "ok"
    if timed and not case.recomputed:
        yield "raw times", "none"


def _energy(case: CheckedCase) -> Iterator[Broken]:
    """Yield powers and energies that no device has, or that do not fit together."""
    metrics = case.record.metrics
    power, energy = metrics.get("power_w"), metrics.get("energy_j_per_step")
    if power and not POWER_W[0] <= power.value <= POWER_W[1]:
        yield "energy", f"power_w is {power.value:.4g}; expected {POWER_W[0]:g} to {POWER_W[1]:,g}"
    elif power and energy and case.step_s:
        of_power = power.value * case.step_s
        if not 1 / ENERGY <= energy.value / of_power <= ENERGY:
            stated = f"energy_j_per_step is {energy.value:.4g}"
            yield "energy", f"{stated}; its power and its steps give {of_power:.4g}"


@functools.cache
def reference() -> dict[str, Any]:
    """Return the reference run's commit, `filled`, and `counted` by case, over its repeats."""
    counts: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    run = Run(root() / "outputs" / "reference-cpu")
    shared = [(record, share.shared_record(record, {})["config"]) for record in run.records]
    # A shared run has its settings as they are shared, so the reference run needs the same.
    checked = [checked_case(structs.replace(record, config=config)) for record, config in shared]
    for case in checked:
        for name, value in counted(case).items():
            counts[key_of(case.record)][name].append(value)
    return {"commit": run.machine["git"]["commit"], "filled": filled(checked), "counted": counts}


def counted(case: CheckedCase) -> dict[str, float]:
    """Return a case's counts of work, unless memory decides, and of what nearly is the same."""
    record = case.record
    if any(word in str(value) for word in ("near", "to fill") for value in record.config.values()):
        return {}
    stated = {"parameters": record.parameters, "flops_per_step": record.flops_per_step}
    counts = {name: value for name, value in stated.items() if value is not None}
    for name, metric in record.metrics.items():
        over = case.recomputed.get(RATES.get(name))
        seconds = over.value if over else case.rate_s
        if name in ("parameters", "forward_macs", "theoretical_bytes"):
            counts[name] = metric.value
        elif name in ("accuracy", "speedup"):
            counts[f"{name}, nearly"] = metric.value
        elif name == "loss_first":
            # A median of the first losses, whose number depends on the machine's speed.
            counts[f"{name} of {metric.n} steps, nearly"] = metric.value
        elif name in RATES and seconds:
            counts[f"{name} × time"] = metric.value * seconds
    return counts


def filled(checked: Sequence[CheckedCase]) -> dict[str, float]:
    """Return the share of the cases' time that raw times fill, by experiment."""
    timed = [
        (case.record.experiment, case.spent_s, case.record.seconds)
        for case in checked
        if case.recomputed
    ]
    sums = pandas.DataFrame(timed, columns=["name", "raw_s", "case_s"]).groupby("name").sum()
    return (sums["raw_s"] / sums["case_s"]).to_dict()


def _work(case: CheckedCase) -> Iterator[Broken]:
    """Yield counts of a case's work that are not those of the reference run, or not its rates'."""
    counts = counted(case)
    expected = reference()["counted"].get(key_of(case.record), {})
    flops = counts.get("flops_per_step")
    if flops and not _same(counts.get("flops_per_s × time", flops), flops):
        yield "raw times", f"flops_per_s is not that of {flops:.4g} FLOP per step"
    for name in counts.keys() & expected.keys():
        rule, most = ("learning", NEARLY) if "nearly" in name else ("work", EQUAL)
        count = counts[name]
        least, greatest = min(expected[name]), max(expected[name])
        # A count whose repeats differ depends on the speed.
        if _same(least, greatest, rel_tol=most / 2) and not _same(count, least, rel_tol=most):
            yield rule, f"{name} is {count:.6g}, in the reference run {least:.6g}"


def _instrument(checked: Sequence[CheckedCase]) -> Iterator[Broken]:
    """Yield missing and failed checks of the instrument, for each kind of device with results."""
    kinds = sorted({cases.kind(case.record.backend) for case in checked})
    by_check: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in (case.record for case in checked if case.record.experiment == INSTRUMENT):
        name, kind = str(record.config.get("check")), cases.kind(record.backend)
        by_check[name, kind].append(record)
        variation = record.metrics.get(VARIATION, Estimate(0)).value
        if name.startswith(NEEDED[-1]) and not 0 < variation < 3:
            yield "run-to-run variation", f"{name}, {kind}: not stated"
    for kind, name in itertools.product(kinds, REFUTES):
        records = by_check[name, kind]
        passed = [record for record in records if record.status == "ok" and record.metrics]
        if name in NEEDED and not passed:
            yield "instrument check", f"{name}, {kind}: missing"
        for status in {record.status for record in records} - {"ok", "unsupported"}:
            yield "instrument check", f"{name}, {kind}: {status}"


def _rates(checked: Sequence[CheckedCase]) -> Iterator[Broken]:
    """Yield rates above the peak of the device, and peaks far below its data sheet."""
    of_run = peaks.best_of_sound(case.record for case in checked)
    shares: dict[str, list[float]] = defaultdict(list)
    for record in (case.record for case in checked if case.record.status == "ok"):
        rates = [rate.value for name, rate in record.metrics.items() if "flops_per_s" in name]
        most = peaks.limit_of(of_run, cases.kind(record.backend), record.chip, record.precision)
        sheet = peaks.data_sheet(str(record.chip)).get(cases.precision(record))
        if sheet and rates and record.config.get("operation") in ("matmul", "vjp"):
            most = BOOST * sheet
            shares[record.chip].append(max(rates) / sheet)
        if max(rates, default=0) > most and "too-fast" not in record.flags:
            text = f"{record.experiment}, {record.case}: {max(rates):.3g} FLOP/s, above {most:.3g}"
            yield "peak", text
    for chip, shares_of_chip in shares.items():
        most = max(shares_of_chip)
        if most < 0.2:
            yield "slow peaks", f"{chip}: matmuls reach {most:.0%} of the data sheet's peak"


def _time(checked: Sequence[CheckedCase]) -> Iterator[Broken]:
    """Yield times of cases that do not fit their raw times, or the time between their starts.

    A GPU's raw times fill less of a case than the reference run's, since it is verified before.
    """
    for kind in ("cpu", "gpu"):
        of_kind = [case for case in checked if cases.kind(case.record.backend) == kind]
        for experiment, part in filled(of_kind).items():
            usual = reference()["filled"].get(experiment, 0.0)
            least = FILLED * usual if kind == "cpu" else 0.0
            if not least <= part <= MOST_FILLED:
                text = f"raw times fill {part:.0%} of the cases, usually {usual:.0%}"
                yield "time", f"{experiment}: {text}"
    # Cases never run side by side, so those of a time fit into it.
    times = sorted(
        (datetime.fromisoformat(case.record.started), case.record.seconds or 0.0)
        for case in checked
    )
    used_s = sum(seconds for _, seconds in times[:-1])
    passed_s = (times[-1][0] - times[0][0]).total_seconds() if times else 0.0
    if used_s > 1.01 * passed_s + 2:
        yield "time", f"cases of {used_s:.0f} s began within {passed_s:.0f} s"
