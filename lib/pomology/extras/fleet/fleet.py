"""One run on several machines: dask starts it on each, and brings back its files."""

import argparse
import contextlib
import logging
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import dask
import distributed

from pomology import command_line
from pomology.errors import PomologyError
from pomology.extras.fleet import machine
from pomology.format import one_line
from pomology.paths import root, write_atomic
from pomology.report import compare
from pomology.results import folders
from pomology.runner import plan

WAIT_S = 20  # for the scheduler, and for its workers
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
# When a scheduler that is started here gives up a machine, and when it ends without a command.
CONFIG = {
    "distributed.scheduler.no-workers-timeout": "2 minutes",
    "distributed.scheduler.idle-timeout": "2 minutes",
}

Say = Callable[[str], None]


def run(options: argparse.Namespace, say: Say) -> tuple[int, str, list[Path]]:
    """Run notebooks on every machine, and compare the machines.

    Returns the exit status, the run's name, and a folder for each machine. The status is 1 where
    a machine has failed. Raises PomologyError for a wrong option, or machines that do not fit.
    """
    where = place(options)
    command = command_words(options)
    name = plan.run_folder(options.run, options.profile).name
    folder = root() / "outputs" / f"{name}-fleet"
    folder.mkdir(parents=True, exist_ok=True)
    logging.disable()  # dask's warnings and tracebacks: what they mean is said in a line
    stack = contextlib.ExitStack()
    with folders.locked(folder, name, "fleet"), dask.config.set(CONFIG), stack:
        client = connect(where, options, stack)
        names = find_machines(client, where, max(1, len(options.hosts.split())), say)
        status = reproduce(client, names, name, command, folder, say)
    machines = sorted(path.parent for path in folder.glob("*/machine.json"))
    for path in machines:
        if path.name not in names:
            say(f"{path.name}: does not answer now; its numbers are of an earlier command")
    compare_machines(machines, folder, say)
    return status, name, machines


def place(options: argparse.Namespace) -> str:
    """Return where the machines are, as make's variable says it.

    Raises PomologyError for a wrong address, or one beyond this machine without TLS.
    """
    if options.scheduler and options.hosts:
        raise PomologyError("SCHEDULER and HOSTS: give one of them")
    if options.scheduler:
        where = f"SCHEDULER={options.scheduler}"
        scheme, _, address = options.scheduler.partition("://")
        host, _, port = address.rpartition(":")
        if scheme not in ("tcp", "tls") or not host or not port.isdecimal():
            raise PomologyError(f"{where}: must be tls://host:port or tcp://host:port")
        encrypted = scheme == "tls" or host in LOOPBACK
    else:
        where = f"HOSTS={options.hosts}"
        encrypted = not options.hosts or dask.config.get("distributed.comm.require-encryption")
    if not encrypted and not options.insecure:
        risk = "without TLS whoever reaches a machine's port can run programs there"
        raise PomologyError(f"{where}: {risk}; see docs/fleet.md, or say INSECURE=1")
    return where


def command_words(options: argparse.Namespace) -> list[str]:
    """Return the options of `pomology reproduce` on each machine. Raises PomologyError for a wrong one."""
    plan.check_choices(options.profile, options.device, options.data)
    plan.jobs(options.profile, {"devices": options.device}, options.only, options.repeats)
    names = ["profile", "device", "only", "data", "repeats"]
    words = [f"--{name}={getattr(options, name)}" for name in names]
    minutes = command_line.limit_minutes(options)
    return words if minutes is None else [*words, f"--limit-minutes={minutes}"]


def connect(
    where: str,
    options: argparse.Namespace,
    stack: contextlib.ExitStack,
) -> distributed.Client:
    """Return a client of the scheduler. The stack closes it, and what was started for it."""
    try:
        scheduler = options.scheduler or stack.enter_context(start_workers(options.hosts))
        return stack.enter_context(distributed.Client(scheduler, timeout=WAIT_S))
    except Exception as error:  # of ssh, TLS, and many modules of dask
        why = one_line(error, 300) or type(error).__name__
        raise PomologyError(f"{where}: no scheduler answers ({why})") from None


def start_workers(hosts: str) -> distributed.SpecCluster:
    """Start a scheduler on the first of these hosts and a worker on each, or both in this process."""
    if not hosts:
        local = {"processes": False, "worker_class": machine.Machine}
        return distributed.LocalCluster(**local, dashboard_address=None)
    names = []
    logins = []
    for text in hosts.split():
        parts = urlsplit(f"ssh://{text}")
        login = {"username": parts.username, "port": parts.port}
        names.append(parts.hostname)
        logins.append({key: value for key, value in login.items() if value})
    python = Path(sys.prefix, "bin", "python")
    if python.is_relative_to(Path.home()):  # where ssh begins, whatever its path on a host
        python = python.relative_to(Path.home())
    return distributed.SSHCluster(
        [names[0], *names],
        connect_options=[logins[0], *logins],
        scheduler_options={"port": 0, "dashboard": False},
        worker_class="pomology.extras.fleet.machine.Machine",
        remote_python=shlex.quote(str(python)),
    )


def find_machines(client: distributed.Client, where: str, least: int, say: Say) -> list[str]:
    """Return the names of the machines that answer, at least so many.

    Raises PomologyError where they are too few, or have another state of the kit than we.
    """
    try:
        client.wait_for_workers(least, timeout=WAIT_S)
    except TimeoutError:
        few = "no machine answers" if least == 1 else f"fewer than {least} machines answer"
        raise PomologyError(f"{where}: {few} within {WAIT_S} s") from None
    kit = machine.describe()["kit"]
    addresses: dict[str, str] = {}
    for address, answer in client.run(machine.describe, on_error="return").items():
        if isinstance(answer, Exception):
            raise PomologyError(f"{address}: has no kit that answers ({one_line(answer, 300)})")
        name = answer["name"]
        if answer["kit"] != kit:
            raise PomologyError(f"{name}: has {answer['kit']}; here is {kit}")
        other = addresses.setdefault(name, address)
        if urlsplit(other).hostname != urlsplit(address).hostname:
            remedy = "remove outputs/.fleet where the checkout is a copy"
            raise PomologyError(f"{other} and {address}: both are {name}; {remedy}")
        say(f"{name}: {answer['machine']}")
    return list(addresses)


def reproduce(
    client: distributed.Client,
    names: list[str],
    run: str,
    command: list[str],
    folder: Path,
    say: Say,
) -> int:
    """Run notebooks on these machines, and write what comes back, a folder for each.

    Returns the exit status. Raises PomologyError where the scheduler is lost.
    """
    client.subscribe_topic(run, lambda event: say(event[1]))
    futures = {}
    for name in names:
        only_there = {"resources": {name: 1}, "pure": False}
        futures[client.submit(machine.reproduce, run, command, **only_there)] = name
    status = 0
    for future in distributed.as_completed(futures):
        if future.cancelled():
            raise PomologyError("the scheduler is lost; start it, and the same command carries on")
        name = futures[future]
        error = future.exception()
        result = {"status": None, "line": one_line(error, 300), "files": {}}
        if not error:
            result = future.result()
        for path, content in result["files"].items():
            write_atomic(folder / name / path, content)
        if result["status"] != 0:
            say(f"{name}: failed: {result['line']}")
            status = 1
    return status


def compare_machines(machines: list[Path], folder: Path, say: Say) -> None:
    """Write a comparison of the runs in these folders, if they are two or more."""
    sides = []
    for path in machines:
        try:
            sides.append(compare.load(path))
        except PomologyError as error:
            say(f"{path.name}: is not compared: {error}")
    if len(sides) > 1:
        *_, page = compare.write(sides, folder)
        say(f"compared: {page.relative_to(root())}")
