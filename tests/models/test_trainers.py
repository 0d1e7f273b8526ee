"""Lightning on the clock of the kit."""

from __future__ import annotations

import lightning.pytorch
import pytest
import torch
from fakes import Clock, quiet_machine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from pomology.errors import Mismatch
from pomology.experiment.experiment import Experiment
from pomology.measure.clock import StepClock
from pomology.models import trainers
from pomology.results.record import Record

STEP_S = 0.004


class Module(lightning.pytorch.LightningModule):
    """A line through points. Steps take STEP_S of simulated time; `seen` are their inputs."""

    def __init__(self, lr: float = 0.05):
        super().__init__()
        self.line, self.lr, self.now = nn.Linear(1, 1), lr, Clock()
        self.seen: list[float] = []
        self.judged = 0

    def training_step(self, batch, number):
        self.now.pass_s(STEP_S)
        inputs, targets = batch
        self.seen.append(float(inputs[0]))
        loss = ((self.line(inputs) - targets) ** 2).mean()
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, number):
        self.now.pass_s(STEP_S / 2)
        self.judged += len(batch[0])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), self.lr)


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    quiet_machine(monkeypatch)


def points(count: int, batch_size: int = 4, **more) -> DataLoader:
    inputs = torch.arange(count, dtype=torch.float32)[:, None] / count
    return DataLoader(TensorDataset(inputs, 3 * inputs + 1), batch_size, **more)


def experiment(folder, profile: str = "quick", budget_s: float = 0.3) -> Experiment:
    return Experiment(
        "vae", article="003", devices="cpu", profile=profile, budget_s=budget_s, out=str(folder)
    )


def trainer(folder, callback=None, **more) -> lightning.pytorch.Trainer:
    options = {"accelerator": "cpu", "devices": 1, "max_epochs": 1, "num_sanity_val_steps": 0}
    for name in ("logger", "checkpointing", "progress_bar", "model_summary"):
        options[name if name == "logger" else f"enable_{name}"] = False
    callbacks = [callback] if callback else []
    options |= {"callbacks": callbacks, "default_root_dir": folder}
    return lightning.pytorch.Trainer(**options | more)


def run(folder, model, train, test=None, **settings) -> Record:
    """One case, trained by Lightning; its record."""
    here = experiment(folder / "run", **settings)
    (case,) = here.cases(batch_size=[4])
    with case:
        case.clock.clock = model.now
        callback = trainers.lightning(case)
        loop = trainer(folder, callback)
        loop.fit(model, callback.steps(train))
        if test is not None:
            loop.validate(model, callback.steps(test, "evaluation"), verbose=False)
    (record,) = here.records
    return record


def test_a_whole_epoch_is_timed_step_by_step(tmp_path):
    model = Module()
    record = run(tmp_path, model, points(82), points(40), profile="article", budget_s=0.1)
    assert record.status == "ok", record.reason
    training, evaluation = record.blocks["training"], record.blocks["evaluation"]
    assert training["stopped"] == evaluation["stopped"] == "whole epoch"
    assert (training["epoch_steps"], evaluation["epoch_steps"]) == (20.5, 10)
    steady = sum(steps for steps, _ in training["steady"] + training["warmup"])
    assert (
        steady == 20 - 1 and training["last_step_s"] >= STEP_S
    )  # the first, nineteen more, and the smaller last
    # Lightning's own loop saw every batch once and in order, and then ready ones, of the first three.
    assert model.seen[:21] == pytest.approx([4 * number / 82 for number in range(21)])
    assert set(model.seen[21:]) <= set(model.seen[:3])
    assert sum(steps for steps, _ in training["ready"]) == len(model.seen) - 21 > 0
    assert model.judged == 40
    epoch, step = record.metrics["epoch_s"], record.metrics["step_s"]
    assert epoch.how == "measured" and epoch.value == pytest.approx(21 * STEP_S + 10 * STEP_S / 2)
    assert step.value == pytest.approx(STEP_S)


def test_losses_are_those_of_lightnings_steps(tmp_path):
    torch.manual_seed(1)
    record = run(tmp_path, Module(lr=0.0), points(40), profile="article", budget_s=0.01)
    torch.manual_seed(1)
    line = Module().line
    single = [((line(inputs) - targets) ** 2).mean().item() for inputs, targets in points(40)]
    found = record.metrics["loss_first"].value, record.metrics["loss_last"].value
    assert found == pytest.approx((sorted(single[:3])[1], sorted(single[-3:])[1]), rel=1e-5)
    assert record.metrics["loss_first"].n == 10


def test_a_model_that_lightning_moves_away_is_observed_where_it_trained(tmp_path, monkeypatch):
    """Lightning moves a GPU's model to the CPU when it ends. `meta` plays the GPU."""
    (case,) = experiment(tmp_path).cases(batch_size=[4])
    case.device = torch.device("meta")
    monkeypatch.setattr(case.backend, "backend", "meta")
    clocked, model = trainers.lightning(case), Module()
    with pytest.raises(Mismatch, match="asked for meta; Lightning trains on cpu"):
        clocked.on_train_start(None, model)
    moved = Module()
    clocked.teardown(None, moved, "fit")
    assert next(moved.parameters()).device.type == "meta"


def drive(clock: StepClock, steps: int, step_s, part: str = "training"):
    """A trainer that calls back before each of its steps."""
    loop = clock.steps(range(steps), part, ready=False)
    for number in range(steps):
        if next(loop, None) is None:
            return
        clock.clock.pass_s(step_s(number))
    next(loop, None)  # ends the last step


def slow_first(number):
    return 0.004 if number else 2.0


@pytest.mark.parametrize("whole", [True, False])
def test_a_training_is_what_ran_of_it_and_the_steps_that_did_not(whole):
    clock = StepClock(clock=Clock(), whole=whole, budget_s=1.0)
    drive(clock, 10_000, slow_first)
    drive(clock, 2000, slow_first, "validation")
    assert clock.parts["training"].complete == whole
    parts = clock.parts.values()
    ran = {part.name: part.steps for part in parts}
    found = trainers.fit_metric(clock, 5, 0.3 + sum(part.seconds for part in parts), ran)
    # By hand: both parts trace once, and every other step is like the next.
    by_hand = 0.3 + 2.0 + (5 * 10_000 - 1) * 0.004 + 2.0 + (5 * 2000 - 1) * 0.004
    assert (found.value, found.how) == (pytest.approx(by_hand, rel=1e-9), "estimated")
    assert (found.unit, found.low) == ("s", None)
