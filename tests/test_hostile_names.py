"""What a user types, and what a file is called, is no program: through make, a shell, and into folders."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest
from test_report import MACHINE, record, run

from pomology import __main__
from pomology.errors import PomologyError
from pomology.results import folders
from pomology.runner import plan

ROOT = Path(__file__).resolve().parents[1]
HOSTILE = ["x'; touch pwned; '", "`touch pwned`", "$(touch pwned)", "$(shell touch pwned)", 'a" ; touch pwned ; "']
HOSTILE += ["a b", "a\ntouch pwned", "--help", "-x", "100%", "$$(touch pwned)", "~/x", "*"]
VARIABLES = {"reproduce": ("PROFILE", "DEVICE", "ONLY", "RUN", "DATA", "REPEATS", "STORE"), "report": ("RUN", "STORE")}
VARIABLES |= {"share": ("RUN",), "compare": ("RUNS", "STORE"), "matrix": ("VERSIONS",)}


@pytest.fixture
def made(tmp_path):
    """Call make in a copy that has a Python which only says what it was given; returns its arguments."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in ("setup/environment.sh", ".venv/bin/python"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    said = tmp_path / "said.json"
    program = f"import json, sys; json.dump(sys.argv[1:], open({str(said)!r}, 'w'))"
    (tmp_path / ".venv/bin/python").write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "{program}" "$@"\n')
    (tmp_path / ".venv/bin/python").chmod(0o755)

    def made(*arguments: str, status: int = 0) -> list[str]:
        done = subprocess.run(["make", *arguments], cwd=tmp_path, check=False, capture_output=True)
        assert (done.returncode, (tmp_path / "pwned").exists()) == (status, False), done
        return json.loads(said.read_text()) if said.exists() else []

    return made


@pytest.mark.parametrize("target", VARIABLES)
def test_no_variable_of_make_reaches_a_shell(made, target):
    for text in HOSTILE:
        given = made(target, *(f"{name}={text}" for name in VARIABLES[target]))
        taken = [argument for argument in given if argument == text or argument.endswith(f"={text}")]
        assert len(taken) == len(VARIABLES[target]), (text, given)


def test_make_hands_its_variables_to_the_command(made):
    plain = {"profile": "quick", "device": "auto", "only": "", "run": "", "data": "auto", "repeats": 1}
    plain |= {"minutes": "", "store": ""}
    given = vars(__main__._arguments(made("reproduce")[2:]))
    assert given == {"command": "reproduce", **plain, "limit_minutes": None}
    wanted = {"profile": "smoke", "device": "cpu", "only": "vae dc*", "run": "my-run", "data": "stand-in", "repeats": 3}
    wanted |= {"minutes": "7", "store": "s3://b/c"}
    given = made("reproduce", *(f"{name.upper()}={value}" for name, value in wanted.items()))
    assert vars(__main__._arguments(given[2:])).items() >= wanted.items()  # and no files


def test_make_hands_other_people_s_runs_on(made):
    given = vars(__main__._arguments(made("report", "RUN=a", "WITH=b.zip 'c d.zip' $(shell touch x)")[2:]))
    assert given == {"command": "report", "run": "a", "store": "", "beside": ["b.zip 'c d.zip' $(shell touch x)"]}
    assert vars(__main__._arguments(made("report", "RUN=a")[2:]))["beside"] == [""]


def test_nor_does_one_that_no_program_is_given(made, tmp_path):
    assert made("share", "RUN=r", "NOTEBOOKS=1")[2:] == ["share", "--notebooks", "--", "r"]
    for text in HOSTILE:
        others = (f"{name}={text}" for name in ("NOTEBOOKS", "PYTHON", "ENV", "PY"))
        assert made("share", "RUN=r", *others)[2:] == ["share", "--", "r"]
    shutil.copy(ROOT / "setup" / "environment.sh", tmp_path / "setup")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copy(ROOT / "requirements.txt", tmp_path)
    for text in HOSTILE:
        made("env", f"PYTHON={text}", status=2)
        made("env", f"EXTRAS={text}", "PYTHON=/none", status=2)
        made("env", f"TORCH={text}", status=2)


def test_runs_with_spaces_are_compared_and_torn_quotes_are_a_line(capsys, tmp_path):
    assert __main__.main(["compare", "--runs", f"'{tmp_path}/a b.zip' c"]) == 2
    assert "a b.zip" in capsys.readouterr().err
    assert __main__.main(["compare", "--runs", "it's"]) == 2
    assert capsys.readouterr().err == "pomology: RUNS=it's: No closing quotation\n"


@pytest.mark.parametrize("run", ["lab", "LAB-x", "Lab", "compare.html", "x.ZIP", "a.part", "machine.json"])
def test_a_run_has_no_name_that_is_something_else_s(run):
    with pytest.raises(PomologyError, match=f"^RUN={run}: "):
        plan.run_folder(run, "smoke")
    assert plan.run_folder("laboratory", "quick").name == "laboratory"


def test_the_same_command_carries_on_after_midnight(tmp_path, monkeypatch):
    class Clock(datetime):
        @classmethod
        def now(cls):
            return cls(2026, 11, 23, 0, 5)

    monkeypatch.setattr(plan, "datetime", Clock)
    monkeypatch.setattr(plan, "root", lambda: tmp_path)
    outputs = tmp_path / "outputs"
    assert plan.run_folder("", "quick") == outputs / "20261123-quick"
    for day, expected in (("19", "23"), ("20", "20"), ("22", "22")):  # up to three days before
        (going := outputs / f"202611{day}-quick" / plan.GOING).parent.mkdir(parents=True)
        (going.parent / "vae.ipynb").touch()  # of a notebook that failed, in a run that came to its end
        before = plan.run_folder("", "quick").name
        going.touch()
        assert plan.run_folder("", "quick") == outputs / f"202611{expected}-quick" != outputs / before or day == "19"
    assert plan.run_folder("", "article") == outputs / "20261123-article"
    (outputs / "20261123-quick").mkdir()
    assert plan.run_folder("", "quick") == outputs / "20261123-quick"


def test_a_run_belongs_to_one_machine(tmp_path):
    folders.check_machine(tmp_path)
    folders.note_machine(tmp_path, "smoke")
    folders.check_machine(tmp_path)
    machine = json.loads((tmp_path / "machine.json").read_text())
    other = {"chip": "Apple M2 Ultra", "os": "macOS", "architecture": "arm64e", "memory_bytes": 2**40}
    other |= {"processor": machine["processor"] | {"L2 cache": "1 MiB", "hw.model": "Mac14,14"}}
    for key, value in other.items():
        (tmp_path / "machine.json").write_text(json.dumps(machine | {key: value}))
        name = "L2 cache" if key == "processor" else key
        with pytest.raises(PomologyError, match=f"was measured on another machine .{name} .*, here "):
            folders.check_machine(tmp_path)
    # After a start of the same machine its memory is not to the byte what it was.
    memory = int(machine["memory_bytes"] * 1.005)
    (tmp_path / "machine.json").write_text(json.dumps(machine | {"memory_bytes": memory, "os_version": "9"}))
    folders.check_machine(tmp_path)
    (tmp_path / "machine.json").write_text('{"profile": "smoke"}')
    with pytest.raises(PomologyError, match=r"machine\.json: describes no machine; choose another folder$"):
        folders.check_machine(tmp_path)


def test_numbers_of_unknown_origin_and_copies_are_not_carried_on(tmp_path):
    """As a fresh clone has `reference-cpu`, also on the machine that made it, and as a shared zip is unpacked."""
    (tmp_path / "vae.jsonl").touch()
    with pytest.raises(PomologyError, match=r"has numbers, but no machine\.json that says whose"):
        folders.check_machine(tmp_path)
    folders.note_machine(tmp_path, "smoke")
    with pytest.raises(PomologyError, match=r"is a copy of a run, not one of this checkout; choose another RUN$"):
        folders.check_machine(tmp_path)
    for name in (".partial", folders.LOCK):  # as earlier releases leave it, and as `make clean` does
        (tmp_path / name).mkdir()
        folders.check_machine(tmp_path)
        (tmp_path / name).rmdir()


def test_the_reference_run_takes_no_numbers_though_its_journals_are_packed():
    with pytest.raises(PomologyError, match=r"^RUN=reference-cpu: "):
        folders.check_machine(ROOT / "outputs" / "reference-cpu")


def test_commands_work_for_a_user_without_an_account_or_a_home(tmp_path):
    """As `docker run --user 54321` has it."""
    out = run(tmp_path / "r", record(profile="smoke"), machine=MACHINE)
    program = "import os, pwd, sys\n\ndef nobody(*_):\n    raise KeyError('uid not found')\n\npwd.getpwuid = nobody\n"
    program += "from pathlib import Path\nfrom pomology import __main__\n__main__.root = Path.cwd\n"
    for command in (["report", str(out)], ["share", "--notebooks", str(out)], ["compare", str(out), f"{out}.zip"]):
        program += f"assert __main__.main({command}) == 0\n"
    named = ("HOME", "USER", "LOGNAME", "LNAME", "USERNAME")
    environment = {name: value for name, value in os.environ.items() if name not in named}
    environment |= {"PYTHONPATH": str(ROOT / "lib"), "MPLCONFIGDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_name_that_no_file_can_have_is_a_wrong_argument(capsys):
    for command in ("report", "share"):
        assert __main__.main([command, "x" * 300]) == 2
        said = capsys.readouterr().err
        assert said.startswith("pomology: File name too long") and said.count("\n") == 1


@pytest.mark.parametrize("reader", ["| head -n 1", "| true", ">/dev/full", ">&-"])
def test_a_run_goes_on_where_nobody_reads_what_it_says(tmp_path, reader):
    program = "import time\nfrom pomology.command_line import say\nsay('one')\ntime.sleep(0.3)\n"
    program += "for _ in range(3):\n    say('two')\nopen('done', 'w')"
    environment = os.environ | {"PYTHONPATH": str(ROOT / "lib"), "PROGRAM": program}
    command = ["bash", "-c", f'"{sys.executable}" -c "$PROGRAM" 2>errors {reader}']
    subprocess.run(command, cwd=tmp_path, env=environment, check=False, stdout=subprocess.DEVNULL)
    assert (tmp_path / "done").exists() and (tmp_path / "errors").read_text() == ""


def test_other_commands_end_quietly_too(tmp_path):
    environment = os.environ | {"PYTHONPATH": str(ROOT / "lib")}
    command = f'"{sys.executable}" -m pomology list 2>"{tmp_path}/errors" | true; exit "${{PIPESTATUS[0]}}"'
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, env=environment, check=False)
    assert (done.returncode, (tmp_path / "errors").read_text()) == (0, "")


def test_an_interrupt_while_the_command_is_loaded_says_nothing(tmp_path):
    program = "import sys\n\nclass Interrupted:\n    def find_spec(name, *_):\n        if name == 'pomology.format':\n"
    program += "            raise KeyboardInterrupt\n\nsys.meta_path.insert(0, Interrupted)\n"
    (tmp_path / "sitecustomize.py").write_text(program)
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT / 'lib'}"}
    command = [sys.executable, "-m", "pomology", "list"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")
