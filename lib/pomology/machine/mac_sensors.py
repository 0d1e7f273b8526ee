"""Load of the GPU and temperatures of an Apple chip, which macOS tells without root.

The temperatures come from IOKit's HID sensors, an interface that Apple does not document: the
functions and constants are those that macmon calls (github.com/vladkens/macmon). A wrong call can
end its process, so a process of its own reads them. It starts as `python -I -S mac_sensors.py`,
prints one line of JSON for every reading, and ends when its standard input is closed.
"""

import ctypes
import json
import re
import select
import subprocess
import sys
from collections.abc import Callable
from ctypes import c_bool, c_char_p, c_double, c_int32, c_int64, c_long, c_uint32, c_void_p
from typing import Any

INTERVAL_S = 2.0
APPLE_PAGE, TEMPERATURE_USAGE = 0xFF00, 0x0005  # kHIDPage_AppleVendor and its temperature sensors
TEMPERATURE_EVENT = 15  # kIOHIDEventTypeTemperature
UTF8 = 0x08000100  # kCFStringEncodingUTF8
SINT32 = 3  # kCFNumberSInt32Type
NAME_BYTES = 256
HOTTEST_C = 150.0
IOREG = ("/usr/sbin/ioreg", "-r", "-d", "1", "-w", "0", "-c", "IOAccelerator")
# Names of the sensors of the M1's cores and GPU. Later chips name those of the whole die only.
OF_KIND = {"cpu": re.compile(r"[pe]ACC\d* MTR"), "gpu": re.compile(r"GPU MTR")}
OF_DIE = re.compile(r"PMU2? tdie")


def gpu_load(ioreg: str) -> float | None:
    """Return the share of time in which the GPU was busy, from what `ioreg` prints about it."""
    percent = re.search(r'"Device Utilization %"=(\d+)', ioreg)
    return int(percent[1]) / 100 if percent else None


def temperature_c(sensors: dict[str, float], kind: str) -> float | None:
    """Return the highest temperature of the `cpu` or `gpu`, or else of the die, in °C.

    sensors: name -> °C. A sensor that is switched off reads 0, -9201, or what no chip survives.
    """
    on = {name: value for name, value in sensors.items() if 0 < value < HOTTEST_C}
    for pattern in (OF_KIND[kind], OF_DIE):
        values = [value for name, value in on.items() if pattern.match(name)]
        if values:
            return max(values)
    return None


def hid_reader() -> Callable[[], dict[str, float]]:
    """Return a function that reads all temperature sensors: name -> °C."""
    core = _library("CoreFoundation")
    io = _library("IOKit")
    # Function -> the types of its result and its arguments.
    core_types = {
        "CFStringCreateWithCString": (c_void_p, [c_void_p, c_char_p, c_uint32]),
        "CFStringGetCString": (c_bool, [c_void_p, c_char_p, c_long, c_uint32]),
        "CFNumberCreate": (c_void_p, [c_void_p, c_long, c_void_p]),
        "CFDictionaryCreateMutable": (c_void_p, [c_void_p, c_long, c_void_p, c_void_p]),
        "CFDictionarySetValue": (None, [c_void_p, c_void_p, c_void_p]),
        "CFArrayGetCount": (c_long, [c_void_p]),
        "CFArrayGetValueAtIndex": (c_void_p, [c_void_p, c_long]),
        "CFRelease": (None, [c_void_p]),
    }
    io_types = {
        "IOHIDEventSystemClientCreate": (c_void_p, [c_void_p]),
        "IOHIDEventSystemClientSetMatching": (c_int32, [c_void_p, c_void_p]),
        "IOHIDEventSystemClientCopyServices": (c_void_p, [c_void_p]),
        "IOHIDServiceClientCopyProperty": (c_void_p, [c_void_p, c_void_p]),
        "IOHIDServiceClientCopyEvent": (c_void_p, [c_void_p, c_int64, c_int32, c_int64]),
        "IOHIDEventGetFloatValue": (c_double, [c_void_p, c_int64]),
    }
    for library, types in ((core, core_types), (io, io_types)):
        for name, (result, arguments) in types.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments

    def text(value: bytes) -> int:
        return core.CFStringCreateWithCString(None, value, UTF8)

    # {PrimaryUsagePage: 0xff00, PrimaryUsage: 5}; CoreFoundation's callbacks retain its items.
    callbacks = [
        ctypes.addressof(ctypes.c_byte.in_dll(core, name))
        for name in ("kCFTypeDictionaryKeyCallBacks", "kCFTypeDictionaryValueCallBacks")
    ]
    matching = core.CFDictionaryCreateMutable(None, 2, *callbacks)
    for key, number in ((b"PrimaryUsagePage", APPLE_PAGE), (b"PrimaryUsage", TEMPERATURE_USAGE)):
        value = core.CFNumberCreate(None, SINT32, ctypes.byref(c_int32(number)))
        core.CFDictionarySetValue(matching, text(key), value)
    client = io.IOHIDEventSystemClientCreate(None)
    io.IOHIDEventSystemClientSetMatching(client, matching)
    product = text(b"Product")

    def reading(service: int) -> tuple[str, float] | None:
        name = io.IOHIDServiceClientCopyProperty(service, product)
        event = io.IOHIDServiceClientCopyEvent(service, TEMPERATURE_EVENT, 0, 0)
        try:
            if not name or not event:
                return None
            buffer = ctypes.create_string_buffer(NAME_BYTES)
            core.CFStringGetCString(name, buffer, NAME_BYTES, UTF8)
            celsius = io.IOHIDEventGetFloatValue(event, TEMPERATURE_EVENT << 16)
            return buffer.value.decode("utf-8", "replace"), celsius
        finally:
            for item in (name, event):
                if item:
                    core.CFRelease(item)

    def read() -> dict[str, float]:
        services = io.IOHIDEventSystemClientCopyServices(client)
        if not services:
            return {}
        count = core.CFArrayGetCount(services)
        readings = [reading(core.CFArrayGetValueAtIndex(services, index)) for index in range(count)]
        core.CFRelease(services)
        # Several sensors have one name; sorted, the hottest comes last.
        return dict(sorted(filter(None, readings)))

    return read


def _library(framework: str) -> Any:
    return ctypes.CDLL(f"/System/Library/Frameworks/{framework}.framework/{framework}")


def main() -> None:
    """Print a reading every two seconds, until standard input is closed."""
    read = hid_reader()
    while True:
        ioreg = subprocess.run(IOREG, capture_output=True, text=True, errors="replace", check=False)
        reading = {"gpu_load": gpu_load(ioreg.stdout), "temperatures_c": read()}
        print(json.dumps(reading), flush=True)
        if select.select([sys.stdin], [], [], INTERVAL_S)[0]:
            return


if __name__ == "__main__":
    main()
