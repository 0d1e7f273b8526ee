"""Diagnose a machine by questions with answers, and a verdict on its frameworks and GPUs.

Each framework answers in its own process with a time limit, because two in one process may hang.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any, NamedTuple

from pomology.devices import find
from pomology.devices import torch as devices_torch
from pomology.errors import PomologyError
from pomology.format import one_line, quantity
from pomology.machine import messages
from pomology.machine import snapshot as machine_snapshot
from pomology.models import isolated
from pomology.paths import redact
from pomology.results import cases

FRAMEWORKS = find.frameworks()
NAMES = {name: kind.title for name, kind in FRAMEWORKS.items()} | {"lightning": "Lightning"}
LIMIT_S = 120  # per framework; the first import on a Mac checks the signatures of all libraries
ENOUGH_BYTES = 4e9


class Finding(NamedTuple):
    """A question about this machine and its answer, with a remedy. fine: None if unknown."""

    question: str
    answer: str
    fine: bool | None


class Examination(NamedTuple):
    """All findings and the verdict. auto: Lightning's accelerator, `cpu`, `cuda` or `mps`."""

    findings: Sequence[Finding]
    verdict: str
    auto: str = "cpu"

    def __str__(self) -> str:
        """Return the verdict and the findings as lines: problems, unknowns, then the rest."""
        lines = [self.verdict, ""]
        for fine, word in ((False, "no"), (None, "unknown"), (True, "yes")):
            same = [finding for finding in self.findings if finding.fine is fine]
            lines += [f"{word:9} {finding.question} {finding.answer}" for finding in same]
        return "\n".join(lines)


def examine(snapshot: dict[str, Any]) -> Examination:
    """Examine this machine and its frameworks; this takes seconds to a minute."""
    answers = {name: probe(name) for name in NAMES}
    now = machine_snapshot.conditions()
    of_machine = findings(snapshot | now, now["flags"], answers)
    return Examination(of_machine, verdict(answers), answers["lightning"].get("auto", "cpu"))


def probe(
    framework: str, limit_s: float = LIMIT_S, function: str = f"{__name__}:answer"
) -> dict[str, Any]:
    """Return the `answer` of a framework from its own process, or the reason for none."""
    try:
        return isolated.call("loading it", function, framework, limit_s=limit_s)
    except subprocess.TimeoutExpired:
        return _no_answer(f"it did not answer within {limit_s:g} s")
    except PomologyError as error:
        return _no_answer(str(error))


def _no_answer(reason: str, version: str | None = None) -> dict[str, Any]:
    return {"version": version, "reason": one_line(redact(reason), 400), "devices": []}


def answer(framework: str) -> dict[str, Any]:
    """Load a framework into this process and return its devices. Never raises.

    Keys: version, reason (of a failure, else None), devices (a list of backend, kind, reason, which
    is None if it can train there, and then `_examined`), `auto` of Lightning, and `compiler`.
    """
    version = None
    try:
        version = metadata.version(framework)
        loaded = {"version": version, "reason": None, "devices": []}
        if framework == "lightning":
            return loaded | {"auto": _lightning_auto()}
        for backend, reason in FRAMEWORKS[framework].backends().items():
            entry = {"backend": backend, "kind": cases.kind(backend), "reason": reason}
            loaded["devices"].append(entry if reason else entry | _examined(backend, framework))
        return loaded | ({"compiler": _compiler()} if framework == "torch" else {})
    except metadata.PackageNotFoundError:
        return _no_answer("not installed")
    except Exception as error:  # any failure to load is a valid answer
        return _no_answer(_why(error), version)


def _examined(backend: str, framework: str) -> dict[str, Any]:
    """Return name, precisions and free_bytes of a device, or the reason why it cannot compute."""
    try:
        if (framework, backend) == ("torch", "cuda") and _lacks_kernels():
            return {"reason": messages.fault("no kernel image is available for this GPU")}
        (device,) = find.find(backend, framework)
        entry = {"name": device.name, "precisions": device.precisions()}
        return entry | {"free_bytes": device.free_memory()}
    except Exception as error:  # a driver may refuse what it has listed
        return {"reason": _why(error)}


def _why(error: Exception) -> str:
    return messages.fault(str(error)) or f"{type(error).__name__}: {error}"


def _lacks_kernels() -> bool:
    """Return whether PyTorch is built without kernels (`sm_`) and PTX (`compute_`) for the GPU.

    Kernels also run on later GPUs of the same major capability, PTX on all later ones.
    """
    import torch

    cuda = torch.get_device_module("cuda")
    built = re.findall(r"\b(sm|compute)_(\d+)", " ".join(cuda.get_arch_list()))
    major, minor = cuda.get_device_capability() if built else (0, 0)
    earlier = [(kind, int(number)) for kind, number in built if int(number) <= 10 * major + minor]
    fits = any(kind == "compute" or number // 10 == major for kind, number in earlier)
    return bool(built) and not fits


def _compiler() -> str:
    """Return how to get the C++ compiler that `torch.compile` needs; empty if there is one."""
    if sys.platform == "darwin":  # /usr/bin/clang++ exists without Xcode, too
        there = machine_snapshot.run_command("xcode-select", "-p")
    else:
        there = shutil.which(os.environ.get("CXX", "g++"))
    how = messages.fault("No working C++ compiler")
    return "" if there else f"torch.compile: {how}"


def _lightning_auto() -> str:
    """Return the accelerator that Lightning chooses."""
    import lightning

    off = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = lightning.Trainer(devices=1, **off)
    return type(trainer.accelerator).__name__.removesuffix("Accelerator").lower()


def findings(snapshot: dict, flags: Sequence[str], answers: Mapping[str, dict]) -> list[Finding]:
    """Return findings from a machine's snapshot, its present flags, and the frameworks' answers."""
    gpus = [gpu["name"] for gpu in snapshot.get("gpus") or ()]
    text = ", ".join(gpus) or "no GPU found"
    if len(gpus) > 1:
        on_gpu = usable(answers["torch"], "gpu")
        used = [f"PyTorch computes on {device['name']}" for device in on_gpu]
        text = "; ".join([text, *used, "CUDA_VISIBLE_DEVICES selects another one"])
    all_findings = [Finding("Is there a GPU to train on?", text, bool(gpus))]
    text = f"Python {snapshot.get('python')} for {snapshot.get('architecture')}"
    if snapshot.get("translated"):
        text += ", translated by Rosetta: install one for arm64, remove .venv, run `make env`"
    all_findings.append(Finding("Is Python native?", text, not snapshot.get("translated")))
    all_findings += [_framework(NAMES[name], answers[name]) for name in FRAMEWORKS]
    auto = answers["lightning"].get("auto", "cpu")
    text = answers["lightning"]["reason"] or f'accelerator="auto" is {auto}'
    if auto == "cpu" and snapshot.get("os") == "macOS":  # its check needs `uname -p` to print arm
        text += "; put /usr/bin first in PATH"
    all_findings.append(Finding("Does Lightning choose the GPU?", text, auto != "cpu"))
    free = {device["backend"]: device["free_bytes"] for device in usable(answers["torch"])}
    parts = [f"{quantity(size, 'B')} free now for {name}" for name, size in free.items()]
    enough = min(free.values()) >= ENOUGH_BYTES if free else None
    text = "; ".join(parts) or "unknown, because PyTorch cannot be loaded"
    all_findings.append(Finding("Is there enough free memory to train?", text, enough))
    variable = devices_torch.FALLBACK_VARIABLE
    value = os.environ.get(variable, "")
    text = f"{variable}={value}: unset it" if value else f"{variable} is not set"
    all_findings.append(Finding("Does an operator that MPS lacks fail?", text, value in ("", "0")))
    text = "; ".join(f"{flag}: {cases.FLAGS[flag]}" for flag in flags) or "no warning"
    text += f"; power mode {snapshot['power_mode']}" if snapshot.get("power_mode") else ""
    all_findings.append(Finding("Is the machine ready to measure now?", text, not flags))
    return all_findings


def _framework(title: str, answer: dict[str, Any]) -> Finding:
    """Return whether a framework trains on a GPU in fp32, with its devices and their precisions."""
    parts = [answer["reason"]] if answer["reason"] else []
    for device in answer["devices"]:
        text = f"{device['backend']}: {device['reason']}"
        if device["reason"] is None:
            works = [name for name, reason in device["precisions"].items() if reason is None]
            text = ", ".join(works) or f"no precision ({device['precisions']['fp32']})"
            text = f"{device['backend']} ({device['name']}): {text}"
        parts.append(text)
    parts += filter(None, [answer.get("compiler")])
    fine = any(device["precisions"]["fp32"] is None for device in usable(answer, "gpu"))
    text = one_line(f"{answer['version'] or ''} {'; '.join(parts)}".strip(), 1000)
    return Finding(f"Does {title} train on the GPU?", text, fine)


def verdict(answers: Mapping[str, dict[str, Any]]) -> str:
    """Return a sentence that names the frameworks that train on the GPU, or else on the CPU."""
    on_gpu = [NAMES[name] for name in FRAMEWORKS if usable(answers[name], "gpu")]
    loaded = [NAMES[name] for name in FRAMEWORKS if usable(answers[name])]
    if on_gpu:
        return f"This machine trains on its GPU with {', '.join(on_gpu)}."
    if loaded:
        return f"This machine trains on its CPU only, with {', '.join(loaded)}."
    return "No framework can be loaded; `make env` installs them."


def usable(answer: dict[str, Any], kind: str = "") -> list[dict[str, Any]]:
    """Return the devices of an answer that can train, of a kind (`cpu`, `gpu`) or of any."""
    can_train = [device for device in answer["devices"] if device["reason"] is None]
    return [device for device in can_train if kind in ("", device["kind"])]
