"""Bars of the parts of an epoch and of a step have the lengths of the journal's times.

The seconds of each case are made by hand.
"""

import pytest
from drawings import COLOURS, HERE_CPU, drawn, lines, remark, words
from records import metric, record

from pomology.report import figures
from pomology.views import parts

pytestmark = pytest.mark.filterwarnings("error")  # warnings would appear in notebooks

EVALUATED = {"evaluation": {"epoch_steps": 5.0, "first_step_s": 0.2, "steady": [(4, 0.8)]}}


def epoch(seconds=10.0, step=0.1, ready=0.06, asides=None, others=None, **more):
    """A case of 101 steps, of which the first one took 10 times as long as the others."""
    training = {"epoch_steps": 91.0, "first_step_s": 1.0, "stopped": "budget"}
    # 12 blocks that differ by 1 %, so that their intervals are narrow.
    training |= {
        kind: [(1, one * (1 + 0.01 * (number % 2))) for number in range(12)]
        for kind, one in (("steady", step / 1.005), ("ready", ready and ready / 1.005))
        if one
    }
    occasional_s = sum(map(sum, (asides or {}).values()))
    times = {"epoch_s": metric(seconds), "compute_epoch_s": metric(0.6 * (seconds - occasional_s))}
    if not ready:
        del times["compute_epoch_s"]
        training["ready"] = []
    fields = {"blocks": {"training": training} | (others or {}), "asides": asides or {}}
    return record(metrics=times, **fields, **more)


def bars(axis):
    """Return the left ends, widths, colours and hatches of the bars of each row."""
    rows = {}
    for patch in sorted(axis.patches, key=lambda patch: patch.get_x()):
        row = round(patch.get_y() + patch.get_height() / 2)
        rows.setdefault(row, []).append(patch)
    return rows


def widths(axis):
    return [[patch.get_width() for patch in row] for _, row in sorted(bars(axis).items())]


def names(figure):
    return {text.get_text().replace("\n", " ") for text in figure.legends[0].get_texts()}


def test_computing_and_loading_by_hand():
    # The loop: 1 s and 90 × 0.1 s. On batches that are ready a step takes 60 % of that.
    figure = drawn("vae", [epoch()], parts.epoch_figure)
    (axis,) = figure.axes
    assert axis.get_title(loc="left") == "Apple M9 CPU, PyTorch" and lines(axis) == [
        "Batch size 128"
    ]
    assert widths(axis) == [pytest.approx([6.0, 4.0])]
    assert names(figure) == {parts.COMPUTING, parts.LOADING}
    assert words(axis) == ["60 %", "40 %", "10.0 s"] and remark(figure) == ""
    # Their shades differ in greyscale, too, and a hatch is not of its bar's shade.
    dark, light = bars(axis)[0]
    assert sum(light.get_facecolor()[:3]) - sum(dark.get_facecolor()[:3]) > 0.5
    assert not dark.get_hatch() and light.get_hatch()
    assert light.get_facecolor()[3] == 1 and light.get_edgecolor() != light.get_facecolor()
    assert axis.get_xlabel().startswith("seconds per epoch")


def test_evaluation_and_occasional_work_by_hand():
    more = {"asides": {"checkpoint": [0.5]}, "others": EVALUATED}
    evaluated = epoch(seconds=11.0, others=EVALUATED, config={"batch_size": 1})
    occasional = epoch(seconds=10.5, asides={"checkpoint": [0.5]}, config={"batch_size": 2})
    both = epoch(seconds=11.5, config={"batch_size": 3}, **more)
    apart = epoch(seconds=11.5, config={"batch_size": 4}, **more)
    apart.metrics["evaluation_epoch_s"] = metric(1.0).replace(n=parts.LEAST_STEPS)
    few = epoch(seconds=11.5, config={"batch_size": 5}, **more)
    few.metrics["evaluation_epoch_s"] = metric(1.0).replace(n=parts.LEAST_STEPS - 1)
    figure = drawn("vae", [evaluated, occasional, both, apart, few], parts.epoch_figure)
    expected = [[6, 4, 1], [6, 4, 0.5], [6, 4, 1.5], [6, 4, 1, 0.5], [6, 4, 1, 0.5]]
    assert widths(figure.axes[0]) == [pytest.approx(row) for row in expected]
    others = [parts.EVALUATION, parts.FEW_EVALUATED, parts.OCCASIONAL, parts.REST_OF_EPOCH]
    assert names(figure) == {parts.COMPUTING, parts.LOADING, *others}


def test_the_occasional_work_of_a_whole_epoch_is_what_was_timed():
    whole = epoch(seconds=12.0, asides={"pictures": [0.75, 1.25]})
    whole.blocks["training"]["stopped"] = "whole epoch"
    (axis,) = drawn("vae", [whole], parts.epoch_figure).axes
    assert widths(axis) == [pytest.approx([6.0, 4.0, 2.0])]


def test_the_bar_of_repeats_has_their_means():
    repeats = [epoch(seconds=10.0 + more, repeat=more + 1) for more in range(3)]
    (axis,) = drawn("vae", repeats, parts.epoch_figure).axes
    assert widths(axis) == [pytest.approx([6.6, 4.4])]


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (epoch(ready=None), parts.NO_READY),
        (epoch(ready=0.0999), parts.NO_DIFFERENCE),
    ],
)
def test_loading_that_was_not_measured_is_named_and_never_0(case, reason):
    # A bar of one part would say nothing.
    said = drawn("vae", [case], parts.epoch_figure)
    assert said.endswith(f"told apart: {reason}: Apple M9 CPU, PyTorch, batch size 128.*")
    smaller = epoch(seconds=5.0, step=4 / 90, ready=2.4 / 90, config={"batch_size": 9})
    figure = drawn("vae", [case, smaller], parts.epoch_figure)
    assert widths(figure.axes[0])[0] == pytest.approx([10.0])
    assert names(figure) >= {parts.TRAINING, parts.COMPUTING, parts.LOADING}
    assert words(figure.axes[0])[0] == "10.0 s"  # "100 %" would say nothing
    assert remark(figure) == f"{reason}: Apple M9 CPU, PyTorch, batch size 128"


def test_an_epoch_without_times_of_its_steps_is_one_part():
    whole = record(metrics={"epoch_s": metric(5.0)}, config={"batch_size": 9})
    assert drawn("vae", [whole], parts.epoch_figure).startswith(
        "*Loading and computing were not told apart"
    )
    figure = drawn("vae", [whole, epoch()], parts.epoch_figure)
    assert widths(figure.axes[0])[0] == [5.0] and parts.TRAINING in names(figure)


def test_a_part_that_nobody_would_see_makes_no_figure():
    hardly = epoch(ready=None, seconds=10.0, asides={"checkpoint": [0.01]})
    hardly.blocks["training"]["stopped"] = "whole epoch"
    assert isinstance(drawn("vae", [hardly], parts.epoch_figure), str)


def test_a_case_without_an_epoch_has_no_bar_and_a_reason():
    mlx = {"backend": "mlx-gpu", "framework": "mlx"}
    alone = record(metrics={"compute_epoch_s": metric(2.0)}, **mlx)
    slow = record("vae", {}, {"batch_size": 9}, status="too-slow")
    figure = drawn("vae", [epoch(), alone, slow], parts.epoch_figure)
    assert len(figure.axes) == 1
    failed = f"{figures.WITHOUT}1 too slow"
    assert remark(figure) == f"{failed}; {parts.NO_EPOCH}: Apple M9 GPU, MLX, batch size 128"
    assert drawn("vae", [alone], parts.epoch_figure) is None


def test_an_epoch_is_in_the_minutes_of_its_table():
    config = {"batch_size": 128, "workers": 8, "persistent": "no", "augmentation": "loader"}
    case = epoch(seconds=600.0, step=599 / 90, ready=0.6 * 599 / 90, config=config)
    case.experiment = "simclr"
    (axis,) = drawn("simclr", [case], parts.epoch_figure).axes
    assert widths(axis) == [pytest.approx([6.0, 4.0])] and words(axis)[-1] == "10.0 min"
    assert axis.get_xlabel().startswith("minutes per epoch")


def step(forward, backward, update, whole, **more):
    seconds = {"forward_s": forward, "backward_s": backward, "update_s": update, "step_s": whole}
    times = {name: metric(value) for name, value in seconds.items() if value}
    config = {"model": "gpt2", "batch_size": 4, "lora": False, "offload": "none"}
    return record("gpt2_finetuning", times, config | more.pop("also", {}), **more)


def test_passes_by_hand_and_what_has_none():
    plain = step(0.2, 0.5, 0.3, 1.0)
    waiting = step(0.2, 0.5, 0.2, 1.0, also={"lora": True})
    gpu = step(0.01, 0.03, 0.01, 0.05, backend="mps")
    mlx = step(None, None, None, 0.04, backend="mlx-gpu", framework="mlx")
    figure = drawn("gpt2_finetuning", [plain, waiting, gpu, mlx], parts.step_figure)
    cpu, other = figure.axes
    assert widths(cpu) == [pytest.approx([0.2, 0.5, 0.3]), pytest.approx([0.2, 0.5, 0.2, 0.1])]
    assert lines(cpu) == [f"gpt2, batch size 4, {how} LoRA" for how in ("without", "with")]
    assert widths(other) == [pytest.approx([0.01, 0.03, 0.01])]
    assert words(cpu)[3] == "1.00 s" and words(other)[-1] == "50.0 ms"
    assert names(figure) == {"forward", "backward", "update", parts.REST_OF_STEP}
    colours = [bars(axis)[0][0].get_edgecolor() for axis in (cpu, other)]
    expected = [HERE_CPU, COLOURS["measured", "gpu"]]
    assert colours == [pytest.approx(to_rgba(colour)) for colour in expected]
    assert remark(figure).startswith(f"{parts.NO_PASSES}: Apple M9 GPU, MLX, gpt2")


def to_rgba(colour):
    return [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)] + [1.0]
