"""Every notebook, one after another, each in a fresh kernel, from one process.

A notebook runs in `.partial/` and moves to its place only when its last cell has ended, since a notebook file alone
does not show whether its run succeeded. Meanwhile its journal is watched, which shows the progress, and gives a case
whose kernel died its status.
"""

import contextlib
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from pomology import format
from pomology.errors import PomologyError
from pomology.machine import quiet
from pomology.machine import snapshot as machine_snapshot
from pomology.paths import redact, root, write_atomic
from pomology.report import page as report_page
from pomology.results import cases, folders, frame
from pomology.results import journal as results_journal
from pomology.results.record import Record, parse
from pomology.results.run import Run
from pomology.runner.notebooks import read_notebook
from pomology.runner.plan import GOING, Job
from pomology.runner.turns import Turns

LIMIT_MINUTES = {"smoke": 10, "quick": 30, "article": 0}  # of one notebook; 0 is none
PAGES = 20  # a page is built again after so many times what the last one took: a large one takes seconds
LEAST_PACE_S = 60  # of notebooks that are done, before their times correct the expected ones
# ipykernel warns at every start of a kernel that talks in the clear; encrypted, it is silent.
KERNEL = {"transport_encryption": "auto"}

Say = Callable[[str], None]
Outcome = tuple[str, str] | None  # of a notebook that did not get to its end: a case's status, and why


def reproduce(
    out: Path,
    jobs: list[Job],
    profile: str,
    limit_minutes: float | None = None,
    say: Say = print,
    minutes: float = math.inf,
) -> int:
    """Run what is missing of a run, or of that what fits `minutes`, and build its page. Returns the exit status: 0, 1
    or 130."""
    begun_s, timed = time.monotonic(), math.isfinite(minutes)
    limit_minutes = LIMIT_MINUTES[profile] if limit_minutes is None else limit_minutes
    folders.check_machine(out)
    (out / ".partial").mkdir(parents=True, exist_ok=True)
    held = folders.locked(out, out.name, "reproduce")
    (out / GOING).touch()
    with held, stopped_by_signals() as stop:
        say(machine_snapshot.describe(folders.note_machine(out, profile)))
        (out / folders.UNTIL).unlink(missing_ok=True)
        left = dict(folders.noted(out).get("left_out", {}))  # as MINUTES was over: the label of a job -> why
        if timed:
            folders.note(out, minutes=minutes)
        state, once = machine_snapshot.conditions() if profile == "smoke" or timed else None, iter([say])
        state = state or quiet.wait(out / quiet.WAITED, lambda text: next(once, str)(text), stop.wait)
        for flag in state["flags"]:
            say(f"note: {cases.FLAGS[flag]}")
        waiting = [job for job in jobs if job.label in left or not finished(job, out)]
        done = {job.notebook.name for job in jobs} - {job.notebook.name for job in waiting if not job.repeat}
        turns, page_s, failed = Turns(waiting, profile, minutes, done, time.monotonic, begun_s), 0.0, False
        stated = [job.notebook.seconds.get(profile, 0) for job in waiting]  # on two CPU cores
        about = f": about {format.clock_time(sum(stated))}" if any(stated) else ""
        many = f"{len(waiting)} of {len(jobs)} notebooks to run into outputs/{out.name}/{about}"
        until = format.time_of_day(turns.until_s - time.monotonic()) if timed else ""
        say(f"MINUTES={minutes}: notebooks that end by {until}, into outputs/{out.name}/" if timed else many)
        run = Run(out)  # which reads a journal again only where it has changed
        for number, job in enumerate(turns, start=1):
            if stop.is_set():
                break
            pace = turns.pace if timed or turns.stated_s > LEAST_PACE_S else 1.0
            own_s, *rest_s = (pace * each.notebook.seconds.get(profile, 0) for each in (job, *turns.waiting))
            ends = "" if timed else f"; the run ends about {format.time_of_day(own_s + sum(rest_s))}"
            of = "" if timed else f"/{len(waiting)}"
            say(f"[{number}{of}] {job.label}{f': about {format.clock_time(own_s)}{ends}' if own_s else ''}")
            job_s = time.monotonic()
            if timed:
                write_atomic(out / folders.UNTIL, str(time.time() + turns.late_s - job_s))
            well = _execute(job, out, limit_minutes * 60, stop, say, turns)
            frame.write(run)
            now_s, known = time.monotonic(), dict(left)
            late = now_s > turns.late_s and not stop.is_set() and (_waiting(job, out) or not finished(job, out))
            folders.waiting(out, job.notebook.name).unlink(missing_ok=True)
            turns.ended(job, now_s - job_s, well and finished(job, out), bool(late))
            failed |= not (well or late)
            left.pop(job.label, None)
            if late:
                left[job.label] = f"cases that had not begun after {format.clock_time(now_s - job_s)}"
            elif timed and not {*left, *turns.left_out()}.isdisjoint(job.notebook.after):
                left[job.label] = "shows this run without what was left out"
            if left != known:
                folders.note(out, left_out=left)
            if (now_s > page_s and turns.waiting) or stop.is_set():  # behind the last one it is built below
                report_page.build(out)
                turns.page_s = time.monotonic() - now_s
                page_s = now_s + (1 + PAGES) * turns.page_s
        if stop.is_set():
            say(f"interrupted; what was finished is in outputs/{out.name}/. The same command carries on.")
            return 130
        if timed:
            folders.note(out, left_out=(left := left | turns.left_out()))
        if left:
            say(f"left out: {len(left)} notebooks, whole or in part. `make reproduce RUN={out.name}` carries on.")
        page = report_page.build(out)
        (out / GOING).unlink(missing_ok=True)
    records = [record for path in sorted(out.glob("*.jsonl")) for record in results_journal.read(path).records]
    errors = [record for record in records if record.status == "error"]
    for record in errors:
        say(f"error in {record.experiment}, {record.case}: {record.reason}")
    say(f"done in {format.clock_time(time.monotonic() - begun_s)}: {page.relative_to(root())}")
    return 1 if failed or errors else 0


def finished(job: Job, out: Path) -> bool:
    try:
        read_notebook(job.output(out))
    except PomologyError:  # missing, or damaged
        return False
    journal = results_journal.read(out / f"{job.notebook.name}.jsonl")
    here = [record for record in journal.records if record.repeat == job.repeat]
    begun = [record.case for record in here if (record.config.get("moment") == "end") == job.ends]
    # At the end there may be nothing that is worth its time.
    return bool(begun or (job.ends and here)) and all(journal.done(case, job.repeat) for case in begun)


def end_with_stdin() -> None:
    """Stop this process as SIGTERM does, once who started it has closed the pipe to it, or was killed."""

    def watch() -> None:
        while os.read(0, 1024):  # not sys.stdin, whose lock the end of Python would wait for
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


@contextlib.contextmanager
def stopped_by_signals() -> Iterator[threading.Event]:
    """An event that Ctrl-C, SIGTERM and a terminal that closes set; a second signal ends this process, a third while it
    is `in_kernel`.

    An exception would leave nbclient's tasks behind, each of which prints a traceback later, and would be lost in what
    Python calls back: so nothing is raised, and the kernel is ended instead.
    """
    stop = threading.Event()
    stop.signals, stop.in_kernel = 0, False

    def handle(*_):
        stop.set()
        stop.signals += 1
        if stop.signals > 1 + stop.in_kernel:
            os._exit(130)

    # SIGINT is ignored in what a shell starts in the background, and stays so.
    heeded = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {each: signal.signal(each, handle) for each in heeded if signal.getsignal(each) != signal.SIG_IGN}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _waiting(job: Job, out: Path) -> str:
    """The cases that wait for another process of their notebook, a line each."""
    return machine_snapshot.file_text(folders.waiting(out, job.notebook.name))


def _execute(job: Job, out: Path, limit_s: float, stop: threading.Event, say: Say, turns: Turns) -> bool:
    """Run one notebook to its end, again behind each case that kills its kernel. Returns whether it got there."""
    journal = results_journal.Journal(out / f"{job.notebook.name}.jsonl")
    deadline = time.monotonic() + (limit_s or math.inf)

    def watch() -> Outcome:
        """Say a line for every case that has ended since the last call; why the kernel must end now, if it must."""
        nonlocal place
        for line in _lines(journal.path, place):
            place += len(line)
            with contextlib.suppress(ValueError):  # torn by a crash
                record = parse(line)
                if isinstance(record, Record) and record.repeat == job.repeat:
                    say("  " + cases.line(record))
        if stop.is_set():
            return "interrupted", "stopped by the user"
        if time.monotonic() > deadline:
            return "timeout", "over the time limit of one notebook"
        if time.monotonic() > turns.ends_s:
            return "interrupted", "the time of MINUTES was over"
        return None

    waiting, left = folders.waiting(out, job.notebook.name), ""
    while True:  # each start has one case less to run
        waiting.write_text(left, encoding="utf-8")
        place = sum(map(len, _lines(journal.path, 0)))
        stop.in_kernel = True
        outcome = _run_kernel(job, out, watch)
        stop.in_kernel = False
        if outcome is None:
            left, before = _waiting(job, out), left
            if left and time.monotonic() > turns.late_s:
                say(f"  {job.label}: left out for now: {', '.join(left.splitlines())}")
                return True
            if left and left != before:
                continue
            if left:
                say(f"  {job.label} did not finish: no process measures {', '.join(left.splitlines())}")
            return not left
        status, reason = outcome
        if status == "no device":  # DEVICE=cuda means those frameworks that see it
            say(f"  {job.label} is left out: {reason}")
            return True
        lost = [] if status == "error" else journal.finish_open(status, reason)
        for case in lost:
            say(f"  {case}: {status} ({reason})")
        if status == "crashed" and lost:
            say(f"  {job.label}: started again behind {', '.join(lost)}")
            left = ""  # whatever is not done
            continue
        if not stop.is_set():
            say(f"  {job.label} did not finish: {reason} (see outputs/{out.name}/.partial/)")
        return False


def _lines(path: Path, place: int) -> list[bytes]:
    """The complete lines of a file that grows, from a place on."""
    if not path.exists():
        return []
    with open(path, "rb") as file:
        file.seek(place)
        return [line for line in file if line.endswith(b"\n")]


def _run_kernel(job: Job, out: Path, watch: Callable[[], Outcome]) -> Outcome:
    """Execute in one fresh kernel, which ends early once `watch`, called all the time, gives a reason."""
    import papermill
    from nbclient.exceptions import DeadKernelError
    from papermill.engines import papermill_engines
    from traitlets.config import Config

    from pomology.runner.client import Engine

    papermill_engines.register("pomology", Engine)
    partial, final = job.partial(out), job.output(out)
    final.parent.mkdir(parents=True, exist_ok=True)
    if quiet.quotas():  # frameworks detect what they may run on, and not what a quota pays
        os.environ.setdefault("OMP_NUM_THREADS", str(quiet.usable_threads()))
    os.environ["IPYTHONDIR"] = str(out / ".partial" / "ipython")  # not what a user's IPython does at its start
    os.environ["JUPYTER_PREFER_ENV_PATH"] = "1"  # this environment's kernel, not a `python3` that a user registered
    if not os.access(os.path.expanduser("~"), os.W_OK):  # a user without an account or a home, as in a container
        os.environ["HOME"] = str(out / ".partial")
    with open(partial.with_suffix(".log"), "ab") as log:
        try:
            where, settings = {"metadata": {"path": str(job.notebook.path.parent)}}, Config(KernelManager=KERNEL)
            options = {"progress_bar": False, "kernel_log": log, "watch": watch}
            names = (job.notebook.path, partial, job.parameters, "pomology")
            papermill.execute_notebook(*names, config=settings, resources=where, **options)
        except Exception as error:  # one notebook that papermill cannot take costs no other
            if ended := watch():
                return ended
            if isinstance(error, DeadKernelError):
                return "crashed", "its kernel died (killed, or out of memory)"
            name = getattr(error, "ename", type(error).__name__)
            why = getattr(error, "evalue", str(error)).split("\n")[0]
            if name == "NoSuchDevice":
                return "no device", why
            return "error", f"{'its kernel did not start' if type(error) is RuntimeError else name}: {why}"
    # papermill notes the folders of this machine in the file.
    partial.write_text(redact(partial.read_text(encoding="utf-8")), encoding="utf-8")
    final.with_suffix(".html").unlink(missing_ok=True)  # whatever its time: a clock may have gone back
    os.replace(partial, final)
    return None
