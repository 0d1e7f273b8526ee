"""Experiments in a test's folder, on a mocked idle machine."""

import functools

import pytest

from pomology.experiment.experiment import Experiment
from pomology.machine import snapshot

this_machine = functools.cache(snapshot.snapshot)


@pytest.fixture(autouse=True)
def snapshot_once(quiet_machine, monkeypatch):
    """Replace slow checks of the machine; its snapshot is taken once."""
    monkeypatch.setattr(snapshot, "snapshot", this_machine)


@pytest.fixture
def make(tmp_path):
    """Function that makes an experiment in this test's folder."""

    def make(name="vae", **changes) -> Experiment:
        settings = {"article": "003", "devices": "cpu", "budget_s": 0.1, "out": str(tmp_path)}
        return Experiment(name, **settings | changes)

    return make
