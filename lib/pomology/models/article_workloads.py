"""The trainings of the articles' models on random inputs, each with a step in every precision.

The notebook `capabilities` trains them with a feature such as autocast, next to plain fp32.
"""

from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from torch.nn import functional as F
from torchvision.models import resnet18

from pomology.data.text import WIKITEXT2
from pomology.models import article_models, gpt2_torch, pretrained, verify, vision
from pomology.models import gpt2 as gpt2_shapes
from pomology.models.workload import Workload


class Article(NamedTuple):
    """The workload of an article's model, and the samples of the article's step."""

    workload: Workload
    batch_size: int


def training(losses, optimizer, parameters, **declared):
    """Return a workload in plain fp32 whose gradients are the sum of those of its losses.

    losses: returns them, of a model and its inputs. optimizer: takes parameters. declared: see
    `Workload`. The step also takes a gradient scaler, which does nothing in fp32.
    """

    def step(model, optimizer_and_scaler, *inputs):
        optimizer, scaler = optimizer_and_scaler
        optimizer.zero_grad()
        values = []
        for loss in losses(model, *inputs):
            scaler.scale(loss).backward()
            values.append(loss.detach())
        scaler.step(optimizer)
        scaler.update()
        return sum(values[1:], values[0])

    def with_scaler(model):
        return optimizer(model.parameters()), torch.amp.GradScaler(enabled=False)

    def three_models(counted, _batch_size, _backend):
        """Of a case: the two that are timed, and one with which the feature is compared."""
        return replace(counted, state_bytes=3 * counted.state_bytes)

    return Workload(
        optimizer=with_scaler,
        step=step,
        parameters=parameters,
        adjust=three_models,
        **declared,
    )


def resnet(image_size, lr):
    """Return ResNet-18 on random images of 1,000 classes."""

    def batch(count):
        return torch.rand(count, 3, image_size, image_size), torch.randint(1000, (count,))

    # At 64 pixels: the first convolution, the first stage, the three others, and the last layer.
    macs = 9_633_792 + 37_748_736 + 3 * 33_554_432 + 512_000
    return training(
        lambda model, images, labels: [F.cross_entropy(model(images), labels)],
        partial(torch.optim.SGD, lr=lr, momentum=0.9),
        build=resnet18,
        batch=batch,
        parameters=11_689_512,
        flops_per_sample=6 * macs - 2 * 9_633_792 if image_size == 64 else None,
        optimizer_class="SGD",
        slots=1,
    )


def article_workloads(lr):
    """Return the articles' models by name, on random inputs.

    The optimizers are of the articles' kinds, but DCGAN has one instead of two, and none clips. The
    functions below derive the FLOPs: 6 per multiply-accumulate (MAC), without inputs' gradients.
    lr: of SGD.
    """
    sgd = partial(torch.optim.SGD, lr=lr, momentum=0.9)
    return {
        "vae": Article(vae(), 128),
        "siamese": Article(siamese(), 64),
        "dcgan": Article(dcgan(), 64),
        "transformer_lm": Article(transformer_lm(sgd), 20),
        "gpt2": Article(gpt2(), 1),
        "whisper": Article(whisper(), 4),
        "simclr": Article(simclr(sgd), 128),
    }


def vae():
    """Return the VAE. A digit takes 651,200 MACs: twice 784·400, and three times 400·20."""
    return training(
        lambda model, images: [article_models.vae_loss(images, *model(images))],
        torch.optim.Adam,
        build=article_models.VAE,
        batch=lambda count: (torch.rand(count, 1, 28, 28),),
        parameters=652_824,
        flops_per_sample=6 * 651_200 - 2 * 784 * 400,
        optimizer_class="Adam",
        slots=2,
    )


def siamese():
    """Return the siamese ResNet-18 on pairs of digits of 28 × 28."""
    digit = 614_656 + 7_225_344 + 3 * 8_388_608  # MACs: first convolution and four stages
    return training(
        lambda model, left, right, same: [F.binary_cross_entropy(model(left, right), same)],
        torch.optim.Adadelta,
        build=article_models.Siamese,
        batch=lambda count: (
            *torch.rand(2, count, 1, 28, 28),
            torch.randint(2, (count,)).float(),
        ),
        parameters=11_432_897,
        flops_per_sample=6 * (2 * digit + 262_400) - 2 * 2 * 614_656,
        optimizer_class="Adadelta",
        slots=2,
    )


def dcgan():
    """Return DCGAN on images of 64 × 64; its discriminator judges three batches in each step."""
    judged = 3_145_728 + 3 * 33_554_432 + 8_192  # MACs of an image in the discriminator
    drawn = 819_200 + 3 * 33_554_432 + 3_145_728  # and in the generator
    return training(
        article_models.dcgan_losses,
        torch.optim.Adam,
        build=article_models.dcgan,
        batch=lambda count: (
            torch.rand(count, 3, 64, 64),
            torch.randn(count, article_models.NOISE, 1, 1),
        ),
        parameters=3_576_704 + 2_765_568,
        flops_per_sample=18 * judged - 4 * 3_145_728 + 6 * drawn - 2 * 819_200,
        optimizer_class="Adam",
        slots=2,
    )


def transformer_lm(optimizer):
    """Return the transformer of the notebook `transformer_lm`, on texts of 35 words."""
    words, size, layers, length = WIKITEXT2.vocabulary, 200, 2, 35
    matrices = layers * (4 * size**2 + 2 * size**2)  # of attention, and of two linear layers
    attention = layers * 2 * length * size  # MACs of a word
    return training(
        lambda model, tokens: [article_models.language_model_loss(model(tokens), tokens)],
        optimizer,
        build=lambda: article_models.LanguageModel(words, size, layers, size, length),
        batch=lambda count: (verify.words(words, length, count),),
        parameters=matrices + layers * 10 * size + 2 * words * size + words,
        flops_per_sample=6 * length * (matrices + attention + words * size),
        optimizer_class="SGD",
        slots=1,
    )


def gpt2():
    """Return the small GPT-2 of the notebook `gpt2_pretraining`, on 1,024 words."""
    shape = gpt2_shapes.shape("gpt2", 1024, "true_gpt2")
    words, width, blocks, length = 50_257, 768, 12, 1024

    def losses(model, tokens):
        return [F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())]

    matrices = blocks * 12 * width**2  # of attention, and of two linear layers
    attention = blocks * 2 * length * width  # MACs of a word
    return training(
        losses,
        torch.optim.AdamW,
        build=lambda: gpt2_torch.LanguageModel(shape),
        batch=lambda count: (verify.words(words, count, length),),
        parameters=matrices + blocks * 13 * width + 2 * width + (words + length) * width,
        flops_per_sample=6 * length * (matrices + attention + words * width),
        optimizer_class="AdamW",
        slots=2,
    )


def whisper():
    """Return transformers' tiny Whisper, on 30 s of sound and 32 words."""
    width, layers, sounds, words = 384, 4, 1500, 32
    first = 3 * 80 * width * 3000  # MACs of the first of two convolutions
    encoder = 3 * width**2 * sounds + layers * 2 * sounds * (6 * width**2 + sounds * width)
    decoder = words * 51_865 * width  # the last layer
    # Two attentions, the second with keys and values of sounds, and two linear layers.
    decoder += layers * (14 * words + 2 * sounds) * width**2
    decoder += layers * 2 * words * (words + sounds) * width
    return training(
        lambda model, features, labels: [model(input_features=features, labels=labels).loss],
        torch.optim.AdamW,
        build=lambda: pretrained.build("whisper-tiny", "speech"),
        batch=lambda count: (torch.randn(count, 80, 3000), verify.words(50_000, count, words)),
        parameters=37_760_640,
        trained=37_760_640 - sounds * width,  # without the sounds' positions
        flops_per_sample=6 * (first + encoder + decoder) - 2 * first,
        optimizer_class="AdamW",
        slots=2,
    )


def simclr(optimizer):
    """Return SimCLR's ResNet-18 on two views, 32 × 32, of each image."""
    view = 1_769_472 + 150_994_944 + 3 * 134_217_728 + 327_680  # MACs: four stages, and the head
    return training(
        lambda model, first, second: [vision.nt_xent(model(first), model(second))],
        optimizer,
        build=vision.simclr_resnet18,
        batch=lambda count: tuple(torch.rand(2, count, 3, 32, 32)),
        parameters=11_497_792,
        flops_per_sample=2 * (6 * view - 2 * 1_769_472),  # the loss has less than 0.01 %
        optimizer_class="SGD",
        slots=1,
    )
