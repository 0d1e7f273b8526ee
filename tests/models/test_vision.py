"""Sizes of the vision models, compared with the published ones."""

import pytest
import torch

from pomology.models import cost, vision


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
