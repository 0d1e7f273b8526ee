"""Gauges of load, temperature and clock: of every system, of NVIDIA's driver, and of a Mac.

`gauges` returns for each metric what reads it, or the reason why this machine lacks it. A gauge
raises Absent where a reading is missing or impossible, and then counts for nothing.
"""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any, Self

import psutil

from pomology.machine import energy, mac_sensors
from pomology.machine.energy import Absent

# Metric -> the least and largest reading that can be right.
POSSIBLE = {
    "cpu_load": (0.0, 1.0),
    "memory_load": (0.0, 1.0),
    "gpu_load": (0.0, 1.0),
    "temperature_c": (1.0, 130.0),  # chips slow down at some 100 °C, and switch off above
    "clock_hz": (1e6, 1e10),
}
LINUX_CPUS = ("coretemp", "k10temp", "zenpower", "cpu_thermal")  # drivers of CPUs' sensors
OF_GPU = ("gpu_load", "clock_hz")
CPU_LEAST_S = 0.2  # of all cores together; Linux counts in steps of 0.01 s for each core
PIPE_BYTES = 65_536
STALE_S = 30.0  # age of a Mac's last reading from which on its reader counts as stuck
# Without `site` it starts in a twentieth of a second.
MAC_READER = (sys.executable, "-I", "-S", mac_sensors.__file__)
Gauge = Callable[[], float | None]


def gauges(kind: str, stack: contextlib.ExitStack, clock: Callable[[], float]) -> dict[str, Any]:
    """Return for each metric a function that reads it, or the Absent that says why none does.

    kind: of the device that is timed, "cpu" or "gpu". stack: closes what has been started for it.
    clock: of the samples, in seconds.
    """
    readers: dict[str, Gauge | Absent] = {
        "cpu_load": CpuLoad().read,
        "memory_load": lambda: psutil.virtual_memory().percent / 100,
    }
    if sys.platform == "darwin":
        mac = stack.enter_context(MacSensors(clock))
        readers["temperature_c"] = lambda: mac.temperature_c(kind)
        readers["clock_hz"] = Absent("macOS tells the clock to administrators only")
        if kind == "gpu":
            readers["gpu_load"] = mac.gpu_load
    elif kind == "gpu":
        readers |= _nvidia()
    else:
        readers["temperature_c"] = linux_cpu_c
    return {name: _checked(name, gauge) for name, gauge in readers.items()}


def _checked(name: str, gauge: Gauge | Absent) -> Gauge | Absent:
    """Return a gauge that raises Absent for a reading that cannot be right."""
    if isinstance(gauge, Absent):
        return gauge
    least, most = POSSIBLE[name]

    def read() -> float | None:
        reading = gauge()
        if reading is not None and not least <= reading <= most:  # also NaN
            raise Absent(f"its sensor read {reading:.4g}, which cannot be")
        return reading

    return read


class CpuLoad:
    """Share of all cores' time that was used since the last reading."""

    def __init__(self):
        self._before = psutil.cpu_times()

    def read(self) -> float | None:
        """Return the share; None so soon after the last reading that the clocks hardly moved."""
        after = psutil.cpu_times()
        spent_s = {
            name: max(0.0, seconds - getattr(self._before, name))
            for name, seconds in after._asdict().items()
            if not name.startswith("guest")  # is part of `user`
        }
        total_s = sum(spent_s.values())
        if total_s < CPU_LEAST_S:
            return None
        self._before = after
        return 1 - (spent_s["idle"] + spent_s.get("iowait", 0.0)) / total_s


def linux_cpu_c() -> float:
    """Return the highest temperature of the CPU in °C. Raises Absent."""
    sensors = psutil.sensors_temperatures()
    readings = [sensor.current for name in LINUX_CPUS for sensor in sensors.get(name, ())]
    if not readings:
        raise Absent("Linux lists no sensor of the CPU's temperature here")
    return max(readings)


def _nvidia() -> dict[str, Gauge | Absent]:
    try:
        nvml, gpu = energy.nvml_gpu()
    except Absent as error:
        return {"temperature_c": error} | dict.fromkeys(OF_GPU, error)
    return {
        "temperature_c": lambda: nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU),
        "clock_hz": lambda: 1e6 * nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM),
        "gpu_load": lambda: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100,
    }


class MacSensors:
    """The process that reads a Mac's sensors, see `mac_sensors`, in a `with` block.

    clock: of the samples, in seconds. Its readings raise Absent once the process has ended.
    """

    def __init__(self, clock: Callable[[], float]):
        self._clock = clock
        self._process: subprocess.Popen | None = None
        self._unread = b""
        self._last: dict[str, Any] = {}
        self._last_s = 0.0

    def __enter__(self) -> Self:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        # For `close_fds` see `snapshot.run_command`.
        options = {"stderr": subprocess.DEVNULL, "bufsize": 0, "close_fds": False}
        self._process = subprocess.Popen(MAC_READER, **pipes, **options)
        os.set_blocking(self._process.stdout.fileno(), False)
        self._last_s = self._clock()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()

    def gpu_load(self) -> float | None:
        """Return the GPU's load; None before the first reading. Raises Absent."""
        reading = self._reading()
        if reading and reading["gpu_load"] is None:
            raise Absent("macOS tells no load of this GPU")
        return reading.get("gpu_load")

    def temperature_c(self, kind: str) -> float | None:
        """Return the temperature of `cpu` or `gpu`; None before the first. Raises Absent."""
        reading = self._reading()
        if not reading:
            return None
        celsius = mac_sensors.temperature_c(reading["temperatures_c"], kind)
        if celsius is None:
            raise Absent("macOS names no temperature sensor of this chip's die")
        return celsius

    def _reading(self) -> dict[str, Any]:
        """Return the last reading, empty before the first one. Raises Absent."""
        while chunk := self._process.stdout.read(PIPE_BYTES):  # None where nothing has come
            self._unread += chunk
        *lines, self._unread = self._unread.split(b"\n")
        if lines:
            self._last = json.loads(lines[-1])
            self._last_s = self._clock()
        status = self._process.poll()
        if status is not None:
            raise Absent(f"the reader of macOS's sensors ended with status {status}")
        if self._clock() - self._last_s > STALE_S:
            raise Absent(f"macOS's sensors did not answer for {STALE_S:g} s")
        return self._last
