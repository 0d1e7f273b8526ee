"""What models of Keras and MLX must give: the same ones in PyTorch, on the CPU, in a process of their own.

A few lines of PyTorch, not Keras on its PyTorch backend: that agrees (to 5e-7), but shares Keras's layers with what is
checked; on a Mac it computes on MPS unless forbidden, and takes six seconds to start.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from pomology.models.cost import Workload, workload
from pomology.models.vision import VISION


def vision_workloads(reference: str, shapes: list[tuple[int, int]]) -> list[tuple[Workload, int]]:
    """See `parity.torch_workloads`."""

    def count(batch_size: int, side: int) -> tuple[Workload, int]:
        def step(model):
            logits = model(torch.empty(batch_size, 3, side, side))
            F.cross_entropy(logits, torch.zeros(batch_size, dtype=torch.long)).backward()

        counted = workload(VISION[reference], step, optimizer_slots=1)
        return counted, counted.forward_flops // (2 * batch_size)

    return [count(*shape) for shape in shapes]


def torch_pass(reference: str, weights: dict, images: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
    """A pass on the CPU as `parity.mlx_pass` makes it, of `vision.VISION[reference]`, or of one of MODELS, which takes
    weights in their order; those of Keras give probabilities."""
    after = {}
    if reference in VISION:
        model = VISION[reference]().train()
        counters = {name: count for name, count in model.state_dict().items() if name.endswith("num_batches_tracked")}
        model.load_state_dict({name: torch.from_numpy(array) for name, array in weights.items()} | counters)
        leaves = dict(model.named_parameters())
        outputs = logits = model(torch.from_numpy(images).permute(0, 3, 1, 2).contiguous())
        after = {f"after {name}": kept.numpy() for name, kept in model.named_buffers() if name not in counters}
    else:
        leaves = {name: torch.from_numpy(array).requires_grad_() for name, array in weights.items()}
        logits = MODELS[reference](torch.from_numpy(images), *leaves.values())
        outputs = logits if reference == "residual_mlp" else logits.softmax(1)
    F.cross_entropy(logits, torch.from_numpy(labels).long()).backward()
    gradients = {f"gradient {name}": leaf.grad.numpy() for name, leaf in leaves.items()}
    return {"outputs": outputs.detach().numpy()} | gradients | after


# The models of article 004, of weights in the order and layout of Keras: a matrix is inputs x outputs.


def _mlp(images: Any, first: Any, first_bias: Any, second: Any, second_bias: Any, last: Any, last_bias: Any) -> Any:
    hidden = (images.flatten(1) @ first + first_bias).relu()
    return (hidden @ second + second_bias).relu() @ last + last_bias


def _cnn(images: Any, *weights: Any) -> Any:
    *convolutions, dense, dense_bias, last, last_bias = weights
    x = images.permute(0, 3, 1, 2)  # channels come last in TensorFlow
    for number, (kernel, bias) in enumerate(zip(convolutions[::2], convolutions[1::2], strict=True)):
        x = torch.conv2d(x, kernel.permute(3, 2, 0, 1), bias).relu()  # there height x width x inputs x outputs
        x = torch.max_pool2d(x, 2) if number < 2 else x
    x = x.permute(0, 2, 3, 1).flatten(1)  # the dense layer counts channels last too
    return (x @ dense + dense_bias).relu() @ last + last_bias


def _lstm(images: Any, kernel: Any, recurrent: Any, bias: Any, last: Any, last_bias: Any) -> Any:
    hidden = cell = images.new_zeros(len(images), len(recurrent))
    for line in images.unbind(1):
        enter, keep, candidate, leave = (line @ kernel + hidden @ recurrent + bias).chunk(4, 1)
        cell = keep.sigmoid() * cell + enter.sigmoid() * candidate.tanh()
        hidden = leave.sigmoid() * cell.tanh()
    return hidden @ last + last_bias


def _residual_mlp(x: Any, *weights: Any) -> Any:
    """The network of the memory notebooks: of each block a normalisation and a linear layer, then the last one."""
    *blocks, last, last_bias = weights
    for norm, norm_bias, matrix, bias in zip(*(blocks[place::4] for place in range(4)), strict=True):
        x = x + F.gelu(F.linear(F.layer_norm(x, norm.shape, norm, norm_bias), matrix, bias))
    return F.linear(x, last, last_bias)


MODELS = {"mlp": _mlp, "cnn": _cnn, "lstm": _lstm, "residual_mlp": _residual_mlp}
