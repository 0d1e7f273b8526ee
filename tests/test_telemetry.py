"""Meters are faked at the level of their libraries and files; children, page faults and foreign load are real ones."""

import contextlib
import json
import math
import mmap
import multiprocessing
import os
import subprocess
import sys
import threading
import time
import types
from pathlib import Path

import pytest

from pomology import machine, telemetry
from pomology.telemetry import Telemetry


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def linux(monkeypatch, tmp_path):
    """A PC without any meter or sensor."""
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(telemetry, "POWERCAP", tmp_path / "powercap")
    monkeypatch.setattr(telemetry, "HWMON", tmp_path / "hwmon")
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tmp_path


def drive(watch, clock, times, before_sample=lambda: None):
    """Sample at these times, without the thread: what the thread does, to the digit."""
    watch._open()
    for clock.now in (times := list(times)):
        before_sample()
        watch._sample(edge=clock.now in (times[0], times[-1]))
    watch._close()
    return watch


def put(folder, **files):
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(f"{text}\n")


# --- Apple


def power_w(t_s):
    """A synthetic load: 20 W, swinging by 10 W every 8 s."""
    return 20 + 10 * math.sin(2 * math.pi * t_s / 8)


def work_j(t_s):
    """The integral of power_w from 0 on, by hand."""
    return 20 * t_s + 10 * 8 / (2 * math.pi) * (1 - math.cos(2 * math.pi * t_s / 8))


class FakeChip:
    """zeus_apple_silicon on a chip that shares work_j between CPU and GPU, and 5 W of DRAM; it tells no ANE."""

    def __init__(self, clock, events=None):
        self.clock, self.events = clock, events

    def get_cumulative_energy(self):
        if self.events is not None:
            self.events.append("energy")
        work = work_j(self.clock())
        return types.SimpleNamespace(
            cpu_total_mj=int(1e3 * work * 0.25) + 10**9,  # the counters have run before
            gpu_mj=int(1e3 * work * 0.75),
            dram_mj=int(1e3 * 5 * self.clock()),
            ane_mj=None,
            gpu_sram_mj=12345,
        )


@pytest.fixture
def apple(monkeypatch):
    def install(monitor):
        module = types.ModuleType("zeus_apple_silicon")
        module.AppleEnergyMonitor = monitor
        monkeypatch.setitem(sys.modules, "zeus_apple_silicon", module)
        monkeypatch.setattr(sys, "platform", "darwin")
        monkeypatch.setattr(telemetry.ctypes, "CDLL", FakeLibSystem)
        monkeypatch.setattr(machine, "thermal_level", lambda: 1)

    return install


class FakeLibSystem:
    """macOS's proc_pid_rusage: 3 GB for this process, 1 GB for others, and none for process 4 (it has ended)."""

    def __init__(self, name, use_errno=False):
        pass

    def proc_pid_rusage(self, pid, flavor, buffer):
        assert flavor == 0
        info = buffer._obj
        info.resident, info.footprint = 17, (3 if pid == os.getpid() else 1) * 10**9
        telemetry.ctypes.set_errno(3)  # ESRCH
        return -1 if pid == 4 else 0


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_energy_of_an_apple_chip(apple, clock, device):
    apple(lambda: FakeChip(clock))
    watch = drive(Telemetry(device=device, clock=clock), clock, [2 + 0.5 * tick for tick in range(21)])
    expected_j = work_j(12) - work_j(2) + 5 * 10
    metrics = watch.metrics()
    assert metrics["energy_j"]["value"] == pytest.approx(expected_j, rel=1e-4)
    watts = pytest.approx(expected_j / 10, rel=1e-4)
    assert metrics["power_w"] == {"value": watts, "unit": "W", "low": None, "high": None, "n": 21, "how": "measured"}
    assert watch.rails == ["cpu", "gpu", "dram"]
    # The trace is the synthetic power, but for the steps of the samples.
    middles = [(sample.t_s + 2 - 0.25, sample.power_w) for sample in watch.samples[1:]]
    assert all(power == pytest.approx(power_w(t_s) + 5, rel=0.02) for t_s, power in middles)
    assert watch.samples[0].power_w is None


def test_a_mac_tells_footprint_and_thermal_level_but_no_temperature(apple, clock, monkeypatch):
    apple(lambda: FakeChip(clock))
    levels = iter([0, 0, 3, 2])  # the first answer only shows that there is one
    monkeypatch.setattr(machine, "thermal_level", lambda: next(levels))
    monkeypatch.setattr(telemetry, "_live_children", lambda: [4, 5])
    watch = drive(Telemetry(clock=clock), clock, [0, 1, 2])
    assert watch.thermal_level == 3
    assert "thermal_level" not in watch.metrics()
    assert watch.footprint_source == "physical footprint"
    assert watch.metrics()["footprint_peak_bytes"]["value"] == 4 * 10**9
    assert watch.absent == {"temperature_c": "macOS has no public temperature sensor"}
    # 16 bytes of UUID, then ten numbers of 8 bytes; ri_phys_footprint is the eighth.
    assert (telemetry.ctypes.sizeof(telemetry._RusageInfo), telemetry._RusageInfo.footprint.offset) == (96, 72)
    assert json.loads(json.dumps([watch.metrics(), watch.samples]))


def test_why_a_mac_has_no_energy(apple, clock, monkeypatch):
    def refuse():
        raise RuntimeError("no IOReport")

    apple(refuse)
    assert "no IOReport" in telemetry.meters()[1]["apple"]
    empty = dict.fromkeys(("cpu_total_mj", "gpu_mj", "dram_mj", "ane_mj"))
    apple(lambda: types.SimpleNamespace(get_cumulative_energy=lambda: types.SimpleNamespace(**empty)))
    assert telemetry.meters() == ([], {"apple": "macOS's energy counters are empty on this chip"})
    monkeypatch.setitem(sys.modules, "zeus_apple_silicon", None)
    watch = drive(Telemetry(clock=clock), clock, [0, 2])
    assert watch.absent["power_w"] == watch.absent["energy_j"] == "zeus-apple-silicon is not installed"
    assert not {"power_w", "energy_j"} & watch.metrics().keys()


# --- NVIDIA


class FakeNvml(types.ModuleType):
    NVML_TEMPERATURE_GPU = 0

    class NVMLError(Exception):
        pass

    def __init__(self, clock, counter=True, power=True, driver=True):
        super().__init__("pynvml")
        self.clock, self.counter, self.power, self.driver = clock, counter, power, driver
        self.chosen = []

    def nvmlInit(self):
        if not self.driver:
            raise self.NVMLError("Driver Not Loaded")

    def nvmlDeviceGetHandleByIndex(self, index):
        self.chosen.append(index)
        return "handle"

    nvmlDeviceGetHandleByUUID = nvmlDeviceGetHandleByIndex

    def nvmlDeviceGetTotalEnergyConsumption(self, handle):
        if not self.counter:
            raise self.NVMLError("Not Supported")
        return int(1e3 * work_j(self.clock()))

    def nvmlDeviceGetPowerUsage(self, handle):
        if not self.power:
            raise self.NVMLError("Not Supported")
        return int(1e3 * power_w(self.clock()))

    def nvmlDeviceGetTemperature(self, handle, sensor):
        assert (handle, sensor) == ("handle", 0)
        return 70 - abs(self.clock() - 3)


def test_energy_and_temperature_of_an_nvidia_gpu(linux, monkeypatch, clock):
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(clock))
    watch = drive(Telemetry(device="gpu", clock=clock), clock, range(11))
    assert watch.metrics()["energy_j"]["value"] == pytest.approx(work_j(10), abs=0.01)
    assert watch.metrics()["temperature_c"]["value"] == 70
    assert watch.metrics()["temperature_c"]["unit"] == "°C"
    assert watch.rails == ["gpu"]


def test_power_is_integrated_where_a_gpu_has_no_energy_counter(linux, monkeypatch, clock):
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(clock, counter=False))
    meter = telemetry.NvmlMeter(clock)
    start_j = meter.energy_j()
    for clock.now in (0.5 * tick for tick in range(1, 21)):
        energy_j = meter.energy_j() - start_j
    assert energy_j == pytest.approx(work_j(10), rel=0.01)


@pytest.mark.parametrize(("visible", "chosen"), [(None, 0), ("3", 3), ("2,1", 2), ("GPU-5a1e", "GPU-5a1e")])
def test_the_first_visible_gpu_is_metered(linux, monkeypatch, clock, visible, chosen):
    nvml = FakeNvml(clock)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [meter.name for meter in telemetry.meters("gpu")[0]] == ["nvml"]
    assert nvml.chosen == [chosen]


def test_why_there_is_no_gpu_meter(linux, monkeypatch, clock):
    def reason():
        found, absent = telemetry.meters("gpu")
        assert found == []
        return absent["nvml"]

    assert reason() == "nvidia-ml-py is not installed"
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(clock, driver=False))
    assert "Driver Not Loaded" in reason()
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(clock, counter=False, power=False))
    assert "neither energy nor power" in reason()
    for hidden in ("", "-1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
        assert reason() == "CUDA_VISIBLE_DEVICES hides the GPU"


# --- RAPL and the processor's temperature


@pytest.fixture
def rapl(linux):
    """Two packages of which one has memory; their counters wrap at 1000 J. The last three zones must not be added."""
    names = {"0": "package-0", "1": "package-1", "0:1": "dram", "0:0": "core", "1:0": "uncore", "2": "psys"}
    for number, name in names.items():
        put(linux / "powercap" / f"intel-rapl:{number}", name=name, energy_uj=10**6, max_energy_range_uj=10**9)
    put(linux / "powercap" / "intel-rapl-mmio:0", name="package-0", energy_uj=10**6, max_energy_range_uj=10**9)

    def advance(**joules):
        for zone, energy_j in joules.items():
            file = linux / "powercap" / f"intel-rapl:{zone.removeprefix('zone').replace('_', ':')}" / "energy_uj"
            file.write_text(str((int(file.read_text()) + round(1e6 * energy_j)) % 10**9))

    return advance


def test_rapl_adds_packages_and_memory_across_wraps(rapl, clock):
    watch = drive(
        Telemetry(clock=clock),
        clock,
        range(0, 60, 10),
        # 60 W and 30 W of packages, 3 W of memory, over 50 s: the first counter wraps thrice.
        lambda: clock.now and rapl(zone0=600, zone1=300, zone0_1=30, zone0_0=500, zone1_0=100, zone2=1000),
    )
    assert watch.metrics()["energy_j"]["value"] == pytest.approx(50 * 93)
    assert watch.metrics()["power_w"]["value"] == pytest.approx(93)
    assert watch.rails == ["cpu package", "dram"]


def test_rapl_that_only_root_may_read(rapl, monkeypatch):
    read_text = Path.read_text

    def guarded(path, *arguments, **options):
        if path.name == "energy_uj":
            raise PermissionError(13, "Permission denied", str(path))
        return read_text(path, *arguments, **options)

    monkeypatch.setattr(Path, "read_text", guarded)
    assert telemetry.meters("cpu") == ([], {"rapl": "this system lets only root read the RAPL energy counters"})


def test_each_device_has_its_meter(rapl, monkeypatch, clock):
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(clock))
    names = {device: [meter.name for meter in telemetry.meters(device)[0]] for device in ("cpu", "gpu", None)}
    assert names == {"cpu": ["rapl"], "gpu": ["nvml"], None: ["rapl", "nvml"]}


def test_temperature_is_that_of_the_hottest_package(linux, clock):
    hwmon = linux / "hwmon"
    put(hwmon / "hwmon0", name="nvme", temp1_input=90000, temp1_label="Composite")
    labels = {"temp1_label": "Package id 0", "temp1_input": 51500, "temp2_label": "Core 0", "temp2_input": 83000}
    put(hwmon / "hwmon1", name="coretemp", **labels)
    put(hwmon / "hwmon2", name="coretemp", temp1_label="Package id 1", temp1_input=49000)
    watch = drive(Telemetry(clock=clock), clock, [0, 1])
    assert watch.metrics()["temperature_c"]["value"] == 51.5


def test_tdie_is_preferred_to_tctl(linux, clock):
    labels = {"temp1_label": "Tctl", "temp1_input": 77000, "temp2_label": "Tdie", "temp2_input": 57000}
    put(linux / "hwmon" / "hwmon0", name="k10temp", **labels)
    assert drive(Telemetry(clock=clock), clock, [0, 1]).metrics()["temperature_c"]["value"] == 57


# --- the block


def test_the_block_lies_between_the_first_and_the_last_reading(apple):
    events = []
    apple(lambda: FakeChip(time.perf_counter, events))
    with Telemetry(interval_s=0.05) as watch:
        events.append("begin")
        time.sleep(0.2)
        events.append("end")
    after = len(events)
    begin, end = events.index("begin"), events.index("end")
    assert "energy" in events[:begin]
    assert end - begin - 1 >= 1  # sampled meanwhile
    assert events[end:] == ["end", "energy"]
    time.sleep(0.1)
    assert len(events) == after  # nothing is read once it is over
    assert "telemetry" not in [thread.name for thread in threading.enumerate()]
    assert watch.seconds >= 0.2
    assert 0 < watch.thread_s < watch.seconds
    assert watch.samples[0].t_s == 0
    assert watch.samples[-1].t_s == watch.seconds


def test_an_error_in_the_block_gets_out_and_the_thread_ends():
    with pytest.raises(KeyError), Telemetry() as watch:
        raise KeyError("mine")
    assert not watch._thread.is_alive()
    assert "footprint_peak_bytes" in watch.metrics()


def test_a_source_that_fails_is_dropped_with_its_reason_and_the_others_go_on(rapl, linux, monkeypatch, clock):
    def sample():
        rapl(zone0=10)
        if clock.now == 3:
            (linux / "powercap" / "intel-rapl:1" / "energy_uj").unlink()

    watch = drive(Telemetry(clock=clock), clock, range(6), sample)
    assert watch.absent["power_w"].startswith("failed after 3 samples: FileNotFoundError")
    assert watch.rails == []
    assert watch.metrics().keys() == {"footprint_peak_bytes", "page_faults", "page_ins", "swap_bytes"}
    assert [sample.power_w for sample in watch.samples] == [None, 10, 10, None, None, None]


def test_blocks_that_are_too_short_have_no_power_and_no_load(rapl, clock):
    watch = drive(Telemetry(clock=clock), clock, [0, 0.3], lambda: rapl(zone0=10))
    assert watch.absent["energy_j"] == "the block took 0.30 s; 1 s are needed"
    assert watch.absent["foreign_load"] == "the block took 0.30 s; 0.5 s are needed"
    assert watch.foreign_load is None
    assert "power_w" not in watch.metrics()


def test_an_energy_counter_that_stands_still_is_not_zero_watt(rapl, clock):
    watch = drive(Telemetry(clock=clock), clock, [0, 1, 2])
    assert "power_w" not in watch.metrics()
    assert watch.absent["power_w"] == "the energy counter did not move"


def test_long_traces_are_thinned_and_keep_their_ends(rapl, monkeypatch, clock):
    monkeypatch.setattr(telemetry, "MOST_SAMPLES", 16)
    watch = drive(Telemetry(clock=clock), clock, range(1000), lambda: rapl(zone0=7))
    times = [sample.t_s for sample in watch.samples]
    assert len(times) <= 17
    assert (times[0], times[-1]) == (0, 999)
    assert len({times[index + 1] - times[index] for index in range(len(times) - 2)}) == 1
    assert all(sample.power_w == pytest.approx(7) for sample in watch.samples[1:])
    assert watch.metrics()["power_w"]["n"] == 1000


def test_a_last_reading_right_behind_another_has_no_power_of_its_own(rapl, clock):
    watch = drive(Telemetry(clock=clock), clock, [0, 0.5, 1, 1.5, 1.501], lambda: rapl(zone0=10))
    assert [sample.power_w for sample in watch.samples] == [None, 20, 20, 20, None]
    assert watch.metrics()["energy_j"]["value"] == pytest.approx(40)


def test_wrong_use_is_refused():
    with pytest.raises(ValueError, match="'mps'"):
        Telemetry(device="mps")
    with pytest.raises(ValueError, match="interval_s"):
        Telemetry(interval_s=0)
    with pytest.raises(ValueError, match="before its block has ended"):
        Telemetry().metrics()


# --- what the process used


@contextlib.contextmanager
def child(target, *arguments):
    """A process as a DataLoader on a Mac starts it, and its end of a pipe."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=target, args=(theirs, *arguments))
    process.start()
    try:
        yield process, ours
    finally:
        process.join(10)
        process.kill()


def burn_then_wait(pipe, cpu_s):
    while time.process_time() < cpu_s:
        pass
    pipe.send(time.process_time())
    pipe.recv()


def hold_then_wait(pipe, count):
    held = b"x" * count
    pipe.send(len(held))
    pipe.recv()


@pytest.mark.skipif(
    not hasattr(os, "waitid"), reason="macOS's Python cannot look at an ended process without taking it"
)
def test_a_child_s_cpu_time_is_counted_once_alive_ended_and_waited_for():
    watch = Telemetry()
    *_, start_s = watch._cpu_s()
    own_s = time.process_time()
    with child(burn_then_wait, 0.8) as (process, pipe):
        used_s = pipe.recv()
        *_, alive_s = watch._cpu_s()
        pipe.send("end")
        # Ended, but nobody has waited for it; and asking must not take its end away from whoever does.
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        *_, ended_s = watch._cpu_s()
        assert os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
        process.join()
        *_, joined_s = watch._cpu_s()
    for seen_s in (alive_s, ended_s, joined_s):
        assert seen_s - start_s == pytest.approx(used_s + time.process_time() - own_s, abs=0.25)


def test_footprint_has_a_peak_and_the_children_in_it(linux):
    size = 60 * 2**20
    watch = Telemetry()
    watch._open()
    watch._sample(edge=True)
    before = watch._peaks["footprint"]
    with child(hold_then_wait, size) as (_, pipe):
        assert pipe.recv() == size
        watch._sample()
        pipe.send("end")
    own = mmap.mmap(-1, 2 * size)
    own.write(b"x" * (2 * size))
    held = watch._sources["footprint"]()
    watch._sample()
    own.close()
    watch._sample(edge=True)
    watch._close()
    assert watch.metrics()["footprint_peak_bytes"]["value"] == pytest.approx(held, rel=0.2)
    assert held > before + 1.9 * size
    assert max(sample.footprint_bytes for sample in watch.samples[:2]) > before + 0.9 * size


def test_page_faults_are_those_of_the_block():
    pages = 3000
    with Telemetry() as watch:
        memory = mmap.mmap(-1, pages * mmap.PAGESIZE)  # shared memory: no huge pages
        for page in range(pages):
            memory[page * mmap.PAGESIZE] = 1
    memory.close()
    assert 0.9 * pages <= watch.metrics()["page_faults"]["value"] < 2 * pages
    assert watch.metrics()["page_ins"]["value"] < pages


class Counters:
    """A machine of which everything is known: CPU seconds of all, of this process and of its ended children."""

    def __init__(self, monkeypatch):
        self.busy_s = self.own_s = self.ended_s = 0.0
        self.swap = self.faults = self.page_ins = 0
        monkeypatch.setattr(machine, "cpu_busy_s", lambda: 5000 + self.busy_s)
        monkeypatch.setattr(telemetry.resource, "getrusage", self.usage)
        monkeypatch.setattr(telemetry.psutil, "swap_memory", lambda: types.SimpleNamespace(used=2**30 + self.swap))
        monkeypatch.setattr(telemetry, "_live_children", lambda: [])

    def usage(self, who):
        own = who == telemetry.resource.RUSAGE_SELF
        return types.SimpleNamespace(
            ru_utime=30 + 0.75 * (self.own_s if own else self.ended_s),
            ru_stime=3 + 0.25 * (self.own_s if own else self.ended_s),
            ru_minflt=100 + (self.faults if own else 5),
            ru_majflt=10 + (self.page_ins if own else 0),
        )


@pytest.mark.parametrize(
    ("busy_s", "own_s", "ended_s", "foreign"),
    [
        (20, 20, 0, 0.0),
        (30, 20, 0, 1.0),
        (30, 10, 15, 0.5),  # children that ended meanwhile are not foreign
        (19.9, 20, 0, 0.0),  # never below 0: the counters tick differently
    ],
)
def test_foreign_load_is_what_others_used(linux, monkeypatch, clock, busy_s, own_s, ended_s, foreign):
    counters = Counters(monkeypatch)

    def advance():
        counters.busy_s, counters.own_s, counters.ended_s = (
            share * clock.now / 10 for share in (busy_s, own_s, ended_s)
        )

    watch = drive(Telemetry(clock=clock), clock, [0, 5, 10], advance)
    assert watch.foreign_load == pytest.approx(foreign)
    assert "foreign_load" not in watch.metrics()


def test_a_child_that_macos_hides_once_it_has_ended_is_not_foreign(linux, monkeypatch, clock):
    counters = Counters(monkeypatch)
    monkeypatch.setattr(telemetry, "_live_children", lambda: [77])

    def process(pid):
        if clock.now == 10:
            raise telemetry.psutil.ZombieProcess(pid)
        used_s = {"user": 3 * clock.now, "system": clock.now, "children_user": 0, "children_system": 0}
        rss = types.SimpleNamespace(rss=0)
        return types.SimpleNamespace(cpu_times=lambda: types.SimpleNamespace(**used_s), memory_info=lambda: rss)

    monkeypatch.setattr(telemetry.psutil, "Process", process)

    def advance():
        counters.busy_s = {0: 0, 9: 36, 10: 41}[clock.now]  # the child's four cores until 9, and another's 5 s after it

    assert drive(Telemetry(clock=clock), clock, [0, 9, 10], advance).foreign_load == pytest.approx(0.5)


def test_faults_and_swap_are_changes(linux, monkeypatch, clock):
    counters = Counters(monkeypatch)

    def advance():
        counters.faults, counters.page_ins, counters.swap = 7 * clock.now, 2 * clock.now, -4096 * clock.now

    metrics = drive(Telemetry(clock=clock), clock, [0, 5, 10], advance).metrics()
    assert metrics["page_faults"]["value"] == 90
    assert metrics["page_ins"]["value"] == 20
    assert metrics["swap_bytes"]["value"] == -40960
    assert (metrics["swap_bytes"]["unit"], metrics["page_ins"]["unit"]) == ("B", "count")


def test_a_busy_neighbour_is_seen():
    program = "print('busy', flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as neighbour:
        neighbour.stdout.readline()
        with Telemetry() as watch:
            time.sleep(1.2)
        neighbour.kill()
    assert 0.5 < watch.foreign_load <= os.cpu_count() + 0.1
    assert telemetry.contended(watch.foreign_load)


@pytest.mark.parametrize(
    ("threads", "foreign_load", "spoilt"),
    [(2, 0.09, False), (2, 0.11, True), (16, 0.39, False), (16, 0.41, True), (16, None, False)],
)
def test_contended(monkeypatch, threads, foreign_load, spoilt):
    monkeypatch.setattr(telemetry.psutil, "cpu_count", lambda: threads)
    assert telemetry.contended(foreign_load) is spoilt
