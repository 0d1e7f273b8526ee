"""The fleet: refused options and machines, and a run with one worker."""

import argparse
import json
import os
import shutil
import subprocess
import sys
from unittest.mock import Mock

import pytest
from checkouts import PARAMETERS
from notebook_code import notebook_text, write_notebook

from pomology.errors import PomologyError
from pomology.paths import root

WHY = "`make env EXTRAS=fleet` installs it (CI does)"
distributed = pytest.importorskip("distributed", reason=WHY)
fleet = pytest.importorskip("pomology.extras.fleet.fleet")

CODE = """
from pomology.experiment.experiment import Experiment

given = {"profile": profile, "devices": "cpu", "budget_s": budget_s, "repeat": repeat, "out": out}
experiment = Experiment("first", article="003", **given)
for case in experiment.cases(part=[0, 1]):
    with case:
        for _ in case.steps([0] * 4):
            pass
"""


def options(**changes: object) -> argparse.Namespace:
    return argparse.Namespace(**{"scheduler": "", "hosts": "", "insecure": False} | changes)


def test_other_machines_need_tls_or_insecure():
    clear = [{"scheduler": "tcp://10.0.0.1:1"}, {"scheduler": "tcp://mini1:1"}, {"hosts": "a b"}]
    for where in clear:
        with pytest.raises(PomologyError, match="INSECURE=1"):
            fleet.address_of(options(**where))
        assert fleet.address_of(options(**where, insecure=True))
    assert fleet.address_of(options(scheduler="tcp://127.0.0.1:1"))
    assert fleet.address_of(options(scheduler="tls://mini1:1"))
    with fleet.dask.config.set({"distributed.comm.require-encryption": True}):
        assert fleet.address_of(options(hosts="a b"))


@pytest.mark.parametrize("scheduler", ["tcp://127.0.0.1:1", "http://a:1"])
def test_an_unreachable_scheduler_is_a_line(monkeypatch, scheduler):
    monkeypatch.setattr(fleet, "WAIT_S", 0.2)
    with pytest.raises(PomologyError, match="no scheduler answers"):
        fleet.connect(options(scheduler=scheduler))


def test_hosts_are_read_as_ssh_reads_them():
    read = {
        "my_Mini": ("my_Mini", {}),  # asyncssh reads its port and user in ~/.ssh/config
        "jo@[::1]:22": ("::1", {"username": "jo", "port": 22}),
    }
    assert {text: fleet.read_host(text) for text in read} == read
    for text in ("::1", "a:b", "a:0", "a:65536", "jo@", "@a", "a/b@c@d"):
        with pytest.raises(PomologyError, match=f"HOSTS: {text!r}: expected user@host:port"):
            fleet.connect(options(hosts=f"mini {text}"))


def test_machines_with_another_version_or_the_same_name_are_refused(monkeypatch):
    here = {"name": "m1-a", "machine": "M1", "version": "commit 1"}
    other = here | {"name": "m1-b"}
    monkeypatch.setattr(fleet, "describe", lambda: here)

    def names(*answers: object) -> dict[str, str]:
        client = Mock()
        client.run.return_value = {f"tcp://10.0.0.{n}:1": each for n, each in enumerate(answers)}
        return fleet.find_machines(client, "HOSTS=x", 1, str)

    assert names(here, other) == {"m1-a": "10.0.0.0", "m1-b": "10.0.0.1"}
    with pytest.raises(PomologyError, match="m1-b: has commit 2; expected commit 1"):
        names(here, other | {"version": "commit 2"})
    with pytest.raises(PomologyError, match="both are m1-a"):
        names(here, here)


FLEET = (sys.executable, "-m", "pomology", "fleet", "--profile=smoke", "--run=r")


@pytest.mark.long
def test_a_run_on_this_machine(tmp_path):
    checkout = tmp_path / "checkout"
    shutil.copytree(root() / "lib", checkout / "lib", ignore=shutil.ignore_patterns("__pycache__"))
    text = notebook_text("# A notebook", PARAMETERS, CODE, article="003", seconds={"smoke": 1})
    write_notebook(checkout, "first", text)

    def fleet_says(*words: str) -> tuple[int, str]:
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        options["env"] = os.environ | {"PYTHONPATH": f"{checkout}/lib", "OMP_NUM_THREADS": "1"}
        done = subprocess.run([*FLEET, *words], check=False, **options)
        return done.returncode, done.stdout

    (tmp_path / "store").mkdir()
    status, text = fleet_says("--repeats=2", f"--store={tmp_path}/store")
    assert status == 0, text
    assert len(list((tmp_path / "store").glob("r@*.zip"))) == 1
    (folder,) = (checkout / "outputs" / "r-fleet").glob("*/")
    assert f"{folder.name}: done in" in text
    there = checkout / "outputs" / "r"
    for path in ("machine.json", "first.jsonl", "first.ipynb", "repeats/first-1.ipynb"):
        assert (folder / path).read_bytes() == (there / path).read_bytes()
    assert not (folder / ".lock").exists()
    noted = json.loads((there / "machine.json").read_text())
    (there / "machine.json").write_text(json.dumps(noted | {"chip": "another"}))
    status, text = fleet_says()
    assert status == 1 and f"{folder.name}: failed: pomology: RUN=r" in text
