"""Callbacks that time the training loops of Keras and Lightning.

Frameworks are imported when a callback is made, never with this module. `case` is always an
`experiment.case.Case`.
"""

import logging
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pomology.errors import Mismatch
from pomology.measure.clock import Part, StepClock, interval
from pomology.measure.estimate import Estimate, total


def keras(
    case: Any, *, samples: int, batch_size: int, validation_samples: int = 0, epochs: int = 1
) -> Any:
    """Return a Keras callback that times `fit`; create it in the call of `fit`, with its sizes.

    It records every step's loss, and times the steps of the first epoch's training and validation.
    An epoch that exceeds the budget stops after one more, untimed step. `fit_s` is the time of the
    whole `fit`, `measured` if all of it ran. That holds in the profile `article`, and if each next
    epoch is expected to end within twice the budget. Otherwise later epochs stop after a few steps,
    and `fit_metric` estimates the missing ones. `epochs_done` is the number of epochs that ran.

    `between_epochs_s` is the part of `fit_s` that this process was idle between epochs. There
    TensorFlow's tuning of the input may sleep as long as the epoch took (docs/log/2026-11.md). An
    estimated `fit_s` excludes it.
    """
    import keras as framework

    class StepTimes(framework.callbacks.Callback):
        def __init__(self):
            super().__init__()
            case.watch()
            self._began_s = time.perf_counter()
            self._steps = None  # the clock's iterator over steps of the first epoch
            self._short = False
            self._idle_s = 0.0
            self._ran = {"training": 0, "validation": 0}  # number of samples

        @property
        def epochs_done(self):
            return self._ran["training"] / samples

        def on_epoch_begin(self, epoch, logs=None):
            self._loss_sum = 0.0
            self._epoch_samples = 0
            self._epoch = epoch
            self._loop_s = time.perf_counter()
            self._idle_before_s = process_idle_s()
            if epoch == 0:
                self._ended_s = self._loop_s
                self._begin(samples, "training")

        def on_train_batch_begin(self, batch, logs=None):
            if self._epoch and batch == 0:
                self._add_idle()
            self.model.stop_training |= self._enough(batch)

        def on_train_batch_end(self, batch, logs=None):
            # Keras reports the mean loss of the epoch so far.
            count = min(samples, (batch + 1) * batch_size)
            loss_sum = logs["loss"] * count
            batch_samples = count - self._epoch_samples
            case.loss((loss_sum - self._loss_sum) / batch_samples)
            self._loss_sum = loss_sum
            self._epoch_samples = count
            self._ran["training"] += batch_samples
            self.model.stop_training |= self._short_loop_done()

        def on_test_begin(self, logs=None):
            self._end()
            self._loop_s = time.perf_counter()
            if self._epoch == 0:
                self._begin(validation_samples, "validation")

        def on_test_batch_begin(self, batch, logs=None):
            self.model.stop_evaluating |= self._enough(batch)

        def on_test_batch_end(self, batch, logs=None):
            self._ran["validation"] += min(batch_size, validation_samples - batch * batch_size)
            self.model.stop_evaluating |= self._short_loop_done()

        def on_test_end(self, logs=None):
            self._end()
            self._idle_before_s = process_idle_s()

        def on_epoch_end(self, epoch, logs=None):
            self._end()
            now_s = time.perf_counter()
            if validation_samples:
                self._add_idle()
            next_s = now_s + (now_s - self._ended_s)
            self._ended_s = now_s
            whole = all(part.complete for part in case.clock.parts.values())
            long = not whole or next_s - self._began_s > 2 * case.clock.budget_s
            self._short |= long and case.experiment.profile != "article"
            self.model.stop_training = False

        def on_train_end(self, logs=None):
            case.backend.synchronize()
            seconds = time.perf_counter() - self._began_s
            steps = {part: count / batch_size for part, count in self._ran.items()}
            fit = fit_metric(case.clock, epochs, seconds, steps, self._idle_s)
            if fit and self._epoch == epochs - 1:
                case.metric("fit_s", fit)
                case.metric("between_epochs_s", self._idle_s, "s")

        def _begin(self, count, part):
            # Keras's callbacks mark where steps begin; time between two steps counts as theirs.
            steps = count / batch_size
            self._steps = case.clock.steps(range(math.ceil(steps)), part, steps, ready=False)
            next(self._steps, None)  # the first step includes the time before Keras's first call

        def _enough(self, batch):
            return self._steps is not None and batch > 0 and next(self._steps, None) is None

        def _short_loop_done(self):
            # By time, so that a fast validation runs whole in a shortened epoch, too.
            most_s = case.clock.budget_s / (4 * epochs)
            return self._short and time.perf_counter() - self._loop_s >= most_s

        def _add_idle(self):
            self._idle_s += max(0.0, process_idle_s() - self._idle_before_s)

        def _end(self):
            if self._steps is not None:
                next(self._steps, None)  # ends the last step of a whole epoch
                self._steps.close()
                self._steps = None

    return StepTimes()


def fit_metric(
    clock: StepClock, epochs: int, seconds: float, steps: dict[str, float], idle_s: float = 0.0
) -> Estimate | None:
    """Return the seconds of a training of several epochs, of which some were shortened.

    An estimate adds the mean step time for each step that did not run. It has no interval, because
    one training does not show how much another would differ. The result is None if too few steps
    ran. seconds: time of all that ran. steps: number that ran, by part. idle_s: part of `seconds`
    that was idle between epochs, which varies at random and is excluded from an estimate.
    """
    parts = clock.parts.values()
    if not parts or any(not (part.blocks or part.complete) for part in parts):
        return None
    whole = []
    missing_s = 0.0
    for part in parts:
        step = _steady_step(part)
        count = epochs * part.epoch_steps
        whole.append(step * count)
        if count - steps[part.name] > 1e-6:
            missing_s += step.value * (count - steps[part.name])
    training = total(whole)
    if missing_s:
        return Estimate(seconds - idle_s + missing_s, "s", n=training.n, how="estimated")
    return (training * (seconds / training.value)).replace(value=seconds, how="measured", n=epochs)


def _steady_step(part: Part) -> Estimate:
    """Return a part's seconds per step; without steady steps, the mean after the first step."""
    if part.blocks:
        return interval(part.blocks)
    if part.steps > 1:
        return Estimate((part.seconds - part.first_step_s) / (part.steps - 1), "s")
    return Estimate(part.first_step_s, "s")


def process_idle_s() -> float:
    """Return a time in seconds that advances only while this process is idle (one thread)."""
    return time.perf_counter() - time.process_time()


def lightning(case: Any) -> Any:
    """Return a Lightning callback that times the loops of a `Trainer`.

        clocked = trainers.lightning(case)
        trainer = Trainer(accelerator=case.backend.backend, callbacks=[clocked], ...)
        trainer.fit(model, clocked.steps(train_loader))
        trainer.validate(model, clocked.steps(test_loader, "evaluation"))

    Losses are recorded without waiting for the device. Raises Mismatch if Lightning trains the
    model on another device.
    """
    from lightning.pytorch.callbacks import Callback

    # Lightning would print the devices and tips.
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)

    @dataclass(eq=False)
    class Steps:
        """A loader's batches, timed as `part` in a single loop; see `Case.steps`."""

        batches: Any
        part: str = "training"
        per_epoch: float = 1.0

        def __len__(self) -> int:
            # With the true length Lightning would stop before the clock ends the last step.
            return len(self.batches) + 10**9

        def __iter__(self) -> Iterator:
            # A generator starts at its first item. Lightning also creates iterators that it never
            # uses, and these must not start the clock.
            yield from case.steps(self.batches, self.part, per_epoch=self.per_epoch)

    class Clocked(Callback):
        steps = Steps

        def __init__(self):
            self._losses: list[Any] = []

        def on_train_start(self, trainer, pl_module):
            found = case.backend.device_of(case.watch_model(pl_module))
            if found != case.backend.backend:
                raise Mismatch(f"asked for {case.backend.backend}; Lightning trains on {found}")

        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            if not case.clock.on_ready:
                loss = outputs["loss"] if isinstance(outputs, dict) else outputs
                self._losses.append(loss.detach())

        def on_train_end(self, trainer, pl_module):
            for loss in self._losses:
                case.loss(loss.item())

        def teardown(self, trainer, pl_module, stage):
            pl_module.to(case.device)  # Lightning has just moved it to the CPU

    return Clocked()
