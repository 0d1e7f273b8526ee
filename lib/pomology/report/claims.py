"""The table of an article's claims, tested on its own numbers and on measured ones."""

import math
from collections.abc import Iterable, Iterator, Sequence
from types import SimpleNamespace

import numpy as np

from pomology.articles import claims as articles_claims
from pomology.articles import published
from pomology.articles.claims import Decision, Number
from pomology.format import significant
from pomology.measure.estimate import REPEATS
from pomology.report.article import TRAININGS, comparable
from pomology.report.table import Row, Table
from pomology.results.cases import DOUBTS, config_text
from pomology.results.record import UNTRIED, Record
from pomology.results.repeats import Repeats

NOT_SHOWN = {"interrupted", "timeout", *UNTRIED}  # statuses that do not show how a case would end
# Experiments that decode files while they train, so that synthetic files change their times.
DECODED = {line["experiment"] for line in published.read("decoded.csv")}
NOTE = (
    f"A verdict needs {REPEATS} repeats of each number without flags that question it; "
    f"REPEATS={REPEATS} measures them."
)


def measured(records: Iterable[Record]) -> Iterator[Number]:
    """Yield the measured numbers of all repeats; a device is `cpu` or `gpu`, and its backend."""
    cases = [case for case in comparable(records) if "other-way" not in case.flags]
    repeats = sorted({repeat for case in cases for repeat in case.flags_of})
    for case in cases:
        experiment = case.first.experiment
        settings = case.config | {"framework": case.first.framework, "precision": case.precision}
        # The requested device: a case that ran out of memory at once was not observed on any.
        device = (case.kind, case.first.backend)
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
        doubts += [flag for flag in case.flags if flag in DOUBTS]
    chosen = timed if doubts else clean
    values = [chosen.get(repeat, math.nan) for repeat in repeats]
    return np.array(values, dtype=float), tuple(doubts)


def claims_table(claims: Sequence[SimpleNamespace], records: Sequence[Record]) -> Table:
    """Return a table of claims with verdicts on the article's numbers and on this machine's."""
    chips = sorted({record.chip for record in records if record.chip})
    authors = {article.id: article.short for article in published.articles()}
    decisions = articles_claims.judged(claims, measured(records), chips)
    rows = []
    for claim, of_machine in zip(claims, decisions, strict=True):
        (of_article,) = articles_claims.judged([claim], articles_claims.printed(claim.article))
        cells = {
            "Source": f"{authors[claim.article]}, {claim.section}",
            "The article says, in other words": claim.claim,
            "Read as": claim.reading,
            "On the article's numbers": _cell(of_article, claim.holds.partition(": ")[2]),
            "On this machine": _cell(of_machine, f"needs {claim.needs}"),
        }
        data = {
            "id": claim.id,
            "claim": claim.claim,
            "published": of_article.status,
            "here": of_machine.status,
        }
        rows.append(Row(cells, data))
    return Table("Claims", rows, [NOTE])


def _cell(decision: Decision, lacks: str) -> str:
    """Return a decision as `contradicted: CPU / GPU = 0.428 (0.40 to 0.45); claimed > 1`.

    The first deciding comparison is shown. lacks: the text for missing numbers.
    """
    status = decision.status
    if status == articles_claims.NOT_TESTABLE:
        return f"{status}: {lacks}"
    holds = {articles_claims.SUPPORTED: True, articles_claims.CONTRADICTED: False}.get(status)
    deciding = next(comparison for comparison in decision.comparisons if comparison.holds is holds)
    if status == articles_claims.INCONCLUSIVE:
        doubts = dict.fromkeys(
            doubt for comparison in decision.comparisons for doubt in comparison.doubts
        )
        status += f" ({', '.join(doubts) or 'too close to tell'})"
    number = deciding.value if isinstance(deciding.value, str) else significant(deciding.value)
    if deciding.interval:
        low, high = map(significant, deciding.interval)
        number += f" ({low} to {high})"
    label = f"{config_text(deciding.settings)}: " if deciding.settings else ""
    condition = deciding.condition
    return f"{status}: {label}{condition.name} = {number}; claimed {condition.claimed}"
