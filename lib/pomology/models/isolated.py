"""A function of the kit in a process of its own: one process holds one framework, and makes its first launch once."""

from __future__ import annotations

import contextlib
import os
import pickle
import pkgutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from pomology.errors import PomologyError


def call(what: str, function: str, *arguments: Any, limit_s: float | None = None, foreign: bool = False) -> Any:
    """What a function returns in a fresh process of Python, which has imported its module only.

    function: as `pomology.models.launches:first`; arguments and result must be picklable. limit_s: seconds that it
    may take. foreign: it runs code that is not the kit's; what that prints is dropped, and what it started ends with
    it. Raises PomologyError in one line, which begins with `what`, if the process fails, and subprocess.TimeoutExpired
    if it takes longer.
    """
    with tempfile.TemporaryDirectory() as folder:
        given, answer = Path(folder, "given.pickle"), Path(folder, "answer.pickle")
        given.write_bytes(pickle.dumps(arguments))
        command = [sys.executable, "-m", "pomology.models.isolated", function, str(given), str(answer)]
        if foreign:
            done = _grouped(command, limit_s)
        else:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=limit_s)
        if done.returncode or not answer.exists():
            ended = done.returncode
            how = f"by {signal.Signals(-ended).name}" if ended < 0 else f"with status {ended}"
            last = (done.stderr.strip().splitlines() or ["it left no answer" if foreign else "no message"])[-1]
            raise PomologyError(f"{what} ended {how}: {last}")
        return pickle.loads(answer.read_bytes())


def _grouped(command: list[str], limit_s: float | None) -> subprocess.CompletedProcess:
    """Run it in a group of processes, all of which end with it, and without a word from them."""
    nowhere = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    with subprocess.Popen(command, start_new_session=True, **nowhere) as process:
        try:
            return subprocess.CompletedProcess(command, process.wait(limit_s), "", "")
        finally:
            # None are left; or, on macOS, only such as have ended.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)


if __name__ == "__main__":
    function, given, answer = pkgutil.resolve_name(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
    answer.write_bytes(pickle.dumps(function(*pickle.loads(given.read_bytes()))))
