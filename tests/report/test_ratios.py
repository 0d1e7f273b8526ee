"""How many times as fast a GPU is as the CPU, against arithmetic done by hand."""

import pytest
from declared import article_table, of
from records import metric, record

from pomology.articles import published
from pomology.report import details, ratios
from pomology.results.frame import of_records


def training(batch_size, backend, seconds, spread=0.0, **changes):
    bounds = (seconds * (1 - spread), seconds * (1 + spread)) if spread else ()
    values = {"fit_s": metric(seconds, *bounds, unit="s")}
    changes = {"backend": backend, "framework": "tensorflow"} | changes
    config = {"model": "mlp", "batch_size": batch_size}
    return record("mlp_cnn_lstm", values, config, **changes)


def ratio_table(*records):
    return ratios.ratio_table(of_records(records), of("mlp_cnn_lstm"))


def test_ratios_are_the_cpus_time_over_the_gpus():
    cpu = [training(32, "cpu", 10.0, 0.1), training(128, "cpu", 12.0), training(512, "cpu", 9.0)]
    gpu = [
        training(32, "metal", 5.0, 0.2),
        training(128, "metal", 1.0, status="mismatch", reason="wrong"),
    ]
    table = ratio_table(*cpu, *gpu)
    first, second, third = [row for row in table.data if row["source"] == "measured"]
    ratio = (first["ratio"], first["ratio_low"], first["ratio_high"])
    assert ratio == pytest.approx((2.0, 9 / 6, 11 / 4))
    assert second["ratio"] is third["ratio"] is None
    shown = [row.cells[-4:-1] for row in table.rows if row.kind == "measured"]
    assert shown == [
        ("10.0 s ± 10 %", "5.0 s ± 20 %", "2.0× (1.5 to 2.8×)"),
        ("12.0 s", "mismatch", ""),
        ("9.00 s", "not timed", ""),
    ]


def test_every_published_row_of_an_article_without_times_stands_in_one_of_its_tables():
    experiment = "mlp_cnn_lstm"
    about = of(experiment)
    values = published.rows(experiment=experiment)
    shown = (about.metric, about.time, *ratios.RATIOS)
    rows = {(value["item"], value["row"]) for value in values if value["metric"] in shown}
    others = [value for value in values if (value["item"], value["row"]) not in rows]
    tables = [
        article_table(experiment, []),
        ratios.ratio_table(of_records([]), about),
        details.published_table("What the article prints", others),
    ]
    assert sum(len(table.rows) for table in tables) == len(values)
