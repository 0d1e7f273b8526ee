"""FLOPs of the published times, counted again with the notebooks' own code."""

import functools
import itertools
import math
from types import SimpleNamespace

import pytest
import torch
from notebook_code import definitions
from torch import nn

from pomology.articles import published
from pomology.models import cost, vision


def of_samples(name: str, samples: int):
    """Return the FLOPs of an epoch with this number of samples."""
    scope = definitions(name)
    work = scope["work"] if "work" in scope else scope[name].cost
    return lambda config: work(config["batch_size"]).flops / config["batch_size"] * samples


def language_model():
    """Return the FLOPs of an epoch of 2,088,628 words and a validation on 217,646 words."""
    workload_of = definitions("transformer_lm")["workload_of"]

    def steps(words, batch_size):
        return math.ceil((words // batch_size - 1) / 35)

    def epoch(config):
        model, batch_size = workload_of(config), config["batch_size"]
        training = steps(2_088_628, batch_size) * model.cost(batch_size).flops
        return training + steps(217_646, 10) * model.cost(10).forward_flops

    return epoch


@functools.cache
def simclr_training():
    """Return the FLOPs of 50,000 images in whole batches per epoch, and of 60,000 features after.

    Before it Lightning checks the validation on 50,000 features and two batches.
    """
    simclr, image = definitions("simclr")["simclr"], torch.empty(1, 3, 32, 32, device="meta")
    forward = cost.workload(vision.simclr_resnet18, lambda model: model.backbone(image)).flops

    def training(config):
        size, epochs = config["batch_size"], config["epochs"]
        epoch = 50_000 // size * simclr.cost(size).flops + 60_000 * forward
        return epochs * epoch + (50_000 + 2 * size) * forward

    return training


def gpt2_large():
    """Return the FLOPs of a pass of the model that table 4's times imply, with 10,000 words."""
    scope = definitions("gpt2_pretraining", corpus=SimpleNamespace(vocabulary=10_000))

    def step(config):
        training = scope["workload"](scope["shape"](config | {"context_size": 1024}))
        return training.cost(config["batch_size"]).flops

    return step


def whisper_step():
    workload = definitions("energy")["workload"]
    return lambda config: workload(config["model"]).cost(config["batch_size"]).flops


def steps_of(build, steps: int, *shape: int):
    """Return the FLOPs of a number of whole batches of a model that no notebook has."""
    step = cost.workload(build, lambda model: model(torch.empty(shape)).sum().backward())
    return lambda config: steps * step.flops


def lenet():
    first = (nn.Conv2d(1, 6, 5), nn.Tanh(), nn.MaxPool2d(2))
    second = (nn.Conv2d(6, 16, 5), nn.Tanh(), nn.MaxPool2d(2), nn.Flatten())
    head = (nn.Linear(400, 120), nn.Tanh(), nn.Linear(120, 84), nn.Tanh(), nn.Linear(84, 10))
    return nn.Sequential(*first, *second, *head)


def perceptron():
    layers = []
    for inputs, outputs in itertools.pairwise((784, 256, 128, 64)):
        layers += [nn.Linear(inputs, outputs, bias=False), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(64, 10))


COUNTS = {
    "dcgan": lambda: of_samples("dcgan", 168_103),
    "siamese": lambda: of_samples("siamese", 60_000),
    "vae": lambda: of_samples("vae", 60_000),
    "transformer_lm": language_model,
    "simclr": lambda: lambda config: simclr_training()(config) / config["epochs"],
    "simclr_reference": simclr_training,
    "gpt2_pretraining": gpt2_large,
    "energy": whisper_step,
    "rasbt_lenet": lambda: steps_of(lenet, 421, 128, 1, 32, 32),  # of 54,000 digits
    "rasbt_mlp": lambda: steps_of(perceptron, 421, 128, 784),
    "rasbt_vgg16": lambda: of_samples("rasbt_vgg16", 1406 * 32),  # of 45,000 images
}


@pytest.mark.parametrize("experiment", COUNTS)
def test_the_flops_of_a_published_time_are_those_of_the_models(experiment):
    rows = [row for row in published.rows(experiment=experiment) if row["flops"]]
    configs = {str(row["config"]): (row["config"], row["flops"]) for row in rows}
    count = COUNTS[experiment]()
    for config, flops in configs.values():
        assert flops == pytest.approx(count(config), rel=3e-4)  # written with four digits or more


def test_every_published_count_is_counted_again():
    assert {row["experiment"] for row in published.rows() if row["flops"]} == set(COUNTS)
