"""Does this machine support it? Questions with plain answers, from the chip to the memory, and a verdict.

Each framework answers in a process of its own, as two in one process may hang it, with a time limit: what hangs or dies
costs an answer and not the doctor. `findings` judges the answers of any machine.
"""

import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from pomology import format
from pomology.devices import find, known_faults
from pomology.devices import torch as devices_torch
from pomology.errors import PomologyError
from pomology.machine import snapshot as machine_snapshot
from pomology.paths import redact, write_atomic
from pomology.report.table import Row, Table
from pomology.results import cases, metrics

YES, NO, NOT_TOLD = "yes", "no", "not told"
HEADINGS = {NO: "Not as it should be", NOT_TOLD: "Cannot be told", YES: "Fine"}
COLUMNS = 100  # of a line for a terminal
FRAMEWORKS = find.frameworks()
NAMES = {name: kind.title for name, kind in FRAMEWORKS.items()} | {"lightning": "Lightning"}
OLDEST_MACOS = 14  # what the wheels of PyTorch 2.14 and MLX 0.32 are built for
PROGRAM = ("-m", "pomology.extras.doctor.doctor")  # of the process in which a framework answers
LIMIT_S = 120  # of one framework; the first import on a Mac checks every library's signature
ENOUGH_BYTES = 4e9
CHIP, SYSTEM, PYTHON = "Is there a GPU to train on?", "Is the system new enough?", "Is Python native?"
AGAIN = "run `make env` again, and see README.md"
CONDITIONS = ("power source", "low-power mode", "thermal level")
CURES = {"on-battery": "plug it in", "low-power": "turn low-power mode off", "busy": "close what uses the processor"}
# The folders of a path in a message, which may name a person: `/a/b c/`, `~/a/`, `C:\\a\\`; not those of a link. What
# is behind the last slash stays. A text between two paths goes too, as a folder's name may have spaces.
FOLDERS = re.compile(r"(?<![\w/\\])(?:[A-Za-z]:)?[~.]*[/\\](?![/\\])(?:[^:,;'\"()<>|/\\]+[/\\])*")


class Finding(NamedTuple):
    """A question about this machine, its answer, the verdict on it (yes, no or not told), and what to do if no."""

    question: str
    answer: str
    verdict: str
    remedy: str = ""


class Examination(NamedTuple):
    """All findings, the verdict in a sentence, and what Lightning's accelerator="auto" is: `cpu`, `cuda` or `mps`."""

    findings: Sequence[Finding]
    verdict: str
    auto: str = "cpu"

    def lines(self) -> list[str]:
        """For a terminal: the verdict, then what is not as it should be, what cannot be told, and what is fine."""
        lines = [*_wrapped(self.verdict)]
        for verdict, heading in HEADINGS.items():
            here = [each for each in self.findings if each.verdict == verdict]
            lines += ["", f"{heading} ({len(here)} of {len(self.findings)})"] if here else []
            for question, answer, _, remedy in here:
                lines += [*_wrapped(question, 2), *_wrapped(f"{verdict.capitalize()}: {answer}.", 4)]
                lines += _wrapped(f"Do this: {remedy}.", 4) if remedy else []
        return lines

    def table(self) -> Table:
        """For a notebook: the same as a table, with the verdict below it."""
        rows = tuple(Row((each.question, each.verdict, each.answer, each.remedy)) for each in self.findings)
        columns = ("Question", "Verdict", "What was found", "What to do")
        data = tuple(each._asdict() for each in self.findings)
        return Table("Does this machine support it?", columns, rows, (self.verdict,), data)


def examine(snapshot: dict[str, Any] | None = None) -> Examination:
    """Examine this machine and its frameworks, which takes some seconds. `snapshot`: the machine's, if known."""
    with ThreadPoolExecutor(2) as pool:  # the imports are work for a processor each
        answers = dict(zip(NAMES, pool.map(probe, NAMES), strict=True))
    snapshot = snapshot or machine_snapshot.snapshot()
    judged = findings(snapshot, machine_snapshot.conditions(), answers, platform.processor(), os.environ)
    return Examination(judged, verdict(judged, answers), answers["lightning"].get("auto", "cpu"))


def processor_agrees(snapshot: dict[str, Any], processor: str) -> bool | None:
    """Whether what `platform.processor()` says (`arm`, or not) is what sysctl says of this Python; None off macOS."""
    translated = snapshot.get("translated") if snapshot.get("os") == "macOS" else None
    return None if translated is None else (processor == "arm") != translated


def probe(framework: str, limit_s: float = LIMIT_S, program: Sequence[str] = PROGRAM) -> dict[str, Any]:
    """What a framework can train on, by a process of its own. Never raises; writes nothing to the terminal.

    Keys: version (None if it is not there), reason (why there is no answer, else None), devices (a list of backend,
    kind, name, reason (None if it can train there), precisions, free_bytes, and faults: a list of
    what, answer, source and cure), and for Lightning `auto`, what it chooses.
    """
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, "answer.json")
        command = [sys.executable, *program, framework, str(place)]
        texts = {"capture_output": True, "encoding": "utf-8", "errors": "replace", "stdin": subprocess.DEVNULL}
        try:
            done = subprocess.run(command, timeout=limit_s, check=False, **texts)
        except subprocess.TimeoutExpired:
            done = None
        except OSError as error:
            return _silent(f"no process could be started to ask it: {error.strerror}")
        if place.exists():
            return json.loads(place.read_text(encoding="utf-8"))
    if done is None:
        return _silent(f"it did not answer within {limit_s:g} s")
    if done.returncode < 0:
        return _silent(f"loading it ended the process with {signal.Signals(-done.returncode).name}")
    return _silent(one_line(done.stderr.strip().split("\n")[-1]) or f"exit status {done.returncode}")


def _silent(reason: str, version: str | None = None) -> dict[str, Any]:
    return {"version": version, "reason": reason, "devices": []}


def one_line(text: str) -> str:
    """A message in one line of at most 200 characters, without the folders in it, which may name a person."""
    return format.one_line(FOLDERS.sub("", redact(" ".join(text.split()))), 200)


def _main(framework: str, place: str) -> None:
    """In the process that is for one framework: write its answer."""
    version = None
    try:
        version = metadata.version(framework)
        answer = _probe_lightning() if framework == "lightning" else _probe_here(framework, Path(place))
    except metadata.PackageNotFoundError:
        answer = _silent("not installed")
    except Exception as error:  # whatever stops a framework is its answer
        kind = "" if isinstance(error, PomologyError) else f"{type(error).__name__}: "
        answer = _silent(one_line(f"{kind}{error}"), version)
    write_atomic(Path(place), json.dumps(answer))


def _probe_here(framework: str, place: Path) -> dict[str, Any]:
    """Writes the answer before each fault, too: one that ends the process is to cost no other answer."""
    answer: dict[str, Any] = {"version": "", "reason": None, "devices": []}
    there = []
    for backend, reason in FRAMEWORKS[framework].backends().items():
        entry = {"backend": backend, "kind": "cpu" if backend == "cpu" else "gpu", "reason": reason}
        if reason is None:
            (device,) = find.find(backend, framework)
            answer["version"] = device.framework_version
            entry |= {"name": device.name, "precisions": device.precisions(), "free_bytes": device.free_memory()}
            bank = known_faults.of(device)
            entry["faults"] = [[fault.what, known_faults.ENDED, fault.source, fault.cure] for fault in bank]
            there.append((device, bank, entry["faults"]))
        answer["devices"].append(entry)
    for device, bank, rows in there:
        for fault, row in zip(bank, rows, strict=True):
            write_atomic(place, json.dumps(answer))
            row[1] = one_line(known_faults.look(fault, device))
    return answer


def _probe_lightning() -> dict[str, Any]:
    import lightning
    from lightning.pytorch.accelerators import CUDAAccelerator, MPSAccelerator

    missing = FRAMEWORKS["torch"].backends()
    devices: list[dict[str, Any]] = [{"backend": "cpu", "kind": "cpu", "reason": None}]
    for backend, accelerator in (("cuda", CUDAAccelerator), ("mps", MPSAccelerator)):
        here = f"platform.processor() says {platform.processor()!r}, and Lightning wants 'arm'"
        if os.environ.get("DISABLE_MPS") == "1":
            here = "DISABLE_MPS=1 turns it off"
        reason = None if accelerator.is_available() else missing[backend] or here  # here: though PyTorch has it
        devices.append({"backend": backend, "kind": "gpu", "reason": reason})
    with tempfile.TemporaryDirectory() as folder:
        quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
        trainer = lightning.Trainer(accelerator="auto", devices=1, default_root_dir=folder, **quiet)
    auto = type(trainer.accelerator).__name__.removesuffix("Accelerator").lower()
    return {"version": lightning.__version__, "reason": None, "devices": devices, "auto": auto}


def findings(
    snapshot: dict, conditions: dict, answers: Mapping[str, dict], processor: str, environment: Mapping[str, str]
) -> list[Finding]:
    """Judge a machine: its `snapshot.snapshot` and `snapshot.conditions`, each framework's answer (see `probe`), what
    `platform.processor()` says, and the variables of its environment."""
    judged = [_chip(snapshot), _system(snapshot), _python(snapshot, processor)]
    cause = next((f"as for “{each.question}”" for each in judged if each.verdict == NO), "")
    judged += [_framework(name, answers[name], cause, snapshot) for name in FRAMEWORKS]
    judged.append(_lightning(answers["lightning"], answers["torch"], cause))
    judged += [_precisions(name, device) for name in FRAMEWORKS for device in usable(answers[name])]
    judged += [faults(name, device) for name in FRAMEWORKS for device in usable(answers[name], "gpu")]
    return [*judged, _memory(answers["torch"], environment), _fallback(environment), _conditions(conditions)]


def verdict(findings: Sequence[Finding], answers: Mapping[str, dict[str, Any]]) -> str:
    """The plain answer in a sentence, with what to do if it is no."""
    on_gpu = [NAMES[name] for name in FRAMEWORKS if usable(answers[name], "gpu")]
    loaded = [NAMES[name] for name in FRAMEWORKS if usable(answers[name])]
    if on_gpu:
        others = [NAMES[name] for name in FRAMEWORKS if NAMES[name] not in on_gpu]
        return f"This machine trains on its GPU with {_and(on_gpu)}." + (f" Not with {_and(others)}." if others else "")
    remedy = next((each.remedy for each in findings if each.verdict == NO and each.remedy), "run `make env`")
    here = f"this machine trains on its CPU only, with {_and(loaded)}" if loaded else "no framework can be loaded here"
    return f"No: {here}. Do this: {remedy}."


def usable(answer: dict[str, Any], *kinds: str) -> list[dict[str, Any]]:
    """The devices of an answer that can train, of a kind (`cpu` or `gpu`) or of any."""
    return [each for each in answer["devices"] if each["reason"] is None and each["kind"] in (kinds or ("cpu", "gpu"))]


def _judge(question: str, answer: str, fine: bool | None, remedy: str = "") -> Finding:
    """fine: None is not told."""
    return Finding(question, answer, {True: YES, False: NO, None: NOT_TOLD}[fine], remedy if fine is False else "")


def _chip(snapshot: dict[str, Any]) -> Finding:
    chip, gpus, mac = snapshot.get("chip"), snapshot.get("gpus"), snapshot.get("os") == "macOS"
    reason = snapshot.get("unknown", {}).get("gpus", "no GPU is listed")
    answer, fine = f"{chip or 'unknown chip'}; {reason}", None if mac else False
    remedy = "use a Mac with an Apple chip, or a machine with an NVIDIA GPU and its driver"
    if mac and chip and not chip.startswith("Apple"):
        answer, fine = f"{chip}; PyTorch and MLX train on Apple's chips only", False
        remedy = "use a Mac with an M1 or later"
    elif gpus:
        counts = Counter(gpu["name"] + (f" of {gpu['cores']} cores" if gpu["cores"] else "") for gpu in gpus)
        answer, fine = ", ".join(f"{n} × {gpu}" if n > 1 else gpu for gpu, n in counts.items()), True
    elif mac and snapshot.get("virtual_machine"):
        answer, fine = f"{chip}, a virtual machine without a GPU", False
        remedy = "run it in macOS itself: a virtual machine does not pass the GPU on"
    return _judge(CHIP, answer, fine, remedy)


def _system(snapshot: dict[str, Any]) -> Finding:
    text = f"{snapshot.get('os') or 'unknown system'} {snapshot.get('os_version') or ''}".strip()
    if snapshot.get("os") != "macOS":
        return _judge(SYSTEM, f"{text}; only macOS has to be of a certain age, for MPS", True)
    version = snapshot.get("os_version")
    new = int(version.split(".")[0]) >= OLDEST_MACOS if version else None
    remedy = f"update to macOS {OLDEST_MACOS} or later (System Settings, General, Software Update)"
    return _judge(SYSTEM, f"{text}; this PyTorch's MPS needs {OLDEST_MACOS} or later", new, remedy)


def _python(snapshot: dict[str, Any], processor: str) -> Finding:
    mac, architecture = snapshot.get("os") == "macOS", snapshot.get("architecture")
    says = f"Python {snapshot.get('python')} for {architecture}; platform.processor() says {processor!r}"
    if mac and snapshot.get("translated"):
        remedy = "install a Python for arm64 (conda has an installer for Apple Silicon), remove .venv, run `make env`"
        return _judge(PYTHON, f"{says}, so Rosetta translates it from Intel's code", False, remedy)
    right = not mac or architecture != "arm64" or processor == "arm"
    remedy = "see that /usr/bin/uname comes first in PATH, since Python asks `uname -p`; else install another Python"
    return _judge(PYTHON, says if right else f"{says}, where Lightning and Keras expect 'arm'", right, remedy)


def _framework(name: str, answer: dict, cause: str, snapshot: dict) -> Finding:
    """cause: in place of a remedy, which question's no explains that of a framework."""
    kind, packages, mac = FRAMEWORKS[name], snapshot.get("packages") or {}, snapshot.get("os") == "macOS"
    question, plugin = f"Does {kind.title} see the GPU?", packages.get(kind.apple_plugin)
    label = f"{kind.title} {answer['version']}" + (f" with {kind.apple_plugin} {plugin}" if plugin else "")
    if answer["reason"]:
        return _judge(question, f"{kind.title}: {answer['reason']}", False, cause or AGAIN)
    if gpus := usable(answer, "gpu"):
        text = f"{label}: " + ", ".join(f"{gpu['backend']} ({gpu['name']})" for gpu in gpus)
        if kind.apple_plugin and any(gpu["backend"] == kind.apple_gpu for gpu in gpus):
            text += "; its numbers are checked against the CPU's before anything is timed"
        return _judge(question, text, True)
    expected = [gpu for gpu in kind.gpus if (gpu == kind.apple_gpu) == mac] or [kind.apple_gpu]
    reasons = [device["reason"] for device in answer["devices"] if device["backend"] == expected[0]]
    remedy = f"{kind.cuda_install}, and see that `nvidia-smi` lists the GPU"
    if mac and kind.apple_plugin and not plugin:
        python = "" if str(snapshot.get("python")).startswith(("3.11", "3.12")) else " PYTHON=python3.12"
        remedy = f"remove .venv and run `make env{python}`: it installs {kind.apple_plugin} next to {kind.title}"
    elif mac:
        remedy = f"restart the Mac; else remove .venv and run `make env`, which installs {kind.title} anew"
    return _judge(question, f"{label}: {'; '.join(reasons) or 'no GPU'}", False, cause or remedy)


def _lightning(answer: dict, torch: dict, cause: str) -> Finding:
    question = "Does Lightning choose the GPU?"
    if answer["reason"]:
        return _judge(question, f"Lightning: {answer['reason']}", False, AGAIN)
    reasons = {device["backend"]: device["reason"] for device in answer["devices"] if device["reason"]}
    remedy = cause or "as for “Does PyTorch see the GPU?”"
    if any(gpu["backend"] in reasons for gpu in usable(torch, "gpu")):
        remedy = "unset DISABLE_MPS; on a Mac, run it with a Python for arm64 whose platform.processor() says 'arm'"
    text = f'Lightning {answer["version"]}: accelerator="auto" is {answer["auto"]}'
    if answer["auto"] != "cpu":
        return _judge(question, text, True)
    return _judge(question, "; ".join([text, *(f"{name}: {why}" for name, why in reasons.items())]), False, remedy)


def _precisions(framework: str, device: dict[str, Any]) -> Finding:
    works = [name for name, reason in device["precisions"].items() if reason is None]
    fails = [f"not {name} ({one_line(reason)})" for name, reason in device["precisions"].items() if reason]
    answer = "; ".join([f"{', '.join(works) or 'no precision'} work", *fails])
    question = f"Does {NAMES[framework]} compute in fp32 on {device['backend']}?"
    return _judge(question, answer, "fp32" in works, f"do not train with {NAMES[framework]} on this device")


def faults(framework: str, device: dict[str, Any]) -> Finding:
    """Which of the faults that are known to give wrong numbers without a word a device of an answer has."""
    rows, quiet = device.get("faults", ()), (known_faults.CURED, known_faults.ELSEWHERE)
    present = [row for row in rows if row[1].startswith(known_faults.PRESENT)]
    texts = [f"{what} ({source}): {answer}" for what, answer, source, _ in rows if answer not in quiet]
    alike = {answer: [row[0] for row in rows if row[1] == answer] for answer in quiet}
    texts += [f"{answer}: {', '.join(names)}" for answer, names in alike.items() if names]
    fine = not present if present or not rows or any(alike.values()) else None
    remedy = "; ".join(f"{what}: {cure}" for what, _, _, cure in present)
    question = f"Is {NAMES[framework]} on {device['backend']} free of the known silent faults?"
    return _judge(question, "; ".join(texts) or "none of them concerns it", fine, remedy)


def _memory(torch: dict[str, Any], environment: Mapping[str, str]) -> Finding:
    question, devices = "Is there memory to train in?", usable(torch)
    if not devices:
        return _judge(question, "PyTorch is not there to ask", None)
    parts = [f"{metrics.gigabytes(device['free_bytes'])} are free now for {device['backend']}" for device in devices]
    if any(device["backend"] == "mps" for device in devices):
        high, low = devices_torch.WATERMARKS
        try:
            share = devices_torch.watermarks(environment)[high]
        except PomologyError as error:
            return _judge(question, "; ".join([*parts, str(error)]), False, f"unset {high} and {low}")
        limit = "as much as it asks for" if float(share) == 0 else f"{share} × what Metal recommends"
        parts.append(f"MPS may take {limit}; PyTorch alone would let it take 1.7 ×, by swapping")
    enough = min(device["free_bytes"] for device in devices) >= ENOUGH_BYTES
    remedy = "close other programs; what does not fit ends as too-big, untried"
    return _judge(question, "; ".join(parts), enough, remedy)


def _fallback(environment: Mapping[str, str]) -> Finding:
    name = devices_torch.FALLBACK_VARIABLE
    unset = environment.get(name, "0") in ("", "0")
    answer = "is set: such operators run on the CPU, and times carry the flag fallback-enabled"
    answer = "is not set: such an operator ends its case, as unsupported" if unset else answer
    remedy = f"unset {name} before Python starts, unless this is what you want to time"
    return _judge("Would an operator that MPS lacks be noticed?", f"{name} {answer}", unset, remedy)


def _conditions(conditions: dict[str, Any]) -> Finding:
    values = [(name, conditions[name.replace("-", "_").replace(" ", "_")]) for name in CONDITIONS]
    words = {"True": "on", "False": "off", "ac": "mains"}
    parts = [f"{name} {words.get(str(value), value)}" for name, value in values if value is not None]
    answer = ", ".join([*parts, f"load average {conditions['load']:.2f}"])
    if flags := conditions["flags"]:
        answer += "; numbers measured now would carry " + "; ".join(f"{flag}: {cases.FLAGS[flag]}" for flag in flags)
    return _judge("Is it fit to measure now?", answer, not flags, "; ".join(CURES[flag] for flag in flags))


def _wrapped(text: str, indent: int = 0) -> list[str]:
    """In lines for a terminal; what is too long for one, as an address, stays whole."""
    form = {"initial_indent": " " * indent, "subsequent_indent": " " * indent}
    return textwrap.wrap(text, COLUMNS, break_long_words=False, break_on_hyphens=False, **form)


def _and(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


if __name__ == "__main__":
    _main(*sys.argv[1:])
