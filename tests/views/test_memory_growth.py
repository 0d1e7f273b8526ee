"""Growth of memory per step: a leak is seen, and noise is none."""

from types import SimpleNamespace

import numpy as np
import pytest

from pomology.machine import memory
from pomology.measure.clock import Block, Part
from pomology.views import memory_growth

MB = 10**6


def traced(**columns):
    """Rows of 200 steps, whose counters are functions of the step; each has five page faults."""
    columns |= {"step": int, "page_faults": lambda step: 5 * step, "page_ins": lambda step: 0}
    nothing = lambda step: None  # noqa: E731
    return [
        tuple(columns.get(name, nothing)(step) for name in memory.TRACED) for step in range(200)
    ]


def metrics_of(**columns):
    return memory_growth.metrics(traced(**columns)[20:])


def test_a_leaking_device_a_flat_one_and_one_that_grows_by_steps():
    metrics = metrics_of(
        allocated_bytes=lambda step: 10**9 + 3 * MB * step,
        reserved_bytes=lambda step: 2 * 10**9,
        footprint_bytes=lambda step: 10**8,
    )
    leak = metrics["allocated_slope_bytes"]
    assert leak.value == pytest.approx(3 * MB) and leak.low > 0
    ends = [metrics[f"allocated_{end}_bytes"].value for end in ("start", "end")]
    assert ends == [1_060 * MB, 1_597 * MB]
    flat = metrics["reserved_slope_bytes"]
    assert flat.low <= 0 <= flat.high
    # A page more or less is not seen, where a framework counts bytes.
    assert metrics["footprint_slope_bytes"].high > 1000 * flat.high > 0
    faults = metrics["page_faults_slope"]
    assert faults.value == pytest.approx(5) and faults.low > 0
    by_steps = metrics_of(allocated_bytes=lambda step: 64 * MB * (step // 16))
    by_steps = by_steps["allocated_slope_bytes"]
    assert 0 < by_steps.low <= 4 * MB <= by_steps.high
    # Once in the whole trace is not enough to call it a growth.
    once = metrics_of(allocated_bytes=lambda step: 64 * MB * (step > 110))["allocated_slope_bytes"]
    assert once.low < 0 < once.high


def test_growth_is_noted_behind_the_warm_up_also_where_the_loop_fails():
    noted = {}
    part = Part("training", 200.0, warmup=[Block(19, 1.0)])
    clock = SimpleNamespace(parts={"training": part})
    case = SimpleNamespace(traced=traced(), clock=clock, metric=noted.__setitem__)
    with pytest.raises(MemoryError), memory_growth.noted(case):
        raise MemoryError
    assert noted == metrics_of()
    noted.clear()
    case.traced = case.traced[:1]
    with memory_growth.noted(case):
        pass
    assert noted == {}  # which is all warm-up


def random_walk(rng, steps, rho, per_step):
    noise = rng.standard_normal(steps + 300)
    for step in range(1, len(noise)):
        noise[step] += rho * noise[step - 1]
    return noise[300:] + per_step * np.arange(steps)


SERIES = {  # name -> a trace, and its growth a step
    "autocorrelated": lambda rng: (random_walk(rng, 300, 0.9, 0.02), 0.02),
    "wandering": lambda rng: (np.cumsum(rng.normal(0.02, 1, 300)), 0.02),
    "wandering, six values": lambda rng: (np.cumsum(rng.normal(0.02, 1, 6)), 0.02),
    "stairs": lambda rng: (np.floor((np.arange(300) + rng.uniform(0, 40)) / 40), 1 / 40),
    "sawtooth": lambda rng: ((np.arange(300) + rng.uniform(0, 70)) % 70 / 70, 0.0),
}


@pytest.mark.parametrize("name", SERIES)
def test_the_interval_of_a_slope_holds_the_truth_nine_times_in_ten(name):
    rng = np.random.default_rng(3)
    hits, draws = 0, 400
    for _ in range(draws):
        values, truth = SERIES[name](rng)
        found = memory_growth.slope(values, np.arange(len(values)))
        hits += found.low <= truth <= found.high
    assert hits / draws >= 0.90
