"""Which size of a device a name means where it leaves the size open: `A100`, `M3 Max`."""

from __future__ import annotations

import functools

from pomology.articles import devices
from pomology.articles.devices import Catalogue
from pomology.articles.names import listed
from pomology.format import one_line
from pomology.machine import snapshot

MOST_SHARED = "the one with most work in common"  # why a size is taken
OF_MACHINE = ", this machine's"  # the end of a note of `devices.resolve`


@functools.cache
def _catalogue() -> Catalogue:
    """Return all devices: those with a data sheet, the smallest first, then the most published."""
    order = dict.fromkeys([*devices.sheets(), *devices.with_results().names])
    return Catalogue(tuple(order), MOST_SHARED, "published time or data sheet")


def variants(name: str) -> list[str]:
    """Return the devices that a name may mean, those first that are taken of equal ones.

    Raises PomologyError, in one line with similar names, for an unknown name.
    """
    usual = devices.resolve(name, _catalogue(), snapshot.gpus())
    # The name states the size, or this machine does.
    exact = not usual.note and usual.name in devices.sheets()
    if exact or usual.note.endswith(OF_MACHINE):
        return [usual.name]
    return devices.variants(name, _catalogue()) or [usual.name]


def note(name: str, device: str, others: list[str], is_shared: bool) -> str:
    """Return how a device was chosen for a name, "" where there was no choice.

    others: all devices that the name may mean. is_shared: whether the device has work in common
    with what it is compared with.
    """
    if others == [device]:
        return devices.resolve(name, _catalogue(), snapshot.gpus()).note
    if is_shared:
        reason = f", {MOST_SHARED}"
    elif device != others[0]:  # which is the other device of the comparison
        reason = ""
    elif device in devices.sheets():
        reason = f", {devices.with_data_sheet().first}"
    else:
        reason = f", {devices.with_results().first}"
    # A name without a size leaves the choice open again.
    sizes = [f"'{other}'" for other in others if other != device and _has_size(other)]
    remedy = f"; say {listed(sizes)} for another size" if sizes else ""
    unstated = "" if _has_size(device) else ", whose size is not stated"
    return f"{one_line(name)}: taken as {device}{unstated}{reason}{remedy}"


def _has_size(device: str) -> bool:
    return any(devices.parse(device).size)
