"""A function of the kit in a process of its own: one process holds one framework, and makes its first launch once."""

from __future__ import annotations

import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pomology.errors import PomologyError


def call(what: str, function: Callable, *arguments: Any, limit_s: float | None = None) -> Any:
    """What `function(*arguments)` returns in a fresh process of Python, which has imported the function's module only.

    function, arguments and result must be picklable. limit_s: seconds that it may take. Raises PomologyError in one
    line, which begins with `what`, if the process fails, and subprocess.TimeoutExpired if it takes longer.
    """
    with tempfile.TemporaryDirectory() as folder:
        exchange = Path(folder, "exchange.pickle")
        exchange.write_bytes(pickle.dumps((function, arguments)))
        command = [sys.executable, "-m", "pomology.workloads.isolated", str(exchange)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=limit_s)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise PomologyError(f"{what} ended with status {done.returncode}: {last}")
        return pickle.loads(exchange.read_bytes())


if __name__ == "__main__":
    given = Path(sys.argv[1])
    function, arguments = pickle.loads(given.read_bytes())
    given.write_bytes(pickle.dumps(function(*arguments)))
