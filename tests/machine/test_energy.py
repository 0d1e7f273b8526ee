"""Energy counters of mocked chips, and joules of steady steps compared with the true ones."""

import math
import sys
import types

import pytest
from fakes import Clock
from watched import FakeChip, drive, value, work_j

from pomology.machine import energy


def test_energy_of_an_apple_chip(apple, clock):
    apple()
    watch = drive(clock, [2 + 0.5 * tick for tick in range(21)])
    expected_w = (work_j(12) - work_j(2)) / 10
    power = watch.metrics["power_w"]
    assert power.value == pytest.approx(expected_w + 5, rel=1e-4)
    assert power.high / power.value - 1 == pytest.approx(2 * 0.01 / 10)  # two periods over 10 s
    assert watch.rails == ["cpu", "gpu", "dram"]


def test_reasons_why_a_mac_has_no_energy(apple, clock, monkeypatch):
    def dies():
        pytest.fail("without counters the library ends the process")

    apple("vm", dies)
    with pytest.raises(energy.Absent, match=r"^not read in a virtual machine"):
        energy.meter("cpu")
    apple()
    monkeypatch.setitem(sys.modules, "zeus_apple_silicon", None)
    watch = drive(clock, [0, 2])
    assert watch.absent["power_w"] == "zeus-apple-silicon is not installed"
    assert "power_w" not in watch.metrics


def test_a_power_domain_that_a_chip_or_library_lacks_is_omitted(apple, clock):
    apple(monitor=lambda: FakeChip(clock, untold=("cpu_total_mj",)))
    cpu, gpu = (drive(clock, [0, 10], kind=kind) for kind in ("cpu", "gpu"))
    assert cpu.absent["power_w"] == "zeus-apple-silicon does not count all of the cpu of this chip"
    assert (cpu.rails, gpu.rails) == ([], ["gpu", "dram"])
    assert value(gpu, "power_w") == pytest.approx(0.075 * work_j(10) + 5, 1e-3)
    apple("m2-ultra")  # the library counts only one of its two dies
    assert energy.meter("gpu").rails.keys() == {"gpu", "dram"}


# GPUs of a machine (0: one that is split), CUDA_VISIBLE_DEVICES, PyTorch's UUID: handle or reason.
GPUS = [
    (1, "0", None, 0),
    (1, "GPU-b", None, "GPU-b"),
    (2, "0,1", "b", "GPU-b"),  # CUDA's first GPU is NVML's second
    (2, "0", None, "^CUDA may use any of several GPUs"),
    (1, "", None, "^NVML finds no GPU that CUDA may use"),
    (1, "-1", None, "^NVML finds no GPU that CUDA may use"),
    (1, "MIG-a", None, "^a MIG instance"),
    (0, "0", "a", "^a MIG instance"),
]


@pytest.mark.parametrize(("gpus", "visible", "uuid", "expected"), GPUS)
def test_the_gpu_in_use_is_metered_or_none(nvidia, monkeypatch, gpus, visible, uuid, expected):
    nvml = nvidia(gpus)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    cuda = types.SimpleNamespace(get_device_properties=lambda _: types.SimpleNamespace(uuid=uuid))
    cuda.is_available = lambda: uuid is not None
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda))
    if str(expected).startswith("^"):
        with pytest.raises(energy.Absent, match=expected):
            energy.meter("gpu")
    else:
        assert energy.meter("gpu").rails.keys() == {"gpu"}
        assert [given for name, *given in nvml.asked if "Handle" in name] == [[expected]]


class Chip:
    """A chip of 30 W under load and 5 W idle, half per power domain, with slow counters."""

    def __init__(self, clock, periods_s, phase_s=0.0):
        self.clock = clock
        self.periods_s = periods_s
        self.phase_s = phase_s
        self.stuck = set()

    def joules(self):
        now = self.clock() + self.phase_s
        shown = {}
        for rail, period_s in self.periods_s.items():
            at = now - now % period_s
            shown[rail] = 0.0 if rail in self.stuck else self.at(at - self.phase_s)
        return shown

    def at(self, time_s):
        """Joules of a power domain: idle until 10 s, then load until 40 s."""
        work_s = min(max(time_s - 10, 0), 30)
        return (5 * time_s + 25 * work_s) / 2

    def watch(self, monkeypatch, kind="cpu", step_s=0.1, stretches=1):
        """Return the metrics of 24 s of steady steps from 12 s on, in a number of stretches."""
        meter = energy.Meter(dict(self.periods_s), self.joules)
        monkeypatch.setattr(energy, "meter", lambda kind: meter)
        self.clock.now = 5.0
        counter = energy.EnergyCounter(kind, self.clock)
        self.clock.now = 12.0
        steps = 0
        for stretch in range(stretches):
            counter.steady(stretch, steps)
            for _ in range(round(24 / stretches / step_s)):
                self.clock.now += step_s
                steps += 1
                counter.steady(stretch, steps)
            self.clock.now += 0.5  # other work
        return counter, counter.metrics()


@pytest.mark.parametrize("period_s", [0.01, 0.8, 2.1])
@pytest.mark.parametrize("stretches", [1, 3])
def test_the_true_joules_of_a_step_are_within_two_periods(monkeypatch, period_s, stretches):
    share = 2 * period_s * math.sqrt(stretches) / 24
    for phase_s in (0.0, 0.3, 0.7):
        chip = Chip(Clock(), {"cpu": period_s, "dram": 0.01}, phase_s * period_s)
        counter, found = chip.watch(monkeypatch, stretches=stretches)
        if share > 0.25:
            why = counter.missing["energy_j_per_step"]
            assert why == "its counter updates every 2.1 s, too rarely for 24 s" and not found
            continue
        step = found["energy_j_per_step"]
        assert step.low <= 30 * 0.1 <= step.high and step.n == 240
        assert step.high / step.value - 1 == pytest.approx(share, rel=0.01)
        assert found["power_w"].value == pytest.approx(30, rel=share)


def test_a_counter_that_does_not_move_is_absent_and_an_idle_gpu_has_no_steps(monkeypatch):
    chip = Chip(Clock(), {"cpu": 0.01, "gpu": 0.01, "dram": 0.01})
    _, found = chip.watch(monkeypatch)
    assert "energy_j_per_step" in found and "energy_gpu_j_per_step" not in found
    chip = Chip(Clock(), {"cpu": 0.01, "gpu": 0.01})
    _, found = chip.watch(monkeypatch, kind="gpu")
    assert found["energy_gpu_j_per_step"].value == pytest.approx(1.5, rel=0.01)
    chip = Chip(Clock(), {"cpu": 0.01, "gpu": 0.01})
    chip.stuck = {"cpu"}
    counter, found = chip.watch(monkeypatch)
    assert found == {} and counter.missing.keys() == {"power_w", "energy_j_per_step"}
    (reason,) = set(counter.missing.values())
    assert reason == "the energy counter of the cpu stood still for 31.5 s"


# Millijoules at each second of a counter of 10 W, and what is wrong with it.
WRONG = {
    "is no number": lambda t_s: 1e4 * t_s if t_s != 12 else math.nan,
    "fell by 40 J": lambda t_s: 1e4 * (t_s - 5 * (t_s >= 12)),
    "fell by 1e+06 J": lambda t_s: 1e4 * t_s - 1e9 * (t_s == 15),
    "stood still for 5 s": lambda t_s: 1e4 * min(t_s, 10),
    "rose by 1e+06 J within 1 s": lambda t_s: 1e4 * t_s + 1e9 * (t_s >= 12),
}


@pytest.mark.parametrize("complaint", WRONG)
def test_a_counter_that_cannot_be_right_is_no_power(apple, clock, complaint):
    """The memory's counter is wrong: there is no sum, and the GPU's own energy remains."""

    class Wrong(FakeChip):
        def get_cumulative_energy(self):
            counters = super().get_cumulative_energy()
            millijoules = WRONG[complaint](self.clock())
            counters.dram_mj = millijoules if math.isnan(millijoules) else int(millijoules)
            return counters

    apple(monitor=lambda: Wrong(clock))
    counted = energy.EnergyCounter("gpu", clock)
    for clock.now in range(21):
        counted.steady("all", int(clock.now))
        counted.watch()
    metrics = counted.metrics()
    assert metrics.keys() == {"energy_gpu_j_per_step"}
    whole_s = 0.75 * work_j(20) / 20
    assert metrics["energy_gpu_j_per_step"].value == pytest.approx(whole_s, rel=1e-3)
    words = f"the energy counter of the dram {complaint}"
    assert counted.missing == dict.fromkeys(("power_w", "energy_j_per_step"), words)


@pytest.mark.parametrize(("kind", "metered"), [("cpu", True), ("gpu", False)])
def test_a_gpu_may_rest_for_seconds_while_the_cpu_computes(apple, clock, kind, metered):
    class Resting(FakeChip):
        def get_cumulative_energy(self):
            counters = super().get_cumulative_energy()
            counters.gpu_mj = int(1e3 * min(self.clock(), 10))
            return counters

    apple(monitor=lambda: Resting(clock))
    counted = energy.EnergyCounter(kind, clock)
    for clock.now in range(21):
        counted.watch()
    assert ("power_w" in counted.metrics()) == metered


def test_a_counter_that_does_not_move_in_a_short_time_is_no_power(apple, clock):
    apple(monitor=lambda: FakeChip(lambda: 3.0))
    counted = energy.EnergyCounter("cpu", clock)
    clock.now = 1.0
    assert counted.metrics() == {}
    assert counted.missing["power_w"] == "the energy counter of the cpu did not move"


def test_macos_27_updates_all_counters_but_the_gpu_s_rarely(apple, clock, monkeypatch):
    apple()
    for version, period_s in (("26.3", 0.01), ("27.0", 2.1)):
        monkeypatch.setattr(energy.platform, "mac_ver", lambda version=version: (version, (), ""))
        assert energy.meter("gpu").rails == {"cpu": period_s, "gpu": 0.01, "dram": period_s}
    watch = drive(clock, [0, 5], kind="gpu")
    assert watch.absent["power_w"] == "its counter updates every 2.1 s, too rarely for 5 s"


def test_missing_libraries_and_refused_counters_are_reasons(apple, nvidia, monkeypatch):
    nvidia()
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(energy.Absent, match=r"^nvidia-ml-py is not installed$"):
        energy.meter("gpu")

    def refused():
        raise RuntimeError("IOReport has no channels")

    apple(monitor=refused)
    words = r"^macOS does not open its energy counters: IOReport has no channels$"
    with pytest.raises(energy.Absent, match=words):
        energy.meter("gpu")
