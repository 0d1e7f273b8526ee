"""Ratios of article 004 as printed, and this machine's GPU over its CPU, computed by hand."""

import pytest
from declared import of
from records import metric, record

from pomology.views import speed_ratios

NAME = "mlp_cnn_lstm"


def fit(model, size, seconds, backend, **changes):
    values = {"fit_s": metric(seconds, 0.9 * seconds, 1.1 * seconds)}
    config = {"model": model, "batch_size": size}
    fields = {"config": config, "framework": "tensorflow", "backend": backend, "article": "004"}
    return record(NAME, values, **fields | changes)


def rows(*records):
    table = speed_ratios.table(records, of(NAME))
    return {(row.cells["Model"], row.cells["Batch size"]): row for row in table.rows}, table


def test_the_printed_ratios_stand_in_their_rows():
    by_case, table = rows()
    p100, m1, cpu = (f"M2 Max GPU over {other}" for other in ("P100", "M1 GPU", "M2 Max CPU"))
    assert by_case["mlp", "1024"].cells[p100] == "up to 1.77×"
    assert by_case["lstm", "1024"].cells[p100] == "up to 1.43×"
    assert by_case["cnn", "1024"].cells[p100] == "up to 1.24×"
    assert by_case["lstm", "1024"].cells[cpu] == "up to 6.77×"
    assert by_case["cnn", "all"].cells[m1] == "up to 4.38×"
    assert by_case["cnn", "all"].cells[cpu] == "up to about 5×"
    assert by_case["mlp", "all"].cells[cpu] == "in words, no number"
    assert by_case["lstm", "all"].cells[m1] == "only in an image"
    assert by_case["cnn", "1024"].data[p100] == 1.24
    assert table.notes[1] == speed_ratios.NO_GPU


def test_this_machines_ratio_is_the_gpus_speed_over_the_cpus():
    mlx = {"framework": "mlx"}  # computes without Keras' loop
    cases = [fit("cnn", 32, 10.0, "cpu"), fit("cnn", 32, 4.0, "metal")]
    cases += [fit("cnn", 1024, 9.0, "cpu"), fit("cnn", 1024, 1.5, "metal")]
    cases += [fit("mlp", 32, 3.0, "cpu"), fit("lstm", 32, 3.0, "metal")]
    off = {"config": {"model": "cnn", "batch_size": 32, "fusion": "off"}}
    cases += [fit("cnn", 32, 9.0, backend, **off) for backend in ("cpu", "metal")]
    cases += [fit("mlp", 32, 3.0, "mlx-gpu", **mlx), fit("lstm", 32, 3.0, "cpu", **mlx)]
    by_case, table = rows(*cases)
    here = speed_ratios.HERE
    assert by_case["cnn", "32"].data["here"] == pytest.approx(2.5)
    assert by_case["cnn", "1024"].cells[here] == "6.00×"
    assert by_case["cnn", "all"].cells[here] == "mean 4.25×, 2.50× to 6.00×"
    assert by_case["mlp", "all"].cells[here] == by_case["lstm", "all"].cells[here] == ""
    assert {("mlp", "32"), ("lstm", "32")}.isdisjoint(by_case)
    assert speed_ratios.NO_GPU not in table.notes


def test_the_figure_has_a_panel_for_each_model_and_no_empty_one():
    cases = [fit("cnn", 32, 10.0, "cpu"), fit("cnn", 32, 4.0, "metal")]
    axes = speed_ratios.figure(cases, of(NAME)).axes
    lines = {axis.get_title(loc="left"): len(axis.get_yticklabels()) for axis in axes}
    assert lines == {"cnn": 4, "mlp": 1, "lstm": 2}
