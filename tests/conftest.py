"""`make test` runs the files of tests in several processes. Without pytest's `-n`, nothing here has an effect."""

from __future__ import annotations

import os
from typing import Any

import psutil
import pytest

if "PYTEST_XDIST_WORKER" in os.environ:
    # Threads that meet after every operator crawl where another process has their core.
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# They start kernels. Who does so looks for free ports, which the kernel takes a moment later; of two at a time, one may
# find them taken. So one process runs all of these.
KERNELS = {"test_batch.py", "test_experiment.py", "test_lab.py", "test_notebooks.py"}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """For `-n auto`: a process for each core, but at most four, and 4 GiB for each. One would be pytest itself."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    count = min(4, cores, psutil.virtual_memory().total // 2**32)
    return count if count > 1 else 0


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """For `--dist=loadfile`: a file's tests stay together, with what they share."""
    if config.option.dist != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Files(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return "kernels" if file.rpartition("/")[2] in KERNELS else file

    return Files(config, log)
