"""Ceilings and what lies under them: journals made by hand, shares computed by hand, and pictures whose texts are
measured for overlap."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import fakes
import nbformat
import pytest
import torch
from records import metric, product, rate, record, stream, write
from torch import nn

from pomology.devices.torch import TorchDevice
from pomology.experiment.experiment import Experiment
from pomology.machine import snapshot
from pomology.measure import calls
from pomology.report import article, declaration, details, roofline
from pomology.report import page as report_page
from pomology.report.showing import Report
from pomology.results import cases
from pomology.results.run import Run
from pomology.workloads import cost

HERE = Path(__file__).resolve().parents[1] / "notebooks" / "this_machine"
FLOAT = 4  # bytes


@pytest.fixture(autouse=True)
def quiet_machine(monkeypatch):
    fakes.quiet_machine(monkeypatch)


def test_a_ceiling_is_the_best_over_sizes_frameworks_and_the_products_of_other_notebooks():
    records = [product(50e9), product(80e9, shape="1x9x9"), product(40e9, "fp16"), product(99e9, status="mismatch")]
    records += [product(70e9, experiment="ceilings_mlx"), product(60e9, "fp16", experiment="blas_mlx")]
    records += [product(900e9, backend="mps"), product(1200e9, experiment="ceilings_mlx", backend="mlx-gpu")]
    records += [product(5e12, profile="smoke"), record("vae", rate(7e12))]
    best = roofline.ceilings(records)
    expected = {("cpu", "fp32"): (80e9, "torch"), ("cpu", "fp16"): (60e9, "mlx"), ("gpu", "fp32"): (1200e9, "mlx")}
    assert {key: (one.value, one.record.framework) for key, one in best.rates.items()} == expected
    assert not best.bandwidths and not roofline.ceilings([])
    # A number that scatters widely is none.
    records = [product(80e9, low=78e9, high=82e9), product(200e9, low=12e9, high=250e9, shape="1x9x9")]
    assert [roofline.ceilings(turn).rates["cpu", "fp32"].value for turn in (records, records[::-1])] == [80e9, 80e9]


def test_the_last_level_cache_where_the_system_tells_and_nothing_on_a_mac(tmp_path, monkeypatch):
    monkeypatch.setattr(snapshot, "CACHES", tmp_path)
    assert snapshot.cache_bytes() is None
    for number, size in enumerate(("48K", "491520K", "?")):
        (tmp_path / f"index{number}").mkdir()
        (tmp_path / f"index{number}" / "size").write_text(f"{size}\n")
    assert snapshot.cache_bytes() == 480 * 2**20


def test_bandwidth_comes_from_copies_and_triads_and_from_no_product():
    records = [stream(8e9, "copy"), stream(9e9), stream(7e9, "add", "ceilings_mlx"), stream(90e9, backend="mps")]
    about = {"operation": "matvec", "shape": "128x128", "precision": "fp32"}
    matvec = record("blas_torch", rate(4e9) | {"bytes_per_s": metric(77e9, unit="B/s")}, about)
    best = roofline.ceilings([*records, matvec])
    assert {kind: one.value for kind, one in best.bandwidths.items()} == {"cpu": 9e9, "gpu": 90e9}
    assert {key: one.value for key, one in best.rates.items()} == {("cpu", "fp32"): 4e9}


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
    case = record(metrics=rate(5e9), flops_per_step=int(operations * 1000), bytes_per_step=1000)
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
        ("Apple M9 CPU", "", "", "9.0 GB/s ± 10 %", "PyTorch; ceilings: triad, 512 MB"),
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

    def run():
        experiment = Experiment("ceilings", article="kit", devices="cpu", budget_s=0.01, out=str(tmp_path))
        scope = {"experiment": experiment, "precisions": ["fp32", "fp16"], "sizes": [64], "megabytes": 16}
        scope |= {"budget_s": 0.01, "limit_s": 20.0}
        for source in NOTEBOOK[1:]:
            if "experiment.table" in source or "experiment.ceilings" in source:
                continue
            if "experiment = Experiment(" in source:
                source = source.split("experiment = ")[0]
            exec(compile(source.split("\nfor case in")[0], "ceilings.ipynb", "exec"), scope)
        scope["cuda"] = False
        (loop,) = [source.split("\nfor case in")[1] for source in NOTEBOOK if "\nfor case in" in source]
        exec(compile(f"for case in{loop}", "ceilings.ipynb", "exec"), scope)
        return {(r.config["operation"], r.precision): r for r in experiment.records}

    return run


def test_the_bytes_and_operations_of_the_ceilings_by_hand(run_ceilings, monkeypatch):
    timed = calls.Measurement(1.0, metric(0.5, 0.4, 0.8, "s"), (), "budget")
    monkeypatch.setattr(calls, "measure", lambda *_, **__: timed)
    records = run_ceilings()
    assert len(records) == 4 and {one.status for one in records.values()} == {"ok"}
    triad, copy = (records[name, "fp32"].metrics["bytes_per_s"] for name in ("triad", "copy"))
    assert triad.value == pytest.approx(3 * 16e6 / 0.5) and copy.value == pytest.approx(2 * 16e6 / 0.5)
    assert (triad.low, triad.high) == pytest.approx((3 * 16e6 / 0.8, 3 * 16e6 / 0.4))
    reached = records["matmul", "fp16"].metrics["flops_per_s"]
    assert reached.value == pytest.approx(2 * 64**3 / 0.5) and reached.unit == "FLOP/s"


def test_what_computes_something_else_or_nothing_is_no_ceiling(run_ceilings, monkeypatch):
    product, add = TorchDevice.product, torch.add
    monkeypatch.setattr(TorchDevice, "product", lambda self, precision, size: product(self, "fp32", size))
    monkeypatch.setattr(torch, "add", lambda b, c, alpha, out: add(b, c, out=out))  # leaves the factor out
    records = run_ceilings()
    status = {key: one.status for key, one in records.items()}
    good, bad = (("matmul", "fp32"), ("copy", "fp32")), (("matmul", "fp16"), ("triad", "fp32"))
    assert status == dict.fromkeys(good, "ok") | dict.fromkeys(bad, "mismatch")
    assert "torch.float32 where torch.float16" in records["matmul", "fp16"].reason


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


COUNTED = {"flops_per_step": 10**9, "bytes_per_step": 10**8}
RUN = [product(80e9), product(95e9, "bf16"), stream(5e9), product(2e12, backend="mps"), stream(1e11, backend="mps")]
RUN += [record("vae", rate(20e9), **COUNTED), record("vae", rate(4e11), backend="mps", **COUNTED)]
RUN += [record("cnn", rate(1e9), article="004", framework="tensorflow")]
RUN += [product(7e10, experiment="blas_mlx", article="001")]


def test_the_roofline_notebook_and_the_page_read_the_whole_run(tmp_path):
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
    (out / "machine.json").write_text('{"chip": "Apple M9", "profile": "quick"}')
    nbformat.write(nbformat.v4.new_notebook(metadata={"pomology": {"article": "001"}}), out / "roofline.ipynb")
    page = report_page.build(out).read_text()
    assert "processor: bf16 95.0 GFLOP/s, fp32 80.0 GFLOP/s, memory 5.00 GB/s" in page
    assert roofline.BEST.replace("'", "&#x27;") in page and "checks of the kit itself" not in page
    assert "cannot be shown" not in page and "Not of an article" not in page
    sections = re.split(r"<h2[^>]*>", page)
    for title, holds in (("Profiling Apple Silicon", 'id="roofline"'), ("The kit itself", 'id="ceilings"')):
        (section,) = [part for part in sections if part.startswith(title)]
        assert holds in section
