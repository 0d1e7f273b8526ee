"""Every training in PyTorch and MLX: the files beside the notebooks, and what is shown of both."""

from __future__ import annotations

import pytest

from pomology.errors import PomologyError
from pomology.models import trainings

# As the articles' models have them; of ResNet-50 torchvision's.
PARAMETERS = {
    "vae 1": 652_824,
    "siamese 2": 11_432_897,
    "dcgan 2": 6_342_272,
    "simclr 2": 11_497_792,
}
PARAMETERS |= {
    "transformer_lm 1 200x2x200": 13_828_478,
    "resnet50 2 64": 25_557_032,
    "bert_base 1 8": 108_311_810,
}
PARAMETERS |= {"mlp 1": 435_402, "cnn 1": 93_322, "lstm 1": 81_674}


def test_a_step_is_counted_with_the_parameters_of_the_articles():
    counted = trainings.work(trainings.rows(list(PARAMETERS)), trained=True)
    assert [work.parameters for work in counted] == list(PARAMETERS.values())
    mlp = counted[list(PARAMETERS).index("mlp 1")]
    # Two operations a weight forward, four backward, but for the gradient of the picture.
    assert mlp.flops == 6 * (784 * 512 + 512 * 64 + 64 * 10) - 2 * 784 * 512


@pytest.mark.parametrize("text", ["vae", "vae 0", "gan 8", "vae x", "vae 8/", "vae 8 a b"])
def test_a_row_that_cannot_be_read_is_one_line(text):
    with pytest.raises(PomologyError, match=f"'{text}' must read `WORKLOAD BATCH`"):
        trainings.rows([text])
    with pytest.raises(PomologyError, match="has no gan_mlx"):
        trainings.load("gan_mlx")
