"""How a case ended, whether its model learned, and what casts doubt on its number."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, Any

from pomology.devices import failures
from pomology.devices.torch import fallback_enabled
from pomology.errors import Mismatch, TooBig
from pomology.machine.memory import MemoryTrace
from pomology.machine.sampler import Telemetry, contended
from pomology.measure import clock, intervals
from pomology.measure.estimate import Estimate
from pomology.paths import redact
from pomology.results import cases

if TYPE_CHECKING:
    from pomology.devices.base import Device

JUDGED_STEPS = 50  # with fewer losses than these nobody can tell whether a model learns
ACCURACY_STEPS = 20  # after so many steps any model here that can learn does better than chance
FEW_TRACED = 8  # with fewer steps than these behind the warm-up, only the first is left out of a trace of memory


def of_exception(exception: BaseException) -> tuple[str, str]:
    """The status of a case that an exception ended, and the reason: its first line."""
    reason = redact(f"{exception}".strip().split("\n")[0] or type(exception).__name__)
    if not isinstance(exception, Exception):
        return "interrupted", reason
    known = {TooBig: "too-big", Mismatch: "mismatch"}.get(type(exception)) or failures.failure(exception)
    return (known, reason) if known else ("error", f"{type(exception).__name__}: {reason}")


def of_place(asked: str, observed: set[str], fallbacks: set[str]) -> tuple[str, str] | None:
    """`fallback` and the reason, if something ran on another backend than the one asked for, else None.

    observed: the backends that hold the model and the results. fallbacks: operators that PyTorch ran on the CPU.
    """
    if fallbacks:
        return "fallback", f"ran on the CPU: {', '.join(sorted(fallbacks))}"
    if observed - {asked}:
        return "fallback", f"asked for {asked}, computed on {', '.join(sorted(observed - {asked}))}"
    return None


class Learning:
    """What shows whether a model learns: the losses of its steps, and how many held-out samples it gets right."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self._guesses: str | None = None

    def accuracy(self, value: float, samples: int, classes: int, steps: int) -> None:
        """Conclude from the accuracy after so many steps; see `Case.accuracy`."""
        chance = 1 / classes
        bound = chance + 3 * math.sqrt(chance * (1 - chance) / samples)
        if value <= bound and steps >= ACCURACY_STEPS:
            self._guesses = f"{value:.1%} right after {steps} steps; guessing gives {chance:.1%}, and up to {bound:.1%}"

    @property
    def ends(self) -> tuple[float | None, float | None]:
        """The loss of the first steps (3, or fewer) and of the last third of them (medians); None of one step."""
        if len(self.losses) < 2:
            return None, None
        third = max(1, len(self.losses) // 3)
        return statistics.median(self.losses[: min(3, third)]), statistics.median(self.losses[-third:])

    def metrics(self) -> dict[str, Estimate]:
        """`loss_first` and `loss_last`, where they are finite."""
        ends = zip(("loss_first", "loss_last"), self.ends, strict=True)
        n = len(self.losses)
        return {name: Estimate(loss, n=n) for name, loss in ends if loss is not None and math.isfinite(loss)}

    def problem(self, expected: bool, same_weights: bool) -> str | None:
        """Why the model does not learn, or None. expected: whether a loss that does not fall says so."""
        if same_weights:
            return "no step changed the weights"
        if not all(math.isfinite(loss) for loss in self.losses):
            return "the loss is not a finite number"
        first, last = self.ends
        if expected and len(self.losses) >= JUDGED_STEPS and last >= first:
            return f"the loss went from {first:.4g} to {last:.4g} in {len(self.losses)} steps"
        return self._guesses


def flags(telemetry: Telemetry | None, training: clock.Part | None, backend: str) -> list[str]:
    """What casts doubt on the number of a case, as the names in `results.cases.FLAGS`."""
    found = ["contended"] * contended(telemetry.foreign_load) + telemetry.flags if telemetry is not None else []
    if training is not None:
        drift = intervals.drift([block.step_s for block in training.blocks])
        if drift is not None and abs(drift) > intervals.DRIFT_THRESHOLD:
            found.append("drift")
        if not training.complete and sum(block.steps for block in training.blocks) < intervals.BATCHES:
            found.append("few-steps")
    if backend == "mps" and fallback_enabled():
        found.append("fallback-enabled")
    return found


def raw_times(part: clock.Part) -> dict[str, Any]:
    """The blocks of a part of an epoch as the journal keeps them: `[steps, seconds]` each."""
    return {
        "epoch_steps": part.epoch_steps,
        "first_step_s": part.first_step_s,
        "warmup": pairs(part.warmup),
        "steady": pairs(part.blocks),
        "ready": pairs(part.ready_blocks),
        "last_step_s": part.last_step_s,
        "stopped": part.stopped,
        **{
            f"steady_{name}": [round(block.phases[name], 9) for block in part.blocks]
            for name in clock.PHASES
            if part.blocks and all(name in block.phases for block in part.blocks)
        },
    }


def pairs(blocks: list[clock.Block]) -> list[list[float]]:
    """`[steps, seconds]` of each block."""
    return [[block.steps, round(block.seconds, 9)] for block in blocks]


def warmup_steps(trace: MemoryTrace, training: clock.Part | None) -> int:
    """How many traced steps come before the steady ones."""
    if training is None:  # a loop that the clock knows nothing of
        return max(1, trace.steps // 10)
    warmup = 1 + sum(block.steps for block in training.warmup)
    return warmup if trace.steps - warmup >= FEW_TRACED else 1


def memory_trace(trace: MemoryTrace, device: Device) -> dict[str, Any]:
    """A trace as the journal keeps it: columns, rows, and why a column is empty."""
    rows = trace.rows
    empty = {name for number, name in enumerate(trace.COLUMNS) if all(row[number] is None for row in rows)}
    framework = cases.FRAMEWORKS.get(device.framework, device.framework)
    why = device.uncounted or f"{framework} keeps no count of it on this device"
    absent = {name: redact(trace.absent.get(name, why)) for name in sorted(empty)}
    return {"columns": list(trace.COLUMNS), "rows": rows, "absent": absent}
