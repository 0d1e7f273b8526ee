"""A case: one benchmark configuration on one device, from its start to its line in the journal.

The order is that of a measurement: requirements, begin, model, timing, additions, end, record.
"""

from __future__ import annotations

import contextlib
import functools
import math
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
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
from pomology.results.record import case_name

UPDATE_S = 0.5  # between two updates of the progress line, each of which takes about 1 ms

if TYPE_CHECKING:
    from pomology.devices.base import Device
    from pomology.experiment.experiment import Experiment


class Case:
    """One benchmark configuration on one device: a context manager whose block is measured.

    The end of the block, also by an exception, determines the status. `case["batch_size"]` is a
    setting. backend: pomology's device. device: the argument of the framework's `.to()`. scaled:
    whether the model is smaller than the article's. traced: a row of `memory.TRACED` per `trace`.
    clock, phase, occasional: the block's `StepClock` and its methods. calibration: see `Record`.
    """

    def __init__(self, experiment: Experiment, backend: Device, config: dict):
        self.experiment = experiment
        self.backend = backend
        self.device = backend.handle
        self.config = dict(config)
        self.precision = config.get("precision", "fp32")
        self.name = case_name(backend.framework, backend.backend, config)
        self.scaled = False
        self.traced: list[tuple] = []
        self._workload: Workload | None = None
        self._sampler: Sampler | None = None
        self._others = quiet.OtherPrograms()
        self.calibration: dict[str, float] = {}
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
        self._checks: list[Callable[[float], None]] = []

    def __getitem__(self, name: str) -> Any:
        return self.config[name]

    def require_memory(self, workload: Workload) -> None:
        """Set the cost of a step. Raises TooBig, which ends the case, if memory is too short."""
        self._workload = workload
        parts = (
            f"GB at least (weights, gradients and optimizer {workload.state_bytes / 1e9:.1f}, "
            f"kept for the backward pass {workload.saved_bytes / 1e9:.1f})"
        )
        self.require_bytes(workload.bytes, self.backend.free_memory(), parts)
        if workload.host_bytes:
            # A GPU with its own memory does not use the host's.
            needed = workload.host_bytes + (workload.bytes if self.backend.unified_memory else 0)
            free = snapshot.available_memory_bytes()
            self.require_bytes(needed, free, "GB of the host's memory at least")

    def require_bytes(self, needed: float, free: float, what: str = "GB") -> None:
        """Raise TooBig, which ends the case, if less memory is free than needed."""
        if needed > free:
            raise TooBig(f"needs {needed / 1e9:.1f} {what}; {free / 1e9:.1f} GB are free")

    def require_time(
        self, limit_s: float, steps: int = 3, precision: str = "", flops: float = 0.0
    ) -> None:
        """Raise TooSlow, which ends the case, if steps at the rate of a matmul exceed `limit_s`.

        precision: by default the case's. flops: per step, by default those of `require_memory`.
        """
        flops = flops or self._workload.flops
        precision = precision or self.precision
        rate = peak_matmul_rate(self.backend, precision)
        if steps * flops / rate > limit_s:
            raise TooSlow(
                f"a step of {flops / 1e12:,.4g} TFLOP takes about {seconds(flops / rate)} "
                f"at {rate / 1e9:,.4g} GFLOP/s, the rate of a matmul in {precision} here; "
                f"{steps} steps must end within {seconds(limit_s)}"
            )

    def require_tf32(self) -> None:
        """Note that this case computes fp32 in TF32. Raises Unsupported without TF32."""
        title = self.backend.title
        if not self.backend.tf32:
            raise Unsupported(f"{title} has no TF32 on this device, only true fp32")
        self.note(f"fp32 by the default of {title}, which is TF32 on this device", "other-way")

    def __enter__(self) -> Case:
        experiment = self.experiment
        self._conditions = experiment.conditions()
        self._started = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
        self._start_s = time.perf_counter()
        # The progress line, which the result replaces; None outside a notebook.
        self._line = display(Pretty(self.name), display_id=True) if get_ipython() else None
        self._updated_s = self._start_s
        experiment.journal.start(self._start())
        self._calibrate("before_s")
        self.backend.reset_peak_memory()
        self.clock = clock.StepClock(
            self.backend.synchronize,
            whole=experiment.profile == "article",
            budget_s=experiment.budget_s,
            limit_s=experiment.limit_s,
            to_device=self._preload,
            on_block=self._note_block,
        )
        self.phase = self.clock.phase
        self.occasional = self.clock.occasional
        strict = self.config.get("tf32") == "off"
        if strict:
            self.note("convolutions in true fp32, not in TF32", "other-way")
        self._sampling = contextlib.ExitStack()
        self._stack = contextlib.ExitStack()
        self._stack.enter_context(self.backend.context(strict))
        self._fallbacks = self._stack.enter_context(self.backend.watch_fallbacks())
        self._others.begin()
        return self

    def _calibrate(self, side: str) -> None:
        """Time the machine's speed on a `side` of the case, `before_s` or `after_s`."""
        if self.experiment.profile == "smoke":  # its times do not matter
            return
        self.calibration[side] = quiet.calibrate()
        try:
            if self.backend.kind == "gpu":
                self.calibration[f"device_{side}"] = quiet.calibrate_gpu(self.backend)
        except Exception as error:  # a lost or full GPU, of which the case itself tells
            self.note(f"no calibration matmul on the GPU: {outcome.of_exception(error)[1]}")

    def watch_model(self, model: Any, offloaded: bool = False) -> Any:
        """Return the model; the case will check its weights' device, and whether they change.

        offloaded: whether weights may be elsewhere between steps; then `ran_on` records the device.
        Raises Mismatch if `require_memory` was given another number of parameters.
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
        """Record the device of a computed tensor; another one than the case's is a `fallback`."""
        self._computed_on.add(self.backend.device_of(result))

    def steps(self, batches: Iterable, part: str = "training", **options: Any) -> Iterator:
        """Iterate over `batches` and time the loop's work on each, see `StepClock.steps`."""
        self.watch()
        return self.clock.steps(batches, part, **options)

    def measure(self, name: str, function: Callable[[], Any], **options: Any) -> calls.Measurement:
        """Time a function by `calls.measure`, and record the median per call as metric `name`."""
        self.watch()
        limits = {"budget_s": self.experiment.budget_s, "limit_s": self.experiment.limit_s}
        timed = calls.measure(function, self.backend.synchronize, **limits | options)
        self.kernel(name, timed)
        return timed

    def watch(self) -> None:
        """Start the sampler, and count CPU time of other programs from here."""
        if self._sampler is None:
            self.backend.synchronize()
            self._sampler = self._sampling.enter_context(Sampler(self.backend.kind))
        self._others.begin()

    def trace(self) -> None:
        """Record memory and page faults; a traced loop calls this at the end of every step."""
        self.backend.synchronize()
        row = {"step": len(self.traced), "t_s": round(time.perf_counter() - self._start_s, 6)}
        row |= memory.page_faults() | self.backend.memory()
        row |= {"footprint_bytes": memory.footprint()}
        row |= {"resident_bytes": psutil.Process().memory_info().rss}
        self.traced.append(tuple(row.get(name) for name in memory.TRACED))

    def _note_block(self) -> None:
        """Read energy and show progress where the clock begins or ends a block."""
        part = self.clock.running
        if part is None:  # it has ended, and its timing too
            self._others.end()
        training = self._training
        if len(self.clock.parts) == 1:  # other parts may follow
            # Warm-up, pre-loaded batches or occasional work separate stretches of steady blocks.
            occasional = sum(len(work.seconds) for work in self.clock.occasional_work.values())
            stretch = (len(training.warmup), len(training.ready_blocks), occasional)
            self._sampler.steady(stretch, clock.steps_in(training.blocks))
        now_s = time.perf_counter()
        if part and self._line and now_s - self._updated_s >= UPDATE_S:
            self._updated_s = now_s
            steps = f"{part.name}, step {part.steps:,} of {math.ceil(part.epoch_steps):,}"
            spent = clock_time(now_s - self._start_s)
            self._line.update(Pretty(f"{self.name}: {steps}, {spent}"))

    def _preload(self, batch: Any) -> Any:
        """Return a batch on the device, for the clock's steps on pre-loaded batches."""
        if not self._peaks:  # the loop's own peak, without pre-loaded batches
            self._peaks = self.backend.peak_memory()
            sampled = [sample.footprint_bytes or 0 for sample in self._sampler.samples]
            if any(sampled):
                self._peaks["footprint_peak_bytes"] = max(*sampled, memory.footprint())
        return self.backend.to_device(batch)

    @property
    def _training(self) -> clock.Part | None:
        """The first timed loop, if any."""
        return next(iter(self.clock.parts.values()), None)

    def loss(self, value: float) -> None:
        """Record the loss of a step."""
        if not self.clock.on_ready:
            self._losses.append(float(value))

    def accuracy(self, value: float, samples: int, trained: float) -> None:
        """Record held-out accuracy, as `accuracy_unfinished` if the share `trained` is below 1."""
        self.metric("accuracy_unfinished" if trained < 1 else "accuracy", value, n=samples)
        if trained < 1:
            self.note(f"accuracy {100 * value:.1f} % after {100 * trained:.3g} % of the training")

    def metric(self, name: str, value: Estimate | float, unit: str = "", **fields: Any) -> None:
        """Record an Estimate, or a number in `unit` with low, high, n and how."""
        if not isinstance(value, Estimate):
            number = value if isinstance(value, int) else float(value)  # also a tensor's scalar
            value = Estimate(number, unit, **fields)
        if not math.isfinite(value.value):
            raise ValueError(f"{name} is {value.value}; record finite values only")
        self._metrics[name] = value

    def kernel(self, name: str, timed: calls.Measurement) -> None:
        """Record a result of `calls.measure` with its interval and raw times."""
        self._others.end()
        self._metrics[name] = timed.seconds
        facts = {"first_call_s": timed.first_call_s, "stopped": timed.stopped}
        self.raw(name, timed.blocks, warmup=outcome.pairs(timed.warmup), **facts)

    def raw(self, name: str, blocks: Iterable[clock.Block | float], **facts: Any) -> None:
        """Record the raw times of a metric: blocks of calls, or the seconds of each call."""
        timed = [each if isinstance(each, clock.Block) else clock.Block(1, each) for each in blocks]
        self._kernels[name] = {"steady": outcome.pairs(timed)} | facts

    def note(self, text: str, *flags: str) -> None:
        """Add a sentence to the notes, unless it is there, and warning flags to the numbers."""
        if text not in self._notes:
            self._notes.append(text)
        self._flags += flags

    def at_end(self, check: Callable[[float], None]) -> None:
        """Call a function after the timing, with the case's seconds; it may raise Mismatch."""
        self._checks.append(check)

    def _run_checks(self) -> BaseException | None:
        """Run the checks after the timing; return the exception that ends the case, if any."""
        for check in self._checks:
            try:
                check(time.perf_counter() - self._start_s)
            except (Mismatch, KeyboardInterrupt) as error:
                return error
            except Exception as error:  # it must not cost the measured times
                self.note(f"not verified after the timing: {outcome.of_exception(error)[1]}")
        return None

    def __exit__(self, kind: type | None, exception: BaseException | None, trace: Any) -> bool:
        try:
            if exception is None:
                self.backend.synchronize()
        except Exception as late:  # a GPU reports errors only at a synchronization
            exception = late
        if self._sampler:
            self._others.end()
        self._sampling.close()
        self._peaks = self._peaks or self.backend.peak_memory()  # without checks and calibration
        if exception is None:
            exception = self._run_checks()
        self._stack.close()
        self._calibrate("after_s")
        record = self.experiment.journal.end(self._record(exception))
        self.experiment.ended(self, record.status)
        result = results_cases.line(record)
        if self._line:
            self._line.update(Pretty(result))
        else:
            print(result)
        # Free the model's memory before the next case.
        self._model = None
        return record.status != "interrupted"

    def _status(self, exception: BaseException | None, places: set[str]) -> tuple[str, str | None]:
        """Return the status and its reason. places: backends of the model and its results."""
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
            **experiment.data,
            "scaled": self.scaled,
            "repeat": experiment.repeat,
            "threads": backend.threads,
            "power_source": self._conditions["power_source"],
            "power_mode": self._conditions["power_mode"],
            "started": self._started,
            "software": experiment.software,
        }

    def _record(self, exception: BaseException | None) -> dict[str, Any]:
        """Return the fields of `record.Record`."""
        places = set(self._computed_on)
        # Offloaded weights may be elsewhere; the device of computed tensors is enough then.
        if self._model is not None and not (self._offloaded and places):
            places.add(self.backend.device_of(self._model))
        status, reason = self._status(exception, places)
        flags = [*self._conditions["flags"], *self._flags, *self._others.flags]
        flags += outcome.flags(self._sampler, self._training, self._kernels, self.backend.backend)
        earlier = self.experiment.report.run.records
        for seen in self.experiment.slowed(self, earlier):
            self.note(seen)
            flags.append("slowed")
        workload = self._workload
        metrics = self._all_metrics()
        rates = [each.value for name, each in metrics.items() if name.endswith("flops_per_s")]
        alike = [each for each in earlier if each.framework == self.backend.framework]
        if "operation" in self.config:  # a case that measures peaks may exceed earlier ones
            alike = []
        place = (self.backend.kind, self.backend.name, self.precision)
        if rates and max(rates) > peaks.limit(alike, *place):
            flags.append("too-fast")
        record = self._start() | {
            "device": ("cpu" if places == {"cpu"} else "gpu") if places else None,
            "parameters": workload and workload.parameters,
            "flops_per_step": workload and workload.flops,
            "bytes_per_step": workload and workload.moved_bytes,
            "status": status,
            "reason": reason,
            "flags": list(dict.fromkeys(flags)),  # without duplicates
            "seconds": round(time.perf_counter() - self._start_s, 3),
            "metrics": {name: value.metric() for name, value in metrics.items()},
            "blocks": outcome.raw_times(self.clock.parts) | self._kernels,
            "asides": {name: work.seconds for name, work in self.clock.occasional_work.items()},
            "canary": self.calibration,
            "note": redact("; ".join(self._notes)),
        }
        if self._sampler:
            samples = self._sampler.samples
            record["trace"] = samples[:: max(1, len(samples) // 500)]  # 500 to 1,000 at most
            for name in ("absent", "rails", "thermal_level"):
                record[name] = getattr(self._sampler, name)
        if self.traced:
            warmup = outcome.traced_warmup(len(self.traced), self._training)
            trace = {"columns": memory.TRACED, "rows": self.traced, "warmup": warmup}
            record["memory_trace"] = trace
        if status == "error" and exception is not None:
            record["traceback"] = redact("".join(traceback.format_exception(exception)))
        return record

    def _all_metrics(self) -> dict[str, Estimate]:
        """Return measured and derived metrics."""
        training = self._training
        metrics = epochs.epoch_metrics(self.clock)
        if self._sampler:
            metrics |= self._sampler.metrics
        if training:
            metrics |= {name: Estimate(value, "B") for name, value in self._peaks.items()}
        for name, loss in outcome.loss_ends(self._losses).items():
            if math.isfinite(loss):
                metrics[name] = Estimate(loss, n=len(self._losses))
        metrics |= self._metrics
        if self._workload:
            metrics = outcome.rates(self._workload, training, metrics) | metrics
        return metrics


@functools.cache
def peak_matmul_rate(device: Device, precision: str) -> float:
    """Return the peak FLOP/s of square matmuls of 512 to 4096, timed once per process."""
    best = 0.0
    for size in (512, 1024, 2048, 4096):
        function = device.dispatch(device.product(precision, size))
        options = {"budget_s": 0.1, "warmup_s": 0.02, "warmup_calls": 1}
        timed = calls.measure(function, device.synchronize, **options)
        fastest_s = min(block.step_s for block in timed.blocks)
        best = max(best, 2 * size**3 / fastest_s)
        if fastest_s > 0.02:  # the next size takes eight times as long
            break
    return best
