"""Sizes of the models, compared with the published ones."""

import dataclasses

import pytest
import torch

from pomology.models import cost, pretrained, vision, whisper

# Model -> number of parameters and of frozen ones, from the configurations of the model hub.
PARAMETERS = {
    "gpt2": (124_439_808, 0),
    "gpt2-medium": (354_823_168, 0),
    "gpt2-large": (774_030_080, 0),
    "gpt2-xl": (1_557_611_200, 0),
    "whisper-tiny": (37_760_640, 1500 * 384),
    "whisper-small": (241_734_912, 1500 * 768),
    "whisper-medium": (763_857_920, 1500 * 1024),
    "whisper-large": (1_543_304_960, 1500 * 1280),
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_sizes_are_the_checkpoints(name):
    task = "speech" if name.startswith("whisper") else "language-model"
    with torch.device("meta"):
        model = pretrained.build(name, task)
    weights = [(weight.numel(), weight.requires_grad) for weight in model.parameters()]
    frozen = sum(size for size, trained in weights if not trained)
    assert (sum(size for size, _ in weights), frozen) == PARAMETERS[name]
    assert model.training


@pytest.mark.parametrize(("backend", "recompute"), [("mps", False), ("cuda", True)])
def test_a_step_extrapolated_from_few_layers_is_the_step_of_all(backend, recompute):
    """The model has an encoder and a decoder; recomputing moves the peak to another moment."""
    declared = whisper.workload("whisper-tiny", recompute=recompute)
    few = dataclasses.replace(declared, adjust=None)
    whole = dataclasses.replace(few, with_layers=None)
    assert few.layers == 4
    assert dataclasses.astuple(few.cost(2, backend)) == dataclasses.astuple(whole.cost(2, backend))


@pytest.mark.parametrize(
    ("build", "side", "parameters", "macs"),
    [
        (vision.vgg16, 224, 138_357_544, 15.470e9),
        (lambda: vision.vgg16(classes=10, batch_norm=True), 224, 134_309_962, 15.466e9),
        (vision.cifar_resnet18, 32, 11_168_832, 0.5554e9),
        (vision.simclr_resnet18, 32, 11_497_792, 0.5557e9),
    ],
)
def test_sizes_are_the_published_ones(build, side, parameters, macs):
    def forward(model):
        with torch.no_grad():
            model(torch.empty(2, 3, side, side))

    work = cost.workload(build, forward)
    assert work.parameters == parameters
    assert work.flops / 4 == pytest.approx(macs, rel=5e-4)


def test_the_backbone_of_simclr_is_lightly_s():
    """It has no ReLU after the first normalization, none in place, and PyTorch's initialization."""
    torch.manual_seed(0)
    model = vision.cifar_resnet18()
    assert [type(layer).__name__ for layer in model[:3]] == ["Conv2d", "BatchNorm2d", "Sequential"]
    relus = [module for module in model.modules() if isinstance(module, torch.nn.ReLU)]
    assert len(relus) == 8 and not any(relu.inplace for relu in relus)
    for module in model.modules():
        if isinstance(module, torch.nn.Conv2d):
            limit = module.weight[0].numel() ** -0.5  # uniform; a normal one has none
            assert 0.9 * limit < module.weight.abs().max() <= limit
    assert model(torch.rand(2, 3, 32, 32)).shape == (2, 512)
