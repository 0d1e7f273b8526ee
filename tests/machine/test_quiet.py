"""CPU time of other programs, and the calibration of this machine's speed."""

import contextlib
import functools
import itertools
import os
from types import SimpleNamespace

import psutil
import pytest
from fakes import Clock, SimulatedDevice

from pomology.machine import quiet
from pomology.measure import calls


@pytest.fixture(autouse=True)
def left_alone():
    """Replace the fixture of all other tests, so that other programs count here."""


@pytest.mark.parametrize(
    ("text", "threads"),
    [("max 100000\n", 8), ("250000 100000\n", 2), ("50000 100000\n", 1), (None, 8)],
)
def test_threads_follow_the_quota_of_a_container_and_the_affinity(
    monkeypatch, tmp_path, text, threads
):
    monkeypatch.setattr(quiet, "CPU_MAX", tmp_path / "cpu.max")
    if text:
        quiet.CPU_MAX.write_text(text)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert quiet.usable_threads() == threads
    monkeypatch.delattr(os, "sched_getaffinity")  # as on a Mac
    monkeypatch.setattr(os, "cpu_count", lambda: 10)
    assert quiet.usable_threads() == (10 if threads == 8 else threads)


BETWEEN = {
    "0.1 core within the error of ticks": (10, 21.0, 20.0, False),
    "over 0.1 core": (10, 21.5, 20.0, True),
    "counters with different ticks": (10, 19.0, 20.0, False),
    "two ticks are within the error": (0.1, 0.12, 0.1, False),
    "ten ticks count": (0.1, 0.20, 0.1, True),
    "no other CPU time": (0.18, 0.2, 0.2, False),
    "no time at all": (0, 0, 0, False),
}


@pytest.mark.parametrize(("wall_s", "busy_s", "own_s", "contended"), BETWEEN.values(), ids=BETWEEN)
def test_contended_thresholds(monkeypatch, wall_s, busy_s, own_s, contended):
    monkeypatch.setattr(psutil, "cpu_count", lambda logical=True: 2)
    assert quiet.contended(wall_s, busy_s, own_s) == contended


@pytest.fixture
def now(monkeypatch):
    """Simulated time of what is calibrated."""
    now = Clock()
    monkeypatch.setattr(calls, "measure", functools.partial(calls.measure, clock=now))
    return now


CLOCKS = [("CLOCK_MONOTONIC_RAW", "CLOCK_UPTIME_RAW"), ("CLOCK_BOOTTIME", "CLOCK_MONOTONIC")]


@pytest.mark.parametrize(("always", "awake"), CLOCKS, ids=["macos", "linux"])
def test_sleep_is_what_one_clock_counts_and_the_other_does_not(monkeypatch, always, awake):
    clocks = SimpleNamespace(**{always: 9000.0, awake: 5400.0}, clock_gettime=float)
    monkeypatch.setattr(quiet, "time", clocks)
    assert quiet.asleep_s() == 3600


@pytest.mark.parametrize("call_s", [0.0002, 0.007, 0.02])  # from a B200 to slower than an M1
def test_a_gpu_that_becomes_slower_is_seen_in_at_most_150_ms(now, call_s):
    gpu = SimulatedDevice(now, fence_s=0.0002)
    gpu.context = lambda strict: contextlib.nullcontext(strict or pytest.fail("TF32 is allowed"))
    gpu.dispatch = lambda function: function
    pace = itertools.chain([2.0] * 2, [1.0] * 800)  # the clock rises, and later falls
    gpu.product = lambda precision, size: lambda: gpu.launch(next(pace, 1.3) * call_s)
    fast_s = quiet.calibrate_gpu(gpu)
    assert fast_s == pytest.approx(call_s, rel=0.02) and now.now <= 0.15
    list(pace)
    slow_s = quiet.calibrate_gpu(gpu)
    assert quiet.slower("gpu", slow_s, fast_s) == "30 %"
    assert quiet.slower("gpu", 1.09, 1.0) == quiet.slower("cpu", 1.29, 1.0) == ""
