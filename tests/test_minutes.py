"""MINUTES: whether a run ends in time on machines of any speed, with what first; in simulated time."""

import itertools
import math
import random

import fakes
import pytest

from pomology.runner import notebooks, plan, turns

KIT = plan.jobs("quick", {"out": "x"}, repeats=plan.FILL)


def simulated(minutes: float, speed: float, failing: frozenset[str] = frozenset(), seed: int = 0):
    """A run of the kit's own notebooks: when it and its first table ended, in seconds, and what ran.

    The machine takes `speed` times what notebooks state, each of which is off by up to 1.7 times, in four cases.
    """
    clock, draw, ran, first_s = fakes.Clock(), random.Random(seed), [], math.inf
    turn = turns.Turns(KIT, "quick", minutes, clock=lambda: clock.now)
    off = {job.notebook.name: draw.uniform(0.6, 1.7) for job in KIT}
    for job in turn:
        begun_s, seconds, late = clock.now, speed * job.notebook.seconds["quick"] * off[job.notebook.name], False
        if job.notebook.name in failing:
            clock.pass_s(speed)
            turn.ended(job, speed, well=False)
            continue
        clock.pass_s(0.3 * seconds)
        for _ in range(0 if job.notebook.after else 4):
            late = late or clock.now > turn.late_s
            clock.pass_s(0 if late else 0.175 * seconds)
        if clock.now > turn.ends_s:  # where the runner ends the kernel
            clock.now, late = turn.ends_s, True
        turn.ended(job, clock.now - begun_s, well=not late, late=late)
        ran.append(job)
        if len(ran) % 3 == 1:
            turn.page_s = 3 * speed
            clock.pass_s(turn.page_s)
            first_s = min(first_s, clock.now)
    clock.pass_s(4 * speed)
    return clock.now, first_s, ran


SOON = ("vae", "model_sizes", "gpt2_pretraining_torch", "mlp", "device_check", "resnet50")  # by their metadata


@pytest.mark.parametrize("speed", [0.3, 0.6, 1, 2, 4])
def test_a_run_ends_in_time_however_fast_the_machine_is_and_whatever_fails(speed):
    names = sorted({job.notebook.name for job in KIT} - {"vae"})
    for minutes, seed in itertools.product((3, 4, 5, 8, 10, 15, 20, 30), range(3)):
        failing = frozenset(random.Random(seed).sample(names, 12)) if seed else frozenset()
        ended_s, first_s, ran = simulated(minutes, speed, failing, seed)
        assert 0.8 < ended_s / (60 * minutes) < 1.2, (minutes, seed)
        assert first_s < 60 * max(1, speed) and len({job.label for job in ran}) == len(ran), (minutes, seed)
        assert ran[0].notebook.name == SOON[0], (minutes, seed)
        assert "summary" in failing or ran[-1].notebook.name == "summary", (minutes, seed)


def test_each_article_has_a_table_before_any_has_two_and_repeats_come_behind_all_else():
    known = {notebook.name: notebook for notebook in notebooks.notebooks()}
    articles = {notebook.article for notebook in known.values()} - {"kit"}
    assert sorted(known[name].article for name in SOON) == sorted(articles)
    *_, ran = simulated(30, 0.5)
    first = [job for job in ran if not job.repeat and not job.notebook.after]
    assert tuple(job.label for job in first[: len(SOON)]) == SOON
    assert {job.notebook.name for job in first} == {name for name in known if not known[name].after}
    assert ran.index(first[-1]) < min(ran.index(job) for job in ran if job.repeat)
    assert (
        turns.Turns(KIT, "quick", 3, clock=lambda: 0.0).left_out().items()
        >= {
            "mlp": "takes about 50 s here, and less was left",
            "costs": "too little of what it shows was measured",
            "ceilings (again, at the end)": "its first turn was left out",
        }.items()
    )
