"""GPT-2's shapes as article 001 pre-trains them; the notebooks write model, optimizer and step."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from pomology.errors import PomologyError
from pomology.models.cost import Workload

# Each with its vocabulary: the words of Penn Treebank, and the byte pairs of GPT-2.
ARCHITECTURES = {"transformer_lm": 10_000, "true_gpt2": 50_257}
# Blocks, width, heads. The last two are no GPT-2, but have its shape.
SIZES = {
    "gpt2-large": (36, 1280, 20),
    "gpt2-medium": (24, 1024, 16),
    "gpt2": (12, 768, 12),
    "gpt2-mini": (4, 256, 4),
    "gpt2-micro": (2, 128, 2),
}


@dataclass(frozen=True)
class Shape:
    """What a model is built from; `context` is the longest sequence."""

    architecture: str
    blocks: int
    width: int
    heads: int
    vocabulary: int
    context: int

    @property
    def true(self) -> bool:
        """Whether it is GPT-2: GELU, learned positions, biases in the attention, a tied head."""
        return self.architecture == "true_gpt2"

    @property
    def positions(self) -> int:
        """Positions that the true GPT-2 learns, however short the sequences are."""
        return max(1024, self.context)

    @property
    def parameters(self) -> int:
        """The number of weights, by formula."""
        block = 12 * self.width**2 + (13 if self.true else 9) * self.width
        head = self.vocabulary * (self.width + 1)
        ends = self.positions * self.width if self.true else head
        return self.blocks * block + (self.vocabulary + 2) * self.width + ends

    def workload(self, batch_size: int) -> Workload:
        """A step with AdamW by formula, where attention keeps its matrices and nothing counts."""
        tokens = batch_size * self.context
        products = 12 * self.width**2 * self.blocks + self.width * self.vocabulary
        attention = 12 * self.blocks * self.width * self.context * tokens
        # A block keeps of each token what enters normalisations, the five matrices and attention,
        # and a row for each head.
        kept = (16 if self.true else 12) * self.width + self.heads * self.context
        saved = 4 * tokens * (self.blocks * kept + 2 * self.width + self.vocabulary)
        flops = 6 * tokens * products + attention  # backward twice the forward
        return Workload(self.parameters, flops, 16 * self.parameters, saved)


def shape(
    model: str, context_size: int, architecture: str, vocabulary: int = 0, words: int = 0
) -> Shape:
    """Return the shape of a model by its name in `SIZES`.

    vocabulary: 0 is the architecture's own. words: those of the text. Raises PomologyError for
    other names, and for a vocabulary smaller than the text's.
    """
    if architecture not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise PomologyError(f"architecture is {architecture!r}; it must be one of {known}")
    if model not in SIZES:
        raise PomologyError(f"model {model!r} is not known; one of {', '.join(SIZES)} is")
    vocabulary = vocabulary or ARCHITECTURES[architecture]
    if vocabulary < words:
        raise PomologyError(
            f"vocabulary is {vocabulary}; it must be at least {words:,}, the words of the text"
        )
    return Shape(architecture, *SIZES[model], vocabulary, context_size)


def row(text: str) -> dict[str, Any]:
    """Return the settings of a case from `gpt2-large 8x1024`: model, batch size, context size."""
    found = re.fullmatch(r"(\S+) ([1-9]\d*)x([1-9]\d*)", text)
    if not found or found[1] not in SIZES:
        form = "`MODEL BATCHxCONTEXT`, as `gpt2 2x128`"
        raise PomologyError(f"{text!r} must read {form}, with one of {', '.join(SIZES)}")
    return {"model": found[1], "batch_size": int(found[2]), "context_size": int(found[3])}
