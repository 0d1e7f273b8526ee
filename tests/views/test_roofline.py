"""The roofline: journals made by hand, roofs computed by hand."""

import pytest
from records import cached, matvec, product, rate, record, stream

from pomology.views import answers
from pomology.views.roofline import figure, table
from pomology.views.roofline.roofs import roofs


def points(records, of):
    return list(table.points(records, roofs(of)).itertuples())


@pytest.mark.parametrize(
    ("operations", "limit", "roof", "share"),
    [(2, "memory", 20e9, 0.25), (20, "compute", 100e9, 0.05), (0.1, "memory", 1e9, 5.0)],
)
def test_the_lower_roof_by_hand(operations, limit, roof, share):
    best = [product(100e9), stream(10e9)]
    case = record(metrics=rate(5e9), flops_per_step=int(operations * 10**9), bytes_per_step=10**9)
    (point,) = points([case], best)
    assert point.limit == limit and 5e9 / point.share_of_roof == pytest.approx(roof)
    assert point.share_of_roof == pytest.approx(share)
    (point,) = points([case], best[:1])
    assert (point.limit, point.share.value) == ("", 0.05)


@pytest.mark.parametrize(
    ("case", "name", "limit", "share"),
    [
        (matvec(400, 9e9), "blas matvec", "memory", 0.9),  # 0.5 operations per byte of 10 GB/s
        (matvec(400, 11e9), "blas matvec", "memory", 1.1),
        (matvec(20, 33.2e9), "blas matvec, cache-resident", "cache-resident", 0.166),
    ],
)
def test_reads_are_compared_with_reads_unless_cache_resident(case, name, limit, share):
    (point,) = points([case], [product(100e9), stream(6e9), cached(10e9, "sum", 32)])
    assert (point.name, point.limit) == (name, limit)
    assert point.share_of_roof == pytest.approx(share)


def test_each_kind_of_traffic_has_a_peak_and_cache_resident_cases_raise_none():
    records = [stream(8e9, "copy"), stream(9e9), stream(7e9, "add"), stream(90e9, backend="mps")]
    records += [cached(12e9, "sum", 32), stream(11e9, "dot"), matvec(40, 77e9), matvec(127, 20e9)]
    wanted = {("cpu", "reads and writes"): 9e9, ("gpu", "reads and writes"): 90e9}
    wanted["cpu", "reads"] = 12e9
    found = roofs(records).bandwidths
    assert {key: peak.rate.value for key, peak in found.items()} == wanted
    # A matrix must be larger than four caches; the default size covers unknown caches.
    assert roofs([*records, matvec(129, 13e9)]).bandwidths["cpu", "reads"].rate.value == 13e9
    assert ("gpu", "reads") not in roofs([matvec(530, 13e9, backend="mps")]).bandwidths


def test_the_figure_has_roofs_where_they_were_measured_and_a_label_for_each_point():
    records = [
        record(metrics=rate(5e9, 4e9, 6e9), flops_per_step=2 * 10**9, bytes_per_step=10**9),
        matvec(400, 9e9),
    ]
    best = roofs([product(100e9), stream(10e9), cached(8e9, "sum", 32)])
    drawn = figure.roofline_figure(records, best)
    (axis,) = drawn.axes
    lines = [line.get_data() for line in axis.lines if len(line.get_xdata()) == 2]
    assert [y[0] for _, y in lines if y[0] == y[1]] == [100e9]
    assert sorted(y[1] / x[1] for x, y in lines if y[0] < y[1]) == pytest.approx([8e9, 10e9])
    # The fastest points have a number, which is explained below.
    numbers = {text.get_text() for text in axis.texts}
    assert numbers == {"1", "2", "fp32 100 GFLOP/s"}
    below = axis.get_xlabel().replace("\u00a0", " ")
    assert "1 vae, fp32: 25 %; 2 blas matvec, fp32: 100 %" in below
    names = {text.get_text().split(":")[0] for text in drawn.legends[0].get_texts()}
    assert names >= {"PyTorch, CPU", "CPU, reads"}
    assert figure.roofline_figure([], roofs([])) is None


def test_a_case_without_a_share_says_why():
    fast = record(
        metrics=rate(5e12), flops_per_step=10**9, bytes_per_step=10**8, flags=["too-fast"]
    )
    cases = [fast, matvec(1000, 5e9), product(100e9)]
    rows = table.roofline_table(cases, roofs(cases)).rows
    shares = {row.cells["Experiment"]: row.cells["Share of best"] for row in rows}
    assert shares["vae"] == "too fast to be one" and shares["blas matvec"] == "not compared"


def test_the_answer_counts_the_lower_roofs():
    work = {"flops_per_step": 10**11, "bytes_per_step": 10**9}
    cases = [matvec(400, 9e9), record(metrics=rate(50e9), **work)]
    cases.append(record("siamese", rate(25e9), **work))
    best = roofs([product(100e9), stream(6e9), cached(10e9, "sum", 32)])
    said = answers.limits(cases, best)
    assert said.text == (
        "Of 3 best cases on the CPU in PyTorch, the peak FLOP/s limits 2, which reach 38 % "
        "(median, 25 to 50 %); the memory bandwidth limits 1, which reach 90 % (median, 90 to 90 "
        "%)."
    )
    count = "median of 2 experiments, from 25 % (siamese) to 50 % (vae)"
    assert said.evidence == [
        f"The best training of each experiment reaches 38 % of the peak of the CPU ({count})."
    ]


def test_a_precision_whose_fastest_operator_is_memory_bound_has_no_peak():
    slow = product(2e9, "fp16")
    fast = product(9e9, "fp16", shape="400x1", operation="matvec")
    both = roofs([slow, fast])
    assert both.rates == {} and both.memory_bound["cpu", "fp16"].rate.value == 9e9
    assert "fastest operator is a matvec (9.00 GFLOP/s), which memory limits." in answers.peaks(
        roofs([slow, fast, product(5e9)])
    )
    assert roofs([slow]).rates["cpu", "fp16"].rate.value == 2e9
    assert roofs([fast]).rates == {}
