"""How an experiment is shown, as its notebook declares it: title, settings, columns, figure.

The notebook gives these to `Experiment(...)`, or to `Report(...)` where it has no cases of its own. What can be derived
is not declared.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pomology.articles import elsewhere, published
from pomology.results import metrics

EPOCH = (
    "epoch_s",
    ("compute_epoch_s", "Of it computing"),
    "temperature_c",
    "peak_memory_bytes",
    "power_w",
)

WHOLE_RUN = "*"  # in `combines`: everything that a run has measured


@dataclass(frozen=True)
class Declaration:
    """What a notebook says of its experiment.

    settings: the keys of a case's config that tell rows apart, each alone or with a heading of its own; left out, those
    of the published rows. columns: metrics, likewise; left out, those of an epoch. figure: the metric that it draws;
    left out, the first column that has an axis. series: metrics that are marks of their own in the figure.
    shared_panel: settings that share a panel of the figure. framework_columns: heading -> framework and backend whose
    times stand there, where the article gives each framework a column. combines: notebooks whose results it shows, and
    `*` for all of a run. claims_of: other experiments whose claims no notebook of their own would show.
    published_rates: experiments whose published times the figure shows as operations a second, each with the settings
    of the panel that it stands in. parity_note: how two frameworks are known to compute the same, where that is not
    against one result. gpus_only: whether table and figure are of GPUs alone. opens_report: whether the report
    begins with what this notebook has shown.
    """

    name: str
    article: str = ""
    framework: str | None = "torch"
    title: str = ""
    settings: Sequence = ()
    columns: Sequence = ()
    figure: str = ""
    series: Sequence[str] = ()
    shared_panel: Sequence[str] = ()
    framework_columns: dict[str, str] | None = None
    combines: Sequence[str] = ()
    claims_of: Sequence[str] = ()
    published_rates: dict[str, dict] | None = None
    parity_note: str = ""
    gpus_only: bool = False
    opens_report: bool = False

    @property
    def whole_run(self) -> bool:
        return WHOLE_RUN in self.combines

    @property
    def sources(self) -> list[str]:
        """The notebooks whose results it combines, by name."""
        return [name for name in self.combines if name != WHOLE_RUN]

    @property
    def experiment(self) -> str:
        """The article's experiment, which has the notebook's name."""
        return self.name

    @functools.cached_property
    def beside(self) -> list[dict]:
        """The published rows of its table: the article's, or in `today/` those of whoever has timed the same."""
        if self.article == published.TODAY:
            return elsewhere.beside(self.experiment)
        return published.rows(experiment=self.experiment)

    @functools.cached_property
    def headings(self) -> dict[str, str]:
        """Of the settings: key -> heading."""
        printed = [row for row in self.beside if row["metric"] in self.shown.values()]
        keys = self.settings or dict.fromkeys(key for row in printed for key in row["config"])
        return dict((key, metrics.words(key)) if isinstance(key, str) else key for key in keys)

    def cells(self, config: dict) -> list[str]:
        """The settings of a case or a published row, below their headings."""
        return [str(config.get(key, "")) for key in self.headings]

    @functools.cached_property
    def shown(self) -> dict[str, str]:
        """The columns: heading -> metric."""
        printed = dict.fromkeys(row["metric"] for row in self.beside)
        known = [name for name in printed if name in metrics.METRICS]
        columns = self.columns or (EPOCH if "epoch_s" in known or not known else known)
        pairs = [
            (name, metrics.metric(name).heading) if isinstance(name, str) else name
            for name in columns
        ]
        return {heading: name for name, heading in pairs}

    @functools.cached_property
    def metric(self) -> str:
        """What the figure draws."""
        drawn = [name for name in self.shown.values() if metrics.metric(name).axis]
        times = [name for name in metrics.WHOLE if name in self.shown.values()]
        return next(filter(None, [self.figure, *drawn, *times]), "epoch_s")

    @functools.cached_property
    def time(self) -> str:
        """What ratios of devices and of frameworks compare."""
        return next(
            (name for name in metrics.WHOLE if name in (self.metric, *self.shown.values())),
            "step_s",
        )

    @property
    def drawn(self) -> metrics.Metric:
        """The axis and the format of the figure."""
        known = metrics.metric(self.metric)
        other = [metrics.BY_HEADING.get((self.metric, heading)) for heading in self.shown]
        axis = known.axis or f"{known.heading.lower()} ({known.unit})"
        return replace(known, show=next(filter(None, other), known.show), axis=axis)

    @property
    def caption(self) -> str:
        if self.metric != "epoch_s":
            return f"{metrics.words(self.drawn.axis)}."
        whole = "Filled marks: the whole epoch, this machine's with its 95 % interval."
        return f"Seconds per epoch, less is faster. {whole} Hollow marks: its computing alone."

    @property
    def claims(self) -> list[published.Claim]:
        """The article's claims about it; of the kit's own experiments, every article's."""
        about, article = (
            {self.experiment, *self.claims_of},
            None if self.article == published.KIT else self.article,
        )
        return [
            claim for claim in published.claims(article=article) if about & set(claim.experiments)
        ]
