"""PyTorch compared with MLX: ratios computed by hand, and cases without a ratio."""

import pytest
from declared import of
from records import metric, record

from pomology.extras.frameworks import side_by_side
from pomology.results.frame import of_records

CONFIG = {"operation": "matvec", "shape": "8x9", "precision": "fp16"}


def case(framework, backend="cpu", config=None, seconds=1.0, checksum=7, **changes):
    values = {"kernel_s": metric(seconds, 0.99 * seconds, 1.01 * seconds, "s")}
    values["inputs_checksum"] = metric(checksum)
    fields = {"metrics": values, "config": config or CONFIG, "framework": framework}
    fields |= {"backend": backend, "precision": "fp16", "chip": "M2 Ultra"}
    return record("blas", **fields | changes)


def compared(*records):
    return side_by_side.side_by_side(of_records(records), of("blas"))


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
