"""The fleet: refused options and machines, and a run with one worker."""

import argparse
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from unittest.mock import MagicMock, Mock

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


@pytest.fixture
def certificates(tmp_path) -> Iterator[None]:
    """Set dask's certificates to a file."""
    file = tmp_path / "fleet.pem"
    file.touch()
    names = ("ca-file", *(f"{role}.cert" for role in ("client", "scheduler", "worker")))
    settings = {f"distributed.comm.tls.{name}": str(file) for name in names}
    with fleet.dask.config.set(settings):
        yield


def test_other_machines_need_tls_or_insecure(certificates):
    clear = [{"scheduler": "tcp://10.0.0.1:1"}, {"scheduler": "tcp://mini1:1"}, {"hosts": "a b"}]
    clear += [{"hosts": "localhost"}, {"scheduler": "tcp://localhost.example:1"}]
    for where in clear:
        with pytest.raises(PomologyError, match="INSECURE=1"):
            fleet.address_of(options(**where))
        assert fleet.address_of(options(**where, insecure=True))
    assert fleet.address_of(options(scheduler="tls://mini1:1"))
    with fleet.dask.config.set({"distributed.comm.require-encryption": True}):
        assert fleet.address_of(options(hosts="a b"))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "localhost", "[::1]"])
def test_this_machine_needs_no_tls(host):
    assert fleet.address_of(options(scheduler=f"tcp://{host}:1"))


def test_tls_names_the_missing_certificate_and_its_place(certificates):
    there = "set it in ~/.config/dask/fleet.yaml, see TLS in docs/multiple-machines.md"
    for name, where in (
        ("ca-file", {"scheduler": "tls://mini1:1"}),
        ("client.cert", {"scheduler": "tls://mini1:1"}),
        ("worker.cert", {"hosts": "a b"}),
    ):
        setting = f"distributed.comm.tls.{name}"
        for value, found in ((None, "is not set"), ("/no", "is /no, which is not a file")):
            changes = {setting: value, "distributed.comm.require-encryption": True}
            with fleet.dask.config.set(changes), pytest.raises(PomologyError) as caught:
                fleet.address_of(options(**where))
            assert str(caught.value).endswith(f"but {setting} {found}; {there}")
    with fleet.dask.config.set({"distributed.comm.tls.scheduler.cert": None}):
        assert fleet.address_of(options(scheduler="tls://mini1:1"))  # only HOSTS starts one
    with fleet.dask.config.set({"distributed.comm.tls.ca-file": "-----BEGIN\n"}):
        assert fleet.address_of(options(scheduler="tls://mini1:1"))


def test_hosts_and_a_scheduler_are_refused_together():
    both = options(scheduler="tcp://127.0.0.1:1", hosts="a b")
    with pytest.raises(PomologyError, match="HOSTS=a b: expected one of them"):
        fleet.run(both, print)


@pytest.mark.parametrize("scheduler", ["tcp://127.0.0.1:1", "http://a:1"])
def test_an_unreachable_scheduler_is_a_line(monkeypatch, scheduler):
    monkeypatch.setattr(fleet, "WAIT_S", 0.2)
    with pytest.raises(PomologyError, match="no scheduler answers"):
        fleet.connect(options(scheduler=scheduler))


def test_a_host_that_ssh_cannot_reach_is_named(monkeypatch):
    @contextlib.asynccontextmanager
    async def connect(host: str, **_: object) -> AsyncIterator[None]:
        if host == "b":
            raise OSError("Connect call failed")
        if host == "c":
            raise TimeoutError
        yield

    monkeypatch.setattr(fleet.asyncssh, "connect", connect)
    start = Mock(side_effect=Exception("Worker failed to start"))
    monkeypatch.setattr(fleet, "start_cluster", start)
    why = r"ssh cannot reach b \(Connect call failed\), c \(TimeoutError\)"
    with pytest.raises(PomologyError, match=why):
        fleet.connect(options(hosts="a jo@b:22 c"))
    start.assert_not_called()
    why = r"worker does not start \(Worker failed to start\); each host needs this checkout"
    with pytest.raises(PomologyError, match=why):
        fleet.connect(options(hosts="a"))


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
    here = {"name": "m1-a", "host": "mini1", "machine": "M1", "version": "commit 1"}
    other = here | {"name": "m1-b", "host": "mini2"}
    monkeypatch.setattr(fleet, "describe", lambda: here)

    def names(*answers: object) -> dict[str, str]:
        client = Mock()
        client.run.return_value = {f"tcp://10.0.0.{n}:1": each for n, each in enumerate(answers)}
        machines = fleet.find_machines(client, "HOSTS=x", 1)
        return {name: machine.address for name, machine in machines.items()}

    assert names(here, other) == {"m1-a": "10.0.0.0", "m1-b": "10.0.0.1"}
    with pytest.raises(PomologyError, match="mini2: has commit 2; expected commit 1"):
        names(here, other | {"version": "commit 2"})
    older = {"name": "m1-b", "machine": "M1", "version": "commit 0"}
    with pytest.raises(PomologyError, match="m1-b: has commit 0; expected commit 1"):
        names(here, older)
    with pytest.raises(PomologyError, match="both are m1-a"):
        names(here, here)


class Fake:
    """Two machines with equal chips, and a dask client that runs nothing.

    said: the lines on the terminal.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch):
        self.folder = folder / "outputs" / "r-fleet"
        self.said: list[str] = []
        self.client = MagicMock()
        self.client.__enter__.return_value = self.client
        self.set = monkeypatch.setattr
        self.set(fleet, "root", lambda: folder)
        self.set(fleet, "connect", lambda _: self.client)
        self.set(fleet.distributed, "as_completed", list)
        self.set(fleet.logging, "disable", str)  # it would last for all tests

    def run(self, hosts: tuple[str, str], result: Callable) -> int:
        """Run with these host names; return the exit status. result: what each task returns."""

        def submit(task: Callable, name: str, *_: object, **__: object) -> Mock:
            (_, on_output), _ = self.client.subscribe_topic.call_args
            on_output((0.0, [name, "done"]))
            return Mock(result=result)

        self.client.submit.side_effect = submit
        names = ("m1-0a", "m1-0b")
        machines = {
            name: fleet.Machine(f"10.0.0.{number}", host, "M1")
            for number, (name, host) in enumerate(zip(names, hosts, strict=True))
        }
        self.set(fleet, "find_machines", lambda *_: machines)
        values = {"profile": "smoke", "device": "cpu", "only": "vae", "data": "auto", "repeats": 1}
        status, _, _ = fleet.run(options(run="r", **values), self.said.append)
        return status


@pytest.fixture
def fake(tmp_path, monkeypatch) -> Fake:
    return Fake(tmp_path, monkeypatch)


def test_lines_of_equal_machines_differ_by_a_host_name_that_no_file_has(fake):
    assert fake.run(("mini1", "mini2"), lambda: ("", {"machine.json": b"{}"})) == 0
    assert fake.said == [
        "mini1: M1; its results go to outputs/r-fleet/m1-0a/",
        "mini2: M1; its results go to outputs/r-fleet/m1-0b/",
        "mini1: done",
        "mini2: done",
        "make compare RUNS=outputs/r-fleet compares them",
    ]
    assert sorted(path.name for path in fake.folder.iterdir()) == ["m1-0a", "m1-0b"]
    assert not any("mini" in str(each) for each in fake.client.submit.call_args_list)


def test_lines_of_machines_with_one_host_name_differ_by_address(fake):
    fake.run(("mini", "mini"), lambda: ("broken", {}))
    assert fake.said[2:] == [
        "10.0.0.0: done",
        "10.0.0.1: done",
        "10.0.0.0: failed: broken",
        "10.0.0.1: failed: broken",
    ]


def test_two_checkouts_on_one_host_keep_their_names():
    machine = fleet.Machine("10.0.0.1", "mini", "M1")
    machines = {"m1-0a": machine, "m1-0b": machine}
    assert fleet.labels_of(machines) == {"m1-0a": "m1-0a", "m1-0b": "m1-0b"}


def test_a_lost_scheduler_leaves_nothing_to_compare(fake):
    assert fake.run(("mini1", "mini2"), Mock(side_effect=RuntimeError)) == 1
    assert fake.said[-1] == "mini2: failed: RuntimeError; the same command resumes the run"
    assert not fake.folder.exists()


def test_the_terminal_says_how_long_it_waits(fake):
    fake.set(fleet, "connect", Mock(side_effect=PomologyError("no scheduler answers")))
    values = {"profile": "smoke", "device": "cpu", "only": "vae", "data": "auto", "repeats": 1}
    with pytest.raises(PomologyError):
        where = options(run="r", scheduler="tcp://127.0.0.1:1", **values)
        fleet.run(where, fake.said.append)
    waits = "waiting up to 45 s for the scheduler, as long again for workers"
    assert fake.said == [f"tcp://127.0.0.1:1: {waits}"]


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
    host = socket.gethostname()
    assert f"{host}: done in" in text
    there = checkout / "outputs" / "r"
    for path in ("machine.json", "first.jsonl", "first.ipynb", "repeats/first-1.ipynb"):
        assert (folder / path).read_bytes() == (there / path).read_bytes()
    assert not (folder / ".lock").exists()
    noted = json.loads((there / "machine.json").read_text())
    (there / "machine.json").write_text(json.dumps(noted | {"chip": "another"}))
    status, text = fleet_says()
    assert status == 1 and f"{host}: failed: pomology: RUN=r" in text
