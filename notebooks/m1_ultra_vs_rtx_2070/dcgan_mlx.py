"""The DCGAN of `dcgan.ipynb` in MLX: the same networks, losses and updates.

MLX differentiates a function of one network. So the generator draws the images once for the
discriminator, and once more for its own update; PyTorch draws them once.
"""

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim

from pomology import Workload
from pomology.models.losses_mlx import binary_cross_entropy
from pomology.models.workload_mlx import also_moves, initialized

NOISE = 100


def up(channels_in, channels, stride=2, padding=1):
    convolution = nn.ConvTranspose2d(channels_in, channels, 4, stride, padding, bias=False)
    return [convolution, nn.BatchNorm(channels), nn.ReLU()]


def down(channels_in, channels):
    convolution = nn.Conv2d(channels_in, channels, 4, 2, 1, bias=False)
    return [convolution, nn.BatchNorm(channels), nn.LeakyReLU(0.2)]


class DCGAN(nn.Module):
    def __init__(self):
        super().__init__()
        self.generator = nn.Sequential(
            *up(NOISE, 512, 1, 0), *up(512, 256), *up(256, 128), *up(128, 64),
            nn.ConvTranspose2d(64, 3, 4, 2, 1, bias=False), nn.Tanh(),
        )  # fmt: skip
        self.discriminator = nn.Sequential(
            nn.Conv2d(3, 64, 4, 2, 1, bias=False), nn.LeakyReLU(0.2),
            *down(64, 128), *down(128, 256), *down(256, 512),
            nn.Conv2d(512, 1, 4, 1, 0, bias=False), nn.Sigmoid(),
        )  # fmt: skip


def build():
    model = DCGAN()
    normal = nn.init.normal(0.0, 0.02)
    for _, module in model.named_modules():
        if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
            module.weight = normal(module.weight)
        elif isinstance(module, nn.BatchNorm):
            module.weight = 1 + normal(module.weight)
    return model


def drawn(model, count):
    return model.generator(mx.random.normal((count, 1, 1, NOISE)))


def error(discriminator, images, target):
    return binary_cross_entropy(discriminator(images).reshape(-1), target).mean()


def step(model, optimizers, photos):
    images = mx.stop_gradient(drawn(model, len(photos)))

    def discriminator_loss(discriminator):
        return error(discriminator, photos, 1.0) + error(discriminator, images, 0.0)

    def generator_loss(_generator):
        return error(model.discriminator, drawn(model, len(photos)), 1.0)

    losses = []
    parts = (model.discriminator, discriminator_loss), (model.generator, generator_loss)
    for (part, loss_function), optimizer in zip(parts, optimizers, strict=True):
        loss, gradients = nn.value_and_grad(part, loss_function)(part)
        optimizer.update(part, gradients)
        losses.append(loss)
    return losses[0]  # the discriminator's


def adams(model):
    """Return an Adam for the discriminator, and one for the generator."""
    networks = (model.discriminator, model.generator)
    options = {"betas": [0.5, 0.999], "bias_correction": True}
    return [initialized(optim.Adam(2e-4, **options), network) for network in networks]


JUDGED = 3_145_728 + 3 * 33_554_432 + 8_192  # MACs of an image in the discriminator
DRAWN = 819_200 + 3 * 33_554_432 + 3_145_728  # and in the generator

dcgan = Workload(
    build=build,
    batch=lambda batch_size: (mx.random.uniform(-1.0, 1.0, (batch_size, 64, 64, 3)),),
    optimizer=adams,
    step=step,
    parameters=3_576_704 + 2_765_568,
    flops_per_sample=18 * JUDGED - 4 * 3_145_728 + 6 * DRAWN - 2 * 819_200,
    optimizer_class="Adam",
    slots=2,
    saved_bytes_per_sample=1.76e6,
    moved_bytes_per_sample=26.25e6,
    # PyTorch makes two more passes of the discriminator, forward and backward. Each reads its
    # weights twice, and writes another gradient, which is read and added to the first one.
    adjust=also_moves(2 * 6 * 4 * 2_765_568),
    differs="draws the generator's images twice in a step; PyTorch draws them once",
)
