"""The training step of a plan in MLX, with the models, adapters and loss of mlx-lm.

transformers, which mlx-lm imports, would import PyTorch; `measuring.main` prevents that.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
from mlx.utils import tree_flatten
from mlx_lm.tuner.trainer import default_loss, grad_checkpoint
from mlx_lm.tuner.utils import linear_to_lora_layers
from mlx_lm.utils import _get_classes

from pomology.devices.base import DTYPES
from pomology.extras.fit import truncated
from pomology.extras.fit.plan import Plan
from pomology.extras.fit.standins import GROUP
from pomology.extras.fit.truncated import Blocks
from pomology.models import workload_mlx
from pomology.models.cost import Cost
from pomology.models.workload import Workload
from pomology.models.workload_mlx import initialized, one_update

LR = 1e-5
SCALE = 20.0  # mlx-lm's default of LoRA
BITS = 4  # of mlx-lm's quantized weights
MXFP4 = {"group_size": 32, "bits": 4, "mode": "mxfp4"}


def workload(
    config: Mapping[str, Any], plan: Plan, blocks: Blocks, flops: float, needed_bytes: float
) -> Workload:
    """Return the training of a model with so many blocks.

    config: of the whole model, for transformers, with all of its values. flops, needed_bytes: of a
    step, which MLX cannot count.
    """
    short = truncated.configuration(config, blocks)
    network = build(short, plan, blocks)  # its arrays take memory when they are evaluated
    parameters = _elements(network.parameters())
    trained = _elements(network.trainable_parameters())

    def cost(declared: Cost, _batch_size: int, _backend: str) -> Cost:
        return replace(declared, state_bytes=round(needed_bytes))

    return Workload(
        build=functools.partial(build, short, plan, blocks),
        batch=functools.partial(batch, config["vocab_size"], plan.sequence),
        optimizer=functools.partial(optimizer, plan.optimizer),
        step=one_update(loss_of),
        parameters=parameters,
        trained=trained,
        flops_per_sample=flops / plan.batch,
        optimizer_class="SGD" if plan.optimizer == "sgd" else "AdamW",
        slots=1 if plan.optimizer == "sgd" else 2,
        adjust=cost,
    )


def build(config: dict[str, Any], plan: Plan, blocks: Blocks) -> Any:
    """Return mlx-lm's model with random weights, and with LoRA if chosen.

    Raises ValueError for a kind of model that mlx-lm lacks.
    """
    config = _with_older_names(config)
    model_class, arguments_class = _get_classes(dict(config))
    network = model_class(arguments_class.from_dict(config))
    network.set_dtype(getattr(mx, DTYPES[plan.precision]))
    if plan.method == "qlora":
        nn.quantize(network, GROUP, BITS, class_predicate=_predicate(network))
    if plan.method != "full":
        network.freeze()
        settings = {"rank": plan.rank, "scale": SCALE, "dropout": plan.dropout}
        linear_to_lora_layers(network, blocks.trained, settings | _keys(network, plan))
        # A training begins with B = 0, and the gradient of A is 0 then: nothing to verify.
        for module in network.modules():
            if "lora_b" in module:
                module.lora_b = 0.02 * mx.random.normal(module.lora_b.shape)
    block = network.layers[0]
    # mlx-lm changes the class of all blocks, once for all.
    if plan.checkpointing and type(block).__call__.__name__ != "checkpointed_fn":
        grad_checkpoint(block)
    return network


def _with_older_names(config: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration that also has the names that transformers 5 has changed."""
    older = {}
    rotation = config.get("rope_parameters")
    if isinstance(rotation, dict) and "rope_theta" in rotation:
        older["rope_theta"] = rotation["rope_theta"]
    if "num_local_experts" in config:
        older["num_experts"] = config["num_local_experts"]
    return older | config


def _predicate(network: Any) -> Callable[[str, Any], bool | dict[str, Any]]:
    """Return how mlx-lm's `quantize_model` quantizes each layer of a model, by its path.

    Experts of gpt-oss are in MXFP4, as OpenAI publishes them.
    """
    own = getattr(network, "quant_predicate", None) or (lambda _path, _layer: True)

    def predicate(path: str, layer: Any) -> bool | dict[str, Any]:
        if not hasattr(layer, "to_quantized") or layer.weight.shape[-1] % GROUP:
            return False
        if network.model_type == "gpt_oss" and ".experts." in path:
            return MXFP4
        return own(path, layer)

    return predicate


def _keys(network: Any, plan: Plan) -> dict[str, set[str]]:
    """Return the names, in a block, of the matrices of a plan's targets; without, mlx-lm's."""
    if not plan.targets or plan.targets == "all-linear":
        return {}
    last = plan.targets.split(",")
    names = [name for name, _ in network.layers[0].named_modules()]
    return {"keys": {name for name in names if name.rpartition(".")[2] in last}}


def batch(vocabulary: int, sequence: int, count: int) -> tuple[Any, Any]:
    """Return random words (count, sequence + 1), and from where to where the loss counts them."""
    words = mx.random.randint(0, vocabulary, (count, sequence + 1))
    return words, mx.broadcast_to(mx.array([[0, sequence]]), (count, 2))


def loss_of(network: Any, words: Any, lengths: Any) -> Any:
    """Return mlx-lm's loss, the mean cross-entropy of each next word."""
    loss, _ = default_loss(network, words, lengths)
    return loss


def optimizer(name: str, network: Any) -> Any:
    """Return AdamW, or SGD with momentum, of a model's trained weights."""
    kind = optim.SGD(LR, momentum=0.9) if name == "sgd" else optim.AdamW(LR)
    return initialized(kind, network)


def compiled(
    case: Any, declared: Workload, network: Any, optimizer: Any, count: int
) -> Callable[[], float]:
    """Return a function that makes a step of so many sequences, compiled on a GPU."""
    step = workload_mlx.compiled(case, declared, network, optimizer)
    inputs = declared.batch(count)
    mx.eval(inputs)
    return lambda: step(*inputs)


def _elements(parameters: Any) -> int:
    return sum(array.size for _, array in tree_flatten(parameters))
