"""What a vendor's libraries write to this process's stderr, where they raise nothing.

Metal tells of a command buffer that failed in a line, and the program goes on with numbers that
were never computed. Such lines come from C code: Python's `sys.stderr` does not see them.
"""

import contextlib
import fcntl
import os
import re
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import BinaryIO, NamedTuple

from pomology.format import one_line
from pomology.machine import messages
from pomology.paths import redact

STDERR = 2
LINE_BYTES = 8192  # a longer line is read in parts
LINE_LETTERS = 200  # of a line in a reason or a note
MOST = 3  # different lines in a reason, and in the notes
# Work that the GPU was given and did not finish: what reads its results reads something else.
FAILED = re.compile(
    "Execution of the command buffer was aborted|command buffer exited with error status"
    r"|kIO(GPU|Accel)CommandBufferCallbackError\w+|\([0-9a-f]{8}:Internal Error\)"
    "|IOGPUMetalError|Caused GPU (Timeout|Hang|Address Fault)( Error|$)"
    "|MTLCommandBufferErrorDomain|IOGPUCommandQueueErrorDomain"
    "|CUDA warning: (unspecified launch failure|an illegal (memory access|instruction)"
    "|misaligned address|the launch timed out|uncorrectable |GPU is lost|device-side assert)"
    r"|(failed to|could not) synchronize\b[^:]*: CUDA_ERROR_\w+"
    "|Error polling for event status|failed to query event: "
)
MEMORY = re.compile(
    r"Insufficient Memory \(|\"Insufficient Memory\""
    "|kIO(GPU|Accel)CommandBufferCallbackErrorOutOfMemory"
)
# Work that went another way than asked for, or slower: it is right, and worth a note.
REMARK = re.compile(
    r"\bfall(s|ing)? back (to|on)\b|performance gains if more memory", re.IGNORECASE
)

REPORTED = "the driver reported: "
FATAL = "Fatal Python error"
WHAT = "what():"  # begins C++'s line about an exception that nobody caught
# A line of a stack, which follows the cause.
FRAME = re.compile(r"(frame #\d+: |#\d+ +0x|File \".*\", line \d+|Exception raised from )")


class Reported(NamedTuple):
    """What drivers wrote.

    status: of a case, `out-of-memory` or `mismatch`; None without a failure. reason: the lines of
    the failure. remarks: other lines that say how the work was done.
    """

    status: str | None = None
    reason: str | None = None
    remarks: tuple[str, ...] = ()


class DriverReports:
    """The lines that this process and its children write to file descriptor 2.

    `begin` starts to listen, and `end` returns what was reported. Where the descriptor is a file,
    as in a run, that file is read. Anything else, such as JupyterLab's pipe or a terminal, is
    replaced by a temporary file until `end` copies its bytes on: a pipe with a reader in this
    process could fill up and block it. If the process dies meanwhile, that file is left behind.
    """

    def __init__(self):
        self._written: BinaryIO | None = None
        self._original: int | None = None  # a duplicate of a descriptor that was replaced
        self._substitute = ""  # path of the file in its place

    def begin(self) -> None:
        """Listen from here on. A process without the descriptor has nobody to listen to."""
        _flush()
        try:
            os.fstat(STDERR)
        except OSError:
            return
        self._written = _opened()
        if self._written is not None:
            self._written.seek(0, os.SEEK_END)
            return
        handle, self._substitute = tempfile.mkstemp(prefix="pomology-", suffix=".stderr")
        self._written = open(self._substitute, "rb")  # noqa: SIM115, it is closed by `end`
        self._original = os.dup(STDERR)
        os.dup2(handle, STDERR)
        os.close(handle)

    def end(self) -> Reported:
        """Stop listening and return what was reported; nothing without a `begin` before."""
        if self._written is None:
            return Reported()
        _flush()
        if self._original is not None:
            os.dup2(self._original, STDERR)
        with self._written:
            reported = report(self._lines())
        if self._original is not None:
            os.close(self._original)
            os.unlink(self._substitute)
        self._written = None
        self._original = None
        return reported

    def _lines(self) -> Iterator[str]:
        """Yield the lines since `begin`, and copy them on where the descriptor was replaced."""
        while line := self._written.readline(LINE_BYTES):
            if self._original is not None:
                _write_all(self._original, line)
            yield line.decode(errors="replace")


def report(lines: Iterator[str]) -> Reported:
    """Return what the lines say of a device's work; all of them are read."""
    failures: dict[str, None] = {}
    remarks: dict[str, None] = {}
    memory = False
    for line in lines:
        failed = FAILED.search(line)
        short = MEMORY.search(line)
        memory |= short is not None
        told = failures if failed or short else remarks if REMARK.search(line) else None
        if told is not None and len(told) < MOST:
            told[redact(one_line(line.strip(), LINE_LETTERS))] = None
    notes = tuple(f"{REPORTED}{line}" for line in remarks)
    if not failures:
        return Reported(remarks=notes)
    status = "out-of-memory" if memory else "mismatch"
    return Reported(status, f"{REPORTED}{'; '.join(failures)}", notes)


def death(lines: Sequence[str], aborted: bool) -> tuple[str, str]:
    """Return the status of a case whose process died, and what was said of it last, from stderr.

    aborted: whether the process ended itself, after which its last words are the cause.
    """
    # A driver may say why, before the library that it serves aborts.
    reported = report(iter(lines))
    if reported.status == "out-of-memory":
        return "out-of-memory", reported.reason.removeprefix(REPORTED)
    words = last_words(lines)
    explained = messages.explain(words, {"RuntimeError"}) if aborted else None
    memory = explained is not None and explained[0] == "out-of-memory"
    return "out-of-memory" if memory else "crashed", words


def last_words(lines: Sequence[str]) -> str:
    """Return what a process said of its end: the cause that C++ names, or the last line.

    Python then adds where each of its threads was, and PyTorch a line for each frame, which say
    less.
    """
    lines = [line.strip() for line in lines if line.strip()]
    causes = [line for line in lines if line.startswith(WHAT)]
    fatal = next((n for n, line in enumerate(lines) if FATAL in line), len(lines))
    own = lines[:fatal]
    if fatal < len(lines):  # which may follow words that end in no new line
        own += filter(None, [lines[fatal].partition(FATAL)[0]])
    own = own or lines[fatal : fatal + 1]
    own = [line for line in own if not FRAME.match(line)] or own
    last = causes[-1] if causes else own[-1] if own else ""
    return redact(one_line(last, LINE_LETTERS))


def _flush() -> None:
    if sys.stderr is not None:  # it is None in a process that was started without
        sys.stderr.flush()


def _opened() -> BinaryIO | None:
    """Open the file that the descriptor writes to; None if it is no file, or was removed."""
    if hasattr(fcntl, "F_GETPATH"):  # macOS, which has no /proc
        with contextlib.suppress(OSError):  # no file: a pipe, a socket
            path = fcntl.fcntl(STDERR, fcntl.F_GETPATH, bytes(1024)).rstrip(b"\0")
            return _opened_if_same(path)
        return None
    return _opened_if_same(b"/proc/self/fd/%d" % STDERR)


def _opened_if_same(path: bytes) -> BinaryIO | None:
    """Open a regular file for reading, if it is the one that the descriptor writes to."""
    with contextlib.suppress(OSError):  # it was removed, or may not be read
        if not os.path.isfile(path):  # to open a pipe would wait for its other end
            return None
        file = open(path, "rb")  # noqa: SIM115, the caller closes it
        if os.path.samestat(os.fstat(file.fileno()), os.fstat(STDERR)):
            return file
        file.close()
    return None


def _write_all(descriptor: int, text: bytes) -> None:
    """Write all bytes, of which a pipe may take some at a time.

    A reader that has gone, as a closed terminal, must not cost a case its record.
    """
    with contextlib.suppress(OSError):
        while text:
            text = text[os.write(descriptor, text) :]


def signal_name(number: int) -> str:
    """Return the name of a signal that ended a process: `SIGSEGV`, or `signal 40`."""
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal has no name
        return f"signal {number}"
