"""What the machine did while a block ran: mocked Macs, made-up Linux machines, real faults."""

import mmap
import multiprocessing
import os
import sys
import types

import psutil
import pytest
from macs import secrets_in
from watched import drive, power_w, put, value, work_j

from pomology.machine import memory as machine_memory
from pomology.machine import quiet, sampler, snapshot
from pomology.machine.sampler import Sampler
from pomology.measure.estimate import Estimate

PRESSURE = ("swapped_bytes", "compressed_bytes")


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_energy_of_an_apple_chip(apple, clock, device):
    apple()
    watch = drive(clock, [2 + 0.5 * tick for tick in range(21)], kind=device)
    expected_j = work_j(12) - work_j(2) + 5 * 10
    assert value(watch, "energy_j") == pytest.approx(expected_j, rel=1e-4)
    power = watch.metrics()["power_w"]
    assert power.value == pytest.approx(expected_j / 10, rel=1e-4)
    assert power.high / power.value - 1 == pytest.approx(2 * 0.01 / 10)  # two periods over 10 s
    watts = [value(watch, f"power_{rail}_w") for rail in ("cpu", "gpu", "dram")]
    assert watts == pytest.approx(
        [0.25 * (expected_j / 10 - 5), 0.75 * (expected_j / 10 - 5), 5], rel=1e-3
    )
    assert watch.rails == ["cpu", "gpu", "dram"]
    # The trace is the synthetic power, but for the steps of the samples.
    middles = [(sample.t_s + 2 - 0.25, sample.power_w) for sample in watch.samples[2:]]
    assert all(power == pytest.approx(power_w(t_s) + 5, rel=0.02) for t_s, power in middles)


def test_a_mac_s_highest_thermal_level_and_the_footprint_with_the_children_that_live(
    apple, clock, monkeypatch
):
    apple()
    levels = iter([0, 3, 2])
    monkeypatch.setattr(snapshot, "thermal_level", lambda: next(levels))
    monkeypatch.setattr(machine_memory, "live_children", lambda: [4, 5])
    watch = drive(clock, [0, 1, 2])
    assert watch.thermal_level == 3
    assert watch.thermal == {"before": {"level": 0}, "after": {"level": 2}}
    assert machine_memory.footprint()[0] == "physical footprint"
    assert value(watch, "footprint_peak_bytes") == 4 * 10**9


@pytest.mark.parametrize(
    ("folder", "pages", "flags"),
    [
        ("m1", [9_000 + 11_000, 60_000 + 80_000], ["swapping"]),
        ("m4-max", [0, 9_000 + 61_000], ["swapping"]),
        ("m2-ultra", [0, 0], []),
        ("rosetta", [100 + 200, 700 + 1300], []),
    ],
)
def test_what_a_mac_swaps_and_compresses(apple, clock, monkeypatch, folder, pages, flags):
    mac = apple(folder)

    def swap_memory():
        # psutil's sin and sout are every page-in and page-out of a Mac, and its swap may shrink while it swaps.
        decoy = 10**12 if clock.now else 0
        return types.SimpleNamespace(used=2**30 - int(clock.now) * 2**20, sin=decoy, sout=decoy)

    monkeypatch.setattr(psutil, "swap_memory", swap_memory)
    times = [0.5 * tick for tick in range(21)]
    watch = drive(clock, times, lambda: setattr(mac, "later", clock.now >= 10), "gpu")
    assert [watch.metrics()[name] for name in PRESSURE] == [
        Estimate(16384 * count, "B", n=21) for count in pages
    ]
    assert value(watch, "swap_bytes") == -10 * 2**20 and watch.flags == flags
    assert mac.asked.count(("vm_stat",)) == 2  # at the edges only
    assert secrets_in([watch.samples, watch.absent, watch.flags]) == []


def test_real_page_faults_are_those_of_the_block():
    pages = 3000
    with Sampler() as watch:
        memory = mmap.mmap(-1, pages * mmap.PAGESIZE)  # shared memory: no huge pages
        memory.write(bytes(pages * mmap.PAGESIZE))
    memory.close()
    assert 0.9 * pages <= value(watch, "page_faults") < 3 * pages
    assert value(watch, "page_ins") < pages


@pytest.mark.parametrize(
    ("seconds", "name", "moved", "flags"),
    [
        (2, "swapped_bytes", 10e6, []),
        (2, "swapped_bytes", 10e6 + 1, ["swapping"]),
        (100, "swapped_bytes", 100e6, []),  # no more than 1 MB a second
        (100, "compressed_bytes", 1e9 + 1, ["swapping"]),
        (2, "swap_bytes", 1e12, []),  # it may have been there before
    ],
)
def test_thresholds_of_swapping(linux, monkeypatch, clock, seconds, name, moved, flags):
    both = iter([{name: 7e12}, {name: 7e12 + moved}])
    monkeypatch.setattr(sampler, "swap_counters", lambda: next(both))
    assert [flag for flag in drive(clock, [0, seconds]).flags if flag != "paused"] == flags


def sensors(monkeypatch, chips):
    """From here on, psutil lists these: chip -> label -> °C."""
    listed = {
        chip: [types.SimpleNamespace(label=label, current=value) for label, value in each.items()]
        for chip, each in chips.items()
    }
    monkeypatch.setattr(psutil, "sensors_temperatures", lambda: listed, raising=False)


def test_temperature_and_clock_of_the_hottest_package_and_the_fastest_core(
    linux, clock, monkeypatch
):
    packages = {"Package id 0": 51.5, "Core 0": 83, "Package id 1": 49}
    sensors(monkeypatch, {"nvme": {"Composite": 90}, "coretemp": packages})
    assert value(drive(clock, [0, 1]), "temperature_c") == 51.5
    sensors(monkeypatch, {"k10temp": {"Tctl": 77, "Tdie": 57}})  # AMD's Tctl has an offset
    for number, kilohertz in enumerate((800_000, 3_400_000, 1_200_000)):
        put(linux / "cpu" / f"cpu{number}" / "cpufreq", scaling_cur_freq=kilohertz)
    watch = drive(clock, [0, 1])
    assert (value(watch, "temperature_c"), value(watch, "clock_hz")) == (57, 3.4e9)


def test_an_error_in_the_block_gets_out_and_the_thread_ends_and_wrong_use_is_refused():
    with pytest.raises(KeyError), Sampler() as watch:
        raise KeyError("mine")
    assert not watch._thread.is_alive() and "footprint_peak_bytes" in watch.metrics()
    with pytest.raises(ValueError, match="before its block has ended"):
        Sampler().metrics()


def test_a_source_that_fails_is_dropped_with_its_reason_and_the_others_go_on(
    linux, clock, monkeypatch
):
    sensors(monkeypatch, {"k10temp": {"Tdie": 50}})

    def sample():
        if clock.now == 3:
            monkeypatch.setattr(psutil, "sensors_temperatures", lambda: 1 / 0)

    watch = drive(clock, range(6), sample)
    assert watch.absent["temperature_c"].startswith("failed after 3 samples: ZeroDivisionError")
    assert watch.absent["power_w"] == "this machine shows no RAPL energy counters"
    assert watch.absent["compressed_bytes"] == "this system does not count it"
    rest = {"footprint_peak_bytes", "page_faults", "page_ins"}
    assert watch.metrics().keys() == rest | {"swap_bytes", "swapped_bytes"}
    assert [sample.temperature_c for sample in watch.samples] == [50, 50, 50, None, None, None]


@pytest.mark.parametrize(("used_s", "flags"), [(0.2, ["paused"]), (2.0, [])])
def test_a_late_sample_of_a_process_that_computed_nothing_was_a_stop(
    linux, clock, monkeypatch, used_s, flags
):
    monkeypatch.setattr(quiet, "own_s", lambda: used_s if clock.now >= 4 else 0.0)
    assert drive(clock, [0, 0.5, 1, 4, 4.5]).flags == flags


def hold(pipe, own, held):
    """A worker that holds `own` bytes, and reads all pages of what its parent holds."""
    mine = b"x" * own
    pipe.send(sum(held[place] for place in range(0, len(held), mmap.PAGESIZE)))
    pipe.recv()
    assert len(mine) == own


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux forks workers")
def test_pages_that_forked_workers_share_count_once():
    """A worker begins with the parent's 200 MB, and makes 60 MB of its own."""
    context = multiprocessing.get_context("fork")
    held = mmap.mmap(-1, 200 * 2**20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for place in range(0, len(held), mmap.PAGESIZE):
        held[place] = 1
    footprint = machine_memory.resident_memory()
    before = footprint()
    ours, theirs = context.Pipe()
    worker = context.Process(target=hold, args=(theirs, 60 * 2**20, held), daemon=True)
    worker.start()
    assert ours.recv() == len(held) // mmap.PAGESIZE
    assert 55 * 2**20 < footprint() - before < 120 * 2**20
    ours.send("end")
    # Ended, but nobody has waited for it: asking must not take its end away from whoever does.
    os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
    footprint()
    quiet.own_s()
    assert os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
    worker.join()
    assert footprint() < before + 20 * 2**20
