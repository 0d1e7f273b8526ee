"""GPT-2's shapes as article 001 pre-trains them; the notebooks write model, optimizer and step."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from pomology.errors import PomologyError
from pomology.measure import epochs
from pomology.models.cost import Workload

# And the vocabulary of each: the words of Penn Treebank, and the byte pairs of GPT-2.
ARCHITECTURES = {"transformer_lm": 10_000, "true_gpt2": 50_257}
# Blocks, width, heads. The last two are no GPT-2, but have its shape.
SIZES = {"gpt2-large": (36, 1280, 20), "gpt2-medium": (24, 1024, 16), "gpt2": (12, 768, 12)}
SIZES |= {"gpt2-mini": (4, 256, 4), "gpt2-micro": (2, 128, 2)}
ARTICLE = ("gpt2-large", (8, 4, 2), 1024)  # table 4: model, batch sizes; and the context that its times imply


@dataclass(frozen=True)
class Shape:
    """What a model is built from. heads divide the width, which is even; context is the longest sequence."""

    architecture: str
    blocks: int
    width: int
    heads: int
    vocabulary: int
    context: int

    @property
    def true(self) -> bool:
        """Whether it is the true GPT-2: GELU, learned positions, biases in the attention, a tied head."""
        return self.architecture == "true_gpt2"

    @property
    def positions(self) -> int:
        """Positions that the true GPT-2 learns, however short the sequences are."""
        return max(1024, self.context)

    @property
    def parameters(self) -> int:
        """The number of weights, by formula."""
        square, vector = self.width**2, self.width
        block = 12 * square + 9 * vector + (4 * vector if self.true else 0)
        ends = self.positions * vector if self.true else self.vocabulary * (vector + 1)
        return self.blocks * block + self.vocabulary * vector + 2 * vector + ends

    def workload(self, batch_size: int) -> Workload:
        """A step with AdamW by formula, for a framework that keeps attention's matrices and cannot count on `meta`."""
        tokens, vector = batch_size * self.context, self.width
        products = 12 * vector**2 * self.blocks + vector * self.vocabulary
        flops = 6 * tokens * products + 12 * self.blocks * vector * self.context * tokens  # backward twice the forward
        # A block keeps of a token what enters normalisations, the five matrices and attention, and a row for each head.
        kept = (16 if self.true else 12) * vector + self.heads * self.context
        saved = 4 * tokens * (self.blocks * kept + 2 * vector + self.vocabulary)
        return Workload(self.parameters, flops, 16 * self.parameters, saved)


def shape(model: str, context_size: int, architecture: str, vocabulary: int = 0, words: int = 0) -> Shape:
    """The shape of a model by its name in `SIZES`. vocabulary: 0 is the architecture's own. words: those of the text.

    Raises PomologyError for other names, and for a vocabulary smaller than the text's.
    """
    if architecture not in ARCHITECTURES:
        raise PomologyError(f"architecture is {architecture!r}; it must be one of {', '.join(ARCHITECTURES)}")
    if model not in SIZES:
        raise PomologyError(f"model {model!r} is not known; one of {', '.join(SIZES)} is")
    vocabulary = vocabulary or ARCHITECTURES[architecture]
    if vocabulary < words:
        raise PomologyError(f"vocabulary is {vocabulary}; it must be at least {words:,}, the words of the text")
    return Shape(architecture, *SIZES[model], vocabulary, context_size)


def row(text: str) -> dict[str, Any]:
    """The settings of a case from `gpt2-large 8x1024`: model, sequences a step, tokens in each. Else PomologyError."""
    found = re.fullmatch(r"(\S+) ([1-9]\d*)x([1-9]\d*)", text)
    if not found or found[1] not in SIZES:
        models = ", ".join(SIZES)
        raise PomologyError(f"{text!r} must read `MODEL BATCHxCONTEXT`, as `gpt2 2x128`, with one of {models}")
    return {"model": found[1], "batch_size": int(found[2]), "context_size": int(found[3])}


def scaled(config: dict[str, Any]) -> bool:
    """Whether a case is another than those of the article's table."""
    model, batch_sizes, context_size = ARTICLE
    return (config["model"], config["context_size"]) != (model, context_size) or config["batch_size"] not in batch_sizes


def note_pass(case: Any) -> None:
    """Record `pass_s`: a whole step, forward, backward and update, as table 4 has it: the mean of the steady ones."""
    if (step := epochs.epoch_metrics(case.clock).get("step_s")) is not None:
        case.metric("pass_s", step)
