"""Limits of a container: the control groups of Linux that this process is in, v1 and v2.

A limit holds for a group with all groups below it, so the smallest one of a group and its parents
counts. A container sees its parents only as far as the mount of the hierarchy reaches. A file that
is missing, or that may not be read, sets no limit; on macOS there is none.
"""

import contextlib
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PROCESS = Path("/proc/self")
THROTTLED_SHARE = 0.01  # of the measured time; a larger one gets a flag
# Pages of files, which the system takes back before it refuses memory: lines of memory.stat. Those
# of v1 with `total_` include the groups below.
RECLAIMABLE = (
    *("inactive_file", "active_file", "slab_reclaimable"),
    *("total_inactive_file", "total_active_file"),
)


class Mount(NamedTuple):
    """A mounted hierarchy.

    controllers: its names in v1, such as `cpu`; empty for the one hierarchy of v2. root: the group
    that stands at `point`.
    """

    controllers: frozenset[str]
    root: str
    point: Path


def groups(controller: str) -> list[Path]:
    """Return the folders of this process's group and of its parents, for `cpu`, `memory`, ...

    Of a hybrid system, v1 has the controllers that are mounted there. A container may have its
    group at the mount's root, under another name than that in /proc. Such a name has no folder, and
    that root is the last of the parents.
    """
    paths = _paths()
    mounts = _mounts()
    first = [mount for mount in mounts if controller in mount.controllers]
    second = [mount for mount in mounts if not mount.controllers]
    path = paths.get(controller if first else "")
    # Of several mounts of a hierarchy, the one that shows this process's group.
    ordered = sorted(first or second, key=lambda mount: _below(path or "", mount.root) is None)
    for mount in ordered:
        if path is None:
            continue
        inside = _below(path, mount.root)
        own = mount.point if inside is None else mount.point / inside
        parents = own.relative_to(mount.point).parents
        return [own, *(mount.point / parent for parent in parents)]
    return []


def cpu_quota() -> float | None:
    """Return the CPU time per time that the groups grant, in cores; None without a quota."""
    quotas = []
    for group in groups("cpu"):
        # v2: a quota and a period, `250000 100000`; the quota may be `max`.
        words = (_read(group / "cpu.max") or "").split()
        if not words:
            files = (group / "cpu.cfs_quota_us", group / "cpu.cfs_period_us")
            words = [(_read(file) or "").strip() for file in files]
        if len(words) == 2 and all(word.isdecimal() for word in words) and int(words[1]):
            quotas.append(int(words[0]) / int(words[1]))
    return min(quotas, default=None)


def cpus() -> int | None:
    """Return the number of CPUs that the groups grant; None where they name none."""
    counts = []
    for group in groups("cpuset"):
        for name in ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"):
            ranges = re.findall(r"(\d+)(?:-(\d+))?", _read(group / name) or "")
            if ranges:
                counts.append(sum(int(last or first) - int(first) + 1 for first, last in ranges))
                break
    return min(counts, default=None)


def free_memory_bytes() -> int | None:
    """Return the memory that new work can use before a group's limit; None without a limit."""
    free = []
    for group in groups("memory"):
        limits = [
            int(text)
            for name in ("memory.max", "memory.high", "memory.limit_in_bytes")
            if (text := (_read(group / name) or "").strip()).isdecimal()
        ]
        used = _read(group / "memory.current") or _read(group / "memory.usage_in_bytes")
        if not limits or not (used or "").strip().isdecimal():
            continue
        stat = _numbers(group / "memory.stat")
        if "total_inactive_file" in stat:  # v1 counts the group alone in the other lines
            stat = {name: count for name, count in stat.items() if name.startswith("total_")}
        reclaimable = sum(stat.get(name, 0) for name in RECLAIMABLE)
        free.append(max(0, min(limits) - max(0, int(used) - reclaimable)))
    return min(free, default=None)


def throttled_s() -> dict[Path, float]:
    """Return the seconds for which each group was stopped, since it exists."""
    seconds = {}
    for group in groups("cpu"):
        stat = _numbers(group / "cpu.stat")
        micro, nano = stat.get("throttled_usec", 0), stat.get("throttled_time", 0)  # v2, v1
        seconds[group] = micro / 1e6 + nano / 1e9
    return seconds


class Throttling:
    """Time for which a quota stops this process in successive measurements."""

    def __init__(self):
        self._measured_s = 0.0
        self._stopped_s = 0.0

    @property
    def flags(self) -> list[str]:
        """`throttled`, if over `THROTTLED_SHARE` of the measured time."""
        share = THROTTLED_SHARE * self._measured_s
        return ["throttled"] if self._stopped_s > share else []

    def begin(self) -> None:
        """Read the counters at the start of a measurement."""
        self._began_s = time.perf_counter()
        self._before_s = throttled_s()

    def end(self) -> None:
        """Add the measurement that ends here, and begin the next one."""
        began_s, before_s = self._began_s, self._before_s
        self.begin()
        self._measured_s += self._began_s - began_s
        # A counter adds up the CPUs on which a group was stopped. A process that was moved to other
        # groups in the meantime has other counters.
        if before_s.keys() == self._before_s.keys():
            grown_s = (self._before_s[group] - before_s[group] for group in before_s)
            self._stopped_s += max(0.0, *grown_s, 0.0)


def _paths() -> dict[str, str]:
    """Return the path of this process's group by controller; that of v2 by an empty name."""
    paths = {}
    for line in (_read(PROCESS / "cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        paths |= dict.fromkeys(names.split(","), path)
    return paths


def _mounts() -> list[Mount]:
    """Return the mounted hierarchies of control groups."""
    return list(_parsed(_read(PROCESS / "mountinfo") or ""))


def _parsed(text: str) -> Iterator[Mount]:
    for line in text.splitlines():
        # `31 23 0:28 / /sys/fs/cgroup rw shared:1 - cgroup cgroup rw,cpu`: before the hyphen are
        # the root and the mount point, after it the type and the options of the hierarchy.
        place, _, kind = line.partition(" - ")
        fields = place.split()
        words = kind.split()
        if len(fields) < 5 or len(words) < 3 or words[0] not in ("cgroup", "cgroup2"):
            continue
        root, point = (_unescaped(field) for field in fields[3:5])
        named = frozenset(words[2].split(",")) if words[0] == "cgroup" else frozenset()
        yield Mount(named, root, Path(point))


def _unescaped(field: str) -> str:
    """Return a field of mountinfo, in which a space is `\\040`."""
    return re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), field)


def _below(path: str, root: str) -> str | None:
    """Return a group's path within a mount, None if it is not below the mount's root."""
    if ".." in path.split("/"):  # of another namespace
        return None
    if root == "/" or path == root:
        return path.removeprefix(root).lstrip("/")
    return path.removeprefix(f"{root}/") if path.startswith(f"{root}/") else None


def _numbers(path: Path) -> dict[str, int]:
    """Return the lines `name count` of a file."""
    lines = re.findall(r"^(\w+) (\d+)$", _read(path) or "", re.MULTILINE)
    return {name: int(count) for name, count in lines}


def _read(path: Path) -> str | None:
    """Return the text of a file, None if it is missing or may not be read."""
    with contextlib.suppress(OSError):
        # A path may be in any encoding.
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    return None
