"""Verification of a GPU's training step against the CPU, before its timing and after it.

A GPU kernel can be wrong at a single shape (pytorch/pytorch issue 195163), now and then, or after
many calls. Both devices therefore run a case's step from the same weights, inputs and random
numbers, and each tensor's gradient is compared by the norm of its difference.

A correct device rounds otherwise than the CPU, and some gradients are little but rounding: that of
a key's bias is 0 in exact arithmetic. What a tensor may differ by therefore follows from its own
rounding. The CPU repeats the step with a random relative error in all weights and between all
modules, and the difference that this makes is the measure. In a deep network rounding adds up, and
would hide a wrong gradient; or it moves a value across the bend of a ReLU, which no bound of
rounding explains. There the step is compared in blocks: each module of the device gets the inputs
and the gradients of the CPU.
"""

import functools
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from pomology.errors import Mismatch, NotLearning
from pomology.results import cases

# Number of these rules in a record's `proof`. It grows when what is compared or allowed changes.
RULE = 3
# Share of a norm. Sums of a million fp32 values differ by 0.00002. A value is rounded by 0.0005 in
# TF32 and fp16, by 0.004 in bf16. Errors of some operators add up.
TOLERANCE = {"fp32": 5e-4, "tf32": 1e-2, "fp16": 2e-2, "bf16": 4e-2}
# Of the norm of one product of random matrices, next to float64: sums of fp32 differ by 0.0000003
# there, TF32 by 0.0003, which a gradient's tolerance would hide, bf16 by 0.003. Rows of these
# matrices.
PRODUCT_TOLERANCE = {"fp32": 2e-5, "tf32": 1e-3}
PRODUCT_NAMES = {"fp32": "fp32", "tf32": "TF32"}
COARSER = {"fp32": "TF32 differs by 0.03 %", "tf32": "bf16 differs by 0.3 %"}
PRODUCT_ROWS = 512
# Relative error of the CPU's second step; in fp32 that of a sum of a thousand values.
ROUNDING = {"fp32": 2.0**-19, "tf32": 2.0**-11, "fp16": 2.0**-11, "bf16": 2.0**-8}
DRAWS = 3  # of that error, at most; the largest difference counts
# Allowed multiple of that difference. A whole step is compared in blocks, too, if it allows much.
FACTOR = {"step": 6, "blocks": 3}
# A whole step that differs by more than is allowed is compared in blocks, which decide. Beyond
# these limits it is refused at once: a share of the norm, and a multiple of what is allowed. In
# 8 runs each of correct devices, bf16 and fp16 moved gradients of a small network by up to 8 %.
COARSE = 0.3
COARSE_FACTOR = 4
HALF_WITHOUT_BLOCKS = 0.15  # share of a norm in half precision in Keras, which has no blocks
USUAL = 2  # further repetitions that tell by how much a device's steps usually differ
# A difference that blocks do not explain has to be there in one of these, at this share of it. A
# device that adds in changing order does not differ by as much each time.
AGAIN = 0.1
# Or in one of so many steps of the CPU with its rounding. In a small network a value next to the
# bend of a ReLU changed its side in 3 of 40 equal steps of a correct device, and in 11 of 30 of the
# CPU: a gradient then differs by 5 %, or not at all.
RARE_DRAWS = 32
# Share of a gradient's norm: a weight whose gradient may differ by more is not verified. Where this
# is so for more than a hundredth of a model's weights, the step is compared in blocks.
SEEN = {"fp32": 0.02, "tf32": 0.02, "fp16": 0.05, "bf16": 0.05}
UNSEEN_WEIGHTS = 0.01
# Multiples of a type's rounding by which an element may differ after an update: of its weight, and
# of its update. An element is not compared more precisely than SMALL of its tensor's mean square.
WEIGHT_ROUNDINGS = 2
UPDATE_ROUNDINGS = 8
SMALL = 1e-3
SMALLEST = 2  # samples that are verified at least; batch normalization needs two
# Updates of the first verification, by profile: least and most, and weights times updates.
UPDATES = {"smoke": (2, 2), "quick": (2, 12), "article": (2, 12)}
UPDATED_WEIGHTS = 2e8
MAX_CPU_S = 3.0  # for a step
# The CPU's share of the budget, by profile: for all comparisons of gradients before the timing, and
# as much for the steps that show whether a model learns. Only the smallest ones may take longer.
CHECK_SHARE = {"smoke": 1.0, "quick": 0.25, "article": 1.0}
SIZES = 8  # numbers of samples that are compared before the timing, at most
# Of a case, at most, but for the draws of a rare difference; a comparison takes up to LOOK of them.
CPU_STEPS = 128
LOOK = 1 + 3 + 1 + 3  # a step, its draws of rounding, and the same of blocks
# Change of the loss in these steps that says whether a model learns: a share of the first loss. The
# device's may differ from it by this share of the change.
TELLING = 0.05
LEARNED = 0.5
# After the timing, up to AGAIN_STEPS steps are verified within AGAIN_S seconds, or within
# AGAIN_SHARE of the case's time if that is longer.
AGAIN_S = 0.5
AGAIN_SHARE = 0.03
AGAIN_STEPS = 64
OFTEN = 8  # one word fills one of so many places
BLOCKS_BYTES = 2**30  # of the CPU's outputs and their gradients that are kept of a large step


@dataclass(frozen=True)
class Deviation:
    """How far a tensor of a step is from the CPU's.

    difference: norm of the difference; infinite for a tensor that is missing or not finite. norm:
    of the CPU's tensor. size: elements of the weight, for a gradient of a weight; else 0. tf32:
    whether a device with TF32 computes it in TF32. what: the sentence's end in place of numbers.
    """

    difference: float
    norm: float
    size: int = 0
    tf32: bool = False
    what: str = ""


Deviations = dict[str, Deviation]
Key = tuple[str, int, int]  # a module's name, the number of its call, and of its output
OUTPUT, GRADIENT = "the output", "the gradient at the output"  # what passes between modules
NONE_OF_CPU = Deviation(math.inf, 0.0, what="is none of the CPU's")
FP32_EPS = float(np.finfo(np.float32).eps)


class Step(Protocol):
    """A workload's step on both devices, in a `with` block that keeps the model; one a framework.

    optimizers: of the step. unverified: names of what is not compared. parameters: of the model.
    in_blocks: compares as `deviations` does, where each module gets the CPU's inputs and gradients;
    None where a step is only compared as a whole. traces: whether each number of samples needs a
    graph of its own. The CPU's step, which `reference` returns, has its time in `seconds`.
    """

    optimizers: list[Any]
    unverified: set[str]
    parameters: int
    in_blocks: Callable[..., Deviations] | None
    traces: bool

    def __enter__(self) -> Any: ...
    def __exit__(self, *_: object) -> None: ...

    def reference(self, size: int, seed: int) -> Any:
        """Run the CPU's step on so many samples; what the others are compared with."""

    def deviations(self, reference: Any, noise: float = 0.0, draw: int = 0) -> Deviations:
        """Compare the device's step or, with a relative error `noise`, that of the CPU."""

    def repeated(self, size: int) -> Deviations:
        """Compare the device's step with itself."""

    def products(self, left: np.ndarray, right: np.ndarray) -> dict[str, np.ndarray]:
        """Multiply two matrices on the device; return the product by operator."""

    def losses(self, size: int, count: int, cpu: bool, noise: float = 0.0) -> list[float]:
        """Train on one batch of so many samples, from the first weights; return each step's loss.

        noise: relative error of the weights.
        """

    def updates(self, count: int, timed: bool = False) -> Deviations:
        """Compare weights and the optimizers' states after updates by equal gradients.

        timed: by the optimizer whose steps were timed, with its state. A difference of 1 is the
        largest allowed one.
        """


def workload(
    case: Any,
    model: Any,
    workload: Any,
    batch_size: int,
    optimizer: Any = None,
    reference: Any = None,
    verified: int = 0,
) -> None:
    """Verify the step of a workload on a GPU against the CPU, now and at the end of the case.

    The model remains unchanged. Nothing happens for a case on the CPU. If a step takes the CPU
    longer than `MAX_CPU_S` or the budget, fewer samples are verified, with a note. optimizer: whose
    steps will be timed. reference: in Keras the workload whose model is built for the CPU.
    verified: samples at most, by default all. Raises Mismatch, which ends the case.
    """
    if case.backend.kind == "cpu":
        return
    if case.backend.framework == "mlx":
        from pomology.models import verify_mlx

        step = verify_mlx.StepOnBothDevices(case, model, workload, optimizer)
    elif case.backend.framework == "tensorflow":
        from pomology.models import verify_keras

        step = verify_keras.StepOnBothDevices(case, model, workload, reference or workload)
    else:
        from pomology.models import verify_torch

        step = verify_torch.StepOnBothDevices(case, model, workload, optimizer)
    most = min(verified or batch_size, batch_size)
    Verification(case, step).before_timing(most, batch_size, workload.trained == 0)


class Verification:
    """What is verified of a case, before its timing and after it.

    It fills the case's `proof`: number of these rules; samples that were verified before the
    timing, of those of a step; share of unseen weights; steps that were verified after it; all
    steps that the CPU made.
    first_norms: norms of the untrained model's gradients and loss. Those of a trained model may be
    near 0, while its outputs are rounded as those of any model, so a tolerance is relative to the
    larger one. unseen_weights: share of the weights whose gradient may differ by more than `SEEN`,
    in the last comparison. cpu_steps: that the CPU has made so far.
    """

    def __init__(self, case: Any, step: Step):
        self.case = case
        self.step = step
        self.precision = cases.precision(case)
        # MLX reads a variable for TF32 when it starts, PyTorch a switch for convolutions.
        self.tf32 = case.backend.tf32 and case.config.get("tf32") != "off"
        self.first_norms: dict[str, float] = {}
        self.unseen_weights = 0.0
        self.cpu_steps = 0

    def before_timing(self, most: int, batch_size: int, inference: bool) -> None:
        """Verify gradients, updates and learning. most: samples at most.

        Raises Mismatch and NotLearning.
        """
        case, step = self.case, self.step
        began_s = time.perf_counter()
        profile, budget_s = case.experiment.profile, case.experiment.budget_s
        share_s = CHECK_SHARE[profile] * budget_s
        left_s = share_s  # of the CPU's; the device may compile at first
        norms: dict[str, float] = {}
        self._product()
        with step:
            size, larger = 0, min(SMALLEST, most)
            for _ in range(SIZES):
                size = larger
                made = self.cpu_steps
                cpu_s = self._gradients(size, 0, norms)
                look_s = (self.cpu_steps - made) * cpu_s
                left_s -= look_s
                factor = min(MAX_CPU_S / cpu_s, left_s / look_s)
                if step.traces:  # which takes as long for few samples
                    factor = min(MAX_CPU_S, budget_s) / cpu_s
                larger = min(most, int(size * factor))
                if larger < 2 * size and not larger == most > size:
                    break
            updates = UPDATED_WEIGHTS / max(1, step.parameters)
            updates = int(np.clip(updates, *UPDATES[profile]))
            self._updates(updates)
            smallest = min(SMALLEST, size)
            affordable = int(min(MAX_CPU_S, share_s) * size / cpu_s / smallest)
            self._learning(smallest, min(updates, max(1, affordable)))
        self.first_norms = norms
        case.backend.reset_peak_memory()
        note = "verified against the CPU before it was timed, so its kernels were already compiled"
        case.note(note)
        if size < batch_size:
            case.note(f"verified with {size} of the {batch_size:,} samples of a step", "unproved")
        if self.unseen_weights > UNSEEN_WEIGHTS:
            case.note(
                f"a gradient that is {100 * SEEN[self.precision]:.0f} % off would not be seen in "
                f"{100 * self.unseen_weights:.0f} % of the weights"
            )
        unverified = sorted(step.unverified)
        if not step.optimizers and not inference:
            unverified.append("the update of the weights")
        if unverified:
            case.note(f"not verified: {', '.join(unverified)}")
        proof_s = time.perf_counter() - began_s
        case.metric("proof_s", proof_s, "s")
        case.proof |= {
            "rule": RULE,
            "samples": size,
            "batch_size": batch_size,
            "unseen_weights": round(self.unseen_weights, 4),
        }
        again = functools.partial(self.after_timing, size, cpu_s / size, proof_s)
        case.at_end(again)

    def after_timing(self, most: int, sample_s: float, proof_s: float, elapsed_s: float) -> None:
        """Verify steps of the trained model, and updates of its optimizer.

        They show what goes wrong now and then, or after many calls. The number of samples doubles
        while a step is quick. Where a step takes the CPU too long, the device repeats one and is
        compared with itself. most: samples of a step, at most. sample_s: the CPU's seconds per
        sample. proof_s: seconds of the first verification. elapsed_s: seconds of the case so far.
        Raises Mismatch.
        """
        case, step = self.case, self.step
        began_s = time.perf_counter()
        limit_s = AGAIN_SHARE * elapsed_s
        if case.experiment.profile != "smoke":
            limit_s = max(AGAIN_S, limit_s)
        end_s = began_s + limit_s
        size = min(SMALLEST, most)
        look_s = size * sample_s
        steps = 0
        with step:
            while (
                steps < AGAIN_STEPS
                and self.cpu_steps + LOOK <= CPU_STEPS
                and time.perf_counter() + look_s < end_s
            ):
                look_began_s = time.perf_counter()
                self._gradients(size, 1 + steps, {}, thorough=not steps)
                if not steps:
                    self._updates(2, timed=True)
                steps += 1
                look_s = time.perf_counter() - look_began_s
                if look_s < AGAIN_S / AGAIN_STEPS:
                    size = min(2 * size, most)
            if not steps:
                self._repeated(size)
        against = f"in {steps} steps against the CPU" if steps else "by repeating a step"
        case.note(f"verified after the timing {against}")
        case.proof |= {"steps_after": steps, "cpu_steps": self.cpu_steps}
        case.metric("proof_s", proof_s + time.perf_counter() - began_s, "s")

    def _repeated(self, size: int) -> None:
        """Compare a step of the device with its repetition. Raises Mismatch.

        A device that adds in changing order differs in every repetition, by much in a deep network;
        one that fails now and then does not.
        """
        deviations = self.step.repeated(size)
        allowed = self._tolerances(deviations)
        if _largest(deviations, allowed)[0] > 1:
            # Of all tensors together: which one differs most is chance.
            others = [_largest(self.step.repeated(size), allowed)[0] for _ in range(USUAL)]
            usual = max(filter(math.isfinite, others), default=0.0)
            factor = max(1.0, FACTOR["step"] * usual)
            allowed = {name: factor * difference for name, difference in allowed.items()}
        self._refuse(deviations, allowed, size, "that of the same step before")

    def _gradients(
        self, size: int, seed: int, norms: dict[str, float], thorough: bool = True
    ) -> float:
        """Verify the gradients of a step, and return the CPU's seconds; add its norms to `norms`.

        thorough: whether to compare in blocks, too, where the whole step allows much.
        """
        reference = self.step.reference(size, seed)
        self.cpu_steps += 1
        deviations, allowed = self._compared("step", reference)
        norms |= {name: each.norm for name, each in deviations.items()}
        self.unseen_weights = self._unseen_weights(deviations, allowed)
        self._refuse(deviations, self._coarse(deviations, allowed), size)
        share, tensor = _largest(deviations, allowed)
        # In half precision rounding is large, and convolutions in TF32 would hide matmuls.
        precise = {self._precision(each) for each in deviations.values()} == {"fp32"}
        unclear = not precise or self.unseen_weights > UNSEEN_WEIGHTS
        if self.step.in_blocks and (share > 1 or (thorough and unclear)):
            deviations, allowed_in_blocks = self._compared("blocks", reference)
            self.cpu_steps += getattr(reference, "smaller", None) is not None
            norms |= {name: each.norm for name, each in deviations.items()}
            self.unseen_weights = self._unseen_weights(deviations, allowed_in_blocks)
            self._refuse(deviations, allowed_in_blocks, size)
        if share > 1:
            self._refuse_once(tensor, share * allowed[tensor], reference)
        return reference.seconds

    def _refuse_once(self, tensor: str, difference: float, reference: Any) -> None:
        """Raise Mismatch if a difference that blocks do not explain is there this time only."""
        others = [self.step.deviations(reference)[tensor] for _ in range(USUAL)]
        if max(other.difference for other in others) >= AGAIN * difference:
            return
        for draw in range(DRAWS, DRAWS + RARE_DRAWS):
            self.cpu_steps += 1
            rounded = self.step.deviations(reference, self._rounding(), draw)[tensor].difference
            if FACTOR["step"] * rounded >= difference:
                return
        raise Mismatch(f"{tensor} differs from the CPU's in one of {1 + USUAL} equal steps")

    def _coarse(self, deviations: Deviations, allowed: dict) -> dict[str, float]:
        """Return the differences of a whole step that are refused at once; see `COARSE`."""
        if not self.step.in_blocks:
            return allowed
        return {
            name: max(COARSE_FACTOR * allowed[name], COARSE * self._norm(name, deviation))
            for name, deviation in deviations.items()
        }

    def _compared(self, way: str, reference: Any) -> tuple[Deviations, dict]:
        """Compare a step, as a whole or in blocks; return deviations and the allowed differences.

        Rounding is looked at only if a difference exceeds the tolerance.
        """
        compare = self.step.deviations if way == "step" else self.step.in_blocks
        deviations = compare(reference)
        allowed = self._tolerances(deviations)
        precisions = {self._precision(each) for each in deviations.values()}
        # In MLX all is in TF32 or nothing; in PyTorch a block without convolutions is not.
        tf32 = precisions == {"tf32"} or (way == "step" and "tf32" in precisions)
        noise = ROUNDING["tf32" if tf32 else self.precision]
        for draw in range(DRAWS):
            if _largest(deviations, allowed)[0] <= 1:
                break
            self.cpu_steps += 1
            for name, rounded in compare(reference, noise, draw).items():
                if math.isfinite(rounded.difference) and name in allowed:
                    allowed[name] = max(allowed[name], FACTOR[way] * rounded.difference)
        return deviations, allowed

    def _refuse(
        self, deviations: Deviations, allowed: dict, size: int, whose: str = "the CPU's"
    ) -> None:
        """Raise Mismatch if a tensor differs by more than is allowed. whose: the tensor before."""
        share, name = _largest(deviations, allowed)
        if share <= 1:
            return
        deviation = deviations[name]
        words = deviation.what or (
            f"differs by {deviation.difference:.2g} from {whose}, whose norm is "
            f"{deviation.norm:.2g}; {allowed[name]:.2g} is allowed"
        )
        where = self.case.backend.backend
        raise Mismatch(f"{name} {words}, in a step of {size} samples on the {where}")

    def _product(self) -> None:
        """Verify that matmuls called fp32 are computed in fp32, those in TF32 in no less.

        Raises Mismatch.
        """
        if self.precision not in PRODUCT_TOLERANCE:
            return
        called = "tf32" if self.case.backend.tf32_products else self.precision
        most = PRODUCT_TOLERANCE[called]
        draw = np.random.default_rng(0).standard_normal
        left, right = (draw((PRODUCT_ROWS, PRODUCT_ROWS), np.float32) for _ in range(2))
        expected = left.astype(np.float64) @ right.astype(np.float64)
        for operator, product in self.step.products(left, right).items():
            difference = float(np.linalg.norm(product - expected) / np.linalg.norm(expected))
            if not difference <= most:
                rows = f"{PRODUCT_ROWS} × {PRODUCT_ROWS}"
                raise Mismatch(
                    f"a matmul of {rows} in {PRODUCT_NAMES[called]} ({operator}) differs by "
                    f"{100 * difference:.2g} % from that in fp64; {100 * most:.2g} % is allowed, "
                    f"and {COARSER[called]}"
                )

    def _updates(self, count: int, timed: bool = False) -> None:
        """Verify updates by equal gradients. Raises Mismatch."""
        if not self.step.optimizers:
            return
        deviations = self.step.updates(count, timed)
        share, name = _largest(deviations, dict.fromkeys(deviations, 1.0))
        if share > 1:
            raise Mismatch(f"{name} {deviations[name].what}, with equal gradients")

    def _learning(self, size: int, updates: int) -> None:
        """Compare how the loss changes after so many updates on one batch. Raises NotLearning.

        It shows what equal gradients and equal updates do not: a device that computes with old
        weights.
        """
        if not self.step.optimizers or not updates:
            return

        def run(cpu: bool, noise: float = 0.0) -> list[float]:
            self.cpu_steps += (1 + updates) * cpu
            return self.step.losses(size, 1 + updates, cpu, noise)

        expected = run(True)
        change = expected[-1] - expected[0]
        if not abs(change) >= TELLING * abs(expected[0]):
            return
        losses = run(False)
        allowed = LEARNED * abs(change)
        if abs(losses[-1] - expected[-1]) > allowed:
            # In some models, such as a GAN, the smallest difference grows from step to step. Two of
            # these may end near each other by chance, after they went different ways.
            rounded = run(True, self._rounding())
            apart = max(abs(own - other) for own, other in zip(rounded, expected, strict=True))
            allowed = max(allowed, FACTOR["step"] * apart)
        if not abs(losses[-1] - expected[-1]) <= allowed:
            raise NotLearning(
                f"the loss went from {losses[0]:.4g} to {losses[-1]:.4g} in {1 + updates} steps on "
                f"one batch; on the CPU it went to {expected[-1]:.4g}"
            )

    def _rounding(self) -> float:
        """Return the relative error of a step as a whole, of which a part may be in TF32."""
        tf32 = self.precision == "fp32" and self.tf32
        return ROUNDING["tf32" if tf32 else self.precision]

    def _precision(self, deviation: Deviation) -> str:
        """Return the precision in which the device computes a tensor."""
        tf32 = self.precision == "fp32" and self.tf32 and deviation.tf32
        return "tf32" if tf32 else self.precision

    def _tolerances(self, deviations: Deviations) -> dict[str, float]:
        """Return by how much each tensor may differ without a look at its rounding."""
        tolerance = dict(TOLERANCE)
        if not self.step.in_blocks:
            tolerance |= dict.fromkeys(("bf16", "fp16"), HALF_WITHOUT_BLOCKS)
        return {
            name: tolerance[self._precision(deviation)] * self._norm(name, deviation)
            for name, deviation in deviations.items()
        }

    def _norm(self, name: str, deviation: Deviation) -> float:
        """Return the larger norm of a tensor: in this step, or in the untrained model's."""
        return max(deviation.norm, self.first_norms.get(name, 0.0))

    def _unseen_weights(self, deviations: Deviations, allowed: Mapping[str, float]) -> float:
        """Return the share of weights whose gradient may differ by more than `SEEN`."""
        limit = SEEN[self.precision]
        weights = sum(each.size for each in deviations.values())
        unseen = sum(
            each.size for name, each in deviations.items() if allowed[name] > limit * each.norm
        )
        return unseen / max(1, weights)


def _largest(deviations: Deviations, allowed: Mapping[str, float]) -> tuple[float, str]:
    """Return the largest difference as a multiple of the allowed one, and its tensor's name."""
    shares = {
        name: each.difference / max(allowed[name], 1e-30) for name, each in deviations.items()
    }
    name = max(shares, key=shares.get, default="")
    return shares.get(name, 0.0), name


def deviation(
    name: str, norm: float, elements: int, difference: float | None, tf32: bool = True
) -> Deviation:
    """Return the deviation of a tensor of so many elements from the CPU's, whose norm is given.

    difference: norm of the difference, None for a tensor that is missing.
    """
    size = elements if name.startswith("the gradient of ") else 0
    if difference is None:
        return Deviation(math.inf, norm, size, tf32, "is missing")
    if not math.isfinite(difference):
        return Deviation(math.inf, norm, size, tf32, "is not finite")
    return Deviation(difference, norm, size, tf32)


def name_of(what: str, key: Key) -> str:
    """Return `the output of layer`, with the numbers of a later call and of a further output."""
    module, call, index = key
    name = f"{what} of {module or 'the model'}"
    name += f", call {call + 1}" if call else ""
    return name + (f", part {index + 1}" if index else "")


@dataclass
class Reference:
    """The CPU's step: its loss and gradients by name, and what passed between its modules.

    arrays: of the framework, or of NumPy. outputs, gradients_of: by `Key`; empty if they take more
    than `BLOCKS_BYTES`, and in Keras. bytes: of what passed. smaller: see `with_blocks`. In PyTorch
    also convolved: names of tensors that a convolution contributed to since the last boundary
    between modules. scale: of its gradients.
    """

    size: int
    seed: int
    arrays: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    outputs: dict[Key, Any] = field(default_factory=dict)
    gradients_of: dict[Key, Any] = field(default_factory=dict)
    bytes: int = 0
    smaller: "Reference | None" = None
    convolved: set[str] = field(default_factory=set)
    scale: float = 1.0

    def keep(self, arrays: dict[Key, Any], key: Key, array: Any) -> Any:
        """Keep an array, unless those of a large step take too much memory; return it."""
        self.bytes += array.nbytes
        if self.size > SMALLEST and self.bytes > BLOCKS_BYTES:
            self.outputs.clear()
            self.gradients_of.clear()
        else:
            arrays[key] = array
        return array


def of_cpu(arrays: Mapping[Key, Any], what: str, key: Key) -> Any:
    """Return what the CPU's step kept. Raises Mismatch if it passed nothing there."""
    if key not in arrays:
        raise Mismatch(f"{name_of(what, key)} is none of the CPU's")
    return arrays[key]


def with_blocks(reference: Reference, run: Callable[[int, int], Reference]) -> Reference:
    """Return the reference, or one with so few samples that it keeps what passes.

    run: runs the CPU's step on so many samples of a seed. Some outputs, such as those of positions,
    do not shrink with the samples, so that the first smaller step may still be too large.
    """
    while reference.bytes and not reference.outputs:
        if reference.smaller is None:
            size = min(reference.size * BLOCKS_BYTES // reference.bytes, reference.size // 2)
            reference.smaller = run(max(SMALLEST, size), reference.seed)
        reference = reference.smaller
    return reference


def compared(arrays: Mapping[str, np.ndarray], reference: Mapping[str, np.ndarray]) -> Deviations:
    """Return the deviations of arrays from those of the same names."""
    deviations = {}
    for name, expected in reference.items():
        norm = float(np.linalg.norm(expected))
        if not math.isfinite(norm):  # then the case ends by its loss
            continue
        array = arrays.get(name)
        difference = None
        if array is not None and array.shape == expected.shape:
            difference = float(np.linalg.norm(array - expected))
        deviations[name] = deviation(name, norm, expected.size, difference)
    return deviations | dict.fromkeys(arrays.keys() - reference.keys(), NONE_OF_CPU)


def of_update(before: np.ndarray, device: np.ndarray, cpu: np.ndarray, eps: float) -> Deviation:
    """Compare each element of a weight after updates by equal gradients.

    eps: the rounding of the device's type, for all updates together.
    """
    update = np.abs(cpu - before)
    allowed = (TOLERANCE["fp32"] + UPDATE_ROUNDINGS * eps) * update
    allowed += WEIGHT_ROUNDINGS * eps * np.maximum(np.abs(before), np.abs(cpu))
    return _of_elements(np.abs(device - cpu), allowed, update)


def of_state(device: np.ndarray, cpu: np.ndarray, eps: float) -> Deviation:
    """Compare each element of an optimizer's state; see `of_update`."""
    size = np.abs(cpu)
    allowed = (TOLERANCE["fp32"] + UPDATE_ROUNDINGS * eps) * size
    return _of_elements(np.abs(device - cpu), allowed, size, eps)


def _of_elements(
    difference: np.ndarray, allowed: np.ndarray, size: np.ndarray, eps: float = 0.0
) -> Deviation:
    """Return a deviation of 1 where the worst element differs by as much as is allowed."""
    if not difference.size:
        return Deviation(0.0, 1.0)
    allowed += (SMALL + eps) * np.sqrt(np.mean(np.square(size)))
    shares = difference / np.maximum(allowed, 1e-30)
    worst = float(shares.max())
    if not math.isfinite(worst):
        return Deviation(math.inf, 1.0, what="is not finite")
    count = int(np.count_nonzero(shares > 1))
    what = (
        f"differs from the CPU's at {count:,} of {difference.size:,} elements, "
        f"by up to {float(difference.max()):.2g}"
    )
    return Deviation(worst, 1.0, what=what)


def words(vocabulary: int, *shape: int) -> Any:
    """Return random words in PyTorch, the first ones 0, 1 and the last one of the vocabulary.

    About a quarter repeats its neighbour, and one word fills an eighth of the places, as frequent
    words of a text do. Gradients of an embedding can be wrong for repeated words only, for those
    that come often, or for those at the border.
    """
    import torch

    drawn = torch.randint(vocabulary, shape)
    drawn = torch.where(torch.randint(2, shape) > 0, drawn, drawn.roll(1, -1))
    drawn = torch.where(torch.randint(OFTEN, shape) > 0, drawn, torch.randint(vocabulary, (1,)))
    at_border = torch.tensor([0, 1, vocabulary - 1])[: drawn.numel()]
    drawn.flatten()[: len(at_border)] = at_border
    return drawn


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
