"""Batches and the command line, in small checkouts of their own: real kernels, an invented device, planned disasters.

A notebook of these checkouts does what the file `NAME.fault` beside it says, if there is one: `raise 2` raises inside
case 2, `raise end` behind the last case, `late 2` lets the time of MINUTES end there, `kill 2` kills the kernel, and
`hang 2` waits for ever, also when asked to stop; both leave a process behind. It notes its process number, and that
one's, in `NAME.pids`.
"""

import asyncio
import gc
import importlib
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import apart
import nbformat
import psutil
import pytest
from jupyter_client.manager import AsyncKernelManager
from jupyter_core.utils import ensure_async
from nbformat import v4

import pomology
from pomology import __main__ as command_line
from pomology import format
from pomology.results import folders
from pomology.results import journal as results_journal
from pomology.results.record import PROFILES, now
from pomology.runner import batch, notebooks, plan

PACKAGE = Path(pomology.__file__).parent

# A device that no framework knows, so that kernels start without one. Same shape as `Device`.
SIMULATED = """
import contextlib

from pomology.devices import find


class Simulated:
    framework, framework_version, backend, kind, handle, name, threads = "simulated", "1", "cpu", "cpu", None, "chip", 1
    uncounted, keeps_graphs = None, False
    memory_limit, tf32, unified_memory = "", False, False
    context = lambda self, strict=False: contextlib.nullcontext()
    watch_fallbacks = lambda self: contextlib.nullcontext(set())
    synchronize = reset_peak_memory = lambda self: None
    peak_memory, free_memory = (lambda self: {}), (lambda self: 10**9)
    limit_threads = lambda self, most: None
    to_device, device_of = (lambda self, batch: batch), (lambda self, item: "cpu")


find.find = lambda wanted="auto", framework="torch": [Simulated()]
"""
PARAMETERS = """
profile: str = "quick"  # smoke, quick or article
devices: str = "auto"  # which ones
data: str = "auto"  # which data
sizes: list[int] = [1, 2, 3]  # of the cases
lr: float = 0.1  # of nothing
budget_s: float = 0.05  # seconds
repeat: int = 0  # which repetition
out: str = ""  # the run's folder
"""
CODE = """
import os
import signal
import subprocess
import time
from pathlib import Path

import simulated
from pomology.errors import NoSuchDevice
from pomology.experiment.experiment import Experiment

with open("NAME.pids", "a") as file:
    print(os.getpid(), file=file)
Path("NAME.saw-page").write_text(str(Path(out, "index.html").exists()))
given = {"devices": devices, "profile": profile, "budget_s": budget_s, "out": out, "repeat": repeat}
experiment = Experiment("NAME", article="003", **given)


def trouble(place):
    fault = Path("NAME.fault").read_text() if Path("NAME.fault").exists() else ""
    if fault == f"raise {place}":
        raise ValueError("as planned")
    if fault == f"no device {place}":
        raise NoSuchDevice("devices: 'cuda' is not on this machine (cuda: none); it has cpu")
    if fault == f"late {place}":
        experiment._until = 0.0
        Path("NAME.hangs").touch()
    if fault == f"print {place}":
        print("\\b" * 3_000_000)
    if fault in (f"kill {place}", f"hang {place}"):
        with open("NAME.pids", "a") as file:
            print(subprocess.Popen(["sleep", "600"]).pid, file=file)
    if fault == f"kill {place}":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == f"hang {place}":
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        Path("NAME.hangs").touch()
        time.sleep(600)


for case in experiment.cases(size=sizes):
    with case:
        for _ in case.steps([0] * 4):
            time.sleep(0.001)
        trouble(case["size"])
trouble("end")
"""


def notebook_text(name: str, seconds: float, parameters: str = PARAMETERS) -> str:
    cells = [v4.new_markdown_cell(f"# The {name} experiment"), v4.new_code_cell(parameters.strip())]
    cells += [v4.new_code_cell(CODE.replace("NAME", name))]
    cells[1].metadata["tags"] = ["parameters"]
    kernel = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
    about = {"article": "003", "seconds": dict.fromkeys(PROFILES, seconds)}
    return nbformat.writes(v4.new_notebook(cells=cells, metadata={"kernelspec": kernel, "pomology": about}))


NO_DEVICES = notebook_text("zeta", 5, PARAMETERS.replace("devices:", "device:"))


class Checkout:
    """A folder with notebooks and parameters: `zeta` is cheap, `alpha` is dear."""

    def __init__(self, folder: Path):
        self.folder, self.notebooks = folder, folder / "notebooks" / "an_article"
        self.notebooks.mkdir(parents=True)
        (self.notebooks / "simulated.py").write_text(SIMULATED)
        self.add("zeta", 5)
        self.add("alpha", 65)

    def add(self, name: str, seconds: float) -> None:
        (self.notebooks / f"{name}.ipynb").write_text(notebook_text(name, seconds))
        for profile in PROFILES:
            self.give(name, f"profile: {profile}\nlr: 0.2\n", profile)

    def give(self, name: str, text: str, profile: str = "smoke") -> None:
        path = self.folder / "params" / profile / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def fault(self, name: str, text: str = "") -> None:
        """Plan a disaster, or none any more."""
        (self.notebooks / f"{name}.hangs").unlink(missing_ok=True)
        (self.notebooks / f"{name}.fault").write_text(text)

    def out(self) -> Path:
        return self.folder / "outputs" / "r"

    def pids(self, name: str) -> list[int]:
        path = self.notebooks / f"{name}.pids"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def statuses(self, name: str) -> dict[str, str]:
        """Of the finished cases, by the size that tells them apart; every line must be as it should be."""
        contents = results_journal.read(self.out() / f"{name}.jsonl")
        assert contents.problems == []
        return {str(record.config["size"]): record.status for record in contents.records}

    def started(self, name: str) -> list[str]:
        """The size of every case that began."""
        lines = map(json.loads, (self.out() / f"{name}.jsonl").read_text(encoding="utf-8").splitlines())
        return [line["case"][-1] for line in lines if line["event"] == "start"]

    def unfinished(self) -> list[str]:
        return sorted(path.name for path in (self.out() / ".partial").glob("*.ipynb"))


RUN_R = ["reproduce", "--profile=smoke", "--run=r"]
ALL_OK = {"1": "ok", "2": "ok", "3": "ok"}


@pytest.fixture
def checkout(tmp_path, monkeypatch, sockets) -> Checkout:
    """One that this process takes for its own."""
    made = Checkout(tmp_path / "checkout")
    has_fleet = importlib.util.find_spec("distributed") is not None  # `make env EXTRAS=fleet`
    for path in PACKAGE.rglob("*.py"):
        if path.parent.name == "fleet" and not has_fleet:
            continue
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        module = importlib.import_module(".".join(("pomology", *parts)).removesuffix(".__init__"))
        if hasattr(module, "root"):
            monkeypatch.setattr(module, "root", lambda: made.folder)
    monkeypatch.setattr(batch, "KERNEL", sockets)
    apart.fork_kernels(monkeypatch, apart.PLAIN)
    return made


@pytest.fixture
def reproduce(checkout, capsys) -> Callable[..., tuple[int, str]]:
    """Run the command in this process; returns the exit status and what it said."""

    def run(*arguments: str) -> tuple[int, str]:
        status = command_line.main([*RUN_R, *arguments])
        said = capsys.readouterr()
        assert said.err == ""
        return status, said.out

    return run


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and waits to be asked for its status does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until(what: Callable[[], object], within_s: float = 60) -> None:
    end_s = time.monotonic() + within_s
    while not what():
        assert time.monotonic() < end_s, "it never came"
        time.sleep(0.05)


def test_a_run_and_what_the_same_command_does_afterwards(checkout, reproduce):
    checkout.fault("alpha", "raise 2")
    status, said = reproduce()
    # A case that ended in `error` is told of, and does not stop its notebook.
    assert status == 1 and "error in alpha, simulated-cpu size=2: ValueError: as planned" in said
    assert checkout.statuses("alpha") == ALL_OK | {"2": "error"} and checkout.statuses("zeta") == ALL_OK
    out = checkout.out()
    files = {"machine.json", "index.html", "zeta.jsonl", "zeta.ipynb", "zeta.html", "alpha.ipynb", "alpha.html"}
    assert {path.name for path in out.iterdir()} >= files and checkout.unfinished() == []
    # The cheapest first, with what it takes and when the run ends, and a line for every case.
    starts = re.findall(r"^\[(\d)/2\] (\w+): about (.+); the run ends about ([\w: ]+)$", said, re.MULTILINE)
    assert [start[:3] for start in starts] == [("1", "zeta", "5 s"), ("2", "alpha", "1:05 min")]
    clocks = [format.time_of_day(seconds) for seconds in range(-60, 71)]
    assert {start[3] for start in starts} <= {*clocks}
    assert said.count("  alpha: cpu, size ") == said.count("  zeta: cpu, size ") == 3
    assert "2 of 2 notebooks to run into outputs/r/: about 1:10 min" in said
    # The page was there before the second notebook began.
    assert (checkout.notebooks / "zeta.saw-page").read_text() == "False"
    assert (checkout.notebooks / "alpha.saw-page").read_text() == "True"
    document = json.loads((out / "zeta.ipynb").read_text(encoding="utf-8"))
    assert document["metadata"]["papermill"]["parameters"]["lr"] == 0.2
    for path in out.glob("*"):  # runs are shared: the folder may name a person
        assert not path.is_file() or str(checkout.folder).encode() not in path.read_bytes(), path.name

    checkout.fault("alpha")
    (out / "zeta.ipynb").unlink()
    before = (out / "zeta.jsonl").read_bytes()
    for name in ("zeta.html", "instrument_check.jsonl"):  # the clock has gone back since
        (out / name).touch()
        os.utime(out / name, (4e9, 4e9))
    status, said = reproduce()
    assert status == 0 and "2 of 2 notebooks to run" in said and checkout.statuses("alpha") == ALL_OK
    assert checkout.started("alpha") == ["1", "2", "3", "2"]
    assert before == (out / "zeta.jsonl").read_bytes() and (out / "zeta.ipynb").exists()  # nothing was measured twice
    (out / "instrument_check.jsonl").unlink()
    assert "0.2" in (out / "zeta.html").read_text() and int((out / "zeta.html").stat().st_mtime) == 4e9

    pids = checkout.pids("zeta") + checkout.pids("alpha")
    status, said = reproduce()
    assert status == 0 and "0 of 2 notebooks to run" in said
    assert checkout.pids("zeta") + checkout.pids("alpha") == pids and len(set(pids)) == 4


def test_a_notebook_that_breaks_dies_or_lacks_its_device_stops_no_other(checkout, reproduce):
    checkout.fault("zeta", "raise end")
    checkout.fault("alpha", "no device end")
    status, said = reproduce()
    assert status == 1 and "zeta did not finish: ValueError: as planned (see outputs/r/.partial/)" in said
    assert "  alpha is left out: devices: 'cuda' is not on this machine (cuda: none); it has cpu\n" in said
    assert checkout.unfinished() == ["alpha.ipynb", "zeta.ipynb"] and not (checkout.out() / "zeta.ipynb").exists()
    assert checkout.statuses("zeta") == checkout.statuses("alpha") == ALL_OK
    assert (checkout.out() / "index.html").exists()
    status, said = reproduce("--only=alpha")  # by itself it is no failure
    assert status == 0 and "alpha is left out" in said
    checkout.fault("zeta", "kill end")  # in no case: to try again would be to do the same again
    status, said = reproduce("--only=zeta")
    assert status == 1 and "zeta did not finish: its kernel died" in said and len(checkout.pids("zeta")) == 3


def test_neither_what_a_user_s_ipython_does_nor_a_cell_that_prints_without_end_touches_a_run(
    checkout, reproduce, monkeypatch, tmp_path
):
    startup = tmp_path / "ipython" / "profile_default" / "startup"
    startup.mkdir(parents=True)
    (startup / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("HOME", str(tmp_path / "no such home"))  # that of a user without an account
    checkout.fault("zeta", "print end")
    status, said = reproduce("--only=zeta")
    assert status == 0 and not (tmp_path / "ran").exists(), said
    printed = nbformat.read(checkout.out() / "zeta.ipynb", as_version=4).cells[-1].outputs[-1].text
    assert len(printed) < 300_000 and printed.endswith("characters is not kept.)\n")


def test_a_kernel_that_dies_in_a_case_costs_that_case(checkout, reproduce):
    checkout.fault("zeta", "kill 2")
    status, said = reproduce("--only=z*", "--repeats=2")
    assert status == 0 and checkout.pids("alpha") == []
    ended = {(size, repeat): "crashed" if size == "2" else "ok" for repeat in (0, 1) for size in "123"}
    records = results_journal.read(checkout.out() / "zeta.jsonl").records
    assert {(str(record.config["size"]), record.repeat): record.status for record in records} == ended
    assert "simulated-cpu size=2: crashed" in said and "started again behind simulated-cpu size=2" in said
    # Repeats take turns in fresh kernels.
    assert re.findall(r"^\[\d/2\] (.+?): about", said, re.MULTILINE) == ["zeta", "zeta (repeat 2)"]
    pids = checkout.pids("zeta")
    assert len(set(pids)) == 6 and not any(map(alive, pids))
    assert (checkout.out() / "zeta.ipynb").exists() and (checkout.out() / "repeats" / "zeta-1.ipynb").exists()
    # A crash is a result. It is not tried again.
    assert "0 of 2 notebooks" in reproduce("--only=zeta", "--repeats=2")[1] and checkout.unfinished() == []


class Skipping:
    """The module `time`, an hour later as soon as `when` says so, but not before the deadline is set."""

    time = staticmethod(time.time)

    def __init__(self, when: Callable[[], bool], seconds: float = 3700):
        self.when, self.seconds, self.calls = when, seconds, 0

    def monotonic(self) -> float:
        self.calls += 1
        return time.monotonic() + (self.seconds if self.calls > 3 and self.when() else 0)


def test_a_time_limit_ends_the_kernel_and_the_case(checkout, reproduce, monkeypatch):
    """Time passes here when the case hangs, however slow this machine is."""
    checkout.fault("zeta", "hang 2")
    monkeypatch.setattr(batch, "time", Skipping((checkout.notebooks / "zeta.hangs").exists))
    status, said = reproduce("--only=zeta", "--limit-minutes=60")
    assert status == 1 and "simulated-cpu size=2: timeout" in said and "zeta did not finish" in said
    assert checkout.statuses("zeta") == {"1": "ok", "2": "timeout"}
    monkeypatch.setattr(batch, "time", Skipping(lambda: True))  # over before the kernel is up
    status, said = reproduce("--only=zeta", "--limit-minutes=0.0001")
    assert status == 1 and "zeta did not finish: over the time limit" in said
    assert not any(map(alive, checkout.pids("zeta")))
    monkeypatch.setattr(batch, "time", time)
    checkout.fault("zeta")
    assert reproduce("--only=zeta")[0] == 0 and checkout.statuses("zeta") == ALL_OK | {"2": "timeout"}


@pytest.mark.parametrize(("fault", "seconds", "second"), [("late 2", 100, "ok"), ("hang 2", 200, "interrupted")])
def test_what_minutes_leave_out_is_named_and_the_same_run_carries_on_without_them(
    checkout, capsys, monkeypatch, fault, seconds, second
):
    """The time of zeta ends in its second case: the third is left; alpha is too long for what is left then."""
    run, out = ["reproduce", "--run=r"], checkout.out()
    checkout.fault("zeta", fault)
    monkeypatch.setattr(batch, "time", Skipping((checkout.notebooks / "zeta.hangs").exists, seconds))
    status, said = command_line.main([*run, "--minutes=3"]), capsys.readouterr().out
    assert status == 0 and "left out: 2 notebooks, whole or in part. `make reproduce RUN=r` carries on." in said
    assert checkout.statuses("zeta") == {"1": "ok", "2": second} and checkout.pids("alpha") == []
    left = json.loads((out / "machine.json").read_text())["left_out"]
    assert left["zeta"].startswith(
        "cases that had not begun after 1:4" if seconds == 100 else "cases that had not begun"
    )
    assert left.keys() == {"zeta", "alpha"} and left["alpha"].startswith("takes about ")
    page = (out / "index.html").read_text()
    assert page.count("Left out: MINUTES=3") == 3 and "less was left" in page
    assert results_journal.read(out / "zeta.jsonl").open_starts == []

    monkeypatch.setattr(batch, "time", time)
    checkout.fault("zeta")
    status, said = command_line.main(run), capsys.readouterr().out
    assert status == 0 and "2 of 2 notebooks to run" in said and "left out" not in said
    assert checkout.statuses("zeta") == checkout.statuses("alpha") == ALL_OK
    started = checkout.started("zeta")  # and once more what a busy machine has slowed
    assert {*started} == {"1", "2", "3"} and started[:2] == ["1", "2"]
    assert second == "ok" or started[2] == "2"
    assert "Left out" not in (out / "index.html").read_text()
    budgets = [json.loads(path.read_text())["metadata"]["papermill"]["parameters"] for path in out.glob("*.ipynb")]
    assert sorted(used.get("budget_s", 0.05) for used in budgets) == [0.05, 0.05]
    assert "0 of 2 notebooks to run" in (command_line.main(run), capsys.readouterr().out)[1]


def test_interrupted(checkout, reproduce, monkeypatch, caplog, capsys):
    """The kernel does not listen, and what ends it leaves nothing behind that would complain later, however often."""
    plain, inside = AsyncKernelManager.cleanup_resources, []

    async def slowly(self, restart=False):  # nbclient takes long to clean up, as on a machine whose cores are busy
        await asyncio.sleep(2.5)
        await ensure_async(plain(self, restart))

    def interrupt():
        wait_until((checkout.notebooks / "zeta.hangs").exists)
        shutil.rmtree(checkout.out() / ".partial")  # `make clean`
        inside.append(command_line.main(RUN_R))  # meanwhile nobody else gets in
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(AsyncKernelManager, "cleanup_resources", slowly)
    checkout.fault("zeta", "hang 2")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    try:
        threading.Thread(target=interrupt, daemon=True).start()
        status = command_line.main(RUN_R)
    finally:
        signal.signal(signal.SIGINT, before)
    gc.collect()  # what a task that nobody waited for has to say, it says when it goes
    said = capsys.readouterr()
    assert (status, inside) == (130, [2])
    assert said.err.count("\n") == 1 and "another `pomology reproduce` is running there" in said.err
    assert "interrupted; what was finished is in outputs/r/" in said.out
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []
    assert not any(map(alive, checkout.pids("zeta"))) and checkout.pids("alpha") == []
    assert checkout.statuses("zeta") == {"1": "ok", "2": "interrupted"}
    assert results_journal.read(checkout.out() / "zeta.jsonl").open_starts == []
    assert (checkout.out() / "index.html").exists() and checkout.unfinished() == ["zeta.ipynb"]

    checkout.fault("zeta")
    assert reproduce("--only=zeta")[0] == 0 and checkout.statuses("zeta") == ALL_OK
    assert checkout.started("zeta") == ["1", "2", "2", "3"]


def test_a_second_signal_ends_it_at_once_and_one_that_a_shell_ignores_stays_ignored(monkeypatch):
    ended = []
    monkeypatch.setattr(os, "_exit", ended.append)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in what a shell starts in the background
    try:
        for in_kernel in (0, 1):  # nbclient gets the time to end by itself
            ended.clear()
            with batch.stopped_by_signals() as stop:
                assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
                stop.in_kernel = bool(in_kernel)
                for count in (1, 2, 3)[: 2 + in_kernel]:
                    os.kill(os.getpid(), signal.SIGTERM)
                    assert stop.wait(5)
                    time.sleep(0.01)
                    assert ended == [130] * (count == 2 + in_kernel)
    finally:
        signal.signal(signal.SIGINT, before)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_killed(checkout, reproduce):
    """Nothing of the runner is left to clean up, and nothing of the kernel stays."""
    shutil.copytree(PACKAGE, checkout.folder / "lib" / "pomology", ignore=shutil.ignore_patterns("__pycache__"))
    env = os.environ | {"PYTHONPATH": str(checkout.folder / "lib"), "PYTHONDONTWRITEBYTECODE": "1"}
    checkout.fault("zeta", "hang 2")
    command, quiet = [sys.executable, "-m", "pomology", *RUN_R], subprocess.DEVNULL
    process = subprocess.Popen(command, env=env, cwd=checkout.folder.parent, stdout=quiet, start_new_session=True)
    try:
        wait_until(lambda: (checkout.notebooks / "zeta.hangs").exists() or process.poll() is not None)
    finally:
        process.kill()
        process.wait()
    pids = checkout.pids("zeta")
    assert len(pids) == 2
    wait_until(lambda: not any(map(alive, pids)), within_s=20)
    assert checkout.statuses("zeta") == {"1": "ok", "2": "crashed"}  # so far: nobody could write how it ended
    # Killed while it wrote the notebook: half of it is there.
    place = checkout.out() / ".partial" / "zeta.ipynb"
    place.write_bytes(place.read_bytes()[:-700])
    checkout.fault("zeta")
    assert reproduce("--only=zeta")[0] == 0 and checkout.statuses("zeta") == ALL_OK
    assert checkout.started("zeta") == ["1", "2", "2", "3"]
    assert (checkout.out() / "zeta.ipynb").exists() and checkout.unfinished() == []


def test_a_case_whose_process_vanished_twice_is_given_up(checkout):
    """Its notebook counts as finished then, and is not started for ever."""
    out = checkout.out()
    (job,) = plan.jobs("smoke", {"out": str(out)}, "zeta")
    journal = results_journal.Journal(out / "zeta.jsonl")
    (out / "zeta.ipynb").write_text(notebook_text("zeta", 5))
    start = {"case": "simulated-cpu size=2", "config": {"size": 2}, "repeat": 0, "scaled": False, "threads": 1}
    start |= dict.fromkeys(("experiment", "article", "framework", "framework_version", "backend", "precision"), "x")
    start |= dict.fromkeys(("device", "chip", "power_source")) | {"profile": "smoke", "data": "none", "started": now()}
    finished = []  # at first without a single case, which has measured nothing
    for _ in range(3):
        finished.append(batch.finished(job, out))
        journal.start(start)
    assert finished == [False, False, True]
    for damaged in (notebook_text("zeta", 5)[:-9], "{}", ""):
        (out / "zeta.ipynb").write_text(damaged)
        assert not batch.finished(job, out)


def test_what_a_profile_says_of_devices_and_data_holds_unless_the_command_says_otherwise(checkout):
    checkout.give("zeta", "profile: smoke\ndevices: cpu\ndata: stand-in\n")

    def taken(name: str, **given: str) -> tuple[str, str]:
        (job,) = plan.jobs("smoke", {"devices": "auto", "data": "auto", "out": "x"} | given, name)
        return job.parameters["devices"], job.parameters["data"]

    assert taken("zeta") == ("cpu", "stand-in") and taken("zeta", data="real") == ("cpu", "real")
    assert taken("alpha") == ("auto", "auto")
    turns = plan.jobs("smoke", {"out": "x"}, repeats=2)
    assert [job.label for job in turns] == ["zeta", "alpha", "zeta (repeat 2)", "alpha (repeat 2)"]


def test_only_check_and_list(checkout, capsys):
    for only, chosen in (("", ["zeta", "alpha"]), ("alpha zeta", ["zeta", "alpha"]), ("*eta", ["zeta"])):
        assert [notebook.name for notebook in notebooks.select(notebooks.notebooks(), only)] == chosen
    (checkout.folder / "params" / "smoke" / ".DS_Store").touch()  # as the Finder leaves it
    assert command_line.main(["check"]) == 0
    assert "2 notebooks" in capsys.readouterr().out
    assert command_line.main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["zeta", "alpha"]
    assert "The zeta experiment (smoke 5 s, quick 5 s, article 5 s)" in lines[0]
    checkout.give("alpha", "profile: article\nlr: fast\n", "article")  # `check` looks at every profile
    assert command_line.main(["check"]) == 2
    assert "params/article/alpha.yaml: lr is 'fast'" in capsys.readouterr().err


def finished(checkout: Checkout, profile: str = "smoke", machine: str | None = None, **used) -> None:
    """A run `r` in which zeta is done."""
    checkout.out().mkdir(parents=True, exist_ok=True)
    (checkout.out() / "machine.json").write_text(machine or json.dumps({"profile": profile, "python": "3.11.9"}))
    used = {"profile": "smoke", "lr": 0.2, "devices": "auto", "data": "auto", "out": "elsewhere", "repeat": 0} | used
    document = json.loads(notebook_text("zeta", 5))
    document["metadata"]["papermill"] = {"parameters": used}
    (checkout.out() / "zeta.ipynb").write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("leaves", "status", "turns"),
    [
        (["b\nc\n", "c\n", ""], 0, [set(), {"b", "c"}, {"c"}]),
        (["b\n", "b\n"], 1, [set(), {"b"}]),  # what no process measures ends nowhere else
        (["b\n", ("crashed", "its kernel died"), "b\n", ""], 0, [set(), {"b"}, set(), {"b"}]),
    ],
)
def test_a_notebook_is_run_in_one_process_after_another_while_cases_wait(
    checkout, monkeypatch, capsys, leaves, status, turns
):
    taken, left = [], iter(leaves)
    monkeypatch.setattr(results_journal.Journal, "finish_open", lambda *_: ["a"])

    def kernel(job, out, watch):
        taken.append(folders.turn(out, "zeta"))
        leave = next(left)
        if isinstance(leave, tuple):
            return leave
        for case in leave.splitlines():
            folders.wait(out, "zeta", case)
        return None

    monkeypatch.setattr(batch, "_run_kernel", kernel)
    assert (command_line.main([*RUN_R, "--only=zeta"]), taken) == (status, turns)
    assert ("zeta did not finish: no process measures b" in capsys.readouterr().out) == bool(status)
    assert folders.turn(checkout.out(), "zeta") is None  # nor is anything left for who runs it by hand


# Arguments -> words that the line must have.
WRONG_ARGUMENTS = {
    ("reproduc",): "reproduc",
    ("reproduce", "--profile=fast"): "PROFILE=fast: must be one of smoke, quick, article",
    ("reproduce", "--device=tpu"): "DEVICE=tpu: must be one of auto, cpu, gpu, cuda, mps",
    ("reproduce", "--only=zeta vea"): "ONLY=vea: no notebook is named so; there are alpha, zeta",
    ("reproduce", "--run=a/b"): "RUN=a/b: must be a folder name",
    ("reproduce", "--repeats=0"): "REPEATS=0: must be from 1 to 100",
    ("reproduce", "--repeats=many"): "--repeats: invalid int value: 'many'",
    ("reproduce", "--limit-minutes=nan"): "--limit-minutes=nan",
    **{
        ("reproduce", f"--minutes={text}"): f"MINUTES={text}: must be a whole number from 3 to 120"
        for text in ("0", "-3", "2", "abc", "5.5", "٣", "121", "10000")
    },
    ("reproduce", "--minutes=5", "--profile=article"): "MINUTES=5: is for PROFILE=quick, not for article",
    ("reproduce", "--minutes=5", "--repeats=0"): "REPEATS=0: must be from 1 to 100",
    ("report", "gone"): "RUN=gone: no such run",
    (*RUN_R, f"--device={'cuda' if sys.platform == 'darwin' else 'mps'}"): "not on this machine",
}


@pytest.fixture
def refused(checkout, capsys, monkeypatch):
    """Check that a command is refused in one line with these words, that nothing ran, and that no file changed."""
    monkeypatch.setattr(batch, "_run_kernel", lambda *_: pytest.fail("a kernel was started"))

    def check(arguments: list[str], words: str) -> None:
        before = {path: path.stat().st_mtime_ns for path in checkout.folder.rglob("*")}
        assert command_line.main(arguments) == 2
        said = capsys.readouterr()
        assert said.out == "" and said.err.count("\n") == 1 and said.err.startswith("pomology: ")
        assert words in said.err and {path: path.stat().st_mtime_ns for path in checkout.folder.rglob("*")} == before

    return check


def test_wrong_arguments(refused):
    for arguments, words in WRONG_ARGUMENTS.items():
        refused([*arguments], words)


@pytest.mark.parametrize(
    ("place", "text", "words"),
    [
        ("params/smoke/zeta.yaml", "profile: smoke\nlrr: 0.1", "params/smoke/zeta.yaml: no parameter is named 'lrr'"),
        ("params/smoke/zeta.yaml", "profile: quick", "params/smoke/zeta.yaml: profile is 'quick'"),
        ("params/smoke/alpha.yaml", None, "params/smoke/alpha.yaml: cannot be read"),
        ("params/smoke/delta.yaml", "profile: smoke", "params/smoke/delta.yaml: no such profile or notebook"),
        ("params/fast/zeta.yaml", "profile: fast", "there are smoke, quick, article and alpha, zeta"),
        ("notebooks/an_article/zeta.ipynb", '{"cells": [', "zeta.ipynb: not a notebook"),
        ("notebooks/zeta.ipynb", notebook_text("zeta", 5), "zeta.ipynb: stands in two folders"),
        ("notebooks/an_article/zeta.ipynb", NO_DEVICES, "zeta.ipynb: parameters cell: devices is missing"),
        ("notebooks", None, "notebooks/: no notebooks here"),
    ],
    ids=lambda text: str(text)[:40],
)
def test_files_that_are_not_as_they_should_be(checkout, refused, place, text, words):
    path = checkout.folder / place
    path.parent.mkdir(exist_ok=True)
    if text is not None:
        path.write_text(text)
    else:
        path.unlink() if path.is_file() else shutil.rmtree(path / "an_article")
    refused(RUN_R, words)


def test_a_run_of_something_else_is_not_continued_but_one_that_moved_is(checkout, refused):
    finished(checkout)  # it notes another folder
    assert plan.prepare(plan.Asked("smoke", "auto", run="r"))[1][0].label == "zeta"
    for run, words in (
        ({"profile": "quick"}, "RUN=r: holds profile 'quick'"),
        ({"lr": 0.3}, "zeta was run with lr=0.3, not 0.2"),
        ({"machine": "{"}, "machine.json: describes no machine; choose another folder"),
    ):
        finished(checkout, **run)
        refused(RUN_R, words)
