"""Load and temperature: of published outputs, of readers that die or stop, and of this machine."""

import contextlib
import ctypes
import json
import os
import sys
import time
import types
from collections import namedtuple

import psutil
import pytest
from watched import drive, value

from pomology.machine import mac_sensors, sensors
from pomology.machine.energy import Absent

GITHUB = "https://github.com/"
# What `ioreg -r -d 1 -w 0 -c IOAccelerator` prints, and the load.
IOREG = [
    (
        '"PerformanceStatistics" = {"TiledSceneBytes"=1572864,"Alloc system memory"=1214005248,'
        '"Tiler Utilization %"=2,"recoveryCount"=0,"Renderer Utilization %"=2,"SplitSceneCount"=0,'
        '"Device Utilization %"=2,"In use system memory"=340983808}',
        0.02,
        "exelban/stats/issues/1094",
    ),
    ('"PerformanceStatistics" = {"In use system memory (driver)"=0}', None, ""),
    ("", None, ""),
]
# Sensors as tools list them, and the temperatures of the CPU and the GPU.
M1 = {"pACC MTR Temp Sensor2": 61.0, "eACC MTR Temp Sensor0": 48.0, "GPU MTR Temp Sensor1": 55.0}
M1 |= {"SOC MTR Temp Sensor1": 70.0, "PMU tdie1": 66.0}
M2 = {"PMU tdie1": 70.7, "PMU2 tdie2": 74.2, "PMU tdev1": -9202.86, "PMU tcal": 51.85}
M2 |= {"NAND CH0 temp": 42.0, "gas gauge battery": 31.8, "PMU tdie9": 201.0}
SENSORS = [
    (M1, 61.0, 55.0),
    (M2, 74.2, 74.2),
    ({"GPU MTR Temp Sensor1": 0.0, "PMU tdie1": 40.0}, 40.0, 40.0),
    ({"NAND CH0 temp": 42.0}, None, None),
]


@pytest.mark.parametrize(("text", "load", "address"), IOREG)
def test_load_of_a_mac_s_gpu(text, load, address):
    assert mac_sensors.gpu_load(text) == load, GITHUB + address


@pytest.mark.parametrize(("readings", "cpu_c", "gpu_c"), SENSORS)
def test_temperatures_of_a_mac(readings, cpu_c, gpu_c):
    assert mac_sensors.temperature_c(readings, "cpu") == cpu_c
    assert mac_sensors.temperature_c(readings, "gpu") == gpu_c


class Library:
    """CoreFoundation and IOKit with three sensors; counts what is created and released.

    A service is its number, a name or event the number plus 100 or 200, a text its bytes.
    """

    SENSORS = (("PMU tdie1", 60.5), ("PMU tdie1", 71.25), ("no event", None))

    def __init__(self):
        self.alive = []
        self.asked = {}
        for name in dir(type(self)):
            if name.startswith(("CF", "IOHID")):
                method = getattr(self, name)
                # A function whose types can be set, as ctypes' can.
                setattr(self, name, lambda *given, method=method: method(*given))

    def created(self, item):
        self.alive.append(item)
        return item

    def CFRelease(self, item):
        self.alive.remove(item)

    def CFStringCreateWithCString(self, allocator, text, encoding):
        assert encoding == mac_sensors.UTF8
        return text

    def CFNumberCreate(self, allocator, kind, address):
        return address._obj.value

    def CFDictionaryCreateMutable(self, allocator, count, keys, values):
        return "matching"

    def CFDictionarySetValue(self, dictionary, key, value):
        self.asked[key] = value

    def IOHIDEventSystemClientCreate(self, allocator):
        return "client"

    def IOHIDEventSystemClientSetMatching(self, client, matching):
        assert (client, matching) == ("client", "matching")

    def IOHIDEventSystemClientCopyServices(self, client):
        return self.created("services")

    def CFArrayGetCount(self, services):
        return len(self.SENSORS)

    def CFArrayGetValueAtIndex(self, services, index):
        return index

    def IOHIDServiceClientCopyProperty(self, service, key):
        assert key == b"Product"
        return self.created(100 + service)

    def IOHIDServiceClientCopyEvent(self, service, kind, *zeros):
        assert kind == 15 and zeros == (0, 0)
        return None if self.SENSORS[service][1] is None else self.created(200 + service)

    def CFStringGetCString(self, name, buffer, size, encoding):
        buffer.value = self.SENSORS[name - 100][0].encode()
        return True

    def IOHIDEventGetFloatValue(self, event, field):
        assert field == 15 << 16
        return self.SENSORS[event - 200][1]


@pytest.fixture
def library(monkeypatch):
    library = Library()
    monkeypatch.setattr(mac_sensors, "_library", lambda framework: library)
    callbacks = types.SimpleNamespace(in_dll=lambda *_: ctypes.c_byte())
    parts = {name: getattr(ctypes, name) for name in ("addressof", "byref")}
    parts |= {"c_byte": callbacks, "create_string_buffer": ctypes.create_string_buffer}
    monkeypatch.setattr(mac_sensors, "ctypes", types.SimpleNamespace(**parts))
    return library


def test_the_sensors_of_iokit_are_read_and_all_is_released(library):
    read = mac_sensors.hid_reader()
    assert library.asked == {b"PrimaryUsagePage": 0xFF00, b"PrimaryUsage": 5}
    for _ in range(2):
        assert read() == {"PMU tdie1": 71.25}  # the hottest of one name
        assert library.alive == []


def test_the_reader_prints_a_line_and_ends_with_its_input(library, monkeypatch, capsys):
    command = (sys.executable, "-c", f"print({IOREG[0][0]!r})")
    monkeypatch.setattr(mac_sensors, "IOREG", command)
    output, end = os.pipe()
    os.close(end)
    with open(output) as closed:
        monkeypatch.setattr(sys, "stdin", closed)
        mac_sensors.main()
    line = json.loads(capsys.readouterr().out)
    assert line == {"gpu_load": 0.02, "temperatures_c": {"PMU tdie1": 71.25}}


LINE = json.dumps({"gpu_load": 0.5, "temperatures_c": {"PMU tdie1": 60.0}})
NO_LOAD = json.dumps({"gpu_load": None, "temperatures_c": {}})
WAITS = "input()"


@pytest.fixture
def reader(monkeypatch, clock):
    """reader(code): a Mac's sensors, read by a program of this code."""
    with contextlib.ExitStack() as stack:

        def start(code):
            monkeypatch.setattr(sensors, "MAC_READER", (sys.executable, "-I", "-S", "-c", code))
            return stack.enter_context(sensors.MacSensors(clock))

        yield start


def wait_for(read):
    """Return the first reading that is not None; the reader is another process."""
    for _ in range(2_000):
        reading = read()
        if reading is not None:
            return reading
        time.sleep(0.01)
    raise AssertionError("no reading")


def test_the_last_line_of_the_reader_counts(reader):
    later = LINE.replace("0.5", "0.75")
    mac = reader(f"print({LINE!r}); print({later!r}, flush=True); {WAITS}")
    assert wait_for(mac.gpu_load) == 0.75
    assert mac.temperature_c("gpu") == mac.temperature_c("cpu") == 60


DEATHS = {
    "raise SystemExit(3)": "ended with status 3",
    "import os; os.abort()": "ended with status -6",  # by a signal, as a wrong pointer would
    f"print({LINE!r}, flush=True); raise SystemExit(0)": "ended with status 0",
}


@pytest.mark.parametrize("code", DEATHS)
def test_a_reader_that_dies_is_absent_with_its_status(reader, code):
    mac = reader(code)
    mac._process.wait()
    for read in (mac.gpu_load, lambda: mac.temperature_c("gpu")):
        with pytest.raises(Absent, match=DEATHS[code]):
            read()


def test_a_reader_that_stops_and_a_mac_without_sensors_are_absent(reader, clock):
    mac = reader(f"print({LINE!r}, flush=True); {WAITS}")
    assert wait_for(mac.gpu_load) == 0.5
    clock.now = sensors.STALE_S + 1
    with pytest.raises(Absent, match="did not answer for 30 s"):
        mac.gpu_load()
    mac = reader(f"print({NO_LOAD!r}, flush=True); {WAITS}")
    with pytest.raises(Absent, match="tells no load of this GPU"):
        wait_for(mac.gpu_load)
    with pytest.raises(Absent, match="names no temperature sensor"):
        mac.temperature_c("cpu")


def test_a_mac_s_load_and_temperature_are_of_the_case(apple, clock, monkeypatch):
    apple()
    monkeypatch.setattr(sensors, "MAC_READER", (sys.executable, "-c", f"print({LINE!r}); {WAITS}"))
    monkeypatch.setattr(sensors.MacSensors, "gpu_load", lambda mac: 0.9 if clock.now else 0.1)
    monkeypatch.setattr(sensors.MacSensors, "temperature_c", lambda mac, kind: 50 + clock.now)
    watch = drive(clock, range(5), kind="gpu")
    assert value(watch, "gpu_load") == pytest.approx((0.1 + 4 * 0.9) / 5)
    assert value(watch, "gpu_load_peak") == 0.9 and value(watch, "temperature_c") == 54


@pytest.mark.parametrize("wrong", [-1, 1.01, float("nan"), 2.684e8])
def test_an_impossible_reading_is_absent_and_not_averaged(nvidia, clock, wrong):
    nvml = nvidia()

    def sample():
        if clock.now == 3:
            rates = types.SimpleNamespace(gpu=100 * wrong, memory=0)
            nvml.nvmlDeviceGetUtilizationRates = lambda gpu: rates

    watch = drive(clock, range(6), sample, "gpu")
    assert watch.absent["gpu_load"] == f"its sensor read {wrong:.4g}, which cannot be"
    assert "gpu_load" not in watch.metrics and "gpu_load_peak" not in watch.metrics


def test_a_hot_sensor_of_linux(linux, clock, monkeypatch):
    def sensor(celsius):
        return types.SimpleNamespace(current=celsius)

    readings = {"k10temp": [sensor(61.5), sensor(70.25)], "nvme": [sensor(80.0)]}
    monkeypatch.setattr(psutil, "sensors_temperatures", lambda: readings, raising=False)
    assert value(drive(clock, range(3)), "temperature_c") == 70.25
    readings.pop("k10temp")
    absent = drive(clock, range(3)).absent
    assert absent["temperature_c"] == "Linux lists no sensor of the CPU's temperature here"


def test_the_load_is_the_busy_share_of_all_cores(monkeypatch):
    """Guests are part of `user`, and waiting for a disk is no work."""
    Times = namedtuple("Times", "user system idle iowait steal guest")
    soon, later = Times(0.01, 0, 0, 0, 0, 0), Times(3, 1, 4, 1, 1, 3)
    times = iter([Times(0, 0, 0, 0, 0, 0), soon, later, later])
    monkeypatch.setattr(psutil, "cpu_times", lambda: next(times))
    load = sensors.CpuLoad()
    assert load.read() is None  # too soon
    assert load.read() == pytest.approx(5 / 10)
    assert load.read() is None
