"""Macs that answer from fixtures/macos, for the tests of whatever asks macOS something.

`install_commands` and `become` make a whole process believe that it runs on one: nothing of Linux
that macOS lacks is there, and what is called alike has macOS's form.
"""

import builtins
import contextlib
import ctypes
import fcntl
import getpass
import io
import json
import os
import platform
import re
import resource
import socket
import subprocess
import sys
import time
import types
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

MACS = Path(__file__).parent / "fixtures" / "macos"
# All that names a machine or a person in the fixtures.
SECRETS = ["Anna", "0FACE000-FACE-4ACE-8ACE-00000000FACE", "00006022-000FACE0FACE000E"]
SECRETS += ["ZZFAKE98765", "fd5ea1a1"]


class Mac:
    """Takes the place of `snapshot.run_command`.

    asked: the commands so far. says: a test's own answers. later: `vm_stat` prints what came later.
    """

    def __init__(self, folder: str):
        self.folder, self.later, self.asked, self.says = MACS / folder, False, [], {}

    def __call__(self, *command: str) -> str | None:
        self.asked.append(command)
        return self.says.get(command, self.text(*command))

    def text(self, *command: str) -> str | None:
        if command[:2] == ("sysctl", "-n"):
            lines = (self.folder / "sysctl.txt").read_text().splitlines()
            return dict(line.split(": ") for line in lines).get(command[2])
        name = "_".join(command)
        files = [self.folder / f"{name}_after_10_s.txt"] if self.later else []
        files.append(self.folder / f"{name}.txt")
        return next((file.read_text() for file in files if file.exists()), None)


def secrets_in(value: object) -> list[str]:
    """What a result holds of that which must not get out of a Mac."""
    text = json.dumps(value, default=str)
    return [secret for secret in SECRETS if secret in text]


def names_in(text: str, *places: Path) -> list[str]:
    """What a text tells of this machine's name, its user, or these folders.

    A host called "vm" may be part of an innocent word: a short name must not be a word.
    """
    names = {socket.gethostname(), getpass.getuser(), str(Path.home()), *map(str, places)}
    words = set(re.findall(r"[\w./-]+", text))
    return [name for name in names if name in words or (len(name) > 4 and name in text)]


ANSWER = """#!/bin/sh
echo "{name} $*" >> "{log}"
file="{folder}/{name}"
for word in "$@"; do file="${{file}}_$word"; done
later="${{file}}_after_10_s.txt"
asked=$(/bin/cat "{log}" | /usr/bin/grep -c "^{name} $*")
[ -f "$later" ] && [ "$asked" -gt 1 ] && exec /bin/cat "$later"
exec /bin/cat "$file.txt"
"""
SYSCTL = """#!/bin/sh
echo "sysctl $*" >> "{log}"
[ "$1" = -n ] || exit 64
/usr/bin/sed -n "s/^$2: //p" "{folder}/sysctl.txt" | /usr/bin/grep .
"""


def install_commands(folder: str, place: Path) -> Path:
    """Write the commands of a Mac into `place`, to be the PATH; return what will list the calls."""
    log = place.parent / "asked.txt"
    place.mkdir()
    log.touch()
    for name in ("sysctl", "vm_stat", "pmset", "system_profiler"):
        text = SYSCTL if name == "sysctl" else ANSWER
        (place / name).write_text(text.format(name=name, log=log, folder=MACS / folder))
        (place / name).chmod(0o755)
    return log


# What macOS lacks: of the modules os, resource and psutil, and of psutil's processes.
NOT_IN_OS = ["sched_getaffinity", "sched_setaffinity", "posix_fadvise", "posix_fallocate"]
NOT_IN_OS += ["fdatasync", "waitid", "memfd_create", "pidfd_open", "eventfd", "copy_file_range"]
NOT_IN_OS += ["splice", "getrandom", "setns", "unshare"]
NOT_IN_PSUTIL = ["sensors_temperatures", "sensors_fans"]
NOT_OF_A_PROCESS = ["io_counters", "cpu_affinity", "memory_maps", "cpu_num", "ionice", "rlimit"]
NOT_A_COMMAND = ("nvidia-smi", "nproc", "free", "lscpu", "taskset", "numactl", "vmstat", "lspci")

Memory = namedtuple("Memory", "total available percent used free active inactive wired")
Swap = namedtuple("Swap", "total used free percent sin sout")
Times = namedtuple("Times", "user nice system idle")
ProcessMemory = namedtuple("ProcessMemory", "rss vms pfaults pageins")


# A line of `mac_sensors`.
SENSORS = json.dumps({"gpu_load": 0.98, "temperatures_c": {"PMU tdie1": 61.5, "PMU tdev1": -9201}})


class LibSystem:
    """libSystem: thermal pressure 1, a footprint of 3 GB here, else 1; process 4 has ended."""

    def proc_pid_rusage(self, pid: int, flavor: int, buffer: Any) -> int:
        # <sys/resource.h>: 16 bytes of UUID, ten numbers of 8; ri_phys_footprint is the eighth.
        assert ctypes.sizeof(buffer._obj) == 96
        buffer._obj[8], buffer._obj[9] = 17, (3 if pid == os.getpid() else 1) * 10**9
        return -1 if pid == 4 else 0

    def notify_get_state(self, token: Any, state: Any) -> int:
        state._obj.value = 1
        return 0

    notify_register_check = notify_cancel = lambda self, *given: 0


class EnergyMonitor:
    """zeus_apple_silicon on a chip whose CPU draws 10 W, GPU 4 W, memory 1 W."""

    def get_cumulative_energy(self) -> Any:
        watts = {"cpu_total_mj": 10, "gpu_mj": 4, "dram_mj": 1}
        now_s = time.perf_counter()
        used = {name: int(1e3 * power * now_s) for name, power in watts.items()}
        return types.SimpleNamespace(ane_mj=None, **used)


def become() -> None:
    """From here on, this process runs on an M4 Max.

    Import the frameworks before, and pomology after it.
    """
    import psutil

    sys.platform = "darwin"
    platform.system = lambda: "Darwin"
    platform.machine = lambda: "arm64"
    platform.processor = lambda: "arm"
    platform.mac_ver = lambda *ignored, **more: ("15.5", ("", "", ""), "arm64")
    lacking = {os: NOT_IN_OS, psutil: NOT_IN_PSUTIL, psutil.Process: NOT_OF_A_PROCESS}
    for owner, names in (lacking | {resource: ["prlimit"]}).items():
        for name in names:
            with contextlib.suppress(AttributeError):
                delattr(owner, name)
    _hide("/proc", "/sys")
    start = subprocess.Popen.__init__

    def popen(self: Any, arguments: Any, *more: Any, **named: Any) -> None:
        first = arguments.split()[0] if isinstance(arguments, str) else os.fspath(arguments[0])
        if Path(first).name in NOT_A_COMMAND:
            raise FileNotFoundError(2, "No such file or directory", first)
        start(self, arguments, *more, **named)

    subprocess.Popen.__init__ = popen

    times = psutil.cpu_times
    total, available, *others = (gib * 2**30 for gib in (128, 96, 30, 60, 40, 36, 8))
    memory = Memory(total, available, 25.0, *others)
    psutil.virtual_memory = lambda: memory
    # Every page that macOS has read and written since it started, which is not swap.
    psutil.swap_memory = lambda: Swap(
        2**30, 2**29, 2**29, 50.0, int(1e15 * time.perf_counter()), 10**15
    )
    psutil.cpu_times = lambda: Times(*(getattr(times(), name) for name in Times._fields))
    psutil.cpu_count = lambda logical=True: 16
    psutil.cpu_percent = lambda interval: 1.0
    psutil.Process.memory_info = lambda self: ProcessMemory(10**9, 10**11, 10**6, 10**5)

    load, control = ctypes.CDLL, fcntl.fcntl

    def library(name: str | None, *more: Any, **named: Any) -> Any:
        return LibSystem() if name is None else load(name, *more, **named)

    def fcntl_(file: Any, command: int, *more: Any) -> Any:
        return 0 if command == fcntl.F_FULLFSYNC else control(file, command, *more)

    ctypes.CDLL, fcntl.fcntl, fcntl.F_FULLFSYNC = library, fcntl_, 51
    energy = types.ModuleType("zeus_apple_silicon")
    energy.AppleEnergyMonitor = EnergyMonitor
    sys.modules["zeus_apple_silicon"] = energy
    from pomology.machine import sensors

    sensors.MAC_READER = (sys.executable, "-c", f"print({SENSORS!r}, flush=True); input()")


def _hide(*folders: str) -> None:
    """Let nobody but psutil, whose macOS form asks the kernel instead, see these folders."""

    def hidden(function: Callable) -> Callable:
        def look(path: Any = ".", *more: Any, **named: Any) -> Any:
            text = os.fsdecode(path) if isinstance(path, (str, bytes, os.PathLike)) else ""
            asks = sys._getframe(1).f_globals.get("__name__", "")
            inside = text in folders or text.startswith(tuple(f"{folder}/" for folder in folders))
            if inside and not asks.startswith("psutil"):
                raise FileNotFoundError(2, "No such file or directory", text)
            return function(path, *more, **named)

        return look

    builtins.open = io.open = hidden(open)
    for name in ("open", "stat", "lstat", "scandir", "listdir", "readlink", "access"):
        setattr(os, name, hidden(getattr(os, name)))
