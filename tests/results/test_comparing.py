"""The rule of every comparison, on the processes of four real runs and on times made by hand."""

import itertools

import numpy as np
import pytest
from records import metric, record

from pomology.extras.compare.comparison import TIMES
from pomology.measure.estimate import Estimate
from pomology.paths import root
from pomology.results import comparing
from pomology.results.cases import DOUBTS
from pomology.results.comparing import Compared, judge
from pomology.results.repeats import run_to_run_by_kind
from pomology.results.run import Run

COLLECTION = root() / "collection"
# Three repeats and a single run of one machine, of one day.
REPEATS = COLLECTION / "amd-epyc-2026-11-26.zip"
SAME_DAY = COLLECTION / "amd-epyc-2026-11-26-2.zip"


@pytest.fixture(scope="module")
def pairs():
    """The times and flags of each case in each two of four single runs of one machine."""
    repeats = Run(REPEATS).records
    runs = [[each for each in repeats if each.repeat == number] for number in range(3)]
    runs.append(Run(SAME_DAY).records)
    variations = run_to_run_by_kind(repeats)
    pairs = []
    for first, second in itertools.permutations(runs, 2):
        by_case = {(each.experiment, each.case): each for each in second}
        for one in first:
            other = by_case.get((one.experiment, one.case))
            if other is None or {one.status, other.status} != {"ok"}:
                continue
            both = one.metrics.keys() & other.metrics.keys()
            time = next((name for name in TIMES if name in both), None)
            if time:
                times = [each.metrics[time].value for each in (one, other)]
                flags = DOUBTS.intersection([*one.flags, *other.flags])
                pairs.append((*times, flags))
    return pairs, (variations["cpu"], variations["cpu"])


@pytest.mark.parametrize(("factor", "least"), [(1.0, None), (1.5, 0.85), (2.0, 0.95)])
def test_single_runs_differ_by_chance_in_5_percent_and_a_large_difference_is_seen(
    pairs, factor, least
):
    times, variations = pairs
    compared = [
        Compared(
            base_s=[one],
            other_s=[factor * other],
            variations=variations,
            flags={flag: flag for flag in flags},
        )
        for one, other, flags in times
    ]
    judge(compared)
    slower = np.mean([each.verdict == comparing.SLOWER for each in compared])
    differ = np.mean([each.differs for each in compared])
    assert len(compared) > 2500
    assert differ <= 0.05 if least is None else slower >= least


@pytest.mark.parametrize(
    ("flags", "ratio", "verdict"),
    [
        ([], 1.36, "slower"),
        (["few-steps"], 1.36, "within run-to-run variation"),  # 1.35 to the power of 1.1 is 1.39
        (["few-steps"], 1.44, "slower"),
        (["drift", "few-steps"], 1.7, "within run-to-run variation"),
        (["drift"], 1.9, "slower"),
        (["contended"], 1.36, "in doubt: slower, but contended"),
        (["contended"], 9.0, "in doubt: slower, but contended"),
    ],
)
def test_a_flag_widens_what_two_equal_runs_may_differ_by_or_leaves_any_difference_in_doubt(
    flags, ratio, verdict
):
    variations = (0.17, 0.17)  # 1.17 to the power of 1.9 is 1.347
    compared = Compared(
        base_s=[1.0], other_s=[ratio], variations=variations, flags={flag: flag for flag in flags}
    )
    judge([compared])
    assert compared.verdict == verdict


def test_few_steps_are_no_doubt_where_repeats_show_the_spread():
    compared = Compared(base_s=[1, 1.1, 0.9], other_s=[3, 3.2, 2.9], flags={"few-steps": "few"})
    judge([compared])
    assert compared.verdict == "slower" and compared.low > 2
    times = {"base_s": [1, 1.01, 0.99], "flags": {"busy": "busy in b"}}
    doubted = Compared(other_s=[1.3, 1.31, 1.29], **times)
    large = Compared(other_s=[3, 3.02, 2.98], **times)
    contended = Compared(base_s=[1, 1.01, 0.99], other_s=[3, 3.1, 2.9], flags={"contended": "c"})
    judge([doubted, large, contended])
    assert doubted.verdict == "in doubt: slower, but busy in b"
    assert large.verdict == "slower" and contended.verdict == "in doubt: slower, but c"
    # Of three repeats one was left out.
    two = Compared(base_s=[1, 1.01, 0.99], other_s=[3, 3.02])
    judge([two])
    assert two.verdict == "slower" and two.repeated


def test_a_sentence_says_how_many_equal_cases_differ_by_chance():
    def single(count):
        compared = [Compared(base_s=[1], other_s=[1], variations=(0.1, 0.1)) for _ in range(count)]
        judge(compared)
        return comparing.by_chance(compared)

    assert single(1) == "Of 1 equal cases of single runs fewer than one would differ by chance."
    assert single(235) == "Of 235 equal cases of single runs about 12 would differ by chance."
    assert single(0) == ""


def test_a_ratio_of_single_runs_has_the_bounds_of_run_to_run_variation_or_none():
    in_process = Estimate(2.0, "", 1.9, 2.1, 20)
    assert comparing.bounded(in_process, {}, ("cpu", "gpu")).covers == "none"
    bounded = comparing.bounded(in_process, {"cpu": 0.2, "gpu": 0.2}, ("cpu", "gpu"))
    assert (bounded.low, bounded.high) == pytest.approx((2 / 1.2**1.9, 2 * 1.2**1.9))
    between = Estimate(2.0, "", 1.9, 2.1, 3, covers="repeats")
    assert comparing.bounded(between, {}, ("cpu", "gpu")) is between


def test_the_variation_is_that_of_instrument_check():
    values = {"between_process_difference": metric(0.3, unit="")}
    checked = record("instrument_check", values, {"check": "same thing twice"}, backend="mps")
    assert run_to_run_by_kind([checked, record()]) == {"gpu": 0.3}
