"""GPT-2 and Whisper as Hugging Face's transformers builds them, from a checkpoint on this machine or from their sizes.

A checkpoint is taken where Hugging Face's cache holds it whole, and never downloaded. Random weights do the same work:
as many operations on as many numbers. transformers, and with it PyTorch, is imported when a model is built.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pomology.data.hub import cached_file, reason, shown
from pomology.data.text import END_OF_TEXT
from pomology.errors import PomologyError
from pomology.models import cost


def _whisper(width: int, layers: int, heads: int) -> dict[str, int]:
    side = {"layers": layers, "attention_heads": heads, "ffn_dim": 4 * width}
    both = {f"{part}_{key}": value for part in ("encoder", "decoder") for key, value in side.items()}
    return {"d_model": width, **both, "vocab_size": 51865}


# The numbers that a configuration of transformers does not have by itself. Theirs are the rest: a vocabulary of 50,257
# and 1,024 positions, dropout 0.1, in GPT-2; 80 mel bands, 1,500 and 448 positions, no dropout, in Whisper.
SIZES: dict[str, dict[str, int]] = {
    "gpt2-smoke": {"n_embd": 64, "n_layer": 2, "n_head": 2},
    "gpt2": {"n_embd": 768, "n_layer": 12, "n_head": 12},
    "gpt2-medium": {"n_embd": 1024, "n_layer": 24, "n_head": 16},
    "gpt2-large": {"n_embd": 1280, "n_layer": 36, "n_head": 20},
    "gpt2-xl": {"n_embd": 1600, "n_layer": 48, "n_head": 25},
    "whisper-smoke": _whisper(64, layers=2, heads=2),
    "whisper-tiny": _whisper(384, layers=4, heads=6),
    "whisper-small": _whisper(768, layers=12, heads=12),
    "whisper-medium": _whisper(1024, layers=24, heads=16),
    "whisper-large": _whisper(1280, layers=32, heads=20),
}
# As the model hub names them. The large Whisper is its second version: the third one hears 128 mel bands.
CHECKPOINTS = {name: f"openai-community/{name}" for name in ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")}
CHECKPOINTS |= {name: f"openai/{name}" for name in ("whisper-tiny", "whisper-small", "whisper-medium")}
CHECKPOINTS |= {"whisper-large": "openai/whisper-large-v2"}
TASKS = {"classification": "GPT2ForSequenceClassification", "language-model": "GPT2LMHeadModel"}
TASKS |= {"speech": "WhisperForConditionalGeneration"}
WEIGHTS = ("auto", "random")
RANDOM = "random weights: the same work as the checkpoint"


def build(name: str, task: str, weights: str = "auto") -> tuple[Any, str]:
    """A model of transformers on the CPU, in fp32 and training mode, and a short note about where its weights are from.

    name: of `SIZES`; `gpt2-xl/2` is the same with two layers. task: `classification` (GPT-2 with two labels, padded by
    its end of text), `language-model` (GPT-2 with its embedding as output matrix) or `speech` (Whisper; the sinusoidal
    positions of its encoder are not trained). weights: `auto` takes the checkpoint that Hugging Face's cache holds,
    else random ones drawn by PyTorch's generator, as `random` always does. Under `torch.device("meta")` weights have
    shapes only, and nothing is looked up. The cache of keys and values stays on, as transformers trains by default:
    without, each step would ask the device whether a text holds several, and wait. Raises PomologyError for other
    names, and a checkpoint that is damaged or of another size.
    """
    whole, _, layers = name.partition("/")
    for word, asked, known in (("model", whole, SIZES), ("task", task, TASKS), ("weights", weights, WEIGHTS)):
        if asked not in known:
            raise PomologyError(f"{word} {asked!r}: must be one of {', '.join(known)}")
    if (task == "speech") != name.startswith("whisper"):
        raise PomologyError(f"{name} cannot be built for the task {task!r}")
    import torch
    import transformers

    transformers.logging.set_verbosity_error()  # a notebook shows how far a case is by itself
    transformers.logging.disable_progress_bar()
    kind = getattr(transformers, TASKS[task])
    size = {key: int(layers) if layers and "layer" in key else number for key, number in SIZES[whole].items()}
    settings = {"num_labels": 2, "pad_token_id": END_OF_TEXT} if task == "classification" else {}
    look = weights == "auto" and torch.get_default_device().type != "meta" and name in CHECKPOINTS
    if not look or not (folder := cached(source := CHECKPOINTS[name])):
        return kind(kind.config_class(**size, **settings)).train(), RANDOM
    place = shown(folder)
    try:
        model = kind.from_pretrained(str(folder), local_files_only=True, dtype=torch.float32, **settings)
    except Exception as error:  # each library on the way has errors of its own
        advice = f'remove {place}, or ask for weights="random"'
        raise PomologyError(f"{source}: cannot be read ({reason(error)}); {advice}") from error
    for key, value in size.items():
        if getattr(model.config, key) != value:
            raise PomologyError(f"{source}: {key} is {getattr(model.config, key)} in {place}; {value} is right")
    return model.train(), f"checkpoint {source}"


def cached(source: str) -> Path | None:
    """The folder of Hugging Face's cache with a checkpoint: its configuration and all its weights, as safetensors."""
    configuration, files = cached_file(source, "config.json"), ["model.safetensors"]
    index = cached_file(source, "model.safetensors.index.json")
    if index and not cached_file(source, files[0]):
        files = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    return configuration.parent if configuration and all(cached_file(source, file) for file in files) else None


def workload(
    name: str, build: Callable[[str], Any], step: Callable[[Any], None], optimizer_slots: int = 0, backend: str = "mps"
) -> cost.Workload:
    """As `cost.workload` of a model of `SIZES`, in a tenth of the time: counted with two of its layers and with three.

    Each further layer costs the same. build: makes the module of a name, as `gpt2-xl/2`.
    """
    two, three = (
        dataclasses.asdict(cost.workload(lambda: build(f"{name}/{layers}"), step, optimizer_slots, backend))  # noqa: B023
        for layers in (2, 3)
    )
    further = next(number for key, number in SIZES[name].items() if "layer" in key) - 2
    return cost.Workload(**{key: two[key] + further * (three[key] - two[key]) for key in two})
