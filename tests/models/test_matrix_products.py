"""Matrix products: counts by hand, references computed another way, and wrong products.

The products that are timed are those of the notebook for PyTorch, taken from its own cell.
"""

import math

import fakes
import numpy as np
import pytest
import torch

from pomology.experiment.experiment import Experiment
from pomology.models import matrix_products
from pomology.models.matrix_products import Product

pytestmark = pytest.mark.usefixtures("quiet_machine")

SQUARE = Product("matmul", "3x24x24")
LEFT, RIGHT = (Product("vjp", "3x20x24", wrt) for wrt in ("left", "right"))
SMALL = [SQUARE, Product("matvec", "40x56"), Product("matvec", "48x48"), LEFT, RIGHT]


@pytest.fixture(scope="module")
def notebook() -> dict:
    """What the notebook for PyTorch defines in the cell that multiplies."""
    scope = {"torch": torch, "seed": 1, "framework": "torch"}
    (source,) = [each for each in fakes.cells("blas") if 'if framework == "torch":' in each]
    exec(compile(source, "blas.ipynb", "exec"), scope)
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


VJP_NUMBERS = 2 * 8 * 1024 * 512 + 512 * 512  # that a vector-Jacobian product reads and writes


@pytest.mark.parametrize(
    ("product", "result", "inner", "flops", "numbers"),
    [
        (Product("matmul", "8x2000x2000"), (8, 2000, 2000), 2000, 128e9, 3 * 8 * 2000 * 2000),
        (Product("matvec", "40x110"), (40,), 110, 2 * 40 * 110, 40 * 110 + 40 + 110),
        (Product("vjp", "8x1024x512", "left"), (8, 1024, 512), 512, 2**32, VJP_NUMBERS),
        (Product("vjp", "8x1024x512", "right"), (512, 512), 8192, 2**32, VJP_NUMBERS),
    ],
)
def test_what_a_product_costs(product, result, inner, flops, numbers):
    assert (product.result, product.inner, product.flops) == (result, inner, flops)
    assert product.bytes("fp32") == 4 * numbers
    assert product.bytes("fp16") == product.bytes("bf16") == 2 * numbers


@pytest.mark.parametrize(
    "product", [*SMALL, Product("matmul", "2x100x100"), Product("matvec", "700x90")]
)
def test_the_reference_is_a_sample_of_the_whole(product):
    inputs = product.inputs("fp32", 3)
    full = whole(product, inputs)
    assert full.shape == product.result
    sample = product.sample(full)
    assert np.allclose(sample, product.reference(inputs), rtol=0, atol=1e-12)
    assert sample.size >= min(full.size, 256)
    assert sample.flat[0] == full.flat[0] and sample.flat[-1] == full.flat[-1]


@pytest.mark.parametrize(
    ("precision", "kind", "inner"), [("fp32", np.float32, 128), ("fp16", np.float16, 2000)]
)
def test_a_right_product_is_accepted_however_its_sums_are_kept(precision, kind, inner):
    """In the precision itself, one addition after another: as bad as it gets."""
    product = Product("vjp", f"1x64x{inner}", "left")
    inputs = product.inputs(precision, 5)
    a = inputs["c"][0].astype(kind)
    b = inputs["b"].T.astype(kind)[:, :50]
    total = np.zeros((64, 50), kind)
    for place in range(inner):
        total = (total + (a[:, place, None] * b[None, place]).astype(kind)).astype(kind)
    exact = whole(product, inputs)[0][:, :50]
    tolerance = product.tolerance(precision, exact)
    # Not by a margin that lets everything through.
    assert tolerance / 50 < np.abs(total - exact).max() < tolerance


def run(folder, product, precision, notebook, repeats=0, kind="cpu"):
    """Return the record of a case as the notebook runs it. kind: as what the CPU is timed."""
    experiment = Experiment("blas", article="001", devices="cpu", out=str(folder))
    config = {"operation": product.operation, "shape": product.shape, "wrt": product.wrt}
    (case,) = experiment.cases([config | {"precision": precision}])
    with case:
        multiply = notebook["build"](case, product)
        matrix_products.check(case, product, 1, *notebook["numbers"](multiply()))
        vars(case.backend).update(kind=kind, synchronize=lambda: None)
        matrix_products.measure(case, product, multiply, 0.01, repeats)
        case.backend.kind = "cpu"
    return experiment.records[0]


@pytest.mark.parametrize(
    ("product", "precision"),
    list(zip(SMALL, ("bf16", "fp16", "fp32", "fp16", "bf16"), strict=True)),
)
def test_a_right_product_is_timed(tmp_path, notebook, product, precision):
    record = run(tmp_path, product, precision, notebook)
    assert (record.status, record.precision, record.reason) == ("ok", precision, None)
    metrics = {name: metric.value for name, metric in record.metrics.items()}
    seconds = metrics["kernel_s"]
    assert metrics["throughput"] == pytest.approx(1 / seconds)
    assert metrics["flops_per_s"] == pytest.approx(product.flops / seconds)
    assert metrics["bytes_per_s"] == pytest.approx(product.bytes(precision) / seconds)
    assert 0 <= metrics["max_abs_error"] <= metrics["tolerance"]
    assert metrics["inputs_checksum"] == matrix_products.checksum(product, precision, 1)
    # Every call is waited for; a processor works while it is asked: the mean of the same calls.
    counts, times_s = zip(*record.blocks["kernel_s"]["steady"], strict=True)
    assert set(counts) == {1}
    assert metrics["kernel_stream_s"] == pytest.approx(np.mean(times_s), rel=1e-4)


FAULTS = {
    "a sum over the wrong axis": (SMALL[2], "fp32", lambda a, b, c: a.T @ b, "differs"),
    "another shape": (RIGHT, "fp32", lambda a, b, c: (a.mT @ c).sum(1), "it must be (24, 24)"),
    "fp32 for fp16": (SQUARE, "fp16", lambda a, b, c: a.float() @ b.float(), "gives float32"),
    "fp16 for fp32": (SQUARE, "fp32", lambda a, b, c: (a.half() @ b.half()).float(), "differs"),
    "no numbers": (SQUARE, "fp16", lambda a, b, c: a * math.nan, "not finite"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_product_ends_as_mismatch_and_is_never_timed(tmp_path, notebook, fault):
    product, precision, wrong, words = FAULTS[fault]

    def build(case, product):
        kind = notebook["KINDS"][case.precision]
        arrays = product.inputs(case.precision, 1)
        a, b, c = (torch.tensor(arrays.get(name, 0.0)).to(kind) for name in "abc")
        return lambda: wrong(a, b, c)

    record = run(tmp_path, product, precision, notebook | {"build": build})
    assert record.status == "mismatch" and words in record.reason, record.reason
    assert not {"kernel_s", "throughput", "flops_per_s"} & set(record.metrics)
    if words == "differs":
        assert record.metrics["max_abs_error"].value > record.metrics["tolerance"].value
