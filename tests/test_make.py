"""What a user types behind `make` reaches the program as it was typed, and no shell."""

import json
import shutil
import subprocess
import sys

import pytest

from pomology.paths import root

HOSTILE = ["x'; touch pwned; '", "`touch pwned`", "$(touch pwned)", "$(shell touch pwned)"]
HOSTILE += [
    'a" ; touch pwned ; "',
    "a\ntouch pwned",
    "--help",
    "100%",
    "$$(touch pwned)",
    "~/x",
    "*",
]
VARIABLES = {
    "reproduce": ("PROFILE", "DEVICE", "ONLY", "RUN", "DATA", "REPEATS", "STORE"),
    "report": ("RUN", "WITH", "STORE"),
    "share": ("RUN",),
    "compare": ("RUNS", "STORE"),
    "matrix": ("VERSIONS",),
}


@pytest.fixture
def make(tmp_path):
    """Call make in a copy whose Python notes its arguments, which are returned."""
    shutil.copy(root() / "Makefile", tmp_path)
    noted = tmp_path / "noted.json"
    program = f"import json, sys; json.dump(sys.argv[1:], open({str(noted)!r}, 'w'))"
    python = f'#!/bin/sh\nexec "{sys.executable}" -c "{program}" "$@"\n'
    for name, text in (("setup/environment.sh", ""), (".venv/bin/python", python)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)

    def make(*arguments: str, status: int = 0) -> list[str]:
        done = subprocess.run(["make", *arguments], cwd=tmp_path, check=False, capture_output=True)
        assert (done.returncode, (tmp_path / "pwned").exists()) == (status, False), done
        return json.loads(noted.read_text()) if noted.exists() else []

    return make


@pytest.mark.parametrize("target", VARIABLES)
def test_no_variable_reaches_a_shell(make, target):
    for text in HOSTILE:
        arguments = make(target, *(f"{name}={text}" for name in VARIABLES[target]))
        passed = [
            argument for argument in arguments if argument == text or argument.endswith(f"={text}")
        ]
        assert len(passed) == len(VARIABLES[target]), (text, arguments)


def test_nor_does_one_that_only_make_or_the_environment_reads(make, tmp_path):
    assert make("share", "RUN=r", "NOTEBOOKS=1")[2:] == ["share", "--notebooks", "--", "r"]
    for name in ("setup/environment.sh", "pyproject.toml", "requirements.txt"):
        shutil.copy(root() / name, tmp_path / name)
    for text in HOSTILE:
        make("env", f"PYTHON={text}", status=2)
        make("env", f"EXTRAS={text}", "PYTHON=/none", status=2)
        make("env", f"TORCH={text}", status=2)
