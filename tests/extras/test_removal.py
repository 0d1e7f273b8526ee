"""Each extra can be removed: what is left checks itself, runs, and says in a line what it lacks."""

import os
import shutil
import subprocess
import sys

import pytest

from pomology import extras
from pomology.paths import root

NEEDED_BY = {
    "prediction": "prediction",
    "ranking": "summary",
    "roofline": "roofline",
    "frameworks": "blas",
}
COMMANDS = {"prediction": "predict", "compare": "compare"}


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of the checkout, as far as a run needs it."""
    folder = tmp_path_factory.mktemp("removal")
    for name in ("lib", "notebooks", "params"):
        shutil.copytree(
            root() / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
        )
    return folder


@pytest.mark.parametrize("name", extras.names())
def test_an_extra_can_be_removed(copy, tmp_path, name):
    removed = copy / "lib" / "pomology" / "extras" / name
    shutil.move(removed, tmp_path / name)
    environment = os.environ | {"PYTHONPATH": str(copy / "lib"), "HF_HUB_OFFLINE": "1"}

    def pomology(*arguments: str) -> subprocess.CompletedProcess:
        command = [sys.executable, "-m", "pomology", *arguments]
        return subprocess.run(
            command, cwd=copy, env=environment, capture_output=True, text=True, check=False
        )

    try:
        checked = pomology("check")
        assert checked.returncode == 0 and "are as they should be" in checked.stdout, checked.stderr
        notebook = NEEDED_BY.get(name, "")
        done = pomology("reproduce", "--profile=smoke", f"--only=vae {notebook}", f"--run={name}")
        assert done.returncode == 0, done.stdout + done.stderr
        assert (
            "  vae: cpu, batch size 16" in done.stdout
            and (copy / "outputs" / name / "index.html").exists()
        )
        if name == "store":
            refused = pomology("compare", "--store", str(tmp_path), "--runs", "a b")
            assert refused.returncode == 2 and "has no lib/pomology/extras/store" in refused.stderr
        if notebook:
            assert f"{notebook} is left out: it needs lib/pomology/extras/{name}" in done.stdout
        if name in COMMANDS:
            assert f"invalid choice: '{COMMANDS[name]}'" in pomology(COMMANDS[name]).stderr
    finally:
        shutil.move(tmp_path / name, removed)
