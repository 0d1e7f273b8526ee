"""Training with the optimiser's state, and more, in the host's memory: DeepSpeed's ZeRO-Offload, and PyTorch's FSDP2.

`none`, `zero` and `fsdp` make engines that are used alike: AdamW in fp32, in one process, without a launcher. One that
offloads has a process group of its own. There is one engine at a time: an interrupted case leaves nothing to the next.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import importlib.util
import io
import logging
import os
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import distributed

from pomology.devices.failures import failure
from pomology.errors import PomologyError, Unsupported
from pomology.models.cost import Workload
from pomology.paths import redact

ADAMW = {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0}  # as Hugging Face's trainer has it by default
BUCKET = 50_000_000  # gradients that ZeRO collects before it hands them on: 200 MB; its own default is 2 GB
HOW_TO_GET_DEEPSPEED = "DeepSpeed is not installed; `make env EXTRAS=offload` installs it"
NOT_FOR_A_MAC = "DeepSpeed is not installed; the kit does not install it on macOS, where memory is shared anyway"

_open: list[Engine] = []  # the engine that has the process group


class Engine(contextlib.AbstractContextManager):
    """A model that trains, as `with offload.zero(model, lr=5e-5, device=case.device) as engine:`

    Call `model` for the forward pass; then `backward(loss)`, `step()` and `zero_grad()`. `describe` says what is where;
    `weights_on` is the kind of device that holds the weights between the steps. DeepSpeed's engine is model and
    optimiser in one.
    """

    def __init__(self, model: Any, optimizer: Any, weights_on: str, describe: str, clip: float = 0.0):
        self.model, self.optimizer, self.clip = model, optimizer, clip
        self.weights_on, self.describe = weights_on, describe

    def backward(self, loss: Any) -> None:
        if self.model is self.optimizer:
            self.model.backward(loss)
        else:
            loss.backward()

    def step(self) -> None:
        if self.clip:
            torch.nn.utils.clip_grad_norm_(_trained(self.model), self.clip)
        self.optimizer.step()

    def zero_grad(self) -> None:
        self.optimizer.zero_grad()

    def close(self) -> None:
        """Let go of the model, the optimiser and the process group. May be called twice."""
        if self.model is not None and self.model is self.optimizer:
            self.model.destroy()
        self.model = self.optimizer = None
        if self in _open:
            _open.remove(self)
            _end_group()

    def __exit__(self, *exception: object) -> None:
        self.close()


def none(model: Any, lr: float, device: Any = None, *, clip: float = 0.0, **adamw: Any) -> Engine:
    """Train as usual, everything on the device, with PyTorch's AdamW as it comes: not fused, unless `fused` asks for
    it. Parameters: see `zero`."""
    close()
    device = _device(model, device)
    model = model.to(device)
    return Engine(model, _adamw(model, {"lr": lr, "fused": False} | adamw), device.type, "all on the device", clip)


def fsdp(model: Any, lr: float, device: Any = None, *, clip: float = 0.0, **adamw: Any) -> Engine:
    """FSDP2 with CPU offload, which is part of PyTorch. Parameters: see `zero`.

    Weights, gradients and AdamW's state are on the host. The modules of each `nn.ModuleList` go to the device one at a
    time, what is outside of them for a whole step. The model is changed in place. Raises Unsupported on MPS.
    """
    device = _device(model, device)
    with _grouped(device):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

        mesh = init_device_mesh(device.type, (1,))
        policy = CPUOffloadPolicy(pin_memory=device.type == "cuda")
        for module in [*_blocks(model), model]:
            fully_shard(module, mesh=mesh, offload_policy=policy)
        place = "FSDP2: weights, gradients and AdamW's state on the host, updated there by PyTorch's fused AdamW"
        _open.append(Engine(model, _adamw(model, {"lr": lr} | adamw), "cpu", place, clip))
        return _open[-1]


def zero(model: Any, lr: float, device: Any = None, *, clip: float = 0.0, **adamw: Any) -> Engine:
    """ZeRO-Offload (Ren et al. 2021), as DeepSpeed has it: stage 2, optimiser in the host's memory.

    model: in fp32. device: where to compute; by default where the model is. clip: the norm that gradients are clipped
    to; 0 does not clip. adamw: other settings than `ADAMW`. The host has gradients, AdamW's state and a second copy of
    the weights, updated by DeepSpeed's AdamW on CUDA where its C++ can be built (some minutes at first use), else by
    PyTorch's; `describe` says which, and why. Raises Unsupported where DeepSpeed is not installed, and on MPS.
    """
    device = _device(model, device)
    if importlib.util.find_spec("deepspeed") is None:
        raise Unsupported(NOT_FOR_A_MAC if sys.platform == "darwin" else HOW_TO_GET_DEEPSPEED)
    with _grouped(device):
        deepspeed = _deepspeed(device)
        optimizer, updates = _host_adamw(model, device, {"lr": lr} | adamw)
        offloaded = {"device": "cpu", "pin_memory": device.type == "cuda"}
        configuration = {
            "train_micro_batch_size_per_gpu": 1,  # only its reports ask
            "steps_per_print": 1 << 60,
            "gradient_clipping": clip,  # by itself it clips to 1
            "zero_optimization": {"stage": 2, "offload_optimizer": offloaded, "reduce_bucket_size": BUCKET},
            "zero_force_ds_cpu_optimizer": False,
        }
        # What a launcher would say; 0 is the first GPU.
        with mock.patch.dict(os.environ, {"LOCAL_RANK": str(device.index or 0)}):
            model, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=configuration)
        place = f"ZeRO-Offload (DeepSpeed {deepspeed.__version__}): gradients, AdamW's state and a copy of the weights "
        _open.append(Engine(model, model, device.type, f"{place}on the host, updated there by {updates}"))
        return _open[-1]


KINDS: dict[str, Callable[..., Engine]] = {"none": none, "zero": zero, "fsdp": fsdp}


def close() -> None:
    """End the engine that is open, if there is one."""
    while _open:
        _open[-1].close()


atexit.register(close)


def placed(counted: Workload, build: Callable[[], Any], kind: str) -> Workload:
    """A step that was counted for AdamW without offload, with what an engine keeps on the device and on the host.

    build: makes the module. kind: of `KINDS`. `state_bytes` is what the device holds at the least, `host_bytes` what
    the host does. With `zero` that is five numbers of each trained weight (itself twice, its gradient, AdamW's two)
    and a buffer as large as the largest weight, which the device has too. With `fsdp` it is each weight, and of a
    trained one three numbers more; the device has the largest block, and what is in no block.
    """
    if kind not in KINDS:
        raise PomologyError(f"offload is {kind!r}; it must be one of {', '.join(KINDS)}")
    if kind == "none":
        return counted

    def size(weights: Any) -> int:
        return sum(weight.nbytes for weight in weights)

    with torch.device("meta"):
        model = build()
    weights, trained = size(model.parameters()), size(_trained(model))
    if kind == "zero":
        buffer = max((weight.nbytes for weight in _trained(model)), default=0)
        return dataclasses.replace(counted, state_bytes=weights + buffer, host_bytes=5 * trained + buffer)
    blocks = [list(block.parameters()) for block in _blocks(model)]
    outside = weights - size({id(weight): weight for block in blocks for weight in block}.values())
    largest = max(map(size, blocks), default=0)
    return dataclasses.replace(counted, state_bytes=outside + largest, host_bytes=weights + 3 * trained)


def _trained(model: Any) -> list[Any]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def _blocks(model: Any) -> list[Any]:
    """What FSDP takes to the device in one piece: the modules of each list of modules, inner ones first."""
    lists = [module for module in model.modules() if isinstance(module, torch.nn.ModuleList)]
    blocks = [block for one in reversed(lists) for block in one if next(block.parameters(), None) is not None]
    return list(dict.fromkeys(blocks))


def _device(model: Any, device: Any) -> Any:
    return torch.device(device) if device is not None else next(model.parameters()).device


@contextlib.contextmanager
def _grouped(device: Any) -> Iterator[None]:
    """With a process group of this process alone; it ends here only if the engine cannot be made."""
    if device.type not in ("cpu", "cuda"):
        raise Unsupported("there is nowhere to offload to: the GPU and the processor of this chip share their memory")
    close()
    if distributed.is_initialized():
        raise PomologyError("offload: this process has a process group already, which is not the kit's; restart it")
    # Gloo would look up the name of this computer, and listen to the network, which macOS asks its user about.
    loopback = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), None)
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    with mock.patch.dict(os.environ, {"GLOO_SOCKET_IFNAME": loopback} if loopback else {}):
        # Its members would meet in a table in memory: no port, no file.
        distributed.init_process_group(backend, store=distributed.HashStore(), rank=0, world_size=1)
    try:
        yield
    except BaseException:
        _end_group()
        raise


def _end_group() -> None:
    communication = sys.modules.get("deepspeed.comm.comm")
    if communication is not None and communication.cdb is not None:
        communication.destroy_process_group()  # which forgets its own handles of it too
        communication.cdb = None
    else:
        distributed.destroy_process_group()


def _deepspeed(device: Any) -> Any:
    """The package, silent, for this kind of device. Raises Unsupported if this process has it for another kind."""
    with mock.patch.dict(os.environ, {"DS_ACCELERATOR": device.type}), contextlib.redirect_stdout(io.StringIO()):
        import deepspeed
        from deepspeed.accelerator import get_accelerator
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    chosen = get_accelerator().device_name()
    if chosen.split(":")[0] != device.type:
        raise Unsupported(f"DeepSpeed computes on {chosen} in this process, and cannot change to {device.type}")
    # Else it compiles an operator for processes that share memory; here is one process.
    deepspeed.ops.__compatible_ops__ = {}
    return deepspeed


def _adamw(model: Any, settings: dict[str, Any]) -> Any:
    settings = {"fused": True} | ADAMW | settings
    return torch.optim.AdamW(_trained(model), **settings)  # not fused: where settings say so, as the article's were


def _host_adamw(model: Any, device: Any, settings: dict[str, Any]) -> tuple[Any, str]:
    """The optimiser that runs on the host, and its name in words."""
    if device.type != "cuda":
        return _adamw(model, settings), "PyTorch's fused AdamW"
    try:
        from torch.utils import cpp_extension

        # A build that was killed holds its lock for ever, and PyTorch would wait for it.
        place = Path(os.environ.get("TORCH_EXTENSIONS_DIR") or cpp_extension.get_default_build_root())
        for lock in (*place.glob("cpu_adam/lock"), *place.glob("*/cpu_adam/lock")):
            raise RuntimeError(f"a build that is running, or was killed, holds {lock}; if none is running, remove that")
        with contextlib.redirect_stdout(io.StringIO()):
            from deepspeed.ops.adam import DeepSpeedCPUAdam

            optimizer = DeepSpeedCPUAdam(_trained(model), adamw_mode=True, **ADAMW | settings)
        return optimizer, "DeepSpeed's CPUAdam"
    except Exception as error:  # a compiler that is missing, or fails, shows in many ways
        if failure(error) == "out-of-memory":
            raise
        why = f"DeepSpeed's CPUAdam cannot be built here: {redact(str(error).strip().splitlines()[0])}"
        return _adamw(model, settings), f"PyTorch's fused AdamW ({why})"
