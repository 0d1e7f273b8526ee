"""PyTorch compared with MLX: ratios computed by hand, and cases without a ratio."""

import pytest
from declared import of
from records import metric, record

from pomology.views import side_by_side

CONFIG = {"operation": "matvec", "shape": "8x9", "precision": "fp16"}


def case(framework, backend="cpu", config=None, seconds=1.0, checksum=7, **changes):
    values = {"kernel_s": metric(seconds, 0.99 * seconds, 1.01 * seconds, "s")}
    values["inputs_checksum"] = metric(checksum)
    fields = {"metrics": values, "config": config or CONFIG, "framework": framework}
    fields |= {"backend": backend, "precision": "fp16", "chip": "M2 Ultra"}
    return record("blas", **fields | changes)


def compared(*records):
    return side_by_side.side_by_side(records, of("blas"))


def test_two_frameworks_have_a_ratio_with_its_interval():
    table = compared(case("torch", "mps", seconds=3.0), case("mlx", "mlx-gpu", seconds=2.0))
    (row,) = table.data
    bounds = (1.5 * 0.99 / 1.01, 1.5 * 1.01 / 0.99)
    assert (row["ratio"], row["ratio_low"], row["ratio_high"]) == pytest.approx((1.5, *bounds))
    assert {"GPU", "3.00 s ± 1.0 %", "2.00 s ± 1.0 %", "the same"} < {*table.rows[0].cells.values()}
    assert "MLX is faster in 1, PyTorch in 0; 0 show no difference" in " ".join(table.notes)


@pytest.mark.parametrize(
    ("second", "words"),
    [
        (case("mlx", checksum=8), "different inputs"),
        (case("mlx", status="mismatch", reason="[3] is 1"), "one has no time"),
        (case("mlx", "mlx-gpu"), "not run with the other framework"),
        (case("mlx", config=CONFIG | {"shape": "9x9"}), "not run with the other framework"),
        (case("mlx", metrics={"kernel_s": metric(1.0)}), "unknown inputs"),
    ],
)
def test_different_cases_have_no_ratio(second, words):
    table = compared(case("torch"), second)
    assert words in table.data[0]["remark"]
    assert all(row["ratio"] is None for row in table.data)


def test_the_inputs_of_every_repeat_must_be_known():
    records = [case("torch"), case("torch", repeat=1), case("mlx"), case("mlx", repeat=1)]
    assert compared(*records).data[0]["ratio"] == 1
    records[3] = case("mlx", repeat=1, metrics={"kernel_s": metric(1.0)})
    assert compared(*records).data[0]["ratio"] is None


def trained(framework, experiment="vae", config=None, **seconds):
    """A training of 100 parameters with these times, each with an interval of 1 % around it."""
    values = {name: metric(x, 0.99 * x, 1.01 * x, "s") for name, x in seconds.items()}
    fields = {"framework": framework, "backend": "mps", "parameters": 100, "chip": "M2 Ultra"}
    return record(experiment, values, config or {"batch_size": 128}, **fields)


def test_all_trainings_of_a_run_are_joined_by_their_times_without_loading():
    records = [
        trained("torch", epoch_s=9.0, compute_epoch_s=3.0, step_s=0.1),
        trained("mlx", compute_epoch_s=2.0, step_s=0.01),
        trained("torch", "bert_base", step_s=1.0),
        trained("mlx", "bert_base", step_s=2.0),
        trained("tensorflow", "mlp_cnn_lstm", epoch_s=4.0, step_s=0.04),
        trained("mlx", "mlp_cnn_lstm", epoch_s=2.0, step_s=0.02),
        trained("torch", "peaks", {"operation": "matmul"}, kernel_s=1.0),
        trained("mlx", "peaks", {"operation": "matmul"}, kernel_s=1.0),
        trained("torch", "resnet50", step_s=1.0),
    ]
    table = side_by_side.joined(records)
    rows = {row["experiment"]: row for row in table.data}
    ratios = {name: row["ratio"] for name, row in rows.items()}
    wanted = {"vae": 1.5, "bert_base": 0.5, "mlp_cnn_lstm": 2.0, "peaks": None}
    assert ratios == {name: ratio and pytest.approx(ratio) for name, ratio in wanted.items()}
    assert rows["vae"]["metric"] == "compute_epoch_s" and rows["vae"]["framework"] == "torch"
    assert rows["mlp_cnn_lstm"]["framework"] == "tensorflow"
    (panel,) = side_by_side.joined_figure(table).axes
    assert len(panel.get_yticklabels()) == 3


def test_an_epoch_with_loading_is_not_compared_with_one_without():
    records = [trained("torch", epoch_s=9.0, step_s=0.1), trained("mlx", step_s=0.01)]
    (row,) = side_by_side.joined(records).data
    assert row["ratio"] is None and row["remark"] == side_by_side.NO_LOADER


def test_a_time_without_a_partner_is_not_shown_as_one_to_compare():
    slow = record("vae", {}, {"batch_size": 128}, framework="mlx", backend="mps", parameters=100)
    slow.status = "too-slow"
    (row,) = side_by_side.joined([trained("torch", epoch_s=9.0, step_s=0.1), slow]).rows
    assert (row.cells["Other framework"], row.cells["MLX"]) == ("PyTorch: timed", "too-slow")
    assert row.cells["Notes"] == "one has no time"
