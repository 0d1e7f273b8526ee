"""The kit's clock inside trainers that own their loop: thin callbacks which tell it when steps begin.

Frameworks are imported when a callback is made, never with this module.
"""

from __future__ import annotations

import itertools
import logging
import time
import warnings
from collections.abc import Iterator
from typing import Any

from pomology import errors
from pomology.errors import Mismatch
from pomology.experiment.case import Case
from pomology.measure import clock as measure_clock
from pomology.measure import epochs as measure_epochs


def keras(case: Case, *, samples: int, batch_size: int, validation_samples: int = 0, epochs: int = 1) -> Any:
    """A Keras callback that times `fit`; nothing else of `fit` changes.

    Made in the call of `fit`, since the training time counts from there, with the numbers that `fit` gets. It records

    - the steps of the first epoch's training and validation, as the case's clock does of any loop. An epoch's first
      step holds the making of the iterator and the tracing. Where an epoch does not fit the case's budget, `fit` is
      stopped as Keras lets a callback do (`stop_training`, and in validation `stop_evaluating`), which runs one more
      step that is not timed;
    - `fit_s`, the seconds of the whole `fit`: of all epochs, validation, tracing and callbacks. It is `measured` if all
      of it ran: in the profile `article` always, else as long as the next epoch is expected to end within twice the
      budget. If not, it is `estimated` as `epochs.fit_metric` says;
    - the losses. Keras gives a callback the mean of the epoch so far; the loss of a step is taken out of it. Keras
      reads that mean from the device in every step anyway, so there is no other wait for the device in between.
    """
    import keras as framework

    whole = case.experiment.profile == "article"
    clock = case.clock

    class StepTimes(framework.callbacks.Callback):
        def __init__(self):
            super().__init__()
            case.watch()
            self._began_s = time.perf_counter()
            self._before_s = 0.0
            self._ticker: measure_clock.Ticker | None = None
            self._sum = self._count = 0.0
            self._ended_s: list[float] = []  # when each whole epoch ended

        def on_epoch_begin(self, epoch, logs=None):
            self._sum = self._count = 0.0
            if epoch == 0:
                self._before_s = time.perf_counter() - self._began_s
                self._begin(samples / batch_size, "training")

        def on_train_batch_begin(self, batch, logs=None):
            if self._enough(batch):
                self.model.stop_training = True

        def on_train_batch_end(self, batch, logs=None):
            count = min(samples, (batch + 1) * batch_size)
            total = logs["loss"] * count
            case.loss((total - self._sum) / (count - self._count))
            self._sum, self._count = total, count

        def on_test_begin(self, logs=None):
            self._end()
            if not self._ended_s and "validation" not in clock.parts:
                self._begin(validation_samples / batch_size, "validation")

        def on_test_batch_begin(self, batch, logs=None):
            if self._enough(batch):
                self.model.stop_evaluating = True

        def on_test_end(self, logs=None):
            self._end()

        def on_epoch_end(self, epoch, logs=None):
            self._end()
            if epoch == 0 and not all(part.complete for part in clock.parts.values()):
                self.model.stop_training = True
                return
            now_s = time.perf_counter()
            last_s = now_s - (self._ended_s[-1] if self._ended_s else self._began_s + self._before_s)
            self._ended_s.append(now_s)
            if not whole and now_s - self._began_s + last_s > 2 * clock.budget_s:
                self.model.stop_training = True

        def on_train_end(self, logs=None):
            case.backend.synchronize()
            now_s = time.perf_counter()
            later = [end - begin for begin, end in itertools.pairwise(self._ended_s)]
            estimate = measure_epochs.fit_metric(clock, epochs, self._before_s, later)
            if estimate is None:
                return
            if len(self._ended_s) == epochs:
                # One training has one time. The spread of its steps says how well this run pins it down.
                seconds = now_s - self._began_s
                estimate = (estimate * (seconds / estimate.value)).replace(value=seconds, how="measured", n=epochs)
            case.metric("fit_s", estimate)

        def _begin(self, steps, part):
            self._ticker = case.ticker(steps, part)
            self._ticker.tick()  # making the iterator, which comes before Keras calls, belongs to the first step

        def _enough(self, batch):
            if self._ticker is None or batch == 0 or self._ticker.tick():
                return False
            self._ticker = None
            return True

        def _end(self):
            if self._ticker is not None:
                self._ticker.end()
                self._ticker = None

    return StepTimes()


def lightning(case: Case, precision: str = "32-true") -> Any:
    """A Lightning callback that times what a `Trainer` loops over; the loop itself stays Lightning's.

        clocked = callbacks.lightning(case, precision)
        trainer = Trainer(accelerator=case.backend.backend, precision=precision, callbacks=[clocked], ...)
        trainer.fit(model, clocked.steps(train_loader))
        trainer.validate(model, clocked.steps(test_loader, "evaluation"))

    Batches pass through `clocked.steps`, so the first step holds the start of the loader's workers, which Lightning
    would start before any of its hooks, and ready batches go through the same loop. When the clock has enough, the
    loader ends, and so does Lightning's epoch. Lightning counts on a length, which must not be reached before the last
    step has ended; so it is told one far beyond.

    The callback notes losses without waiting for the device, keeps an eye on the model, and makes Lightning silent. It
    raises Unsupported before the first step if Lightning would compute in another precision than asked for, and
    Mismatch if the model is on another device.
    """
    from lightning.pytorch.callbacks import Callback

    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)  # which devices there are, and tips
    for words in ("You defined a `validation_step` but have no", r"`isinstance\(treespec, LeafSpec\)` is deprecated"):
        warnings.filterwarnings("ignore", message=words)

    class Clocked(Callback):
        def __init__(self):
            self._losses: list[Any] = []

        def steps(self, batches: Any, part: str = "training", per_epoch: float = 1.0) -> _Batches:
            """The same batches, timed as `part`; see `Case.steps`. A part can be looped over once."""
            return _Batches(case, batches, part, per_epoch)

        def setup(self, trainer, pl_module, stage):
            check_precision(trainer, precision)

        def on_train_start(self, trainer, pl_module):
            case.watch_model(pl_module)
            self._check_device(pl_module)

        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            if not case.clock.on_ready:
                self._losses.append((outputs["loss"] if isinstance(outputs, dict) else outputs).detach())

        def on_train_end(self, trainer, pl_module):
            self._check_device(pl_module)
            for loss in self._losses:
                case.loss(loss.item())
            self._losses.clear()

        def teardown(self, trainer, pl_module, stage):
            pl_module.to(case.device)  # from where Lightning has just moved it to the CPU

        def _check_device(self, model):
            found = case.backend.device_of(model)
            if found != case.backend.backend:
                raise Mismatch(f"asked for {case.backend.backend}; Lightning trains on {found}")

    return Clocked()


class _Batches:
    """What Lightning loops over: a loader's batches on a case's clock."""

    def __init__(self, case: Case, batches: Any, part: str, per_epoch: float):
        self._case, self._batches, self._part, self._per_epoch = case, batches, part, per_epoch

    def __len__(self) -> int:
        return len(self._batches) + 10**9

    def __iter__(self) -> Iterator:
        # A generator: Lightning asks for iterators that it never uses, and those must not start the clock.
        yield from self._case.steps(self._batches, self._part, per_epoch=self._per_epoch)


def check_precision(trainer: Any, precision: str | int) -> None:
    """Raise Unsupported, in one line, if a Lightning `Trainer` computes in another precision than `precision`.

    That is read from the plugin that Lightning chose, not from what it was asked for: on a CPU it takes bf16-mixed for
    16-mixed. Also if the device has none such: Lightning takes 64-true for MPS, which would fail in the first step.
    """
    asked, where, plugin = str(precision), trainer.strategy.root_device.type, trainer.precision_plugin
    if "-" not in asked:  # its short names
        asked += "-mixed" if asked.endswith("16") else "-true"
    if asked.startswith("64") and where == "mps":
        raise errors.Unsupported(f"precision {asked}: MPS has no float64; 32-true is its most exact")
    scaler, actual = getattr(plugin, "scaler", None), str(plugin.precision)
    if actual == "16-mixed" and scaler is not None and not scaler.is_enabled():
        actual += " without a gradient scaler"
    if actual != asked:
        raise errors.Unsupported(f"precision {asked}: on {where} Lightning computes in {actual}")
