"""What a notebook shows: tables, figures and claims, each saved in the run's folder, too."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from pomology.articles import published
from pomology.paths import root, write_atomic
from pomology.report import article, claims, details, peaks, ratios, table
from pomology.report.declaration import Declaration
from pomology.report.figures import draw, style
from pomology.report.table import Table
from pomology.results import cases, folders, frame
from pomology.results.record import Record
from pomology.results.run import Run

if TYPE_CHECKING:
    import pandas

ABOUT = "about.json"  # of a folder of shown files


class Item(msgspec.Struct):
    """A table or figure of a notebook: its file without an ending, and how the page shows it."""

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
    """Saves what a notebook shows in <run>/shown/<notebook>/, numbered in the order of showing."""

    def __init__(self, about: Declaration, run: Path):
        self.folder = run / "shown" / about.name
        self.about = About(about.name, about.title or about.name, about.article, about.opens_report)

    def save(self, shown: Any, name: str, caption: str = "", folded: bool = False) -> Any:
        """Save a `Table` as HTML and CSV, or a figure as SVG; return what Jupyter displays."""
        items = self.about.items
        if not items and self.folder.exists():
            shutil.rmtree(self.folder)  # of an earlier execution
        files = {item.file.partition("-")[2]: item.file for item in items}
        if name not in files:  # else its cell was run again
            files[name] = f"{len(items) + 1:02}-{name}"
            items.append(Item(files[name], caption, folded))
        place = self.folder / files[name]
        if isinstance(shown, Table):
            table.save(shown, place)
        else:
            shown = style.save(shown, place.with_suffix(".svg"))
        write_atomic(self.folder / ABOUT, msgspec.json.encode(self.about))
        return shown


class Report:
    """The tables, figures and claims of a notebook, from what its run has measured.

    name: the notebook's name. article: its number, as in the published values. profile: of the
    notebooks that it combines. out: the run's folder; empty takes the latest that has results of
    one of these. declared: how the experiment is shown, see `Declaration`.
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
        about = Declaration(name, article, **declared)
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

        name: of its file; left out, `table` or `figure`. caption: stands under it in the report.
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
        """The finished cases of this notebook, of those that it combines, or of all of the run."""
        about = self.declaration
        if about.whole_run:
            return self.run.records
        journals = self.run.journals
        names = [name for name in about.sources or [self.name] if name in journals]
        return [record for name in names for record in journals[name].records]

    def machine(self) -> Table:
        """The machine, and where the numbers are, as a small table."""
        folder = self.out.absolute()
        place = f"in {folder.relative_to(root()) if root() in folder.parents else folder.name}/"
        missing = [name for name in self.declaration.sources if name not in self.run.journals]
        if missing:
            place += f"; to have more, run {', '.join(missing)} first, or set `out`"
        return details.machine_table(self.snapshot, self.devices, place)

    def table(self) -> Table:
        """The article's table with this machine in it."""
        compared = frame.of_records(self._compared())
        shown = article.article_table(self.declaration, compared, self._peaks())
        return self.save(shown, "article")

    def details(self) -> Table:
        """Every number of every case."""
        shown = details.details_table(self._frame(), self._peaks())
        return self.save(shown, "details", folded=True)

    def ratios(self) -> Table:
        """How many times as fast the GPU is as the CPU, as printed and on this machine."""
        return self.save(ratios.ratio_table(self._frame(), self.declaration), "ratios")

    def printed(self) -> Table:
        """What else the article prints of this experiment: its settings, and what its text says."""
        about = self.declaration
        values = published.rows(experiment=about.name)
        shown = (about.metric, about.time, *ratios.RATIOS)
        rows = {(value["item"], value["row"]) for value in values if value["metric"] in shown}
        others = [value for value in values if (value["item"], value["row"]) not in rows]
        printed = details.published_table("What the article prints", others)
        return self.save(printed, "printed", folded=True)

    def claims(self) -> Table:
        """What the article says, tested on its own numbers and on this machine's."""
        # All claims of an article are judged together: each has the same verdict everywhere.
        judged = published.claims(self.article)
        experiments = {name for claim in judged for name in claim.experiments}
        experiments.add(self.name)
        records = [record for record in self.run.records if record.experiment in experiments]
        shown = claims.claims_table(self.declaration.claims, frame.of_records(records))
        return self.save(shown, "claims")

    def figure(self) -> Any:
        """The article's devices and this machine's on one axis."""
        drawn = draw(self.declaration, self._compared())
        return self.save(drawn, "figure", self.declaration.caption)

    def _frame(self) -> pandas.DataFrame:
        return frame.of_records(self.records)

    def _compared(self) -> list[Record]:
        """Return the cases that stand next to the article's devices."""
        gpus_only = self.declaration.gpus_only
        return [case for case in self.records if not gpus_only or cases.kind(case) == "gpu"]

    def _peaks(self) -> peaks.Peaks:
        return peaks.peaks(self.run.records)
