"""The loss and the adapters' gradients of the notebook `lora`, by name, in either framework."""

import numpy as np
from notebook_code import definitions, twin
from references.trainings_reference import Arrays, seeded

CONFIG = {"model": "smoke", "precision": "fp32"}
TOKENS = np.random.default_rng(2).integers(0, 256, (2, 13))


def in_mlx() -> Arrays:
    notebook = definitions("lora", framework="mlx")
    import mlx.core as mx
    from mlx import nn
    from mlx.utils import tree_flatten

    lora_mlx = twin("lora_mlx")
    sizes, blocks = (notebook[name](CONFIG) for name in ("sizes", "adapted"))
    network, tokens = lora_mlx.build(sizes, blocks, "fp32", 8), mx.array(TOKENS)
    own = dict(tree_flatten(network.parameters()))
    start = seeded({name: own[name].shape for name in sorted(own, reverse=True)})
    network.load_weights([(name, mx.array(array)) for name, array in start.items()])
    loss, gradients = nn.value_and_grad(network, lambda: lora_mlx.loss_function(network, tokens))()
    found = dict(tree_flatten(gradients)) | {"loss": loss}
    return {name: np.array(array) for name, array in found.items()}


def in_torch() -> Arrays:
    """Of transformers' model with peft's adapters, in float64."""
    import torch

    notebook = definitions("lora")
    network = notebook["build"](CONFIG).double()
    prefix, suffix = "base_model.model.model.", ".default.weight"
    named = network.named_parameters()
    own = {name.removeprefix(prefix).removesuffix(suffix): weight for name, weight in named}
    start = seeded({name: tuple(own[name].shape) for name in sorted(own, reverse=True)})
    for name, array in start.items():
        own[name].data.copy_(torch.from_numpy(array))
    loss = notebook["loss_function"](network, torch.from_numpy(TOKENS))
    loss.backward()
    found = {name: weight.grad for name, weight in own.items() if weight.requires_grad}
    found["loss"] = loss.detach()
    return {name: tensor.float().numpy() for name, tensor in found.items()}
