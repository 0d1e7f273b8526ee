"""What a notebook shows of a run: tables, figures and claims, each also saved, so that the page only joins them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from pomology.articles import published
from pomology.errors import PomologyError
from pomology.format import one_line
from pomology.paths import read_file, root
from pomology.report import article, claims, declaration, details, roofline, side_by_side, summary, table
from pomology.report.declaration import Declaration
from pomology.report.figures import draw, of_this_machine, style
from pomology.report.figures.ranking import ranking_figure
from pomology.report.ranking import Ranking
from pomology.report.table import Row, Table
from pomology.results import cases, folders, metrics
from pomology.results.record import Record
from pomology.results.run import MALFORMED, Run

# Tables of words, or of what is in another as numbers, or in the journal beside it.
NO_NUMBERS = ("claims", "printed", "ceilings", "numbers", "details")

CHECK = "instrument_check"  # which says how much two runs of the same thing differ

MOST_ROWS = 40  # of each other run in a table

NO_LAUNCH = "A processor launches nothing: its times are those of a function call, and are in the table of all numbers."

# The names of tables in a run's folder, where they are not those of the methods that show them.
SAVED_AS = {"table": "article", "summary": "rates", "side_by_side": "side-by-side"}


class Report:
    """The tables, figures and claims of a notebook that runs no cases of its own, but shows the results of others.

    name: the notebook's. article: its number, as in the published values. profile: of the notebooks that it combines.
    out: the run's folder; empty takes the latest that has results of one of these. declared: see `Declaration`.
    """

    devices: Iterable[Any] = ()

    def __init__(self, name: str, *, article: str, profile: str = "quick", out: str = "", **declared: Any):
        about = Declaration(name, article, None, **declared)
        folder = Path(out) if out else folders.latest(about.sources, profile) or folders.by_hand(name, profile)
        self._begin(about, folder, profile)

    @classmethod
    def of(cls, about: Declaration, run: Run) -> Report:
        """Of a run that is there already, without its notebook: from the journals, as the notebook declares it."""
        report = cls.__new__(cls)
        report._show(about, run)
        return report

    def _begin(self, about: Declaration, folder: Path, profile: str) -> None:
        folders.note_machine(folder, profile)
        self._show(about, Run(folder))

    def _show(self, about: Declaration, run: Run) -> None:
        self.declaration, self.name, self.article = about, about.name, about.article
        self.run, self.out, self.snapshot = run, run.path, run.machine
        self._drawing = self.out / "figures" / f"{self.name}-epoch.svg"
        self._made: list[Record] | None = None

    @property
    def records(self) -> list[Record]:
        """The finished cases that this notebook is about: its own, those that it combines, or all of the run."""
        about = self.declaration
        if self._made is not None:
            return self._made
        if about.framework:
            return self._read([self.name])
        if about.whole_run:
            return self.run_records()
        read = self._read(about.sources)
        return [record for record in read if published.experiment_of(record.experiment) == about.experiment]

    def run_records(self) -> list[Record]:
        """The finished cases of all notebooks of this run."""
        return self.run.records

    def show(self, records: Iterable[Record]) -> None:
        """Show these in the table and the figure: records made of what others have measured, in no journal."""
        self._made = list(records)

    def machine(self) -> Table:
        """The machine, and where the numbers are, as a small table."""
        out, here, about, measured = self.out.absolute(), root(), self.declaration, sorted(self.run.journals)
        place = f"in {out.relative_to(here) if here in out.parents else out.name}/"  # no folder above the kit's
        missing = ", ".join(name for name in about.sources if name not in measured)
        there = measured if about.whole_run else [name for name in about.sources if name in measured]
        if not there and not about.framework:
            place = f"none yet: run {missing} first, or set `out` to the folder of a run that has them"
        elif not about.framework:
            shown = f"{len(there)} notebooks" if len(there) > len(about.sources) else ", ".join(there)
            place = f"of {shown}, {place}" + (f"; to have more, run {missing} first" if missing else "")
        shown = details.machine_table(self.snapshot, list(self.devices))
        return replace(shown, rows=(*shown.rows, Row(("Numbers", place))))

    def table(self) -> Table:
        """The article's table with this machine in it."""
        self.details()
        shown = article.article_table(self.declaration, self._compared(), self._ceilings())
        reason = (NO_LAUNCH,) if len(self._compared()) < len(self.records) else ()
        return self._saved("table", replace(shown, notes=(*shown.notes, *reason)))

    def details(self) -> Table:
        """What else was measured of each case."""
        return self._saved("details", details.details_table(self.records, self._ceilings()))

    def ceilings(self) -> Table:
        """The best rates that this run has measured on this machine so far, in whichever framework."""
        return self._saved("ceilings", roofline.ceilings_table(self._read(roofline.SOURCES)))

    def roofline(self) -> Table:
        """Where every experiment of this run stands under the machine's ceilings."""
        return self._saved("roofline", roofline.roofline_table(self.records))

    def ranking(self, against: str = "") -> Table:
        """How fast every device trains, as a multiple of one that is named, or of the usual one. Raises PomologyError
        for a name that no row has."""
        return self._saved("ranking", Ranking(self.records).table(against))

    def ranking_figure(self, against: str = "") -> Any:
        """The same as a figure."""
        known = Ranking(self.records)
        reference = known.known(against)
        drawn = ranking_figure(known.places(reference), reference)
        return style.show(drawn, self.out / "figures" / f"{self.name}-ranking.svg")

    def summary(self) -> Table:
        """What every device of the articles, and this machine, achieves of its peak."""
        return self._saved("summary", summary.table(self.records))

    def checks(self) -> Table:
        """What the kit found out about itself, in plain words."""
        return self._saved("checks", details.checks_table(self.records))

    def numbers(self) -> Table:
        """Every number of every case, a row each."""
        return self._saved("numbers", details.numbers_table(self.records))

    def ratios(self) -> Table:
        """How many times faster one device is than another: as printed, and the GPU against the CPU of this machine."""
        return self._saved("ratios", side_by_side.ratio_table(self.declaration, self.records))

    def side_by_side(self) -> Table:
        """The same cases in PyTorch and MLX, from the journals of this run, with proof that they are the same."""
        return self._saved("side_by_side", side_by_side.side_by_side(self.declaration, self.records))

    def parts(self) -> Table:
        """What those cases are made of, their share of the ceilings, and TensorFlow's steps of the same models."""
        keras = [record for record in self._read(self._models()) if record.framework == "tensorflow"]
        return self._saved("parts", side_by_side.parts(self.declaration, self.records, self._ceilings(), keras))

    def _models(self) -> list[str]:
        """The notebooks that have the name of a model here."""
        return sorted({str(record.config.get("workload")) for record in self.records} - {self.name})

    def printed(self) -> Table:
        """What else the article prints about this experiment: its settings, and what its text says."""
        return self._saved("printed", details.printed_table(self.declaration))

    def claims(self) -> Table:
        """What the article says, tested on its own numbers and on this machine's."""
        # A claim may need what another notebook of the same run has measured.
        return self._saved("claims", claims.claims_table(self.declaration.claims, self._read(self._needed())))

    def figure(self) -> Any:
        """The article's devices and this machine's on one axis."""
        return style.show(draw(self.declaration, self._compared()), self._drawing, f"\n{self._made_from()}\n")

    def beside(self, shown: Table) -> Table:
        """The article's table with the rows of other people's runs behind this machine's."""
        rows, notes = list(shown.rows), list(shown.notes)
        for report in self._others():
            try:
                made = article.article_table(self.declaration, report._compared(), report._ceilings())
            except MALFORMED as error:  # a stranger's numbers must not cost this machine its own
                notes.append(f"{report.run.name}: its rows cannot be shown ({type(error).__name__}).")
                continue
            measured = [dict(zip(made.columns, r.cells, strict=True)) for r in made.rows if r.kind == "measured"]
            cut = ((one_line(cells.get(name, ""), 300) for name in shown.columns) for cells in measured[:MOST_ROWS])
            rows += [Row(tuple(cells), "other") for cells in cut]
            more = len(measured) - MOST_ROWS
            notes += [f"{report.run.name}: {more:,} more rows are not shown."] if more > 0 else []
            notes += [one_line(note, 300) for note in table.flag_notes(report.records)[:MOST_ROWS]]
        return replace(shown, rows=tuple(rows), notes=tuple(dict.fromkeys(notes)))

    def drawn(self) -> str:
        """The figure as it was saved, or made from the journals as a table is; with runs of others one of its own."""
        about, place = self.declaration, self._drawing
        made_from = "" if self._lacks_its_notebook("figure") else self._made_from()
        others = [] if of_this_machine(about) else [report._compared() for report in self._others()]
        marked = {about.metric, *about.series}
        if any(marked & record.metrics.keys() for other in others for record in other):
            place = place.with_name(f"{self.name}-beside.svg")
            made_from = f"{self._made_from()}<!-- beside {sha256(msgspec.json.encode(others)).hexdigest()} -->"
        else:
            others = []
        with contextlib.suppress(PomologyError, UnicodeDecodeError):
            if (text := read_file(place).decode()).rstrip().endswith(made_from):
                return text
        style.show(draw(about, self._compared(), others), place, f"\n{made_from}\n")
        return read_file(place).decode()

    def saved(self, method: str) -> Table:
        """What a method has shown in the notebook, or shows now where that is missing, or its journals have grown."""
        what, about = SAVED_AS.get(method, method), self.declaration
        sources = None if self._lacks_its_notebook(what) else self.sources(what)
        shown = table.saved(self._place(what), sources) or getattr(self, method)()
        headings = [heading for heading, metric in about.shown.items() if metric == about.metric]
        headings.append(metrics.metric(about.metric).heading)  # of an older notebook's table
        main = next((heading for heading in headings if heading in shown.columns), "")
        return replace(shown, main=main) if method == "table" else shown

    def sources(self, what: str) -> dict[str, int]:
        """The journals that a table or figure is made from, and how long each is now."""
        about = self.declaration
        # A faster product of any notebook lowers the shares in the tables of all others.
        names = [*(about.sources or [self.name]), *(roofline.SOURCES if what != "figure" else ()), CHECK]
        names += self._models() if what == "parts" else []
        names = self._needed() if what == "claims" else sorted(self.run.journals) if about.whole_run else names
        journals = self.run.journals
        return {f"{name}.jsonl": journals[name].size for name in dict.fromkeys(names) if name in journals}

    def _made_from(self) -> str:
        return f"<!-- from {json.dumps(self.sources('figure')).replace('--', '- -')} -->"  # two would end the comment

    def _place(self, what: str) -> Path:
        return self.out / "tables" / f"{self.name}-{what}"

    def _saved(self, method: str, shown: Table) -> Table:
        what, shown = SAVED_AS.get(method, method), details.with_difference(shown, self._read([CHECK]))
        place = self._place(what)
        if not (self._lacks_its_notebook(what) and any(place.parent.glob(f"{place.name}.*"))):
            table.save(shown, place, self.sources(what), numbers=what not in NO_NUMBERS)
        return shown

    def _lacks_its_notebook(self, what: str) -> bool:
        """Whether records that only the notebook makes, of others' records (`show`), are missing: no journal has them.

        Then what it saved holds more than can be made here, as the price of this machine in `costs`, and stays as it
        is, however old. Claims are tested on journals alone.
        """
        return what != "claims" and bool(self.declaration.sources) and not self.records

    def _needed(self) -> list[str]:
        # The claims of an article are judged together, and so need the journals of all.
        experiments = {experiment for claim in published.claims(self.article) for experiment in claim.experiments}
        return sorted({self.name, *(name for about in experiments for name in declaration.notebooks_of(about))})

    def _others(self) -> list[Report]:
        """The same of the runs of other people that stand beside this one."""
        return [self.of(self.declaration, run) for run in self.run.others]

    def _compared(self) -> list[Record]:
        """Those that stand beside the article's devices."""
        return [record for record in self.records if not self.declaration.gpus_only or cases.kind(record) == "gpu"]

    def _ceilings(self) -> roofline.Ceilings:
        return roofline.ceilings(self._read(roofline.SOURCES))

    def _read(self, names: Iterable[str]) -> list[Record]:
        """What these notebooks of the run have measured so far."""
        journals = self.run.journals
        return [record for name in names if name in journals for record in journals[name].records]
