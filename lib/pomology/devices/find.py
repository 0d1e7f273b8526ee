"""The frameworks of the kit, and the devices of this machine that they can train on."""

import importlib
import pkgutil
import sys

from pomology import devices
from pomology.devices.base import Device, UnusableDevice
from pomology.devices.mlx import MLXDevice
from pomology.errors import NoSuchDevice, PomologyError
from pomology.machine import snapshot


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


def prepare(framework: str, **asked: bool) -> None:
    """Set what a framework reads when it is loaded. Raises PomologyError if it is loaded already.

    asked: `fusion` of TensorFlow, `tf32` of MLX."""
    _kind(framework).prepare(**asked)


def find(wanted: str = "auto", framework: str = "torch") -> list[Device]:
    """The devices to time: `auto` is all of this machine, the CPU first; `gpu` is any GPU.

    `mps`, `metal` and `mlx-gpu` mean an Apple chip's GPU in every framework. Raises PomologyError
    for an unknown name, and its subclass NoSuchDevice if there is no such device here."""
    if wanted not in choices():
        raise PomologyError(f"devices: {wanted!r} is not known; one of {', '.join(choices())} is")
    kind = _kind(framework)
    reasons = kind.backends()
    present = [name for name, reason in reasons.items() if reason is None]
    gpus = [name for name in reasons if name != "cpu"]
    backends = {"auto": present, "gpu": gpus}.get(wanted, [wanted])
    if wanted in {each.apple_gpu for each in frameworks().values()}:
        backends = [kind.apple_gpu]
    chosen = [name for name in backends if name in present]
    if not chosen:
        asked = [name for name in gpus if name in backends] or gpus
        why = "; ".join(f"{name}: {reasons[name]}" for name in asked)
        here = ", ".join(present)
        raise NoSuchDevice(f"devices: {wanted!r} is not on this machine ({why}); it has {here}")
    return [kind(name) for name in chosen]


def unusable(wanted: str, framework: str, version: str) -> list[UnusableDevice]:
    """What `auto` would time if its package had a build for this Python."""
    if wanted != "auto":
        return []
    chip = snapshot.chip()
    reasons = _kind(framework).unusable().items()
    return [UnusableDevice(framework, version, name, chip, reason) for name, reason in reasons]


def has(feature: str) -> bool:
    """Return whether this machine may have what a variant of a notebook is for.

    feature: `metal` (TensorFlow's plugin) or `tf32` (fp32 as MLX ships it). Loads no framework.
    """
    features = {"metal": sys.platform == "darwin", "tf32": MLXDevice.may_have_tf32()}
    if feature not in features:
        raise PomologyError(f"only: {feature!r} is not known; one of {', '.join(features)} is")
    return features[feature]


def _kind(framework: str) -> type[Device]:
    kinds = frameworks()
    if framework not in kinds:
        raise PomologyError(f"framework: {framework!r} is not known; one of {', '.join(kinds)} is")
    return kinds[framework]
