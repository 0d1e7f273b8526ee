"""Meters are faked at the level of their libraries and files; children, page faults and foreign load are real ones."""

import functools
import math
import mmap
import multiprocessing
import os
import platform
import sys
import threading
import time
import types
from pathlib import Path

import pytest
from fakes import Clock
from macs import IOREG, MACS, LibSystem, Mac, secrets_in

from pomology.machine import energy, quiet, snapshot, sources
from pomology.machine import memory as machine_memory
from pomology.machine.sampler import Telemetry
from pomology.measure.estimate import Estimate

PRESSURE = ("swapped_bytes", "compressed_bytes", "compressor_bytes")


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def linux(monkeypatch, tmp_path):
    """A PC without any meter or sensor."""
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(energy, "POWERCAP", tmp_path / "powercap")
    monkeypatch.setattr(sources, "HWMON", tmp_path / "hwmon")
    monkeypatch.setattr(sources, "CPUFREQ", tmp_path / "cpu")
    monkeypatch.setattr(sources, "VMSTAT", tmp_path / "vmstat")
    (tmp_path / "vmstat").write_text("nr_free_pages 4711\npswpin 1000\npswpout 2000\npgfault 5\n")
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tmp_path


def drive(clock, times, before_sample=lambda: None, device="cpu"):
    """Sample at these times, without the thread: what the thread does, to the digit."""
    watch = Telemetry(device=device, clock=clock)
    watch._open()
    for clock.now in (times := list(times)):
        before_sample()
        watch._sample(edge=clock.now in (times[0], times[-1]))
    watch._close()
    return watch


def value(watch, name):
    return watch.metrics()[name].value


def put(folder, **files):
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(f"{text}\n")


def power_w(t_s):
    """A synthetic load: 20 W, swinging by 10 W every 8 s."""
    return 20 + 10 * math.sin(2 * math.pi * t_s / 8)


def work_j(t_s):
    """The integral of power_w from 0 on, by hand."""
    return 20 * t_s + 10 * 8 / (2 * math.pi) * (1 - math.cos(2 * math.pi * t_s / 8))


class FakeChip:
    """zeus_apple_silicon 1.1.0 as documented, on a chip that shares work_j between CPU and GPU, and 5 W of DRAM.

    `untold` are fields that this chip has not: None. Another name is an AttributeError, as in the library.
    """

    def __init__(self, clock, events=None, untold=("ane_mj",)):
        self.clock, self.events, self.untold = clock, [] if events is None else events, untold

    def get_cumulative_energy(self):
        self.events.append("energy")
        work = work_j(self.clock())
        known = {"cpu_total_mj": int(1e3 * work * 0.25) + 10**9, "gpu_mj": int(1e3 * work * 0.75)}  # the one ran before
        known |= {"dram_mj": int(1e3 * 5 * self.clock()), "ane_mj": 77, "gpu_sram_mj": 12345}
        return types.SimpleNamespace(**known | dict.fromkeys(self.untold))


@pytest.fixture
def apple(monkeypatch, clock):
    """apple(folder, monitor): a Mac of the fixtures with this energy monitor. Returns what answers its commands."""

    def install(folder="m4-max", monitor=lambda: FakeChip(clock)):
        module = types.SimpleNamespace(AppleEnergyMonitor=monitor)
        monkeypatch.setitem(sys.modules, "zeus_apple_silicon", module)
        monkeypatch.setattr(sys, "platform", "darwin")
        monkeypatch.setattr(machine_memory.ctypes, "CDLL", lambda *given, **named: LibSystem())
        monkeypatch.setattr(snapshot, "thermal_level", lambda: 1)
        monkeypatch.setattr(snapshot, "run_command", mac := Mac(folder))
        return mac

    return install


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_energy_of_an_apple_chip(apple, clock, device):
    apple()
    watch = drive(clock, [2 + 0.5 * tick for tick in range(21)], device=device)
    expected_j = work_j(12) - work_j(2) + 5 * 10
    assert value(watch, "energy_j") == pytest.approx(expected_j, rel=1e-4)
    assert watch.metrics()["power_w"] == Estimate(pytest.approx(expected_j / 10, rel=1e-4), "W", n=20)
    watts = [value(watch, f"power_{rail}_w") for rail in ("cpu", "gpu", "dram")]
    assert watts == pytest.approx([0.25 * (expected_j / 10 - 5), 0.75 * (expected_j / 10 - 5), 5], rel=1e-3)
    assert watch.rails == ["cpu", "gpu", "dram"]
    # The trace is the synthetic power, but for the steps of the samples.
    middles = [(sample.t_s + 2 - 0.25, sample.power_w) for sample in watch.samples[1:]]
    assert all(power == pytest.approx(power_w(t_s) + 5, rel=0.02) for t_s, power in middles)
    assert watch.samples[0].power_w is None


def test_a_mac_s_highest_thermal_level_and_the_footprint_with_the_children_that_live(apple, clock, monkeypatch):
    apple()
    levels = iter([0, 0, 3, 2])  # the first answer only shows that there is one
    monkeypatch.setattr(snapshot, "thermal_level", lambda: next(levels))
    monkeypatch.setattr(machine_memory, "live_children", lambda: [4, 5])
    watch = drive(clock, [0, 1, 2])
    assert watch.thermal_level == 3 and watch.thermal == {"before": {"level": 0}, "after": {"level": 2}}
    assert (watch.footprint_source, value(watch, "footprint_peak_bytes")) == ("physical footprint", 4 * 10**9)


def test_why_a_mac_has_no_energy(apple, clock, monkeypatch):
    def refuse():
        raise ValueError("Unsupported or invalid energy unit provided: pJ")

    for folder, monitor, words in (
        ("m4-max", refuse, "provided: pJ$"),
        ("m4-max", lambda: FakeChip(clock, untold=energy.APPLE_RAILS.values()), "^macOS's energy counters are empty"),
        ("vm", lambda: pytest.fail("the library dies where there are no counters"), "^not asked in a virtual machine"),
    ):
        apple(folder, monitor)
        with pytest.raises(energy.Absent, match=words):
            energy.meter("cpu")
    apple(monitor=lambda: FakeChip(clock, untold=("cpu_total_mj",)))
    cpu, gpu = (drive(clock, [0, 10], device=device) for device in ("cpu", "gpu"))
    assert cpu.rails == [] and cpu.absent["power_w"] == gpu.absent["energy of the cpu"]
    assert cpu.absent["power_w"] == "zeus-apple-silicon finds no energy counter of the cpu on this chip"
    assert gpu.rails == ["gpu", "dram"] and gpu.absent["power_ane_w"] == "its counter stood still"
    assert value(gpu, "energy_j") == pytest.approx(0.75 * work_j(10) + 50, 1e-3)
    monkeypatch.setitem(sys.modules, "zeus_apple_silicon", None)
    watch = drive(clock, [0, 2])
    assert watch.absent["power_w"] == watch.absent["energy_j"] == "zeus-apple-silicon is not installed"
    assert not {"power_w", "energy_j"} & watch.metrics().keys()


def test_the_cpu_of_an_ultra_is_not_taken_from_a_library_that_sees_one_die_of_it(apple, clock):
    apple("m2-ultra")
    cpu, gpu = (drive(clock, [0, 2], device=device) for device in ("cpu", "gpu"))
    why = "zeus-apple-silicon 1.1.0 counts the CPU of one of an Ultra's two dies"
    assert gpu.rails == ["gpu", "dram"] and gpu.absent["energy of the cpu"] == cpu.absent["energy_j"] == why


@pytest.mark.parametrize(("version", "period_s"), [("15.5", 0.01), ("26.4.1", 0.01), ("27.0", 2.0)])
def test_what_macos_27_publishes_seldom_and_where_its_cpu_reads_nothing(apple, clock, monkeypatch, version, period_s):
    """As an M5 Pro's does, and any after it has slept (exelban/stats #3399, vladkens/macmon #76)."""
    chip = FakeChip(clock)
    apple(monitor=lambda: chip)
    monkeypatch.setattr(platform, "mac_ver", lambda: (version, ("", "", ""), "arm64"))
    assert energy.meter("gpu").rails == {"cpu": period_s, "gpu": 0.01, "dram": period_s}
    told, none = chip.get_cumulative_energy, {"cpu_total_mj": 0}
    monkeypatch.setattr(chip, "get_cumulative_energy", lambda: types.SimpleNamespace(**vars(told()) | none))
    gpu, cpu = (drive(clock, [0.5 * tick for tick in range(41)], device=device) for device in ("gpu", "cpu"))
    assert gpu.rails == ["gpu", "dram"] and gpu.absent["power_cpu_w"] == "its counter stood still"
    assert value(gpu, "power_w") == pytest.approx(0.75 * 20 + 5, rel=0.05)
    assert cpu.rails == [] and cpu.absent["power_w"] == "the energy counter stood still"


@pytest.mark.parametrize(
    ("folder", "busy", "pages", "flags"),
    [
        ("m1", 97, [9_000 + 11_000, 60_000 + 80_000, 8_192], ["swapping", "compressing"]),
        ("m4-max", 93, [0, 9_000 + 61_000, 17_000], ["compressing"]),
        ("m2-ultra", 88, [0, 0, 0], []),
        ("rosetta", 28, [100 + 200, 700 + 1300, 480], []),
    ],
)
def test_what_a_mac_swaps_and_how_busy_its_gpu_was(apple, clock, monkeypatch, folder, busy, pages, flags):
    mac = apple(folder)

    def swap_memory():
        # psutil's sin and sout are every page-in and page-out of a Mac, and its swap may shrink while it swaps.
        decoy = 10**12 if clock.now else 0
        return types.SimpleNamespace(used=2**30 - int(clock.now) * 2**20, sin=decoy, sout=decoy)

    monkeypatch.setattr(sources.psutil, "swap_memory", swap_memory)
    times = [0.5 * tick for tick in range(21)]
    watch = drive(clock, times, lambda: setattr(mac, "later", clock.now >= 10), "gpu")
    assert [watch.metrics()[name] for name in PRESSURE] == [Estimate(16384 * count, "B", n=21) for count in pages]
    assert value(watch, "swap_bytes") == -10 * 2**20 and watch.flags == flags
    assert mac.asked.count(("vm_stat",)) == 2  # at the edges only
    # Each second, though the other sources are read twice as often; and not at the edges.
    assert watch.metrics()["gpu_busy"] == Estimate(busy, "%", n=9) and mac.asked.count(IOREG) == 9
    assert secrets_in([watch.samples, watch.absent, watch.flags]) == []


def test_what_a_mac_may_print_instead(apple, clock):
    mac, text = apple("m1"), (MACS / "m1" / "vm_stat.txt").read_text()
    intel = sources.vm_stat(text.replace("page size of 16384", "page size of 4096"))
    assert sources.vm_stat(text) == {name: 4 * count for name, count in intel.items()}
    assert intel["swapped_bytes"] == (1827364 + 2918273) * 4096
    for old, new in (("(page size", "(pages"), ("Swapouts:  ", "Swapouts: n")):
        mac.says["vm_stat",] = text.replace(old, new)
        assert "does not count what it swaps" in drive(clock, [0, 10]).absent["swapped_bytes"]
    statistics = '    | "PerformanceStatistics" = {{"a"=1,"Device Utilization %"={},"b"=2}}\n'.format
    assert sources.gpu_busy(statistics(0) + statistics(91)) == 91  # should the dies of an Ultra be listed apart
    for text in ("+-o AppleParavirtGPU  <class AppleParavirtGPU>\n    {\n    }\n", ""):
        with pytest.raises(energy.Absent, match=r"^this GPU does not tell how busy it is$"):
            sources.gpu_busy(text)


def test_linux_counts_swapped_pages_of_its_own_size(linux, monkeypatch, clock):
    monkeypatch.setattr(sources.resource, "getpagesize", lambda: 65536)  # as kernels for Arm servers have it

    def advance():
        (linux / "vmstat").write_text(f"pswpin {1000 + 30 * clock.now}\npgpgin 99\npswpout {2000 + 50 * clock.now}\n")

    watch = drive(clock, [0, 5, 10], advance)
    assert value(watch, "swapped_bytes") == 800 * 65536 and watch.flags == ["swapping"]
    assert watch.absent["compressed_bytes"] == "only macOS tells what it compresses"


def test_real_page_faults_are_those_of_the_block_and_not_of_a_command():
    pages, before = 3000, sum(snapshot.command_faults)
    program = "import mmap\nheld = mmap.mmap(-1, {0})\nheld.write(bytes({0}))".format
    with Telemetry() as watch:
        memory = mmap.mmap(-1, pages * mmap.PAGESIZE)  # shared memory: no huge pages
        memory.write(bytes(pages * mmap.PAGESIZE))
        assert snapshot.run_command(sys.executable, "-c", program(4 * pages * mmap.PAGESIZE), timeout=60) == ""
    memory.close()
    assert sum(snapshot.command_faults) - before > 3 * pages
    assert 0.9 * pages <= value(watch, "page_faults") < 3 * pages and value(watch, "page_ins") < pages


def test_thresholds_of_the_flags(linux, monkeypatch, clock):
    for seconds, name, moved, flags in (
        (2, "swapped_bytes", 10e6, []),
        (2, "swapped_bytes", 10e6 + 1, ["swapping"]),
        (100, "swapped_bytes", 100e6, []),  # no more than 1 MB a second
        (100, "compressed_bytes", 1e9 + 1, ["compressing"]),
        (2, "compressor_bytes", 1e12, []),  # it only says how much is held
    ):
        both = iter([dict.fromkeys(PRESSURE, 7e12), dict.fromkeys(PRESSURE, 7e12) | {name: 7e12 + moved}])
        monkeypatch.setattr(sources, "_moved", lambda *_, both=both: next(both))
        assert drive(clock, [0, seconds]).flags == flags


@pytest.fixture
def nvidia(linux, monkeypatch, clock):
    """nvidia(lacks): a PC with a GPU whose driver fails in what it lacks. Returns it, with what was asked of it."""

    def install(*lacks):
        nvml = types.SimpleNamespace(NVMLError=type("NVMLError", (Exception,), {}), NVML_TEMPERATURE_GPU=0, asked=[])
        nvml.NVML_CLOCK_SM = 1
        answers = {
            "Init": lambda: None,
            "DeviceGetHandleByIndex": lambda index: "handle",
            "DeviceGetHandleByUUID": lambda uuid: "handle",
            "DeviceGetTotalEnergyConsumption": lambda handle: int(1e3 * work_j(clock())),
            "DeviceGetUtilizationRates": lambda handle: types.SimpleNamespace(gpu=round(100 - clock()), memory=1),
            "DeviceGetClockInfo": lambda handle, clock_of: 1980 if clock.now < 5 else 1500,
            "DeviceGetTemperature": lambda handle, sensor: 70 - abs(clock() - 3),
        }

        def ask(name, *given):
            nvml.asked.append((name, clock.now, *given))
            if name in lacks:
                raise nvml.NVMLError(f"{name} Not Supported")
            return answers[name](*given)

        for name in answers:
            setattr(nvml, f"nvml{name}", functools.partial(ask, name))
        monkeypatch.setitem(sys.modules, "pynvml", nvml)
        return nvml

    return install


def test_energy_temperature_clock_and_use_of_an_nvidia_gpu(nvidia, clock):
    nvml = nvidia()
    watch = drive(clock, range(11), device="gpu")
    assert watch.rails == ["gpu"] and value(watch, "energy_j") == pytest.approx(work_j(10), abs=0.01)
    assert watch.metrics()["temperature_c"] == Estimate(70, "°C", n=11)
    assert watch.metrics()["clock_hz"] == Estimate(pytest.approx((5 * 1980 + 6 * 1500) / 11 * 1e6), "Hz", n=11)
    assert watch.thermal == {"before": {"temperature_c": 67}, "after": {"temperature_c": 63}}
    nvml.asked.clear()
    watch = drive(clock, [0, 0.5, 1, 1.5, 2, 4, 100], device="gpu")
    # What it tells at 0.5 s may still cover the time before the block.
    assert watch.metrics()["gpu_busy"] == Estimate((99 + 98 + 98 + 96) / 4, "%", n=4)
    assert [at for name, at, *_ in nvml.asked if name == "DeviceGetUtilizationRates"] == [1, 1.5, 2, 4]
    assert [sample.gpu_busy for sample in watch.samples] == [None, None, 99, 98, 98, 96, None]
    watch = drive(clock, [0, 0.9], device="gpu")
    assert watch.absent["gpu_busy"] == "the GPU was not asked in the 0.90 s of the block"
    nvidia("DeviceGetUtilizationRates")
    assert "Not Supported" in drive(clock, range(5), device="gpu").absent["gpu_busy"]


def test_the_first_visible_gpu_is_metered_and_why_none_is(nvidia, monkeypatch):
    def absent(words):
        return pytest.raises(energy.Absent, match=words)

    with absent("^nvidia-ml-py is not installed$"):
        energy.meter("gpu")
    for lacks, words in (("Init", "Init Not Supported"), ("DeviceGetTotalEnergyConsumption", "does not count its")):
        nvidia(lacks)
        with absent(words):
            energy.meter("gpu")
    for visible, chosen in (("0", 0), ("2,1", 2), ("GPU-5a1e", "GPU-5a1e")):
        nvml = nvidia()
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert energy.meter("gpu").rails.keys() == {"gpu"}
        assert [given for name, _, *given in nvml.asked if "Handle" in name] == [[chosen]]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    with absent("^CUDA_VISIBLE_DEVICES hides the GPU$"):
        energy.meter("gpu")


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
    # 60 W and 30 W of packages, 3 W of memory, over 50 s: the first counter wraps thrice.
    moved = {"zone0": 600, "zone1": 300, "zone0_1": 30, "zone0_0": 500, "zone1_0": 100, "zone2": 1000}
    watch = drive(clock, range(0, 60, 10), lambda: clock.now and rapl(**moved))
    assert (value(watch, "energy_j"), value(watch, "power_w")) == pytest.approx((50 * 93, 93))
    assert watch.rails == ["cpu", "dram"]
    assert [value(watch, f"power_{rail}_w") for rail in watch.rails] == pytest.approx([90, 3])


def test_each_device_has_its_meter_and_rapl_may_be_for_root_only(rapl, nvidia, monkeypatch):
    nvidia()
    assert [[*energy.meter(device).rails] for device in ("cpu", "gpu")] == [["cpu", "dram"], ["gpu"]]

    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_text", refuse)
    with pytest.raises(energy.Absent, match=r"^this system lets only root read the RAPL energy counters$"):
        energy.meter("cpu")


def test_temperature_is_that_of_the_hottest_package(linux, clock):
    hwmon = linux / "hwmon"
    put(hwmon / "hwmon0", name="nvme", temp1_input=90000, temp1_label="Composite")
    labels = {"temp1_label": "Package id 0", "temp1_input": 51500, "temp2_label": "Core 0", "temp2_input": 83000}
    put(hwmon / "hwmon1", name="coretemp", **labels)
    put(hwmon / "hwmon2", name="coretemp", temp1_label="Package id 1", temp1_input=49000)
    assert value(drive(clock, [0, 1]), "temperature_c") == 51.5
    for number, kilohertz in enumerate((800_000, 3_400_000, 1_200_000)):
        put(linux / "cpu" / f"cpu{number}" / "cpufreq", scaling_cur_freq=kilohertz)
    assert value(drive(clock, [0, 1]), "clock_hz") == 3.4e9  # of the fastest core
    labels = {"temp1_label": "Tctl", "temp1_input": 77000, "temp2_label": "Tdie", "temp2_input": 57000}
    put(hwmon / "hwmon3", name="k10temp", **labels)  # AMD's Tctl has an offset
    assert value(drive(clock, [0, 1]), "temperature_c") == 57


def test_the_block_lies_between_the_first_and_the_last_reading(apple, monkeypatch):
    """And what takes a process of its own outside of these."""
    events = []
    mac = apple(monitor=lambda: FakeChip(time.perf_counter, events))

    def run_command(*command, **more):
        events.append(command[0])
        return mac(*command, **more)

    monkeypatch.setattr(snapshot, "run_command", run_command)
    with Telemetry(interval_s=0.05) as watch:
        events.append("begin")
        time.sleep(0.2)
        events.append("end")
    after = len(events)
    begin, end = events.index("begin"), events.index("end")
    assert events[begin - 2 : begin] == ["vm_stat", "energy"] and events[end:] == ["end", "energy", "vm_stat"]
    assert end - begin - 1 >= 1  # sampled meanwhile
    time.sleep(0.1)
    assert len(events) == after  # nothing is read once it is over
    assert "telemetry" not in [thread.name for thread in threading.enumerate()]
    assert watch.seconds >= 0.2 and 0 < watch.thread_s < watch.seconds
    assert (watch.samples[0].t_s, watch.samples[-1].t_s) == (0, watch.seconds)


def test_an_error_in_the_block_gets_out_and_the_thread_ends_and_wrong_use_is_refused():
    with pytest.raises(KeyError), Telemetry() as watch:
        raise KeyError("mine")
    assert not watch._thread.is_alive() and "footprint_peak_bytes" in watch.metrics()
    with pytest.raises(ValueError, match="before its block has ended"):
        Telemetry().metrics()


def test_a_source_that_fails_is_dropped_with_its_reason_and_the_others_go_on(rapl, linux, clock):
    def sample():
        rapl(zone0=10)
        if clock.now == 3:
            (linux / "powercap" / "intel-rapl:1" / "energy_uj").unlink()

    watch = drive(clock, range(6), sample)
    assert watch.absent["power_w"].startswith("failed after 3 samples: FileNotFoundError")
    assert watch.rails == []
    rest = {"footprint_peak_bytes", "page_faults", "page_ins", "swap_bytes", "swapped_bytes", "cpu_busy"}
    assert watch.metrics().keys() == rest
    assert [sample.power_w for sample in watch.samples] == [None, 10, 10, None, None, None]


def test_blocks_that_are_too_short_have_no_power_and_no_load(rapl, clock):
    watch = drive(clock, [0, 0.3], lambda: rapl(zone0=10))
    assert watch.absent["energy_j"] == "the block took 0.30 s; 1 s are needed"
    assert watch.absent["cpu_busy"] == "the block took 0.30 s; 0.5 s are needed"
    assert not {"power_w", "cpu_busy"} & watch.metrics().keys()
    # The last reading, right behind another, has no power of its own.
    watch = drive(clock, [0, 0.5, 1, 1.5, 1.501], lambda: rapl(zone0=10))
    assert [sample.power_w for sample in watch.samples] == [None, 20, 20, 20, None]
    watch = drive(clock, [0, 1, 2])  # a counter that stands still is not zero watt
    assert "power_w" not in watch.metrics() and watch.absent["power_w"] == "the energy counter stood still"


def work_then_wait(pipe, cpu_s, own, held):
    """A worker that computes, holds `own` bytes, and reads all pages of what its parent holds."""
    mine = b"x" * own
    while time.process_time() < cpu_s:
        pass
    pipe.send((time.process_time(), sum(held[place] for place in range(0, len(held), mmap.PAGESIZE))))
    pipe.recv()
    assert len(mine) == own


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux forks workers")
def test_forked_workers_count_once_alive_ended_and_waited_for():
    """Two begin with the parent's 200 MB; one makes 60 MB of its own, and computes."""
    size, context = 200 * 2**20, multiprocessing.get_context("fork")
    held = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for place in range(0, size, mmap.PAGESIZE):
        held[place] = 1
    footprint, load = machine_memory.resident_memory(), quiet.own_s
    before, start_s, own_s = footprint(), load(), time.process_time()
    pipes = [context.Pipe() for _ in range(2)]
    forms = [(pipes[0][1], 0.6, 60 * 2**20, held), (pipes[1][1], 0, 0, held)]
    workers = [context.Process(target=work_then_wait, args=form, daemon=True) for form in forms]
    for worker in workers:
        worker.start()
    used_s, pages = (sum(each) for each in zip(*[ours.recv() for ours, _ in pipes], strict=True))
    assert pages == 2 * size // mmap.PAGESIZE and 55 * 2**20 < footprint() - before < 120 * 2**20
    seen = [load() - start_s]
    for ours, _ in pipes:
        ours.send("end")
    # Ended, but nobody has waited for them; and asking must not take an end away from whoever does.
    for worker in workers:
        os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
    seen.append(load() - start_s)
    assert os.waitid(os.P_PID, workers[0].pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
    for worker in workers:
        worker.join()
    assert [*seen, load() - start_s] == pytest.approx([used_s + time.process_time() - own_s] * 3, abs=0.25)
    held.close()
    assert footprint() < before + 20 * 2**20


def test_children_are_asked_for_a_fiftieth_of_the_time(monkeypatch, clock):
    asked = []

    def added(read):
        asked.append(clock.now)
        clock.now += 0.1
        return 10**12 * (1 + len(asked))

    monkeypatch.setattr(machine_memory, "live_children", lambda: [os.getpid()])
    monkeypatch.setattr(machine_memory, "_sum_of_living", added)
    footprint, told = machine_memory.resident_memory(clock), []
    for _ in range(100):
        told.append(footprint())
        clock.now += 0.5
    assert len(asked) == 10 and asked[:3] == pytest.approx([0, 5, 10], abs=0.7)
    assert told[:2] == pytest.approx([2e12, 2e12], rel=1e-2)  # in between what they added stands
    monkeypatch.setattr(machine_memory, "live_children", list)
    assert footprint() < 10**12


def test_a_child_that_macos_hides_once_it_has_ended_is_not_foreign(linux, monkeypatch, clock):
    usage = types.SimpleNamespace(ru_utime=30, ru_stime=3, ru_minflt=100, ru_majflt=10)
    monkeypatch.setattr(quiet.resource, "getrusage", lambda who: usage)
    monkeypatch.setattr(machine_memory, "live_children", lambda: [77])

    def process(pid=None):
        if clock.now == 10:
            raise sources.psutil.ZombieProcess(pid)
        return types.SimpleNamespace(cpu_times=lambda: (3 * clock.now, clock.now, 0, 0))

    monkeypatch.setattr(quiet.psutil, "Process", process)
    monkeypatch.setattr(sources.psutil, "cpu_count", lambda: 4)
    watch = drive(clock, (0, 9, 10))
    assert value(watch, "cpu_busy") == pytest.approx(100 * 36 / 10 / 4)  # its four cores until 9
