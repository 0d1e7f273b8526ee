"""The figure of step times over time, on blocks made by hand."""

import pytest
from tests.records import record, write

from pomology.report import step_times
from pomology.report.display import Report

STEADY = [[2, 0.02], [2, 0.02], [2, 0.04], [2, 0.02], [2, 0.02], [2, 0.02]]
BLOCKS = {"first_step_s": 5.0, "warmup": [[1, 0.015]], "steady": STEADY}


def training(batch_size: int, **changes):
    return record(config={"batch_size": batch_size}, **{"blocks": {"training": BLOCKS}} | changes)


def test_each_process_is_a_curve_relative_to_its_own_median_from_the_first_steady_block():
    figure, caption = step_times.figure([training(128), training(128, repeat=1)])
    (axis,) = figure.axes
    curves = [line for line in axis.lines if len(line.get_xdata()) == len(STEADY)]
    assert len(curves) == 2 and "other" not in caption
    # The first step takes 5 s and the warm-up 15 ms; the first block's middle is 10 ms later.
    assert curves[0].get_xdata()[:2] == pytest.approx([5.025, 5.045])
    assert curves[0].get_ydata() == pytest.approx([1, 1, 2, 1, 1, 1])
    assert axis.get_title(loc="left").endswith("batch size 128\nmedian 10.0 ms")


def test_what_has_no_curve_is_left_out_and_counted():
    few = BLOCKS | {"steady": STEADY[:5]}
    failed = training(2, status="error", reason="why")
    assert step_times.figure([record(), failed, training(1, blocks={"training": few})]) is None
    cases = [training(size) for size in range(1, 16)]
    figure, caption = step_times.figure(cases)
    assert len(figure.axes) == step_times.MOST == 12
    assert caption.endswith("The other 3 cases have their blocks in the journal.")


def test_the_details_of_a_training_have_the_figure_and_others_do_not(tmp_path):
    out = write(tmp_path / "run", [training(128), record("blas")])
    for name in ("vae", "blas"):
        Report(name, article="003", out=out).details()
    shown = out / "shown"
    names = sorted(path.name for path in shown.glob("*/0*"))
    assert names == ["01-details.html", "01-step-times.svg", "02-details.html"]
    assert (shown / "blas" / "01-details.html").is_file()
