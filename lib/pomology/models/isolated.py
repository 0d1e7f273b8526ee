"""Function calls in a separate process, since a process can use only one framework."""

import os
import pickle
import pkgutil
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from pomology.errors import PomologyError
from pomology.machine import driver_reports


def call(what: str, function: str, *arguments: Any, limit_s: float | None = None) -> Any:
    """Call a function in a new Python process and return its result.

    function: `package.module:name`.
    Arguments and result must be picklable. limit_s: time limit in seconds. Raises PomologyError,
    with a message that begins with `what`, if the process fails, and subprocess.TimeoutExpired.
    """
    with tempfile.TemporaryDirectory() as folder:
        request, answer = Path(folder, "request.pickle"), Path(folder, "answer.pickle")
        request.write_bytes(pickle.dumps(arguments))
        command = [
            sys.executable,
            "-P",
            "-m",
            "pomology.models.isolated",
            function,
            request,
            answer,
        ]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        options = {"capture_output": True, "text": True, "check": False, "env": environment}
        done = subprocess.run(command, timeout=limit_s, **options)
        status = done.returncode
        if status:
            how = _how(status)
            lines = done.stderr.splitlines()
            # The first line of an exception of CUDA tells the fault, the others how to debug it.
            raised = [line for line in lines if re.match(r"[A-Za-z_][\w.]*: ", line)]
            words = raised[-1] if raised else driver_reports.last_words(lines)
            raise PomologyError(f"{what} ended {how}: {words or 'no message'}")
        return pickle.loads(answer.read_bytes())


def _how(status: int) -> str:
    """Return how a process ended: `by SIGABRT`, `by signal 40` or `with status 1`."""
    return f"by {driver_reports.signal_name(-status)}" if status < 0 else f"with status {status}"


if __name__ == "__main__":
    name, request, answer = sys.argv[1:]
    arguments = pickle.loads(Path(request).read_bytes())
    result = pkgutil.resolve_name(name)(*arguments)
    Path(answer).write_bytes(pickle.dumps(result))
