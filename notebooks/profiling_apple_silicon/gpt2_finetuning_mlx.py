"""The training step of `gpt2_finetuning.ipynb` in MLX: the same models, loss and update."""

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim

from pomology import Workload
from pomology.models import pretrained
from pomology.models.gpt2_mlx import POSITIONS, WORDS, Classifier
from pomology.models.workload_mlx import also_moves, initialized

RANK = 8


def adamw(model, lr):
    options = {"betas": [0.9, 0.999], "weight_decay": 0.0, "bias_correction": True}
    return initialized(optim.AdamW(lr, **options), model)


def loss_function(model, tokens, mask, labels):
    return nn.losses.cross_entropy(model(tokens, mask), labels, reduction="mean")


def step(model, optimizer, tokens, mask, labels):
    loss, gradients = nn.value_and_grad(model, loss_function)(model, tokens, mask, labels)
    gradients, _ = optim.clip_grad_norm(gradients, 1.0)
    optimizer.update(model, gradients)
    return loss


def flops(tokens, width, layers, lora):
    """Return the FLOPs of a step for each review; the notebook explains them."""
    dense, score = tokens * 12 * width**2, tokens * 2 * width
    attention = 2 * tokens**2 * width
    if not lora:
        return 6 * (layers * (dense + attention) + score)
    adapters = tokens * RANK * 4 * width
    first = tokens * (3 * width**2 + RANK * width)
    return 2 * (layers * (2 * dense + 3 * attention + 3 * adapters) + 3 * score - first)


def elements(tokens, width, layers, heads, lora):
    """Return the elements that PyTorch's operators keep and move for each review."""
    kept, moved = (25 * width + 12, 341 * width + 56) if lora else (30 * width + 4, 321 * width + 8)
    kept = layers * (kept + 3 * heads * tokens)
    moved = layers * (moved + (22 * heads + 2.25) * tokens) + (width if lora else 23 * width + 12)
    return tokens * (kept + (0 if lora else 3 * width + 4)), tokens * (moved + 14.5)


def workload(config, text_tokens, lr):
    """Return the workload of a case's settings, for reviews of so many tokens."""
    model, lora = config["model"], config["lora"]
    width, layers, heads = (pretrained.sizes(model)[key] for key in ("n_embd", "n_layer", "n_head"))
    score, adapters = 2 * width, layers * RANK * 4 * width
    whole = (WORDS + POSITIONS) * width + layers * (12 * width**2 + 13 * width) + 2 * width
    kept, moved = elements(text_tokens, width, layers, heads, lora)

    def batch(batch_size):
        tokens = mx.random.randint(0, WORDS - 1, (batch_size, text_tokens))
        return tokens, mx.ones_like(tokens), mx.random.randint(0, 2, (batch_size,))

    return Workload(
        build=lambda: Classifier(width, layers, heads, rank=RANK if lora else 0),
        batch=batch,
        optimizer=lambda network: adamw(network, lr),
        step=step,
        parameters=whole + score + (adapters if lora else 0),
        trained=adapters + score if lora else None,
        flops_per_sample=flops(text_tokens, width, layers, lora),
        optimizer_class="AdamW",
        slots=2,
        saved_bytes_per_sample=4 * kept,
        moved_bytes_per_sample=4 * moved,
        # The passes use few rows of the embeddings.
        adjust=also_moves(-2 * 4 * (WORDS + POSITIONS) * width),
    )
