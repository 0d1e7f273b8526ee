"""`pomology versus`: pairs of published times, known by hand, and what is predicted besides."""

import math
import re

import pytest
from records import metric, record, write

from pomology.__main__ import main
from pomology.articles import published
from pomology.errors import PomologyError
from pomology.extras.versus import answer, pairs, predicted


def said(capsys, *words):
    assert main(["versus", *words]) == 0
    return capsys.readouterr().out


def test_an_m3_max_and_a_t4_are_compared_as_by_hand(capsys):
    # bert-apple-silicon: 73 and 120 s at 64 × 128 tokens, 84 and 145 s at 16 × 512 tokens.
    text = said(capsys, "M3 Max", "T4")
    head = " ".join(text.partition("\n\n")[0].split())
    mean = (120 / 73 * 145 / 84) ** 0.5
    assert head.startswith(f"M3 Max GPU (40 cores) is {mean:.2f}× faster than T4: ")
    assert "2 configurations of BERT-base" in head and "1.64× to 1.73×" in head
    assert "one run each, 2022 and 2023; no interval" in head
    assert "predicted, not measured: M3 Max GPU (40 cores) is " in " ".join(text.split())


def test_the_order_of_the_names_changes_only_the_words(capsys):
    forth = " ".join(said(capsys, "M3 Max", "T4").partition("\n\n")[0].split())
    back = " ".join(said(capsys, "t4", "apple m3 max gpu").partition("\n\n")[0].split())
    assert forth.partition(":")[0] == back.partition(":")[0]


@pytest.mark.parametrize(
    ("first", "second", "workload", "expected"),
    [  # seconds of the first rows of elsewhere/bert-apple-silicon.csv, 100 steps each
        ("M1 Max GPU (32 cores)", "V100 16 GB", "bert_base", 12 / 63),
        ("M1 Max GPU (32 cores)", "T4", "bert_base", 31 / 63),
        ("M1 Max CPU", "M1 Max GPU (32 cores)", "bert_base", 63 / 149),
    ],
)
def test_pairs_are_of_the_same_work_in_one_source(first, second, workload, expected):
    found = pairs.pairs(first, second)
    ratios = [pair.ratio for pair in found if pair.first.work[0] == workload]
    assert any(ratio == pytest.approx(expected, rel=1e-3) for ratio in ratios)
    for pair in found:
        assert pair.first.work == pair.second.work
        assert (pair.first.device, pair.second.device) == (first, second)
        if pair.counts:
            assert pair.first.source == pair.second.source
            assert pair.first.framework == pair.second.framework
            assert published.SERIOUS.isdisjoint((*pair.first.faults, *pair.second.faults))


# Ten pairs, with the ratios of what the sources print: seconds of the second over those of the
# first, or rates of the first over those of the second.
BY_HAND = {
    ("M3 Max GPU (40 cores)", "T4"): [120 / 73, 145 / 84],
    ("M3 Max GPU (40 cores)", "V100 16 GB"): [41 / 73, 47 / 84],
    ("T4", "V100 16 GB"): [12 / 31, 47 / 145, 41 / 120],
    ("M2 Ultra GPU (60 cores)", "M1 Max GPU (32 cores)"): [177 / 49],
    ("M3 Max GPU (40 cores)", "M3 Pro GPU (14 cores)"): [156 / 73],
    ("M1 Max GPU (32 cores)", "M1 Max CPU"): [149 / 63, 512 / 177, 368 / 21],
    ("RTX 4090", "RTX 3090"): [
        *(297 / 172, 93 / 52, 159511 / 86080, 32192491 / 25118176, 1301 / 905, 379 / 236),
        *(32661 / 25018, 40427 / 22863, 14509 / 7821, 160816 / 97100),
    ],
    ("M1 Ultra GPU", "RTX 2070 Super"): [
        *(20.538 / 15.547, 39.839 / 112.131, 47.39 / 505.52, 73.36 / 502.79),
        *(72.54 / 137.19, 59.98 / 104.67, 6.555 / 8.76, 6.074 / 1.998),
    ],
    ("P100", "A100"): [],  # all have a problem that the answer names
    ("M4 Max GPU (40 cores)", "L40S"): [],  # nobody measured both
}


@pytest.mark.parametrize(("first", "second"), BY_HAND)
def test_ten_pairs_have_the_ratios_of_their_sources(first, second):
    expected = BY_HAND[first, second]
    found = answer.answer(first, second)
    ratios = sorted(pair.ratio for pair in found.counted)
    assert ratios == pytest.approx(sorted(expected), rel=1e-5)
    if expected:
        mean = math.prod(expected) ** (1 / len(expected))
        assert pairs.summary(found.counted).mean == pytest.approx(mean, rel=1e-5)
        counted = f"{len(expected)} configuration"
        assert counted in found.headline
    elif found.others:
        assert found.headline.startswith("in doubt (")
    else:
        assert found.headline.startswith("no published work of both")


def test_every_pair_of_devices_is_its_reverse():
    some = ["M1 Max GPU (32 cores)", "T4", "RTX 4090", "RTX 2080 Ti", "V100 16 GB"]
    for first in some:
        for second in some:
            there = {pair.first.work: pair.ratio for pair in pairs.pairs(first, second)}
            back = {pair.first.work: 1 / pair.ratio for pair in pairs.pairs(second, first)}
            assert there.keys() == back.keys()


def test_where_the_order_differs_no_device_is_called_faster():
    quick = pairs.speeds("T4")[0]._replace(source="a", faults=())
    slow = quick._replace(si=2 * quick.si)
    both = [pairs.Pair(quick, slow), pairs.Pair(slow, quick)]
    found = answer.Answer("A", "B", both, [], [], [])
    assert found.headline.startswith("it depends: A is 0.500 to 2.00 times as fast as B")
    one = answer.Answer("A", "B", both[:1], [], [], [])
    faster = "A" if not quick.is_rate else "B"
    assert one.headline.startswith(f"{faster} is 2.00× faster than")


def test_pairs_with_a_known_problem_are_told_apart():
    speed = pairs.speeds("T4")[0]._replace(source="a", software="torch 1", faults=())
    other = speed._replace(si=2 * speed.si)
    for doubtful, word in (
        (other._replace(source="b"), "two sources"),
        (other._replace(software="mlx 1"), "other software"),
        (other._replace(faults=("swapping",)), "swapping"),
    ):
        pair = pairs.Pair(speed, doubtful)
        assert not pair.counts and word in "; ".join(pair.problems)
        found = answer.Answer("A", "B", [], [pair], [], [])
        assert found.headline.startswith(f"in doubt ({pair.problems[0]}")


def test_without_common_work_the_prediction_is_called_one(capsys):
    text = " ".join(said(capsys, "M4 Max", "L40S").split())
    head = text.partition(" Predicted times")[0]
    assert "no published work of both M4 Max GPU" in head
    assert "predicted, not measured" in head


def test_a_predicted_ratio_is_that_of_two_predictions():
    for ratio in predicted.ratios("M3 Max GPU (40 cores)", "T4"):
        low, high = ratio.bounds
        assert low < ratio.value < high
        assert ratio.value == ratio.second.value / ratio.first.value
        # Two independent errors add up to less than both at their worst.
        worst = ratio.second.high / ratio.first.low
        assert ratio.value < high < worst


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "expected two devices or more"),
        (["t4"], "expected two devices or more"),
        (["t4", "Tesla T4"], "expected two different devices"),
        (["t4", "M99 Max"], "M99 Max"),
        (["t4", " "], "not an empty text"),
    ],
)
def test_a_wrong_name_is_one_line(words, message, capsys):
    assert main(["versus", *words]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_three_devices_are_each_compared_with_the_first(capsys):
    text = said(capsys, "T4", "M3 Max", "M1 Max")
    assert len(re.findall("Published times of the same work", text)) == 2
    assert len(re.findall("Predicted times of a step", text)) == 2


def test_a_run_stands_next_to_a_devices_published_speeds(tmp_path, capsys):
    row = next(
        row
        for row in published.elsewhere("resnet50")
        if row["samples"] and row["config"].get("batch_size") and row["precision"] == "fp32"
    )
    config = {name: row["config"][name] for name in ("batch_size", "image_size")}
    own = 2 * row["samples"] * published.rate(row)
    values = {"samples_per_s": metric(own, unit="samples/s"), "step_s": metric(1.0)}
    case = record("resnet50", values, config, backend="mps", precision="fp32")
    folder = write(tmp_path / "mine", [case], {"chip": "Apple M9"})
    text = said(capsys, str(folder), row["device"])
    assert text.startswith("mine is ") and "no interval, other programs" in text
    assert main(["versus", str(folder), "t4", "m3 max"]) == 2
    assert "one run and one device" in capsys.readouterr().err


def test_an_unknown_text_is_neither_a_run_nor_a_device():
    with pytest.raises(PomologyError, match=r"unknown device"):
        answer.answer("no such thing at all", "t4")
