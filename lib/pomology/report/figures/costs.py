"""Operations a second for a dollar."""

from __future__ import annotations

from typing import Any

from pomology.report import costs
from pomology.report.declaration import Declaration
from pomology.report.figures.points import Line, Mark, points_figure
from pomology.report.figures.style import styled
from pomology.results.record import Record


@styled
def costs_figure(declared: Declaration, records: list[Record]) -> Any:
    """Peak and achieved operations a second for a dollar, of every device with a price."""
    peaks: dict[str, Line] = {}
    achieved = []
    for offer in costs.offers(records):
        here = ("measured", "cpu" if offer.device.endswith(" CPU") else "gpu")
        about = here if offer.maker == "here" else ("published", "gpu" if offer.maker == "Apple" else "rival")
        if offer.price_usd and offer.peak_flops_per_s:
            value = offer.peak_flops_per_s / offer.price_usd
            peaks.setdefault(offer.device, Line(offer.device, *about, declared.drawn.show(value), [Mark(value)]))
        if offer.price_usd and offer.flops_per_s:
            value = offer.flops_per_s / offer.price_usd
            label = f"{offer.device}: {offer.work}, batch {offer.batch_size}"
            achieved.append(Line(label, *about, declared.drawn.show(value), [Mark(value)]))
    panels = {"Peak": list(peaks.values()), "Achieved in the training of GPT-2-large, table 4": achieved}
    return points_figure(panels, declared.drawn.axis, declared.drawn.scale)
