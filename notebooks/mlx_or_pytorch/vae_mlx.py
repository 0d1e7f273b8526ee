"""Variational autoencoder in MLX."""

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
from losses_mlx import binary_cross_entropy


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(784, 400)
        self.mean, self.log_variance = nn.Linear(400, 20), nn.Linear(400, 20)
        self.widen, self.draw = nn.Linear(20, 400), nn.Linear(400, 784)

    def __call__(self, images):
        hidden = nn.relu(self.hidden(images.reshape(-1, 784)))
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        deviation = mx.exp(0.5 * log_variance)
        code = mean + mx.random.normal(deviation.shape) * deviation
        return mx.sigmoid(self.draw(nn.relu(self.widen(code)))), mean, log_variance


def build(**_):
    return VAE()


def forward(model, images):
    return model(images)


def loss(outputs, images):
    redrawn, mean, log_variance = outputs
    redrawing = binary_cross_entropy(redrawn, images.reshape(-1, 784)).sum()
    return redrawing - 0.5 * mx.sum(1 + log_variance - mean.square() - mx.exp(log_variance))


def optimizer(lr, weight_decay):
    return optim.Adam(lr, bias_correction=True)
