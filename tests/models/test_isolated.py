"""Function calls in a process of their own, which may end in any way."""

import signal

import pytest

from pomology.errors import PomologyError
from pomology.models import isolated

# `os:kill` of the process itself needs its id, so it raises a signal.
ENDS = {
    signal.SIGABRT: "by SIGABRT",
    signal.SIGKILL: "by SIGKILL",
    getattr(signal, "SIGRTMIN", 0) + 6: "by signal ",  # a real-time signal without a name
}


@pytest.mark.parametrize("number", [number for number in ENDS if number > 6])
def test_the_signal_that_ended_a_call_is_in_its_error(number):
    with pytest.raises(PomologyError, match=f"^MLX ended {ENDS[number]}"):
        isolated.call("MLX", "signal:raise_signal", number)


def test_a_call_returns_its_result_or_the_last_exception():
    assert isolated.call("Python", "math:hypot", 3.0, 4.0) == 5.0
    with pytest.raises(PomologyError, match="ended with status 1: ValueError: math domain error"):
        isolated.call("Python", "math:sqrt", -1.0)
