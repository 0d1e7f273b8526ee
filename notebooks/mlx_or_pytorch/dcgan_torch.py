"""DCGAN in PyTorch: a step trains the discriminator, then the generator."""

import torch
from torch.nn import functional as F

from pomology.models.definitions import definitions

notebook = definitions("dcgan", "build", "NOISE")


def build(**_):
    return notebook.build()


def drawn(model, photos):
    return model["generator"](torch.randn(len(photos), notebook.NOISE, 1, 1, device=photos.device))


def forward(model, photos):
    images = drawn(model, photos)
    return model["discriminator"](photos), model["discriminator"](images.detach()), images


def error(outputs, answer):
    return F.binary_cross_entropy(outputs, torch.full_like(outputs, answer))


def passes(model):
    kept = []

    def discriminator(photos):
        of_photos, of_images, images = forward(model, photos)
        kept[:] = [images]
        return error(of_photos, 1.0) + error(of_images, 0.0)

    def generator(photos):
        return error(model["discriminator"](*kept), 1.0)

    return [(model["discriminator"], discriminator), (model["generator"], generator)]


def optimizer(part, lr, weight_decay):
    return torch.optim.Adam(part.parameters(), lr, betas=(0.5, 0.999))
