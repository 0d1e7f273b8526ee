"""Each extra can be removed: the rest passes its check, runs, and names the missing extra."""

import os
import shutil
import subprocess
import sys

import pytest

from pomology import __main__, extras
from pomology.paths import root

NEEDED_BY = {"prediction": "prediction", "fit": "lora", "doctor": "device_check"}
# Removes each extra alone, and runs `pomology check` without it.
CHECK_WITHOUT_EACH = """
import pathlib, shutil, sys
place = pathlib.Path("lib/pomology/extras")
for name in sys.argv[1:]:
    shutil.move(place / name, name)
    for module in [module for module in sys.modules if module.partition(".")[0] == "pomology"]:
        del sys.modules[module]
    from pomology.__main__ import main
    assert main(["check"]) == 0, name
    assert name != "prediction" or main(["fit", "gpt2"]) == 2
    shutil.move(name, place / name)
"""


@pytest.fixture
def python(tmp_path):
    """Return a function that runs Python in a partial copy of the checkout: status and output."""
    for name in ("lib", "notebooks", "params"):
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(root() / name, tmp_path / name, ignore=ignored)
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "lib"), "HF_HUB_OFFLINE": "1"}

    def run(*arguments: str) -> tuple[int, str]:
        command = [sys.executable, *arguments]
        options = {"cwd": tmp_path, "env": environment, "capture_output": True, "text": True}
        done = subprocess.run(command, check=False, **options)
        return done.returncode, done.stdout + done.stderr

    return run


def test_without_any_one_the_rest_is_valid(python):
    names = extras.names()
    status, said = python("-c", CHECK_WITHOUT_EACH, *names)
    assert status == 0, said
    assert said.count("parameter files are valid") == len(names)
    assert "pomology: lib/pomology/extras/prediction/ is missing; restore it" in said


def test_an_error_in_an_existing_extra_is_not_called_a_missing_one():
    with pytest.raises(ImportError) as raised:
        from pomology.extras.store import nothing  # noqa: F401
    with pytest.raises(ImportError, match="cannot import name 'nothing'"):
        __main__._missing(raised.value)


@pytest.mark.long
def test_without_all_of_them_a_notebook_runs_and_those_that_need_one_are_skipped(python, tmp_path):
    folder = tmp_path / "lib" / "pomology" / "extras"
    shutil.copytree(folder / "compare", folder / "compare 2")  # a copy of iCloud's
    (folder / "._x.py").write_bytes(b"\0\5\x16\7")
    for name in extras.names():
        shutil.rmtree(folder / name)
        (folder / name / "__pycache__").mkdir(parents=True)  # git leaves it
    only = f"--only=vae {' '.join(NEEDED_BY.values())}"
    run = ("reproduce", "--profile=smoke", only, "--run=r")
    status, said = python("-m", "pomology", *run)
    assert status == 0 and "  vae: cpu, batch size 16" in said, said
    assert (tmp_path / "outputs" / "r" / "index.html").exists()
    for name, notebook in NEEDED_BY.items():
        assert f"{notebook} is skipped: lib/pomology/extras/{name}/ is missing" in said
    for command in ("predict", "compare"):
        status, said = python("-m", "pomology", command)
        assert status == 2 and f"invalid choice: '{command}'" in said
    status, said = python("-m", "pomology", "report", "r", "--with=gone", "--store=x")
    assert status == 2 and "lib/pomology/extras/store/ is missing" in said
