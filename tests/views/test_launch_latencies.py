"""The figure of launch latencies: table 6 as typed in, and this machine's three latencies."""

import pytest
from drawings import COLOURS, HERE_CPU, HERE_GPU, drawn, lines, marks, remark, words
from records import metric, record

from pomology.views import launch_latencies

pytestmark = pytest.mark.filterwarnings("error")  # warnings would appear in notebooks

# Milliseconds of a cold and of a follow-up launch.
TABLE_6 = {
    "M2 Ultra": (0.7859, 0.148),
    "M2 Max": (0.908, 0.1273),
    "M2 Pro": (0.585, 0.2637),
    "A6000": (0.0225, 0.0064),
    "RTX 4090": (0.0225, 0.0036),
    "2080Ti": (0.0845, 0.0053),
    "RTX 4000": (0.175, 0.0046),
}


def launched(cold, following, paused, **more):
    times = {"launch_cold_s": cold, "launch_s": following, "launch_paused_s": paused}
    values = {name: metric(value, 0.9 * value, 1.1 * value) for name, value in times.items()}
    return record("kernel_launch", values, {}, article="001", **more)


def test_a_panel_for_each_latency_with_table_6_and_this_machine():
    cpu, gpu = launched(9e-5, 7e-6, 2e-4), launched(5e-4, 3e-4, 6e-4, backend="mps")
    figure = drawn("kernel_launch", [cpu, gpu], launch_latencies.figure)
    titles = [axis.get_title(loc="left").replace("\n", " ") for axis in figure.axes]
    of_gpus = ["Cold launch", "Follow-up launch", "After a pause (not in the article)"]
    # A CPU launches nothing, so it stands next to no published row.
    calls = ": function calls of a CPU"
    both = [title + end for title in of_gpus for end in ("", calls)]
    assert titles == [*both[:4], both[5], both[4]]  # no published row has a pause
    cold, cold_call, following, call, paused_call, paused = figure.axes
    assert lines(cold) == lines(following) == [*TABLE_6, "Apple M9 GPU, PyTorch"]
    assert lines(paused) == ["Apple M9 GPU, PyTorch"]
    for axis in (cold_call, call, paused_call):
        assert lines(axis) == ["Apple M9 CPU, PyTorch"]
    for axis, column in ((cold, 0), (following, 1)):
        places = [x for x, *_ in marks(axis)]
        assert places[:7] == pytest.approx([row[column] / 1e3 for row in TABLE_6.values()])
    assert words(cold)[-1:] + words(cold_call) == ["0.500 ms", "0.0900 ms"]
    assert words(following)[-1:] + words(call) == ["0.300 ms", "0.00700 ms"]
    assert words(paused) + words(paused_call) == ["0.600 ms", "0.200 ms"]
    shades = {colour for *_, colour, _ in marks(cold)}
    published = {COLOURS["published", role] for role in ("gpu", "rival")}
    assert shades == published | {HERE_GPU}
    assert {colour for *_, colour, _ in marks(call)} == {HERE_CPU}
    assert paused.get_xlabel() == "milliseconds of a launch (lower is better)"
    ticks = [label.get_text() for label in paused.get_xticklabels()]
    assert {"0.01", "0.1", "1"} <= {*ticks}


def test_no_panel_is_empty_and_a_failed_case_is_counted_once():
    failed = record("kernel_launch", status="error", article="001")
    figure = drawn("kernel_launch", [failed], launch_latencies.figure)
    cold, following = figure.axes
    assert lines(cold) == lines(following) == [*TABLE_6]
    assert remark(figure).endswith("without a value: 1 error")
    smoke = launched(9e-5, 7e-6, 2e-4, profile="smoke")
    assert len(drawn("kernel_launch", [smoke], launch_latencies.figure).axes) == 2
