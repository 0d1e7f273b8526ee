"""Variational autoencoder in PyTorch; model and loss of its notebook."""

import torch

from pomology.models.definitions import definitions

notebook = definitions("vae", "VAE", "loss_function")


def build(**_):
    return notebook.VAE()


def forward(model, images):
    return model(images)


def loss(outputs, images):
    return notebook.loss_function(images, *outputs)


def optimizer(part, lr, weight_decay):
    return torch.optim.Adam(part.parameters(), lr)
