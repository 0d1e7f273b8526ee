"""Matrix multiplications: shapes, inputs, verification and timing.

The notebook `blas` itself multiplies, in PyTorch or MLX. Every result is compared with a NumPy
reference before it is timed. Two frameworks that agree with it agree with each other.
"""

from __future__ import annotations

import functools
import math
import re
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from pomology.errors import Mismatch, PomologyError
from pomology.measure import calls as measure_calls
from pomology.measure import clock, epochs
from pomology.models import verify
from pomology.results.cases import LEAST_CALLS

LENGTHS = {"matmul": 3, "matvec": 2, "vjp": 3}  # dimensions of an operation's shape
# Data type, and significant bits including the implicit one.
PRECISIONS = {
    "fp32": ("float32", 24),
    "tf32": ("float32", 11),
    "fp16": ("float16", 11),
    "bf16": ("bfloat16", 8),
}
WARMUPS = 10  # warm-up calls, as in Feng et al. 2025
PERIOD = 1_000_003  # inputs repeat after so many values; a prime, so that no two rows are equal
SAMPLED = 32  # rows and columns of a matrix that are compared; 8 times as many of a vector


@dataclass(frozen=True)
class Product:
    """One multiplication; `shape` is that of its left operand, for example `8x2000x2000`.

    matmul: a batch of square matrices times another such batch. matvec: a matrix times a vector.
    vjp: the gradient of `a @ b`, a batch `a` times a square matrix `b`, for the operand `wrt`
    (`left` or `right`), given the gradient `c` of the result; without the forward pass. Raises
    PomologyError for another operation or shape.
    """

    operation: str
    shape: str
    wrt: str = ""

    @classmethod
    def of(cls, config: dict) -> Product:
        """Return the product of a case. config: its settings."""
        return cls(config["operation"], config["shape"], config.get("wrt", ""))

    def __post_init__(self):
        is_gradient = self.wrt in ("left", "right")
        if self.operation not in LENGTHS or is_gradient != (self.operation == "vjp"):
            allowed = ", ".join(LENGTHS)
            raise PomologyError(f"operation {self.operation!r} {self.wrt}: one of {allowed}")
        count = LENGTHS[self.operation]
        if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", self.shape) or len(self.lengths) != count:
            form = f"it must be {count} lengths, as 8x16x16"
            raise PomologyError(f"{self.operation}: shape is {self.shape!r}; {form}")
        if self.operation == "matmul" and self.lengths[1] != self.lengths[2]:
            raise PomologyError(f"matmul: shape is {self.shape!r}; its matrices must be square")

    @property
    def lengths(self) -> tuple[int, ...]:
        """The shape as numbers."""
        return tuple(map(int, self.shape.split("x")))

    @property
    def operands(self) -> dict[str, tuple[int, ...]]:
        """Shapes of `a`, `b` and, for a vjp, `c`."""
        left = self.lengths
        if self.operation == "vjp":
            return {"a": left, "b": (left[-1], left[-1]), "c": left}
        return {"a": left, "b": left if self.operation == "matmul" else left[1:]}

    @property
    def result(self) -> tuple[int, ...]:
        """Shape of the result."""
        if self.operation == "matvec":
            return self.lengths[:1]
        return self.operands["b"] if self.wrt == "right" else self.lengths

    @property
    def inner(self) -> int:
        """Number of terms in the sum of each element of the result."""
        return self.lengths[0] * self.lengths[1] if self.wrt == "right" else self.lengths[-1]

    @property
    def flops(self) -> int:
        """Operations: a multiplication and an addition for each term of each element."""
        return 2 * math.prod(self.result) * self.inner

    def bytes(self, precision: str) -> int:
        """Return the least bytes that are read and written: the used operands and the result."""
        used = {"left": "bc", "right": "ac", "": "ab"}[self.wrt]
        numbers = math.prod(self.result) + sum(math.prod(self.operands[name]) for name in used)
        return numbers * (4 if precision.endswith("32") else 2)

    def inputs(self, precision: str, seed: int) -> dict[str, np.ndarray]:
        """Return operands by name: float32 from -1 to 1 that the precision represents exactly."""
        numbers = _numbers(precision, seed)
        return {name: np.resize(numbers[name], shape) for name, shape in self.operands.items()}

    def sample(self, result: np.ndarray) -> np.ndarray:
        """Return some rows and columns of every matrix of a result."""
        return result[(..., *np.ix_(*self._places))]

    @property
    def _places(self) -> list[np.ndarray]:
        """Compared rows and columns: evenly spaced, with the first and the last."""
        most = SAMPLED if len(self.result) > 1 else 8 * SAMPLED
        spread = [np.linspace(0, size - 1, min(size, most)) for size in self.result[-2:]]
        return [np.unique(places.astype(int)) for places in spread]

    def reference(self, inputs: dict[str, np.ndarray]) -> np.ndarray:
        """Return the same sample of the exact result, in float64."""
        a, b, c = (inputs.get(name) for name in "abc")
        rows, columns = self._places[0], self._places[-1]
        if self.operation == "matvec":
            left, right = a[rows], b
        elif self.wrt == "right":
            left = a[..., rows].reshape(self.inner, -1).T
            right = c[..., columns].reshape(self.inner, -1)
        elif self.wrt == "left":
            left, right = c[:, rows], b[columns].T
        else:
            left, right = a[:, rows], b[..., columns]
        return left.astype(np.float64) @ right.astype(np.float64)

    def tolerance(self, precision: str, reference: np.ndarray) -> float:
        """Return the largest error that rounding explains, even with sums in the precision itself.

        With u the unit roundoff, each of K additions errs by up to u times the sum so far, by
        u |s| / sqrt(3) as a standard deviation, independently (Higham and Mary, SIAM J. Sci.
        Comput. 42, 2020). The sum after j terms of random sign is about sqrt(j) / 3, and all
        errors together about u K / (3 sqrt(6)). Their tail is exponential, so 20 times that is
        allowed, which one element in a billion exceeds. The rounding of the result adds u times
        its largest element. Half of that element is the limit: beyond it the result is wrong.
        """
        unit = 2.0 ** -PRECISIONS[precision][1]
        largest = float(np.abs(reference).max())
        return min(unit * (20 * self.inner / (3 * math.sqrt(6)) + largest), largest / 2)


def rows(precisions: Iterable[str], **shapes: Iterable[str]) -> list[dict]:
    """Return the settings of all cases: `rows(["fp32"], matmul=["8x16x16"], vjp=[...])`.

    A vjp is listed twice, once for each operand. Cases that differ in precision alone follow one
    another. Raises PomologyError for an unknown precision or shape.
    """
    for precision in precisions:
        if precision not in PRECISIONS:
            names = ", ".join(PRECISIONS)
            raise PomologyError(f"precisions: {precision!r} is not known; one of {names} is")
    configs = []
    for operation, listed in shapes.items():
        for shape in listed:
            config = {"operation": operation, "shape": shape}
            sides = ("left", "right") if operation == "vjp" else ()
            configs += [config | {"wrt": side} for side in sides] or [config]
    for config in configs:
        Product.of(config)  # or raises
    return [config | {"precision": precision} for config in configs for precision in precisions]


@functools.lru_cache(maxsize=4)
def _numbers(precision: str, seed: int) -> dict[str, np.ndarray]:
    """Return the random values that each operand repeats."""
    numbers = {}
    for index, name in enumerate("abc"):
        drawn = np.random.default_rng([seed, index]).uniform(-1, 1, PERIOD).astype(np.float32)
        if precision == "fp16":
            drawn = drawn.astype(np.float16).astype(np.float32)
        elif precision == "bf16":
            # NumPy has no bf16: take the upper half of a float32, rounded to nearest, ties to even.
            bits = drawn.view(np.uint32)
            bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
            drawn = bits.view(np.float32)
        numbers[name] = drawn
    return numbers


def checksum(product: Product, precision: str, seed: int) -> int:
    """Return a checksum of the inputs that is equal in all frameworks."""
    numbers = [numbers.tobytes() for numbers in _numbers(precision, seed).values()]
    return zlib.crc32(b"".join([repr((product, precision)).encode(), *numbers]))


def check(case: Any, product: Product, seed: int, result: np.ndarray, dtype: str) -> None:
    """Compare a result with the reference before it is timed; raise Mismatch if it is wrong.

    Args:
        result: the whole result, as an array.
        dtype: the framework's name of its data type, for example `float16`.
    """
    expected = PRECISIONS[case.precision][0]
    if dtype != expected:
        raise Mismatch(f"gives {dtype} instead of {expected}")
    if result.shape != product.result:
        raise Mismatch(f"gives the shape {result.shape}; it must be {product.result}")
    reference = product.reference(product.inputs(case.precision, seed))
    tolerance = product.tolerance(case.precision, reference)
    case.metric("inputs_checksum", checksum(product, case.precision, seed), "")
    case.metric("tolerance", tolerance, "", n=reference.size)
    values = product.sample(result).astype(np.float64)
    verify.check(case, values, reference, tolerance, "against the reference")
    case.note(f"{dtype} of {'x'.join(map(str, product.result))}")


def measure(
    case: Any, product: Product, multiply: Callable[[], Any], budget_s: float, repeats: int = 0
) -> None:
    """Time a multiplication and record its times and rates.

    kernel_s is the median of calls that are each waited for, as in the article's likely source.
    kernel_stream_s is the mean, as in the article; on a GPU many calls share one synchronization.

    Args:
        repeats: timed calls after 10 warm-up calls; 0 is as many as a narrow interval needs.
    """
    function = case.backend.dispatch(multiply)
    synchronize = case.backend.synchronize
    options = {"budget_s": budget_s, "limit_s": case.experiment.limit_s, "least_calls": LEAST_CALLS}
    if repeats:
        options = {"budget_s": math.inf, "repeats": repeats, "warmup_calls": WARMUPS, "warmup_s": 0}
    case.watch()
    timed = measure_calls.measure(function, synchronize, calls_per_block=1, **options)
    case.kernel("kernel_s", timed)
    case.metric("throughput", epochs.rate(1, timed.seconds, "products/s"))
    case.metric("flops_per_s", epochs.rate(product.flops, timed.seconds, "FLOP/s"))
    case.metric("bytes_per_s", epochs.rate(product.bytes(case.precision), timed.seconds, "B/s"))
    if case.backend.kind == "gpu":
        stream = measure_calls.measure(function, synchronize, budget_s=budget_s)
        case.kernel("kernel_stream_s", stream._replace(seconds=clock.interval(list(stream.blocks))))
    else:  # a call on a CPU returns when it has finished: the same calls
        case.metric("kernel_stream_s", clock.interval(list(timed.blocks)))
