"""Every notebook, one after another, each in a fresh kernel.

A notebook runs in `.partial/` and moves to its place when its last cell has ended, as the file
alone does not show that. Meanwhile its journal is watched: it shows the progress, and gets the
status of a case whose kernel died.
"""

import contextlib
import math
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import papermill
from nbclient.exceptions import DeadKernelError
from papermill.clientwrap import PapermillNotebookClient
from papermill.engines import NBClientEngine, papermill_engines
from traitlets.config import Config

from pomology import format
from pomology.errors import PomologyError
from pomology.machine import snapshot as machine_snapshot
from pomology.paths import redact, root
from pomology.report import page as report_page
from pomology.results import cases, folders, frame
from pomology.results import journal as results_journal
from pomology.results.record import Record
from pomology.results.run import Run
from pomology.runner.notebooks import read_notebook
from pomology.runner.plan import GOING, Job, Schedule

LIMIT_MINUTES = {"smoke": 10, "quick": 30, "article": 0}  # of one notebook; 0 is none
# ipykernel warns at every start of a kernel that talks in the clear; encrypted, it is silent.
KERNEL = {"transport_encryption": "auto"}

Say = Callable[[str], None]
Outcome = tuple[str, str] | None  # of a notebook that did not get to its end: a status, and why


def reproduce(
    out: Path,
    jobs: list[Job],
    profile: str,
    limit_minutes: float | None = None,
    say: Say = print,
    minutes: float = math.inf,
) -> int:
    """Run what is missing of a run and fits `minutes`, and build its page.

    Returns the exit status: 0, 1 (an error, or an unfinished notebook) or 130 (interrupted).
    """
    begun_s = time.monotonic()
    limit_s = 60 * (LIMIT_MINUTES[profile] if limit_minutes is None else limit_minutes)
    folders.check_machine(out)
    (out / ".partial").mkdir(parents=True, exist_ok=True)
    with folders.locked(out, out.name, "reproduce"), stopped_by_signals() as stop:
        (out / GOING).touch()
        say(machine_snapshot.describe(folders.note_machine(out, profile)))
        for flag in machine_snapshot.conditions()["flags"]:
            say(f"note: {cases.FLAGS[flag]}")
        missing = [job for job in jobs if not finished(job, out)]
        if missing:  # what shows others' numbers shows the new ones, too
            missing = [job for job in jobs if job in missing or job.notebook.after]
        schedule = Schedule(missing, profile, minutes)
        about = format.clock_time(schedule.expected_s(*missing))
        count = f"{len(missing)} of {len(jobs)} notebooks"
        say(f"{count} to run into outputs/{out.name}/: about {about}")
        if minutes < math.inf:
            folders.note(out, minutes=minutes)
            say(f"MINUTES={minutes}: only notebooks that end in this time are run")
        failed = _run_all(out, schedule, limit_s, stop, say)
        if stop.is_set():
            say(f"interrupted; what was finished is in outputs/{out.name}/.")
            say("The same command carries on.")
            return 130
        folders.note(out, left_out=schedule.left_out)
        if schedule.left_out:
            count = len(schedule.left_out)
            say(f"left out: {count} notebooks. `make reproduce RUN={out.name}` carries on.")
        page = report_page.build(out)
        (out / GOING).unlink(missing_ok=True)
    errors = [record for record in Run(out).records if record.status == "error"]
    for record in errors:
        say(f"error in {record.experiment}, {record.case}: {record.reason}")
    took = format.clock_time(time.monotonic() - begun_s)
    say(f"done in {took}: {page.relative_to(root())}")
    return 1 if failed or errors else 0


def _run_all(
    out: Path, schedule: Schedule, limit_s: float, stop: threading.Event, say: Say
) -> bool:
    """Execute the jobs of a schedule until `stop` is set; return whether one did not finish."""
    count = len(schedule.waiting)
    failed = False
    for job in schedule:
        if stop.is_set():
            break
        number = count - len(schedule.waiting)
        own = format.clock_time(schedule.expected_s(job))
        ends = format.clock_time(schedule.expected_s(job, *schedule.waiting))
        say(f"[{number}/{count}] {job.label}: about {own}; the run ends in about {ends}")
        failed |= not Execution(job, out, limit_s, stop, say).run()
        frame.write(Run(out))
        report_page.build(out)
    return failed


def finished(job: Job, out: Path) -> bool:
    """Whether a job's notebook is there, and its journal has an end for each case that it began."""
    try:
        read_notebook(job.output(out))
    except PomologyError:  # missing, or damaged
        return False
    journal = results_journal.read(out / f"{job.notebook.name}.jsonl")
    framework = job.parameters.get("framework", "")
    records = [
        record
        for record in journal.records
        if record.repeat == job.repeat and framework in ("", record.framework)
    ]
    if job.notebook.after:  # it has no cases
        return True
    return bool(records) and all(journal.done(record.case, job.repeat) for record in records)


@contextlib.contextmanager
def stopped_by_signals() -> Iterator[threading.Event]:
    """An event that Ctrl-C, SIGTERM and a closing terminal set; a third signal ends this process.

    Nothing is raised, as nbclient's tasks would print tracebacks, or swallow the exception.
    """
    stop = threading.Event()
    received = []

    def handle(number: int, frame: Any) -> None:
        stop.set()
        received.append(number)
        if len(received) > 2:  # the second one may be impatience, while the kernel is ended
            os._exit(130)

    before = {}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # as of what a shell starts with `&`
            before[number] = signal.signal(number, handle)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Execution:
    """One job: its notebook in a fresh kernel, again after each case that kills the kernel."""

    def __init__(self, job: Job, out: Path, limit_s: float, stop: threading.Event, say: Say):
        self.job = job
        self.out = out
        self.journal = results_journal.Journal(out / f"{job.notebook.name}.jsonl")
        self._stop = stop
        self._say = say
        self._deadline_s = time.monotonic() + (limit_s or math.inf)
        self._bytes = 0
        self._said = {record.case for record in self._records()}

    def run(self) -> bool:
        """Execute until every case has an end; return whether the notebook got to its own."""
        label = self.job.label
        while True:  # each start has one case less to run
            used = self._used_kernels()
            outcome = self._run_kernel()
            if outcome is None:
                if self._used_kernels() > used:
                    continue
                return True
            status, reason = outcome
            if status == "no device":  # DEVICE=cuda means those frameworks that see it
                self._say(f"  {label} is left out: {reason}")
                return True
            lost = [] if status == "error" else self.journal.finish_open(status, reason)
            for case in lost:
                self._say(f"  {case}: {status} ({reason})")
            if status != "crashed" or not lost:
                if not self._stop.is_set():
                    place = f"outputs/{self.out.name}/.partial/"
                    self._say(f"  {label} did not finish: {reason} (see {place})")
                return False
            self._say(f"  {label}: started again after {', '.join(lost)}")

    def watch(self) -> Outcome:
        """Say a line for every case that has ended; return why the kernel must end, if it must."""
        size = self.journal.path.stat().st_size if self.journal.path.exists() else 0
        if size != self._bytes:
            self._bytes = size
            for record in self._records():
                if record.case not in self._said:
                    self._said.add(record.case)
                    self._say("  " + cases.line(record))
        if self._stop.is_set():
            return "interrupted", "stopped by the user"
        if time.monotonic() > self._deadline_s:
            return "timeout", "over the time limit of one notebook"
        return None

    def _records(self) -> list[Record]:
        """Return the cases of this repeat that have ended."""
        contents = results_journal.read(self.journal.path)
        open_cases = {start.case for start in contents.open_starts}
        return [
            record
            for record in contents.records
            if record.repeat == self.job.repeat and record.case not in open_cases
        ]

    def _used_kernels(self) -> set[str]:
        """Return the cases that had a kernel of their own, as their backend keeps compiled code."""
        return {
            record.case
            for record in self._records()
            if record.backend in self.job.notebook.one_case_per_kernel
            and results_journal.fills_kernel(record.status)
        }

    def _run_kernel(self) -> Outcome:
        """Execute in a fresh kernel, which ends early once `watch` gives a reason."""
        job = self.job
        partial, final = job.partial(self.out), job.output(self.out)
        final.parent.mkdir(parents=True, exist_ok=True)
        _set_environment(job, self.out)
        papermill_engines.register("pomology", Engine)
        with open(partial.with_suffix(".log"), "ab") as log:
            try:
                papermill.execute_notebook(
                    job.notebook.path,
                    partial,
                    job.parameters,
                    engine_name="pomology",
                    kernel_name="python3",  # whatever the notebook was last opened with
                    progress_bar=False,
                    resources={"metadata": {"path": str(job.notebook.path.parent)}},
                    config=Config(KernelManager=KERNEL),
                    kernel_log=log,
                    watch=self.watch,
                )
            except Exception as error:  # one notebook that papermill cannot take costs no other
                return self.watch() or _why(error)
        # papermill notes the folders of this machine in the file.
        partial.write_text(redact(partial.read_text(encoding="utf-8")), encoding="utf-8")
        final.with_suffix(".html").unlink(missing_ok=True)
        os.replace(partial, final)
        return None


def _set_environment(job: Job, out: Path) -> None:
    """Set what a kernel inherits."""
    os.environ[results_journal.ONE_CASE_ON] = " ".join(job.notebook.one_case_per_kernel)
    os.environ["IPYTHONDIR"] = str(out / ".partial" / "ipython")  # not the user's start-up files
    os.environ["JUPYTER_PREFER_ENV_PATH"] = "1"  # not a kernel `python3` that a user registered
    if not os.access(os.path.expanduser("~"), os.W_OK):  # a user without a home, as in a container
        os.environ["HOME"] = str(out / ".partial")


def _why(error: Exception) -> Outcome:
    """Return what an exception that ended a notebook means."""
    if isinstance(error, DeadKernelError):
        return "crashed", "its kernel died (killed, or out of memory)"
    if type(error) is RuntimeError:
        return "error", f"its kernel did not start: {error}"
    # Of papermill's error: that of what a cell raised.
    name = getattr(error, "ename", type(error).__name__)
    reason = getattr(error, "evalue", str(error)).split("\n")[0]
    if name == "NoSuchDevice":
        return "no device", reason
    return "error", f"{name}: {reason}"


class Engine(NBClientEngine):
    """Papermill's engine with a log of the kernel's stderr, and with `watch`, which may end it."""

    @classmethod
    def execute_managed_notebook(
        cls,
        nb_man,
        kernel_name,
        input_path,
        start_timeout,
        kernel_log: BinaryIO,
        watch: Callable[[], Outcome],
        **options,
    ):
        options |= {"kernel_name": kernel_name, "startup_timeout": start_timeout}
        client = PapermillNotebookClient(nb_man, **options)
        ended = threading.Event()
        guard = threading.Thread(target=_guard, args=(client, watch, ended), daemon=True)
        guard.start()
        try:
            return client.execute(stderr=kernel_log)
        finally:
            ended.set()
            guard.join()


def _guard(
    client: PapermillNotebookClient, watch: Callable[[], Outcome], ended: threading.Event
) -> None:
    """Kill a kernel and what it started: after its notebook, if `watch` says so, or with us."""
    guard = None
    while not ended.wait(0.2):
        # Perhaps there is no process yet.
        process = getattr(getattr(client.km, "provisioner", None), "process", None)
        if process and guard is None:
            # It waits for this process to close the pipe, or to be killed.
            command = ["/bin/sh", "-c", f"read _; kill -9 -{process.pid} 2>&-"]
            guard = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        if watch() and guard:
            guard.communicate()
    watch()
    if guard:
        guard.communicate()
