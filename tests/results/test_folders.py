"""Where notebooks that are run by hand leave their numbers, and where those which lay others together look for them."""

from __future__ import annotations

import json
import os
import re
from datetime import datetime

import pytest

from pomology.experiment.experiment import Experiment
from pomology.machine import snapshot
from pomology.results import folders, journal

GIT = {"commit": "c" * 40, "dirty": False}
SNAPSHOT = {
    "chip": "M2",
    "python": "3.11.9",
    "packages": {"torch": "2.13.0"},
    "git": GIT,
    "unknown": {},
}


@pytest.fixture(autouse=True)
def here(monkeypatch, tmp_path):
    """A checkout of its own, on a machine that can be changed."""
    state = dict(SNAPSHOT)
    monkeypatch.setattr(folders, "root", lambda: tmp_path)
    monkeypatch.setattr(snapshot, "snapshot", lambda: dict(state))
    monkeypatch.setattr(snapshot, "conditions", lambda: {"power_source": "ac", "flags": []})
    monkeypatch.setattr(folders, "_held", {})
    return state


@pytest.fixture
def at(monkeypatch):
    """Set the clock."""

    def at(time: str):
        class Clock(datetime):
            @classmethod
            def now(cls):
                return datetime.fromisoformat(time)

        monkeypatch.setattr(folders, "datetime", Clock)

    return at


def set_up(name: str = "vae", **more) -> Experiment:
    return Experiment(name, article="003", devices="cpu", **more)


def measure(experiment: Experiment, what: str = "one") -> None:
    with next(iter(experiment.cases([{"batch_size": what}]))) as case:
        case.metric("step_s", 1.0, "s")


def test_all_notebooks_of_a_day_share_a_folder(tmp_path, at):
    at("2026-11-21T09:05:07")
    first = set_up()
    assert (
        first.out == tmp_path / "outputs" / "lab-20261121-090507"
        and (first.out / "machine.json").is_file()
    )
    measure(first)
    at("2026-11-21T17:00:00")
    assert set_up("dcgan").out == first.out
    at("2026-11-22T09:00:00")
    assert set_up("dcgan").out == tmp_path / "outputs" / "lab-20261122-090000"


CHANGES = [
    {"chip": "other"},
    {"packages": {"torch": "2.14.0"}},
    {"git": GIT | {"commit": "d" * 40}},
]


@pytest.mark.parametrize("changed", [*CHANGES, {"profile": "smoke"}])
def test_a_folder_holds_one_profile_and_one_state_of_machine_and_kit(here, at, changed):
    at("2026-11-21T09:00:00")
    first = set_up()
    here |= changed
    second = set_up("dcgan", profile=changed.get("profile", "quick"))
    assert second.out != first.out and re.fullmatch(r"lab-20261121-\d{6}", second.out.name)
    here |= SNAPSHOT
    assert set_up("siamese").out == first.out, "the first that fits, whatever came between"


def test_a_changed_parameter_cell_is_told_and_needs_no_other_folder(here):
    first = set_up()
    assert folders.noted(first.out)["git"]["dirty"] is False
    here["git"] = GIT | {"dirty": True}
    second = set_up("dcgan")
    assert second.out == first.out and folders.noted(second.out)["git"]["dirty"] is True
    here["git"] = GIT
    assert folders.noted(set_up("siamese").out)["git"]["dirty"] is True, (
        "what was measured in between was not clean"
    )


def test_a_set_up_cell_that_is_run_again_measures_anew_and_loses_nothing(capsys):
    for lr, expected in enumerate(["one", "one", "two"]):
        experiment = set_up()
        measure(experiment, expected)
        assert [record.config["batch_size"] for record in experiment.records] == [expected], lr
        assert list(experiment.cases([{"batch_size": expected}])) == []
        assert "run the set-up cell again to measure it anew" in capsys.readouterr().out
    assert {path.name for path in experiment.out.glob("*.jsonl")} == {"vae.jsonl"}
    aside = [experiment.out / "earlier" / f"vae-{number}.jsonl" for number in (1, 2)]
    assert [journal.read(path).records[0].config["batch_size"] for path in aside] == ["one", "one"]


def test_a_second_kernel_leaves_the_first_one_its_journal(monkeypatch):
    """A copy of a notebook, open beside it: neither may write into the other's numbers."""
    measure(first := set_up())
    locks = folders._held
    monkeypatch.setattr(folders, "_held", {})  # as in a process of its own
    assert set_up().out != first.out and not (first.out / "earlier").exists()
    assert set_up("dcgan").out == first.out, "only this notebook is in use there"
    for lock in locks.values():
        lock.release()
    assert set_up().out == first.out, "its kernel has ended"
    assert [path.name for path in (first.out / "earlier").iterdir()] == ["vae-1.jsonl"]


def test_what_lays_others_together_takes_the_latest_folder_of_its_profile_that_has_them(tmp_path):
    assert folders.latest(["blas"], "quick") is None
    begun = [
        ("one/blas", "quick"),
        ("two/blas", "quick"),
        ("three/vae", "quick"),
        ("four/blas", "smoke"),
    ]
    for number, (name, profile) in enumerate(begun):
        place = tmp_path / "outputs" / f"{name}.jsonl"
        place.parent.mkdir(parents=True)
        place.touch()
        os.utime(place, (1000 + number, 1000 + number))
        (place.parent / "machine.json").write_text(json.dumps(SNAPSHOT | {"profile": profile}))
    assert folders.latest(["blas", "blas"], "quick") == tmp_path / "outputs" / "two"
