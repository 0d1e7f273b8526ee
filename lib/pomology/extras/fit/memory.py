"""Count the memory of a training step on `meta`, tensor by tensor, with its work."""

from __future__ import annotations

import functools
import weakref
from collections import Counter
from typing import Any, NamedTuple

from pomology.extras.fit import networks
from pomology.extras.prediction import work
from pomology.extras.prediction.work import Work
from pomology.models import cost


class Need(NamedTuple):
    """Parameters, and bytes at the moment of a training step when most is allocated.

    parts: bytes of weights, gradients, optimizer, activations (with temporary tensors) and logits
    (tensors over the vocabulary). bytes: their sum. work: of the step.
    """

    parameters: int
    trained: int
    parts: dict[str, float]
    bytes: float
    work: Work


class LiveBytes:
    """The bytes of the storages that exist, by kind.

    peak: the bytes when their sum was largest. vocabulary: the last dimension of logits.
    """

    def __init__(self, vocabulary: int):
        self.vocabulary = vocabulary
        self.now: Counter[str] = Counter()
        self.peak: Counter[str] = Counter()
        self._kinds: dict[int, str] = {}  # of each storage that exists

    def note(self, _function: Any, _args: Any, _kwargs: Any, result: Any) -> None:
        """Count the new storages of an operator's result."""
        for tensor in cost.tensors(result):
            logits = tensor.dim() > 1 and tensor.shape[-1] == self.vocabulary
            self.add(tensor, "logits" if logits else "activations")

    def add(self, tensor: Any, kind: str) -> None:
        """Count a tensor's storage until it is freed, unless it is counted already."""
        storage = tensor.untyped_storage()
        if storage._cdata not in self._kinds:
            self._kinds[storage._cdata] = kind
            weakref.finalize(storage, self._free, storage._cdata, storage.nbytes())
            self.now[kind] += storage.nbytes()
            if self.now.total() > self.peak.total():
                self.peak = self.now.copy()

    def is_gradient(self, weight: Any) -> None:
        """Count a weight's gradient, which exists already, as such."""
        key = weight.grad.untyped_storage()._cdata
        self.now[self._kinds[key]] -= weight.grad.nbytes
        self.now["gradients"] += weight.grad.nbytes
        self._kinds[key] = "gradients"

    def _free(self, key: int, size: int) -> None:
        self.now[self._kinds.pop(key)] -= size


@functools.cache
def count(name: str, plan: networks.Plan, backend: str) -> Need:
    """Count a step of a model, with its optimizer's update, without allocating anything.

    name: see `networks.find`. backend: where the step will run.
    """
    import torch

    network = networks.build(networks.find(name), plan)
    trained = [weight for weight in network.parameters() if weight.requires_grad]
    sgd = functools.partial(torch.optim.SGD, momentum=0.9)
    optimizer = (sgd if plan.optimizer == "sgd" else torch.optim.AdamW)(trained)
    step = functools.partial(networks.one_step, plan=plan)
    # The bytes of weights in half precision are those of their type, so nothing is scaled.
    counted = work.count(network, step, lambda _: [optimizer], "fp32", backend)
    network.zero_grad()
    live = LiveBytes(getattr(network.config, "vocab_size", 0))
    # What is allocated before the step; the rest is noted while it runs.
    for tensor in [*network.parameters(), *network.buffers()]:
        live.add(tensor, "weights")
    for tensor in cost.tensors(*optimizer.state.values()):
        live.add(tensor, "optimizer")
    for weight in trained:
        weight.register_post_accumulate_grad_hook(live.is_gradient)
    with cost.fused_attention(backend, lambda *_: None), work.watched(live.note):
        step(network)
        optimizer.step()
    # The counted model has its weights unquantized, so what quantization saves is taken off.
    if plan.method == "qlora":
        saved_bits = 8 * network.dtype.itemsize - networks.QUANTIZED_BITS[plan.framework]
        live.peak["weights"] -= networks.quantized(network) * saved_bits / 8
    changed = sum(weight.numel() for weight in trained)
    frozen = sum(weight.numel() for weight in network.parameters()) - changed
    return Need(frozen if frozen else changed, changed, dict(live.peak), live.peak.total(), counted)
