"""Every notebook, one after another, each in a fresh kernel, from one process.

All parameters are checked before the first kernel starts. A notebook runs in `.partial/` and moves to its place only
when its last cell has ended, since a notebook file alone never tells whether its run succeeded. While one runs, its
journal is watched: that is how progress is shown, and how a case whose kernel died gets its status.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from pomology import format
from pomology.errors import PomologyError
from pomology.machine import snapshot as machine_snapshot
from pomology.paths import redact, root
from pomology.report import page as report_page
from pomology.results import cases, folders
from pomology.results import journal as results_journal
from pomology.runner import notebooks as runner_notebooks
from pomology.runner import parameters as rules
from pomology.runner.notebooks import Notebook, select

LIMIT_MINUTES = {"smoke": 10, "quick": 30, "article": 0}  # of one notebook; 0 is none

RESTARTS = 50  # each behind a case that killed its kernel; more than any notebook has cases


@dataclass(frozen=True)
class Job:
    """One execution of a notebook: its parameters, and where it ends up."""

    notebook: Notebook
    parameters: dict[str, Any]
    repeat: int

    @property
    def label(self) -> str:
        return self.notebook.name + (f" (repeat {self.repeat + 1})" if self.repeat else "")

    def output(self, out: Path) -> Path:
        return out / f"{self.notebook.name}.ipynb" if not self.repeat else out / "repeats" / self._repeated

    def partial(self, out: Path) -> Path:
        return out / ".partial" / (self._repeated if self.repeat else f"{self.notebook.name}.ipynb")

    @property
    def _repeated(self) -> str:
        return f"{self.notebook.name}-{self.repeat}.ipynb"


def plan(
    profile: str,
    given: dict[str, Any],
    only: str = "",
    repeats: int = 1,
    folder: Path | None = None,
) -> list[Job]:
    """The executions of a run, in order, repeats interleaved. `given` overrides the profile's YAML, unless `auto`.

    Raises PomologyError, in one line, for anything that is wrong in any notebook or parameter file concerned.
    """
    folder = folder or root()
    _check_choice("PROFILE", profile, rules.PROFILES)
    if not 1 <= repeats <= 100:
        raise PomologyError(f"REPEATS={repeats}: must be from 1 to 100")
    all_notebooks = runner_notebooks.notebooks(folder / "notebooks")
    _check_files(folder, all_notebooks)
    jobs = []
    for notebook in select(all_notebooks, only):
        declared = rules.declared(notebook.path)
        values = profile_values(folder, notebook, profile, declared)
        meant = {name: value for name, value in given.items() if name in declared}
        rules.merge(declared, meant, "command line")
        # `auto` is the command's default: it leaves what the profile says.
        chosen = values | {name: value for name, value in meant.items() if value != "auto" or name not in values}
        for repeat in range(repeats):
            counted = {"repeat": repeat} if "repeat" in declared else {}
            jobs.append(Job(notebook, chosen | counted, repeat))
    return sorted(jobs, key=lambda job: job.repeat)


def profile_values(folder: Path, notebook: Notebook, profile: str, declared: dict) -> dict[str, Any]:
    """What a profile's YAML file says for a notebook, checked."""
    path = folder / "params" / profile / f"{notebook.name}.yaml"
    where = str(path.relative_to(folder))
    if not path.is_file():
        raise PomologyError(f"{where}: missing; every notebook needs its parameters in every profile")
    values = rules.merge(declared, rules.read_yaml(path, where), where)
    if values.get("profile") != profile:
        raise PomologyError(f"{where}: profile is {values.get('profile')!r}; in this folder it must be {profile!r}")
    return values


def check(folder: Path | None = None) -> list[Notebook]:
    """Validate every notebook and parameter file of every profile; run nothing."""
    folder = folder or root()
    all_notebooks = runner_notebooks.notebooks(folder / "notebooks")
    _check_files(folder, all_notebooks)
    for notebook in all_notebooks:
        declared = rules.declared(notebook.path)
        for profile in rules.PROFILES:
            profile_values(folder, notebook, profile, declared)
    return all_notebooks


def _check_files(folder: Path, all_notebooks: list[Notebook]) -> None:
    names = {notebook.name for notebook in all_notebooks}
    for path in sorted((folder / "params").glob("*/*")):
        where = path.relative_to(folder)
        if path.parent.name not in rules.PROFILES:
            raise PomologyError(f"{where}: no profile is named {path.parent.name!r}; {', '.join(rules.PROFILES)} are")
        if path.suffix != ".yaml" or path.stem not in names:
            raise PomologyError(f"{where}: no notebook has this name; there are {', '.join(sorted(names))}")


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise PomologyError(f"{name}={value}: must be one of {', '.join(choices)}")


def run_folder(run: str, profile: str) -> Path:
    """Where a run's files go. Raises PomologyError if the name would climb out of `outputs/`."""
    run = run or f"{datetime.now():%Y%m%d}-{profile}"
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}", run):
        raise PomologyError(f"RUN={run}: must be a folder name of letters, digits, points, dashes and underscores")
    if run.startswith("lab-"):  # whose parameters nobody has noted
        raise PomologyError(f"RUN={run}: lab-… are folders of notebooks that are run by hand; choose another RUN")
    return root() / "outputs" / run


def reproduce(
    profile: str = "quick",
    devices: str = "auto",
    only: str = "",
    run: str = "",
    data: str = "auto",
    repeats: int = 1,
    limit_minutes: float | None = None,
    say: Callable[[str], None] = print,
) -> int:
    """Run what is missing of a run and build its page. Returns the exit status: 0, 1 or 130.

    Raises PomologyError before anything runs if an argument, a notebook or a parameter file is wrong.
    """
    _check_choice("PROFILE", profile, rules.PROFILES)
    _check_choice("DEVICE", devices, rules.DEVICES)
    _check_choice("DATA", data, rules.DATA)
    out = run_folder(run, profile)
    jobs = plan(profile, {"devices": devices, "data": data, "out": str(out)}, only, repeats)
    _check_device(devices)
    _check_resumable(out, jobs, profile)
    limit_minutes = LIMIT_MINUTES[profile] if limit_minutes is None else limit_minutes
    with _locked(out), _terminated_as_interrupted():
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
        try:
            for number, job in enumerate(waiting, start=1):
                share = job.notebook.seconds.get(profile)
                about = f", about {format.clock_time(share)}" if share else ""
                elapsed = format.clock_time(time.monotonic() - begun_s)
                say(f"[{number}/{len(waiting)}] {job.label}{about} ({elapsed} since the start)")
                failed |= not _execute(job, out, limit_minutes * 60, say)
                report_page.build(out)
        except KeyboardInterrupt:
            report_page.build(out)
            say(f"interrupted; what was finished is in outputs/{out.name}/. The same command carries on.")
            return 130
        page = report_page.build(out)
    records = [record for path in sorted(out.glob("*.jsonl")) for record in results_journal.read(path).records]
    errors = [record for record in records if record["status"] == "error"]
    for record in errors:
        say(f"error in {record['experiment']}, {record['case']}: {record['reason']}")
    say(f"done in {format.clock_time(time.monotonic() - begun_s)}: {page.relative_to(root())}")
    return 1 if failed or errors else 0


def _check_device(devices: str) -> None:
    if devices != "auto":
        from pomology.devices import find

        find.find(devices)


def _check_resumable(out: Path, jobs: list[Job], profile: str) -> None:
    """A run has one profile and one set of parameters: numbers of two must not stand in one table."""
    path = out / "machine.json"
    if not path.exists():
        return
    try:
        before = json.loads(path.read_text(encoding="utf-8"))["profile"]
    except (ValueError, KeyError, TypeError):
        raise PomologyError(f"RUN={out.name}: its machine.json cannot be read; choose another RUN") from None
    if before != profile:
        raise PomologyError(f"RUN={out.name}: holds profile {before!r}, not {profile!r}; choose another RUN")
    for job in jobs:
        used = _parameters_used(job, out)
        if used is None:
            continue
        default = {name: parameter.default for name, parameter in rules.declared(job.notebook.path).items()}
        for name in {**used, **job.parameters}:
            value, wanted = used.get(name, default.get(name)), job.parameters.get(name, default.get(name))
            if name not in ("out", "repeat") and value != wanted:  # the folder may have moved
                raise PomologyError(
                    f"RUN={out.name}: {job.notebook.name} was run with {name}={value}, not {wanted}; choose another RUN"
                )


def _parameters_used(job: Job, out: Path) -> dict[str, Any] | None:
    """What a notebook was given when it last ran in this folder, finished or not; None if nothing tells."""
    for place in (job.output(out), job.partial(out)):
        if place.exists():
            try:
                return runner_notebooks.read_notebook(place)["metadata"]["papermill"]["parameters"]
            except (PomologyError, KeyError):
                continue  # cut off while it was being written: it will be written anew
    return None


def _finished(job: Job, out: Path) -> bool:
    if not job.output(out).exists():
        return False
    journal = results_journal.read(out / f"{job.notebook.name}.jsonl")
    mine = [record["case"] for record in journal.records if record["repeat"] == job.repeat]
    return bool(mine) and all(journal.done(case, job.repeat) for case in mine)


@contextlib.contextmanager
def _locked(out: Path) -> Iterator[None]:
    """One process at a time in a run's folder. The lock goes with its process, however that ends."""
    (out / ".partial").mkdir(parents=True, exist_ok=True)
    with open(out / ".partial" / "lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise PomologyError(f"RUN={out.name}: another `pomology reproduce` is running there") from None
        yield


@contextlib.contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """Let SIGTERM end a run as Ctrl-C does. Only the main thread may set handlers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_):
        raise KeyboardInterrupt  # SIGINT itself is ignored in what a shell starts in the background

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _execute(job: Job, out: Path, limit_s: float, say: Callable[[str], None]) -> bool:
    """Run one notebook to its end, again behind each case that kills its kernel. Returns whether it got there."""
    journal = results_journal.Journal(out / f"{job.notebook.name}.jsonl")
    deadline = time.monotonic() + limit_s if limit_s else None
    for _ in range(RESTARTS):
        with _watching(journal.path, job.repeat, say):
            try:
                outcome = _run_kernel(job, out, deadline)
            except KeyboardInterrupt:
                journal.finish_open("interrupted", "stopped by the user")
                raise
        if outcome is None:
            return True
        status, reason = outcome
        if status == "no device":  # DEVICE=cuda means those frameworks that see it
            say(f"  {job.label} is left out: {reason}")
            return True
        if status not in ("crashed", "timeout"):
            say(f"  {job.label} failed: {reason} (see outputs/{out.name}/.partial/)")
            return False
        lost = journal.finish_open(status, reason)
        for case in lost:
            say(f"  {case}: {status} ({reason})")
        if status == "timeout" or not lost:
            say(f"  {job.label} did not finish: {reason}")
            return False
        say(f"  {job.label}: started again behind {', '.join(lost)}")
    return False


def _run_kernel(job: Job, out: Path, deadline: float | None) -> tuple[str, str] | None:
    """Execute in one fresh kernel. Returns None, or why not: (`no device`, `crashed`, `timeout` or `error`, reason)."""
    import papermill
    from nbclient.exceptions import DeadKernelError
    from traitlets.config import Config

    _register_engine()
    partial, final = job.partial(out), job.output(out)
    final.parent.mkdir(parents=True, exist_ok=True)
    config = Config()
    # ipykernel warns at every start of a kernel that talks in the clear; encrypted, it is silent.
    config.KernelManager.transport_encryption = "auto"
    os.environ["JUPYTER_PREFER_ENV_PATH"] = (
        "1"  # this environment's kernel, not one that a user registered as `python3`
    )
    expired = threading.Event()
    with open(partial.with_suffix(".log"), "ab") as log:
        try:
            papermill.execute_notebook(
                job.notebook.path,
                partial,
                job.parameters,
                engine_name="pomology",
                progress_bar=False,
                config=config,
                coalesce_streams=True,
                resources={"metadata": {"path": str(job.notebook.path.parent)}},
                kernel_log=log,
                deadline=deadline,
                expired=expired,
            )
        except RuntimeError as error:
            if expired.is_set():
                return "timeout", "over the time limit of one notebook"
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
    """Teach papermill to give the kernel a log for its stderr and a deadline, and to leave none behind."""
    from papermill.clientwrap import PapermillNotebookClient
    from papermill.engines import NBClientEngine, papermill_engines

    class Engine(NBClientEngine):
        @classmethod
        def execute_managed_notebook(cls, nb_man, kernel_name, kernel_log, deadline, expired, **options):
            unused = ("input_path", "log_output", "stdout_file", "stderr_file", "start_timeout", "execution_timeout")
            options = {key: value for key, value in options.items() if key not in unused}
            client = PapermillNotebookClient(nb_man, kernel_name=kernel_name, timeout=None, **options)
            ended = threading.Event()

            def guard():
                while not ended.wait(0.2):
                    if time.monotonic() > deadline:  # it may be over before there is a kernel to kill
                        expired.set()
                        _kill(client)

            if deadline is not None:
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
def _watching(path: Path, repeat: int, say: Callable[[str], None]) -> Iterator[None]:
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
                with contextlib.suppress(ValueError):  # a line that is still being written is read next time
                    record = json.loads(line)
                    if record.get("event") == "end" and record.get("repeat") == repeat:
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
