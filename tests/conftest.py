"""`make test` runs the tests in several processes, the slowest first; and what they share."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator

import psutil
import pytest

if "PYTEST_XDIST_WORKER" in os.environ:
    # Threads that meet after every operator crawl where another process has their core.
    os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """For `-n auto`: a process for each core, but at most four, and 4 GiB for each. One would be pytest itself."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    count = min(4, cores, psutil.virtual_memory().total // 2**32)
    return count if count > 1 else 0


@pytest.fixture
def sockets() -> Iterator[dict[str, str]]:
    """Settings of a KernelManager that speaks to its kernel through sockets in a folder, not through ports.

    Ports are looked for before the kernel takes them, and of two processes that do so at a time, one may find them
    taken. The folder's name is short, since a socket's may have 104 characters on a Mac.
    """
    with tempfile.TemporaryDirectory(prefix="k") as folder:
        yield {"transport": "ipc", "ip": f"{folder}/k"}
