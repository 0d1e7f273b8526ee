"""How an experiment is shown, as its notebook declares it: title, settings, columns, figure.

The notebook gives these to `Experiment(...)`, or to `Report(...)` where it has no cases of its own.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pomology.articles import published
from pomology.report import peaks
from pomology.results import metrics
from pomology.results.cases import with_software

EPOCH = ("epoch_s", "compute_epoch_s", "temperature_c", "peak_memory_bytes", "power_w")


@dataclass(frozen=True)
class Declaration:
    """What a notebook says of its experiment, which has the notebook's name.

    settings: the keys of a case's config that tell rows apart, each alone or with its heading; left
    out, those of the published rows. columns: metrics, likewise; left out, those of an epoch.
    figure: the metric that it draws; left out, the first column with an axis. series: metrics that
    are marks of their own in it. shared_panel: settings that share a panel of it. claims_of: other
    experiments whose claims no notebook of their own would show. beside: the function that returns
    the rows of others, as `published_rows`, in place of the article's. opens_report: whether the report begins with what
    this notebook shows.
    """

    name: str
    article: str = ""
    title: str = ""
    settings: Sequence = ()
    columns: Sequence = EPOCH
    figure: str = ""
    series: Sequence[str] = ()
    shared_panel: Sequence[str] = ()
    claims_of: Sequence[str] = ()
    beside: Callable[[str], list[dict]] | None = None
    opens_report: bool = False

    @functools.cached_property
    def published_rows(self) -> list[dict]:
        """The published rows of its table, in the order of the article, with these keys more.

        label: the device, and what it was timed with. line: what is equal in the values of one row
        of the article. flops_per_s: the operations on paper over the printed time, None where
        either is missing. remark: why a value is no number.
        """
        if self.beside:
            return self.beside(self.name)
        rows = []
        for row in published.rows(experiment=self.name):
            label = with_software(row["device"], row["framework"], row["version"], row["year"])
            timed = row["flops"] and row["si"] and row["si_unit"] == "s"
            added = {
                "label": label if row["device"] else "the article",
                "line": (row["item"], row["row"], row["framework"], row["backend"]),
                "flops_per_s": row["flops"] / row["si"] if timed else None,
                "remark": row["note"] if row["printed"] and row["si"] is None else "",
            }
            rows.append(row | added)
        return rows

    @functools.cached_property
    def headings(self) -> dict[str, str]:
        """Of the settings: key -> heading."""
        keys = self.settings or dict.fromkeys(
            key for row in self.published_rows for key in row["config"]
        )
        return dict((key, metrics.words(key)) if isinstance(key, str) else key for key in keys)

    def texts(self, config: dict) -> dict[str, str]:
        """Return the settings of a case or a published row, by heading."""
        return {heading: str(config.get(key, "")) for key, heading in self.headings.items()}

    def cells(self, device: str, config: dict, remarks: str) -> dict[str, str]:
        """Return a row of its table by heading, without the texts of its columns."""
        columns = dict.fromkeys(self.shown, "")
        return {"Device": device} | self.texts(config) | columns | {"Remarks": remarks}

    @functools.cached_property
    def shown(self) -> dict[str, str]:
        """The columns: heading -> metric; behind a rate its share of the peak."""
        shown = {}
        for column in self.columns:
            name, heading = (column, "") if isinstance(column, str) else column
            shown[heading or metrics.metric(name).heading] = name
            if name == "flops_per_s":
                shown[peaks.BEST] = peaks.SHARE
        return shown | {metrics.metric("times_cpu").heading: "times_cpu"}

    @functools.cached_property
    def metric(self) -> str:
        """What the figure draws."""
        drawn = (name for name in self.shown.values() if metrics.metric(name).axis)
        return self.figure or next(drawn, "epoch_s")

    @functools.cached_property
    def time(self) -> str:
        """What ratios of devices and of frameworks compare."""
        names = (self.metric, *self.shown.values())
        return next((name for name in metrics.WHOLE if name in names), "step_s")

    @property
    def claims(self) -> list[published.Claim]:
        """The article's claims about it; of the kit's own experiments, every article's."""
        article = None if self.article == published.KIT else self.article
        experiments = {self.name, *self.claims_of}
        claims = published.claims(article=article)
        return [claim for claim in claims if experiments & set(claim.experiments)]
