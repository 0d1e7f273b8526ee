"""What a notebook talks to: an experiment, its cases, and one line to time a loop over batches."""

from __future__ import annotations

import contextlib
import math
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pomology import format
from pomology.errors import Mismatch
from pomology.experiment import outcome
from pomology.experiment.feasibility import Feasibility
from pomology.machine import memory, quiet
from pomology.machine.memory import MemoryTrace
from pomology.machine.sampler import Telemetry
from pomology.measure import calls, clock, epochs
from pomology.measure.estimate import Estimate
from pomology.models import verify
from pomology.models.cost import Workload
from pomology.paths import redact
from pomology.results import cases as results_cases
from pomology.results import record as results_record

if TYPE_CHECKING:
    from pomology.devices.base import Device
    from pomology.experiment.experiment import Experiment

ACCURACY_STEPS = 20  # after so many steps any model here that can learn does better than chance


class Case(Feasibility):
    """One row of an article's table on one device, journalled before it starts and when it ends.

    Enter it with `with`; how that block ends, also by an exception, becomes its status. Its settings are read as
    `case["batch_size"]`. backend: the kit's device. device: what the framework's `.to()` takes. scaled: whether the
    model is a smaller one than the article's. clock: inside of the block, its `StepClock`; phase and occasional are
    that clock's. rested_s: how long its device rested.
    """

    experiment = backend = device = config = name = clock = phase = occasional = None
    scaled, rested_s = False, 0.0

    def __init__(self, experiment: Experiment, backend: Device, config: dict):
        self.experiment, self.backend, self.device, self.config = experiment, backend, backend.handle, dict(config)
        self.precision = config.get("precision", experiment.precision)
        settings = " ".join(f"{key}={value}" for key, value in config.items())
        self.name = f"{backend.framework}-{backend.backend} {settings}".strip()
        self._workload: Workload | None = None
        self._telemetry: Telemetry | None = None
        self._trace: MemoryTrace | None = None
        self._model = self._weights = self._weights_on = self._guesses = None
        self._metrics: dict[str, Estimate] = {}
        self._kernels: dict[str, dict] = {}
        self._losses: list[float] = []
        self._loads: list[float] = []  # cores that others used, of each thing timed
        self.epochs_done: float | None = None  # known to a trainer that runs several; else as of the first loop
        self._computed_on: set[str] = set()
        self._notes: list[str] = []
        self._flags: list[str] = []
        self._shown, self._shown_s = None, 0.0
        self._peaks: dict[str, int] = {}

    def __getitem__(self, name: str) -> Any:
        return self.config[name]

    # The training

    def watch_model(self, model: Any, weights_on: str | None = None) -> Any:
        """Return the model, and record where its weights really are, and whether they change. weights_on: the backend
        that holds offloaded weights between steps; `ran_on` then says what computes. Raises Mismatch if the workload
        said another number of parameters, and ValueError if there are none."""
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
        """Record how far two computations differ that should agree, as `max_abs_error`: arrays, or dicts of them.
        tolerance: the largest absolute difference; with `relative`, as a share of each reference array's largest
        absolute element. Raises Mismatch, which ends the case, naming the worst element; also for other names, shapes
        or types, and for values that are not finite."""
        error, complaint = verify.difference(values, reference, tolerance, relative)
        if error is not None:
            self.metric("max_abs_error", max(error, self._metrics.get("max_abs_error", Estimate(0.0)).value))
        if complaint is not None:
            raise Mismatch(f"{what}: {complaint}")

    # Time

    def steps(self, batches: Iterable, part: str = "training", **options: Any) -> Iterator:
        """Iterate over `batches` and time what the loop does with each; options: as of `clock.StepClock.steps`."""
        self.watch()
        self.mark()
        return self.clock.steps(batches, part, **options)

    def watch(self) -> None:
        """Start the telemetry, if it is not running. The first timed loop does; what is timed otherwise may."""
        if self._telemetry is None:
            self.backend.synchronize()
            self._telemetry = self._stack.enter_context(Telemetry(device=self.backend.kind))
            self.mark()

    def mark(self) -> None:
        """What is timed next begins here: what else runs on the machine from now on until its end counts against it."""
        self._edge = quiet.edge()

    def _timed(self) -> None:
        """What was timed ends here."""
        begun, self._edge = self._edge, quiet.edge()
        load, flags = quiet.between(begun, self._edge)
        self._loads.append(load)
        self._flags += flags

    def measure(self, name: str, function: Callable[[], Any], **options: Any) -> calls.Measurement:
        """Time a function that needs no loader, within the budget, and note the median of a call as metric `name`, with
        its raw times; as `step_s`, FLOP/s too if the workload is known. options: of `calls.measure`."""
        self.watch()
        self.mark()
        budget = {"budget_s": self.experiment.budget_s, "limit_s": self.experiment.limit_s}
        timed = calls.measure(function, self.backend.synchronize, **budget | options)
        self.kernel(name, timed)
        if name == "step_s" and self._workload:
            self._metrics["flops_per_s"] = epochs.rate(self._workload.flops, timed.seconds, "FLOP/s")
        return timed

    def trace(self) -> None:
        """Note memory and page faults of the step that ends here, see `MemoryTrace`: the last line of every step. Waits
        for the device, and takes some 0.1 ms of its own, which belongs to the step."""
        self.backend.synchronize()
        if self._trace is None:
            self._trace = MemoryTrace(self.backend.memory, self._start_s)
        self._trace.note()

    # Results

    def loss(self, value: float) -> None:
        """Note the loss of a step, as the article's loop reads it."""
        if not self.clock.on_ready:
            self._losses.append(float(value))

    def accuracy(self, value: float, samples: int, classes: int, epochs: int = 1) -> None:
        """Note the share of held-out samples that the model gets right: as `accuracy` only after all `epochs` of the
        training, else as `accuracy_unfinished`, and in a note. After 20 steps of training, a model did not learn that
        does no better than the chance of `classes` equally likely classes plus three standard deviations of a
        guesser's score on so many samples, which a guesser passes once in a thousand times."""
        training = self._training
        done = self.epochs_done or (min(1.0, training.steps / training.epoch_steps) if training else 0.0)
        self.metric("accuracy" if done >= epochs else "accuracy_unfinished", value, n=samples)
        if done < epochs:
            where = " of the stand-in" if self.experiment.data_kind == "stand-in" else ""
            self.note(f"{100 * value:.1f} %{where} right after {math.floor(100 * done) / 100:g} of {epochs} epochs")
        chance, steps = 1 / classes, training.steps if training else 0
        bound = chance + 3 * math.sqrt(chance * (1 - chance) / samples)
        if value <= bound and steps >= ACCURACY_STEPS:
            self._guesses = f"{value:.1%} right after {steps} steps; guessing gives {chance:.1%}, and up to {bound:.1%}"

    def metric(self, name: str, value: Estimate | float, unit: str = "", **more: Any) -> None:
        """Add an Estimate to the record, or a number in `unit` with low, high, n and how. Raises ValueError for NaN."""
        if not isinstance(value, Estimate):
            # A framework's scalar is no JSON.
            value = Estimate(value if isinstance(value, int) else float(value), unit, **more)
        if not math.isfinite(value.value):
            raise ValueError(f"{name} is {value.value}; what could not be measured is left out")
        self._metrics[name] = value

    def kernel(self, name: str, timed: calls.Measurement) -> None:
        """Add the time of a call, as `calls.measure` gave it, with its interval and its raw times."""
        self._timed()
        self._metrics[name] = timed.seconds
        about = {"first_call_s": timed.first_call_s, "warmup": outcome.pairs(timed.warmup), "stopped": timed.stopped}
        self.raw(name, timed.blocks, **about)

    def raw(self, name: str, blocks: Iterable[clock.Block | float], **about: Any) -> None:
        """Keep the raw times, blocks of calls or the seconds of each, that the number `name` is made of."""
        blocks = [block if isinstance(block, clock.Block) else clock.Block(1, block) for block in blocks]
        self._kernels[name] = {"steady": outcome.pairs(blocks)} | about

    def note(self, text: str, *flags: str) -> None:
        """Add a sentence to the notes, unless it is there already. `flags` stand beside the numbers as well."""
        self._notes += [text] if text not in self._notes else []
        self._flags += flags

    def __enter__(self) -> Case:
        experiment, backend = self.experiment, self.backend
        self._conditions = experiment.conditions(lambda text: self.say(f"{self.name}: {text}"))
        self._canary = experiment.canary("before_s", quiet.PATIENCE)
        self._started, self._start_s = results_record.now(), time.perf_counter()
        experiment.journal.start(self._start())
        backend.reset_peak_memory()
        about = {"budget_s": experiment.budget_s, "limit_s": experiment.limit_s, "to_device": backend.to_device}
        about |= {"on_progress": self._progress, "before_ready": self._note_peaks}
        self.clock = clock.StepClock(backend.synchronize, whole=experiment.profile == "article", **about)
        self.phase, self.occasional = self.clock.phase, self.clock.occasional
        self._stack = contextlib.ExitStack()
        if strict := self.config.get("tf32") == "off":
            self.note("convolutions in true fp32, not in TF32", "other-way")
        self._stack.enter_context(backend.context(strict))
        self._fallbacks = self._stack.enter_context(backend.watch_fallbacks())
        self.mark()
        return self

    def __exit__(self, kind: type | None, exception: BaseException | None, trace: Any) -> bool:
        try:
            if exception is None:
                self.backend.synchronize()
        except Exception as late:  # a GPU reports what went wrong when it is waited for
            exception = late
        # What a notebook times by itself has no end of its own; a moment behind what was timed is no part of it.
        if self._telemetry and (not self._loads or time.perf_counter() - self._edge.t_s >= quiet.SHORT_S):
            self._timed()
        self._stack.close()
        self._canary |= self.experiment.canary("after_s")
        if self._canary:
            self.experiment.canaries.append([*self._canary.values()])
        record = self.experiment.journal.end(self._record(exception))
        if self.backend.keeps_graphs and (self.clock.parts or record.status in ("mismatch", "out-of-memory")):
            self.experiment.keeper = self.name  # products and what was not tried leave nothing to speak of
        self.say(results_cases.line(record), final=True)
        # Nothing of this case may stay in memory while the next one is measured.
        self._model = self._weights = None
        return record.status != "interrupted"

    def end_unsupported(self, reason: str) -> None:
        """Journal this case as `unsupported`, without running it."""
        self._conditions = {"power_source": None}
        self._started = results_record.now()
        start = self.experiment.journal.start(self._start())
        record = self.experiment.journal.end(results_record.Record.ended(start, "unsupported", reason))
        self.say(results_cases.line(record), final=True)

    def _note_peaks(self) -> None:
        """What the loop takes by itself: the kit's own ready batches are no part of it."""
        self._peaks = self.backend.peak_memory()
        if seen := [sample.footprint_bytes for sample in self._telemetry.samples if sample.footprint_bytes]:
            self._peaks["footprint_peak_bytes"] = max(*seen, memory.footprint()[1]())

    def _progress(self, part: str, done: int, expected: float | None) -> None:
        if self.clock.running is None:  # the part has ended, and so has its time
            self._timed()
        if self._telemetry and self._training and part == self._training.name:
            self._telemetry.mark(*outcome.edge(self.clock))
        now_s = time.perf_counter()
        if now_s - self._shown_s >= 0.5:
            self._shown_s = now_s
            total = f" of {math.ceil(expected):,}" if expected else ""
            self.say(f"{self.name}: {part}, step {done:,}{total}, {format.clock_time(now_s - self._start_s)}")

    def say(self, text: str, final: bool = False) -> None:
        """One line that says how far the case is, in a notebook; replaced by its result, which a terminal gets too."""
        from IPython import get_ipython
        from IPython.display import Pretty, display

        if self._shown is not None:
            self._shown.update(Pretty(text))
        elif get_ipython() is not None:
            self._shown = display(Pretty(text), display_id=True)
        elif final:
            print(text)

    @property
    def _training(self) -> clock.Part | None:
        """The first loop that was timed."""
        return next(iter(self.clock.parts.values()), None)

    def _start(self) -> dict[str, Any]:
        """The fields of `record.Start`."""
        experiment, backend = self.experiment, self.backend
        known = {"experiment": experiment.name, "case": self.name, "data": experiment.data_kind, "device": None}
        known |= {"chip": backend.name, "power_source": self._conditions["power_source"], "started": self._started}
        known |= {key: getattr(self, key) for key in ("config", "precision", "scaled")}
        known |= {key: getattr(backend, key) for key in ("framework", "framework_version", "backend", "threads")}
        known |= {key: getattr(experiment, key) for key in ("article", "profile", "data_origin", "repeat", "software")}
        return known

    def _record(self, exception: BaseException | None) -> dict[str, Any]:
        """The fields of `record.Record`."""
        backend, telemetry, workload, training = self.backend, self._telemetry, self._workload, self._training
        observed = None if self._model is None else backend.device_of(self._model)
        if observed is not None and observed == self._weights_on and self._computed_on == {backend.backend}:
            observed = backend.backend
        status, reason = self._status(exception, observed)
        if status == "out-of-memory" and backend.memory_limit:
            self.note(backend.memory_limit)
        traced = self._trace and outcome.memory_trace(self._trace, training, backend)
        metrics = self._all_metrics(traced["warmup"] if traced else 0)
        blocks = {name: outcome.raw_times(part) for name, part in self.clock.parts.items()} | self._kernels
        flags = [*self._conditions["flags"], *self._flags]
        flags += outcome.flags(telemetry, training, self._kernels, backend.backend)
        flags += ["slowed"] * self.experiment.slowed(self._canary)
        flags += ["cut-short"] * any(each.get("stopped") == "limit" for each in blocks.values())
        record = self._start() | {
            "device": observed and ("cpu" if observed == "cpu" else "gpu"),
            "parameters": workload and workload.parameters,
            "flops_per_step": workload and workload.flops,
            "bytes_per_step": workload and workload.moved_bytes,
            "status": status,
            "reason": reason,
            "foreign_load": max(self._loads, default=None),
            "flags": [*dict.fromkeys(flags)],
            "seconds": round(time.perf_counter() - self._start_s, 3),
            "metrics": {name: value.metric() for name, value in metrics.items()},
            "blocks": blocks,
            "asides": {name: occasional.seconds for name, occasional in self.clock.occasional_work.items()},
        }
        if telemetry is not None:
            record |= outcome.observed(telemetry, backend, self.rested_s)
        if status == "error" and exception is not None:
            record["traceback"] = redact("".join(traceback.format_exception(exception)))
        optional = {"memory_trace": traced, "canary": self._canary, "note": redact("; ".join(self._notes))}
        return record | {name: value for name, value in optional.items() if value}

    def _status(self, exception: BaseException | None, observed: str | None) -> tuple[str, str | None]:
        """observed: the backend that holds the model."""
        if exception is not None:
            return outcome.of_exception(exception)
        if self._fallbacks:
            return "fallback", f"ran on the CPU: {', '.join(sorted(self._fallbacks))}"
        asked = self.backend.backend
        if elsewhere := (self._computed_on | {observed}) - {None, asked}:
            return "fallback", f"asked for {asked}, computed on {', '.join(sorted(elsewhere))}"
        if not self._metrics and all(part.first_step_s is None for part in self.clock.parts.values()):
            return "error", "nothing was timed"
        watched = self._model is not None and bool(self.clock.parts)
        if watched and self.backend.weight_sample(self._model) == self._weights:
            return "not-learning", "no step changed the weights"
        problem = outcome.not_learning(self._losses, self.experiment.expects_learning) or self._guesses
        return ("not-learning", problem) if problem else ("ok", None)

    def _all_metrics(self, warmup: int) -> dict[str, Estimate]:
        """What was measured, and what follows from it."""
        workload, training = self._workload, self._training
        metrics = epochs.epoch_metrics(self.clock)
        if self._telemetry is not None:
            metrics |= self._telemetry.metrics()
        if workload and workload.flops and "energy_j_per_step" in metrics:
            metrics["energy_j_per_tflop"] = metrics["energy_j_per_step"] * (1e12 / workload.flops)
        if training:
            peaks = self._peaks or self.backend.peak_memory()
            metrics |= {name: Estimate(value, "B") for name, value in peaks.items()}
        ends, steps = outcome.loss_ends(self._losses), len(self._losses)
        metrics |= {name: Estimate(loss, n=steps) for name, loss in ends.items() if math.isfinite(loss)}
        if self._trace is not None:
            metrics |= self._trace.metrics(warmup)
        metrics |= self._metrics
        if workload:
            # Of a step on ready batches, where there are any, and of passes that are timed by themselves.
            if blocks := training and (training.ready_blocks or training.blocks):
                metrics["flops_per_s"] = epochs.rate(workload.flops, epochs.interval(blocks), "FLOP/s")
            forward = workload.forward_flops
            passes = {} if forward is None else {"forward": forward, "backward": workload.flops - forward}
            for name, flops in passes.items():
                if flops and f"{name}_s" in metrics:
                    metrics[f"{name}_flops_per_s"] = epochs.rate(flops, metrics[f"{name}_s"], "FLOP/s")
        return metrics
