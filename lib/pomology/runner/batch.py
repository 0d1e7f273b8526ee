"""Execute the notebooks of a run one after another, each in a fresh kernel.

A notebook runs in `.partial/` and moves into the run's folder after its last cell, because its file
does not show whether it finished. The runner prints progress from the notebook's journal, and
writes the status of a case whose kernel died into it.
"""

import contextlib
import functools
import json
import logging
import math
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import papermill
from jupyter_client.manager import KernelManager
from nbclient.exceptions import DeadKernelError

from pomology.errors import PomologyError
from pomology.format import clock_time, one_line
from pomology.machine import driver_reports, messages
from pomology.machine import snapshot as machine_snapshot
from pomology.paths import make_folder, redact, root, write_atomic
from pomology.report import figures
from pomology.report import page as report_page
from pomology.results import cases, frame
from pomology.results import journal as results_journal
from pomology.results.record import Record
from pomology.results.run import Run, check_machine, locked, note, note_machine
from pomology.runner.notebooks import answered, relinked
from pomology.runner.plan import GOING, Job, code_of, of_other_code, schedule

LIMIT_MINUTES = {"smoke": 10, "quick": 30, "article": 0}  # per notebook; 0 is no limit
# Without encryption ipykernel warns at every start of a kernel.
KERNEL = {"transport_encryption": "auto"}
TO_LOG = "--IPKernelApp.capture_fd_output=False"  # C code writes to the kernel's own stderr
LOG_BYTES = 16384  # of a log, in which the last line is looked for
LEFT_OPEN = "its notebook ended without ending this case"
DIED = ("crashed", "out-of-memory")  # of a kernel, after which the next case has a new one
CLIENT = "jupyter_client.asynchronous.AsyncKernelClient"  # nbclient needs this one

logging.getLogger("papermill").disabled = True  # the runner prints why a kernel ended itself
Outcome = tuple[str, str] | None  # status and reason of a notebook that did not finish


def reproduce(out: Path, jobs: list[Job], profile: str, limit: float | None, minutes: float) -> int:
    """Run the unfinished jobs of a run that fit into `minutes`, and build the report.

    limit: minutes per notebook. Returns the status: 0, 1 (error, unfinished) or 130 (interrupted).
    """
    begun_s = time.monotonic()
    limit_s = 60 * (LIMIT_MINUTES[profile] if limit is None else limit)
    failed = False
    results = f"outputs/{out.name}/"
    check_machine(out)
    make_folder(out / ".partial")
    _choose_temporary_folder(out / ".partial" / "tmp")
    with locked(out), stopped_by_signals() as stop:
        (out / GOING).touch()
        print(machine_snapshot.describe(note_machine(out, profile, begins=True)))
        for flag in machine_snapshot.conditions()["flags"]:
            print(f"note: {cases.FLAGS[flag]}")
        unfinished = [job for job in jobs if not finished(job, out)]
        if unfinished:  # notebooks that show other notebooks' results must show the new ones
            unfinished = [job for job in jobs if job in unfinished or job.notebook.after]
        count = len(unfinished)
        duration = clock_time(sum(job.seconds for job in unfinished))
        print(f"{count} of {len(jobs)} notebooks to run, about {duration}; results go to {results}")
        left_out: dict[str, str] = {}
        planned = schedule(unfinished, minutes, left_out)
        for number, (job, takes_s, ends_s) in enumerate(planned, start=1):
            if stop.is_set():
                break
            times = f"about {clock_time(takes_s)}; the run ends in about {clock_time(ends_s)}"
            print(f"[{number}/{count}] {job.name}: {times}")
            failed |= not Execution(job, out, limit_s, stop).run()
            # After each notebook, so that an interrupted run has a table and a report, too.
            frame.write(Run(out))
            report_page.build(out)
        if stop.is_set():
            resume = "the same command resumes the run"
            print(f"interrupted; finished results are in {results}; {resume}")
            return 130
        note(out, left_out=left_out)
        if left_out:
            resume = f"`make reproduce RUN={out.name}` runs them"
            print(f"notebooks that did not fit into MINUTES: {len(left_out)}; {resume}")
        page = report_page.build(out, told=True)
        (out / GOING).unlink(missing_ok=True)
    errors = [record for record in Run(out).records if record.status == "error"]
    for record in errors:
        print(f"error in {record.experiment}, {record.case}: {record.reason}")
    print(f"done in {clock_time(time.monotonic() - begun_s)}; report: {page.relative_to(root())}")
    return 1 if failed or errors else 0


def _choose_temporary_folder(substitute: Path) -> None:
    """Let this process and its kernels write temporary files where the system has room.

    substitute: the folder that is used if the system's has less than 100 MB.
    """
    room_bytes = 0
    with contextlib.suppress(OSError):  # no folder can be written
        usual = Path(tempfile.gettempdir())
        # Python takes the current folder, the checkout, if the system's cannot be written.
        room_bytes = 0 if usual == root() else shutil.disk_usage(usual).free
    if room_bytes < 10**8:
        make_folder(substitute)
        print(f"note: no 100 MB for temporary files; they go to {redact(str(substitute))}")
        tempfile.tempdir = str(substitute)
    os.environ["TMPDIR"] = tempfile.gettempdir()
    os.environ["JUPYTER_RUNTIME_DIR"] = tempfile.gettempdir()  # Jupyter's may be of another user


def finished(job: Job, out: Path) -> bool:
    """Return whether a job's notebook exists, and each case in its journal has ended."""
    journal = results_journal.read(out / f"{job.notebook.name}.jsonl")
    begun = _begun(job, journal)
    ended = all(journal.done(record.case, job.repeat) for record in begun)
    return job.output(out).exists() and ended and bool(begun or job.notebook.after)


def _begun(job: Job, journal: results_journal.Contents) -> list[Record]:
    """Return the cases that a job has begun, finished or not."""
    # A journal has the cases of all repeats and of all frameworks of its notebook.
    framework = job.parameters.get("framework", "")
    of_repeat = [record for record in journal.records if record.repeat == job.repeat]
    return [record for record in of_repeat if framework in ("", record.framework)]


@contextlib.contextmanager
def stopped_by_signals() -> Iterator[threading.Event]:
    """Yield an event that Ctrl-C, SIGTERM and a closing terminal set.

    The handlers raise nothing, because nbclient's tasks print tracebacks or swallow exceptions.
    """
    stop = threading.Event()
    before = {}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # a shell ignores it for jobs with `&`
            before[number] = signal.signal(number, lambda *_: stop.set())
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Execution:
    """The execution of one job, restarted in a fresh kernel after each case that kills its own."""

    def __init__(self, job: Job, out: Path, limit_s: float, stop: threading.Event):
        self.job = job
        self.out = out
        self.journal = results_journal.Journal(out / f"{job.notebook.name}.jsonl")
        self._stop = stop
        self._deadline_s = time.monotonic() + (limit_s or math.inf)
        path = self.journal.path
        self._read_bytes = path.stat().st_size if path.exists() else 0

    def run(self) -> bool:
        """Execute until every case has ended; return whether the notebook finished."""
        name = self.job.name
        while True:  # ends, because each restart has at least one case less to run
            used_before = self._used_kernels()
            outcome = self._run_kernel()
            if outcome is None:
                # A case that filled its kernel leaves the others to the next one.
                if self._used_kernels() > used_before:
                    continue
                return True
            status, reason = outcome
            if status == "no device":  # DEVICE=cuda selects the frameworks that have that device
                print(f"  {name} is skipped: {reason}")
                return True
            lost = [] if status == "error" else self.journal.finish_open(status, reason)
            for case in lost:
                print(f"  {case}: {status} ({reason})")
            if status not in DIED or not lost:
                if not self._stop.is_set():
                    partial = f"outputs/{self.out.name}/.partial/"
                    print(f"  {name} did not finish: {reason} (see {partial})")
                return False
            how = "crashed" if status == "crashed" else "ran out of memory"
            print(f"  {name}: restarted after {', '.join(lost)} {how}")

    def watch(self) -> Outcome:
        """Print a line per newly ended case; return the reason to end the kernel, or None."""
        if self.journal.path.exists():
            # Only new lines: to parse a long journal again would disturb the case being timed.
            with self.journal.path.open("rb") as file:
                file.seek(self._read_bytes)
                lines, end, _ = file.read().rpartition(b"\n")
            self._read_bytes += len(lines + end)
            try:
                for record in results_journal.contents(self.journal.path.name, lines).ended:
                    print("  " + cases.line(record))
            except BrokenPipeError:  # in a thread; the next line of the run raises it again
                self._stop.set()
        if self._stop.is_set():
            return "interrupted", "stopped by the user"
        if time.monotonic() > self._deadline_s:
            return "timeout", "over the time limit of one notebook"
        return None

    def _used_kernels(self) -> int:
        """Return how many cases needed a kernel each, because their backend keeps compiled code."""
        backends = self.job.notebook.one_case_per_kernel
        return sum(
            record.repeat == self.job.repeat
            and record.backend in backends
            and results_journal.fills_kernel(record.status)
            for record in results_journal.read(self.journal.path).ended
        )

    def _run_kernel(self) -> Outcome:
        """Execute the notebook in a fresh kernel, which ends early if `watch` returns a reason."""
        source = self.job.notebook.path
        problem = self._note_code()
        if problem:
            return "error", problem
        partial = self.out / ".partial" / f"{self.job.name}.ipynb"
        final = self.job.output(self.out)
        final.parent.mkdir(parents=True, exist_ok=True)
        log = partial.with_suffix(".log")
        log_begin = log.stat().st_size if log.exists() else 0
        signals: list[str] = []
        os.environ[results_journal.ONE_CASE_ON] = " ".join(self.job.notebook.one_case_per_kernel)
        os.environ["IPYTHONDIR"] = str(partial.parent / "ipython")  # ignores user start-up files
        os.environ["JUPYTER_PREFER_ENV_PATH"] = "1"  # ignores user-registered `python3` kernels
        os.environ.update(figures.VARIABLES)  # ignores a user's matplotlibrc
        os.environ.pop("MPLBACKEND", None)  # a kernel has its own
        os.environ["PYTHONFAULTHANDLER"] = "1"  # a process that dies says where
        # pomology's own filter is too late where a notebook imports transformers before it.
        os.environ["PYTHONWARNINGS"] = "ignore:IProgress not found"
        if not os.access(os.path.expanduser("~"), os.W_OK):  # no home, for example in a container
            os.environ["HOME"] = str(partial.parent)
        try:
            with _kernel(source.parent, log, self.watch, signals) as manager:
                document = papermill.execute_notebook(
                    source,
                    partial,
                    parameters=self.job.parameters,
                    progress_bar=False,
                    kernel_name="python3",
                    language="python",
                    km=manager,
                )
        except DeadKernelError:
            return self.watch() or _death(signals, log, log_begin)
        except Exception as error:  # the run continues with the next notebook
            # papermill's error has the name and the message of the cell's exception.
            name = getattr(error, "ename", type(error).__name__)
            reason = getattr(error, "evalue", str(error)).split("\n")[0]
            fault = messages.fault(reason) if name in ("ImportError", "OSError") else None
            if name == "NoSuchDevice" or fault:
                return "no device", fault or reason
            return self.watch() or ("error", f"{name}: {reason}")
        if any(cell.metadata.papermill["status"] != "completed" for cell in document.cells):
            return self.watch() or ("error", "ended before its last cell")
        problem = self._left_open()
        if problem:
            return self.watch() or ("error", problem)
        # A repeat's tables have all repeats so far, so it also replaces the first one's notebook.
        # Where that is missing it has not finished, and a file there would say that it has.
        first = self.out / f"{self.job.notebook.name}.ipynb"
        targets = [final]
        if first.exists() and final.stem == f"{first.stem}-{self.job.repeat}":
            targets.append(first)
        # papermill writes paths of this machine into the file.
        executed = json.loads(redact(partial.read_text(encoding="utf-8")))
        for target in targets:
            target.with_suffix(".html").unlink(missing_ok=True)
            write_atomic(target, relinked(answered(executed), source, target.parent))
        partial.unlink()
        return None

    def _note_code(self) -> str:
        """Note of which code the notebook's cases are; return why they cannot be of one, or ""."""
        notebook = self.job.notebook
        try:
            problem = of_other_code(self.job, self.out)
            now = code_of(notebook)
        except PomologyError as error:
            return str(error)
        if not problem:
            machine = Run(self.out).machine
            noted = {fact: machine.get(fact, {}) for fact in now}
            facts = {fact: noted[fact] | {notebook.name: now[fact]} for fact in now}
            if facts != noted:
                note(self.out, **facts)
        return problem

    def _left_open(self) -> str:
        """End the cases that the notebook has not ended; return why it has not finished, or ""."""
        journal = results_journal.read(self.journal.path)
        begun = _begun(self.job, journal)
        if not begun and not self.job.notebook.after:
            return "it began no case"
        names = [record.case for record in begun]
        for start in journal.open_starts:
            own = start.case in names and start.repeat == self.job.repeat
            if own and not journal.done(start.case, start.repeat):
                self.journal.end(Record.ended(start, "error", LEFT_OPEN))
        left = [name for name in names if journal.attempts.get((name, self.job.repeat))]
        left = [name for name in left if not journal.done(name, self.job.repeat)]
        return f"it left cases open: {one_line(', '.join(left), 200)}" if left else ""


def _death(signals: Sequence[str], log: Path, begin: int) -> Outcome:
    """Return how a kernel ended, from what ended it and from its log, from a byte on."""
    aborted = "SIGABRT" in signals
    status, words = driver_reports.death(_log_lines(log, begin), aborted)
    cause = signals[0] if signals else "killed, out of memory, or exit"
    said = f"; it said last: {words}" if words else ""
    return status, f"its kernel ended before its last cell ({cause}){said}"


def _log_lines(log: Path, begin: int) -> list[str]:
    """Return the last lines that a kernel wrote to its log, from a byte on."""
    with contextlib.suppress(OSError):
        if not log.is_file():  # to open a pipe would wait for its other end
            return []
        with open(log, "rb") as file:
            file.seek(max(begin, log.stat().st_size - LOG_BYTES))
            return [line for line in file.read().decode(errors="replace").splitlines() if line]
    return []


def _ending(code: int) -> str:
    """Return what a process's exit code says: `SIGSEGV`, `signal 40` or `exit 3`."""
    return driver_reports.signal_name(-code) if code < 0 else f"exit {code}"


@contextlib.contextmanager
def _kernel(
    folder: Path, log: Path, watch: Callable[[], Outcome], signals: list[str]
) -> Iterator[KernelManager]:
    """Yield a kernel. It and its child processes are killed at the end, or with this process.

    log: the file for its stderr. watch: called every 0.2 s; a reason ends the kernel. signals:
    receives the name of the signal that ended it, if one did.
    """
    manager = KernelManager(kernel_name="python3", client_class=CLIENT, **KERNEL)
    # nbclient requests a client and leaves it open; the same one is closed below.
    manager.client = functools.cache(manager.client)
    with open(log, "ab") as stderr:
        # Otherwise its last words would be in a pipe that ends with it.
        options = {"stdout": stderr, "stderr": stderr, "extra_arguments": [TO_LOG]}
        manager.start_kernel(cwd=folder, **options)
    process = manager.provisioner.process
    # The shell waits for this process to close the pipe, or to be killed.
    command = ["/bin/sh", "-c", f"read _; kill -9 -{manager.provisioner.pid} 2>&-"]
    guard = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    ended = threading.Event()

    def keep_watching() -> None:
        while not ended.wait(0.2):
            if watch():
                guard.communicate()

    thread = threading.Thread(target=keep_watching)
    thread.start()
    try:
        yield manager
    finally:
        ended.set()
        code = process.poll() if process else None
        if code is not None:
            signals.append(_ending(code))
        thread.join()
        watch()
        if manager.is_alive():
            manager.shutdown_kernel()
        guard.communicate()
        manager.client().stop_channels()
        manager.cleanup_resources()
