"""Models on PyTorch's `meta` device, where tensors have shapes but no contents."""

from __future__ import annotations

import functools
import json
import re
import warnings
from pathlib import Path
from typing import Any, NamedTuple

from pomology.articles import names
from pomology.articles.names import Resolved
from pomology.errors import PomologyError
from pomology.format import one_line
from pomology.paths import read_csv, read_file

HUB = "https://huggingface.co/"
COMMAND = "pomology models"  # lists all names
# Words of a name that do not change the sizes of a model. `base` is a size of BERT and Whisper.
ROLES = re.compile(
    r"(?i)\b(meta|google|openai|microsoft)[-_ ]"
    r"|[-_: ](instruct|chat|it|hf|latest|unsloth|mlx|(bf|fp|f)16)\b"
)
BASE = re.compile(r"(?i)[-_ ]base\b")
# Words of weights in fewer bits: `4bit`, `bnb-4bit`, `GPTQ-Int4`, `q4_K_M`, `MXFP4`.
QUANTIZED = re.compile(
    r"(?i)[-_: ](bnb|gptq|awq|gguf|dwq|hqq|qat|quantized|q[2-8](_\w+)?|[2-8][-_ ]?bits?"
    r"|(u?int|fp|mxfp|nvfp|nf)[48])\b"
)
WORDS = re.compile(r"[a-z]+|\d[\w.]*")
# An entry of the column `also`: a name, and where its vocabulary differs, the tokens of that.
ALSO = re.compile(r"(.+?)(?: \(vocab_size (\d+)\))?")
MOST = 3  # names of other sizes in a note
MLX_LAYERS = 16  # layers, from the last one on, that mlx-lm's LoRA trains by default
UNLIMITED = 10**9  # tokens
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
def rows() -> tuple[dict[str, str], ...]:
    """Return the rows of models.csv as text."""
    return tuple(read_csv(Path(__file__).with_name("models.csv")))


@functools.cache
def configurations() -> dict[str, dict[str, Any]]:
    """Return the configurations of the models in models.csv by name."""
    models = {}
    for row in rows():
        models[row["name"]] = json.loads(row["config"]) | {"architectures": [row["architecture"]]}
    return models


def hub_name(row: dict[str, str]) -> str:
    """Return the name of a row's model on the Hugging Face Hub, such as `Qwen/Qwen3-8B`, or ""."""
    address, _, _ = row["source"].partition("/blob/")
    return address.removeprefix(HUB) if address.startswith(HUB) else ""


@functools.cache
def _spellings() -> dict[str, tuple[str, str]]:
    """Return the models by the spelling of all of their names, and how each differs, or ""."""
    spellings: dict[str, tuple[str, str]] = {}
    for row in rows():
        # `Qwen-1_8B` is no 18B.
        on_hub = hub_name(row).rpartition("/")[2].replace("_", ".")
        for name in (row["name"], on_hub, ROLES.sub("", on_hub)):
            spellings.setdefault(names.spelling(name), (row["name"], ""))
        for entry in filter(None, row["also"].split("; ")):
            name, tokens = ALSO.fullmatch(entry).groups()
            size = configurations()[row["name"]].get("vocab_size", 0)
            differs = f"whose vocabulary has {size:,} tokens instead of {int(tokens or 0):,}"
            spellings[names.spelling(name)] = (row["name"], differs if tokens else "")
    del spellings[""]  # of models that are not on the Hub
    return spellings


def resolve(name: str) -> Resolved:
    """Return the model of models.csv that a name means, or the path of a file.

    A name has any spelling, with or without the owner: `Llama 3.1 8B`, `meta-llama/Llama-3.1-8B`.
    Versions for chats and with quantized weights have the sizes of their models:
    `Qwen2.5-0.5B-Instruct-4bit`. The first words of several names mean the smallest of these:
    `whisper`. The note says what was taken if that is not the very model. Raises PomologyError, in
    one line with similar names, for other names.
    """
    if name in configurations() or Path(name).expanduser().is_file():
        return Resolved(name)
    forms = _forms(name)
    spelled = [form for form in map(names.spelling, forms) if form in _spellings()]
    chosen, note = _spellings()[spelled[0]] if spelled else _smallest(forms[-1])
    if not chosen:
        kind = "model, and no path of a config.json"
        raise names.unknown(name, kind, configurations(), COMMAND)
    quantized = "not quantized; `fit --method qlora` keeps its weights in 4 bits"
    notes = [note, quantized if QUANTIZED.search(name) else ""]
    taken = [f"{one_line(name)}: taken as {chosen}", *filter(None, notes)]
    return Resolved(chosen, ", ".join(taken) if any(notes) else "")


def _forms(name: str) -> list[str]:
    """Return a name as typed, without its owner, and with fewer and fewer words."""
    forms = [name]  # `ViT-B/16` has no owner
    last = name.rstrip("/").rpartition("/")[2]
    for text in (last, last.replace("_", ".")):
        plain = ROLES.sub("", QUANTIZED.sub("", text))
        forms += [text, ROLES.sub("", text), plain, BASE.sub("", plain)]
    return forms


def _smallest(name: str) -> tuple[str, str]:
    """Return the smallest model whose name begins with all words of a name, and a note, or "".

    Else the only model whose name has all of these words.
    """
    words = WORDS.findall(name.casefold())
    if not words or "".join(words) != names.spelling(name):
        return "", ""
    sizes = [row for row in rows() if WORDS.findall(row["name"])[: len(words)] == words]
    # `whisper turbo`, whose words are not the first ones; `gemma 2b` is another model's size.
    if not sizes and len(words) > 1 and all(map(str.isalpha, words)):
        named = [row for row in rows() if set(words) <= set(WORDS.findall(row["name"]))]
        sizes = named if len(named) == 1 else []
    first, *others = [row["name"] for row in sorted(sizes, key=_parameters)] or [""]
    if not others:
        return first, "the only size listed"
    some = names.listed([f"'{size}'" for size in others[:MOST]])
    which = "the other" if len(others) == 1 else "another"
    rest = f" (`{COMMAND}` lists all)" if len(others) > MOST else ""
    return first, f"the smallest listed; say {some} for {which}{rest}"


def _parameters(row: dict[str, str]) -> int:
    return int(row["parameters"])


@functools.cache
def find(name: str) -> dict[str, Any]:
    """Return the configuration of a model by `resolve`, or of a config.json.

    Raises PomologyError for unknown models and other files.
    """
    name = resolve(name).name
    if name in configurations():
        return configurations()[name]
    import transformers

    path = Path(name).expanduser()
    try:
        config = json.loads(read_file(path))
        getattr(transformers, config["architectures"][0])
    except (ValueError, LookupError, TypeError, AttributeError):
        raise PomologyError(f"{one_line(path.name)}: expected JSON with `architectures`") from None
    return config


def longest(config: dict[str, Any]) -> int:
    """Return the most tokens that a model takes, UNLIMITED if its configuration does not say."""
    names = ("max_target_positions", "max_position_embeddings", "n_positions")
    return next((config[name] for name in names if name in config), UNLIMITED)


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
    from transformers.pytorch_utils import Conv1D

    targets = plan.targets.split(",") if plan.targets else None
    settings = {"r": plan.rank, "lora_alpha": 2 * plan.rank, "target_modules": targets}
    # GPT-2's matrices are transposed, which peft otherwise says in a warning.
    settings["fan_in_fan_out"] = any(isinstance(module, Conv1D) for module in network.modules())
    most = plan.layers or (MLX_LAYERS if plan.framework == "mlx" else 0)
    if most:
        settings["layers_to_transform"] = list(range(network.config.num_hidden_layers))[-most:]
    with warnings.catch_warnings():
        # peft reads a property that transformers 5 has renamed; nothing here can change that.
        warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprecated")
        try:
            return get_peft_model(network, LoraConfig(**settings))
        except ValueError:  # peft knows no matrices of this kind of model
            settings["target_modules"] = "all-linear"
            return get_peft_model(network, LoraConfig(**settings))


def one_step(network: Any, plan: Plan) -> None:
    """Run a forward and backward pass on `meta`, with the loss of the model's own class."""
    import torch

    batch, sequence, config = plan.batch, plan.sequence, network.config
    name = network.main_input_name
    with torch.device("meta"):
        tokens = torch.zeros(batch, sequence, dtype=torch.long)
        labels = tokens[:, 0] if "Classification" in config.architectures[0] else tokens
        # With this mask transformers does not read values, which `meta` does not have.
        mask = torch.ones(1, 1, sequence, sequence, dtype=torch.bool)
        if name == "pixel_values":
            sizes = config.num_channels, config.image_size, config.image_size
            inputs = {name: torch.rand(batch, *sizes, dtype=network.dtype)}
        elif name == "input_features":
            sound = torch.rand(batch, config.num_mel_bins, FRAMES, dtype=network.dtype)
            inputs = {name: sound, "decoder_attention_mask": mask}
        else:
            inputs = {name: tokens, "attention_mask": mask}
        network(**inputs, labels=labels).loss.backward()


def quantized(network: Any) -> int:
    """Return the elements of the frozen matrices of layers, which QLoRA keeps in 4 bits."""
    import torch
    from transformers.pytorch_utils import Conv1D

    head = network.get_output_embeddings()
    kinds = (torch.nn.Linear, Conv1D)
    layers = [module for module in network.modules() if isinstance(module, kinds)]
    weights = [layer.weight for layer in layers if layer is not head]
    return sum(weight.numel() for weight in weights if not weight.requires_grad)
