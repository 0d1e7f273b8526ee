"""What a notebook shows: tables, figures and claims, each saved in the run's folder, too."""

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from IPython.display import display

from pomology.articles import published
from pomology.machine import snapshot
from pomology.paths import write_atomic
from pomology.report import article, claims, details, figures, peaks, table
from pomology.report.article import Declaration
from pomology.report.table import Row, Table
from pomology.results.record import Record
from pomology.results.run import Run, by_hand, latest, note_machine

ABOUT = "about.json"  # what the folder shown/<notebook>/ holds, in the order of its items


class Report:
    """The tables, figures and claims of a notebook, from what its run has measured.

    name, article, declared: as `Declaration` has them. combines: notebooks whose numbers it shows.
    profile: of these. out: the run's folder; empty takes the latest that has results of one of
    them. devices: that an experiment times.
    """

    def __init__(
        self,
        name: str,
        *,
        article: str = "",
        combines: Sequence[str] = (),
        profile: str = "quick",
        out: str | Path = "",
        devices: Sequence[Any] = (),
        **declared: Any,
    ):
        self.name = name
        self.declaration = Declaration(name, article, **declared)
        found = None if out else latest(combines, profile)
        self.out = Path(out) if out else found or by_hand(name, profile)
        self.snapshot = note_machine(self.out, profile)
        self.devices = devices
        self._items: dict[str, dict[str, Any]] = {}

    def show(self, shown: Any, name: str, caption: str = "", folded: bool = False) -> None:
        """Display a `Table` or a matplotlib figure, and save it for the report.

        name: of its files in shown/<notebook>/: of a table HTML and CSV, of a figure SVG, numbered
        in their order. caption: stands under it. folded: whether the page hides it at first.
        """
        display(self.save(shown, name, caption, folded))

    def save(self, shown: Any, name: str, caption: str = "", folded: bool = False) -> Any:
        """Save as `show` does, and return what Jupyter displays."""
        folder = self.out / "shown" / self.name
        if not self._items:
            shutil.rmtree(folder, ignore_errors=True)  # of an earlier execution
        item = {"file": f"{len(self._items) + 1:02}-{name}", "caption": caption, "folded": folded}
        item = self._items.setdefault(name, item)  # else its cell was run again
        if isinstance(shown, Table):
            table.save(shown, folder / item["file"])
        else:
            write_atomic(folder / f"{item['file']}.svg", figures.svg(shown))
            shown = figures.png(shown)
        about = {"name": self.name, "title": self.declaration.title or self.name}
        about |= {"article": self.declaration.article, "items": list(self._items.values())}
        about["opens_report"] = self.declaration.opens_report
        write_atomic(folder / ABOUT, json.dumps(about))
        return shown

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
        texts = {
            "Machine": snapshot.describe(self.snapshot),
            "Software": details.software(self.snapshot),
            "Power source": self.snapshot.get("power_source"),
            "Devices timed": ", ".join(f"{each.backend} ({each.name})" for each in self.devices),
            "Numbers": "/".join(self.out.absolute().parts[-2:]),
        }
        rows = [Row({"What": what, "Here": text}) for what, text in texts.items() if text]
        return Table("This machine", rows)

    def table(self) -> Table:
        """The article's table with this machine in it."""
        best = peaks.best(self.run.records)
        return self.save(article.article_table(self.declaration, self.records, best), "article")

    def details(self) -> Table:
        """Every number of every case."""
        return self.save(details.details_table(self.records), "details", folded=True)

    def printed(self) -> Table:
        """Everything that the article prints of this experiment."""
        shown = details.published_table(published.rows(experiment=self.name))
        return self.save(shown, "printed", folded=True)

    def claims(self) -> Table:
        """What the article says, tested on its own numbers and on this machine's."""
        shown = claims.claims_table(self.declaration.claims, self.run.records)
        return self.save(shown, "claims")

    def figure(self, draw: Callable[..., Any] = figures.article_figure) -> Any:
        """The figure `draw(declaration, records)`: by default all devices on one axis."""
        return self.save(draw(self.declaration, self.records), "figure")
