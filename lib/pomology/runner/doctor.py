"""Does this machine support it? Questions with plain answers, from the chip to the memory, and a verdict.

Each framework answers in a process of its own, as two in one process may hang it, with a time limit: what hangs or dies
costs an answer and not the doctor. `findings` judges the answers of any machine.
"""

from __future__ import annotations

import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pomology import format
from pomology.devices import find
from pomology.devices import torch as devices_torch
from pomology.errors import PomologyError
from pomology.machine import snapshot as machine_snapshot
from pomology.paths import redact
from pomology.report.table import Row, Table
from pomology.results import cases

YES, NO, NOT_TOLD = "yes", "no", "not told"
FRAMEWORKS = find.frameworks()
NAMES = {name: kind.title for name, kind in FRAMEWORKS.items()} | {"lightning": "Lightning"}
OLDEST_MACOS = 14  # what the wheels of PyTorch 2.13 and MLX 0.32 are built for
LIMIT_S = 120  # of one framework; the first import on a Mac checks every library's signature
ENOUGH_BYTES = 4e9
CHIP, SYSTEM, PYTHON = "Is there a GPU to train on?", "Is the system new enough?", "Is Python native?"
ROSETTA = (
    "install a Python for arm64 (with conda: the installer for Apple Silicon, not the one for Intel), "
    "remove .venv, and run `make env`"
)
UNAME = "see that /usr/bin/uname comes first in PATH, since Python asks `uname -p`; else install another Python"
INSTALL_AGAIN = "run `make env` again, and see README.md"
CURES = {
    "on-battery": "plug it in",
    "low-power": "turn low-power mode off",
    "busy": "close what uses the processor, or wait",
}
# The folders of a path in a message, which may name a person: `/a/b c/`, `~/a/`, `C:\\a\\`; not those of a link. What
# is behind the last slash stays. A text between two paths goes too, as a folder's name may have spaces.
FOLDERS = re.compile(r"(?<![\w/\\])(?:[A-Za-z]:)?[~.]*[/\\](?![/\\])(?:[^:,;'\"()<>|/\\]+[/\\])*")


@dataclass(frozen=True)
class Finding:
    """A question about this machine, its answer, the verdict on it (yes, no or not told), and what to do if no."""

    question: str
    answer: str
    verdict: str
    remedy: str = ""


@dataclass(frozen=True)
class Examination:
    """All findings, the verdict in a sentence, and what Lightning's accelerator="auto" is: `cpu`, `cuda` or `mps`."""

    findings: tuple[Finding, ...]
    verdict: str
    auto: str = "cpu"

    def lines(self) -> list[str]:
        """For a terminal: a line for each finding, a second one for what to do, and the verdict last."""
        lines = []
        for finding in self.findings:
            lines.append(f"{finding.verdict:8}  {finding.question} {finding.answer}")
            if finding.remedy:
                lines.append(f"{'':8}  do this: {finding.remedy}")
        return [*lines, self.verdict]

    def table(self) -> Table:
        """For a notebook: the same as a table, with the verdict below it."""
        rows = tuple(Row((each.question, each.verdict, each.answer, each.remedy)) for each in self.findings)
        columns = ("Question", "Verdict", "What was found", "What to do")
        data = tuple(vars(each) for each in self.findings)
        return Table("Does this machine support it?", columns, rows, (self.verdict,), data)


def examine(snapshot: dict[str, Any] | None = None) -> Examination:
    """Examine this machine and its frameworks, which takes some seconds. `snapshot`: the machine's, if known."""
    with ThreadPoolExecutor(2) as pool:  # the imports are work for a processor each
        answers = dict(zip(NAMES, pool.map(probe, NAMES), strict=True))
    snapshot = snapshot or machine_snapshot.snapshot()
    judged = findings(snapshot, machine_snapshot.conditions(), answers, platform.processor(), os.environ)
    return Examination(tuple(judged), verdict(judged, answers), answers["lightning"].get("auto", "cpu"))


def processor_agrees(snapshot: dict[str, Any], processor: str) -> bool | None:
    """Whether what `platform.processor()` says (`arm`, or not) is what sysctl says of this Python; None off macOS."""
    if snapshot.get("os") != "macOS" or snapshot.get("translated") is None:
        return None
    return (processor == "arm") == (not snapshot["translated"])


# What a framework says ------------------------------------------------------------------------------------------------


def probe(
    framework: str, limit_s: float = LIMIT_S, program: Sequence[str] = ("-m", "pomology.runner.doctor")
) -> dict[str, Any]:
    """What a framework can train on, by a process of its own. Never raises; writes nothing to the terminal.

    Keys: version (None if it is not there), reason (why there is no answer, else None), devices (a list of backend,
    kind, name, reason (None if it can train there), precisions, free_bytes), and for Lightning `auto`, what it chooses.
    """
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, "answer.json")
        command = [sys.executable, *program, framework, str(place)]
        texts = {"capture_output": True, "encoding": "utf-8", "errors": "replace"}
        try:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, timeout=limit_s, check=False, **texts)
        except subprocess.TimeoutExpired:
            return _silent(f"it did not answer within {limit_s:g} s")
        if place.exists():
            return json.loads(place.read_text(encoding="utf-8"))
    if done.returncode < 0:
        return _silent(f"loading it ended the process with {signal.Signals(-done.returncode).name}")
    return _silent(one_line(done.stderr.strip().split("\n")[-1]) or f"exit status {done.returncode}")


def _silent(reason: str, version: str | None = None) -> dict[str, Any]:
    return {"version": version, "reason": reason, "devices": []}


def one_line(text: str) -> str:
    """A message in one line of at most 200 characters, without the folders in it, which may name a person."""
    text = FOLDERS.sub("", redact(" ".join(text.split())))
    return text if len(text) <= 200 else text[:199] + "…"


def _probe_here(framework: str) -> dict[str, Any]:
    """The answer of one framework, in the process that is for it."""
    if framework == "lightning":
        return _probe_lightning()
    version, devices = "", []
    for backend, reason in find.backends(framework).items():
        entry = {"backend": backend, "kind": "cpu" if backend == "cpu" else "gpu", "reason": reason}
        if reason is None:
            (device,) = find.find(backend, framework)
            version = device.framework_version
            entry |= {"name": device.name, "precisions": device.precisions(), "free_bytes": device.free_memory()}
        devices.append(entry)
    return {"version": version, "reason": None, "devices": devices}


def _probe_lightning() -> dict[str, Any]:
    import lightning
    from lightning.pytorch.accelerators import CUDAAccelerator, MPSAccelerator

    missing = find.backends("torch")
    devices: list[dict[str, Any]] = [{"backend": "cpu", "kind": "cpu", "reason": None}]
    for backend, accelerator in (("cuda", CUDAAccelerator), ("mps", MPSAccelerator)):
        reason = None
        if not accelerator.is_available():
            here = f"platform.processor() says {platform.processor()!r}, and Lightning wants 'arm'"
            if os.environ.get("DISABLE_MPS") == "1":
                here = "DISABLE_MPS=1 turns it off"
            reason = missing[backend] or here  # here: though PyTorch has it
        devices.append({"backend": backend, "kind": "gpu", "reason": reason})
    with tempfile.TemporaryDirectory() as folder:
        quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
        trainer = lightning.Trainer(accelerator="auto", devices=1, default_root_dir=folder, **quiet)
    auto = type(trainer.accelerator).__name__.removesuffix("Accelerator").lower()
    return {"version": lightning.__version__, "reason": None, "devices": devices, "auto": auto}


# What to make of it ---------------------------------------------------------------------------------------------------


def findings(
    snapshot: dict[str, Any],
    conditions: dict[str, Any],
    answers: Mapping[str, dict[str, Any]],
    processor: str,
    environment: Mapping[str, str],
) -> list[Finding]:
    """Judge a machine: its `snapshot.snapshot` and `snapshot.conditions`, each framework's answer (see `probe`), what
    `platform.processor()` says, and the variables of its environment."""
    gpus = [device["name"] for name in FRAMEWORKS for device in usable(answers[name], "gpu")]
    judged = [_chip(snapshot, gpus), _system(snapshot), _python(snapshot, processor)]
    cause = next((each.question for each in judged if each.verdict == NO), None)
    judged += [_framework(name, answers[name], cause, snapshot) for name in FRAMEWORKS]
    judged.append(_lightning(answers["lightning"], answers["torch"], cause))
    judged += [_precisions(name, device) for name in FRAMEWORKS for device in usable(answers[name])]
    on_mac = snapshot.get("os") == "macOS"
    return [*judged, _memory(answers["torch"], environment), _fallback(environment, on_mac), _conditions(conditions)]


def verdict(findings: Sequence[Finding], answers: Mapping[str, dict[str, Any]]) -> str:
    """The plain answer in a sentence, with what to do if it is no."""
    on_gpu = [NAMES[name] for name in FRAMEWORKS if usable(answers[name], "gpu")]
    loaded = [NAMES[name] for name in FRAMEWORKS if usable(answers[name])]
    if on_gpu:
        others = [NAMES[name] for name in FRAMEWORKS if NAMES[name] not in on_gpu]
        but = f" {_and(others)} {'does' if len(others) == 1 else 'do'} not: see above." if others else ""
        return f"This machine trains on its GPU with {_and(on_gpu)}.{but}"
    remedies = [each.remedy for each in findings if each.verdict == NO and each.remedy]
    first = f" Do this: {remedies[0]}." if remedies else ""
    if loaded:
        return f"No: this machine trains on its CPU only, with {_and(loaded)}.{first}"
    return f"No: no framework can be loaded here.{first or ' Do this: run `make env`.'}"


def usable(answer: dict[str, Any], kind: str | None = None) -> list[dict[str, Any]]:
    """The devices of an answer that can train, of a kind (`cpu` or `gpu`) or of any."""
    return [device for device in answer["devices"] if device["reason"] is None and kind in (None, device["kind"])]


def _chip(snapshot: dict[str, Any], seen: Sequence[str]) -> Finding:
    """seen: the names of the GPUs that frameworks see."""
    chip, gpus, mac = snapshot.get("chip"), snapshot.get("gpus") or [], snapshot.get("os") == "macOS"
    name = chip or "a chip that is not told"
    if mac and chip and not chip.startswith("Apple"):
        answer = f"{name}; PyTorch and MLX train on Apple's chips only"
        return Finding(CHIP, answer, NO, "use a Mac with an M1 or later")
    if gpus and mac:
        return Finding(CHIP, f"{name}, with a GPU" + (f" of {gpus[0]['cores']} cores" if gpus[0]["cores"] else ""), YES)
    if gpus:
        counts = Counter(gpu["name"] for gpu in gpus)
        return Finding(CHIP, ", ".join(f"{n} × {gpu}" if n > 1 else gpu for gpu, n in counts.items()), YES)
    reason = snapshot.get("unknown", {}).get("gpus", "none is listed")
    if seen:
        return Finding(CHIP, f"{seen[0]}, as a framework says; {reason}", YES)
    if mac and snapshot.get("virtual_machine"):
        remedy = "run it in macOS itself: a virtual machine does not pass the GPU on"
        return Finding(CHIP, f"{name}, a virtual machine without a GPU", NO, remedy)
    if mac:
        return Finding(CHIP, f"{name}; {reason}", NOT_TOLD)
    remedy = "use a Mac with an Apple chip, or a machine with an NVIDIA GPU and its driver; all else runs on the CPU"
    return Finding(CHIP, f"{name}; {reason}", NO, remedy)


def _system(snapshot: dict[str, Any]) -> Finding:
    name, version = snapshot.get("os"), snapshot.get("os_version")
    text = " ".join(filter(None, (name, version))) or "not told"
    if name != "macOS":
        return Finding(SYSTEM, f"{text}; only macOS has to be of a certain age, for MPS", YES)
    if not version:
        return Finding(SYSTEM, text, NOT_TOLD)
    new = int(version.split(".")[0]) >= OLDEST_MACOS
    needs = "{} or later is" if new else "this PyTorch's MPS needs {} or later"
    remedy = f"update to macOS {OLDEST_MACOS} or later (System Settings, General, Software Update)"
    return _judge(SYSTEM, f"{text}; {needs.format(OLDEST_MACOS)}", new, remedy)


def _python(snapshot: dict[str, Any], processor: str) -> Finding:
    python, architecture, mac = snapshot.get("python"), snapshot.get("architecture"), snapshot.get("os") == "macOS"
    says = f"Python {python} for {architecture}; platform.processor() says {processor!r}"
    if mac and snapshot.get("translated"):
        return Finding(PYTHON, f"{says}, so Rosetta translates it from Intel's code", NO, ROSETTA)
    if mac and architecture == "arm64" and processor != "arm":
        return Finding(PYTHON, f"{says}, where Lightning and Keras expect 'arm'", NO, UNAME)
    return Finding(PYTHON, says, YES)


def _framework(name: str, answer: dict, cause: str | None, snapshot: dict) -> Finding:
    """cause: the question whose no explains that of a framework."""
    kind, packages, mac = FRAMEWORKS[name], snapshot.get("packages") or {}, snapshot.get("os") == "macOS"
    question, label = f"Does {kind.title} see the GPU?", f"{kind.title} {answer['version'] or ''}".strip()
    if packages.get(kind.apple_plugin):
        label += f" with {kind.apple_plugin} {packages[kind.apple_plugin]}"
    gpus = usable(answer, "gpu")
    if gpus:
        text = f"{label}: " + ", ".join(f"{gpu['backend']} ({gpu['name']})" for gpu in gpus)
        if kind.apple_plugin and any(gpu["backend"] == kind.apple_gpu for gpu in gpus):
            text += "; its numbers are checked against the CPU's before anything is timed"
        return Finding(question, text, YES)
    because = f"as for “{cause}”" if cause else None
    if answer["reason"]:
        return Finding(question, f"{kind.title}: {answer['reason']}", NO, because or INSTALL_AGAIN)
    elsewhere = next((gpu for gpu in kind.gpus if gpu != kind.apple_gpu), kind.apple_gpu)
    expected = kind.apple_gpu if mac else elsewhere
    reasons = [device["reason"] for device in answer["devices"] if device["backend"] == expected]
    if not mac:
        remedy = f"install {kind.cuda_install}, and see that `nvidia-smi` lists the GPU"
    elif kind.apple_plugin and not packages.get(kind.apple_plugin):
        remedy = f"run `make env` again: it installs {kind.apple_plugin} beside {kind.title}"
    else:
        remedy = (
            f"restart the Mac; if that does not help, remove .venv and run `make env`: {kind.title} is installed anew"
        )
    return Finding(question, f"{label}: {'; '.join(reasons) or 'no GPU'}", NO, because or remedy)


def _lightning(answer: dict, torch: dict, cause: str | None) -> Finding:
    question = "Does Lightning choose the GPU?"
    if answer["reason"]:
        return Finding(question, f"Lightning: {answer['reason']}", NO, INSTALL_AGAIN)
    text = f'Lightning {answer["version"]}: accelerator="auto" is {answer["auto"]}'
    if answer["auto"] != "cpu":
        return Finding(question, text, YES)
    reasons = {device["backend"]: device["reason"] for device in answer["devices"] if device["reason"]}
    refused = [reasons[gpu["backend"]] for gpu in usable(torch, "gpu") if gpu["backend"] in reasons]
    if any("DISABLE_MPS" in reason for reason in refused):
        remedy = "unset DISABLE_MPS"
    elif refused:
        remedy = "run it with a Python for arm64 whose platform.processor() says 'arm'"
    else:
        remedy = f"as for “{cause or 'Does PyTorch see the GPU?'}”"
    return Finding(question, "; ".join([text, *(f"{name}: {reason}" for name, reason in reasons.items())]), NO, remedy)


def _precisions(framework: str, device: dict[str, Any]) -> Finding:
    works = [name for name, reason in device["precisions"].items() if reason is None]
    fails = [f"not {name} ({one_line(reason)})" for name, reason in device["precisions"].items() if reason]
    answer = "; ".join([f"{', '.join(works) or 'no precision'} work", *fails])
    question = f"Does {NAMES[framework]} compute in fp32 on {device['backend']}?"
    return _judge(question, answer, "fp32" in works, f"do not train with {NAMES[framework]} on this device")


def _memory(torch: dict[str, Any], environment: Mapping[str, str]) -> Finding:
    question, devices = "Is there memory to train in?", usable(torch)
    if not devices:
        return Finding(question, "PyTorch is not there to tell", NOT_TOLD)
    parts = [f"{format.gigabytes(device['free_bytes'])} are free now for {device['backend']}" for device in devices]
    if any(device["backend"] == "mps" for device in devices):
        high, low = devices_torch.WATERMARKS
        try:
            share = devices_torch.watermarks(environment)[high]
        except PomologyError as error:
            return Finding(question, "; ".join([*parts, str(error)]), NO, f"unset {high} and {low}")
        limit = "as much as it asks for" if float(share) == 0 else f"{share} × what Metal recommends"
        parts.append(f"MPS may take {limit}; PyTorch alone would let it take 1.7 ×, by swapping")
    enough = min(device["free_bytes"] for device in devices) >= ENOUGH_BYTES
    remedy = "close other programs; what does not fit ends as too-big, untried"
    return _judge(question, "; ".join(parts), enough, remedy)


def _fallback(environment: Mapping[str, str], mac: bool) -> Finding:
    name = devices_torch.FALLBACK_VARIABLE
    unset = environment.get(name, "0") in ("", "0")
    answer = f"{name} is set: such operators run on the CPU, and times carry the flag fallback-enabled"
    if unset:
        here = "" if mac else " (on a Mac; it means nothing here)"
        answer = f"{name} is not set: such an operator ends its case, as unsupported{here}"
    remedy = f"unset {name} before Python starts, unless this is what you want to time"
    return _judge("Would an operator that MPS lacks be noticed?", answer, unset, remedy)


def _conditions(conditions: dict[str, Any]) -> Finding:
    source = {"ac": "on mains", "battery": "on battery"}.get(conditions["power_source"], "power source not told")
    low = {True: "low-power mode on", False: "low-power mode off"}.get(conditions["low_power_mode"])
    level = None if conditions["thermal_level"] is None else f"thermal level {conditions['thermal_level']}"
    answer = ", ".join(filter(None, (source, low, level, f"load average {conditions['load']:.2f}")))
    if conditions["flags"]:
        flags = "; ".join(f"{flag}: {cases.FLAGS[flag]}" for flag in conditions["flags"])
        answer += f"; numbers measured now would carry {flags}"
    remedy = "; ".join(CURES[flag] for flag in conditions["flags"])
    return _judge("Is it fit to measure now?", answer, not conditions["flags"], remedy)


def _judge(question: str, answer: str, fine: bool, remedy: str) -> Finding:
    return Finding(question, answer, YES) if fine else Finding(question, answer, NO, remedy)


def _and(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _main(framework: str, place: str) -> None:
    from importlib.metadata import PackageNotFoundError, version

    installed = None
    try:
        installed = version(framework)
        answer = _probe_here(framework)
    except PackageNotFoundError:
        answer = _silent("not installed")
    except Exception as error:  # whatever stops a framework is its answer
        kind = "" if isinstance(error, PomologyError) else f"{type(error).__name__}: "
        answer = _silent(one_line(f"{kind}{error}"), installed)
    Path(place).write_text(json.dumps(answer), encoding="utf-8")


if __name__ == "__main__":
    _main(*sys.argv[1:])
