"""Verdicts on claims: by hand, how often they are wrong, and on the articles' own numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pomology.articles import claims, published
from pomology.articles.claims import CONTRADICTED, INCONCLUSIVE, NOT_TESTABLE, SUPPORTED, Number
from pomology.articles.published import Claim, Condition
from pomology.measure import intervals
from pomology.measure.estimate import Estimate

RATIO = "epoch_s(cpu) / epoch_s(gpu)"


def claim(value: str, claimed: str, about: str = "", **for_each) -> Claim:
    condition = Condition("CPU / GPU", value, claimed, for_each)
    return Claim("x", "003", ("vae",), "A.", "", "", "yes", "two", about, "", (condition,))


def times(cpu, gpu) -> list[Number]:
    """Numbers of two devices, by case."""
    numbers = []
    for device, cases in (("cpu", cpu), ("gpu", gpu)):
        for case, value in enumerate(cases):
            numbers.append(Number("vae", "epoch_s", (device,), {"case": case}, value))
    return numbers


def drawn(generator, draws: int, cases: int = 1, sd: float = 0.05, sets: float = 0.0) -> list:
    """Three repeats of two devices whose true ratio is 1: (draws, cases, repeats) of each.

    sets: the variance that a set of repeats has in common, in units of that of a process; it
    differs between the devices, which is the worst case.
    """
    own = generator.standard_normal((2, draws, cases, 3))
    common = generator.standard_normal((2, draws, cases, 1))
    return [*np.exp(sd * (own + math.sqrt(sets) * common))]


def statuses(tested: Claim, cpu, gpu) -> list[str]:
    return [claims.judged([tested], times(*draw))[0].status for draw in zip(cpu, gpu, strict=True)]


@pytest.mark.parametrize("claimed", ["> 1", "<= 1", "0.5 to 1"])
def test_a_tie_is_seldom_called_anything(claimed):
    """At the very bound, where a verdict is wrong either way, with the variance between sets."""
    cpu, gpu = drawn(np.random.default_rng(13), 600, sets=intervals.BETWEEN_SETS / 2)
    found = statuses(claim(RATIO, claimed), cpu, gpu)
    called = np.mean([status != INCONCLUSIVE for status in found])
    assert called <= 0.07  # 5 %, and what 600 draws may be off by
    if "to" not in claimed:
        assert called >= 0.03  # Student's t is exact: less would be power thrown away


def test_a_sentence_of_many_comparisons_is_not_refuted_by_chance():
    """Twenty ties in one claim: each alone at 5 % would refute it in 40 % of draws."""
    cpu, gpu = drawn(np.random.default_rng(2), 60, cases=20)
    found = statuses(claim(RATIO, ">= 1", case=list(range(20))), cpu, gpu)
    assert found.count(CONTRADICTED) <= 0.05 * len(found) and SUPPORTED not in found


def test_the_claims_of_a_page_are_judged_together():
    """Ten ties and ten true sentences: of the verdicts at most 5 % are wrong."""
    generator = np.random.default_rng(3)
    page = [claim(RATIO, "> 1", case=[case]) for case in range(20)]
    wrong = right = 0
    for _ in range(40):
        cpu, gpu = (side[0] for side in drawn(generator, 1, cases=20, sd=0.02))
        cpu[10:] *= 2
        found = [decision.status for decision in claims.judged(page, times(cpu, gpu))]
        wrong += sum(status != INCONCLUSIVE for status in found[:10])
        right += found[10:].count(SUPPORTED)
    assert wrong <= 0.05 * (wrong + right) and right >= 0.99 * 400


def test_p_values_by_hand():
    """Logarithms 1, 2 and 3: mean 2, standard error √(1/3 + 0.19/2), two degrees of freedom.

    For these P(|T| > t) = 1 - t / √(2 + t²).
    """

    def one(value: str, claimed: str, cpu, gpu=()) -> claims.Comparison:
        (decision,) = claims.judged([claim(value, claimed)], times(np.array(cpu), np.array(gpu)))
        return decision.comparisons[0]

    t = 2 / math.sqrt(1 / 3 + 0.19 / 2)
    one_sided = pytest.approx((1 - t / math.sqrt(2 + t * t)) / 2)
    cpu, gpu = np.exp([[2.0, 4, 6]]), np.exp([[1.0, 2, 3]])
    for value, claimed in ((RATIO, "> 1"), ("(epoch_s(cpu) + epoch_s(cpu)) / epoch_s(gpu)", "> 2")):
        found = one(value, claimed, cpu, gpu)
        assert found.supported == one_sided and 1 - found.contradicted == one_sided
    assert one(RATIO, "< 1", cpu, gpu).contradicted == one_sided
    # A repeat that lacks a side is left out, and of what may be 0 the difference counts.
    difference = "epoch_s(cpu) - epoch_s(gpu)"
    lacking = [[1.0, 2, math.nan, 3, 9]], [[0.0, 0, 0, 0, math.nan]]
    assert one(difference, "> 0", *lacking).supported == one_sided
    # A pick is made in each repeat: the larger is another one in each.
    both = ", ".join(f"epoch_s(cpu, case={case})" for case in (0, 1))
    cpu = [[1.0, 5, 1], [5.0, 1, 5]]
    assert one(f"max([{both}])", "> 4.99", cpu).supported < 1e-6
    assert one(f"min([{both}])", "< 1.01", cpu).supported < 1e-6
    assert one(f"average([{both}])", "2.2 to 2.3", cpu).supported < 1e-6


def printed(value, low=None, high=None) -> Estimate:
    return Estimate(value, "", low, high, how="published")


@pytest.mark.parametrize(
    ("cpu", "gpu", "value", "claimed", "status"),
    [
        (printed(9, 8, 10), printed(4, 3, 5), RATIO, "> 1", SUPPORTED),
        (printed(9, 8, 10), printed(7, 5, 9), RATIO, "> 1", INCONCLUSIVE),  # 8/9 < 1
        (printed(4, 3, 5), printed(9, 8, 10), RATIO, "> 1", CONTRADICTED),
        (printed(4, 3, 5), None, "epoch_s(cpu)", "3 to 5", SUPPORTED),
        (printed(4, 3, 5), None, "epoch_s(cpu)", "3.5 to 6", INCONCLUSIVE),
        (printed(9, 8, 10), printed(1, -1, 1), RATIO, "> -99", INCONCLUSIVE),  # divided by zero
        (printed(9), printed(4, 3, 5), RATIO, "> 1", INCONCLUSIVE),  # may be anything
        (printed(9, 8, 10), None, RATIO, "> 1", NOT_TESTABLE),
        ("error", None, "epoch_s(cpu)", "!= ok", SUPPORTED),
        ("crashed", None, "epoch_s(cpu)", "== ok", CONTRADICTED),
        (None, None, "epoch_s(cpu)", "!= ok", NOT_TESTABLE),
    ],
)
def test_printed_numbers_decide_only_what_cannot_flip(cpu, gpu, value, claimed, status):
    (decision,) = claims.judged([claim(value, claimed)], times([cpu], [gpu]))
    assert decision.status == status


def test_terms_have_the_settings_and_devices_of_for_each():
    values = {("mps", 1): 4.0, ("cuda", 1): 5.0, ("mps", 2): 6.0, ("cuda", 2): 7.0}
    numbers = [
        Number("vae", "epoch_s", ("gpu", backend), {"size": size, "lora": True}, printed(x, x, x))
        for (backend, size), x in values.items()
    ]
    claimed = claim("epoch_s(gpu) * k", "< 13", gpu="each", size=[1, 2], lora=[True], k=[2])
    (decision,) = claims.judged([claimed], numbers)
    found = {tuple(each.settings.values()): each.value for each in decision.comparisons}
    assert found == {place: 2 * value for place, value in values.items()}
    assert decision.status == CONTRADICTED
    assert [each.value for each in decision.comparisons if each.contradicted == 0] == [14.0]
    (ambiguous,) = claims.judged([claim("epoch_s(mps)", "> 1")], numbers)
    assert (ambiguous.status, ambiguous.doubts) == (NOT_TESTABLE, ["2 cases match"])


@pytest.mark.parametrize(
    ("about", "chip", "same"),
    [
        ("A6000", "NVIDIA RTX A6000", True),
        ("M2", "Apple M2", True),
        ("Apple", "Apple M2 Max", True),
        ("", "AMD EPYC", True),
        ("M2", "Apple M2 Max", False),
        ("A6000", "NVIDIA RTX 6000 Ada Generation", False),
    ],
)
def test_a_sentence_about_a_chip_is_tested_on_that_chip(about, chip, same):
    numbers = times([printed(9, 9, 9)], [printed(4, 4, 4)])
    (decision,) = claims.judged([claim(RATIO, "> 1", about)], numbers, [chip])
    assert decision.status == (SUPPORTED if same else NOT_TESTABLE)


# The articles' claims -----------------------------------------------------------------------------


def recomputed(name: str) -> claims.Decision:
    (one,) = [one for one in published.claims() if one.id == name]
    return claims.judged([one], claims.printed(one.article))[0]


def test_every_verdict_on_the_published_numbers_is_the_stated_one():
    words = {"yes": SUPPORTED, "strained": SUPPORTED, "no": CONTRADICTED}
    for one in published.claims():
        assert one.needs and one.experiments and one.id.startswith(one.article)
        stated = words.get(one.holds_in_published.split(":")[0], NOT_TESTABLE)
        assert recomputed(one.id).status == stated, one.id
    without = {one.id for one in published.claims() if not one.conditions}
    assert without == {"000-C8", "001-C21", "001-C23", "003-C7", "003-C9", "004-C13"}


# What the articles' numbers give, computed by hand from the articles.
BY_HAND = {
    "000-C1": [8.785],
    "000-C2": [13.776],
    "000-C4": [118.6 / 2 / 59.3, 13.5 / 2 / 6.75],
    "000-C5": [97.7 / 98],
    "000-C7": [8.785 / 1.803, 8.785 / 2.623, 8.785 / 8.148],
    "001-C1": [16.7782, 16.7771, 16.7774, 16.7774],
    "001-C2": [1.195, 1.247, 1.231],
    "001-C3": [1.0225],
    "001-C5": [1.058, 1.849, 1.191, 1.643],
    "001-C6": [5.310, 7.133, 2.218, 3.516, 6.250, 15.943, 38.043],
    "001-C7": [0.1750 / 0.5850, 0.0064 / 0.1273],
    "001-C22": [0.978, 1.1689],
    "001-C24": [114.86 / 108.58, 129.30 / 212.39],
    "003-C1": [2.339, 1.750, 1.034, 3.142],
    "003-C2": [0.748, 3.040],
    "003-C4": [12.731 / 3.150, 3.452 / 0.807],
    "003-C6": [
        *(112.131 * 38 / (39.839 * 182), 15.547 * 38 / (20.538 * 189)),  # siamese
        *(8.760 * 30 / (6.555 * 51), 1.998 * 28 / (6.074 * 52)),  # vae
        *(505.52 * 40 / (47.39 * 164), 137.19 * 90 / (72.54 * 205)),  # language models
        *(1942.078 * 35 / (285.473 * 84), 1684.591 * 35 / (252.657 * 69)),  # dcgan, CPU
    ],
    "004-C10": [10.7 / 9.3],
    "004-C11": [13.6 * 30 / 38 / 10.7],
}


@pytest.mark.parametrize("name", BY_HAND)
def test_recomputed_numbers(name):
    values = [each.value for each in recomputed(name).comparisons]
    for expected in BY_HAND[name]:
        assert any(value == pytest.approx(expected, rel=1e-3) for value in values), expected


# Measured by the kit, and printed by no article.
MEASURED = {"backward_s", "fit_s", "footprint_start_bytes", "forward_s", "kernel_s", "processor"}
MEASURED |= {"page_faults_slope", "rate_left", "resident_slope_bytes", "saved_fused_bytes"}
MEASURED |= {"status", "step_s"}
DEVICES = {None, "cpu", "gpu", "rival", "cuda", "mps", "mlx-gpu"}
IN_FIGURES = {"M1 GPU", "P100", "T4", "V100"}  # devices of article 004, whose times are not printed


@pytest.mark.parametrize("one", published.claims(), ids=lambda one: one.id)
def test_every_condition_can_be_evaluated_and_asks_for_what_there_is(one, monkeypatch):
    rows = published.rows()
    metrics = MEASURED | {row["metric"] for row in rows}
    devices = DEVICES | IN_FIGURES | {row["device"] for row in rows}
    monkeypatch.setattr(claims, "_devices", lambda numbers, role: ["gpu"])

    def found(numbers, device, settings):
        assert device in devices and "each" not in settings.values()
        return (value, ())

    monkeypatch.setattr(claims, "_found", found)
    about_status = any("ok" in each.claimed for each in one.conditions)
    value = "ok" if about_status else np.array([1.0, 1.1, 1.2])
    for each in claims.judged([one], [])[0].comparisons:
        assert each.known and not each.doubts
        assert {*claims.metrics_of(each.condition.value)} <= metrics
        assert set(each.condition.for_each.get("experiment", ())) <= set(one.experiments)
