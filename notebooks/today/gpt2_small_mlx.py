"""The training step of `gpt2_small.ipynb` in MLX: the same model, loss and update, in fp32."""

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim

from pomology import Workload
from pomology.models.gpt2_mlx import POSITIONS, WORDS, LanguageModel
from pomology.models.workload_mlx import also_moves, initialized, one_update

WIDTH, HEADS = 768, 12
BLOCK, LAST = 12 * WIDTH**2, WORDS * WIDTH  # weights of matrices


def adamw(model, lr):
    options = {"betas": [0.9, 0.95], "weight_decay": 0.01, "bias_correction": True}
    return initialized(optim.AdamW(lr, **options), model)


def loss_function(model, tokens):
    return nn.losses.cross_entropy(model(tokens[:, :-1]), tokens[:, 1:], reduction="mean")


def workload(config, layers, lr):
    """Return the workload of a case's settings.

    Bytes are those that PyTorch's operators keep and move, by the numbers of their elements.
    """
    sequence = config["sequence"]
    kept = layers * (28 * WIDTH + 4 + HEADS * sequence) + WORDS + 2 * WIDTH + 6  # of a token
    moved = layers * (303 * WIDTH + 8 + 13 * HEADS * sequence) + 9 * WORDS + 14 * WIDTH + 16
    return Workload(
        build=lambda: LanguageModel(WIDTH, layers, HEADS),
        batch=lambda batch_size: (mx.random.randint(0, WORDS, (batch_size, sequence + 1)),),
        optimizer=lambda model: adamw(model, lr),
        step=one_update(loss_function),
        parameters=LAST + POSITIONS * WIDTH + layers * (BLOCK + 13 * WIDTH) + 2 * WIDTH,
        flops_per_sample=6 * sequence * (layers * (BLOCK + 2 * WIDTH * sequence) + LAST),
        optimizer_class="AdamW",
        slots=2,
        saved_bytes_per_sample=4 * sequence * kept,
        moved_bytes_per_sample=4 * sequence * moved,
        # Two layers share the embeddings of the tokens, so two gradients are written and summed. Of
        # the positions the passes use few rows.
        adjust=also_moves(4 * (4 * LAST - 2 * POSITIONS * WIDTH)),
    )
