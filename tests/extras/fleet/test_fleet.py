"""The fleet: what it refuses, a run with one worker, and two machines whose parts are killed."""

import argparse
import contextlib
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from operator import gt
from pathlib import Path
from unittest.mock import Mock

import psutil
import pytest
import yaml
from nbformat import v4

from pomology.errors import PomologyError
from pomology.paths import root
from pomology.results import journal

WHY = "`make env EXTRAS=fleet` installs it (CI does)"
distributed = pytest.importorskip("distributed", reason=WHY)
fleet = pytest.importorskip("pomology.extras.fleet.fleet")

PARAMETERS = """
profile: str = "smoke"  # smoke, quick or article
devices: str = "auto"  # which ones
budget_s: float = 0.05  # seconds
repeat: int = 0  # which repetition
out: str = ""  # the run's folder
"""
# Beside its journal, the notebook notes which process measures, and which cases have ended.
CODE = """
import os
import time

from pomology.experiment.experiment import Experiment

given = {"profile": profile, "devices": "cpu", "budget_s": budget_s, "repeat": repeat, "out": out}
experiment = Experiment("first", article="003", **given)
for case in experiment.cases(part=[0, 1, 2, 3]):
    with case:
        for _ in case.steps([0] * 4):
            time.sleep(0.001)
        for _ in range(TICKS):
            with open("ticks", "a") as ticks:
                print(os.getpid(), "tick", file=ticks)
            time.sleep(0.1)
    with open("ticks", "a") as ticks:
        print(os.getpid(), f"repeat {repeat} part {case['part']}", file=ticks)
"""


def write_kit(folder: Path, ticks: int) -> Path:
    """Write a checkout with this library and one notebook, whose cases take ticks of 0.1 s each."""
    shutil.copytree(root() / "lib", folder / "lib", ignore=shutil.ignore_patterns("__pycache__"))
    cells = [
        v4.new_markdown_cell("# A notebook", id="title"),
        v4.new_code_cell(PARAMETERS.strip(), id="parameters", metadata={"tags": ["parameters"]}),
        v4.new_code_cell(CODE.replace("TICKS", str(ticks)), id="code"),
    ]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "pomology": {"article": "003", "seconds": {"smoke": 1}}}
    path = folder / "notebooks" / "an_article" / "first.ipynb"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(v4.new_notebook(cells=cells, metadata=metadata)))
    for profile in ("smoke", "quick", "article"):
        parameters = folder / "params" / profile / "first.yaml"
        parameters.parent.mkdir(parents=True)
        parameters.write_text(f"profile: {profile}\n")
    return folder


def options(**changes: object) -> argparse.Namespace:
    return argparse.Namespace(**{"scheduler": "", "hosts": "", "insecure": False} | changes)


@pytest.mark.parametrize("address", ["mini1:1", "http://a:1", "tcp://a", "tls://:1"])
def test_an_address_of_another_form_is_refused(address):
    with pytest.raises(PomologyError, match="must be tls://host:port"):
        fleet.place(options(scheduler=address))


def test_beyond_this_machine_only_tls_or_what_is_named_insecure():
    clear = [{"scheduler": "tcp://10.0.0.1:1"}, {"scheduler": "tcp://mini1:1"}, {"hosts": "a b"}]
    for where in clear:
        with pytest.raises(PomologyError, match="INSECURE=1"):
            fleet.place(options(**where))
        assert fleet.place(options(**where, insecure=True))
    assert fleet.place(options(scheduler="tcp://127.0.0.1:1"))
    assert fleet.place(options(scheduler="tls://mini1:1"))
    with fleet.dask.config.set({"distributed.comm.require-encryption": True}):
        assert fleet.place(options(hosts="a b"))


@pytest.mark.parametrize("scheme", ["tcp", "tls"])
def test_a_scheduler_that_is_not_reached_is_a_line(monkeypatch, scheme):
    monkeypatch.setattr(fleet, "WAIT_S", 0.2)
    scheduler = options(scheduler=f"{scheme}://127.0.0.1:1")
    with pytest.raises(PomologyError, match="no scheduler answers"):
        fleet.connect("SCHEDULER", scheduler)


def test_machines_that_do_not_fit_are_refused(monkeypatch):
    here = {"name": "m1-a", "machine": "M1", "kit": "commit 1"}
    monkeypatch.setattr(fleet.machine, "describe", lambda: here)
    other = here | {"name": "m1-b"}

    def names(*answers: object) -> dict[str, str]:
        client = Mock()
        client.run.return_value = {f"tcp://10.0.0.{n}:1": each for n, each in enumerate(answers)}
        client.wait_for_workers.side_effect = None if answers else TimeoutError
        return fleet.find_machines(client, "HOSTS=x", 1, str)

    assert names(here, other) == {"m1-a": "10.0.0.0", "m1-b": "10.0.0.1"}
    refused = {
        "no machine answers": [],
        "m1-b: has commit 2; here is commit 1": [here, other | {"kit": "commit 2"}],
        "both are m1-a": [here, here],
        "no kit answers": [ModuleNotFoundError("pomology")],
    }
    for why, answers in refused.items():
        with pytest.raises(PomologyError, match=why):
            names(*answers)


def environment(kit: Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": f"{kit}/lib", "OMP_NUM_THREADS": "1"}


FLEET = (sys.executable, "-m", "pomology", "fleet", "--profile=smoke", "--run=r")


def test_a_run_on_this_machine(tmp_path):
    kit = write_kit(tmp_path / "kit", ticks=1)

    def fleet_says(*words: str) -> tuple[int, str]:
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        done = subprocess.run([*FLEET, *words], env=environment(kit), check=False, **streams)
        return done.returncode, done.stdout

    (tmp_path / "store").mkdir()
    status, text = fleet_says("--repeats=2", f"--store={tmp_path}/store")
    assert status == 0, text
    assert len(list((tmp_path / "store").glob("r@*.zip"))) == 1
    (folder,) = (kit / "outputs" / "r-fleet").glob("*/")
    assert f"{folder.name}: done in" in text
    there = kit / "outputs" / "r"
    for path in ("machine.json", "first.jsonl", "first.ipynb", "repeats/first-1.ipynb"):
        assert (folder / path).read_bytes() == (there / path).read_bytes()
    assert not (folder / ".lock").exists()
    noted = json.loads((there / "machine.json").read_text())
    (there / "machine.json").write_text(json.dumps(noted | {"chip": "another"}))
    status, text = fleet_says()
    assert status == 1 and f"{folder.name}: failed: pomology: RUN=r" in text


class Machine:
    """A network namespace, with a checkout and a processor's name of its own."""

    def __init__(self, folder: Path, number: int):
        self.namespace = f"pomology-{os.getpid()}-{number}"
        self.address = f"10.77.0.{number}"
        self.chip = f"Pretended {'I' * number}"
        self.log = folder / "log"
        self.kit = write_kit(folder / "kit", ticks=20)
        cpuinfo = Path("/proc/cpuinfo").read_text()
        self.cpuinfo = folder / "cpuinfo"
        self.cpuinfo.write_text(re.sub(r"(model name\s*): .*", rf"\1: {self.chip}", cpuinfo))
        self.ticks = self.kit / "notebooks" / "an_article" / "ticks"

    def start(self, *words: str) -> subprocess.Popen:
        mounted = f'mount --bind {self.cpuinfo} /proc/cpuinfo; cd {self.kit}; exec "$@"'
        inside = ["ip", "netns", "exec", self.namespace, "sh", "-c", mounted, "sh"]
        with open(self.log, "a") as log:
            streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": subprocess.STDOUT}
            return subprocess.Popen([*inside, *words], env=environment(self.kit), **streams)

    def notes(self) -> list[list[str]]:
        """Return process and event of all that the notebook has noted."""
        text = self.ticks.read_text() if self.ticks.exists() else ""
        return [line.split(" ", 1) for line in text.splitlines()]


@contextlib.contextmanager
def network(machines: list[Machine]):
    """Connect the machines by a bridge on the first one, and end all that runs on them."""
    bridge = machines[0].namespace
    try:
        for number, each in enumerate(machines):
            ip("netns", "add", each.namespace)
            ip("-n", each.namespace, "link", "set", "lo", "up")
            if number == 0:
                ip("-n", bridge, "link", "add", "net", "type", "bridge")
            else:
                pair = ("type", "veth", "peer", "name", f"to{number}", "netns", bridge)
                ip("link", "add", "net", "netns", each.namespace, *pair)
                ip("-n", bridge, "link", "set", f"to{number}", "master", "net", "up")
            ip("-n", each.namespace, "addr", "add", f"{each.address}/24", "dev", "net")
            ip("-n", each.namespace, "link", "set", "net", "up")
            ip("-n", each.namespace, "route", "add", "default", "dev", "net")
        yield
    finally:
        for each in machines:
            for pid in ip("netns", "pids", each.namespace).split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            ip("netns", "del", each.namespace)


def ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


def write_tls(folder: Path) -> None:
    """Write a certificate, and a configuration of dask that asks everybody for it."""
    security = distributed.Security.temporary()
    (folder / "fleet.pem").write_text(security.tls_ca_file)
    (folder / "fleet.key").write_text(security.tls_client_key)
    own = {"cert": f"{folder}/fleet.pem", "key": f"{folder}/fleet.key"}
    tls = {"ca-file": own["cert"], "client": own, "scheduler": own, "worker": own}
    settings = {"distributed": {"comm": {"require-encryption": True, "tls": tls}}}
    (folder / "dask.yaml").write_text(yaml.safe_dump(settings))


def wait_for(event: Callable[[], bool]) -> None:
    until_s = time.monotonic() + 90
    while not event():
        assert time.monotonic() < until_s
        time.sleep(0.1)


def may_make_machines() -> bool:
    """Return whether this is a Linux that lets us make network namespaces."""
    if not shutil.which("ip") or not shutil.which("unshare"):
        return False
    return subprocess.run(["unshare", "--net", "true"], check=False).returncode == 0


@pytest.mark.skipif(not may_make_machines(), reason="needs root on Linux, and iproute2")
def test_two_machines_of_which_everything_is_killed_in_turn(tmp_path, monkeypatch):
    write_tls(tmp_path)
    monkeypatch.setenv("DASK_CONFIG", str(tmp_path / "dask.yaml"))
    hub, *machines = [Machine(tmp_path / f"{number}", number) for number in (1, 2, 3)]
    scheduler = f"tls://{hub.address}:8786"
    dask = str(Path(sys.executable).with_name("dask"))
    worker = f"{dask} worker --no-nanny --no-dashboard --nthreads 1 {scheduler}"
    loop = ("sh", "-c", f"while sleep 1; do {worker}; done")
    start_scheduler = (dask, "scheduler", "--host", hub.address, "--no-dashboard")
    start_command = (*FLEET, "--repeats=2", f"--scheduler={scheduler}")

    def wait_for_line(text: str, count: int) -> None:
        wait_for(lambda: hub.log.read_text().count(text) >= count)

    def wait_for_ticks() -> None:
        lengths = [len(machine.notes()) for machine in machines]
        wait_for(lambda: all(map(gt, (len(machine.notes()) for machine in machines), lengths)))

    with network([hub, *machines]):
        central = hub.start(*start_scheduler)
        # The first machine has two workers: when one is killed, its task moves to the other.
        loops = [machine.start(*loop) for machine in (*machines, machines[0])]
        wait_for_line("Register worker", 3)
        command = hub.start(*start_command)
        wait_for_ticks()
        command.kill()
        command.wait()
        command = hub.start(*start_command)
        wait_for_line("comes back into", 2)
        for process in loops[:2]:
            psutil.Process(process.pid).children()[0].kill()
        wait_for_line("Register worker", 5)
        wait_for_ticks()
        central.kill()
        assert command.wait(60) == 2
        wait_for_line("the scheduler is lost", 1)
        central = hub.start(*start_scheduler)
        wait_for_line("Register worker", 8)
        assert hub.start(*start_command).wait(120) == 0
    arrived = list((hub.kit / "outputs" / "r-fleet").glob("*/machine.json"))
    chips = [json.loads(path.read_text())["chip"] for path in arrived]
    assert sorted(chips) == [machine.chip for machine in machines]
    for machine in machines:
        path = arrived[chips.index(machine.chip)].with_name("first.jsonl")
        assert path.read_bytes() == (machine.kit / "outputs" / "r" / "first.jsonl").read_bytes()
        records = journal.read(path).records
        rows = Counter(f"repeat {each.repeat} part {each.config['part']}" for each in records)
        ended = Counter(event for _, event in machine.notes() if event != "tick")
        assert rows == ended and len(rows) == 8 and set(rows.values()) == {1}
        processes = [pid for pid, _ in itertools.groupby(pid for pid, _ in machine.notes())]
        assert len(processes) == len(set(processes))  # one after the other
