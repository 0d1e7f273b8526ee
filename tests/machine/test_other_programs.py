"""CPU time of other programs during a measurement."""

import psutil
import pytest

from pomology.machine import other_programs

BETWEEN = {
    "0.1 core within the error of ticks": (10, 21.0, 20.0, False),
    "over 0.1 core": (10, 21.5, 20.0, True),
    "counters with different ticks": (10, 19.0, 20.0, False),
    "two ticks are within the error": (0.1, 0.12, 0.1, False),
    "ten ticks count": (0.1, 0.20, 0.1, True),
    "no other CPU time": (0.18, 0.2, 0.2, False),
    "no time at all": (0, 0, 0, False),
}


@pytest.fixture(autouse=True)
def left_alone():
    """Replace the fixture of all other tests, so that other programs count here."""


@pytest.mark.parametrize(("wall_s", "busy_s", "own_s", "contended"), BETWEEN.values(), ids=BETWEEN)
def test_contended_thresholds(monkeypatch, wall_s, busy_s, own_s, contended):
    monkeypatch.setattr(psutil, "cpu_count", lambda logical=True: 2)
    assert other_programs.contended(wall_s, busy_s, own_s) == contended
