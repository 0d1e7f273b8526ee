"""Display the tables, figures and claims of a notebook, and save them in the run's folder."""

import dataclasses
import inspect
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from IPython.display import Image, Markdown, display

from pomology.articles import published
from pomology.articles.claims import NOT_TESTABLE
from pomology.machine import snapshot
from pomology.paths import write_atomic
from pomology.report import answer, article, claims, figures, shares, step_times, table
from pomology.report.answer import Answer
from pomology.report.article import Declaration
from pomology.report.table import Row, Table
from pomology.results.frame import software
from pomology.results.record import Record
from pomology.results.repeats import run_to_run_by_kind
from pomology.results.run import Run, by_hand, latest, note_machine

NOTHING = "*Nothing was measured that this figure could show.*"
NO_ANSWER = Answer("")
CONTENTS = "about.json"  # the ordered contents of the folder shown/<notebook>/


def show(*items: Any) -> None:
    """Display the source of modules, classes and functions that a notebook imports."""
    for item in items:
        source = inspect.getsource(item).rstrip()
        display(Markdown(f"````python\n{source}\n````"))  # highlighted by the theme's colors


class Report:
    """The tables, figures and claims of a notebook that shows results and measures nothing.

    An `Experiment` has one for its own results.
    """

    def __init__(
        self,
        name: str,
        *,
        article: str = "",
        title: str = "",
        columns: Sequence[str | tuple[str, str]] = article.EPOCH,
        figure: str = "",
        claims_of: Sequence[str] = (),
        opens_report: bool = False,
        combines: Sequence[str] = (),
        profile: str = "quick",
        out: str | Path = "",
        declaration: Declaration | None = None,
        devices: Sequence[Any] = (),
        receive: Callable[[Any], Any] | None = None,
    ):
        """Find the run whose results are shown.

        name, article, title, columns, figure, claims_of, opens_report: see `Declaration`. combines:
        notebooks whose results it shows. profile: of these. out: the run's folder; "" takes the
        latest of `combines`. declaration: an experiment's, in place of the fields above. devices:
        those that the experiment times. receive: gets what a notebook would display.
        """
        self.name = name
        self.declaration = declaration or Declaration(
            name=name,
            article=article,
            title=title,
            columns=columns,
            figure=figure,
            claims_of=claims_of,
            opens_report=opens_report,
        )
        self.out = Path(out or latest(combines, profile) or by_hand(name, profile))
        self.snapshot = note_machine(self.out, profile)
        self.devices = devices
        self._receive = receive
        self._items: dict[str, dict[str, Any]] = {}
        self._answer = NO_ANSWER

    def show(
        self, table_or_figure: Any, name: str, caption: str = "", folded: bool = False
    ) -> None:
        """Display a `Table` or a matplotlib figure, and save it for the report.

        name: of its numbered files in shown/<notebook>/, HTML and CSV for a table, SVG for a
        figure. caption: text under it. folded: the report hides it at first; the notebook a table.
        """
        displayed = self.save(table_or_figure, name, caption, folded)
        # On the notebook's page a folded figure has its caption with it.
        within = folded and isinstance(displayed, Image)
        if within:
            displayed.metadata |= {"caption": caption}
        self._displayed(displayed)
        if caption and caption != self._answer.text:
            self._displayed(Markdown(caption, metadata={"folded": True} if within else None))

    def save(self, table_or_figure: Any, name: str, caption: str = "", folded: bool = False) -> Any:
        """Save a table or figure as `show` does, and return an object for Jupyter to display.

        None, of a drawing function without values, is a sentence, and nothing for the report. So
        is a text, which says why there is no figure.
        """
        folder = self._folder()
        if table_or_figure is None or isinstance(table_or_figure, str):
            return Markdown(table_or_figure or NOTHING)
        folded |= isinstance(table_or_figure, Table) and table_or_figure.is_long
        item = {"file": f"{len(self._items) + 1:02}-{name}", "caption": caption, "folded": folded}
        item = self._items.setdefault(name, item)  # keeps the number if its cell runs again
        if isinstance(table_or_figure, Table):
            item |= {"heading": table_or_figure.title, "notes": list(table_or_figure.notes)}
            item |= shares.kept(table_or_figure)
            table.save(table_or_figure, folder / item["file"])
            displayed = dataclasses.replace(table_or_figure, folded=folded)
        else:
            write_atomic(folder / f"{item['file']}.svg", figures.svg(table_or_figure))
            displayed = figures.png(table_or_figure)
            # The notebook's page has the drawing in place of this picture.
            displayed.metadata = {"drawing": item["file"], "folded": folded}
        self._note()
        return displayed

    def _displayed(self, shown: Any) -> None:
        """Display something in the notebook, or hand it to whoever makes its page."""
        (self._receive or display)(shown)

    def _folder(self) -> Path:
        """Return the folder of what is shown, without the files of an earlier execution."""
        folder = self.out / "shown" / self.name
        if not self._items and self._answer == NO_ANSWER:
            shutil.rmtree(folder, ignore_errors=True)
        return folder

    def _note(self) -> None:
        """Write the contents of the folder."""
        declaration = self.declaration
        contents = {
            "name": declaration.name,
            "title": declaration.title or declaration.name,
            "article": declaration.article,
            "answer": self._answer.text,
            "evidence": list(self._answer.evidence),
            "items": list(self._items.values()),
            "opens_report": declaration.opens_report,
        }
        write_atomic(self._folder() / CONTENTS, json.dumps(contents))

    @property
    def run(self) -> Run:
        """The run with its current results."""
        return Run(self.out)

    @property
    def records(self) -> list[Record]:
        """The finished cases of this notebook."""
        return [record for record in self.run.records if record.experiment == self.name]

    def machine(self) -> Table:
        """Return a table of the machine, its software, the timed devices and the run's folder."""
        texts = {
            "Machine": snapshot.describe(self.snapshot),
            "Software": software(self.snapshot),
            "Power source": self.snapshot.get("power_source"),
            "Devices timed": ", ".join(
                f"{device.backend} ({device.name})" for device in self.devices
            ),
            # A page that others get is made in another folder.
            "Results in": "" if self._receive else "/".join(self.out.absolute().parts[-2:]),
        }
        rows = [Row({"Property": name, "Value": text}) for name, text in texts.items() if text]
        return Table("This machine", rows)

    def answer(
        self,
        text: str | Answer = "",
        opening: str | Answer = "",
        values: bool = True,
        also: str = "",
    ) -> None:
        """Display the answer to the notebook's question, and save it for the report.

        text: by default that of `answer.of_run`. The evidence of an `Answer` is a list below it.
        opening: answers the question in its place, which is then part of the list; its own evidence
        comes first there. values: whether that names the value of a case. also: sentences that
        belong to the answer, after it. A run moves the outputs of the cells with the tag `answer`
        to the top of the executed notebook.
        """
        self._folder()
        said = text if isinstance(text, Answer) else Answer(text)
        if not text:
            said = answer.of_run(self.declaration, self.run.records, values)
        first = opening if isinstance(opening, Answer) else Answer(opening.strip())
        if first.text:
            evidence = (*first.evidence, said.text, *said.evidence)
            said = Answer(first.text, list(filter(None, evidence)))
        said = Answer(f"{said.text} {also}".strip(), said.evidence)
        self._answer = said
        self._note()
        listed = "\n".join(f"- {sentence}" for sentence in said.evidence)
        self._displayed(Markdown(f"**On this machine.** {said.text}\n\n{listed}".rstrip()))

    def table(self) -> Table:
        """Save and return the table of published values and this machine's."""
        records = self.run.records
        shown = article.article_table(
            self.declaration,
            self.records,
            self.snapshot.get("gpus") or (),
            run_to_run_by_kind(records),
        )
        return self.save(shown, "article")

    def details(self) -> Table:
        """Show the figure of step times over time, if any; save and return all measured values."""
        records = self.records
        drawn = step_times.figure(records)
        if drawn:
            figure, caption = drawn
            self.show(figure, "step-times", caption, folded=True)
        return self.save(article.details_table(records), "details", folded=True)

    def printed(self) -> Table:
        """Save and return the table of all published values of this experiment."""
        rows = published.rows(experiment=self.name)
        return self.save(table.published_table(rows), "printed", folded=True)

    def claims(self) -> Table:
        """Save and return the table of claims with their verdicts.

        It is folded where this machine tests none of them.
        """
        table_of_claims = claims.claims_table(self.declaration.claims, self.run.records)
        tested = {row["here"] for row in table_of_claims.data} - {NOT_TESTABLE}
        return self.save(table_of_claims, "claims", folded=not tested)

    def figure(self, draw: Callable[..., Any] = figures.article_figure) -> Any:
        """Save and return the figure `draw(declaration, records)`, by default of all devices."""
        return self.save(draw(self.declaration, self.records), "figure")
