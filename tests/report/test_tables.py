"""Tables: what the article printed, as printed, and this machine's numbers with what makes them credible.

The article's rows and the expected means and intervals are typed in here, from the article and computed by hand.
"""

from __future__ import annotations

import copy
import csv
import html
import json
import re

import fakes
import pytest
from declared import article_table

from pomology import format
from pomology.articles import published
from pomology.measure.estimate import Estimate
from pomology.report import article, details
from pomology.report import table as report_table
from pomology.report.table import Row, Table
from pomology.results import cases as results_cases
from pomology.results import frame
from pomology.results.record import Record, parse

CPU = "M1 Ultra CPU"


def metric(
    value: float,
    low: float | None = None,
    high: float | None = None,
    how: str = "estimated",
    unit="s",
):
    return Estimate(value, unit, low, high, 400, how)


METRICS = {
    "epoch_s": metric(4.5, 4.41, 4.59),
    "compute_epoch_s": metric(2.25, 2.223, 2.277),
    "step_s": metric(0.0095, 0.009, 0.01),
    "first_step_s": metric(0.05, how="measured"),
    "flops_per_s": metric(52_774_000_000, unit="FLOP/s"),
    "footprint_peak_bytes": metric(412_000_000, unit="B"),
    "power_w": metric(41.6, unit="W"),
    "temperature_c": metric(63.5, unit="°C"),
    "page_faults": metric(12_345, unit="count"),
    "swap_bytes": metric(0, unit="B"),
    "loss_first": metric(545.0, unit=""),
    "loss_last": metric(120.0, unit=""),
}
RECORD = {
    "case": "torch-cpu batch_size=128",
    "device": "cpu",
    "chip": "Intel(R) Core(TM) i7-9750H CPU @ 2.60GHz",
}
RECORD |= {
    "data": "stand-in",
    "data_origin": "digits drawn by hand",
    "parameters": 652_824,
    "foreign_load": 0.25,
}
RECORD |= {"flops_per_step": 501_350_400, "seconds": 12.5, "metrics": METRICS}
RECORD |= {
    "blocks": {"training": {"epoch_steps": 469, "steady": [[100, 0.95], [300, 2.85]], "warmup": []}}
}


def record(**changes) -> Record:
    return fakes.record(**copy.deepcopy(RECORD) | changes)


def failed(status: str, reason: str | None = None, **changes) -> Record:
    return record(
        status=status, reason=reason, **{"device": None, "metrics": {}, "blocks": {}} | changes
    )


def repeats_of(*epochs: float) -> list[Record]:
    metrics = [{"epoch_s": metric(value, value * 0.99, value * 1.01)} for value in epochs]
    return [record(repeat=number, metrics=found) for number, found in enumerate(metrics)]


def rows(table: Table, kind: str = "measured") -> list[dict]:
    """The rows of this machine, by heading."""
    return [
        dict(zip(table.columns, row.cells, strict=True)) for row in table.rows if row.kind == kind
    ]


# Numbers as people read them ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("show", "values", "text"),
    [
        (format.seconds, (9.996,), "10.0 s"),
        (format.significant, (123_456, 2), "120,000"),
        (format.clock_time, (59.5,), "1:00 min"),
        (format.clock_time, (100_000,), "27:46:40 h"),
        (format.plus_minus, (metric(4.5, 4.4, 4.6),), " ± 2.2 %"),
        (format.plus_minus, (metric(4.5, 2.2, 6.8),), ""),  # over 50 %
        # Half of 35.4 and of 35.6: two digits of it, and one.
        (format.with_interval, (metric(1234.5, 1199.1, 1269.9), format.seconds), "1,234 s ± 2.9 %"),
        (format.with_interval, (metric(1234.5, 1198.9, 1270.1), format.seconds), "1,230 s ± 2.9 %"),
        (
            format.with_interval,
            (metric(153.4, 46.8, 260.1), format.seconds),
            "about 150 s: 47 to 260 s",
        ),
        (format.with_interval, (metric(0.426, 0.24, 1.94, unit=""),), "0.43 (0.24 to 1.9)"),
        # What was measured once, or counted, is told as it was; what five steps tell, in two digits.
        (
            format.with_interval,
            (metric(4.567).replace(n=1, how="measured"), format.seconds),
            "4.57 s",
        ),
        (
            format.with_interval,
            (metric(4.567, 4.4, 4.7).replace(n=5), format.seconds),
            "about 4.6 s",
        ),
        (
            format.with_interval,
            (metric(4.567, 4.4, 4.7).replace(n=5, covers="repeats"), format.seconds),
            "4.57 s ± 3.3 %",
        ),
        (
            format.with_interval,
            (metric(138_357_544, unit="").replace(n=1, how="measured"), str),
            "138357544",
        ),
    ],
)
def test_numbers_are_rounded_and_have_a_unit_that_fits(show, values, text):
    assert show(*values) == text


# The article's table --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("experiment", ["dcgan", "siamese", "transformer_lm", "vae"])
def test_every_published_row_stands_as_printed_and_in_order(experiment):
    table = article_table(experiment, [record(experiment=experiment)])
    shown = [row.cells for row in table.rows if row.kind == "published"]
    lines: dict[int, list[str]] = {}
    for value in published.rows(experiment=experiment):
        lines.setdefault(value["row"], [f"{value['device']} (PyTorch, 2022)"]).append(
            value["printed"]
        )
    assert [[cells[0], cells[-6], *cells[-4:-1]] for cells in shown] == list(lines.values())
    assert {(cells[-5], cells[-1]) for cells in shown} == {("", "published")}
    assert all((row["status"] == "ok") == ("epoch_s" in row) for row in table.data)
    assert [row.kind for row in table.rows] == ["published"] * len(shown) + ["measured"]
    assert article.YEARS in table.notes and article.YEARS not in article_table(experiment, []).notes


def test_a_measured_row_shows_value_interval_and_where_it_comes_from():
    table = article_table("vae", [record(flags=["drift"])])
    expected = {
        "Device": "Intel Core i7-9750H CPU (PyTorch 2.13.0, 2026)",
        "Batch size": "128",
        "Time per epoch": "4.50 s ± 2.0 %",
    }
    expected |= {
        "Of it computing": "2.25 s ± 1.2 %",
        "Temperature": "64 °C",
        "Memory": "0.412 GB",
        "Power": "42 W",
    }
    assert rows(table) == [
        expected | {"Remarks": "estimated from 400 steps, 85 % of the epoch; stand-in; drift"}
    ]
    notes, meaning = "\n".join(table.notes), "\n".join(table.meaning)
    assert (
        "Data: digits drawn by hand." in notes
        and "within this run" in meaning
        and "contended" not in notes
    )
    assert f"drift: {results_cases.FLAGS['drift']}." in notes

    reserved = {
        "reserved_peak_bytes": metric(3e9, unit="B"),
        "footprint_peak_bytes": metric(1e9, unit="B"),
    }
    gpu = record(backend="mps", device="gpu", chip="Apple M2", data="real")
    (row,) = rows(
        article_table(
            "vae", [gpu.replace(metrics={"epoch_s": metric(4.5, how="measured")} | reserved)]
        )
    )
    assert (row["Device"], row["Time per epoch"]) == (
        "Apple M2 GPU (PyTorch 2.13.0, 2026)",
        "4.50 s",
    )
    assert row["Remarks"] == "measured; real"
    assert row["Memory"] == "3.00 GB"  # what the framework reserved, not the process
    assert (row["Temperature"], row["Power"]) == (
        "not told",
        "not told",
    ) and "Of it computing" not in row


def test_a_published_row_says_with_what_it_was_timed_and_when():
    for wanted, software in (
        (
            {"experiment": "rasbt_vgg16", "device": "2080Ti"},
            ("1.11.0+cu102", "2022"),
        ),  # the others' nightly builds
        ({"item": "Table 4", "device": "A6000"}, ("", "2025")),
    ):
        rows_of = [
            row
            for row in published.rows()
            if all(row[key] == value for key, value in wanted.items())
        ]
        about = ("article", "device", "framework", "source")
        assert rows_of and {
            published.software(*(row[key] for key in about)) for row in rows_of
        } == {software}


def test_a_case_that_did_not_end_well_shows_its_status_and_no_number():
    bad = record(status="mismatch", reason="<why>", flags=["busy"])  # with all its metrics
    table = article_table("vae", [bad])
    (row,) = rows(table)
    device = "Intel Core i7-9750H CPU (PyTorch 2.13.0, 2026)"
    assert [*row.values()] == [device, "128", "mismatch", "", "", "", "<why>; busy"]
    assert "epoch_s" not in table.data[-1] and table.data[-1]["status"] == "mismatch"


def test_smoke_never_stands_beside_published():
    smoke = record(profile="smoke", flags=["drift"])
    table = article_table("vae", [smoke])
    assert table.rows == article_table("vae", []).rows
    assert all(row["source"] == "published" for row in table.data)
    assert any("smoke test" in note for note in table.notes)
    assert [row["Time per epoch"] for row in rows(article_table("vae", [smoke, record()]))] == [
        "4.50 s ± 2.0 %"
    ]


@pytest.mark.parametrize(
    ("reason", "shown"),
    [
        ("needs 33 GB at the least", "too-big"),
        ("would take 9 s a call", "too-slow"),
        (None, "too-big"),
    ],
)
def test_journals_of_before_say_too_big_of_what_is_too_slow(reason, shown):
    written = failed("too-big", reason)
    case = parse(json.dumps(written.line()).encode())
    assert case.status == shown == rows(article_table("vae", [case]))[0]["Time per epoch"]
    assert f" {shown}" in results_cases.line(case)


# Repeats --------------------------------------------------------------------------------------------------------------

# 2.0, 2.2 and 2.42: the geometric mean is 2.2, and the interval as in test_statistics.
THREE, HIGH = (2.0, 2.2, 2.42), 2.787711


def test_of_few_steps_the_range_is_told_and_a_part_only_where_it_is_resolved():
    def row(steady: list, **metrics: Estimate) -> dict:
        blocks = {"training": {"epoch_steps": 60.0, "steady": steady}}
        (found,) = rows(article_table("vae", [record(metrics=METRICS | metrics, blocks=blocks)]))
        return found

    few = row([[1, 2.473], [1, 2.764]], epoch_s=metric(153.46, 46.8, 260.1).replace(n=2))
    assert few["Time per epoch"] == "about 150 s (steps of 2.5 to 2.8 s)"
    assert few["Remarks"] == "estimated from 2 steps, 3.3 % of the epoch; stand-in"
    assert few["Of it computing"] == "not told apart (400 steps)"  # the whole has no interval
    steady = [[10, 0.9]] * 6
    for compute, shown in (
        (metric(4.2, 4.1, 4.3), "4.20 s ± 2.4 %"),
        (metric(4.2, 3.9, 4.5), "not told apart (400 steps)"),
        (
            metric(9.0, 8.9, 9.1),
            "not told apart (400 steps)",
        ),  # longer than the epoch that it is part of
        (metric(2.0).replace(n=1), "not told apart (1 step)"),
    ):
        assert row(steady, compute_epoch_s=compute)["Of it computing"] == shown


def test_repeats_become_their_geometric_mean_and_the_interval_between_them():
    table = article_table("vae", repeats_of(*THREE))
    (row,) = rows(table)
    assert row["Time per epoch"] == "2.2 s ± 24 %"
    assert row["Remarks"] == "estimated from 400 steps, 85 % of the epoch; stand-in; 3 repeats"
    assert any("between 3 repeats" in text for text in table.meaning)
    assert table.data[-1]["repeats"] == 3 and table.data[-1]["epoch_s_high"] == pytest.approx(
        HIGH, rel=1e-6
    )


@pytest.mark.parametrize("place", [0, 3])
def test_a_repeat_that_failed_is_counted_as_such_and_hides_no_value(place):
    cases = repeats_of(*THREE)
    cases.insert(place, failed("crashed", "its kernel died", flags=["busy"], repeat=9))
    table = article_table("vae", cases)
    (row,) = rows(table)
    assert row["Time per epoch"] == "2.2 s ± 24 %"
    assert row["Remarks"].endswith("stand-in; 3 of 4 repeats (crashed: its kernel died); busy")
    numbers = table.data[-1]
    assert (numbers["epoch_s"], numbers["status"], numbers["repeats"]) == (
        pytest.approx(2.2),
        "ok",
        3,
    )


# As HTML, text and file -----------------------------------------------------------------------------------------------


def cells_of(text: str) -> list[str]:
    """The cells of a table, as a browser would read them; in the markup is nothing that a table does not need."""
    assert {*re.findall(r"<(\w+)", text)} <= {
        "style",
        "div",
        "p",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "span",
    }
    return [html.unescape(cell) for cell in re.findall(r"<(?:t[dh]|span)\b[^>]*>([^<]+|)</", text)]


NASTY = '<script>alert("1")</script> & <img src=x onerror=y>'


def test_html_shows_texts_as_they_are_and_runs_nothing():
    table = Table(
        NASTY, (NASTY, "b"), (Row((NASTY, "&lt;"), "measured"), Row(("1", "2"))), (NASTY,)
    )
    text = table._repr_html_()
    assert cells_of(text) == [NASTY, "b", NASTY, "&lt;", "1", "2"]
    assert text.count(html.escape(NASTY)) == 4 and '<tr class="measured"' in text
    more = dict.fromkeys(("chip", "data", "case", "data_origin"), NASTY)
    bad = failed("error", NASTY, config={"batch_size": NASTY}, flags=[NASTY], **more)
    for made in (article_table("vae", [bad]), details.details_table(frame.of_records([bad]))):
        assert any(NASTY in cell for cell in cells_of(made.html()))


@pytest.mark.parametrize(("count", "listed"), [(5, False), (14, True)])
def test_as_text_a_wide_table_is_wrapped_and_a_wider_one_is_a_list(count, listed):
    columns = tuple(f"column {number}" for number in range(count))
    cells = [f"{number} wwwwwwww wwwwwwww wwwwwwww" for number in range(count)]
    lines = str(Table("T", columns, (Row((*cells[:-1], "")), Row(tuple(cells))))).splitlines()
    assert max(map(len, lines)) <= 100
    assert [word for line in lines for word in line.split()].count("wwwwwwww") == 3 * (
        2 * count - 1
    )
    assert (f"  column 1: {cells[1]}" in lines) == listed and sum(
        "column 4" in line for line in lines
    ) == 1 + listed


def test_numbers_in_a_file_read_back_exactly(tmp_path):
    value = 0.1 + 0.2
    case = record(metrics={"epoch_s": metric(value, value / 3, 1e299), "step_s": metric(5e-324)})
    case = case.replace(config={"batch_size": 128, "name": 'a "quoted", text\nof two lines'})
    path = tmp_path / "new" / "vae"
    table = article_table("vae", [case])
    report_table.save(table, path)
    assert report_table.saved_html(path.with_suffix(".html")).strip() == table.html()
    with open(path.with_suffix(".csv"), newline="", encoding="utf-8") as file:
        first, *_, last = lines = list(csv.DictReader(file))
    assert len(lines) == 6 + 1 and last["name"] == 'a "quoted", text\nof two lines'
    numbers = [float(last[name]) for name in ("epoch_s", "epoch_s_low", "epoch_s_high", "step_s")]
    assert numbers == [value, value / 3, 1e299, 5e-324]
    assert (first["source"], first["device"], first["step_s"], float(first["epoch_s"])) == (
        "published",
        CPU,
        "",
        3.746,
    )
    assert sorted(place.name for place in path.parent.iterdir()) == [
        "vae.csv",
        "vae.html",
    ]  # no draft


def test_details_show_what_else_was_measured():
    table = details.details_table(
        frame.of_records([record(), failed("error", repeat=1, parameters=None, foreign_load=None)])
    )
    first, second = rows(table, "plain")
    expected = {
        "Chip": "Intel Core i7-9750H CPU",
        "Case": "batch size 128",
        "Parameters": "652,824",
    }
    expected |= {
        "First step": "50.0 ms",
        "Step": "9.5 ms ± 5.3 %",
        "Achieved": "52.8 GFLOP/s",
        "Loss": "545 → 120",
    }
    expected |= {"Page faults": "12,345", "Others' load (cores)": "0.25"}
    assert first == expected
    assert set(second.values()) == {"Intel Core i7-9750H CPU", "batch size 128", ""}
    assert [(row["repeat"], row["status"]) for row in table.data] == [(0, "ok"), (1, "error")]


# Whole trainings ------------------------------------------------------------------------------------------


def training(
    batch_size: int, backend: str, seconds: float, spread: float = 0.0, **changes
) -> Record:
    """A record as the TensorFlow notebooks make it."""
    name = f"tensorflow-{backend} model=mlp batch_size={batch_size}"
    bounds = (seconds * (1 - spread), seconds * (1 + spread)) if spread else (None, None)
    metrics = {"fit_s": metric(seconds, *bounds, how="measured"), "epoch_s": metric(seconds / 4)}
    metrics |= {"accuracy": metric(0.875, unit=""), "footprint_peak_bytes": metric(1.2e9, unit="B")}
    form = {
        "experiment": "mlp_cnn_lstm",
        "article": "004",
        "framework": "tensorflow",
        "backend": backend,
        "case": name,
    }
    return record(
        **form, config={"model": "mlp", "batch_size": batch_size}, metrics=metrics, **changes
    )


def test_a_whole_training_has_its_table_with_no_empty_cell():
    wrong = training(32, "metal", 1.0, status="mismatch", reason="outputs differ")
    table = article_table(
        "mlp_cnn_lstm", [training(32, "cpu", 12.0, 0.05), training(512, "cpu", 4.0), wrong]
    )
    first, second, third = rows(table)
    assert first["Training time"] == "12.0 s ± 5.0 %" and first["Time per epoch"] == "3.00 s"
    assert first["Test accuracy"].replace("\N{NO-BREAK SPACE}", " ") == "87.5 % (of the stand-in)"
    assert "Not shown, since no row has a value: power (not told)." in table.notes
    assert first["Remarks"] == "measured; stand-in" and all(second.values())
    assert (third["Training time"], third["Remarks"]) == ("mismatch", "outputs differ")
    # The article's times are in pictures, and its table says so.
    assert {row["Training time"] for row in rows(table, "published")} == {"only in an image"}
