"""The training step of `bert_base.ipynb` in MLX: the same model, loss and update, in fp32."""

import mlx.core as mx
import mlx.optimizers as optim

from pomology import Workload
from pomology.models.bert_mlx import HEADS, KINDS, POSITIONS, WIDTH, WORDS, Bert
from pomology.models.losses_mlx import cross_entropy
from pomology.models.workload_mlx import also_moves, initialized, one_update

EMBEDDINGS = WIDTH * (WORDS + POSITIONS + KINDS)
LAYER, LAST = 12 * WIDTH**2, WIDTH**2 + 2 * WIDTH  # weights of matrices


def workload(config, layers, lr):
    """Return the workload of a case's settings.

    Bytes are those that PyTorch's operators keep and move, by the numbers of their elements.
    """
    sequence = config["sequence"]

    def batch(batch_size):
        words = mx.random.randint(0, WORDS, (batch_size, sequence))
        return words, mx.ones((batch_size,), mx.int32)

    kept = layers * (16 * WIDTH + 4 + HEADS * sequence) + 2 * WIDTH + 4  # of a token
    moved = layers * (147 * WIDTH + 8 + 11 * HEADS * sequence) + 17 * WIDTH + 8
    return Workload(
        build=lambda: Bert(layers),
        batch=batch,
        optimizer=lambda model: initialized(optim.Adam(lr, bias_correction=True), model),
        step=one_update(cross_entropy),
        parameters=EMBEDDINGS + 2 * WIDTH + layers * (LAYER + 13 * WIDTH) + LAST + WIDTH + 2,
        flops_per_sample=6 * (layers * sequence * (LAYER + 2 * WIDTH * sequence) + LAST),
        optimizer_class="Adam",
        slots=2,
        saved_bytes_per_sample=4 * (sequence * kept + WIDTH),
        moved_bytes_per_sample=4 * (sequence * moved + 16 * WIDTH),
        adjust=also_moves(-2 * 4 * EMBEDDINGS),  # of which the passes use few rows
    )
