"""The size of this CPU's last-level cache."""

from pathlib import Path

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


def last_level_bytes() -> int | None:
    """Return the size of the last-level cache; None where the system lists none."""
    # A cache has a folder `index0`, `index1`, ... with its size in KiB, such as `1024K`.
    sizes = [int(file.read_text().strip("K\n")) for file in CACHES.glob("index*/size")]
    return 1024 * max(sizes) if sizes else None
