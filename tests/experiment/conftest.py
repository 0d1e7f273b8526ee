"""An experiment in the test's folder, on a machine on which nothing else runs."""

import functools

import fakes
import pytest

from pomology.experiment.experiment import Experiment
from pomology.machine import snapshot

this_machine = functools.cache(snapshot.snapshot)


@pytest.fixture(autouse=True)
def quiet_machine(monkeypatch):
    """Replace what takes seconds to find out; the machine is looked at once."""
    fakes.quiet_machine(monkeypatch)
    monkeypatch.setattr(snapshot, "snapshot", this_machine)


@pytest.fixture
def make(tmp_path):
    """Return a function that makes an experiment of a run in this test's folder."""

    def make(name="vae", **changes) -> Experiment:
        settings = {"article": "003", "devices": "cpu", "budget_s": 0.1, "out": str(tmp_path)}
        return Experiment(name, **settings | changes)

    return make
