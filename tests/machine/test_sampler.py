"""Sampling during a block: on mocked Macs, on mocked Linux machines, and of real processes."""

import mmap
import multiprocessing
import os
import types

import psutil
import pytest
from macs import secrets_in
from watched import drive, value, work_j

from pomology.machine import memory, other_programs, sampler, snapshot
from pomology.machine import memory as machine_memory
from pomology.machine.energy import Absent
from pomology.machine.sampler import Sampler
from pomology.measure.estimate import Estimate

PRESSURE = ("swapped_bytes", "compressed_bytes")


def test_energy_temperature_and_clock_of_an_nvidia_gpu(nvidia, clock):
    nvidia()
    watch = drive(clock, range(11), kind="gpu")
    assert watch.rails == ["gpu"]
    assert value(watch, "power_w") == pytest.approx(work_j(10) / 10, abs=0.001)
    assert watch.metrics["temperature_c"] == Estimate(70, "°C", n=11)
    mean_hz = (5 * 1980 + 6 * 1500) / 11 * 1e6
    assert watch.metrics["clock_hz"] == Estimate(pytest.approx(mean_hz), "Hz", n=11)


def test_a_mac_s_highest_thermal_level_and_its_footprint_with_running_children(
    apple, clock, monkeypatch
):
    apple()
    levels = iter([0, 3, 2])
    monkeypatch.setattr(snapshot, "thermal_level", lambda: next(levels))
    monkeypatch.setattr(machine_memory, "live_children", lambda: [4, 5])
    watch = drive(clock, [0, 1, 2])
    assert watch.thermal_level == 3
    assert [sample.thermal_level for sample in watch.samples] == [0, 3, 2]
    assert value(watch, "footprint_peak_bytes") == 4 * 10**9


@pytest.mark.parametrize(
    ("folder", "pages", "flags"),
    [
        ("m1", [9_000 + 11_000, 60_000 + 80_000], ["swapping"]),
        ("m4-max", [0, 9_000 + 61_000], ["swapping"]),
        ("m2-ultra", [0, 0], []),
    ],
)
def test_swapping_and_compression_on_a_mac(apple, clock, monkeypatch, folder, pages, flags):
    mac = apple(folder)

    def swap_memory():
        # On a Mac psutil's sin and sout count all page-ins and page-outs. Swap in use may shrink
        # while the Mac swaps.
        decoy = 10**12 if clock.now else 0
        return types.SimpleNamespace(used=2**30 - int(clock.now) * 2**20, sin=decoy, sout=decoy)

    monkeypatch.setattr(psutil, "swap_memory", swap_memory)
    times = [0.5 * tick for tick in range(21)]
    watch = drive(clock, times, lambda: setattr(mac, "later", clock.now >= 10), "gpu")
    expected = [Estimate(16384 * count, "B", n=21) for count in pages]
    assert [watch.metrics[name] for name in PRESSURE] == expected
    assert value(watch, "swap_bytes") == -10 * 2**20 and watch.flags == flags
    assert mac.asked.count(("vm_stat",)) == 2  # at the edges only
    assert secrets_in([watch.samples, watch.absent, watch.flags]) == []


@pytest.mark.parametrize(
    ("seconds", "name", "moved", "flags"),
    [
        (2, "swapped_bytes", 10e6 + 1, ["swapping"]),
        (100, "swapped_bytes", 100e6, []),  # no more than 1 MB/s
        (100, "compressed_bytes", 1e9 + 1, ["swapping"]),
        (2, "swap_bytes", 1e12, []),  # swap in use alone is no traffic
    ],
)
def test_thresholds_of_swapping(linux, monkeypatch, clock, seconds, name, moved, flags):
    both = iter([{name: 7e12}, {name: 7e12 + moved}])
    monkeypatch.setattr(sampler, "swap_counters", lambda: next(both))
    assert drive(clock, [0, seconds]).flags == flags


def test_real_page_faults_are_those_of_the_block():
    pages = 3000
    with Sampler() as watch:
        memory = mmap.mmap(-1, pages * mmap.PAGESIZE)  # shared memory: no huge pages
        memory.write(bytes(pages * mmap.PAGESIZE))
    memory.close()
    assert 0.9 * pages <= value(watch, "page_faults") < 3 * pages
    assert value(watch, "page_ins") < pages


def test_a_failing_source_is_absent_with_its_reason_and_the_others_continue(nvidia, clock):
    nvml = nvidia()

    def sample():
        if clock.now == 3:
            nvml.nvmlDeviceGetTemperature = lambda *asked: 1 / 0

    watch = drive(clock, range(6), sample, "gpu")
    assert watch.absent["temperature_c"].startswith("failed after 3 samples: ZeroDivisionError")
    rest = {"footprint_peak_bytes", "page_faults", "page_ins", "swap_bytes", "swapped_bytes"}
    rest |= {f"{name}_load{ending}" for name in ("memory", "gpu") for ending in ("", "_peak")}
    assert watch.metrics.keys() - {"cpu_load", "cpu_load_peak"} == rest | {"clock_hz", "power_w"}
    assert [sample.temperature_c for sample in watch.samples] == [67, 68, 69, None, None, None]


CLOCKS = [("CLOCK_MONOTONIC_RAW", "CLOCK_UPTIME_RAW"), ("CLOCK_BOOTTIME", "CLOCK_MONOTONIC")]


@pytest.mark.parametrize(("always", "awake"), CLOCKS, ids=["macos", "linux"])
def test_sleep_is_what_one_clock_counts_and_the_other_does_not(monkeypatch, always, awake):
    clocks = types.SimpleNamespace(**{always: 9000.0, awake: 5400.0}, clock_gettime=float)
    monkeypatch.setattr(sampler, "time", clocks)
    assert sampler.asleep_s() == 3600


@pytest.mark.parametrize(("slept_s", "flags"), [(0.5, []), (3600.0, ["slept"])])
def test_sleep_of_the_machine_is_a_flag(clock, monkeypatch, slept_s, flags):
    """The clock of the samples stands still meanwhile."""
    monkeypatch.setattr(sampler, "asleep_s", lambda: 7e5 + slept_s * (clock.now >= 1))
    assert drive(clock, [0, 0.5, 1, 1.5]).flags == flags


@pytest.mark.skipif(not hasattr(os, "waitid"), reason="macOS has no waitid")
def test_listing_children_leaves_their_exit_status_to_the_waiting_parent():
    worker = multiprocessing.get_context("fork").Process(target=str)
    worker.start()
    os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
    assert memory.live_children() == [worker.pid]
    other_programs.process_cpu_s()
    assert os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
    worker.join()
    assert memory.live_children() == []


def test_a_mac_without_answers_has_no_footprint_swap_and_thermal_level(apple, monkeypatch):
    level = snapshot.thermal_level
    apple().says[("vm_stat",)] = None
    with pytest.raises(Absent, match=r"^vm_stat did not answer$"):
        sampler.swap_counters()

    class LibSystem:
        proc_pid_rusage = notify_register_check = lambda self, *given: -1

    monkeypatch.setattr(machine_memory.ctypes, "CDLL", lambda *given: LibSystem())
    with pytest.raises(OSError, match=r"^proc_pid_rusage failed$"):
        machine_memory.footprint()
    monkeypatch.setattr(snapshot, "thermal_level", level)
    assert snapshot.thermal_level() is None
