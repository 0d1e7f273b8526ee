"""Sustained load: it lasts as long as asked for, and says how long that was."""

import time
from types import SimpleNamespace

import pytest
from notebook_code import definitions
from records import metric, record

from pomology.measure.clock import Block
from pomology.views import throttling


def windows(*seconds):
    return [Block(1, each) for each in seconds]


@pytest.mark.parametrize(
    ("seconds", "first", "last"),
    [
        ([5.0] * 120, 12, 12),  # ten minutes: a minute each
        ([5.0] * 12, 6, 6),  # a minute: its halves
        ([5.0] * 12 + [1.0] * 60, 12, 60),  # two minutes of a machine that becomes faster
        ([1.0, 9.0], 1, 1),
        ([200.0, 200.0, 200.0], 1, 1),
    ],
)
def test_the_ends_of_a_load_are_minutes_or_halves(seconds, first, last):
    load = windows(*seconds)
    assert throttling.ends(load) == (load[:first], load[-last:])


def load(*seconds, repeat=0, **more):
    blocks = {"step_s": {"steady": [(1, each) for each in seconds]}}
    times = {"step_first_s": metric(seconds[0]), "rate_left": metric(0.9, unit="")}
    config = {"minutes": 1.0}
    return record("sustained_load", times, config, blocks=blocks, repeat=repeat, **more)


def test_the_duration_is_the_measured_one():
    said = throttling.duration_text([load(5.0, 5.0, 5.0)])
    assert said == (
        "That is the throughput of the last half as a share of the first half of a load whose "
        "timed steps lasted 15 s, on the Apple M9 CPU in PyTorch. A machine may take longer "
        "than this load to become hot. No temperature could be read."
    )
    assert "the last minute as a share" in throttling.duration_text([load(*[5.0] * 24)])
    repeats = [load(30.0, 31.0, repeat=0), load(30.0, 33.0, repeat=1)]
    assert "lasted 1:01 min to 1:03 min, on" in throttling.duration_text(repeats)
    assert throttling.duration_text([load(5.0, profile="smoke")]) == ""
    assert throttling.duration_text([load(5.0, status="error")]) == ""


@pytest.mark.parametrize(
    ("count", "part", "lasted"), [(3, "half", "15 s"), (24, "minute", "2:00 min")]
)
def test_the_axes_name_what_was_measured(count, part, lasted):
    drawn = throttling.figure(None, [load(*[5.0] * count)])
    (axis,) = drawn.axes
    assert axis.get_ylabel().replace("\n", " ") == f"% of the first {part}'s throughput"
    assert axis.get_xlabel() == f"minutes; the load lasted {lasted}"


def test_a_machine_that_becomes_faster_has_no_shorter_load():
    scope = definitions("sustained_load", window_s=0.05)
    steps, metrics = [], {}

    def train():
        time.sleep(0.02 if len(steps) < 11 else 0.001)
        steps.append(1)

    class Case(SimpleNamespace):
        def __getitem__(self, name):
            return {"minutes": 0.01}[name]

    def record_metric(name, value, unit=""):
        metrics[name] = getattr(value, "value", value)

    nothing = lambda *_: None  # noqa: E731
    backend = SimpleNamespace(synchronize=nothing)
    case = Case(backend=backend, watch=nothing, kernel=nothing, metric=record_metric)
    scope["trainer"].__globals__["trainer"] = lambda _: train
    scope["sustain"](case)
    assert metrics["duration_s"] == pytest.approx(0.6, abs=0.2)
    assert metrics["rate_left"] == pytest.approx(
        metrics["step_first_s"] / metrics["step_last_s"], rel=1e-6
    )
