"""Every published time of a training, and this run's at the same settings, as speeds that can be divided."""

from __future__ import annotations

import functools
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from pomology.articles import elsewhere, published
from pomology.measure.estimate import Estimate
from pomology.report.summary import WORKLOAD_OF, must_match
from pomology.results import cases
from pomology.results.cases import chip_name, combined, comparable, groups
from pomology.results.record import Record

MEASURED, OTHER = "measured", "other"  # here, and in a run of other people that is shown beside this one


class Speed(NamedTuple):
    """How much of its work a device did in a second. terms: what was the same for all that have the same text.

    source: `measured`, `other`, or the id of an article or of another source. faults: of elsewhere.FAULTS, or flags of
    a case. steps: of this machine's, how many steady ones the shortest of its runs is from.
    """

    workload: str
    terms: str
    device: str
    role: str
    source: str
    framework: str
    version: str
    year: str
    rate: Estimate
    faults: frozenset[str] = frozenset()
    runs: int = 1
    steps: int = 0

    @property
    def sound(self) -> bool:
        """Whether it has no fault that changes what was timed."""
        return not self.faults & elsewhere.SERIOUS

    def over(self, other: Speed) -> tuple[Estimate, bool]:
        """How many times as fast it is, and whether both did the same, without a fault that changes what was timed."""
        rate = other.rate if other.source in (MEASURED, OTHER) else other.rate.replace(how="counted", covers="exact")
        faults = (self.faults | other.faults) - (self.faults & other.faults & elsewhere.SHARED)
        ratio = Estimate.count(1) if self is other else self.rate / rate
        return ratio, not faults & elsewhere.SERIOUS


def speeds(records: Sequence[Record], others: Sequence[Sequence[Record]] = ()) -> list[Speed]:
    """All published ones, this run's, and those of other people's runs, each at the settings of a source."""
    their_runs = [speed._replace(source=OTHER, role="") for each in others for speed in _measured(each)]
    return [speed for speed, _ in _published()] + list(_measured(records)) + their_runs


@functools.cache
def _published() -> tuple[tuple[Speed, dict], ...]:
    """Every published time, with the row that it is from; of the articles', whose trainings are in several rows, that
    whose operations somebody has counted."""
    names, rows = elsewhere.devices(), []
    for row in published.rows():
        if row["flops"] and row["metric"].endswith("_s"):
            _, year = published.software(row["article"], row["device"], row["framework"], row["source"])
            about = {"workload": WORKLOAD_OF.get(row["experiment"], row["experiment"]), "source": row["article"]}
            about |= {"device": names.get(row["device"], row["device"]), "year": year, "strict": False}
            rows.append(row | about | {"faults": elsewhere.faults(row)})
    rows += [row | {"experiment": row["workload"], "strict": True} for row in elsewhere.rows()]
    made = []
    for row in rows:
        # What must be the same.
        terms = json.dumps(must_match(row) | {"precision": row["precision"], "metric": row["metric"]}, sort_keys=True)
        name, _, version = row["framework"].partition(" ")
        about = (row["workload"], terms, row["device"], row["role"], row["source"], name.replace("py", ""))
        rate = Estimate(elsewhere.rate(row), "1/s", how="published")
        made.append((Speed(*about, version, row["year"], rate, frozenset(row["faults"])), row))
    return tuple(made)


def _measured(records: Sequence[Record]) -> Iterator[Speed]:
    """This run's cases of what others have timed, at each of their settings."""
    rows, seen, there = defaultdict(dict), set(), {speed.device for speed, _ in _published()}
    for speed, row in _published():
        rows[row["experiment"]].setdefault(speed.terms, row)
    usual = [record for record in comparable(records) if "other-way" not in record.flags]
    # A second way to run a setting has more keys in its config than the article's own.
    for repeats in sorted(groups(usual), key=lambda repeats: len(repeats[0].config)):
        first, good = repeats[0], cases.good_of(repeats)
        for terms, row in rows[published.experiment_of(first.experiment)].items():
            key, rate, config = (first.experiment, first.backend, terms), _rate(good, row["metric"]), must_match(row)
            # An article's rows also name what is the same in all its cases.
            asked = config.keys() if row["strict"] else config.keys() & first.config.keys()
            same = bool(asked) and all(first.config.get(name) == config[name] for name in asked)
            if key in seen or not rate or cases.precision(first) != row["precision"] or not same:
                continue
            seen.add(key)
            device = chip_name(first) + " (here)" * (chip_name(first) in there)
            about = (row["workload"], terms, device, cases.kind(first), MEASURED, first.framework)
            # A repeat that had no more than its first step adds nothing to the rate.
            steps = min(filter(None, (sum(count for count, _ in each.steady()) for each in good)), default=0)
            software = (first.framework_version, first.started[:4])
            yield Speed(*about, *software, rate, faults(good), len(good), steps)


def _rate(repeats: Sequence[Record], metric: str) -> Estimate | None:
    """Of a time its inverse; pieces a second under the name that the source or the kit has for them."""
    rate = metric.endswith("_per_s")
    names = {"samples_per_s": "throughput", "steps_per_s": "step_s"}
    value = combined(repeats, metric) or combined(repeats, names.get(metric, metric))
    if not value or value.value <= 0:
        return None
    return (value if rate and value.unit != "s" else 1 / value).replace(unit="1/s")


def faults(repeats: Sequence[Record]) -> frozenset[str]:
    """The flags of a case, and whether loading the data took longer than computing, as in `elsewhere.FAULTS`."""
    flags = frozenset(flag for record in repeats for flag in record.flags)
    whole, computing = (combined(repeats, name) for name in ("epoch_s", "compute_epoch_s"))
    return flags | {"loader-bound"} if whole and computing and whole.value > 2 * computing.value else flags


def doubts(faults: Iterable[str]) -> dict[str, list[str]]:
    """What casts doubt on a number with these flags and faults, in words, by whether it may then be trusted: `no`, or
    `roughly`. Empty where nothing does."""
    known = set(faults)
    serious = [elsewhere.FAULTS[fault] for fault in sorted(known & elsewhere.SERIOUS)]
    others = [cases.FLAGS[flag].partition(":")[0] for flag in sorted((known & cases.DOUBTS) - elsewhere.SERIOUS)]
    return {word: reasons for word, reasons in (("no", serious), ("roughly", others)) if reasons}
