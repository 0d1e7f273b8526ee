"""`pomology versus`: pairs of published times, known by hand, and what is predicted besides."""

import csv
import math
import re
from collections import Counter

import pytest
from records import metric, record, write

from pomology.__main__ import main
from pomology.articles import published
from pomology.errors import PomologyError
from pomology.extras.versus import answer, figure, pairs, predicted
from pomology.machine import snapshot
from pomology.results.run import Run
from pomology.views import ranking


def said(capsys, *words):
    assert main(["versus", *words]) == 0
    return capsys.readouterr().out


def first_line(text):
    return " ".join(text.partition("\n\n")[0].split())


def test_an_m3_max_and_a_t4_are_compared_as_by_hand(capsys):
    # bert-apple-silicon: 73 and 120 s at 64 × 128 tokens, 84 and 145 s at 16 × 512 tokens.
    text = said(capsys, "M3 Max", "T4")
    head = " ".join(text.partition("\n\n")[0].split())
    mean = (120 / 73 * 145 / 84) ** 0.5
    assert head.startswith(f"M3 Max GPU (40 cores) is {mean:.2f}× faster than T4 in fp32: ")
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
    # The faster device stands first, whatever was typed.
    if found.first == second:
        expected = [1 / ratio for ratio in expected]
    assert {found.first, found.second} == {first, second}
    ratios = sorted(pair.ratio for pair in found.counted)
    assert ratios == pytest.approx(sorted(expected), rel=1e-5)
    if expected:
        mean = math.prod(expected) ** (1 / len(expected))
        assert mean > 1
        assert pairs.summary(found.counted).mean == pytest.approx(mean, rel=1e-5)
        counted = f"{len(expected)} configuration"
        assert counted in found.headline
    elif found.others:
        assert found.headline.startswith("in doubt (")
    else:
        assert found.headline.startswith("no published work of both")


def test_the_range_is_that_of_the_ratio_that_is_named(capsys):
    # lambda-2023, samples or tokens per second in amp: Tacotron 2 has the lowest ratio of ten
    # workloads, BERT large the highest.
    text = said(capsys, "A100 80GB SXM", "H100 80GB SXM")
    low, high = 78108 / 59716, 301 / 152
    head = first_line(text)
    assert head.startswith(
        "H100 80 GB SXM is 1.68× faster than A100 80 GB SXM in amp: 10 configurations"
    )
    assert f", {low:.2f}× to {high:.2f}×, " in head
    direction = "how many times as fast H100 80 GB SXM is as A100 80 GB SXM"
    assert f"\nPublished times of the same work: {direction}\n" in text
    assert f"\nPredicted times of a step, fp32: {direction}\n" in text
    found = answer.answer("A100 80GB SXM", "H100 80GB SXM")
    label = figure.figure(found).axes[-1].get_xlabel()
    assert " ".join(label.split()).startswith(direction)
    rows = answer.table(found, found.counted).rows
    ratios = [float(row.cells["Ratio"].removesuffix("×")) for row in rows]
    assert [min(ratios), max(ratios)] == pytest.approx([low, high], abs=0.005)


@pytest.mark.parametrize(
    ("first", "second"), [("M3", "T4"), ("M1 Max", "M1 Ultra"), ("M1", "M2"), ("A100", "H100")]
)
def test_the_mean_of_the_answer_is_within_its_range(first, second):
    found = answer.answer(first, second)
    mean = float(re.search(r"is ([\d.]+)× faster than", found.headline)[1])
    assert mean > 1
    ends = re.search(r"([\d.]+)× to ([\d.]+)×", found.headline)
    if ends:
        assert float(ends[1]) <= mean <= float(ends[2])


def test_the_parts_of_a_step_do_not_count_beside_it():
    # One run has a pass, its forward pass and its backward pass.
    path = published.DATA / "elsewhere" / "neusight-labels.csv"
    with path.open(encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    passes = Counter(
        (line["workload"], line["precision"], line["config"])
        for line in lines
        if line["metric"] == "pass_s"
        and line["device"] in ("A100 80 GB PCIe", "H100 80 GB SXM")
        and line["value"]
    )
    both = sum(count == 2 for count in passes.values())
    every = pairs.pairs("A100 80 GB PCIe", "H100 80 GB SXM")
    of_source = [pair for pair in every if pair.first.source == "neusight-labels"]
    assert len(of_source) == both > 5
    assert {pair.first.timed for pair in of_source} == {"forward and backward pass"}
    found = answer.answer("A100 80 GB PCIe", "H100 80 GB SXM")
    works = [row.cells["Work"] for row in answer.table(found, found.counted).rows]
    assert len(works) == len(set(works))
    assert any("BERT-large, forward and backward pass, precision fp32" in work for work in works)


def test_a_part_counts_where_the_whole_is_not_common():
    forward, backward, whole = (
        pairs.Pair(speed, speed)
        for speed in (
            pairs.speeds("T4")[0]._replace(work=("a", metric, "fp32", "{}"), software="torch 1")
            for metric in ("forward_s", "backward_s", "pass_s")
        )
    )
    assert pairs._wholes([backward, forward]) == [forward]
    assert pairs._wholes([backward, forward, whole]) == [whole]
    assert forward.first.timed == "forward pass"
    # A part whose whole is doubtful is sound.
    doubtful = whole._replace(first=whole.first._replace(faults=("swapping",)))
    assert pairs._wholes([doubtful, forward]) == [forward]


@pytest.mark.parametrize(
    ("first", "second", "devices"),
    [
        ("A100", "H100", {"A100 80 GB PCIe", "H100 80 GB SXM"}),
        ("V100", "P100", {"V100 16 GB", "P100"}),
        ("M3 Max", "T4", {"M3 Max GPU (40 cores)", "T4"}),
    ],
)
def test_of_a_bare_name_the_size_with_most_common_work_is_taken(first, second, devices):
    found = answer.answer(first, second)
    assert {found.first, found.second} == devices
    assert found.counted and found.ratios
    assert f"{first}: taken as " in found.notes[0]
    assert ", the one with most work in common; say '" in found.notes[0]


@pytest.mark.parametrize(
    ("first", "second"), [("M2 Max", "V100"), ("M1", "M2"), ("M1 GPU", "M2 GPU")]
)
def test_without_common_work_a_note_claims_none(first, second):
    found = answer.answer(first, second)
    assert not found.counted and not found.others and found.ratios
    assert len(found.notes) == 2
    for name, note in zip((first, second), found.notes, strict=True):
        assert note.startswith(f"{name}: taken as ")
        assert ", the smallest with a data sheet; say '" in note


def test_this_machines_size_is_taken_before_others(monkeypatch):
    monkeypatch.setattr(snapshot, "gpus", lambda: [{"name": "Apple M3 Max", "cores": 30}])
    found = answer.answer("M3 Max", "T4")
    assert "M3 Max GPU (30 cores)" in (found.first, found.second)
    assert found.notes[0].endswith("this machine's")


def test_two_sizes_of_one_model_are_two_devices():
    found = answer.answer("M3 Max", "M3 Max GPU (30 cores)")
    assert {found.first, found.second} == {"M3 Max GPU (40 cores)", "M3 Max GPU (30 cores)"}
    assert "smallest" not in found.notes[0]


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
    found = answer.Answer("A", "B", both, [], [], [], [])
    assert found.headline.startswith("it depends: A is 0.500 to 2.00 times as fast as B")
    one = answer.Answer("A", "B", both[:1], [], [], [], [])
    times = "2.00× faster than" if not quick.is_rate else "0.500 times as fast as"
    assert one.headline.startswith(f"A is {times} B")


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
        found = answer.Answer("A", "B", [], [pair], [], [], [])
        assert found.headline.startswith(f"in doubt ({pair.problems[0]}")


def test_without_common_work_the_prediction_is_called_one(capsys):
    text = " ".join(said(capsys, "M4 Max", "L40S").split())
    head = text.partition(" Predicted times")[0]
    assert "no published work of both L40S and M4 Max GPU" in head
    assert "predicted, not measured" in head
    # A T4's tensor cores serve half precision only, and Apple's GPUs have no such units.
    in_fp32, in_half = (
        predicted.mean(predicted.ratios("M3 Max GPU (40 cores)", "T4", precision))
        for precision in (predicted.PRECISION, predicted.HALF)
    )
    assert in_half < 0.7 * in_fp32
    line = answer.answer("M3 Max 40 cores", "T4").predicted_line
    ends = r"\(workloads: {0} to {0}\)".format(r"[\d.]+")
    assert re.search(
        rf"is {in_fp32:.3g} {ends} times .* fp32, and {in_half:.3g} {ends} times", line
    )


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
    assert text.startswith("mine is 2.00× faster than ")
    assert first_line(text).endswith("no interval, other programs")
    assert f"how many times as fast mine is as {row['device']}" in " ".join(text.split())
    assert "other settings may" in text
    assert main(["versus", str(folder), "t4", "m3 max"]) == 2
    assert "one run and one device" in capsys.readouterr().err


def of_article(tmp_path, *slower):
    """A run that takes so many times as long as the M1 Ultra GPU of article 003 for two models."""
    siamese, language_model = slower
    sizes = {"batch_size": 20, "embedding_size": 200, "hidden_size": 200, "layers": 2}
    cases = [
        record("siamese", {"epoch_s": metric(siamese * 112.131)}, {"batch_size": 64}),
        record("transformer_lm", {"epoch_s": metric(language_model * 505.52)}, sizes),
    ]
    return write(tmp_path / "mine", cases, {"chip": "Apple M9"})


@pytest.mark.parametrize(
    ("slower", "start", "ranged"),
    [
        ((2, 4), "M1 Ultra GPU is 2.83× faster than mine: 2 workloads", "2.00× to 4.00×"),
        ((0.5, 0.25), "mine is 2.83× faster than M1 Ultra GPU: 2 workloads", "2.00× to 4.00×"),
        ((0.25, 2), "it depends: mine is 0.500 to 4.00 times as fast as M1 Ultra GPU, 1.41", ""),
    ],
)
def test_a_run_stands_next_to_the_times_of_an_article(tmp_path, capsys, slower, start, ranged):
    folder = of_article(tmp_path, *slower)
    text = said(capsys, str(folder), "M1 Ultra")
    head = first_line(text)
    assert head.startswith(start) and ranged in head
    # The cells of this table may wrap.
    assert {"Siamese", "network,", "epoch,", "64,"} <= set(text.split())
    assert text.count("article 003") == 2
    # The ratios have the direction of the first line; the report says the same.
    mean = math.prod(slower) ** 0.5
    ratios = [float(text) for text in re.findall(r" ([\d.]+)×  ", text)]
    expected = slower if mean > 1 else [1 / each for each in slower]
    assert sorted(ratios) == pytest.approx(sorted(expected))
    in_report = ranking.headline([Run(folder)], "M1 Ultra GPU")
    word = "slower" if mean > 1 else "faster"
    assert f"{max(mean, 1 / mean):.1f}× {word} than the M1 Ultra GPU (Siamese network" in in_report


def test_where_nothing_is_common_a_runs_steps_are_compared_with_predictions(tmp_path, capsys):
    config = {"batch_size": 20, "embedding_size": 200, "hidden_size": 200, "layers": 2}
    cases = [
        record("vae", {"step_s": metric(0.1)}, {"batch_size": 128}),
        record("transformer_lm", {"step_s": metric(0.2)}, config),
        record("dcgan", {"step_s": metric(0.3)}, {"batch_size": 64}, scaled=True),
    ]
    folder = write(tmp_path / "mine", cases, {"chip": "Apple M9"})
    text = said(capsys, str(folder), "L40S")
    times = {step.example: step.time.value for step in predicted.steps("L40S")}
    mean = (0.1 / times["vae 128"] * 0.2 / times["transformer_lm 20 200x2x200"]) ** 0.5
    head = first_line(text)
    assert head.startswith("mine has no case that was published of L40S; predicted, not measured:")
    assert f"L40S is {mean:.1f}× faster than mine: 2 workloads, " in head
    assert "dcgan" not in text and "are predicted from its data sheet" in text
    bare = said(capsys, str(folder), "M1 Max CPU")
    assert "has no data sheet, so nothing is predicted" in " ".join(bare.split())


def test_a_kind_of_device_that_a_run_lacks_is_one_line(tmp_path, capsys):
    assert main(["versus", f"{of_article(tmp_path, 1, 1)}:gpu", "M1 Ultra"]) == 2
    assert capsys.readouterr().err == "pomology: mine (GPU): no case has ended in it\n"


def test_one_run_twice_is_one_line(tmp_path, capsys):
    folder = str(of_article(tmp_path, 1, 1))
    assert main(["versus", folder, folder]) == 2
    captured = capsys.readouterr()
    assert not captured.out
    assert captured.err == "pomology: versus: name at least two different runs\n"


def test_an_unknown_text_is_neither_a_run_nor_a_device():
    with pytest.raises(PomologyError, match=r"unknown device"):
        answer.answer("no such thing at all", "t4")
