"""Batches and the command line, in small checkouts of their own: real kernels, an invented device, planned disasters.

A notebook of these checkouts does what the file `NAME.fault` beside it says, if there is one: `error 2` raises inside
case 2, `raise end` behind the last case, `kill 2` kills the kernel, `hang 2` waits for ever, and `stuck 2` does so even
when asked to stop. It notes its process number in `NAME.pids`.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
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

import pytest
from jupyter_client.manager import AsyncKernelManager
from jupyter_core.utils import ensure_async

import pomology
from pomology import __main__ as command_line
from pomology.devices import find
from pomology.results import journal as results_journal
from pomology.results import record as results_record
from pomology.runner import batch, notebooks, plan

PACKAGE = Path(pomology.__file__).parent

# A device that no framework knows, so that kernels start without one. Same shape as `Device`.
SIMULATED = """
import contextlib

from pomology.devices import find


class Simulated:
    framework, framework_version, backend, kind, handle, name, threads = "simulated", "1", "cpu", "cpu", None, "chip", 1
    uncounted = None

    def context(self): return contextlib.nullcontext()
    def synchronize(self): pass
    def to_device(self, batch): return batch
    def device_of(self, item): return "cpu"
    def reset_peak_memory(self): pass
    def peak_memory(self): return {}
    def free_memory(self): return 10**9

    @contextlib.contextmanager
    def watch_fallbacks(self):
        yield set()


find.find = lambda wanted="auto", framework="torch": [Simulated()]
"""
PARAMETERS = """
profile: str = "quick"  # smoke, quick or article
devices: str = "auto"  # which ones
data: str = "auto"  # which data
sizes: list[int] = [1, 2, 3]  # of the cases
batch_size: int = 8  # of nothing
lr: float = 0.1  # of nothing
shuffle: bool = True  # nothing
note: str = ""  # nothing
budget_s: float = 0.05  # seconds
repeat: int = 0  # which repetition
out: str = ""  # the run's folder
"""
SETUP = """
import os
import signal
import time
from pathlib import Path

import simulated
from pomology.errors import NoSuchDevice
from pomology.experiment.experiment import Experiment

with open("NAME.pids", "a") as file:
    print(os.getpid(), file=file)
Path("NAME.saw-page").write_text(str(Path(out, "index.html").exists()))
experiment = Experiment(
    "NAME", article="003", devices=devices, profile=profile, budget_s=budget_s, out=out, repeat=repeat
)


def trouble(place):
    fault = Path("NAME.fault").read_text() if Path("NAME.fault").exists() else ""
    if fault in (f"error {place}", f"raise {place}"):
        raise ValueError("as planned")
    if fault == f"no device {place}":
        raise NoSuchDevice("devices: 'cuda' is not on this machine (cuda: none); it has cpu")
    if fault == f"kill {place}":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == f"stuck {place}":
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    if fault in (f"hang {place}", f"stuck {place}"):
        Path("NAME.hangs").touch()
        time.sleep(600)
"""
LOOP = """
for case in experiment.cases(size=sizes):
    with case:
        for _ in case.steps([0] * 4):
            time.sleep(0.001)
        trouble(case.size)
"""


def notebook_json(name: str, seconds: float, parameters: str = PARAMETERS) -> dict:
    def cell(kind: str, number: int, source: str, **metadata) -> dict:
        extra = {"outputs": [], "execution_count": None} if kind == "code" else {}
        return {"cell_type": kind, "id": f"{name}-{number}", "metadata": metadata, "source": source.strip(), **extra}

    return {
        "nbformat": 4,
        "nbformat_minor": 5,
        "metadata": {
            "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
            "pomology": {"article": "003", "seconds": {"smoke": seconds, "quick": seconds, "article": seconds}},
        },
        "cells": [
            cell("markdown", 0, f"# The {name} experiment"),
            cell("code", 1, parameters, tags=["parameters"]),
            cell("code", 2, SETUP.replace("NAME", name)),
            cell("code", 3, LOOP),
            cell("code", 4, 'trouble("end")'),
        ],
    }


class Checkout:
    """A folder with notebooks and parameters: `zeta` is cheap, `alpha` is dear."""

    def __init__(self, folder: Path, names: tuple[str, ...] = ("zeta", "alpha")):
        self.folder = folder
        self.notebooks = folder / "notebooks" / "an_article"
        self.notebooks.mkdir(parents=True)
        (self.notebooks / "simulated.py").write_text(SIMULATED)
        for name in names:
            self.add(name, {"zeta": 5, "alpha": 65}.get(name, 30))

    def add(self, name: str, seconds: float = 1, folder: str = "an_article", **more) -> None:
        path = self.folder / "notebooks" / folder / f"{name}.ipynb"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(notebook_json(name, seconds, **more)))
        for profile in ("smoke", "quick", "article"):
            self.give(name, f"profile: {profile}\nlr: 0.2\n", profile)

    def give(self, name: str, text: str | bytes, profile: str = "smoke") -> None:
        path = self.folder / "params" / profile / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())

    def fault(self, name: str, text: str = "") -> None:
        """Plan a disaster, or none any more."""
        (self.notebooks / f"{name}.hangs").unlink(missing_ok=True)
        (self.notebooks / f"{name}.fault").write_text(text)

    def out(self, run: str = "r") -> Path:
        return self.folder / "outputs" / run

    def pids(self, name: str) -> list[int]:
        path = self.notebooks / f"{name}.pids"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def statuses(self, name: str, run: str = "r") -> dict[str, str]:
        """Of the finished cases, by the size that tells them apart; every line must be as it should be."""
        contents = results_journal.read(self.out(run) / f"{name}.jsonl")
        assert contents.problems == []
        return {str(record.config["size"]): record.status for record in contents.records}

    def lines(self, name: str, event: str) -> list[dict]:
        text = (self.out() / f"{name}.jsonl").read_text(encoding="utf-8")
        return [line for line in map(json.loads, text.splitlines()) if line["event"] == event]

    def unfinished(self) -> list[str]:
        return sorted(path.name for path in (self.out() / ".partial").glob("*.ipynb"))


ALL_OK = {"1": "ok", "2": "ok", "3": "ok"}


def pretend(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """Make this process take a folder for its checkout."""
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        module = importlib.import_module(".".join(("pomology", *parts)).removesuffix(".__init__"))
        if hasattr(module, "root"):
            patch.setattr(module, "root", lambda: folder)


@pytest.fixture
def checkout(tmp_path, monkeypatch, sockets) -> Checkout:
    made = Checkout(tmp_path / "checkout")
    pretend(monkeypatch, made.folder)
    monkeypatch.setattr(batch, "KERNEL", sockets)
    return made


@pytest.fixture
def reproduce(checkout, capsys) -> Callable[..., tuple[int, str]]:
    """Run the command in this process; returns the exit status and what it said."""

    def run(*arguments: str) -> tuple[int, str]:
        status = command_line.main(["reproduce", "--profile=smoke", "--run=r", *arguments])
        said = capsys.readouterr()
        assert said.err == ""
        return status, said.out

    return run


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and waits to be asked for its status does not."""
    try:
        import psutil

        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until(what: Callable[[], object], within_s: float = 60) -> None:
    end_s = time.monotonic() + within_s
    while not what():
        assert time.monotonic() < end_s, "it never came"
        time.sleep(0.05)


# What a run does ------------------------------------------------------------------------------------------------------


def test_a_run_and_what_the_same_command_does_afterwards(checkout, reproduce):
    checkout.fault("alpha", "error 2")
    status, said = reproduce()
    # A case that ended in `error` is told of, and does not stop its notebook.
    assert status == 1 and "error in alpha, simulated-cpu size=2: ValueError: as planned" in said
    assert checkout.statuses("alpha") == ALL_OK | {"2": "error"}
    assert checkout.statuses("zeta") == ALL_OK
    out = checkout.out()
    assert {path.name for path in out.iterdir()} >= {
        *("machine.json", "index.html", "zeta.jsonl", "zeta.ipynb", "zeta.html", "alpha.ipynb", "alpha.html")
    }
    assert checkout.unfinished() == []
    # The cheapest first, with expected and elapsed time, and a line for every case.
    starts = re.findall(r"^\[(\d)/2\] (\w+), about (.+) \((.+) since the start\)$", said, re.MULTILINE)
    assert [(number, name) for number, name, _, _ in starts] == [("1", "zeta"), ("2", "alpha")]
    assert starts[0][2].startswith("5 s") or starts[0][2] == "0:05 min"
    assert [line.count("alpha: cpu, size ") for line in said.splitlines()].count(1) == 3
    assert re.search(r"^2 of 2 notebooks to run into outputs/r/, about ", said, re.MULTILINE)
    # The page was there before the second notebook began.
    assert (checkout.notebooks / "zeta.saw-page").read_text() == "False"
    assert (checkout.notebooks / "alpha.saw-page").read_text() == "True"
    document = json.loads((out / "zeta.ipynb").read_text(encoding="utf-8"))
    assert document["metadata"]["papermill"]["parameters"]["lr"] == 0.2
    assert all(cell["metadata"]["papermill"]["status"] == "completed" for cell in document["cells"])
    for path in out.glob("*"):  # runs are shared: the folder may name a person
        assert not path.is_file() or str(checkout.folder) not in path.read_text(encoding="utf-8"), path.name

    checkout.fault("alpha")
    status, said = reproduce()
    assert status == 0 and checkout.statuses("alpha") == ALL_OK
    assert "1 of 2 notebooks to run" in said and "[1/1] alpha" in said
    started = [line["case"] for line in checkout.lines("alpha", "start")]
    assert started == [f"simulated-cpu size={size}" for size in (1, 2, 3, 2)]

    before = {path: path.read_bytes() for path in out.glob("*.jsonl")}
    pids = checkout.pids("zeta") + checkout.pids("alpha")
    status, said = reproduce()
    assert status == 0 and "0 of 2 notebooks to run" in said
    assert checkout.pids("zeta") + checkout.pids("alpha") == pids and len(set(pids)) == 3

    (out / "zeta.ipynb").unlink()
    status, said = reproduce()
    assert status == 0 and (out / "zeta.ipynb").exists()
    assert len(checkout.pids("zeta")) == 2 and len(checkout.pids("alpha")) == 2
    assert before == {path: path.read_bytes() for path in out.glob("*.jsonl")}  # nothing was measured twice


def test_a_notebook_that_breaks_dies_or_lacks_its_device_stops_no_other(checkout, reproduce):
    checkout.fault("zeta", "raise end")
    checkout.fault("alpha", "no device end")
    status, said = reproduce()
    assert status == 1 and "zeta failed: ValueError: as planned" in said
    assert "  alpha is left out: devices: 'cuda' is not on this machine (cuda: none); it has cpu\n" in said
    assert checkout.unfinished() == ["alpha.ipynb", "zeta.ipynb"] and not (checkout.out() / "zeta.ipynb").exists()
    assert checkout.statuses("zeta") == checkout.statuses("alpha") == ALL_OK
    assert (checkout.out() / "index.html").exists()

    status, said = reproduce("--only=alpha")  # by itself it is no failure
    assert status == 0 and "alpha is left out" in said

    checkout.fault("zeta", "kill end")  # in no case: to try again would be to do the same again
    status, said = reproduce("--only=zeta")
    assert status == 1 and "zeta did not finish: its kernel died" in said
    assert len(checkout.pids("zeta")) == 2 and not (checkout.out() / "zeta.ipynb").exists()


def test_a_kernel_that_dies_in_a_case_costs_that_case(checkout, reproduce):
    checkout.fault("zeta", "kill 2")
    status, said = reproduce("--only=z*")
    assert status == 0
    assert checkout.statuses("zeta") == ALL_OK | {"2": "crashed"}
    assert "simulated-cpu size=2: crashed" in said and "started again behind simulated-cpu size=2" in said
    first, second = checkout.pids("zeta")
    assert first != second and not alive(first) and not alive(second)
    assert (checkout.out() / "zeta.ipynb").exists() and checkout.unfinished() == []
    assert checkout.pids("alpha") == []
    # A crash is a result. It is not tried again.
    assert "0 of 1 notebooks" in reproduce("--only=zeta")[1]


def test_time_limit_ends_the_kernel_and_the_case(checkout, reproduce, monkeypatch):
    """Time passes here when the case hangs, however slow this machine is."""
    hangs = checkout.notebooks / "zeta.hangs"
    checkout.fault("zeta", "hang 2")
    monkeypatch.setattr(batch, "time", Skipping(lambda: hangs.exists()))
    status, said = reproduce("--only=zeta", "--limit-minutes=60")
    assert status == 1 and "simulated-cpu size=2: timeout" in said and "zeta did not finish" in said
    assert checkout.statuses("zeta") == {"1": "ok", "2": "timeout"}
    (pid,) = checkout.pids("zeta")
    assert not alive(pid)
    monkeypatch.setattr(batch, "time", time)
    checkout.fault("zeta")
    assert reproduce("--only=zeta")[0] == 0
    assert checkout.statuses("zeta") == ALL_OK | {"2": "timeout"}


def test_time_limit_that_is_over_before_the_kernel_is_up(checkout, reproduce, monkeypatch):
    checkout.fault("zeta", "hang 1")
    monkeypatch.setattr(batch, "time", Skipping(lambda: True))
    status, said = reproduce("--only=zeta", "--limit-minutes=0.0001")
    assert status == 1 and "zeta did not finish: over the time limit" in said
    assert not [pid for pid in checkout.pids("zeta") if alive(pid)]


class Skipping:
    """The module `time`, an hour later as soon as `when` says so."""

    def __init__(self, when: Callable[[], bool]):
        self.when, self.first_s = when, time.monotonic()
        self.calls = 0

    def monotonic(self) -> float:
        self.calls += 1
        # Not before the deadline is set: the first two readings are those.
        return time.monotonic() + (3700 if self.calls > 3 and self.when() else 0)

    def __getattr__(self, name: str):
        return getattr(time, name)


def test_repeats_take_turns_in_fresh_kernels(checkout, reproduce):
    turns = plan.jobs("smoke", {"out": "x"}, repeats=2)
    assert [job.label for job in turns] == ["zeta", "alpha", "zeta (repeat 2)", "alpha (repeat 2)"]
    status, said = reproduce("--repeats=2", "--only=zeta")
    assert status == 0
    assert re.findall(r"^\[\d/2\] (.+?), about", said, re.MULTILINE) == ["zeta", "zeta (repeat 2)"]
    assert len(set(checkout.pids("zeta"))) == 2
    ended = [(line["case"][-1], line["repeat"], line["status"]) for line in checkout.lines("zeta", "end")]
    assert ended == [(size, repeat, "ok") for repeat in (0, 1) for size in "123"]
    assert (checkout.out() / "zeta.ipynb").exists() and (checkout.out() / "repeats" / "zeta-1.ipynb").exists()
    assert "0 of 2 notebooks" in reproduce("--repeats=2", "--only=zeta")[1]
    assert "0 of 1 notebooks" in reproduce("--only=zeta")[1]
    assert len(checkout.pids("zeta")) == 2


# What ends a run ------------------------------------------------------------------------------------------------------


def when(event: Callable[[], bool], act: Callable[[], None]) -> None:
    """Do something from another thread as soon as an event has happened."""
    threading.Thread(target=lambda: (wait_until(event), act()), daemon=True).start()


@pytest.fixture
def slow_goodbye(monkeypatch):
    """nbclient takes long to clean up behind a kernel, as on a machine whose cores are busy."""
    plain = AsyncKernelManager.cleanup_resources

    async def slowly(self, restart=False):
        await asyncio.sleep(2.5)
        await ensure_async(plain(self, restart))

    monkeypatch.setattr(AsyncKernelManager, "cleanup_resources", slowly)


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_interrupted(checkout, reproduce, slow_goodbye, caplog, capsys, sent):
    """The kernel does not listen, and what ends it leaves nothing behind that would complain later."""
    checkout.fault("zeta", "stuck 2")
    hangs = (checkout.notebooks / "zeta.hangs").exists
    inside = []

    def interrupt():
        inside.append(command_line.main(["reproduce", "--profile=smoke", "--run=r"]))  # meanwhile nobody else gets in
        os.kill(os.getpid(), sent)

    when(hangs, interrupt)
    status = command_line.main(["reproduce", "--profile=smoke", "--run=r"])
    gc.collect()  # what a task that nobody waited for has to say, it says when it goes
    said = capsys.readouterr()
    assert (status, inside) == (130, [2])
    assert said.err.count("\n") == 1 and "another `pomology reproduce` is running there" in said.err
    assert "interrupted; what was finished is in outputs/r/" in said.out
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []
    (pid,) = checkout.pids("zeta")
    assert not alive(pid) and checkout.pids("alpha") == []
    assert checkout.statuses("zeta") == {"1": "ok", "2": "interrupted"}
    assert results_journal.read(checkout.out() / "zeta.jsonl").open_starts == []
    assert (checkout.out() / "index.html").exists() and checkout.unfinished() == ["zeta.ipynb"]

    checkout.fault("zeta")
    assert reproduce("--only=zeta")[0] == 0
    assert checkout.statuses("zeta") == ALL_OK
    assert [line["case"][-1] for line in checkout.lines("zeta", "start")] == ["1", "2", "2", "3"]


def test_a_second_signal_ends_it_at_once_and_one_that_a_shell_ignores_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in what a shell starts in the background
    try:
        with batch._stopped_by_signals() as stop:
            assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
            os.kill(os.getpid(), signal.SIGTERM)
            assert stop.wait(5)
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(5)
    finally:
        signal.signal(signal.SIGINT, before)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


@contextlib.contextmanager
def running(folder: Path):
    """A real checkout with a copy of the package, where `python -m pomology reproduce` is at work in a hanging case."""
    made = Checkout(folder, names=("zeta",))
    shutil.copytree(PACKAGE, folder / "lib" / "pomology", ignore=shutil.ignore_patterns("__pycache__"))
    env = os.environ | {"PYTHONPATH": str(folder / "lib"), "PYTHONDONTWRITEBYTECODE": "1"}
    made.fault("zeta", "hang 2")
    command = [sys.executable, "-m", "pomology", "reproduce", "--profile=smoke", "--run=r"]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    process = subprocess.Popen(command, env=env, cwd=folder.parent, start_new_session=True, **streams)
    try:
        wait_until(lambda: (made.notebooks / "zeta.hangs").exists() or process.poll() is not None)
        assert process.poll() is None, process.stdout.read()
        yield made, process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()
        for pid in made.pids("zeta"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_killed(tmp_path, monkeypatch, capsys):
    """Nothing of the runner is left to clean up; the kernel notices by itself."""
    with running(tmp_path / "checkout") as (checkout, process):
        pretend(monkeypatch, checkout.folder)
        process.kill()
        process.wait()
        (pid,) = checkout.pids("zeta")
        wait_until(lambda: not alive(pid), within_s=20)
        assert checkout.statuses("zeta") == {"1": "ok", "2": "crashed"}  # so far: nobody could write how it ended
        # Killed while it wrote the notebook: half of it is there.
        place = checkout.out() / ".partial" / "zeta.ipynb"
        place.write_bytes(place.read_bytes()[:-700])

        checkout.fault("zeta")
        assert command_line.main(["reproduce", "--profile=smoke", "--run=r"]) == 0, capsys.readouterr().err
        assert checkout.statuses("zeta") == ALL_OK
        assert [line["case"][-1] for line in checkout.lines("zeta", "start")] == ["1", "2", "2", "3"]
        assert (checkout.out() / "zeta.ipynb").exists() and checkout.unfinished() == []


def test_a_case_whose_process_vanished_twice_is_given_up(checkout):
    """Its notebook counts as finished then, and is not started for ever."""
    out = checkout.out()
    (job,) = plan.jobs("smoke", {"out": str(out)}, "zeta")
    journal = results_journal.Journal(out / "zeta.jsonl")
    (out / "zeta.ipynb").write_text("{}")
    start = {"case": "simulated-cpu size=2", "config": {"size": 2}, "repeat": 0}
    start |= dict.fromkeys(("experiment", "article", "framework", "framework_version", "backend", "precision"), "x")
    start |= {"device": None, "chip": None, "profile": "smoke", "data": "none", "scaled": False, "threads": 1}
    start |= {"power_source": None, "started": results_record.now()}
    assert not batch._finished(job, out)  # a notebook without a single case has measured nothing
    journal.start(start)
    assert not batch._finished(job, out)
    journal.start(start)
    assert batch._finished(job, out)
    other = plan.Job(job.notebook, job.parameters, repeat=1)
    (out / "repeats").mkdir()
    (out / "repeats" / "zeta-1.ipynb").write_text("{}")
    journal.start(start | {"repeat": 1})
    assert batch._finished(job, out) and not batch._finished(other, out)


# What a run takes -----------------------------------------------------------------------------------------------------


def test_what_a_profile_says_of_devices_and_data_holds_unless_the_command_says_otherwise(checkout):
    checkout.give("zeta", "profile: smoke\ndevices: cpu\ndata: stand-in\n")
    plain = {"devices": "auto", "data": "auto", "out": "x"}
    (job,) = plan.jobs("smoke", plain, "zeta")
    assert (job.parameters["devices"], job.parameters["data"]) == ("cpu", "stand-in")
    (job,) = plan.jobs("smoke", plain | {"data": "real"}, "zeta")
    assert (job.parameters["devices"], job.parameters["data"]) == ("cpu", "real")
    (job,) = plan.jobs("smoke", plain, "alpha")
    assert (job.parameters["devices"], job.parameters["data"]) == ("auto", "auto")


def test_only_takes_names_and_globs(checkout):
    checkout.add("beta", 1)

    def names(only: str) -> list[str]:
        return [notebook.name for notebook in notebooks.select(notebooks.notebooks(), only)]

    assert names("") == ["beta", "zeta", "alpha"]
    assert names("alpha zeta") == ["zeta", "alpha"]
    assert names("*eta") == ["beta", "zeta"]


def test_check_list_and_version(checkout, capsys):
    assert command_line.main(["check"]) == 0
    assert "2 notebooks" in capsys.readouterr().out
    assert command_line.main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["zeta", "alpha"] and "The zeta experiment" in lines[0]
    checkout.give("alpha", "profile: article\nlr: fast\n", "article")  # `check` looks at every profile
    assert command_line.main(["check"]) == 2
    assert "params/article/alpha.yaml: lr is 'fast'" in capsys.readouterr().err


# What is wrong --------------------------------------------------------------------------------------------------------


def finished(checkout: Checkout, profile: str = "smoke", machine: str | None = None, **used) -> None:
    """A run `r` in which zeta is done."""
    checkout.out().mkdir(parents=True)
    (checkout.out() / "machine.json").write_text(machine or json.dumps({"profile": profile}))
    used = {"profile": "smoke", "lr": 0.2, "devices": "auto", "data": "auto", "out": "elsewhere", "repeat": 0} | used
    document = notebook_json("zeta", 5)
    document["metadata"]["papermill"] = {"parameters": {key: value for key, value in used.items() if value is not None}}
    (checkout.out() / "zeta.ipynb").write_text(json.dumps(document))


RUN_R = ["reproduce", "--profile=smoke", "--run=r"]
# Arguments, words that the line must have.
WRONG_ARGUMENTS = [
    (["reproduc"], "reproduc"),
    (["reproduce", "vae"], "vae"),
    (["reproduce", "--profile=fast"], "PROFILE=fast: must be one of smoke, quick, article"),
    (["reproduce", "--device=tpu"], "DEVICE=tpu: must be one of auto, cpu, gpu, cuda, mps"),
    (["reproduce", "--only=zeta vea"], "ONLY=vea: no notebook is named so; there are alpha, zeta"),
    (["reproduce", "--run=a/b"], "RUN=a/b: must be a folder name"),
    (["reproduce", "--run=two\nlines"], "RUN=two"),
    (["reproduce", "--data=fake"], "DATA=fake: must be one of auto, real, stand-in"),
    (["reproduce", "--repeats=0"], "REPEATS=0: must be from 1 to 100"),
    (["reproduce", "--repeats=many"], "--repeats: invalid int value: 'many'"),
    (["reproduce", "--limit-minutes=nan"], "--limit-minutes=nan"),
    (["report", "gone"], "RUN=gone: no such run"),
    (["compare", "gone"], "RUNS: gone: no such run"),
]
# What zeta's YAML file says, words that the line must have besides the file's name; test_parameters.py has the rest.
WRONG_VALUES = [
    ("profile: smoke\nlrr: 0.1", "lrr"),
    ("profile: smoke\nlr: fast", "lr is 'fast'; it must be a number"),
    ("profile: quick", "profile"),
    (b"note: \xff\xfe", "UTF-8"),
]


@pytest.fixture
def refused(checkout, capsys, monkeypatch):
    """Check that a command is refused in one line with these words, that nothing ran, and that no file changed."""
    monkeypatch.setattr(batch, "_run_kernel", lambda *_: pytest.fail("a kernel was started"))

    def files() -> dict:
        return {path: path.stat().st_mtime_ns for path in checkout.folder.rglob("*")}

    def check(arguments: list[str], *words: str) -> None:
        before = files()
        assert command_line.main(arguments) == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.count("\n") == 1 and said.err.startswith("pomology: "), said.err
        for word in words:
            assert word in said.err
        assert files() == before

    return check


@pytest.mark.parametrize(("arguments", "words"), WRONG_ARGUMENTS, ids=lambda value: str(value)[-40:])
def test_wrong_arguments(refused, arguments, words):
    refused(arguments, words)


def test_devices_that_this_machine_lacks(refused):
    name = next(name for name, reason in find.backends().items() if reason)
    refused([*RUN_R, f"--device={name}"], name, "not on this machine")


@pytest.mark.parametrize(("text", "words"), WRONG_VALUES, ids=lambda value: str(value)[:40])
def test_wrong_values_in_a_profile(checkout, refused, text, words):
    checkout.give("zeta", text)
    refused(RUN_R, "params/smoke/zeta.yaml", words)


def test_files_that_do_not_belong_together(checkout, refused):
    checkout.give("delta", "profile: smoke\n")
    refused(RUN_R, "params/smoke/delta.yaml", "alpha, zeta")
    (checkout.folder / "params" / "smoke" / "delta.yaml").rename(checkout.folder / "params" / "smoke" / "zeta.yml")
    refused(RUN_R, "params/smoke/zeta.yml")
    (checkout.folder / "params" / "smoke" / "zeta.yml").unlink()
    checkout.give("zeta", "profile: fast\n", profile="fast")
    refused(RUN_R, "params/fast", "smoke, quick, article")
    shutil.rmtree(checkout.folder / "params" / "fast")
    (checkout.folder / "params" / "smoke" / "alpha.yaml").unlink()
    refused(RUN_R, "params/smoke/alpha.yaml", "missing")


def test_notebooks_that_are_not_as_they_should_be(checkout, refused):
    checkout.add("zeta", folder="another_article")
    refused(RUN_R, "zeta.ipynb", "two folders")
    shutil.rmtree(checkout.folder / "notebooks" / "another_article")
    checkout.add("zeta", parameters=PARAMETERS.replace('devices: str = "auto"  # which ones\n', ""))
    refused(RUN_R, "zeta.ipynb: parameters cell: devices is missing")
    (checkout.notebooks / "zeta.ipynb").write_text('{"cells": [')
    refused(RUN_R, "zeta.ipynb: not a notebook")
    for path in checkout.notebooks.glob("*.ipynb"):
        path.unlink()
    refused(RUN_R, "no notebooks")


@pytest.mark.parametrize(
    ("run", "words"),
    [
        ({"profile": "quick"}, ["RUN=r: holds profile 'quick'"]),
        ({"lr": 0.3}, ["zeta was run with lr=0.3, not 0.2"]),
        ({"data": "real"}, ["zeta was run with data=real, not auto"]),
        ({"machine": "{"}, ["RUN=r", "machine.json"]),
    ],
    ids=str,
)
def test_a_run_of_something_else_is_not_continued(checkout, refused, run, words):
    finished(checkout, **run)
    refused(RUN_R, *words)


def test_a_run_that_moved_is_continued(checkout):
    finished(checkout)  # it notes another folder
    _, (job, _) = plan.prepare("smoke", "auto", run="r")
    assert job.label == "zeta"
