"""One run on several machines: dask starts it on each, and brings back its files."""

import argparse
import logging
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import dask
import distributed
from distributed.comm import get_address_host

from pomology import command_line
from pomology.errors import PomologyError
from pomology.extras.fleet import machine
from pomology.format import one_line
from pomology.paths import root, write_atomic
from pomology.runner import plan

WAIT_S = 20  # for the scheduler, and for its workers
LOST = "the scheduler is lost; start it, and the same command carries on"
# What a machine gets as it is typed here.
PASSED = ("profile", "device", "only", "data", "repeats")


def run(options: argparse.Namespace, say: Callable) -> tuple[int, str, list[Path]]:
    """Run notebooks on every machine, and compare the machines.

    Returns the exit status, the run's name, and a folder for each machine. The status is 1 where
    a machine has failed. Raises PomologyError for a wrong option, or machines that do not fit.
    """
    where = place(options)
    plan.check_choices(options.profile, options.device, options.data)
    plan.jobs(options.profile, {"devices": options.device}, options.only, options.repeats)
    command = [f"--{name}={getattr(options, name)}" for name in PASSED]
    if options.limit_minutes is not None:
        command.append(f"--limit-minutes={options.limit_minutes}")
    run_name = plan.run_folder(options.run, options.profile).name
    folder = root() / "outputs" / f"{run_name}-fleet"
    logging.disable()  # dask's tracebacks: what they mean is said in a line
    with connect(where, options) as client:
        hosts = find_machines(client, where, max(1, len(options.hosts.split())), say)
        client.subscribe_topic(run_name, lambda event: say(event[1]))
        futures = {}
        for name, host in hosts.items():  # another worker of this host does it, too
            future = client.submit(machine.reproduce, run_name, command, workers=[host], pure=False)
            futures[future] = name
        say(f"outputs/{run_name}/ there comes back into outputs/{folder.name}/ here")
        status = collect(futures, folder, say)
    machines = sorted(path.parent for path in folder.glob("*/machine.json"))
    for path in machines:
        if path.name not in hosts:
            say(f"{path.name}: does not answer; its numbers are of an earlier command")
    compare_runs(machines, folder, say)
    return status, run_name, machines


def place(options: argparse.Namespace) -> str:
    """Return where the machines are, as make's variable says it.

    Raises PomologyError for a wrong address, or one beyond this machine without TLS.
    """
    where = f"SCHEDULER={options.scheduler}" if options.scheduler else f"HOSTS={options.hosts}"
    encrypted = not options.hosts or dask.config.get("distributed.comm.require-encryption")
    if options.scheduler and options.hosts:
        raise PomologyError("SCHEDULER and HOSTS: give one of them")
    if options.scheduler:
        scheme, _, address = options.scheduler.partition("://")
        host, _, port = address.rpartition(":")
        if scheme not in ("tcp", "tls") or not host or not port.isdecimal():
            raise PomologyError(f"{where}: must be tls://host:port or tcp://host:port")
        encrypted = scheme == "tls" or host in ("localhost", "127.0.0.1", "[::1]")
    if not encrypted and not options.insecure:
        risk = "without TLS whoever reaches a machine's port can run programs there"
        raise PomologyError(f"{where}: {risk}; see docs/fleet.md, or say INSECURE=1")
    return where


def connect(where: str, options: argparse.Namespace) -> distributed.Client:
    """Return a client of the scheduler. What dask starts for it ends with this process."""
    try:
        scheduler = options.scheduler or start_cluster(options.hosts)
        return distributed.Client(scheduler, timeout=WAIT_S)
    except Exception as error:  # of ssh, TLS, and many modules of dask
        why = one_line(error, 300) or type(error).__name__
        raise PomologyError(f"{where}: no scheduler answers ({why})") from None


def start_cluster(hosts: str) -> distributed.SpecCluster:
    """Start a scheduler on the first host and a worker on each; without hosts, both here."""
    if not hosts:
        one = {"n_workers": 1, "threads_per_worker": 1, "processes": False}
        return distributed.LocalCluster(**one, dashboard_address=None)
    parts = [urlsplit(f"ssh://{text}") for text in hosts.split()]
    names = [part.hostname for part in parts]
    logins = [{"username": part.username or (), "port": part.port or ()} for part in parts]
    python = Path(sys.prefix, "bin", "python")
    if python.is_relative_to(Path.home()):  # where ssh begins, whatever its path on a host
        python = python.relative_to(Path.home())
    # A machine that is lost fails after two minutes. A command that was killed leaves a scheduler
    # and workers, which end by themselves.
    with dask.config.set({"distributed.scheduler.no-workers-timeout": "2 minutes"}):
        return distributed.SSHCluster(
            [names[0], *names],
            connect_options=[logins[0], *logins],
            scheduler_options={"port": 0, "dashboard": False, "idle_timeout": "2 minutes"},
            worker_options={"death_timeout": "2 minutes", "nthreads": 1},
            remote_python=shlex.quote(str(python)),
        )


def find_machines(
    client: distributed.Client, where: str, least: int, say: Callable
) -> dict[str, str]:
    """Return the machines that answer, at least so many: name -> host.

    Raises PomologyError where they are too few, or have another state of the kit than we.
    """
    try:
        client.wait_for_workers(least, timeout=WAIT_S)
        answers = client.run(machine.describe, on_error="return")
    except TimeoutError:
        few = "no machine answers" if least == 1 else f"fewer than {least} machines answer"
        raise PomologyError(f"{where}: {few} within {WAIT_S} s") from None
    except OSError:
        raise PomologyError(LOST) from None
    kit = machine.describe()["kit"]
    hosts: dict[str, str] = {}
    for address, answer in answers.items():
        if isinstance(answer, Exception):
            raise PomologyError(f"{address}: no kit answers ({one_line(answer, 300)})")
        name, host = answer["name"], get_address_host(address)
        if answer["kit"] != kit:
            raise PomologyError(f"{name}: has {answer['kit']}; here is {kit}")
        if name not in hosts:
            say(f"{name}: {answer['machine']}")
        if hosts.setdefault(name, host) != host:
            remedy = "remove outputs/.fleet where the checkout is a copy"
            raise PomologyError(f"{hosts[name]} and {host}: both are {name}; {remedy}")
    return hosts


def collect(futures: dict[distributed.Future, str], folder: Path, say: Callable) -> int:
    """Write the files of each machine, named by its future, into a folder when they come back.

    Returns the exit status. Raises PomologyError where the scheduler is lost.
    """
    status = 0
    for future in distributed.as_completed(futures):
        if future.cancelled():
            raise PomologyError(LOST)
        name = futures[future]
        if error := future.exception():
            failure = one_line(str(error).partition("\n")[0], 300)
        else:
            failure, files = future.result()
            for path, content in files.items():
                write_atomic(folder / name / path, content)
        if failure:
            say(f"{name}: failed: {failure}")
            status = 1
    return status


def compare_runs(machines: list[Path], folder: Path, say: Callable) -> None:
    """Write a comparison of these machines' runs, if they are two or more."""
    if len(machines) < 2:
        return
    try:
        compare = command_line.extra("compare")
        compare.write(machines, folder)
        say(f"compared: {(folder / 'compare.html').relative_to(root())}")
    except PomologyError as error:
        say(f"not compared: {error}")
