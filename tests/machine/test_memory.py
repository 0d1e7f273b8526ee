"""The memory of a process: whose children are counted."""

import multiprocessing
import os

import pytest

from pomology.machine import memory, quiet


@pytest.mark.skipif(not hasattr(os, "waitid"), reason="macOS has no waitid")
def test_asking_for_children_takes_the_end_of_none_away_from_whoever_waits_for_it():
    worker = multiprocessing.get_context("fork").Process(target=str)
    worker.start()
    os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
    assert memory.live_children() == [worker.pid]
    quiet.own_s()
    assert os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
    worker.join()
    assert memory.live_children() == []
