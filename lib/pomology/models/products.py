"""Matrix products as article 001 times them: shapes, inputs, what they must give, and whether they can end in time.

Nothing here computes on a device: a notebook says how its framework multiplies. Its result is held against a reference
that needs no framework, before it is timed, so two that agree with it agree with each other.
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

from pomology import format
from pomology.errors import Mismatch, PomologyError, TooBig, TooSlow
from pomology.measure import calls as measure_calls
from pomology.measure import clock, epochs
from pomology.results.cases import LEAST_CALLS

OPERATIONS = {"matmul": 3, "matvec": 2, "vjp": 3}  # and how many lengths its shape has
# What a precision is called in every framework, and how many bits of a number are significant, the hidden one included.
PRECISIONS = {
    "fp32": ("float32", 24),
    "tf32": ("float32", 11),
    "fp16": ("float16", 11),
    "bf16": ("bfloat16", 8),
}
WARMUPS = 10  # calls before the timed ones, as in the article
DIVISORS = (8, 4, 2)  # of the smaller products by whose time one is foreseen
LEAST_FLOPS = 1e7  # of a product whose time tells anything about a larger one
TELLS_S = (
    0.1  # a shorter time may be that of a busy machine, which lets a program wait for some 20 ms
)
PERIOD = 1_000_003  # inputs repeat after so many numbers; a prime, so that no two rows are the same
FAR = 20  # below this share of the limit no larger one is tried
SAMPLED = (
    32  # rows and columns of each matrix that are compared; of a vector eight times as many numbers
)


@dataclass(frozen=True)
class Product:
    """One product. `shape` is that of its left operand, as `8x2000x2000`.

    matmul: a batch of square matrices times another such batch. matvec: a matrix times a vector. vjp: the gradient of
    a batch `a` of matrices times a square matrix `b`, for the operand `wrt`, `left` or `right`, where the result's
    gradient is `c`; the forward product is no part of it.
    """

    operation: str
    shape: str
    wrt: str = ""

    @classmethod
    def of(cls, config: dict) -> Product:
        return cls(config["operation"], config["shape"], config.get("wrt", ""))

    def __post_init__(self):
        if self.operation not in OPERATIONS or (self.wrt in ("left", "right")) != (
            self.operation == "vjp"
        ):
            raise PomologyError(
                f"operation {self.operation!r} {self.wrt}: one of {', '.join(OPERATIONS)}; vjp has wrt"
            )
        count = OPERATIONS[self.operation]
        if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", self.shape) or len(self.lengths) != count:
            raise PomologyError(
                f"{self.operation}: shape is {self.shape!r}; it must be {count} lengths, as 8x16x16"
            )
        if self.operation == "matmul" and self.lengths[1] != self.lengths[2]:
            raise PomologyError(f"matmul: shape is {self.shape!r}; its matrices must be square")

    @property
    def lengths(self) -> tuple[int, ...]:
        return tuple(map(int, self.shape.split("x")))

    @property
    def operands(self) -> dict[str, tuple[int, ...]]:
        """The shapes of `a`, `b` and, of a vjp, `c`."""
        left = self.lengths
        if self.operation == "vjp":
            return {"a": left, "b": (left[-1], left[-1]), "c": left}
        return {"a": left, "b": left if self.operation == "matmul" else left[1:]}

    @property
    def result(self) -> tuple[int, ...]:
        """The shape of what it gives."""
        if self.operation == "matvec":
            return self.lengths[:1]
        return self.operands["b"] if self.wrt == "right" else self.lengths

    @property
    def inner(self) -> int:
        """How many products are added up for a number of the result."""
        return self.lengths[0] * self.lengths[1] if self.wrt == "right" else self.lengths[-1]

    @property
    def flops(self) -> int:
        return 2 * math.prod(self.result) * self.inner

    def bytes(self, precision: str) -> int:
        """What must be read and written at the least: the operands that are used, and the result."""
        used = {"left": "bc", "right": "ac", "": "ab"}[self.wrt]
        numbers = math.prod(self.result) + sum(math.prod(self.operands[name]) for name in used)
        return numbers * (4 if precision.endswith("32") else 2)

    def smaller(self, divisor: int) -> Product:
        """The same operation with its lengths divided, that of a batch not."""
        lengths = [*self.lengths[:-2], *(max(1, length // divisor) for length in self.lengths[-2:])]
        return Product(self.operation, "x".join(map(str, lengths)), self.wrt)

    @functools.lru_cache(maxsize=1)  # noqa: B019  what is multiplied is also what the reference needs
    def inputs(self, precision: str, seed: int) -> dict[str, np.ndarray]:
        """The operands by name, as float32 arrays of numbers between -1 and 1 that the precision holds exactly."""
        blocks = _blocks(precision, seed)
        return {name: np.resize(blocks[name], shape) for name, shape in self.operands.items()}

    def sample(self, result: np.ndarray) -> np.ndarray:
        """Some rows and columns of every matrix of a result."""
        return result[(..., *np.ix_(*self._places))]

    @property
    def _places(self) -> list[np.ndarray]:
        """Which rows and columns are compared: spread evenly, the first and the last among them."""
        most = SAMPLED if len(self.result) > 1 else 8 * SAMPLED
        return [
            np.unique(np.linspace(0, end - 1, min(end, most)).astype(int))
            for end in self.result[-2:]
        ]

    def reference(self, inputs: dict[str, np.ndarray]) -> np.ndarray:
        """The same sample of what it must give, in float64."""
        a, b, c = (inputs.get(name) for name in "abc")
        rows, columns = self._places[0], self._places[-1]
        if self.operation == "matvec":
            left, right = a[rows], b
        elif self.wrt == "right":
            left, right = (
                a[..., rows].reshape(self.inner, -1).T,
                c[..., columns].reshape(self.inner, -1),
            )
        elif self.wrt == "left":
            left, right = c[:, rows], b[columns].T
        else:
            left, right = a[:, rows], b[..., columns]
        return left.astype(np.float64) @ right.astype(np.float64)

    def tolerance(self, precision: str, reference: np.ndarray) -> float:
        """The largest error that rounding explains, even if the sums are kept in the precision itself.

        With u the unit roundoff, each of K additions errs by up to u times the sum so far, by u |s| / sqrt(3) as a
        standard deviation, independently (Higham and Mary, SIAM J. Sci. Comput. 42, 2020). The sum after j products of
        random sign is about sqrt(j) / 3, and all errors together about u K / (3 sqrt(6)). Their tail is exponential,
        so 20 times that are allowed, which one number in a billion exceeds; and u times the result, for its own
        rounding. Half of the largest result is the most: who is further off has computed something else.
        """
        unit, largest = 2.0 ** -PRECISIONS[precision][1], float(np.abs(reference).max())
        return min(unit * (20 * self.inner / (3 * math.sqrt(6)) + largest), largest / 2)


def rows(precisions: Iterable[str], **shapes: Iterable[str]) -> list[dict]:
    """The settings of all cases: `rows(["fp32"], matmul=["8x16x16"], vjp=[...])`. Raises PomologyError if one is none.

    A vjp is there twice, once for each operand. Products of which nothing but the precision differs follow one another.
    """
    for precision in precisions:
        if precision not in PRECISIONS:
            raise PomologyError(
                f"precisions: {precision!r} is not known; one of {', '.join(PRECISIONS)} is"
            )
    configs = [
        {"operation": operation, "shape": shape} | wrt
        for operation, listed in shapes.items()
        for shape in listed
        for wrt in ([{"wrt": "left"}, {"wrt": "right"}] if operation == "vjp" else [{}])
    ]
    for config in configs:
        Product.of(config)  # or raises
    return [config | {"precision": precision} for config in configs for precision in precisions]


@functools.lru_cache(maxsize=4)
def _blocks(precision: str, seed: int) -> dict[str, np.ndarray]:
    """Of each operand the numbers that are repeated in it."""
    blocks = {}
    for number, name in enumerate("abc"):
        block = np.random.default_rng([seed, number]).uniform(-1, 1, PERIOD).astype(np.float32)
        if precision == "fp16":
            block = block.astype(np.float16).astype(np.float32)
        elif (
            precision == "bf16"
        ):  # NumPy has none: the upper half of a float32, rounded to nearest, ties to even
            bits = block.view(np.uint32)
            block = ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)
        blocks[name] = block
    return blocks


def checksum(product: Product, precision: str, seed: int) -> int:
    """A number that is the same for the same inputs, whichever framework they are given to."""
    blocks = (block.tobytes() for block in _blocks(precision, seed).values())
    return zlib.crc32(b"".join((repr((product, precision)).encode(), *blocks)))


def require_time(
    case: Any, product: Product, build: Callable, limit_s: float, repeats: int = 0
) -> None:
    """Raise TooBig if the product does not fit the free memory, TooSlow if it cannot be timed in `limit_s`.

    build: of (case, product), makes what is timed. repeats: timed calls; 0 is as few as have an interval. Smaller ones
    are tried, twice each, until one is slow enough to tell; large ones hardly ever run at a higher rate.
    """
    needed = 2 * product.bytes("fp32") + product.bytes(
        case.precision
    )  # on the host as float32, and on the device
    free = case.backend.free_memory()
    if needed > free:
        raise TooBig(f"needs {needed / 1e9:.1f} GB; {free / 1e9:.1f} GB are free")
    # The check, the first, warm-ups (one of what is slow), the timed ones.
    calls = 2 + WARMUPS + repeats if repeats else 3 + LEAST_CALLS
    once = {"warmup_calls": 0, "warmup_s": 0, "repeats": 1, "calls_per_block": 1}
    for divisor in DIVISORS:
        smaller = product.smaller(divisor)
        if smaller.flops < LEAST_FLOPS:
            continue
        found = measure_calls.measure(
            case.backend.dispatch(build(case, smaller)), case.backend.synchronize, **once
        )
        took, times = min(found.first_call_s, found.seconds.value), product.flops / smaller.flops
        if calls * times * took > limit_s and (took > TELLS_S or divisor == DIVISORS[-1]):
            needs = f"would take about {format.seconds(times * took)} a call, and {calls} calls are the least, in "
            known = f"{smaller.shape} took {format.seconds(took)}, and {product.shape} has {times:,.0f} times its"
            raise TooSlow(f"{needs}{format.seconds(limit_s)}: {known} operations")
        if calls * times * took < limit_s / FAR:
            break


def past_best(case: Any) -> bool:
    """Whether a square product of over 4096 rows need not be timed: of the smaller ones that this repeat has timed on
    this device in this precision, the largest was not the fastest by 2 %."""
    size = Product.of(case.config).lengths[-1]
    alike = case.backend.backend, case.precision, case["operation"], case.experiment.repeat
    rates = {
        Product.of(record.config).lengths[-1]: record.metrics["flops_per_s"].value
        for record in case.experiment.records
        if (record.backend, record.precision, record.config["operation"], record.repeat) == alike
        and "flops_per_s" in record.metrics
    }
    *before, last = [rates[rows] for rows in sorted(rates) if rows < size] or [0.0]
    return size > 4096 and last < 1.02 * max(before, default=0.0)


def check(case: Any, product: Product, seed: int, result: np.ndarray, dtype: str) -> None:
    """Hold a result against the reference, before it is timed; Mismatch ends the case.

    result: all of it, as an array. dtype: the framework's own name for the kind of its numbers, as `float16`.
    """
    wanted = PRECISIONS[case.precision][0]
    if dtype != wanted:
        raise Mismatch(
            f"gives {dtype} where {wanted} was asked for: another product than the one to be timed"
        )
    if result.shape != product.result:
        raise Mismatch(f"gives the shape {result.shape}; it must be {product.result}")
    reference = product.reference(product.inputs(case.precision, seed))
    tolerance = product.tolerance(case.precision, reference)
    case.metric("inputs_checksum", checksum(product, case.precision, seed), "")
    case.metric("tolerance", tolerance, "", n=reference.size)
    case.check(
        product.sample(result).astype(np.float64), reference, tolerance, "against the reference"
    )
    case.note(f"{dtype} of {'x'.join(map(str, product.result))}")


def measure(
    case: Any, product: Product, multiply: Callable[[], Any], budget_s: float, repeats: int = 0
) -> None:
    """Time a product and put what follows from it into the record.

    kernel_s: the median of calls that are each waited for, as in the article's likely source. kernel_stream_s: the mean
    of calls, as the article has it; on a GPU of calls among others that are waited for once. repeats: timed calls
    behind 10 that are not; 0 is as many as a narrow interval needs in `budget_s`.
    """
    function, synchronize = case.backend.dispatch(multiply), case.backend.synchronize
    options = {"budget_s": budget_s, "limit_s": case.experiment.limit_s, "least_calls": LEAST_CALLS}
    if repeats:
        options = {"budget_s": math.inf, "repeats": repeats, "warmup_calls": WARMUPS, "warmup_s": 0}
    case.mark()
    found = measure_calls.measure(function, synchronize, calls_per_block=1, **options)
    case.kernel("kernel_s", found)
    case.metric("throughput", epochs.rate(1, found.seconds, "products/s"))
    case.metric("flops_per_s", epochs.rate(product.flops, found.seconds, "FLOP/s"))
    case.metric("bytes_per_s", epochs.rate(product.bytes(case.precision), found.seconds, "B/s"))
    if case.backend.kind == "gpu":
        stream = measure_calls.measure(function, synchronize, budget_s=budget_s)
        case.kernel("kernel_stream_s", stream._replace(seconds=clock.interval(list(stream.blocks))))
    else:  # a processor works while it is asked: these are the same calls
        case.metric("kernel_stream_s", clock.interval(list(found.blocks)))
