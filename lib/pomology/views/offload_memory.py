"""The counted memory of a training step with CPU offload, with recompute, and with both."""

from collections.abc import Mapping
from typing import Any

from pomology.format import quantity, sentence_case
from pomology.models.cost import Cost
from pomology.report import answer
from pomology.report.figures import INK, Bar, parts_figure

CARDS = (8e9, 11e9)  # bytes of the cards in table 1 of Feng et al. 2025
# Option -> the setting `offload`, and whether the backward pass recomputes.
OPTIONS = {
    "without offload": ("none", False),
    "with offload": ("fsdp", False),
    "with recompute": ("none", True),
    "with offload and recompute": ("fsdp", True),
}


def size_of(card: float) -> str:
    """Return the size of a card, as its name has it: `8 GB`."""
    return f"{card / 1e9:g} GB"


def fitting(step: str, needed: Mapping[str, Cost]) -> str:
    """Return what a step needs on the card with each option, and with which ones the cards hold it.

    step: in words. needed: option -> the counted work, of `OPTIONS`.
    """
    sizes = [f"{quantity(cost.bytes, 'B')} {option}" for option, cost in needed.items()]
    cards: dict[str, list[str]] = {}
    for card in CARDS:
        fits = [option for option, cost in needed.items() if cost.bytes < card]
        words = f"only {answer.listed(fits)}" if fits else "with none of these"
        if len(fits) == len(needed):
            words = "with each of these"
        cards.setdefault(words, []).append(size_of(card))
    holding = [f"a card of {' or '.join(names)} holds it {words}" for words, names in cards.items()]
    return f"By count {step} takes on the card {answer.listed(sizes)}: {'; '.join(holding)}."


def figure(step: str, needed: Mapping[str, Cost]) -> Any:
    """Return a figure of the memory on the card and on the host, with lines at the cards' sizes.

    step: in words. needed: option -> the counted work, of `OPTIONS`.
    """
    bars = []
    for option, cost in needed.items():
        parts = {"on the card": cost.bytes, "on the host": cost.host_bytes}
        words = f"{cost.bytes / 1e9:.3g} GB"
        if cost.host_bytes:
            words = f"{cost.bytes / 1e9:.3g} + {cost.host_bytes / 1e9:.3g} GB"
        held = {name: size for name, size in parts.items() if size}
        bars.append(Bar(option, ("counted", ""), held, words))
    sizes = " and ".join(map(size_of, CARDS))
    drawn = parts_figure(
        {sentence_case(step): bars}, f"GB of a step, counted; lines: cards of {sizes}", 1e9
    )
    for card in CARDS:
        drawn.axes[0].axvline(card / 1e9, color=INK, linewidth=1, linestyle="dashed")
    return drawn
