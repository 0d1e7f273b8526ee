"""Matrix products: shapes and counts by hand, references computed another way, and every way for a product to be wrong.

The products that are timed are those of the notebook for PyTorch, taken from its own cell.
"""

from __future__ import annotations

import ast
import functools
import itertools
import math
import shutil
from pathlib import Path

import nbformat
import numpy as np
import pytest
import test_roofline
import torch
import yaml
from fakes import Clock
from test_roofline import metric

from pomology.articles import claims as articles_claims
from pomology.articles import published
from pomology.errors import PomologyError
from pomology.experiment.experiment import Experiment
from pomology.machine import snapshot
from pomology.measure import calls
from pomology.report import article, declaration, side_by_side
from pomology.report import claims as report_claims
from pomology.report.showing import Report
from pomology.results import cases
from pomology.results import journal as results_journal
from pomology.results.run import Run
from pomology.runner import notebooks, parameters
from pomology.workloads import products
from pomology.workloads.products import Product

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "notebooks" / "profiling_apple_silicon"
SIZES = (128, 512, 2048, 4096)
# What the article and the benchmarks of MLX have, written down once more.
WANTED = {
    "matmul": [("8x2000x2000", "")],
    "matvec": [(f"{rows}x{columns}", "") for rows in SIZES for columns in SIZES]
    + [("4096x11008", ""), ("4096x32000", "")],
    "vjp": [(f"8x1024x{width}", wrt) for width in (128, 512, 2048) for wrt in ("left", "right")],
}
SMALL = [
    *(Product("matmul", "3x24x24"), Product("matvec", "40x56"), Product("matvec", "48x48")),
    *(Product("vjp", "3x20x24", wrt) for wrt in ("left", "right")),
]


def names(value: object) -> str | None:
    return f"{value.operation}-{value.shape}{value.wrt}" if isinstance(value, Product) else None


@pytest.fixture(autouse=True)
def quiet_machine(monkeypatch):
    state = {"power_source": "ac", "low_power_mode": False, "thermal_level": None, "load": 0.1, "flags": []}
    monkeypatch.setattr(snapshot, "conditions", lambda: state)


def cells(name: str) -> list[str]:
    document = nbformat.read(FOLDER / f"{name}.ipynb", 4)
    return [cell.source for cell in document.cells if cell.cell_type == "code"]


@pytest.fixture(scope="module")
def notebook() -> dict:
    """What the notebook for PyTorch defines in the cell that multiplies."""
    (source,) = [source for source in cells("blas_torch") if "def build" in source]
    scope = {"torch": torch, "seed": 1}
    exec(compile(source, "blas_torch.ipynb", "exec"), scope)
    return scope


def whole(product: Product, inputs: dict) -> np.ndarray:
    """All of a product in float64, number by number."""
    a, b, c = (inputs[name].astype(np.float64) if name in inputs else None for name in "abc")
    formula, operands = {
        "matmul": ("bij,bjk->bik", (a, b)),
        "matvec": ("ij,j->i", (a, b)),
        "vjpleft": ("bik,jk->bij", (c, b)),
        "vjpright": ("bij,bik->jk", (a, c)),
    }[product.operation + product.wrt]
    return np.einsum(formula, *operands, optimize=False)


# Shapes ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["blas_torch", "blas_mlx"])
@pytest.mark.parametrize("profile", ["quick", "article"])
def test_every_shape_of_the_article_is_timed_in_every_precision(name, profile):
    given = yaml.safe_load((ROOT / "params" / profile / f"{name}.yaml").read_text(encoding="utf-8"))
    values = {key: one.default for key, one in parameters.declared(FOLDER / f"{name}.ipynb").items()} | given
    (source,) = [source for source in cells(name) if "products.rows(" in source]
    tree = ast.parse(source)
    tree.body = [node for node in tree.body if isinstance(node, ast.Assign)][:2]
    scope = {"workloads_products": products, **values}
    exec(compile(tree, name, "exec"), scope)
    found = {(row["operation"], row["shape"], row.get("wrt", ""), row["precision"]) for row in scope["products"]}
    assert found == {
        (operation, shape, wrt, precision)
        for operation, listed in WANTED.items()
        for (shape, wrt), precision in itertools.product(listed, ("fp32", "fp16", "bf16"))
    }
    assert len(found) == len(scope["products"]) == 75
    assert (values["repeats"], products.WARMUPS) == ((100, 10) if profile == "article" else (0, 10))


@pytest.mark.parametrize(
    ("product", "result", "inner", "flops", "fp32_bytes"),
    [
        (Product("matmul", "8x2000x2000"), (8, 2000, 2000), 2000, 128e9, 3 * 8 * 2000 * 2000 * 4),
        (Product("matvec", "4096x11008"), (4096,), 11008, 2 * 4096 * 11008, 4 * (4096 * 11008 + 4096 + 11008)),
        (Product("vjp", "8x1024x512", "left"), (8, 1024, 512), 512, 2**32, 4 * (2 * 8 * 1024 * 512 + 512 * 512)),
        (Product("vjp", "8x1024x512", "right"), (512, 512), 8192, 2**32, 4 * (2 * 8 * 1024 * 512 + 512 * 512)),
    ],
    ids=names,
)
def test_what_a_product_costs(product, result, inner, flops, fp32_bytes):
    assert (product.result, product.inner, product.flops) == (result, inner, flops)
    assert product.bytes("fp32") == 2 * product.bytes("fp16") == 2 * product.bytes("bf16") == fp32_bytes
    eighth = product.smaller(8)
    assert eighth.operation == product.operation and eighth.lengths[-1] == product.lengths[-1] // 8
    assert product.flops == eighth.flops * (64 if product.operation == "matvec" else 512)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (("matmul", "8x2000"), "it must be 3 lengths"),
        (("matmul", "8x20x30"), "must be square"),
        (("matvec", "8x9", "left"), "vjp has wrt"),
        (("gemm", "8x9"), "one of matmul, matvec, vjp"),
    ],
)
def test_a_shape_that_is_none_is_one_line(settings, words):
    with pytest.raises(PomologyError, match=words) as error:
        Product(*settings)
    assert "\n" not in str(error.value)


def test_rows_keep_precisions_together_and_refuse_unknown_ones():
    rows = products.rows(["fp32", "fp16"], matvec=["8x9"], vjp=["2x3x4"])
    assert [(row.get("wrt"), row["precision"]) for row in rows] == [
        *((None, "fp32"), (None, "fp16"), ("left", "fp32"), ("left", "fp16"), ("right", "fp32"), ("right", "fp16"))
    ]
    with pytest.raises(PomologyError, match=r"^precisions: 'fp8' is not known; one of fp32, fp16, bf16 is$"):
        products.rows(["fp8"], matvec=["8x9"])


# Inputs, references, tolerance ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", products.PRECISIONS)
def test_inputs_are_held_exactly_by_the_precision(precision):
    kind = getattr(torch, products.PRECISIONS[precision][0])
    inputs = Product("vjp", "3x20x24", "left").inputs(precision, 1)
    plain = Product("vjp", "3x20x24", "left").inputs("fp32", 1)
    for name, array in inputs.items():
        assert array.dtype == np.float32 and -1 <= array.min() < -0.9 and 0.9 < array.max() <= 1
        assert (torch.from_numpy(array).to(kind).float().numpy() == array).all()
        # PyTorch rounds to nearest, ties to even, as well.
        assert (torch.from_numpy(plain[name]).to(kind).float().numpy() == array).all()
    assert not np.array_equal(inputs["a"], inputs["c"])


@pytest.mark.parametrize("product", [*SMALL, Product("matmul", "2x100x100"), Product("matvec", "700x90")], ids=names)
def test_the_reference_is_a_sample_of_the_whole(product):
    inputs = product.inputs("fp32", 3)
    full = whole(product, inputs)
    assert full.shape == product.result
    sample = product.sample(full)
    assert np.allclose(sample, product.reference(inputs), rtol=0, atol=1e-12)
    assert sample.size >= min(full.size, 256)
    assert sample.flat[0] == full.flat[0] and sample.flat[-1] == full.flat[-1]


def in_order(a: np.ndarray, b: np.ndarray, kind: type) -> np.ndarray:
    """A product whose sums are kept in a precision, one addition after another: as bad as it gets."""
    total = np.zeros((len(a), b.shape[1]), kind)
    for place in range(a.shape[1]):
        total = (total + (a[:, place, None] * b[None, place]).astype(kind)).astype(kind)
    return total


@pytest.mark.parametrize(("precision", "kind"), [("fp32", np.float32), ("fp16", np.float16)])
@pytest.mark.parametrize("inner", [128, 2000])
def test_a_right_product_is_accepted_however_its_sums_are_kept(precision, kind, inner):
    product = Product("vjp", f"1x64x{inner}", "left")
    inputs = product.inputs(precision, 5)
    right = in_order(inputs["c"][0].astype(kind), inputs["b"].T.astype(kind)[:, :200], kind)
    exact = whole(product, inputs)[0][:, :200]
    tolerance = product.tolerance(precision, exact)
    assert np.abs(right - exact).max() < tolerance
    # Not by a margin that lets everything through.
    assert np.abs(right - exact).max() > tolerance / 50


@pytest.mark.parametrize("bits", [11, 8])  # TF32 and fp16 have 11 significant bits, bf16 has 8
def test_fp32_that_is_less_is_refused(bits):
    product = Product("matmul", "1x512x512")
    inputs = product.inputs("fp32", 5)
    spacing = 2.0 ** (np.floor(np.log2(np.abs(inputs["a"]))) + 1 - bits)
    coarse = dict(inputs, a=(np.round(inputs["a"] / spacing) * spacing).astype(np.float32))
    reference = product.reference(inputs)
    assert np.abs(product.reference(coarse) - reference).max() > 3 * product.tolerance("fp32", reference)


@pytest.mark.parametrize("precision", products.PRECISIONS)
@pytest.mark.parametrize("listed", WANTED, ids=str)
def test_no_tolerance_lets_another_product_through(precision, listed):
    """Random numbers of the result's own size are off by more, at every shape of the article."""
    generator = np.random.default_rng(1)
    for shape, wrt in WANTED[listed]:
        product = Product(listed, shape, wrt)
        size = math.sqrt(product.inner) / 3
        right, other = generator.normal(0, size, (2, 256))
        assert np.abs(right - other).max() > product.tolerance(precision, right)
        assert np.abs(right).max() > product.tolerance(precision, right)  # nor zeros


# Cases ----------------------------------------------------------------------------------------------------------------


def run(tmp_path, product: Product, precision: str, build, numbers, **more) -> dict:
    """One case as the notebook runs it; its record."""
    experiment = Experiment("blas_torch", article="001", devices="cpu", profile="quick", out=str(tmp_path))
    config = {"operation": product.operation, "shape": product.shape, "wrt": product.wrt, "precision": precision}
    settings = {"limit_s": 60.0, "repeats": 0, "budget_s": 0.01} | more
    for case in experiment.cases([config]):
        with case:
            products.require_time(case, product, build, settings["limit_s"], settings["repeats"])
            multiply = build(case, product)
            products.check(case, product, 1, *numbers(multiply()))
            products.measure(case, product, multiply, settings["budget_s"], settings["repeats"])
    (record,) = experiment.records
    return record


@pytest.mark.parametrize("precision", products.PRECISIONS)
@pytest.mark.parametrize("product", SMALL, ids=names)
def test_a_right_product_is_timed(tmp_path, notebook, product, precision):
    record = run(tmp_path, product, precision, notebook["build"], notebook["numbers"])
    assert (record.status, record.precision, record.reason) == ("ok", precision, None)
    metrics = {name: metric.value for name, metric in record.metrics.items()}
    assert metrics["kernel_s"] > 0 and metrics["throughput"] == pytest.approx(1 / metrics["kernel_s"])
    assert metrics["flops_per_s"] == pytest.approx(product.flops / metrics["kernel_s"])
    assert metrics["bytes_per_s"] == pytest.approx(product.bytes(precision) / metrics["kernel_s"])
    assert 0 <= metrics["max_abs_error"] <= metrics["tolerance"]
    assert metrics["inputs_checksum"] == products.checksum(product, precision, 1)
    assert "kernel_stream_s" not in metrics  # a processor works while it is asked
    assert products.PRECISIONS[precision][0] in record.note and "x".join(map(str, product.result)) in record.note
    throughput, seconds = record.metrics["throughput"], record.metrics["kernel_s"]
    assert throughput.low == pytest.approx(1 / seconds.high)
    raw = record.blocks["kernel_s"]["steady"]
    assert len(raw) >= 2 and {steps for steps, _ in raw} == {1}  # every call is waited for


def test_the_article_times_a_hundred_calls_behind_ten(tmp_path, notebook):
    made = []

    def build(case, product):
        multiply = notebook["build"](case, product)
        return lambda: (made.append(1), multiply())[1]

    record = run(tmp_path, SMALL[0], "fp32", build, notebook["numbers"], repeats=100)
    assert record.metrics["kernel_s"].n == len(record.blocks["kernel_s"]["steady"]) == 100
    assert len(made) >= 2 + 10 + 100


@pytest.mark.parametrize("product", SMALL, ids=names)
def test_only_the_product_itself_is_timed(notebook, product):
    """Counted by PyTorch: a vector-Jacobian product without its forward, and of one operand only."""
    from torch.utils.flop_counter import FlopCounterMode

    class Here:
        device, precision = torch.device("cpu"), "fp32"

    multiply = notebook["build"](Here, product)
    with FlopCounterMode(display=False) as counter:
        multiply()
    assert counter.get_total_flops() in (product.flops, 0 if product.operation == "matvec" else None)


FAULTS = {
    "a sum over the wrong axis": (Product("matvec", "48x48"), "fp32", lambda a, b, c: a.T @ b, "apart"),
    "a gradient summed over the wrong axis": (
        *(Product("vjp", "3x20x24", "right"), "fp32", lambda a, b, c: (a.transpose(1, 2) @ c).sum(1)),
        "gives the shape (3, 24); it must be (24, 24)",
    ),
    "a gradient that is transposed": (
        *(Product("vjp", "3x20x24", "right"), "fp16", lambda a, b, c: torch.einsum("bij,bik->kj", a, c)),
        "apart",
    ),
    "the other operand's gradient": (Product("vjp", "3x24x24", "left"), "fp16", lambda a, b, c: c @ b, "apart"),
    "fp32 for fp16": (
        *(Product("matmul", "3x24x24"), "fp16", lambda a, b, c: a.float() @ b.float()),
        "gives float32 where float16 was asked for",
    ),
    "fp16 for fp32": (
        *(Product("matmul", "3x24x24"), "fp32", lambda a, b, c: (a.half() @ b.half()).float()),
        "apart",
    ),
    "nothing": (Product("matmul", "3x24x24"), "bf16", lambda a, b, c: torch.zeros_like(a), "apart"),
    "no numbers": (Product("matmul", "3x24x24"), "fp16", lambda a, b, c: a * math.nan, "not finite"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_product_ends_as_mismatch_and_is_never_timed(tmp_path, notebook, fault):
    product, precision, wrong, words = FAULTS[fault]

    def build(case, product):
        kind = notebook["KINDS"][case.precision]
        inputs = {name: torch.from_numpy(array).to(kind) for name, array in product.inputs(case.precision, 1).items()}
        return lambda: wrong(inputs["a"], inputs["b"], inputs.get("c"))

    record = run(tmp_path, product, precision, build, notebook["numbers"])
    assert record.status == "mismatch" and words in record.reason, record.reason
    assert not {"kernel_s", "throughput", "flops_per_s"} & set(record.metrics)
    if words == "apart":
        assert record.metrics["max_abs_error"].value > record.metrics["tolerance"].value


def test_a_gpu_is_also_timed_many_calls_at_once(tmp_path, notebook):
    experiment = Experiment("blas_torch", article="001", devices="cpu", out=str(tmp_path))
    experiment.devices[0].kind = "gpu"
    for case in experiment.cases(products.rows(["fp32"], matvec=["16x16"])):
        with case:
            product = Product.of(case.config)
            products.measure(case, product, notebook["build"](case, product), 0.01)
    (record,) = experiment.records
    assert record.metrics["kernel_stream_s"].value > 0
    assert max(steps for steps, _ in record.blocks["kernel_stream_s"]["steady"]) > 1


# Too big --------------------------------------------------------------------------------------------------------------


class Slow:
    """A backend of so many operations a second in simulated time, with a delay for every call."""

    def __init__(self, rate: float, delay_s: float = 0.0):
        self.rate, self.delay_s, self.clock, self.asked = rate, delay_s, Clock(), []

    def build(self, case, product):
        self.asked.append(product.shape)
        return lambda: self.clock.pass_s(product.flops / self.rate + self.delay_s)


@pytest.fixture
def simulated(monkeypatch):
    def make(*about) -> Slow:
        slow = Slow(*about)
        monkeypatch.setattr(calls, "measure", functools.partial(calls.measure, clock=slow.clock))
        return slow

    return make


def foreseen(tmp_path, slow: Slow, product: Product, limit_s: float, repeats: int = 0, free: float = 1e12) -> dict:
    experiment = Experiment("blas_torch", article="001", devices="cpu", out=str(tmp_path))
    experiment.devices[0].free_memory = lambda: free
    for case in experiment.cases(products.rows(["fp32"], matmul=[product.shape])):
        with case:
            products.require_time(case, product, slow.build, limit_s, repeats)
            case.metric("kernel_s", 1.0, "s")
    (record,) = experiment.records
    return record


LARGE = Product("matmul", "8x2000x2000")


def test_a_slow_backend_is_foreseen_from_a_smaller_product(tmp_path, simulated):
    slow = simulated(2e9)  # as a reference BLAS
    record = foreseen(tmp_path, slow, LARGE, limit_s=12)
    assert record.status == "too-big"
    assert "would take about 64.0 s a call, and 5 calls are the least, in 12.0 s" in record.reason
    assert "8x250x250 took 0.125 s, and 8x2000x2000 has 512 times its operations" in record.reason
    assert slow.asked == ["8x250x250"] and slow.clock.now < 1
    assert "2000x2000" in cases.line(record)


@pytest.mark.parametrize(
    ("rate", "delay_s", "settings", "status"),
    [
        (1e11, 0.0, {"limit_s": 12}, "ok"),
        (1e11, 0.0, {"limit_s": 12, "repeats": 100}, "too-big"),  # 1.28 s a call
        (1e11, 0.0, {"limit_s": 200, "repeats": 100}, "ok"),
        (1e11, 0.02, {"limit_s": 12}, "ok"),  # the delay of a busy machine, whatever the size: 512 would be 10 s
        (1e11, 0.0, {"limit_s": 12, "free": 1e9}, "too-big"),
    ],
)
def test_what_ends_in_time_and_fits_is_tried(tmp_path, simulated, rate, delay_s, settings, status):
    slow = simulated(rate, delay_s)
    record = foreseen(tmp_path, slow, LARGE, **settings)
    assert record.status == status and slow.clock.now < settings["limit_s"]
    assert LARGE.shape not in slow.asked
    if "free" in settings:
        assert "1.2 GB; 1.0 GB are free" in record.reason and slow.asked == []


# Side by side ---------------------------------------------------------------------------------------------------------


def record(framework: str, backend: str, config: dict, seconds: float = 1.0, checksum: int = 7, **more) -> dict:
    def within_a_percent(value):
        return metric(value, 0.99 * value, 1.01 * value)

    metrics = {"kernel_s": within_a_percent(seconds), "flops_per_s": within_a_percent(1e9 / seconds)}
    metrics |= {"max_abs_error": metric(1e-6), "inputs_checksum": metric(checksum)}
    more = {"experiment": f"blas_{framework}", "metrics": metrics, "chip": "M2 Ultra", "data_origin": ""} | more
    precision = config.get("precision", "fp32")
    return test_roofline.record(config=config, framework=framework, backend=backend, precision=precision, **more)


CONFIG = {"operation": "matvec", "shape": "8x9", "precision": "fp16"}


def test_two_frameworks_are_laid_side_by_side():
    rows = [record("torch", "mps", CONFIG, 3.0), record("mlx", "mlx-gpu", CONFIG, 2.0)]
    table = side_by_side.side_by_side("blas", rows)
    (row,) = table.data
    assert row["same"] is True and row["ratio"] == pytest.approx(1.5)
    assert row["ratio_low"] == pytest.approx(1.5 * 0.99 / 1.01)
    (cells,) = (row.cells for row in table.rows)
    assert cells[:5] == ("GPU", "matvec", "8x9", "", "fp16")
    assert "3.00 s ± 1.0 %" in cells and "2.00 s ± 1.0 %" in cells and "the same" in cells


@pytest.mark.parametrize(
    ("second", "words"),
    [
        (record("mlx", "cpu", CONFIG, checksum=8), "other inputs"),
        (record("mlx", "cpu", CONFIG, status="too-big", reason="would take long"), "no pair of times"),
        (record("mlx", "cpu", CONFIG, status="mismatch", reason="[3] is 1"), "no pair of times"),
        (record("mlx", "mlx-gpu", CONFIG), "not run with MLX"),
        (record("mlx", "cpu", {**CONFIG, "shape": "9x9"}), "not run with MLX"),
        (record("mlx", "cpu", CONFIG, metrics={}), "not checked"),
    ],
)
def test_what_is_not_the_same_has_no_ratio(second, words):
    table = side_by_side.side_by_side("blas", [record("torch", "cpu", CONFIG), second])
    assert words in table.data[0]["remark"]
    assert all(row["ratio"] is None and not row["same"] for row in table.data)


@pytest.mark.parametrize(("here", "missing"), [("torch", "blas_mlx"), ("mlx", "blas_torch")])
def test_one_framework_alone_is_shown_and_the_other_named(here, missing):
    table = side_by_side.side_by_side("blas", [record(here, "cpu", CONFIG)])
    assert len(table.rows) == 1
    assert any(f"run {missing} into the same folder" in note for note in table.notes)
    both = side_by_side.side_by_side("blas", [])
    assert not both.rows and len([note for note in both.notes if "into the same folder" in note]) == 2


def test_one_table_of_two_frameworks_names_them():
    rows = [record("torch", "mps", CONFIG), record("mlx", "mlx-gpu", CONFIG)]
    names = [row.cells[0] for row in article.article_table("blas", rows).rows if row.kind == "measured"]
    assert names == ["M2 Ultra GPU, PyTorch", "M2 Ultra GPU, MLX"]
    (alone,) = [row.cells[0] for row in article.article_table("blas_mlx", rows[1:]).rows if row.kind == "measured"]
    assert alone == "M2 Ultra GPU"


def test_the_experiment_without_a_framework_reads_what_others_wrote(tmp_path):
    for framework in ("torch", "mlx"):
        journal = results_journal.Journal(tmp_path / f"blas_{framework}.jsonl")
        journal.end(record(framework, "cpu", CONFIG, article="001"))
    experiment = Report.of(declaration.of("blas"), Run(tmp_path))
    assert [one.framework for one in experiment.records] == ["torch", "mlx"]
    assert experiment.side_by_side().data[0]["same"] is True
    assert (tmp_path / "tables" / "blas-side-by-side.csv").read_text().count("\n") == 2
    assert not (tmp_path / "blas.jsonl").exists()


def test_what_lays_others_together_runs_behind_them(tmp_path):
    order = [notebook.name for notebook in notebooks.notebooks()]
    assert order.index("blas") > max(order.index("blas_torch"), order.index("blas_mlx"))
    folder = tmp_path / "notebooks" / "profiling_apple_silicon"
    folder.mkdir(parents=True)
    shutil.copy(FOLDER / "blas.ipynb", folder)
    with pytest.raises(PomologyError, match=r"^blas.ipynb: comes after 'blas_torch', and no notebook has this name$"):
        notebooks.notebooks(tmp_path / "notebooks")


# Claims ---------------------------------------------------------------------------------------------------------------


def everything(times: dict) -> list[dict]:
    """Records of every shape, from (framework, backend, operation, precision) -> seconds."""
    return [
        record(
            *(framework, backend, {"operation": operation, "shape": shape, "precision": precision} | gradient(wrt)),
            seconds,
        )
        for (framework, backend, operation, precision), seconds in times.items()
        for shape, wrt in WANTED[operation]
    ]


def gradient(wrt: str) -> dict:
    return {"wrt": wrt} if wrt else {}


def verdicts(times: dict) -> dict[str, str]:
    table = report_claims.claims_table(published.claims("001", "blas"), everything(times))
    return {row["id"]: row["here"] for row in table.data}


MPS, MLX, CUDA = ("torch", "mps"), ("mlx", "mlx-gpu"), ("torch", "cuda")
MAC = {
    **{(*MPS, "matmul", "fp32"): 1.0, (*MPS, "matmul", "fp16"): 0.97},
    **{(*MLX, "matmul", "fp32"): 0.9, (*MLX, "matmul", "fp16"): 0.72},
    **{(*MPS, "matvec", "fp32"): 2.0, (*MPS, "matvec", "fp16"): 1.0},
    **{(*MLX, "matvec", "fp32"): 1.9, (*MLX, "matvec", "fp16"): 1.0},
    **{(*MPS, "vjp", "fp32"): 3.0, (*MPS, "vjp", "fp16"): 1.5},
    **{(*MLX, "vjp", "fp32"): 2.0, (*MLX, "vjp", "fp16"): 1.0},
}
UNTOLD = articles_claims.CANNOT_BE_TOLD


def test_claims_have_verdicts_on_a_mac_with_both_frameworks():
    found = verdicts(MAC)
    assert [found[f"001-C{number}"] for number in (8, 10, 11, 12)] == [articles_claims.HOLDS] * 4
    assert found["001-C9"] == found["001-C13"] == UNTOLD  # need an NVIDIA GPU
    assert verdicts(MAC | {(*MPS, "matmul", "fp16"): 0.5})["001-C8"] == articles_claims.DOES_NOT_HOLD
    assert verdicts(MAC | {(*MLX, "vjp", "fp16"): 2.0})["001-C10"] == articles_claims.DOES_NOT_HOLD
    assert verdicts(MAC | {(*MPS, "vjp", "fp16"): 1.0})["001-C11"] == articles_claims.DOES_NOT_HOLD
    assert verdicts(MAC | {(*MPS, "matvec", "fp32"): 4.0})["001-C12"] == articles_claims.DOES_NOT_HOLD
    assert set(verdicts({key: value for key, value in MAC.items() if key[:2] == MPS}).values()) == {UNTOLD}


@pytest.mark.parametrize(("fp16_s", "verdict"), [(1.0, articles_claims.HOLDS), (4.0, articles_claims.DOES_NOT_HOLD)])
def test_what_is_said_of_cuda_is_tested_where_there_is_one(fp16_s, verdict):
    found = verdicts({(*CUDA, "vjp", "fp32"): 5.5, (*CUDA, "vjp", "fp16"): fp16_s})
    assert found.pop("001-C9") == verdict
    assert set(found.values()) == {UNTOLD}
    # A term that names no such backend means another machine than this one.
    look = report_claims.MeasuredLookup([record(*CUDA, CONFIG)])
    assert look("blas", "kernel_s", "rival", {"backend": "cuda"}).value == 1.0
    assert look("blas", "kernel_s", "rival", {}).value is None


def test_every_gpu_of_this_machine_is_asked_about_launches():
    def launch(framework, backend, cold_s, launch_s):
        times = {"launch_cold_s": cold_s, "launch_s": launch_s}
        metrics = {name: metric(value, 0.99 * value, 1.01 * value) for name, value in times.items()}
        return record(framework, backend, {}, experiment=f"kernel_launch_{framework}", metrics=metrics)

    claims = published.claims("001", "kernel_launch")
    rows = [launch("torch", "mps", 2.0, 1.0), launch("mlx", "mlx-gpu", 2.0, 1.0), launch("torch", "cpu", 1.0, 1.0)]
    first, second = report_claims.claims_table(claims, rows).data
    assert (first["id"], first["here"], second["here"]) == ("001-C6", articles_claims.HOLDS, UNTOLD)
    rows[1] = launch("mlx", "mlx-gpu", 0.5, 1.0)  # one of the two
    assert report_claims.claims_table(claims, rows).data[0]["here"] == articles_claims.DOES_NOT_HOLD
    # A CUDA device is not held against itself.
    cuda = report_claims.claims_table(claims, [launch("torch", "cuda", 2.0, 1.0)]).data
    assert [row["here"] for row in cuda] == [articles_claims.HOLDS, UNTOLD]


# The look at the machine ----------------------------------------------------------------------------------------------


def test_many_short_cases_share_a_look_at_the_machine(tmp_path, monkeypatch):
    looks = []
    state = {"power_source": "ac", "flags": ["busy"]}
    experiment = Experiment("blas_torch", article="001", devices="cpu", out=str(tmp_path))
    monkeypatch.setattr(snapshot, "conditions", lambda: (looks.append(1), state)[1])
    for case in experiment.cases(products.rows(["fp32", "fp16", "bf16"], matvec=["8x8"])):
        with case:
            case.metric("kernel_s", 1.0, "s")
    assert len(looks) == 1
    assert [one.flags for one in experiment.records] == [["busy"]] * 3
    experiment._looked = (experiment._looked[0] - 6, state)  # longer ago than it is good for
    experiment.conditions()
    assert len(looks) == 2
