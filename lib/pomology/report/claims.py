"""The table of an article's claims, tested on its own numbers and on measured ones.

Many claims need two machines. Where several runs are given, each claim is tested on the first run
of the chip that it is about, or else on the first of all. The GPUs of the other runs have the names
that the article prints; one of NVIDIA is `rival` and `cuda`.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from pomology.articles import claims as articles_claims
from pomology.articles import devices, published
from pomology.articles.claims import Comparison, Decision, Number
from pomology.format import significant
from pomology.measure.estimate import REPEATS
from pomology.report.article import TRAININGS, comparable
from pomology.report.table import Row, Table, in_lines
from pomology.results import cases
from pomology.results.cases import DOUBTS, config_text
from pomology.results.record import UNTRIED, Record
from pomology.results.repeats import Repeats
from pomology.results.run import Run

NOT_SHOWN = {"interrupted", "timeout", *UNTRIED}  # statuses that do not show how a case would end
# Experiments that decode files while they train, so that synthetic files change their times.
DECODED = {line["experiment"] for line in published.read("decoded.csv")}
DEVICES = {"device", "gpu", "rival"}  # choices of a condition that are names of devices
FINDINGS = 3  # numbers of a claim about another chip that are shown
# What a claim without a verdict needs, in the order of a sentence.
MAC, NVIDIA = "a Mac's GPU", "an NVIDIA GPU"
BY_ROLE = {"mps": MAC, "mlx-gpu": MAC, "cuda": NVIDIA, "rival": NVIDIA}
IN_FRAMEWORK = {"mps": "PyTorch's results on the GPU", "mlx-gpu": "MLX's results on the GPU"}
APPLE = re.compile(r"Apple|M\d")  # how names of Apple's chips begin
OTHER = "other evidence"  # no condition tests it
SHEETS = "figures of data sheets"
FURTHER = "further cases"
NEEDS = 4  # kinds of needs that a sentence names
NOTE = (
    f"A verdict needs {REPEATS} repeats of each number without flags that question it; "
    f"REPEATS={REPEATS} measures them."
)
JOIN = "A claim about two machines needs the runs of both: make report RUN=one WITH=other."


class Machine(NamedTuple):
    """The numbers on which claims are tested, by experiment, and the chips that they are about.

    devices: its names in conditions, `cpu`, `gpu` and backends, and those of the other machines.
    """

    numbers: dict[str, list[Number]]
    chips: list[str]
    devices: set[str]


def machines(runs: Sequence[Sequence[Record]], named: Iterable[str]) -> Iterator[Machine]:
    """Yield for each run its own numbers, and those of the others as of other devices.

    named: the devices that the conditions name.
    """
    repeats = sorted({record.repeat for records in runs for record in records})
    for records in runs:
        numbers = list(measured(records, repeats, named))
        names = {
            name for record in records for name in (cases.kind(record.backend), record.backend)
        }
        # An NVIDIA machine is its own `cuda`, and another one no rival of it.
        rivals = all(record.backend != "cuda" for record in records)
        for others in runs:
            if others is not records:
                numbers += measured(others, repeats, named, own=False, rivals=rivals)
        chips = sorted({record.chip for record in records if record.chip})
        names.update(name for number in numbers for name in number.device)
        yield Machine(articles_claims.sorted_by_experiment(numbers), chips, names)


def _device(case: Repeats, named: Iterable[str], own: bool, rivals: bool) -> tuple[str, ...]:
    """Return the names of a case's device in conditions; see `measured`."""
    # The requested device: a case that ran out of memory at once was not observed on any.
    kind, backend, chip = case.kind, case.first.backend, case.first.chip or ""
    printed = [
        name
        for name in named
        if devices.same_model(chip, name) and (devices.parse(name).kind or "gpu") == kind
    ]
    if own:
        return (kind, *printed, backend)
    as_rival = ("rival", backend) if rivals and backend == "cuda" else ()
    return (*as_rival, *printed, f"{chip} {kind.upper()}")


def measured(
    records: Iterable[Record],
    repeats: Sequence[int],
    named: Iterable[str],
    own: bool = True,
    rivals: bool = False,
) -> Iterator[Number]:
    """Yield the measured numbers of all repeats.

    repeats: the numbers of all, of which a case may lack some. named: see `machines`. own: whether
    its devices are those of the machine that is tested. rivals: whether an NVIDIA GPU of another
    machine is `rival` and `cuda`.
    """
    for case in comparable(records):
        if "other-way" in case.flags:
            continue
        experiment = case.first.experiment
        settings = case.config | {"framework": case.first.framework, "precision": case.precision}
        device = _device(case, named, own, rivals)
        values = {metric: _in_repeats(case, metric, repeats) for metric in case.in_repeats}
        # The status of all repeats, if it is the same.
        ends = {status for status, _ in case.endings.values()} | ({"ok"} if case.good else set())
        if len(ends) == 1 and not ends & NOT_SHOWN:
            values["status"] = (min(ends), ())
        for metric, (value, doubts) in values.items():
            # The counts of a scaled case are equal on all devices; its times are not shown.
            observed_on = () if case.first.scaled else device
            yield Number(experiment, metric, observed_on, settings, value, doubts)


def _in_repeats(
    case: Repeats, metric: str, repeats: list[int]
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return a metric's value per repeat, of clean repeats or of all, and the doubts about them."""
    timed = {
        repeat: values[metric].value for repeat, values in case.good.items() if metric in values
    }
    clean = {
        repeat: value for repeat, value in timed.items() if DOUBTS.isdisjoint(case.flags_of[repeat])
    }
    decoded = metric in TRAININGS and case.first.experiment in DECODED
    doubts = ["synthetic data"] if decoded and case.last.data == "stand-in" else []
    if len(clean) < REPEATS:
        if len(timed) < REPEATS:
            doubts.append("too few repeats")
        flags = {flag for of_repeat in case.flags_of.values() for flag in of_repeat}
        doubts += sorted(flags & DOUBTS)
    chosen = timed if doubts else clean
    values = [chosen.get(repeat, math.nan) for repeat in repeats]
    return np.array(values, dtype=float), tuple(doubts)


def claims_table(claims: Sequence[SimpleNamespace], *runs: Sequence[Record]) -> Table:
    """Return a table of claims with verdicts on the article's numbers and on those of the runs.

    runs: the records of each, this machine's first.
    """
    authors = {article.id: article.short for article in published.articles()}
    in_conditions = set().union(*map(articles_claims.devices_of, claims))
    named = [name for name in in_conditions if any(map(str.isupper, name))]  # printed ones
    tested_on = list(machines(runs, named))
    chosen = [_of_chip(tested_on, claim.about) for claim in claims]
    decisions = [
        articles_claims.compared(claim, machine.numbers, machine.chips)
        for claim, machine in zip(claims, chosen, strict=True)
    ]
    articles_claims.judge_together(decisions)
    on_runs = "On this machine" if len(runs) < 2 else "On these machines"
    rows = []
    for claim, machine, of_machine in zip(claims, chosen, decisions, strict=True):
        (of_article,) = articles_claims.judged([claim], articles_claims.printed(claim.article))
        why = claim.holds.partition(": ")[2]
        cells = {
            "Source": f"{authors[claim.article]}, {claim.section}",
            "The article's claim, paraphrased": claim.claim,
            "Tested as": claim.reading,
            "On the article's numbers": _cell(of_article, why, remark=open_question(claim.holds)),
            on_runs: _cell(of_machine, f"needs {claim.needs}", _finding(of_machine, machine)),
        }
        data = {
            "id": claim.id,
            "claim": claim.claim,
            "published": of_article.status,
            "here": of_machine.status,
            "holds": claim.holds,
            "restates": claim.restates,
            "timed": of_machine.timed,
            "lacks": _lacks(claim, of_machine, machine),
        }
        rows.append(Row(cells, data))
    return Table("Claims", rows, [NOTE] if len(runs) > 1 else [NOTE, JOIN])


def open_question(holds: str) -> str:
    """Return the question that the reading of a contradicted claim leaves, "" without one.

    holds: of claims.csv, a plain `no` or one with its question.
    """
    answer, _, question = holds.partition(": ")
    return f"open question: {question}" if answer == "no" and question else ""


def joined_table(runs: Sequence[Run]) -> Table:
    """Return the table of all articles' claims, tested on several runs together."""
    claims = claims_table(published.claims(), *(run.records for run in runs))
    claims.title = f"Claims of the articles on {' and '.join(run.name for run in runs)}"
    return claims


def _of_chip(tested_on: Sequence[Machine], model_or_maker: str) -> Machine:
    """Return the first machine of a chip, or else the first one."""
    fitting = (
        machine for machine in tested_on if articles_claims.is_of_any(machine.chips, model_or_maker)
    )
    return next(fitting, tested_on[0])


def _finding(decision: Decision, machine: Machine) -> str:
    """Return what a claim about another chip gives here: `on the M3 Max: CPU / GPU = 7.90`."""
    given = [one for one in decision.comparisons if one.value == one.value]  # not NaN
    if not decision.other_chip or not given or not machine.chips:
        return ""
    texts = [f"{_number(one)}, claimed {_claimed(one)}" for one in given[:FINDINGS]]
    more = f", and {len(given) - FINDINGS} more" if len(given) > FINDINGS else ""
    doubts = dict.fromkeys(doubt for one in given for doubt in one.doubts)
    doubted = f" ({', '.join(doubts)})" if doubts else ""
    chips = " and ".join(map(cases.short_chip, machine.chips))
    return f"on the {chips}: {'; '.join(texts)}{more}{doubted}"


def needs(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return what claims without a verdict need: `4 need a Mac's GPU, 1 needs repeats`.

    rows: data of the table of claims.
    """
    counted = Counter(row["lacks"] for row in rows if row["lacks"]).most_common()
    shown = counted[:NEEDS]
    others = sum(count for _, count in counted[NEEDS:])
    shown += [("something else", others)] if others else []
    return ", ".join(f"{count} {'needs' if count == 1 else 'need'} {what}" for what, count in shown)


def _lacks(claim: SimpleNamespace, decision: Decision, machine: Machine) -> str:
    """Return what a claim needs for a verdict, `repeats` or `a Mac's GPU`; "" if it has one."""
    if decision.status in (articles_claims.SUPPORTED, articles_claims.CONTRADICTED):
        return ""
    if decision.status == articles_claims.INCONCLUSIVE:
        undecided = [each for each in decision.comparisons if each.holds is None]
        doubts = {doubt for each in undecided for doubt in each.doubts}
        texts = ["repeats"] if any("repeats" in doubt for doubt in doubts) else []
        texts += ["real data"] if "synthetic data" in doubts else []
        texts += ["cases without flags"] if doubts & DOUBTS else []
        return _joined(texts or ["narrower intervals"])
    if not claim.conditions:
        return OTHER
    if claim.experiments[0] == "hardware":
        return SHEETS
    wanted = sorted(articles_claims.devices_of(claim) - machine.devices)
    wanted += [claim.about] if decision.other_chip else []
    lacking = {_device_needed(name, machine) for name in wanted} - {""}
    if len(lacking) > 1:
        lacking.discard("a GPU")  # the other one is a GPU, too
    return _joined(sorted(lacking)) or FURTHER


def _device_needed(name: str, machine: Machine) -> str:
    """Return what a machine lacks of a device that it does not have; "" if nothing.

    name: in a condition, or the chip or maker that a claim is about.
    """
    if name in ("cpu", "gpu"):
        return f"a {name.upper()}"
    if name == "device":  # any GPU, in a condition for each of them
        return "" if "gpu" in machine.devices else "a GPU"
    maker = BY_ROLE.get(name) or (MAC if APPLE.match(name) else NVIDIA)
    is_mac = any(chip.startswith("Apple") for chip in machine.chips)
    if not (is_mac if maker == MAC else "cuda" in machine.devices):
        return maker
    if name in BY_ROLE:
        return IN_FRAMEWORK.get(name, "")  # an NVIDIA machine is no rival of itself
    return f"{'an' if name[0] in 'AMR' else 'a'} {name}"


def _joined(texts: Sequence[str]) -> str:
    """Return texts as `a, b and c`."""
    return " and ".join(filter(None, (", ".join(texts[:-1]), *texts[-1:])))


def _cell(decision: Decision, lacks: str, finding: str = "", remark: str = "") -> str:
    """Return a decision with its first deciding comparison, and with what it lacks.

    lacks: the text for missing numbers. finding: see `_finding`. remark: for a contradiction.
    """
    status = decision.status
    if status == articles_claims.NOT_TESTABLE:
        return in_lines(status, finding, lacks, _missing(decision))
    holds = {articles_claims.SUPPORTED: True, articles_claims.CONTRADICTED: False}.get(status)
    deciding = next(comparison for comparison in decision.comparisons if comparison.holds is holds)
    reason = remark if holds is False else ""
    if status == articles_claims.INCONCLUSIVE:
        doubts = dict.fromkeys(
            doubt for comparison in decision.comparisons for doubt in comparison.doubts
        )
        reason = ", ".join(doubts) or "too close to tell"
    return in_lines(status, _number(deciding), f"claimed {_claimed(deciding)}", reason)


def _missing(decision: Decision) -> str:
    """Return the comparisons without a number, where a claim has others with one."""
    missing = [one for one in decision.comparisons if one.value != one.value]  # NaN
    if decision.other_chip or not missing or len(missing) == len(decision.comparisons):
        return ""
    names = dict.fromkeys(
        f"{one.condition.name} ({_settings(one)})" if one.settings else one.condition.name
        for one in missing
    )
    more = f" and {len(names) - FINDINGS} more" if len(names) > FINDINGS else ""
    return f"no number: {', '.join(list(names)[:FINDINGS])}{more}"


def _claimed(comparison: Comparison) -> str:
    """Return what a claim says of a comparison: `> 1`, and of a status `ok` or `not ok`."""
    claimed = comparison.condition.claimed.removeprefix("== ").replace("!= ", "not ")
    return claimed.replace(">= ", "≥ ").replace("<= ", "≤ ")


def _number(comparison: Comparison) -> str:
    """Return a comparison's number as `batch size 64: CPU / GPU = 0.428 (0.40 to 0.45)`."""
    value = comparison.value
    number = value if isinstance(value, str) else significant(value)
    if comparison.interval:
        low, high = map(significant, comparison.interval)
        number += f" ({low} to {high})"
    label = f"{_settings(comparison)}: " if comparison.settings else ""
    return f"{label}{comparison.condition.name} = {number}"


def _settings(comparison: Comparison) -> str:
    """Return a comparison's devices and settings: `M2 Ultra, RTX 4090, batch size 64`."""
    return ", ".join(
        str(value) if key in DEVICES else config_text({key: value})
        for key, value in comparison.settings.items()
    )
