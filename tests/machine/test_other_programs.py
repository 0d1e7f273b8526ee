"""CPU time of other programs during a measurement."""

import numpy as np
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


@pytest.mark.parametrize(
    ("loads", "seen"),
    [
        ([0.0] * 20, False),
        ([0.0] * 20 + [1.0, 1.0] + [0.0] * 20, True),  # a second of one core in twenty
        ([0.0] * 5 + [1.0] + [0.0] * 5 + [1.0] + [0.0] * 5, False),
        ([0.3] * 20, False),
    ],
)
def test_a_burst_of_a_second_is_seen_in_a_long_timing(monkeypatch, loads, seen):
    """This process keeps one core busy, and another program the other one, now and then."""
    monkeypatch.setattr(psutil, "cpu_count", lambda: 2)
    others_s = np.cumsum([0.0, *(0.5 * load for load in loads)])
    read = iter([(0.5 * n, 0.5 * n + other_s, 0.5 * n) for n, other_s in enumerate(others_s)])
    monkeypatch.setattr(other_programs, "readings", lambda: next(read))
    bursts = other_programs.Bursts()
    for _ in loads:
        bursts.read()
    assert bursts.seen == seen
