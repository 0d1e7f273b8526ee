"""A machine of the fleet: a worker of dask.distributed that runs one notebook at a time, and hands out finished files.

It answers six questions, in text, numbers and bytes; it computes no task of dask's. A notebook runs in a process of its
own, by the runner of `reproduce`, into a run's folder in this checkout. That process ends with its worker, and holds a
lock of this machine, so that two workers on one machine never measure at once."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import distributed

import pomology
from pomology.errors import PomologyError
from pomology.format import one_line
from pomology.machine import snapshot as machine_snapshot
from pomology.paths import redact, root
from pomology.results import archive
from pomology.runner import batch, plan
from pomology.runner import fleet_wire as wire

LOCK = Path("/tmp/pomology-device.lock")  # of this machine, whoever measures; not TMPDIR, which each user of a Mac has
LOCK_S = 30.0  # for another job on this machine to end: of a worker that was killed it does at once
BUSY = 3  # exit status of a job that did not get the lock
MOST_TEXT = 2**16  # characters of what a job says, in one answer
FILES = re.compile(rf"machine\.json|{archive.WORD}\.jsonl|(?:repeats/)?{archive.WORD}\.ipynb")
SETTINGS = ("profile", "devices", "only", "run", "data", "repeats")  # as `plan.prepare` takes them
AGAIN_S = 3.0  # before a worker looks for its scheduler again


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
    draft = path.with_name(f".fleet.{os.getpid()}.part")
    draft.write_text(secrets.token_hex(6))
    try:
        os.link(draft, path)  # of two workers that start at once, one wins
    except FileExistsError:
        pass
    finally:
        draft.unlink()
    return path.read_text()


def job_name(job: plan.Job) -> str:
    """`vae`, of its first repeat `vae-1`, at the end `instrument_check-end`."""
    return job.partial(Path()).stem


class Machine:
    """What a worker does. Its methods are the questions that it answers, each with a dict."""

    ASKED = ("about", "missing", "begin", "look", "files", "take")

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
        machine = machine_snapshot.snapshot()
        known = {"kit": kit(), "version": version(), "drawn": drawn(), "machine": json.dumps(machine)}
        return known | {"distributed": distributed.__version__}

    def missing(self, settings: dict) -> dict:
        """The jobs of a run that have not come to their end here."""
        out, jobs = _prepared(settings)
        return {"missing": [job_name(job) for job in jobs if not batch.finished(job, out)]}

    def begin(self, settings: dict, job: str, limit_minutes: float | None = None) -> dict:
        with self.lock:
            if self.process and self.process.poll() is None:
                return {"busy": self.job}
            out = plan.run_folder(_settings(settings)["run"], "")
            (out / ".partial").mkdir(parents=True, exist_ok=True)
            self.job, self.log = job, out / ".partial" / "fleet.txt"
            about = json.dumps({"settings": settings, "job": job, "limit_minutes": limit_minutes})
            with open(self.log, "wb") as log:
                command = [sys.executable, "-m", "pomology.runner.fleet_worker", about]
                piped = {"stdin": subprocess.PIPE, "stdout": log, "stderr": subprocess.STDOUT}
                # In a session of its own: Ctrl-C ends the worker, and the pipe that then closes ends the job.
                self.process = subprocess.Popen(command, cwd=root(), start_new_session=True, **piped)
        return {"busy": ""}

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
        """Name, size and SHA-256 of what a run has here that others may have."""
        out = plan.run_folder(run, "")
        paths = [*out.glob("*"), *out.glob("repeats/*")]
        known = sorted((path.relative_to(out).as_posix(), path) for path in paths if path.is_file())
        data = [(name, path.read_bytes()) for name, path in known if FILES.fullmatch(name)]
        return {"files": [[name, len(each), hashlib.sha256(each).hexdigest()] for name, each in data]}

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


def _settings(given: dict) -> dict:
    if set(given) != set(SETTINGS) or not given["run"]:
        raise PomologyError("not the settings of a run")
    return given


def _prepared(given: dict) -> tuple[Path, list[plan.Job]]:
    return plan.prepare(**_settings(given))


class Worker(wire.Quiet, distributed.Worker):
    """distributed's, which computes nothing of dask's and loads no code: its only door beside `identity` is `fleet`."""

    def __init__(self, scheduler: str, machine: Machine | None = None, **more: Any):
        self.refusing = wire.nothing_unpickled()
        self.refusing.__enter__()
        more = {"nthreads": 1, "resources": {wire.RESOURCE: 1}, "dashboard": False, "memory_limit": 0} | more
        super().__init__(scheduler, **more)
        self.machine = machine or Machine()
        self.handlers = {"identity": self.identity, "fleet": self.machine.answer}
        self.stream_handlers = {name: self.stream_handlers[name] for name in ("close", "remove-worker")}

    async def plugin_add(self, *_: Any, **__: Any) -> dict:  # a pickle of a scheduler's, as of its shuffling
        return {"status": "OK"}


def work(text: str, insecure: bool, say: Callable[[str], None]) -> int:
    """Be a worker until stopped, for the command line: look for the scheduler again whenever it is lost."""
    where = wire.address(text, "--worker", insecure)
    secure, machine = wire.security(where.protocol), Machine()

    async def serve() -> None:
        lost, before = True, ""
        while True:
            try:
                async with asyncio.timeout(wire.WAIT_S) as limit:
                    worker = Worker(str(where), machine, security=secure, nanny=None)
                    await worker
                    limit.reschedule(None)
                    say(f"a worker at {worker.address}, for the scheduler at {where}; Ctrl-C ends it")
                    lost, before = False, ""
                    await worker.finished()
            except (OSError, TimeoutError, ValueError, RuntimeError) as error:
                if (why := one_line(error) or type(error).__name__) != before:
                    say(f"no scheduler answers at {where} ({why}); looking again every {AGAIN_S:g} s")
                before = why
            else:
                if not lost:
                    say(f"the scheduler at {where} is gone; looking again every {AGAIN_S:g} s")
            await asyncio.sleep(AGAIN_S)

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with wire.nothing_unpickled():
        try:
            asyncio.run(serve())
        finally:
            machine.stop()
    return 0


def run_job(text: str) -> int:
    """One notebook, by the runner, in this process: with the lock of this machine, until its stdin is closed."""
    about = json.loads(text)
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    try:
        held = os.open(LOCK, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        held = os.open(LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_CREAT, 0o444)
    end_s = time.monotonic() + LOCK_S
    while True:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)  # it goes with this process, however that ends
            break
        except BlockingIOError:
            if time.monotonic() > end_s:
                print("another worker on this machine is measuring")
                return BUSY
            time.sleep(0.1)
    out, jobs = _prepared(about["settings"])
    chosen = [job for job in jobs if job_name(job) == about["job"]]
    if not chosen:
        raise PomologyError(f"{one_line(about['job'])}: no such job")
    say = lambda line: print(line, flush=True)  # noqa: E731
    return batch.reproduce(out, chosen, about["settings"]["profile"], about["limit_minutes"], say)


def _end_with_stdin() -> None:
    """Stop this process as Ctrl-C would, once the worker that started it has closed the pipe, or was killed."""
    while os.read(0, 1024):  # not sys.stdin, whose lock the end of Python would wait for
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    try:
        if sys.argv[1] == "worker":
            threading.Thread(target=_end_with_stdin, daemon=True).start()
            sys.exit(work(sys.argv[2], False, print))
        sys.exit(run_job(sys.argv[1]))
    except KeyboardInterrupt:
        sys.exit(130)
    except PomologyError as error:
        print(one_line(error, 1000))
        sys.exit(2)
