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
import math
import statistics as python_statistics
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from pomology import PomologyError, format, private, root
from pomology.articles import layout as articles_layout
from pomology.articles import published
from pomology.devices import torch
from pomology.machine import snapshot
from pomology.machine.sampler import MemoryTrace, Telemetry, contended
from pomology.measure import clock, intervals
from pomology.report import article as report_article
from pomology.report import roofline, summary
from pomology.report.figures import article as figures_article
from pomology.results import folders, journal
from pomology.workloads import parity
from pomology.workloads.cost import Workload

PROFILES = ("smoke", "quick", "article")
JUDGED_STEPS = 50  # with fewer losses than these nobody can tell whether a model learns
TOO_LARGE = ("too-big", "out-of-memory", "crashed", "timeout")  # a smaller sibling of such a case may fit
FEW_TRACED = 8  # with fewer steps than these behind the warm-up, only the first is left out of a trace of memory
SPARED_BYTES, SPARED_SHARE = 1.5e9, 0.1  # of the free memory, that a case near the limit leaves to the machine
# On a processor tensors lie in the C library's heap, with holes between them: glibc gives one a mapping of its own only
# if it is larger than all that were freed before, or than 32 MB. The memory of `memory_torch` grew to 1.22 times the
# sum of its tensors; where glibc was told to map each of them by itself, to 1.00 times.
HOLES = 1.25
ACCURACY_STEPS = 20  # after so many steps any model here that can learn does better than chance


class TooBig(PomologyError):
    """Predicted not to fit the device, so not tried."""


class Mismatch(PomologyError):
    """Two computations that should agree do not."""


class Experiment:
    """One notebook's cases on this machine.

    name: the notebook's name, and the journal's. article: its number, as in the published values. framework: what the
    cases train with, one a notebook; None has no cases, and lays together what other notebooks of a run have measured.
    devices: `auto`, `cpu`, `gpu`, `cuda`, `mps` or `metal`. profile: `smoke`, `quick` or `article`; the last runs whole
    epochs. budget_s: seconds for the steady steps of a case. out: the run's folder; empty takes this day's, see
    `folders.by_hand`, or without a framework the latest that has such numbers. repeat: which repetition of the run this
    is. precision: of every case that has no setting of that name. learns: whether a loss that does not fall means that
    the model does not learn (a GAN's tells nothing).
    Raises PomologyError in one line for a value that cannot be.
    """

    def __init__(
        self,
        name: str,
        *,
        article: str,
        framework: str | None = "torch",
        devices: str = "auto",
        profile: str = "quick",
        budget_s: float = 10.0,
        out: str = "",
        repeat: int = 0,
        precision: str = "fp32",
        learns: bool = True,
    ):
        if profile not in PROFILES:
            raise PomologyError(f"{name}: profile is {profile!r}; it must be one of {', '.join(PROFILES)}")
        if isinstance(budget_s, bool) or not isinstance(budget_s, (int, float)) or not 0 < budget_s < math.inf:
            raise PomologyError(f"{name}: budget_s is {budget_s!r}; it must be a number of seconds above 0")
        self.name, self.article, self.profile, self.budget_s = name, article, profile, float(budget_s)
        self.repeat, self.precision, self.learns = repeat, precision, learns
        self.framework = framework
        self.devices = torch.find(devices, framework) if framework else []
        self._anew = "" if out else " (run the set-up cell again to measure it anew)"
        layout = articles_layout.LAYOUTS.get(name) or articles_layout.Layout(name, {})
        self._everything = layout.everything or bool(layout.lays)
        self._siblings = articles_layout.notebooks_of(articles_layout.experiment_of(name))
        measured = [*self._siblings, *layout.lays, *(roofline.SOURCES if self._everything else ())]
        self._lays = [] if framework else [source for source in measured if source != name]
        self.out = Path(out) if out else folders.latest(self._lays, profile) or folders.by_hand(name, profile)
        self.journal = journal.Journal(self.out / f"{name}.jsonl")
        self.snapshot = folders.note_machine(self.out, profile)
        self.data_kind, self.data_origin = "none", ""
        self._looked: tuple[float, dict] | None = None
        self._rates: dict[tuple[str, str], float] = {}
        self._laid: list[dict] | None = None

    def uses(self, data: Any) -> None:
        """Say what the cases train on: anything with `kind` (`real` or `stand-in`) and `origin`, a line about it."""
        self.data_kind, self.data_origin = data.kind, data.origin

    def cases(
        self, rows: Iterable[dict] | None = None, on: Iterable[torch.Device] | None = None, **axes: Iterable
    ) -> Iterator[Case]:
        """The cases to run: every row (or every combination of the axes' values) on every device of this machine.

        on: only on these devices. What the journal holds already is skipped, with a line that says so.
        """
        if rows is None:
            rows = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
        before = journal.read(self.journal.path)
        for backend, config in itertools.product(self.devices if on is None else on, list(rows)):
            case = Case(self, backend, config)
            if before.done(case.name, self.repeat):
                print(f"{case.name}: in the journal already; skipped{self._anew}")
            else:
                yield case

    def largest(self, rows: Iterable[dict], on: Iterable[torch.Device] | None = None) -> Iterator[Case]:
        """On every device the first of these cases that fits it: rows from the article's own down to smaller siblings.

        The next one is tried where a case is too big, runs out of memory or time, or takes the kernel with it. on: as
        for `cases`.
        """
        rows = list(rows)
        for backend, config in itertools.product(self.devices if on is None else on, rows):
            if config is rows[0]:
                fits = False
            if fits:
                continue
            yield from self.cases([config], on=[backend])
            name = Case(self, backend, config).name
            ended = [
                record["status"]
                for record in journal.read(self.journal.path).records
                if record["case"] == name and record["repeat"] == self.repeat
            ]
            fits = not ended or ended[-1] not in TOO_LARGE

    def rate(self, backend: torch.Device, precision: str) -> float:
        """The most floating-point operations a second that a matrix product reaches on a device, found within a second.

        Products of 512, 1024, 2048 and 4096 squared are timed, as long as they are short. Measured once per process;
        what this run's ceilings have reached with the same framework counts, if it is more: a second may be a bad one.
        """
        key = backend.backend, precision
        if key not in self._rates:
            best = 0.0
            for size in (512, 1024, 2048, 4096):
                function = backend.eager(backend.product(precision, size))
                found = clock.measure(function, backend.fence, budget_s=0.1, warmup_s=0.02, warmup_calls=1)
                fastest_s = min(block.step_s for block in found.blocks)
                best = max(best, 2 * size**3 / fastest_s)
                if fastest_s > 0.02:  # the next takes eight times as long
                    break
            known = [one for one in self._read(roofline.SOURCES) if one["framework"] == self.framework]
            ceiling = roofline.ceilings(known).rates.get((backend.kind, precision))
            self._rates[key] = max(best, ceiling.value) if ceiling else best
        return self._rates[key]

    def fitness(self) -> dict[str, Any]:
        """Whether the machine is fit to measure now; a look takes a quarter of a second, so it is good for five."""
        if self._looked is None or time.perf_counter() - self._looked[0] > 5:
            self._looked = time.perf_counter(), snapshot.fitness()
        return self._looked[1]

    @property
    def records(self) -> list[dict]:
        """The finished cases of this experiment's journal; without a framework, of all notebooks of the experiment, or
        of the whole run, where it lays that together."""
        if self._laid is not None:
            return self._laid
        if self._everything:
            return self._read(sorted(path.stem for path in self.out.glob("*.jsonl")))
        return self._read([self.name] if self.framework else self._siblings)

    def lay(self, records: Iterable[dict]) -> None:
        """Show these in the table and the figure: records made of what others have measured, in no journal."""
        self._laid = list(records)

    def machine(self) -> report_article.Table:
        """The machine, and where the numbers are, as a small table."""
        table = report_article.machine_table(self.snapshot, self.devices)
        return replace(table, rows=(*table.rows, report_article.Row(("Numbers", self._place()))))

    def _place(self) -> str:
        out, here = self.out.absolute(), root()
        place = f"{out.relative_to(here) if here in out.parents else out.name}/"  # no folder above the kit's is told
        if self.framework:
            return f"in {place}"
        there = [path.stem for path in sorted(self.out.glob("*.jsonl"))]
        missing = ", ".join(name for name in self._lays if name not in there)
        if not self._everything:
            there = [name for name in self._lays if name in there]
        if not there:
            return f"none yet: run {missing} first, or set `out` to the folder of a run that has them"
        found = f"{len(there)} notebooks" if len(there) > len(self._lays) else ", ".join(there)
        return f"of {found}, in {place}" + (f"; to have more, run {missing} first" if missing else "")

    def table(self) -> report_article.Table:
        """The article's table with this machine in it; also saved as CSV."""
        records, best = self.records, self._ceilings()
        self._saved(report_article.details_table(self.name, records, best), "details")
        return self._saved(report_article.article_table(self.name, records, best), "article")

    def details(self) -> report_article.Table:
        """What else was measured of each case."""
        return report_article.details_table(self.name, self.records, self._ceilings())

    def ceilings(self) -> report_article.Table:
        """The best rates that this run has measured on this machine so far, in whichever framework."""
        return report_article.ceilings_table(self._read(roofline.SOURCES))

    def roofline(self) -> report_article.Table:
        """Where every experiment of this run lies under the machine's ceilings; also saved as CSV."""
        return self._saved(report_article.roofline_table(self.records), "roofline")

    def summary(self) -> report_article.Table:
        """What every device of the articles, and this machine, achieves of its peak; also saved as CSV."""
        return self._saved(summary.table(self.records), "rates")

    def checks(self) -> report_article.Table:
        """What the kit found out about itself, in plain words; also saved as CSV."""
        return self._saved(report_article.checks_table(self.records), "checks")

    def ratios(self) -> report_article.Table:
        """How many times faster one device is than another: as printed, and the GPU against the CPU of this machine."""
        return self._saved(report_article.ratio_table(self.name, self.records), "ratios")

    def side_by_side(self) -> report_article.Table:
        """The same cases in PyTorch and MLX, from the journals of this run, with proof that they are the same."""
        return self._saved(report_article.side_by_side(self.name, self._read(self._siblings)), "side-by-side")

    def printed(self) -> report_article.Table:
        """What else the article prints about this experiment: its settings, and what its text says."""
        return report_article.printed_table(self.name)

    def figure(self) -> Any:
        """The article's devices and this machine's on one axis; also saved as SVG."""
        return figures_article.show(
            figures_article.draw(self.name, self.records), self.out / "figures" / f"{self.name}-epoch.svg"
        )

    def claims(self) -> report_article.Table:
        """What the article says, tested on its own numbers and on this machine's."""
        claims = [
            claim
            for claim in published.claims(article=self.article)
            if {articles_layout.experiment_of(self.name), *articles_layout.LAYOUTS[self.name].claims_of}
            & set(claim.experiments)
        ]
        # A claim may need what another notebook of the same run has measured.
        needed = {self.name, *(name for claim in claims for name in claim.experiments)}
        names = sorted({self.name, *(name for one in needed for name in articles_layout.notebooks_of(one))})
        return report_article.claims_table(claims, self._read(names))

    def _saved(self, table: report_article.Table, what: str) -> report_article.Table:
        report_article.save(table, self.out / "tables" / f"{self.name}-{what}.csv")
        return table

    def _ceilings(self) -> roofline.Ceilings:
        return roofline.ceilings(self._read(roofline.SOURCES))

    def _read(self, names: Iterable[str]) -> list[dict]:
        """What these notebooks of the run have measured so far."""
        return [record for name in names for record in journal.read(self.out / f"{name}.jsonl").records]


class Case:
    """One row of an article's table on one device. Enter it with `with`; how that block ends becomes its status."""

    def __init__(self, experiment: Experiment, backend: torch.Device, config: dict):
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
        self._lies: str | None = None
        self._telemetry: Telemetry | None = None
        self._trace: MemoryTrace | None = None
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
        if workload.host_bytes:
            # A GPU with a memory of its own takes nothing of the host's.
            needed = workload.host_bytes + (0 if self.backend.backend == "cuda" else workload.bytes)
            available = snapshot.available_memory_bytes()
            if needed > available:
                raise TooBig(
                    f"needs {needed / 1e9:.1f} GB of the host's memory at the least, for what is offloaded to it; "
                    f"{available / 1e9:.1f} GB are free"
                )

    def foresee(self, limit_s: float, steps: int = 3, precision: str = "") -> None:
        """Raise TooBig, which ends the case, if that many steps surely cannot end in `limit_s`.

        That is judged by the best rate that a matrix product of this precision, by default the case's, reaches on this
        device, which no training step exceeds. Comes behind `requires`.
        """
        precision = precision or self.precision
        rate = self.experiment.rate(self.backend, precision)
        least_s = self._workload.flops / rate
        if steps * least_s > limit_s:
            raise TooBig(
                f"a step of {self._workload.flops / 1e12:,.4g} TFLOP would take {format.seconds(least_s)} at the "
                f"least, at {rate / 1e9:,.4g} GFLOP/s, the most that a product in {precision} reaches here; {steps} "
                f"steps must end within {format.seconds(limit_s)}"
            )

    def observe(self, model: Any, lies: str | None = None) -> Any:
        """Keep an eye on a model: where its weights really are, and whether they change. Returns the model.

        lies: the backend that holds the weights between steps, if they are offloaded; then `saw` tells what computes.
        Raises Mismatch if it has not as many parameters as the workload said.
        """
        count = self.backend.count(model)
        if not count:
            raise ValueError("a model without parameters cannot be observed")
        if self._workload and count != self._workload.parameters:
            raise Mismatch(f"the model has {count:,} parameters; {self._workload.parameters:,} were counted beforehand")
        self._model, self._weights, self._lies = model, self.backend.fingerprint(model), lies
        return model

    def saw(self, result: Any) -> None:
        """Note where a tensor that this case computed really is: elsewhere than asked for is a `fallback`."""
        self._seen.add(self.backend.observed(result))

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
            self.backend.fence()
            self._telemetry = self._stack.enter_context(Telemetry(device=self.backend.kind))

    def measure(self, name: str, function: Callable[[], Any], **options: Any) -> clock.Measurement:
        """Time a function that needs no loader, within the budget, and note the median of a call as metric `name`.

        options: of `timing.measure`. Timed as `step_s`, it also tells FLOP/s if the workload is known.
        """
        self.watch()
        timed = clock.measure(function, self.backend.fence, **{"budget_s": self.experiment.budget_s, **options})
        self._metrics[name] = clock.seconds_metric(timed.seconds)
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
        self.backend.fence()
        if self._trace is None:
            self._trace = MemoryTrace(self.backend.memory, self._start_s)
        self._trace.note()

    def room(self, share: float = 0.9, most_bytes: float = math.inf) -> int:
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

    def aside(self, name: str, per_epoch: float) -> contextlib.AbstractContextManager:
        """Time something that an epoch does `per_epoch` times, apart from the steps around it."""
        return self.clock.aside(name, per_epoch)

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

    def kernel(self, name: str, found: clock.Measurement) -> None:
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
        self._started, self._start_s = journal.now(), time.perf_counter()
        self._fitness = self.experiment.fitness()
        self.experiment.journal.start(self._base())
        self.backend.reset_peak_memory()
        self.clock = clock.StepClock(
            self.backend.fence,
            budget_s=self.experiment.budget_s,
            whole=self.experiment.profile == "article",
            put=self.backend.put,
            on_progress=self._progress.update,
        )
        self._stack = contextlib.ExitStack()
        self._stack.enter_context(self.backend.scope())
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
        self._progress.finish(report_article.line(record))
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
            "power_source": self._fitness["power_source"],
            "started": self._started,
        }

    def _record(self, exception: BaseException | None) -> dict[str, Any]:
        metrics = clock.epoch_metrics(self.clock)
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

        observed = self.backend.observed(self._model) if self._model is not None else None
        if observed is not None and observed == self._lies and self._seen == {self.backend.backend}:
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
            "asides": {name: aside.seconds for name, aside in self.clock.asides.items()},
        }
        if self._notes:
            record["note"] = private("; ".join(self._notes))
        if self._trace is not None:
            record["memory_trace"] = self._memory_trace()
        if telemetry is not None:
            absent = dict(telemetry.absent)
            if self.backend.uncounted:
                reason = private(self.backend.uncounted)
                absent |= {"allocated_peak_bytes": reason, "reserved_peak_bytes": reason}
            record |= {"absent": absent, "rails": telemetry.rails, "thermal_level": telemetry.thermal_level}
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
            known = {TooBig: "too-big", Mismatch: "mismatch"}.get(type(exception)) or torch.failure(exception)
            return (known, reason) if known else ("error", f"{type(exception).__name__}: {reason}")
        if self._fallbacks:
            return "fallback", f"ran on the CPU: {', '.join(sorted(self._fallbacks))}"
        elsewhere = ({observed} | self._seen) - {None, self.backend.backend}
        if elsewhere:
            return "fallback", f"asked for {self.backend.backend}, computed on {', '.join(sorted(elsewhere))}"
        if not self._metrics and all(part.first_step_s is None for part in self.clock.parts.values()):
            return "error", "nothing was timed"
        if self._model is not None and self.clock.parts and self.backend.fingerprint(self._model) == self._weights:
            return "not-learning", "no step changed the weights"
        if not all(math.isfinite(loss) for loss in self._losses):
            return "not-learning", "the loss is not a finite number"
        if self.experiment.learns and len(self._losses) >= JUDGED_STEPS and last >= first:
            return "not-learning", f"the loss went from {first:.4g} to {last:.4g} in {len(self._losses)} steps"
        if self._guesses is not None:
            return "not-learning", self._guesses
        return "ok", None

    def _rate(self) -> dict[str, Any] | None:
        """Floating-point operations a second, from the steps on ready batches where there are any."""
        blocks = self._training and (self._training.ready_blocks or self._training.blocks)
        if not blocks or not self._workload:
            return None
        return _per_second(self._workload.flops, clock.interval(blocks))

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
        name = report_article.FRAMEWORKS.get(self.backend.framework, self.backend.framework)
        why = self.backend.uncounted or f"{name} keeps no count of it on this device"
        absent = {name: private(self._trace.counters.absent.get(name, why)) for name in sorted(empty)}
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
        flags, training = [*self._fitness["flags"], *self._flags], self._training
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
    return {"low": None, "high": None, "how": "measured", **roofline.rate(flops, step, "FLOP/s")}


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
        self._show(f"{self.name}: {part}, step {done:,}{total}, {format.clock_time(now_s - self._begun_s)}")

    def finish(self, line: str) -> None:
        self._show(line, final=True)
        self._handle = None

    def _show(self, text: str, final: bool = False) -> None:
        from IPython import get_ipython
        from IPython.display import Pretty, display

        if get_ipython() is None:
            if final:
                print(text)
            return
        if self._handle is None:
            self._handle = display(Pretty(text), display_id=True)
        else:
            self._handle.update(Pretty(text))
