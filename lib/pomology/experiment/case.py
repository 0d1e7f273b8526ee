"""What a notebook talks to: an experiment, its cases, and one line to time a loop over batches.

    experiment = Experiment("vae", article="003", devices=devices, profile=profile, budget_s=budget_s, out=out)
    for case in experiment.cases(batch_size=batch_sizes):
        with case:
            model = case.watch_model(VAE().to(case.device))
            for images, _ in case.steps(loader):
                ...
    experiment.table()

Each case is journalled before it starts and when it ends, with exactly one status. An exception ends its case, not the
notebook.
"""

from __future__ import annotations

import contextlib
import math
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pomology.errors import Mismatch, PomologyError
from pomology.experiment import feasibility, outcome
from pomology.experiment.progress import Progress
from pomology.machine.memory import MemoryTrace
from pomology.machine.sampler import Telemetry
from pomology.measure import calls, clock, epochs
from pomology.measure.estimate import Estimate
from pomology.paths import redact
from pomology.results import cases as results_cases
from pomology.results import record as results_record
from pomology.workloads import parity
from pomology.workloads.cost import Workload

if TYPE_CHECKING:
    from pomology.devices.base import Device
    from pomology.experiment.experiment import Experiment

ATTRIBUTES = ("backend", "clock", "config", "device", "experiment", "name", "scaled")  # of a case, beside its methods


class Case:
    """One row of an article's table on one device. Enter it with `with`; how that block ends becomes its status.

    Its settings are `case["batch_size"]`, and `case.batch_size` where nothing else of a case has that name.
    `device` is what the framework's `.to()` takes, `backend` the kit's device, `scaled` whether the model is a smaller
    one than the article's, `clock` the case's clock inside of the block.
    """

    def __init__(self, experiment: Experiment, backend: Device, config: dict):
        self.experiment, self.backend, self.config = experiment, backend, dict(config)
        self.device = backend.handle
        self.precision = config.get("precision", experiment.precision)
        settings = " ".join(f"{key}={value}" for key, value in self.config.items())
        self.name = f"{backend.framework}-{backend.backend} {settings}".strip()
        self.clock: clock.StepClock | None = None
        self.scaled = False
        self._workload: Workload | None = None
        self._metrics: dict[str, Estimate] = {}
        self._learning = outcome.Learning()
        self._computed_on: set[str] = set()
        self._notes: list[str] = []
        self._flags: list[str] = []
        self._kernels: dict[str, dict] = {}
        self._model: Any = None
        self._weights: Any = None
        self._weights_on: str | None = None
        self._telemetry: Telemetry | None = None
        self._trace: MemoryTrace | None = None
        self._progress = Progress(self.name)

    @classmethod
    def refuse(cls, axes: Iterable[str]) -> None:
        """Raise PomologyError for a setting that no case can have as an attribute, since case.NAME is another thing."""
        for name in axes:
            if hasattr(cls, name) or name in ATTRIBUTES:
                raise PomologyError(
                    f"case.{name} is no setting: give {name!r} in rows, as in cases([{{{name!r}: ...}}]), "
                    f'and read it by case["{name}"]'
                )

    def __getitem__(self, name: str) -> Any:
        """A setting of this case: `case["batch_size"]`. Raises KeyError for another name."""
        return self.config[name]

    def __getattr__(self, name: str) -> Any:
        """A setting of this case: `case.batch_size`."""
        try:
            return self.__dict__["config"][name]
        except KeyError:
            raise AttributeError(f"a case of this experiment has no {name!r}") from None

    # Before the training

    def require_memory(self, workload: Workload) -> None:
        """Say what a step costs. Raises TooBig, which ends the case, if it cannot fit the free memory."""
        self._workload = workload
        feasibility.require_memory(workload, self.backend)

    def require_time(self, limit_s: float, steps: int = 3, precision: str = "") -> None:
        """Raise TooBig, which ends the case, if that many steps surely cannot end in `limit_s`.

        That is judged by the best rate that a matrix product of this precision, by default the case's, reaches on this
        device, which no training step exceeds. Comes behind `require_memory`.
        """
        precision = precision or self.precision
        rate = self.experiment.peak_matmul_rate(self.backend, precision)
        feasibility.require_time(self._workload.flops, rate, precision, limit_s, steps)

    def memory_budget(self, share: float = 0.9, most_bytes: float = math.inf) -> int:
        """Bytes that a case may plan for that is to come near the limit of the memory, without endangering the machine.

        `share` of the free memory, but what is left is never less than 10 % of it or 1.5 GB, whichever is more. Where
        that exceeds `most_bytes`, it is those; then the case is not near the limit: it is `scaled`, and a note says so.
        On a processor what may be planned for is less by as much as the holes between tensors take; see
        `feasibility.HOLES`. Raises PomologyError for a share that is none, and TooBig if nothing can be spared.
        """
        budget = feasibility.memory_budget(self.backend, share, most_bytes)
        self.scaled |= budget.scaled
        self.note(budget.note)
        return budget.bytes

    def watch_model(self, model: Any, weights_on: str | None = None) -> Any:
        """Keep an eye on a model: where its weights really are, and whether they change. Returns the model.

        weights_on: the backend that holds offloaded weights between steps; `ran_on` then says what computes.
        Raises Mismatch if it has not as many parameters as the workload said, and ValueError if it has none.
        """
        count = self.backend.count(model)
        if not count:
            raise ValueError("a model without parameters cannot be observed")
        if self._workload and count != self._workload.parameters:
            raise Mismatch(f"the model has {count:,} parameters; {self._workload.parameters:,} were counted beforehand")
        self._model, self._weights, self._weights_on = model, self.backend.weight_sample(model), weights_on
        return model

    def ran_on(self, result: Any) -> None:
        """Note where a tensor that this case computed really is: elsewhere than asked for is a `fallback`."""
        self._computed_on.add(self.backend.device_of(result))

    def check(self, values: Any, reference: Any, tolerance: float, what: str, relative: bool = False) -> None:
        """Compare what two computations gave that should agree: arrays, or dicts of arrays by name.

        tolerance: the largest absolute difference allowed; with `relative`, as a share of each reference array's
        largest absolute element. The largest absolute difference of all checks is recorded as `max_abs_error`, also
        when the check fails. Raises Mismatch, which ends the case, in a line that names the worst element; also for
        other names, shapes or types, and for values that are not finite.
        """
        error, complaint = parity.difference(values, reference, tolerance, relative)
        if error is not None:
            before = self._metrics.get("max_abs_error", Estimate(0.0))
            self.metric("max_abs_error", max(error, before.value), "")
        if complaint is not None:
            raise Mismatch(f"{what}: {complaint}")

    # Time

    def steps(
        self,
        batches: Iterable,
        part: str = "training",
        steps: float | None = None,
        per_epoch: float = 1.0,
        ready: bool = True,
    ) -> Iterator:
        """Iterate over `batches` and time what the loop does with each; see `clock.StepClock.steps`."""
        self.watch()
        return self.clock.steps(batches, part, steps, ready, per_epoch)

    def ticker(self, steps: float, part: str = "training") -> clock.Ticker:
        """Time the steps of a trainer that owns its loop and calls back; see `clock.Ticker`."""
        self.watch()
        return clock.Ticker(self.clock, part, steps)

    def watch(self) -> None:
        """Start the telemetry, if it is not running. The first timed loop does; what is timed otherwise may."""
        if self._telemetry is None:
            self.backend.synchronize()
            self._telemetry = self._stack.enter_context(Telemetry(device=self.backend.kind))

    def measure(self, name: str, function: Callable[[], Any], **options: Any) -> calls.Measurement:
        """Time a function that needs no loader, within the budget, and note the median of a call as metric `name`.

        options: of `calls.measure`. Timed as `step_s`, it gives FLOP/s too if the workload is known.
        """
        self.watch()
        timed = calls.measure(function, self.backend.synchronize, **{"budget_s": self.experiment.budget_s, **options})
        self._metrics[name] = timed.seconds
        if name == "step_s" and self._workload:
            self._metrics["flops_per_s"] = epochs.rate(self._workload.flops, timed.seconds, "FLOP/s")
        return timed

    def phase(self, name: str) -> contextlib.AbstractContextManager:
        """Time a part of every step by itself; see `clock.StepClock.phase`."""
        return self.clock.phase(name)

    def occasional(self, name: str, per_epoch: float) -> contextlib.AbstractContextManager:
        """Time something that an epoch does `per_epoch` times, apart from the steps around it."""
        return self.clock.occasional(name, per_epoch)

    def trace(self) -> None:
        """Note memory and page faults of the step that ends here: call it once in every step, as its last line.

        Waits for the device, and takes some 0.1 ms of its own, which belongs to the step. What it reads is in the
        record as `memory_trace`, and its slopes over the steps behind the warm-up among the metrics; see `MemoryTrace`.
        """
        self.backend.synchronize()
        if self._trace is None:
            self._trace = MemoryTrace(self.backend.memory, self._start_s)
        self._trace.note()

    # Results

    def loss(self, value: float) -> None:
        """Note the loss of a step, as the article's loop reads it."""
        if not self.clock.on_ready:
            self._learning.losses.append(float(value))

    def accuracy(self, value: float, samples: int, classes: int) -> None:
        """Note the share of held-out samples that the trained model gets right.

        A model that does no better than guessing after 20 steps of training did not learn: no better means below the
        chance of `classes` equally likely classes plus three standard deviations of a guesser's score on so many
        samples, which a guesser passes once in a thousand times. After fewer steps nothing is concluded.
        """
        self.metric("accuracy", value, "", n=samples)
        self._learning.accuracy(value, samples, classes, self._training.steps if self._training else 0)

    def metric(self, name: str, value: Estimate | float, unit: str = "", **more: Any) -> None:
        """Add a measured value to the record: an Estimate, or a number in `unit`.

        more: low, high, n and how of a number. Raises ValueError for a NaN.
        """
        if not isinstance(value, Estimate):
            # A framework's scalar is no JSON.
            value = Estimate(value if isinstance(value, int) else float(value), unit, **more)
        if not math.isfinite(value.value):
            raise ValueError(f"{name} is {value.value}; what could not be measured is left out")
        self._metrics[name] = value

    def kernel(self, name: str, timed: calls.Measurement) -> None:
        """Add the time of a call, as `calls.measure` gave it, with its interval and its raw times."""
        self._metrics[name] = timed.seconds
        self._kernels[name] = {
            "first_call_s": timed.first_call_s,
            "steady": outcome.pairs(timed.blocks),
            "stopped": timed.stopped,
        }

    def note(self, text: str, *flags: str) -> None:
        """Add a sentence to the notes, unless it is there already. `flags` stand beside the numbers as well."""
        self._notes += [text] if text not in self._notes else []
        self._flags += flags

    def __enter__(self) -> Case:
        self._started, self._start_s = results_record.now(), time.perf_counter()
        self._conditions = self.experiment.conditions()
        self.experiment.journal.start(self._base())
        self.backend.reset_peak_memory()
        self.clock = clock.StepClock(
            self.backend.synchronize,
            budget_s=self.experiment.budget_s,
            whole=self.experiment.profile == "article",
            to_device=self.backend.to_device,
            on_progress=self._progress.update,
        )
        self._stack = contextlib.ExitStack()
        self._stack.enter_context(self.backend.context())
        self._fallbacks = self._stack.enter_context(self.backend.watch_fallbacks())
        return self

    def __exit__(self, kind: type | None, exception: BaseException | None, trace: Any) -> bool:
        try:
            if exception is None:
                self.backend.synchronize()
        except Exception as late:  # a GPU reports what went wrong when it is waited for
            exception = late
        self._stack.close()
        record = self.experiment.journal.end(self._record(exception))
        self._progress.finish(results_cases.line(record))
        # Nothing of this case may stay in memory while the next one is measured.
        self._model = self._weights = None
        return record.status != "interrupted"

    @property
    def _training(self) -> clock.Part | None:
        """The first loop that was timed."""
        return next(iter(self.clock.parts.values()), None)

    def _base(self) -> dict[str, Any]:
        experiment = self.experiment
        return {
            "experiment": experiment.name,
            "article": experiment.article,
            "case": self.name,
            "config": self.config,
            "framework": self.backend.framework,
            "framework_version": self.backend.framework_version,
            "backend": self.backend.backend,
            "device": None,
            "chip": self.backend.name,
            "precision": self.precision,
            "profile": experiment.profile,
            "data": experiment.data_kind,
            "data_origin": experiment.data_origin,
            "scaled": self.scaled,
            "repeat": experiment.repeat,
            "threads": self.backend.threads,
            "power_source": self._conditions["power_source"],
            "started": self._started,
        }

    def _record(self, exception: BaseException | None) -> dict[str, Any]:
        telemetry, workload, trace = self._telemetry, self._workload, self._trace
        warmup = trace and outcome.warmup_steps(trace, self._training)
        observed = self.backend.device_of(self._model) if self._model is not None else None
        if observed is not None and observed == self._weights_on and self._computed_on == {self.backend.backend}:
            observed = self.backend.backend
        status, reason = self._status(exception, observed)
        record = self._base() | {
            "device": observed and ("cpu" if observed == "cpu" else "gpu"),
            "parameters": workload and workload.parameters,
            "flops_per_step": workload and workload.flops,
            "bytes_per_step": workload and workload.moved_bytes,
            "foreign_load": telemetry.foreign_load if telemetry else None,
            "flags": self._conditions["flags"]
            + self._flags
            + outcome.flags(telemetry, self._training, self.backend.backend),
            "status": status,
            "reason": reason,
            "seconds": round(time.perf_counter() - self._start_s, 3),
            "metrics": {name: metric.metric() for name, metric in self._all_metrics(warmup).items()},
            "blocks": {name: outcome.raw_times(part) for name, part in self.clock.parts.items()} | self._kernels,
            "asides": {name: occasional.seconds for name, occasional in self.clock.occasional_work.items()},
        }
        if self._notes:
            record["note"] = redact("; ".join(self._notes))
        if trace is not None:
            record["memory_trace"] = outcome.memory_trace(trace, self.backend) | {"warmup": warmup}
        if telemetry is not None:
            absent = dict(telemetry.absent)
            if self.backend.uncounted:
                absent |= dict.fromkeys(("allocated_peak_bytes", "reserved_peak_bytes"), redact(self.backend.uncounted))
            record |= {"absent": absent, "rails": telemetry.rails, "thermal_level": telemetry.thermal_level}
            record["trace"] = telemetry.samples[:: max(1, len(telemetry.samples) // 500)]
        if status == "error" and exception is not None:
            record["traceback"] = redact("".join(traceback.format_exception(exception)))
        return record

    def _status(self, exception: BaseException | None, observed: str | None) -> tuple[str, str | None]:
        if exception is not None:
            return outcome.of_exception(exception)
        elsewhere = outcome.of_place(self.backend.backend, self._computed_on | {observed} - {None}, self._fallbacks)
        if elsewhere:
            return elsewhere
        if not self._metrics and all(part.first_step_s is None for part in self.clock.parts.values()):
            return "error", "nothing was timed"
        watched = self._model is not None and bool(self.clock.parts)
        same_weights = watched and self.backend.weight_sample(self._model) == self._weights
        problem = self._learning.problem(self.experiment.expects_learning, same_weights)
        return ("not-learning", problem) if problem else ("ok", None)

    def _all_metrics(self, warmup: int | None) -> dict[str, Estimate]:
        """What was measured, and what follows from it."""
        metrics = epochs.epoch_metrics(self.clock)
        if self._telemetry is not None:
            metrics |= {name: Estimate(**form) for name, form in self._telemetry.metrics().items()}
        if "power_w" in metrics and "step_s" in metrics:
            energy = metrics["power_w"].value * metrics["step_s"].value
            metrics["energy_j_per_step"] = Estimate(energy, "J", how="estimated")
            if self._workload and self._workload.flops:
                each = energy / self._workload.flops * 1e12
                metrics["energy_j_per_tflop"] = Estimate(each, "J", how="estimated")
        if self.clock.parts:
            metrics |= {name: Estimate(value, "B") for name, value in self.backend.peak_memory().items()}
        metrics |= self._learning.metrics()
        if self._trace is not None:
            metrics |= {name: Estimate(**form) for name, form in self._trace.metrics(warmup).items()}
        return metrics | self._metrics | self._rates(metrics | self._metrics)

    def _rates(self, metrics: dict[str, Estimate]) -> dict[str, Estimate]:
        """FLOP/s of a step, on ready batches where there are any, and of passes that are timed by themselves."""
        workload, rates = self._workload, {}
        if not workload:
            return rates
        blocks = self._training and (self._training.ready_blocks or self._training.blocks)
        if blocks:
            rates["flops_per_s"] = epochs.rate(workload.flops, epochs.interval(blocks), "FLOP/s")
        if workload.forward_flops is not None:
            passes = {"forward": workload.forward_flops, "backward": workload.flops - workload.forward_flops}
            for name, flops in passes.items():
                if f"{name}_s" in metrics and flops:
                    rates[f"{name}_flops_per_s"] = epochs.rate(flops, metrics[f"{name}_s"], "FLOP/s")
        return rates
