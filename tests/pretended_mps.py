"""A pretended MPS for people without a Mac.

Its tensors say that they are on a device of their own, as on a GPU, while the CPU computes. So
PyTorch takes the way that it takes on a GPU, tensors of two devices cannot meet unnoticed, and
every operator that reaches the device is seen. It is looked up in the list of kernels that the
PyTorch of Macs was built from (`fixtures/mps_operators.txt`: `<what it has> <operator>
<overloads>`, and `autocast <precision> <operators>`), and must not make double precision, which
Metal lacks. The memory of its tensors is counted. `pretended_cuda` makes an NVIDIA GPU of it.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
import torch
from rehearsal import ask_no_framework
from torch._decomp.decompositions import gru_impl, lstm_impl
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from pomology.devices import find
from pomology.devices import torch as devices_torch
from pomology.devices.base import Device

PRETENDED = "pretended"
# What PyTorch calls for a device that it does not know; for MPS it calls matmul, softmax, matmul
# (2.14: derivatives.yaml, attention.cpp).
REPLACED = "_scaled_dot_product_fused_attention_overrideable"
# Has an entry for MPS which computes on the CPU, with or without the fallback variable (read in the
# binary of 2.14.1, where MPSFallback.mm registers no other one).
SILENT_FALLBACKS = {"embedding_renorm_"}
# Indices and lengths may stay on the CPU.
TAKES_HOST_TENSORS = {"index", "index_put", "index_put_", "_index_put_impl_"}
TAKES_HOST_TENSORS |= {"_ctc_loss", "_pack_padded_sequence"}

LIST = Path(__file__).parent / "fixtures" / "mps_operators.txt"


def _read() -> tuple[set[str], dict[str, list[str]]]:
    """What MPS has of operators, `name` or `name.overload`, and autocast's lists by precision."""
    operators, lists = set(), {}
    for kind, name, *rest in map(str.split, LIST.read_text(encoding="utf-8").splitlines()[1:]):
        if kind == "autocast":
            lists[name] = rest
        else:
            operators |= {name if each == "-" else f"{name}.{each}" for each in rest}
    return operators, lists


OPERATORS, AUTOCAST = _read()  # of the PyTorch that Macs get, whichever one is installed here


def lacks(operator: str) -> str | None:
    """What is wrong with an operator such as `add.Tensor` on MPS."""
    base = operator.split(".")[0]
    if base in SILENT_FALLBACKS:
        return f"MPS hands {operator} to the CPU without a word"
    if operator in OPERATORS or base.startswith(REPLACED):
        return None
    return f"MPS has no kernel for {operator}: it fails, or runs on the CPU"


def _meant(device: Any) -> bool:
    return device is not None and torch.device(device).type == PRETENDED


# Of operators that PyTorch divides into others only on devices that it knows.
RECURRENT = {torch.lstm: lstm_impl, torch.gru: gru_impl}


class Memory:
    """Bytes of the device's tensors, and of the pool that its allocator keeps, with their peaks.

    A storage counts once, however many tensors share it, until the last of them is gone.
    """

    def __init__(self):
        self.allocated = self.pool = self.allocated_peak = self.pool_peak = 0
        self._storages: dict[int, list[int]] = {}  # address -> its tensors, and its bytes

    def add(self, tensor: torch.Tensor) -> int:
        """Count a tensor's storage, unless it is counted; return its address, for `remove`."""
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        entry = self._storages.setdefault(address, [0, storage.nbytes()])
        entry[0] += 1
        if entry[0] == 1:
            self.allocated += entry[1]
            self.pool = max(self.pool, self.allocated)
            self.allocated_peak = max(self.allocated_peak, self.allocated)
            self.pool_peak = max(self.pool_peak, self.pool)
        return address

    def remove(self, address: int) -> None:
        """Count a tensor's storage no longer, if no other one shares it."""
        entry = self._storages[address]
        entry[0] -= 1
        if not entry[0]:
            self.allocated -= entry[1]
            del self._storages[address]

    def empty_cache(self) -> None:
        """Give the pool's free memory back."""
        self.pool = self.allocated

    def reset_peaks(self) -> None:
        """Let the peaks begin with what is there."""
        self.allocated_peak, self.pool_peak = self.allocated, self.pool

    def answer(self, recommended: Callable[[], int]) -> None:
        """Answer PyTorch's questions about an accelerator's memory, from here on.

        recommended: returns the bytes that the device should use at most.
        """
        answers = {
            "accelerator.empty_cache": self.empty_cache,
            "accelerator.memory_allocated": lambda: self.allocated,
            "accelerator.memory_reserved": lambda: self.pool,
            "accelerator.max_memory_allocated": lambda: self.allocated_peak,
            "accelerator.max_memory_reserved": lambda: self.pool_peak,
            "accelerator.reset_peak_memory_stats": self.reset_peaks,
            "accelerator.get_memory_info": lambda: (recommended() - self.pool, recommended()),
            "accelerator.synchronize": lambda: None,
            "mps.current_allocated_memory": lambda: self.allocated,
            "mps.driver_allocated_memory": lambda: self.pool,
            "mps.recommended_max_memory": recommended,
        }
        for path, function in answers.items():
            module, name = path.split(".")
            assert hasattr(getattr(torch, module), name), path
            setattr(getattr(torch, module), name, function)


class Rehearsal:
    """A device like MPS that computes on the CPU; `handle` is its `torch.device`.

    Enter it before anything is created on it. One to a process, as PyTorch keeps one place for a
    device of one's own. operators: how often each was asked for. memory: of its tensors. metal:
    whether it lacks what MPS lacks; then double precision raises TypeError. faults: each one, once,
    that a Mac would refuse, compute on the CPU, or get wrong.
    """

    def __init__(self, metal: bool = True):
        from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

        if torch._C._get_privateuse1_backend_name() != PRETENDED:
            _setup_privateuseone_for_python_backend(PRETENDED)
            halves = [torch.bfloat16, torch.float16]
            getattr(torch, PRETENDED).get_amp_supported_dtype = lambda: halves
            _register_autocast()
        self.handle = torch.device(PRETENDED, 0)
        self.metal = metal
        self.operators: Counter[str] = Counter()
        self.memory = Memory()
        self.faults: list[str] = []
        self._tensor = _tensor_class(self)

    @contextmanager
    def entered(self) -> Iterator[Rehearsal]:
        """The block in which the device is there."""
        rehearsal = self

        class Mode(TorchDispatchMode):
            def __torch_dispatch__(self, function, types, args=(), kwargs=None):
                return rehearsal.run(function, args, kwargs or {})

        class Functions(TorchFunctionMode):
            """What copies numbers to a device passes no dispatch mode; here it goes by the CPU."""

            def __torch_function__(self, function, types, args=(), kwargs=None):
                named = dict(kwargs or {})
                if function is torch.Tensor.new_tensor and isinstance(args[0], rehearsal._tensor):
                    named = {"dtype": args[0].dtype, "device": rehearsal.handle} | named
                    function, args = torch.tensor, args[1:]
                copies = function in (torch.tensor, torch.as_tensor, torch.asarray)
                if function in RECURRENT:  # of a device that it does not know: a kernel of CUDA's
                    return RECURRENT[function](*args, **named)
                if copies and _meant(named.get("device")):
                    return function(*args, **named | {"device": "cpu"}).to(named["device"])
                return function(*args, **named)

        # Parameters are exchanged for others when a module moves: their data stays what it is.
        swap = torch.__future__.get_swap_module_params_on_conversion()
        torch.__future__.set_swap_module_params_on_conversion(True)
        looking = torch.nn.modules.module.register_module_forward_pre_hook(self._look_at_inputs)
        # PyTorch's list of devices with multi-tensor kernels has a device of one's own, not MPS.
        listed = ["cuda", "xpu", "mtia", *([] if self.metal else [PRETENDED])]
        devices = {"_get_foreach_kernels_supported_devices": lambda: listed}
        try:
            with (
                mock.patch.multiple("torch.optim.optimizer", **devices),
                mock.patch.multiple("torch.utils._foreach_utils", **devices),
                mock.patch.object(torch.accelerator, "synchronize", lambda *_: None),
                sdpa_kernel(SDPBackend.MATH),  # attention as MPS trains it; the mock has no other
                Mode(),
                Functions(),
            ):
                yield self
        finally:
            torch.__future__.set_swap_module_params_on_conversion(swap)
            looking.remove()

    def run(self, function: Any, args: tuple, kwargs: dict) -> Any:
        """Compute one operator on the CPU, and note what a Mac would say to it."""
        mine, schema, wanted = self._tensor, function._schema, kwargs.get("device")
        tensors: list[torch.Tensor] = []

        def look(item: torch.Tensor) -> torch.Tensor:
            tensors.append(item)
            return item.inner if isinstance(item, mine) else item

        inner, named = _replaced(look, [args, kwargs])
        here = any(isinstance(item, mine) for item in tensors)
        if not here and not _meant(wanted):  # the CPU's own, and what is counted on no device
            return function(*args, **kwargs)
        name = schema.name.split("::")[-1]
        on_device = here if wanted is None else _meant(wanted)
        if schema.name == "aten::copy_":
            on_device = isinstance(args[0], mine)
        strangers = any(not isinstance(item, mine) and item.dim() for item in tensors)
        if here and strangers and function not in COPIES and name not in TAKES_HOST_TENSORS:
            raise RuntimeError(f"{name}: expected all tensors on one device, but found cpu and gpu")
        self._note(function, name, args, kwargs)
        if _meant(wanted):
            named["device"] = torch.device("cpu")
        result = BY_HAND.get(function, function)(*inner, **named)
        arguments = zip(schema.arguments, args, strict=False)
        written = [value for argument, value in arguments if argument.is_write]
        written = [item for item in (*written, kwargs.get("out")) if isinstance(item, torch.Tensor)]
        if written and isinstance(result, torch.Tensor):
            return written[0]  # the caller's own tensor, whose contents have changed

        def wrap(item: Any) -> Any:
            if isinstance(item, mine):
                return item
            if self.metal and item.dtype in (torch.float64, torch.complex128):
                kind = str(item.dtype).removeprefix("torch.")
                self._fault(f"{name} makes {kind} on the device, which MPS does not support")
                raise TypeError(
                    f"Cannot convert a MPS Tensor to {kind}; please use float32 instead."
                )
            return mine(item)

        return _replaced(wrap, result) if on_device else result

    def _note(self, function: Any, name: str, args: tuple, kwargs: dict) -> None:
        full = ".".join(filter(None, (name, function._schema.overload_name)))
        self.operators[full] += 1
        if not self.metal:
            return
        if self.operators[full] == 1 and function._schema.name.startswith("aten::"):
            self._fault(lacks(full))
        source = args[1 if name == "copy_" else 0] if function in COPIES else None
        at_once = kwargs.get("non_blocking") or (name == "copy_" and len(args) > 2 and args[2])
        if at_once and not isinstance(source, self._tensor):
            self._fault(f"{name} with non_blocking=True: what is read next may not have arrived")
        if kwargs.get("memory_format") in (torch.channels_last, torch.channels_last_3d):
            self._fault(f"{name} with channels_last: BatchNorm goes wrong with it on MPS")

    def _look_at_inputs(self, module: Any, inputs: tuple) -> None:
        kind = type(module).__name__
        for item in inputs if kind.startswith("BatchNorm") or kind == "LSTM" else ():
            if self.metal and isinstance(item, self._tensor) and not item.is_contiguous():
                self._fault(f"{kind} gets a permuted input: wrong gradients; call .contiguous()")

    def _fault(self, text: str | None) -> None:
        if text and text not in self.faults:
            self.faults.append(text)


def _replaced(change: Any, item: Any) -> Any:
    """Arguments or results with `change` of each tensor (PyTorch's trees are slow)."""
    if isinstance(item, torch.Tensor):
        return change(item)
    if isinstance(item, (list, tuple)):
        return type(item)([_replaced(change, each) for each in item])
    if isinstance(item, dict):
        return {name: _replaced(change, each) for name, each in item.items()}
    return item


def _tensor_class(rehearsal: Rehearsal) -> type:
    class Pretended(torch.Tensor):
        """A tensor that says it is on the pretended device; `inner` holds its numbers."""

        @staticmethod
        def __new__(cls, inner: torch.Tensor):
            layout = {"strides": inner.stride(), "storage_offset": inner.storage_offset()}
            layout |= {"dtype": inner.dtype, "device": rehearsal.handle}
            made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, **layout)
            made.inner = inner
            made.address = rehearsal.memory.add(inner)
            return made

        def __del__(self) -> None:
            rehearsal.memory.remove(self.address)

        def __repr__(self, **_) -> str:
            return f"pretended({self.inner})"

        def tolist(self) -> Any:
            return self.inner.tolist()

        def double(self, **named) -> Any:
            # The gradient scaler leaves double precision out on the device that is called mps.
            from_scaler = sys._getframe(1).f_globals.get("__name__") == "torch.amp.grad_scaler"
            return self if rehearsal.metal and from_scaler else super().double(**named)

        def numpy(self, **_) -> Any:
            raise TypeError("can't convert mps:0 device type tensor to numpy")

        __array__ = numpy

        def __reduce_ex__(self, protocol: int) -> Any:
            return self.inner.__reduce_ex__(protocol)  # saved as any tensor is: by its numbers

        @classmethod
        def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
            return rehearsal.run(function, args, kwargs or {})

    return Pretended


COPIES = {torch.ops.aten.copy_.default, torch.ops.aten._to_copy.default}
# What tests let an operator compute in place of its kernel.
BY_HAND: dict[Any, Any] = {}


def _register_autocast() -> None:
    def caster(operator: Any, lower: bool) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            kind = torch.get_autocast_dtype(PRETENDED) if lower else torch.float32

            def cast(item: Any) -> Any:
                mine = item.is_floating_point() and item.device.type == PRETENDED
                return item.to(kind) if mine else item

            keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)
            with torch._C._ExcludeDispatchKeyGuard(keys):
                args, kwargs = _replaced(cast, [args, kwargs])
                return operator(*args, **kwargs)

        return call

    rest = torch.library.Library("_", "IMPL", "AutocastPrivateUse1")
    rest.fallback(torch.library.fallthrough_kernel)
    library = torch.library.Library("aten", "IMPL", "AutocastPrivateUse1")
    for policy, names in AUTOCAST.items():
        for name in names:
            base, _, overload = name.partition(".")
            operator = getattr(getattr(torch.ops.aten, base), overload or "default")
            library.impl(operator, caster(operator, policy == "lower"))
    _LIBRARIES.extend((rest, library))  # what they register goes when they do


_LIBRARIES: list = []


def become(lightning: bool, beside_the_cpu: bool = False) -> Rehearsal:
    """From here on, MPS is the device that is found in this process, or the second one.

    lightning: by Lightning too.
    """
    rehearsal = Rehearsal()
    rehearsal.memory.answer(recommended_bytes)
    be_found(PretendedMPS(rehearsal), beside_the_cpu)
    if lightning:
        from lightning.pytorch.accelerators.mps import MPSAccelerator

        be_lightning_s(MPSAccelerator, rehearsal.handle)
        MPSAccelerator.setup_device = lambda self, device: None
    return rehearsal


def recommended_bytes() -> int:
    """Return what Metal recommends: typically three quarters of the machine's memory."""
    return psutil.virtual_memory().total * 3 // 4


def be_found(device: Device, beside_the_cpu: bool) -> None:
    """Let a device be the one that is found in this process, or the one after the CPU."""
    there = [*(find.find("cpu") if beside_the_cpu else []), device]
    find.find = lambda *_, **__: list(there)
    ask_no_framework(device.backend)


class PretendedMPS(devices_torch.TorchDevice):
    """What a notebook takes for MPS; there is nothing to wait for."""

    name = "pretended MPS"

    def __init__(self, rehearsal: Rehearsal):
        super().__init__("mps")
        self.handle = rehearsal.handle
        self.rehearsal = rehearsal

    def device_of(self, item: Any) -> str:
        return super().device_of(item).replace(PRETENDED, self.backend)

    def precisions(self) -> dict[str, str | None]:
        before = list(self.rehearsal.faults)  # trying double precision is how to find out
        try:
            return super().precisions()
        finally:
            self.rehearsal.faults[:] = before


def be_lightning_s(accelerator: Any, handle: Any) -> None:
    """Let one of Lightning's accelerators be the pretended device, in this process for good."""
    from lightning.fabric import accelerators
    from lightning.fabric.utilities import apply_func

    for each in (accelerator, getattr(accelerators, accelerator.__name__)):  # the one for `auto`
        each.is_available = staticmethod(lambda: True)
    accelerator.parse_devices = staticmethod(lambda devices: [0])
    accelerator.get_parallel_devices = staticmethod(lambda devices: [handle])
    apply_func._BLOCKING_DEVICE_TYPES = (*apply_func._BLOCKING_DEVICE_TYPES, PRETENDED)
