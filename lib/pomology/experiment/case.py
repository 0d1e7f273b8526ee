"""A case: one row of an article's table on one device, from its start to its line in the journal.

Read from top to bottom, this is the story of a measurement: what the case needs, how it begins,
the model that it watches, what it times, what the notebook adds, how it ends, and its record.
"""

from __future__ import annotations

import contextlib
import functools
import math
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import psutil
from IPython import get_ipython
from IPython.display import Pretty, display

from pomology.errors import Mismatch, TooBig, TooSlow, Unsupported
from pomology.experiment import outcome
from pomology.format import clock_time, seconds
from pomology.machine import memory, quiet, snapshot
from pomology.machine.sampler import Sampler
from pomology.measure import calls, clock, epochs
from pomology.measure.estimate import Estimate
from pomology.models.cost import Workload
from pomology.paths import redact
from pomology.report import peaks
from pomology.results import cases as results_cases
from pomology.results import record as results_record

SAID_S = 0.5  # between two updates of a line of output, which take about a millisecond each

if TYPE_CHECKING:
    from pomology.devices.base import Device
    from pomology.experiment.experiment import Experiment


class Case:
    """One row of an article's table on one device: a context manager, whose block is measured.

    How the block ends, also by an exception, becomes the status. `case["batch_size"]` is a setting.
    backend: the kit's device. device: what the framework's `.to()` takes. scaled: whether the model
    is a smaller one than the article's. traced: a row of `memory.TRACED` for each `trace`. clock:
    inside of the block, its `StepClock`; `phase` and `occasional` are the clock's.
    """

    def __init__(self, experiment: Experiment, backend: Device, config: dict):
        self.experiment = experiment
        self.backend = backend
        self.device = backend.handle
        self.config = dict(config)
        self.precision = config.get("precision", experiment.precision)
        settings = " ".join(f"{key}={value}" for key, value in config.items())
        self.name = f"{backend.framework}-{backend.backend} {settings}".strip()
        self.scaled = False
        self.traced: list[tuple] = []
        self._workload: Workload | None = None
        self._sampler: Sampler | None = None
        self._others = quiet.OtherPrograms()
        self._calibration_s: list[float] = []
        self._model: Any = None
        self._weights: list[float] = []
        self._offloaded = False
        self._computed_on: set[str] = set()
        self._losses: list[float] = []
        self._metrics: dict[str, Estimate] = {}
        self._kernels: dict[str, dict] = {}
        self._peaks: dict[str, int] = {}
        self._notes: list[str] = []
        self._flags: list[str] = []

    def __getitem__(self, name: str) -> Any:
        return self.config[name]

    # What it needs

    def require_memory(self, workload: Workload) -> None:
        """Say what a step costs; raise TooBig, which ends the case, if memory is too short."""
        self._workload = workload
        parts = (
            f"GB at the least (weights, gradients and optimiser {workload.state_bytes / 1e9:.1f}, "
            f"kept for the backward pass {workload.saved_bytes / 1e9:.1f})"
        )
        self.require_bytes(workload.bytes, self.backend.free_memory(), parts)
        if workload.host_bytes:
            # A GPU with a memory of its own takes nothing of the host's.
            needed = workload.host_bytes + (workload.bytes if self.backend.unified_memory else 0)
            free = snapshot.available_memory_bytes()
            self.require_bytes(needed, free, "GB of the host's memory at the least")

    def require_bytes(self, needed: float, free: float, what: str = "GB") -> None:
        """Raise TooBig, which ends the case, if less memory is free."""
        if needed > free:
            raise TooBig(f"needs {needed / 1e9:.1f} {what}; {free / 1e9:.1f} GB are free")

    def require_time(
        self, limit_s: float, steps: int = 3, precision: str = "", flops: float = 0.0
    ) -> None:
        """Raise TooSlow, which ends the case, if so many steps surely cannot end in `limit_s`.

        precision: if not the case's. flops: of a step; if not those that `require_memory` was told.
        """
        flops = flops or self._workload.flops
        precision = precision or self.precision
        rate = peak_matmul_rate(self.backend, precision)
        if steps * flops / rate > limit_s:
            raise TooSlow(
                f"a step of {flops / 1e12:,.4g} TFLOP would take {seconds(flops / rate)} at the "
                f"least, at {rate / 1e9:,.4g} GFLOP/s, the most that a product in {precision} "
                f"reaches here; {steps} steps must end within {seconds(limit_s)}"
            )

    def require_tf32(self) -> None:
        """Say that this row is fp32 as its framework ships it; raise Unsupported if not TF32."""
        title = self.backend.title
        if not self.backend.tf32:
            raise Unsupported(f"{title} computes fp32 as fp32 here: there is no other way")
        self.note(f"fp32 as {title} ships it, which here is TF32", "other-way")

    # How it begins

    def __enter__(self) -> Case:
        experiment = self.experiment
        self._conditions = experiment.conditions()
        self._calibrate()
        self._started = results_record.now()
        self._start_s = time.perf_counter()
        # The line of output that its result replaces; outside of a notebook None.
        self._line = display(Pretty(self.name), display_id=True) if get_ipython() else None
        self._said_s = self._start_s
        experiment.journal.start(self._start())
        self.backend.reset_peak_memory()
        self.clock = clock.StepClock(
            self.backend.synchronize,
            whole=experiment.profile == "article",
            budget_s=experiment.budget_s,
            limit_s=experiment.limit_s,
            to_device=self._keep_ready,
            on_block=self._note_block,
        )
        self.phase = self.clock.phase
        self.occasional = self.clock.occasional
        strict = self.config.get("tf32") == "off"
        if strict:
            self.note("convolutions in true fp32, not in TF32", "other-way")
        self._stack = contextlib.ExitStack()
        self._stack.enter_context(self.backend.context(strict))
        self._fallbacks = self._stack.enter_context(self.backend.watch_fallbacks())
        self._others.begin()
        return self

    def _calibrate(self) -> None:
        """Note how fast the machine is; not in the profile `smoke`, whose numbers say nothing."""
        if self.experiment.profile != "smoke":
            self._calibration_s.append(quiet.calibrate())

    # The model

    def watch_model(self, model: Any, offloaded: bool = False) -> Any:
        """Return the model, and record where its weights really are, and whether they change.

        offloaded: whether they are meant to lie elsewhere between steps; then `ran_on` says what
        computes. Raises Mismatch if the workload said another number of parameters.
        """
        count = self.backend.count(model)
        if self._workload and count != self._workload.parameters:
            counted = self._workload.parameters
            raise Mismatch(f"the model has {count:,} parameters; {counted:,} were counted before")
        self._model = model
        self._weights = self.backend.weight_sample(model)
        self._offloaded = offloaded
        return model

    def ran_on(self, result: Any) -> None:
        """Note where a tensor that this case computed really is: elsewhere is a `fallback`."""
        self._computed_on.add(self.backend.device_of(result))

    # What it times

    def steps(self, batches: Iterable, part: str = "training", **options: Any) -> Iterator:
        """Iterate over `batches` and time what the loop does with each, see `StepClock.steps`."""
        self.watch()
        return self.clock.steps(batches, part, **options)

    def measure(self, name: str, function: Callable[[], Any], **options: Any) -> calls.Measurement:
        """Time a function, see `calls.measure`, and note the median of a call as metric `name`."""
        self.watch()
        limits = {"budget_s": self.experiment.budget_s, "limit_s": self.experiment.limit_s}
        timed = calls.measure(function, self.backend.synchronize, **limits | options)
        self.kernel(name, timed)
        return timed

    def watch(self) -> None:
        """Say that what is timed begins: the sampler runs, and other programs count against it."""
        if self._sampler is None:
            self.backend.synchronize()
            self._sampler = self._stack.enter_context(Sampler(self.backend.kind))
        self._others.begin()

    def trace(self) -> None:
        """Note memory and page faults of the step that ends here: the last line of every step."""
        self.backend.synchronize()
        row = {"step": len(self.traced), "t_s": round(time.perf_counter() - self._start_s, 6)}
        row |= memory.page_faults() | self.backend.memory()
        row |= {"footprint_bytes": memory.footprint()}
        row |= {"resident_bytes": psutil.Process().memory_info().rss}
        self.traced.append(tuple(row.get(name) for name in memory.TRACED))

    def _note_block(self) -> None:
        """Hear from the clock that a block begins or has ended."""
        if self.clock.running is None:  # the part has ended, and so has what is timed
            self._others.end()
        training = self._training
        if len(self.clock.parts) == 1:  # other parts may follow
            # Between two stretches of steady blocks are the warm-up, ready batches or other work.
            asides = sum(len(work.seconds) for work in self.clock.occasional_work.values())
            stretch = (len(training.warmup), len(training.ready_blocks), asides)
            self._sampler.steady(stretch, clock.steps_in(training.blocks))
        part = self.clock.running
        now_s = time.perf_counter()
        if part and self._line and now_s - self._said_s >= SAID_S:
            self._said_s = now_s
            steps = f"{part.name}, step {part.steps:,} of {math.ceil(part.epoch_steps):,}"
            spent = clock_time(now_s - self._start_s)
            self._line.update(Pretty(f"{self.name}: {steps}, {spent}"))

    def _keep_ready(self, batch: Any) -> Any:
        """Return a batch on the device, for the clock's loop on ready batches."""
        if not self._peaks:  # of the loop, of which the kit's own batches are no part
            self._peaks = self.backend.peak_memory()
            sampled = [sample.footprint_bytes or 0 for sample in self._sampler.samples]
            if any(sampled):
                self._peaks["footprint_peak_bytes"] = max(*sampled, memory.footprint())
        return self.backend.to_device(batch)

    @property
    def _training(self) -> clock.Part | None:
        """The first loop that was timed."""
        return next(iter(self.clock.parts.values()), None)

    # What the notebook adds

    def loss(self, value: float) -> None:
        """Note the loss of a step, as the article's loop reads it."""
        if not self.clock.on_ready:
            self._losses.append(float(value))

    def accuracy(self, value: float, samples: int, trained: float) -> None:
        """Note the share of held-out samples that the model gets right.

        trained: the share of the training that ran. Before its end it is `accuracy_unfinished`.
        """
        self.metric("accuracy_unfinished" if trained < 1 else "accuracy", value, n=samples)
        if trained < 1:
            self.note(f"{100 * value:.1f} % right after {100 * trained:.3g} % of the training")

    def metric(self, name: str, value: Estimate | float, unit: str = "", **fields: Any) -> None:
        """Add an Estimate to the record, or a number in `unit` with low, high, n and how."""
        if not isinstance(value, Estimate):
            number = value if isinstance(value, int) else float(value)  # no framework's scalar
            value = Estimate(number, unit, **fields)
        if not math.isfinite(value.value):
            raise ValueError(f"{name} is {value.value}; what could not be measured is left out")
        self._metrics[name] = value

    def kernel(self, name: str, timed: calls.Measurement) -> None:
        """Add the time of a call, as `calls.measure` gave it, with its interval and raw times."""
        self._others.end()
        self._metrics[name] = timed.seconds
        facts = {"first_call_s": timed.first_call_s, "stopped": timed.stopped}
        self.raw(name, timed.blocks, warmup=outcome.pairs(timed.warmup), **facts)

    def raw(self, name: str, blocks: Iterable[clock.Block | float], **facts: Any) -> None:
        """Keep the raw times, blocks of calls or the seconds of each, that a number is made of."""
        timed = [each if isinstance(each, clock.Block) else clock.Block(1, each) for each in blocks]
        self._kernels[name] = {"steady": outcome.pairs(timed)} | facts

    def note(self, text: str, *flags: str) -> None:
        """Add a sentence to the notes, unless it is there; `flags` stand next to the numbers."""
        if text not in self._notes:
            self._notes.append(text)
        self._flags += flags

    # How it ends

    def __exit__(self, kind: type | None, exception: BaseException | None, trace: Any) -> bool:
        try:
            if exception is None:
                self.backend.synchronize()
        except Exception as late:  # a GPU reports what went wrong when it is waited for
            exception = late
        # What a notebook times by itself has no end of its own.
        if self._sampler:
            self._others.end()
        self._stack.close()
        self._calibrate()
        record = self.experiment.journal.end(self._record(exception))
        self.experiment.ended(self, record.status)
        result = results_cases.line(record)
        if self._line:
            self._line.update(Pretty(result))
        else:
            print(result)
        # Nothing of this case may stay in memory while the next one is measured.
        self._model = None
        return record.status != "interrupted"

    def _status(self, exception: BaseException | None, places: set[str]) -> tuple[str, str | None]:
        """Return how it ended and why. places: the backends that held the model and computed."""
        if exception is not None:
            return outcome.of_exception(exception)
        if self._fallbacks:
            return "fallback", f"ran on the CPU: {', '.join(sorted(self._fallbacks))}"
        wanted = self.backend.backend
        elsewhere = ", ".join(sorted(places - {wanted}))
        if elsewhere:
            return "fallback", f"asked for {wanted}, computed on {elsewhere}"
        timed = [part for part in self.clock.parts.values() if part.first_step_s is not None]
        if not self._metrics and not timed:
            return "error", "nothing was timed"
        trained = self._model is not None and bool(self.clock.parts)
        if trained and self.backend.weight_sample(self._model) == self._weights:
            return "not-learning", "no step changed the weights"
        problem = outcome.not_learning(self._losses, self.experiment.expects_learning)
        return ("not-learning", problem) if problem else ("ok", None)

    # Its record

    def _start(self) -> dict[str, Any]:
        """Return the fields of `record.Start`."""
        experiment = self.experiment
        backend = self.backend
        return {
            "experiment": experiment.name,
            "article": experiment.article,
            "case": self.name,
            "config": self.config,
            "framework": backend.framework,
            "framework_version": backend.framework_version,
            "backend": backend.backend,
            "device": None,
            "chip": backend.name,
            "precision": self.precision,
            "profile": experiment.profile,
            "data": experiment.data_kind,
            "data_origin": experiment.data_origin,
            "scaled": self.scaled,
            "repeat": experiment.repeat,
            "threads": backend.threads,
            "power_source": self._conditions["power_source"],
            "started": self._started,
            "software": experiment.software,
        }

    def _record(self, exception: BaseException | None) -> dict[str, Any]:
        """Return the fields of `record.Record`."""
        places = set(self._computed_on)
        # Offloaded weights lie elsewhere; what computes is enough then.
        if self._model is not None and not (self._offloaded and places):
            places.add(self.backend.device_of(self._model))
        status, reason = self._status(exception, places)
        flags = [*self._conditions["flags"], *self._flags, *self._others.flags]
        flags += outcome.flags(self._sampler, self._training, self._kernels, self.backend.backend)
        if self._calibration_s and self.experiment.slowed(self._calibration_s):
            flags.append("slowed")
        workload = self._workload
        metrics = self._all_metrics()
        framework = self.backend.framework
        rates = [each.value for name, each in metrics.items() if name.endswith("flops_per_s")]
        earlier = [each for each in self.experiment.run.records if each.framework == framework]
        if "operation" in self.config:  # peaks rise while they are measured
            earlier = []
        chip = (results_cases.kind(self.backend.backend), self.backend.name)
        if max(rates, default=0) > peaks.limit(earlier, *chip, self.precision):
            flags.append("too-fast")
        record = self._start() | {
            "device": ("cpu" if places == {"cpu"} else "gpu") if places else None,
            "parameters": workload and workload.parameters,
            "flops_per_step": workload and workload.flops,
            "bytes_per_step": workload and workload.moved_bytes,
            "status": status,
            "reason": reason,
            "flags": list(dict.fromkeys(flags)),  # each once
            "seconds": round(time.perf_counter() - self._start_s, 3),
            "metrics": {name: value.metric() for name, value in metrics.items()},
            "blocks": outcome.raw_times(self.clock.parts) | self._kernels,
            "asides": {name: work.seconds for name, work in self.clock.occasional_work.items()},
        }
        if self._sampler:
            samples = self._sampler.samples
            record["trace"] = samples[:: max(1, len(samples) // 500)]  # 500 to 1,000 at most
            for name in ("absent", "rails", "thermal_level"):
                record[name] = getattr(self._sampler, name)
        if self._calibration_s:
            record["canary"] = dict(zip(("before_s", "after_s"), self._calibration_s, strict=True))
        if self.traced:
            warmup = outcome.traced_warmup(len(self.traced), self._training)
            trace = {"columns": memory.TRACED, "rows": self.traced, "warmup": warmup}
            record["memory_trace"] = trace
        if self._notes:
            record["note"] = redact("; ".join(self._notes))
        if status == "error" and exception is not None:
            record["traceback"] = redact("".join(traceback.format_exception(exception)))
        return record

    def _all_metrics(self) -> dict[str, Estimate]:
        """Return what was measured, and what follows from it."""
        training = self._training
        metrics = epochs.epoch_metrics(self.clock)
        if self._sampler:
            metrics |= self._sampler.metrics
        if training:
            peaks = self._peaks or self.backend.peak_memory()
            metrics |= {name: Estimate(value, "B") for name, value in peaks.items()}
        for name, loss in outcome.loss_ends(self._losses).items():
            if math.isfinite(loss):
                metrics[name] = Estimate(loss, n=len(self._losses))
        metrics |= self._metrics
        if self._workload:
            metrics = outcome.rates(self._workload, training, metrics) | metrics
        return metrics


@functools.cache
def peak_matmul_rate(device: Device, precision: str) -> float:
    """Return the most FLOP/s of products of 512 to 4096 squared, timed once in this process."""
    best = 0.0
    for size in (512, 1024, 2048, 4096):
        function = device.dispatch(device.product(precision, size))
        options = {"budget_s": 0.1, "warmup_s": 0.02, "warmup_calls": 1}
        timed = calls.measure(function, device.synchronize, **options)
        fastest_s = min(block.step_s for block in timed.blocks)
        best = max(best, 2 * size**3 / fastest_s)
        if fastest_s > 0.02:  # the next takes eight times as long
            break
    return best
