"""The doctor on recorded Macs, with mock answers of their frameworks."""

import pytest
from machine import test_snapshot
from macs import SECRETS

from pomology.__main__ import main
from pomology.devices import torch as devices_torch
from pomology.extras import doctor as extra
from pomology.extras.doctor import doctor
from pomology.machine import snapshot as machine_snapshot

mac = test_snapshot.mac

NO_FP64 = "Cannot convert a MPS Tensor to float64 dtype"
ULTRA = "Apple M2 Ultra"


def there(backend: str, name: str = ULTRA, free_bytes: float = 20e9, **precisions) -> dict:
    device = {"backend": backend, "kind": "cpu" if backend == "cpu" else "gpu", "name": name}
    device["precisions"] = dict.fromkeys(("fp32", "fp16", "bf16", "fp64")) | precisions
    return device | {"reason": None, "free_bytes": free_bytes}


def absent(backend: str, reason: str) -> dict:
    return {"backend": backend, "kind": "gpu", "reason": reason}


def says(version: str, *devices: dict, **more: str) -> dict:
    devices = [there("cpu", "the CPU"), *devices]
    return {"version": version, "reason": None, "devices": devices} | more


MPS = there("mps", fp64=NO_FP64)
NO_CUDA = absent("cuda", "built without CUDA")
SEES_MPS = {
    "torch": says("2.13.0", NO_CUDA, MPS),
    "tensorflow": says("2.16.2", NO_CUDA, there("metal")),
    "mlx": says("0.32.4", there("mlx-gpu")),
    "lightning": says("2.6.6", auto="mps"),
}
NO_METAL = absent("metal", "tensorflow-metal is not installed; `make env` installs it")
CPU_ONLY = {
    "torch": says("2.13.0", NO_CUDA, absent("mps", "PyTorch finds no Metal GPU")),
    "tensorflow": says("2.16.2", NO_METAL),
    "mlx": says("0.32.4", absent("mlx-gpu", "MLX finds no Metal GPU")),
    "lightning": says("2.6.6", auto="cpu"),
}
SEES_CUDA = CPU_ONLY | {
    "torch": says("2.13.0+cu130", there("cuda", "NVIDIA H100 80GB HBM3", 79e9)),
    "lightning": says("2.6.6", auto="cuda"),
}
NOTHING = {
    name: {"version": None, "reason": "not installed", "devices": []} for name in doctor.NAMES
}
LINUX = {"chip": "AMD EPYC 7B13", "gpus": [], "os": "Linux", "os_version": "6.8"}
LINUX |= {"architecture": "x86_64", "python": "3.11.9"}
H100 = LINUX | {"gpus": 2 * [{"name": "NVIDIA H100"}]}

CHIP = "Is there a GPU to train on?"
PYTHON = "Is Python native?"
SEE = tuple(f"Does {doctor.NAMES[name]} train on the GPU?" for name in doctor.FRAMEWORKS)
NONE = (*SEE, "Does Lightning choose the GPU?")
ON_GPU = "This machine trains on its GPU with PyTorch"
ON_CPU, NOWHERE = "This machine trains on its CPU only, with PyTorch", "No framework can be loaded"
# Recorded outputs or a snapshot, architecture, answers, questions answered with no, and verdict.
MACHINES = {
    "a Mac": ("m2-ultra", "arm64", SEES_MPS, (), ON_GPU),
    "under Rosetta": ("rosetta", "x86_64", NOTHING, (PYTHON, *NONE), NOWHERE),
    "Linux without a GPU": (LINUX, "", CPU_ONLY, (CHIP, *NONE), ON_CPU),
    "Linux with CUDA": (H100, "", SEES_CUDA, SEE[1:], ON_GPU),
}


@pytest.mark.parametrize("name", MACHINES)
def test_machines_get_their_verdict_without_secrets(mac, name):
    source, architecture, answers, refused, begins = MACHINES[name]
    if isinstance(source, str):
        mac(source, architecture=architecture)
        source = machine_snapshot.snapshot()
    found = doctor.findings(source, [], answers)
    assert tuple(each.question for each in found if each.fine is False) == refused
    verdict = doctor.verdict(answers)
    assert verdict.startswith(begins)
    text = str(doctor.Examination(found, verdict))
    assert [secret for secret in SECRETS if secret in text] == []
    assert all(question in text for question in refused)
    if name == "Linux with CUDA":
        assert "NVIDIA H100, NVIDIA H100; PyTorch computes on NVIDIA H100 80GB HBM3; CUDA" in text
    if name == "a Mac":
        assert "cuda: built without CUDA; mps (Apple M2 Ultra): fp32, fp16, bf16\n" in text


# One fault of a good Mac: the question that is answered with no, and words of the answer.
WRONG_FP32 = {"mlx": says("0.32.4", there("mlx-gpu", fp32="computes wrong matmuls"))}
HIDDEN = {"lightning": CPU_ONLY["lightning"]}
WITHOUT = {"tensorflow": CPU_ONLY["tensorflow"]}
WRONG = {
    "hidden from Lightning": (HIDDEN, "Does Lightning", "put /usr/bin first in PATH"),
    "fallback allowed": ({"fallback": "1"}, "Does an operator", "=1"),
    "on battery": ({"flags": ["on-battery"]}, "Is the machine ready", "on-battery: "),
    "no Metal plugin": (WITHOUT, "Does TensorFlow train", "`make env` installs it"),
    "fp32 that is wrong": (WRONG_FP32, "Does MLX train", f"mlx-gpu ({ULTRA}): fp16, bf16, fp64"),
}


@pytest.mark.parametrize("name", WRONG)
def test_one_fault_is_reported(mac, monkeypatch, name):
    changed, question, words = WRONG[name]
    mac("m2-ultra")
    monkeypatch.setenv(devices_torch.FALLBACK_VARIABLE, changed.get("fallback", ""))
    answers = SEES_MPS | {each: changed[each] for each in doctor.NAMES if each in changed}
    snapshot = machine_snapshot.snapshot() | {"power_mode": "high"}
    found = doctor.findings(snapshot, changed.get("flags", []), answers)
    assert found[-1].answer.endswith("; power mode high")
    (refused,) = [each for each in found if each.fine is False]
    assert refused.question.startswith(question) and words in refused.answer


def test_a_gpu_without_kernels_and_a_missing_compiler_are_told_with_their_remedies(monkeypatch):
    answers = {"is_available": True, "get_arch_list": ["sm_75", "sm_80", "compute_90"]}
    answers |= {"get_device_name": "Tesla P100", "get_device_capability": (6, 0)}
    for name, value in answers.items():
        monkeypatch.setattr(f"torch.cuda.{name}", lambda value=value: value)
    monkeypatch.setenv("CXX", "/none/g++")
    found = doctor.findings(LINUX, [], NOTHING | {"torch": doctor.answer("torch")})[2]
    assert "cu126) have sm_50 to sm_90; PyTorch" in found.answer and found.fine is False
    assert "this GPU is sm_60; " in found.answer and "apt install g++" in found.answer
    for capability, lacks in (((8, 6), False), ((12, 0), False), ((7, 0), True)):
        monkeypatch.setattr("torch.cuda.get_device_capability", lambda own=capability: own)
        assert doctor._lacks_kernels() is lacks


FAULTS = {
    "time.sleep(600)": "it did not answer within 0.5 s",
    "os.abort()": "loading it ended by SIGABRT: Fatal Python error: Aborted",
    r"raise OSError('no\nto debug')": "loading it ended with status 1: OSError: no",
    "os.system('echo loud; echo louder >&2')": None,
}


@pytest.mark.parametrize("code", FAULTS)
def test_a_failure_of_a_framework_is_a_reason_and_prints_nothing(
    tmp_path, monkeypatch, capfd, code
):
    lines = f"import os, time\ndef answer(name):\n    {code}\n    return {{'reason': None}}\n"
    (tmp_path / "pretended.py").write_text(lines, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONFAULTHANDLER", "1")  # as in the kernels of a run
    found = doctor.probe("torch", 0.5 if "sleep" in code else 60, "pretended:answer")
    assert found["reason"] == FAULTS[code]
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("framework", doctor.NAMES)
def test_this_machine_s_frameworks_each_alone(framework):
    found = doctor.probe(framework)
    assert found["reason"] is None and found["version"][0].isdigit()
    if framework == "lightning":
        assert found["auto"] in ("cpu", "cuda", "mps")
    else:
        cpu = found["devices"][0]
        assert (cpu["backend"], cpu["reason"], cpu["precisions"]["fp32"]) == ("cpu", None, None)


@pytest.mark.parametrize(
    ("dirty", "line"),
    [
        (False, "The collection would accept a run."),
        (True, "not for the collection of runs: the checkout has uncommitted changes, or no"),
    ],
)
def test_who_asks_is_told_whether_the_collection_would_accept_a_run(
    dirty, line, monkeypatch, capsys
):
    state = {"git": {"commit": "0" * 40, "dirty": dirty}, "packages": {}}
    monkeypatch.setattr(extra, "software", lambda: state)
    monkeypatch.setattr(doctor, "examine", lambda machine: "")
    for options, told in (["--submit"], True), ([], False):
        assert main(["doctor", *options]) == 0
        assert (line in capsys.readouterr().out) == told


def test_three_parts_of_a_version_are_those_of_the_lock(monkeypatch):
    monkeypatch.setattr(extra, "locked", lambda _: "nvidia-cudnn-cu13==9.21.0.82 --hash")
    facts = {"git": {"commit": 40 * "a", "dirty": False}, "profile": "quick"}
    for version, count in (("9.21.0", 0), ("9.21.0.82", 0), ("9.2", 1), ("9.21.1", 1)):
        machine = facts | {"packages": {"nvidia-cudnn-cu13": version}}
        assert len(extra.obstacles(machine)) == count, version
