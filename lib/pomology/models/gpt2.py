"""GPT-2's shapes as article 001 pre-trains them, and the proof that a notebook's model is the one that it should be.

The notebooks write model, optimiser and step out themselves. Before anything is timed these are held against one
reference in float64 (`gpt2_reference`), from weights and tokens that no framework made.
"""

from __future__ import annotations

import functools
import re
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pomology.errors import Mismatch, PomologyError
from pomology.measure import epochs
from pomology.models import isolated
from pomology.models.cost import Workload

STEPS = 3  # of AdamW in the proof
# And the vocabulary of each: the words of Penn Treebank, and the byte pairs of GPT-2.
ARCHITECTURES = {"transformer_lm": 10_000, "true_gpt2": 50_257}
# Blocks, width, heads. The last two are no GPT-2, but have its shape.
SIZES = {"gpt2-large": (36, 1280, 20), "gpt2-medium": (24, 1024, 16), "gpt2": (12, 768, 12)}
SIZES |= {"gpt2-mini": (4, 256, 4), "gpt2-micro": (2, 128, 2)}
ARTICLE = ("gpt2-large", (8, 4, 2), 1024)  # table 4: model, batch sizes; and the context that its times imply


@dataclass(frozen=True)
class Shape:
    """What a model is built from. heads divide the width, which is even; context is the longest sequence."""

    architecture: str
    blocks: int
    width: int
    heads: int
    vocabulary: int
    context: int

    @property
    def true(self) -> bool:
        """Whether it is the true GPT-2: GELU, learned positions, biases in the attention, a tied head."""
        return self.architecture == "true_gpt2"

    @property
    def positions(self) -> int:
        """Positions that the true GPT-2 learns, however short the sequences are."""
        return max(1024, self.context)

    @property
    def parameters(self) -> int:
        """The number of weights, by formula."""
        square, vector = self.width**2, self.width
        block = 12 * square + 9 * vector + (4 * vector if self.true else 0)
        ends = self.positions * vector if self.true else self.vocabulary * (vector + 1)
        return self.blocks * block + self.vocabulary * vector + 2 * vector + ends

    def workload(self, batch_size: int) -> Workload:
        """A step with AdamW by formula, for a framework that keeps attention's matrices and cannot count on `meta`."""
        tokens, vector = batch_size * self.context, self.width
        products = 12 * vector**2 * self.blocks + vector * self.vocabulary
        flops = 6 * tokens * products + 12 * self.blocks * vector * self.context * tokens  # backward twice the forward
        # A block keeps of a token what enters normalisations, the five matrices and attention, and a row for each head.
        kept = (16 if self.true else 12) * vector + self.heads * self.context
        saved = 4 * tokens * (self.blocks * kept + 2 * vector + self.vocabulary)
        return Workload(self.parameters, flops, 16 * self.parameters, saved)


def shape(model: str, context_size: int, architecture: str, vocabulary: int = 0, words: int = 0) -> Shape:
    """The shape of a model by its name in `SIZES`. vocabulary: 0 is the architecture's own. words: those of the text.

    Raises PomologyError for other names, and for a vocabulary smaller than the text's.
    """
    if architecture not in ARCHITECTURES:
        raise PomologyError(f"architecture is {architecture!r}; it must be one of {', '.join(ARCHITECTURES)}")
    if model not in SIZES:
        raise PomologyError(f"model {model!r} is not known; one of {', '.join(SIZES)} is")
    vocabulary = vocabulary or ARCHITECTURES[architecture]
    if vocabulary < words:
        raise PomologyError(f"vocabulary is {vocabulary}; it must be at least {words:,}, the words of the text")
    return Shape(architecture, *SIZES[model], vocabulary, context_size)


def row(text: str) -> dict[str, Any]:
    """The settings of a case from `gpt2-large 8x1024`: model, sequences a step, tokens in each. Else PomologyError."""
    found = re.fullmatch(r"(\S+) ([1-9]\d*)x([1-9]\d*)", text)
    if not found or found[1] not in SIZES:
        models = ", ".join(SIZES)
        raise PomologyError(f"{text!r} must read `MODEL BATCHxCONTEXT`, as `gpt2 2x128`, with one of {models}")
    return {"model": found[1], "batch_size": int(found[2]), "context_size": int(found[3])}


def scaled(config: dict[str, Any]) -> bool:
    """Whether a case is another than those of the article's table."""
    model, batch_sizes, context_size = ARTICLE
    return (config["model"], config["context_size"]) != (model, context_size) or config["batch_size"] not in batch_sizes


def note_pass(case: Any) -> None:
    """Record `pass_s`: a whole step, forward, backward and update, as table 4 has it: the mean of the steady ones."""
    if (step := epochs.epoch_metrics(case.clock).get("step_s")) is not None:
        case.metric("pass_s", step)


@dataclass(frozen=True)
class Trial:
    """A small model with weights by name, and tokens, on which both frameworks and the reference make three steps."""

    shape: Shape
    bias_correction: bool = True
    lr: float = 0.01  # so high that a difference in it shows in the loss
    weight_decay: float = 0.5

    @functools.cached_property
    def weights(self) -> dict[str, np.ndarray]:
        """By name, as float32: every number another, and large enough that an activation shows its bends."""
        generator = np.random.default_rng(1)
        found = {}
        for name, size in _names(self.shape).items():
            spread = 2.5 / np.sqrt(size[-1]) if len(size) == 2 else 0.3
            middle = 1.0 if re.search(r"ln\d?\.weight$", name) else 0.0
            found[name] = generator.normal(middle, spread, size).astype(np.float32)
        return found

    @functools.cached_property
    def tokens(self) -> np.ndarray:
        """3 sequences, each one token longer than the context."""
        return np.random.default_rng(2).integers(0, self.shape.vocabulary, (3, self.shape.context + 1))

    @property
    def checksum(self) -> int:
        """A number that is the same for the same beginning and steps, but for the bias correction of these."""
        arrays = (np.ascontiguousarray(array).tobytes() for array in (*self.weights.values(), self.tokens))
        return zlib.crc32(b"".join((repr(replace(self, bias_correction=True)).encode(), *arrays)))


def trial(architecture: str, bias_correction: bool = True) -> Trial:
    """The small model on which an architecture is proved."""
    return Trial(Shape(architecture, blocks=2, width=32, heads=4, vocabulary=61, context=12), bias_correction)


def prove(
    case: Any, architecture: str, build: Callable, loss_function: Callable, optimizer: Callable, corrects: bool = True
) -> None:
    """Hold a notebook's model, loss and three steps of its AdamW against the reference, see `check`; Mismatch ends the
    case. build, loss_function, optimizer: as of `torch_pass` or `mlx_pass`. corrects: with bias correction."""
    small, mlx = trial(architecture, corrects), case.backend.framework == "mlx"
    given = (small, build, loss_function, optimizer)
    check(case, small, mlx_pass(*given) if mlx else torch_pass(*given, case.device))


def _names(shape: Shape) -> dict[str, tuple[int, ...]]:
    """The weights of a model, by the names that both notebooks give them, in the layout of PyTorch and MLX."""

    def part(name: str, *size: int, bias: bool = True) -> dict[str, tuple[int, ...]]:
        return {f"{name}.weight": size} | ({f"{name}.bias": size[:1]} if bias else {})

    width, block = shape.width, {}
    for name in ("query", "key", "value", "out"):
        block |= part(f"attention.{name}_proj", width, width, bias=shape.true)
    block |= part("ln1", width) | part("ln2", width)
    block |= part("linear1", 4 * width, width) | part("linear2", width, 4 * width)
    found = part("embedding", shape.vocabulary, width, bias=False)
    found |= part("positions", shape.positions, width, bias=False) if shape.true else {}
    found |= {f"layers.{n}.{name}": size for n in range(shape.blocks) for name, size in block.items()}
    return found | part("ln", width) | ({} if shape.true else part("out_proj", shape.vocabulary, width))


def check(case: Any, trial: Trial, given: dict[str, np.ndarray]) -> None:
    """Hold what a framework gave (of `torch_pass` or `mlx_pass`) against the reference; Mismatch ends the case."""
    # Without those of key biases, which are 0 but for rounding: they add as much to all scores of a query, which
    # softmax ignores.
    both = [
        {name: found[name] for name in sorted(found) if not name.endswith("key_proj.bias")}
        for found in (given, in_reference(trial))
    ]
    case.metric("inputs_checksum", trial.checksum, "")
    # As shares of the largest. fp32 errs by less than one part in a million in logits and losses, and three in
    # gradients; GELU without tanh is a part in ten thousand off. TF32 errs by 0.3 % and 4 % in simulation: that the
    # model is the right one, only the row in true fp32 shows.
    times = 1000 if case.precision == "tf32" else 1
    for word, allowed in (("logits", 3e-5), ("gradient", 3e-4), ("losses", 3e-5)):
        pair = [{name: one[name] for name in one if name.startswith(word)} for one in both]
        case.check(*pair, times * allowed, "against the reference", relative=True)
    what = "transformers' GPT-2" if trial.shape.true else "PyTorch's own encoder"
    case.note(f"the same as {what}" + ("" if trial.bias_correction else "; AdamW without bias correction"))


@functools.cache
def in_reference(trial: Trial) -> dict[str, np.ndarray]:
    """What `gpt2_reference.reference` gives; from a process of its own where this one holds MLX.

    Raises PomologyError if that fails.
    """
    if "mlx.core" in sys.modules:
        return isolated.call("the reference in PyTorch", "pomology.models.gpt2_reference:reference", trial)
    from pomology.models import gpt2_reference

    return gpt2_reference.reference(trial)


def _agree(shapes: dict[str, tuple[int, ...]], trial: Trial) -> None:
    """Raise Mismatch unless a model has the weights that it should have."""
    wanted = _names(trial.shape)
    for name in sorted(wanted.keys() | shapes.keys()):
        if shapes.get(name) != wanted.get(name):
            raise Mismatch(f"the weight {name} is {shapes.get(name)}, {wanted.get(name)} in the reference's model")


def torch_pass(
    trial: Trial, build: Callable, loss_function: Callable, optimizer: Callable, device: Any = "cpu"
) -> dict[str, np.ndarray]:
    """What a notebook's PyTorch makes of a trial: `logits`, `gradient NAME`, and `losses` before and after each step.

    build: of a shape. loss_function: of (model, inputs, targets). optimizer: of (model, lr, weight_decay). Raises
    Mismatch if the model has other weights than the reference.
    """
    import torch

    model = build(trial.shape).to(device)
    _agree({name: tuple(weight.shape) for name, weight in model.named_parameters()}, trial)
    model.load_state_dict({name: torch.from_numpy(array) for name, array in trial.weights.items()})
    tokens = torch.from_numpy(trial.tokens).to(device)
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    found = {"logits": model(inputs).detach().cpu().numpy()}
    made, losses = optimizer(model, trial.lr, trial.weight_decay), []
    for step in range(STEPS + 1):
        made.zero_grad(set_to_none=True)
        loss = loss_function(model, inputs, targets)
        loss.backward()
        losses.append(loss.item())
        if step == 0:
            for name, weight in model.named_parameters():
                gradient = torch.zeros_like(weight) if weight.grad is None else weight.grad
                found[f"gradient {name}"] = gradient.cpu().numpy()
        made.step()
    return found | {"losses": np.array(losses, np.float32)}


def mlx_pass(trial: Trial, build: Callable, loss_function: Callable, training: Callable) -> dict[str, np.ndarray]:
    """The same of a notebook's MLX. training: of (model, lr, weight_decay), gives a step of (inputs, targets) that
    returns its loss, and the optimiser."""
    import mlx.core as mx
    import mlx.nn as nn
    from mlx.utils import tree_flatten

    model = build(trial.shape)
    _agree({name: array.shape for name, array in tree_flatten(model.parameters())}, trial)
    model.load_weights([(name, mx.array(array)) for name, array in trial.weights.items()])
    inputs, targets = mx.array(trial.tokens[:, :-1]), mx.array(trial.tokens[:, 1:])
    found = {"logits": np.array(model(inputs))}
    _, gradients = nn.value_and_grad(model, lambda *given: loss_function(model, *given))(inputs, targets)
    found |= {f"gradient {name}": np.array(array) for name, array in tree_flatten(gradients)}
    step, _ = training(model, trial.lr, trial.weight_decay)
    return found | {"losses": np.array([step(inputs, targets) for _ in range(STEPS + 1)], np.float32)}
