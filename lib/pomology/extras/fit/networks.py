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

USUAL_TOKENS = 2048
MLX_LAYERS = 16  # layers, from the last one on, that mlx-lm's LoRA trains by default
FRAMES = 3000  # of mel spectrograms, in the input of Whisper
# Bits per element of a matrix in 4 bits. bitsandbytes adds a scale per 64 elements, quantized
# itself; MLX adds a scale and an offset of 16 bits each.
QUANTIZED_BITS = {"torch": 4.127, "mlx": 4.5}


class Model(NamedTuple):
    """A model: the name of its class in transformers, and the values of its configuration."""

    name: str
    architecture: str
    config: dict[str, Any]
    source: str


class Plan(NamedTuple):
    """What is trained: the options of the command that change its memory or work."""

    method: str = "lora"  # full, lora or qlora
    rank: int = 8
    sequence: int = USUAL_TOKENS
    batch: int = 1
    precision: str = "bf16"
    optimizer: str = "adamw"
    checkpointing: bool = False
    framework: str = "torch"


@functools.cache
def known() -> dict[str, Model]:
    """Return the models of models.csv by name."""
    models = {}
    for row in read_csv(Path(__file__).with_name("models.csv")):
        config = json.loads(row["config"])
        models[row["name"]] = Model(row["name"], row["architecture"], config, row["source"])
    return models


@functools.cache
def find(name: str) -> Model:
    """Return a known model, or that of a config.json of Hugging Face. Raises PomologyError."""
    import transformers

    if name in known():
        return known()[name]
    path = Path(name).expanduser()
    if not path.is_file():
        similar = ", ".join(difflib.get_close_matches(name.lower(), known(), 3, 0))
        expected = f"similar names: {similar}; or the path of a config.json"
        raise PomologyError(f"{one_line(name)}: unknown model; {expected}")
    try:
        config = json.loads(read_file(path))
        architecture = config["architectures"][0]
        getattr(transformers, architecture)
    except (ValueError, LookupError, TypeError, AttributeError):
        expected = "JSON with `architectures`, a class of transformers"
        raise PomologyError(
            f"{one_line(path.name)}: no configuration; expected {expected}"
        ) from None
    return Model(path.resolve().parent.name, architecture, config, path.name)


def build(model: Model, plan: Plan) -> Any:
    """Return a model on `meta`, with LoRA if chosen. Raises PomologyError."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    network_class = getattr(transformers, model.architecture)
    try:
        with torch.device("meta"):
            config = network_class.config_class(**model.config)
            config.architectures = [model.architecture]
            network = network_class(config)
    except Exception as error:  # wrong values in a user's file raise many types
        reason = one_line(f"{type(error).__name__}: {' '.join(str(error).split())}", 200)
        raise PomologyError(f"{model.name}: its configuration is no model's: {reason}") from None
    dtypes = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    network = network.to(dtypes[plan.precision]).train()
    if plan.checkpointing:
        network.activation_checkpointing_enable({"use_reentrant": False})
    return network if plan.method == "full" else with_lora(network, plan)


def with_lora(network: Any, plan: Plan) -> Any:
    """Return a model whose weights are frozen, with LoRA on the matrices that peft chooses."""
    from peft import LoraConfig, get_peft_model

    settings = {"r": plan.rank, "lora_alpha": 2 * plan.rank}
    if plan.framework == "mlx":
        layers = range(network.config.num_hidden_layers)
        settings["layers_to_transform"] = list(layers)[-MLX_LAYERS:]
    try:
        return get_peft_model(network, LoraConfig(**settings))
    except ValueError:  # peft knows no matrices of this kind of model
        return get_peft_model(network, LoraConfig(**settings, target_modules="all-linear"))


def optimizer(weights: list[Any], plan: Plan) -> Any:
    """Return an optimizer in PyTorch's default implementation."""
    import torch

    if plan.optimizer == "sgd":
        return torch.optim.SGD(weights, momentum=0.9)
    return torch.optim.AdamW(weights)


def longest(model: Model) -> int:
    """Return the most tokens that a model takes, 0 if it takes none or its file does not say."""
    names = ("max_target_positions", "max_position_embeddings", "n_positions")
    return next((model.config[name] for name in names if name in model.config), 0)


def one_step(network: Any, plan: Plan) -> None:
    """Run a forward and backward pass on `meta`, with the loss of the model's own class."""
    import torch

    batch, sequence = plan.batch, plan.sequence
    config = network.config
    kind = network.main_input_name
    with torch.device("meta"):
        labels = torch.zeros(batch, sequence, dtype=torch.long)
        if "Classification" in config.architectures[0]:
            labels = torch.zeros(batch, dtype=torch.long)
        if kind == "pixel_values":
            sizes = config.num_channels, config.image_size, config.image_size
            inputs = {kind: torch.rand(batch, *sizes, dtype=network.dtype)}
        elif kind == "input_features":
            inputs = {kind: torch.rand(batch, config.num_mel_bins, FRAMES, dtype=network.dtype)}
        else:
            # With this mask transformers does not read values, which `meta` does not have.
            mask = torch.ones(1, 1, sequence, sequence, dtype=torch.bool)
            tokens = torch.zeros(batch, sequence, dtype=torch.long)
            inputs = {kind: tokens, "attention_mask": mask}
        network(**inputs, labels=labels).loss.backward()


def quantized(network: Any) -> int:
    """Return the elements of the frozen matrices of layers, which QLoRA keeps in 4 bits."""
    import torch
    from transformers.pytorch_utils import Conv1D

    head = network.get_output_embeddings()
    return sum(
        module.weight.numel()
        for module in network.modules()
        if isinstance(module, (torch.nn.Linear, Conv1D))
        and module is not head
        and not module.weight.requires_grad
    )
