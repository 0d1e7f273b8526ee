"""Execute a run on several machines: dask starts it on each, and returns its files."""

import argparse
import logging
import re
import secrets
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import distributed
import filelock
from distributed.comm import get_address_host

import pomology
from pomology.devices import find
from pomology.errors import PomologyError
from pomology.format import one_line
from pomology.machine import snapshot
from pomology.paths import root, write_atomic
from pomology.results import cases
from pomology.results.run import LOCK
from pomology.runner import plan

WAIT_S = 20  # time limit for an answer of the scheduler, and of its workers
PASSED = ("profile", "device", "only", "data", "repeats")  # options that each machine receives
HOST = re.compile(r"(?:([^\s@]+)@)?(\[[^\s\]]+\]|[^\s@:\[\]]+)(?::(\d{1,5}))?")  # user@host:port


def run(options: argparse.Namespace, say: Callable) -> tuple[int, str, list[Path]]:
    """Run notebooks on all machines.

    Returns the exit status, 1 if a machine failed, the run's name, and a folder for each machine.
    Raises PomologyError for wrong options, and for missing or different machines.
    """
    where = address_of(options)
    if options.device not in find.choices():
        choices = ", ".join(find.choices())
        raise PomologyError(f"DEVICE={options.device}: expected one of {choices}")
    values = {"devices": options.device, "data": options.data}
    plan.jobs(options.profile, values, options.only, options.repeats)
    command = [f"--{name}={getattr(options, name)}" for name in PASSED]
    run_name = plan.run_folder(options.run, options.profile).name
    folder = root() / "outputs" / f"{run_name}-fleet"
    logging.disable()  # errors are reported in a line instead of dask's tracebacks
    with connect(options) as client:
        hosts = find_machines(client, where, max(1, len(options.hosts.split())), say)
        client.subscribe_topic(run_name, lambda event: say(event[1]))
        futures = {}
        for name, host in hosts.items():  # any worker of the host may run it
            task = reproduce, name, run_name, command
            futures[client.submit(*task, workers=[host], pure=False)] = name
        say(f"results of all machines go to outputs/{folder.name}/")
        status = collect(futures, folder, say)
    machines = sorted(path.parent for path in folder.glob("*/machine.json"))
    say(f"make compare RUNS=outputs/{folder.name} compares them")
    return status, run_name, machines


def address_of(options: argparse.Namespace) -> str:
    """Return the address of the machines as typed.

    Raises PomologyError for other machines than this one without TLS.
    """
    where = options.scheduler or options.hosts
    local = not where or where.startswith("tcp://127.0.0.1:")
    tls = where.startswith("tls://") or dask.config.get("distributed.comm.require-encryption")
    if not (local or tls or options.insecure):
        risk = "without TLS anyone who reaches a machine's port can run programs there"
        raise PomologyError(f"{where}: {risk}; see docs/multiple-machines.md, or set INSECURE=1")
    return where


def connect(options: argparse.Namespace) -> distributed.Client:
    """Return a client of the scheduler. Processes that dask starts for it end with this one."""
    hosts = [read_host(text) for text in options.hosts.split()]
    try:
        cluster = start_cluster(hosts) if hosts else None
        # Without an address dask starts a scheduler and one worker on this machine.
        alone = {"n_workers": 1, "threads_per_worker": 1, "processes": False}
        local = {} if cluster or options.scheduler else alone | {"dashboard_address": None}
        return distributed.Client(options.scheduler or cluster, timeout=WAIT_S, **local)
    except Exception as error:  # ssh, TLS and many modules of dask have their own types
        where = options.scheduler or options.hosts
        why = one_line(error, 300) or type(error).__name__
        raise PomologyError(f"{where}: no scheduler answers ({why})") from None


def read_host(text: str) -> tuple[str, dict[str, Any]]:
    """Return host and login of an entry of HOSTS; asyncssh reads the rest in ~/.ssh/config.

    Raises PomologyError for another form than user@host:port.
    """
    match = HOST.fullmatch(text)
    if not match or int(match[3] or 1) not in range(1, 2**16):
        form = "user@host:port, with brackets around an IPv6 address"
        raise PomologyError(f"HOSTS: {text!r}: expected {form}")
    user, host, port = match.groups()
    login = {"username": user} if user else {}
    return host.strip("[]"), login | ({"port": int(port)} if port else {})


def start_cluster(hosts: list[tuple[str, dict]]) -> distributed.SpecCluster:
    """Start a scheduler on the first host and a worker on each host by ssh."""
    names, logins = zip(*hosts, strict=True)
    python = Path(sys.prefix, "bin", "python")
    if python.is_relative_to(Path.home()):  # ssh starts in the home folder, whose path may differ
        python = python.relative_to(Path.home())
    # A lost machine fails after two minutes. The scheduler and the workers of a killed command end
    # after two minutes, too.
    dask.config.set({"distributed.scheduler.no-workers-timeout": "2 minutes"})
    return distributed.SSHCluster(
        [names[0], *names],
        connect_options=[logins[0], *logins],
        scheduler_options={"port": 0, "dashboard": False, "idle_timeout": "2 minutes"},
        worker_options={"death_timeout": "2 minutes", "nthreads": 1},
        remote_python=shlex.quote(str(python)),
    )


def find_machines(client: distributed.Client, where: str, least: int, say: Callable) -> dict:
    """Return the machines that answer, at least `least`: name -> host.

    Raises PomologyError for too few machines, and for another version of pomology on one.
    """
    try:
        client.wait_for_workers(least, timeout=WAIT_S)
    except TimeoutError:
        raise PomologyError(f"{where}: fewer than {least} answered within {WAIT_S} s") from None
    version = describe()["version"]
    hosts: dict[str, str] = {}
    for address, answer in client.run(describe).items():
        name, host = answer["name"], get_address_host(address)
        if answer["version"] != version:
            raise PomologyError(f"{name}: has {answer['version']}; expected {version}")
        if hosts.setdefault(name, host) != host:
            remedy = "remove outputs/.fleet on the one with a copied checkout"
            raise PomologyError(f"{hosts[name]} and {host}: both are {name}; {remedy}")
        say(f"{name}: {answer['machine']}")
    return hosts


def collect(futures: dict[distributed.Future, str], folder: Path, say: Callable) -> int:
    """Write each machine's files into a folder as they arrive; return the exit status.

    futures: the task of each machine -> its name.
    """
    status = 0
    for future in distributed.as_completed(futures):
        name, files = futures[future], {}
        try:
            failure, files = future.result()
        except Exception as error:  # the worker or the scheduler is lost
            failure = f"{type(error).__name__}; the same command resumes the run"
        for path, content in files.items():
            write_atomic(folder / name / path, content)
        if failure:
            say(f"{name}: failed: {failure}")
            status = 1
    return status


# Tasks of dask, which run on each machine


def describe() -> dict[str, str]:
    """Return the name of this machine in a fleet, its description, and its version of pomology.

    The name is the chip and random digits, which `outputs/.fleet` keeps. They distinguish equal
    machines without a host name.
    """
    drawn = root() / "outputs" / ".fleet"
    if not drawn.exists():
        write_atomic(drawn, secrets.token_hex(6))
    machine = snapshot.snapshot()
    name = f"{cases.chip_word(machine['chip'])}-{drawn.read_text()}"
    version = f"pomology {pomology.__version__}, {machine['git']}"
    return {"name": name, "machine": snapshot.describe(machine), "version": version}


def reproduce(name: str, run: str, options: list[str]) -> tuple[str, dict[str, bytes]]:
    """Run notebooks on this machine, and send each line of output to the dask topic `run`.

    Returns the last line of a failed command or "", and the run's files without hidden ones:
    relative path -> content.
    """
    folder = root() / "outputs" / run
    lock = folder / LOCK
    if lock.exists():  # a copied run has no lock, and must not get one
        filelock.FileLock(lock).acquire().lock.release()  # wait for a command of a killed worker
    command = [sys.executable, "-P", "-m", "pomology", "reproduce", f"--run={run}", *options]
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    line = ""
    with subprocess.Popen(command, cwd=root(), **output) as process:
        for text in process.stdout:
            line = text.rstrip()
            distributed.get_worker().log_event(run, f"{name}: {line}")
    failure = f"{line} (exit status {process.returncode})" if process.returncode else ""
    if process.returncode == 2:  # nothing was run
        return failure, {}
    paths = [*folder.glob("[!.]*"), *folder.glob("[!.]*/**/*")]
    files = [path for path in paths if path.is_file()]
    return failure, {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}
