"""Readers of sensors and vendors' libraries, on values that owners of such machines have published.

Of each output only the lines that are read; its address is next to it.
"""

import types

import psutil
import pytest

from pomology.machine import energy, sampler, snapshot

GITHUB = "https://github.com/"


@pytest.fixture
def mac(monkeypatch):
    """mac(answers): mock macOS's commands by their names with arguments."""

    def install(answers: dict[str, str]) -> None:
        monkeypatch.setattr("sys.platform", "darwin")
        monkeypatch.setattr(snapshot, "run_command", lambda *words: answers.get(" ".join(words)))

    return install


# Chip, levels of cores from the first on, the kinds that result, and where it was published.
CORES = [
    ("Apple M2 Max", [("Performance", 8), ("Efficiency", 4)], (8, 4), "oshi/oshi/issues/3537"),
    ("Apple M5 Max", [("Super", 6), ("Performance", 12)], (18, 0), "kennss/SiliconScope/issues/30"),
]


@pytest.mark.parametrize(("chip", "levels", "kinds", "address"), CORES)
def test_kinds_of_cores(mac, chip, levels, kinds, address):
    answers = {"sysctl -n hw.nperflevels": f"{len(levels)}\n"}
    answers["sysctl -n machdep.cpu.brand_string"] = f"{chip}\n"
    for number, (name, count) in enumerate(levels):
        answers[f"sysctl -n hw.perflevel{number}.name"] = f"{name}\n"
        answers[f"sysctl -n hw.perflevel{number}.physicalcpu"] = f"{count}\n"
    mac(answers)
    assert snapshot.chip() == chip and snapshot._cores_by_kind() == kinds, GITHUB + address


# A line of `pmset -g`, the mode that it means, and where it was published.
MODES = [
    (
        " lowpowermode         0",
        "automatic",
        "AppHouseKitchen/AlDente-Battery_Care_and_Monitoring/issues/603",
    ),
    (" powermode            0", "automatic", "alfredapp/low-power-mode-workflow/issues/6"),
    (" powermode            1", "low", "alfredapp/low-power-mode-workflow/issues/4"),
    (" powermode            2", "high", "alfredapp/low-power-mode-workflow/issues/4"),
]


@pytest.mark.parametrize(("line", "mode", "address"), MODES)
def test_power_modes(mac, line, mode, address):
    mac({"pmset -g": f"Currently in use:\n standby              1\n{line}\n womp 1\n"})
    assert snapshot._power()[1] == mode, GITHUB + address


# Bytes of a page, then pages swapped in and out, compressed and decompressed.
VM_STAT = [
    ((4096, 32669611, 34330610, 43459639, 33640670), "kamkor/akka-cluster-load-balancing/issues/2"),
    ((4096, 0, 0, 0, 0), "wazuh/wazuh/issues/22113"),
]


@pytest.mark.parametrize(("counts", "address"), VM_STAT)
def test_swap_and_compression(mac, monkeypatch, counts, address):
    page_bytes, swapped_in, swapped_out, compressed, decompressed = counts
    text = f"""Mach Virtual Memory Statistics: (page size of {page_bytes} bytes)
Pages free:                              264375.
"Translation faults":                 880109291.
Decompressions:                        {decompressed}.
Compressions:                          {compressed}.
Pageins:                               10427527.
Swapins:                               {swapped_in}.
Swapouts:                              {swapped_out}.
"""
    mac({"vm_stat": text})
    monkeypatch.setattr(psutil, "swap_memory", lambda: types.SimpleNamespace(used=5))
    assert sampler.swap_counters() == {
        "swap_bytes": 5,
        "swapped_bytes": page_bytes * (swapped_in + swapped_out),
        "compressed_bytes": page_bytes * (compressed + decompressed),
    }, GITHUB + address


def test_a_gpu_that_counts_no_energy_has_no_meter(nvidia):
    """A Jetson refuses each of these, as HazyResearch/intelligence-per-watt/issues/40 lists."""
    nvml = nvidia()

    def refuse(*_):
        raise nvml.NVMLError("Not Supported")

    nvml.nvmlDeviceGetTotalEnergyConsumption = refuse
    nvml.nvmlDeviceGetTemperature = nvml.nvmlDeviceGetClockInfo = refuse
    with pytest.raises(energy.Absent, match=r"^this GPU does not count its energy: Not Supported"):
        energy.meter("gpu")
    with sampler.Sampler("gpu") as watch:
        pass
    assert watch.absent["power_w"] == "this GPU does not count its energy: Not Supported"
    assert {"temperature_c", "clock_hz"} <= watch.absent.keys()
    assert watch.metrics.keys() >= {"footprint_peak_bytes", "page_faults"}


def test_a_split_gpu_has_no_meter_of_its_own(nvidia):
    """Its mode is [1, 1], as XuehaiPan/nvitop/issues/5 prints it."""
    nvml = nvidia()
    nvml.nvmlDeviceGetMigMode = lambda handle: [1, 1]
    with pytest.raises(energy.Absent, match=r"^a MIG instance shares the counters"):
        energy.meter("gpu")
