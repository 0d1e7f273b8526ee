"""Whether a case can run here, asked before it does: whether it fits the memory, and ends in time."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from pomology import format
from pomology.errors import PomologyError, TooBig, TooSlow, Unsupported
from pomology.machine import snapshot
from pomology.models.cost import Workload

if TYPE_CHECKING:
    from pomology.devices.base import Device
    from pomology.experiment.experiment import Experiment

SPARED_BYTES, SPARED_SHARE = 1.5e9, 0.1  # of the free memory, that a case near the limit leaves to the machine

# On a processor tensors are in the C library's heap, with holes between them: glibc gives one a mapping of its own only
# if it is larger than all that were freed before, or than 32 MB. The memory of `memory_torch` grew to 1.22 times the
# sum of its tensors; where glibc had to map each of them by itself, to 1.00 times.
HOLES = 1.25


class Feasibility:
    """What a `Case` asks of its device before the training."""

    experiment: Experiment
    backend: Device
    precision: str
    _workload: Workload | None

    def require_memory(self, workload: Workload) -> None:
        """Say what a step costs. Raises TooBig, which ends the case, if the device's memory, or for what is offloaded
        the host's, has too little free for it."""
        self._workload, free = workload, self.backend.free_memory()
        if workload.bytes > free:
            raise TooBig(
                f"needs {workload.bytes / 1e9:.1f} GB at the least (weights, gradients and optimiser "
                f"{workload.state_bytes / 1e9:.1f}, kept for the backward pass {workload.saved_bytes / 1e9:.1f}); "
                f"{free / 1e9:.1f} GB are free"
            )
        # A GPU with a memory of its own takes nothing of the host's.
        needed = workload.host_bytes + (workload.bytes if self.backend.unified_memory else 0)
        if workload.host_bytes and needed > (available := snapshot.available_memory_bytes()):
            raise TooBig(
                f"needs {needed / 1e9:.1f} GB of the host's memory at the least, for what is offloaded to it; "
                f"{available / 1e9:.1f} GB are free"
            )

    def require_time(self, limit_s: float, steps: int = 3, precision: str = "") -> None:
        """Raise TooSlow, which ends the case, if that many steps surely cannot end in `limit_s`, at the best rate of a
        matrix product here in this precision, by default the case's; after `require_memory`."""
        flops, own = self._workload.flops, precision in ("", self.precision)
        precision = precision or self.precision
        rate = self.experiment.peak_matmul_rate(self.backend, precision)
        if steps * flops / rate > limit_s:
            slow = (
                f"a step of {flops / 1e12:,.4g} TFLOP would take {format.seconds(flops / rate)} at the least, at "
                f"{rate / 1e9:,.4g} GFLOP/s, the most that a product in {precision} reaches here; {steps} steps must "
                f"end within {format.seconds(limit_s)}"
            )
            raise TooSlow(slow if own else f"{slow}; in every precision the same model is trained")

    def require_tf32(self) -> None:
        """Say that this row is fp32 as its framework ships it. Raises Unsupported, which ends the case, where that is
        true fp32 on this device, as in the rows beside it."""
        if not self.backend.tf32:
            raise Unsupported(f"{self.backend.title} computes fp32 as fp32 on this device: there is no other way")
        self.note(f"fp32 as {self.backend.title} ships it, which here is TF32", "other-way")

    def memory_budget(self, share: float = 0.9, most_bytes: float = math.inf) -> int:
        """Bytes that a case may plan for that is to come near the limit of the memory: `share` of what is free, less
        10 % of it or 1.5 GB at the least; on a processor also less the `HOLES` between tensors. Where that exceeds
        `most_bytes`, it is those, and the case is `scaled`; a note says which. Raises PomologyError for a share that is
        none, and TooBig if nothing can be spared."""
        if not 0 < share <= 1:
            raise PomologyError(f"near is {share!r}; it must be a share of the free memory, above 0 and at most 1")
        free, cpu = self.backend.free_memory(), self.backend.kind == "cpu"
        budget = min(share * free, free - max(SPARED_BYTES, SPARED_SHARE * free)) / (HOLES if cpu else 1)
        if budget <= 0:
            raise TooBig(f"{free / 1e9:.1f} GB are free, of which {SPARED_BYTES / 1e9:.1f} GB must stay so")
        of_free = f"{min(budget, most_bytes) / 1e9:.3g} GB of {free / 1e9:.3g} GB that were free"
        if budget > most_bytes:
            self.scaled = True
            self.note(f"not near the limit: held at {of_free}")
        else:
            holes = f": holes between tensors may take {100 * (HOLES - 1):.0f} % more" if cpu else ""
            self.note(f"planned for {of_free}{holes}")
        return int(min(budget, most_bytes))

    def fill(self, bytes_of: Callable[[int], int], what: str, share: float = 0.9, most_bytes: float = math.inf) -> int:
        """How many clips, or parts of a batch, a step may have to come near the limit of the memory, see
        `memory_budget`. bytes_of: the bytes of a step of one, and of two, from which those of more follow. what: one of
        them, in words. Raises TooBig if one is too many."""
        budget, first = self.memory_budget(share, most_bytes), bytes_of(1)
        if first > budget:
            needs, planned = (format.quantity(count, "B") for count in (first, budget))
            raise TooBig(f"one {what} needs at least {needs}; {planned} may be filled")
        return 1 + (budget - first) // (bytes_of(2) - first)
