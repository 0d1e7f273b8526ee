"""Lines that drivers write to the process's own stderr: what they mean, and that none is lost.

The lines are those of public reports: pytorch/pytorch issues 123171 and 125954, OpenSplat issue 198
and the binaries of PyTorch 2.14.1 and TensorFlow 2.16.2.
"""

import contextlib
import fcntl
import os
import subprocess
import sys
import tempfile

import pytest
from jupyter_client.manager import KernelManager

from pomology.machine import driver_reports
from pomology.machine.driver_reports import DriverReports, report

ABORTED = "Execution of the command buffer was aborted due to an error during execution. "
METAL = """Error: command buffer exited with error status.
\tThe Metal Performance Shaders operations encoded on it may not have completed.
\tError:
\t(null)
\t{}
\t<AGXG14XFamilyCommandBuffer: 0x45fd0ea50>
    label = <none>
    device = <AGXG14CDevice: 0x14db6c200>
        name = Apple M2 Max
    retainedReferences = 1
"""
MEMORY = "Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)"
TIMEOUT = "Caused GPU Timeout Error (00000002:kIOAccelCommandBufferCallbackErrorTimeout)"
VICTIM = "Discarded (victim of GPU error/recovery) (00000005:kIOGPUCommandBufferCallbackError"
QUERY = "E xla/stream_executor/cuda/cuda_event.cc:49] Error polling for event status: "
FAILURES = {
    METAL.format("Internal Error (0000000e:Internal Error)"): "mismatch",
    METAL.format(TIMEOUT): "mismatch",
    METAL.format(MEMORY): "out-of-memory",
    ABORTED + "Internal Error (0000000e:Internal Error)\n": "mismatch",
    ABORTED + MEMORY + "\n": "out-of-memory",
    ABORTED + "Caused GPU Hang Error (00000003:kIOGPUCommandBufferCallbackErrorHang)": "mismatch",
    VICTIM + "InnocentVictim)\n": "mismatch",
    "Error Domain=IOGPUMetalError Code=14\n": "mismatch",
    "[W CUDAGuardImpl.h:119] Warning: CUDA warning: unspecified launch failure\n": "mismatch",
    QUERY + "failed to query event: CUDA_ERROR_ILLEGAL_ADDRESS\n": "mismatch",
    "E could not synchronize on CUDA context: CUDA_ERROR_ILLEGAL_ADDRESS: an illegal\n": "mismatch",
    "F failed to synchronize the stop event: CUDA_ERROR_LAUNCH_FAILED: unspecified\n": "mismatch",
}
ORDINARY = """UserWarning: 'pin_memory' argument is set as true but not supported on MPS now
warnings.warn(warn_msg)
objc[123]: Class A is implemented in both x and y. One of the two will be used.
Context leak detected, msgtracer returned -1
I tensorflow/core/util/port.cc:113] oneDNN custom operations are on.
[W1122 CUDAGuardImpl.h:119] Warning: CUDA warning: driver shutting down
Error: no such file; Insufficient funds; Internal Error
2 of 3 command buffers exited well
"""
REMARKS = [
    "The operator 'aten::x' is not currently supported on the MPS backend and will fall back to "
    "run on the CPU.",
    "W gpu/asm_compiler.cc:233] ptxas too old. Falling back to the driver to compile.",
    "W bfc_allocator.cc:296] Allocator (GPU_0_bfc) ran out of memory trying to allocate 2GiB. The "
    "caller indicates that this is not a failure, but this may mean that there could be "
    "performance gains if more memory were available.",
]


@pytest.mark.parametrize(("text", "status"), FAILURES.items())
def test_a_line_that_tells_of_failed_work_has_its_status(text, status):
    reported = report(iter([*ORDINARY.splitlines(), *text.splitlines()]))
    assert reported.status == status and not reported.remarks
    assert reported.reason.startswith("the driver reported: ") and "\n" not in reported.reason
    (first, *_) = [line.strip() for line in text.splitlines() if line.strip()]
    assert first in reported.reason
    assert report(iter([line.upper() for line in ORDINARY.splitlines()])) == report(iter(()))


def test_ordinary_lines_change_nothing_and_remarks_are_told_once():
    assert report(iter(ORDINARY.splitlines())) == driver_reports.Reported()
    reported = report(iter(REMARKS * 2))
    assert reported.status is None and reported.reason is None and len(reported.remarks) == 3
    assert reported.remarks[0] == f"the driver reported: {REMARKS[0]}"


def test_a_flood_of_lines_leaves_a_short_reason():
    flood = (f"{METAL.format(TIMEOUT)}{number}" + 10_000 * "x" for number in range(1000))
    reason = report(line for text in flood for line in text.splitlines()).reason
    assert len(reason) < 1000 and "Caused GPU Timeout Error" in reason


@contextlib.contextmanager
def stderr(kind, monkeypatch, tmp_path):
    """Put a pipe or a file in the place of descriptor 2; yield what reads it.

    It is no fixture, since pytest takes the descriptor back between a fixture and its test.
    """
    path = tmp_path / "log"
    reading, writing = os.pipe()
    if "pipe" not in kind:
        path.write_bytes(b"before\n")
        os.close(writing)
        writing = os.open(path, os.O_WRONLY | os.O_APPEND)
        os.close(reading)
        reading = os.open(path, os.O_RDONLY)
        os.lseek(reading, 0, os.SEEK_END)
    if "removed" in kind:
        path.unlink()
    if "mac" in kind:

        def get_path(descriptor, _command, room):
            if "pipe" in kind:
                raise OSError(9, "Bad file descriptor")
            return os.fsencode(path).ljust(len(room), b"\0")

        monkeypatch.setattr(fcntl, "F_GETPATH", 50, raising=False)
        monkeypatch.setattr(fcntl, "fcntl", get_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    sys.stderr.flush()
    saved = os.dup(2)
    os.dup2(writing, 2)
    os.close(writing)
    try:
        yield lambda: os.read(reading, 10**6)
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(reading)


@pytest.mark.parametrize(
    "kind", ["pipe", "file", "removed file", "mac file", "mac pipe", "mac removed"]
)
def test_what_c_code_and_children_write_is_read_and_nothing_is_lost(monkeypatch, tmp_path, kind):
    with stderr(kind, monkeypatch, tmp_path) as read:
        _write_and_read(read, tmp_path)


def _write_and_read(read, tmp_path):
    before = os.stat(2)
    descriptors = len(os.listdir("/dev/fd"))
    os.write(2, (ABORTED + "of an earlier case\n").encode())
    written = [ABORTED + "of an earlier case\n"]
    for text in (ORDINARY, ORDINARY + ABORTED + "no line feed", "", METAL.format(MEMORY)):
        driver = DriverReports()
        driver.begin()
        os.write(2, text.encode())
        subprocess.run([sys.executable, "-c", "import os; os.write(2, b'child\\n')"], check=True)
        reported = driver.end()
        written += [text, "child\n"]
        failed = "out-of-memory" if MEMORY in text else "mismatch" if ABORTED in text else None
        assert reported.status == failed, reported
        assert driver.end() == driver_reports.Reported(), "it has ended"
    os.write(2, b"after\n")
    assert read().decode() == "".join(written) + "after\n"
    assert os.path.samestat(os.stat(2), before)
    assert len(os.listdir("/dev/fd")) == descriptors
    assert [path.name for path in tmp_path.iterdir()] in ([], ["log"])


def test_a_substitute_takes_more_than_a_pipe_holds(tmp_path):
    """A driver may write while it holds Python's lock, so that no thread could empty a pipe."""
    code = (
        "import os, sys\n"
        "from pomology.machine.driver_reports import DriverReports\n"
        "driver = DriverReports()\n"
        "driver.begin()\n"
        "os.write(2, b'y' * 999_999 + b'\\n')\n"
        "os.write(1, b'written\\n')\n"
        "print(driver.end())\n"
    )
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], **options) as process:
        assert process.stdout.readline() == b"written\n", "before anyone reads its stderr"
        said, error = process.communicate(timeout=60)
    assert said.startswith(b"Reported(status=None") and len(error) == 10**6


def test_a_process_without_stderr_has_nothing_to_read():
    code = (
        "import os\n"
        "from pomology.machine.driver_reports import DriverReports\n"
        "os.close(2)\n"
        "driver = DriverReports()\n"
        "driver.begin()\n"
        "print(driver.end().status)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True)
    assert done.stdout == b"None\n"


def test_a_reader_that_has_gone_costs_no_record():
    reading, writing = os.pipe()
    os.close(reading)
    with contextlib.ExitStack() as stack:
        saved = os.dup(2)
        stack.callback(os.close, saved)
        stack.callback(os.dup2, saved, 2)
        os.dup2(writing, 2)
        os.close(writing)
        driver = DriverReports()
        driver.begin()
        os.write(2, ABORTED.encode())
        assert driver.end().status == "mismatch"


CELL = """
import os
from pomology.machine.driver_reports import DriverReports

driver = DriverReports()
driver.begin()
os.write(2, b"Caused GPU Timeout Error\\n")
print(driver.end().status, flush=True)
"""


@pytest.mark.parametrize("options", [[], ["--IPKernelApp.capture_fd_output=False"]])
def test_a_kernel_of_jupyterlab_and_one_of_a_run_show_what_a_driver_wrote(
    monkeypatch, tmp_path, options
):
    """JupyterLab's kernel puts a pipe in the place of stderr; the runner's writes to its log."""
    log = tmp_path / "log"
    monkeypatch.delenv("PYTEST_CURRENT_TEST")  # with it, ipykernel takes no descriptor
    with open(log, "ab") as file:
        manager = KernelManager(kernel_name="python3")
        manager.start_kernel(stdout=file, stderr=file, extra_arguments=options)
    client = manager.blocking_client()
    try:
        client.start_channels()
        client.wait_for_ready(timeout=60)
        said = {"stdout": "", "stderr": ""}

        def collect(message):
            if message["msg_type"] == "stream":
                said[message["content"]["name"]] += message["content"]["text"]

        client.execute_interactive(CELL, timeout=60, output_hook=collect)
        assert said["stdout"] == "mismatch\n"
        # The thread that reads the pipe of JupyterLab's kernel may come after the cell's end.
        client.execute_interactive("import time; time.sleep(1)", timeout=60, output_hook=collect)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        manager.cleanup_resources()
    shown = log.read_text() if options else said["stderr"]
    assert "Caused GPU Timeout Error" in shown
