"""What a notebook talks to: an experiment, its cases, and one line to time a loop over batches.

    experiment = Experiment("vae", article="003", devices=devices, profile=profile, budget_s=budget_s, out=out)
    for case in experiment.cases(batch_size=batch_sizes):
        with case:
            model = case.observe(VAE().to(case.device))
            for images, _ in case.steps(loader):
                ...
    experiment.table()

Each case is journalled before it starts and when it ends, with exactly one status. An exception ends its case, not the
notebook.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import statistics as python_statistics
import time
import traceback
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from pomology import (
    PomologyError,
    device,
    figures,
    machine,
    private,
    published,
    results,
    root,
    tables,
    timing,
    write_whole,
)
from pomology import statistics as intervals
from pomology.models import Workload
from pomology.telemetry import Telemetry, contended

PROFILES = ("smoke", "quick", "article")
JUDGED_STEPS = 50  # with fewer losses than these nobody can tell whether a model learns


class TooBig(PomologyError):
    """Predicted not to fit the device, so not tried."""


class Mismatch(PomologyError):
    """Two computations that should agree do not."""


class Experiment:
    """One notebook's cases on this machine.

    name: the notebook's name, and the journal's. article: its number, as in the published values. devices: `auto`,
    `cpu`, `gpu`, `cuda` or `mps`. profile: `smoke`, `quick` or `article`; the last runs whole epochs. budget_s: seconds
    for the steady steps of a case. out: the run's folder; empty makes a new one. repeat: which repetition of the run
    this is. learns: whether a loss that does not fall means that the model does not learn (a GAN's tells nothing).
    Raises PomologyError in one line for a value that cannot be.
    """

    def __init__(
        self,
        name: str,
        *,
        article: str,
        devices: str = "auto",
        profile: str = "quick",
        budget_s: float = 10.0,
        out: str = "",
        repeat: int = 0,
        precision: str = "fp32",
        learns: bool = True,
    ):
        _one_line_errors()
        if profile not in PROFILES:
            raise PomologyError(f"{name}: profile is {profile!r}; it must be one of {', '.join(PROFILES)}")
        if isinstance(budget_s, bool) or not isinstance(budget_s, (int, float)) or not 0 < budget_s < math.inf:
            raise PomologyError(f"{name}: budget_s is {budget_s!r}; it must be a number of seconds above 0")
        self.name, self.article, self.profile, self.budget_s = name, article, profile, float(budget_s)
        self.repeat, self.precision, self.learns = repeat, precision, learns
        self.devices = device.find(devices)
        self._anew = "" if out else " (run the set-up cell again to measure it anew)"
        self.out = Path(out) if out else root() / "outputs" / f"lab-{datetime.now():%Y%m%d-%H%M%S}"
        self.journal = results.Journal(self.out / f"{name}.jsonl")
        self.snapshot = note_machine(self.out, profile)
        self.data_kind, self.data_origin = "none", ""

    def uses(self, data: Any) -> None:
        """Say what the cases train on: anything with `kind` (`real` or `stand-in`) and `origin`, a line about it."""
        self.data_kind, self.data_origin = data.kind, data.origin

    def cases(self, rows: Iterable[dict] | None = None, **axes: Iterable) -> Iterator[Case]:
        """The cases to run: every row (or every combination of the axes' values) on every device of this machine.

        What the journal holds already is skipped, with a line that says so.
        """
        if rows is None:
            rows = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
        before = results.read(self.journal.path)
        for backend, config in itertools.product(self.devices, list(rows)):
            case = Case(self, backend, config)
            if before.done(case.name, self.repeat):
                print(f"{case.name}: in the journal already; skipped{self._anew}")
            else:
                yield case

    @property
    def records(self) -> list[dict]:
        """The finished cases of this experiment's journal."""
        return results.read(self.journal.path).records

    def machine(self) -> tables.Table:
        """The machine, as a small table."""
        return tables.machine_table(self.snapshot, self.devices)

    def table(self) -> tables.Table:
        """The article's table with this machine in it; also saved as CSV."""
        table = tables.article_table(self.name, self.records)
        tables.save(table, self.out / "tables" / f"{self.name}-article.csv")
        tables.save(self.details(), self.out / "tables" / f"{self.name}-details.csv")
        return table

    def details(self) -> tables.Table:
        """What else was measured of each case."""
        return tables.details_table(self.name, self.records)

    def figure(self) -> Any:
        """The article's devices and this machine's on one axis; also saved as SVG."""
        return figures.show(
            figures.epoch_figure(self.name, self.records), self.out / "figures" / f"{self.name}-epoch.svg"
        )

    def claims(self) -> tables.Table:
        """What the article says, tested on its own numbers and on this machine's."""
        return tables.claims_table(published.claims(experiment=self.name), self.records)


class Case:
    """One row of an article's table on one device. Enter it with `with`; how that block ends becomes its status."""

    def __init__(self, experiment: Experiment, backend: device.Device, config: dict):
        self.experiment, self.backend, self.config = experiment, backend, dict(config)
        self.device = backend.handle
        settings = " ".join(f"{key}={value}" for key, value in self.config.items())
        self.name = f"{backend.framework}-{backend.backend} {settings}".strip()
        self.clock: timing.StepClock | None = None
        self.scaled = False
        self._workload: Workload | None = None
        self._metrics: dict[str, dict] = {}
        self._losses: list[float] = []
        self._model: Any = None
        self._weights: Any = None
        self._telemetry: Telemetry | None = None
        self._progress = _Progress(self.name)

    def __getattr__(self, name: str) -> Any:
        """A setting of this case: `case.batch_size`."""
        try:
            return self.__dict__["config"][name]
        except KeyError:
            raise AttributeError(f"a case of this experiment has no {name!r}") from None

    def requires(self, workload: Workload) -> None:
        """Say what a step costs. Raises TooBig, which ends the case, if it cannot fit the free memory."""
        self._workload = workload
        free = self.backend.free_memory()
        if workload.bytes > free:
            raise TooBig(
                f"needs {workload.bytes / 1e9:.1f} GB at the least (weights, gradients and optimiser "
                f"{workload.state_bytes / 1e9:.1f}, kept for the backward pass {workload.saved_bytes / 1e9:.1f}); "
                f"{free / 1e9:.1f} GB are free"
            )

    def observe(self, model: Any) -> Any:
        """Keep an eye on a model: where its weights really are, and whether they change. Returns the model.

        Raises Mismatch if it has not as many parameters as the workload said.
        """
        count = sum(parameter.numel() for parameter in model.parameters())
        if not count:
            raise ValueError("a model without parameters cannot be observed")
        if self._workload and count != self._workload.parameters:
            raise Mismatch(f"the model has {count:,} parameters; {self._workload.parameters:,} were counted beforehand")
        self._model, self._weights = model, _fingerprint(model)
        return model

    def steps(self, batches: Iterable, part: str = "training", steps: float | None = None) -> Iterator:
        """Iterate over `batches` and time what the loop does with each; see `timing.StepClock.steps`."""
        if self._telemetry is None:
            self.backend.fence()
            self._telemetry = self._stack.enter_context(Telemetry(device=self.backend.kind))
        return self.clock.steps(batches, part, steps)

    def aside(self, name: str, per_epoch: float) -> contextlib.AbstractContextManager:
        """Time something that an epoch does `per_epoch` times, apart from the steps around it."""
        return self.clock.aside(name, per_epoch)

    def loss(self, value: float) -> None:
        """Note the loss of a step, as the article's loop reads it."""
        if not self.clock.on_ready:
            self._losses.append(float(value))

    def metric(self, name: str, value: float, unit: str, **more: Any) -> None:
        """Add a measured value to the record; `more` may give low, high, n and how. Raises ValueError for a NaN."""
        value = value if isinstance(value, int) else float(value)  # a framework's scalar is no JSON
        if not math.isfinite(value):
            raise ValueError(f"{name} is {value}; what could not be measured is left out")
        self._metrics[name] = {
            "value": value,
            "unit": unit,
            "low": None,
            "high": None,
            "n": 1,
            "how": "measured",
            **more,
        }

    def __enter__(self) -> Case:
        self._started, self._start_s = results.now(), time.perf_counter()
        self._fitness = machine.fitness()
        self.experiment.journal.start(self._base())
        self.backend.reset_peak_memory()
        self.clock = timing.StepClock(
            self.backend.fence,
            budget_s=self.experiment.budget_s,
            whole=self.experiment.profile == "article",
            put=self.backend.put,
            on_progress=self._progress.update,
        )
        self._stack = contextlib.ExitStack()
        self._fallbacks = self._stack.enter_context(self.backend.watch_fallbacks())
        return self

    def __exit__(self, kind: type | None, exception: BaseException | None, trace: Any) -> bool:
        try:
            if exception is None:
                self.backend.fence()
        except Exception as late:  # a GPU reports what went wrong when it is waited for
            exception = late
        self._stack.close()
        record = self._record(exception)
        self.experiment.journal.end(record)
        self._progress.finish(tables.line(record))
        # Nothing of this case may stay in memory while the next one is measured.
        self._model = self._weights = None
        return record["status"] != "interrupted"

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
            "precision": experiment.precision,
            "profile": experiment.profile,
            "data": experiment.data_kind,
            "data_origin": experiment.data_origin,
            "scaled": self.scaled,
            "repeat": experiment.repeat,
            "threads": self.backend.threads,
            "power_source": self._fitness["power_source"],
            "started": self._started,
        }

    def _record(self, exception: BaseException | None) -> dict[str, Any]:
        metrics = timing.epoch_metrics(self.clock)
        telemetry = self._telemetry
        if telemetry is not None:
            metrics.update(telemetry.metrics())
            if "power_w" in metrics and "step_s" in metrics:
                energy = metrics["power_w"]["value"] * metrics["step_s"]["value"]
                metrics["energy_j_per_step"] = _metric(energy, "J", how="estimated")
        if self.clock.parts:
            metrics.update({name: _metric(value, "B") for name, value in self.backend.peak_memory().items()})
        first, last = self._loss_ends()
        for name, value in (("loss_first", first), ("loss_last", last)):
            if value is not None and math.isfinite(value):
                metrics[name] = _metric(value, "", n=len(self._losses))
        metrics.update(self._metrics)
        rate = self._rate()
        if rate is not None:
            metrics["flops_per_s"] = rate

        observed = self.backend.observed(self._model) if self._model is not None else None
        status, reason = self._status(exception, observed, first, last)
        record = self._base() | {
            "device": observed and ("cpu" if observed == "cpu" else "gpu"),
            "parameters": self._workload and self._workload.parameters,
            "flops_per_step": self._workload and self._workload.flops,
            "foreign_load": telemetry.foreign_load if telemetry else None,
            "flags": self._all_flags(),
            "status": status,
            "reason": reason,
            "seconds": round(time.perf_counter() - self._start_s, 3),
            "metrics": metrics,
            "blocks": {name: _raw(part) for name, part in self.clock.parts.items()},
            "asides": {name: aside.seconds for name, aside in self.clock.asides.items()},
        }
        if telemetry is not None:
            record |= {"absent": telemetry.absent, "rails": telemetry.rails, "thermal_level": telemetry.thermal_level}
            record["trace"] = telemetry.samples[:: max(1, len(telemetry.samples) // 500)]
        if status == "error" and exception is not None:
            record["traceback"] = private("".join(traceback.format_exception(exception)))
        return record

    def _status(
        self, exception: BaseException | None, observed: str | None, first: float | None, last: float | None
    ) -> tuple[str, str | None]:
        if exception is not None:
            reason = private(f"{exception}".strip().split("\n")[0] or type(exception).__name__)
            if not isinstance(exception, Exception):
                return "interrupted", reason
            known = {TooBig: "too-big", Mismatch: "mismatch"}.get(type(exception)) or device.failure(exception)
            return (known, reason) if known else ("error", f"{type(exception).__name__}: {reason}")
        if self._fallbacks:
            return "fallback", f"ran on the CPU: {', '.join(sorted(self._fallbacks))}"
        if observed not in (None, self.backend.backend):
            return "fallback", f"asked for {self.backend.backend}, computed on {observed}"
        if not self._metrics and all(part.first_step_s is None for part in self.clock.parts.values()):
            return "error", "nothing was timed"
        if self._model is not None and self.clock.parts and _fingerprint(self._model) == self._weights:
            return "not-learning", "no step changed the weights"
        if not all(math.isfinite(loss) for loss in self._losses):
            return "not-learning", "the loss is not a finite number"
        if self.experiment.learns and len(self._losses) >= JUDGED_STEPS and last >= first:
            return "not-learning", f"the loss went from {first:.4g} to {last:.4g} in {len(self._losses)} steps"
        return "ok", None

    def _rate(self) -> dict[str, Any] | None:
        """Floating-point operations a second, from the steps on ready batches where there are any."""
        training = next(iter(self.clock.parts.values()), None)
        blocks = training and (training.ready_blocks or training.blocks)
        if not blocks or not self._workload:
            return None
        step = timing.interval(blocks)
        flops = self._workload.flops
        bounds = {"low": flops / step.high, "high": flops / step.low} if step.low else {"low": None, "high": None}
        return {"value": flops / step.mean, "unit": "FLOP/s", **bounds, "n": step.n, "how": "measured"}

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
        flags = list(self._fitness["flags"])
        if self._telemetry is not None and contended(self._telemetry.foreign_load):
            flags.append("contended")
        training = next(iter(self.clock.parts.values()), None)
        if training is not None:
            blocks = [block.step_s for block in training.blocks]
            change = intervals.drift(blocks)
            if change is not None and abs(change) > intervals.DRIFT_THRESHOLD:
                flags.append("drift")
            if not training.complete and sum(block.steps for block in training.blocks) < intervals.BATCHES:
                flags.append("few-steps")
        if self.backend.backend == "mps" and device.fallback_enabled():
            flags.append("fallback-enabled")
        return flags


def note_machine(out: Path, profile: str) -> dict:
    """Write `machine.json` into a run's folder, unless it is there; returns what it says."""
    path = out / "machine.json"
    if path.exists():
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            raise PomologyError(f"{private(str(path))}: not JSON; remove it or choose another folder") from None
    snapshot = machine.snapshot() | {"profile": profile, "power_source": machine.fitness()["power_source"]}
    write_whole(path, json.dumps(snapshot, indent=1, ensure_ascii=False) + "\n")
    return snapshot


def _metric(value: float, unit: str, how: str = "measured", n: int = 1) -> dict:
    return {"value": value, "unit": unit, "low": None, "high": None, "n": n, "how": how}


def _fingerprint(model: Any) -> list[float]:
    """A few weights, to see whether training changed them."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [value for parameter in trained[-4:] for value in parameter.detach().flatten()[:64].float().tolist()]


def _raw(part: timing.Part) -> dict:
    def pairs(blocks: list[timing.Block]) -> list[list[float]]:
        return [[block.steps, round(block.seconds, 9)] for block in blocks]

    return {
        "epoch_steps": part.epoch_steps,
        "first_step_s": part.first_step_s,
        "warmup": pairs(part.warmup),
        "steady": pairs(part.blocks),
        "ready": pairs(part.ready_blocks),
        "last_step_s": part.last_step_s,
        "stopped": part.stopped,
    }


def _one_line_errors() -> None:
    """Let a notebook show bad input as the one line that it is, without the way through this package."""
    from IPython import get_ipython

    shell = get_ipython()
    if shell is not None:
        shell.set_custom_exc((PomologyError,), lambda shell, kind, error, trace, tb_offset=None: [f"{error}"])


class _Progress:
    """One line that says how far a case is, in a notebook or a terminal, replaced by its result."""

    def __init__(self, name: str):
        self.name, self._handle, self._last_s, self._begun_s = name, None, 0.0, time.perf_counter()

    def update(self, part: str, done: int, expected: float | None) -> None:
        now_s = time.perf_counter()
        if now_s - self._last_s < 0.5:
            return
        self._last_s = now_s
        total = f" of {math.ceil(expected):,}" if expected else ""
        self._show(f"{self.name}: {part}, step {done:,}{total}, {tables.clock_time(now_s - self._begun_s)}")

    def finish(self, line: str) -> None:
        self._show(line, final=True)
        self._handle = None

    def _show(self, text: str, final: bool = False) -> None:
        from IPython import get_ipython
        from IPython.display import display

        if get_ipython() is None:
            if final:
                print(text)
            return
        if self._handle is None:
            self._handle = display(_Line(text), display_id=True)
        else:
            self._handle.update(_Line(text))


class _Line:
    """Text that a notebook shows as it is."""

    def __init__(self, text: str):
        self.text = text

    def __repr__(self) -> str:
        return self.text
