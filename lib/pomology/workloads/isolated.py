"""A function of the kit in a process of its own: one process holds one framework, and makes its first launch once."""

from __future__ import annotations

import pickle
import pkgutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from pomology.errors import PomologyError


def call(what: str, function: str, *arguments: Any, limit_s: float | None = None) -> Any:
    """What a function returns in a fresh process of Python, which has imported its module only.

    function: as `pomology.workloads.launches:first`; arguments and result must be picklable. limit_s: seconds that it
    may take. Raises PomologyError in one line, which begins with `what`, if the process fails, and
    subprocess.TimeoutExpired if it takes longer.
    """
    with tempfile.TemporaryDirectory() as folder:
        exchange = Path(folder, "exchange.pickle")
        exchange.write_bytes(pickle.dumps(arguments))
        command = [sys.executable, "-m", "pomology.workloads.isolated", function, str(exchange)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=limit_s)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise PomologyError(f"{what} ended with status {done.returncode}: {last}")
        return pickle.loads(exchange.read_bytes())


if __name__ == "__main__":
    function, given = pkgutil.resolve_name(sys.argv[1]), Path(sys.argv[2])
    given.write_bytes(pickle.dumps(function(*pickle.loads(given.read_bytes()))))
