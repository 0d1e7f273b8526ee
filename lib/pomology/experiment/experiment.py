"""An experiment: one notebook's cases on this machine, and the tables, figures and claims that it shows."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from pomology.articles import layout as articles_layout
from pomology.articles import published
from pomology.devices import find
from pomology.devices.base import Device
from pomology.errors import PomologyError
from pomology.experiment.case import Case
from pomology.machine import snapshot
from pomology.measure import calls
from pomology.paths import root
from pomology.report import article as report_article
from pomology.report import claims as report_claims
from pomology.report import details as report_details
from pomology.report import roofline, summary
from pomology.report import side_by_side as report_side_by_side
from pomology.report import table as report_table
from pomology.report.figures import draw, style
from pomology.results import folders, journal
from pomology.results.record import PROFILES

TOO_LARGE = ("too-big", "out-of-memory", "crashed", "timeout")  # a smaller sibling of such a case may fit


class Experiment:
    """One notebook's cases on this machine.

    name: the notebook's name, and the journal's. article: its number, as in the published values. framework: what the
    cases train with, one a notebook; None has no cases, and lays together what other notebooks of a run have measured.
    devices: one of `find.choices()`. profile: `smoke`, `quick` or `article`; the last runs whole
    epochs. budget_s: seconds for the steady steps of a case. out: the run's folder; empty takes this day's, see
    `folders.by_hand`, or without a framework the latest that has such numbers. repeat: which repetition of the run this
    is. precision: of every case that has no setting of that name. expects_learning: whether a
    loss that does not fall means that the model does not learn (a GAN's tells nothing).
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
        expects_learning: bool = True,
    ):
        if profile not in PROFILES:
            raise PomologyError(f"{name}: profile is {profile!r}; it must be one of {', '.join(PROFILES)}")
        if isinstance(budget_s, bool) or not isinstance(budget_s, (int, float)) or not 0 < budget_s < math.inf:
            raise PomologyError(f"{name}: budget_s is {budget_s!r}; it must be a number of seconds above 0")
        self.name, self.article, self.profile, self.budget_s = name, article, profile, float(budget_s)
        self.repeat, self.precision, self.expects_learning = repeat, precision, expects_learning
        self.framework = framework
        self.devices = find.find(devices, framework) if framework else []
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

    def dataset(self, data: Any) -> None:
        """Say what the cases train on: anything with `kind` (`real` or `stand-in`) and `origin`, a line about it."""
        self.data_kind, self.data_origin = data.kind, data.origin

    def cases(
        self, rows: Iterable[dict] | None = None, on: Iterable[Device] | None = None, **axes: Iterable
    ) -> Iterator[Case]:
        """The cases to run: every row (or every combination of the axes' values) on every device of this machine.

        on: only on these devices. What the journal holds already is skipped, with a line that says so. Raises
        PomologyError for an axis that has the name of a method of a case.
        """
        Case.refuse(axes)
        if rows is None:
            rows = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
        before = journal.read(self.journal.path)
        for backend, config in itertools.product(self.devices if on is None else on, list(rows)):
            case = Case(self, backend, config)
            if before.done(case.name, self.repeat):
                print(f"{case.name}: in the journal already; skipped{self._anew}")
            else:
                yield case

    def first_that_fits(self, rows: Iterable[dict], on: Iterable[Device] | None = None) -> Iterator[Case]:
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

    def peak_matmul_rate(self, backend: Device, precision: str) -> float:
        """The most floating-point operations a second that a matrix product reaches on a device, found within a second.

        Products of 512, 1024, 2048 and 4096 squared are timed, as long as they are short. Measured once per process;
        what this run's ceilings have reached with the same framework counts, if it is more: a second may be a bad one.
        """
        key = backend.backend, precision
        if key not in self._rates:
            best = 0.0
            for size in (512, 1024, 2048, 4096):
                function = backend.dispatch(backend.product(precision, size))
                found = calls.measure(function, backend.synchronize, budget_s=0.1, warmup_s=0.02, warmup_calls=1)
                fastest_s = min(block.step_s for block in found.blocks)
                best = max(best, 2 * size**3 / fastest_s)
                if fastest_s > 0.02:  # the next takes eight times as long
                    break
            known = [one for one in self._read(roofline.SOURCES) if one["framework"] == self.framework]
            ceiling = roofline.ceilings(known).rates.get((backend.kind, precision))
            self._rates[key] = max(best, ceiling.value) if ceiling else best
        return self._rates[key]

    def conditions(self) -> dict[str, Any]:
        """Whether the machine is fit to measure now; a look takes a quarter of a second, so it is good for five."""
        if self._looked is None or time.perf_counter() - self._looked[0] > 5:
            self._looked = time.perf_counter(), snapshot.conditions()
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

    def show(self, records: Iterable[dict]) -> None:
        """Show these in the table and the figure: records made of what others have measured, in no journal."""
        self._laid = list(records)

    def machine(self) -> report_table.Table:
        """The machine, and where the numbers are, as a small table."""
        table = report_details.machine_table(self.snapshot, self.devices)
        return replace(table, rows=(*table.rows, report_table.Row(("Numbers", self._place()))))

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

    def table(self) -> report_table.Table:
        """The article's table with this machine in it; also saved as CSV."""
        records, best = self.records, self._ceilings()
        self._saved(report_details.details_table(self.name, records, best), "details")
        return self._saved(report_article.article_table(self.name, records, best), "article")

    def details(self) -> report_table.Table:
        """What else was measured of each case."""
        return report_details.details_table(self.name, self.records, self._ceilings())

    def ceilings(self) -> report_table.Table:
        """The best rates that this run has measured on this machine so far, in whichever framework."""
        return roofline.ceilings_table(self._read(roofline.SOURCES))

    def roofline(self) -> report_table.Table:
        """Where every experiment of this run lies under the machine's ceilings; also saved as CSV."""
        return self._saved(roofline.roofline_table(self.records), "roofline")

    def summary(self) -> report_table.Table:
        """What every device of the articles, and this machine, achieves of its peak; also saved as CSV."""
        return self._saved(summary.table(self.records), "rates")

    def checks(self) -> report_table.Table:
        """What the kit found out about itself, in plain words; also saved as CSV."""
        return self._saved(report_details.checks_table(self.records), "checks")

    def ratios(self) -> report_table.Table:
        """How many times faster one device is than another: as printed, and the GPU against the CPU of this machine."""
        return self._saved(report_side_by_side.ratio_table(self.name, self.records), "ratios")

    def side_by_side(self) -> report_table.Table:
        """The same cases in PyTorch and MLX, from the journals of this run, with proof that they are the same."""
        return self._saved(report_side_by_side.side_by_side(self.name, self._read(self._siblings)), "side-by-side")

    def printed(self) -> report_table.Table:
        """What else the article prints about this experiment: its settings, and what its text says."""
        return report_details.printed_table(self.name)

    def figure(self) -> Any:
        """The article's devices and this machine's on one axis; also saved as SVG."""
        return style.show(draw.draw(self.name, self.records), self.out / "figures" / f"{self.name}-epoch.svg")

    def claims(self) -> report_table.Table:
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
        return report_claims.claims_table(claims, self._read(names))

    def _saved(self, table: report_table.Table, what: str) -> report_table.Table:
        report_table.save(table, self.out / "tables" / f"{self.name}-{what}.csv")
        return table

    def _ceilings(self) -> roofline.Ceilings:
        return roofline.ceilings(self._read(roofline.SOURCES))

    def _read(self, names: Iterable[str]) -> list[dict]:
        """What these notebooks of the run have measured so far."""
        return [record for name in names for record in journal.read(self.out / f"{name}.jsonl").records]
