"""A machine of the fleet: a worker of dask.distributed that runs one notebook at a time, and hands out finished files.

It answers five questions, in text, numbers and bytes; it computes no task of dask's. A notebook runs in a process of
its own, by the runner of `reproduce`, into a run's folder in this checkout. That process ends with its worker, and
holds this machine, so that two workers on it never measure at once."""

import asyncio
import fcntl
import hashlib
import json
import re
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Self

import distributed
import msgspec

import pomology
from pomology.errors import PomologyError
from pomology.extras.fleet import fleet_wire as wire
from pomology.format import one_line
from pomology.machine import quiet
from pomology.machine import snapshot as machine_snapshot
from pomology.paths import MOST_BYTES, redact, root
from pomology.results import archive
from pomology.runner import batch, plan

MOST_TEXT = 2**16  # characters of what a job says, in one answer
FILES = re.compile(rf"machine\.json|{archive.WORD}\.jsonl|(?:repeats/)?{archive.WORD}\.ipynb")
AGAIN_S = 3.0  # before a worker looks for its scheduler again
STARTED = "a worker at"  # so begins what a worker says once it has registered


class Entry(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """What a list says of a file."""

    size: Annotated[int, msgspec.Meta(ge=0, le=MOST_BYTES)]
    sha256: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]

    @classmethod
    def of(cls, data: bytes) -> Self:
        return cls(len(data), hashlib.sha256(data).hexdigest())


def kit() -> str:
    """A digest of all that a measurement depends on in this checkout: library, notebooks and parameters."""
    package = Path(pomology.__file__).parent
    paths = [(package, path) for path in package.rglob("*.py")]
    paths += [(root(), path) for kind in ("notebooks", "params") for path in (root() / kind).rglob("*.[iy]*")]
    digest = hashlib.sha256()
    for name, path in sorted((path.relative_to(folder).as_posix(), path) for folder, path in paths):
        if path.is_file() and "/." not in f"/{name}":
            digest.update(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


def version() -> str:
    """`0.1.0, commit 1443628 (changed)`."""
    git = machine_snapshot.software()["git"]
    commit = f", commit {git['commit'][:7]}{' (changed)' if git['dirty'] else ''}" if git else ""
    return f"{pomology.__version__}{commit}"


def drawn() -> str:
    """What sets this checkout's machine apart from another of the same kind: drawn once, and kept in outputs/."""
    path = root() / "outputs" / ".fleet"
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # of two workers that start at once, one draws
        file.seek(0)
        if not (text := file.read()):
            file.write(text := secrets.token_hex(6))
    return text


class Machine:
    """What a worker does. Its methods are the questions that it answers, each with a dict."""

    ASKED = ("about", "begin", "look", "files", "take")

    def __init__(self) -> None:
        self.process: subprocess.Popen | None = None
        self.job, self.log = "", Path()
        self.lock = threading.Lock()

    async def answer(self, ask: str, **given: Any) -> dict:
        """Raises nothing: what goes wrong is `refused`, in a line."""
        try:
            if ask not in self.ASKED:
                raise PomologyError("unknown question")
            return await asyncio.to_thread(getattr(self, ask), **given)
        except PomologyError as error:
            return {"refused": one_line(error, 500)}
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            return {"refused": one_line(redact(f"{type(error).__name__}: {error}"), 500)}

    def about(self) -> dict:
        machine = json.dumps(machine_snapshot.snapshot())
        return {"kit": kit(), "version": version(), "drawn": drawn(), "machine": machine}

    def begin(self, settings: dict, past: Sequence[str], limit_minutes: float | None = None) -> dict:
        """Begin what has not come to its end here, the first of it that is not `past`, unless a job is under way."""
        with self.lock:
            if self.process and self.process.poll() is None:
                return {"job": self.job, "busy": True, "missing": []}
            out, jobs = _prepared(settings)
            missing = [job.name for job in jobs if not batch.finished(job, out)]
            self.job = next((name for name in missing if name not in past), "")
            if self.job:
                self.log = out / ".partial" / "fleet.txt"
                self.log.parent.mkdir(parents=True, exist_ok=True)
                self.log.unlink(missing_ok=True)  # a job that is just ending may still write into it
                about = json.dumps({"settings": settings, "job": self.job, "limit_minutes": limit_minutes})
                with open(self.log, "wb") as log:
                    command = [sys.executable, "-m", "pomology.extras.fleet.fleet_worker", "job", about]
                    piped = {"stdin": subprocess.PIPE, "stdout": log, "stderr": subprocess.STDOUT}
                    # In a session of its own: Ctrl-C ends the worker, and the pipe that then closes ends the job.
                    self.process = subprocess.Popen(command, cwd=root(), start_new_session=True, **piped)
        return {"job": self.job, "busy": False, "missing": missing}

    def look(self, start: int = 0) -> dict:
        """What the job has said from a character on, and how it ended if it has."""
        status = self.process.poll() if self.process else 0
        text = self.log.read_bytes().decode("utf-8", "replace") if self.process else ""
        if status is None:  # whole lines
            text = text[: text.rfind("\n") + 1]
        part = text[start : start + MOST_TEXT]
        ended = status is not None and start + len(part) >= len(text)
        return {"job": self.job, "text": part, "status": status if ended else None}

    def files(self, run: str) -> dict:
        """Size and SHA-256 of what a run has here that others may have, by name."""
        out = plan.run_folder(run, "")
        paths = {path.relative_to(out).as_posix(): path for path in (*out.glob("*"), *out.glob("repeats/*"))}
        known = {name: path for name, path in sorted(paths.items()) if FILES.fullmatch(name) and path.is_file()}
        sums = {name: Entry.of(path.read_bytes()) for name, path in known.items()}
        return {"files": {name: (entry.size, entry.sha256) for name, entry in sums.items()}}

    def take(self, run: str, name: str, start: int, size: int) -> dict:
        if not FILES.fullmatch(name) or not 0 < size <= wire.PIECE:
            raise PomologyError(f"{one_line(name)}: no file of a run")
        with open(plan.run_folder(run, "") / name, "rb") as file:
            file.seek(start)
            return {"data": file.read(size)}

    def stop(self) -> None:
        """End the job; its case becomes `interrupted`."""
        if self.process and self.process.poll() is None:
            self.process.stdin.close()
            self.process.wait()


def _prepared(given: dict) -> tuple[Path, list[plan.Job]]:
    if set(given) != set(plan.Asked._fields) or not given["run"]:
        raise PomologyError("not the settings of a run")
    return plan.prepare(plan.Asked(**given))


class Worker(wire.Quiet, distributed.Worker):
    """distributed's, which computes nothing of dask's and loads no code: its only door beside `identity` is `fleet`."""

    def __init__(self, scheduler: str, machine: Machine, secure: distributed.Security):
        more = {"nthreads": 1, "resources": {wire.RESOURCE: 1}, "dashboard": False, "memory_limit": 0}
        super().__init__(scheduler, security=secure, nanny=None, death_timeout=wire.WAIT_S, **more)
        self.handlers = {"identity": self.identity, "fleet": machine.answer}
        self.stream_handlers = {name: self.stream_handlers[name] for name in ("close", "remove-worker")}

    async def plugin_add(self, *_: Any, **__: Any) -> dict:  # a pickle of a scheduler's, as of its shuffling
        return {"status": "OK"}


def work(text: str, insecure: bool, say: Callable[[str], None]) -> int:
    """Be a worker until stopped, for the command line: look for the scheduler again whenever it is lost."""
    where = wire.address(text, "--worker", insecure)
    secure, machine = wire.security(where.scheme), Machine()

    async def serve() -> None:
        before = ""
        while True:
            why = "it is gone"
            try:
                worker = await Worker(text, machine, secure)
                say(f"{STARTED} {worker.address}, for the scheduler at {text}; Ctrl-C ends it")
                before = ""
                await worker.finished()
            except (OSError, TimeoutError, ValueError, RuntimeError) as error:
                why = one_line(str(error.__cause__ or "") or error) or type(error).__name__
            if why != before:
                say(f"no scheduler answers at {text} ({why}); looking again every {AGAIN_S:g} s")
            before = why
            await asyncio.sleep(AGAIN_S)

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with wire.nothing_unpickled():
        try:
            asyncio.run(serve())
        finally:
            machine.stop()
    return 0


def run_job(settings: dict, job: str, limit_minutes: float | None) -> int:
    """One notebook, by the runner, in this process."""
    say = partial(print, flush=True)
    with quiet.alone(say):
        out, jobs = _prepared(settings)
        chosen = [each for each in jobs if each.name == job]
        return batch.reproduce(out, chosen, settings["profile"], limit_minutes, say)


if __name__ == "__main__":  # for those who hold its stdin: a worker's job, or the fleet's own worker
    batch.end_with_stdin()
    try:
        what, given = sys.argv[1:]
        sys.exit(run_job(**json.loads(given)) if what == "job" else work(given, True, partial(print, flush=True)))
    except KeyboardInterrupt:
        sys.exit(130)
    except PomologyError as error:
        print(one_line(error, 1000))
        sys.exit(2)
