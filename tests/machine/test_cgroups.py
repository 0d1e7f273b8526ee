"""Limits of containers, on made-up hierarchies of control groups, v1 and v2."""

import os
import sys
from types import SimpleNamespace

import fakes
import psutil
import pytest

from pomology.machine import cgroups, snapshot
from pomology.machine.cgroups import Throttling

GB = 10**9
UNLIMITED = "9223372036854771712\n"  # of v1: no limit


@pytest.fixture
def system(monkeypatch, tmp_path):
    """system(cgroup, mounts, files): make up /proc/self and /sys/fs/cgroup of a Linux machine.

    cgroup: lines of /proc/self/cgroup. mounts: lines of mountinfo, in which SYS is the folder of
    the hierarchies. files: their texts by path.
    """
    process = tmp_path / "proc self"
    hierarchies = tmp_path / "sys" / "fs" / "cgroup"
    monkeypatch.setattr(cgroups, "PROCESS", process)

    def make(cgroup, mounts, files):
        process.mkdir(exist_ok=True)
        (process / "cgroup").write_text("\n".join(cgroup) + "\n")
        other = "22 1 0:20 / /proc rw,relatime shared:5 - proc proc rw"
        place = str(hierarchies).replace(" ", r"\040")
        lines = [other, *mounts]
        (process / "mountinfo").write_text("\n".join(lines).replace("SYS", place) + "\n")
        for name, text in files.items():
            path = hierarchies / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return hierarchies

    return make


def mount_1(names, root="/"):
    """Return a line of mountinfo for a hierarchy of v1."""
    return f"32 31 0:29 {root} SYS/{names} rw shared:9 - cgroup cgroup rw,{names}"


def mount_2(root="/", place="SYS"):
    """Return a line of mountinfo for the hierarchy of v2."""
    return f"30 24 0:27 {root} {place} rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate"


SLICE = "user.slice/job.scope"
V2 = (["0::/user.slice/job.scope"], [mount_2()])
V1 = (
    ["5:memory:/docker/a", "4:cpu,cpuacct:/docker/a", "3:cpuset:/docker/a", "1:name=systemd:/x"],
    [mount_1("cpu,cpuacct"), mount_1("memory"), mount_1("cpuset"), mount_1("name=systemd")],
)
HYBRID = ([*V1[0], "0::/docker/a"], [*V1[1], mount_2(place="SYS/unified")])
# Docker with v1: the host's path stands in /proc, and the container sees its own group alone.
INSIDE = (V1[0], [mount_1("cpu,cpuacct", "/docker/a"), mount_1("memory", "/docker/a")])
HIDDEN = (V1[0], [mount_1("cpu,cpuacct"), mount_1("memory")])


@pytest.mark.parametrize(
    ("shape", "files", "cores"),
    [
        (V2, {}, None),
        (V2, {f"{SLICE}/cpu.max": "max 100000\n"}, None),
        (V2, {f"{SLICE}/cpu.max": "250000 100000\n"}, 2.5),
        (V2, {f"{SLICE}/cpu.max": "max 100000\n", "user.slice/cpu.max": "50000 100000\n"}, 0.5),
        (V2, {f"{SLICE}/cpu.max": "400000 100000", "user.slice/cpu.max": "60000 20000"}, 3.0),
        (V2, {f"{SLICE}/cpu.max": "100000 100000", "user.slice/cpu.max": "60000 20000"}, 1.0),
        (V2, {f"{SLICE}/none": "", "user.slice/none": "", "cpu.max": "20000 10000\n"}, 2.0),
        (V2, {f"{SLICE}/cpu.max": "\n"}, None),
        # A group that is gone, and a container in which the process's own group is not shown.
        (V2, {"user.slice/cpu.max": "60000 100000\n"}, 0.6),
        # A private namespace: the container's group is the root of what it sees.
        ((["0::/"], [mount_2()]), {"cpu.max": "150000 100000\n"}, 1.5),
        # The same, mounted without a namespace, and a path of another namespace.
        ((["0::/kube/b"], [mount_2("/kube/b")]), {"cpu.max": "50000 100000\n"}, 0.5),
        ((["0::/kube/b/c"], [mount_2("/kube/b")]), {"c/cpu.max": "70000 100000\n"}, 0.7),
        ((["0::/kube/bc"], [mount_2("/kube/b")]), {"cpu.max": "80000 100000\n"}, 0.8),
        ((["0::/../../other"], [mount_2()]), {"cpu.max": "50000 100000\n"}, 0.5),
        (V1, {"cpu,cpuacct/docker/a/cpu.cfs_quota_us": "-1\n"}, None),
        (
            V1,
            {
                "cpu,cpuacct/docker/a/cpu.cfs_quota_us": "50000\n",
                "cpu,cpuacct/docker/a/cpu.cfs_period_us": "100000\n",
            },
            0.5,
        ),
        (
            V1,
            {
                "cpu,cpuacct/docker/a/cpu.cfs_quota_us": "-1\n",
                "cpu,cpuacct/docker/a/cpu.cfs_period_us": "100000\n",
                "cpu,cpuacct/docker/cpu.cfs_quota_us": "300000\n",
                "cpu,cpuacct/docker/cpu.cfs_period_us": "100000\n",
            },
            3.0,
        ),
        (
            HYBRID,
            {
                "cpu,cpuacct/docker/a/cpu.cfs_quota_us": "120000\n",
                "cpu,cpuacct/docker/a/cpu.cfs_period_us": "100000\n",
                "unified/docker/a/cpu.max": "10000 100000\n",  # v1 has the controller
            },
            1.2,
        ),
        (
            INSIDE,
            {
                "cpu,cpuacct/cpu.cfs_quota_us": "90000\n",
                "cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            },
            0.9,
        ),
        (
            HIDDEN,
            {
                "cpu,cpuacct/cpu.cfs_quota_us": "90000\n",
                "cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            },
            0.9,
        ),
    ],
)
def test_the_smallest_quota_of_a_group_and_its_parents_counts(
    monkeypatch, system, shape, files, cores
):
    system(*shape, files)
    assert cgroups.cpu_quota() == cores
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert snapshot.usable_threads() == (8 if cores is None else max(1, int(cores)))


@pytest.mark.parametrize(
    ("shape", "files", "count"),
    [
        (V2, {f"{SLICE}/cpuset.cpus.effective": "0-3\n"}, 4),
        (V2, {f"{SLICE}/cpuset.cpus.effective": "1,3,5-6\n"}, 4),
        (V2, {f"{SLICE}/cpuset.cpus": "\n", "user.slice/cpuset.cpus.effective": "0-1\n"}, 2),
        (V1, {"cpuset/docker/a/cpuset.effective_cpus": "7\n", "cpuset/cpuset.cpus": "0-7\n"}, 1),
        (V1, {"cpuset/docker/a/cpuset.cpus": "0-5\n"}, 6),
        (V1, {}, None),
    ],
)
def test_threads_follow_the_cpuset(monkeypatch, system, shape, files, count):
    system(*shape, files)
    assert cgroups.cpus() == count
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert snapshot.usable_threads() == (count or 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    assert snapshot.usable_threads() == 1


def memory_2(place, limit, used, pages=0):
    """Return files of a group of v2."""
    stat = f"anon {used - pages}\nfile {pages}\ninactive_file {pages}\nactive_file 0\n"
    texts = {"memory.max": limit, "memory.current": used, "memory.stat": stat}
    return {f"{place}/{name}": f"{text}\n" for name, text in texts.items()}


def memory_1(place, limit, used, pages=0):
    """Return files of a group of v1, whose own pages are few beside those of its children."""
    stat = f"inactive_file 1\nactive_file 1\ntotal_inactive_file {pages}\ntotal_active_file 0\n"
    names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat")
    return {
        f"memory/{place}/{name}": f"{text}".strip() + "\n"
        for name, text in zip(names, (limit, used, stat), strict=True)
    }


@pytest.mark.parametrize(
    ("shape", "files", "free"),
    [
        (V2, {}, None),
        (V2, memory_2(SLICE, "max", GB), None),
        (V2, memory_2(SLICE, 4 * GB, 1 * GB), 3 * GB),
        # Pages of files are given back.
        (V2, memory_2(SLICE, 4 * GB, 3 * GB, pages=2 * GB), 3 * GB),
        # A parent's limit, of which other groups have used a part.
        (V2, memory_2(SLICE, 4 * GB, GB) | memory_2("user.slice", 5 * GB, 4 * GB), 1 * GB),
        (V2, memory_2(SLICE, 2 * GB, 3 * GB), 0),
        (V2, memory_2(SLICE, 4 * GB, GB) | {f"{SLICE}/memory.high": f"{3 * GB}\n"}, 2 * GB),
        (V1, memory_1("docker/a", UNLIMITED, GB), int(UNLIMITED) - GB),
        (V1, memory_1("docker/a", 4 * GB, 3 * GB, pages=GB), 2 * GB),
        (V1, memory_1("docker/a", 4 * GB, GB) | memory_1("docker", 2 * GB, GB), 1 * GB),
        (HYBRID, memory_1("docker/a", 4 * GB, GB) | memory_2("unified/docker/a", GB, 0), 3 * GB),
        (INSIDE, memory_1(".", 4 * GB, GB), 3 * GB),
        (HIDDEN, memory_1(".", 4 * GB, GB), 3 * GB),
    ],
)
def test_free_memory_is_that_below_the_smallest_limit(monkeypatch, system, shape, files, free):
    system(*shape, files)
    assert cgroups.free_memory_bytes() == free
    machine = SimpleNamespace(available=10 * GB)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: machine)
    assert snapshot.available_memory_bytes() == (10 * GB if free is None else min(10 * GB, free))


@pytest.mark.parametrize(
    ("shape", "path", "line"),
    [
        (V2, f"{SLICE}/cpu.stat", "throttled_usec {0}"),
        (V2, "user.slice/cpu.stat", "throttled_usec {0}"),
        (V1, "cpu,cpuacct/docker/a/cpu.stat", "throttled_time {0}000"),
    ],
)
@pytest.mark.parametrize(("stopped_s", "flags"), [(0.0, []), (0.09, []), (0.11, ["throttled"])])
def test_throttled_is_over_1_percent_of_the_measured_time(
    monkeypatch, system, shape, path, line, stopped_s, flags
):
    clock = fakes.Clock()
    monkeypatch.setattr(cgroups.time, "perf_counter", clock)

    def counted(seconds):
        text = f"nr_periods 9\nnr_throttled 9\n{line.format(round(seconds * 1e6))}\n"
        own = f"{SLICE}/cgroup.procs" if shape is V2 else "cpu,cpuacct/docker/a/cgroup.procs"
        system(*shape, {path: text, own: ""})

    quota = Throttling()
    counted(100.0)
    quota.begin()
    assert quota.flags == []
    counted(150.0)  # before the timing begins
    quota.begin()
    clock.pass_s(6.0)
    counted(150.0 + stopped_s)
    quota.end()
    clock.pass_s(4.0)  # another part, without a stop
    quota.end()
    assert quota.flags == flags


def test_a_process_in_no_group_or_in_another_one_than_before_is_not_throttled(system):
    quota = Throttling()
    system(*V2, {f"{SLICE}/cpu.stat": "throttled_usec 5\n"})
    quota.begin()
    system(["0::/elsewhere"], [mount_2()], {"elsewhere/cpu.stat": "throttled_usec 900000000\n"})
    quota.end()
    assert quota.flags == []


def test_of_two_mounts_the_one_with_the_own_group_counts(system):
    foreign = mount_2("/other", "SYS/other")
    files = {"other/cpu.max": "10000 100000\n", f"own/{SLICE}/cpu.max": "50000 100000\n"}
    system(V2[0], [foreign, mount_2(place="SYS/own")], files)
    assert cgroups.cpu_quota() == 0.5


def test_a_path_in_another_encoding_and_a_text_for_a_number_end_nothing(system):
    folder = system(*V2, {f"{SLICE}/memory.max": "1000\n", f"{SLICE}/memory.current": "abc\n"})
    assert cgroups.free_memory_bytes() is None
    (cgroups.PROCESS / "cgroup").write_bytes(b"0::/\xff\n")
    (folder / os.fsdecode(b"\xff")).mkdir()
    (folder / os.fsdecode(b"\xff") / "cpu.max").write_text("70000 100000\n")
    assert cgroups.cpu_quota() == 0.7


def test_without_control_groups_nothing_is_limited(monkeypatch, tmp_path):
    """As on macOS, which has neither /proc nor an affinity."""
    monkeypatch.setattr(cgroups, "PROCESS", tmp_path / "none")
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 10)
    limits = (cgroups.cpu_quota(), cgroups.cpus(), cgroups.free_memory_bytes())
    assert limits == (None, None, None) and cgroups.throttled_s() == {}
    assert snapshot.usable_threads() == 10
    assert snapshot.available_memory_bytes() > 0
    quota = Throttling()
    quota.begin()
    quota.end()
    assert quota.flags == []


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux")
def test_the_groups_of_this_machine_are_folders_with_the_process_in_it():
    for controller in ("cpu", "memory"):
        own, *parents = cgroups.groups(controller) or [None]
        assert own is None or own.is_dir()
        assert all(own.is_relative_to(parent) for parent in parents)
    assert 1 <= snapshot.usable_threads() <= len(os.sched_getaffinity(0))
