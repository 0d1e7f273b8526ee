"""Runs side by side: verdicts against what is known of the numbers, how often they are wrong, what strangers send."""

from __future__ import annotations

import csv
import json
import zipfile

import numpy as np
import pytest
from test_report import ATTACKS, Page, assert_harmless, metric, record, run

from pomology.errors import PomologyError
from pomology.measure.estimate import Estimate
from pomology.report import compare
from pomology.results import run as results_run

FAST, SLOW = (5.0, 5.05, 4.95), (10.0, 10.1, 9.9)


def repeats(values, name="epoch_s", **more):
    return [record(repeat=i, metrics={name: metric(value)}, **more) for i, value in enumerate(values)]


def table_of(*places):
    return compare.side_by_side([compare.load(place) for place in places])


def test_runs_side_by_side(tmp_path):
    slow = run(tmp_path / "a" / "run", *repeats(SLOW), record("siamese"), record("dcgan"))
    fast = run(tmp_path / "b" / "run", *repeats(FAST), record("dcgan", threads=2), machine=None)
    again = run(tmp_path / "c", *repeats([10.0, 9.9, 10.2]), record("siamese", metrics={"step_s": metric(0.02)}))
    table = table_of(slow, fast, again)
    assert table.columns[2:5] == ("run (1)", "run (2)", "c (3)")
    rows = {(row["experiment"], row["run"]): row for row in table.data}
    assert {key: row["verdict"] for key, row in rows.items()} == {
        ("vae", "run (2)"): "faster",
        ("dcgan", "run (2)"): "must not be compared",
        ("vae", "c (3)"): "no difference shown",
        ("siamese", "c (3)"): "cannot be told",
    }
    faster = rows["vae", "run (2)"]
    assert faster["ratio"] == pytest.approx(0.5, rel=1e-3) and faster["low"] < 0.5 < faster["high"]
    assert 1 < faster["smallest_detectable"] < 1.1 and rows["siamese", "c (3)"]["metric"] == "step_s"
    text = " ".join([*(cell for row in table.rows for cell in row.cells), *table.notes])
    assert "cannot be told from single runs" in text and "must not be compared: threads 8 and 2" in text
    assert "7.89 s (7.50 s to 8.25 s within this run)" in text and "3 repeats" in text
    assert "machine.json is missing" in text and "Apple M9, 8 cores" in text


XEON = {"chip": "Xeon", "cpu_cores": 2, "memory_bytes": 24 * 2**30, "python": "3.11.9"}
XEON |= {"processor": {"CPU family": "6", "Stepping": "8", "L2 cache": "2 MiB", "BogoMIPS": 5400.1}}
ONE = {"memory_bytes": 24 * 2**30 + 10**6, "processor": XEON["processor"] | {"BogoMIPS": 5399.98}, "present_mhz": 900.0}
OTHER = {"processor": XEON["processor"] | {"Stepping": "4", "Flags": "avx2"}}


@pytest.mark.parametrize(
    ("change", "canary_s", "words"),
    [
        (ONE, 0.00055, "b: is the machine of a."),
        (OTHER, 0.0005, "b: not shown to be the machine of a. Stepping 8 and 4; Flags None and avx2"),
        ({}, 0.0006, "b: not shown to be the machine of a. calibration 0.0005 and 0.0006"),
        ({"processor": None}, 0.0005, "b: not shown to be the machine of a. What would show whether they are one"),
        ({}, None, "b: not shown to be the machine of a. What would show whether they are one"),
    ],
)
def test_two_machines_of_one_name_are_not_taken_for_one(tmp_path, change, canary_s, words):
    slower = {"before_s": 0.0009, "after_s": 0.0008}
    a = run(
        tmp_path / "a",
        record(canary={"before_s": 0.0007, "after_s": 0.0005}),
        record("dcgan", canary=slower),
        machine=XEON,
    )
    more = {"canary": {"before_s": canary_s, "after_s": 0.0007}} if canary_s else {}
    b = run(tmp_path / "b", record(**more), machine=XEON | change)
    assert [note for note in table_of(a, b).notes if note.startswith(words)]


def test_runs_that_measure_different_things_are_not_compared(tmp_path):
    first = run(tmp_path / "first", *repeats([10.0, 10.1]))
    for change, told in (
        ({"profile": "article"}, "profile quick and article"),
        ({"data": "real"}, "data stand-in and real"),
        ({"scaled": True}, "scaled False and True"),
        ({"flops_per_step": 7}, "flops per step 1000000000 and 7"),
        ({"parameters": None}, "parameters 652824 and None"),
        ({"threads": 4}, "threads 8 and 4"),
    ):
        (row,) = table_of(first, run(tmp_path / told, *repeats([5.0, 5.1], **change))).data
        assert row["verdict"] == "must not be compared" and row["ratio"] is None and row["why"] == told
    # One repeat of another kind is enough.
    mixed = run(tmp_path / "mixed", *repeats([10.0, 10.1]), *repeats([9.0] * 3, threads=4)[2:])
    assert [row["verdict"] for row in table_of(first, mixed).data] == ["must not be compared"]


def test_what_is_not_one_case_is_not_in_one_row(tmp_path):
    a = run(tmp_path / "a", record(), record(case="b", config={"batch_size": 5120}), record(case="c", backend="cpu"))
    b = run(tmp_path / "b", record(status="out-of-memory", reason="x", metrics={}), record(case="d", precision="fp16"))
    table = table_of(a, b)
    (row,) = table.data
    assert row["verdict"] == "cannot be told" and row["why"] == "not timed in both"
    assert "out-of-memory" in str(table) and "3 cases are in one run" in str(table)
    # Other threads on another chip are that chip's business.
    (row,) = table_of(a, run(tmp_path / "c", record(chip="Apple M8", threads=4))).data
    assert (row["verdict"], row["why"], row["ratio"]) == ("cannot be told", "single runs", pytest.approx(1))
    # The order of settings in the file does not make another case.
    orders = [run(tmp_path / one, record(config=dict.fromkeys(one, 1))) for one in ("xy", "yx")]
    assert len(table_of(*orders).data) == 1
    # Compared is what both have timed, and a repeat that ended badly is none.
    both = {"kernel_s": metric(1.0), "step_s": metric(3.0), "loss_last": metric(2.0)}
    one = run(tmp_path / "one", record(metrics=both), *repeats([10.0, 10.1], experiment="siamese"))
    run(one, record("siamese", repeat=2, status="mismatch", parameters=None, flops_per_step=None))
    other = run(tmp_path / "other", record(metrics={"step_s": metric(6.0), "epoch_s": metric(9.0)}))
    run(other, *repeats([20.0, 20.1, 20.2], experiment="siamese"))
    rows = {row["experiment"]: row for row in table_of(one, other).data}
    assert rows["vae"]["metric"] == "step_s" and rows["vae"]["ratio"] == pytest.approx(2)
    assert rows["siamese"]["verdict"] == "slower"


def test_a_case_that_the_first_run_lacks_is_laid_against_the_next_and_many_runs_are_counted(tmp_path):
    a = run(tmp_path / "a", record("dcgan"))
    b, c = (run(tmp_path / name, *repeats(times), machine=None) for name, times in (("b", FAST), ("c", SLOW)))
    table = table_of(a, b, run(c, record("dcgan")))
    rows = {(row["experiment"], row["base"], row["run"]): row["verdict"] for row in table.data}
    assert rows == {("dcgan", "a", "c"): "cannot be told", ("vae", "b", "c"): "slower"}
    table = table_of(a, b, c, b)
    assert [row.cells[2:] for row in table.rows][2:] == [("2", "0", "1", "0", "1", "0"), ("1", "0", "0", "1", "0", "0")]
    assert len(table.data) == 3 and table.data[0]["run"] == table.rows[2].cells[0]


SIZES = (75, 66, 12, 6, 6, 5, 4, 4, 4, 3, 2, 2, 1, 1, 1)  # rows of the notebooks of a run


BASE = record()


def drawn(generator, sizes, sd=(0.05, 0.22), count=3, shared=0.5, drift=0.19, factors=None):
    """Two sets of `count` processes of one thing, times as method and machine make them: the logarithm varies between
    processes by `sd`, from row to row another; `shared` of the variance is one for all rows of a process; between the
    two sets all rows have moved, by a variance of `drift` times that of a process. The second set takes `factors` more.
    """
    pairs = {}
    for notebook, rows in enumerate(sizes):
        deviations = np.exp(generator.uniform(*np.log(sd), rows))
        sets = []
        for _ in range(2):
            own, common = generator.standard_normal((count, rows)), generator.standard_normal((count, 1))
            sets.append(deviations * (np.sqrt(1 - shared) * own + np.sqrt(shared) * common))
        sets[1] = sets[1] + generator.standard_normal() * np.sqrt(drift) * deviations
        if factors is not None:
            sets[1] = sets[1] + np.log(factors(notebook, rows))
        for row in range(rows):
            times = [[{"epoch_s": Estimate(float(x), "s")} for x in np.exp(values[:, row])] for values in sets]
            case = compare.Case("003", f"notebook {notebook}", "torch", "cpu", "fp32", json.dumps({"row": row}))
            pairs[case] = tuple([BASE.replace(metrics=one) for one in side] for side in times)
    return pairs


@pytest.mark.parametrize(("shared", "drift"), [(0.0, 0.0), (0.95, 0.4)])
def test_two_sets_of_one_machine_are_called_different_in_at_most_5_percent_of_rows(shared, drift):
    """With the spread between processes that was measured (5 to 22 %), and a drift up to twice the measured one."""
    generator, different = np.random.default_rng(7), []
    for _ in range(30):
        findings = compare.judged(drawn(generator, SIZES, shared=shared, drift=drift)).values()
        different.append(np.mean([finding.verdict in ("faster", "slower") for finding in findings]))
        for verdict, ratio in ((finding.verdict, finding.ratio) for finding in findings):
            told = "slower" if ratio.low > 1 else "faster" if ratio.high < 1 else "no difference shown"
            assert verdict == told and ratio.low < ratio.value < ratio.high and ratio.covers == "repeats"
    assert np.mean(different) <= 0.05 and np.mean(np.array(different) > 0.05) <= 0.1


def test_what_cannot_be_used_costs_itself(tmp_path):
    bad = run(tmp_path / "bad", record(metrics={"epoch_s": metric(-7.89)}), record("siamese"), machine=None)
    (bad / "dcgan.jsonl").write_text("[" * 1_000_000)
    (bad / "mlp.jsonl").write_text(json.dumps({"schema": 2}))
    table = table_of(run(tmp_path / "good", record(), record("siamese")), bad)
    assert {row["experiment"]: row["why"] for row in table.data} == {
        "siamese": "single runs",
        "vae": "not timed in both",
    }
    for told in ("vae: epoch_s is no time.", "dcgan.jsonl, line 1: ", "mlp.jsonl, line 1: schema 2 is newer"):
        assert f"bad: {told}" in str(table)
    for name in ("vae", "siamese", "dcgan"):
        (bad / f"{name}.jsonl").unlink()
    with pytest.raises(PomologyError, match=r"^bad: mlp\.jsonl, line 1: schema 2 is newer"):
        compare.load(bad)


def test_texts_of_strangers_are_shown_and_do_nothing(tmp_path):
    attack = " ".join(ATTACKS) + "\x1b[31m\u202e\r\n\x07=cmd"
    about = {"chip": attack, "cpu_cores": 8, "memory_bytes": 2**34, "os": attack, "python": "3.11.9"}
    one = {"precision": attack, "framework": attack, "flags": [attack], "config": {attack: attack}}
    own = [record("=1+1", case="c"), record(**one)]
    a = run(tmp_path / "a", *own, record("x", data=attack), machine=about)
    b = run(tmp_path / '=<b title="x">', *own, record("x", data="real"), machine=about)
    (b / "zero.jsonl").write_text(json.dumps(record().line() | {"status": attack}) + "\n")
    (a / "vae.jsonl").write_bytes((a / "=1+1.jsonl").read_bytes() + (a / "vae.jsonl").read_bytes())
    (b / "vae.jsonl").write_bytes((b / "=1+1.jsonl").read_bytes() + (b / "vae.jsonl").read_bytes())
    table, numbers, page = compare.write([compare.load(a), compare.load(b)], tmp_path / "out")
    printed = str(table).replace("\n", "")
    assert printed.isprintable() and "alert(1)" in printed
    shown = Page(page)
    assert_harmless(shown)
    assert ATTACKS[0] in shown.text and len(shown.source) < 200_000
    # A phone's reader gets the column's name in each cell; what was found stands first.
    assert 'data-column="=&lt;b title=&#34;x&#34;&gt; against the first"' in shown.source and "<b " not in shown.source
    places = [shown.source.index(words) for words in ("2 cannot be told (single", "A verdict needs", "<table>")]
    assert places == sorted(places)
    with open(numbers, encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    assert len(rows) == 4 and all(cell[:1] not in ("=", "+", "-", "@") for row in rows for cell in row)
    assert all(cell.isprintable() for row in rows for cell in row)


def test_runs_are_found_by_name_path_zip_and_folder_of_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(results_run, "root", lambda: tmp_path)
    outputs = tmp_path / "outputs"
    one, two = run(outputs / "one", record()), run(tmp_path / "lab" / "two", record())
    packed = tmp_path / "lab" / "three.zip"
    with zipfile.ZipFile(packed, "w") as archive:
        archive.write(two / "vae.jsonl", "vae.jsonl")
    (outputs / "four.zip").write_bytes(packed.read_bytes())
    assert compare.find(["one", "four", str(tmp_path / "lab"), str(one)]) == [one, outputs / "four.zip", packed, two]
    for nothing in ("", "nowhere", "../nowhere", str(tmp_path / "outputs" / "one" / "vae.jsonl")):
        with pytest.raises(PomologyError, match=r"RUNS: .*: no such run; outputs/ has one"):
            compare.find([nothing])
