"""What a notebook shows: tables, figures and claims, each saved in the run's folder, too."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from pomology.articles import published
from pomology.paths import write_atomic
from pomology.report import article, claims, details, peaks, table
from pomology.report.declaration import Declaration
from pomology.report.figures import draw, style
from pomology.report.table import Table
from pomology.results import folders, frame
from pomology.results.record import Record
from pomology.results.run import Run

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
    """Saves what a notebook shows in <run>/shown/<notebook>/, numbered in their order."""

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

    name: the notebook's name. article: its number, as in the published values. combines: notebooks
    whose numbers it shows. profile: of these. out: the run's folder; empty takes the latest that
    has results of one of them. run: the run that an experiment measures. devices: that it times.
    declared: how the experiment is shown, see `Declaration`.
    """

    def __init__(
        self,
        name: str,
        *,
        article: str = "",
        combines: Sequence[str] = (),
        profile: str = "quick",
        out: str = "",
        run: Run | None = None,
        devices: Sequence[Any] = (),
        **declared: Any,
    ):
        self.name = name
        self.declaration = Declaration(name, article, **declared)
        if run is None:
            latest = None if out else folders.latest(combines, profile)
            folder = Path(out) if out else latest or folders.by_hand(name, profile)
            folders.note_machine(folder, profile)
            run = Run(folder)
        self.out = run.path
        self.snapshot = run.machine
        self.devices = devices
        # Saves as `show` does, and returns what Jupyter displays.
        self.save = Display(self.declaration, run.path).save

    def show(self, shown: Any, name: str, caption: str = "", folded: bool = False) -> None:
        """Display a `Table` or a matplotlib figure, and save it for the report.

        name: of its file. caption: stands under it in the report. folded: whether the report shows
        it only when asked.
        """
        from IPython.display import display

        display(self.save(shown, name, caption, folded))

    @property
    def run(self) -> Run:
        """The run as it is now."""
        return Run(self.out)

    @property
    def records(self) -> list[Record]:
        """The finished cases of this notebook."""
        journals = self.run.journals
        return journals[self.name].records if self.name in journals else []

    def machine(self) -> Table:
        """The machine, and where the numbers are, as a small table."""
        place = "/".join(self.out.absolute().parts[-2:])
        return details.machine_table(self.snapshot, self.devices, place)

    def table(self) -> Table:
        """The article's table with this machine in it."""
        best = peaks.peaks(self.run.records)
        records = frame.of_records(self.records)
        return self.save(article.article_table(self.declaration, records, best), "article")

    def details(self) -> Table:
        """Every number of every case."""
        return self.save(
            details.details_table(frame.of_records(self.records)), "details", folded=True
        )

    def printed(self) -> Table:
        """Everything that the article prints of this experiment."""
        rows = published.rows(experiment=self.name)
        printed = details.published_table("What the article prints", rows)
        return self.save(printed, "printed", folded=True)

    def claims(self) -> Table:
        """What the article says, tested on its own numbers and on this machine's."""
        records = frame.of_records(self.run.records)
        return self.save(claims.claims_table(self.declaration.claims, records), "claims")

    def figure(self) -> Any:
        """The article's devices and this machine's on one axis."""
        return self.save(draw(self.declaration, self.records), "figure")
