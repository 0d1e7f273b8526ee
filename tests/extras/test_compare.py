"""Runs side by side: verdicts on known numbers, and how often they are wrong."""

from types import SimpleNamespace

import numpy as np
import pytest
from records import metric, record, write
from scipy import stats

from pomology import __main__
from pomology.articles import claims
from pomology.errors import PomologyError
from pomology.extras import compare
from pomology.results import comparing
from pomology.results.comparing import Compared

MACHINE = {"chip": "Apple M9", "cpu_cores": 8, "memory_bytes": 2**34, "os": "macOS"}
FAST, SLOW = (5.0, 5.05, 4.95), (10.0, 10.1, 9.9)


def repeats(values, experiment="vae", name="epoch_s", **more):
    more = {"threads": 8, "parameters": 1, "flops_per_step": 10} | more
    times = enumerate(values)
    return [
        record(experiment, {name: metric(value, unit="s")}, repeat=i, **more) for i, value in times
    ]


def table_of(*places):
    return compare.table(compare.load(*places))


def verdicts(*places):
    """The verdicts by experiment and run."""
    return {(row["experiment"], row["run"]): row["verdict"] for row in table_of(*places).data}


def test_other_drivers_and_limits_of_power_are_named(tmp_path):
    gpu = {"name": "NVIDIA L4", "memory_bytes": 2**34, "cores": None}
    facts = [("580.95.05", 72.0), ("590.48.01", 60.0)]
    paths = []
    for number, (driver, watts) in enumerate(facts):
        machine = MACHINE | {"driver": driver, "gpus": [gpu | {"power_limit_w": watts}]}
        paths.append(write(tmp_path / f"run{number}", repeats([10.0 + number]), machine))
    notes = " ".join(table_of(*paths).notes)
    assert "NVIDIA's driver 580.95.05 and 590.48.01" in notes
    assert "limit of power of NVIDIA L4 72 W and 60 W" in notes


def test_runs_side_by_side(tmp_path):
    slow = [*repeats(SLOW), *repeats([1.0], "siamese"), *repeats([7.0], "dcgan")]
    slow = write(tmp_path / "a" / "run", slow, MACHINE)
    fast = [*repeats(FAST), *repeats([7.0], "dcgan", threads=2)]
    fast = write(tmp_path / "b" / "run", fast, MACHINE)
    again = [*repeats([10.0, 9.9, 10.2]), *repeats([0.02], "siamese")]
    again = write(tmp_path / "c", again, MACHINE)
    assert verdicts(slow, fast, again) == {
        ("vae", "run (2)"): "faster",
        ("dcgan", "run (2)"): "must not be compared: threads 8 and 2",
        ("vae", "c (3)"): "no difference shown",
        ("siamese", "c (3)"): "single runs",
    }
    shown = table_of(slow, fast, again)
    (faster,) = [row for row in shown.data if row["verdict"] == "faster"]
    assert faster["ratio"] == pytest.approx(0.5, rel=1e-3) and faster["low"] < 0.5 < faster["high"]
    assert shown.columns == ["Case", "Time of", "run (1)", "run (2)", "c (3)"]
    text = " ".join(cell for row in shown.rows for cell in row.cells.values())
    assert "must not be compared: threads 8 and 2" in text and "7.00 s" in text
    assert "run (1): Apple M9, 8 cores, 16 GB." in shown.notes


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"profile": "article"}, "profile quick and article"),
        ({"data": "real"}, "data none and real"),
        ({"scaled": True}, "scaled False and True"),
        ({"flops_per_step": 7}, "flops per step 10 and 7"),
        ({"threads": 4}, "threads 8 and 4"),
        ({"chip": "Apple M8", "threads": 4}, ""),  # of another chip threads are its business
    ],
)
def test_runs_that_measure_different_things_are_not_compared(tmp_path, change, told):
    known = repeats([10.0, 10.1, 10.2], data="none")
    other = repeats([5.0, 5.1, 4.9], **{"data": "none"} | change)
    first = write(tmp_path / "first", known)
    (verdict,) = verdicts(first, write(tmp_path / "other", other)).values()
    assert verdict == (f"must not be compared: {told}" if told else "faster")
    # One repeat of another kind is enough.
    (verdict,) = verdicts(first, write(tmp_path / "mixed", [*known, other[2]])).values()
    assert told.split(" and ")[0] in verdict


def calibrated(seconds, count=12, wild=()):
    """Records with calibrations before and after them, of which some are wild."""
    sides = {"before_s": 1.0, "after_s": 1.0, "device_before_s": seconds}
    calibrations = [sides | {"device_after_s": seconds} for _ in range(count - len(wild))]
    calibrations += [sides | {"device_after_s": time_s} for time_s in wild]
    return [
        record("blas", {}, {"number": number}, canary=one, backend="mps", status="error")
        for number, one in enumerate(calibrations)
    ]


NEAR = (7.0, 7.05, 6.95)  # seconds, of SLOW's 10: what a machine that is 25 % faster explains


@pytest.mark.parametrize(
    ("calibrations", "change", "verdict"),
    [
        (calibrated(0.0121), {}, "faster"),  # in spite of a slower machine
        (
            calibrated(0.008),
            {},
            "in doubt: faster, but the machine was 25 % faster by its calibration (median of 24)",
        ),
        (calibrated(0.0097), {}, "faster"),
        (calibrated(0.0098, wild=[1e-4]), {}, "faster"),  # a single one says nothing
        (calibrated(0.005, count=4), {}, "faster"),  # too few
        (calibrated(0.005), {"chip": "Apple M8"}, "faster"),  # whose matmul takes another time
        (calibrated(0.005), {"framework_version": "3"}, "faster"),
        ([], {}, "faster"),  # of an older version
        ([], {"power_mode": "low"}, "faster; power mode automatic and low"),
    ],
)
def test_a_verdict_names_the_machine_s_own_change(tmp_path, calibrations, change, verdict):
    base = {"backend": "mps", "power_mode": "automatic"}
    first = write(tmp_path / "first", [*repeats(SLOW, **base), *calibrated(0.01)])
    other = write(tmp_path / "other", [*repeats(NEAR, **base | change), *calibrations])
    assert verdicts(first, other)["vae", "other"] == verdict
    # What is far more than the machine's change is no doubt.
    far = [one / 2 for one in NEAR]
    other = write(tmp_path / "far" / "other", [*repeats(far, **base | change), *calibrations])
    assert verdicts(first, other)["vae", "other"].startswith("faster")


def test_two_kinds_of_cpu_of_one_name_are_two_machines(tmp_path):
    """No calibration explains a difference between them, and the notes name both."""
    runs = []
    for name, times, model in (("first", SLOW, 1), ("other", FAST, 17)):
        cpu = {"family": 25, "model": model, "stepping": 1, "max_mhz": None}
        calibrations = [
            record("blas", {}, {"number": number}, canary={"before_s": 1.0, "after_s": model})
            for number in range(12)
        ]
        machine = MACHINE | {"cpu": cpu}
        runs.append(write(tmp_path / name, [*repeats(times), *calibrations], machine))
    shown = table_of(*runs)
    assert [row["verdict"] for row in shown.data if row["experiment"] == "vae"] == ["faster"]
    kinds = "(family 25, model 1, stepping 1) and other (family 25, model 17, stepping 1)"
    assert f"The CPUs of first {kinds} are of different kinds." in shown.notes


def test_most_cases_in_one_direction_are_told_first_with_the_versions_of_both(tmp_path):
    runs = []
    for name, factor, version in (("first", 1.0, "2.1"), ("other", 1.4, "2.2")):
        machine = MACHINE | {"python": "3.12", "packages": {"torch": version}}
        times = [
            record(f"experiment_{number}", {"step_s": metric(factor * (1 + 0.01 * number % 3))})
            for number in range(20)
        ]
        runs.append(write(tmp_path / name, times, machine))
    notes = table_of(*runs).notes
    assert notes[0].startswith("other: 20 of 20 cases took longer, the median 1.4 times as long.")
    assert "first: Apple M9, 8 cores, 16 GB; commit unknown, Python 3.12, torch 2.1." in notes
    assert "other: Apple M9, 8 cores, 16 GB; commit unknown, Python 3.12, torch 2.2." in notes


def test_compared_is_what_both_have_timed(tmp_path):
    both = {"kernel_s": metric(1.0), "step_s": metric(3.0), "loss_last": metric(2.0)}
    wrong = record("siamese", {"epoch_s": metric(1.0)}, repeat=3, status="mismatch")
    one = [record(metrics=both), *repeats([10.0, 10.1, 10.2], "siamese")]
    one += [wrong, *repeats([1.0], "dcgan")]
    other = [record(metrics={"step_s": metric(6.0), "epoch_s": metric(9.0)})]
    other += repeats([20.0, 20.1, 20.2], "siamese")
    other.append(record("dcgan", status="out-of-memory", threads=8))
    shown = table_of(write(tmp_path / "one", one), write(tmp_path / "other", other)).data
    rows = {row["experiment"]: row for row in shown}
    assert (rows["vae"]["metric"], rows["vae"]["ratio"]) == ("step_s", pytest.approx(2))
    assert rows["siamese"]["verdict"] == "slower"
    assert rows["dcgan"]["verdict"] == "not timed in both"


BATTERY, SWAPPING = {"flags": ["on-battery"]}, {"flags": ["swapping"]}


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        ({}, BATTERY, "in doubt: faster, but on-battery in b"),
        (BATTERY, {}, "in doubt: faster, but on-battery in a"),
        (BATTERY, BATTERY, "faster"),
        (SWAPPING, SWAPPING, "in doubt: faster, but swapping in a, swapping in b"),
        ({}, {"flags": ["unproved"]}, "faster"),
    ],
)
def test_a_condition_leaves_a_difference_in_doubt(tmp_path, before, after, verdict):
    a = write(tmp_path / "a", repeats(SLOW, **before))
    b = write(tmp_path / "b", repeats(FAST, **after))
    assert list(verdicts(a, b).values()) == [verdict]
    c = write(tmp_path / "c", repeats(SLOW[::-1], **after))
    assert list(verdicts(a, c).values()) == ["no difference shown"]


def test_runs_without_a_common_time_have_a_sentence_each_and_a_copy_is_refused(tmp_path):
    a = write(tmp_path / "a", repeats(SLOW))
    b = write(tmp_path / "b", [record("siamese", status="error"), *repeats([1.0], "dcgan")])
    c = write(tmp_path / "c", [record("vae", status="error", backend="mps")])
    text = str(table_of(a, b, c))
    alone = "has no timed case in common with another run;"
    assert f"b {alone} 1 of its 2 cases are timed: dcgan (quick, PyTorch, cpu), siamese" in text
    assert f"c {alone} 0 of its 1 cases are timed: vae (quick, PyTorch, gpu)." in text
    with pytest.raises(PomologyError, match=r"^a and d: the same results"):
        compare.load(b, a, write(tmp_path / "d", repeats(SLOW)))


def test_a_case_is_laid_against_the_first_run_that_has_it(tmp_path):
    a = write(tmp_path / "a", repeats([1.0], "dcgan"))
    b = write(tmp_path / "b", repeats(FAST))
    c = write(tmp_path / "c", [*repeats(SLOW), *repeats([1.0], "dcgan")])
    shown = table_of(a, b, c)
    bases = [(row["experiment"], row["base"], row["verdict"]) for row in shown.data]
    assert sorted(bases) == [("dcgan", "a", "single runs"), ("vae", "b", "slower")]
    assert [(row.cells["a"], row.cells["b"]) for row in shown.rows] == [
        ("1.00 s", ""),
        ("", "5.00 s ± 2.5 %"),
    ]


def test_single_runs_are_judged_by_the_variation_that_was_measured(tmp_path):
    def place(name, seconds, variation, **more):
        check = {"check": "same thing twice"}
        values = {"between_process_difference": metric(variation)}
        checked = record("instrument_check", values, config=check, **more)
        times = repeats([seconds], **more)
        return write(tmp_path / name, [*times, checked] if variation else times)

    base = place("base", 10.0, 0.2, backend="mps")
    for seconds, variation, verdict in (
        (8.0, 0.2, "within run-to-run variation"),  # 1.2 to the power of 1.9 is 1.41
        (7.0, 0.1, "faster"),
        (30.0, 1.0, "slower"),
        (5.0, 0.0, "single runs"),  # how much two runs differ there is not known
    ):
        other = place(verdict, seconds, variation, backend="cuda")  # another maker's GPU
        (row,) = [row for row in table_of(base, other).data if row["experiment"] == "vae"]
        assert row["verdict"] == verdict
    assert row["low"] is None and "no verdict" in " ".join(table_of(base, other).notes)


def test_two_single_runs_of_one_machine_are_called_different_in_at_most_5_percent_of_cases():
    """Each two repeats of the reference run, with the variation that each measured."""
    (run,) = compare.load("reference-cpu")
    wrong = []
    for pair in ([0, 1], [0, 2], [1, 2]):
        sides = []
        for repeat in pair:
            records = [record for record in run.records if record.repeat == repeat]
            machine = {"machine": run.machine}
            sides.append(SimpleNamespace(name=str(repeat), records=records, kind="", **machine))
        rows = compare.table(sides).data
        judged = [row["verdict"].split(";")[0] for row in rows if row["low"] is not None]
        assert len(judged) > 200
        wrong.append(np.mean([verdict in ("faster", "slower") for verdict in judged]))
    assert np.mean(wrong) <= 0.05


def drawn(generator, shared, drift, count=3):
    """Two runs of `count` processes of one thing, times as method and machine make them.

    The logarithm varies between processes by 5 to 22 %, from row to row another; `shared` of the
    variance is one for all rows of a process; between the runs all rows have moved, by `drift`
    times that variance.
    """
    rows = []
    for notebook, size in enumerate((75, 66, 12, 6, 5, 4, 3, 2, 1, 1)):
        deviations = np.exp(generator.uniform(*np.log((0.05, 0.22)), size))
        moved = generator.standard_normal() * np.sqrt(drift) * deviations
        times = {}
        for run in ("a", "b"):
            own = np.sqrt(1 - shared) * generator.standard_normal((count, size))
            common = np.sqrt(shared) * generator.standard_normal((count, 1))
            times[run] = np.exp(deviations * (own + common) + moved * (run == "b")).T
        for b, a in zip(times["b"], times["a"], strict=True):
            rows.append((notebook, Compared(base_s=a, other_s=b)))
    return rows


@pytest.mark.parametrize(("shared", "drift"), [(0.0, 0.0), (0.95, 0.4)])
def test_two_runs_of_one_machine_are_called_different_in_at_most_5_percent_of_rows(shared, drift):
    generator = np.random.default_rng(7)
    different = []
    for _ in range(12):
        rows = drawn(generator, shared, drift)
        for notebook in dict(rows):
            comparing.judge([row for name, row in rows if name == notebook], in_turn=False)
        different.append(np.mean([row.verdict != "no difference shown" for _, row in rows]))
    assert np.mean(different) <= 0.05 and np.mean(np.array(different) > 0.05) <= 0.1


@pytest.mark.parametrize("in_turn", [True, False])
def test_a_verdict_is_welchs_t_of_the_logarithms(in_turn):
    a, b = np.exp([1.0, 2, 3]), np.exp([2.0, 4, 6])
    row = Compared(base_s=b, other_s=a)
    comparing.judge([row], in_turn)
    welch = stats.ttest_ind(np.log(a), np.log(b), equal_var=False).confidence_interval()
    bounds = np.log([row.low, row.high])
    assert row.verdict == "no difference shown"
    # Between sets that ran one after the other there is more variance than within them.
    widened = 1 if in_turn else np.sqrt(1 + 3 * claims.BETWEEN_SETS / 2)
    assert bounds == pytest.approx(-2 + widened * (np.array(welch) + 2))
    row = Compared(base_s=9 * b, other_s=a)
    comparing.judge([row])
    assert row.verdict == "faster"


def test_the_command_writes_a_table_in_which_no_text_is_markup(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(compare, "root", lambda: tmp_path)
    attack = '=cmd<script>alert(1)</script>\x1b[31m"'
    a = write(tmp_path / "a", repeats(SLOW, case=attack, chip=attack), {"chip": attack})
    b = write(tmp_path / "=b", repeats(FAST, case=attack, flags=[attack]))
    assert __main__.main(["compare", str(a), str(b)]) == 0
    said = capsys.readouterr().out
    assert "faster" in said and "compare.csv" in said and "\x1b" not in said
    page = (tmp_path / "outputs" / "compare.html").read_text(encoding="utf-8")
    assert "<script" not in page and "alert(1)" in page
    assert __main__.main(["compare", str(a)]) == 2 and "at least two" in capsys.readouterr().err


def said(monkeypatch, capsys, tmp_path, *words):
    monkeypatch.setattr(compare, "root", lambda: tmp_path)
    assert __main__.main(["compare", *words]) == 0
    return capsys.readouterr().out


def test_the_first_line_counts_the_cases_and_has_the_mean_of_their_ratios(
    tmp_path, monkeypatch, capsys
):
    a = [*repeats(SLOW), *repeats(FAST, "siamese"), *repeats([1.0], "dcgan")]
    b = [*repeats(FAST), *repeats(SLOW, "siamese"), *repeats([4.0], "dcgan")]
    places = [str(write(tmp_path / name, run, MACHINE)) for name, run in (("a", a), ("b", b))]
    text = said(monkeypatch, capsys, tmp_path, *places)
    # 0.5, 2 and 4 times as long: the geometric mean is the third root of 4.
    mean = f"{4 ** (1 / 3):.2f}"
    counted = "3 cases: faster 1, slower 1, no verdict 1"
    assert text.splitlines()[0] == f"b takes {mean} times as long as a, {counted}"
    lines = {line.split()[1]: line.split() for line in text.splitlines() if line.startswith("b  ")}
    assert lines["vae"][2:4] == ["1", "0.500"] and lines["dcgan"][2:4] == ["1", "4.00"]
    assert max(map(len, text.splitlines())) < 700 and text.count("\n") < 40


def test_the_cpu_of_one_run_is_compared_with_the_gpu_of_another(tmp_path, monkeypatch, capsys):
    a = write(tmp_path / "a", [*repeats(SLOW), *repeats(FAST, backend="mps")], MACHINE)
    b = write(tmp_path / "b", [*repeats(FAST, backend="cuda"), *repeats(SLOW)], MACHINE)
    text = said(monkeypatch, capsys, tmp_path, f"{a}:cpu", f"{b}:gpu")
    first = text.splitlines()[0]
    assert first == "b (GPU) takes 0.500 times as long as a (CPU), 1 case: faster 1"
    assert __main__.main(["compare", f"{a}:cpu", f"{a}:gpu"]) == 0  # of one machine, too


def test_runs_without_a_common_case_have_a_line(tmp_path, monkeypatch, capsys):
    a = write(tmp_path / "a", repeats(SLOW), MACHINE)
    b = write(tmp_path / "b", repeats(FAST, "dcgan"), MACHINE)
    text = said(monkeypatch, capsys, tmp_path, str(a), str(b))
    assert text.splitlines()[0] == "b: no case has a time in a, too"
