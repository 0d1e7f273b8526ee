"""CPU offload with PyTorch's FSDP2: weights and optimizer state in host memory.

FSDP2 shards a model like ZeRO stage 3 (Rajbhandari et al. 2020). Here it runs in one process,
without a launcher, so a GPU too small for a model can train it from host memory.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from unittest import mock

import torch
from torch import distributed, nn

from pomology.errors import Unsupported
from pomology.models.cost import Cost


@contextlib.contextmanager
def fsdp(model: nn.Module, device: torch.device | str) -> Iterator[None]:
    """Keep a model's weights and gradients on the host, and compute on the device.

    The model is changed in place. The modules of each `nn.ModuleList` move to the device one at a
    time, all others for a whole step. An optimizer created inside the block keeps its state on the
    host and updates the weights there. Raises Unsupported for a device without its own memory.
    """
    device = torch.device(device)
    if device.type not in ("cpu", "cuda"):
        raise Unsupported("no offload: the GPU and the CPU of this chip share their memory")
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

    # Gloo would listen on the network by default, for which macOS asks the user's permission.
    loopback = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
    with mock.patch.dict(os.environ, {"GLOO_SOCKET_IFNAME": loopback}):
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        store = distributed.HashStore()  # in memory: no port, no file
        distributed.init_process_group(backend, store=store, rank=0, world_size=1)
    try:
        mesh = init_device_mesh(device.type, (1,))
        policy = CPUOffloadPolicy(pin_memory=device.type == "cuda")
        for module in [*_blocks(model), model]:
            fully_shard(module, mesh=mesh, offload_policy=policy)
        yield
    finally:
        distributed.destroy_process_group()


def placed(counted: Cost, build: Callable[[], nn.Module]) -> Cost:
    """Divide the memory of a step with AdamW between device and host, as `fsdp` does.

    counted: the step without offload. build: makes the module. `host_bytes` includes all weights,
    and gradients and AdamW's moments of the trained ones. `state_bytes`, on the device, includes
    the largest block and the weights outside of blocks.
    """
    with torch.device("meta"):
        model = build()
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    blocks = [list(block.parameters()) for block in _blocks(model)]
    in_blocks = {weight for block in blocks for weight in block}
    weights = _bytes(model.parameters())
    on_device = weights - _bytes(in_blocks) + max(map(_bytes, blocks), default=0)
    on_host = weights + 3 * _bytes(trained)
    return dataclasses.replace(counted, state_bytes=on_device, host_bytes=on_host)


def _bytes(weights: Iterable[Any]) -> int:
    return sum(weight.nbytes for weight in weights)


def _blocks(model: nn.Module) -> list[nn.Module]:
    """Return the modules that FSDP moves as one unit: members of each list, inner lists first."""
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    blocks = [block for modules in reversed(lists) for block in modules]
    return [block for block in dict.fromkeys(blocks) if next(block.parameters(), None) is not None]
