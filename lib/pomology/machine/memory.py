"""The memory of this process and its workers."""

import ctypes
import multiprocessing.process
import os
import resource
import sys

import psutil

# What is noted of each step of a traced training, which takes 0.1 ms. `resident_bytes` (on macOS
# without what only the GPU touched) and page faults are of this process alone.
TRACED = ["step", "t_s", "allocated_bytes", "reserved_bytes", "footprint_bytes"]
TRACED += ["resident_bytes", "page_faults", "page_ins"]


def page_faults() -> dict[str, int]:
    """Return the page faults of this process so far, and those that needed the disk."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {"page_faults": usage.ru_minflt + usage.ru_majflt, "page_ins": usage.ru_majflt}


def live_children() -> list[int]:
    """Return the process ids of the multiprocessing children that have not ended."""
    # multiprocessing.active_children() would also collect the ended ones, behind the back of the
    # thread that waits for them: PyTorch would then learn only late that a worker was killed.
    processes = [child._popen for child in list(multiprocessing.process._children)]
    return [each.pid for each in processes if each is not None and each.returncode is None]


def footprint() -> int:
    """Return the resident memory of this process; on macOS its footprint, with living children.

    There each of them imports PyTorch; on Linux they are forks, and share its pages.
    """
    if sys.platform != "darwin":
        return psutil.Process().memory_info().rss
    proc_pid_rusage = ctypes.CDLL(None).proc_pid_rusage
    total = 0
    for pid in [os.getpid(), *live_children()]:
        # `struct rusage_info_v0` of <sys/resource.h>: 16 bytes of UUID, then ten numbers, the
        # eighth the footprint
        info = (ctypes.c_uint64 * 12)()
        if proc_pid_rusage(pid, 0, ctypes.byref(info)) == 0:
            total += info[9]
        elif pid == os.getpid():  # a child may have ended since it was listed
            raise OSError("proc_pid_rusage failed")
    return total
