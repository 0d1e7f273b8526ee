"""What this machine can train with, and why not: questions with plain answers, and a verdict.

Each framework answers in a process of its own, with a time limit, as two in one process may hang.
"""

import os
import platform
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any, NamedTuple

from pomology.devices import find
from pomology.devices import torch as devices_torch
from pomology.errors import PomologyError
from pomology.format import one_line, quantity
from pomology.machine import snapshot as machine_snapshot
from pomology.models import isolated
from pomology.paths import redact
from pomology.report.table import Table
from pomology.results import cases

FRAMEWORKS = find.frameworks()
NAMES = {name: kind.title for name, kind in FRAMEWORKS.items()} | {"lightning": "Lightning"}
OLDEST_MACOS = 14  # what the wheels of PyTorch 2.14 and MLX 0.32 are built for
LIMIT_S = 120  # of one framework; the first import on a Mac checks every library's signature
ENOUGH_BYTES = 4e9
WORDS = {False: "no", None: "not told", True: "yes"}


class Finding(NamedTuple):
    """A question about this machine and its answer, with what to do. fine: None if not known."""

    question: str
    answer: str
    fine: bool | None


class Examination(NamedTuple):
    """All findings and the verdict. auto: Lightning's accelerator, `cpu`, `cuda` or `mps`."""

    findings: Sequence[Finding]
    verdict: str
    auto: str = "cpu"

    def lines(self) -> list[str]:
        """For a terminal: the verdict, what is not fine, what is not known, and what is fine."""
        order = list(WORDS)
        found = sorted(self.findings, key=lambda finding: order.index(finding.fine))
        texts = [f"{WORDS[each.fine]:9} {each.question} {each.answer}" for each in found]
        return [self.verdict, "", *texts]

    def table(self) -> Table:
        """For a notebook: the same as a table, with the verdict below it."""
        columns = ("Question", "Answer", "What was found")
        cells = [(question, WORDS[fine], answer) for question, answer, fine in self.findings]
        lines = [(row, dict(zip(columns, row, strict=True))) for row in cells]
        return Table.of("Does this machine support it?", columns, lines, [self.verdict])


def examine(snapshot: dict[str, Any]) -> Examination:
    """Examine this machine and its frameworks, which takes some seconds."""
    answers = {name: probe(name) for name in NAMES}
    flags = machine_snapshot.conditions()["flags"]
    found = findings(snapshot, flags, answers, platform.processor())
    return Examination(found, verdict(answers), answers["lightning"].get("auto", "cpu"))


def processor_agrees(snapshot: dict[str, Any], processor: str) -> bool | None:
    """Whether `platform.processor()` and sysctl say the same of this Python; None off macOS."""
    translated = snapshot.get("translated") if snapshot.get("os") == "macOS" else None
    return None if translated is None else (processor == "arm") != translated


def probe(
    framework: str, limit_s: float = LIMIT_S, function: str = f"{__name__}:answer"
) -> dict[str, Any]:
    """Return the `answer` of a framework in a process of its own, or why there is none."""
    try:
        return isolated.call("loading it", function, framework, limit_s=limit_s)
    except subprocess.TimeoutExpired:
        return _no_answer(f"it did not answer within {limit_s:g} s")
    except PomologyError as error:
        return _no_answer(str(error))


def _no_answer(reason: str, version: str | None = None) -> dict[str, Any]:
    return {"version": version, "reason": one_line(redact(reason), 200), "devices": []}


def answer(framework: str) -> dict[str, Any]:
    """Return what a framework can train on; it is loaded into this process. Never raises.

    Keys: version (None if it is not there), reason (why there is no answer, else None), devices (a
    list of backend, kind, name, reason (None if it can train there), precisions and free_bytes),
    and for Lightning `auto`.
    """
    version = None
    try:
        version = metadata.version(framework)
        found = _probe_lightning() if framework == "lightning" else _probe(framework)
        return found | {"version": version, "reason": None}
    except metadata.PackageNotFoundError:
        return _no_answer("not installed")
    except Exception as error:  # whatever stops a framework is its answer
        kind = "" if isinstance(error, PomologyError) else f"{type(error).__name__}: "
        return _no_answer(f"{kind}{error}", version)


def _probe(framework: str) -> dict[str, Any]:
    devices = []
    for backend, reason in FRAMEWORKS[framework].backends().items():
        entry = {"backend": backend, "kind": cases.kind_of(backend), "reason": reason}
        if reason is None:
            (device,) = find.find(backend, framework)
            entry |= {"name": device.name, "precisions": device.precisions()}
            entry |= {"free_bytes": device.free_memory()}
        devices.append(entry)
    return {"devices": devices}


def _probe_lightning() -> dict[str, Any]:
    import lightning

    off = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(devices=1, default_root_dir=folder, **off)
    name = type(trainer.accelerator).__name__.removesuffix("Accelerator").lower()
    return {"devices": [], "auto": name}


def findings(
    snapshot: dict, flags: Sequence[str], answers: Mapping[str, dict], processor: str
) -> list[Finding]:
    """Judge a machine.

    Args:
        snapshot: the machine's, as `snapshot.snapshot` has it.
        flags: of its state now.
        answers: each framework's, see `probe`.
        processor: what `platform.processor()` says.
    """
    found = [_chip(snapshot), _system(snapshot), _python(snapshot, processor)]
    found += [_framework(NAMES[name], answers[name]) for name in FRAMEWORKS]
    found += [_lightning(answers["lightning"]), _memory(answers["torch"])]
    name = devices_torch.FALLBACK_VARIABLE
    value = os.environ.get(name, "")
    noticed = "Would an operator that MPS lacks be noticed?"
    found.append(Finding(noticed, f"{name}={value}", value in ("", "0")))
    state = "; ".join(f"{flag}: {cases.FLAGS[flag]}" for flag in flags)
    found.append(
        Finding("Is it fit to measure now?", state or "nothing speaks against it", not flags)
    )
    return found


def verdict(answers: Mapping[str, dict[str, Any]]) -> str:
    """Return the plain answer in a sentence."""
    on_gpu = [NAMES[name] for name in FRAMEWORKS if usable(answers[name], "gpu")]
    others = [NAMES[name] for name in FRAMEWORKS if NAMES[name] not in on_gpu]
    loaded = [NAMES[name] for name in FRAMEWORKS if usable(answers[name])]
    if on_gpu:
        no = f" Not with {', '.join(others)}." if others else ""
        return f"This machine trains on its GPU with {', '.join(on_gpu)}.{no}"
    if loaded:
        return f"No: this machine trains on its CPU only, with {', '.join(loaded)}."
    return "No: no framework can be loaded. `make env` installs them."


def usable(answer: dict[str, Any], *kinds: str) -> list[dict[str, Any]]:
    """Return the devices of an answer that can train, of a kind (`cpu` or `gpu`) or of any."""
    can_train = [each for each in answer["devices"] if each["reason"] is None]
    return [each for each in can_train if not kinds or each["kind"] in kinds]


def _chip(snapshot: dict[str, Any]) -> Finding:
    question = "Is there a GPU to train on?"
    chip = snapshot.get("chip") or "unknown chip"
    mac = snapshot.get("os") == "macOS"
    if mac and chip.startswith("Intel"):
        return Finding(question, f"{chip}: PyTorch and MLX train on Apple's chips only", False)
    if mac and snapshot.get("virtual_machine"):
        answer = f"{chip}, a virtual machine without a GPU: run it in macOS itself"
        return Finding(question, answer, False)
    if snapshot.get("gpus"):
        return Finding(question, ", ".join(gpu["name"] for gpu in snapshot["gpus"]), True)
    reason = snapshot.get("unknown", {}).get("gpus", "no GPU is listed")
    return Finding(question, f"{chip}; {reason}", None if mac else False)


def _system(snapshot: dict[str, Any]) -> Finding:
    question = "Is the system new enough?"
    version = snapshot.get("os_version") or ""
    if snapshot.get("os") != "macOS":
        return Finding(question, f"{snapshot.get('os')} {version}", True)
    fine = int(version.split(".")[0]) >= OLDEST_MACOS if version else None
    return Finding(question, f"macOS {version}; MPS needs {OLDEST_MACOS} or later", fine)


def _python(snapshot: dict[str, Any], processor: str) -> Finding:
    answer = f"Python {snapshot.get('python')} for {snapshot.get('architecture')}"
    wrong = ""
    if snapshot.get("os") == "macOS" and snapshot.get("translated"):
        wrong = (
            ", which Rosetta translates: install a Python for arm64, remove .venv, run `make env`"
        )
    elif snapshot.get("os") == "macOS" and processor != "arm":
        wrong = f"; platform.processor() says {processor!r}, and Lightning wants 'arm': "
        wrong += "put /usr/bin first in PATH"
    return Finding("Is Python native?", answer + wrong, not wrong)


def _framework(title: str, answer: dict[str, Any]) -> Finding:
    """Whether a framework trains on a GPU in fp32, and what each of its devices computes in."""
    parts = [answer["reason"]] if answer["reason"] else []
    for device in answer["devices"]:
        text = f"{device['backend']}: {device['reason']}"
        if device["reason"] is None:
            works = [name for name, reason in device["precisions"].items() if reason is None]
            text = f"{device['backend']} ({device['name']}): {', '.join(works) or 'no precision'}"
        parts.append(text)
    fine = any(device["precisions"].get("fp32", "") is None for device in usable(answer, "gpu"))
    label = f"{title} {answer['version'] or ''}".strip()
    text = one_line(f"{label}: {'; '.join(parts)}", 400)
    return Finding(f"Does {title} train on the GPU?", text, fine)


def _lightning(answer: dict[str, Any]) -> Finding:
    auto = answer.get("auto", "cpu")
    text = answer["reason"] or f'accelerator="auto" is {auto}'
    return Finding("Does Lightning choose the GPU?", text, auto != "cpu")


def _memory(torch: dict[str, Any]) -> Finding:
    free = {device["backend"]: device["free_bytes"] for device in usable(torch)}
    parts = [f"{quantity(free[name], 'B')} are free now for {name}" for name in free]
    enough = min(free.values()) >= ENOUGH_BYTES if free else None
    text = "; ".join(parts) or "PyTorch is not there to ask"
    return Finding("Is there memory to train in?", text, enough)
