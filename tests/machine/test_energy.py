"""Energy counters: mocked chips, and joules of steady steps against the truth."""

import functools
import math
import sys
import types
from pathlib import Path

import pytest
from fakes import Clock
from watched import FakeChip, drive, put, value, work_j

from pomology.machine import energy
from pomology.measure.estimate import Estimate


def test_why_a_mac_has_no_energy(apple, clock, monkeypatch):
    def dies():
        pytest.fail("the library ends the process where there are no counters")

    def silent():
        return FakeChip(clock, untold=energy.APPLE_RAILS.values())

    for folder, monitor, words in (
        ("m4-max", silent, "^zeus-apple-silicon finds no energy counter of the cpu"),
        ("vm", dies, "^not asked in a virtual machine"),
    ):
        apple(folder, monitor)
        with pytest.raises(energy.Absent, match=words):
            energy.meter("cpu")
    apple()
    monkeypatch.setitem(sys.modules, "zeus_apple_silicon", None)
    watch = drive(clock, [0, 2])
    assert watch.absent["power_w"] == "zeus-apple-silicon is not installed"
    assert not {"power_w", "energy_j"} & watch.metrics().keys()


def test_a_rail_that_a_chip_or_library_lacks_is_left_out(apple, clock):
    apple(monitor=lambda: FakeChip(clock, untold=("cpu_total_mj",)))
    cpu = drive(clock, [0, 10])
    gpu = drive(clock, [0, 10], kind="gpu")
    why = "zeus-apple-silicon finds no energy counter of the cpu on this chip"
    assert cpu.rails == [] and cpu.absent["power_w"] == gpu.absent["energy of the cpu"] == why
    assert gpu.rails == ["gpu", "dram"]
    assert value(gpu, "energy_j") == pytest.approx(0.75 * work_j(10) + 50, 1e-3)
    apple("m2-ultra")
    assert (
        energy.meter("gpu").missing["cpu"].endswith("counts the CPU of one of an Ultra's two dies")
    )


@pytest.fixture
def nvidia(linux, monkeypatch, clock):
    """nvidia(lacks): a PC with a GPU whose driver fails in what it lacks. Returns it, with what was asked of it."""

    def install(*lacks):
        nvml = types.SimpleNamespace(
            NVMLError=type("NVMLError", (Exception,), {}), NVML_TEMPERATURE_GPU=0, asked=[]
        )
        nvml.NVML_CLOCK_SM = 1
        answers = {
            "Init": lambda: None,
            "DeviceGetHandleByIndex": lambda index: "handle",
            "DeviceGetHandleByUUID": lambda uuid: "handle",
            "DeviceGetTotalEnergyConsumption": lambda handle: int(1e3 * work_j(clock())),
            "DeviceGetClockInfo": lambda handle, clock_of: 1980 if clock.now < 5 else 1500,
            "DeviceGetTemperature": lambda handle, sensor: 70 - abs(clock() - 3),
        }

        def ask(name, *given):
            nvml.asked.append((name, *given))
            if name in lacks:
                raise nvml.NVMLError(f"{name} Not Supported")
            return answers[name](*given)

        for name in answers:
            setattr(nvml, f"nvml{name}", functools.partial(ask, name))
        monkeypatch.setitem(sys.modules, "pynvml", nvml)
        return nvml

    return install


def test_energy_temperature_and_clock_of_an_nvidia_gpu(nvidia, clock):
    nvidia()
    watch = drive(clock, range(11), kind="gpu")
    assert watch.rails == ["gpu"] and value(watch, "energy_j") == pytest.approx(
        work_j(10), abs=0.01
    )
    assert watch.metrics()["temperature_c"] == Estimate(70, "°C", n=11)
    assert watch.metrics()["clock_hz"] == Estimate(
        pytest.approx((5 * 1980 + 6 * 1500) / 11 * 1e6), "Hz", n=11
    )
    assert watch.thermal == {"before": {"temperature_c": 67}, "after": {"temperature_c": 63}}


def test_the_first_visible_gpu_is_metered_and_why_none_is(nvidia, monkeypatch):
    def absent(words):
        return pytest.raises(energy.Absent, match=words)

    with absent("^nvidia-ml-py is not installed$"):
        energy.meter("gpu")
    nvidia("DeviceGetTotalEnergyConsumption")
    with absent("does not count its"):
        energy.meter("gpu")
    for visible, chosen in (("2,1", 2), ("GPU-5a1e", "GPU-5a1e")):
        nvml = nvidia()
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert energy.meter("gpu").rails.keys() == {"gpu"}
        assert [given for name, *given in nvml.asked if "Handle" in name] == [[chosen]]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    with absent("^CUDA_VISIBLE_DEVICES hides the GPU$"):
        energy.meter("gpu")


@pytest.fixture
def rapl(linux):
    """Two packages of which one has memory; counters wrap at 1000 J. Three zones must not count."""
    zones = {"0": "package-0", "1": "package-1", "0:1": "dram", "0:0": "core", "2": "psys"}
    places = {f"intel-rapl:{number}": name for number, name in zones.items()}
    for place, name in (places | {"intel-rapl-mmio:0": "package-0"}).items():
        folder = linux / "powercap" / place
        put(folder, name=name, energy_uj=10**6, max_energy_range_uj=10**9)

    def advance(joules):
        for zone, energy_j in joules.items():
            file = linux / "powercap" / f"intel-rapl:{zone}" / "energy_uj"
            file.write_text(str((int(file.read_text()) + round(1e6 * energy_j)) % 10**9))

    return advance


def test_rapl_adds_packages_and_memory_across_wraps(rapl, clock):
    # 60 W and 30 W of packages, 3 W of memory, over 50 s: the first counter wraps thrice.
    moved = {"0": 600, "1": 300, "0:1": 30, "0:0": 500, "2": 1000}
    watch = drive(clock, range(0, 60, 10), lambda: clock.now and rapl(moved))
    assert (value(watch, "energy_j"), value(watch, "power_w")) == pytest.approx((50 * 93, 93))
    assert watch.rails == ["cpu", "dram"]
    assert [value(watch, f"power_{rail}_w") for rail in watch.rails] == pytest.approx([90, 3])


def test_each_device_has_its_meter_and_rapl_may_be_for_root_only(rapl, nvidia, monkeypatch):
    nvidia()
    assert [[*energy.meter(device).rails] for device in ("cpu", "gpu")] == [
        ["cpu", "dram"],
        ["gpu"],
    ]

    read = Path.read_text

    def refuse(path):
        if path.name == "energy_uj":
            raise PermissionError(13, "Permission denied", str(path))
        return read(path)

    monkeypatch.setattr(Path, "read_text", refuse)
    with pytest.raises(
        energy.Absent, match=r"^this system lets only root read the RAPL energy counters$"
    ):
        energy.meter("cpu")


class Chip:
    """A chip of 30 W at work and 5 W at rest, each rail half of it, whose counters move seldom."""

    def __init__(self, clock, periods_s, phase_s=0.0):
        self.clock = clock
        self.periods_s = periods_s
        self.phase_s = phase_s
        self.work_s = 0.0  # of all time so far
        self.stuck = set()

    def meter(self, kind):
        return energy.Meter(dict(self.periods_s), self.joules, {})

    def joules(self):
        now = self.clock() + self.phase_s
        shown = {}
        for rail, period_s in self.periods_s.items():
            at = now - now % period_s
            shown[rail] = 0.0 if rail in self.stuck else self.at(at - self.phase_s)
        return shown

    def at(self, time_s):
        """Joules of a rail: rest until 10 s, then work until 40 s."""
        work_s = min(max(time_s - 10, 0), 30)
        return (5 * time_s + 25 * work_s) / 2

    def watch(self, monkeypatch, kind="cpu", step_s=0.1, stretches=1):
        """The metrics of 24 s of steady steps from 12 s on, in so many stretches."""
        monkeypatch.setattr(energy, "meter", self.meter)
        counter = energy.EnergyCounter(kind, self.clock)
        self.clock.now = 5.0
        first = counter.read()
        self.clock.now = 12.0
        steps = 0
        for stretch in range(stretches):
            counter.steady(stretch, steps)
            for _ in range(round(24 / stretches / step_s)):
                self.clock.now += step_s
                steps += 1
                counter.steady(stretch, steps)
            self.clock.now += 0.5  # something else
        return counter, counter.metrics(first, counter.read())


@pytest.mark.parametrize("period_s", [0.01, 0.1, 0.8, 2.1])
@pytest.mark.parametrize("stretches", [1, 3])
def test_the_true_joules_of_a_step_are_within_two_periods(monkeypatch, period_s, stretches):
    share = 2 * period_s * math.sqrt(stretches) / 24
    for phase_s in (0.0, 0.3, 0.7):
        chip = Chip(Clock(), {"cpu": period_s, "dram": 0.01}, phase_s * period_s)
        _, found = chip.watch(monkeypatch, stretches=stretches)
        step = found["energy_cpu_j_per_step"]
        if share > 0.25:
            assert step.startswith("a counter that moves every 2.1 s is too coarse for 24 s")
            continue
        assert step.low <= 30 / 2 * 0.1 <= step.high and step.n == 240
        assert step.high / step.value - 1 == pytest.approx(share, rel=0.01)
        whole = found["energy_j_per_step"]
        assert whole.value == pytest.approx(3.0, rel=share) and whole.low <= 3.0 <= whole.high
        assert found["power_w"].value == pytest.approx(30, rel=share)


def test_what_ran_between_stretches_is_in_no_step(monkeypatch):
    chip = Chip(Clock(), {"cpu": 0.001})
    counter, found = chip.watch(monkeypatch, stretches=4)
    assert found["energy_j_per_step"].value == pytest.approx(1.5, rel=1e-3)
    assert [end.steps - begin.steps for begin, end in counter._steady] == [60] * 4


def test_a_counter_that_stands_still_is_absent_and_a_gpu_at_rest_takes_no_steps(monkeypatch):
    chip = Chip(Clock(), {"cpu": 0.01, "gpu": 0.01, "dram": 0.01})
    chip.stuck = {"dram"}
    counter, found = chip.watch(monkeypatch)
    assert found["power_dram_w"] == "its counter stood still" and counter.rails == ["cpu", "gpu"]
    assert "energy_gpu_j_per_step" not in found and "energy_cpu_j_per_step" in found
    chip = Chip(Clock(), {"cpu": 0.01, "gpu": 0.01})
    chip.stuck = {"cpu"}
    with pytest.raises(energy.Absent, match="stood still"):
        chip.watch(monkeypatch)


def test_macos_27_counts_all_but_the_gpu_seldom(apple, clock, monkeypatch):
    apple()
    for version, period_s in (("26.3", 0.01), ("27.0", 2.1)):
        monkeypatch.setattr(energy.platform, "mac_ver", lambda version=version: (version, (), ""))
        assert energy.meter("gpu").rails == {"cpu": period_s, "gpu": 0.01, "dram": period_s}
    watch = drive(clock, [0, 5], kind="gpu")
    assert watch.absent["power_w"] == "a counter that moves every 2.1 s is too coarse for 5 s"
    assert "power_gpu_w" in watch.metrics()
