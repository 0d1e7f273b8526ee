"""Does this machine support it? Questions with plain answers, from the chip to the memory, and a verdict.

Each framework is asked in a process of its own, as two in one process may hang it, with a time limit: what hangs or
dies costs an answer and not the doctor. `findings` judges what was told, whichever machine told it.
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
from collections.abc import Callable, Mapping, Sequence
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
from pomology.report import table as report_table
from pomology.results import cases
from pomology.runner import mps_rehearsal, notebooks

YES, NO, NOT_TOLD = "yes", "no", "not told"
NAMES = {**cases.FRAMEWORKS, "lightning": "Lightning"}
FRAMEWORKS = tuple(cases.FRAMEWORKS)
OLDEST_MACOS = 14  # what the wheels of PyTorch 2.13 and MLX 0.32 are built for
LIMIT_S = 120  # of one framework; the first import on a Mac checks every library's signature
ENOUGH_BYTES = 4e9
CHIP, SYSTEM, PYTHON = "Is there a GPU to train on?", "Is the system new enough?", "Is Python native?"
ROSETTA = (
    "install a Python for arm64 (with conda: the installer for Apple Silicon, not the one for Intel), "
    "remove .venv, and run `make env`"
)
# The folders of a path in a message, which may name a person: `/a/b c/`, `~/a/`, `C:\\a\\`; not those of a link. What
# is behind the last slash stays. A text between two paths goes too, as a folder's name may have spaces.
FOLDERS = re.compile(r"(?<![\w/\\])(?:[A-Za-z]:)?[~.]*[/\\](?![/\\])(?:[^:,;'\"()<>|/\\]+[/\\])*")


@dataclass(frozen=True)
class Finding:
    """A question about this machine, what was found, the verdict on it (yes, no or not told), and what to do if no."""

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

    def table(self) -> report_table.Table:
        """For a notebook: the same as a table, with the verdict below it."""
        rows = [report_table.Row((one.question, one.verdict, one.answer, one.remedy)) for one in self.findings]
        columns = ("Question", "Verdict", "What was found", "What to do")
        data = tuple(vars(one) for one in self.findings)
        return report_table.Table("Does this machine support it?", columns, tuple(rows), (self.verdict,), data)


def examine(snapshot: dict[str, Any] | None = None) -> Examination:
    """Ask this machine and its frameworks everything, which takes some seconds. `snapshot`: the machine's, if known."""
    with ThreadPoolExecutor(2) as pool:  # the imports are work for a processor each
        answers = dict(zip(NAMES, pool.map(ask, NAMES), strict=True))
    snapshot = snapshot or machine_snapshot.snapshot()
    found = findings(snapshot, machine_snapshot.conditions(), answers, platform.processor(), os.environ)
    return Examination(tuple(found), verdict(found, answers), answers["lightning"].get("auto", "cpu"))


def processor_agrees(snapshot: dict[str, Any], processor: str) -> bool | None:
    """Whether what `platform.processor()` says (`arm`, or not) is what sysctl says of this Python; None off macOS."""
    if snapshot.get("os") != "macOS" or snapshot.get("translated") is None:
        return None
    return (processor == "arm") == (not snapshot["translated"])


# What a framework says ------------------------------------------------------------------------------------------------


def ask(
    framework: str, limit_s: float = LIMIT_S, program: Sequence[str] = ("-m", "pomology.runner.doctor")
) -> dict[str, Any]:
    """What a framework can train on, told by a process of its own. Never raises; writes nothing to the terminal.

    Keys: version (None if it is not there), reason (why nothing was told, else None), devices (a list of backend, kind,
    name, reason (None if it can train there), precisions, free_bytes), and for Lightning `auto`, what it chooses.
    """
    silent: dict[str, Any] = {"version": None, "reason": None, "devices": []}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, "answer.json")
        try:
            done = subprocess.run(
                [sys.executable, *program, framework, str(place)],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=limit_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return silent | {"reason": f"it did not answer within {limit_s:g} s"}
        except OSError as error:
            return silent | {"reason": f"no process could be started for it: {error.strerror}"}
        if place.exists():
            return json.loads(place.read_text(encoding="utf-8"))
    if done.returncode < 0:
        return silent | {"reason": f"loading it ended the process with {signal.Signals(-done.returncode).name}"}
    return silent | {"reason": one_line(done.stderr.strip().split("\n")[-1]) or f"exit status {done.returncode}"}


def one_line(text: str) -> str:
    """A message in one line of at most 200 characters, without the folders in it, which may name a person."""
    text = FOLDERS.sub("", redact(" ".join(text.split())))
    return text if len(text) <= 200 else text[:199] + "…"


def _told(framework: str) -> dict[str, Any]:
    """The answer of one framework, in the process that is for it."""
    if framework == "lightning":
        return _lightning()
    version, devices = "", []
    for backend, reason in find.backends(framework).items():
        entry = {"backend": backend, "kind": "cpu" if backend == "cpu" else "gpu", "reason": reason}
        if reason is None:
            (one,) = find.find(backend, framework)
            version = one.framework_version
            entry |= {"name": one.name, "precisions": one.precisions(), "free_bytes": one.free_memory()}
        devices.append(entry)
    return {"version": version, "reason": None, "devices": devices}


def _lightning() -> dict[str, Any]:
    import lightning
    from lightning.pytorch.accelerators import CUDAAccelerator, MPSAccelerator

    reasons = find.backends("torch")
    devices: list[dict[str, Any]] = [{"backend": "cpu", "kind": "cpu", "reason": None}]
    for backend, accelerator in (("cuda", CUDAAccelerator), ("mps", MPSAccelerator)):
        reason = None if accelerator.is_available() else reasons[backend]
        if reason is None and not accelerator.is_available():  # PyTorch would
            if os.environ.get("DISABLE_MPS") == "1":
                reason = "DISABLE_MPS=1 turns it off"
            else:
                reason = f"platform.processor() says {platform.processor()!r}, and Lightning wants 'arm'"
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
    """Judge what a machine told: its `machine.snapshot`, its `machine.fitness`, each framework's answer (see `ask`),
    what `platform.processor()` says, and the variables of its environment."""
    seen = [one["name"] for name in FRAMEWORKS for one in usable(answers[name], "gpu")]
    found = [_chip(snapshot, seen), _system(snapshot), _python(snapshot, processor)]
    cause = next((one.question for one in found if one.verdict == NO), None)
    mac = snapshot.get("os") == "macOS"
    found += [_framework(name, answers[name], cause, mac, snapshot) for name in FRAMEWORKS]
    found.append(_lightning_finding(answers["lightning"], answers["torch"], cause))
    found += [_precisions(name, one) for name in FRAMEWORKS for one in usable(answers[name])]
    found += [_memory(answers["torch"], environment), _fallback(environment, mac), _conditions(conditions)]
    return found


def verdict(findings: Sequence[Finding], answers: Mapping[str, dict[str, Any]]) -> str:
    """The plain answer in a sentence, with what to do if it is no."""
    seeing = [NAMES[name] for name in FRAMEWORKS if usable(answers[name], "gpu")]
    loaded = [NAMES[name] for name in FRAMEWORKS if usable(answers[name])]
    refusing = [one for one in findings if one.verdict == NO and one.remedy]
    if seeing:
        others = [NAMES[name] for name in FRAMEWORKS if NAMES[name] not in seeing]
        but = f" {_and(others)} {'does' if len(others) == 1 else 'do'} not: see above." if others else ""
        return f"This machine trains on its GPU with {_and(seeing)}.{but}"
    first = f" Do this: {refusing[0].remedy}." if refusing else ""
    if loaded:
        return f"No: this machine trains on its CPU only, with {_and(loaded)}.{first}"
    return f"No: no framework can be loaded here.{first or ' Do this: run `make env`.'}"


def usable(answer: dict[str, Any], kind: str | None = None) -> list[dict[str, Any]]:
    """The devices of an answer that can train, of a kind (`cpu` or `gpu`) or of any."""
    return [one for one in answer["devices"] if one["reason"] is None and kind in (None, one["kind"])]


def _chip(snapshot: dict[str, Any], seen: Sequence[str]) -> Finding:
    chip, gpus = snapshot.get("chip"), snapshot.get("gpus") or []
    mac, virtual = snapshot.get("os") == "macOS", snapshot.get("virtual_machine")
    name = chip or "a chip that is not told"
    if mac and chip and not chip.startswith("Apple"):
        return Finding(
            CHIP, f"{name}; PyTorch and MLX train on Apple's chips only", NO, "use a Mac with an M1 or later"
        )
    if gpus:
        count = {one["name"]: sum(other["name"] == one["name"] for other in gpus) for one in gpus}
        cores = gpus[0]["cores"]
        if mac:
            return Finding(CHIP, f"{name}, with a GPU" + (f" of {cores} cores" if cores else ""), YES)
        return Finding(CHIP, ", ".join(f"{n} × {one}" if n > 1 else one for one, n in count.items()), YES)
    reason = snapshot.get("unknown", {}).get("gpus", "none is listed")
    if seen:
        return Finding(CHIP, f"{seen[0]}, as a framework says; {reason}", YES)
    if mac and virtual:
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
    if int(version.split(".")[0]) >= OLDEST_MACOS:
        return Finding(SYSTEM, f"{text}; {OLDEST_MACOS} or later is", YES)
    remedy = f"update to macOS {OLDEST_MACOS} or later (System Settings, General, Software Update)"
    return Finding(SYSTEM, f"{text}; this PyTorch's MPS needs {OLDEST_MACOS} or later", NO, remedy)


def _python(snapshot: dict[str, Any], processor: str) -> Finding:
    says = (
        f"Python {snapshot.get('python')} for {snapshot.get('architecture')}; platform.processor() says {processor!r}"
    )
    if snapshot.get("os") != "macOS":
        return Finding(PYTHON, says, YES)
    if snapshot.get("translated"):
        return Finding(PYTHON, f"{says}, so Rosetta translates it from Intel's code", NO, ROSETTA)
    if snapshot.get("architecture") == "arm64" and processor != "arm":
        remedy = (
            "see that /usr/bin/uname comes first in PATH, since Python asks `uname -p`; else install another Python"
        )
        return Finding(PYTHON, f"{says}, where Lightning and Keras expect 'arm'", NO, remedy)
    return Finding(PYTHON, says, YES)


def _framework(name: str, answer: dict, cause: str | None, mac: bool, snapshot: dict) -> Finding:
    packages = snapshot.get("packages") or {}
    question, label = f"Does {NAMES[name]} see the GPU?", f"{NAMES[name]} {answer['version'] or ''}".strip()
    if name == "tensorflow" and packages.get("tensorflow-metal"):
        label += f" with tensorflow-metal {packages['tensorflow-metal']}"
    there = usable(answer, "gpu")
    if there:
        text = f"{label}: " + ", ".join(f"{one['backend']} ({one['name']})" for one in there)
        if any(one["backend"] == "metal" for one in there):
            text += "; its numbers are checked against the CPU's before anything is timed"
        return Finding(question, text, YES)
    if answer["reason"]:
        text = f"{NAMES[name]}: {answer['reason']}"
        return Finding(question, text, NO, f"as for “{cause}”" if cause else "run `make env` again, and see README.md")
    ours = ("metal", "mps", "mlx-gpu") if mac else ("cuda", "mlx-gpu")
    reasons = [one["reason"] for one in answer["devices"] if one["backend"] in ours and one["reason"]]
    remedy = f"as for “{cause}”" if cause else _install(name, mac, packages)
    return Finding(question, f"{label}: {'; '.join(reasons) or 'no GPU'}", NO, remedy)


def _install(name: str, mac: bool, packages: dict) -> str:
    """What helps where the machine has a GPU and the framework does not see it."""
    if mac and name == "tensorflow" and not packages.get("tensorflow-metal"):
        return "run `make env` again: it installs tensorflow-metal 1.2.0 beside TensorFlow 2.16.2"
    if mac:
        return (
            f"restart the Mac; if that does not help, remove .venv and run `make env`: {NAMES[name]} is installed anew"
        )
    build = {"torch": "PyTorch for CUDA (pytorch.org, Get Started)", "tensorflow": "tensorflow[and-cuda]"}
    return f"install {build.get(name, 'mlx[cuda12]')}, and see that `nvidia-smi` lists the GPU"


def _lightning_finding(answer: dict, torch: dict, cause: str | None) -> Finding:
    question = "Does Lightning choose the GPU?"
    if answer["reason"]:
        return Finding(question, f"Lightning: {answer['reason']}", NO, "run `make env` again, and see README.md")
    text = f'Lightning {answer["version"]}: accelerator="auto" is {answer["auto"]}'
    if answer["auto"] != "cpu":
        return Finding(question, text, YES)
    seen = {one["backend"] for one in usable(torch, "gpu")}
    why = [f"{one['backend']}: {one['reason']}" for one in answer["devices"] if one["reason"]]
    refused = [one["reason"] for one in answer["devices"] if one["backend"] in seen and one["reason"]]
    if any("DISABLE_MPS" in reason for reason in refused):
        remedy = "unset DISABLE_MPS"
    elif refused:
        remedy = "run it with a Python for arm64 whose platform.processor() says 'arm'"
    else:
        remedy = f"as for “{cause or 'Does PyTorch see the GPU?'}”"
    return Finding(question, f"{text}; {'; '.join(why)}", NO, remedy)


def _precisions(framework: str, one: dict[str, Any]) -> Finding:
    question = f"Does {NAMES[framework]} compute in fp32 on {one['backend']}?"
    works = [name for name, reason in one["precisions"].items() if reason is None]
    fails = [f"not {name} ({one_line(reason)})" for name, reason in one["precisions"].items() if reason]
    text = "; ".join([f"{', '.join(works) or 'no precision'} work", *fails])
    if "fp32" in works:
        return Finding(question, text, YES)
    return Finding(question, text, NO, f"do not train with {NAMES[framework]} on this device")


def _memory(torch: dict[str, Any], environment: Mapping[str, str]) -> Finding:
    question = "Is there memory to train in?"
    there = usable(torch)
    if not there:
        return Finding(question, "PyTorch is not there to tell", NOT_TOLD)
    parts = [f"{format.gigabytes(one['free_bytes'])} are free now for {one['backend']}" for one in there]
    if any(one["backend"] == "mps" for one in there):
        try:
            high = devices_torch.watermarks(environment)[devices_torch.WATERMARKS[0]]
        except PomologyError as error:
            return Finding(
                question, f"{'; '.join(parts)}; {error}", NO, f"unset {' and '.join(devices_torch.WATERMARKS)}"
            )
        limit = "as much as it asks for" if float(high) == 0 else f"{high} × what Metal recommends"
        parts.append(f"MPS may take {limit}; PyTorch alone would let it take 1.7 ×, by swapping")
    if min(one["free_bytes"] for one in there) >= ENOUGH_BYTES:
        return Finding(question, "; ".join(parts), YES)
    return Finding(question, "; ".join(parts), NO, "close other programs; what does not fit ends as too-big, untried")


def _fallback(environment: Mapping[str, str], mac: bool) -> Finding:
    question = "Would an operator that MPS lacks be noticed?"
    name = devices_torch.FALLBACK_VARIABLE
    if environment.get(name, "0") in ("", "0"):
        text = f"{name} is not set: such an operator ends its case, as unsupported"
        return Finding(question, text if mac else f"{text} (on a Mac; it means nothing here)", YES)
    text = f"{name} is set: such operators run on the CPU, and times carry the flag fallback-enabled"
    return Finding(question, text, NO, f"unset {name} before Python starts, unless this is what you want to time")


def _conditions(conditions: dict[str, Any]) -> Finding:
    question = "Is it fit to measure now?"
    source = {"ac": "on mains", "battery": "on battery"}.get(conditions["power_source"], "power source not told")
    low = {True: "low-power mode on", False: "low-power mode off"}.get(conditions["low_power_mode"])
    level = None if conditions["thermal_level"] is None else f"thermal level {conditions['thermal_level']}"
    text = ", ".join(filter(None, (source, low, level, f"load average {conditions['load']:.2f}")))
    cures = {
        "on-battery": "plug it in",
        "low-power": "turn low-power mode off",
        "busy": "close what uses the processor, or wait",
    }
    if not conditions["flags"]:
        return Finding(question, text, YES)
    flags = "; ".join(f"{flag}: {cases.FLAGS[flag]}" for flag in conditions["flags"])
    remedy = "; ".join(cures[flag] for flag in conditions["flags"])
    return Finding(question, f"{text}; numbers measured now would carry {flags}", NO, remedy)


def _and(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


# Operators ------------------------------------------------------------------------------------------------------------


def operators_table(
    only: str, rehearse: Callable[[str], mps_rehearsal.Use] = mps_rehearsal.rehearse
) -> report_table.Table:
    """Which operators MPS lacks in the workloads of PyTorch notebooks: a row each, told on any machine.

    only: their names or globs, separated by spaces; empty is none.

    Each is run on a pretended MPS in a process of its own, with its smoke parameters, which takes some seconds. Raises
    PomologyError for a name that no notebook has.
    """
    rows, data = [], []
    for notebook in notebooks.select(notebooks.notebooks(), only) if only.split() else []:
        if not mps_rehearsal.uses_torch(notebook):
            continue
        try:
            use = rehearse(notebook.name)
        except PomologyError as error:
            rows.append(report_table.Row((notebook.name, "", "", "", "", str(error))))
            data.append({"notebook": notebook.name, "error": str(error)})
            continue
        has, missing = list(use.on_mps().values()), use.missing()
        own, made = has.count(mps_rehearsal.KERNEL), has.count(mps_rehearsal.COMPOSITE)
        faults = "; ".join(use.faults) or "nothing"
        rows.append(
            report_table.Row((notebook.name, f"{len(has)}", f"{own}", f"{made}", ", ".join(missing) or "none", faults))
        )
        data.append({"notebook": notebook.name, "operators": len(has), "missing": " ".join(missing), "faults": faults})
    columns = ("Notebook", "Operators", "with a kernel", "made of others", "MPS lacks", "What a Mac would not do")
    notes = (
        "Looked up in the list of kernels that this PyTorch was built from, so the same on every machine. An operator "
        "that MPS lacks fails there, or runs on the CPU where PYTORCH_ENABLE_MPS_FALLBACK allows it.",
    )
    return report_table.Table("Operators of the workloads on MPS", columns, tuple(rows), notes, tuple(data))


def _main(framework: str, place: str) -> None:
    from importlib.metadata import PackageNotFoundError, version

    answer: dict[str, Any] = {"version": None, "reason": None, "devices": []}
    try:
        answer["version"] = version(framework)
    except PackageNotFoundError:
        answer["reason"] = "not installed"
    else:
        try:
            answer = _told(framework)
        except PomologyError as error:
            answer["reason"] = one_line(str(error))
        except Exception as error:  # whatever stops a framework is its answer
            answer["reason"] = one_line(f"{type(error).__name__}: {error}")
    Path(place).write_text(json.dumps(answer), encoding="utf-8")


if __name__ == "__main__":
    _main(*sys.argv[1:])
