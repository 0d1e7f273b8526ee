"""Every number of a case, and how much two runs of the same thing differ."""

from __future__ import annotations

import pytest
from records import metric, product, record

from pomology.articles import published
from pomology.report import details, peaks
from pomology.results.frame import of_records


def test_details_have_a_row_for_each_number_and_a_column_for_each_repeat(vae):
    repeats = [vae(), vae(repeat=1), vae(repeat=2, status="error")]
    peak = peaks.peaks([product(100e9, low=100e9, high=100e9)])
    table = details.details_table(of_records(repeats), peak)
    assert table.columns == ("Device", "Case", "Number", "Repeat 1", "Repeat 2", "Repeat 3")
    rows = {row.cells[2]: row.cells for row in table.rows}
    device = ("Intel Core i7-9750H CPU", "batch size 128")
    assert rows["Step"] == (*device, "Step", "9.5 ms ± 5.3 %", "9.5 ms ± 5.3 %", "")
    assert rows["Achieved"][3] == "52.8 GFLOP/s" and rows["Share of best"][3] == "52.8 %"
    # A case that failed has none but what was counted before.
    assert rows["Parameters"][3:] == ("652,824",) * 3
    assert rows["Page faults"][3] == "12,345" and rows["Foreign load"][3] == "0.250"


def test_what_is_printed_has_a_row_each():
    rows = published.rows(experiment="simclr_reference")
    table = details.published_table("Printed", rows)
    assert len(table.rows) == len(rows) and "As printed" in table.columns


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "within a process by 4.0 % and between two by 9.0 % (cpu)"),
        ({"profile": "smoke"}, "was not measured"),
        ({"status": "mismatch"}, "nobody knows by how much (cpu)"),
    ],
)
def test_how_much_two_runs_of_the_same_thing_differ(changes, words):
    checks = []
    for repeat, factor in enumerate((0.5, 2.0)):  # their geometric mean is 1
        values = {"same_process_difference": metric(0.04 * factor).replace(n=20)}
        values["between_process_difference"] = metric(0.09 * factor).replace(n=20)
        config = {"check": "same thing twice"}
        checks.append(record("instrument_check", values, config, repeat=repeat, **changes))
    assert words in details.same_twice(checks)
