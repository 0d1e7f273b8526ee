"""The devices of this machine that a framework can train on."""

from __future__ import annotations

from pomology.devices import mlx, tensorflow
from pomology.devices.torch import Device
from pomology.errors import NoSuchDevice, PomologyError

FRAMEWORKS = ("torch", "tensorflow", "mlx")

# `mps` and `metal` both mean the GPU of an Apple chip, which PyTorch calls one and TensorFlow the other.
WANTED = ("auto", "cpu", "gpu", "cuda", "mps", "metal")

APPLE_GPU = {"torch": "mps", "tensorflow": "metal", "mlx": mlx.GPU}


def prepare(framework: str) -> None:
    """Set what a framework reads when it is loaded; must come before its first import.

    Raises PomologyError in one line if that import has happened already and the framework would be wrong here.
    """
    _check(framework)
    if framework == "tensorflow":
        tensorflow.prepare()
    elif framework == "mlx":
        mlx.prepare()


def backends(framework: str = "torch") -> dict[str, str | None]:
    """Each backend of a framework, with None if it can train here and else the reason why not, in plain words."""
    _check(framework)
    if framework == "tensorflow":
        return tensorflow.backends()
    if framework == "mlx":
        return mlx.backends()
    import torch

    reasons: dict[str, str | None] = {"cpu": None}
    if torch.cuda.is_available():
        reasons["cuda"] = None
    elif torch.version.cuda is None:
        reasons["cuda"] = "this PyTorch is built without CUDA"
    else:
        reasons["cuda"] = "no NVIDIA GPU or driver answers"
    if torch.backends.mps.is_available():
        reasons["mps"] = None
    elif not torch.backends.mps.is_built():
        reasons["mps"] = "this PyTorch is built without MPS (it needs macOS 14 and a native arm64 Python)"
    else:
        reasons["mps"] = "PyTorch finds no Metal GPU (a virtual machine, or macOS older than 14)"
    return reasons


def find(wanted: str = "auto", framework: str = "torch") -> list[Device]:
    """The devices to time: `auto` is every one this machine has, the CPU first; `gpu` is CUDA or Apple's.

    Raises PomologyError if the wish is unknown, and NoSuchDevice, which is one, if it cannot be met here.
    """
    if wanted not in WANTED:
        raise PomologyError(f"devices: {wanted!r} is not known; one of {', '.join(WANTED)} is")
    reasons = backends(framework)
    present = [backend for backend, reason in reasons.items() if reason is None]
    backend = APPLE_GPU[framework] if wanted in ("mps", "metal") else wanted
    if wanted == "auto":
        chosen = present
    elif wanted == "gpu":
        chosen = [one for one in present if one != "cpu"]
    else:
        chosen = [one for one in present if one == backend]
    if not chosen:
        missing = [backend] if backend in reasons else [one for one in reasons if one != "cpu"]
        why = "; ".join(f"{one}: {reasons[one]}" for one in missing)
        raise NoSuchDevice(f"devices: {wanted!r} is not on this machine ({why}); it has {', '.join(present)}")
    kinds = {"torch": Device, "tensorflow": tensorflow.TensorFlowDevice, "mlx": mlx.MLXDevice}
    return [kinds[framework](one) for one in chosen]


def _check(framework: str) -> None:
    if framework not in FRAMEWORKS:
        raise PomologyError(f"framework: {framework!r} is not known; one of {', '.join(FRAMEWORKS)} is")
