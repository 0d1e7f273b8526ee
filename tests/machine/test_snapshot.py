"""Descriptions of recorded Macs, mocked Linux machines and this machine."""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import types
from pathlib import Path
from unittest import mock

import numpy
import psutil
import pytest
from macs import Mac, names_in, secrets_in

from pomology.machine import snapshot as machine_snapshot


@pytest.fixture
def mac(monkeypatch):
    """mac(folder): mock a recorded Mac."""

    def become(folder, architecture="arm64", version="15.5"):
        answers = Mac(folder)
        monkeypatch.setattr(machine_snapshot, "run_command", answers)
        monkeypatch.setattr(machine_snapshot, "REPOSITORY", Path("/nowhere"))
        monkeypatch.setattr(sys, "platform", "darwin")
        monkeypatch.setattr(platform, "machine", lambda: architecture)
        monkeypatch.setattr(platform, "mac_ver", lambda: (version, ("", "", ""), architecture))
        monkeypatch.setattr(platform, "python_version", lambda: "3.11.9")

        def number(name):
            return int(answers("sysctl", "-n", name))

        cores = {True: "hw.logicalcpu", False: "hw.physicalcpu"}
        monkeypatch.setattr(psutil, "cpu_count", lambda logical=True: number(cores[logical]))
        total = types.SimpleNamespace(total=number("hw.memsize"))
        monkeypatch.setattr(psutil, "virtual_memory", lambda: total)

    return become


@pytest.mark.parametrize(
    ("folder", "chip", "cores", "gpu_cores", "line"),
    [
        ("m1", "Apple M1", (8, 4, 4), 7, "Apple M1, 8 cores (4P+4E), 8 GB"),
        ("m2-ultra", "Apple M2 Ultra", (24, 16, 8), 76, "{}, 24 cores (16P+8E), 192 GB"),
        ("m4-max", "Apple M4 Max", (16, 12, 4), 40, "{}, 16 cores (12P+4E), 128 GB"),
        ("m5", "Apple M5", (10, 4, 6), 10, "{}, 10 cores (4P+6E), 32 GB"),
        ("m5-pro", "Apple M5 Pro", (15, 15, 0), 16, "{}, 15 cores, 24 GB"),
        ("vm", "Apple M1 (Virtual)", (3, None, None), None, "{}, 3 cores, 7 GB"),
    ],
)
def test_macs_are_recognised(mac, folder, chip, cores, gpu_cores, line):
    mac(folder)
    snapshot = machine_snapshot.snapshot()
    assert snapshot["chip"] == chip
    kinds = ("cpu", "performance", "efficiency")
    assert tuple(snapshot[f"{kind}_cores"] for kind in kinds) == cores
    gpu = {"name": chip, "memory_bytes": None, "cores": gpu_cores}
    assert snapshot["gpus"] == ([gpu] if gpu_cores else [])
    assert (snapshot["os"], snapshot["os_version"]) == ("macOS", "15.5")
    assert snapshot["translated"] is False
    wanted = f"{line.format(chip)}, macOS 15.5, Python 3.11.9"
    assert machine_snapshot.describe(snapshot) == wanted and secrets_in(snapshot) == []


def test_a_translated_python_is_recognised_and_a_mac_without_answers_is_unknown(mac, monkeypatch):
    mac("rosetta", architecture="x86_64")
    assert machine_snapshot.snapshot()["translated"] is True
    monkeypatch.setattr(machine_snapshot, "run_command", lambda *_, **__: None)
    snapshot = machine_snapshot.snapshot()
    assert snapshot["gpus"] == []
    assert {snapshot[name] for name in ("chip", "performance_cores")} == {None}
    assert machine_snapshot._power() == (None, None)
    line = "unknown chip, 10 cores, 16 GB, macOS 15.5, Python 3.11.9"
    assert machine_snapshot.describe(snapshot) == line


def test_the_snapshot_of_this_machine_contains_no_name():
    snapshot = machine_snapshot.snapshot()
    text = json.dumps(snapshot)
    assert json.loads(text) == snapshot
    assert snapshot["memory_bytes"] > machine_snapshot.available_memory_bytes() > 0
    assert snapshot["packages"]["numpy"] == numpy.__version__
    assert names_in(text, machine_snapshot.REPOSITORY) == []


def test_the_name_of_a_linux_cpu_is_that_of_lscpu(monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    said = "Model name:            Intel(R) Xeon(R)  Processor\nModel:                 143\n"
    monkeypatch.setattr(machine_snapshot, "run_command", lambda *command: said)
    assert machine_snapshot.chip() == "Intel(R) Xeon(R) Processor"


def test_the_kind_of_a_cpu_tells_those_of_one_name_apart(monkeypatch, mac):
    monkeypatch.setattr(sys, "platform", "linux")
    said = "Model name:   AMD EPYC\nCPU family:   25\nModel:   17\nStepping:   1\n"
    said += "CPU max MHz:   3450.0000\n"
    monkeypatch.setattr(machine_snapshot, "run_command", lambda *command: said)
    expected = {"family": 25, "model": 17, "stepping": 1, "max_mhz": 3450}
    assert machine_snapshot.cpu_kind() == expected
    monkeypatch.setattr(machine_snapshot, "run_command", lambda *command: None)
    assert set(machine_snapshot.cpu_kind().values()) == {None}
    mac("m1")
    families = {"hw.cpufamily": 458787763, "hw.cpusubfamily": 2}
    monkeypatch.setattr(machine_snapshot, "sysctl", families.get)
    expected = {"family": 458787763, "model": 2, "stepping": None, "max_mhz": None}
    assert machine_snapshot.cpu_kind() == expected


def test_nvidia_gpus(monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    failed = type("NVMLError", (Exception,), {})
    nvml = mock.Mock(NVMLError=failed)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    nvml.nvmlDeviceGetCount.return_value = 2
    nvml.nvmlDeviceGetName.return_value = "NVIDIA H200"
    nvml.nvmlDeviceGetMemoryInfo.return_value.total = 141 * 2**30
    nvml.nvmlSystemGetDriverVersion.return_value = "580.82.07"
    nvml.nvmlDeviceGetEnforcedPowerLimit.return_value = 700_000  # mW
    snapshot = machine_snapshot.snapshot()
    h200 = {"name": "NVIDIA H200", "memory_bytes": 141 * 2**30, "cores": None}
    h200 |= {"power_limit_w": 700.0}
    assert machine_snapshot.nvidia_driver() == "580.82.07"
    with monkeypatch.context() as patch:
        patch.setattr(sys, "platform", "darwin")
        assert machine_snapshot.nvidia_driver() is None
    assert snapshot["gpus"] == [h200, h200]
    assert "2 × NVIDIA H200 141 GB" in machine_snapshot.describe(snapshot)
    nvml.nvmlInit.side_effect = failed("Driver Not Loaded")
    assert machine_snapshot.snapshot()["gpus"] == []


PMSET = {"m1": "low", "m2-ultra": "automatic", "m4-max": "high", "vm": None, " powermode 7": None}
PMSET |= {" powermode 0": "automatic", " lowpowermode 0\n highpowermode 1\n": "high"}


@pytest.mark.parametrize(("said", "mode"), PMSET.items())
def test_the_power_mode_is_that_of_pmset(mac, monkeypatch, said, mode):
    mac("m1" if "mode" in said else said)
    if "mode" in said:
        monkeypatch.setattr(machine_snapshot, "run_command", lambda *_: said)
    monkeypatch.setattr(psutil, "cpu_percent", lambda seconds: 0)
    state = machine_snapshot.conditions()
    assert state["power_mode"] == mode and ("low-power" in state["flags"]) == (mode == "low")
    told = f", power mode {mode}" if mode else ""
    described = machine_snapshot.describe(state | {"python": "3.11.9"})
    assert described == f"unknown chip{told}, Python 3.11.9"


# Both are 0.4 core, which is 1.25 % of 32 cores.
@pytest.mark.parametrize(("percent", "threads", "busy"), [(20, 2, True), (1.25, 32, False)])
def test_busy_is_the_load_of_other_programs(monkeypatch, percent, threads, busy):
    monkeypatch.setattr(psutil, "cpu_percent", lambda seconds: percent)
    monkeypatch.setattr(psutil, "cpu_count", lambda: threads)
    assert ("busy" in machine_snapshot.conditions()["flags"]) == busy


def test_a_command_is_spawned_since_a_fork_would_write_protect_memory(monkeypatch):
    spawn = mock.Mock(wraps=os.posix_spawn)
    monkeypatch.setattr(os, "posix_spawn", spawn)
    monkeypatch.setattr(subprocess, "_fork_exec", lambda *given: pytest.fail("forked"))
    assert machine_snapshot.run_command("sh", "-c", "echo out") == "out\n"
    assert spawn.call_args.args[1] == [shutil.which("sh"), "-c", "echo out"]


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_git_commit_and_dirtiness(monkeypatch, tmp_path):
    def git(*arguments):
        name = ("-c", "user.name=n", "-c", "user.email=e", "-c", "commit.gpgsign=false")
        command = ["git", "-C", tmp_path, *name, *arguments]
        return subprocess.check_output(command, text=True).strip()

    git("init", "-q")
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "a").write_text("a")
    git("add", ".")
    git("commit", "-q", "-m", "m")
    monkeypatch.setattr(machine_snapshot, "REPOSITORY", tmp_path / "lib")
    # A package inside another repository does not have that repository's commit.
    assert machine_snapshot._git() is None
    monkeypatch.setattr(machine_snapshot, "REPOSITORY", tmp_path)
    clean = {"commit": git("rev-parse", "HEAD"), "dirty": False}
    assert machine_snapshot._git() == clean
    (tmp_path / "outputs").mkdir()
    (tmp_path / "outputs" / "a").write_text("measured before")
    assert machine_snapshot._git() == clean, "results are no change of the code"
    (tmp_path / "lib" / "a").write_text("b")
    assert machine_snapshot._git() == {**clean, "dirty": True}


KNOWN = [
    "8",
    "1",
    "0.85",
    "512M",
    "-1",
    "true",
    "OFF",
    "",
    "Haswell",
    "tensorflow",
    "0,1",
    "0-3 4-7",
]
KNOWN += ["0,1,2,3,4,5,6,7,8,9,10,11", "granularity=fine,compact,1,0", "dynamic,4", "highest"]
KNOWN += ["expandable_segments:True,max_split_size_mb:128", "garbage_collection_threshold:0.8"]
PRIVATE = """hf_AbCdEfGhIjKlMnOpQrStUvWxYz01234567|/Users/jane/data|~/x|/Volumes/José
jane@example.org|janes-mac.local|192.168.3.4|fe80::1ff:fe23:4567:890a|00:1b:63:84:45:e6
00:11:22:33:44:55|Jane
4323 9158 6212 8474|4323915862128474|+49 932 6779 4229|932 6779|932-677-4229|06 12 34 56 78
GPU-9f86d081-884c-7d65-9a2f-eaa0c55ad015|Bearer x1|api_key=x1|true:jane|true=jane,1|fp32 jane
sk-ant-api03-x|AKIAIOSFODNN7EXAMPLE|--xla_jane=1|libjane.so|off:/Users/jane|2001:0:0:1"""


@pytest.mark.parametrize("name", ["TORCH_TOKEN", "MLX_FOO", "LD_PRELOAD", "OMP_NUM_THREADS"])
def test_a_variable_has_a_known_value_or_is_only_said_to_be_set(monkeypatch, name):
    for text in KNOWN:
        monkeypatch.setenv(name, text)
        assert machine_snapshot.software()["environment"][name] == text
    for text in re.split(r"[|\n]", PRIVATE):
        monkeypatch.setenv(name, text)
        noted = machine_snapshot.software()["environment"][name]
        assert re.fullmatch("set [0-9a-f]{4}", noted), text


def test_two_values_that_are_not_shown_are_told_apart(monkeypatch):
    noted = set()
    for text in ("{0}", "{0},{1}", "libjemalloc.so", "libtcmalloc.so"):
        monkeypatch.setenv("LD_PRELOAD", text)
        noted.add(machine_snapshot.software()["environment"]["LD_PRELOAD"])
    assert len(noted) == 4


@pytest.mark.parametrize(
    "name",
    [
        *("NVIDIA_TF32_OVERRIDE", "TF_DETERMINISTIC_OPS", "TRITON_CACHE", "TORCHDYNAMO_DISABLE"),
        *("BLIS_NUM_THREADS", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"),
    ],
)
def test_a_variable_that_changes_what_is_computed_is_noted(monkeypatch, name):
    monkeypatch.setenv(name, "1")
    assert machine_snapshot.software()["environment"][name] == "1"


def test_kinds_of_cores_on_linux(tmp_path):
    """An i5-12600K has six cores of two threads and four of one; a Raspberry Pi has one kind."""
    of = machine_snapshot._cores_on_linux
    assert of(tmp_path) == (None, None)
    for number, capacity in enumerate([1024] * 4):
        path = tmp_path / f"system/cpu/cpu{number}/cpu_capacity"
        path.parent.mkdir(parents=True)
        path.write_text(f"{capacity}\n")
    assert of(tmp_path) == (None, None)
    for number in (0, 1, 2):
        (tmp_path / f"system/cpu/cpu{number}/cpu_capacity").write_text("414\n")
    assert of(tmp_path) == (1, 3)
    for kind, listed in (("core", "0-11"), ("atom", "12-15")):
        (tmp_path / f"cpu_{kind}").mkdir()
        (tmp_path / f"cpu_{kind}" / "cpus").write_text(f"{listed}\n")
    for thread in range(16):
        path = tmp_path / f"system/cpu/cpu{thread}/topology"
        path.mkdir(parents=True)
        both = thread // 2 * 2
        siblings = f"{both}-{both + 1}" if thread < 12 else f"{thread}"
        (path / "thread_siblings_list").write_text(f"{siblings}\n")
    assert of(tmp_path) == (6, 4)


def test_an_archive_of_the_source_has_its_commit(monkeypatch, tmp_path):
    monkeypatch.setattr(machine_snapshot, "REPOSITORY", tmp_path)
    monkeypatch.setattr(machine_snapshot, "RESOURCES", tmp_path)
    for text, git in (("$Format:%H$", None), ("c0ffee" * 7, None), ("c" * 40, "c" * 40)):
        (tmp_path / "commit.txt").write_text(f"{text}\n")
        assert machine_snapshot._git() == (git and {"commit": git, "dirty": None})
