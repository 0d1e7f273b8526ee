"""A case: one benchmark configuration on one device, from its start to its line in the journal.

The order is that of a measurement: requirements, begin, model, timing, additions, end, record.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import time
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

import psutil
from IPython import get_ipython
from IPython.display import Pretty, display

from pomology.errors import Mismatch, TooBig, TooSlow, Unsupported
from pomology.experiment import outcome, preparing
from pomology.experiment.monitor import Monitor, Observed
from pomology.format import clock_time, seconds
from pomology.machine import memory, other_programs, snapshot
from pomology.measure import calls, clock, epochs, intervals
from pomology.measure.estimate import Estimate
from pomology.models import cost, workload
from pomology.paths import redact
from pomology.report import peaks
from pomology.results import calibration, journal
from pomology.results import cases as results_cases
from pomology.results.journal import Journal
from pomology.results.record import Record, case_name

# Metric -> the steps after which it is read, and the one that is read at the end.
RESERVED_AT = {"reserved_after_5_bytes": 5, "reserved_after_50_bytes": 50}
RESERVED_LAST = "reserved_end_bytes"
UPDATE_S = 0.5  # between two updates of the progress line, each of which takes about 1 ms

if TYPE_CHECKING:
    from pomology.devices.base import Device


class Shared(Protocol):
    """What all cases of an experiment share; see `Experiment` for the meaning of each name."""

    name: str
    article: str
    profile: str
    budget_s: float
    limit_s: float
    repeat: int
    expects_learning: bool
    journal: Journal
    data: dict[str, str]
    part: dict[str, int]
    software: str

    def conditions(self) -> dict[str, Any]:
        """Return recent conditions of the machine."""

    def earlier(self) -> list[Record]:
        """Return the records of the run so far, of all its notebooks."""

    def ended(self, backend: str, status: str) -> None:
        """Note the end of a case."""


class CaseClock(clock.StepClock):
    """The clock of a case, which also counts CPU time where few blocks say what is usual.

    single: the blocks of which a part has few. once: first steps, and occasional work. Their
    `cpu_s` is that of the process and its children.
    """

    def __init__(self, *arguments: Any, **named: Any):
        super().__init__(*arguments, **named)
        self.single: list[clock.Block] = []
        self.once: list[clock.Block] = []

    @contextlib.contextmanager
    def occasional(self, name: str, per_epoch: float) -> Iterator[None]:
        """Time work that an epoch does `per_epoch` times, and exclude it from the steps."""
        began_s = other_programs.process_cpu_s()
        with super().occasional(name, per_epoch):
            yield
        seconds = self.occasional_work[name].seconds[-1]
        cpu_s = other_programs.process_cpu_s() - began_s
        self.once.append(clock.Block(1, seconds, cpu_s=cpu_s))

    def _block(self, source: Iterator, size: int) -> Generator[Any, None, clock.Block]:
        part = self.running
        first = part.first_step_s is None
        series = part.ready_blocks if self.on_ready else part.blocks
        few = len(series) < intervals.VALUES_LEAST or not (part.remaining or self.on_ready)
        began_s = other_programs.process_cpu_s() if few else None
        block = yield from super()._block(source, size)
        if began_s is not None:
            cpu_s = other_programs.process_cpu_s() - began_s
            alone = clock.Block(block.steps, block.seconds, cpu_s=cpu_s)
            (self.once if first else self.single).append(alone)
        return block


class Case:
    """One benchmark configuration on one device: a context manager whose block is measured.

    The end of the block, also by an exception, determines the status. `case["batch_size"]` is a
    setting. backend: pomology's device. device: the argument of the framework's `.to()`. scaled:
    whether the model is smaller than the article's. traced: a row of `memory.TRACED` per `trace`.
    clock, phase, occasional: the block's `StepClock` and its methods.
    """

    def __init__(self, experiment: Shared, backend: Device, config: dict):
        self.experiment = experiment
        self.backend = backend
        self.device = backend.handle
        self.config = dict(config)
        self.precision = config.get("precision", "fp32")
        self.recorded = self.config | experiment.part
        self.name = case_name(backend.framework, backend.backend, self.recorded)
        self.scaled = False
        self.traced: list[tuple] = []
        self._monitor = Monitor(backend, calibrated=experiment.profile != "smoke")
        # Contexts that end with the case, and those that end with the first timed block.
        self._stack = contextlib.ExitStack()
        self._first_block = contextlib.ExitStack()
        self._cost: cost.Cost | None = None
        self._samples = 0  # of a prepared step
        self._counted: tuple[workload.Workload, workload.Counted | None] | None = None
        self._model: Any = None
        self._weights: list[float] = []
        self._offloaded = False
        self._computed_on: set[str] = set()
        self._reserved: dict[str, int] = {}  # metric -> bytes
        self._recommended: int | None = None  # bytes of the GPU
        self._losses: list[float] = []
        self._metrics: dict[str, Estimate] = {}
        self._calls: dict[str, outcome.TimedCalls] = {}
        self.proof: dict[str, float] = {}  # see `models.verify.Verification`
        self._notes: list[str] = []
        self._flags: list[str] = []
        self._checks: list[Callable[[float], None]] = []

    def __getitem__(self, name: str) -> Any:
        if name not in self.config:
            raise KeyError(f"{name!r} is no setting of this case; it has {', '.join(self.config)}")
        return self.config[name]

    def count(self, declared: workload.Workload, batch_size: int = 0) -> cost.Cost:
        """Count the step of a workload, and return its cost.

        batch_size: by default the case's setting. Raises Mismatch if the step is another one than
        the workload declares, Unsupported if the device lacks the autocast of a workload, and
        TooBig if memory is too short; each ends the case.
        """
        counted = preparing.count(self, declared, batch_size or self["batch_size"])
        self._counted = (declared, counted)
        return self._cost

    def prepare(
        self,
        declared: workload.Workload,
        batch_size: int = 0,
        reference: workload.Workload | None = None,
        put: Callable[[Any, Any], contextlib.AbstractContextManager] | None = None,
        verified: int = 0,
    ) -> tuple[Any, Any]:
        """Return a workload's model on the case's device, and its optimizer, ready to be timed.

        The step is counted, and asks for its memory. Its model is built, moved and watched, and on
        a GPU the step is verified against the CPU. The first timed step must meet the samples, the
        training mode and the precision that were counted. reference: in Keras the workload with the
        CPU's model, if that is built otherwise. put: called with the model and the device, in place
        of `.to(device)`; returns a context that lasts as long as the case. The weights may then be
        elsewhere between steps, as with offload, and the step is not verified. verified: samples
        that are verified at most, by default all of a step. Raises what `count` raises, and
        Mismatch.
        """
        size = batch_size or self.config.get("batch_size", 0)
        self._samples = size
        if self.backend.framework == "tensorflow":
            return preparing.in_keras(self, declared, size, reference)
        if self._counted is None or self._counted[0] is not declared:
            self.count(declared, batch_size)
        if self.backend.framework == "mlx":
            return preparing.in_mlx(self, declared, size, verified)
        if self.backend.framework == "torch":
            return preparing.in_torch(self, declared, self._counted[1], put, verified)
        framework = self.backend.framework
        raise Unsupported(f"no function of experiment/preparing.py prepares a step of {framework}")

    def require_memory(self, step_cost: cost.Cost) -> None:
        """Set the cost of a step. Raises TooBig, which ends the case, if memory is too short."""
        self._cost = step_cost
        parts = (
            f"GB at least (weights, gradients and optimizer {step_cost.state_bytes / 1e9:.1f}, "
            f"kept for the backward pass {step_cost.saved_bytes / 1e9:.1f})"
        )
        self.require_bytes(step_cost.bytes, self.backend.free_memory(), parts)
        if step_cost.host_bytes:
            # A GPU with its own memory does not use the host's.
            needed = step_cost.host_bytes + (step_cost.bytes if self.backend.unified_memory else 0)
            free = snapshot.available_memory_bytes()
            self.require_bytes(needed, free, "GB of the host's memory at least")

    def require_bytes(self, needed: float, free: float, what: str = "GB") -> None:
        """Raise TooBig, which ends the case, if less memory is free than needed."""
        if needed > free:
            # As many digits as tell the two numbers apart.
            digits = 1 if f"{needed / 1e9:.1f}" != f"{free / 1e9:.1f}" else 3
            sizes = [f"{size / 1e9:.{digits}f}" for size in (needed, free)]
            raise TooBig(f"needs {sizes[0]} {what}; {sizes[1]} GB are free")

    def require_time(
        self, limit_s: float, steps: int = 3, precision: str = "", flops: float = 0.0
    ) -> None:
        """Raise TooSlow, which ends the case, if steps at the rate of a matmul exceed `limit_s`.

        precision: by default the case's. flops: per step, by default those of `require_memory`.
        """
        flops = flops or self._cost.flops
        precision = precision or self.precision
        rate = peak_matmul_rate(self.backend, precision)
        if steps * flops / rate > limit_s:
            raise TooSlow(
                f"a step of {flops / 1e12:,.4g} TFLOP takes about {seconds(flops / rate)} "
                f"at {rate / 1e9:,.4g} GFLOP/s, the rate of a matmul in {precision} here; "
                f"{steps} steps must end within {seconds(limit_s)}"
            )

    def _require_step(self, steps: float) -> None:
        """Raise TooSlow if one of an epoch's steps exceeds the limit at the rate of other cases.

        The rate is the highest of this experiment on the same device in this run, so the first step
        need not be waited for. Without such a rate, or a limit, there is nothing to compare.
        """
        limit_s = self.experiment.limit_s
        if not (self._cost and self._cost.flops and math.isfinite(limit_s)):
            return
        device = (self.backend.framework, self.backend.backend, self.backend.name)
        rates = [
            record.metrics["flops_per_s"].value
            for record in journal.read(self.experiment.journal.path).records
            if (record.framework, record.backend, record.chip) == device
            and record.precision == self.precision
            and "flops_per_s" in record.metrics
        ]
        if not rates or self._cost.flops <= max(rates) * limit_s:
            return
        step_s = self._cost.flops / max(rates)
        raise TooSlow(
            f"a step takes about {seconds(step_s)} at {max(rates) / 1e9:,.4g} GFLOP/s, the highest "
            f"rate of this experiment here; {math.ceil(steps):,} of them take "
            f"{clock_time(step_s * steps)}, and the limit of the case is {seconds(limit_s)}"
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
        self._monitor.begin()
        self.clock = CaseClock(
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
        self._stack.enter_context(self.backend.context(strict))
        self._fallbacks = self._stack.enter_context(self.backend.watch_fallbacks())
        self._monitor.listen()
        return self

    def watch_model(self, model: Any, offloaded: bool = False) -> Any:
        """Return the model; the case will check its weights' device, and whether they change.

        offloaded: whether weights may be elsewhere between steps; then `ran_on` records the device.
        Raises Mismatch if `require_memory` was given another number of parameters.
        """
        count = self.backend.count(model)
        if self._cost and count != self._cost.parameters:
            counted = self._cost.parameters
            raise Mismatch(
                f"the model has {count:,} parameters; {counted:,} were declared or counted before"
            )
        self._model = model
        self._weights = self.backend.weight_sample(model)
        self._offloaded = offloaded
        return model

    def ran_on(self, result: Any) -> None:
        """Record the device of a computed tensor; another one than the case's is a `fallback`."""
        self._computed_on.add(self.backend.device_of(result))

    def steps(self, batches: Iterable, part: str = "training", **options: Any) -> Iterator:
        """Iterate over `batches` and time the loop's work on each, see `StepClock.steps`.

        Raises TooSlow, which ends the case, if this run knows that a step exceeds the time limit.
        """
        if not self.clock.parts:
            self._require_step(options.get("steps") or clock.epoch_steps(batches))
        self.watch()
        return self.clock.steps(batches, part, **options)

    def measure(self, name: str, function: Callable[[], Any], **options: Any) -> calls.Measurement:
        """Time a function by `calls.measure`, and record the median per call as metric `name`."""
        self.watch()
        before = options.pop("before", lambda: None)
        blocks = itertools.count()

        def before_block() -> None:
            if next(blocks):  # the first call alone is watched, since hooks take time
                self._first_block.close()
            before()

        options["before"] = before_block
        limits = {"budget_s": self.experiment.budget_s, "limit_s": self.experiment.limit_s}
        timed = calls.measure(function, self.backend.synchronize, **limits | options)
        self.kernel(name, timed)
        return timed

    def until_end(self, context: contextlib.AbstractContextManager) -> Any:
        """Enter a context that lasts as long as the case, and return its value."""
        return self._stack.enter_context(context)

    def until_first_block(self, context: contextlib.AbstractContextManager) -> Any:
        """Enter a context that lasts until the first timed block ends, and return its value."""
        return self._first_block.enter_context(context)

    def watch(self) -> None:
        """Start the sampler, and count CPU time of other programs from here."""
        self._monitor.watch()

    def trace(self) -> None:
        """Record memory and page faults; a traced loop calls this at the end of every step."""
        self.backend.synchronize()
        row = {
            "step": len(self.traced),
            "t_s": round(time.perf_counter() - self._start_s, 6),
            **memory.page_faults(),
            **self.backend.memory(),
            "footprint_bytes": memory.footprint(),
            "resident_bytes": psutil.Process().memory_info().rss,
        }
        self.traced.append(tuple(row.get(name) for name in memory.TRACED))

    def _note_block(self) -> None:
        """Read energy and show progress where the clock begins or ends a block."""
        self._first_block.close()
        part = self.clock.running
        if part is None:  # it has ended, and its timing too
            self._monitor.pause()
        if len(self.clock.parts) == 1:  # energy is that of the first part; others may follow
            self._note_stretch(self._training)
            self._note_reserved(self._training.steps, ended=part is None)
        if part and self._line:
            self._show_progress(part)

    def _note_stretch(self, training: clock.Part) -> None:
        """Tell the monitor to which stretch of uninterrupted steps the next block belongs."""
        # Warm-up, pre-loaded batches or occasional work separate stretches of steady blocks.
        occasional = sum(len(work.seconds) for work in self.clock.occasional_work.values())
        stretch = (len(training.warmup), len(training.ready_blocks), occasional)
        self._monitor.steady(stretch, clock.steps_in(training.blocks))

    def _note_reserved(self, steps: int, ended: bool) -> None:
        """Keep what a GPU's allocator has reserved early, later and at the end of the training.

        steps: so far. A pool that grows from step to step is a leak, or fragmentation.
        """
        names = [name for name, least in RESERVED_AT.items() if steps >= least]
        names = [name for name in names if name not in self._reserved]
        if self.backend.kind == "cpu" or not (names or ended):
            return
        reserved = self.backend.memory().get("reserved_bytes")
        if reserved is not None:
            self._recommended = self.backend.recommended_memory()
            self._reserved |= dict.fromkeys([*names, *([RESERVED_LAST] if ended else [])], reserved)

    def _show_progress(self, part: clock.Part) -> None:
        """Update the progress line, at most every `UPDATE_S`."""
        now_s = time.perf_counter()
        if now_s - self._updated_s < UPDATE_S:
            return
        self._updated_s = now_s
        steps = f"{part.name}, step {part.steps:,} of {math.ceil(part.epoch_steps):,}"
        spent = clock_time(now_s - self._start_s)
        self._line.update(Pretty(f"{self.name}: {steps}, {spent}"))

    def _preload(self, batch: Any) -> Any:
        """Return a batch on the device, for the clock's steps on pre-loaded batches."""
        self._monitor.note_peaks()
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
        self._monitor.pause()
        self._metrics[name] = timed.seconds
        facts = {"first_call_s": timed.first_call_s, "stopped": timed.stopped}
        self._calls[name] = outcome.TimedCalls(timed.blocks, timed.warmup, facts)

    def raw(self, name: str, blocks: Iterable[clock.Block | float], **facts: Any) -> None:
        """Record the raw times of a metric: blocks of calls, or the seconds of each call."""
        steady = [
            block if isinstance(block, clock.Block) else clock.Block(1, block) for block in blocks
        ]
        self._calls[name] = outcome.TimedCalls(steady, facts=facts)

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
                reason = outcome.of_exception(error)[1]
                self.note(f"not verified after the timing: {reason}", "unproved")
        return None

    def __exit__(self, kind: type | None, exception: BaseException | None, trace: Any) -> bool:
        # An interruption of the end, too, leaves nothing that the case has put in place.
        with contextlib.closing(self._monitor), self._stack, self._first_block:
            return self._end(exception)

    def _end(self, exception: BaseException | None) -> bool:
        """Write the record of the case; return whether the notebook goes on."""
        try:
            if exception is None:
                self.backend.synchronize()
        except Exception as late:  # a GPU reports errors only at a synchronization
            exception = late
        self._monitor.stop()
        self._first_block.close()
        if exception is None:
            exception = self._run_checks()
        self._stack.close()
        record = self.experiment.journal.end(self._record(exception, self._monitor.finish()))
        self.experiment.ended(self.backend.backend, record.status)
        result = results_cases.line(record)
        if self._line:
            self._line.update(Pretty(result))
        else:
            print(result)
        # Free the model's memory before the next case.
        self._model = None
        return record.status != "interrupted"

    def _status(
        self, exception: BaseException | None, backends: set[str], observed: Observed
    ) -> tuple[str, str | None]:
        """Return the status and its reason. backends: of the model and its results."""
        # Wrong results, or none, may be the consequence of what the driver reported.
        failed = observed.reported
        explains = exception is None or isinstance(exception, Mismatch)
        if failed.status and explains and self.backend.kind == "gpu":
            return failed.status, failed.reason
        if failed.reason:
            self.note(failed.reason)
        if exception is not None:
            return outcome.of_exception(exception)
        if observed.late:
            return "mismatch", observed.late
        calls = [timed.blocks for timed in self._calls.values()]
        wrong_clock = outcome.wrong_clock(self.clock.parts.values(), calls)
        if wrong_clock:
            return "error", wrong_clock
        if self._fallbacks:
            return "fallback", f"ran on the CPU: {', '.join(sorted(self._fallbacks))}"
        requested = self.backend.backend
        elsewhere = ", ".join(sorted(backends - {requested}))
        if elsewhere:
            return "fallback", f"asked for {requested}, computed on {elsewhere}"
        timed = [part for part in self.clock.parts.values() if part.first_step_s is not None]
        if not self._metrics and not timed:
            return "error", "nothing was timed: no batch came from case.steps, and no metric is set"
        first_step = outcome.first_step_alone(self._training)
        # A first step alone may have a learning rate of 0, from which a schedule begins.
        trained = self._model is not None and bool(self.clock.parts) and not first_step
        if trained and self.backend.weight_sample(self._model) == self._weights:
            return "not-learning", "no step changed the weights"
        problem = outcome.not_learning(self._losses, self.experiment.expects_learning)
        if problem:
            return "not-learning", problem
        # A number that the notebook has recorded itself is one, too.
        times = [name for name, metric in self._metrics.items() if metric.unit == "s"]
        if first_step and times in ([], ["proof_s"]):
            return "too-slow", first_step
        return "ok", None

    def _start(self) -> dict[str, Any]:
        """Return the fields of `record.Start`."""
        experiment = self.experiment
        backend = self.backend
        return {
            "experiment": experiment.name,
            "article": experiment.article,
            "case": self.name,
            "config": self.recorded,
            "framework": backend.framework,
            "framework_version": backend.framework_version,
            "backend": backend.backend,
            "device": None,
            "chip": backend.name,
            "precision": self.precision,
            "profile": experiment.profile,
            **experiment.data,
            "scaled": self.scaled or bool(experiment.part),
            "repeat": experiment.repeat,
            "threads": backend.threads,
            "power_source": self._conditions["power_source"],
            "power_mode": self._conditions["power_mode"],
            "started": self._started,
            "software": experiment.software,
        }

    def _record(self, exception: BaseException | None, observed: Observed) -> dict[str, Any]:
        """Return the fields of `record.Record`."""
        backends = self._backends()
        status, reason = self._status(exception, backends, observed)
        metrics = self._all_metrics(observed)
        flags = self._all_flags(metrics, observed)  # adds to the notes
        step = self._cost
        record = self._start() | {
            "device": ("cpu" if backends == {"cpu"} else "gpu") if backends else None,
            "parameters": step and step.parameters,
            "flops_per_step": step and step.flops,
            "bytes_per_step": step and step.moved_bytes,
            "launches_per_step": self._launches,
            "status": status,
            "reason": reason,
            "flags": flags,
            "seconds": round(time.perf_counter() - self._start_s, 3),
            "metrics": {name: value.metric() for name, value in metrics.items()},
            "blocks": outcome.raw_times(self.clock.parts, self._calls),
            "asides": {name: work.seconds for name, work in self.clock.occasional_work.items()},
            "canary": observed.calibration,
            "proof": self.proof,
            "note": redact("; ".join(self._notes)),
        }
        if observed.sampled:
            for name in ("trace", "absent", "rails", "thermal_level"):
                record[name] = getattr(observed, name)
        if self.traced:
            warmup = outcome.traced_warmup(len(self.traced), self._training)
            trace = {"columns": memory.TRACED, "rows": self.traced, "warmup": warmup}
            record["memory_trace"] = trace
        if status == "error" and exception is not None:
            record["traceback"] = redact("".join(traceback.format_exception(exception)))
        return record

    def _backends(self) -> set[str]:
        """Return the backends on which the model and its results are, if any."""
        backends = set(self._computed_on)
        # Offloaded weights may be elsewhere; the device of computed tensors is enough then.
        if self._model is not None and not (self._offloaded and backends):
            backends.add(self.backend.device_of(self._model))
        return backends

    def _all_flags(self, metrics: dict[str, Estimate], observed: Observed) -> list[str]:
        """Return the case's warning flags without duplicates, and note what explains them."""
        flags = [*self._conditions["flags"], *self._flags, *observed.flags]
        call_blocks = [timed.blocks for timed in self._calls.values()]
        others = list(self.clock.parts.values())[1:]
        times = (self._training, call_blocks, self.backend.backend, others)
        flags += outcome.flags(*times, self.clock.single, self.clock.once)
        earlier = self.experiment.earlier()  # reads all journals of the run
        software = (self.backend.framework, self.backend.backend, self.experiment.software)
        slowed = calibration.slowed_by(earlier, *software, observed.calibration)
        flags += ["slowed"] if slowed else []
        rates = [rate.value for name, rate in metrics.items() if name.endswith("flops_per_s")]
        most = self._plausible_rate(earlier)
        flags += ["too-fast"] if max(rates, default=0) > most else []
        if rates and most == math.inf and self.backend.kind == "gpu":
            self.note("not judged whether this is too fast: no data sheet and no measured peak")
        reserved = max(self._reserved.values(), default=0)
        if self._recommended and reserved > self._recommended:
            flags.append("over-memory")
            self.note(
                f"{reserved / 1e9:.1f} GB were reserved; the driver recommends "
                f"{self._recommended / 1e9:.1f} GB at most"
            )
        if self._is_unverified():
            flags.append("unproved")
            self.note("the step was not verified against the CPU")
        for text in (*observed.notes, *slowed):
            self.note(text)
        return list(dict.fromkeys(flags))

    @property
    def _launches(self) -> int | None:
        """The kernels of a counted step; None where they were not counted."""
        counted = self._counted[1] if self._counted else None
        return counted.launches if counted else None

    def _is_unverified(self) -> bool:
        """Return whether a training was timed on a GPU that nobody compared with the CPU."""
        trained = self._model is not None and bool(self.clock.parts)
        return trained and self.backend.kind == "gpu" and "proof_s" not in self._metrics

    def _plausible_rate(self, earlier: Sequence[Record]) -> float:
        """Return the FLOP/s that the device's data sheet or the run's fastest matmuls allow."""
        alike = [record for record in earlier if record.framework == self.backend.framework]
        if "operation" in self.config:  # a case that measures peaks may exceed earlier ones
            alike = []
        return peaks.limit(alike, self.backend.kind, self.backend.name, self.precision)

    def _all_metrics(self, observed: Observed) -> dict[str, Estimate]:
        """Return measured and derived metrics."""
        training = self._training
        metrics = epochs.epoch_metrics(self.clock) | observed.metrics
        if training:
            metrics |= {name: Estimate(value, "B") for name, value in observed.peaks.items()}
            metrics |= {name: Estimate(value, "B") for name, value in self._reserved.items()}
            metrics |= epochs.spread(training.blocks)
        if self._samples and "step_s" in metrics:
            metrics["samples_per_s"] = epochs.rate(self._samples, metrics["step_s"], "samples/s")
        for name, loss in outcome.loss_ends(self._losses).items():
            if math.isfinite(loss):
                metrics[name] = Estimate(loss, n=len(self._losses))
        metrics |= self._metrics
        if self._cost:
            metrics = outcome.rates(self._cost, training, metrics) | metrics
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
