"""GPT-2's shapes as article 001 pre-trains them, and the proof that a notebook's model is the one that it should be.

The notebooks `gpt2_pretraining_torch` and `gpt2_pretraining_mlx` write their model, optimiser and step out themselves.
Before anything is timed both are held against one reference: built from the parts that PyTorch ships
(`transformer_lm`), or transformers' own GPT-2 (`true_gpt2`), in float64 on the CPU, with AdamW as its authors wrote it.
Weights and tokens are made by neither framework. What agrees with the reference agrees with each other.

One process holds one framework, so MLX's reference comes from another: `python -m pomology.workloads.gpt2`.
"""

from __future__ import annotations

import functools
import re
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pomology.errors import Mismatch, PomologyError
from pomology.measure import epochs
from pomology.workloads.cost import Workload

if TYPE_CHECKING:
    from pomology.experiment.case import Case

# And the vocabulary of each: the words of Penn Treebank, and the byte pairs of GPT-2.
ARCHITECTURES = {"transformer_lm": 10_000, "true_gpt2": 50_257}
# Blocks, width, heads. The last two are no GPT-2, but have its shape.
SIZES = {
    "gpt2-large": (36, 1280, 20),
    "gpt2-medium": (24, 1024, 16),
    "gpt2": (12, 768, 12),
    "gpt2-mini": (4, 256, 4),
    "gpt2-micro": (2, 128, 2),
}
ARTICLE = ("gpt2-large", (8, 4, 2), 1024)  # table 4: model, batch sizes; and the context that its times imply
STEPS = 3  # of AdamW in the proof


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
        """A step with AdamW by formula, for a framework that keeps attention's matrices and cannot count on `meta`.

        Two operations a multiply-add in products and attention, and backward twice as many as forward. Kept of each
        token are, in a block, 12 vectors (what enters the normalisations, the five matrices and the attention; GELU
        keeps 4 more), and a row of attention for each head; and at the end 2 vectors, and a number for each word.
        """
        tokens, vector = batch_size * self.context, self.width
        products = 12 * vector**2 * self.blocks + vector * self.vocabulary
        kept = (16 if self.true else 12) * vector + self.heads * self.context
        return Workload(
            parameters=self.parameters,
            flops=6 * tokens * products + 12 * self.blocks * vector * self.context * tokens,
            state_bytes=16 * self.parameters,
            saved_bytes=4 * tokens * (self.blocks * kept + 2 * vector + self.vocabulary),
        )


def shape(model: str, context_size: int, architecture: str, vocabulary: int = 0, words: int = 0) -> Shape:
    """The shape of a model by its name in `SIZES`. vocabulary: 0 is the architecture's own. words: those of the text.

    Raises PomologyError for names that are none, and for a vocabulary smaller than the text's.
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
    """The settings of a case from `gpt2-large 8x1024`: model, sequences a step, tokens in each.

    Raises PomologyError if the text is not of this form.
    """
    found = re.fullmatch(r"(\S+) ([1-9]\d*)x([1-9]\d*)", text)
    if not found or found[1] not in SIZES:
        models = ", ".join(SIZES)
        raise PomologyError(f"{text!r} must read `MODEL BATCHxCONTEXT`, as `gpt2 2x128`, with one of {models}")
    return {"model": found[1], "batch_size": int(found[2]), "context_size": int(found[3])}


def scaled(config: dict[str, Any]) -> bool:
    """Whether a case is another than those of the article's table."""
    model, batch_sizes, context_size = ARTICLE
    same = config["model"] == model and config["context_size"] == context_size and config["batch_size"] in batch_sizes
    return not same


def note_pass(case: Case) -> None:
    """Record `pass_s`: a whole step, forward, backward and update, as table 4 has it: the mean of the steady ones."""
    step = epochs.epoch_metrics(case.clock).get("step_s")
    if step is not None:
        bounds = {name: step[name] for name in ("low", "high", "n", "how")}
        case.metric("pass_s", step["value"], "s", **bounds)


# The proof ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trial:
    """A small model with weights by name, and tokens, on which both frameworks and the reference make three steps.

    Learning rate and weight decay are so high that a difference in either shows in the loss.
    """

    shape: Shape
    bias_correction: bool = True
    lr: float = 0.01
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
        """A number that is the same for the same beginning."""
        found = zlib.crc32(repr(self).encode())
        for array in (*self.weights.values(), self.tokens):
            found = zlib.crc32(np.ascontiguousarray(array).tobytes(), found)
        return found


def trial(architecture: str, bias_correction: bool = True) -> Trial:
    """The small model on which an architecture is proved."""
    return Trial(Shape(architecture, blocks=2, width=32, heads=4, vocabulary=61, context=12), bias_correction)


def _names(shape: Shape) -> dict[str, tuple[int, ...]]:
    """The weights of a model, by the names that both notebooks give them, in the layout of PyTorch and MLX."""
    width, found = shape.width, {"embedding.weight": (shape.vocabulary, shape.width)}
    if shape.true:
        found["positions.weight"] = (shape.positions, width)
    for number in range(shape.blocks):
        block = f"layers.{number}"
        for name in ("query_proj", "key_proj", "value_proj", "out_proj"):
            found[f"{block}.attention.{name}.weight"] = (width, width)
            if shape.true:
                found[f"{block}.attention.{name}.bias"] = (width,)
        for name in ("ln1", "ln2"):
            found |= {f"{block}.{name}.weight": (width,), f"{block}.{name}.bias": (width,)}
        found |= {f"{block}.linear1.weight": (4 * width, width), f"{block}.linear1.bias": (4 * width,)}
        found |= {f"{block}.linear2.weight": (width, 4 * width), f"{block}.linear2.bias": (width,)}
    found |= {"ln.weight": (width,), "ln.bias": (width,)}
    if not shape.true:
        found |= {"out_proj.weight": (shape.vocabulary, width), "out_proj.bias": (shape.vocabulary,)}
    return found


def check(case: Case, trial: Trial, found: dict[str, np.ndarray], tolerance: float = 3e-5) -> None:
    """Hold what a framework gave (of `torch_pass` or `mlx_pass`) against the reference; Mismatch ends the case.

    tolerance: of logits and losses, as a share of the largest; of each gradient ten times that. fp32 errs by less than
    one part in a million in logits and losses, and three in gradients; GELU without tanh is a part in ten thousand off.
    The largest absolute difference is recorded as `max_abs_error`.
    """
    both = _with_key_biases(found), _with_key_biases(in_reference(trial))
    case.metric("inputs_checksum", trial.checksum, "")
    for word, allowed in (("logits", tolerance), ("gradient", 10 * tolerance), ("losses", tolerance)):
        pair = [{name: one[name] for name in sorted(one) if name.startswith(word)} for one in both]
        case.check(*pair, allowed, "against the reference", relative=True)
    what = "transformers' GPT-2" if trial.shape.true else "PyTorch's own encoder"
    case.note(f"the same as {what}")


def _with_key_biases(found: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The gradient of each key bias behind that of the query bias, and not by itself.

    A key bias adds as much to all scores of a query, which softmax ignores: its gradient is 0 but for rounding, and
    rounding has no share of itself that could be told.
    """
    kept = dict(found)
    for name in found:
        if name.endswith("key_proj.bias"):
            query = name.replace("key_proj", "query_proj")
            kept[query] = np.concatenate([kept[query], kept.pop(name)])
    return kept


def _agree(shapes: dict[str, tuple[int, ...]], trial: Trial) -> None:
    """Raise Mismatch unless a model has the weights that it should have."""
    wanted = {name: array.shape for name, array in trial.weights.items()}
    missing, more = sorted(wanted.keys() - shapes.keys()), sorted(shapes.keys() - wanted.keys())
    if missing or more:
        parts = [f"lacks {', '.join(missing[:3])}"] if missing else []
        parts += [f"has {', '.join(more[:3])} too"] if more else []
        raise Mismatch(f"the model {' and '.join(parts)}: another model than the reference")
    for name, size in wanted.items():
        if shapes[name] != size:
            raise Mismatch(f"the model's {name} is {shapes[name]}; the reference's is {size}")


def torch_pass(
    trial: Trial, build: Callable[[Shape], Any], loss_function: Callable, optimizer: Callable, device: Any = "cpu"
) -> dict[str, np.ndarray]:
    """What a notebook's PyTorch makes of a trial: `logits`, `gradient NAME`, and `losses` before and after each step.

    build: makes the model of a shape. loss_function: of (model, inputs, targets). optimizer: of (model, lr,
    weight_decay). Raises Mismatch if the model has other weights than the reference.
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
                gradient = torch.zeros_like(weight) if weight.grad is None else weight.grad  # one that nothing uses
                found[f"gradient {name}"] = gradient.cpu().numpy()
        made.step()
    return found | {"losses": np.array(losses, np.float32)}


def mlx_pass(
    trial: Trial, build: Callable[[Shape], Any], loss_function: Callable, training: Callable
) -> dict[str, np.ndarray]:
    """The same of a notebook's MLX. training: of (model, lr, weight_decay), gives a step of (inputs,
    targets) that returns its loss, and the optimiser."""
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


# The reference, in PyTorch --------------------------------------------------------------------------------------------


def reference_model(shape: Shape) -> Any:
    """The model from parts that PyTorch ships, or GPT-2 from transformers, without dropout."""
    return _true_gpt2(shape) if shape.true else _transformer_lm(shape)


def _transformer_lm(shape: Shape) -> Any:
    import torch
    from torch import nn

    class Reference(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(shape.vocabulary, shape.width)
            waves = torch.from_numpy(_sinusoids(shape)).to(torch.get_default_device(), torch.get_default_dtype())
            self.register_buffer("waves", waves, persistent=False)
            form = {"dim_feedforward": 4 * shape.width, "dropout": 0.0, "batch_first": True, "norm_first": True}
            layer = nn.TransformerEncoderLayer(shape.width, shape.heads, activation="relu", **form)
            layer.self_attn = nn.MultiheadAttention(shape.width, shape.heads, bias=False, batch_first=True)
            ln = nn.LayerNorm(shape.width)
            self.encoder = nn.TransformerEncoder(layer, shape.blocks, ln, enable_nested_tensor=False)
            self.head = nn.Linear(shape.width, shape.vocabulary)

        def forward(self, tokens):
            length, waves = tokens.shape[1], self.waves[: tokens.shape[1]]
            x = self.embedding(tokens) + waves
            mask = torch.full((length, length), -torch.inf, dtype=x.dtype, device=x.device).triu(1)
            return self.head(self.encoder(x, mask=mask, is_causal=True))

    return Reference()


def _sinusoids(shape: Shape) -> np.ndarray:
    """Positions x width, in float64: sines of all frequencies from 1 to 1/10,000, and then cosines."""
    rates = 10_000.0 ** -(np.arange(shape.width // 2) / (shape.width // 2 - 1))
    turns = np.arange(shape.context)[:, None] * rates
    return np.sqrt(2 / shape.width) * np.concatenate([np.sin(turns), np.cos(turns)], axis=1)


def _true_gpt2(shape: Shape) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=shape.blocks,
        n_embd=shape.width,
        n_head=shape.heads,
        vocab_size=shape.vocabulary,
        n_positions=shape.positions,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
    )
    return GPT2LMHeadModel(config)


def _reference_names(shape: Shape, weights: dict[str, Any]) -> dict[str, Any]:
    """Our weights under the reference's names and in its layouts: transformers keeps matrices inputs x outputs."""
    import torch

    found = {}

    def give(theirs: str, ours: str, *, turned: bool = False) -> None:
        for kind in ("weight", "bias"):
            if f"{ours}.{kind}" in weights:
                array = weights[f"{ours}.{kind}"]
                found[f"{theirs}.{kind}"] = array.T if turned and kind == "weight" else array

    def fused(block: str, kind: str) -> Any:
        return torch.cat([weights[f"{block}.attention.{name}_proj.{kind}"] for name in ("query", "key", "value")])

    for number in range(shape.blocks):
        ours = f"layers.{number}"
        if shape.true:
            theirs = f"transformer.h.{number}"
            found[f"{theirs}.attn.c_attn.weight"] = fused(ours, "weight").T
            found[f"{theirs}.attn.c_attn.bias"] = fused(ours, "bias")
            products = {"attn.c_proj": "attention.out_proj", "mlp.c_fc": "linear1", "mlp.c_proj": "linear2"}
            norms = {"ln_1": "ln1", "ln_2": "ln2"}
        else:
            theirs = f"encoder.layers.{number}"
            found[f"{theirs}.self_attn.in_proj_weight"] = fused(ours, "weight")
            products = {"self_attn.out_proj": "attention.out_proj", "linear1": "linear1", "linear2": "linear2"}
            norms = {"norm1": "ln1", "norm2": "ln2"}
        for one, other in (products | norms).items():
            give(f"{theirs}.{one}", f"{ours}.{other}", turned=shape.true and one in products)
    ends = {"transformer.wte": "embedding", "transformer.wpe": "positions", "transformer.ln_f": "ln"}
    for one, other in (
        ends if shape.true else {"embedding": "embedding", "encoder.norm": "ln", "head": "out_proj"}
    ).items():
        give(one, other)
    return found


def reference(trial: Trial) -> dict[str, np.ndarray]:
    """What `torch_pass` should give, computed in float64 on the CPU by `reference_model`.

    The optimiser is AdamW as in Loshchilov and Hutter, Decoupled Weight Decay Regularization, ICLR 2019, algorithm 2;
    without `bias_correction` the averages are used as they are.
    """
    import torch
    from torch.nn import functional as F

    model = reference_model(trial.shape)
    if not trial.shape.true:
        model.waves = torch.from_numpy(_sinusoids(trial.shape))  # those of the model were float32 once
    exact = {name: array.astype(np.float64) for name, array in trial.weights.items()}  # in place of the model's own
    weights = {name: torch.from_numpy(array).requires_grad_() for name, array in exact.items()}
    tokens = torch.from_numpy(trial.tokens)
    averages = {name: (torch.zeros_like(weight), torch.zeros_like(weight)) for name, weight in weights.items()}
    found, losses = {}, []
    for step in range(1, STEPS + 2):
        named = _reference_names(trial.shape, weights)
        logits = torch.func.functional_call(model, named, (tokens[:, :-1],))
        logits = getattr(logits, "logits", logits)
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        gradients = dict(zip(weights, torch.autograd.grad(loss, list(weights.values())), strict=True))
        losses.append(loss.item())
        if step == 1:
            found = {"logits": logits.detach().float().numpy()}
            found |= {f"gradient {name}": gradient.float().numpy() for name, gradient in gradients.items()}
        with torch.no_grad():
            for name, weight in weights.items():
                m, v = averages[name]
                m.mul_(0.9).add_(gradients[name], alpha=0.1)
                v.mul_(0.999).addcmul_(gradients[name], gradients[name], value=0.001)
                one, two = (1 - 0.9**step, 1 - 0.999**step) if trial.bias_correction else (1.0, 1.0)
                weight.sub_(trial.lr * ((m / one) / ((v / two).sqrt() + 1e-8) + trial.weight_decay * weight))
    return found | {"losses": np.array(losses, np.float32)}


@functools.cache
def in_reference(trial: Trial) -> dict[str, np.ndarray]:
    """What `reference` gives; from a process of its own where this one holds MLX. Raises PomologyError if it fails."""
    if "mlx.core" not in sys.modules:
        return reference(trial)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, "found.npz")
        command = [
            sys.executable,
            "-m",
            "pomology.workloads.gpt2",
            trial.shape.architecture,
            str(trial.bias_correction),
        ]
        done = subprocess.run([*command, str(place)], capture_output=True, text=True, check=False)
        if done.returncode:
            last = (done.stderr.strip().split("\n") or [""])[-1]
            raise PomologyError(f"the reference in PyTorch ended with status {done.returncode}: {last}")
        with np.load(place) as arrays:
            return dict(arrays)


def _main(architecture: str, bias_correction: str, place: str) -> None:
    np.savez(place, **reference(trial(architecture, bias_correction == "True")))


if __name__ == "__main__":
    _main(*sys.argv[1:])
