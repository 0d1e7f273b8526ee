"""GPT-2 and Whisper from Hugging Face's transformers, with random weights.

A step costs the same FLOPs and memory with random weights as with those of a checkpoint.
"""

from typing import Any

from pomology.data.synthetic import END_OF_TEXT
from pomology.errors import PomologyError


def _whisper(width: int, layers: int, heads: int) -> dict[str, int]:
    sizes = {"d_model": width, "vocab_size": 51865}
    for part in ("encoder", "decoder"):
        sizes[f"{part}_layers"] = layers
        sizes[f"{part}_attention_heads"] = heads
        sizes[f"{part}_ffn_dim"] = 4 * width
    return sizes


# Other sizes are transformers' defaults. GPT-2: vocabulary 50,257, 1,024 positions, dropout 0.1.
# Whisper: 80 mel bands, 1,500 and 448 positions, no dropout. The large Whisper is version 2, since
# version 3 has 128 mel bands.
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
TASKS = {
    "classification": "GPT2ForSequenceClassification",
    "language-model": "GPT2LMHeadModel",
    "speech": "WhisperForConditionalGeneration",
}


def sizes(name: str) -> dict[str, int]:
    """Return the sizes of a model of `SIZES`; `gpt2-xl/2` has two layers only.

    Raises PomologyError for other names.
    """
    whole, _, layers = name.partition("/")
    if whole not in SIZES:
        raise PomologyError(f"model {whole!r}: must be one of {', '.join(SIZES)}")
    fewer = {key: int(layers) for key in SIZES[whole] if layers and "layer" in key}
    return SIZES[whole] | fewer


def build(name: str, task: str) -> Any:
    """Return a model on the CPU, in fp32 and training mode.

    name: see `sizes`. task: `classification` (GPT-2 with two labels, padded with its end of text),
    `language-model` (GPT-2 with its embedding as output matrix) or `speech` (Whisper, without
    training its encoder's sinusoidal positions). Raises PomologyError for other names.
    """
    settings = sizes(name)
    if task not in TASKS:
        raise PomologyError(f"task {task!r}: must be one of {', '.join(TASKS)}")
    if (task == "speech") != name.startswith("whisper"):
        raise PomologyError(f"{name} cannot be built for the task {task!r}")
    import transformers

    transformers.logging.set_verbosity_error()
    if task == "classification":
        settings |= {"num_labels": 2, "pad_token_id": END_OF_TEXT}
    # The cache of keys and values stays on, as by default. Without it each step would read from the
    # device whether a text has several parts, and wait.
    model_class = getattr(transformers, TASKS[task])
    return model_class(model_class.config_class(**settings)).train()
