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
import statistics as python_statistics
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pomology import format
from pomology.devices import failures, torch
from pomology.devices.base import Device
from pomology.errors import Mismatch, PomologyError, TooBig
from pomology.experiment.feasibility import HOLES, SPARED_BYTES, SPARED_SHARE
from pomology.experiment.outcome import ACCURACY_STEPS, JUDGED_STEPS
from pomology.experiment.progress import _Progress
from pomology.machine import snapshot
from pomology.machine.memory import MemoryTrace
from pomology.machine.sampler import Telemetry, contended
from pomology.measure import calls, clock, epochs, intervals
from pomology.paths import redact
from pomology.results import cases as results_cases
from pomology.results import record as results_record
from pomology.workloads import parity
from pomology.workloads.cost import Workload

if TYPE_CHECKING:
    from pomology.experiment.experiment import Experiment

FEW_TRACED = 8  # with fewer steps than these behind the warm-up, only the first is left out of a trace of memory


class Case:
    """One row of an article's table on one device. Enter it with `with`; how that block ends becomes its status."""

    def __init__(self, experiment: Experiment, backend: Device, config: dict):
        self.experiment, self.backend, self.config = experiment, backend, dict(config)
        self.device = backend.handle
        self.precision = config.get("precision", experiment.precision)
        settings = " ".join(f"{key}={value}" for key, value in self.config.items())
        self.name = f"{backend.framework}-{backend.backend} {settings}".strip()
        self.clock: clock.StepClock | None = None
        self.scaled = False
        self._workload: Workload | None = None
        self._metrics: dict[str, dict] = {}
        self._guesses: str | None = None
        self._seen: set[str] = set()
        self._losses: list[float] = []
        self._notes: list[str] = []
        self._flags: list[str] = []
        self._kernels: dict[str, dict] = {}
        self._model: Any = None
        self._weights: Any = None
        self._weights_on: str | None = None
        self._telemetry: Telemetry | None = None
        self._trace: MemoryTrace | None = None
        self._progress = _Progress(self.name)

    def __getattr__(self, name: str) -> Any:
        """A setting of this case: `case.batch_size`."""
        try:
            return self.__dict__["config"][name]
        except KeyError:
            raise AttributeError(f"a case of this experiment has no {name!r}") from None

    def require_memory(self, workload: Workload) -> None:
        """Say what a step costs. Raises TooBig, which ends the case, if it cannot fit the free memory."""
        self._workload = workload
        free = self.backend.free_memory()
        if workload.bytes > free:
            raise TooBig(
                f"needs {workload.bytes / 1e9:.1f} GB at the least (weights, gradients and optimiser "
                f"{workload.state_bytes / 1e9:.1f}, kept for the backward pass {workload.saved_bytes / 1e9:.1f}); "
                f"{free / 1e9:.1f} GB are free"
            )
        if workload.host_bytes:
            # A GPU with a memory of its own takes nothing of the host's.
            needed = workload.host_bytes + (workload.bytes if self.backend.unified_memory else 0)
            available = snapshot.available_memory_bytes()
            if needed > available:
                raise TooBig(
                    f"needs {needed / 1e9:.1f} GB of the host's memory at the least, for what is offloaded to it; "
                    f"{available / 1e9:.1f} GB are free"
                )

    def require_time(self, limit_s: float, steps: int = 3, precision: str = "") -> None:
        """Raise TooBig, which ends the case, if that many steps surely cannot end in `limit_s`.

        That is judged by the best rate that a matrix product of this precision, by default the case's, reaches on this
        device, which no training step exceeds. Comes behind `require_memory`.
        """
        precision = precision or self.precision
        rate = self.experiment.peak_matmul_rate(self.backend, precision)
        least_s = self._workload.flops / rate
        if steps * least_s > limit_s:
            raise TooBig(
                f"a step of {self._workload.flops / 1e12:,.4g} TFLOP would take {format.seconds(least_s)} at the "
                f"least, at {rate / 1e9:,.4g} GFLOP/s, the most that a product in {precision} reaches here; {steps} "
                f"steps must end within {format.seconds(limit_s)}"
            )

    def watch_model(self, model: Any, weights_on: str | None = None) -> Any:
        """Keep an eye on a model: where its weights really are, and whether they change. Returns the model.

        weights_on: the backend that holds offloaded weights between steps; `ran_on` then says what computes.
        Raises Mismatch if it has not as many parameters as the workload said.
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
        self._seen.add(self.backend.device_of(result))

    def steps(
        self,
        batches: Iterable,
        part: str = "training",
        steps: float | None = None,
        per_epoch: float = 1.0,
        ready: bool = True,
    ) -> Iterator:
        """Iterate over `batches` and time what the loop does with each; see `timing.StepClock.steps`."""
        self.watch()
        return self.clock.steps(batches, part, steps, ready, per_epoch)

    def ticker(self, steps: float, part: str = "training") -> clock.Ticker:
        """Time the steps of a trainer that owns its loop and calls back; see `timing.Ticker`."""
        self.watch()
        return clock.Ticker(self.clock, part, steps)

    def watch(self) -> None:
        """Start the telemetry, if it is not running. The first timed loop does; what is timed otherwise may."""
        if self._telemetry is None:
            self.backend.synchronize()
            self._telemetry = self._stack.enter_context(Telemetry(device=self.backend.kind))

    def measure(self, name: str, function: Callable[[], Any], **options: Any) -> calls.Measurement:
        """Time a function that needs no loader, within the budget, and note the median of a call as metric `name`.

        options: of `timing.measure`. Timed as `step_s`, it also tells FLOP/s if the workload is known.
        """
        self.watch()
        timed = calls.measure(function, self.backend.synchronize, **{"budget_s": self.experiment.budget_s, **options})
        self._metrics[name] = epochs.seconds_metric(timed.seconds)
        if name == "step_s" and self._workload:
            self._metrics["flops_per_s"] = _per_second(self._workload.flops, timed.seconds)
        return timed

    def phase(self, name: str) -> contextlib.AbstractContextManager:
        """Time a part of every step apart; see `timing.StepClock.phase`."""
        return self.clock.phase(name)

    def trace(self) -> None:
        """Note memory and page faults of the step that ends here: call it once in every step, as its last line.

        Waits for the device, and takes some 0.1 ms of its own, which belongs to the step. What it finds is in the
        record as `memory_trace`, and its slopes over the steps behind the warm-up among the metrics; see `MemoryTrace`.
        """
        self.backend.synchronize()
        if self._trace is None:
            self._trace = MemoryTrace(self.backend.memory, self._start_s)
        self._trace.note()

    def memory_budget(self, share: float = 0.9, most_bytes: float = math.inf) -> int:
        """Bytes that a case may plan for that is to come near the limit of the memory, without endangering the machine.

        `share` of the free memory, but what is left is never less than 10 % of it or 1.5 GB, whichever is more. Where
        that exceeds `most_bytes`, it is those; then the case is not near the limit: it is `scaled`, and a note says so.
        On a processor what may be planned for is less by as much as the holes between tensors take; see `HOLES`.
        """
        if not 0 < share <= 1:
            raise PomologyError(f"near is {share!r}; it must be a share of the free memory, above 0 and at most 1")
        free = self.backend.free_memory()
        room = min(share * free, free - max(SPARED_BYTES, SPARED_SHARE * free))
        cpu = self.backend.kind == "cpu"
        room /= HOLES if cpu else 1
        if room <= 0:
            raise TooBig(f"{free / 1e9:.1f} GB are free, of which {SPARED_BYTES / 1e9:.1f} GB must stay so")
        if room > most_bytes:
            self.scaled = True
            self.note(f"not near the limit: held at {most_bytes / 1e9:.3g} GB of {free / 1e9:.3g} GB that were free")
        else:
            holes = f": holes between tensors may take {100 * (HOLES - 1):.0f} % more" if cpu else ""
            self.note(f"planned for {room / 1e9:.3g} GB of {free / 1e9:.3g} GB that were free{holes}")
        return int(min(room, most_bytes))

    def occasional(self, name: str, per_epoch: float) -> contextlib.AbstractContextManager:
        """Time something that an epoch does `per_epoch` times, apart from the steps around it."""
        return self.clock.occasional(name, per_epoch)

    def loss(self, value: float) -> None:
        """Note the loss of a step, as the article's loop reads it."""
        if not self.clock.on_ready:
            self._losses.append(float(value))

    def accuracy(self, value: float, samples: int, classes: int) -> None:
        """Note the share of held-out samples that the trained model gets right.

        A model that does no better than guessing after 20 steps of training did not learn: no better means below the
        chance of `classes` equally likely classes plus three standard deviations of a guesser's score on so many
        samples, which a guesser passes once in a thousand times. After fewer steps nothing is concluded.
        """
        self.metric("accuracy", value, "", n=samples)
        chance = 1 / classes
        bound = chance + 3 * math.sqrt(chance * (1 - chance) / samples)
        trained = self._training.steps if self._training else 0
        if value <= bound and trained >= ACCURACY_STEPS:
            reason = f"{value:.1%} right after {trained} steps; guessing gives {chance:.1%}, and up to {bound:.1%}"
            self._guesses = reason

    def check(self, values: Any, reference: Any, tolerance: float, what: str, relative: bool = False) -> None:
        """Compare what two computations gave that should agree: arrays, or dicts of arrays by name.

        tolerance: the largest absolute difference allowed; with `relative`, as a share of each reference array's
        largest absolute element. The largest absolute difference of all checks is recorded as `max_abs_error`, also
        when the check fails. Raises Mismatch, which ends the case, in a line that names the worst element; also for
        other names, shapes or types, and for values that are not finite.
        """
        error, complaint = parity.difference(values, reference, tolerance, relative)
        if error is not None:
            before = self._metrics.get("max_abs_error", {"value": 0.0})["value"]
            self.metric("max_abs_error", max(error, before), "")
        if complaint is not None:
            raise Mismatch(f"{what}: {complaint}")

    def metric(self, name: str, value: float, unit: str, **more: Any) -> None:
        """Add a measured value to the record; `more` may give low, high, n and how. Raises ValueError for a NaN."""
        value = value if isinstance(value, int) else float(value)  # a framework's scalar is no JSON
        if not math.isfinite(value):
            raise ValueError(f"{name} is {value}; what could not be measured is left out")
        self._metrics[name] = _metric(value, unit) | more

    def kernel(self, name: str, found: calls.Measurement) -> None:
        """Add the time of a call, as `timing.measure` found it, with its interval and its raw times."""
        seconds = found.seconds
        self.metric(name, seconds.mean, "s", low=seconds.low, high=seconds.high, n=seconds.n)
        self._kernels[name] = {
            "first_call_s": found.first_call_s,
            "steady": _pairs(found.blocks),
            "stopped": found.stopped,
        }

    def note(self, text: str, *flags: str) -> None:
        """Say in a sentence what was found, beside what was said before. `flags` stand beside the numbers as well."""
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
        record = self._record(exception)
        self.experiment.journal.end(record)
        self._progress.finish(results_cases.line(record))
        # Nothing of this case may stay in memory while the next one is measured.
        self._model = self._weights = None
        return record["status"] != "interrupted"

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
        metrics = epochs.epoch_metrics(self.clock)
        telemetry = self._telemetry
        if telemetry is not None:
            metrics.update(telemetry.metrics())
            if "power_w" in metrics and "step_s" in metrics:
                energy = metrics["power_w"]["value"] * metrics["step_s"]["value"]
                metrics["energy_j_per_step"] = _metric(energy, "J", how="estimated")
                if self._workload and self._workload.flops:
                    each = energy / self._workload.flops * 1e12
                    metrics["energy_j_per_tflop"] = _metric(each, "J", how="estimated")
        if self.clock.parts:
            metrics.update({name: _metric(value, "B") for name, value in self.backend.peak_memory().items()})
        first, last = self._loss_ends()
        for name, value in (("loss_first", first), ("loss_last", last)):
            if value is not None and math.isfinite(value):
                metrics[name] = _metric(value, "", n=len(self._losses))
        if self._trace is not None:
            metrics.update(self._trace.metrics(self._warmup_steps()))
        metrics.update(self._metrics)
        metrics.update(self._phase_rates(metrics))
        rate = self._rate()
        if rate is not None:
            metrics["flops_per_s"] = rate

        observed = self.backend.device_of(self._model) if self._model is not None else None
        if observed is not None and observed == self._weights_on and self._seen == {self.backend.backend}:
            observed = self.backend.backend
        status, reason = self._status(exception, observed, first, last)
        record = self._base() | {
            "device": observed and ("cpu" if observed == "cpu" else "gpu"),
            "parameters": self._workload and self._workload.parameters,
            "flops_per_step": self._workload and self._workload.flops,
            "bytes_per_step": self._workload and self._workload.moved_bytes,
            "foreign_load": telemetry.foreign_load if telemetry else None,
            "flags": self._all_flags(),
            "status": status,
            "reason": reason,
            "seconds": round(time.perf_counter() - self._start_s, 3),
            "metrics": metrics,
            "blocks": {name: _raw(part) for name, part in self.clock.parts.items()} | self._kernels,
            "asides": {name: aside.seconds for name, aside in self.clock.occasional_work.items()},
        }
        if self._notes:
            record["note"] = redact("; ".join(self._notes))
        if self._trace is not None:
            record["memory_trace"] = self._memory_trace()
        if telemetry is not None:
            absent = dict(telemetry.absent)
            if self.backend.uncounted:
                reason = redact(self.backend.uncounted)
                absent |= {"allocated_peak_bytes": reason, "reserved_peak_bytes": reason}
            record |= {"absent": absent, "rails": telemetry.rails, "thermal_level": telemetry.thermal_level}
            record["trace"] = telemetry.samples[:: max(1, len(telemetry.samples) // 500)]
        if status == "error" and exception is not None:
            record["traceback"] = redact("".join(traceback.format_exception(exception)))
        return record

    def _status(
        self, exception: BaseException | None, observed: str | None, first: float | None, last: float | None
    ) -> tuple[str, str | None]:
        if exception is not None:
            reason = redact(f"{exception}".strip().split("\n")[0] or type(exception).__name__)
            if not isinstance(exception, Exception):
                return "interrupted", reason
            known = {TooBig: "too-big", Mismatch: "mismatch"}.get(type(exception)) or failures.failure(exception)
            return (known, reason) if known else ("error", f"{type(exception).__name__}: {reason}")
        if self._fallbacks:
            return "fallback", f"ran on the CPU: {', '.join(sorted(self._fallbacks))}"
        elsewhere = ({observed} | self._seen) - {None, self.backend.backend}
        if elsewhere:
            return "fallback", f"asked for {self.backend.backend}, computed on {', '.join(sorted(elsewhere))}"
        if not self._metrics and all(part.first_step_s is None for part in self.clock.parts.values()):
            return "error", "nothing was timed"
        if self._model is not None and self.clock.parts and self.backend.weight_sample(self._model) == self._weights:
            return "not-learning", "no step changed the weights"
        if not all(math.isfinite(loss) for loss in self._losses):
            return "not-learning", "the loss is not a finite number"
        if self.experiment.expects_learning and len(self._losses) >= JUDGED_STEPS and last >= first:
            return "not-learning", f"the loss went from {first:.4g} to {last:.4g} in {len(self._losses)} steps"
        if self._guesses is not None:
            return "not-learning", self._guesses
        return "ok", None

    def _rate(self) -> dict[str, Any] | None:
        """Floating-point operations a second, from the steps on ready batches where there are any."""
        blocks = self._training and (self._training.ready_blocks or self._training.blocks)
        if not blocks or not self._workload:
            return None
        return _per_second(self._workload.flops, epochs.interval(blocks))

    def _phase_rates(self, metrics: dict[str, dict]) -> dict[str, dict]:
        """Floating-point operations a second of the forward and the backward pass, where a step times them apart."""
        if not self._workload or self._workload.forward_flops is None:
            return {}
        forward = self._workload.forward_flops
        rates = {}
        for name, flops in (("forward", forward), ("backward", self._workload.flops - forward)):
            if f"{name}_s" in metrics and flops:
                value, low, high, n = (metrics[f"{name}_s"][key] for key in ("value", "low", "high", "n"))
                rates[f"{name}_flops_per_s"] = _per_second(flops, intervals.Interval(value, low, high, n, 1))
        return rates

    def _warmup_steps(self) -> int:
        """Traced steps that come before the steady ones."""
        training = self._training
        if training is None:  # a loop that the clock knows nothing of
            return max(1, self._trace.steps // 10)
        warmup = 1 + sum(block.steps for block in training.warmup)
        return warmup if self._trace.steps - warmup >= FEW_TRACED else 1

    def _memory_trace(self) -> dict[str, Any]:
        rows = self._trace.rows
        empty = {name for number, name in enumerate(self._trace.COLUMNS) if all(row[number] is None for row in rows)}
        name = results_cases.FRAMEWORKS.get(self.backend.framework, self.backend.framework)
        why = self.backend.uncounted or f"{name} keeps no count of it on this device"
        absent = {name: redact(self._trace.counters.absent.get(name, why)) for name in sorted(empty)}
        return {"columns": list(self._trace.COLUMNS), "rows": rows, "absent": absent, "warmup": self._warmup_steps()}

    def _loss_ends(self) -> tuple[float | None, float | None]:
        """The loss of the first steps (3, or fewer) and of the last third of them (medians)."""
        if len(self._losses) < 2:
            return None, None
        third = max(1, len(self._losses) // 3)
        return (
            python_statistics.median(self._losses[: min(3, third)]),
            python_statistics.median(self._losses[-third:]),
        )

    def _all_flags(self) -> list[str]:
        flags, training = [*self._conditions["flags"], *self._flags], self._training
        if self._telemetry is not None:
            flags += ["contended"] * contended(self._telemetry.foreign_load) + self._telemetry.flags
        if training is not None:
            blocks = [block.step_s for block in training.blocks]
            change = intervals.drift(blocks)
            if change is not None and abs(change) > intervals.DRIFT_THRESHOLD:
                flags.append("drift")
            if not training.complete and sum(block.steps for block in training.blocks) < intervals.BATCHES:
                flags.append("few-steps")
        if self.backend.backend == "mps" and torch.fallback_enabled():
            flags.append("fallback-enabled")
        return flags


def _per_second(flops: int, step: intervals.Interval) -> dict:
    return {"low": None, "high": None, "how": "measured", **epochs.rate(flops, step, "FLOP/s")}


def _metric(value: float, unit: str, how: str = "measured", n: int = 1) -> dict:
    return {"value": value, "unit": unit, "low": None, "high": None, "n": n, "how": how}


def _pairs(blocks: list[clock.Block]) -> list[list[float]]:
    return [[block.steps, round(block.seconds, 9)] for block in blocks]


def _raw(part: clock.Part) -> dict:
    return {
        "epoch_steps": part.epoch_steps,
        "first_step_s": part.first_step_s,
        "warmup": _pairs(part.warmup),
        "steady": _pairs(part.blocks),
        "ready": _pairs(part.ready_blocks),
        "last_step_s": part.last_step_s,
        "stopped": part.stopped,
        **{
            f"steady_{name}": [round(block.phases[name], 9) for block in part.blocks]
            for name in clock.PHASES
            if part.blocks and all(name in block.phases for block in part.blocks)
        },
    }
