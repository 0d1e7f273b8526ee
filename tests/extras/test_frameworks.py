"""PyTorch and MLX, processor and GPU: ratios by hand, and what has none."""

import pytest
from declared import article_table, of
from records import metric, record

from pomology.articles import published
from pomology.extras.frameworks import side_by_side
from pomology.report import details
from pomology.report import ratios as report_ratios
from pomology.results import frame

CONFIG = {"operation": "matvec", "shape": "8x9", "precision": "fp16"}


def case(framework, backend, config=None, seconds=1.0, checksum=7, **more):
    metrics = {
        "kernel_s": metric(seconds, 0.99 * seconds, 1.01 * seconds, "s"),
        "inputs_checksum": metric(checksum),
    }
    metrics = {"metrics": metrics | {"max_abs_error": metric(1e-6)}, "config": config or CONFIG}
    about = {"framework": framework, "backend": backend, "precision": "fp16", "chip": "M2 Ultra"}
    return record("blas", **metrics | about | more)


def compared(*records, notebook="blas"):
    return side_by_side.side_by_side(frame.of_records(records), of(notebook))


def test_two_frameworks_are_laid_side_by_side():
    table = compared(case("torch", "mps", seconds=3.0), case("mlx", "mlx-gpu", seconds=2.0))
    (row,) = table.data
    assert row["same"] is True and row["ratio"] == pytest.approx(1.5)
    assert (row["ratio_low"], row["ratio_high"]) == pytest.approx(
        (1.5 * 0.99 / 1.01, 1.5 * 1.01 / 0.99)
    )
    assert {"3.00 s ± 1.0 %", "2.00 s ± 1.0 %", "the same"} < {*table.rows[0].cells}
    assert "MLX was faster in 1, PyTorch in 0" in " ".join(table.meaning)


@pytest.mark.parametrize(
    ("second", "words"),
    [
        (case("mlx", "cpu", checksum=8), "other inputs"),
        (case("mlx", "cpu", status="mismatch", reason="[3] is 1"), "no pair of times"),
        (case("mlx", "mlx-gpu"), "not run with MLX"),
        (case("mlx", "cpu", CONFIG | {"shape": "9x9"}), "not run with MLX"),
        (case("mlx", "cpu", metrics={"kernel_s": metric(1.0)}), "inputs are not known"),
    ],
)
def test_what_is_not_the_same_has_no_ratio(second, words):
    table = compared(case("torch", "cpu"), second)
    assert words in table.data[0]["remark"]
    assert all(row["ratio"] is None and not row["same"] for row in table.data)


def test_the_inputs_of_every_repeat_must_be_known():
    records = [
        case("torch", "cpu"),
        case("torch", "cpu", repeat=1),
        case("mlx", "cpu"),
        case("mlx", "cpu", repeat=1),
    ]
    assert compared(*records).data[0]["same"]
    records[3] = case("mlx", "cpu", repeat=1, metrics={"kernel_s": metric(1.0)})
    assert not compared(*records).data[0]["same"]


def test_a_notebook_that_has_not_run_is_named():
    table = compared(case("torch", "cpu"))
    (note,) = table.notes
    assert note.startswith("MLX has no numbers") and len(table.rows) == 1


def step(framework, step_s, forward_s, spread=0.0, **more):
    metrics = {"inputs_checksum": metric(7), "max_abs_error": metric(1e-6)}
    for name, seconds in (("step_s", step_s), ("forward_s", forward_s)):
        metrics[name] = metric(seconds, (1 - spread) * seconds, (1 + spread) * seconds, "s")
    config = {"workload": "vae", "batch_size": 128}
    return record("mlx_or_pytorch", metrics, config, framework=framework, **more)


def test_the_parts_of_a_step_have_ratios_where_they_are_above_their_intervals():
    (row,) = compared(
        step("torch", 2.0, 0.5), step("mlx", 1.0, 0.25), notebook="mlx_or_pytorch"
    ).data
    assert (row["ratio"], row["ratio_forward"], row["ratio_rest"]) == (2.0, 2.0, 2.0)  # 1.5 / 0.75
    near = step("torch", 2.0, 0.5), step("mlx", 1.0, 0.99, 0.02)
    (row,) = compared(*near, notebook="mlx_or_pytorch").data
    assert row["ratio_rest"] is None and row["ratio_forward"]


def training(batch_size, backend, seconds, spread=0.0, **more):
    bounds = (seconds * (1 - spread), seconds * (1 + spread)) if spread else ()
    config = {"model": "mlp", "batch_size": batch_size}
    return record(
        "mlp_cnn_lstm",
        {"fit_s": metric(seconds, *bounds, unit="s")},
        config,
        backend=backend,
        **more,
    )


def ratios(*records):
    return report_ratios.ratio_table(frame.of_records(records), of("mlp_cnn_lstm"))


def test_ratios_are_the_cpus_time_over_the_gpus():
    cpu = [
        training(size, "cpu", seconds) for size, seconds in ((32, 10.0), (128, 12.0), (512, 9.0))
    ]
    gpu = [
        training(size, "metal", seconds) for size, seconds in ((32, 20.0), (128, 6.0), (512, 3.0))
    ]
    table = ratios(*cpu, *gpu)
    assert [row["ratio"] for row in table.data if row["source"] == "measured"] == [0.5, 2.0, 3.0]
    assert "Here 1.83× on average, 0.5× to 3×, in 3 of 3 settings." in table.meaning
    failing = training(128, "metal", 1.0, status="mismatch", reason="wrong")
    shown = [row.cells[-2] for row in ratios(*cpu, gpu[0], failing).rows if row.kind == "measured"]
    assert shown == ["0.500×", "CPU: ok; GPU: mismatch", "CPU: ok; GPU: not timed"]
    row = ratios(training(32, "cpu", 10.0, 0.1), training(32, "metal", 5.0, 0.2)).data[-1]
    assert (row["ratio"], row["ratio_low"], row["ratio_high"]) == pytest.approx(
        (2.0, 9 / 6, 11 / 4)
    )


def test_what_the_article_prints_stands_first():
    printed = [row.cells[:2] for row in ratios(training(32, "cpu", 10.0)).rows]
    assert ("M2 Max GPU", "P100") in printed[:-1] and printed[-1] == ("GPU here", "CPU here")


def test_every_published_row_of_an_article_without_times_stands_in_one_of_its_tables():
    experiment = "mlp_cnn_lstm"
    tables = [
        article_table(experiment, []),
        report_ratios.ratio_table(frame.of_records([]), of(experiment)),
    ]
    tables.append(details.printed_table(of(experiment)))
    assert sum(len(table.rows) for table in tables) == len(published.rows(experiment=experiment))
