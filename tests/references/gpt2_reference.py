"""GPT-2 of the notebook `gpt2_pretraining`, and of parts that PyTorch or transformers ship."""

import functools
import re
from types import SimpleNamespace
from typing import Any

import numpy as np
from notebook_code import twin
from references.trainings_reference import SHRINK, STEPS, Arrays, mlx_pass, seeded, torch_pass

from pomology.models.gpt2 import Shape

LR = 0.01  # so high that a difference in it shows in the loss


def shape(architecture: str) -> Shape:
    return Shape(architecture, blocks=2, width=32, heads=4, vocabulary=61, context=12)


def batches(shape: Shape) -> list[tuple[np.ndarray, np.ndarray]]:
    """Inputs and targets of three sequences for each step."""
    size = (STEPS + 1, 3, shape.context + 1)
    tokens = np.random.default_rng(2).integers(0, shape.vocabulary, size)
    return [(batch[:, :-1], batch[:, 1:]) for batch in tokens]


def forward(model: Any, inputs: Any, targets: Any) -> Any:
    return model(inputs)


def in_mlx(architecture: str) -> Arrays:
    """Return what the notebook's MLX gives, with the losses of its own compiled steps."""
    import mlx.core as mx
    from mlx.utils import tree_flatten

    code = twin("gpt2_pretraining_mlx")
    model = code.LanguageModel(shape(architecture))
    some = batches(shape(architecture))
    # With the correction that PyTorch always has.
    adamw = functools.partial(code.adamw, model, bias_correction=True)
    hooks = SimpleNamespace(forward=forward, optimizer=adamw)
    hooks.passes = lambda model: [(model, functools.partial(code.loss_function, model))]
    found = mlx_pass(hooks, model, LR, some)
    sizes = {name: array.shape for name, array in tree_flatten(model.parameters())}
    start = seeded(dict(sorted(sizes.items(), reverse=True)))
    model.load_weights([(name, mx.array(array)) for name, array in start.items()])
    case = SimpleNamespace(backend=SimpleNamespace(kind="cpu"))
    training = SimpleNamespace(step=code.step)
    step = code.compiled(case, training, model, adamw(LR, SHRINK / LR))
    losses = np.array([step(*batch, LR) for batch in some], np.float32)
    return found | {"losses": losses[:1], "later losses": losses[1:]}


def in_torch(architecture: str) -> dict[str, Arrays]:
    """Return what the notebook gives in float64, also with half the decay, and the reference."""
    import torch
    from notebook_code import definitions
    from torch.nn import functional as F

    from pomology.models.gpt2_torch import LanguageModel

    torch.set_default_dtype(torch.float64)
    size = shape(architecture)
    code = SimpleNamespace(**definitions("gpt2_pretraining"))
    shipped = reference_model(size)

    def passed(forward: Any, loss: Any, adamw: Any) -> Arrays:
        hooks = SimpleNamespace(forward=forward, optimizer=adamw)
        hooks.passes = lambda model: [(model, functools.partial(loss, model))]
        return torch_pass(hooks, LanguageModel(size), LR, batches(size))

    def reference(model: Any, inputs: Any, targets: Any) -> Any:
        weights = _reference_names(size, dict(model.named_parameters()))
        logits = torch.func.functional_call(shipped, weights, (inputs,))
        return getattr(logits, "logits", logits)

    def loss(model: Any, inputs: Any, targets: Any) -> Any:
        logits = reference(model, inputs, targets)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def adamw(model: Any, lr: float, decay: float) -> Any:
        return torch.optim.AdamW(model.parameters(), lr, weight_decay=decay)

    def halved(model: Any, lr: float, decay: float) -> Any:
        return code.adamw(model, lr, decay / 2)

    return {
        "reference": passed(reference, loss, adamw),
        "notebook": passed(forward, code.loss_function, code.adamw),
        "half the decay": passed(forward, code.loss_function, halved),
    }


def reference_model(shape: Shape) -> Any:
    """Return the model from parts that PyTorch ships, or transformers' GPT-2, without dropout."""
    if not shape.true:
        return _encoder(shape)
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_layer": shape.blocks, "n_embd": shape.width, "n_head": shape.heads}
    sizes |= {"vocab_size": shape.vocabulary, "n_positions": shape.positions}
    config = GPT2Config(bos_token_id=0, eos_token_id=0, use_cache=False, **sizes)
    return GPT2LMHeadModel(config).eval()


def _encoder(shape: Shape) -> Any:
    import torch
    from torch import nn

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            width, heads = shape.width, shape.heads
            self.embedding = nn.Embedding(shape.vocabulary, width)
            order = {"batch_first": True, "norm_first": True}
            layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, "relu", **order)
            layer.self_attn = nn.MultiheadAttention(width, heads, bias=False, batch_first=True)
            unnested = {"norm": nn.LayerNorm(width), "enable_nested_tensor": False}
            self.encoder = nn.TransformerEncoder(layer, shape.blocks, **unnested)
            self.head = nn.Linear(width, shape.vocabulary)

        def forward(self, tokens):
            length = tokens.shape[1]
            x = self.embedding(tokens) + torch.from_numpy(_sinusoids(shape)[:length])
            mask = torch.full((length, length), -torch.inf).triu(1)
            return self.head(self.encoder(x, mask=mask, is_causal=True))

    return Encoder()


def _sinusoids(shape: Shape) -> np.ndarray:
    """Positions x width: sines of all frequencies from 1 to 1/10,000, and then cosines."""
    rates = 10_000.0 ** -(np.arange(shape.width // 2) / (shape.width // 2 - 1))
    angles = np.arange(shape.context)[:, None] * rates
    return np.sqrt(2 / shape.width) * np.concatenate([np.sin(angles), np.cos(angles)], axis=1)


# What the reference calls a part of a name: transformers' GPT-2, and PyTorch's encoder.
_GPT2 = """layers.=transformer.h. inputs.=attn.c_attn. attention.out_proj=attn.c_proj
    linear1=mlp.c_fc linear2=mlp.c_proj ln1=ln_1 ln2=ln_2 ln.=transformer.ln_f.
    embedding=transformer.wte positions=transformer.wpe"""
_ENCODER = """layers.=encoder.layers. inputs.=self_attn.in_proj_ ln1=norm1 ln2=norm2
    attention.out_proj=self_attn.out_proj ln.=encoder.norm. out_proj=head"""


def _reference_names(shape: Shape, weights: dict[str, Any]) -> dict[str, Any]:
    """Return our weights by the reference's names; transformers keeps matrices transposed."""
    import torch

    parts: dict[str, list[Any]] = {}
    for name, array in weights.items():  # queries, keys and values come from one matrix there
        joint = re.sub(r"attention\.(query|key|value)_proj", "inputs", name)
        parts.setdefault(joint, []).append(array)
    table = dict(pair.split("=") for pair in (_GPT2 if shape.true else _ENCODER).split())
    pattern = re.compile("|".join(map(re.escape, table)))
    named = {}
    for name, arrays in parts.items():
        array = torch.cat(arrays)
        transposed = shape.true and array.dim() == 2 and name.startswith("layers.")
        named[pattern.sub(lambda part: table[part[0]], name)] = array.T if transposed else array
    return named
