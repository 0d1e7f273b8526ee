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

# What Keras calls of `FitTimes` while it trains.
HOOKS = (
    "on_epoch_begin",
    "on_train_batch_begin",
    "on_train_batch_end",
    "on_test_begin",
    "on_test_batch_begin",
    "on_test_batch_end",
    "on_test_end",
    "on_epoch_end",
    "on_train_end",
)


def keras(
    case: Any, *, samples: int, batch_size: int, validation_samples: int = 0, epochs: int = 1
) -> Any:
    """Return a Keras callback that times `fit`; create it in the call of `fit`, with its sizes.

    It records every step's loss, and times the steps of the first epoch's training and validation.
    An epoch that exceeds the budget stops after one more, untimed step. `fit_s` is the time of the
    whole `fit`, `measured` if all of it ran. That holds in the profile `article`, and if each next
    epoch is expected to end within twice the budget. Otherwise later epochs stop after a few steps,
    and `fit_metric` estimates the missing ones. The callback's `epochs_done` is the number of
    epochs that ran, once `fit` has ended.

    `between_epochs_s` is the part of `fit_s` that this process was idle between epochs. There
    TensorFlow's tuning of the input may sleep as long as the epoch took (docs/log/2026-11.md). An
    estimated `fit_s` excludes it.
    """
    import keras as framework

    times = FitTimes(case, samples, batch_size, validation_samples, epochs)
    hooks = {name: getattr(times, name) for name in HOOKS}
    times.callback = framework.callbacks.LambdaCallback(**hooks)
    return times.callback


class FitTimes:
    """The times of one `fit`; its methods are HOOKS, in the order in which Keras calls them.

    callback: Keras's, which has the model. Its `stop_training` and `stop_evaluating` end a loop
    after the present step.
    """

    callback: Any

    def __init__(
        self, case: Any, samples: int, batch_size: int, validation_samples: int, epochs: int
    ):
        self._case = case
        self._batch_size = batch_size
        self._samples = {"training": samples, "validation": validation_samples}
        self._epochs = epochs
        case.watch()
        self._began_s = time.perf_counter()
        self._steps: Iterator | None = None  # the clock's, over steps of the first epoch
        self._shortens = False  # whether loops stop after a few steps
        self._idle_s = 0.0
        self._ran = {"training": 0, "validation": 0}  # samples

    def on_epoch_begin(self, epoch, logs=None):
        self._loss_sum = 0.0
        self._epoch_samples = 0
        self._epoch = epoch
        self._loop_s = time.perf_counter()
        self._idle_before_s = process_idle_s()
        if epoch == 0:
            self._ended_s = self._loop_s
            self._begin("training")

    def on_train_batch_begin(self, batch, logs=None):
        if self._epoch and batch == 0:
            self._add_idle()
        self.callback.model.stop_training |= self._budget_spent(batch)

    def on_train_batch_end(self, batch, logs=None):
        # Keras reports the mean loss of the epoch so far.
        count = min(self._samples["training"], (batch + 1) * self._batch_size)
        loss_sum = logs["loss"] * count
        batch_samples = count - self._epoch_samples
        self._case.loss((loss_sum - self._loss_sum) / batch_samples)
        self._loss_sum = loss_sum
        self._epoch_samples = count
        self._ran["training"] += batch_samples
        self.callback.model.stop_training |= self._short_loop_done()

    def on_test_begin(self, logs=None):
        self._end()
        self._loop_s = time.perf_counter()
        if self._epoch == 0:
            self._begin("validation")

    def on_test_batch_begin(self, batch, logs=None):
        self.callback.model.stop_evaluating |= self._budget_spent(batch)

    def on_test_batch_end(self, batch, logs=None):
        left = self._samples["validation"] - batch * self._batch_size
        self._ran["validation"] += min(self._batch_size, left)
        self.callback.model.stop_evaluating |= self._short_loop_done()

    def on_test_end(self, logs=None):
        self._end()
        self._idle_before_s = process_idle_s()

    def on_epoch_end(self, epoch, logs=None):
        self._end()
        now_s = time.perf_counter()
        # Idle since the end of the validation; without one there was no such moment.
        if self._samples["validation"]:
            self._add_idle()
        next_s = now_s + (now_s - self._ended_s)
        self._ended_s = now_s
        clock = self._case.clock
        whole = all(part.complete for part in clock.parts.values())
        long = not whole or next_s - self._began_s > 2 * clock.budget_s
        self._shortens |= long and self._case.experiment.profile != "article"
        self.callback.model.stop_training = False  # else no other epoch would run

    def on_train_end(self, logs=None):
        case = self._case
        case.backend.synchronize()
        seconds = time.perf_counter() - self._began_s
        steps = {part: count / self._batch_size for part, count in self._ran.items()}
        fit = fit_metric(case.clock, self._epochs, seconds, steps, self._idle_s)
        if fit and self._epoch == self._epochs - 1:
            case.metric("fit_s", fit)
            case.metric("between_epochs_s", self._idle_s, "s")
        self.callback.epochs_done = self._ran["training"] / self._samples["training"]

    def _begin(self, part: str) -> None:
        """Start the clock's loop over the steps of a part of the first epoch."""
        # Keras's callbacks mark where steps begin; time between two steps counts as theirs.
        steps = self._samples[part] / self._batch_size
        clock = self._case.clock
        self._steps = clock.steps(range(math.ceil(steps)), part, steps, ready=False)
        next(self._steps, None)  # the first step includes the time before Keras's first call

    def _budget_spent(self, batch: int) -> bool:
        """Tell the clock that a step begins; return whether it has enough of them."""
        return self._steps is not None and batch > 0 and next(self._steps, None) is None

    def _short_loop_done(self) -> bool:
        """Return whether a loop of a shortened epoch has run long enough."""
        # By time, so that a fast validation runs whole in a shortened epoch, too.
        most_s = self._case.clock.budget_s / (4 * self._epochs)
        return self._shortens and time.perf_counter() - self._loop_s >= most_s

    def _add_idle(self) -> None:
        self._idle_s += max(0.0, process_idle_s() - self._idle_before_s)

    def _end(self) -> None:
        """End the clock's loop, if it runs."""
        if self._steps is not None:
            next(self._steps, None)  # ends the last step of a whole epoch
            self._steps.close()
            self._steps = None


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
            backend = case.backend.device_of(case.watch_model(pl_module))
            if backend != case.backend.backend:
                raise Mismatch(f"asked for {case.backend.backend}; Lightning trains on {backend}")

        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            if not case.clock.on_ready:
                loss = outputs["loss"] if isinstance(outputs, dict) else outputs
                self._losses.append(loss.detach())

        def on_train_end(self, trainer, pl_module):
            for loss in self._losses:
                case.loss(loss.item())

        def teardown(self, trainer, pl_module, stage):
            pl_module.to(case.device)  # Lightning has just moved it to the CPU
            pl_module.trainer = None  # the case verifies and copies the module without it

    return Clocked()
