"""How often verdicts on claims are wrong, and how often they are there: drawn with a fixed seed, and by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pomology.articles import claims
from pomology.articles.claims import CONTRADICTED, INCONCLUSIVE, SUPPORTED, Term
from pomology.articles.published import Claim
from pomology.measure import intervals
from pomology.measure.estimate import Estimate


class Repeats:
    """A lookup of repeats, by role and case; of a case that it lacks it has the first."""

    def __init__(self, cpu: np.ndarray, gpu: np.ndarray):
        self.runs = {"cpu": cpu, "gpu": gpu}

    def devices(self, experiment: str, role: str) -> tuple[str, ...]:
        return ()

    def has(self, chip: str) -> bool:
        return True

    def __call__(self, experiment: str, metric: str, role: str, config: dict) -> Term:
        runs = self.runs[role][config.get("case", 0)]
        return Term(Estimate(float(np.nanmean(runs))), (), runs)


def claim(formula: str) -> Claim:
    return Claim("x", "003", ("vae",), "A claim.", "", formula, "", "yes", "two devices")


def statuses(formula: str, cpu, gpu) -> list[str]:
    """Of many draws, (draws, cases, repeats) each."""
    return [
        claims.test(claim(formula), Repeats(*drawn)).status for drawn in zip(cpu, gpu, strict=True)
    ]


def drawn(
    generator, draws: int, cases: int = 1, repeats: int = 3, sd: float = 0.05, sets: float = 0.0
) -> list:
    """Times of two devices whose true ratio is 1. sets: the variance that a set of repeats has in common, in units of
    that of a process; it differs between the devices, which is the worst case."""
    shape, common = (2, draws, cases, repeats), (2, draws, cases, 1)
    return [
        *np.exp(
            sd
            * (
                generator.standard_normal(shape)
                + math.sqrt(sets) * generator.standard_normal(common)
            )
        )
    ]


RATIO = "epoch_s(cpu) / epoch_s(gpu)"


AT_A_BOUND = (
    f"{RATIO} > 1",
    f"{RATIO} <= 1",
    f"between(0.5, {RATIO}, 1)",
    f"near({RATIO}, 1.25, 0.2)",
)


@pytest.mark.parametrize("formula", AT_A_BOUND)
def test_a_tie_is_seldom_called_anything(formula):
    """At the very bound, where a verdict is wrong either way; two sets of processes differ as was measured."""
    cpu, gpu = drawn(np.random.default_rng(13), 1000, sets=intervals.BETWEEN_SETS / 2)
    called = np.mean([status != INCONCLUSIVE for status in statuses(formula, cpu, gpu)])
    assert called <= 0.06  # 5 %, and what 1,000 draws may be off by
    if "between" not in formula and "near" not in formula:
        assert called >= 0.04  # Student's t is exact: less would be power thrown away


def test_a_sentence_of_many_comparisons_is_not_refuted_by_chance():
    """Twenty ties in one claim: each alone at 5 % would refute it in 40 % of draws."""
    cpu, gpu = drawn(np.random.default_rng(2), 150, cases=20)
    formula = f"all(epoch_s(cpu, case=c) / epoch_s(gpu, case=c) >= 1 for c in {tuple(range(20))})"
    found = statuses(formula, cpu, gpu)
    assert found.count(CONTRADICTED) <= 0.05 * len(found) and SUPPORTED not in found


def test_the_claims_of_a_page_are_judged_together():
    """Ten ties and ten true sentences: of the verdicts at most 5 % are wrong; alone, a tie would get one in 5 %."""
    generator, wrong, right, of_ties = np.random.default_rng(3), 0, 0, []
    page = [claim(f"epoch_s(cpu, case={c}) / epoch_s(gpu, case={c}) > 1") for c in range(20)]
    for _ in range(80):
        cpu, gpu = (side[0] for side in drawn(generator, 1, cases=20, sd=0.02))
        cpu[10:] *= 2
        holds = [decision.status for decision in claims.judged(page, Repeats(cpu, gpu))]
        wrong, right = (
            wrong + sum(x != INCONCLUSIVE for x in holds[:10]),
            right + holds[10:].count(SUPPORTED),
        )
        of_ties.append(
            any(
                x != INCONCLUSIVE
                for x in (d.status for d in claims.judged(page[:10], Repeats(cpu, gpu)))
            )
        )
    assert wrong <= 0.05 * (wrong + right) and right >= 0.99 * 800
    assert np.mean(of_ties) <= 0.07  # a page of ties: in 95 of 100 none is called anything


def test_by_hand():
    """Logarithms of the ratio 1, 2 and 3: mean 2, standard error √(1/3 + 0.19/2), and two degrees of freedom, for which
    P(|T| > t) = 1 - t / √(2 + t²). Of a sum, the formula is evaluated in each repeat."""
    cpu, gpu = np.exp([[2.0, 4, 6]]), np.exp([[1.0, 2, 3]])
    t = 2 / math.sqrt(1 / 3 + 0.19 / 2)
    two_sided = 1 - t / math.sqrt(2 + t * t)
    for formula in (f"{RATIO} > 1", "(epoch_s(cpu) + epoch_s(cpu)) / epoch_s(gpu) > 2"):
        (made,) = claims.test(claim(formula), Repeats(cpu, gpu)).comparisons
        assert (made.supported, made.contradicted) == (
            pytest.approx(two_sided / 2),
            pytest.approx(1 - two_sided / 2),
        )
    # A repeat that lacks a side is left out, and of what may be 0 the difference counts.
    cpu, gpu = np.array([[1.0, 2, np.nan, 3, 9]]), np.array([[0.0, 0, 0, 0, np.nan]])
    (made,) = claims.test(claim("epoch_s(cpu) > epoch_s(gpu)"), Repeats(cpu, gpu)).comparisons
    assert made.supported == pytest.approx(two_sided / 2)
    # A pick is made in each repeat: the larger is another one in each.
    cpu = np.array([[1.0, 5, 1], [5.0, 1, 5]])
    (made,) = claims.test(
        claim("max(epoch_s(cpu, case=c) for c in (0, 1)) > 4.99"), Repeats(cpu, cpu)
    ).comparisons
    assert made.supported < 1e-6
    (made,) = claims.test(
        claim("average(epoch_s(cpu, case=c) for c in (0, 1)) > 2"), Repeats(cpu, cpu)
    ).comparisons
    assert made.supported < 0.01
