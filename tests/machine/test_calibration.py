"""The calibration of this machine's speed."""

import contextlib
import functools
import itertools
import time

import numpy as np
import pytest
from fakes import Clock, SimulatedDevice

from pomology.machine import calibration
from pomology.measure import calls


@pytest.fixture(autouse=True)
def left_alone():
    """Replace the fixture of all other tests, so that a calibration is one here."""


@pytest.fixture
def now(monkeypatch):
    """Simulated time of what is calibrated."""
    now = Clock()
    monkeypatch.setattr(calls, "measure", functools.partial(calls.measure, clock=now))
    return now


@pytest.mark.parametrize("call_s", [0.0002, 0.007, 0.02])  # from a B200 to slower than an M1
def test_a_gpu_that_becomes_slower_is_seen_in_at_most_150_ms(now, call_s):
    gpu = SimulatedDevice(now, fence_s=0.0002)
    gpu.context = lambda strict: contextlib.nullcontext(strict or pytest.fail("TF32 is allowed"))
    gpu.dispatch = lambda function: function
    pace = itertools.chain([2.0] * 2, [1.0] * 800)  # the clock rises, and later falls
    gpu.product = lambda precision, size: lambda: gpu.launch(next(pace, 1.3) * call_s)
    fast_s = calibration.calibrate_gpu(gpu)
    assert fast_s == pytest.approx(call_s, rel=0.02) and now.now <= 0.15
    list(pace)
    slow_s = calibration.calibrate_gpu(gpu)
    assert calibration.slower("gpu", slow_s, fast_s) == "30 %"
    within = calibration.slower("gpu", 1.09, 1.0), calibration.slower("cpu", 1.29, 1.0)
    assert within == ("", "")


def test_the_calibration_of_the_cpu_is_the_time_of_one_matmul():
    matrix = np.ones((160, 160), dtype="float32")
    times_s = []
    for _ in range(5):
        start_s = time.perf_counter()
        np.einsum("ij,jk->ik", matrix, matrix)
        times_s.append(time.perf_counter() - start_s)
    assert min(times_s) / 3 < calibration.calibrate() < 100 * min(times_s)
