"""The command line with output that no one reads: a pipe to `head`, or a closed stream."""

import argparse
import os
import subprocess
import sys

import pytest

from pomology.__main__ import UNREAD

POMOLOGY = [sys.executable, "-m", "pomology"]


@pytest.fixture(autouse=True)
def buffered(monkeypatch):
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)


def run(arguments, **streams):
    options = {"stderr": subprocess.PIPE, "text": True, "timeout": 60} | streams
    return subprocess.run([*POMOLOGY, *arguments.split()], check=False, **options)


@pytest.fixture
def unread():
    """The end to write to of a pipe whose reader has ended."""
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


def argparse_ignores_a_failed_write():
    """Whether this Python's argparse ignores an error of printing its help: 3.11.2 does not."""

    class Unread:
        def write(self, text):
            raise BrokenPipeError

    try:
        argparse.ArgumentParser().print_help(Unread())
    except BrokenPipeError:
        return False
    return True


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("arguments", ["list", "check", "devices", "models", "--help"])
def test_a_reader_that_has_ended_ends_a_command_without_a_word(
    arguments, unbuffered, unread, monkeypatch
):
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    done = run(arguments, stdout=unread)
    # Without a buffer the error is argparse's own, which a newer one ignores.
    ignored = unbuffered and arguments == "--help" and argparse_ignores_a_failed_write()
    assert (done.returncode, done.stderr) == (0 if ignored else UNREAD, "")


def test_a_reader_may_close_the_pipe_after_some_lines():
    with subprocess.Popen(
        [*POMOLOGY, "list"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline().startswith("vae ")
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode in (0, UNREAD)  # 0: it had printed all before


def test_an_error_that_no_one_reads_is_no_traceback(unread):
    assert run("nosuch", stdout=subprocess.PIPE, stderr=unread).returncode == UNREAD


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_streams_that_the_shell_has_closed_are_no_error(closed):
    command = f'"{sys.executable}" -m pomology list {closed}'
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert bool(done.stdout) == (closed == "2>&-")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux has this device")
@pytest.mark.parametrize("arguments", ["list", "--help"])
def test_output_to_a_full_disk_is_one_line(arguments):
    with open("/dev/full", "w") as full:
        done = run(arguments, stdout=full)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert done.stderr.startswith("pomology: [Errno 28] No space left on device")
