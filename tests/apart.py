"""Tests in a file of another framework, run in a process of their own: no process may hold two frameworks."""

from __future__ import annotations

import functools
import gc
import importlib
import json
import multiprocessing
import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from multiprocessing import forkserver
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

# What processes have loaded when they start: of all that a notebook loads, what pomology is no part of.
PLAIN = ("ipykernel.kernelapp", "pandas", "matplotlib.figure", "seaborn")
LOADED = ("torch", *PLAIN, "torch._dynamo", "lightning.pytorch")
LOADED += tuple(
    f"transformers.models.{name}.modeling_{name}" for name in ("bert", "gpt2", "whisper")
)

FORKS = sys.platform != "darwin"  # where it is not safe


def tests_of(*files: str) -> Callable[[], None]:
    """Return a test that runs these files' tests in one process."""
    places = [Path(__file__).with_name(file) for file in files]

    def test() -> None:
        command = [sys.executable, "-m", "pytest", *places, "-q", "-p", "no:cacheprovider"]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=places[0].parents[1]
        )
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]

    return test


# Other processes, with PyTorch loaded -------------------------------------------------------------------------------


def answers(folder: Path, program: str, *given: str) -> Any:
    """What a program prints in its last line, as JSON: in a process of its own that has PyTorch loaded, one thread and
    these arguments."""
    known = filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH")))
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(known)}
    command = [
        sys.executable,
        "-c",
        f"import warnings\nwarnings.simplefilter('ignore')\n{program}",
        *given,
    ]
    with pytest.MonkeyPatch.context() as patch:
        start_with_torch(patch, folder, LOADED)
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def become(env: dict[str, str]) -> None:
    """Have this environment, also where what is loaded already has read it."""
    os.environ.clear()
    os.environ.update(env)
    hub = sys.modules.get("huggingface_hub.constants")
    if hub:
        importlib.reload(hub)
    gc.freeze()  # every case collects garbage: what is loaded is none, and to look through it would copy it


def run_python(command: list[str], env: dict[str, str], out: str, err: str) -> None:
    """What `python -m MODULE`, `python -c PROGRAM` or `python SCRIPT`, with arguments, does: here, in this process."""
    for place, number in ((out, 1), (err, 2)):
        os.dup2(os.open(place, os.O_WRONLY | os.O_CREAT), number)
    become(env)
    sys.argv = ["-c", *command[3:]] if command[1] in ("-m", "-c") else command[1:]
    if command[1] == "-m":
        runpy.run_module(command[2], run_name="__main__", alter_sys=True)
    elif command[1] == "-c":
        exec(command[2], {"__name__": "__main__"})
    else:
        sys.path.insert(0, str(Path(command[1]).parent))
        runpy.run_path(command[1], run_name="__main__")


def run_kernel(connection: str, env: dict[str, str], cwd: str | None, ready: Any) -> None:
    """What `python -m ipykernel_launcher -f CONNECTION` does, in this process."""
    os.setsid()  # before it is known outside: who ends a kernel ends its whole group
    ready.send(True)
    become(env)
    os.chdir(cwd or ".")
    from ipykernel.kernelapp import launch_new_instance

    sys.argv = ["ipykernel_launcher", "-f", connection]
    launch_new_instance()


class Started:
    """A forked process, as what has started it by Popen sees it."""

    stdin = stdout = stderr = None

    def __init__(self, process: Any):
        self._process = process
        self.pid = process.pid
        self.kill = process.kill
        self.terminate = process.terminate

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self) -> int | None:
        self._process.join()
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)


@functools.cache
def server(loaded: tuple[str, ...]) -> forkserver.ForkServer:
    """What forks processes that have loaded these."""
    made = forkserver.ForkServer()
    made.set_forkserver_preload(list(loaded))
    return made


def fork(loaded: tuple[str, ...], target: Callable, *given: Any) -> Any:
    """Start a process that has loaded these, and calls the target."""
    process = multiprocessing.get_context("forkserver").Process(target=target, args=given)
    with mock.patch.object(
        forkserver, "connect_to_new_process", server(loaded).connect_to_new_process
    ):
        process.start()
    return process


def start_with_torch(
    patch: pytest.MonkeyPatch, folder: Path, loaded: tuple[str, ...] = ("torch",)
) -> None:
    """Let `subprocess.run` of Python fork a process that has loaded PyTorch, which takes seconds.

    Each still has a process of its own, but not on a Mac, which forbids it. folder: for what they print.
    """
    honest = subprocess.run

    def run(command: list[str], **named: Any) -> subprocess.CompletedProcess:
        known = {"capture_output", "text", "check", "timeout", "env", "encoding", "errors"}
        plain = set(named) <= known and named.get("capture_output") and not named.get("check")
        if command[0] != sys.executable or not plain or named.get("timeout") is not None:
            return honest(command, **named)
        out, err = folder / "stdout", folder / "stderr"
        env = dict(named.get("env") or os.environ)
        process = fork(loaded, run_python, command, env, str(out), str(err))
        process.join()
        texts = [
            place.read_text(encoding="utf-8") if place.exists() else "" for place in (out, err)
        ]
        out.unlink(missing_ok=True)
        err.unlink(missing_ok=True)
        return subprocess.CompletedProcess(command, process.exitcode, *texts)

    if FORKS:
        patch.setattr(subprocess, "run", run)


def fork_kernels(patch: pytest.MonkeyPatch, loaded: tuple[str, ...]) -> None:
    """Let Jupyter's kernels be forked from a process that has loaded this, where a system allows that."""
    from jupyter_client.provisioning import local_provisioner

    def launch(
        command: list[str], env: dict[str, str], cwd: str | None = None, **_: Any
    ) -> Started:
        ours, theirs = multiprocessing.Pipe()
        process = fork(loaded, run_kernel, command[command.index("-f") + 1], env, cwd, theirs)
        assert ours.poll(60), "the kernel did not start"
        return Started(process)

    if FORKS:
        patch.setattr(local_provisioner, "launch_kernel", launch)
