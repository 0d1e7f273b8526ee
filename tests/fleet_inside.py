"""What runs inside the machines of inject_fleet.py: a bucket, a peer without a certificate, a worker that lies."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import ssl
import sys
from pathlib import Path

from fleet_lab import BUCKET, CHIPS, HUB, SCHEDULER, sums_of

LIES = {  # kind -> what the command says of it, once
    "climbs": "which is no file of a run",
    "absolute": "which is no file of a run",
    "many": "lists more than a run has",
    "drips": "in another size than it said",
    "other": "another machine's machine.json",
    "nothing": "describes no machine",
    "chip": "of another notebook, profile or machine",
    "schema": "schema 999 is newer",
    "lines": "more than 100,000 lines",
    "code": "whose code is not this kit's",
    "page": "which is no file of a run",
    "pickle": "sent a pickle",
    "about": "sent a pickle",
    "types": "is malformed",
    "flood": "is malformed",
    "deep": "describes no machine",
    "twin": "if its checkout is a copy",
    "bomb": "sent a compressed message",
    "big": "lost (no answer)",
    "silent": "no answer",
    "kit": "runs another kit",
}


def bucket() -> None:
    """S3, whose answers end in silence while the file /tmp/dropped is there, also half way."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(HUB, 9000, verbose=False)
    server.start()
    app, dropped = server._server.app, Path("/tmp/dropped")

    def perhaps(environ, start_response):
        line = environ["werkzeug.socket"]
        answer = [] if dropped.exists() else app(environ, start_response)
        if dropped.exists():  # perhaps only now: then it was carried out
            line.shutdown(socket.SHUT_RDWR)
            raise ConnectionResetError
        return answer

    server._server.app = perhaps
    import boto3

    boto3.client("s3", endpoint_url=BUCKET, region_name="us-east-1").create_bucket(Bucket="lab")
    print("a bucket is there", flush=True)
    signal.pause()


def kept(run: str, answer: str) -> None:
    """Write the sums of the journals of each run of this name in the bucket into a file."""
    from pomology.results import store

    names = [name for name in store.Store("s3://lab/kept").runs() if name.startswith(f"{run}@")]
    sums = {name: sums_of(store.fetch(name, "s3://lab/kept")) for name in names}
    Path(answer).write_text(json.dumps(sums))


def knock(host: str, answer: str, *ports: str) -> None:
    """Write how many bytes a peer without a certificate gets from each port into a file."""
    answers = {}
    for port in map(int, ports):
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        got = b""
        with contextlib.suppress(OSError), context.wrap_socket(socket.create_connection((host, port), 5)) as secure:
            secure.settimeout(5)
            secure.sendall(b"\0" * 64)
            got = secure.recv(64)
        answers[port] = len(got)
        with contextlib.suppress(OSError), socket.create_connection((host, port), 5) as line:
            line.settimeout(5)
            line.sendall(b"\0" * 64)
            got = line.recv(64)
            answers[port] += len(got) * (got[:1] != b"\x15")  # an alert of TLS
    Path(answer).write_text(json.dumps(answers))


class Evil:
    def __reduce__(self):
        return os.mkdir, ("/tmp/evil-pickle",)


def liar(drawn: str) -> None:
    """A worker for each lie, all in this process; drawn: by the honest machine."""
    from distributed.comm.core import Comm
    from distributed.protocol import to_serialize

    from pomology.extras.fleet import fleet_wire as wire
    from pomology.extras.fleet import fleet_worker
    from pomology.extras.fleet.fleet_worker import Entry
    from pomology.machine import snapshot

    machine = snapshot.snapshot()
    about = json.dumps(machine | {"profile": "smoke"}).encode()
    other = json.dumps(machine | {"profile": "smoke", "chip": "Apple M9"}).encode()
    start = {"event": "start", "schema": 1, "experiment": "first", "article": "003", "case": "x", "config": {}}
    start |= {"framework": "x", "framework_version": "1", "backend": "cpu", "device": None, "precision": "fp32"}
    start |= {"profile": "smoke", "data": "none", "scaled": False, "repeat": 0, "threads": 1, "power_source": None}
    start |= {"started": "2026-01-01T00:00:00Z", "chip": machine["chip"]}
    lines = {
        "chip": json.dumps(start | {"chip": "Apple M9"}).encode(),
        "schema": b'{"schema":999}',
        "lines": b"x\n" * 100_001,
    }
    lines["garbage"] = b"[" * 50_000 + b'\n\xff\xfe\n{"event":"end"}\n\0\0\n' + json.dumps(start).encode()[:-9]
    stand_in = {"cells": [{"cell_type": "code", "source": "evil()", "metadata": {}, "outputs": []}], "nbformat": 4}
    big = (2**26, "0" * 64)
    files = {
        "climbs": {"../../evil.jsonl": b"x"},
        "absolute": {"/tmp/evil.jsonl": b"x"},
        "other": {"machine.json": other},
        "nothing": {"machine.json": b"[]"},
        "code": {"machine.json": about, "first.ipynb": json.dumps(stand_in | {"metadata": {}}).encode()},
        "page": {"machine.json": about, "evil.html": b"<script>"},
        **{kind: {"machine.json": about, "first.jsonl": text + b"\n"} for kind, text in lines.items()},
    }

    class Liar(fleet_worker.Machine):
        def __init__(self, kind: str, number: int):
            super().__init__()
            self.kind, self.drawn, self.begun = kind, f"{number:012x}", 0
            self.data = files.get(kind, {"machine.json": about})

        async def answer(self, ask: str, **asked: object) -> object:
            if self.kind == "silent":
                await asyncio.sleep(3600)
            if self.kind == "twin":  # behind the honest one: who comes first is that machine
                await asyncio.sleep(5)
            return getattr(self, f"to_{ask}")(**asked)

        def to_about(self) -> object:
            if self.kind == "about":
                return to_serialize(Evil())
            known = {"kit": fleet_worker.kit(), "version": "0", "drawn": self.drawn, "machine": json.dumps(machine)}
            known |= {"kit": "0" * 64} if self.kind == "kit" else {}
            known |= {"machine": "[" * 100_000} if self.kind == "deep" else {}
            chip = {"chip": CHIPS[0]}
            return known | ({"drawn": drawn, "machine": json.dumps(machine | chip)} if self.kind == "twin" else {})

        def to_files(self, run: str) -> object:
            if self.kind == "pickle":
                return {"files": to_serialize(Evil())}
            if self.kind == "bomb":
                return {"files": to_serialize(bytes(2**28))}
            sums = {name: (len(data), Entry.of(data).sha256) for name, data in self.data.items()}
            if self.kind == "many":
                sums = {f"first-{number}.jsonl": big for number in range(5)}
            return {"files": sums | ({"first.jsonl": big} if self.kind in ("drips", "big") else {})}

        def to_take(self, run: str, name: str, start: int, size: int) -> object:
            if name in self.data:
                return {"data": self.data[name][start : start + size]}
            return {"data": b"x" if self.kind == "drips" else bytes(2**26)}

        def to_begin(self, **_: object) -> object:
            if self.kind == "types":
                return {"job": ["evil"], "busy": None, "missing": 5}
            self.begun += 1
            job = "evil\x1b[2J" if self.kind in ("flood", "escapes") and self.begun == 1 else ""
            return {"job": job, "busy": False, "missing": []}

        def to_look(self, start: int) -> object:
            text = "  \x1b]0;evil\x07\x1b[2J\u202e" if self.kind == "escapes" else "x" * 2**20
            return {"job": "evil\x1b[2J", "text": text[start:], "status": 0}

    async def lie() -> None:
        workers = []
        for number, kind in enumerate((*LIES, "garbage", "escapes")):
            worker = await fleet_worker.Worker(SCHEDULER, Liar(kind, number), wire.security("tls"))
            worker.batched_stream.send({"op": "log-event", "topic": "evil", "msg": to_serialize(Evil())})
            workers.append(worker)
        print("all lies are told", flush=True)
        await asyncio.gather(*(worker.finished() for worker in workers))

    packed = lambda local, remote: {"pickle-protocol": 5, "compression": "zlib"}  # noqa: E731
    with wire.nothing_unpickled():
        Comm.handshake_configuration = staticmethod(packed)
        asyncio.run(lie())


if __name__ == "__main__":
    PARTS = {"bucket": bucket, "kept": kept, "knock": knock, "liar": liar}
    PARTS[sys.argv[1]](*sys.argv[2:])
