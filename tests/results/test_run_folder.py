"""Folders of new results, which results of two machines never share."""

import errno
import fcntl
import json
import os
from unittest.mock import Mock

import pytest
from journal_lines import ENDED

from pomology.errors import PomologyError
from pomology.experiment.experiment import Experiment
from pomology.machine import snapshot
from pomology.results import journal, run

GIT = {"commit": "c" * 40, "dirty": False}
SNAPSHOT = {"chip": "Apple M9", "memory_bytes": 2**34, "python": "3.11.9", "git": GIT}
SNAPSHOT |= {"packages": {"torch": "2.13.0"}}


@pytest.fixture(autouse=True)
def machine(monkeypatch, tmp_path):
    """Changeable description of this machine, and a temporary checkout."""
    state = dict(SNAPSHOT)
    monkeypatch.setattr(run, "root", lambda: tmp_path)
    monkeypatch.setattr(snapshot, "snapshot", lambda: dict(state))
    power = {"power_source": "ac", "power_mode": None}
    monkeypatch.setattr(snapshot, "conditions", lambda: power | {"flags": []})
    return state


def set_up(name: str = "vae", **more) -> Experiment:
    return Experiment(name, article="003", devices="cpu", **more)


@pytest.mark.parametrize(("key", "value"), [("chip", "Apple M2 Ultra"), ("memory_bytes", 2**40)])
def test_a_run_belongs_to_one_machine(machine, tmp_path, key, value):
    run.check_machine(tmp_path)
    run.note_machine(tmp_path, "smoke")
    machine["memory_bytes"] = int(2**34 * 1.005)  # after a restart of the same machine
    run.check_machine(tmp_path)
    machine["cpu"] = {"family": 25, "model": 17, "stepping": 1}  # which older runs do not know
    run.check_machine(tmp_path)
    machine[key] = value
    with pytest.raises(PomologyError, match=rf"has {key} .*, but this machine has "):
        run.check_machine(tmp_path)


def test_a_run_is_not_continued_on_another_kind_of_cpu_of_the_same_name(machine, tmp_path):
    machine["cpu"] = {"family": 25, "model": 1, "stepping": 1, "max_mhz": 3000}
    run.note_machine(tmp_path, "smoke")
    machine["cpu"] = machine["cpu"] | {"max_mhz": 3100}
    run.check_machine(tmp_path)
    machine["cpu"] = machine["cpu"] | {"model": 17}
    with pytest.raises(PomologyError, match=r"has a CPU of .*'model': 1, .* is of .*'model': 17, "):
        run.check_machine(tmp_path)


SOFTWARE = {"python": "3.11.9", "packages": {"torch": "2.13.0"}}
SOFTWARE |= {"environment": {"OMP_NUM_THREADS": "4"}}


@pytest.mark.parametrize(
    ("changes", "threads", "words"),
    [
        ({"environment": {}}, 4, "OMP_NUM_THREADS 4, and this command has none"),
        (
            {"environment": {"OMP_NUM_THREADS": "1"}},
            4,
            "OMP_NUM_THREADS 4, and this command has 1",
        ),
        ({"packages": {"torch": "2.14.0"}}, 4, "torch 2.13.0, and this command has 2.14.0"),
        ({"python": "3.12.1"}, 4, "python 3.11.9, and this command has 3.12.1"),
        ({}, 2, "usable threads 4, and this command has 2"),
    ],
)
def test_a_run_is_not_continued_with_other_software_variables_or_threads(
    tmp_path, monkeypatch, changes, threads, words
):
    state = {"software": SOFTWARE, "threads": 4}
    monkeypatch.setattr(snapshot, "software", lambda: json.loads(json.dumps(state["software"])))
    monkeypatch.setattr(snapshot, "usable_threads", lambda: state["threads"])
    run.note_machine(tmp_path, "smoke", begins=True)
    run.check_machine(tmp_path)
    state |= {"software": SOFTWARE | changes, "threads": threads}
    run.check_machine(tmp_path)  # no case has begun
    run.note_machine(tmp_path, "smoke")  # a notebook's own process changes nothing
    state |= {"software": SOFTWARE, "threads": 4}
    journal.Journal(tmp_path / "vae.jsonl").end(ENDED)
    run.check_machine(tmp_path)
    state |= {"software": SOFTWARE | changes, "threads": threads}
    with pytest.raises(PomologyError) as refused:
        run.check_machine(tmp_path)
    assert str(refused.value).endswith(f"has cases with {words}; choose another RUN")
    (tmp_path / "vae.jsonl").unlink()
    run.note_machine(tmp_path, "smoke", begins=True)
    journal.Journal(tmp_path / "vae.jsonl").end(ENDED)
    run.check_machine(tmp_path)


def test_copies_of_runs_take_no_new_results(tmp_path):
    """A fresh clone has such a copy, `reference-cpu`, also on the machine that made it."""
    run.note_machine(tmp_path, "smoke")
    (tmp_path / "vae.jsonl.gz").touch()
    run.check_machine(tmp_path)
    (tmp_path / run.LOCK).unlink()  # neither git nor a shared zip has it
    with pytest.raises(PomologyError, match=r"is a copy of a run.* choose another RUN$"):
        run.check_machine(tmp_path)


REFUSED = [errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EPERM, errno.EACCES, errno.ESTALE]


@pytest.mark.parametrize("number", REFUSED)
def test_a_file_system_without_locks_is_a_line(tmp_path, monkeypatch, capsys, number):
    monkeypatch.setattr(fcntl, "flock", Mock(side_effect=OSError(number, "as planned")))
    run.note_machine(tmp_path, "smoke")
    for _ in range(2):  # the first time leaves the file, without which the folder is a copy
        run.check_machine(tmp_path)
        with run.locked(tmp_path):
            words = f"note: outputs/{tmp_path.name}/.lock cannot be locked: as planned; start no"
            assert words in capsys.readouterr().out


def test_a_lock_has_one_holder_and_ends_with_its_block(tmp_path):
    for _ in range(2):
        with run.locked(tmp_path), pytest.raises(PomologyError, match=r"is running there$"):
            run.locked(tmp_path).__enter__()


def test_a_refused_lock_where_others_are_granted_names_the_file_and_why(tmp_path, monkeypatch):
    """Of another user's file, and on some network volumes of one that is locked."""

    def refused(file, _kind):
        if os.path.samestat(os.fstat(file if isinstance(file, int) else file.fileno()), lock):
            raise OSError(errno.EACCES, "Permission denied")

    (tmp_path / run.LOCK).touch()
    lock = os.stat(tmp_path / run.LOCK)
    monkeypatch.setattr(fcntl, "flock", refused)
    words = "cannot be locked: Permission denied; another `pomology reproduce` is running there, or"
    with pytest.raises(PomologyError, match=words):
        run.locked(tmp_path).__enter__()


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_in_the_place_of_a_lock_makes_nobody_wait(tmp_path, capsys, make):
    make(tmp_path / run.LOCK)
    with run.locked(tmp_path):
        assert make is os.mkfifo or "cannot be locked: Is a directory" in capsys.readouterr().out


CHANGES = [{"chip": "other"}, {"packages": {"torch": "2.14.0"}}, {"profile": "smoke"}]
CHANGES += [{"git": GIT | {"commit": "d" * 40}}]


@pytest.mark.parametrize("changed", CHANGES)
def test_a_folder_has_one_profile_one_machine_and_one_commit(machine, tmp_path, changed):
    first = set_up()
    assert first.out.parent == tmp_path / "outputs" and first.out.name.startswith("lab-")
    assert (first.out / "machine.json").is_file()
    machine |= changed
    assert set_up("dcgan", profile=changed.get("profile", "quick")).out != first.out
    machine.pop("profile", None)
    machine |= SNAPSHOT
    assert set_up("siamese").out == first.out
    machine["git"] = GIT | {"dirty": True}  # a changed parameter cell
    assert set_up("siamese").out == first.out


def test_a_repeated_set_up_cell_measures_again_and_keeps_earlier_results(capsys):
    for number, size in enumerate([1, 1, 2]):
        experiment = set_up()
        with next(iter(experiment.cases([{"batch_size": size}]))) as case:
            case.metric("step_s", 1.0, "s")
        assert [record.config["batch_size"] for record in experiment.records] == [size], number
        assert list(experiment.cases([{"batch_size": size}])) == []
        assert "run the set-up cell and all below it again to repeat it" in capsys.readouterr().out
    assert [path.name for path in experiment.out.glob("*.jsonl")] == ["vae.jsonl"]
    earlier = [experiment.out / "earlier" / f"vae-{number}.jsonl" for number in (1, 2)]
    assert [journal.read(path).records[0].config["batch_size"] for path in earlier] == [1, 1]
    earlier[0].unlink()
    set_up()
    assert journal.read(earlier[1]).records[0].config == {"batch_size": 1}


def test_latest_finds_the_latest_folder_of_the_profile_with_one_of_the_notebooks(tmp_path):
    assert run.latest(["blas"], "quick") is None
    begun = {"one/blas": "quick", "two/blas": "quick", "three/vae": "quick", "four/blas": "smoke"}
    for number, (name, profile) in enumerate(begun.items()):
        place = tmp_path / "outputs" / f"{name}.jsonl"
        place.parent.mkdir(parents=True)
        place.touch()
        os.utime(place, (1000 + number, 1000 + number))
        (place.parent / "machine.json").write_text(json.dumps(SNAPSHOT | {"profile": profile}))
    assert run.latest(["blas"], "quick") == tmp_path / "outputs" / "two"


def test_results_with_another_framework_remain():
    place = run.by_hand("vae", "quick")
    run.note_machine(place, "quick")
    for framework in ("torch", "mlx"):
        journal.Journal(place / "vae.jsonl").end(ENDED | {"framework": framework})
    assert run.by_hand("vae", "quick", "mlx") == place
    for name, framework in (("vae.jsonl", "torch"), ("earlier/vae-1.jsonl", "mlx")):
        (record,) = journal.read(place / name).records
        assert record.framework == framework
