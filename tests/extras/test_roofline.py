"""What lies under the roofs: journals made by hand, roofs computed by hand; and the notebook that measures them."""

from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
import torch
from records import cached, matvec, metric, product, rate, record, stream

from pomology.devices.torch import TorchDevice
from pomology.experiment.experiment import Experiment
from pomology.extras.prediction.devices import SINGLE
from pomology.extras.roofline import figure, table
from pomology.measure import calls
from pomology.measure.clock import Block
from pomology.models import products
from pomology.paths import root
from pomology.report import peaks
from pomology.results import frame

pytestmark = pytest.mark.usefixtures("quiet_machine")


def points(records, of):
    return table.points(frame.of_records(records), peaks.peaks(of))


@pytest.mark.parametrize(
    ("operations", "limit", "roof", "share"),
    [(2, "memory", 20e9, 0.25), (20, "compute", 100e9, 0.05), (0.1, "memory", 1e9, 5.0)],
)
def test_the_lower_roof_by_hand(operations, limit, roof, share):
    best = [product(100e9), stream(10e9)]
    case = record(metrics=rate(5e9), flops_per_step=int(operations * 10**9), bytes_per_step=10**9)
    (point,) = points([case], best)
    assert (point.limit, point.roof) == (limit, pytest.approx(roof))
    assert point.share_of_roof.value == pytest.approx(share)
    for records, known in (([case.replace(bytes_per_step=None)], best), ([case], best[:1])):
        (point,) = points(records, known)
        assert (point.limit, point.share_of_roof, point.share.value) == ("", None, 0.05)


@pytest.mark.parametrize(
    ("case", "name", "limit", "share"),
    [
        (matvec(400, 9e9), "blas matvec", "memory", 0.9),  # half an operation for each of 10 GB/s
        (matvec(400, 11e9), "blas matvec", "memory", 1.1),
        (matvec(20, 33.2e9), "blas matvec, cache-resident", "cache-resident", 0.166),
    ],
)
def test_what_only_reads_is_held_against_reads_unless_a_cache_holds_it(case, name, limit, share):
    (point,) = points([case], [product(100e9), stream(6e9), cached(10e9, "sum", 32)])
    assert (point.name, point.limit) == (name, limit)
    assert point.share_of_roof.value == pytest.approx(share)


def test_the_best_case_is_shown_also_of_a_smaller_model_and_what_is_missing_is_named():
    records = [
        record(metrics=rate(r), config={"batch_size": r}, scaled=r > 8e9) for r in (3e9, 9e9, 5e9)
    ]
    records.append(record(metrics=rate(99e9), config={"batch_size": 99}, status="mismatch"))
    records += [record("kernel_launch", {"launch_s": metric(1e-5, unit="s")})]
    records += [
        record("dcgan", status="too-big"),
        record("siamese", rate(1e9), profile="smoke"),
        product(1e9),
    ]
    shown = table.roofline_table(frame.of_records(records), peaks.peaks([]))
    (row,) = shown.rows
    assert (
        row.cells[4:7] == ("9.00 GFLOP/s", "no peak", "not counted") and "scaled" in row.cells[-1]
    )
    notes = " ".join(shown.notes)
    for words in (
        "(no operations were counted): kernel_launch",
        "(too-big): dcgan",
        "(smoke test): siamese",
    ):
        assert words in notes
    assert table.NO_PEAKS in notes


def test_the_peaks_stand_below_the_printed_ones_with_what_reached_them():
    records = [
        product(80e9, flags=["contended"]),
        product(1e12, framework="mlx", backend="mlx-gpu"),
    ]
    shown = table.peaks_table(peaks.peaks([*records, stream(9e9)]), "001")
    assert ("M2 Ultra", "fp32", "27 TFLOPS") in [
        row.cells[:3] for row in shown.rows if row.kind == "published"
    ]
    measured = [row.cells for row in shown.rows if row.kind == "measured"]
    assert [cells[:4] for cells in measured] == [
        ("Apple M9 CPU", "fp32", "80.0 GFLOP/s", ""),
        ("Apple M9 CPU", "reads and writes", "", "9.0 GB/s ± 10 %"),
        ("Apple M9 GPU", "fp32", "1.00 TFLOP/s", ""),
    ]
    assert (
        measured[0][4].startswith("PyTorch; ceilings: operation matmul")
        and "contended" in measured[0][4]
    )


def test_the_figure_has_roofs_where_they_were_measured_and_a_label_for_each_point():
    records = [
        record(metrics=rate(5e9, 4e9, 6e9), flops_per_step=2 * 10**9, bytes_per_step=10**9),
        matvec(400, 9e9),
    ]
    best = peaks.peaks([product(100e9), stream(10e9), cached(8e9, "sum", 32)])
    (axis,) = figure.roofline_figure(frame.of_records(records), best).axes
    lines = [line.get_data() for line in axis.lines if len(line.get_xdata()) == 2]
    assert [y[0] for _, y in lines if y[0] == y[1]] == [100e9]
    assert sorted(y[1] / x[1] for x, y in lines if y[0] < y[1]) == pytest.approx([8e9, 10e9])
    texts = [text.get_text() for text in axis.texts]
    assert any(text.startswith("roof of fp32: 100 GFLOP/s") for text in texts)
    assert {text.split(":")[0] for text in texts[:2]} == {
        "vae, PyTorch, fp32",
        "blas matvec, PyTorch, fp32",
    }
    assert figure.roofline_figure(frame.of_records([]), peaks.peaks([])).axes == []


# The notebook ceilings ------------------------------------------------------------------------------------------------

HERE = root() / "notebooks" / "this_machine"
NOTEBOOK = [
    cell.source for cell in nbformat.read(HERE / "peaks.ipynb", 4).cells if cell.cell_type == "code"
]


@pytest.fixture
def run_ceilings(tmp_path: Path, monkeypatch):
    """Runs the notebook's cases; gives their records."""
    # It looks through all objects of the process, which takes a second in one that has imported a test suite.
    monkeypatch.setattr(TorchDevice, "release", lambda self: None)

    def run(sizes=(64,)):
        (tmp_path / "machine.json").unlink(
            missing_ok=True
        )  # of a machine of which nothing is known
        about = {"article": "kit", "devices": "cpu", "budget_s": 0.01, "out": str(tmp_path)}
        experiment = Experiment("peaks", **about)
        scope = {
            "experiment": experiment,
            "precisions": ["fp32", "fp16"],
            "sizes": sizes,
            "megabytes": 16,
        }
        scope |= {"budget_s": 0.01, "least_calls": 2, "least_s": 0.0, "limit_s": 20.0}
        for source in NOTEBOOK[1:]:
            if "experiment.table" not in source and "experiment.show" not in source:
                exec(
                    compile(source.split("experiment = Experiment(")[0], "peaks.ipynb", "exec"),
                    scope,
                )
        return experiment.records

    return run


def test_the_bytes_and_operations_of_the_peaks_by_hand(run_ceilings, monkeypatch):
    timed = calls.Measurement(1.0, metric(0.5, 0.4, 0.8, "s"), (), "budget")
    monkeypatch.setattr(calls, "measure", lambda *_, **__: timed)
    records = {(r.config["operation"], r.precision): r for r in run_ceilings()}
    assert len(records) == 7 + 6 and {one.status for one in records.values()} == {"ok"}
    for name, arrays in {"triad": 3, "copy": 2, "dot": 2, "sum": 1}.items():
        moved = records[name, "fp32"].metrics["bytes_per_s"]
        assert moved.value == pytest.approx(arrays * 16e6 / 0.5)
    assert (moved.low, moved.high) == pytest.approx((16e6 / 0.8, 16e6 / 0.4))
    reached = records["matmul", "fp16"].metrics["flops_per_s"]
    assert reached.value == pytest.approx(2 * 64**3 / 0.5) and reached.unit == "FLOP/s"
    convolved = (
        records["convolution", "fp32"].metrics["flops_per_s"].value
    )  # 26 × 26 places of 8 × 256 pictures
    assert convolved == pytest.approx(2 * (9 * 256) * (8 * 256 * 26 * 26) / 0.5)


def test_what_computes_something_else_or_nothing_is_no_peak(run_ceilings, monkeypatch):
    product, add, convolve = TorchDevice.product, torch.add, torch.conv2d
    monkeypatch.setattr(
        TorchDevice, "product", lambda self, precision, size: product(self, "fp32", size)
    )
    monkeypatch.setattr(
        torch, "add", lambda b, c, alpha, out: add(b, c, out=out)
    )  # leaves the factor out
    monkeypatch.setattr(torch, "dot", lambda b, c: (b[::2] * c[::2]).sum())  # of half of both
    monkeypatch.setattr(
        torch, "conv2d", lambda inputs, weights: convolve(inputs[:, ::2], weights[:, ::2])
    )
    status = {(r.config["operation"], r.precision): r.status for r in run_ceilings()}
    good = (
        ("matmul", "fp32"),
        ("copy", "fp32"),
        ("sum", "fp32"),
        *((name, "fp32") for name in SINGLE),
    )
    bad = (("matmul", "fp16"), ("triad", "fp32"), ("dot", "fp32"), ("convolution", "fp32"))
    assert status == dict.fromkeys(good, "ok") | dict.fromkeys(bad, "mismatch")


def test_sizes_go_on_while_the_rate_rises(run_ceilings, monkeypatch):
    sizes = (2048, 4096, 8192, 16384, 32768)
    reached = {torch.float32: (6, 5, 9, 9, 9), torch.float16: (2, 4, 7, 7.1, 9)}  # GFLOP/s
    kinds = {"fp32": torch.float32, "fp16": torch.float16}

    def measure(function, *_, **options):
        assert options["least_calls"] == 2 and options["least_s"] == 0
        result, seconds = function(), 10.0
        if getattr(result, "shape", None) == (2, 2):
            size = int(4 * result[0, 0].item())
            seconds = 2 * size**3 / (1e9 * reached[result.dtype][sizes.index(size)])
        middle = metric(seconds, 0.99 * seconds, 1.01 * seconds)
        return calls.Measurement(seconds, middle, (Block(1, seconds),) * 20, "budget")

    # With what is looked at: the kind of numbers, and the mean of a row.
    def small(self, precision, size):
        return lambda: torch.full((2, 2), size / 4, dtype=kinds[precision])

    monkeypatch.setattr(TorchDevice, "product", small)
    monkeypatch.setattr(products, "require_time", lambda *_: None)
    monkeypatch.setattr(calls, "measure", measure)
    tried = [r for r in run_ceilings(sizes) if r.config["operation"] == "matmul"]
    wanted = {"fp32": sizes[:2], "fp16": sizes[:4]}  # rises by less than 2 % from 8192 to 16384
    shapes = [(kind, f"1x{size}x{size}") for kind, some in wanted.items() for size in some]
    assert [(r.precision, r.config["shape"]) for r in tried] == shapes


def test_tf32_is_on_for_its_own_row_only(monkeypatch):
    scope, asked, matmul = {"cases": []}, [], SimpleNamespace(allow_tf32=False)
    (source,) = [source for source in NOTEBOOK if "def build" in source]
    imports = next(source for source in NOTEBOOK if "import torch" in source).split(
        "experiment = "
    )[0]
    exec(compile(imports + source, "peaks.ipynb", "exec"), scope)
    backend = SimpleNamespace(
        backend="cuda", product=lambda name, size: asked.append((name, matmul.allow_tf32))
    )
    monkeypatch.setattr(torch.backends.cuda, "matmul", matmul)
    for precision in ("fp32", "tf32", "fp16", "fp32"):
        scope["build"](
            SimpleNamespace(backend=backend, precision=precision),
            SimpleNamespace(lengths=(1, 8, 8)),
        )
    assert asked == [("fp32", False), ("fp32", True), ("fp16", False), ("fp32", False)]
