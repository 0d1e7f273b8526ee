"""The allocations of a training step, in the order in which they happen.

The step runs on PyTorch's `meta` device, where tensors have shapes but no contents. A network with
few blocks stands for one with many: a block in the middle then counts several times, and so may
the forward pass of the first one.
"""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from pomology.extras.fit import operators
from pomology.models import cost

# Blocks of a short network: two at each end, whose neighbours differ from those of the others, and
# one in the middle that stands for all others.
SHORT = 5
MIDDLE = 2
DEQUANTIZED = "dequantized"  # elements of matrices in 4 bits that are copied into 16 bits
UPDATE = "update launches"  # the work of an optimizer that counts: a fused one moves less


class Event(NamedTuple):
    """A change of what is allocated.

    kind: of the tensor. size: bytes, negative if they are freed. inside: whether it happens while
    the middle block runs, or the one after it, which frees what that has left. Less is allocated
    there than in the blocks at the ends.
    """

    kind: str
    size: float
    inside: bool


class _Storage(NamedTuple):
    kind: str
    size: float
    times: int


class Timeline:
    """Notes the storages that a step creates and frees, and the work of its operators.

    vocabulary: the last dimension of logits. times: how many blocks the middle one stands for.
    frozen: how many blocks run forward as the first one does, without keeping anything.
    """

    def __init__(self, vocabulary: int, times: int, frozen: int):
        self.vocabulary = vocabulary
        self.times = times
        self.frozen = frozen
        self.events: list[Event] = []
        self.work: Counter[str] = Counter({UPDATE: 0})
        self.in_block: int | None = None
        self.phase = "forward"
        self._updated_times = 1  # how many weights the one stands for that is being updated
        self._storages: dict[int, _Storage] = {}  # of those that exist

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Note the operators that run in the context."""
        from torch.utils._python_dispatch import TorchDispatchMode

        note = self._operator

        class Watching(TorchDispatchMode):
            def __torch_dispatch__(self, function, types, args=(), kwargs=None):
                result, call = operators.run(function, args, kwargs or {})
                note(function._schema.name, args, result, call)
                return result

        with Watching():
            yield

    def _operator(self, name: str, args: Any, result: Any, call: operators.Call) -> None:
        if name.startswith("aten::_foreach"):
            self._update_of_many(args, result)
            return
        if self.phase == "update":
            self._note_updated(args)
        for tensor in cost.tensors(result):
            # Labels are whole numbers, and may be as many as words.
            words = tensor.dim() > 1 and tensor.shape[-1] == self.vocabulary
            logits = words and tensor.is_floating_point()
            self.allocated(tensor, "logits" if logits else "activations", self._middle())
        if name == "aten::empty_like" and self.phase != "update":
            self._note_dequantized(args[0])
        self.computed(call.flops, call.moved)

    def computed(self, flops: float, moved: float) -> None:
        """Note the work of an operator. moved: bytes, 0 if it launches no kernel."""
        if self.phase == "update":
            self.work[UPDATE] += self._updated_times * (moved > 0)
            return
        factor = self._factor()
        self.work["flops"] += factor * flops
        self.work["bytes"] += factor * moved
        self.work["launches"] += factor * (moved > 0)

    def allocated(self, tensor: Any, kind: str, middle: bool, size: float | None = None) -> None:
        """Note a tensor's storage until it is freed, unless it is noted already.

        size: bytes, by default those of the storage.
        """
        storage = tensor.untyped_storage()
        if storage._cdata in self._storages:
            return
        size = storage.nbytes() if size is None else size
        self._storages[storage._cdata] = _Storage(kind, size, self.times if middle else 1)
        weakref.finalize(storage, self._freed, storage._cdata)
        self._event(storage._cdata, 1)

    def is_gradient(self, weight: Any) -> None:
        """Note that an activation became a weight's gradient."""
        key = weight.grad.untyped_storage()._cdata
        self._event(key, -1)
        self._storages[key] = self._storages[key]._replace(kind="gradients")
        self._event(key, 1)

    def _update_of_many(self, weights: Any, results: Any) -> None:
        """Note an operator on lists, which optimizers use. Each result has its weight's block."""
        self.work[UPDATE] += 1
        if not results:
            return
        for weight, result in zip(weights[0], results, strict=True):
            owner = self._storages.get(cost.storage(weight))
            middle = owner is not None and owner.times != 1
            self.allocated(result, "activations", middle)

    def _note_updated(self, args: Any) -> None:
        """Note whose update an operator is part of; one on temporary tensors alone goes on."""
        stored = [self._storages.get(cost.storage(tensor)) for tensor in cost.tensors(args)]
        times = [each.times for each in stored if each and each.kind in ("weights", "optimizer")]
        self._updated_times = max(times, default=self._updated_times)

    def _note_dequantized(self, tensor: Any) -> None:
        """Note the copy in 16 bits of a matrix in 4 bits, see `standins.quantize`."""
        storage = self._storages.get(cost.storage(tensor))
        if storage and storage.kind == "weights":
            self.work[DEQUANTIZED] += self._factor() * tensor.numel()

    def _factor(self) -> int:
        """Return how many blocks the present one stands for in this phase."""
        factor = self.times if self._middle() else 1
        return factor + (self.frozen if self.phase == "forward" and self.in_block == 0 else 0)

    def _middle(self) -> bool:
        return self.in_block == MIDDLE and self.times != 1

    def _freed(self, key: int) -> None:
        self._event(key, -1)
        del self._storages[key]

    def _event(self, key: int, sign: int) -> None:
        storage = self._storages[key]
        size = sign * storage.times * storage.size
        after = MIDDLE + 1 if self.phase == "forward" else MIDDLE - 1
        inside = self.times != 1 and self.in_block in (MIDDLE, after)
        self.events.append(Event(storage.kind, size, inside))


def watch(blocks: Any, timeline: Timeline) -> list[Any]:
    """Tell a timeline which block of a list runs; return the hooks' handles."""

    def hooks_of(number: int, block: Any) -> Iterator[Any]:
        def entered(_module: Any, _inputs: Any) -> None:
            # With checkpointing a block runs forward once more in its backward pass.
            if timeline.phase == "forward":
                timeline.in_block = number

        def left(_module: Any, _inputs: Any, output: Any) -> None:
            if timeline.phase == "forward":
                timeline.in_block = None
                first = cost.tensors(output)[0]
                if first.requires_grad:
                    first.register_hook(returned)

        def returned(_gradient: Any) -> None:
            timeline.in_block = number

        yield block.register_forward_pre_hook(entered)
        yield block.register_forward_hook(left)

    pairs = enumerate(blocks)
    return list(itertools.chain.from_iterable(hooks_of(number, block) for number, block in pairs))


def list_of_blocks(network: Any, count: int) -> str:
    """Return the name of the only list of so many modules in a network, or ""."""
    import torch

    names = [
        name
        for name, module in network.named_modules()
        if isinstance(module, torch.nn.ModuleList) and len(module) == count
    ]
    return names[0] if len(names) == 1 else ""
