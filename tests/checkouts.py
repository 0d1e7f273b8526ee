"""A small checkout with an invented device, whose notebooks fail as planned.

A notebook does what the file `NAME.fault` next to it says: `raise 2` raises inside case 2, `raise
end` after the last case, `exit 2` exits, `kill 2` kills the kernel, `hang 2` waits for ever, also
when asked to stop; the last two leave a process; `open 2` does not end case 2, and `no case` begins
none. It notes its and that one's number in `NAME.pids`.
"""

import importlib
import json
import pkgutil
import time
from collections.abc import Callable
from pathlib import Path

import apart
import notebook_code
import psutil
import pytest

import pomology
from pomology import __main__ as command_line
from pomology.results import journal as results_journal
from pomology.results.record import PROFILES
from pomology.runner import batch

# A device that no framework knows, so that kernels start without one. Same shape as `Device`.
SIMULATED = """
import contextlib

from pomology.devices import find


class Simulated:
    framework, framework_version, name = "simulated", "1", "chip"
    backend, kind, handle, threads = "cpu", "cpu", None, 1
    uncounted, keeps_graphs = False, False
    tf32, unified_memory = False, False
    context = lambda self, strict=False: contextlib.nullcontext()
    watch_fallbacks = lambda self: contextlib.nullcontext(set())
    synchronize = reset_peak_memory = lambda self: None
    peak_memory, free_memory = (lambda self: {}), (lambda self: 10**9)
    to_device, device_of = (lambda self, batch: batch), (lambda self, item: "cpu")


find.find = lambda wanted="auto", framework="torch": [Simulated()]
"""
PARAMETERS = """
profile: str = "quick"  # smoke, quick or article
devices: str = "auto"  # which ones
data: str = "auto"  # which data
sizes: list[int] = [1, 2, 3]  # of the cases
lr: float = 0.1  # of nothing
budget_s: float = 0.05  # seconds
repeat: int = 0  # which repetition
out: str = ""  # the run's folder
"""
CODE = """
import os
import signal
import subprocess
import time
from pathlib import Path

import simulated
from pomology.errors import NoSuchDevice
from pomology.experiment.experiment import Experiment

with open("NAME.pids", "a") as file:
    print(os.getpid(), file=file)
Path("NAME.saw-page").write_text(str(Path(out, "index.html").exists()))
given = {"devices": devices, "profile": profile, "budget_s": budget_s, "out": out, "repeat": repeat}
experiment = Experiment("NAME", article="003", **given)


def trouble(place):
    fault = Path("NAME.fault").read_text() if Path("NAME.fault").exists() else ""
    if fault == f"raise {place}":
        raise ValueError("as planned")
    if fault == f"exit {place}":
        raise SystemExit(0)
    if fault == f"no device {place}":
        raise NoSuchDevice("devices: 'cuda' is not on this machine (cuda: none); it has cpu")
    if fault in (f"kill {place}", f"hang {place}"):
        with open("NAME.pids", "a") as file:
            print(subprocess.Popen(["sleep", "600"]).pid, file=file)
    if fault == f"kill {place}":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == f"abort {place}":
        os.abort()
    if fault == f"signal40 {place}":
        os.kill(os.getpid(), 40)
    if fault == f"hang {place}":
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        Path("NAME.hangs").touch()
        time.sleep(600)


planned = Path("NAME.fault").read_text() if Path("NAME.fault").exists() else ""
for case in experiment.cases(size=[] if planned == "no case" else sizes):
    if planned == f"open {case['size']}":
        case.__enter__()
        continue
    with case:
        for _ in case.steps([0] * 4):
            time.sleep(0.001)
        trouble(case["size"])
trouble("end")
"""


def notebook_text(name: str, seconds: float, parameters: str = PARAMETERS, **about: object) -> str:
    costs = dict.fromkeys(PROFILES, seconds)
    code = CODE.replace("NAME", name)
    title = f"# The {name} experiment"
    about = {"article": "003", "seconds": costs} | about
    return notebook_code.notebook_text(title, parameters, code, **about)


class Checkout:
    """A folder with notebooks and parameters: `zeta` is cheap, `alpha` is dear."""

    def __init__(self, folder: Path):
        self.folder, self.notebooks = folder, folder / "notebooks" / "an_article"
        for name, seconds in (("zeta", 5), ("alpha", 65)):
            text = notebook_text(name, seconds)
            notebook_code.write_notebook(folder, name, text, "lr: 0.2\n")
        (self.notebooks / "simulated.py").write_text(SIMULATED)

    def fault(self, name: str, text: str = "") -> None:
        """Plan a disaster, or none any more."""
        (self.notebooks / f"{name}.hangs").unlink(missing_ok=True)
        (self.notebooks / f"{name}.fault").write_text(text)

    def out(self) -> Path:
        return self.folder / "outputs" / "r"

    def pids(self, name: str) -> list[int]:
        path = self.notebooks / f"{name}.pids"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def statuses(self, name: str) -> dict[str, str]:
        """The statuses of the finished cases, by the size that tells them apart."""
        contents = results_journal.read(self.out() / f"{name}.jsonl")
        assert contents.problems == []
        return {str(record.config["size"]): record.status for record in contents.records}

    def started(self, name: str) -> list[str]:
        """The size of every case that began."""
        text = (self.out() / f"{name}.jsonl").read_text(encoding="utf-8")
        lines = [json.loads(line) for line in text.splitlines()]
        return [line["case"][-1] for line in lines if line["event"] == "start"]

    def unfinished(self) -> list[str]:
        return sorted(path.name for path in (self.out() / ".partial").glob("*.ipynb"))


RUN_R = ["reproduce", "--profile=smoke", "--run=r"]
ALL_OK = {"1": "ok", "2": "ok", "3": "ok"}


@pytest.fixture
def checkout(tmp_path, monkeypatch, sockets) -> Checkout:
    """One that this process takes for its own."""
    checkout = Checkout(tmp_path / "checkout")
    for info in pkgutil.walk_packages(pomology.__path__, "pomology."):
        source = info.module_finder.find_spec(info.name).origin
        if ".fleet." in info.name:  # needs `make env EXTRAS=fleet`
            continue
        if " root" not in Path(source).read_text(encoding="utf-8"):  # others take seconds to import
            continue
        module = importlib.import_module(info.name)
        if hasattr(module, "root"):
            monkeypatch.setattr(module, "root", lambda: checkout.folder)
    monkeypatch.setattr(batch, "KERNEL", sockets)
    apart.fork_kernels(monkeypatch, apart.PLAIN)
    return checkout


@pytest.fixture
def reproduce(checkout, capsys) -> Callable[..., tuple[int, str]]:
    """Run the command in this process; returns the exit status and what it said."""

    def run(*arguments: str) -> tuple[int, str]:
        status = command_line.main([*RUN_R, *arguments])
        said = capsys.readouterr()
        assert said.err == ""
        return status, said.out

    return run


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and waits to be asked for its status does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until(what: Callable[[], object], within_s: float = 60) -> None:
    end_s = time.monotonic() + within_s
    while not what():
        assert time.monotonic() < end_s, "it never came"
        time.sleep(0.05)
