"""Models on PyTorch's `meta` device, where tensors have shapes but no contents."""

from __future__ import annotations

import contextlib
import functools
import json
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pomology.articles import names
from pomology.articles.names import Resolved
from pomology.errors import PomologyError
from pomology.extras.fit import experts as mixtures
from pomology.extras.fit import standins
from pomology.extras.fit.plan import Plan
from pomology.format import one_line
from pomology.paths import expanded, read_csv, read_file

HUB = "https://huggingface.co/"
COMMAND = "pomology models"  # lists all names
CONFIG = "config.json"
EXPERTS = {"num_experts", "num_local_experts", "n_routed_experts"}  # keys of mixtures of experts
EXPERTS_IN_16_BITS = (
    "experts are counted in 16 bits: bitsandbytes leaves them so under transformers 5, where they "
    "are no Linear layers; peft's prepare_model_for_kbit_training casts them to fp32, which takes "
    "twice as much and is not counted"
)
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
NOT_QUANTIZED = "not quantized; `fit --method qlora` keeps its weights in 4 bits"
IN_4_BITS = re.compile(r"(?i)(4[-_ ]?bits?|(int|fp|mxfp|nvfp|nf)4|q4(_\w+)?)$")
WORDS = re.compile(r"[a-z]+|\d[\w.]*")
# An entry of the column `also`: a name, and where a number of its configuration differs, that one.
ALSO = re.compile(r"(.+?)(?: \((\w+) (\d+)\))?")
DIFFERS = {
    "vocab_size": "whose vocabulary has {ours:,} tokens instead of {theirs:,}",
    "max_position_embeddings": "which takes {ours:,} tokens instead of {theirs:,}",
    "num_labels": "whose output has {ours:,} classes instead of {theirs:,}",
}
MOST = 3  # names of other sizes in a note
MLX_LAYERS = 16  # layers, from the last one on, that mlx-lm's LoRA trains by default
ALL_LINEAR = "all-linear"  # all matrices of a block, as mlx-lm takes by default
UNLIMITED = 10**9  # tokens
LANGUAGE_MODEL = ("ForCausalLM", "LMHeadModel")  # ends of the names of architectures
# Text models inside others, which transformers has no class for, and the class with the same
# weights and operators. Their positions differ for images alone.
SAME_TEXT_MODEL = {
    "qwen2_vl_text": "Qwen2ForCausalLM",
    "qwen2_5_vl_text": "Qwen2ForCausalLM",
    "qwen3_vl_text": "Qwen3ForCausalLM",
    "qwen3_vl_moe_text": "Qwen3MoeForCausalLM",
}
# Kinds of models whose older files have the text model's sizes next to those of the other parts.
FLAT = {"qwen2_vl": "qwen2_vl_text", "qwen2_5_vl": "qwen2_5_vl_text"}
OTHER_PARTS = ("vision_config", "audio_config", "thinker_config")  # keys next to a text model
TEXT_ALONE = "counted: the text model alone, without images"
FRAMES = 3000  # of mel spectrograms, in the input of Whisper


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


@functools.cache
def _row(name: str) -> dict[str, str]:
    """Return the row of models.csv of a model."""
    return {row["name"]: row for row in rows()}[name]


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
            name, key, theirs = ALSO.fullmatch(entry).groups()
            differs = ""
            if key:
                ours = configurations()[row["name"]][key]
                differs = DIFFERS[key].format(ours=ours, theirs=int(theirs))
            spellings[names.spelling(name)] = (row["name"], differs)
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
    path = expanded(name)
    if name in configurations() or path.is_file():
        return Resolved(name)
    if (path / CONFIG).is_file():
        return Resolved(str(path / CONFIG))
    forms = _forms(name)
    spelled = [form for form in map(names.spelling, forms) if form in _spellings()]
    chosen, note = _spellings()[spelled[0]] if spelled else _smallest(forms[-1])
    if not chosen:
        kind = "model, and no path of a config.json"
        raise names.unknown(name, kind, configurations(), COMMAND)
    notes = [note, NOT_QUANTIZED if QUANTIZED.search(name) else ""]
    taken = [f"{one_line(name)}: taken as {chosen}", *filter(None, notes)]
    return Resolved(chosen, ", ".join(taken) if any(notes) else "")


def in_4_bits(name: str) -> bool:
    """Return whether a name, or the file of a path, says that weights are in 4 bits."""
    found = resolve(name).name
    if found in configurations():
        return bool(IN_4_BITS.search(name))
    quantization = _read_config(expanded(found)).get("quantization")
    return isinstance(quantization, dict) and quantization.get("bits") == 4


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

    Of a model of texts and images it is that of the text model. Raises PomologyError for unknown
    models and other files.
    """
    name = resolve(name).name
    if name in configurations():
        return configurations()[name]
    import transformers

    path = expanded(name)
    config = _read_config(path)
    if _has_other_parts(config):
        config = _text_model(config, path)
    architecture = config["architectures"][0]
    if not hasattr(transformers, architecture):
        reason = f"transformers {transformers.__version__} has no {one_line(architecture)}"
        raise PomologyError(f"{one_line(path.name)}: {reason}, which may have code of its own")
    if architecture.endswith("Model") and not architecture.endswith(LANGUAGE_MODEL):
        head = f"{architecture.removesuffix('Model')}ForCausalLM"
        reason = f"{architecture} has no loss; expected a class such as {head}"
        raise PomologyError(f"{one_line(path)}: {reason}")
    if longest(config) == UNLIMITED:
        config = _with_default_positions(config)
    return config


def _with_default_positions(config: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration with the longest sequence, or image, that its class has by default."""
    with contextlib.suppress(PomologyError):
        whole = full_configuration(config)
        names = ("max_target_positions", "max_position_embeddings", "n_positions")
        names += ("image_size", "patch_size")
        return {name: whole[name] for name in names if whole.get(name)} | config
    return config


def _has_other_parts(config: dict[str, Any]) -> bool:
    """Return whether a configuration has a text model and another one, of images or sounds."""
    return any(isinstance(config.get(key), dict) for key in ("text_config", *OTHER_PARTS))


def _text_model(config: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return the configuration of the text model of a larger one. Raises PomologyError."""
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    flat = FLAT.get(config.get("model_type", ""))
    text = config.get("text_config")
    if not isinstance(text, dict):
        others = ("model_type", *OTHER_PARTS)
        text = {key: value for key, value in config.items() if key not in others}
        text["model_type"] = flat or config["architectures"][0]
    kind = str(text.get("model_type") or flat or "without a model_type")
    architecture = SAME_TEXT_MODEL.get(kind) or MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(kind)
    if architecture is None:
        reason = f"transformers {transformers.__version__} has no class for its text model alone"
        raise PomologyError(f"{one_line(path.name)}: {one_line(kind)} is not counted: {reason}")
    # Whether the output matrix is the input's may be stated of the whole model only.
    tied = {key: config[key] for key in ("tie_word_embeddings",) if key in config}
    # A rotation in sections, for images, has the sizes of the plain one.
    rotated = [
        key
        for key in ("rope_scaling", "rope_parameters")
        if isinstance(text.get(key), dict) and "mrope_section" in text[key]
    ]
    text = {key: value for key, value in text.items() if key not in rotated}
    if kind in SAME_TEXT_MODEL:
        del text["model_type"]
    return tied | text | {"architectures": [architecture]}


def _read_config(path: Path) -> dict[str, Any]:
    """Return what a config.json has. Raises PomologyError for other files."""
    try:
        config = json.loads(read_file(path))
    except ValueError as error:
        raise PomologyError(f"{one_line(path)}: no JSON: {one_line(error)}") from None
    architectures = config.get("architectures") if isinstance(config, dict) else None
    if not isinstance(architectures, list) or not isinstance((*architectures, None)[0], str):
        expected = "expected the key `architectures`, a list with the name of a class"
        raise PomologyError(f"{one_line(path)}: {expected} of transformers")
    return config


def title(name: str) -> str:
    """Return a model's name, or that of the folder of its config.json."""
    if name in configurations():
        return name
    path = expanded(name).resolve()
    return one_line(path.parent.name if path.name == CONFIG else path.stem)


def parameters(name: str) -> int:
    """Return the number of a model's parameters by the table, 0 for another model."""
    return _parameters(_row(name)) if name in configurations() else 0


def notes(name: str, plan: Plan) -> list[str]:
    """Return what the user should know of how a model was counted."""
    lines = []
    if name in configurations() and _row(name)["part"] == "text":
        lines.append(TEXT_ALONE)
    if name not in configurations():
        whole = _read_config(expanded(name))
        if _has_other_parts(whole):
            lines.append(TEXT_ALONE)
        if {"quantization", "quantization_config"} & whole.keys() and plan.method != "qlora":
            lines.append("its weights are quantized; `--method qlora` keeps them in 4 bits")
    if has_experts(name):
        if plan.method == "qlora" and plan.framework == "torch":
            lines.append(EXPERTS_IN_16_BITS)
        if plan.method != "full" and plan.framework == "torch":
            lines.append("experts have no adapters")
    return lines


def is_language_model(config: dict[str, Any]) -> bool:
    """Return whether a model's outputs are the next words of its input."""
    return config["architectures"][0].endswith(LANGUAGE_MODEL)


def not_in_mlx(config: dict[str, Any]) -> str:
    """Return why mlx-lm does not train a model, or its training is not counted; "" if it is."""
    architecture = config["architectures"][0]
    if not is_language_model(config):
        return f"mlx-lm trains language models, no {architecture}"
    if config.get("first_k_dense_replace"):
        return f"{architecture}: its first blocks are of another kind, which is not counted in MLX"
    return ""


def has_experts(name: str) -> bool:
    """Return whether a model is a mixture of experts."""
    return bool(EXPERTS & find(name).keys())


def longest(config: dict[str, Any]) -> int:
    """Return the most tokens that a model takes, UNLIMITED if its configuration does not say."""
    names = ("max_target_positions", "max_position_embeddings", "n_positions", "n_ctx")
    return next((config[name] for name in names if isinstance(config.get(name), int)), UNLIMITED)


def width(config: dict[str, Any]) -> int:
    """Return the numbers of a token between blocks: one side of a block's matrices; 0: unknown."""
    names = ("hidden_size", "n_embd", "d_model")
    return next((config[name] for name in names if isinstance(config.get(name), int)), 0)


def fixed_sequence(config: dict[str, Any]) -> int:
    """Return the patches of an image and the class token, which are its sequence; 0 for texts."""
    image, patch = config.get("image_size"), config.get("patch_size")
    if not isinstance(image, int) or not isinstance(patch, int):
        return 0
    return (image // patch) ** 2 + 1


def depth_key(config: dict[str, Any]) -> str:
    """Return the key of the number of blocks, or "" for a model with two kinds of blocks."""
    keys = [key for key in ("num_hidden_layers", "n_layer", "n_layers") if key in config]
    two = "encoder_layers" in config or "decoder_layers" in config or "num_layers" in config
    return "" if two or len(keys) != 1 else keys[0]


def depth(config: dict[str, Any]) -> int:
    """Return the number of a model's blocks, 0 for one with two kinds of them."""
    key = depth_key(config)
    return config[key] if key else 0


def adapted_layers(plan: Plan, depth: int) -> int:
    """Return how many of a model's blocks are adapted, or trained in full."""
    if plan.method == "full":
        return depth
    default = MLX_LAYERS if plan.framework == "mlx" else depth
    return min(depth, plan.layers or default)


def build(config: dict[str, Any], plan: Plan, backend: str) -> Any:
    """Return a model on `meta`, with LoRA on all blocks if chosen. Raises PomologyError.

    backend: where its steps will run.
    """
    import torch

    with torch.device("meta"):
        # The default of CUDA, and the only one that reads no values; `meta` has none.
        network = untrained(config, plan, experts="grouped_mm")
    if plan.checkpointing:
        recompute(network, lambda: autocast(plan, backend))
    if plan.method == "full":
        return network
    freeze(network)
    if plan.method == "qlora" and plan.framework == "mlx":
        standins.quantize_in_mlx(network)
    elif plan.method == "qlora":
        standins.quantize(network, experts=plan.small_experts)
    if plan.upcast:
        # peft casts experts, too, which takes twice the memory of the 16 bits that are counted.
        matrices = set(map(id, quantized(network) + standins.experts_of(network)))
        for weight in network.parameters():
            if id(weight) not in matrices:
                weight.data = weight.data.float()
    with torch.device("meta"):
        return with_lora(network, plan)


def untrained(config: dict[str, Any], plan: Plan, experts: str = "") -> Any:
    """Return a model with random weights on PyTorch's default device. Raises PomologyError.

    experts: how transformers computes them, by default as it chooses.
    """
    import transformers

    transformers.logging.set_verbosity_error()
    try:
        network_class = getattr(transformers, config["architectures"][0])
        with _without_warnings():
            settings = network_class.config_class(**config)
        if experts and network_class._can_set_experts_implementation():
            settings._experts_implementation = experts
        network = network_class(settings)
    except Exception as error:  # wrong values in a user's file raise many types
        raise _no_model(error) from None
    return network.to(torch_type("fp32" if plan.amp else plan.precision)).train()


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
    """Say nothing of a file's older keys, which transformers reads."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        yield


def _no_model(error: Exception) -> PomologyError:
    reason = one_line(" ".join(str(error).split()), 200)
    return PomologyError(f"the configuration is no model's: {reason}")


def full_configuration(config: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration with the values that transformers has by default, as JSON types."""
    import transformers

    try:
        with _without_warnings():
            settings = getattr(transformers, config["architectures"][0]).config_class(**config)
    except Exception as error:  # wrong values in a user's file raise many types
        raise _no_model(error) from None
    values = json.loads(settings.to_json_string(use_diff=False))
    return values | {"architectures": config["architectures"]}


def recompute(network: Any, context: Callable[[], Any]) -> None:
    """Let a model's blocks run forward once more in the backward pass, in a context."""
    contexts = lambda: (contextlib.nullcontext(), context())  # noqa: E731
    network.activation_checkpointing_enable({"use_reentrant": False, "context_fn": contexts})


def freeze(network: Any) -> None:
    """Let no weight of a model be trained."""
    for weight in network.parameters():
        weight.requires_grad_(False)


def quantized(network: Any) -> list[Any]:
    """Return the matrices that are counted in 4 or 8 bits."""
    return [weight for weight in network.parameters() if hasattr(weight, "bits")]


def torch_type(precision: str) -> Any:
    """Return PyTorch's type of a precision."""
    import torch

    return {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]


def with_lora(network: Any, plan: Plan, blocks: Sequence[int] | None = None) -> Any:
    """Return a model whose weights are frozen, with LoRA on some matrices of its blocks.

    blocks: their numbers, by default all.
    """
    from peft import LoraConfig, get_peft_model
    from transformers.pytorch_utils import Conv1D

    chosen = targets(network, plan)
    layers = [name for name in chosen if name in _linear(network)]
    settings = LoraConfig(
        r=plan.rank,
        lora_alpha=2 * plan.rank,
        lora_dropout=plan.dropout,
        target_modules=layers,
        layers_to_transform=blocks,
        # GPT-2's matrices are transposed, which peft otherwise says in a warning.
        fan_in_fan_out=any(isinstance(module, Conv1D) for module in network.modules()),
    )
    with warnings.catch_warnings():
        # peft reads a property that transformers 5 has renamed; nothing here can change that.
        warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprecated")
        adapted = get_peft_model(network, settings) if layers else network
    if plan.framework == "mlx":
        mixtures.adapt(adapted, plan, chosen)
    return adapted


def targets(network: Any, plan: Plan) -> list[str]:
    """Return the last names of the matrices that LoRA adapts. Raises PomologyError.

    Without a choice these are peft's for the kind of model, or else those of queries and values, or
    all; mlx-lm's are all matrices of a block, routers and experts too. In PyTorch experts that are
    one parameter have no adapters.
    """
    from peft.utils import constants

    linear = _linear(network)
    if plan.framework == "mlx":
        linear = list(dict.fromkeys([*linear, *mixtures.names(network)]))
    by_kind = constants.TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING
    if plan.targets == ALL_LINEAR or (plan.framework == "mlx" and not plan.targets):
        return linear
    if plan.targets:
        chosen = plan.targets.split(",")
        unknown = [one_line(name) for name in chosen if name not in linear]
        if unknown:
            raise PomologyError(
                f"--targets {', '.join(unknown)}: no matrix of this model; expected some of "
                f"{', '.join(linear)}, or {ALL_LINEAR}"
            )
        return chosen
    chosen = [*by_kind.get(network.config.model_type, ()), "q_proj", "v_proj"]
    return list(dict.fromkeys(name for name in chosen if name in linear)) or linear


def _linear(network: Any) -> list[str]:
    """Return the last names of a network's layers that are PyTorch's, but the output's."""
    from torch.nn import Linear
    from transformers.pytorch_utils import Conv1D

    head = network.get_output_embeddings()
    names = [
        name.rpartition(".")[2]
        for name, module in network.named_modules()
        if isinstance(module, (Linear, Conv1D)) and module is not head
    ]
    return list(dict.fromkeys(names))


def inputs_of(network: Any, plan: Plan) -> dict[str, Any]:
    """Return random inputs of a step and its labels, on `meta`."""
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
            return {name: torch.rand(batch, *sizes, dtype=network.dtype), "labels": labels}
        if name == "input_features":
            sound = torch.rand(batch, config.num_mel_bins, FRAMES, dtype=network.dtype)
            return {name: sound, "decoder_attention_mask": mask, "labels": labels}
    inputs = {name: tokens, "labels": labels}
    if config.model_type == "opt":  # it would read positions from the mask
        inputs["position_ids"] = tokens
    # State-space models have no attention.
    return inputs | {"attention_mask": mask} if hasattr(config, "num_attention_heads") else inputs


def autocast(plan: Plan, backend: str) -> Any:
    """Return the context of a plan's passes."""
    if plan.amp or plan.upcast:
        return standins.autocast(torch_type(plan.precision), backend)
    return contextlib.nullcontext()


def loss_of(network: Any, plan: Plan, inputs: dict[str, Any], backend: str) -> Any:
    """Return the loss of a forward pass, by the model's own class or by the plan's loss."""
    with autocast(plan, backend):
        if plan.loss == "default":
            return network(**inputs).loss
        model = network.get_base_model() if plan.method != "full" else network
        others = {name: value for name, value in inputs.items() if name != "labels"}
        hidden = model.base_model(**others)[0]
        head = model.get_output_embeddings().weight
        return standins.LOSSES[plan.loss](hidden, head, inputs["labels"])


def loss_parts(network: Any, plan: Plan) -> int:
    """Return in how many parts a plan's loss divides the tokens."""
    if plan.loss == "fused":
        return standins.fused_parts(network.get_output_embeddings().weight)
    return standins.CHUNKS if plan.loss == "chunked" else 1
