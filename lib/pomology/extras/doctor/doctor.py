"""What this machine can train with, and why not: questions with plain answers, and a verdict.

Each framework answers in a process of its own, with a time limit, as two in one process may hang it.
"""

import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from pomology.devices import find
from pomology.devices import torch as devices_torch
from pomology.errors import PomologyError
from pomology.format import one_line
from pomology.machine import snapshot as machine_snapshot
from pomology.paths import redact
from pomology.report.table import Row, Table
from pomology.results import cases, metrics

FRAMEWORKS = find.frameworks()
NAMES = {name: kind.title for name, kind in FRAMEWORKS.items()} | {"lightning": "Lightning"}
OLDEST_MACOS = 14  # what the wheels of PyTorch 2.14 and MLX 0.32 are built for
PROGRAM = ("-m", "pomology.extras.doctor.doctor")  # of the process in which a framework answers
LIMIT_S = 120  # of one framework; the first import on a Mac checks every library's signature
ENOUGH_BYTES = 4e9
WORDS = {False: "no", None: "not told", True: "yes"}


class Finding(NamedTuple):
    """A question about this machine and its answer, with what to do. fine: None where that cannot be told."""

    question: str
    answer: str
    fine: bool | None


class Examination(NamedTuple):
    """All findings, the verdict in a sentence, and what Lightning's accelerator="auto" is: `cpu`, `cuda` or `mps`."""

    findings: Sequence[Finding]
    verdict: str
    auto: str = "cpu"

    def lines(self) -> list[str]:
        """For a terminal: the verdict, then what is not fine, what cannot be told, and what is fine."""
        lines = [self.verdict, ""]
        for fine, word in WORDS.items():
            found = [finding for finding in self.findings if finding.fine is fine]
            lines += [f"{word:9} {finding.question} {finding.answer}" for finding in found]
        return lines

    def table(self) -> Table:
        """For a notebook: the same as a table, with the verdict below it."""
        columns = ("Question", "Answer", "What was found")
        cells = [(question, WORDS[fine], answer) for question, answer, fine in self.findings]
        data = tuple(dict(zip(columns, row, strict=True)) for row in cells)
        return Table(
            "Does this machine support it?", columns, tuple(map(Row, cells)), (self.verdict,), data
        )


def examine(snapshot: dict[str, Any] | None = None) -> Examination:
    """Examine this machine and its frameworks, which takes some seconds. `snapshot`: the machine's, if known."""
    answers = {name: probe(name) for name in NAMES}
    snapshot = snapshot or machine_snapshot.snapshot()
    flags = machine_snapshot.conditions()["flags"]
    found = findings(snapshot, flags, answers, platform.processor(), os.environ)
    return Examination(found, verdict(answers), answers["lightning"].get("auto", "cpu"))


def processor_agrees(snapshot: dict[str, Any], processor: str) -> bool | None:
    """Whether what `platform.processor()` says (`arm`, or not) is what sysctl says of this Python; None off macOS."""
    translated = snapshot.get("translated") if snapshot.get("os") == "macOS" else None
    return None if translated is None else (processor == "arm") != translated


def probe(
    framework: str, limit_s: float = LIMIT_S, program: Sequence[str] = PROGRAM
) -> dict[str, Any]:
    """Ask a framework, in a process of its own, what it can train on. Never raises; writes nothing to the terminal.

    Keys: version (None if it is not there), reason (why there is no answer, else None), devices (a list of backend,
    kind, name, reason (None if it can train there), precisions and free_bytes), and for Lightning `auto`.
    """
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, "answer.json")
        command = [sys.executable, *program, framework, str(place)]
        try:
            done = subprocess.run(
                command,
                timeout=limit_s,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
            )
        except subprocess.TimeoutExpired:
            return _no_answer(f"it did not answer within {limit_s:g} s")
        if place.exists():
            return json.loads(place.read_text(encoding="utf-8"))
    if done.returncode < 0:
        return _no_answer(
            f"loading it ended the process with {signal.Signals(-done.returncode).name}"
        )
    return _no_answer(done.stderr.strip().split("\n")[-1] or f"exit status {done.returncode}")


def _no_answer(reason: str, version: str | None = None) -> dict[str, Any]:
    return {"version": version, "reason": one_line(redact(reason), 200), "devices": []}


def _main(framework: str, place: str) -> None:
    """In the process that is for one framework: write its answer."""
    version = None
    try:
        version = metadata.version(framework)
        answer = _probe_lightning() if framework == "lightning" else _probe(framework)
        answer |= {"version": version, "reason": None}
    except metadata.PackageNotFoundError:
        answer = _no_answer("not installed")
    except Exception as error:  # whatever stops a framework is its answer
        kind = "" if isinstance(error, PomologyError) else f"{type(error).__name__}: "
        answer = _no_answer(f"{kind}{error}", version)
    Path(place).write_text(json.dumps(answer), encoding="utf-8")


def _probe(framework: str) -> dict[str, Any]:
    devices = []
    for backend, reason in FRAMEWORKS[framework].backends().items():
        entry = {"backend": backend, "kind": "cpu" if backend == "cpu" else "gpu", "reason": reason}
        if reason is None:
            (device,) = find.find(backend, framework)
            entry |= {
                "name": device.name,
                "precisions": device.precisions(),
                "free_bytes": device.free_memory(),
            }
        devices.append(entry)
    return {"devices": devices}


def _probe_lightning() -> dict[str, Any]:
    import lightning

    off = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(devices=1, default_root_dir=folder, **off)
    return {
        "devices": [],
        "auto": type(trainer.accelerator).__name__.removesuffix("Accelerator").lower(),
    }


def findings(
    snapshot: dict,
    flags: Sequence[str],
    answers: Mapping[str, dict],
    processor: str,
    environment: Mapping[str, str],
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
    found += [_lightning(answers["lightning"]), _memory(answers["torch"], environment)]
    name = devices_torch.FALLBACK_VARIABLE
    value = environment.get(name, "")
    found.append(
        Finding(
            "Would an operator that MPS lacks be noticed?", f"{name}={value}", value in ("", "0")
        )
    )
    state = (
        "; ".join(f"{flag}: {cases.FLAGS[flag]}" for flag in flags) or "nothing speaks against it"
    )
    found.append(Finding("Is it fit to measure now?", state, not flags))
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
    """The devices of an answer that can train, of a kind (`cpu` or `gpu`) or of any."""
    return [
        each
        for each in answer["devices"]
        if each["reason"] is None and each["kind"] in (kinds or ("cpu", "gpu"))
    ]


def _chip(snapshot: dict[str, Any]) -> Finding:
    question = "Is there a GPU to train on?"
    chip = snapshot.get("chip") or "unknown chip"
    mac = snapshot.get("os") == "macOS"
    if mac and chip.startswith("Intel"):
        return Finding(question, f"{chip}: PyTorch and MLX train on Apple's chips only", False)
    if mac and snapshot.get("virtual_machine"):
        return Finding(
            question, f"{chip}, a virtual machine without a GPU: run it in macOS itself", False
        )
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
    question = "Is Python native?"
    answer = f"Python {snapshot.get('python')} for {snapshot.get('architecture')}"
    if snapshot.get("os") == "macOS" and snapshot.get("translated"):
        remedy = "install a Python for arm64, remove .venv, run `make env`"
        return Finding(question, f"{answer}, which Rosetta translates: {remedy}", False)
    if snapshot.get("os") == "macOS" and processor != "arm":
        wants = f"platform.processor() says {processor!r}, and Lightning wants 'arm': put /usr/bin first in PATH"
        return Finding(question, f"{answer}; {wants}", False)
    return Finding(question, answer, True)


def _framework(title: str, answer: dict[str, Any]) -> Finding:
    """Whether a framework trains on a GPU in fp32, and which precisions each of its devices computes in."""
    parts = [answer["reason"]] if answer["reason"] else []
    for device in answer["devices"]:
        if device["reason"]:
            parts.append(f"{device['backend']}: {device['reason']}")
        else:
            works = [name for name, reason in device["precisions"].items() if reason is None]
            parts.append(
                f"{device['backend']} ({device['name']}): {', '.join(works) or 'no precision'}"
            )
    fine = any(device["precisions"].get("fp32", "") is None for device in usable(answer, "gpu"))
    label = f"{title} {answer['version'] or ''}".strip()
    return Finding(
        f"Does {title} train on the GPU?", one_line(f"{label}: {'; '.join(parts)}", 400), fine
    )


def _lightning(answer: dict[str, Any]) -> Finding:
    auto = answer.get("auto", "cpu")
    disabled = "; DISABLE_MPS is set" if os.environ.get("DISABLE_MPS") == "1" else ""
    text = answer["reason"] or f'accelerator="auto" is {auto}{disabled}'
    return Finding("Does Lightning choose the GPU?", text, auto != "cpu")


def _memory(torch: dict[str, Any], environment: Mapping[str, str]) -> Finding:
    question, devices = "Is there memory to train in?", usable(torch)
    parts = [
        f"{metrics.gigabytes(device['free_bytes'])} are free now for {device['backend']}"
        for device in devices
    ]
    try:
        share = devices_torch.watermarks(environment)[devices_torch.WATERMARKS[0]]
    except PomologyError as error:
        return Finding(question, str(error), False)
    if any(device["backend"] == "mps" for device in devices):
        parts.append(f"MPS may take {share} × what Metal recommends (0: no limit)")
    enough = min(device["free_bytes"] for device in devices) >= ENOUGH_BYTES if devices else None
    return Finding(question, "; ".join(parts) or "PyTorch is not there to ask", enough)


if __name__ == "__main__":
    _main(*sys.argv[1:])
