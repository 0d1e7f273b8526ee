"""First launches: what is timed, with a device that tests command; and for real on the CPU."""

from __future__ import annotations

import contextlib

import pytest
from fakes import Clock

from pomology.errors import PomologyError
from pomology.measure import calls
from pomology.models import launches


class Backend:
    """Starting takes 10 s, compiling 2 s, a first launch 0.5 s, a later one 0.1 s; simulated."""

    def __init__(self, late: bool, own: bool):
        self.compiles_at_launch, self.has_own, self.clock = late, own, Clock()
        self.events: list[str] = []

    @contextlib.contextmanager
    def context(self):
        self.events.append("scope")
        yield

    def precisions(self):
        self.clock.pass_s(10)
        self.events.append("started")

    def synchronize(self):
        self.clock.pass_s(0.01)

    def smallest_kernel(self, own=True):
        mine = own and self.has_own
        words = "a kernel" if mine else "an addition"
        self.clock.pass_s(2 if mine and not self.compiles_at_launch else 0)

        def launch():
            first = words not in self.events
            self.clock.pass_s(2 if mine and self.compiles_at_launch and first else 0)
            self.clock.pass_s(0.5 if first else 0.1)
            self.events.append(words)

        return launch, words


@pytest.mark.parametrize(
    ("late", "own", "cold_s", "compile_s"),
    [
        (False, True, 0.51, 2.01),  # MPS: compiled before, so apart
        (False, False, 0.51, None),  # CUDA and a processor: nothing to compile
        (
            True,
            True,
            0.51,
            2.51,
        ),  # MLX on Metal: the addition cold, one's own compiled and launched in one
        (True, False, 0.51, None),
    ],
)
def test_a_cold_launch_is_the_first_and_nothing_else(late, own, cold_s, compile_s):
    backend = Backend(late, own)
    found = launches.first(backend, backend.clock)
    assert found["launch_cold_s"] == pytest.approx(cold_s)
    assert found.get("compile_s") == (compile_s and pytest.approx(compile_s))
    assert backend.events[:2] == ["scope", "started"]  # before any launch


def test_cold_launches_are_made_in_processes_of_their_own():
    (found,) = launches.cold("mlx", "cpu", 1)
    assert set(found) == {"launch_cold_s"} and 0 < found["launch_cold_s"] < 60
    what = "the process of a first launch on nonsense ended with status 1"
    with pytest.raises(PomologyError, match=rf"^{what}: \S") as error:
        launches.cold("mlx", "nonsense", 1)
    assert "\n" not in str(error.value)


def test_a_pause_before_each_block_is_not_timed():
    clock, pauses = Clock(), []
    settings = {
        "calls_per_block": 1,
        "repeats": 7,
        "warmup_calls": 0,
        "warmup_s": 0,
        "clock": clock,
    }
    found = calls.measure(
        lambda: clock.pass_s(0.003),
        before=lambda: (pauses.append(1), clock.pass_s(0.2)),
        **settings,
    )
    assert len(pauses) == 8 and found.first_call_s == pytest.approx(0.003)  # the first call, too
    assert [block.seconds for block in found.blocks] == pytest.approx([0.003] * 7)
