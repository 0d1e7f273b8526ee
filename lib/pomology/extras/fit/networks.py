"""Models on PyTorch's `meta` device, where tensors have shapes but no contents."""

from __future__ import annotations

import difflib
import functools
import json
from pathlib import Path
from typing import Any, NamedTuple

from pomology.errors import PomologyError
from pomology.format import one_line
from pomology.paths import read_csv, read_file

MLX_LAYERS = 16  # layers, from the last one on, that mlx-lm's LoRA trains by default
FRAMES = 3000  # of mel spectrograms, in the input of Whisper
# Bits per element of a matrix in 4 bits. bitsandbytes adds a scale per 64 elements, quantized
# itself; MLX adds a scale and an offset of 16 bits each.
QUANTIZED_BITS = {"torch": 4.127, "mlx": 4.5}


class Plan(NamedTuple):
    """What is trained: the options that change its memory or work."""

    method: str = "lora"  # full, lora or qlora
    rank: int = 8
    sequence: int = 2048
    batch: int = 1
    precision: str = "bf16"
    optimizer: str = "adamw"
    checkpointing: bool = False
    framework: str = "torch"
    targets: str = ""  # names of LoRA's matrices, separated by commas; "": those of peft
    layers: int = 0  # with LoRA, from the last one on; 0: those of the framework


@functools.cache
def known() -> dict[str, dict[str, Any]]:
    """Return the configurations of the models in models.csv by name."""
    models = {}
    for row in read_csv(Path(__file__).with_name("models.csv")):
        models[row["name"]] = json.loads(row["config"]) | {"architectures": [row["architecture"]]}
    return models


@functools.cache
def find(name: str) -> dict[str, Any]:
    """Return the configuration of a known model, or of a config.json. Raises PomologyError."""
    if name in known():
        return known()[name]
    path = Path(name).expanduser()
    if not path.is_file():
        similar = ", ".join(difflib.get_close_matches(name.lower(), known(), 3, 0))
        raise PomologyError(f"{one_line(name)}: no config.json, nor one of {similar}, …")
    import transformers

    try:
        config = json.loads(read_file(path))
        getattr(transformers, config["architectures"][0])
    except (ValueError, LookupError, TypeError, AttributeError):
        raise PomologyError(f"{one_line(path.name)}: expected JSON with `architectures`") from None
    return config


def longest(config: dict[str, Any]) -> int:
    """Return the most tokens that a model takes, a billion if its configuration does not say."""
    names = ("max_target_positions", "max_position_embeddings", "n_positions")
    return next((config[name] for name in names if name in config), 10**9)


def build(config: dict[str, Any], plan: Plan) -> Any:
    """Return a model on `meta`, with LoRA if chosen. Raises PomologyError."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    network_class = getattr(transformers, config["architectures"][0])
    try:
        with torch.device("meta"):
            network = network_class(network_class.config_class(**config))
    except Exception as error:  # wrong values in a user's file raise many types
        reason = one_line(" ".join(str(error).split()), 200)
        raise PomologyError(f"the configuration is no model's: {reason}") from None
    types = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    network = network.to(types[plan.precision]).train()
    if plan.checkpointing:
        network.activation_checkpointing_enable({"use_reentrant": False})
    return network if plan.method == "full" else _with_lora(network, plan)


def _with_lora(network: Any, plan: Plan) -> Any:
    """Return a model whose weights are frozen, with LoRA on the matrices that peft chooses."""
    from peft import LoraConfig, get_peft_model

    targets = plan.targets.split(",") if plan.targets else None
    settings = {"r": plan.rank, "lora_alpha": 2 * plan.rank, "target_modules": targets}
    most = plan.layers or (MLX_LAYERS if plan.framework == "mlx" else 0)
    if most:
        settings["layers_to_transform"] = list(range(network.config.num_hidden_layers))[-most:]
    try:
        return get_peft_model(network, LoraConfig(**settings))
    except ValueError:  # peft knows no matrices of this kind of model
        return get_peft_model(network, LoraConfig(**settings | {"target_modules": "all-linear"}))


def one_step(network: Any, plan: Plan) -> None:
    """Run a forward and backward pass on `meta`, with the loss of the model's own class."""
    import torch

    batch, sequence, config = plan.batch, plan.sequence, network.config
    name = network.main_input_name
    with torch.device("meta"):
        tokens = torch.zeros(batch, sequence, dtype=torch.long)
        labels = tokens[:, 0] if "Classification" in config.architectures[0] else tokens
        if name == "pixel_values":
            sizes = config.num_channels, config.image_size, config.image_size
            inputs = {name: torch.rand(batch, *sizes, dtype=network.dtype)}
        elif name == "input_features":
            inputs = {name: torch.rand(batch, config.num_mel_bins, FRAMES, dtype=network.dtype)}
        else:
            # With this mask transformers does not read values, which `meta` does not have.
            mask = torch.ones(1, 1, sequence, sequence, dtype=torch.bool)
            inputs = {name: tokens, "attention_mask": mask}
        network(**inputs, labels=labels).loss.backward()


def quantized(network: Any) -> int:
    """Return the elements of the frozen matrices of layers, which QLoRA keeps in 4 bits."""
    import torch
    from transformers.pytorch_utils import Conv1D

    head = network.get_output_embeddings()
    layers = [each for each in network.modules() if isinstance(each, (torch.nn.Linear, Conv1D))]
    weights = [each.weight for each in layers if each is not head]
    return sum(weight.numel() for weight in weights if not weight.requires_grad)
