"""Where the fleet's scheduler is, and who starts its workers: somebody else, ssh on HOSTS, or one of each here."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shlex
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import dask
import distributed

from pomology.errors import PomologyError
from pomology.format import one_line
from pomology.runner import fleet_wire as wire

SSH = re.compile(rf"(?:([A-Za-z0-9_][A-Za-z0-9._-]{{0,31}})@)?({wire.HOST})(?::(\d{{1,5}}))?")


def hosts(text: str) -> list[tuple[str, str, int]]:
    """User (or none), host and port of each of HOSTS. Raises PomologyError for what is no plain name."""
    known = []
    for each in text.split():
        match = SSH.fullmatch(each)
        if not match or not 0 < int(match[3] or 22) < 65536:
            raise PomologyError(
                f"HOSTS: {one_line(each, 80)}: must be host, user@host or user@host:port, of letters, "
                "digits, dots and dashes"
            )
        known.append((match[1] or "", match[2], int(match[3] or 22)))
    return known


@contextlib.asynccontextmanager
async def cluster(scheduler: str, names: str, insecure: bool) -> AsyncIterator[tuple[str, distributed.Security]]:
    """A scheduler's address, of one that runs, or of one with workers on HOSTS, or with one here, which end behind."""
    if scheduler:
        where = wire.address(scheduler, "SCHEDULER", insecure)
        yield str(where), wire.security(where.protocol)
    elif names:
        from distributed.deploy import ssh
        from distributed.deploy.spec import SpecCluster

        near = all(host in ("localhost", "127.0.0.1") for _, host, _ in hosts(names))
        tls = any(map(os.environ.get, wire.TLS.values())) or not (near or insecure)
        where = wire.Address("tls" if tls else "tcp", "127.0.0.1" if near else "0.0.0.0", 0)
        secure, home = wire.security(where.protocol), Path(os.path.expanduser("~"))
        python = Path(sys.prefix, "bin", "python")
        python = python.relative_to(home) if python.is_relative_to(home) else python  # ssh begins in the home folder
        workers = {
            number: {
                "cls": ssh.Worker,
                "options": {
                    "address": host,
                    "connect_options": {"port": port, "connect_timeout": wire.WAIT_S}
                    | ({"username": user} if user else {}),
                    "kwargs": {},
                    "worker_class": "pomology.runner.fleet_worker.Worker",
                    "remote_python": shlex.quote(str(python)),
                },
            }
            for number, (user, host, port) in enumerate(hosts(names))
        }
        spec = {"cls": wire.Scheduler, "options": {"where": where, "secure": secure}}
        with dask.config.set(wire.settings_of(secure)):
            try:
                async with SpecCluster(workers, spec, asynchronous=True, security=secure, name="fleet") as made:
                    yield made.scheduler.address, secure
            except PomologyError:
                raise
            except Exception as error:  # asyncssh's and dask's, of many kinds
                raise PomologyError(f"HOSTS={names}: {one_line(error, 300)}") from None
    else:
        secure = distributed.Security(require_encryption=False)
        async with wire.Scheduler(wire.Address("tcp", "127.0.0.1", 0), secure) as made:
            command = (sys.executable, "-m", "pomology.runner.fleet_worker", "worker", made.address)
            pipes = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.DEVNULL}
            process = await asyncio.create_subprocess_exec(*command, **pipes, start_new_session=True)
            try:
                yield made.address, secure
            finally:
                process.stdin.close()
                await process.wait()
