"""What a notebook shows: tables, figures and claims, each displayed and saved in the run's folder as it is shown."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from pomology.articles import published
from pomology.paths import root, write_atomic
from pomology.report import article, claims, details, peaks, ratios, table
from pomology.report.declaration import Declaration
from pomology.report.figures import draw, style
from pomology.report.table import Row, Table
from pomology.results import cases, folders, frame
from pomology.results.pool import pool
from pomology.results.record import Record
from pomology.results.run import Run

if TYPE_CHECKING:
    import pandas

ABOUT = "about.json"  # of a folder of shown files
NO_LAUNCH = "A processor launches nothing: its times are those of a function call, and are in the table of all numbers."


class Item(msgspec.Struct):
    """One table or figure of a notebook: its file without an ending, and how the page presents it."""

    file: str
    caption: str = ""
    folded: bool = False


class About(msgspec.Struct):
    """What the folder shown/<notebook>/ holds, in the order in which it was shown."""

    name: str
    title: str
    article: str
    opens_report: bool = False
    items: list[Item] = []


class Display:
    """Saves what a notebook shows in <run>/shown/<notebook>/, numbered in the order in which it was first shown."""

    def __init__(self, about: Declaration, run: Path):
        self.folder = run / "shown" / about.name
        self.about = About(about.name, about.title or about.name, about.article, about.opens_report)

    def save(self, shown: Any, name: str, caption: str = "", folded: bool = False) -> Any:
        """Save a `Table` as HTML and CSV, or a matplotlib figure as SVG; return what Jupyter displays of it."""
        if not self.about.items and self.folder.exists():
            shutil.rmtree(self.folder)  # of an earlier execution
        place = self.folder / self._item(name, caption, folded).file
        if isinstance(shown, Table):
            table.save(shown, place)
        else:
            shown = style.save(shown, place.with_suffix(".svg"))
        write_atomic(self.folder / ABOUT, msgspec.json.encode(self.about))
        return shown

    def _item(self, name: str, caption: str, folded: bool) -> Item:
        for item in self.about.items:
            if item.file.partition("-")[2] == name:  # a cell that was run again
                return item
        item = Item(f"{len(self.about.items) + 1:02}-{name}", caption, folded)
        self.about.items.append(item)
        return item


class Report:
    """The tables, figures and claims of a notebook, from what its run has measured.

    Args:
        name: the notebook's name.
        article: its number, as in the published values.
        profile: of the notebooks that it combines.
        out: the run's folder; empty takes the latest that has results of one of these.
        declared: how the experiment is shown, see `Declaration`.
    """

    devices: Sequence[Any] = ()

    def __init__(
        self,
        name: str,
        *,
        article: str = "",
        profile: str = "quick",
        out: str = "",
        **declared: Any,
    ):
        about = Declaration(name, article, None, **declared)
        folder = Path(out) if out else None
        if folder is None:
            folder = folders.latest(about.sources, profile) or folders.by_hand(name, profile)
        folders.note_machine(folder, profile)
        self._begin(about, Run(folder))

    @classmethod
    def of(cls, about: Declaration, run: Run) -> Report:
        """Return the report of a notebook that measures its own cases."""
        report = cls.__new__(cls)
        report._begin(about, run)
        return report

    def _begin(self, about: Declaration, run: Run) -> None:
        self.declaration = about
        self.name = about.name
        self.article = about.article
        self.run = run
        self.out = run.path
        self.snapshot = run.machine
        self._display = Display(about, run.path)

    def show(self, shown: Any, name: str = "", caption: str = "", folded: bool = False) -> None:
        """Display a `Table` or a matplotlib figure, and save it for the report.

        Args:
            name: of its file; left out, `table` or `figure`.
            caption: stands under a figure in the report.
            folded: whether the report shows it only when asked.
        """
        from IPython.display import display

        name = name or ("table" if isinstance(shown, Table) else "figure")
        display(self.save(shown, name, caption, folded))

    def save(self, shown: Any, name: str, caption: str = "", folded: bool = False) -> Any:
        """Save as `show` does, and return what Jupyter displays."""
        return self._display.save(shown, name, caption, folded)

    @property
    def records(self) -> list[Record]:
        """The finished cases that this notebook is about: its own, those that it combines, or all of the run."""
        about = self.declaration
        if about.whole_run:
            return self.run.records
        names = [self.name] if about.framework else about.sources
        journals = self.run.journals
        records = [
            record for name in names if name in journals for record in journals[name].records
        ]
        if about.framework:
            return records
        return [record for record in records if record.experiment == about.experiment]

    def machine(self) -> Table:
        """The machine, and where the numbers are, as a small table."""
        shown = details.machine_table(self.snapshot, list(self.devices))
        rows = (*shown.rows, Row(("Numbers", self._place_of_numbers())))
        return replace(shown, rows=rows)

    def _place_of_numbers(self) -> str:
        folder = self.out.absolute()
        place = f"in {folder.relative_to(root()) if root() in folder.parents else folder.name}/"
        about = self.declaration
        if about.framework:
            return place
        measured = sorted(self.run.journals)
        missing = ", ".join(name for name in about.sources if name not in measured)
        if not measured:
            first = missing or "other notebooks"
            return f"none yet: run {first} first, or set `out` to the folder of a run that has them"
        if about.whole_run:
            place = f"of {len(measured)} notebooks, {place}"
        elif missing != ", ".join(about.sources):
            place = f"of {', '.join(name for name in about.sources if name in measured)}, {place}"
        return f"{place}; to have more, run {missing} first" if missing else place

    def table(self, records: Iterable[Record] | None = None) -> Table:
        """The article's table with this machine in it. records: in place of those of this notebook."""
        records = self.records if records is None else list(records)
        compared = self._compared(records)
        measured = frame.of_records(compared)
        best = self._peaks()
        shares = {}
        for case in pool(measured):
            rate = article.achieved(case)
            is_peak = case.first["article"] == published.KIT and "operation" in case.config
            if rate and case.first["profile"] != "smoke" and not is_peak:
                share = best.share(rate, case.kind, case.first["precision"])
                shares |= {case.first["case"]: share} if share else {}
        shown = article.article_table(self.declaration, measured, shares)
        if len(compared) < len(records):
            shown = replace(shown, notes=(*shown.notes, NO_LAUNCH))
        return self._saved(shown, "article")

    def details(self) -> Table:
        """What else was measured of each case."""
        shown = details.details_table(self._frame(), self._peaks())
        return self._saved(shown, "details", folded=True)

    def numbers(self) -> Table:
        """Every number of every case, a row each."""
        return self._saved(details.numbers_table(self._frame()), "numbers", folded=True)

    def checks(self) -> Table:
        """What the kit found out about itself, in plain words."""
        return self._saved(details.checks_table(self._frame()), "checks")

    def ratios(self) -> Table:
        """How many times as fast the GPU is as the CPU, as printed and on this machine."""
        return self._saved(ratios.ratio_table(self._frame(), self.declaration), "ratios")

    def printed(self) -> Table:
        """What else the article prints about this experiment: its settings, and what its text says."""
        return self._saved(details.printed_table(self.declaration), "printed", folded=True)

    def claims(self) -> Table:
        """What the article says, tested on its own numbers and on this machine's."""
        # All claims of an article are judged together, so that each has the same verdict everywhere.
        claims_of_article = published.claims(self.article)
        experiments = {self.declaration.experiment}
        experiments.update(name for claim in claims_of_article for name in claim.experiments)
        records = [record for record in self.run.records if record.experiment in experiments]
        return self._saved(
            claims.claims_table(self.declaration.claims, frame.of_records(records)), "claims"
        )

    def figure(self, records: Iterable[Record] | None = None) -> Any:
        """The article's devices and this machine's on one axis. records: as in `table`."""
        compared = self._compared(self.records if records is None else list(records))
        drawn = draw(self.declaration, compared)
        return self.save(drawn, "figure", self.declaration.caption)

    def _frame(self) -> pandas.DataFrame:
        return frame.of_records(self.records)

    def _saved(self, shown: Table, name: str, folded: bool = False) -> Table:
        noted = details.with_difference(shown, self.run.records)
        return self.save(noted, name, folded=folded)

    def _compared(self, records: list[Record]) -> list[Record]:
        """Those that stand next to the article's devices."""
        if not self.declaration.gpus_only:
            return records
        return [record for record in records if cases.kind(record) == "gpu"]

    def _peaks(self) -> peaks.Peaks:
        return peaks.peaks(self.run.records)
