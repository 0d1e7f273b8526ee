"""Shapes of the GPT-2 models that Feng et al. 2025 pre-train, with FLOPs and memory by formula."""

import re
from dataclasses import dataclass
from typing import Any

from pomology.errors import PomologyError
from pomology.models.cost import Cost

# Architecture -> vocabulary size: words of Penn Treebank, or byte pairs of GPT-2.
ARCHITECTURES = {"transformer_lm": 10_000, "true_gpt2": 50_257}
# Blocks, width, heads. The last two are miniature test configurations.
SIZES = {
    "gpt2-large": (36, 1280, 20),
    "gpt2-medium": (24, 1024, 16),
    "gpt2": (12, 768, 12),
    "gpt2-mini": (4, 256, 4),
    "gpt2-micro": (2, 128, 2),
}


@dataclass(frozen=True)
class Shape:
    """Sizes of a model; `context` is the longest sequence."""

    architecture: str
    blocks: int
    width: int
    heads: int
    vocabulary: int
    context: int

    @property
    def true(self) -> bool:
        """True for GPT-2 proper: GELU, learned positions, biases in attention, a tied head."""
        return self.architecture == "true_gpt2"

    @property
    def positions(self) -> int:
        """Number of positions that the true GPT-2 learns, at least 1,024."""
        return max(1024, self.context)

    @property
    def parameters(self) -> int:
        """Number of parameters, by formula."""
        block = 12 * self.width**2 + (13 if self.true else 9) * self.width
        head = self.vocabulary * (self.width + 1)
        ends = self.positions * self.width if self.true else head
        return self.blocks * block + (self.vocabulary + 2) * self.width + ends

    def workload(self, batch_size: int) -> Cost:
        """Return the cost of a step with AdamW by formula, with unfused attention."""
        tokens = batch_size * self.context
        weights = 12 * self.width**2 * self.blocks + self.width * self.vocabulary  # of matmuls
        attention = 12 * self.blocks * self.width * self.context * tokens
        # Per token a block keeps the inputs of normalizations, of five matmuls and of attention,
        # and one row per head.
        kept = (16 if self.true else 12) * self.width + self.heads * self.context
        saved = 4 * tokens * (self.blocks * kept + 2 * self.width + self.vocabulary)
        flops = 6 * tokens * weights + attention  # the backward pass costs twice the forward pass
        return Cost(self.parameters, flops, 16 * self.parameters, saved)


def shape(
    model: str, context_size: int, architecture: str, vocabulary: int = 0, words: int = 0
) -> Shape:
    """Return the shape of a model by its name in `SIZES`.

    vocabulary: size, or 0 for the architecture's own. words: distinct words of the text. Raises
    PomologyError for unknown names, and for a vocabulary smaller than the text's.
    """
    if architecture not in ARCHITECTURES:
        names = ", ".join(ARCHITECTURES)
        raise PomologyError(f"architecture is {architecture!r}; it must be one of {names}")
    if model not in SIZES:
        raise PomologyError(f"unknown model {model!r}; it must be one of {', '.join(SIZES)}")
    vocabulary = vocabulary or ARCHITECTURES[architecture]
    if vocabulary < words:
        raise PomologyError(
            f"vocabulary is {vocabulary}; it must be at least {words:,}, as many as the text has"
        )
    return Shape(architecture, *SIZES[model], vocabulary, context_size)


def row(text: str) -> dict[str, Any]:
    """Parse `gpt2-large 8x1024` into the settings model, batch size and context size."""
    match = re.fullmatch(r"(\S+) ([1-9]\d*)x([1-9]\d*)", text)
    if not match or match[1] not in SIZES:
        form = "`MODEL BATCHxCONTEXT`, such as `gpt2 2x128`"
        raise PomologyError(f"{text!r} must read {form}, with one of {', '.join(SIZES)}")
    return {"model": match[1], "batch_size": int(match[2]), "context_size": int(match[3])}
