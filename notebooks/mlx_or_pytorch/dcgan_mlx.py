"""DCGAN in MLX: a step trains the discriminator, then the generator."""

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
from losses_mlx import binary_cross_entropy

NOISE, WIDTH = 100, 64


def up(channels_in, channels, stride=2, padding=1):
    return [
        nn.ConvTranspose2d(channels_in, channels, 4, stride, padding, bias=False),
        nn.BatchNorm(channels),
        nn.ReLU(),
    ]


def down(channels_in, channels, norm=True):
    convolution = nn.Conv2d(channels_in, channels, 4, 2, 1, bias=False)
    return [convolution, *([nn.BatchNorm(channels)] if norm else []), nn.LeakyReLU(0.2)]


class DCGAN(nn.Module):
    def __init__(self):
        super().__init__()
        self.generator = nn.Sequential(
            *up(NOISE, WIDTH * 8, 1, 0), *up(WIDTH * 8, WIDTH * 4),
            *up(WIDTH * 4, WIDTH * 2), *up(WIDTH * 2, WIDTH),
            nn.ConvTranspose2d(WIDTH, 3, 4, 2, 1, bias=False), nn.Tanh(),
        )  # fmt: skip
        self.discriminator = nn.Sequential(
            *down(3, WIDTH, norm=False), *down(WIDTH, WIDTH * 2), *down(WIDTH * 2, WIDTH * 4),
            *down(WIDTH * 4, WIDTH * 8), nn.Conv2d(WIDTH * 8, 1, 4, 1, 0, bias=False), nn.Sigmoid(),
        )  # fmt: skip


def build(**_):
    model = DCGAN()
    normal = nn.init.normal(0.0, 0.02)
    for _, module in model.named_modules():
        if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
            module.weight = normal(module.weight)
        elif isinstance(module, nn.BatchNorm):
            module.weight = 1 + normal(module.weight)
    return model


def drawn(model, photos):
    return model.generator(mx.random.normal((len(photos), 1, 1, NOISE)))


def forward(model, photos):
    images = drawn(model, photos)
    of_images = model.discriminator(mx.stop_gradient(images)).reshape(-1)
    return model.discriminator(photos).reshape(-1), of_images, images


def error(outputs, answer):
    return binary_cross_entropy(outputs, answer).mean()


def passes(model):
    def discriminator(photos):
        of_photos, of_images, _ = forward(model, photos)
        return error(of_photos, 1.0) + error(of_images, 0.0)

    def generator(photos):
        return error(model.discriminator(drawn(model, photos)).reshape(-1), 1.0)

    return [(model.discriminator, discriminator), (model.generator, generator)]


def optimizer(lr, weight_decay):
    return optim.Adam(lr, betas=[0.5, 0.999], bias_correction=True)
