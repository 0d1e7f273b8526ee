"""Check a shared run by its own numbers; docs/collection.md describes the rules."""

import functools
import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pandas
from msgspec import structs

from pomology.errors import PomologyError
from pomology.experiment import outcome
from pomology.extras.compare.many import Broken, Traits, key_of
from pomology.extras.doctor import locked, obstacles
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
MARKS = {"unknown commit", "system", "learning", "time", "slow peaks", "scaled copy"}
MARKS |= {"ratio between cases", "same chip", "repeats"}
CHANGING = {"interval", "flags", "work", "precision", "calibration"}
# Checks of the instrument without which no time is valid, and those that refute times.
INSTRUMENT, VARIATION = "instrument_check", "between_process_difference"
NEEDED = ("clock", "fence", "work not waited for", "same thing twice")
REFUTES = (*NEEDED, "against another clock", "same results")
# Rates of work -> the time that they are over, if not that of a step or call.
RATES = dict.fromkeys(("flops_per_s", "throughput", "bytes_per_s"), "")
RATES |= {"forward_flops_per_s": "forward_s", "backward_flops_per_s": "backward_s"}
STEPS = ("step_s", *cases.TIMES)  # the first of these in raw times is the time of a case
EQUAL = 2e-4  # relative, for the rounding of raw times
ROUNDING_S = 3e-9  # raw times are in whole nanoseconds
NEARLY = 0.3  # relative, for what depends on the machine
BOOST = 1.2  # a boost clock may exceed a data sheet's peak by up to 20 %
FILLED = 0.7  # least share of the time of cases in raw times, relative to the reference run
UNREADABLE = (PomologyError, LookupError, AttributeError, ArithmeticError, TypeError, ValueError)
_same = functools.partial(math.isclose, rel_tol=EQUAL, abs_tol=ROUNDING_S)


class Row(NamedTuple):
    """A case, and its metrics and flags by its raw times."""

    record: Record
    own: dict[str, Estimate]
    flags: list[str]
    step_s: float | None  # time of a step or call
    rate_s: float | None  # the same without loading, if known: its rates are over this time
    spent_s: float  # sum of its raw times


class Checked(NamedTuple):
    """A checked zip, and the rules that it breaks. marks: those that do not refuse it."""

    name: str
    machine: dict[str, Any]
    rows: list[Row]
    broken: list[Broken]
    marks: set[str]
    traits: Traits

    @property
    def refused(self) -> bool:
        return any(rule not in self.marks for rule, _ in self.broken)

    def lines(self) -> list[str]:
        """Return a line per broken rule, or one that the run is accepted."""
        texts: dict[str, list[str]] = defaultdict(list)
        for rule, text in sorted(self.broken, key=lambda broken: broken[0] in self.marks):
            texts[f"{'marked' if rule in self.marks else 'refused'}: {rule}"].append(text)
        found = [(rule, one_line(each[0], 200), len(each) - 1) for rule, each in texts.items()]
        lines = [f"{rule}: {text}{f' (and {n:,} more)' if n else ''}" for rule, text, n in found]
        return [f"{self.name}: {line}" for line in lines or ["accepted"]]


def check(place: Path) -> Checked:
    """Check a zip by itself, the reference run and the history of this repository."""
    run = Run(place)
    one = Checked(one_line(place.name, 80), {}, [], [], set(), Traits(place.name))
    try:
        one.rows.extend(row(record) for record in run.records)
        one.machine.update(run.machine)
        commit = str((one.machine.get("git") or {}).get("commit"))
        one.marks.update(MARKS if commit == reference()["commit"] else MARKS | CHANGING)
        one.broken.extend(("foreign", text) for text in foreign.foreign(run))
        one.broken.extend(("not reproducible", text) for text in obstacles(one.machine))
        if locked(commit) is None:
            one.broken.append(("unknown commit", f"{commit} is not in this repository"))
        for each in one.rows:
            found = [*_of_machine(each.record, one.machine), *_values(each), *_work(each)]
            about = f"{each.record.experiment}, {each.record.case} #{each.record.repeat}"
            one.broken.extend((rule, f"{about}: {text}") for rule, text in found)
            one.broken.extend(one.traits.add(each.record, each.step_s))
        one.broken.extend((*_instrument(one.rows), *_rates(one.rows), *_time(one.rows)))
    except UNREADABLE as error:
        one.broken.append(("cannot be read", f"{type(error).__name__}: {error}"))
    return one


def row(record: Record) -> Row:
    """Compute what follows from a record's raw times, by the functions that timed it.

    The instrument's checks time in ways of their own, so nothing follows from theirs.
    """
    raws = record.blocks if record.experiment != INSTRUMENT else {}
    loops = [outcome.part(name, raw) for name, raw in raws.items() if "epoch_steps" in raw]
    timed = {name: raw for name, raw in raws.items() if name in record.metrics}
    loop = loops[0] if loops else None
    parts = {"training": loop} if loop else {}
    own = epochs.epoch_metrics(SimpleNamespace(parts=parts, occasional_work={}))
    for name, raw in timed.items():
        own[name] = intervals.median_interval([seconds / calls for calls, seconds in raw["steady"]])
    step_s = next((own[name].value for name in STEPS if name in own), None)
    rate_s = epochs.interval(loop.ready_blocks).value if loop and loop.ready_blocks else step_s
    spent_s = sum(raw.get("first_step_s") or raw.get("first_call_s") or 0 for raw in raws.values())
    for raw, name in itertools.product(raws.values(), ("warmup", "steady", "ready")):
        spent_s += sum(block_s for _, block_s in raw.get(name) or ())
    flags = outcome.flags(None, loop, timed, record.backend)
    return Row(record, own, flags, step_s, rate_s, spent_s)


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
    about = f"{record.chip}, {record.profile}, {record.framework_version}, {record.precision}"
    yield from ((rule, f"{about}: its {rule} does not fit") for rule in wrong if wrong[rule])


def _values(row: Row) -> Iterator[Broken]:
    """Yield metrics, flags and times that do not follow from a case's raw times."""
    record, metrics = row.record, row.record.metrics
    for name, own in row.own.items():
        stated = metrics.get(name, Estimate(math.nan))
        if name in ("epoch_s", "compute_epoch_s"):  # these also have other work than training
            if stated.value < 0.99 * own.value:
                yield "raw times", f"{name} is {stated.value:.4g}; its steps take {own.value:.4g}"
        elif not _same(stated.value, own.value):
            yield "raw times", f"{name} is {stated.value:.4g}; its raw times give {own.value:.4g}"
        elif own.low is not None:
            # Rounded times give a median another tie.
            allowed = 0.3 * (own.high - own.low) + ROUNDING_S
            if max(abs(a - b) for a, b in zip(stated.bounds, own.bounds, strict=True)) > allowed:
                yield "interval", f"{name}: its raw times give another one"
    yield from (("flags", f"{flag} is missing") for flag in row.flags if flag not in record.flags)
    timed = metrics.keys() & STEPS and record.experiment != INSTRUMENT and record.status == "ok"
    if timed and not row.own:
        yield "raw times", "none"


@functools.cache
def reference() -> dict[str, Any]:
    """Return the reference run's commit, `filled`, and `counted` by case, over its repeats."""
    counts: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    run = Run(root() / "outputs" / "reference-cpu")
    shared = [(record, share.shared_record(record, {})["config"]) for record in run.records]
    rows = [row(structs.replace(record, config=config)) for record, config in shared]
    for each in rows:
        for name, value in counted(each).items():
            counts[key_of(each.record)][name].append(value)
    return {"commit": run.machine["git"]["commit"], "filled": filled(rows), "counted": counts}


def counted(row: Row) -> dict[str, float]:
    """Return a case's counts of work, unless memory decides, and of what nearly is the same."""
    record = row.record
    if any(word in str(value) for word in ("near", "to fill") for value in record.config.values()):
        return {}
    counts = {"parameters": record.parameters, "flops_per_step": record.flops_per_step}
    found = {name: value for name, value in counts.items() if value is not None}
    for name, metric in record.metrics.items():
        over = row.own.get(RATES.get(name))
        seconds = over.value if over else row.rate_s
        if name in ("parameters", "forward_macs", "theoretical_bytes"):
            found[name] = metric.value
        elif name in ("loss_first", "accuracy", "speedup"):
            found[f"{name}, nearly"] = metric.value
        elif name in RATES and seconds:
            found[f"{name} × time"] = metric.value * seconds
    return found


def filled(rows: Sequence[Row]) -> dict[str, float]:
    """Return the share of the cases' time that raw times fill, by experiment."""
    timed = [(row.record.experiment, row.spent_s, row.record.seconds) for row in rows if row.own]
    sums = pandas.DataFrame(timed, columns=["name", "raw_s", "case_s"]).groupby("name").sum()
    return (sums["raw_s"] / sums["case_s"]).to_dict()


def _work(row: Row) -> Iterator[Broken]:
    """Yield counts of a case's work that are not those of the reference run, or not its rates'."""
    own = counted(row)
    known = reference()["counted"].get(key_of(row.record), {})
    flops = own.get("flops_per_step")
    if flops and not _same(own.get("flops_per_s × time", flops), flops):
        yield "raw times", f"flops_per_s is not that of {flops:.4g} FLOP per step"
    for name in own.keys() & known.keys():
        rule, most = ("learning", NEARLY) if "nearly" in name else ("work", EQUAL)
        least, greatest = min(known[name]), max(known[name])
        # A count whose repeats differ depends on the speed.
        if _same(least, greatest, rel_tol=most / 2) and not _same(own[name], least, rel_tol=most):
            yield rule, f"{name} is {own[name]:.6g}, in the reference run {least:.6g}"


def _instrument(rows: Sequence[Row]) -> Iterator[Broken]:
    """Yield missing and failed checks of the instrument, for each kind of device with results."""
    found: dict[str, list[Record]] = defaultdict(list)
    for record in (row.record for row in rows if row.record.experiment == INSTRUMENT):
        about = f"{record.config.get('check')}, {cases.kind(record.backend)}"
        found[about].append(record)
        stated = record.metrics.get(VARIATION, Estimate(0)).value
        if about.startswith(NEEDED[-1]) and not 0 < stated < 3:
            yield "run-to-run variation", f"{about}: not stated"
    kinds = sorted({cases.kind(row.record.backend) for row in rows})
    for name, about in ((name, f"{name}, {kind}") for kind in kinds for name in REFUTES):
        if name in NEEDED and not any(
            each.status == "ok" and each.metrics for each in found[about]
        ):
            yield "instrument check", f"{about}: missing"
        for status in {record.status for record in found[about]} - {"ok", "unsupported"}:
            yield "instrument check", f"{about}: {status}"


def _rates(rows: Sequence[Row]) -> Iterator[Broken]:
    """Yield rates above the peak of the device, and peaks far below its data sheet."""
    limit = functools.cache(functools.partial(peaks.limit, [row.record for row in rows]))
    shares: dict[str, list[float]] = defaultdict(list)
    for record in (row.record for row in rows if row.record.status == "ok"):
        rates = [each.value for name, each in record.metrics.items() if "flops_per_s" in name]
        most = limit(cases.kind(record.backend), record.chip, record.precision)
        sheet = peaks.data_sheet(str(record.chip)).get(cases.precision(record))
        if sheet and rates and record.config.get("operation") in ("matmul", "vjp"):
            most = BOOST * sheet
            shares[record.chip].append(max(rates) / sheet)
        if max(rates, default=0) > most and "too-fast" not in record.flags:
            text = f"{record.experiment}, {record.case}: {max(rates):.3g} FLOP/s, above {most:.3g}"
            yield "peak", text
    for chip, found in shares.items():
        if max(found) < 0.2:
            yield "slow peaks", f"{chip}: matmuls reach {max(found):.0%} of the data sheet's peak"


def _time(rows: Sequence[Row]) -> Iterator[Broken]:
    """Yield times of cases that do not fit their raw times, or the time between their starts."""
    for experiment, part in filled(rows).items():
        usual = reference()["filled"].get(experiment, 0.0)
        if not FILLED * usual <= part <= 1.05:
            yield (
                "time",
                f"{experiment}: raw times fill {part:.0%} of the cases, usually {usual:.0%}",
            )
    times = [
        (datetime.fromisoformat(row.record.started), row.record.seconds or 0.0) for row in rows
    ]
    used_s = passed_s = 0.0
    for (start, seconds), (after, _) in itertools.pairwise(sorted(times)):
        used_s += seconds
        # More than a minute between two cases is the pause of a resumed run.
        passed_s += min((after - start).total_seconds(), seconds + 60)
    if not 0.35 * passed_s - 2 <= used_s <= 1.01 * passed_s + 2:
        yield "time", f"cases of {used_s:.0f} s began within {passed_s:.0f} s"
