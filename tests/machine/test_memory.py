"""Memory of a process and its children."""

import multiprocessing
import os

import pytest

from pomology.machine import memory, quiet


@pytest.mark.skipif(not hasattr(os, "waitid"), reason="macOS has no waitid")
def test_listing_children_leaves_their_exit_status_to_the_waiting_parent():
    worker = multiprocessing.get_context("fork").Process(target=str)
    worker.start()
    os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
    assert memory.live_children() == [worker.pid]
    quiet.own_cpu_s()
    assert os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
    worker.join()
    assert memory.live_children() == []
