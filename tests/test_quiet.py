"""What others use of the machine, and what a process may: with fakes of everything, and beside real neighbours."""

from __future__ import annotations

import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from pomology.devices.torch import TorchDevice
from pomology.experiment.experiment import Experiment
from pomology.machine import memory, quiet, snapshot
from pomology.machine.quiet import Edge


@pytest.fixture(autouse=True)
def left_alone(monkeypatch):
    """In place of the fixture that all other tests have: here others count."""
    monkeypatch.setattr(quiet, "WAIT_S", 0.0)


@pytest.fixture
def cgroups(monkeypatch, tmp_path):
    """cgroups(own, **files): from here on, /proc/self/cgroup says `own`, and /sys/fs/cgroup holds these files."""

    def become(own: str, **files: str) -> Path:
        (tmp_path / "cgroup").write_text(own)
        for name, text in files.items():
            path = tmp_path / "fs" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        monkeypatch.setattr(quiet, "PROCESS", tmp_path)
        monkeypatch.setattr(quiet, "CGROUPS", tmp_path / "fs")
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
        monkeypatch.setattr(psutil, "cpu_count", lambda logical=True: 8 if logical else 4)
        return tmp_path / "fs"

    return become


NEW, OLD = "0::/user/job\n", "5:cpuset:/\n4:cpu,cpuacct:/job\n1:name=systemd:/x\n0::/\n"
PERIOD = {"cpu,cpuacct/job/cpu.cfs_period_us": "100000\n"}


@pytest.mark.parametrize(
    ("own", "files", "threads"),
    [
        (NEW, {"user/job/cpu.max": "max 100000\n"}, 8),
        (NEW, {"user/job/cpu.max": "max 100000\n", "user/cpu.max": "250000 100000\n"}, 2),
        (NEW, {"user/job/cpu.max": "600000 100000\n"}, 6),
        (NEW, {"user/job/cpu.max": "50000 100000\n"}, 1),
        ("0::/host/path/of/a/container\n", {"cpu.max": "300000 100000\n"}, 3),
        ("0::/../../elsewhere\n", {"cpu.max": "300000 100000\n"}, 3),
        (OLD, {"cpu,cpuacct/job/cpu.cfs_quota_us": "-1\n"} | PERIOD, 8),
        (OLD, {"cpu,cpuacct/job/cpu.cfs_quota_us": "150000\n"} | PERIOD, 1),
        ("1:cpu:/\n", {"cpu/cpu.cfs_quota_us": "200000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 2),
        ("", {}, 8),
    ],
)
def test_threads_follow_the_quotas_of_the_cgroups_and_the_affinity(cgroups, monkeypatch, own, files, threads):
    cgroups(own, **files)
    assert quiet.usable_threads() == threads
    assert bool(quiet.quotas()) == (threads < 8)
    if not files:
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 5, 6}, raising=False)
        assert quiet.usable_threads() == 3
        monkeypatch.delattr(os, "sched_getaffinity")  # as on a Mac
        monkeypatch.setattr(os, "cpu_count", lambda: 10)
        assert quiet.usable_threads() == 10


def test_pytorch_takes_no_more_threads_than_can_run_and_gets_its_own_back(monkeypatch):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(4)
        monkeypatch.setattr(quiet, "usable_threads", lambda: 3)
        cpu = TorchDevice("cpu")
        assert (cpu.threads, torch.get_num_threads()) == (3, 3)
        for most, expected in ((1, 1), (2, 2), (9, 4)):
            cpu.limit_threads(most)
            assert cpu.threads == expected
        torch.set_num_threads(2)  # by a notebook of its own accord
        cpu.limit_threads(3)
        assert cpu.threads == 2
    finally:
        torch.set_num_threads(before)


# What others used between two edges


@pytest.fixture
def cores(monkeypatch):
    monkeypatch.setattr(psutil, "cpu_count", lambda logical=True: 2)
    monkeypatch.setattr(memory, "live_children", list)


IDLE = Edge(10.0, 500.0, 30.0, 2.0, 7.0, 0)


@pytest.mark.parametrize(
    ("wall_s", "busy_s", "own_s", "delay_s", "held_s", "stops", "flags"),
    [
        (10, 21.0, 20.0, 0.5, 0, 0, []),  # 0.1 of a core, less what the ticks may err by
        (10, 21.5, 20.0, 0.5, 0, 0, ["contended"]),
        (10, 19.0, 20.0, 0.0, 0, 0, []),  # the counters tick differently
        (0.1, 0.12, 0.1, 0.001, 0, 0, []),  # two ticks tell nothing
        (0.1, 0.20, 0.1, 0.0, 0, 0, ["contended"]),
        (0.02, 0.02, 0.02, 0.009, 0, 0, ["contended"]),  # shorter than the ticks: its threads had to wait
        (0.02, 0.02, 0.02, 0.001, 0, 0, []),
        (0.001, 0.0, 0.001, 0.0009, 0, 0, []),
        (0.1, 0.2, 0.2, 0.1, 0, 0, []),  # its own threads spin for each other, and left nothing to others
        (0.18, 0.2, 0.2, 0.17, 0, 0, []),  # nobody else used the processor
        (10, 20.0, 20.0, 5.0, 0, 0, []),  # more threads than cores wait for each other: nobody else was there
        (10, 10.0, 10.0, 0.0, 1.0, 0, ["paused"]),  # for its quota
        (10, 10.0, 10.0, 0.0, 0.1, 0, []),
        (10, 10.0, 10.0, 0.0, 0, 1, ["paused"]),
        (0, 0, 0, 0, 0, 0, []),
    ],
)
def test_what_others_did_between_two_edges(cores, wall_s, busy_s, own_s, delay_s, held_s, stops, flags):
    grown = (wall_s, busy_s, own_s, delay_s, held_s, stops)
    last = Edge(*(before + more for before, more in zip(IDLE, grown, strict=True)))
    found = quiet.between(IDLE, last)
    assert found[1] == flags
    assert found[0] == pytest.approx(max(0, busy_s - own_s) / wall_s if wall_s else 0, abs=0.5)
    # Where no system tells how long threads waited, as on a Mac, the ticks are all there is.
    told = quiet.between(IDLE._replace(delay_s=None), last._replace(delay_s=None))[1]
    assert told == ([] if wall_s == 0.02 else flags)


def test_threads_that_wait_for_their_own_workers_are_not_contended(cores, monkeypatch):
    last = Edge(10.1, 500.12, 30.1, 2.09, 7.0, 0)
    assert quiet.between(IDLE, last)[1] == ["contended"]
    monkeypatch.setattr(memory, "live_children", lambda: [77])
    assert quiet.between(IDLE, last)[1] == []


def test_what_a_quota_held_is_counted_in_either_form(cgroups):
    folder = cgroups(NEW, **{"user/job/cpu.max": "50000 100000\n", "user/job/cpu.stat": "throttled_usec 2500000\n"})
    assert quiet.edge().held_s == 2.5
    (folder / "user/job/cpu.stat").write_text("nr_throttled 3\nthrottled_time 1500000000\n")
    assert quiet.edge().held_s == 1.5


SPINNER = "print('busy', flush=True)\nwhile True: pass"


def test_a_neighbour_is_seen_in_a_tenth_of_a_second_and_a_stop_however_short():
    with subprocess.Popen([sys.executable, "-c", SPINNER], stdout=subprocess.PIPE) as neighbour:
        neighbour.stdout.readline()
        first = quiet.edge()
        time.sleep(0.15)
        load, flags = quiet.between(first, quiet.edge())
        neighbour.kill()
    assert flags == ["contended"] and load > 0.3
    first = quiet.edge()
    # SIGCONT comes to a process that was stopped; nobody is there to continue this one.
    os.kill(os.getpid(), signal.SIGCONT)
    assert "paused" in quiet.between(first, quiet.edge())[1]


def test_a_handler_of_ones_own_is_called_too_and_what_measures_nothing_has_none():
    program = "import signal\nfrom pomology.machine import quiet\nfrom pomology.runner import batch\n"
    program += "assert signal.getsignal(signal.SIGCONT) == signal.SIG_DFL"
    subprocess.run([sys.executable, "-c", program], check=True)
    called, before = [], signal.getsignal(signal.SIGCONT)
    try:
        for count in (1, 2):  # before the first look at the counters, and behind it
            signal.signal(signal.SIGCONT, lambda *given: called.append(given))
            first = [quiet.edge() for _ in range(3)][-1]
            os.kill(os.getpid(), signal.SIGCONT)
            assert quiet.edge().stops == first.stops + 1 and len(called) == count
    finally:
        signal.signal(signal.SIGCONT, before)


# Waiting


def test_waiting_for_quiet_is_bounded_told_and_not_repeated_in_vain(monkeypatch, tmp_path):
    """A neighbour who uses 1.2 cores from 100 s to 130 s and from 200 s on."""
    now = 100.0
    busy = lambda: 100 <= now < 130 or now >= 200  # noqa: E731
    state = {"power_source": "ac", "load": 1.0, "others": 1.2}
    monkeypatch.setattr(snapshot, "conditions", lambda: state | {"flags": ["busy"] * busy()})
    monkeypatch.setattr(quiet, "WAIT_S", 60.0)
    monkeypatch.setattr(quiet, "time", types.SimpleNamespace(monotonic=lambda: now))
    place, said = tmp_path / ".partial" / "quiet.json", []

    def sleep(seconds):
        nonlocal now
        now += seconds

    def waited_s(stops_at=1e9):
        begun = now
        found = quiet.wait(place, said.append, lambda seconds: sleep(seconds) or now >= stops_at)
        assert found["flags"] == ["busy"] * busy()
        return now - begun

    assert waited_s() == 30 and "which use 1.2 of" in said[0] and "(0 s of at most 60)" in said[0]
    assert waited_s() == 0 and len(said) == 30
    now = 200.0
    assert waited_s(stops_at=205) == 5  # somebody stopped the run: it was not in vain
    assert waited_s() == 60 and waited_s() == 0 and waited_s() == 0
    now = 150.0
    assert waited_s() == 0
    for expected in (60, 60, 60, 300 - 30 - 4 - 4 * 60, 0):
        now = 200.0
        assert waited_s() == expected
        now = 150.0
        assert waited_s() == 0
    assert json.loads(place.read_text()) == {"waited_s": 300.0, "in_vain": False}


def test_a_case_waits_but_not_in_smoke_and_leaves_others_the_cores_that_they_keep(monkeypatch, tmp_path):
    state = {"power_source": "ac", "load": 1.0, "others": 1.2, "flags": ["busy"]}
    monkeypatch.setattr(snapshot, "conditions", lambda: state)
    monkeypatch.setattr(quiet, "usable_threads", lambda: 3)
    waited = []
    monkeypatch.setattr(quiet, "wait", lambda place, say: waited.append(place) or state)
    before = torch.get_num_threads()
    try:
        for profile, threads in (("quick", 2), ("smoke", 3)):
            torch.set_num_threads(3)
            out = tmp_path / profile
            experiment = Experiment("vae", article="003", devices="cpu", profile=profile, out=str(out))
            (case,) = experiment.cases()
            with case:
                case.measure("step_s", lambda: None, budget_s=0.01)
            (record,) = experiment.records
            assert "busy" in record.flags and (record.threads, torch.get_num_threads()) == (threads, threads)
        assert waited == [tmp_path / "quick" / ".partial" / "quiet.json"]
    finally:
        torch.set_num_threads(before)


# Slow machines


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Make an experiment on a quiet machine; `canaries` are what its canary says in turn."""
    state = {"power_source": "ac", "load": 0.1, "others": 0.0, "flags": []}
    monkeypatch.setattr(snapshot, "conditions", lambda: state)
    monkeypatch.setattr(quiet, "PATIENCE", 0)

    def make(canaries=(), profile="quick", **more) -> Experiment:
        said = iter(canaries)
        monkeypatch.setattr(quiet, "canary", lambda: next(said) / 1000)
        about = {"article": "003", "devices": "cpu", "budget_s": 0.05, "out": str(tmp_path)}
        return Experiment("vae", profile=profile, **about | more)

    return make


def run(experiment: Experiment, numbers, body=lambda case: case.measure("step_s", lambda: None, budget_s=0.01)) -> list:
    begun = []
    for case in experiment.cases(number=numbers):
        begun.append(case["number"])
        with case:
            body(case)
    return begun


def shown(experiment: Experiment) -> dict:
    """Of each case, the canary behind it in ms, and whether it is flagged."""
    return {
        record.config["number"]: (round(1000 * record.canary["after_s"]), "slowed" in record.flags)
        for record in experiment.records
    }


def test_the_moment_behind_what_was_timed_is_not_held_against_it(make, monkeypatch):
    """A model that is given back beside one's own threads would look contended; what a case times by itself counts."""
    said = []
    monkeypatch.setattr(quiet, "between", lambda first, last: said.append(last.t_s - first.t_s) or (0.3, ["contended"]))
    measure = lambda case: case.measure("step_s", lambda: None, budget_s=0.01)  # noqa: E731
    bodies = (
        (lambda case: [case.watch_model(torch.nn.Linear(1, 1)), measure(case)], 1),
        (lambda case: [measure(case), time.sleep(quiet.SHORT_S)], 2),  # for a notebook's own clock, perhaps
        (lambda case: [case.watch(), case.raw("launch_s", [0.001])], 1),
        (lambda case: None, 0),
    )
    for number, (body, stretches) in enumerate(bodies):
        said.clear()
        run(experiment := make([100] * 2), [number], body)
        assert len(said) == stretches and ("contended" in experiment.records[-1].flags) == bool(stretches)


def test_a_case_beside_a_slow_canary_is_run_again_at_the_end_and_the_better_attempt_is_shown(make):
    # The first is found to be slow by what comes after it, the third at once; the third's second attempt is slower.
    experiment = make([120, 120, 100, 100, 118, 118, 100, 100, 130, 130])
    assert run(experiment, [1, 2, 3]) == [1, 2, 3, 1, 3]
    assert shown(experiment) == {1: (100, False), 2: (100, False), 3: (118, True)}
    lines = [json.loads(line) for line in experiment.journal.path.read_text().splitlines()]
    ends = [(line["config"]["number"], line["canary"]["after_s"]) for line in lines if line["event"] == "end"]
    assert ends == [(1, 0.12), (2, 0.1), (3, 0.118), (1, 0.1), (3, 0.13)], "both attempts are kept"
    # Another process of this run knows the best, and runs nothing again that was run twice.
    assert run(make([120, 120, 100, 100]), [1, 2, 3, 4]) == [4, 4] and shown(experiment)[4] == (100, False)
    assert run(make(), [1, 2, 3]) == []


def test_a_case_begins_behind_a_slow_moment_but_beside_a_slow_machine(make, monkeypatch):
    slept, clock = [], {name: getattr(time, name) for name in ("time", "perf_counter")}
    monkeypatch.setattr(quiet, "PATIENCE", 3)
    clock["sleep"] = lambda seconds: seconds and slept.append(seconds)
    monkeypatch.setattr("pomology.experiment.experiment.time", types.SimpleNamespace(**clock))
    # Before the second case it is slow twice, before the third for good; behind one nobody waits.
    experiment = make([100, 100, 150, 150, 101, 100, 150, 150, 150, 151, 150, 100, 150])
    assert run(experiment, [1, 2, 3]) == [1, 2, 3, 3] and slept == [quiet.MOMENT_S] * 5
    lines = [json.loads(line) for line in experiment.journal.path.read_text().splitlines()]
    ends = [(line["canary"]["before_s"], "slowed" in line["flags"]) for line in lines if line["event"] == "end"]
    assert ends == [(0.1, False), (0.101, False), (0.151, True), (0.1, False)]


def test_in_smoke_there_is_no_canary_and_a_second_attempt_that_breaks_loses_nothing(make):
    experiment = make(profile="smoke")
    assert run(experiment, [1]) == [1] and not experiment.records[0].canary
    experiment = make([100, 100, 120, 120, 100, 100, 100], out=str(experiment.out / "quick"))
    begun = []

    def body(case):
        begun.append(case["number"])
        if begun == [1, 2, 2]:
            raise KeyboardInterrupt
        case.metric("step_s", 1.0, "s")

    with pytest.raises(KeyboardInterrupt):
        run(experiment, [1, 2], body)
    assert {record.config["number"]: record.status for record in experiment.records} == {1: "ok", 2: "ok"}


@pytest.mark.parametrize(("scatter", "drift"), [(0.01, 0.0), (0.04, 0.0), (0.01, 0.13)])
def test_at_most_2_percent_of_rows_of_a_steady_machine_are_slowed_and_all_that_are_20_percent_off(scatter, drift):
    """300 cases with two canaries each; and with a neighbour for half of the time. drift: of a clock that goes down
    slowly, as an idle Xeon's was seen to do."""
    run_s = np.exp(np.random.default_rng(1).normal(np.linspace(0, drift, 300)[:, None], scatter, (300, 2)))
    assert np.mean([quiet.slowed(row, run_s) for row in run_s]) <= 0.02
    run_s[::2] *= 1.2
    rows = [quiet.slowed(row, run_s) for row in run_s]
    assert np.mean(rows[::2]) >= 0.98 and np.mean(rows[1::2]) <= 0.02


def test_on_a_machine_with_a_neighbour_that_comes_and_goes_only_what_is_slower_than_that_is_slowed():
    generator = np.random.default_rng(1)
    run_s = np.where(generator.random((300, 2)) < 0.5, 1.0, 1.4) * np.exp(generator.normal(0, 0.03, (300, 2)))
    assert np.mean([quiet.slowed(row, run_s) for row in run_s]) <= 0.02
    run_s[:30] *= 2
    assert np.mean([quiet.slowed(row, run_s) for row in run_s[:30]]) >= 0.98


def test_a_canary_is_one_fixed_piece_of_work_of_20_ms():
    start_s = time.perf_counter()
    found = quiet.canary()
    assert 0 < found < time.perf_counter() - start_s and time.perf_counter() - start_s >= quiet.CANARY_S


def test_what_takes_five_times_its_budget_ends_with_what_it_has(make, monkeypatch):
    def slow(case):
        for _ in case.steps(range(1000), ready=False):
            time.sleep(0.06)
        case.measure("kernel_s", lambda: time.sleep(0.06), budget_s=0.01, limit_s=0.05)

    assert make().limit_s == 10 and make(budget_s=4).limit_s == 20
    monkeypatch.setattr("pomology.experiment.experiment.LIMIT_LEAST_S", 0.0)
    experiment = make([100] * 4)
    start_s = time.perf_counter()
    run(experiment, [1], slow)
    (record,) = experiment.records
    assert record.status == "ok" and "cut-short" in record.flags and time.perf_counter() - start_s < 20  # not 120
    assert record.metrics["step_s"].value >= 0.06 and record.metrics["kernel_s"].value >= 0.06
    assert make(profile="article", out=str(experiment.out / "article")).limit_s == float("inf")
    run(quick := make([100] * 4, budget_s=100, out=str(experiment.out / "quick")), [1])
    assert "cut-short" not in quick.records[0].flags


# What a record was made with


def test_every_record_names_its_software_and_a_run_keeps_what_each_name_means(make, monkeypatch):
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    monkeypatch.setenv("PYTORCH_KERNEL_CACHE_PATH", f"{Path.home()}/cache")
    monkeypatch.setenv("POMOLOGY_SECRET", "x")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/tmp/torchinductor_zebedee")  # PyTorch sets it by itself
    run(first := make([100] * 2), [1])
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    run(second := make([100] * 2), [2])
    assert make().software == second.software
    names = [record.software for record in first.records]
    assert len(set(names)) == 2 and all(len(name) == 12 for name in names)
    known = json.loads((first.out / "machine.json").read_text())["software"]
    assert list(known) == names and known[names[0]]["threads"] == torch.get_num_threads()
    environments = [known[name]["environment"] for name in names]
    assert [one["OMP_WAIT_POLICY"] for one in environments] == ["PASSIVE", "ACTIVE"]
    assert environments[0]["PYTORCH_KERNEL_CACHE_PATH"] == "~/cache" and "POMOLOGY_SECRET" not in environments[0]
    assert "zebedee" not in str(environments)
    # The package's version; PyTorch's own may say more, as 2.13.0+cu130.
    assert known[names[0]]["packages"]["torch"] == importlib.metadata.version("torch")
    assert {"git", "python"} <= known[names[0]].keys()
