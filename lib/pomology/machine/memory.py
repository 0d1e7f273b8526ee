"""Memory of this process and its workers."""

import ctypes
import multiprocessing.process
import os
import resource
import sys

import psutil

# Columns of a memory trace, with a row per step that takes 0.1 ms. `resident_bytes` and page faults
# are of this process alone. On macOS `resident_bytes` lacks pages that only the GPU touched.
TRACED = [
    "step",
    "t_s",
    "allocated_bytes",
    "reserved_bytes",
    "footprint_bytes",
    "resident_bytes",
    "page_faults",
    "page_ins",
]


def page_faults() -> dict[str, int]:
    """Return the page faults of this process so far, and the `page_ins` that needed the disk."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {"page_faults": usage.ru_minflt + usage.ru_majflt, "page_ins": usage.ru_majflt}


def live_children() -> list[int]:
    """Return the process ids of running multiprocessing children."""
    # multiprocessing.active_children() takes the exit status of killed workers from PyTorch.
    # The sampler's thread calls this while the main thread may start and end workers, so the set of
    # children is copied first.
    processes = [child._popen for child in list(multiprocessing.process._children)]
    return [
        process.pid for process in processes if process is not None and process.returncode is None
    ]


def footprint() -> int:
    """Return the resident bytes of this process; on macOS its footprint with running children.

    On macOS each child imports PyTorch anew. On Linux children are forks that share its pages.
    Raises OSError if macOS does not answer.
    """
    if sys.platform != "darwin":
        return psutil.Process().memory_info().rss
    proc_pid_rusage = ctypes.CDLL(None).proc_pid_rusage
    total = 0
    for pid in [os.getpid(), *live_children()]:
        # `struct rusage_info_v0`: a UUID of 16 bytes, ten integers; the footprint is the eighth.
        info = (ctypes.c_uint64 * 12)()
        if proc_pid_rusage(pid, 0, ctypes.byref(info)) == 0:
            total += info[9]
        elif pid == os.getpid():  # a listed child may have ended
            raise OSError("proc_pid_rusage failed")
    return total
