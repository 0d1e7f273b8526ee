"""Tables as HTML, text and files."""

import csv

from declared import article_table
from fakes import metric

from pomology.report import table as report_table
from pomology.report.table import Row, Table


def test_columns_without_a_text_are_left_out():
    table = Table("T", [Row({"a": "2", "c": "", "b": "1"}), Row({"a": "3", "c": "", "b": ""})])
    assert table.columns == ["a", "b"]
    assert str(table) == "T\n\na  b\n2  1\n3\n"


def test_numbers_in_a_file_read_back_exactly(tmp_path, vae):
    value = 0.1 + 0.2
    metrics = {"epoch_s": metric(value, value / 3, 1e299), "step_s": metric(5e-324)}
    config = {"batch_size": 128, "name": 'a "quoted", text\nof two lines'}
    path = tmp_path / "new" / "vae"
    table = article_table("vae", [vae(metrics=metrics, config=config)])
    report_table.save(table, path)
    page = path.with_suffix(".html").read_text(encoding="utf-8")
    assert page.partition("</style>")[2] == table.html()
    with open(path.with_suffix(".csv"), newline="", encoding="utf-8") as file:
        first, *_, last = lines = list(csv.DictReader(file))
    assert len(lines) == 6 + 1 and first["device"] == "M1 Ultra CPU"
    assert (last["name"], last["batch_size"]) == (config["name"], "128")
    numbers = [float(last[name]) for name in ("epoch_s", "epoch_s_low", "epoch_s_high", "step_s")]
    assert numbers == [value, value / 3, 1e299, 5e-324]
