"""Lookup of frameworks, and of this machine's devices that they can train on."""

import importlib
import importlib.metadata
import pkgutil
import re
import sys

from pomology import devices
from pomology.devices.base import Device
from pomology.errors import NoSuchDevice, PomologyError
from pomology.machine import messages, snapshot

# Requirements of notebook variants: TensorFlow's plugin for Metal, and TF32 in MLX.
FEATURES = ("metal", "tf32")


def frameworks() -> dict[str, type[Device]]:
    """Return each framework's class of devices, from Z to A, so that PyTorch comes first."""
    for file in pkgutil.iter_modules(devices.__path__):
        importlib.import_module(f"{devices.__name__}.{file.name}")
    package = f"{devices.__name__}."  # excludes subclasses of tests
    classes = [
        device_class
        for device_class in Device.__subclasses__()
        if device_class.__module__.startswith(package)
    ]
    classes.sort(key=lambda device_class: device_class.framework, reverse=True)
    return {device_class.framework: device_class for device_class in classes}


def choices() -> tuple[str, ...]:
    """Return the values of `devices`: `auto` (all on this machine), `cpu`, `gpu`, and backends."""
    names = [name for device_class in frameworks().values() for name in device_class.gpus]
    return tuple(dict.fromkeys(("auto", "cpu", "gpu", *names)))


def prepare(framework: str, **settings: bool) -> None:
    """Set what a framework reads on import. Raises PomologyError if it is imported.

    settings: `fusion` for TensorFlow, `tf32` for MLX."""
    _framework_class(framework).prepare(**settings)


def find(choice: str = "auto", framework: str = "torch") -> list[Device]:
    """Return the devices to time: `auto` is all on this machine, CPU first; `gpu` is any GPU.

    `mps`, `metal` and `mlx-gpu` mean an Apple chip's GPU in every framework. Raises PomologyError
    for an unknown name, and NoSuchDevice, a subclass, if this machine has no such device."""
    if choice not in choices():
        raise PomologyError(f"devices: unknown {choice!r}; must be one of {', '.join(choices())}")
    device_class = _framework_class(framework)
    try:
        reasons = device_class.backends()
    except (ImportError, OSError, RuntimeError) as error:  # its libraries do not load
        fault = messages.fault(str(error))
        if fault is None:
            raise
        raise NoSuchDevice(f"{device_class.title} has no devices here: {fault}") from None
    present = [name for name, reason in reasons.items() if reason is None]
    backends = {"auto": present, "gpu": list(device_class.gpus)}.get(choice, [choice])
    # An Apple chip has one GPU, so each framework's name for it is this framework's, too.
    if choice in {other.apple_gpu for other in frameworks().values()}:
        backends = [device_class.apple_gpu]
    chosen = [name for name in present if name in backends]
    if not chosen:
        why = "; ".join(f"{name}: {reason}" for name, reason in reasons.items() if reason)
        has = ", ".join(present)
        raise NoSuchDevice(f"devices: this machine has no {choice!r} ({why}); it has {has}")
    return [device_class(name) for name in chosen]


def no_gpu(framework: str) -> str:
    """Return why a framework times no GPU on this Mac; empty if it does, and on other systems."""
    device_class = _framework_class(framework)
    reason = device_class.backends().get(device_class.apple_gpu)
    absent = sys.platform == "darwin" and reason is not None
    return f"{device_class.title} times no GPU here: {reason}" if absent else ""


def has(feature: str) -> bool:
    """Return whether this machine may have one of FEATURES, without loading a framework."""
    if sys.platform == "darwin":  # GPUs before M5 have no TF32
        return feature == "metal" or not re.search(r"\bM[1-4]\b", snapshot.chip() or "")
    packages = [package.name or "" for package in importlib.metadata.distributions()]
    return feature == "tf32" and any(name.startswith("mlx-cuda") for name in packages)


def _framework_class(framework: str) -> type[Device]:
    """Return a framework's class of devices. Raises PomologyError for an unknown name."""
    classes = frameworks()
    if framework not in classes:
        names = ", ".join(classes)
        raise PomologyError(f"framework: unknown {framework!r}; must be one of {names}")
    return classes[framework]
