"""A line of a notebook's output that says how far a case is, until its result replaces it."""

import math
import time
from typing import Any

from pomology.format import clock_time
from pomology.measure.clock import Part

SHOWN_S = 0.5  # between two updates, which take about a millisecond each


class Progress:
    """The line of one case; a terminal gets the result only."""

    def __init__(self, name: str):
        self._name = name
        self._start_s = self._shown_s = time.perf_counter()
        self._display: Any = None

    def step(self, part: Part) -> None:
        """Say how many steps of a loop have been made, at most twice a second."""
        now_s = time.perf_counter()
        if now_s - self._shown_s >= SHOWN_S:
            self._shown_s = now_s
            steps = f"step {part.steps:,} of {math.ceil(part.epoch_steps):,}"
            self._show(f"{self._name}: {part.name}, {steps}, {clock_time(now_s - self._start_s)}")

    def end(self, text: str) -> None:
        """Show the result in place of the line."""
        if self._display is None:
            print(text)
        else:
            self._show(text)

    def _show(self, text: str) -> None:
        from IPython import get_ipython
        from IPython.display import Pretty, display

        if self._display is not None:
            self._display.update(Pretty(text))
        elif get_ipython() is not None:
            self._display = display(Pretty(text), display_id=True)
