"""Execute a run on several machines: dask starts it on each, and returns its files."""

import argparse
import asyncio
import logging
import re
import secrets
import shlex
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import asyncssh
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

# Time limit for an answer of the scheduler, and of its workers. A worker that measures lets go of a
# lost scheduler only after 30 s, the limit of dask's Worker.close for a running task. Its loop then
# needs some seconds to start it for the next scheduler.
WAIT_S = 45
PASSED = ("profile", "device", "only", "data", "repeats")  # options that each machine receives
HOST = re.compile(r"(?:([^\s@]+)@)?(\[[^\s\]]+\]|[^\s@:\[\]]+)(?::(\d{1,5}))?")  # user@host:port
THIS_MACHINE = re.compile(r"tcp://(localhost|127(\.\d{1,3}){3}|\[::1\])(:\d+)?")
TLS = "distributed.comm.tls"  # dask's setting with the certificates


class Machine(NamedTuple):
    """A machine that answers.

    address: of its host, as dask reaches it. host: the name that it gives itself, for the terminal
    only. Files and folders have neither. description: its chip, memory and system.
    """

    address: str
    host: str
    description: str


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
    shown = f"outputs/{folder.name}"
    logging.disable()  # errors are reported in a line instead of dask's tracebacks
    if where:
        say(f"{where}: waiting up to {WAIT_S} s for the scheduler, as long again for workers")
    with connect(options) as client:
        machines = find_machines(client, where, max(1, len(options.hosts.split())))
        labels = labels_of(machines)
        for name, machine in machines.items():
            say(f"{labels[name]}: {machine.description}; its results go to {shown}/{name}/")

        def on_output(event: tuple[float, Sequence[str]]) -> None:
            name, line = event[1]
            say(f"{labels.get(name, name)}: {line}")

        client.subscribe_topic(run_name, on_output)
        futures = {}
        for name, machine in machines.items():  # any worker of the host may run it
            task = reproduce, name, run_name, command
            futures[client.submit(*task, workers=[machine.address], pure=False)] = name
        status = collect(futures, folder, labels, say)
    folders = sorted(path.parent for path in folder.glob("*/machine.json"))
    if len(folders) > 1:
        say(f"make compare RUNS={shown} compares them")
    return status, run_name, folders


def address_of(options: argparse.Namespace) -> str:
    """Return the address of the machines as typed.

    Raises PomologyError for two addresses, and for other machines than this one without TLS.
    """
    if options.scheduler and options.hosts:
        both = f"SCHEDULER={options.scheduler} and HOSTS={options.hosts}"
        raise PomologyError(f"{both}: expected one of them, because HOSTS starts its own scheduler")
    where = options.scheduler or options.hosts
    local = not where or THIS_MACHINE.fullmatch(where)
    # Without an address nothing leaves this process, whatever dask's configuration requires.
    required = bool(where) and dask.config.get("distributed.comm.require-encryption")
    tls = where.startswith("tls://") or required
    if not (local or tls or options.insecure):
        risk = "without TLS anyone who reaches a machine's port can run programs there"
        raise PomologyError(f"{where}: {risk}; see docs/multiple-machines.md, or set INSECURE=1")
    if tls:  # HOSTS starts scheduler and workers with the configuration of this machine
        roles = ("client", "scheduler", "worker") if options.hosts else ("client",)
        require_certificates(where, roles)
    return where


def require_certificates(where: str, roles: Sequence[str]) -> None:
    """Raise PomologyError unless dask's configuration names the certificates of some roles."""
    if dask.config.get("distributed.client.security-loader"):  # a function that returns them
        return
    for name in ("ca-file", *(f"{role}.cert" for role in roles)):
        file = dask.config.get(f"{TLS}.{name}", None)
        # A value of several lines is the certificate itself.
        if file and ("\n" in file or Path(file).is_file()):
            continue
        found = f"is {file}, which is not a file" if file else "is not set"
        remedy = "set it in ~/.config/dask/fleet.yaml, see TLS in docs/multiple-machines.md"
        raise PomologyError(f"{where}: TLS needs certificates, but {TLS}.{name} {found}; {remedy}")


def connect(options: argparse.Namespace) -> distributed.Client:
    """Return a client of the scheduler. Processes that dask starts for it end with this one.

    Raises PomologyError if a host cannot be reached, or no scheduler starts or answers.
    """
    hosts = [read_host(text) for text in options.hosts.split()]
    log_in(hosts)
    try:
        cluster = start_cluster(hosts) if hosts else None
    except Exception as error:  # ssh and dask have their own types
        remedy = "each host needs this checkout in the same folder, and `make env EXTRAS=fleet`"
        problem = f"ssh reaches all, but a scheduler or worker does not start ({reason(error)})"
        raise PomologyError(f"{options.hosts}: {problem}; {remedy}") from None
    # Without an address dask starts a scheduler and one worker on this machine.
    alone = {"n_workers": 1, "threads_per_worker": 1, "processes": False}
    local = {} if cluster or options.scheduler else alone | {"dashboard_address": None}
    try:
        return distributed.Client(options.scheduler or cluster, timeout=WAIT_S, **local)
    except Exception as error:  # TLS and many modules of dask have their own types
        where = options.scheduler or options.hosts
        raise PomologyError(f"{where}: no scheduler answers ({reason(error)})") from None


def reason(error: BaseException) -> str:
    """Return the message of an error, or its type if it has none."""
    return one_line(error, 300) or type(error).__name__


def log_in(hosts: Sequence[tuple[str, dict[str, Any]]]) -> None:
    """Log in to each host by ssh, and out again.

    dask's own error does not name the host. Raises PomologyError for those that ssh cannot reach.
    """

    async def try_host(host: str, login: dict[str, Any]) -> None:
        limits = {"connect_timeout": WAIT_S, "login_timeout": WAIT_S}
        async with asyncssh.connect(host, **login, **limits):
            pass

    async def try_all() -> list[BaseException | None]:
        tries = (try_host(host, login) for host, login in hosts)
        return await asyncio.gather(*tries, return_exceptions=True)

    answers = zip(hosts, asyncio.run(try_all()), strict=True)
    failed = [f"{host} ({reason(error)})" for (host, _), error in answers if error]
    if failed:
        remedy = "`ssh HOST` must work without a question"
        raise PomologyError(f"HOSTS: ssh cannot reach {', '.join(failed)}; {remedy}")


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


def find_machines(client: distributed.Client, where: str, least: int) -> dict[str, Machine]:
    """Return the machines that answer, at least `least`, by name.

    Raises PomologyError for too few machines, and for another version of pomology on one.
    """
    try:
        client.wait_for_workers(least, timeout=WAIT_S)
    except TimeoutError:
        raise PomologyError(f"{where}: fewer than {least} answered within {WAIT_S} s") from None
    version = describe()["version"]
    machines: dict[str, Machine] = {}
    for address, answer in client.run(describe).items():
        name = answer["name"]
        host = answer.get("host", name)  # an older version sends none
        if answer["version"] != version:
            raise PomologyError(f"{host}: has {answer['version']}; expected {version}")
        machine = Machine(get_address_host(address), host, answer["machine"])
        known = machines.setdefault(name, machine).address
        if known != machine.address:
            remedy = "remove outputs/.fleet on the one with a copied checkout"
            raise PomologyError(f"{known} and {machine.address}: both are {name}; {remedy}")
    return machines


def labels_of(machines: Mapping[str, Machine]) -> dict[str, str]:
    """Return a label for each machine's lines on the terminal: name -> label.

    It is the host name, or the address where two machines have one host name. Two checkouts on one
    host have neither, and keep their names.
    """
    hosts = {name: machine.host for name, machine in machines.items()}
    addresses = {name: machine.address for name, machine in machines.items()}
    for labels in (hosts, addresses):
        if len(set(labels.values())) == len(labels):
            return labels
    return {name: name for name in machines}


def collect(
    futures: Mapping[distributed.Future, str],
    folder: Path,
    labels: Mapping[str, str],
    say: Callable,
) -> int:
    """Write each machine's files into a folder as they arrive; return the exit status.

    futures: the task of each machine -> its name. labels: see `labels_of`.
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
            say(f"{labels[name]}: failed: {failure}")
            status = 1
    return status


# Tasks of dask, which run on each machine


def describe() -> dict[str, str]:
    """Return the name of this machine in a fleet, its host, description and version of pomology.

    The name is the chip and random digits, which `outputs/.fleet` keeps. They distinguish equal
    machines in files without a host name.
    """
    drawn = root() / "outputs" / ".fleet"
    if not drawn.exists():
        write_atomic(drawn, secrets.token_hex(6))
    machine = snapshot.snapshot()
    name = f"{cases.chip_word(machine['chip'])}-{drawn.read_text()}"
    version = f"pomology {pomology.__version__}, {machine['git']}"
    about = {"machine": snapshot.describe(machine), "version": version}
    return {"name": name, "host": socket.gethostname()} | about


def reproduce(name: str, run: str, options: list[str]) -> tuple[str, dict[str, bytes]]:
    """Run notebooks on this machine, and send `name` and each line of output to dask's topic `run`.

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
            distributed.get_worker().log_event(run, [name, line])
    failure = f"{line} (exit status {process.returncode})" if process.returncode else ""
    if process.returncode == 2:  # nothing was run
        return failure, {}
    paths = [*folder.glob("[!.]*"), *folder.glob("[!.]*/**/*")]
    files = [path for path in paths if path.is_file()]
    return failure, {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}
