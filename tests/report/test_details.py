"""The table of all measured values."""

from pomology.report import details


def test_details_have_a_row_for_each_number_and_a_column_for_each_repeat(vae):
    repeats = [vae(), vae(repeat=1), vae(repeat=2, status="error", reason="why")]
    table = details.details_table(repeats)
    columns = ["Device", "Framework", "Case", "Quantity", "Repeat 1", "Repeat 2", "Repeat 3"]
    assert table.columns == columns
    rows = {row.cells["Quantity"]: row.cells for row in table.rows}
    device = ("Intel Core i7-9750H CPU", "PyTorch", "batch size 128")
    step = [rows["Step"][name] for name in table.columns]
    assert step == [*device, "Step", "9.50 ms ± 5.3 %", "9.50 ms ± 5.3 %", ""]
    assert rows["Status"]["Repeat 3"] == "error: why"
    assert rows["Achieved"]["Repeat 1"] == "52.8 GFLOP/s"
    assert rows["Page faults"]["Repeat 1"] == "12,345"
    numbers = {row["metric"]: row for row in table.data}
    assert (numbers["step_s"]["repeat_2"], numbers["step_s"]["unit"]) == (0.0095, "s")
