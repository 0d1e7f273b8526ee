"""The Makefile runs with macOS's make, and values of its variables reach no shell."""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest

from pomology.paths import root

TEXT = (root() / "Makefile").read_text(encoding="utf-8")
# Features that GNU make 3.81 or the tools of macOS lack or implement differently.
NOT_ON_A_MAC = {
    r"\.ONESHELL|\.SHELLFLAGS|\bundefine\b": "make 3.82",
    r"&\s*:|^\w+\s*!=|:{2,3}=|\$\((file|let|intcmp) ": "make 4",
    r"\bsed\s+(-\w+\s+)*-i|\b(sed|grep)\s.*\\(t|s|w|\+|\|)|\bgrep\s+-\w*P|\bsed\s+-r": "GNU's",
    r"\b(realpath|timeout|nproc|tac|shuf|sha256sum|md5sum|free|gsed)\b": "not on macOS",
    r"\breadlink\s+-f|\bxargs\s+-\w*r|\bdate\s+-(d|-date)|\b(cp|rm|mkdir|touch)\s+--": "GNU's",
    r"\[\[|\bsource\s|<<<": "bash; make runs sh",
}
HOSTILE = ["x'; touch pwned; '", "`touch pwned`", "$(touch pwned)", "$(shell touch pwned)"]
HOSTILE += ['a" ; touch pwned ; "', "a\ntouch pwned", "--help", "$$(touch pwned)", "~/x", "*"]
VARIABLES = {
    "reproduce": ("PROFILE", "DEVICE", "ONLY", "RUN", "DATA", "REPEATS", "STORE"),
    "report": ("RUN", "WITH", "STORE"),
    "compare": ("RUNS", "STORE"),
    "matrix": ("VERSIONS",),
}


def faults(text: str) -> list[str]:
    """Return the features that fail on a Mac, ignoring comments outside of recipes."""
    lines = [line if line.startswith("\t") else line.split("#")[0] for line in text.splitlines()]
    rules = NOT_ON_A_MAC.items()
    return [why for line in lines for pattern, why in rules if re.search(pattern, line)]


def test_it_keeps_to_make_3_81_and_to_the_tools_of_macos():
    assert faults(TEXT) == []
    assert faults("all:\n\tsed -E 's/a\\+/b/' x\n\tmake -j $$(nproc)") == ["GNU's", "not on macOS"]


@pytest.fixture
def make(tmp_path):
    """Return a function that calls make with a mock Python and returns its arguments."""
    shutil.copy(root() / "Makefile", tmp_path)
    noted = tmp_path / "noted.json"
    program = f"import json, sys; json.dump(sys.argv[1:], open({str(noted)!r}, 'w'))"
    python = f'#!/bin/sh\nexec "{sys.executable}" -S -c "{program}" "$@"\n'
    for name, text in (("setup/environment.sh", ""), (".venv/bin/python", python)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)

    def make(*arguments: str, status: int = 0) -> list[str]:
        done = subprocess.run(["make", *arguments], cwd=tmp_path, check=False, capture_output=True)
        assert (done.returncode, (tmp_path / "pwned").exists()) == (status, False), done
        return json.loads(noted.read_text()) if noted.exists() else []

    return make


@pytest.mark.parametrize("name", ["random", "secrets", "csv", "statistics", "token"])
def test_a_users_file_in_the_checkout_shadows_no_module(make, tmp_path, name):
    """`python -m` would put the folder in front of the standard library."""
    assert make("report", "RUN=r")[:3] == ["-P", "-m", "pomology"]
    (tmp_path / f"{name}.py").write_text("raise SystemExit('shadowed')")
    environment = os.environ | {"PYTHONPATH": str(root() / "lib")}
    command = [sys.executable, "-P", "-m", "pomology", "devices", "M1"]
    options = {"cwd": tmp_path, "env": environment, "capture_output": True, "text": True}
    done = subprocess.run(command, check=False, **options)
    assert done.returncode == 0 and "M1" in done.stdout, done.stderr


@pytest.mark.parametrize("target", VARIABLES)
def test_no_variable_reaches_a_shell(make, target):
    for text in HOSTILE:
        names = VARIABLES[target]
        arguments = make(target, *(f"{name}={text}" for name in names))
        passed = [one for one in arguments if one == text or one.endswith(f"={text}")]
        assert len(passed) == len(names), (text, arguments)


def test_no_variable_of_make_or_the_environment_reaches_a_shell(make, tmp_path):
    assert make("share", "RUN=r", "NOTEBOOKS=1")[3:] == ["share", "--notebooks", "--", "r"]
    for name in ("setup/environment.sh", "pyproject.toml", "requirements.txt"):
        shutil.copy(root() / name, tmp_path / name)
    for text in HOSTILE:
        make("env", f"PYTHON={text}", status=2)
        make("env", f"EXTRAS={text}", "PYTHON=/none", status=2)
        make("env", f"TORCH={text}", status=2)
