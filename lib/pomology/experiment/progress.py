"""One line that says how far a case is."""

from __future__ import annotations

import math
import time

from pomology import format


class Progress:
    """One line that says how far a case is, in a notebook or a terminal, replaced by its result."""

    def __init__(self, name: str):
        self.name, self._handle, self._last_s, self._began_s = name, None, 0.0, time.perf_counter()

    def update(self, part: str, done: int, expected: float | None) -> None:
        now_s = time.perf_counter()
        if now_s - self._last_s < 0.5:
            return
        self._last_s = now_s
        total = f" of {math.ceil(expected):,}" if expected else ""
        self._show(f"{self.name}: {part}, step {done:,}{total}, {format.clock_time(now_s - self._began_s)}")

    def finish(self, line: str) -> None:
        self._show(line, final=True)
        self._handle = None

    def _show(self, text: str, final: bool = False) -> None:
        from IPython import get_ipython
        from IPython.display import Pretty, display

        if get_ipython() is None:
            if final:
                print(text)
            return
        if self._handle is None:
            self._handle = display(Pretty(text), display_id=True)
        else:
            self._handle.update(Pretty(text))
