"""One run on several machines: dask starts it on each, and brings back its files."""

import argparse
import logging
import secrets
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import dask
import distributed
import filelock
from distributed.comm import get_address_host

import pomology
from pomology.errors import PomologyError
from pomology.format import one_line
from pomology.machine import snapshot
from pomology.paths import root, write_atomic
from pomology.results import cases
from pomology.results.run import LOCK
from pomology.runner import plan

WAIT_S = 20  # for the scheduler, and for its workers
PASSED = ("profile", "device", "only", "data", "repeats")  # what a machine gets, as typed here


def run(options: argparse.Namespace, say: Callable) -> tuple[int, str, list[Path]]:
    """Run notebooks on every machine.

    Returns the exit status, the run's name, and a folder for each machine. The status is 1 where
    a machine has failed. Raises PomologyError for a wrong option, or machines that do not fit.
    """
    where = place(options)
    values = {"devices": options.device, "data": options.data}
    plan.jobs(options.profile, values, options.only, options.repeats)
    command = [f"--{name}={getattr(options, name)}" for name in PASSED]
    run_name = plan.run_folder(options.run, options.profile).name
    folder = root() / "outputs" / f"{run_name}-fleet"
    logging.disable()  # dask's tracebacks: what they mean is said in a line
    with connect(options) as client:
        hosts = find_machines(client, where, max(1, len(options.hosts.split())), say)
        client.subscribe_topic(run_name, lambda event: say(event[1]))
        futures = {}
        for name, host in hosts.items():  # another worker of this host does it, too
            future = client.submit(reproduce, name, run_name, command, workers=[host], pure=False)
            futures[future] = name
        say(f"outputs/{run_name}/ there comes back into outputs/{folder.name}/ here")
        status = collect(futures, folder, say)
    machines = sorted(path.parent for path in folder.glob("*/machine.json"))
    say(f"make compare RUNS=outputs/{folder.name} compares them")
    return status, run_name, machines


def place(options: argparse.Namespace) -> str:
    """Return where the machines are, as it was typed.

    Raises PomologyError where they are beyond this machine, and without TLS.
    """
    where = options.scheduler or options.hosts
    local = not where or where.startswith("tcp://127.0.0.1:")
    tls = where.startswith("tls://") or dask.config.get("distributed.comm.require-encryption")
    if not (local or tls or options.insecure):
        risk = "without TLS whoever reaches a machine's port can run programs there"
        raise PomologyError(f"{where}: {risk}; see docs/multiple-machines.md, or say INSECURE=1")
    return where


def connect(options: argparse.Namespace) -> distributed.Client:
    """Return a client of the scheduler. What dask starts for it ends with this process."""
    try:
        cluster = start_cluster(options.hosts) if options.hosts else None
        # Without an address dask starts a scheduler and one worker on this machine.
        alone = {"n_workers": 1, "threads_per_worker": 1, "processes": False}
        own = {} if cluster or options.scheduler else alone | {"dashboard_address": None}
        return distributed.Client(options.scheduler or cluster, timeout=WAIT_S, **own)
    except Exception as error:  # of ssh, TLS, and many modules of dask
        why = one_line(error, 300) or type(error).__name__
        raise PomologyError(f"{options.scheduler}: no scheduler answers ({why})") from None


def start_cluster(hosts: str) -> distributed.SpecCluster:
    """Start a scheduler on the first host and a worker on each, by ssh."""
    parts = [urlsplit(f"ssh://{text}") for text in hosts.split()]
    names = [part.hostname for part in parts]
    logins = [{"username": part.username or (), "port": part.port or ()} for part in parts]
    python = Path(sys.prefix, "bin", "python")
    if python.is_relative_to(Path.home()):  # where ssh begins, whatever its path on a host
        python = python.relative_to(Path.home())
    # A machine that is lost fails after two minutes. A command that was killed leaves a scheduler
    # and workers, which end by themselves.
    dask.config.set({"distributed.scheduler.no-workers-timeout": "2 minutes"})
    return distributed.SSHCluster(
        [names[0], *names],
        connect_options=[logins[0], *logins],
        scheduler_options={"port": 0, "dashboard": False, "idle_timeout": "2 minutes"},
        worker_options={"death_timeout": "2 minutes", "nthreads": 1},
        remote_python=shlex.quote(str(python)),
    )


def find_machines(client: distributed.Client, where: str, least: int, say: Callable) -> dict:
    """Return the machines that answer, at least so many: name -> host.

    Raises PomologyError where they are too few, or have another state of the kit than we.
    """
    try:
        client.wait_for_workers(least, timeout=WAIT_S)
    except TimeoutError:
        raise PomologyError(f"{where}: fewer than {least} answer within {WAIT_S} s") from None
    kit = describe()["kit"]
    hosts: dict[str, str] = {}
    for address, answer in client.run(describe).items():
        name, host = answer["name"], get_address_host(address)
        if answer["kit"] != kit:
            raise PomologyError(f"{name}: has {answer['kit']}; here is {kit}")
        if hosts.setdefault(name, host) != host:
            remedy = "remove outputs/.fleet where the checkout is a copy"
            raise PomologyError(f"{hosts[name]} and {host}: both are {name}; {remedy}")
        say(f"{name}: {answer['machine']}")
    return hosts


def collect(futures: dict[distributed.Future, str], folder: Path, say: Callable) -> int:
    """Write the files of each machine, named by its future, into a folder when they come back.

    Returns the exit status.
    """
    status = 0
    for future in distributed.as_completed(futures):
        name = futures[future]
        try:
            failure, files = future.result()
        except Exception as error:  # the worker, or the scheduler, is lost
            failure = f"{type(error).__name__}; the same command carries on"
            files = {}
        for path, content in files.items():
            write_atomic(folder / name / path, content)
        if failure:
            say(f"{name}: failed: {failure}")
            status = 1
    return status


# What a machine does, as a task of dask


def describe() -> dict[str, str]:
    """Return the name of this machine in a fleet, what it is, and the state of its checkout.

    The name is its chip, and digits drawn for its checkout, which are kept in `outputs/.fleet`:
    they tell equal machines apart, without a host's name.
    """
    drawn = root() / "outputs" / ".fleet"
    if not drawn.exists():
        write_atomic(drawn, secrets.token_hex(6))
    machine = snapshot.snapshot()
    name = f"{cases.chip_word(machine['chip'])}-{drawn.read_text()}"
    kit = f"pomology {pomology.__version__}, {machine['git']}"
    return {"name": name, "machine": snapshot.describe(machine), "kit": kit}


def reproduce(name: str, run: str, options: list[str]) -> tuple[str, dict[str, bytes]]:
    """Run notebooks on this machine, and send each line of output to the dask topic `run`.

    Returns the last line of a command that failed, and the contents of the run's files but for
    hidden ones.
    """
    folder = root() / "outputs" / run
    lock = folder / LOCK
    if lock.exists():  # a run that was copied here has none, and must get none
        filelock.FileLock(lock).acquire().lock.release()  # a run whose worker was killed goes on
    command = [sys.executable, "-m", "pomology", "reproduce", f"--run={run}", *options]
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    line = ""
    with subprocess.Popen(command, cwd=root(), **output) as process:
        for text in process.stdout:
            line = text.rstrip()
            distributed.get_worker().log_event(run, f"{name}: {line}")
    failure = f"{line} (exit status {process.returncode})" if process.returncode else ""
    if process.returncode == 2:  # nothing was run
        return failure, {}
    paths = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*")}
    shown = {place: path for place, path in paths.items() if place[0] != "." and path.is_file()}
    return failure, {place: path.read_bytes() for place, path in shown.items()}
