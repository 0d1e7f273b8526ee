"""Two runs that measure at the same time, each in a process of its own."""

import errno
import fcntl
import os
import subprocess
import sys
from unittest import mock

import pytest

from pomology.machine import other_runs
from pomology.machine.other_runs import OtherRuns


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.setattr(other_runs, "PLACE", tmp_path)
    return tmp_path


SCRIPT = """
import os
import sys
from pathlib import Path
from pomology.machine import other_runs
other_runs.PLACE = Path(sys.argv[1])
if sys.argv[2:]:
    os.getuid = lambda: int(sys.argv[2])
runs = other_runs.OtherRuns()
for order in sys.stdin:
    getattr(runs, order.strip())()
    print(runs.noticed, flush=True)
"""


@pytest.fixture(params=["same user", "another user"])
def other(place, request):
    """Another process, a function that tells it to begin or end and returns what it noticed."""
    user = [] if request.param == "same user" else [str(os.getuid() + 1)]
    command = [sys.executable, "-c", SCRIPT, str(place), *user]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as process:

        def tell(order: str) -> bool:
            print(order, file=process.stdin, flush=True)
            return {"True": True, "False": False}[process.stdout.readline().strip()]

        tell.kill = lambda: (process.kill(), process.wait())
        yield tell
        process.kill()


def alone() -> bool:
    runs = OtherRuns()
    runs.begin()
    runs.end()
    return not runs.noticed


def test_one_after_the_other_and_the_file_does_not_grow(place):
    assert [alone() for _ in range(5)] == [True] * 5
    (file,) = place.iterdir()
    assert file.stat().st_size == 1 and file.stat().st_mode & 0o777 == 0o644


def test_both_notice_each_other_whoever_begins_first(other):
    own = OtherRuns()
    own.begin()
    other("begin")
    own.end()
    assert own.noticed and other("end")
    assert alone()


def test_a_run_that_began_and_ended_meanwhile_is_noticed(other):
    own = OtherRuns()
    own.begin()
    other("begin")
    assert other("end")
    own.end()
    assert own.noticed and alone()


def test_a_killed_one_leaves_no_lock(other):
    other("begin")
    assert not alone()
    other.kill()
    assert alone()


def test_a_worker_that_lives_on_holds_no_lock():
    own = OtherRuns()
    own.begin()
    reader, writer = os.pipe()
    child = os.fork()  # as a loader's worker, with all open files
    if not child:
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)
    os.close(reader)
    own.end()
    assert not own.noticed and alone()
    os.close(writer)
    os.waitpid(child, 0)


def test_a_lock_that_is_lost_meanwhile_ends_no_case(monkeypatch):
    own = OtherRuns()
    own.begin()
    monkeypatch.setattr(fcntl, "flock", mock.Mock(side_effect=OSError(errno.ESTALE, "gone")))
    own.end()
    own.end()
    assert not own.noticed


def test_without_a_lock_an_error_says_why(place):
    (place / f"pomology-{os.getuid()}.lock").symlink_to("elsewhere")
    with pytest.raises(OSError):
        OtherRuns().begin()
    assert not (place / "elsewhere").exists()
