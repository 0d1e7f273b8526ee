"""Timing of single functions, in simulated time."""

import pytest
from fakes import Clock, SimulatedDevice, seconds_of
from pytest import approx

from pomology.measure.calls import measure
from pomology.measure.clock import steps_in


class Kernel:
    """A function that takes simulated time."""

    def __init__(self, seconds):
        self.now, self.seconds, self.calls = Clock(), seconds, 0

    def __call__(self) -> None:
        self.now.pass_s(self.seconds(self.calls))
        self.calls += 1


def test_measure_times_the_first_call_and_warm_up_separately():
    kernel = Kernel(lambda call: 0.001 if call >= 30 else 0.002 if call else 4.002)
    found = measure(kernel, clock=kernel.now)
    assert found.first_call_s == approx(4.002) and found.seconds.value == approx(0.001)
    assert (found.stopped, len(found.blocks)) == ("interval", 40)
    assert seconds_of(found.warmup) >= 0.1 and steps_in(found.warmup) >= 50
    # Nothing is thrown away.
    assert kernel.calls == 1 + steps_in(found.warmup) + steps_in(found.blocks)


def test_measure_returns_the_median_of_blocks():
    kernel = Kernel(lambda call: 0.05 * (4 if call % 5 == 0 else 1))
    found = measure(kernel, clock=kernel.now, repeats=30, calls_per_block=1)
    assert found.seconds.value == approx(0.05)
    assert (found.stopped, len(found.blocks)) == ("repeats", 30)
    assert max(block.seconds for block in found.blocks) == approx(0.2)  # nothing is dropped


@pytest.mark.parametrize(
    ("kernel_s", "least", "stopped", "calls"),
    [
        (20.0, {}, "budget", 2),  # too few for an interval
        (0.5, {"least_calls": 20}, "budget", 20),
        (0.001, {"least_s": 0.9}, "interval", None),
        (0.001, {"least_s": 3.0}, "budget", None),
        (0.5, {"least_calls": 20, "limit_s": 5}, "limit", 8),
        (7.0, {"limit_s": 5}, "limit", 1),  # and no warm-up
        (0.5, {"repeats": 100, "limit_s": 5}, "limit", 8),
    ],
)
def test_measure_reaches_its_least_calls_and_seconds_within_its_limit(
    kernel_s, least, stopped, calls
):
    kernel = Kernel(lambda call: kernel_s)
    found = measure(kernel, clock=kernel.now, **least)
    assert found.stopped == stopped and found.seconds.value == approx(kernel_s)
    assert calls in (None, steps_in(found.blocks))
    assert seconds_of(found.blocks) >= least.get("least_s", 0)
    assert calls != 2 or (kernel.calls == 4 and found.seconds.covers == "seen")


@pytest.mark.parametrize("kernel_s", [2e-6, 3e-4, 0.06])
def test_blocks_of_measure_make_the_synchronization_negligible(kernel_s):
    device = SimulatedDevice(Clock(), launch_s=1e-6, fence_s=2e-4)
    device.launch(9.0)  # from before

    def launch():
        device.launch(kernel_s)

    found = measure(launch, device.synchronize, clock=device.clock)
    assert found.first_call_s == approx(kernel_s + 1e-6 + 2e-4, rel=1e-6)
    assert found.seconds.value == approx(max(kernel_s, 1e-6), rel=0.012)
    single = measure(launch, device.synchronize, clock=device.clock, calls_per_block=1)
    assert single.seconds.value == approx(kernel_s + 1e-6 + 2e-4, rel=1e-6)
    assert {block.steps for block in single.blocks} == {1}
