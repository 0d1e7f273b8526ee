"""The steps of Lightning's own loop, next to those of a workload."""

import copy
import warnings
from typing import Any

import torch
from torch.utils.data import DataLoader

from pomology.models.workload import Workload

STEPS = 2  # the second one shows the momentum of the first


def compare(workload: Workload, batch: tuple, loaded: Any) -> None:
    """Assert that a `Trainer` changes the weights as the workload's step does.

    batch: arguments of the step. loaded: the same inputs as a loader yields them.
    """
    from lightning.pytorch import Trainer

    torch.manual_seed(1)
    model = workload.build()
    own = copy.deepcopy(model)
    optimizer = workload.optimizer(own)
    for _ in range(STEPS):
        workload.step(own, optimizer, *batch)
    off = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    options = dict.fromkeys(off, False) | {"max_epochs": 1, "accelerator": "cpu", "devices": 1}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        Trainer(**options, limit_val_batches=0).fit(model, DataLoader([loaded] * STEPS, None))
    weights = dict(own.named_parameters())
    for name, weight in model.named_parameters():
        torch.testing.assert_close(weight, weights[name], rtol=1e-5, atol=1e-7, msg=name)
