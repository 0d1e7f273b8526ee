"""Runs of a small checkout: real kernels, an invented device, planned disasters."""

import gc
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

import fakes
import pytest
from checkouts import ALL_OK, NO_DEVICES, PACKAGE, RUN_R, alive, notebook_text, wait_until

from pomology import __main__ as command_line
from pomology.results import journal as results_journal
from pomology.results.record import now
from pomology.runner import batch, notebooks, plan


def test_a_run_and_what_the_same_command_does_afterwards(checkout, reproduce):
    checkout.fault("alpha", "raise 2")
    status, said = reproduce()
    # A case that ended in `error` is told of, and does not stop its notebook.
    assert status == 1 and "error in alpha, simulated-cpu size=2: ValueError: as planned" in said
    assert (
        checkout.statuses("alpha") == ALL_OK | {"2": "error"}
        and checkout.statuses("zeta") == ALL_OK
    )
    out = checkout.out()
    files = {
        "machine.json",
        "index.html",
        "zeta.jsonl",
        "zeta.ipynb",
        "zeta.html",
        "alpha.ipynb",
        "alpha.html",
    }
    assert {path.name for path in out.iterdir()} >= files and checkout.unfinished() == []
    # The cheapest first, and a line for every case.
    starts = re.findall(
        r"^\[(\d)/2\] (\w+): about .+; the run ends in about [\w: ]+$", said, re.MULTILINE
    )
    assert starts == [("1", "zeta"), ("2", "alpha")]
    assert said.count("  alpha: cpu, size ") == said.count("  zeta: cpu, size ") == 3
    # The page was there before the second notebook began.
    assert (checkout.notebooks / "zeta.saw-page").read_text() == "False"
    assert (checkout.notebooks / "alpha.saw-page").read_text() == "True"
    document = json.loads((out / "zeta.ipynb").read_text(encoding="utf-8"))
    assert document["metadata"]["papermill"]["parameters"]["lr"] == 0.2
    for path in out.glob("*"):  # runs are shared: the folder may name a person
        assert not path.is_file() or str(checkout.folder).encode() not in path.read_bytes(), (
            path.name
        )

    checkout.fault("alpha")
    (out / "zeta.ipynb").unlink()
    before = (out / "zeta.jsonl").read_bytes()
    status, said = reproduce()
    assert (
        status == 0 and "2 of 2 notebooks to run" in said and checkout.statuses("alpha") == ALL_OK
    )
    assert checkout.started("alpha") == ["1", "2", "3", "2"]
    assert (
        before == (out / "zeta.jsonl").read_bytes() and (out / "zeta.ipynb").exists()
    )  # nothing was measured twice

    pids = checkout.pids("zeta") + checkout.pids("alpha")
    status, said = reproduce()
    assert status == 0 and "0 of 2 notebooks to run" in said
    assert checkout.pids("zeta") + checkout.pids("alpha") == pids and len(set(pids)) == 4


def test_a_notebook_that_breaks_dies_or_lacks_its_device_stops_no_other(checkout, reproduce):
    checkout.fault("zeta", "raise end")
    checkout.fault("alpha", "no device end")
    status, said = reproduce()
    assert (
        status == 1
        and "zeta did not finish: ValueError: as planned (see outputs/r/.partial/)" in said
    )
    assert (
        "  alpha is left out: devices: 'cuda' is not on this machine (cuda: none); it has cpu\n"
        in said
    )
    assert (
        checkout.unfinished() == ["alpha.ipynb", "zeta.ipynb"]
        and not (checkout.out() / "zeta.ipynb").exists()
    )
    assert checkout.statuses("zeta") == checkout.statuses("alpha") == ALL_OK
    assert (checkout.out() / "index.html").exists()
    status, said = reproduce("--only=alpha")  # by itself it is no failure
    assert status == 0 and "alpha is left out" in said
    checkout.fault("zeta", "kill end")  # in no case: to try again would be to do the same again
    status, said = reproduce("--only=zeta")
    assert (
        status == 1
        and "zeta did not finish: its kernel died" in said
        and len(checkout.pids("zeta")) == 3
    )


def test_what_a_user_s_ipython_does_touches_no_run(checkout, reproduce, monkeypatch, tmp_path):
    startup = tmp_path / "ipython" / "profile_default" / "startup"
    startup.mkdir(parents=True)
    (startup / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("HOME", str(tmp_path / "no such home"))  # that of a user without an account
    status, said = reproduce("--only=zeta")
    assert status == 0 and not (tmp_path / "ran").exists(), said


def test_a_kernel_that_dies_in_a_case_costs_that_case(checkout, reproduce):
    checkout.fault("zeta", "kill 2")
    status, said = reproduce("--only=z*", "--repeats=2")
    assert status == 0 and checkout.pids("alpha") == []
    ended = {
        (size, repeat): "crashed" if size == "2" else "ok" for repeat in (0, 1) for size in "123"
    }
    records = results_journal.read(checkout.out() / "zeta.jsonl").records
    assert {
        (str(record.config["size"]), record.repeat): record.status for record in records
    } == ended
    assert (
        "simulated-cpu size=2: crashed" in said
        and "started again after simulated-cpu size=2" in said
    )
    # Repeats take turns in fresh kernels.
    assert re.findall(r"^\[\d/2\] (.+?): about", said, re.MULTILINE) == ["zeta", "zeta (repeat 2)"]
    pids = checkout.pids("zeta")
    assert len(set(pids)) == 6 and not any(map(alive, pids))
    assert (checkout.out() / "zeta.ipynb").exists() and (
        checkout.out() / "repeats" / "zeta-1.ipynb"
    ).exists()
    # A crash is a result. It is not tried again.
    assert (
        "0 of 2 notebooks" in reproduce("--only=zeta", "--repeats=2")[1]
        and checkout.unfinished() == []
    )


class Skipping:
    """The module `time`, an hour later as soon as `when` says so, but not before the deadline is set."""

    def __init__(self, when: Callable[[], bool]):
        self.when, self.calls = when, 0

    def monotonic(self) -> float:
        self.calls += 1
        return time.monotonic() + (3700 if self.calls > 2 and self.when() else 0)


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
    assert reproduce("--only=zeta")[0] == 0 and checkout.statuses("zeta") == ALL_OK | {
        "2": "timeout"
    }


def test_what_minutes_leave_out_is_named_and_the_same_run_carries_on_without_them(
    checkout, capsys, monkeypatch
):
    """alpha takes 65 s, zeta 5 s; of three minutes some are over when it begins."""
    run, out = ["reproduce", "--run=r"], checkout.out()
    monkeypatch.setattr(plan, "PAGE_S", 150.0)
    status, said = command_line.main([*run, "--minutes=3"]), capsys.readouterr().out
    assert status == 0 and "left out: 1 notebooks. `make reproduce RUN=r` carries on." in said
    assert checkout.statuses("zeta") == ALL_OK and checkout.pids("alpha") == []
    left = json.loads((out / "machine.json").read_text())["left_out"]
    assert left.keys() == {"alpha"} and left["alpha"].startswith("takes about ")
    page = (out / "index.html").read_text()
    assert "is left out: takes about" in page and "less was left" in page

    status, said = command_line.main(run), capsys.readouterr().out
    assert status == 0 and "1 of 2 notebooks to run" in said and "left out" not in said
    assert checkout.statuses("alpha") == ALL_OK
    assert "left out" not in (out / "index.html").read_text()


def test_interrupted(checkout, reproduce, caplog, capsys):
    """The kernel does not listen, and what ends it leaves nothing behind that would complain later."""
    inside = []

    def interrupt():
        wait_until((checkout.notebooks / "zeta.hangs").exists)
        inside.append(command_line.main(RUN_R))  # meanwhile nobody else gets in
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)

    checkout.fault("zeta", "hang 2")
    before = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a shell's background job ignores it
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


def test_a_third_signal_ends_it_at_once_and_one_that_a_shell_ignores_stays_ignored(monkeypatch):
    ended = []
    monkeypatch.setattr(os, "_exit", ended.append)
    before = signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # as in what a shell starts in the background
    try:
        with batch.stopped_by_signals() as stop:
            assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
            for wanted in ([], [], [130]):
                os.kill(os.getpid(), signal.SIGTERM)
                assert stop.wait(5)
                time.sleep(0.01)
                assert ended == wanted
    finally:
        signal.signal(signal.SIGINT, before)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_killed(checkout, reproduce):
    """Nothing of the runner is left to clean up, and nothing of the kernel stays."""
    shutil.copytree(
        PACKAGE, checkout.folder / "lib" / "pomology", ignore=shutil.ignore_patterns("__pycache__")
    )
    env = os.environ | {"PYTHONPATH": str(checkout.folder / "lib"), "PYTHONDONTWRITEBYTECODE": "1"}
    checkout.fault("zeta", "hang 2")
    command, quiet = [sys.executable, "-m", "pomology", *RUN_R], subprocess.DEVNULL
    process = subprocess.Popen(
        command, env=env, cwd=checkout.folder.parent, stdout=quiet, start_new_session=True
    )
    try:
        wait_until(
            lambda: (checkout.notebooks / "zeta.hangs").exists() or process.poll() is not None
        )
    finally:
        process.kill()
        process.wait()
    pids = checkout.pids("zeta")
    assert len(pids) == 2
    wait_until(lambda: not any(map(alive, pids)), within_s=20)
    assert checkout.statuses("zeta") == {
        "1": "ok",
        "2": "crashed",
    }  # so far: nobody could write how it ended
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
    start = {
        "case": "simulated-cpu size=2",
        "config": {"size": 2},
        "repeat": 0,
        "scaled": False,
        "threads": 1,
    }
    start |= dict.fromkeys(
        ("experiment", "article", "framework", "framework_version", "backend", "precision"), "x"
    )
    start |= dict.fromkeys(("device", "chip", "power_source")) | {
        "profile": "smoke",
        "data": "none",
        "started": now(),
    }
    finished = []  # at first without a single case, which has measured nothing
    for _ in range(3):
        finished.append(batch.finished(job, out))
        journal.start(start)
    assert finished == [False, False, True]
    (out / "zeta.ipynb").write_text(notebook_text("zeta", 5)[:-9])
    assert not batch.finished(job, out)


def test_what_a_profile_says_of_devices_and_data_holds_unless_the_command_says_otherwise(checkout):
    checkout.give("zeta", "profile: smoke\ndevices: cpu\ndata: stand-in\n")

    def taken(name: str, **given: str) -> tuple[str, str]:
        (job,) = plan.jobs("smoke", {"devices": "auto", "data": "auto", "out": "x"} | given, name)
        return job.parameters["devices"], job.parameters["data"]

    assert taken("zeta") == ("cpu", "stand-in") and taken("zeta", data="real") == ("cpu", "real")
    assert taken("alpha") == ("auto", "auto")
    planned = plan.jobs("smoke", {"out": "x"}, repeats=2)
    assert [job.label for job in planned] == [
        "zeta",
        "alpha",
        "zeta (repeat 2)",
        "alpha (repeat 2)",
    ]


def test_only_check_and_list(checkout, capsys):
    for only, chosen in (
        ("", ["zeta", "alpha"]),
        ("alpha zeta", ["zeta", "alpha"]),
        ("*eta", ["zeta"]),
    ):
        assert [
            notebook.name for notebook in notebooks.select(notebooks.notebooks(), only)
        ] == chosen
    (checkout.folder / "params" / "smoke" / ".DS_Store").touch()  # as the Finder leaves it
    assert command_line.main(["check"]) == 0
    assert "2 notebooks" in capsys.readouterr().out
    assert command_line.main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["zeta", "alpha"]
    assert "The zeta experiment (smoke 5 s, quick 5 s, article 5 s)" in lines[0]
    checkout.give(
        "alpha", "profile: article\nlr: fast\n", "article"
    )  # `check` looks at every profile
    assert command_line.main(["check"]) == 2
    assert "params/article/alpha.yaml: lr is 'fast'" in capsys.readouterr().err


# Arguments -> words that the line must have.
WRONG_ARGUMENTS = {
    ("reproduc",): "reproduc",
    ("reproduce", "--profile=fast"): "PROFILE=fast: must be one of smoke, quick, article",
    ("reproduce", "--device=tpu"): "DEVICE=tpu: must be one of auto, cpu, gpu, cuda, mps",
    ("reproduce", "--only=zeta vea"): "ONLY=vea: no notebook is named so; there are alpha, zeta",
    ("reproduce", "--run=a/b"): "RUN=a/b: must be a name",
    ("reproduce", "--repeats=0"): "REPEATS=0: must be from 1 to 100",
    ("reproduce", "--repeats=many"): "'many'",
    ("reproduce", "--limit-minutes=soon"): "--limit-minutes: invalid float value: 'soon'",
    ("reproduce", "--minutes=2"): "MINUTES=2: must be a whole number from 3 to 120",
    ("reproduce", "--minutes=5.5"): "MINUTES=5.5: must be a whole number from 3 to 120",
    (
        "reproduce",
        "--minutes=5",
        "--profile=article",
    ): "MINUTES=5: is for PROFILE=quick, not for article",
    ("report", "gone"): "RUN=gone: no such run",
    (*RUN_R, f"--device={'cuda' if sys.platform == 'darwin' else 'mps'}"): "not on this machine",
}


@pytest.fixture
def refused(checkout, capsys, monkeypatch):
    """Check that a command is refused in one line with these words, that nothing ran, and that no file changed."""
    started = lambda *_: pytest.fail("a kernel was started")  # noqa: E731
    monkeypatch.setattr(batch.Execution, "_run_kernel", started)

    def check(arguments: list[str], words: str) -> None:
        before = {path: path.stat().st_mtime_ns for path in checkout.folder.rglob("*")}
        assert command_line.main(arguments) == 2
        said = capsys.readouterr()
        assert said.out == "" and said.err.count("\n") == 1 and said.err.startswith("pomology: ")
        assert (
            words in said.err
            and {path: path.stat().st_mtime_ns for path in checkout.folder.rglob("*")} == before
        )

    return check


def test_wrong_arguments(refused):
    for arguments, words in WRONG_ARGUMENTS.items():
        refused([*arguments], words)


@pytest.mark.parametrize(
    ("place", "text", "words"),
    [
        (
            "params/smoke/zeta.yaml",
            "profile: smoke\nlrr: 0.1",
            "params/smoke/zeta.yaml: no parameter is named lrr",
        ),
        ("params/smoke/zeta.yaml", "profile: quick", "params/smoke/zeta.yaml: profile is 'quick'"),
        ("params/smoke/alpha.yaml", None, "params/smoke/alpha.yaml: "),
        (
            "params/smoke/delta.yaml",
            "profile: smoke",
            "params/smoke/delta.yaml: no such profile or notebook",
        ),
        ("notebooks/an_article/zeta.ipynb", '{"cells": [', "zeta.ipynb: not a notebook"),
        ("notebooks/zeta.ipynb", notebook_text("zeta", 5), "zeta.ipynb: two folders have one"),
        (
            "notebooks/an_article/zeta.ipynb",
            NO_DEVICES,
            "zeta.ipynb: parameters cell: devices is missing",
        ),
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
    own = {
        "profile": "smoke",
        "lr": 0.2,
        "devices": "auto",
        "data": "auto",
        "out": "elsewhere",
        "repeat": 0,
    }
    document = json.loads(notebook_text("zeta", 5))
    checkout.out().mkdir(parents=True)
    for machine, used, words in (
        ({"profile": "smoke"}, {}, ""),
        ({"profile": "quick"}, {}, "RUN=r: holds profile 'quick'"),
        ({"profile": "smoke"}, {"lr": 0.3}, "zeta was run with lr=0.3, not 0.2"),
        ({"profile": "smoke"}, {"sizes": [1]}, "zeta was run with sizes=[1], not None"),
    ):
        (checkout.out() / "machine.json").write_text(json.dumps(machine | {"python": "3.11.9"}))
        document["metadata"]["papermill"] = {"parameters": own | used}
        (checkout.out() / "zeta.ipynb").write_text(json.dumps(document))
        if words:
            refused(RUN_R, words)
        else:
            assert plan.prepare(plan.Asked("smoke", "auto", run="r"))[1][0].label == "zeta"


def test_a_notebook_runs_again_while_each_kernel_measures_one_case(checkout, monkeypatch):
    """Of backends that keep what they compiled, as `one_case_per_kernel` in its metadata says."""
    (job,) = plan.jobs("quick", {}, "zeta")
    job = job._replace(notebook=job.notebook._replace(one_case_per_kernel=("mps",)))
    out = checkout.out()
    journal = results_journal.Journal(out / "zeta.jsonl")
    cases = iter([("a", "mps"), ("b", "cpu"), ("c", "mps")])
    told = []

    def kernel(execution):
        told.append(execution.job.name)
        for case, backend in cases:
            journal.end(fakes.record(case=case, backend=backend, experiment="zeta"))
            if backend == "mps":
                break

    monkeypatch.setattr(batch.Execution, "_run_kernel", kernel)
    stop = threading.Event()
    assert batch.Execution(job, out, 0, stop, print).run()
    # A third kernel finds nothing to do, and shows all rows.
    assert [record.case for record in results_journal.read(journal.path).records] == ["a", "b", "c"]
    assert len(told) == 3
