"""The doctor on machines that are not here: recorded Macs, and fakes of what their frameworks would answer."""

from __future__ import annotations

import copy
import getpass
import json
import os
import platform
import re
import socket
import subprocess
import sys
import types
from pathlib import Path

import fakes
import pytest
import test_machine

from pomology import __main__
from pomology.articles import claims as articles_claims
from pomology.articles import published
from pomology.devices import find as devices_find
from pomology.devices import torch as devices_torch
from pomology.machine import snapshot as machine_snapshot
from pomology.report import article, claims
from pomology.results import cases
from pomology.results.record import Record
from pomology.runner import doctor, notebooks, parameters

mac = test_machine.mac

# What frameworks answer -----------------------------------------------------------------------------------------------

WORKS = dict.fromkeys(("fp32", "fp16", "bf16"))
NO_FP64 = "Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64."
FINE = {"power_source": "ac", "low_power_mode": False, "thermal_level": 0, "load": 1.5, "flags": []}


def there(backend: str, name: str, free_bytes: float = 20e9, **precisions: str | None) -> dict:
    kind = "cpu" if backend == "cpu" else "gpu"
    found = {"backend": backend, "kind": kind, "name": name, "reason": None, "free_bytes": free_bytes}
    return found | {"precisions": WORKS | {"fp64": None} | precisions}


def absent(backend: str, reason: str) -> dict:
    return {"backend": backend, "kind": "gpu", "reason": reason}


def says(version: str, *devices: dict, **more: str) -> dict:
    return {"version": version, "reason": None, "devices": list(devices), **more}


MISSING = {"version": None, "reason": "not installed", "devices": []}
MPS = there("mps", "Apple M2 Ultra", fp64=NO_FP64)
CPU = there("cpu", "the processor")
SEES_MPS = {
    "torch": says("2.13.0", CPU, absent("cuda", "this PyTorch is built without CUDA"), MPS),
    "tensorflow": says("2.16.2", CPU, absent("cuda", "no CUDA on macOS"), there("metal", "Apple M2 Ultra")),
    "mlx": says("0.32.4", CPU, there("mlx-gpu", "Apple M2 Ultra", fp64="float64 is not supported on the GPU")),
    "lightning": says("2.6.6", CPU, absent("cuda", "no CUDA"), MPS, auto="mps"),
}
NO_METAL = "PyTorch finds no Metal GPU (a virtual machine, or macOS older than 14)"
SEES_NO_METAL = {
    "torch": says("2.13.0", CPU, absent("cuda", "this PyTorch is built without CUDA"), absent("mps", NO_METAL)),
    "tensorflow": says("2.16.2", CPU, absent("metal", "TensorFlow finds no Metal GPU")),
    "mlx": says("0.32.4", CPU, absent("mlx-gpu", "MLX finds no Metal GPU")),
    "lightning": says("2.6.6", CPU, absent("mps", NO_METAL), auto="cpu"),
}
NO_CUDA = {
    "torch": says("2.13.0+cpu", CPU, absent("cuda", "this PyTorch is built without CUDA"), absent("mps", "not built")),
    "tensorflow": says("2.16.2", CPU, absent("cuda", "this TensorFlow is built without CUDA"), absent("metal", "no")),
    "mlx": says("0.32.4", CPU, absent("mlx-gpu", "this MLX is built without CUDA")),
    "lightning": says("2.6.6", CPU, absent("cuda", "without CUDA"), absent("mps", "not built"), auto="cpu"),
}
CUDA = there("cuda", "NVIDIA H100 80GB HBM3", 79e9)
SEES_CUDA = {
    "torch": says("2.13.0+cu130", CPU, CUDA, absent("mps", "this PyTorch is built without MPS")),
    "tensorflow": NO_CUDA["tensorflow"],
    "mlx": NO_CUDA["mlx"],
    "lightning": says("2.6.6", CPU, CUDA, absent("mps", "not built"), auto="cuda"),
}
LINUX = {
    "chip": "AMD EPYC 7B13",
    "gpus": [],
    "os": "Linux",
    "os_version": "6.8",
    "architecture": "x86_64",
    "translated": False,
    "virtual_machine": True,
    "python": "3.11.9",
    "packages": {},
    "unknown": {"gpus": "no NVIDIA driver answers: Driver Not Loaded"},
}
CUDA_BOX = LINUX | {"gpus": [{"name": "NVIDIA H100 80GB HBM3", "memory_bytes": 8e10, "cores": None}] * 2, "unknown": {}}

ALL = "PyTorch, TensorFlow and MLX"
SEE = ("Does PyTorch see the GPU?", "Does TensorFlow see the GPU?", "Does MLX see the GPU?")
LIGHTNING = "Does Lightning choose the GPU?"
# Machine -> (folder of recorded outputs or a snapshot, macOS, architecture, processor, answers, the questions that get
# a no, how the verdict begins, what stands in it).
MACHINES = {
    "a Mac": ("m2-ultra", "15.5", "arm64", "arm", SEES_MPS, (), f"This machine trains on its GPU with {ALL}.", ""),
    "a Mac under Rosetta": (
        *("rosetta", "15.5", "x86_64", "i386"),
        dict.fromkeys(doctor.NAMES, MISSING),
        (doctor.PYTHON, *SEE, LIGHTNING),
        "No: no framework can be loaded here.",
        "install a Python for arm64",
    ),
    "a Mac of yesterday": (
        *("m1", "13.6", "arm64", "arm", SEES_NO_METAL),
        (doctor.SYSTEM, *SEE, LIGHTNING),
        f"No: this machine trains on its CPU only, with {ALL}.",
        "update to macOS 14",
    ),
    "a virtual Mac": (
        *("vm", "15.5", "arm64", "arm", SEES_NO_METAL),
        (doctor.CHIP, *SEE, LIGHTNING),
        f"No: this machine trains on its CPU only, with {ALL}.",
        "a virtual machine does not pass the GPU on",
    ),
    "Linux without a GPU": (
        *(LINUX, "", "", "x86_64", NO_CUDA),
        (doctor.CHIP, *SEE, LIGHTNING),
        f"No: this machine trains on its CPU only, with {ALL}.",
        "a machine with an NVIDIA GPU",
    ),
    "Linux with CUDA": (
        *(CUDA_BOX, "", "", "x86_64", SEES_CUDA, SEE[1:]),
        "This machine trains on its GPU with PyTorch. TensorFlow and MLX do not: see above.",
        "",
    ),
}


@pytest.fixture(params=MACHINES)
def patient(request, mac):
    """(the machine's row, its findings, its verdict)."""
    row = MACHINES[request.param]
    source, version, architecture, processor, answers, *_ = row
    if isinstance(source, str):
        mac(source, architecture=architecture, version=version)
        snapshot = machine_snapshot.snapshot()
    else:
        snapshot = source
    found = doctor.findings(snapshot, FINE, answers, processor, {})
    return row, found, doctor.verdict(found, answers)


def test_machines_get_their_verdict_and_what_to_do(patient):
    row, found, verdict = patient
    *_, refused, begins, holds = row
    assert verdict.startswith(begins) and holds in verdict, verdict
    no = [one for one in found if one.verdict == doctor.NO]
    assert tuple(one.question for one in no) == refused
    assert all(one.remedy for one in no)
    assert not [one for one in found if one.verdict == doctor.YES and one.remedy]
    assert {one.verdict for one in found} <= {doctor.YES, doctor.NO, doctor.NOT_TOLD}
    assert len({one.question for one in found}) == len(found)


def test_what_is_said_names_nobody_and_no_place(patient):
    _, found, verdict = patient
    examination = doctor.Examination(tuple(found), verdict)
    text = "\n".join([*examination.lines(), str(examination.table()), examination.table()._repr_html_()])
    assert [secret for secret in test_machine.SECRETS if secret in text] == []
    names = {getpass.getuser(), socket.gethostname()}
    assert not names & set(re.findall(r"[\w.-]+", "\n".join(examination.lines())))
    assert str(Path.home()) + "/" not in text and not re.search(r"/(Users|home|opt|var)/", text)


def finding(found: list[doctor.Finding], question: str) -> doctor.Finding:
    (one,) = [one for one in found if one.question.startswith(question)]
    return one


def test_a_mac_s_answers(mac):
    mac("m2-ultra")
    snapshot = machine_snapshot.snapshot() | {"packages": {"tensorflow-metal": "1.2.0"}}
    found = doctor.findings(snapshot, FINE, SEES_MPS, "arm", {})
    assert finding(found, doctor.CHIP).answer == "Apple M2 Ultra, with a GPU of 76 cores"
    assert finding(found, doctor.SYSTEM).answer == "macOS 15.5; 14 or later is"
    assert finding(found, doctor.PYTHON).answer == "Python 3.11.9 for arm64; platform.processor() says 'arm'"
    assert finding(found, "Does PyTorch see").answer == "PyTorch 2.13.0: mps (Apple M2 Ultra)"
    seen = finding(found, "Does TensorFlow see").answer
    assert (
        seen.startswith("TensorFlow 2.16.2 with tensorflow-metal 1.2.0: metal") and "checked against the CPU's" in seen
    )
    assert finding(found, "Does Lightning").answer == 'Lightning 2.6.6: accelerator="auto" is mps'
    fp32 = finding(found, "Does PyTorch compute in fp32 on mps?")
    assert fp32.verdict == doctor.YES and fp32.answer == f"fp32, fp16, bf16 work; not fp64 ({NO_FP64})"
    memory = finding(found, "Is there memory")
    assert "20.0 GB are free now for mps; MPS may take 1 × what Metal recommends" in memory.answer


def test_rosetta_is_named_before_everything_that_follows_from_it(mac):
    mac("rosetta", architecture="x86_64")
    found = doctor.findings(machine_snapshot.snapshot(), FINE, dict.fromkeys(doctor.NAMES, MISSING), "i386", {})
    assert finding(found, doctor.CHIP).verdict == doctor.YES
    python = finding(found, doctor.PYTHON)
    assert "'i386'" in python.answer and "Rosetta" in python.answer
    assert finding(found, "Does PyTorch see").remedy == f"as for “{doctor.PYTHON}”"


# One thing wrong with a good Mac: what it says, and what to do.
WRONG = {
    "a name of the processor that Lightning refuses": ({"processor": ""}, doctor.PYTHON, "expect 'arm'", "uname"),
    "fallback allowed": (
        {"environment": {devices_torch.FALLBACK_VARIABLE: "1"}},
        "Would an operator",
        "fallback-enabled",
        f"unset {devices_torch.FALLBACK_VARIABLE}",
    ),
    "watermarks that PyTorch would refuse": (
        {"environment": {devices_torch.WATERMARKS[0]: "0.5", devices_torch.WATERMARKS[1]: "0.9"}},
        "Is there memory",
        "must not exceed",
        "unset PYTORCH_MPS_HIGH",
    ),
    "little memory": (
        {"torch": says("2.13.0", CPU, MPS | {"free_bytes": 1.5e9})},
        "Is there memory",
        "1.50 GB",
        "close",
    ),
    "on battery": (
        {
            "conditions": FINE
            | {"power_source": "battery", "low_power_mode": True, "flags": ["on-battery", "low-power"]}
        },
        "Is it fit",
        "on battery, low-power mode on, thermal level 0, load average 1.50",
        "plug it in; turn low-power mode off",
    ),
    "others at work": (
        {"conditions": FINE | {"flags": ["busy"]}},
        "Is it fit",
        "busy",
        "close what uses the processor",
    ),
    "no Metal plugin": (
        {"tensorflow": says("2.16.2", CPU, absent("metal", "tensorflow-metal is not installed"))},
        "Does TensorFlow see",
        "tensorflow-metal is not installed",
        "make env",
    ),
    "MPS turned off for Lightning": (
        {"lightning": says("2.6.6", CPU, absent("mps", "DISABLE_MPS=1 turns it off"), auto="cpu")},
        "Does Lightning",
        "DISABLE_MPS=1",
        "unset DISABLE_MPS",
    ),
    "Lightning without arm": (
        {"lightning": says("2.6.6", CPU, absent("mps", "platform.processor() says ''"), auto="cpu")},
        "Does Lightning",
        "platform.processor()",
        "a Python for arm64",
    ),
    "a framework that hangs": (
        {"mlx": {"version": None, "reason": "it did not answer within 120 s", "devices": []}},
        "Does MLX see",
        "MLX: it did not answer within 120 s",
        "make env",
    ),
    "fp32 that is wrong": (
        {"mlx": says("0.32.4", there("mlx-gpu", "Apple M2 Ultra", fp32="gives wrong products"))},
        "Does MLX compute in fp32 on mlx-gpu?",
        "not fp32 (gives wrong products)",
        "do not train with MLX",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_one_thing_wrong_is_said_with_its_cure(mac, name):
    changed, question, words, cure = WRONG[name]
    mac("m2-ultra")
    answers = SEES_MPS | {framework: changed[framework] for framework in doctor.NAMES if framework in changed}
    given = (changed.get("processor", "arm"), changed.get("environment", {}))
    found = doctor.findings(machine_snapshot.snapshot(), changed.get("conditions", FINE), answers, *given)
    assert [one.question for one in found if one.verdict == doctor.NO] == [finding(found, question).question]
    one = finding(found, question)
    assert words in one.answer and cure in one.remedy
    assert doctor.verdict(found, answers).startswith("This machine trains on its GPU with ")


def test_a_mac_that_does_not_say_is_not_told_and_no_reason_to_refuse(mac, monkeypatch):
    mac("m1", version="")
    monkeypatch.setattr(machine_snapshot, "_output", lambda *command, timeout=10: None)
    found = doctor.findings(machine_snapshot.snapshot(), FINE, SEES_NO_METAL, "arm", {})
    assert finding(found, doctor.CHIP).verdict == finding(found, doctor.SYSTEM).verdict == doctor.NOT_TOLD
    assert finding(found, "Does PyTorch see").remedy.startswith("restart the Mac")


def test_a_gpu_that_only_a_framework_sees_is_one():
    found = doctor.findings(LINUX, FINE, SEES_CUDA, "x86_64", {})
    chip = finding(found, doctor.CHIP)
    assert chip.verdict == doctor.YES and chip.answer.startswith("NVIDIA H100 80GB HBM3, as a framework says; ")


def test_a_gpu_that_no_framework_sees_is_worth_an_installation():
    found = doctor.findings(CUDA_BOX, FINE, NO_CUDA, "x86_64", {})
    assert finding(found, doctor.CHIP).answer == "2 × NVIDIA H100 80GB HBM3"
    assert finding(found, "Does PyTorch see").remedy.startswith("install PyTorch for CUDA")
    assert finding(found, "Does MLX see").remedy.startswith("install mlx[cuda12]")
    verdict = doctor.verdict(found, NO_CUDA)
    assert (
        verdict.startswith("No: this machine trains on its CPU only") and "Do this: install PyTorch for CUDA" in verdict
    )


def test_an_intel_mac_is_told_so():
    snapshot = LINUX | {"chip": "Intel(R) Core(TM) i7-9750H CPU @ 2.60GHz", "os": "macOS", "os_version": "14.7"}
    snapshot |= {"gpus": [{"name": "AMD Radeon Pro 5300M", "memory_bytes": None, "cores": None}], "unknown": {}}
    found = doctor.findings(snapshot, FINE, dict.fromkeys(doctor.NAMES, MISSING), "i386", {})
    assert [one.verdict for one in found[:3]] == [doctor.NO, doctor.YES, doctor.YES]
    assert "use a Mac with an M1 or later" in doctor.verdict(found, dict.fromkeys(doctor.NAMES, MISSING))


@pytest.mark.parametrize(
    ("os_name", "translated", "processor", "agrees"),
    [
        ("macOS", False, "arm", True),
        ("macOS", True, "i386", True),
        ("macOS", True, "arm", False),
        ("macOS", False, "i386", False),
        ("macOS", None, "arm", None),
        ("Linux", False, "x86_64", None),
    ],
)
def test_the_article_s_own_check_is_checked(os_name, translated, processor, agrees):
    assert doctor.processor_agrees({"os": os_name, "translated": translated}, processor) is agrees


# Asking, in a process of its own --------------------------------------------------------------------------------------


@pytest.fixture
def program(tmp_path):
    """A program that takes the place of a framework's process."""

    def write(code: str) -> tuple[str]:
        path = tmp_path / "framework.py"
        path.write_text(f"import json, os, signal, sys, time\n{code}\n", encoding="utf-8")
        return (str(path),)

    return write


ANSWERS = {
    "it hangs": ("time.sleep(600)", 0.5, "it did not answer within 0.5 s"),
    "it aborts": ("os.kill(os.getpid(), signal.SIGABRT)", 60, "loading it ended the process with SIGABRT"),
    "it stops in silence": ("sys.exit(3)", 60, "exit status 3"),
    "it cannot be loaded": (
        "raise ImportError('dlopen(/Users/jane/miniforge3/lib/libtorch.dylib, 0x2): Symbol not found: _x')",
        60,
        "ImportError: dlopen(libtorch.dylib, 0x2): Symbol not found: _x",
    ),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_what_goes_wrong_in_a_framework_is_a_reason(program, capfd, name):
    code, limit_s, reason = ANSWERS[name]
    assert doctor.probe("torch", limit_s, program(code)) == {"version": None, "reason": reason, "devices": []}
    assert capfd.readouterr() == ("", "")


def test_what_a_framework_prints_stays_away_from_the_terminal_and_the_answer(program, capfd):
    code = "print('2026-01-01 I tensorflow: could not find TensorRT')\nprint('WARNING', file=sys.stderr)\n"
    code += "assert sys.argv[1] == 'tensorflow'\nos.system('echo loud; echo louder >&2')\n"
    code += "json.dump({'version': '1', 'reason': None, 'devices': []}, open(sys.argv[2], 'w'))"
    assert doctor.probe("tensorflow", 60, program(code)) == {"version": "1", "reason": None, "devices": []}
    assert capfd.readouterr() == ("", "")


def test_a_package_that_is_not_installed_is_said_to_be_that():
    assert doctor.probe("no_such_framework") == {"version": None, "reason": "not installed", "devices": []}


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("dlopen(/Users/jane doe/env/lib/x.dylib, 0x2): no", "dlopen(x.dylib, 0x2): no"),
        ("cannot open '/Volumes/jane doe/models/a.so'", "cannot open 'a.so'"),
        ("error:/home/john/x and ~/secret/y", "error:y"),
        (r"C:\Users\jo\x.dll is missing", "x.dll is missing"),
        ("see https://pytorch.org/get-started and/or 3 GB/s", "see https://pytorch.org/get-started and/or 3 GB/s"),
        ("two\n lines", "two lines"),
    ],
)
def test_messages_lose_their_folders(text, left):
    assert doctor.one_line(text) == left


def test_long_messages_are_cut():
    assert len(doctor.one_line("x" * 1000)) == 200


PROGRAM = """
import json, sys
from pomology.runner import doctor
answer = doctor._probe_here(sys.argv[1])
print(json.dumps([answer, [name for name in ("torch", "tensorflow", "mlx", "sklearn") if name in sys.modules]]))
"""


@pytest.mark.parametrize("framework", doctor.NAMES)
def test_this_machine_s_frameworks_each_alone(framework):
    done = subprocess.run([sys.executable, "-c", PROGRAM, framework], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    answer, loaded = json.loads(done.stdout.splitlines()[-1])
    assert loaded == ["torch" if framework == "lightning" else framework]
    assert answer["reason"] is None and re.match(r"\d+\.\d+", answer["version"])
    cpu = answer["devices"][0]
    assert (cpu["backend"], cpu["reason"]) == ("cpu", None)
    if framework == "lightning":
        available = [one["backend"] for one in answer["devices"] if one["reason"] is None]
        assert answer["auto"] in available
    else:
        assert cpu["precisions"]["fp32"] is None and cpu["free_bytes"] > 0


# On a pretended Mac ---------------------------------------------------------------------------------------------------


@pytest.fixture
def with_mps(monkeypatch):
    """PyTorch says that it has MPS; what Lightning remembers of it is forgotten before and after."""
    import torch
    from lightning.fabric.accelerators import MPSAccelerator as Fabrics
    from lightning.pytorch.accelerators import MPSAccelerator

    kinds = [kind for kind in (MPSAccelerator, Fabrics) if hasattr(kind.is_available, "cache_clear")]
    assert kinds
    for kind in kinds:
        kind.is_available.cache_clear()
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.mps, "is_built", lambda: True)
    monkeypatch.delenv("DISABLE_MPS", raising=False)
    yield monkeypatch
    monkeypatch.undo()
    for kind in kinds:
        kind.is_available.cache_clear()


@pytest.mark.parametrize(
    ("processor", "disabled", "auto", "reason"),
    [
        ("arm", "", "mps", None),
        ("i386", "", "cpu", "platform.processor() says 'i386', and Lightning wants 'arm'"),
        ("arm", "1", "cpu", "DISABLE_MPS=1 turns it off"),
    ],
)
def test_lightning_on_a_mac(with_mps, processor, disabled, auto, reason):
    with_mps.setattr(platform, "processor", lambda: processor)
    if disabled:
        with_mps.setenv("DISABLE_MPS", disabled)
    answer = doctor._probe_lightning()
    assert answer["auto"] == auto
    assert {one["backend"]: one["reason"] for one in answer["devices"]}["mps"] == reason


@pytest.mark.parametrize("framework", doctor.FRAMEWORKS)
def test_a_framework_is_asked_through_its_devices(monkeypatch, framework):
    class FakeDevice:
        name, framework_version = "Apple M4 Max", "9.8.7"

        def precisions(self):
            return {"fp32": None, "fp64": NO_FP64}

        def free_memory(self):
            return 3 * 10**9

    def find(backend, asked):
        assert asked == framework and backend != "cuda"
        return [FakeDevice()]

    monkeypatch.setattr(devices_find, "backends", lambda framework: {"cpu": None, "cuda": "no CUDA here", "mps": None})
    monkeypatch.setattr(devices_find, "find", find)
    answer = doctor._probe_here(framework)
    cpu, cuda, mps = answer["devices"]
    assert (answer["version"], answer["reason"], cpu["kind"]) == ("9.8.7", None, "cpu")
    assert cuda == {"backend": "cuda", "kind": "gpu", "reason": "no CUDA here"}
    assert mps == {"backend": "mps", "kind": "gpu", "reason": None, "name": "Apple M4 Max", "free_bytes": 3 * 10**9} | {
        "precisions": {"fp32": None, "fp64": NO_FP64}
    }


# Shown ----------------------------------------------------------------------------------------------------------------


def test_the_command_prints_every_finding_and_ends_in_the_verdict(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "probe", lambda framework: copy.deepcopy(NO_CUDA[framework]))
    monkeypatch.setattr(machine_snapshot, "snapshot", lambda: LINUX | {"cpu_cores": 64, "memory_bytes": 256 * 2**30})
    monkeypatch.setattr(machine_snapshot, "conditions", lambda: FINE)
    monkeypatch.setattr(platform, "processor", lambda: "x86_64")
    monkeypatch.setattr(doctor.os, "environ", {**os.environ, devices_torch.FALLBACK_VARIABLE: "1"})
    assert __main__.main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "AMD EPYC 7B13, 64 cores, 256 GB, Linux 6.8, Python 3.11.9"
    assert lines[1] == "  gpus: not available (no NVIDIA driver answers: Driver Not Loaded)"
    assert "no        Does PyTorch see the GPU? PyTorch 2.13.0+cpu: this PyTorch is built without CUDA" in lines
    assert any(line.startswith("          do this: unset PYTORCH_ENABLE_MPS_FALLBACK") for line in lines)
    assert any("20.0 GB are free now for cpu" in line for line in lines)
    assert any("on mains, low-power mode off, thermal level 0, load average 1.50" in line for line in lines)
    assert lines[-1].startswith("No: this machine trains on its CPU only")


def test_the_table_has_the_same_findings():
    found = doctor.findings(LINUX, FINE, NO_CUDA, "x86_64", {})
    examination = doctor.Examination(tuple(found), doctor.verdict(found, NO_CUDA))
    table = examination.table()
    assert [row.cells[0] for row in table.rows] == [one.question for one in found]
    assert table.notes == (examination.verdict,) and "<td" in table._repr_html_()


# The notebook's cases in its tables -----------------------------------------------------------------------------------


def record(backend: str, config: dict, scaled: bool = False, status: str = "ok", **metrics: float) -> Record:
    name = " ".join(f"{key}={value}" for key, value in config.items())
    units = {"flops_per_s": "FLOP/s", "throughput": "steps/s", "speedup": "x", "processor": ""}
    return fakes.record(
        **{"experiment": "device_check", "article": "002", "case": f"torch-{backend} {name}", "config": config},
        **{"backend": backend, "chip": "Apple M2 Ultra", "scaled": scaled, "status": status},
        reason=None if status == "ok" else "Lightning says: No supported gpu backend found!",
        metrics={key: fakes.metric(value, unit=units.get(key, "s")) for key, value in metrics.items()},
    )


def chart(cpu_s: float, gpu_s: float, scaled: bool = False) -> list[dict]:
    found = []
    for model in ("resnet50", "bert", "vgg16"):
        for mode, metric in (("training", "step_s"), ("inference", "forward_s")):
            for backend, seconds in (("cpu", cpu_s), ("mps", gpu_s)):
                config = {"model": model, "mode": mode, "batch_size": 4 if scaled and backend == "cpu" else 64}
                rates = {"flops_per_s": 1e12 / seconds, "throughput": 1 / seconds}
                rates |= {"speedup": cpu_s / gpu_s} if backend == "mps" else {}
                small = scaled and backend == "cpu"
                found.append(record(backend, config, small, **{metric: seconds}, **rates))
    return found


def verdicts(records: list[dict]) -> dict[str, str]:
    lookup = claims.MeasuredLookup(records)
    return {claim.id: articles_claims.test(claim, lookup).status for claim in published.claims("002")}


def perceptron(backend: str, accelerator: str, **more) -> Record:
    return record(backend, {"model": "perceptron", "accelerator": accelerator, "batch_size": 256}, **more)


def test_claims_get_their_verdicts():
    lightning = [perceptron("cpu", "cpu", processor=1), perceptron("mps", "gpu", processor=1)]
    good = [*lightning, perceptron("mps", "auto", processor=1), *chart(8.0, 1.0)]
    assert verdicts(good) == dict.fromkeys(("002-C1", "002-C2", "002-C3"), articles_claims.HOLDS)
    slow = [perceptron("cpu", "cpu", processor=0), perceptron("mps", "gpu", status="error"), *chart(1.2, 1.0)]
    assert verdicts(slow) == dict.fromkeys(("002-C1", "002-C2", "002-C3"), articles_claims.DOES_NOT_HOLD)
    here = [perceptron("cpu", "cpu"), perceptron("cpu", "gpu", status="unsupported"), *chart(8.0, 1.0, scaled=True)]
    assert verdicts(here) == dict.fromkeys(("002-C1", "002-C2", "002-C3"), articles_claims.CANNOT_BE_TOLD)


def test_scaled_cases_stand_there_by_their_rates_and_never_by_seconds():
    records = [*chart(8.0, 0.5, scaled=True), perceptron("cpu", "gpu", status="unsupported")]
    table = article.article_table("device_check", records)
    assert not [column for column in table.columns if re.search(r"second|time\b|Time\b", column)]
    rows = [row.cells for row in table.rows if row.kind == "measured"]
    cpu = rows[0]
    assert cpu[1:5] == ("resnet50", "training", "", "4")
    assert cpu[6] == "0.125 a second" and cpu[7] == "125 GFLOP/s" and "scaled" in cpu[-1]
    gpu = rows[1]
    assert gpu[7:9] == ("2,000 GFLOP/s", "16.0×") and "scaled" not in gpu[-1]
    assert not [cell for row in rows for cell in row if re.fullmatch(r"[\d.,]+ (s|ms)( ±.*)?", cell)]
    refused = next(row for row in rows if row[1] == "perceptron")
    assert refused[6] == "unsupported" and "No supported gpu backend" in refused[-1]
    printed = [row.cells for row in table.rows if row.kind == "published"]
    assert len(printed) == 3 and {row[8] for row in printed} == {"only in an image"}
    assert any(note.startswith("scaled: ") for note in table.notes)


def test_flops_are_comparable_where_seconds_are_not():
    records = chart(8.0, 0.5, scaled=True)
    assert len(cases.comparable(records)) == 6
    assert len(cases.comparable(records, "flops_per_s")) == 12
    assert cases.comparable(records, "step_s") == cases.comparable(records)


# The notebook's plan -------------------------------------------------------------------------------------------------

NOTEBOOK = Path(__file__).resolve().parents[1] / "notebooks" / "lightning_on_mps" / "device_check.ipynb"


@pytest.fixture(scope="module")
def plan():
    """plan(devices, auto, **parameters): the rows that the notebook lets each kind of device run."""
    cells = [
        "".join(cell["source"]) for cell in notebooks.read_notebook(NOTEBOOK)["cells"] if cell["cell_type"] == "code"
    ]
    (imports,) = [cell for cell in cells if "import torch" in cell]
    (networks,) = [cell for cell in cells if "BATCHES = " in cell]
    (planning,) = [cell for cell in cells if "divisors = " in cell]
    scope = {name: one.default for name, one in parameters.declared(NOTEBOOK).items()}
    exec(imports[: imports.index("experiment = ")], scope)
    exec(networks, scope)

    def make(devices: list, auto: str, **given) -> dict[str, list[dict]]:
        names = scope | given
        names["experiment"] = types.SimpleNamespace(devices=devices)
        names["examination"] = types.SimpleNamespace(auto=auto)
        exec(planning, names)
        return names["rows"]

    return make


def a(kind: str, free_bytes: float = 0) -> types.SimpleNamespace:
    return types.SimpleNamespace(kind=kind, free_memory=lambda: free_bytes)


def batches(rows: list[dict]) -> list[tuple]:
    return [(row["model"], row["mode"], row["batch_size"]) for row in rows if "mode" in row]


def accelerators(rows: list[dict]) -> list[str]:
    return [row["accelerator"] for row in rows if "accelerator" in row]


SMALL = [("resnet50", 4), ("bert", 2), ("vgg16", 2)]
FULL = [("resnet50", 128), ("bert", 64), ("vgg16", 64)]


def in_both_modes(sizes: list[tuple]) -> list[tuple]:
    return [(name, mode, size) for name, size in sizes for mode in ("training", "inference")]


def test_a_machine_without_a_gpu_asks_lightning_for_one_all_the_same(plan):
    rows = plan([a("cpu")], "cpu")
    assert set(rows) == {"cpu"} and batches(rows["cpu"]) == in_both_modes(SMALL)
    assert accelerators(rows["cpu"]) == ["cpu", "gpu", "auto"]


def test_a_large_mac_runs_the_chart_s_batches_on_its_gpu(plan):
    rows = plan([a("cpu"), a("gpu", 100e9)], "mps")
    assert batches(rows["cpu"]) == in_both_modes(SMALL) and batches(rows["gpu"]) == in_both_modes(FULL)
    assert (accelerators(rows["cpu"]), accelerators(rows["gpu"])) == (["cpu"], ["gpu", "auto"])


def test_a_small_mac_runs_what_fits(plan):
    """With 5 GB free: weights, gradients and momentum of ResNet-50 take 0.3 GB, 32 pictures 2.75 GB."""
    found = {(name, mode): size for name, mode, size in batches(plan([a("gpu", 5e9)], "mps")["gpu"])}
    assert found["resnet50", "training"] == 32 and found["resnet50", "inference"] == 128
    assert found["bert", "training"] == 8  # 1.75 GB of state, and 7.33 GB for 64 texts
    assert found["vgg16", "training"] == 16  # 1.66 GB of state, and 4.70 GB for 64 pictures


def test_article_leaves_the_batches_as_they_are(plan):
    given = {"profile": "article", "cpu_batch_divisor": 1}
    rows = plan([a("cpu"), a("gpu", 5e9)], "mps", **given)
    assert batches(rows["cpu"]) == batches(rows["gpu"]) == in_both_modes(FULL)


def test_auto_is_told_of_the_device_that_lightning_takes(plan):
    rows = plan([a("cpu"), a("gpu", 100e9)], "cpu")  # a GPU that Lightning does not take
    assert accelerators(rows["cpu"]) == ["cpu", "gpu", "auto"] and accelerators(rows["gpu"]) == []
    assert accelerators(plan([a("cpu")], "mps")["cpu"]) == ["cpu"]  # DEVICE=cpu on a Mac
