"""Operations a second for a dollar."""

from __future__ import annotations

from typing import Any

from pomology.report import costs
from pomology.report.declaration import Declaration
from pomology.report.figures.points import Line, points_figure, value_line
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
            peaks.setdefault(offer.device, value_line(offer.device, about, value, declared.drawn.show))
        if offer.price_usd and offer.flops_per_s:
            label = f"{offer.device}: {offer.work}, batch {offer.batch_size}"
            achieved.append(value_line(label, about, offer.flops_per_s / offer.price_usd, declared.drawn.show))
    panels = {"Peak": list(peaks.values()), "Achieved in the training of GPT-2-large, table 4": achieved}
    return points_figure(panels, declared.drawn.axis, declared.drawn.scale)
