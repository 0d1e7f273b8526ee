"""The notebooks of the M1 Ultra article have the article's parameters and steps, on paper."""

import contextlib
from types import SimpleNamespace

import pytest
import torch
from notebook_code import definitions

from pomology.data import images, photographs

# Of each row of the article, in order: parameters, and steps of each part of an epoch.
PARAMETERS = {
    "dcgan": [3_576_704 + 2_765_568] * 2,
    "siamese": [11_432_897] * 2,
    "transformer_lm": [13_828_478, 36_321_278, 39_331_278, 45_488_422, 53_606_518],
    "vae": [652_824] * 2,
}
STEPS = {
    "dcgan": [[2627], [165]],
    "siamese": [[938], [59]],
    "transformer_lm": [[2984, 622]] * 2 + [[299, 622]] * 3,
    "vae": [[469], [12]],
}


@pytest.fixture(scope="module")
def samples() -> dict[str, range]:
    """As many as the data modules give, by what notebooks call them."""
    digits = range(len(images.mnist("stand-in")))
    photos = range(photographs.LSUN_CLASSROOM_IMAGES)
    return {"photographs": photos, "pairs": digits, "train_set": digits}


class Over(Exception):
    """The loops are over; what is behind them is not looked at."""


class PaperCase:
    """A case whose loops over batches are counted and not run."""

    device = torch.device("cpu")
    backend = SimpleNamespace(kind="cpu")

    def __init__(self, config: dict):
        self.config = config
        self.lengths: list[int] = []

    def __getitem__(self, name):
        return self.config[name]

    def require_memory(self, workload):
        self.workload = workload

    def watch_model(self, model):
        self.counted = sum(parameter.numel() for parameter in model.parameters())
        return model

    def steps(self, batches, part="training"):
        self.lengths.append(len(batches))
        return iter(())

    def occasional(self, name, per_epoch):
        raise Over


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_and_steps_of_an_epoch_are_the_articles(name, samples):
    """Steps from the notebook's own loaders, at the article's number of samples."""
    scope = definitions(name, **samples)
    rows = scope.get("rows") or [{"batch_size": size} for size in scope["batch_sizes"]]
    for row, parameters, steps in zip(rows, PARAMETERS[name], STEPS[name], strict=True):
        case = PaperCase(row)
        with contextlib.suppress(Over):  # DCGAN saves its networks at the end
            scope["train"](case)
        assert case.counted == case.workload.parameters == parameters
        assert case.lengths == steps
