"""Ceilings and what lies under them: journals made by hand, shares computed by hand, and pictures whose texts are
measured for overlap."""

from __future__ import annotations

import math
import re
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
import torch
from pomology.report.showing import Report
from records import metric, product, rate, record, stream, write
from torch import nn

from pomology.devices.torch import TorchDevice
from pomology.experiment.experiment import Experiment
from pomology.extras.prediction import devices, operators
from pomology.machine import snapshot
from pomology.measure import calls
from pomology.measure.clock import Block
from pomology.models import cost, products
from pomology.report import article, declaration, details, roofline
from pomology.report import page as report_page
from pomology.results import cases
from pomology.results.run import Run

pytestmark = pytest.mark.usefixtures("quiet_machine")

HERE = Path(__file__).resolve().parents[1] / "notebooks" / "this_machine"
FLOAT = 4  # bytes
MACHINE = {"chip": "Apple M9", "profile": "quick"}


def test_a_ceiling_is_the_best_over_sizes_frameworks_and_the_products_of_other_notebooks():
    records = [product(50e9), product(80e9, shape="1x9x9"), product(40e9, "fp16"), product(99e9, status="mismatch")]
    records += [product(70e9, experiment="ceilings_mlx"), product(60e9, "fp16", experiment="blas_mlx")]
    records += [product(900e9, backend="mps"), product(1200e9, experiment="ceilings_mlx", backend="mlx-gpu")]
    records += [product(5e12, profile="smoke"), record("vae", rate(7e12))]
    best = roofline.ceilings(records)
    expected = {("cpu", "fp32"): (80e9, "torch"), ("cpu", "fp16"): (60e9, "mlx"), ("gpu", "fp32"): (1200e9, "mlx")}
    assert {key: (one.value, one.record.framework) for key, one in best.rates.items()} == expected
    assert not best.bandwidths and not roofline.ceilings([])


def of_calls(value: float, calls: int, **more):
    """A product that was timed so often."""
    known = product(value, low=0.999 * value, high=1.001 * value, **more)
    known.metrics["flops_per_s"] = known.metrics["flops_per_s"].replace(n=calls)
    return known


def of_blocks(calls_s: list[float], **more):
    """A product whose blocks of two calls took so long a call; the rate in its median block is 1 GFLOP a call."""
    known = product(1e9 / sorted(calls_s)[len(calls_s) // 2], **more)
    known.metrics["kernel_s"] = metric(sorted(calls_s)[len(calls_s) // 2], unit="s")
    return known.replace(blocks={"kernel_s": {"steady": [[2, 2 * call_s] for call_s in calls_s]}})


def test_a_ceiling_is_the_rate_of_the_fastest_block():
    steady, lucky = of_blocks([0.5, 0.5, 0.5]), of_blocks([0.8, 0.4, 0.9], flags=["contended", "drift"])
    for turn in ([steady, lucky], [lucky, steady]):
        ceiling = roofline.ceilings(turn).rates["cpu", "fp32"]
        assert ceiling.record == lucky  # others only slow it down
        assert (ceiling.value, ceiling.rate.n, ceiling.rate.covers) == (pytest.approx(1e9 / 0.4), 3, "exact")
    # It is what was seen, so a share has the interval of the case alone.
    share = roofline.share(record(metrics=rate(1e9, 0.9e9, 1.1e9)), roofline.ceilings([steady]))
    assert (share.value, share.low, share.high) == pytest.approx((0.5, 0.45, 0.55))
    (row,) = roofline.ceilings_table([lucky]).rows
    assert row.cells[2] == "about 2.5 GFLOP/s" and "the fastest of 3 blocks; contended; drift" in row.cells[4]


def test_another_way_than_the_articles_is_a_ceiling_only_where_there_is_no_other():
    other, own = of_calls(361e9, 20, flags=["other-way"]), of_calls(320e9, 20)
    for turn in ([other, own], [own, other]):
        assert roofline.ceilings(turn).rates["cpu", "fp32"].record == own
    assert roofline.ceilings([other]).rates["cpu", "fp32"].record == other


def test_the_last_level_cache_where_the_system_tells_and_nothing_on_a_mac(tmp_path, monkeypatch):
    monkeypatch.setattr(snapshot, "CACHES", tmp_path)
    assert snapshot.cache_bytes() is None
    for number, size in enumerate(("48K", "491520K", "?")):
        (tmp_path / f"index{number}").mkdir()
        (tmp_path / f"index{number}" / "size").write_text(f"{size}\n")
    assert snapshot.cache_bytes() == 480 * 2**20


def matvec(megabytes: float, bytes_per_s: float, **more):
    """A matrix of so many MB times a vector: half an operation a byte."""
    metrics = rate(bytes_per_s / 2, 0.49 * bytes_per_s, 0.51 * bytes_per_s)
    metrics |= {"bytes_per_s": metric(bytes_per_s, 0.98 * bytes_per_s, 1.02 * bytes_per_s, "B/s")}
    metrics |= {"kernel_s": metric(megabytes * 1e6 / bytes_per_s)}
    about = {"operation": "matvec", "shape": f"{megabytes}x1", "precision": "fp32"}
    return record("blas_torch", metrics, about, **more)


def cached(value: float, operation: str, megabytes: float):
    """A pass over memory in a journal that knows the cache."""
    known = stream(value, operation)
    known.metrics["cache_bytes"] = metric(megabytes * 1e6, unit="B")
    return known


def test_each_kind_of_traffic_has_a_roof_and_what_a_cache_holds_raises_none():
    records = [stream(8e9, "copy"), stream(9e9), stream(7e9, "add", "ceilings_mlx"), stream(90e9, backend="mps")]
    records += [cached(12e9, "sum", 32), stream(11e9, "dot"), matvec(40, 77e9), matvec(127, 20e9)]
    both = {("cpu", "reads and writes"): 9e9, ("gpu", "reads and writes"): 90e9}
    best = roofline.ceilings(records)
    assert {key: known.value for key, known in best.bandwidths.items()} == both | {("cpu", "reads"): 12e9}
    assert {key: known.value for key, known in best.rates.items()} == {("cpu", "fp32"): 77e9 / 2}
    # More than four caches, which no cache helps; where nobody knows the cache it may be as large as any that is made.
    for more, highest in (([matvec(129, 13e9)], 13e9), ([matvec(530, 13e9, backend="mps")], None)):
        reads = roofline.ceilings([*records, *more]).bandwidths.get((cases.kind(more[0]), "reads"))
        assert (reads and reads.value) == highest


@pytest.mark.parametrize(
    ("case", "limit", "roof", "share"),
    [
        (matvec(400, 9e9), "memory", 5e9, 0.9),  # half an operation for each of the 10 GB/s that it can read
        (matvec(400, 11e9), "memory", 5e9, 1.1),
        (matvec(20, 33.2e9), "cache-resident", 100e9, 0.166),  # 332 % of the memory's roof, which is none
        (matvec(400, 9e9, backend="mps"), None, None, None),
    ],
)
def test_a_matrix_that_meets_a_vector_is_held_against_reads_unless_a_cache_holds_it(case, limit, roof, share):
    best = roofline.ceilings([product(100e9), stream(6e9), cached(10e9, "sum", 32), product(1e12, backend="mps")])
    above = roofline.roof(case, best)
    assert above == (limit and (limit, pytest.approx(roof), pytest.approx(share)))


def test_what_comes_from_a_cache_has_a_row_of_its_own_and_the_size_is_said():
    records = [of_calls(100e9, 20), cached(10e9, "sum", 32), matvec(20, 33e9), matvec(400, 11e9)]
    table = roofline.roofline_table(records)
    assert [(row.cells[0], *row.cells[7:9]) for row in table.rows] == [
        ("blas matvec", "memory", "100 %"),  # a faster one than the passes raises the roof
        ("blas matvec, cache-resident", "cache-resident", "16.5 %"),
    ]
    assert any("the last-level cache (32.0 MB)" in text for text in table.meaning)


def test_the_precision_of_a_case_is_that_of_its_products():
    names = {"32-true": "fp32", "16-mixed": "fp16", "bf16-mixed": "bf16", "autocast": "autocast", "fp64": "fp64"}
    names |= {"autocast bf16": "bf16", "autocast fp16": "fp16", "torch.bfloat16": "bf16", "tf32": "tf32"}
    assert {name: cases.precision(record(precision=name)) for name in names} == names


def test_a_share_and_its_interval_by_hand():
    best = roofline.ceilings([product(100e9, low=80e9, high=125e9), product(50e9, "bf16", low=49e9, high=51e9)])
    share = roofline.share(record(metrics=rate(25e9, 20e9, 30e9)), best)
    # At the least the lowest rate over the highest ceiling, at the most the other way round.
    assert (share.value, share.low, share.high) == pytest.approx((0.25, 20 / 125, 30 / 80))
    half = roofline.share(record(metrics=rate(25e9), precision="bf16-mixed"), best)
    assert (half.value, half.low) == (0.5, None)
    faults = {"status": "mismatch"}, {"profile": "smoke"}, {"precision": "fp64"}, {"backend": "mps"}, {"metrics": {}}
    assert {roofline.share(record(**{"metrics": rate(25e9)} | fault), best) for fault in faults} == {None}
    # Of a step whose operations and time are known: 2 GFLOP/s.
    timed = record(metrics={"step_s": metric(0.5, 0.4, 0.8, "s")}, flops_per_step=10**9)
    share = roofline.share(timed, roofline.ceilings([product(10e9, low=10e9, high=10e9)]))
    assert (share.value, share.low, share.high) == pytest.approx((0.2, 0.125, 0.25))


@pytest.mark.parametrize(
    ("operations", "limit", "roof", "share"),
    [(2, "memory", 20e9, 0.25), (20, "compute", 100e9, 0.05), (0.1, "memory", 1e9, 5.0)],
)
def test_the_lower_roof_by_hand(operations, limit, roof, share):
    best = roofline.ceilings([product(100e9), stream(10e9)])
    case = record(metrics=rate(5e9), flops_per_step=int(operations * 10**9), bytes_per_step=10**9)
    lower = roofline.roof(case, best)
    assert (lower.limit, lower.flops_per_s, lower.share) == (limit, pytest.approx(roof), pytest.approx(share))
    assert roofline.roof(case.replace(bytes_per_step=None), best) is None
    assert roofline.roof(case, roofline.ceilings([product(100e9)])) is None
    of_a_product = rate(60e9) | {"bytes_per_s": metric(3e9, unit="B/s")}
    assert roofline.intensity(record("blas_torch", of_a_product)) == pytest.approx(20)


def moved(build, step, slots=0, backend="mps") -> int:
    return cost.workload(build, step, slots, backend).moved_bytes


def without_gradients(*shape, dtype=torch.float32):
    def step(model):
        with torch.no_grad():
            model(torch.empty(*shape, dtype=dtype))

    return step


def views(model):
    x = torch.empty(6, 4, dtype=model.weight.dtype)
    x.view(4, 6).t().reshape(2, 12)[:1].unsqueeze(0).expand(9, 1, 12)


def linear(inputs=10, outputs=7, bias=False):
    return lambda: nn.Linear(inputs, outputs, bias=bias)


PICTURES = 2 * 3 * 64 + 108 + 2 * 4 * 64 + 3 * 108  # read, kernel, result, update
# Forward: bias, input, weight and output. The sum reads 35 and writes one; its gradient, a one, stands for all the
# outputs' gradients. Backward: weight and bias. Adam reads weight, gradient, two moments, and writes three.
TRAINED = (7 + 50 + 70 + 35) + (35 + 1) + 1 + (1 + 50 + 70) + (1 + 7) + 7 * 77
COPIED = 3 * 16 + 48  # views are free; a reshape of a transposed matrix copies it
GIVEN = 5 * 2 + 2 * 5 * 8 + 3 * 8000  # an embedding reads the rows that it gives, and numbers of 8 bytes, no table


@pytest.mark.parametrize(
    ("build", "step", "slots", "floats"),
    [
        (linear(bias=True), lambda m: m(torch.empty(5, 10)).sum().backward(), 2, TRAINED),
        *((linear(), lambda m: None, slots, times * 70) for slots, times in ((0, 3), (1, 5), (2, 7))),
        (lambda: nn.Conv2d(3, 4, 3, padding=1, bias=False), without_gradients(2, 3, 8, 8), 0, PICTURES),
        (linear(4, 4), views, 0, COPIED),
        (lambda: linear(4, 4)().half(), views, 0, COPIED / 2),
        (lambda: nn.Embedding(1000, 8), without_gradients(5, dtype=torch.long), 0, GIVEN),
    ],
)
def test_the_bytes_of_a_step_by_hand(build, step, slots, floats):
    assert moved(build, step, slots) == FLOAT * floats


def test_fused_attention_reads_and_writes_each_of_its_tensors_once():
    shape, rows = (2, 3, 16, 8), 2 * 3 * 16

    class Three(nn.Module):
        def __init__(self):
            super().__init__()
            self.all = nn.ParameterList(torch.empty(shape) for _ in range(3))

    def step(model):
        nn.functional.scaled_dot_product_attention(*model.all).sum().backward()

    one = rows * 8  # queries, keys, values, the output, and each of their gradients
    forward = 4 * one + rows  # and the logarithm of a sum for each row
    summed = one + 1 + 1  # the sum, and the gradient that begins, which stands for all the output's
    backward = 4 * one + rows + 1 + 3 * one
    assert moved(Three, step, backend="cuda") == FLOAT * (forward + summed + backward + 3 * 3 * one)


def test_a_step_writes_its_bytes_into_the_journal(tmp_path):
    experiment = Experiment("vae", article="003", devices="cpu", budget_s=0.01, out=str(tmp_path))
    step = lambda m: m(torch.empty(4, 10)).sum().backward()  # noqa: E731
    (case,) = experiment.cases(batch_size=[4])
    with case:
        case.require_memory(cost.workload(linear(bias=True), step, 0))
        model = case.watch_model(nn.Linear(10, 7))
        for batch in case.steps([torch.ones(4, 10)] * 30):
            model(batch).sum().backward()
            with torch.no_grad():
                model.weight -= 0.1
    (written,) = experiment.records
    assert written.status == "ok" and written.bytes_per_step == moved(linear(bias=True), step)


def cells(table, heading):
    place = table.columns.index(heading)
    return [row.cells[place] for row in table.rows]


def test_tables_have_the_share_where_there_are_ceilings_and_nothing_where_not():
    records = [record(metrics=rate(25e9, 20e9, 30e9)), record(backend="mps", config={"batch_size": 9})]
    best = roofline.ceilings([product(100e9, low=100e9, high=100e9)])
    table = details.details_table(records, best)
    assert cells(table, roofline.BEST) == ["25 % (20 to 30 %)", ""]
    assert table.columns[table.columns.index("Achieved") + 1] == roofline.BEST
    timed = details.details_table([record(flops_per_step=5 * 10**9, metrics={"step_s": metric(0.1, unit="s")})])
    assert cells(timed, "Achieved")[0].startswith("50.0 GFLOP/s")
    assert table.data[0]["share_of_best"] == 0.25 and table.data[0]["share_of_best_low"] == pytest.approx(0.2)
    without = details.details_table(records)
    assert roofline.BEST not in without.columns and len(without.columns) == len(table.columns) - 1
    assert details.details_table(records, roofline.ceilings([])) == without
    assert details.details_table(records[1:], best).columns == without.columns


def test_the_ceilings_stand_below_the_printed_peaks_with_what_reached_them():
    records = [product(80e9, flags=["contended"]), product(1e12, experiment="ceilings_mlx", backend="mlx-gpu")]
    table = article.article_table("roofline", [*records, stream(9e9)])
    assert ("M2 Ultra", "fp32", "27 TFLOPS") in [row.cells[:3] for row in table.rows if row.kind == "published"]
    assert [row.cells for row in table.rows if row.kind == "measured"] == [
        ("Apple M9 CPU", "fp32", "80.0 GFLOP/s", "", "PyTorch; ceilings: matmul, 1 × 64 × 64; contended"),
        ("Apple M9 CPU", "reads and writes", "", "9.0 GB/s ± 10 %", "PyTorch; ceilings: triad, 512 MB"),
        ("Apple M9 GPU", "fp32", "1.00 TFLOP/s", "", "MLX; ceilings_mlx: matmul, 1 × 64 × 64"),
    ]


def test_what_is_not_in_the_table_is_named_with_the_reason():
    records = [record("kernel_launch_torch", {"launch_s": metric(1e-5, unit="s")}), record("dcgan", status="too-big")]
    records += [record("vae", rate(1e9), profile="smoke")]
    table = roofline.roofline_table([*records, product(1e9)])
    notes = " ".join(table.notes)
    for words in ("(no operations were counted): kernel_launch_torch", "(too-big): dcgan", "(smoke test): vae"):
        assert words in notes
    assert not table.rows and roofline.NO_CEILINGS not in notes
    assert roofline.NO_CEILINGS in roofline.roofline_table(records).notes


def test_of_an_experiment_the_best_case_is_shown_also_of_a_smaller_model():
    records = [record(metrics=rate(r), config={"batch_size": r}, scaled=r > 8e9) for r in (3e9, 9e9, 5e9)]
    records.append(record(metrics=rate(99e9), config={"batch_size": 99}, status="mismatch"))
    (point,) = roofline.roofline_points(records)
    assert point.rate.value == 9e9 and point.share is None and point.roof is None
    row = roofline.roofline_table(records).rows[0].cells
    assert row[5] == "no ceiling" and row[6] == "not counted" and "scaled" in row[-1]


NOTEBOOK = [cell.source for cell in nbformat.read(HERE / "ceilings.ipynb", 4).cells if cell.cell_type == "code"]


@pytest.fixture
def run_ceilings(tmp_path, monkeypatch):
    """Runs the notebook's cases with faults planted; gives the records by operation and precision."""
    # It looks through all objects of the process, which takes a second in one that has imported a test suite.
    monkeypatch.setattr(TorchDevice, "release", lambda self: None)

    def run(sizes: tuple = (64,), repeat: int = 0):
        (tmp_path / "machine.json").unlink(missing_ok=True)  # of a machine of which nothing is known
        about = {"article": "kit", "devices": "cpu", "budget_s": 0.01, "out": str(tmp_path), "repeat": repeat}
        experiment = Experiment("ceilings", **about)
        scope = {"experiment": experiment, "precisions": ["fp32", "fp16"], "sizes": sizes, "megabytes": 16}
        scope |= {"budget_s": 0.01, "least_calls": 2, "least_s": 0.0, "limit_s": 20.0}
        for source in NOTEBOOK[1:]:
            if "experiment.table" in source or "experiment.ceilings" in source:
                continue
            exec(compile(source.split("experiment = Experiment(")[0], "ceilings.ipynb", "exec"), scope)
        return experiment.records

    return run


def test_the_bytes_and_operations_of_the_ceilings_by_hand(run_ceilings, monkeypatch):
    timed = calls.Measurement(1.0, metric(0.5, 0.4, 0.8, "s"), (), "budget")
    monkeypatch.setattr(calls, "measure", lambda *_, **__: timed)
    records = {(r.config["operation"], r.precision): r for r in run_ceilings()}
    assert len(records) == 7 + 6 and {one.status for one in records.values()} == {"ok"}
    for name, arrays in {"triad": 3, "copy": 2, "dot": 2, "sum": 1}.items():
        moved = records[name, "fp32"].metrics
        assert moved["bytes_per_s"].value == pytest.approx(arrays * 16e6 / 0.5)
        assert moved.get("cache_bytes", metric(2**20)).value >= 2**20  # of a processor that says it
    triad = records["triad", "fp32"].metrics["bytes_per_s"]
    assert (triad.low, triad.high) == pytest.approx((3 * 16e6 / 0.8, 3 * 16e6 / 0.4))
    reached = records["matmul", "fp16"].metrics["flops_per_s"]
    assert reached.value == pytest.approx(2 * 64**3 / 0.5) and reached.unit == "FLOP/s"
    convolved = records["convolution", "fp32"].metrics["flops_per_s"].value  # 26 × 26 places of 8 × 256 pictures
    assert convolved == pytest.approx(2 * (9 * 256) * (8 * 256 * 26 * 26) / 0.5)


def test_single_operators_move_and_compute_what_a_prediction_counts_of_them(run_ceilings, monkeypatch):
    """By the same count as `pomology predict` has of a model with that operator, by PyTorch's `meta` device."""
    monkeypatch.setattr(calls, "measure", lambda *_, **__: calls.Measurement(1.0, metric(1.0), (), "budget"))
    rate = {"depthwise": "flops_per_s"}
    known = {
        r.config["operation"]: r.metrics[rate.get(r.config["operation"], "bytes_per_s")] for r in run_ceilings()[3:14]
    }
    kernels = [nn.Conv2d(32, 32, size, 1, size // 2, groups=32, bias=False) for size in (3, 7)]
    models = {
        "batch_norm": (nn.BatchNorm2d(64, affine=False, track_running_stats=False), (16, 64, 48, 48)),
        "max_pool": (nn.MaxPool2d(2), (4, 32, 96, 96)),
        "depthwise": (nn.Sequential(*kernels), (8, 32, 48, 48)),
    }

    def step(module):
        output = module(torch.empty(shape, device="meta"))
        output.backward(torch.empty_like(output))

    for name, (model, shape) in models.items():
        before = nn.Conv2d(shape[1], shape[1], 1, bias=False)  # whose output needs a gradient
        counted = operators.count(nn.Sequential(before, model), step).operators
        like = [one for one in counted if name in (one.like, one.kind) and one.largest == 4 * math.prod(shape)]
        amount = sum(one.flops if name == "depthwise" else one.bytes for one in like)
        assert known[name].value == pytest.approx(amount, rel=0.01)
    assert known["addition"].value == 12 * 20_000_000 and known["bernoulli"].value == 4e6


def test_what_computes_something_else_or_nothing_is_no_ceiling(run_ceilings, monkeypatch):
    product, add, convolve = TorchDevice.product, torch.add, torch.conv2d
    monkeypatch.setattr(TorchDevice, "product", lambda self, precision, size: product(self, "fp32", size))
    monkeypatch.setattr(torch, "add", lambda b, c, alpha, out: add(b, c, out=out))  # leaves the factor out
    monkeypatch.setattr(torch, "dot", lambda b, c: (b[::2] * c[::2]).sum())  # of half of both
    monkeypatch.setattr(torch, "conv2d", lambda inputs, weights: convolve(inputs[:, ::2], weights[:, ::2]))
    records = {(r.config["operation"], r.precision): r for r in run_ceilings()}
    status = {key: one.status for key, one in records.items()}
    good = (("matmul", "fp32"), ("copy", "fp32"), ("sum", "fp32"))
    bad = (("matmul", "fp16"), ("triad", "fp32"), ("dot", "fp32"), ("convolution", "fp32"))
    single = [(name, "fp32") for name in devices.SINGLE]
    assert status == dict.fromkeys([*good, *single], "ok") | dict.fromkeys(bad, "mismatch")
    assert "torch.float32 where torch.float16" in records["matmul", "fp16"].reason


def test_sizes_go_on_while_the_rate_rises(run_ceilings, monkeypatch):
    sizes = (2048, 4096, 8192, 16384, 32768)
    reached = {torch.float32: (6, 5, 9, 9, 9), torch.float16: (2, 4, 7, 7.1, 9)}  # GFLOP/s

    def small(self, precision, size):  # with what is looked at: the kind of numbers, and the mean of a row
        return lambda: torch.full((2, 2), size / 4, dtype={"fp32": torch.float32, "fp16": torch.float16}[precision])

    def measure(function, *_, **options):
        assert options["least_calls"] == 2 and options["least_s"] == 0
        result, seconds = function(), 10.0
        if getattr(result, "shape", None) == (2, 2):
            size = int(4 * result[0, 0].item())
            seconds = 2 * size**3 / (1e9 * reached[result.dtype][sizes.index(size)])
        middle = metric(seconds, 0.99 * seconds, 1.01 * seconds)
        return calls.Measurement(seconds, middle, (Block(1, seconds),) * 20, "budget")

    monkeypatch.setattr(TorchDevice, "product", small)
    monkeypatch.setattr(products, "require_time", lambda *_: None)
    monkeypatch.setattr(calls, "measure", measure)
    tried = [(r.precision, r.config["shape"].split("x")[-1]) for r in run_ceilings(sizes)]
    wanted = {"fp32": sizes[:2], "fp16": sizes[:4]}  # rises by less than 2 % from 8192 to 16384
    single = ["100", "100", "1000", "1000", "1000", "1000", "1000", "48", "96", "128", "48"]
    passes = [("fp32", shape) for shape in ("28", *single, *["16 MB"] * 4)]
    assert tried == [(kind, str(size)) for kind, some in wanted.items() for size in some] + passes
    again = run_ceilings(sizes, repeat=1)  # beside what the first repeat has timed
    assert [(r.precision, r.config["shape"].split("x")[-1]) for r in again if r.repeat] == tried


def test_tf32_is_on_for_its_own_row_only(monkeypatch):
    scope, asked, matmul = {"cases": []}, [], SimpleNamespace(allow_tf32=False)
    (source,) = [source for source in NOTEBOOK if "def build" in source]
    imports = next(source for source in NOTEBOOK if "import torch" in source).split("experiment = ")[0]
    exec(compile(imports + source, "ceilings.ipynb", "exec"), scope)
    backend = SimpleNamespace(backend="cuda", product=lambda name, size: asked.append((name, matmul.allow_tf32)))
    monkeypatch.setattr(torch.backends.cuda, "matmul", matmul)
    for precision in ("fp32", "tf32", "fp16", "tf32", "fp32"):
        scope["build"](SimpleNamespace(backend=backend, precision=precision), SimpleNamespace(lengths=(1, 8, 8)))
    assert asked == [("fp32", False), ("fp32", True), ("fp16", False), ("fp32", True), ("fp32", False)]


def test_a_faster_product_lowers_the_shares_on_every_page_that_is_there(tmp_path, monkeypatch, undrawn):
    monkeypatch.setattr(report_page, "_compared", lambda *_: None)
    known = {"metrics": rate(50e9, 49e9, 51e9), "article": "003", "flops_per_step": 10**9}
    cases = [product(100e9, low=99e9, high=101e9), record("vae", **known)]
    out = write(tmp_path, cases, MACHINE)
    report = Report.of(declaration.of("vae"), Run(out))
    cells = [nbformat.v4.new_markdown_cell("# VAE")]
    for method in ("table", "details"):
        shown = nbformat.v4.new_output("execute_result", {"text/html": getattr(report, method)()._repr_html_()})
        cells.append(nbformat.v4.new_code_cell(f"experiment.{method}()", outputs=[shown]))
    nbformat.write(
        nbformat.v4.new_notebook(cells=cells, metadata={"language_info": {"name": "python"}}), out / "vae.ipynb"
    )

    def pages() -> list[str]:
        report_page.build(out)
        return [(out / name).read_text().replace("\xa0", " ") for name in ("vae.html", "index.html")]

    assert all("50.0 % (48" in page for page in pages())
    before = (out / "vae.html").stat().st_mtime_ns
    pages()
    assert (out / "vae.html").stat().st_mtime_ns == before  # nothing has changed
    write(out, [product(200e9, low=199e9, high=201e9, experiment="blas_mlx", article="001")])
    assert all("25.0 % (24" in page and "50.0 % (48" not in page for page in pages())
    write(out, [product(40e9, low=39e9, high=41e9, experiment="blas_torch", article="001")])
    assert all("25.0 % (24" in page for page in pages())


@pytest.mark.parametrize(
    ("ratio", "low", "high", "shown", "words"),
    [
        (0.42, 0.40, 0.44, "42.0 % (40.0 to 44.0 %)", None),
        (0.99, 0.97, 1.03, "99.0 % (97.0 to 100 %)", None),  # up to 100 %
        (1.01, 0.97, 1.03, "100 %: within its interval", "clipped"),
        (1.06, 1.04, 1.08, "100 %: faster than any product", "Faster than any product: the ceiling is too low"),
        (3.32, None, None, "100 %: no interval", "clipped"),
    ],
)
def test_no_share_is_over_100_per_cent_and_what_is_faster_than_any_product_is_named(ratio, low, high, shown, words):
    best = roofline.ceilings([product(100e9, low=100e9, high=100e9)])
    ends = [end and 100e9 * end for end in (low, high)]
    case = record(metrics=rate(100e9 * ratio, *ends))
    table = details.details_table([case], best)
    assert cells(table, roofline.BEST) == [shown]
    notes = " ".join(note for note in table.meaning if "clipped" in note or "Faster" in note)
    assert (words in notes) if words else not notes
    assert table.data[0]["share_of_best"] == pytest.approx(ratio)  # as it was measured


COUNTED = {"flops_per_step": 10**10, "bytes_per_step": 10**9}
RUN = [product(80e9), product(95e9, "bf16"), stream(5e9), product(2e12, backend="mps"), stream(1e11, backend="mps")]
RUN += [record("vae", rate(20e9), **COUNTED), record("vae", rate(4e11), backend="mps", **COUNTED)]
RUN += [record("cnn", rate(1e9), article="004", framework="tensorflow")]
RUN += [product(7e10, experiment="blas_mlx", article="001")]


def test_the_roofline_notebook_and_the_page_read_the_whole_run(tmp_path, undrawn):
    alone = Report("roofline", article="001", combines=["*"], figure="share_of_roof", out=str(tmp_path / "empty"))
    assert roofline.NO_CEILINGS in alone.roofline().notes and roofline.NO_CEILINGS in alone.table().notes
    assert "<svg" in alone.figure().data
    out = write(tmp_path / "run", RUN)
    whole = Report.of(declaration.of("roofline"), Run(out))
    table = whole.roofline()
    found = [(row["experiment"], row.get("limit")) for row in table.data]
    assert found == [("blas_mlx", None), ("cnn", None), ("vae", "memory"), ("vae", "memory")]
    assert all(share.endswith("%") for share in cells(table, roofline.BEST))
    assert not [note for note in table.notes if note.startswith("Not in the table")]
    assert (out / "tables" / "roofline-roofline.csv").read_text().count("\n") == 4 + 1
    assert len(whole.ceilings().rows) == 5
    later = Experiment("vae", article="003", devices="cpu", out=str(out))
    assert roofline.BEST in later.details().columns
    write(out, [], MACHINE)
    nbformat.write(nbformat.v4.new_notebook(metadata={"pomology": {"article": "001"}}), out / "roofline.ipynb")
    page = report_page.build(out).read_text()
    assert roofline.BEST.replace("'", "&#x27;") in page and "checks of the kit itself" not in page
    assert "cannot be shown" not in page and "Not of an article" not in page
    sections = re.split(r"<h2[^>]*>", page)
    for title, holds in (
        ("Article 001: Profiling Apple Silicon", 'id="roofline"'),
        ("The kit itself", 'id="ceilings"'),
    ):
        (section,) = [part for part in sections if part.startswith(title)]
        assert holds in section


def test_a_processor_launches_nothing_and_stands_in_no_table_of_launches(tmp_path, undrawn):
    times = {"launch_cold_s": metric(2e-5, unit="s"), "launch_s": metric(3e-6, unit="s")}
    records = [
        record("kernel_launch_mlx", times, {}, article="001", framework="mlx", backend=name)
        for name in ("cpu", "mlx-gpu")
    ]
    out = write(tmp_path, records, {"chip": "M9", "architecture": "x86_64", "python": "3.11"})
    report = Report.of(declaration.of("kernel_launch_mlx"), Run(out))
    table = report.table()
    assert [row.cells[0] for row in table.rows if row.kind == "measured"] == ["Apple M9 GPU (MLX 2.13.0, 2026)"]
    assert any(note.startswith("A processor launches nothing") for note in table.notes)
    assert [numbers["case"] for numbers in report.numbers().data].count(records[0].case) == 2
    assert "Apple M9 CPU" not in report.figure().data and "Apple M9 GPU" in report.figure().data
    page = report_page.build(out).read_text()
    assert page.index("without a tuned BLAS") > 0
    report = Report.of(declaration.of("kernel_launch_mlx"), Run(write(tmp_path / "gpu", records[1:])))
    assert not any(note.startswith("A processor launches nothing") for note in report.table().notes)
