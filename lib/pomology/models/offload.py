"""Training with the optimizer's state in the host's memory: DeepSpeed's ZeRO-Offload and PyTorch's FSDP2.

`none`, `zero` and `fsdp` make engines with one interface: AdamW in fp32, in one process, without a launcher.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import io
import logging
import os
import socket
import sys
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch import distributed

from pomology.devices.failures import failure
from pomology.errors import PomologyError, Unsupported
from pomology.models.cost import Workload
from pomology.paths import redact

# The defaults of Hugging Face's Trainer.
ADAMW = {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0}
BUCKET = 50_000_000  # gradients that ZeRO sends at a time: 200 MB; its own default is 2 GB
HOW_TO_GET_DEEPSPEED = "DeepSpeed is not installed; `make env EXTRAS=offload` installs it"
NOT_FOR_A_MAC = "DeepSpeed is not installed; the kit does not install it on macOS"


class Engine(contextlib.AbstractContextManager):
    """A model that trains: `with offload.zero(model, lr=5e-5, device=case.device) as engine:`

    Call `model` for the forward pass, then `backward(loss)`, `step()` and `zero_grad()`.
    `weights_on` is the kind of device that holds the weights between the steps; `describe` says
    what is where. The end of the `with` block ends the process group, too.
    """

    def __init__(self, model: Any, optimizer: Any, weights_on: str, describe: str, clip: float):
        self.model = model
        self.optimizer = optimizer  # DeepSpeed's engine is model and optimizer in one
        self.weights_on = weights_on
        self.describe = describe
        self.clip = clip

    def backward(self, loss: Any) -> None:
        if self.model is self.optimizer:
            self.model.backward(loss)
        else:
            loss.backward()

    def step(self) -> None:
        if self.clip and self.model is not self.optimizer:
            torch.nn.utils.clip_grad_norm_(_trained(self.model), self.clip)
        self.optimizer.step()

    def zero_grad(self) -> None:
        self.optimizer.zero_grad()

    def __exit__(self, *exception: object) -> None:
        if self.model is self.optimizer:
            self.model.destroy()
        self.model = self.optimizer = None
        _end_group()


def none(model: Any, lr: float, device: Any, *, clip: float = 0.0, **adamw: Any) -> Engine:
    """Train with everything on the device and PyTorch's AdamW, by default not fused."""
    model = model.to(device)
    optimizer = _adamw(model, {"lr": lr, "fused": False} | adamw)
    return Engine(model, optimizer, torch.device(device).type, "all on the device", clip)


def fsdp(model: Any, lr: float, device: Any, *, clip: float = 0.0, **adamw: Any) -> Engine:
    """Train with FSDP2 and its CPU offload, which is part of PyTorch. Parameters: see `zero`.

    Weights, gradients and AdamW's state are on the host. The modules of each `nn.ModuleList` go to
    the device one at a time, all others for a whole step. The model is changed in place.
    """
    device = torch.device(device)
    with _grouped(device):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

        mesh = init_device_mesh(device.type, (1,))
        policy = CPUOffloadPolicy(pin_memory=device.type == "cuda")
        for module in [*_blocks(model), model]:
            fully_shard(module, mesh=mesh, offload_policy=policy)
        optimizer = _adamw(model, {"lr": lr} | adamw)
    place = (
        "weights, gradients and AdamW's state on the host, updated there by PyTorch's fused AdamW"
    )
    return Engine(model, optimizer, "cpu", f"FSDP2: {place}", clip)


def zero(model: Any, lr: float, device: Any, *, clip: float = 0.0, **adamw: Any) -> Engine:
    """Train with ZeRO-Offload (Ren et al. 2021) as DeepSpeed has it: stage 2, optimizer on the host.

    model: in fp32. clip: the norm that gradients are clipped to; 0 does not clip. adamw: other
    settings than `ADAMW`. The host has gradients, AdamW's state and a second copy of the weights.
    DeepSpeed's AdamW updates them on CUDA where its C++ can be built (some minutes at first use),
    else PyTorch's; `describe` says which. Raises Unsupported on MPS and without DeepSpeed.
    """
    device = torch.device(device)
    if importlib.util.find_spec("deepspeed") is None:
        raise Unsupported(NOT_FOR_A_MAC if sys.platform == "darwin" else HOW_TO_GET_DEEPSPEED)
    with _grouped(device):
        deepspeed = _deepspeed(device)
        optimizer, updates = _host_adamw(model, device, {"lr": lr} | adamw)
        configuration = {
            "train_micro_batch_size_per_gpu": 1,  # for its reports only
            "steps_per_print": 1 << 60,
            "gradient_clipping": clip,  # the default clips to 1
            "zero_optimization": {
                "stage": 2,
                "offload_optimizer": {"device": "cpu", "pin_memory": device.type == "cuda"},
                "reduce_bucket_size": BUCKET,
            },
            "zero_force_ds_cpu_optimizer": False,
        }
        # A launcher would set it.
        with mock.patch.dict(os.environ, {"LOCAL_RANK": str(device.index or 0)}):
            model, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=configuration)
    place = "gradients, AdamW's state and a copy of the weights on the host, updated there by"
    describe = f"ZeRO-Offload (DeepSpeed {deepspeed.__version__}): {place} {updates}"
    return Engine(model, model, device.type, describe, clip)


KINDS: dict[str, Callable[..., Engine]] = {"none": none, "zero": zero, "fsdp": fsdp}


def placed(counted: Workload, build: Callable[[], Any], kind: str) -> Workload:
    """Return a step with AdamW, counted without offload, as an engine of `KINDS` divides it.

    build: makes the module. `state_bytes` is what the device holds at the least, `host_bytes` what
    the host does. With `zero` these are five numbers of each trained weight (itself twice, its
    gradient, AdamW's two) and a buffer as large as the largest weight, which the device has too.
    With `fsdp` it is each weight, and three more numbers of a trained one; the device has the
    largest block, and what is in no block.
    """
    if kind not in KINDS:
        raise PomologyError(f"offload is {kind!r}; it must be one of {', '.join(KINDS)}")
    if kind == "none":
        return counted
    with torch.device("meta"):
        model = build()
    weights = _bytes(model.parameters())
    trained = _bytes(_trained(model))
    if kind == "zero":
        buffer = max(weight.nbytes for weight in _trained(model))
        on_device = weights + buffer
        on_host = 5 * trained + buffer
    else:
        blocks = [list(block.parameters()) for block in _blocks(model)]
        in_blocks = {weight for block in blocks for weight in block}
        on_device = weights - _bytes(in_blocks) + max(map(_bytes, blocks), default=0)
        on_host = weights + 3 * trained
    return dataclasses.replace(counted, state_bytes=on_device, host_bytes=on_host)


def _bytes(weights: Any) -> int:
    return sum(weight.nbytes for weight in weights)


def _trained(model: Any) -> list[Any]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def _blocks(model: Any) -> list[Any]:
    """Return what FSDP moves in one piece: modules of each list of modules, inner ones first."""
    lists = [module for module in model.modules() if isinstance(module, torch.nn.ModuleList)]
    blocks = [block for modules in reversed(lists) for block in modules]
    return [block for block in dict.fromkeys(blocks) if next(block.parameters(), None) is not None]


@contextlib.contextmanager
def _grouped(device: Any) -> Iterator[None]:
    """Start a process group of this process alone, and end it if the engine cannot be made."""
    if device.type not in ("cpu", "cuda"):
        raise Unsupported("no offload: the GPU and the processor of this chip share their memory")
    # By itself Gloo listens to the network, which macOS asks its user about.
    names = [name for _, name in socket.if_nameindex() if name.startswith("lo")]
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    with mock.patch.dict(os.environ, {"GLOO_SOCKET_IFNAME": names[0]}):
        store = distributed.HashStore()  # in memory: no port, no file
        distributed.init_process_group(backend, store=store, rank=0, world_size=1)
    try:
        yield
    except BaseException:
        _end_group()
        raise


def _end_group() -> None:
    communication = sys.modules.get("deepspeed.comm.comm")
    if communication is not None and communication.cdb is not None:
        communication.destroy_process_group()  # DeepSpeed forgets its own handles
        communication.cdb = None
    elif distributed.is_initialized():
        distributed.destroy_process_group()


def _deepspeed(device: Any) -> Any:
    """Import DeepSpeed for a kind of device. Raises Unsupported if it is there for another kind."""
    environment = mock.patch.dict(os.environ, {"DS_ACCELERATOR": device.type})
    with environment, contextlib.redirect_stdout(io.StringIO()):
        import deepspeed
        from deepspeed.accelerator import get_accelerator
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    chosen = get_accelerator().device_name()
    if chosen.split(":")[0] != device.type:
        raise Unsupported(
            f"DeepSpeed computes on {chosen} here, and cannot change to {device.type}"
        )
    # Without this it compiles an operator for processes that share memory.
    deepspeed.ops.__compatible_ops__ = {}
    return deepspeed


def _adamw(model: Any, settings: dict[str, Any]) -> Any:
    return torch.optim.AdamW(_trained(model), **{"fused": True} | ADAMW | settings)


def _host_adamw(model: Any, device: Any, settings: dict[str, Any]) -> tuple[Any, str]:
    """Return the optimizer that runs on the host, and its name in words."""
    if device.type != "cuda":
        return _adamw(model, settings), "PyTorch's fused AdamW"
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            from deepspeed.ops.adam import DeepSpeedCPUAdam

            optimizer = DeepSpeedCPUAdam(_trained(model), adamw_mode=True, **ADAMW | settings)
        return optimizer, "DeepSpeed's CPUAdam"
    except Exception as error:  # a compiler that is missing, or fails, shows in many ways
        if failure(error) == "out-of-memory":
            raise
        first = redact(str(error).strip().splitlines()[0])
        why = f"DeepSpeed's CPUAdam cannot be built here: {first}"
        return _adamw(model, settings), f"PyTorch's fused AdamW ({why})"
