"""What a user types, and what a file is called, is no program: through make, a shell, and into folders."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest

from pomology import __main__
from pomology.errors import PomologyError
from pomology.machine import snapshot
from pomology.results import folders
from pomology.runner import plan

ROOT = Path(__file__).resolve().parents[1]
HOSTILE = ["x'; touch pwned; '", "`touch pwned`", "$(touch pwned)", "$(shell touch pwned)", 'a" ; touch pwned ; "', "a b"]
TARGETS = {"reproduce": ("PROFILE", "DEVICE", "ONLY", "RUN", "DATA", "REPEATS"), "report": ("RUN",), "share": ("RUN",)}
CASES = [(target, name) for target, names in TARGETS.items() for name in names] + [("compare", "RUNS")]


@pytest.fixture
def made(tmp_path):
    """Call make in a copy that has a Python which only says what it was given; returns its arguments."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in ("pyproject.toml", "constraints.txt", ".venv/bin/python", ".venv/.ready"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    said = tmp_path / "said.json"
    python = f"#!{sys.executable}\nimport json, sys\njson.dump(sys.argv[1:], open({str(said)!r}, 'w'))\n"
    (tmp_path / ".venv/bin/python").write_text(python)
    (tmp_path / ".venv/bin/python").chmod(0o755)

    def made(*arguments: str) -> list[str]:
        subprocess.run(["make", *arguments], cwd=tmp_path, check=True, capture_output=True)
        assert not (tmp_path / "pwned").exists()
        return json.loads(said.read_text())

    return made


@pytest.mark.parametrize(("target", "name"), CASES)
def test_no_variable_of_make_reaches_a_shell(made, target, name):
    for text in HOSTILE:
        given = made(target, f"{name}={text}")
        assert any(argument == text or argument.endswith(f"={text}") for argument in given), (text, given)
    assert made("reproduce")[-3:] == ["--run=", "--data=auto", "--repeats=1"]


def test_runs_with_spaces_are_compared_and_torn_quotes_are_a_line(capsys, tmp_path):
    assert __main__.main(["compare", "--runs", f"'{tmp_path}/a b.zip' c"]) == 2
    assert "a b.zip" in capsys.readouterr().err
    assert __main__.main(["compare", "--runs", "it's"]) == 2
    assert capsys.readouterr().err == "pomology: RUNS=it's: No closing quotation\n"


@pytest.mark.parametrize("run", ["lab", "LAB-x", "Lab", "compare.html", "x.ZIP", "a.part", "machine.json"])
def test_a_run_has_no_name_that_is_something_else_s(run):
    with pytest.raises(PomologyError, match=f"^RUN={run}: "):
        plan.run_folder(run, "smoke")


def test_the_same_command_carries_on_after_midnight(tmp_path, monkeypatch):
    class Clock(datetime):
        @classmethod
        def now(cls):
            return cls(2026, 11, 23, 0, 5)

    monkeypatch.setattr(plan, "datetime", Clock)
    monkeypatch.setattr(plan, "root", lambda: tmp_path)
    outputs = tmp_path / "outputs"
    assert plan.run_folder("", "quick") == outputs / "20261123-quick"
    (outputs / "20261122-quick/.partial").mkdir(parents=True)
    assert plan.run_folder("", "quick") == outputs / "20261123-quick", "yesterday's was finished"
    (outputs / "20261122-quick/.partial/vae.ipynb").touch()
    assert plan.run_folder("", "quick") == outputs / "20261122-quick"
    assert plan.run_folder("", "article") == outputs / "20261123-article"
    (outputs / "20261123-quick").mkdir()
    assert plan.run_folder("", "quick") == outputs / "20261123-quick"


def test_a_run_belongs_to_one_machine(tmp_path):
    folders.check_machine(tmp_path)
    folders.note_machine(tmp_path, "smoke")
    folders.check_machine(tmp_path)
    machine = json.loads((tmp_path / "machine.json").read_text())
    for key in folders.MACHINE:
        (tmp_path / "machine.json").write_text(json.dumps(machine | {key: "Apple M2 Ultra"}))
        with pytest.raises(PomologyError, match=f"was measured on another machine .{key} Apple M2 Ultra, here "):
            folders.check_machine(tmp_path)
    assert snapshot.snapshot()["chip"] == machine["chip"]
    (tmp_path / "machine.json").unlink()
    (tmp_path / "vae.jsonl").touch()
    with pytest.raises(PomologyError, match=r"has numbers, but no machine\.json that says whose"):
        folders.check_machine(tmp_path)


def test_a_run_goes_on_where_nobody_reads_what_it_says(tmp_path):
    program = "import time\nfrom pomology import __main__\n__main__._say('one')\ntime.sleep(0.5)\n"
    program += "for _ in range(3):\n    __main__._say('two')\nopen('done', 'w')"
    environment = os.environ | {"PYTHONPATH": str(ROOT / "lib")}
    command = f'{sys.executable} -c "$PROGRAM" 2>errors | head -n 1'
    environment |= {"PROGRAM": program}
    texts = {"cwd": tmp_path, "env": environment, "text": True, "capture_output": True}
    done = subprocess.run(["bash", "-c", command], check=False, **texts)
    assert done.stdout == "one\n" and (tmp_path / "done").exists() and (tmp_path / "errors").read_text() == ""
