"""The variational autoencoder of `vae.ipynb` in MLX: the same model, loss and update."""

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim

from pomology import Workload
from pomology.models.losses_mlx import binary_cross_entropy
from pomology.models.workload_mlx import also_moves, initialized, one_update


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(784, 400)
        self.mean = nn.Linear(400, 20)
        self.log_variance = nn.Linear(400, 20)
        self.widen = nn.Linear(20, 400)
        self.draw = nn.Linear(400, 784)

    def __call__(self, images):
        hidden = nn.relu(self.hidden(images.reshape(-1, 784)))
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        deviation = mx.exp(0.5 * log_variance)
        code = mean + mx.random.normal(deviation.shape) * deviation
        return mx.sigmoid(self.draw(nn.relu(self.widen(code)))), mean, log_variance


def loss_function(model, images):
    redrawn, mean, log_variance = model(images)
    redrawing = binary_cross_entropy(redrawn, images.reshape(-1, 784)).sum()
    return redrawing - 0.5 * mx.sum(1 + log_variance - mean.square() - mx.exp(log_variance))


vae = Workload(
    build=VAE,
    batch=lambda batch_size: (mx.random.uniform(shape=(batch_size, 28, 28, 1)),),
    optimizer=lambda model: initialized(optim.Adam(1e-3, bias_correction=True), model),
    step=one_update(loss_function),
    parameters=652_824,
    flops_per_sample=6 * 651_200 - 2 * 784 * 400,
    optimizer_class="Adam",
    slots=2,
    saved_bytes_per_sample=4 * 2_468,
    moved_bytes_per_sample=4 * 25_404,
    adjust=also_moves(-4 * 784 * 400),  # images need no gradient, for which weights would be read
)
