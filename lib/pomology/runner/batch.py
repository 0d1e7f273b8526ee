"""Every notebook, one after another, each in a fresh kernel, from one process.

A notebook runs in `.partial/` and moves to its place only when its last cell has ended, since a notebook file alone
does not show whether its run succeeded. While it runs, its journal is watched: that is how progress is shown, and how
a case whose kernel died gets its status.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import filelock

from pomology import format
from pomology.errors import PomologyError
from pomology.machine import snapshot as machine_snapshot
from pomology.paths import redact, root
from pomology.report import page as report_page
from pomology.results import cases, folders
from pomology.results import journal as results_journal
from pomology.results import record as results_record
from pomology.runner.plan import Job

LIMIT_MINUTES = {"smoke": 10, "quick": 30, "article": 0}  # of one notebook; 0 is none

RESTARTS = 50  # each behind a case that killed its kernel; more than any notebook has cases

# ipykernel warns at every start of a kernel that talks in the clear; encrypted, it is silent.
KERNEL = {"transport_encryption": "auto"}

Say = Callable[[str], None]
Outcome = tuple[str, str]  # how an execution ended that did not finish, and why


def reproduce(out: Path, jobs: list[Job], profile: str, limit_minutes: float | None = None, say: Say = print) -> int:
    """Run what is missing of a run and build its page. Returns the exit status: 0, 1 or 130."""
    limit_minutes = LIMIT_MINUTES[profile] if limit_minutes is None else limit_minutes
    with _locked(out), _stopped_by_signals() as stop:
        snapshot = folders.note_machine(out, profile)
        say(machine_snapshot.describe(snapshot))
        for warning in machine_snapshot.conditions()["flags"]:
            say(f"note: {cases.FLAGS.get(warning, warning)}")
        waiting = [job for job in jobs if not _finished(job, out)]
        expected_s = sum(job.notebook.seconds.get(profile, 0) for job in waiting)
        say(
            f"{len(waiting)} of {len(jobs)} notebooks to run into outputs/{out.name}/"
            + (f", about {format.clock_time(expected_s)} on two CPU cores" if expected_s else "")
        )
        begun_s, failed = time.monotonic(), False
        for number, job in enumerate(waiting, start=1):
            if stop.is_set():
                break
            share = job.notebook.seconds.get(profile)
            about = f", about {format.clock_time(share)}" if share else ""
            elapsed = format.clock_time(time.monotonic() - begun_s)
            say(f"[{number}/{len(waiting)}] {job.label}{about} ({elapsed} since the start)")
            failed |= not _execute(job, out, limit_minutes * 60, stop, say)
            report_page.build(out)
        if stop.is_set():
            say(f"interrupted; what was finished is in outputs/{out.name}/. The same command carries on.")
            return 130
        page = report_page.build(out)
    records = [record for path in sorted(out.glob("*.jsonl")) for record in results_journal.read(path).records]
    errors = [record for record in records if record.status == "error"]
    for record in errors:
        say(f"error in {record.experiment}, {record.case}: {record.reason}")
    say(f"done in {format.clock_time(time.monotonic() - begun_s)}: {page.relative_to(root())}")
    return 1 if failed or errors else 0


def _finished(job: Job, out: Path) -> bool:
    if not job.output(out).exists():
        return False
    journal = results_journal.read(out / f"{job.notebook.name}.jsonl")
    begun = [record.case for record in journal.records if record.repeat == job.repeat]
    return bool(begun) and all(journal.done(case, job.repeat) for case in begun)


@contextlib.contextmanager
def _locked(out: Path) -> Iterator[None]:
    """One process at a time in a run's folder. The lock goes with its process, however that ends."""
    (out / ".partial").mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(out / ".partial" / "lock", blocking=False)
    try:
        held = lock.acquire()
    except filelock.Timeout:
        raise PomologyError(f"RUN={out.name}: another `pomology reproduce` is running there") from None
    with held:
        yield


@contextlib.contextmanager
def _stopped_by_signals() -> Iterator[threading.Event]:
    """An event that Ctrl-C and SIGTERM set; a second signal raises KeyboardInterrupt at once.

    An exception out of the midst of nbclient would leave its tasks behind, each of which prints a traceback later: so
    nothing is raised, and the kernel is ended instead. Only the main thread may set handlers.
    """
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def handle(*_):
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    # SIGINT is ignored in what a shell starts in the background, and stays so.
    signals = [number for number in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, handle) for number in signals}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _execute(job: Job, out: Path, limit_s: float, stop: threading.Event, say: Say) -> bool:
    """Run one notebook to its end, again behind each case that kills its kernel. Returns whether it got there."""
    journal = results_journal.Journal(out / f"{job.notebook.name}.jsonl")
    deadline = time.monotonic() + limit_s if limit_s else None

    def must_end() -> Outcome | None:
        if stop.is_set():
            return "interrupted", "stopped by the user"
        if deadline is not None and time.monotonic() > deadline:
            return "timeout", "over the time limit of one notebook"
        return None

    for _ in range(RESTARTS):
        with _watching(journal.path, job.repeat, say):
            try:
                outcome = _run_kernel(job, out, must_end)
            except KeyboardInterrupt:  # by a second signal
                journal.finish_open("interrupted", "stopped by the user")
                raise
        if outcome is None:
            return True
        status, reason = outcome
        if status == "no device":  # DEVICE=cuda means those frameworks that see it
            say(f"  {job.label} is left out: {reason}")
            return True
        if status == "error":
            say(f"  {job.label} failed: {reason} (see outputs/{out.name}/.partial/)")
            return False
        lost = journal.finish_open(status, reason)
        for case in lost:
            say(f"  {case}: {status} ({reason})")
        if status == "interrupted":
            return False
        if status == "timeout" or not lost:
            say(f"  {job.label} did not finish: {reason}")
            return False
        say(f"  {job.label}: started again behind {', '.join(lost)}")
    return False


def _run_kernel(job: Job, out: Path, must_end: Callable[[], Outcome | None]) -> Outcome | None:
    """Execute in one fresh kernel, which ends early once `must_end` gives a reason.

    Returns None, or why not: (`no device`, `crashed`, `interrupted`, `timeout` or `error`, reason).
    """
    import papermill
    from nbclient.exceptions import DeadKernelError
    from traitlets.config import Config

    _register_engine()
    partial, final = job.partial(out), job.output(out)
    final.parent.mkdir(parents=True, exist_ok=True)
    os.environ["JUPYTER_PREFER_ENV_PATH"] = "1"  # this environment's kernel, not a `python3` that a user registered
    with open(partial.with_suffix(".log"), "ab") as log:
        try:
            papermill.execute_notebook(
                job.notebook.path,
                partial,
                job.parameters,
                engine_name="pomology",
                progress_bar=False,
                config=Config(KernelManager=KERNEL),
                coalesce_streams=True,
                resources={"metadata": {"path": str(job.notebook.path.parent)}},
                kernel_log=log,
                must_end=must_end,
            )
        except RuntimeError as error:
            if ended := must_end():
                return ended
            if not isinstance(error, DeadKernelError):
                return "error", f"its kernel did not start: {error}"
            return "crashed", "its kernel died (killed, or out of memory)"
        except papermill.PapermillExecutionError as error:
            if error.ename == "NoSuchDevice":
                return "no device", error.evalue.split("\n")[0]
            return "error", f"{error.ename}: {error.evalue}".split("\n")[0]
    # papermill notes the folders of this machine in the file.
    partial.write_text(redact(partial.read_text(encoding="utf-8")), encoding="utf-8")
    os.replace(partial, final)
    return None


def _register_engine() -> None:
    """Teach papermill to give the kernel a log for its stderr, to end it early, and to leave no process behind."""
    from papermill.clientwrap import PapermillNotebookClient
    from papermill.engines import NBClientEngine, papermill_engines

    class Engine(NBClientEngine):
        @classmethod
        def execute_managed_notebook(cls, nb_man, kernel_name, kernel_log, must_end, **options):
            unused = ("input_path", "log_output", "stdout_file", "stderr_file", "start_timeout", "execution_timeout")
            options = {key: value for key, value in options.items() if key not in unused}
            client = PapermillNotebookClient(nb_man, kernel_name=kernel_name, timeout=None, **options)
            ended = threading.Event()

            def guard():
                while not ended.wait(0.2):
                    if must_end():  # perhaps before there is a kernel to kill
                        _kill(client)

            threading.Thread(target=guard, daemon=True).start()
            try:
                return client.execute(stderr=kernel_log)
            except KeyboardInterrupt:
                _kill(client)
                raise
            finally:
                ended.set()

    papermill_engines.register("pomology", Engine)


def _kill(client: Any) -> None:
    """End a kernel at once, with the data workers it may have started."""
    provisioner = getattr(client.km, "provisioner", None)
    process = getattr(provisioner, "process", None)
    if process is not None and process.poll() is None:
        # jupyter_client starts each kernel as the leader of a session of its own.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


@contextlib.contextmanager
def _watching(path: Path, repeat: int, say: Say) -> Iterator[None]:
    """Say a line for every case that ends in this journal while the block runs."""
    known = len(_lines(path))
    stop = threading.Event()

    def watch():
        nonlocal known
        last = False
        while not last:
            last = stop.wait(0.5)
            lines = _lines(path)
            for line in lines[known:]:
                with contextlib.suppress(ValueError):  # torn by a crash
                    record = results_record.parse(line)
                    if isinstance(record, results_record.Record) and record.repeat == repeat:
                        say("  " + cases.line(record))
            known = len(lines)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _lines(path: Path) -> list[bytes]:
    """The complete lines of a file that grows."""
    return path.read_bytes().split(b"\n")[:-1] if path.exists() else []
