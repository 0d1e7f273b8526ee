"""Timing of Lightning's training loop."""

import lightning.pytorch
import pytest
import torch
from fakes import Clock
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from pomology.errors import Mismatch
from pomology.experiment.experiment import Experiment
from pomology.models import trainers

STEP_S = 0.004


class Module(lightning.pytorch.LightningModule):
    """A linear model. Steps take STEP_S of simulated time; `seen` has their inputs."""

    def __init__(self, lr: float = 0.05):
        super().__init__()
        self.line, self.lr, self.now = nn.Linear(1, 1), lr, Clock()
        self.seen: list[float] = []
        self.judged = 0

    def training_step(self, batch, number):
        self.now.pass_s(STEP_S)
        inputs, targets = batch
        self.seen.append(float(inputs[0]))
        return ((self.line(inputs) - targets) ** 2).mean()

    def validation_step(self, batch, number):
        self.now.pass_s(STEP_S / 2)
        self.judged += len(batch[0])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), self.lr)


def points(count):
    inputs = torch.arange(count, dtype=torch.float32)[:, None] / count
    return DataLoader(TensorDataset(inputs, 3 * inputs + 1), 4)


@pytest.fixture
def experiment(tmp_path, quiet_machine):
    settings = {"article": "003", "devices": "cpu", "profile": "article", "out": str(tmp_path)}
    return Experiment("vae", budget_s=0.1, **settings)


def run(experiment, model, train, test):
    """Return the record of a case that Lightning has trained."""
    (case,) = experiment.cases(batch_size=[4])
    with case:
        case.clock.clock = model.now
        clocked = trainers.lightning(case)
        off = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
        options = dict.fromkeys(off, False) | {"default_root_dir": experiment.out, "max_epochs": 1}
        trainer = lightning.pytorch.Trainer(accelerator="cpu", callbacks=[clocked], **options)
        trainer.fit(model, clocked.steps(train))
        trainer.validate(model, clocked.steps(test, "evaluation"), verbose=False)
    return experiment.records[0]


def test_a_whole_epoch_is_timed_step_by_step(experiment):
    model = Module()
    record = run(experiment, model, points(82), points(40))
    assert record.status == "ok", record.reason
    training, evaluation = record.blocks["training"], record.blocks["evaluation"]
    assert training["stopped"] == evaluation["stopped"] == "whole epoch"
    assert (training["epoch_steps"], evaluation["epoch_steps"]) == (20.5, 10)
    # The first step, nineteen more, and a smaller last one.
    assert sum(steps for steps, _ in training["steady"] + training["warmup"]) == 20 - 1
    assert training["last_step_s"] >= STEP_S
    # Lightning's loop takes every batch once and in order, then pre-loaded ones of the first three.
    assert model.seen[:21] == pytest.approx([4 * number / 82 for number in range(21)])
    assert set(model.seen[21:]) <= set(model.seen[:3])
    assert sum(steps for steps, _ in training["ready"]) == len(model.seen) - 21 > 0
    assert model.judged == 40
    epoch, step = record.metrics["epoch_s"], record.metrics["step_s"]
    assert epoch.how == "measured" and epoch.value == pytest.approx(21 * STEP_S + 10 * STEP_S / 2)
    assert step.value == pytest.approx(STEP_S)


def test_losses_are_those_of_lightnings_steps(experiment):
    torch.manual_seed(1)
    record = run(experiment, Module(lr=0.0), points(40), points(4))
    torch.manual_seed(1)
    line = Module().line
    single = [((line(inputs) - targets) ** 2).mean().item() for inputs, targets in points(40)]
    found = record.metrics["loss_first"].value, record.metrics["loss_last"].value
    assert found == pytest.approx((sorted(single[:3])[1], sorted(single[-3:])[1]), rel=1e-5)
    assert record.metrics["loss_first"].n == 10


def test_the_device_of_a_model_is_the_one_on_which_lightning_trained_it(experiment, monkeypatch):
    """Lightning moves a GPU's model to the CPU at the end. Here `meta` acts as the GPU."""
    (case,) = experiment.cases(batch_size=[4])
    case.device = torch.device("meta")
    monkeypatch.setattr(case.backend, "backend", "meta")
    clocked = trainers.lightning(case)
    with pytest.raises(Mismatch, match="asked for meta; Lightning trains on cpu"):
        clocked.on_train_start(None, Module())
    moved = Module()
    clocked.teardown(None, moved, "fit")
    assert next(moved.parameters()).device.type == "meta"
