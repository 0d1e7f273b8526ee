"""Runs of a small checkout: real kernels, a simulated device, injected failures."""

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace
from unittest.mock import Mock

import msgspec
import psutil
import pytest
import records
from checkouts import ALL_OK, PARAMETERS, RUN_R, alive, notebook_text, wait_until
from journal_lines import ENDED, STARTED
from jupyter_client import BlockingKernelClient

from pomology import __main__ as command_line
from pomology.machine import driver_reports
from pomology.paths import root
from pomology.results import journal as results_journal
from pomology.results.run import note, note_machine
from pomology.runner import batch, library, plan

ONLY_ZETA = "--only=zeta"
ZETA = "params/smoke/zeta.yaml"


def test_a_run_and_the_same_command_afterwards(checkout, reproduce):
    checkout.fault("alpha", "raise 2")
    status, said = reproduce()
    # A case that ended in `error` is reported, and does not stop its notebook.
    assert status == 1 and "error in alpha, simulated-cpu size=2: ValueError: as planned" in said
    assert checkout.statuses("alpha") == ALL_OK | {"2": "error"}
    assert checkout.statuses("zeta") == ALL_OK and checkout.unfinished() == []
    out = checkout.out()
    files = {"machine.json", "index.html", "zeta.jsonl", "zeta.ipynb", "zeta.html", "alpha.html"}
    assert {path.name for path in out.iterdir()} >= files
    # The cheapest first, and a line for every case.
    starts = re.findall(r"^\[(\d)/2\] (\w+): about .+; the run ends in about", said, re.MULTILINE)
    assert starts == [("1", "zeta"), ("2", "alpha")]
    assert said.count("  alpha: cpu, size ") == said.count("  zeta: cpu, size ") == 3
    assert "collection" not in said  # neither of a smoke run nor of a checkout with changes
    # The report existed before the second notebook began.
    assert (checkout.notebooks / "zeta.saw-page").read_text() == "False"
    assert (checkout.notebooks / "alpha.saw-page").read_text() == "True"
    document = json.loads((out / "zeta.ipynb").read_text(encoding="utf-8"))
    assert document["metadata"]["papermill"]["parameters"]["lr"] == 0.2
    for path in out.glob("[!.]*.*"):  # runs are shared, and the folder's path may name a person
        assert str(checkout.folder).encode() not in path.read_bytes(), path.name

    checkout.fault("alpha")
    (out / "zeta.ipynb").unlink()
    before = (out / "zeta.jsonl").read_bytes()
    status, said = reproduce()
    assert status == 0 and "2 of 2 notebooks to run" in said
    assert checkout.started("alpha") == ["1", "2", "3", "2"]
    assert checkout.statuses("alpha") == ALL_OK
    # Nothing was measured twice.
    assert before == (out / "zeta.jsonl").read_bytes() and (out / "zeta.ipynb").exists()

    pids = checkout.pids("zeta") + checkout.pids("alpha")
    status, said = reproduce()
    assert status == 0 and "0 of 2 notebooks to run" in said
    assert checkout.pids("zeta") + checkout.pids("alpha") == pids and len(set(pids)) == 4


def test_a_notebook_that_breaks_dies_or_lacks_its_device_stops_no_other(checkout, reproduce):
    checkout.fault("zeta", "raise end")
    checkout.fault("alpha", "no device end")
    status, said = reproduce()
    assert status == 1
    assert "zeta did not finish: ValueError: as planned (see outputs/r/.partial/)" in said
    assert "alpha is skipped: devices: 'cuda' is not on this machine" in said
    assert checkout.unfinished() == ["alpha.ipynb", "zeta.ipynb"]
    assert not (checkout.out() / "zeta.ipynb").exists()
    assert checkout.statuses("zeta") == checkout.statuses("alpha") == ALL_OK
    assert (checkout.out() / "index.html").exists()
    checkout.fault("zeta", "kill end")  # outside of a case, so a restart would repeat it
    checkout.fault("alpha", "exit end")
    status, said = reproduce()
    assert status == 1 and "zeta did not finish: its kernel ended before its last cell" in said
    assert "alpha did not finish: ended before its last cell (see" in said
    page = (checkout.out() / "index.html").read_text()
    assert "alpha is running, or was stopped" in page and "zeta is running, or was stopped" in page
    assert len(checkout.pids("zeta")) == 3 and checkout.unfinished() == [
        "alpha.ipynb",
        "zeta.ipynb",
    ]


@pytest.mark.long
def test_a_notebook_that_begins_no_case_or_leaves_one_open_has_not_finished(checkout, reproduce):
    checkout.fault("zeta", "open 2")
    checkout.fault("alpha", "no case")
    status, said = reproduce()
    assert status == 1 and "alpha did not finish: it began no case (see outputs/r/" in said
    assert "zeta did not finish: it left cases open: simulated-cpu size=2 (see" in said
    assert checkout.unfinished() == ["alpha.ipynb", "zeta.ipynb"]
    assert checkout.statuses("zeta") == ALL_OK | {"2": "error"}
    contents = results_journal.read(checkout.out() / "zeta.jsonl")
    (left,) = [record for record in contents.records if record.status == "error"]
    assert left.reason == batch.LEFT_OPEN and not contents.open_starts  # nobody killed it
    checkout.fault("zeta")
    checkout.fault("alpha")
    status, said = reproduce()
    assert status == 0 and "2 of 2 notebooks to run" in said and checkout.unfinished() == []
    assert checkout.statuses("zeta") == checkout.statuses("alpha") == ALL_OK
    assert checkout.started("zeta") == ["1", "2", "3", "2"]


def test_the_last_words_of_a_kernel_and_its_signal_are_kept(tmp_path):
    """A driver writes why to the process's own stderr, and aborts. This kernel is a real one."""
    log, signals = tmp_path / "log", []
    with batch._kernel(tmp_path, log, lambda: None, signals) as manager:
        client = BlockingKernelClient(parent=manager)  # that knows a slow start from a death
        client.load_connection_info(manager.get_connection_info())
        client.start_channels()
        client.wait_for_ready(timeout=60)
        client.execute("import os; os.write(2, b'metal: a command buffer was lost\\n'); os.abort()")
        wait_until(lambda: manager.provisioner.process.poll() is not None)
        client.stop_channels()
    assert signals == ["SIGABRT"]
    assert driver_reports.last_words(batch._log_lines(log, 0)) == "metal: a command buffer was lost"
    log.write_text("once\nwhy\n\nFatal Python error: Aborted\n\nThread 0x1:\n  File a.py\n")
    assert driver_reports.last_words(batch._log_lines(log, 0)) == "why"
    later = batch._log_lines(log, len("once\nwhy\n"))
    assert driver_reports.last_words(later) == "Fatal Python error: Aborted"
    assert batch._log_lines(tmp_path / "none", 0) == [] and driver_reports.last_words([]) == ""
    os.mkfifo(tmp_path / "pipe")
    assert batch._log_lines(tmp_path / "pipe", 0) == []


CPP = """loading
terminate called after throwing an instance of 'c10::AcceleratorError'
  what():  CUDA error: an illegal memory access was encountered
Exception raised from c10_cuda_check_implementation at CUDAException.cpp:44
frame #0: c10::Error::Error + 0x98 (0x7f in libc10.so)
frame #25: clone + 0x44 (0x7f in libc.so.6)
Fatal Python error: Aborted"""
FAULT = 'Python error: Aborted\n\nCurrent thread 0x1:\n  File "x", line 1\n\nExtension modules: y'
METAL = "[METAL] Command buffer exited: Insufficient Memory (00000008:kIOGPUCommandBuffer"
METAL += "CallbackErrorOutOfMemory)\nlibc++abi: terminating"


@pytest.mark.parametrize(
    ("code", "log", "status", "reason"),
    [
        (-6, CPP, "crashed", "(SIGABRT); it said last: what(): CUDA error: an illegal memory"),
        (-40, "", "crashed", "(signal 40)"),
        (3, "bye", "crashed", "(exit 3); it said last: bye"),
        (0, "", "crashed", "(exit 0)"),
        (-6, f"lostFatal {FAULT}", "crashed", "(SIGABRT); it said last: lost"),
        (-6, f"Fatal {FAULT}", "crashed", "(SIGABRT); it said last: Fatal Python error: Aborted"),
        (-6, METAL, "out-of-memory", "(SIGABRT); it said last: [METAL] Command buffer exited"),
        (-6, "  what():  std::bad_alloc", "out-of-memory", "(SIGABRT); it said last: what():"),
        (-6, f"CUDA error: out of memory\nFatal {FAULT}", "out-of-memory", "CUDA error: out of"),
        # An earlier case was told of its memory, and went on.
        (-11, "CUDA out of memory\nFatal Python error: Segmentation", "crashed", "(SIGSEGV); "),
    ],
)
def test_a_death_has_what_ended_the_process_and_its_cause(tmp_path, code, log, status, reason):
    (tmp_path / "log").write_text(log)
    ended = batch._death([batch._ending(code)], tmp_path / "log", 0)
    assert ended[0] == status and reason in " ".join(ended[1].split())


def test_a_signal_without_a_name_ends_a_notebook_and_no_run(checkout, reproduce):
    checkout.fault("zeta", "signal40 2")
    status, said = reproduce("--only=z*")
    assert status == 0 and checkout.statuses("zeta") == ALL_OK | {"2": "crashed"}
    assert "(signal 40" in said


def test_a_kernel_that_is_killed_is_named_with_its_signal(checkout, reproduce):
    checkout.fault("zeta", "abort 2")
    _, said = reproduce("--only=z*")
    path = checkout.out() / "zeta.jsonl"
    (crashed,) = [each for each in results_journal.read(path).records if each.status == "crashed"]
    assert crashed.config == {"size": 2} and "restarted" in said
    assert crashed.reason.startswith("its kernel ended before its last cell (SIGABRT)")


def test_a_kernel_that_dies_in_a_case_costs_that_case(checkout, reproduce):
    """Each repeat has a fresh kernel; a crash is a result, and is not tried again."""
    checkout.fault("zeta", "kill 2")
    before = psutil.Process().num_fds(), threading.active_count()
    status, said = reproduce("--only=z*")
    assert status == 0 and "restarted after simulated-cpu size=2 crashed" in said
    assert checkout.pids("alpha") == [] and checkout.statuses("zeta") == ALL_OK | {"2": "crashed"}
    checkout.fault("zeta")
    status, said = reproduce(ONLY_ZETA, "--repeats=2")
    assert status == 0 and re.findall(r"^\[\d/1\] (.+?): about", said, re.MULTILINE) == ["zeta-1"]
    # Three kernels leave nothing open; the first one made an event loop, and loaded modules.
    after = psutil.Process().num_fds(), threading.active_count()
    assert after[0] - before[0] < 12 and after[1] == before[1]
    records = results_journal.read(checkout.out() / "zeta.jsonl").records
    assert [record.status for record in records if record.repeat == 1] == ["ok"] * 3
    pids = checkout.pids("zeta")
    assert len(set(pids)) == 4 and not any(map(alive, pids))
    last = checkout.out() / "repeats" / "zeta-1.ipynb"  # its tables include all repeats
    assert last.read_bytes() == (checkout.out() / "zeta.ipynb").read_bytes()


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_run_whose_output_is_no_longer_read_stops_and_can_be_resumed(checkout, monkeypatch):
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)

        def read() -> None:
            with os.fdopen(reader) as lines:
                next(line for line in lines if line.startswith("  zeta: cpu, size 1"))

        thread = threading.Thread(target=read)
        thread.start()
        assert command_line.main([*RUN_R, ONLY_ZETA]) == 128 + signal.SIGPIPE
        thread.join()
        monkeypatch.undo()
    statuses = checkout.statuses("zeta")
    assert statuses["1"] == "ok" and set(statuses.values()) <= {"ok", "interrupted"}


def test_watching_a_journal_parses_each_line_once(tmp_path, capsys, monkeypatch):
    """A journal that is parsed again for each case takes CPU time from the case being timed."""
    job = SimpleNamespace(notebook=SimpleNamespace(name="vae"), repeat=0)
    (tmp_path / "vae.jsonl").write_text(json.dumps(ENDED | {"case": "earlier"}) + "\n")
    watched = batch.Execution(job, tmp_path, 0, threading.Event())
    parsed = []
    parse = results_journal.parse
    monkeypatch.setattr(results_journal, "parse", lambda line: parsed.append(line) or parse(line))
    for line in map(json.dumps, (STARTED, ENDED, STARTED | {"case": "b"})):
        with (tmp_path / "vae.jsonl").open("a") as file:
            file.write(line[:20])
            file.flush()
            watched.watch()  # a torn line waits for its end
            file.write(line[20:] + "\n")
        watched.watch()
    assert len(parsed) == 3 and capsys.readouterr().out.count("\n") == 1


def test_a_time_limit_ends_the_kernel_and_the_case(checkout, reproduce, monkeypatch):
    """The clock advances when the case hangs, so the speed of the machine does not matter."""
    checkout.fault("zeta", "hang 2")
    hangs = checkout.notebooks / "zeta.hangs"
    later = SimpleNamespace(monotonic=lambda: time.monotonic() + 3700 * hangs.exists())
    monkeypatch.setattr(batch, "time", later)
    status, said = reproduce(ONLY_ZETA, "--limit-minutes=60")
    assert status == 1 and "simulated-cpu size=2: timeout" in said and "zeta did not finish" in said
    assert checkout.statuses("zeta") == {"1": "ok", "2": "timeout"}
    assert not any(map(alive, checkout.pids("zeta")))


def test_minutes_name_what_did_not_fit_and_the_same_run_resumes(checkout, capsys, monkeypatch):
    """zeta takes 5 s and fits into three minutes; alpha takes 65 s and does not."""
    run, out = ["reproduce", "--run=r"], checkout.out()
    monkeypatch.setattr(plan, "PAGE_S", 150.0)
    status, said = command_line.main([*run, "--minutes=3"]), capsys.readouterr().out
    line = "notebooks that did not fit into MINUTES: 1; `make reproduce RUN=r` runs them"
    assert status == 0 and line in said
    assert checkout.statuses("zeta") == ALL_OK and checkout.pids("alpha") == []
    left = json.loads((out / "machine.json").read_text())["left_out"]
    assert left.keys() == {"alpha"} and left["alpha"].startswith("takes about ")
    page = (out / "index.html").read_text()
    assert "takes about" in page and "more than was left" in page
    status, said = command_line.main(run), capsys.readouterr().out
    assert status == 0 and "1 of 2 notebooks to run" in said and "did not fit" not in said
    assert checkout.statuses("alpha") == ALL_OK
    assert "more than was left" not in (out / "index.html").read_text()


def test_interrupted(checkout, reproduce, capsys):
    """The kernel ignores interrupts; a second command is refused in the meantime."""
    inside = []

    def interrupt():
        wait_until((checkout.notebooks / "zeta.hangs").exists)
        inside.append(command_line.main(RUN_R))
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)

    checkout.fault("zeta", "hang 2")
    # A shell's background job ignores it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        threading.Thread(target=interrupt, daemon=True).start()
        status = command_line.main(RUN_R)
    finally:
        signal.signal(signal.SIGINT, before)
    said = capsys.readouterr()
    assert (status, inside) == (130, [2])
    assert said.err.count("\n") == 1 and "another `pomology reproduce` is running there" in said.err
    assert "interrupted; finished results are in outputs/r/" in said.out
    assert not any(map(alive, checkout.pids("zeta"))) and checkout.pids("alpha") == []
    assert checkout.statuses("zeta") == {"1": "ok", "2": "interrupted"}
    assert (checkout.out() / "index.html").exists() and checkout.unfinished() == ["zeta.ipynb"]
    checkout.fault("zeta")
    assert reproduce(ONLY_ZETA)[0] == 0 and checkout.statuses("zeta") == ALL_OK
    assert checkout.started("zeta") == ["1", "2", "2", "3"]


def test_killed(checkout, reproduce):
    """The kernel ends, and the same command resumes the run."""
    library = checkout.folder / "lib"
    shutil.copytree(root() / "lib" / "pomology", library / "pomology")  # with its bytecode
    env = os.environ | {"PYTHONPATH": str(library), "PYTHONDONTWRITEBYTECODE": "1"}
    checkout.fault("zeta", "hang 2")
    command = [sys.executable, "-m", "pomology", *RUN_R]
    options = {"stdout": subprocess.DEVNULL, "start_new_session": True}
    process = subprocess.Popen(command, env=env, cwd=checkout.folder.parent, **options)
    hangs = checkout.notebooks / "zeta.hangs"
    try:
        wait_until(lambda: hangs.exists() or process.poll() is not None)
    finally:
        process.kill()
        process.wait()
    pids = checkout.pids("zeta")
    assert len(pids) == 2
    wait_until(lambda: not any(map(alive, pids)), within_s=20)
    # No process wrote how the case ended.
    assert checkout.statuses("zeta") == {"1": "ok", "2": "crashed"}
    # It was killed while it wrote the notebook, so the file is truncated.
    place = checkout.out() / ".partial" / "zeta.ipynb"
    place.write_bytes(place.read_bytes()[:-700])
    checkout.fault("zeta")
    assert reproduce(ONLY_ZETA)[0] == 0 and checkout.statuses("zeta") == ALL_OK
    assert checkout.started("zeta") == ["1", "2", "2", "3"]
    assert (checkout.out() / "zeta.ipynb").exists() and checkout.unfinished() == []


def test_a_command_s_devices_and_data_replace_the_profile_s(checkout):
    (checkout.folder / ZETA).write_text("profile: smoke\ndevices: cpu\ndata: stand-in\n")

    def taken(name: str, **values: str) -> tuple[str, str]:
        (job,) = plan.jobs("smoke", {"devices": "auto", "data": "auto", "out": "x"} | values, name)
        return job.parameters["devices"], job.parameters["data"]

    assert taken("zeta") == ("cpu", "stand-in") and taken("zeta", data="real") == ("cpu", "real")
    assert taken("alpha") == ("auto", "auto")
    for only, names in (("", "zeta alpha zeta-1 alpha-1"), ("*eta", "zeta zeta-1")):
        jobs = plan.jobs("smoke", {"out": "x"}, only, repeats=2)
        assert " ".join(job.name for job in jobs) == names


def test_check_and_list(checkout, capsys):
    (checkout.folder / "params" / "smoke" / ".DS_Store").touch()  # written by the macOS Finder
    assert command_line.main(["check"]) == 0
    assert "2 notebooks" in capsys.readouterr().out
    assert command_line.main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["zeta", "alpha"]
    assert "The zeta experiment (smoke 5 s, quick 5 s, article 5 s)" in lines[0]
    # `check` reads all profiles and all files; a run names a foreign one.
    stray = checkout.folder / "params" / "smoke" / "zeta 2.yaml"
    stray.write_text("profile: smoke")
    assert command_line.main(["check"]) == 2
    said = capsys.readouterr().err
    assert "params/smoke/zeta 2.yaml: no notebook or profile of this name" in said
    options = {"profile": "smoke", "device": "auto", "data": "auto", "only": "", "repeats": 1}
    assert len(plan.prepare(SimpleNamespace(**options), "r")[1]) == 2
    said = capsys.readouterr().out
    assert said == "skipping 1 of the files in params/: no notebook has params/smoke/zeta 2.yaml\n"


def test_check_names_the_line_that_the_pages_need_and_a_misspelt_article(checkout, capsys):
    lines = checkout.folder / "docs" / "experiments.csv"
    lines.parent.mkdir()
    lines.write_text("notebook,model,data\nzeta,MODEL,DATA\n")
    assert command_line.main(["check"]) == 2
    said = "docs/experiments.csv has no line for alpha.ipynb: add alpha,MODEL,DATA"
    assert said in capsys.readouterr().err
    (path,) = checkout.folder.glob("notebooks/**/zeta.ipynb")
    document = json.loads(path.read_text())
    document["metadata"]["pomology"]["article"] = "033"
    path.write_text(json.dumps(document))
    assert command_line.main(["check"]) == 2
    said = "zeta.ipynb: metadata: article '033': expected one of 000, 001,"
    assert said in capsys.readouterr().err


@pytest.fixture
def refused(checkout, capsys, monkeypatch):
    """Return a function: check that a command fails with these words in one line, and no effect."""
    started = lambda *_: pytest.fail("a kernel was started")  # noqa: E731
    monkeypatch.setattr(batch.Execution, "_run_kernel", started)

    def files() -> dict:
        return {path: path.stat().st_mtime_ns for path in checkout.folder.rglob("*")}

    def check(arguments: list[str], words: str) -> None:
        before = files()
        assert command_line.main(arguments) == 2
        said = capsys.readouterr()
        assert said.out == "" and said.err.count("\n") == 1 and said.err.startswith("pomology: ")
        assert words in said.err and files() == before

    return check


NOT_HERE = "cuda" if sys.platform == "darwin" else "mps"
# Arguments of `reproduce` -> words that the error must contain.
WRONG_ARGUMENTS = {
    "--only=vea": "ONLY=vea: no notebook matches; expected some of alpha, zeta",
    "--repeats=0": "REPEATS=0: expected a number from 1 to 100",
    "--minutes=2": "MINUTES=2: expected 3 to 120",
    "--minutes=5 --profile=article": "MINUTES=5: expected 3 to 120, with PROFILE=quick",
    f"--profile=smoke --run=r --device={NOT_HERE}": "this machine has no",
}


def test_wrong_arguments(refused):
    for arguments, words in WRONG_ARGUMENTS.items():
        refused(["reproduce", *arguments.split()], words)


NOTEBOOK = "notebooks/an_article/zeta.ipynb"
UNDERSCORES = notebook_text("zeta", 5, f"{PARAMETERS}\n__init__: int = 5")
NO_VARIANTS = notebook_text("zeta", 5, PARAMETERS, variants=[])
NO_DEVICES = notebook_text("zeta", 5, PARAMETERS.replace("devices:", "device:"))


@pytest.mark.parametrize(
    ("place", "text", "words"),
    [
        (ZETA, None, f"{ZETA}: "),
        ("notebooks/zeta.ipynb", notebook_text("zeta", 5), "zeta.ipynb: two folders have this"),
        (NOTEBOOK, UNDERSCORES, "zeta.ipynb: parameter __init__: expected a name without"),
        (NOTEBOOK, NO_VARIANTS, "zeta.ipynb: metadata: variants has none; leave it out"),
        (NOTEBOOK, NO_DEVICES, "zeta.ipynb: parameters cell: add `devices`"),
        ("outputs/r", "", "/outputs/r/.partial: cannot be written: Not a directory"),
    ],
    ids=lambda text: str(text)[:40],
)
def test_invalid_files(checkout, refused, place, text, words):
    path = checkout.folder / place
    path.unlink(missing_ok=True)
    if text is not None:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    refused([*RUN_R, ONLY_ZETA], words)


@pytest.mark.parametrize("name", ["results.parquet", "zeta.jsonl"])
def test_a_folder_in_the_place_of_a_file_is_a_line_before_anything_runs(checkout, refused, name):
    (checkout.out() / name).mkdir(parents=True)
    refused([*RUN_R, ONLY_ZETA], f"RUN=r: {name}: cannot be read: not a regular file; remove it")


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_a_run_without_a_readable_machine_is_not_resumed(checkout, refused, make):
    checkout.out().mkdir(parents=True)
    make(checkout.out() / "machine.json")
    refused([*RUN_R, ONLY_ZETA], "RUN=r: has a machine.json that cannot be read; name another")


@pytest.mark.parametrize(
    ("profile", "used", "words"),
    [
        ("quick", {}, "RUN=r: has PROFILE=quick, not smoke"),
        ("smoke", {"lr": 0.3}, "zeta ran with lr=0.3, not 0.2"),
    ],
)
def test_a_run_with_other_parameters_is_not_resumed(checkout, refused, profile, used, words):
    own = {"profile": "smoke", "lr": 0.2, "devices": "auto", "data": "auto", "repeat": 0}
    document = json.loads(notebook_text("zeta", 5))
    document["metadata"]["papermill"] = {"parameters": own | {"out": "elsewhere"} | used}
    checkout.out().mkdir(parents=True)
    machine = {"profile": profile, "python": "3.11.9"}
    (checkout.out() / "machine.json").write_text(json.dumps(machine))
    (checkout.out() / "zeta.ipynb").write_text(json.dumps(document))
    refused(RUN_R, words)


def edited(checkout, before: str, after: str) -> None:
    path = checkout.notebooks / "zeta.ipynb"
    text = path.read_text()
    assert text.count(before) == 1
    path.write_text(text.replace(before, after))


def begun(checkout) -> None:
    """A run of this code with a case of zeta."""
    out = checkout.out()
    note_machine(out, "smoke", begins=True)
    (job,) = plan.jobs("smoke", {"out": "x"}, "zeta")
    note(out, **{fact: {"zeta": digits} for fact, digits in plan.code_of(job.notebook).items()})
    results_journal.Journal(out / "zeta.jsonl").end(ENDED | {"experiment": "zeta"})


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("time.sleep(0.001)", "time.sleep(0.002)"),
        ("sizes: list[int] = [1, 2, 3]", "sizes: list[int] = [1, 2]"),  # a parameter's default
    ],
)
def test_a_run_of_other_code_is_not_resumed(checkout, refused, before, after):
    begun(checkout)
    edited(checkout, before, after)
    words = "RUN=r: zeta has cases of other code than zeta.ipynb has now; name another RUN, or "
    refused(RUN_R, words + "remove outputs/r/zeta.jsonl to measure them again")
    # Neither a text between the cells, nor what a run measures again.
    edited(checkout, after, before)
    edited(checkout, "# The zeta experiment", "# Another title")
    (job,) = plan.jobs("smoke", {"out": "x"}, "zeta")
    assert plan.of_other_code(job, checkout.out()) == ""
    edited(checkout, before, after)
    (checkout.out() / "zeta.jsonl").unlink()
    assert plan.of_other_code(job, checkout.out()) == ""


def test_a_twin_s_code_is_its_notebook_s(checkout):
    (job,) = plan.jobs("smoke", {"out": "x"}, "zeta")
    edited(checkout, "# The zeta experiment", "# Another title")
    begun(checkout)
    (checkout.notebooks / "other_mlx.py").write_text("1")  # of another notebook
    assert plan.of_other_code(job, checkout.out()) == ""
    (checkout.notebooks / "simulated.py").write_text("1")
    assert plan.of_other_code(job, checkout.out()).startswith("zeta has cases of other code")


@pytest.fixture
def own_library(tmp_path, monkeypatch):
    """A copy of the package's code, which a test may change."""
    place = tmp_path / "library"
    ignored = shutil.ignore_patterns("__pycache__", "resources", "articles")
    shutil.copytree(library.LIBRARY, place, ignore=ignored)
    monkeypatch.setattr(library, "LIBRARY", place)
    return place


@pytest.mark.parametrize(
    ("file", "computes"),
    [
        ("measure/clock.py", True),
        ("devices/torch.py", True),
        ("models/verify.py", True),
        ("models/whisper.py", False),  # of another notebook
        ("report/page.py", False),
        ("views/ranking.py", False),
        ("runner/plan.py", False),
        ("extras/share/share.py", False),
    ],
)
def test_a_run_is_not_resumed_with_a_library_that_computes_otherwise(
    checkout, refused, own_library, file, computes
):
    begun(checkout)
    (job,) = plan.jobs("smoke", {"out": "x"}, "zeta")
    with (own_library / file).open("a") as opened:
        opened.write("changed = True\n")
    problem = plan.of_other_code(job, checkout.out())
    assert bool(problem) is computes
    if computes:
        assert problem.startswith("zeta has cases of other code than lib/pomology has now; name")
        refused(RUN_R, f"RUN=r: {problem}")
        (checkout.out() / "zeta.jsonl").unlink()
        assert plan.of_other_code(job, checkout.out()) == ""


def test_a_notebook_that_is_edited_during_its_run_adds_no_case(checkout, monkeypatch):
    """Its kernel starts anew after each case that ended its own."""
    monkeypatch.setattr(batch, "_kernel", lambda *_: pytest.fail("a kernel was started"))
    (job,) = plan.jobs("smoke", {"out": "x"}, "zeta")
    begun(checkout)
    edited(checkout, "time.sleep(0.001)", "time.sleep(0.002)")
    execution = batch.Execution(job, checkout.out(), 0, threading.Event())
    status, reason = execution._run_kernel()
    assert status == "error" and reason.startswith("zeta has cases of other code")
    # What was measured under the old code is removed: the new code is noted.
    (checkout.out() / "zeta.jsonl").unlink()
    assert execution._note_code() == ""
    machine = json.loads((checkout.out() / "machine.json").read_text())
    for fact, digits in plan.code_of(job.notebook).items():
        assert machine[fact] == {"zeta": digits}


@pytest.mark.parametrize("place", ["outputs/r/zeta.jsonl", NOTEBOOK, ZETA])
def test_a_pipe_in_place_of_a_file_is_a_line_and_nobody_waits_for_it(checkout, refused, place):
    if place.startswith("outputs"):
        begun(checkout)
    path = checkout.folder / place
    path.unlink()
    os.mkfifo(path)
    refused([*RUN_R, ONLY_ZETA], f"{path.name}: cannot be read: not a regular file")


def test_a_notebook_runs_again_while_each_kernel_measures_one_case(checkout, monkeypatch):
    """`one_case_per_kernel` in its metadata names the backends that keep compiled code."""
    (job,) = plan.jobs("quick", {}, "zeta")
    notebook = msgspec.structs.replace(job.notebook, one_case_per_kernel=["mps"])
    job = job._replace(notebook=notebook)
    out = checkout.out()
    journal = results_journal.Journal(out / "zeta.jsonl")
    cases = iter([("a", "mps"), ("b", "cpu"), ("c", "mps")])
    kernels = []

    def kernel(execution):
        kernels.append(execution.job.name)
        for case, backend in cases:
            journal.end(records.record(case=case, backend=backend, experiment="zeta"))
            if backend == "mps":
                break

    monkeypatch.setattr(batch.Execution, "_run_kernel", kernel)
    assert batch.Execution(job, out, 0, threading.Event()).run()
    # A third kernel has no case to run, and shows all results.
    assert [record.case for record in results_journal.read(journal.path).records] == ["a", "b", "c"]
    assert len(kernels) == 3


def test_a_full_disk_is_a_line_and_leaves_what_was_measured(checkout, capsys, monkeypatch):
    full = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    monkeypatch.setattr(batch.frame, "write", full)
    monkeypatch.setattr(batch.Execution, "run", lambda execution: execution.journal.end(ENDED))
    assert command_line.main(RUN_R) == 1
    error = capsys.readouterr().err
    assert error.startswith("pomology: [Errno 28] No space left") and error.count("\n") == 1
    assert (checkout.out() / "zeta.jsonl").stat().st_size > 0


@pytest.mark.parametrize("free", [10**8 - 1, 10**8])
def test_without_room_temporary_files_go_to_the_run(tmp_path, monkeypatch, capsys, free):
    own = tmp_path / ".partial" / "tmp"
    for name in ("TMPDIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    monkeypatch.setattr(batch.tempfile, "tempdir", None)
    monkeypatch.setattr(batch.shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    batch._choose_temporary_folder(own)
    said = capsys.readouterr().out
    assert own.is_dir() == said.startswith("note: no 100 MB for temporary files") == (free < 10**8)
    assert (os.environ["TMPDIR"] == str(own)) == own.is_dir()
    assert os.environ["JUPYTER_RUNTIME_DIR"] == os.environ["TMPDIR"]
