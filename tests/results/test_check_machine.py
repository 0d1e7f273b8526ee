"""Numbers of two machines never stand in one run's folder."""

import pytest

from pomology.errors import PomologyError
from pomology.machine import snapshot
from pomology.results import folders


@pytest.fixture(autouse=True)
def here(monkeypatch):
    """This machine, which can be changed."""
    machine = {
        "chip": "Apple M9",
        "memory_bytes": 2**34,
        "processor": {"L2 cache": "2 MiB"},
        "python": "3.11.9",
    }
    monkeypatch.setattr(snapshot, "snapshot", lambda: dict(machine))
    monkeypatch.setattr(snapshot, "conditions", lambda: {"power_source": "ac"})
    return machine


@pytest.mark.parametrize(
    ("key", "value"),
    [("chip", "Apple M2 Ultra"), ("memory_bytes", 2**40), ("processor", {"L2 cache": "1 MiB"})],
)
def test_a_run_belongs_to_one_machine(here, tmp_path, key, value):
    folders.check_machine(tmp_path)
    folders.note_machine(tmp_path, "smoke")
    here["memory_bytes"] = int(2**34 * 1.005)  # after a start of the same machine
    folders.check_machine(tmp_path)
    here[key] = value
    with pytest.raises(PomologyError, match=r"was measured on another machine .*, here "):
        folders.check_machine(tmp_path)


def test_numbers_of_unknown_origin_and_copies_are_not_carried_on(tmp_path):
    """As a fresh clone has `reference-cpu`, also on the machine that made it, and as a shared zip is unpacked."""
    (tmp_path / "vae.jsonl.gz").touch()
    with pytest.raises(PomologyError, match=r"has numbers, but no machine\.json that says whose"):
        folders.check_machine(tmp_path)
    folders.note_machine(tmp_path, "smoke")
    with pytest.raises(
        PomologyError, match=r"is a copy of a run, not one of this checkout; choose another RUN$"
    ):
        folders.check_machine(tmp_path)
    (tmp_path / folders.LOCK).touch()
    folders.check_machine(tmp_path)
