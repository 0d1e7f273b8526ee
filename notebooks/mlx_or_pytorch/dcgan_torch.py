"""DCGAN, as its notebook has it: two networks, trained one after the other."""

import torch
from torch.nn import functional as F

from pomology.models.definitions import definitions

notebook = definitions("dcgan", "build", "NOISE")


def build(**_):
    return notebook.build()


def drawn(model, photos):
    return model["generator"](torch.randn(len(photos), notebook.NOISE, 1, 1, device=photos.device))


def forward(model, photos):
    pictures = drawn(model, photos)
    return model["discriminator"](photos), model["discriminator"](pictures.detach()), pictures


def error(outputs, answer):
    return F.binary_cross_entropy(outputs, torch.full_like(outputs, answer))


def passes(model):
    kept = []

    def discriminator(photos):
        of_photos, of_pictures, pictures = forward(model, photos)
        kept[:] = [pictures]
        return error(of_photos, 1.0) + error(of_pictures, 0.0)

    def generator(photos):
        return error(model["discriminator"](*kept), 1.0)

    return [(model["discriminator"], discriminator), (model["generator"], generator)]


def optimizer(part, lr, weight_decay):
    return torch.optim.Adam(part.parameters(), lr, betas=(0.5, 0.999))
