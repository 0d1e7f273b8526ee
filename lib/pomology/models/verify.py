"""Verification of a GPU's training step against the CPU, before its timing and after it.

A GPU kernel can be wrong at a single shape (pytorch/pytorch issue 195163), now and then, or after
many calls. Both devices therefore run a case's step from the same weights, inputs and random
numbers, and gradients are compared by the norm of their difference. Rounding can change some
gradients by more than the tolerance, for example at a ReLU's sign change. The CPU then repeats the
step with weights changed by about a rounding error.
"""

import functools
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from pomology.errors import Mismatch
from pomology.results import cases

# Share of a norm. Sums of a million fp32 values differ by 0.00002. A value is rounded by 0.0005 in
# TF32 and fp16, by 0.004 in bf16. Errors of some tens of operators add up.
TOLERANCE = {"fp32": 5e-4, "tf32": 1e-2, "fp16": 3e-2, "bf16": 6e-2}
# Relative change of weights; in fp32 the error of a sum of a thousand values.
ROUNDING = {"fp32": 2.0**-19, "tf32": 2.0**-11, "fp16": 2.0**-11, "bf16": 2.0**-8}
ROUNDING_FACTOR = 12  # allowed multiple of the difference that this change makes
NEGLIGIBLE = 0.3  # share of the largest gradient: smaller ones may be rounding errors alone
SEEDS = 3  # sets of inputs: rounding exceeds the tolerance with some of them, a fault with all
UPDATES = 2  # of an optimizer: the second one reads the state that the first one wrote
CLEAR = 2  # multiple of the allowed difference that rounding in another order does not explain
MAX_CPU_S = 3.0  # for a step
# After the timing, up to AGAIN_STEPS steps are verified within AGAIN_S seconds, or within
# AGAIN_SHARE of the case's time if that is longer.
AGAIN_S = 0.5
AGAIN_SHARE = 0.03
AGAIN_STEPS = 64


def step(
    case: Any,
    model: Any,
    one_step: Callable | None,
    *optimizers: Any,
    batch_size: int = 0,
    clip: float = 0.0,
    twin: Callable | None = None,
) -> None:
    """Verify a case's step on a GPU against the CPU, before its timing and after it.

    one_step: function of a model and a batch size that draws inputs and runs a forward and backward
    pass. It returns its loss or output; in MLX its loss and gradients. In Keras it is None, the
    model is a classifier, and `twin` builds its copy on the CPU. optimizers: their updates are also
    compared; in Keras these are names. clip: the norm to which gradients are clipped, in PyTorch.
    batch_size: by default the case's setting. If a step takes the CPU longer than `MAX_CPU_S` or
    the budget, fewer samples are verified, with a note. The model remains unchanged. Nothing
    happens for a case on the CPU. Raises Mismatch, which ends the case.
    """
    if case.backend.kind == "cpu":
        return
    began_s = time.perf_counter()
    batch_size = batch_size or case["batch_size"]
    limit_s = min(MAX_CPU_S, case.experiment.budget_s)
    both = both_devices(case, model, one_step, optimizers, clip, twin)
    with both:
        size, larger = 0, min(2, batch_size)  # batch normalization needs two samples
        while larger == batch_size > size or larger >= 2 * size:
            size = larger
            cpu_s = _verify_gradients(case, both, size)
            larger = min(batch_size, int(size * limit_s / cpu_s))
        _verify_updates(both)
    case.backend.reset_peak_memory()
    case.note("verified against the CPU before it was timed, so its kernels were already compiled")
    if size < batch_size:
        case.note(f"verified with {size} of the {batch_size:,} samples of a step", "unproved")
    unverified = sorted(both.unverified)
    if not optimizers:
        unverified.append("the update of the weights")
    if unverified:
        case.note(f"not verified: {', '.join(unverified)}")
    proof_s = time.perf_counter() - began_s
    case.metric("proof_s", proof_s, "s")
    case.at_end(functools.partial(_verify_again, case, both, size, cpu_s / size, proof_s))


def _verify_again(
    case: Any, both: Any, most: int, sample_s: float, proof_s: float, elapsed_s: float
) -> None:
    """Verify steps of the trained model, with the optimizers' first updates.

    They show what goes wrong now and then, or after many calls. The number of samples doubles while
    a step is quick. Where a step takes the CPU too long, the device repeats one and is compared
    with itself. most: samples of a step, at most. sample_s: the CPU's seconds per sample. proof_s:
    seconds of the first verification. elapsed_s: seconds of the case so far. Raises Mismatch.
    """
    began_s = time.perf_counter()
    limit_s = AGAIN_SHARE * elapsed_s
    if case.experiment.profile != "smoke":
        limit_s = max(AGAIN_S, limit_s)
    end_s = began_s + limit_s
    size = min(2, most)
    look_s = size * sample_s
    steps = 0
    with both:
        while steps < AGAIN_STEPS and time.perf_counter() + look_s < end_s:
            look_began_s = time.perf_counter()
            _verify_gradients(case, both, size, first_seed=SEEDS * steps)
            if not steps:
                _verify_updates(both)
            steps += 1
            look_s = time.perf_counter() - look_began_s
            if look_s < AGAIN_S / AGAIN_STEPS:
                size = min(2 * size, most)
        if not steps:
            _verify_repetition(case, both, size)
    against = f"in {steps} steps against the CPU" if steps else "by repeating a step"
    case.note(f"verified after the timing {against}")
    case.metric("proof_s", proof_s + time.perf_counter() - began_s, "s")


def words(vocabulary: int, *shape: int) -> Any:
    """Return random words in PyTorch, of which about a quarter repeat their neighbour.

    Gradients of an embedding can be wrong for repeated words only.
    """
    import torch

    drawn = torch.randint(vocabulary, shape)
    return torch.where(torch.randint(2, shape) > 0, drawn, drawn.roll(1, -1))


def check(
    case: Any, values: Any, reference: Any, tolerance: float, what: str, relative: bool = False
) -> None:
    """Compare a case's values with a reference; record the largest error as `max_abs_error`.

    Arguments are those of `difference`. Raises Mismatch, which ends the case.
    """
    error, complaint = difference(values, reference, tolerance, relative)
    if error is not None:
        case.metric("max_abs_error", error)
    if complaint is not None:
        raise Mismatch(f"{what}: {complaint}")


def both_devices(
    case: Any,
    model: Any,
    one_step: Callable | None,
    optimizers: tuple,
    clip: float,
    twin: Callable | None,
) -> Any:
    """Return the case's model, in a `with` block on both devices: `gradients` and `updated`."""
    if case.backend.framework == "torch":
        from pomology.models import verify_torch

        return verify_torch.BothDevices(case, model, one_step, optimizers, clip)
    if case.backend.framework == "mlx":
        from pomology.models import verify_mlx

        return verify_mlx.BothDevices(case, model, one_step, optimizers)
    from pomology.models import verify_keras

    return verify_keras.BothDevices(case, model, optimizers, twin)


def _verify_gradients(case: Any, both: Any, size: int, first_seed: int = 0) -> float:
    """Return the seconds of the CPU's step.

    Raises Mismatch if all `SEEDS` sets of inputs differ, or if the device repeats a step that
    differs with another result.
    """
    precision = _precision(case)
    tolerance = TOLERANCE[precision]
    for seed in range(first_seed, first_seed + SEEDS):
        device = both.gradients(size, seed)
        began_s = time.perf_counter()
        cpu = both.gradients(size, seed, on_cpu=True)
        cpu_s = time.perf_counter() - began_s
        share, words = _largest_difference(tolerance, device, cpu)
        if share > 1:
            rounded = both.gradients(size, seed, on_cpu=True, change=ROUNDING[precision])
            share, words = _largest_difference(tolerance, device, cpu, rounded)
        if share <= 1:
            return cpu_s
        repeated = both.gradients(size, seed)
        if share > CLEAR and _largest_difference(tolerance, repeated, cpu, rounded)[0] <= 1:
            words += ", and not when the step is repeated"
            break
    raise Mismatch(f"{words}, in a step of {size} samples on the {case.backend.backend}")


def _verify_repetition(case: Any, both: Any, size: int) -> None:
    """Compare two equal steps on the device. Raises Mismatch."""
    first = both.gradients(size, 0)
    tolerance = TOLERANCE[_precision(case)]
    share, words = _largest_difference(tolerance, both.gradients(size, 0), first)
    if share > 1:
        raise Mismatch(words.replace("the CPU's", "that of the same step before"))


def _verify_updates(both: Any) -> None:
    """Compare the optimizers' updates for equal gradients. Raises Mismatch."""
    if both.optimizers:
        before, after_device, after_cpu, eps = both.updated(UPDATES)
        device = {name: after_device[name] - before[name] for name in before}
        cpu = {name: after_cpu[name] - before[name] for name in before}
        rounded = {name: cpu[name] + 4 * eps * before[name] for name in before}
        share, words = _largest_difference(TOLERANCE["fp32"], device, cpu, rounded)
        if share > 1:
            raise Mismatch(f"{words}, with equal gradients")


def _precision(case: Any) -> str:
    """Return the precision in which a case's matmuls or convolutions compute."""
    precision = cases.precision(case)
    tf32 = precision == "fp32" and case.backend.tf32 and case.config.get("tf32") != "off"
    return "tf32" if tf32 else precision


def _largest_difference(
    tolerance: float, device: dict, cpu: dict, rounded: dict | None = None
) -> tuple[float, str]:
    """Return the largest difference as a multiple of the allowed one, and its description.

    rounded: the CPU's arrays with weights changed by about a rounding error.
    """
    norms = {name: float(np.linalg.norm(array)) for name, array in cpu.items()}
    sizes = {name: math.sqrt(array.size) for name, array in cpu.items()}
    gradients = [name for name in cpu if name.startswith("the gradient")]
    least = NEGLIGIBLE * max((norms[name] / sizes[name] for name in gradients), default=0.0)
    worst = 0.0, ""
    for name, array in cpu.items():
        difference = float(np.linalg.norm(device[name] - array))
        allowed = tolerance * max(norms[name], least * sizes[name])
        if rounded:
            allowed += ROUNDING_FACTOR * float(np.linalg.norm(rounded[name] - array))
        share = difference / max(allowed, 1e-30)
        words = (
            f"{name} differs by {difference:.2g} from the CPU's, whose norm is {norms[name]:.2g}; "
            f"{allowed:.2g} is allowed"
        )
        if math.isfinite(norms[name]) and not math.isfinite(difference):
            share, words = math.inf, f"{name} is not finite"
        worst = max(worst, (share, words))
    return worst


def difference(
    values: Any, reference: Any, tolerance: float, relative: bool = False
) -> tuple[float | None, str | None]:
    """Return the largest absolute difference of arrays, or dicts of arrays, and an error message.

    tolerance: largest allowed difference, absolute or, with `relative`, as a share of each
    reference array's largest element. The difference is None if names, shapes or dtypes differ or
    values are not finite. The message is None if the difference is allowed.
    """
    if not isinstance(reference, dict):
        values, reference = {"": values}, {"": reference}
    if values.keys() != reference.keys():
        return None, f"returns {', '.join(values)}; the reference has {', '.join(reference)}"
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
            complaint = f"{label}differs by up to {error:.2g}; {allowed:.2g} is allowed"
        largest = max(largest, error)
    return largest, complaint


def _array(values: Any) -> np.ndarray:
    return np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
