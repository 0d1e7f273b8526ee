"""Processes that are forked from one that has loaded PyTorch, which takes seconds."""

import ctypes
import functools
import gc
import importlib
import multiprocessing
import os
import sys
from collections.abc import Callable
from multiprocessing import forkserver
from typing import Any
from unittest import mock

import pytest

# What processes have loaded when they start: what a notebook loads beside pomology.
PLAIN = ("ipykernel.kernelapp", "pandas", "matplotlib.figure", "seaborn")
LOADED = ("torch", *PLAIN, "torch._dynamo", "lightning.pytorch")
MODELS = ("bert", "gpt2", "whisper")
LOADED += tuple(f"transformers.models.{name}.modeling_{name}" for name in MODELS)
# glibc reads this variable when a process begins; a forked one must be told (malloc.h, mallopt(3)).
KEEPS = "MALLOC_MMAP_THRESHOLD_"
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
DEFAULT_THRESHOLD = 128 * 1024
FORKS = sys.platform != "darwin"  # where it is not safe


def become(env: dict[str, str]) -> None:
    """Have this environment, also where what is loaded already has read it."""
    os.environ.clear()
    os.environ.update(env)
    hub = sys.modules.get("huggingface_hub.constants")
    if hub:
        importlib.reload(hub)
    if KEEPS not in env and hasattr(ctypes.CDLL(None), "mallopt"):
        for parameter in (M_TRIM_THRESHOLD, M_MMAP_THRESHOLD):
            ctypes.CDLL(None).mallopt(parameter, DEFAULT_THRESHOLD)
    gc.freeze()  # to look through what is loaded for garbage, as each case does, would copy it


def run_tests(arguments: list[str], env: dict[str, str], said: str) -> None:
    """Do in this process what `python -m pytest ARGUMENTS` does; `said` takes what it prints."""
    file = os.open(said, os.O_WRONLY | os.O_CREAT)
    for number in (1, 2):
        os.dup2(file, number)
    become(env)
    sys.exit(pytest.main(arguments))


def run_kernel(connection: str, env: dict[str, str], cwd: str | None, ready: Any) -> None:
    """Do in this process what `python -m ipykernel_launcher -f CONNECTION` does."""
    os.setsid()  # before it is known outside: who ends a kernel ends its whole group
    ready.send(True)
    become(env)
    os.chdir(cwd or ".")
    sys.path.insert(0, "")  # as in a new process; `python -P -m pytest` has passed its `-P` on
    from ipykernel.kernelapp import launch_new_instance

    sys.argv = ["ipykernel_launcher", "-f", connection]
    launch_new_instance()


class Started:
    """A forked process, with the methods of Popen."""

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
    """Return what forks processes that have loaded these modules."""
    found = forkserver.ForkServer()
    found.set_forkserver_preload(list(loaded))
    return found


def fork(loaded: tuple[str, ...], target: Callable, *arguments: Any) -> Any:
    """Start a process that has loaded these modules, and calls the target."""
    process = multiprocessing.get_context("forkserver").Process(target=target, args=arguments)
    connect = server(loaded).connect_to_new_process
    with mock.patch.object(forkserver, "connect_to_new_process", connect):
        process.start()
    return process


def fork_kernels(patch: pytest.MonkeyPatch, loaded: tuple[str, ...]) -> None:
    """Let Jupyter's kernels be forked from a process that has loaded these, but not on a Mac."""
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
