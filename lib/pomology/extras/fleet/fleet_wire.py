"""What the fleet uses of dask.distributed, and what it refuses: who listens where, TLS, and that nothing is unpickled.

distributed unpickles in many places what a peer sends: results, exceptions, log events. To unpickle is to run the
sender's code. The fleet sends text, numbers and bytes only, and each of its processes refuses every pickle that names a
function or class; what is left of pickles without these is data. The refusal is an audit hook of Python: no path of
distributed goes around it. Nor does it read a message of any size, or unpack one."""

import asyncio
import contextlib
import ipaddress
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any
from urllib.parse import SplitResult, urlsplit

import dask
import distributed
from distributed.comm import tcp
from distributed.protocol.compression import compressions

from pomology.errors import PomologyError
from pomology.format import one_line

WAIT_S = 10.0  # for a scheduler to answer, and for its first worker
CALL_S = 30.0  # for one answer of a worker
PIECE = 2**20  # bytes of a file in one answer
MOST = 2**25  # bytes of one message: more than any that the fleet sends
HOST = r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?"
ADDRESS = re.compile(rf"(?:tcp|tls)://({HOST}|\[[0-9a-fA-F:]{{2,39}}\]):\d{{1,5}}")
TLS = {name: f"POMOLOGY_TLS_{name}" for name in ("CA", "CERT", "KEY")}
ROLES = ("client", "scheduler", "worker")
RESOURCE = "machine"  # each worker has one, which says that it is one of the fleet
# Of distributed: nothing that samples, serves pages, schedules or loads code by itself beside a measurement.
CONFIG = {
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "5s",
    "distributed.admin.system-monitor.interval": "10s",
    "distributed.admin.system-monitor.gil.enabled": False,
    "distributed.worker.http.routes": [],
    "distributed.scheduler.http.routes": [],
    "distributed.worker.preload": [],
    "distributed.scheduler.preload": [],
    "distributed.scheduler.work-stealing": False,
    "distributed.scheduler.worker-ttl": "60s",
    "distributed.scheduler.active-memory-manager.start": False,
    "distributed.comm.compression": None,
    "distributed.comm.timeouts.connect": "10s",
    "distributed.comm.timeouts.tcp": "30s",
}

_refusals = 0


class Unread(PomologyError):
    """A peer sent a pickle that names a function or a class, or what is compressed or too large."""


def _audit(event: str, arguments: tuple) -> None:
    if _refusals and event == "pickle.find_class":
        raise Unread("sent a pickle, which could run code here: not read")


@cache
def _guard() -> None:
    """While `nothing_unpickled` holds, read no pickle that could run code, and no message of more than `MOST` bytes:
    distributed would allocate whatever a peer says."""
    sys.addaudithook(_audit)
    read, unpack = tcp.read_bytes_rw, tcp.unpack_frames

    def checked(size: int) -> int:
        if _refusals and size > MOST:
            raise Unread(f"sent a message of {size:,} bytes; at most {MOST:,} are read")
        return size

    async def read_bytes_rw(stream: Any, size: int) -> memoryview:
        return await read(stream, checked(size))

    def unpack_frames(data: Any, **how: Any) -> tuple[list, list]:
        frames, left = unpack(data, **how)
        checked(sum(left))
        return frames, left

    def unpacked(decompress: Callable[[bytes], bytes], data: bytes) -> bytes:
        if _refusals:
            raise Unread("sent a compressed message: not read")
        return decompress(data)

    tcp.read_bytes_rw, tcp.unpack_frames = read_bytes_rw, unpack_frames
    for name, each in compressions.items():
        if each.name:
            compressions[name] = each._replace(decompress=partial(unpacked, each.decompress))


@contextlib.contextmanager
def nothing_unpickled() -> Iterator[None]:
    """Meanwhile whatever unpickles a function or class in this process raises Unread, and distributed is set up as the
    fleet needs it, and silent."""
    global _refusals
    _guard()
    logger = logging.getLogger("distributed")
    before, logger.handlers, logger.propagate = (logger.handlers, logger.propagate), [logging.NullHandler()], False
    _refusals += 1
    try:
        with dask.config.set(CONFIG):
            yield
    finally:
        _refusals -= 1
        logger.handlers, logger.propagate = before


def address(text: str, variable: str = "", insecure: bool = True) -> SplitResult:
    """A scheduler's address. Raises PomologyError for one of another form, or without TLS beyond this machine."""
    try:
        where = urlsplit(text)
        wrong = not ADDRESS.fullmatch(text) or where.port is None
    except ValueError:  # no IPv6 address, or port
        wrong = True
    if wrong:
        raise PomologyError(f"{variable}={one_line(text, 200)}: must be tcp://host:port or tls://host:port")
    loopback = where.hostname == "localhost"
    with contextlib.suppress(ValueError):
        loopback = ipaddress.ip_address(where.hostname).is_loopback
    if where.scheme == "tcp" and not loopback and not insecure:
        risk = "whoever reaches the port may start notebooks and send numbers; use tls://, or say INSECURE=1"
        raise PomologyError(f"{variable}={text}: without TLS beyond this machine {risk}")
    return where


def security(protocol: str) -> distributed.Security:
    """TLS by POMOLOGY_TLS_CA, _CERT and _KEY, or else by dask's own settings; both sides must show a certificate."""
    if protocol == "tcp":
        return distributed.Security(require_encryption=False)
    given, more = {name: os.environ.get(variable, "") for name, variable in TLS.items()}, {}
    if any(given.values()):
        for name, variable in TLS.items():
            if not os.access(given[name], os.R_OK):
                what = f"={one_line(given[name], 200)}: no file that can be read" if given[name] else ": is missing"
                raise PomologyError(f"{variable}{what}; all of {', '.join(TLS.values())} are needed for tls://")
        more = {f"tls_{role}_{what.lower()}": given[what] for role in ROLES for what in ("CERT", "KEY")}
        more["tls_ca_file"] = given["CA"]
    made = distributed.Security(require_encryption=True, **more)
    if not (made.tls_ca_file and made.tls_client_cert and made.tls_worker_cert and made.tls_scheduler_cert):
        raise PomologyError(f"tls:// needs certificates: {', '.join(TLS.values())}, each the path of a PEM file")
    try:
        for role in ROLES:
            made.get_connection_args(role)
    except (OSError, ValueError) as error:
        raise PomologyError(f"{', '.join(TLS.values())}: not certificates that fit ({one_line(error)})") from None
    return made


class Quiet:
    """A server of distributed without the HTTP server that it would open on all interfaces."""

    def start_http_server(self, *_: Any, **__: Any) -> None:
        pass


class Scheduler(Quiet, distributed.Scheduler):
    """distributed's, with no more of its doors than workers and the fleet go through."""

    DOORS = ("register-worker", "heartbeat_worker", "unregister", "broadcast", "identity")
    STREAM = ("log-event", "keep-alive", "worker-status-change", "long-running")

    def __init__(self, where: SplitResult, secure: distributed.Security):
        place = {"host": where.hostname, "port": where.port, "protocol": where.scheme}
        super().__init__(**place, security=secure, dashboard=False)
        self.handlers = {name: self.handlers[name] for name in self.DOORS}
        self.stream_handlers = {name: self.stream_handlers[name] for name in self.STREAM}


def listen(text: str, insecure: bool, say: Any) -> int:
    """Be a scheduler until stopped, for the command line."""
    where = address(text, "--listen", insecure)
    secure = security(where.scheme)

    async def serve() -> None:
        async with Scheduler(where, secure) as scheduler:
            say(f"a scheduler listens at {scheduler.address}; Ctrl-C ends it")
            await scheduler.finished()

    with nothing_unpickled():
        try:
            asyncio.run(serve())
        except OSError as error:
            raise PomologyError(f"--listen={text}: cannot listen there ({one_line(error)})") from None
    return 0
