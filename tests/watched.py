"""A sampler in simulated time, and a chip whose work is known."""

import math
import types

from pomology.machine.sampler import Sampler


def drive(clock, times, before_sample=lambda: None, kind="cpu"):
    """Sample at these times, without the thread: what the thread does, to the digit."""
    watch = Sampler(kind, clock=clock)
    first, *within, last = times
    steps = [(first, watch._begin), *((time, watch._tick) for time in within), (last, watch._end)]
    for clock.now, step in steps:
        before_sample()
        step()
    return watch


def value(watch, name):
    return watch.metrics[name].value


def work_j(t_s):
    """Joules of 20 W that swing by 10 W every 8 s, from 0 on, by hand."""
    return 20 * t_s + 10 * 8 / (2 * math.pi) * (1 - math.cos(2 * math.pi * t_s / 8))


class FakeChip:
    """zeus_apple_silicon 1.1.0 as documented: work_j is of CPU and GPU, and 5 W of DRAM.

    untold: fields that this chip has not: None. Another name is an AttributeError, as in the
    library.
    """

    def __init__(self, clock, untold=("ane_mj",)):
        self.clock = clock
        self.untold = untold

    def get_cumulative_energy(self):
        work = work_j(self.clock())
        known = {"cpu_total_mj": int(1e3 * work * 0.25) + 10**9, "gpu_mj": int(1e3 * work * 0.75)}
        known |= {"dram_mj": int(1e3 * 5 * self.clock()), "ane_mj": 77, "gpu_sram_mj": 12345}
        return types.SimpleNamespace(**known | dict.fromkeys(self.untold))
