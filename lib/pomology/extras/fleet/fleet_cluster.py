"""Where the fleet's scheduler is, and who starts its workers: somebody else, ssh on HOSTS, or one of each here.

dask's own SSHCluster is not used: it asks the scheduler through doors that the fleet closes, and waits for what a
worker logs, which the fleet silences. ssh starts the same worker as anybody would, and ends it with the connection."""

import asyncio
import contextlib
import os
import re
import shlex
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import distributed

from pomology.errors import PomologyError
from pomology.extras.fleet import fleet_wire as wire
from pomology.extras.fleet.fleet_worker import STARTED
from pomology.format import one_line

SSH = re.compile(rf"(?:([A-Za-z0-9_][A-Za-z0-9._-]{{0,31}})@)?({wire.HOST})(?::(\d{{1,5}}))?")
WORKER = ("-m", "pomology.extras.fleet.fleet_worker", "worker")


def hosts(text: str) -> list[tuple[str, str, int]]:
    """User (or none), host and port of each of HOSTS. Raises PomologyError for what is no plain name."""
    known = []
    for each in text.split():
        match = SSH.fullmatch(each)
        if not match or not 0 < int(match[3] or 22) < 65536:
            form = "host, user@host or user@host:port, of letters, digits, dots and dashes"
            raise PomologyError(f"HOSTS: {one_line(each, 80)}: must be {form}")
        known.append((match[1] or "", match[2], int(match[3] or 22)))
    return known


@contextlib.asynccontextmanager
async def cluster(
    scheduler: str, names: str, insecure: bool, say: Callable[[str], None]
) -> AsyncIterator[tuple[str, distributed.Security]]:
    """A scheduler's address: of one that runs, or of one here with workers on HOSTS or here, which end behind."""
    if scheduler:
        where = wire.address(scheduler, "SCHEDULER", insecure)
        yield scheduler, wire.security(where.scheme)
        return
    there = hosts(names)
    near = all(host in ("localhost", "127.0.0.1") for _, host, _ in there)
    tls = bool(there) and (any(map(os.environ.get, wire.TLS.values())) or not (near or insecure))
    where = wire.address(f"{'tls' if tls else 'tcp'}://{'127.0.0.1' if near else '0.0.0.0'}:0")
    secure = wire.security(where.scheme)
    async with wire.Scheduler(where, secure) as made, contextlib.AsyncExitStack() as stack:
        for host in there:
            try:
                await _over_ssh(stack, *host, made.address)
            except PomologyError as error:
                say(f"{error}; left out")
        if not there:
            pipes = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.DEVNULL}
            command = (sys.executable, *WORKER, made.address)
            process = await asyncio.create_subprocess_exec(*command, **pipes, start_new_session=True)
            stack.push_async_callback(process.wait)
            stack.callback(process.stdin.close)
        yield made.address, secure


async def _over_ssh(stack: contextlib.AsyncExitStack, user: str, host: str, port: int, scheduler: str) -> None:
    """Start a worker on a host, which ends with the stack. Raises PomologyError where none starts there."""
    import asyncssh  # a third of a second, which only this needs

    python, home = Path(sys.prefix, "bin", "python"), Path(os.path.expanduser("~"))
    python = python.relative_to(home) if python.is_relative_to(home) else python  # ssh begins in the home folder
    files = [f"{name}={os.environ[name]}" for name in wire.TLS.values() if os.environ.get(name)]
    command = shlex.join(["env", *files, str(python), *WORKER, scheduler])
    options = {"username": user or (), "connect_timeout": wire.WAIT_S, "keepalive_interval": wire.WAIT_S}
    line = "it says nothing"
    try:
        connection = await stack.enter_async_context(asyncssh.connect(host, port, **options))
        started = connection.create_process(command, stderr=asyncssh.STDOUT, errors="replace")
        process = await stack.enter_async_context(started)
        async with asyncio.timeout(wire.CALL_S):
            while not line.startswith(STARTED):
                before, line = line, await process.stdout.readline()
                if not line:
                    raise PomologyError(f"HOSTS: {host}: no worker starts there ({one_line(before.strip(), 300)})")
    except (OSError, asyncssh.Error) as error:
        raise PomologyError(f"HOSTS: {host}: {one_line(error, 300) or 'no worker starts there in time'}") from None
