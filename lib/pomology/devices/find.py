"""The frameworks of the kit, and the devices of this machine that they can train on."""

import importlib
import importlib.metadata
import pkgutil
import re
import sys

from pomology import devices
from pomology.devices.base import Device
from pomology.errors import NoSuchDevice, PomologyError
from pomology.machine import snapshot

# What a variant of a notebook may be for: TensorFlow's plugin, and fp32 as MLX ships it.
FEATURES = ("metal", "tf32")


def frameworks() -> dict[str, type[Device]]:
    """Each framework of this package -> its class of devices, from Z to A: PyTorch comes first."""
    for file in pkgutil.iter_modules(devices.__path__):
        importlib.import_module(f"{devices.__name__}.{file.name}")
    package = f"{devices.__name__}."  # tests have subclasses, too
    kinds = [kind for kind in Device.__subclasses__() if kind.__module__.startswith(package)]
    kinds.sort(key=lambda kind: kind.framework, reverse=True)
    return {kind.framework: kind for kind in kinds}


def choices() -> tuple[str, ...]:
    """What `devices` may be: `auto` (all of this machine), `cpu`, `gpu`, or a backend's name."""
    names = [name for kind in frameworks().values() for name in kind.gpus]
    return tuple(dict.fromkeys(("auto", "cpu", "gpu", *names)))


def prepare(framework: str, **settings: bool) -> None:
    """Set what a framework reads when it is loaded. Raises PomologyError if it is loaded already.

    settings: `fusion` of TensorFlow, `tf32` of MLX."""
    _kind(framework).prepare(**settings)


def find(wanted: str = "auto", framework: str = "torch") -> list[Device]:
    """The devices to time: `auto` is all of this machine, the CPU first; `gpu` is any GPU.

    `mps`, `metal` and `mlx-gpu` mean an Apple chip's GPU in every framework. Raises PomologyError
    for an unknown name, and its subclass NoSuchDevice if there is no such device here."""
    if wanted not in choices():
        raise PomologyError(f"devices: {wanted!r} is not known; one of {', '.join(choices())} is")
    kind = _kind(framework)
    reasons = kind.backends()
    present = [name for name, reason in reasons.items() if reason is None]
    backends = {"auto": present, "gpu": list(kind.gpus)}.get(wanted, [wanted])
    if wanted in {each.apple_gpu for each in frameworks().values()}:
        backends = [kind.apple_gpu]
    chosen = [name for name in present if name in backends]
    if not chosen:
        why = "; ".join(f"{name}: {reason}" for name, reason in reasons.items() if reason)
        has = ", ".join(present)
        raise NoSuchDevice(f"devices: {wanted!r} is not on this machine ({why}); it has {has}")
    return [kind(name) for name in chosen]


def no_gpu(framework: str) -> str:
    """Return why a framework times no GPU on this Mac; empty where it does, and elsewhere."""
    kind = _kind(framework)
    reason = kind.backends().get(kind.apple_gpu)
    absent = sys.platform == "darwin" and reason is not None
    return f"{kind.title} times no GPU here: {reason}" if absent else ""


def has(feature: str) -> bool:
    """Return whether this machine may have one of FEATURES. Loads no framework."""
    if sys.platform == "darwin":  # GPUs before M5 have no TF32
        return feature == "metal" or not re.search(r"\bM[1-4]\b", snapshot.chip() or "")
    packages = [package.name or "" for package in importlib.metadata.distributions()]
    return feature == "tf32" and any(name.startswith("mlx-cuda") for name in packages)


def _kind(framework: str) -> type[Device]:
    kinds = frameworks()
    if framework not in kinds:
        raise PomologyError(f"framework: {framework!r} is not known; one of {', '.join(kinds)} is")
    return kinds[framework]
