"""A training step gives on a GPU what it gives on the CPU: verified before it is timed.

A kernel of a GPU can be wrong at one shape and right at all others (pytorch/pytorch issue 195163).
So both devices take a case's step from the same weights, inputs and random numbers, and gradients
are compared by their norms. Rounding can change some by more than the tolerance, as at the bends of
ReLUs: then the CPU takes the step again, with weights changed by about a rounding.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from pomology.errors import Mismatch
from pomology.results import cases

# Share of a norm. Sums of a million numbers in fp32 differ by 0.00002; a number is rounded by
# 0.0005 in TF32 and fp16, by 0.004 in bf16; the errors of some tens of operators add up.
TOLERANCE = {"fp32": 5e-4, "tf32": 1e-2, "fp16": 3e-2, "bf16": 6e-2}
# By how much weights are changed; in fp32 by the error of a sum of a thousand numbers.
ROUNDING = {"fp32": 2.0**-19, "tf32": 2.0**-11, "fp16": 2.0**-11, "bf16": 2.0**-8}
TIMES = 12  # so much of what that changes is allowed
SMALL = 0.3  # of the largest gradient: a smaller one may be rounding alone
SEEDS = 3  # sets of inputs: rounding turns a gradient with one of them, a fault with all
MOST_S = 3.0  # of the CPU for a step


def step(
    case: Any,
    model: Any,
    one_step: Callable | None,
    *optimizers: Any,
    batch_size: int = 0,
    twin: Callable | None = None,
) -> None:
    """Verify a case's step on a GPU. On the CPU nothing is done: it is what is compared with.

    one_step: takes a model and a batch size, draws inputs, and goes forward and backward. It
    returns its loss, or what it computes; in MLX its loss and gradients. In Keras it is None: the
    step of a classifier, whose copy on the CPU `twin` builds. optimizers: of a model in PyTorch:
    their updates are compared, too. batch_size: by default the case's setting. Where a step takes
    the CPU longer than `MOST_S` or the budget, fewer samples are verified, which a note says.
    Nothing of the model is changed. Raises Mismatch, which ends the case.
    """
    if case.backend.kind == "cpu":
        return
    began_s = time.perf_counter()
    batch_size = batch_size or case["batch_size"]
    limit_s = min(MOST_S, case.experiment.budget_s)
    both = both_devices(case, model, one_step, optimizers, twin)
    try:
        size, larger = 0, min(2, batch_size)  # a batch normalisation needs two
        while larger == batch_size > size or larger >= 2 * size:
            size = larger
            larger = min(batch_size, int(size * limit_s / _agree(case, both, size)))
        if optimizers:
            share, words = _worst(TOLERANCE["fp32"], *both.updates())
            if share > 1:
                raise Mismatch(f"{words}, from equal gradients")
    finally:
        both.restore()
        case.backend.reset_peak_memory()
    case.note("verified against the CPU before it was timed: its kernels were compiled by then")
    if size < batch_size:
        case.note(f"verified with {size} of the {batch_size:,} samples of a step", "unproved")
    case.metric("proof_s", time.perf_counter() - began_s, "s")


def check(
    case: Any, values: Any, reference: Any, tolerance: float, what: str, relative: bool = False
) -> None:
    """Record as `max_abs_error` how far two computations of a case differ that should agree.

    values, reference, tolerance, relative: as in `difference`. Raises Mismatch, which ends the
    case.
    """
    error, complaint = difference(values, reference, tolerance, relative)
    if error is not None:
        case.metric("max_abs_error", error)
    if complaint is not None:
        raise Mismatch(f"{what}: {complaint}")


def both_devices(
    case: Any, model: Any, one_step: Callable | None, optimizers: tuple, twin: Callable | None
) -> Any:
    """Return a model on both devices, with `gradients` and `restore`; one framework a process."""
    if case.backend.framework == "torch":
        from pomology.models import verify_torch

        return verify_torch.BothDevices(case, model, one_step, optimizers)
    if case.backend.framework == "mlx":
        from pomology.models import verify_mlx

        return verify_mlx.BothDevices(case, model, one_step)
    from pomology.models import verify_keras

    return verify_keras.BothDevices(case, model, twin)


def _agree(case: Any, both: Any, size: int) -> float:
    """Return the seconds of the CPU's step. Raises Mismatch where all sets of inputs differ."""
    precision = cases.precision(case)
    if precision == "fp32" and case.backend.tf32 and case.config.get("tf32") != "off":
        precision = "tf32"
    for seed in range(SEEDS):
        device = both.gradients(size, seed)
        began_s = time.perf_counter()
        cpu = both.gradients(size, seed, on_cpu=True)
        cpu_s = time.perf_counter() - began_s
        worst, words = _worst(TOLERANCE[precision], device, cpu)
        if worst > 1:
            rounded = both.gradients(size, seed, on_cpu=True, change=ROUNDING[precision])
            worst, words = _worst(TOLERANCE[precision], device, cpu, rounded)
        if worst <= 1:
            return cpu_s
    raise Mismatch(f"{words}, in a step of {size} on the {case.backend.backend}")


def _worst(
    tolerance: float, device: dict, cpu: dict, rounded: dict | None = None
) -> tuple[float, str]:
    """Return how many times what is allowed the largest difference is, and which one that is.

    rounded: the CPU's arrays where weights were changed by about a rounding.
    """
    norms = {name: float(np.linalg.norm(array)) for name, array in cpu.items()}
    sizes = {name: math.sqrt(array.size) for name, array in cpu.items()}
    gradients = [name for name in cpu if name.startswith("the gradient")]
    least = SMALL * max((norms[name] / sizes[name] for name in gradients), default=0.0)
    worst = 0.0, ""
    for name, array in cpu.items():
        difference = float(np.linalg.norm(device[name] - array))
        allowed = tolerance * max(norms[name], least * sizes[name])
        if rounded:
            allowed += TIMES * float(np.linalg.norm(rounded[name] - array))
        share = difference / max(allowed, 1e-30)
        words = (
            f"{name} is {difference:.2g} from the CPU's, whose norm is {norms[name]:.2g}; "
            f"{allowed:.2g} is allowed"
        )
        if math.isfinite(norms[name]) and not math.isfinite(difference):
            share, words = math.inf, f"{name} is not finite"
        worst = max(worst, (share, words))
    return worst


def difference(
    values: Any, reference: Any, tolerance: float, relative: bool = False
) -> tuple[float | None, str | None]:
    """Return the largest absolute difference of arrays, or of dicts of them, and what is wrong.

    tolerance: the largest absolute difference; with `relative`, as a share of each reference
    array's largest element. The difference is None where names, shapes or types of elements are
    others, and where values are not finite.
    """
    if not isinstance(reference, dict):
        values, reference = {"": values}, {"": reference}
    if values.keys() != reference.keys():
        return None, f"gives {', '.join(values)}; the reference gives {', '.join(reference)}"
    largest, complaint = 0.0, None
    for name in reference:
        value, expected = _array(values[name]), _array(reference[name])
        label = f"{name}: " if name else ""
        if (value.shape, value.dtype) != (expected.shape, expected.dtype):
            found = f"{value.dtype} of shape {value.shape}"
            wanted = f"{expected.dtype} of shape {expected.shape}"
            return None, f"{label}{found}; the reference is {wanted}"
        if not (np.isfinite(value).all() and np.isfinite(expected).all()):
            return None, f"{label}not finite"
        exact = expected.astype(np.float64)
        error = float(np.abs(value.astype(np.float64) - exact).max(initial=0.0))
        allowed = tolerance * (float(np.abs(exact).max(initial=0.0)) if relative else 1.0)
        if error > allowed and complaint is None:
            complaint = f"{label}up to {error:.2g} apart, where {allowed:.2g} is allowed"
        largest = max(largest, error)
    return largest, complaint


def _array(values: Any) -> np.ndarray:
    return np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
