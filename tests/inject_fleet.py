"""A fleet of three machines in network namespaces of this one, and all that may happen to it; needs root on Linux.

    python tests/inject_fleet.py --kills=100 --seed=1        or a part: --only="throughput kills"

Each machine has a checkout, a /tmp, an address and a processor's name of its own. Its notebooks wait: what is measured
is what the runner itself takes. While they wait they note the time every 0.1 s, apart from the journals, which are
compared with that.

throughput: three machines against one. kills: workers, whole machines, the scheduler, the command and the bucket (moto's
server) are killed or silenced, links cut, at random; the same command until all is complete. beside: `make reproduce`
beside a worker. hostile: a worker that lies. tls: who is let in. ssh: HOSTS by an sshd on each machine. Each part has a
limit of time; all of it takes some 12 minutes on two cores. Exit status 1 if anything was not as it should be.

Needs iproute2, for ssh also openssh-server. Not part of `make test`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import os
import random
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from nbformat import v4

ROOT = Path(__file__).resolve().parents[1]
HUB, BUCKET, SCHEDULER = "10.77.0.1", "http://10.77.0.1:9000", "tls://10.77.0.1:8786"
AWS = {"AWS_ACCESS_KEY_ID": "pomology", "AWS_SECRET_ACCESS_KEY": "pomology-pomology", "AWS_ENDPOINT_URL": BUCKET}
AWS |= {"AWS_DEFAULT_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true"}
CHIPS = ("Pretended One", "Pretended Two", "Pretended Three", "Pretended Stranger")
KINDS = ("worker", "worker", "machine", "sleep", "link", "link", "scheduler", "command", "bucket")
BAD = ("Traceback", "Exception ignored", "never retrieved", "was destroyed", "BrokenPipe")
TICK_S = 0.1
SHORT = {"first": (1.0, 1.0), "second": (2.0, 0.5), "third": (0.5, 1.0)}  # notebooks: seconds of their cases
REPEATS = 2
LIMITS_S = {"throughput": 400, "kills": 480, "beside": 150, "hostile": 150, "tls": 90, "ssh": 120}

DEVICE = """
import contextlib

from pomology.devices import find


class Simulated:
    framework, framework_version, backend, kind, handle, threads = "simulated", "1", "cpu", "cpu", None, 1
    name = next(line for line in open("/proc/cpuinfo") if line.startswith("model name")).partition(":")[2].strip()
    uncounted, keeps_graphs = None, False
    memory_limit, tf32, unified_memory = "", False, False
    context = lambda self, strict=False: contextlib.nullcontext()
    watch_fallbacks = lambda self: contextlib.nullcontext(set())
    synchronize = reset_peak_memory = lambda self: None
    peak_memory, free_memory = (lambda self: {}), (lambda self: 10**9)
    limit_threads = lambda self, most: None
    to_device, device_of = (lambda self, batch: batch), (lambda self, item: "cpu")


find.find = lambda wanted="auto", framework="torch": [Simulated()]
"""
PARAMETERS = """
profile: str = "quick"  # smoke, quick or article
devices: str = "auto"  # which ones
data: str = "auto"  # which data
budget_s: float = 0.05  # seconds
repeat: int = 0  # which repetition
out: str = ""  # the run's folder
"""
CODE = """
import os
import time
from pathlib import Path

import simulated
from pomology.experiment.experiment import Experiment

given = {"devices": devices, "profile": profile, "budget_s": budget_s, "out": out, "repeat": repeat}
experiment = Experiment("NAME", article="003", **given)
waits = WAITS
for case in experiment.cases(part=list(range(len(waits)))):
    with case:
        for _ in case.steps([0] * 4):
            time.sleep(0.001)
        until_s = time.monotonic() + waits[case.part]
        while time.monotonic() < until_s:
            with open("/tmp/ticks", "a") as ticks:
                print(f"{time.time():.3f}", os.getpid(), Path(out).name, "NAME", repeat, case.part, file=ticks)
            time.sleep(TICK_S)
"""
INSIDE = 'mount --bind "$1/tmp" /tmp && mount --bind "$1/cpuinfo" /proc/cpuinfo && cd "$1/kit" && shift && exec "$@"'


def system(*words: object) -> str:
    return subprocess.run([*map(str, words)], check=True, capture_output=True, text=True).stdout


def notebook_text(name: str, waits: tuple[float, ...]) -> str:
    code = CODE.replace("NAME", name).replace("WAITS", str(waits)).replace("TICK_S", str(TICK_S))
    cells = [v4.new_markdown_cell(f"# {name}"), v4.new_code_cell(PARAMETERS.strip()), v4.new_code_cell(code)]
    cells[1].metadata["tags"] = ["parameters"]
    kernel = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
    about = {"article": "003", "seconds": dict.fromkeys(("smoke", "quick", "article"), sum(waits))}
    for number, cell in enumerate(cells):
        cell["id"] = f"{name}-{number}"  # the same in all checkouts
    return json.dumps(v4.new_notebook(cells=cells, metadata={"kernelspec": kernel, "pomology": about}))


class Place:
    """A machine: a namespace with an address, and a checkout, a /tmp, a home and a processor's name of its own."""

    def __init__(self, lab: Lab, name: str, number: int, chip: str):
        self.lab, self.name, self.address, self.chip = lab, name, f"10.77.0.{number}", chip
        self.netns, self.folder = f"pomology-{os.getpid()}-{name}", lab.folder / name
        for folder in ("tmp", "home", "kit/outputs"):
            (self.folder / folder).mkdir(parents=True)
        (self.folder / "tmp").chmod(0o1777)
        cpuinfo = Path("/proc/cpuinfo").read_text()
        (self.folder / "cpuinfo").write_text(re.sub(r"(?m)^(model name\s*:).*", rf"\1 {chip}", cpuinfo))
        shutil.copytree(ROOT / "lib", self.folder / "kit" / "lib")
        shutil.copytree(lab.folder / "template", self.folder / "kit", dirs_exist_ok=True)
        system("ip", "netns", "add", self.netns)
        system("ip", "-n", self.netns, "link", "set", "lo", "up")
        self.outputs, self.ticks = self.folder / "kit" / "outputs", self.folder / "tmp" / "ticks"

    def start(self, *words: object, say: Path | None = None, **more: str) -> subprocess.Popen:
        """A program on this machine; what it says goes into a file."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("POMOLOGY", "PYTHON"))}
        environment |= {"HOME": str(self.folder / "home"), "PYTHONPATH": str(self.folder / "kit" / "lib")}
        environment |= {"PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"} | self.lab.certificates | more
        inside = ("ip", "netns", "exec", self.netns, "sh", "-c", INSIDE, "sh", self.folder)
        with open(say or self.folder / "log.txt", "ab") as log:
            streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": subprocess.STDOUT}
            return subprocess.Popen([*map(str, (*inside, *words))], env=environment, start_new_session=True, **streams)

    def kit(self, *words: object, **more) -> subprocess.Popen:
        return self.start(sys.executable, "-m", "pomology", *words, **more)

    def own(self, what: str, *words: object, **more) -> subprocess.Popen:
        """This file's `PARTS` on that machine."""
        return self.start(sys.executable, Path(__file__).resolve(), f"--part={what}", *words, **more)

    def pids(self) -> list[int]:
        return [int(pid) for pid in system("ip", "netns", "pids", self.netns).split()]

    def signal(self, number: int) -> None:
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def link(self, state: str) -> None:
        system("ip", "-n", self.lab.hub.netns, "link", "set", self.name, state)

    def gone(self) -> None:
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGKILL)
        subprocess.run(["ip", "netns", "del", self.netns], check=False, capture_output=True)


class Lab:
    """The machines, a bridge between them in the hub's namespace, certificates, the scheduler and the bucket."""

    def __init__(self, folder: Path, wait_s: float, stack: contextlib.ExitStack):
        self.folder, self.stack, self.wrong, self.certificates = folder, stack, [], {}
        self.notebooks = {**SHORT, "middle": (8.0, 8.0), "long": (wait_s / 2, wait_s / 2)}
        self.processes: dict[str, subprocess.Popen] = {}
        notebooks = folder / "template" / "notebooks" / "waiting"
        notebooks.mkdir(parents=True)
        (notebooks / "simulated.py").write_text(DEVICE)
        for name, waits in self.notebooks.items():
            (notebooks / f"{name}.ipynb").write_text(notebook_text(name, waits))
            for profile in ("smoke", "quick", "article"):
                path = folder / "template" / "params" / profile / f"{name}.yaml"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(f"profile: {profile}\n")
        self.hub = self.place("hub", 1, CHIPS[0])
        bridge = ("ip", "-n", self.hub.netns)
        system(*bridge, "link", "add", "fleet", "type", "bridge")
        system(*bridge, "addr", "add", f"{HUB}/24", "dev", "fleet")
        system(*bridge, "link", "set", "fleet", "up")
        system(*bridge, "route", "add", "default", "dev", "fleet")  # by which dask knows its own address
        names = ("one", "two", "three", "stranger")
        self.machines = [self.place(name, 11 + n, chip) for n, (name, chip) in enumerate(zip(names, CHIPS, strict=True))]
        for machine in self.machines:
            peer = ("peer", "name", machine.name, "netns", self.hub.netns)
            system("ip", "link", "add", "eth0", "netns", machine.netns, "type", "veth", *peer)
            system(*bridge, "link", "set", machine.name, "master", "fleet", "up")
            system("ip", "-n", machine.netns, "addr", "add", f"{machine.address}/24", "dev", "eth0")
            system("ip", "-n", machine.netns, "link", "set", "eth0", "up")
            system("ip", "-n", machine.netns, "route", "add", "default", "dev", "eth0")
        *self.machines, self.stranger = self.machines
        self.certificates, self.others = (certificates(folder / name) for name in ("own", "others"))

    def place(self, name: str, number: int, chip: str) -> Place:
        made = Place(self, name, number, chip)
        self.stack.callback(made.gone)
        return made

    def run(self, name: str) -> None:
        """Start one of what has to be there all the time."""
        if name == "scheduler":
            process = self.hub.kit("fleet", f"--listen={SCHEDULER}")
        elif name == "bucket":
            process = self.hub.own("bucket", **AWS)
        else:
            machine = next(machine for machine in self.machines if machine.name == name)
            process = machine.kit("fleet", f"--worker={SCHEDULER}")
        self.processes[name] = process

    def end(self, *names: str) -> None:
        for name in names:
            process = self.processes.pop(name)
            process.kill()
            process.wait()

    def command(self, run: str, only: str = " ".join(SHORT), *more: str, **environment: str) -> subprocess.Popen:
        """The fleet's, on the hub."""
        words = ("fleet", "--profile=smoke", f"--run={run}", f"--only={only}", f"--repeats={REPEATS}", *more)
        where = () if any(word.startswith(("--scheduler", "--hosts")) for word in more) else (f"--scheduler={SCHEDULER}",)
        return self.hub.kit(*words, *where, say=self.said(run), **environment)

    def said(self, run: str) -> Path:
        return self.folder / f"{run}.txt"

    def wants(self, good: object, what: str) -> None:
        if not good:
            self.wrong.append(what)
            print(f"WRONG: {what}", flush=True)


def certificates(folder: Path) -> dict[str, str]:
    """An authority, a certificate and its key, one for all: what the kit's variables name."""
    import distributed

    made = distributed.Security.temporary()
    texts = {"CA": made.tls_ca_file, "CERT": made.tls_client_cert, "KEY": made.tls_client_key}
    folder.mkdir()
    for name, text in texts.items():
        (folder / f"{name}.pem").write_text(text)
    return {f"POMOLOGY_TLS_{name}": str(folder / f"{name}.pem") for name in texts}


def wait_for(process: subprocess.Popen, seconds: float) -> int | None:
    """Its exit status; None, and it is killed, if it takes longer."""
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return None


def until(what: Callable[[], object], seconds: float) -> bool:
    end_s = time.monotonic() + seconds
    while not (good := what()) and time.monotonic() < end_s:
        time.sleep(0.1)
    return bool(good)


# What is true of a run that is complete.


def lines_of(path: Path) -> Iterator[dict]:
    """Of a journal, but for what was torn."""
    for line in path.read_bytes().splitlines():
        with contextlib.suppress(ValueError):
            yield json.loads(line)


def journals(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.jsonl")}


def stretches(machine: Place) -> list[tuple[float, float, int, str]]:
    """First and last tick of each process on a machine, with its number and run, by time."""
    known: dict[tuple[int, str], list[float]] = defaultdict(list)
    for line in machine.ticks.read_text().splitlines() if machine.ticks.exists() else ():
        words = line.split()
        if len(words) == 6:
            known[int(words[1]), words[2]].append(float(words[0]))
    return sorted((min(times), max(times), *key) for key, times in known.items())


def never_two(lab: Lab) -> int:
    """Whether no two processes measured on one machine at a time, by what they noted; returns how many there were."""
    count = 0
    for machine in lab.machines:
        known = stretches(machine)
        count += len(known)
        for before, after in zip(known, known[1:], strict=False):
            lab.wants(before[1] < after[0], f"{machine.name}: two at a time: {before} and {after}")
    return count


def complete(lab: Lab, run: str, machines: list[Place], notebooks: Iterable[str], hits: Counter) -> Counter:
    """Check a complete run, by the machines' own journals and what came back of them; returns what was counted."""
    from pomology.results import journal

    counts, folders = Counter(), {}
    for path in (lab.hub.outputs / f"{run}-fleet").glob("[!.]*/machine.json"):
        chip = json.loads(path.read_text())["chip"]
        lab.wants(chip not in folders, f"{run}: {chip} has two folders")
        folders[chip] = path.parent
    chips = {machine.chip for machine in machines}
    lab.wants(folders.keys() == chips, f"{run}: folders of {sorted(folders)}, not of {sorted(chips)}")
    for machine in machines:
        out, back = machine.outputs / run, folders.get(machine.chip, Path("none"))
        lab.wants(journals(out) == journals(back), f"{run}: {machine.name}: what came back is not what is there")
        noted = {tuple(line.split()[2:]) for line in machine.ticks.read_text().splitlines() if len(line.split()) == 6}
        spans = []
        for name in notebooks:
            held = journal.read(out / f"{name}.jsonl")
            lab.wants(hits["machine"] or not held.problems, f"{run}: {machine.name}: {held.problems}")
            records = {(record.config["part"], record.repeat): record for record in held.records}
            wanted = {(part, repeat) for part in range(len(lab.notebooks[name])) for repeat in range(REPEATS)}
            lab.wants(records.keys() == wanted, f"{run}: {machine.name}: {name}: rows {sorted(records)}")
            lab.wants(len(held.records) == len(wanted), f"{run}: {machine.name}: {name}: rows doubled")
            for (part, repeat), record in records.items():
                counts["rows"] += 1
                counts[f"rows {record.status}"] += 1
                where = f"{run}: {machine.name}: {name} part {part} repeat {repeat}"
                lab.wants(record.chip == machine.chip, f"{where}: is under {record.chip}")
                crashed = record.status == "crashed" and hits["machine"]
                lab.wants(record.status == "ok" or crashed, f"{where}: {record.status}: {record.reason}")
                lab.wants((run, name, str(repeat), str(part)) in noted, f"{where}: was never measured there")
            ended = Counter()
            for line in lines_of(out / f"{name}.jsonl"):
                key = line["config"]["part"], line["repeat"]
                counts["attempts"] += line["event"] == "start"
                lab.wants(not ended[key], f"{run}: {machine.name}: {name} {key}: goes on behind its end")
                ended[key] += line["event"] == "end" and line["status"] == "ok"
                if line["event"] == "end" and line["seconds"]:
                    spans.append((line["started"], line["seconds"], name, key))
        begun = sorted((time.mktime(time.strptime(stamp, "%Y-%m-%dT%H:%M:%SZ")), *rest) for stamp, *rest in spans)
        for before, after in zip(begun, begun[1:], strict=False):  # stamps are to the second
            lab.wants(before[0] + before[1] < after[0] + 1, f"{run}: {machine.name}: by stamps {before} and {after}")
        files = {path.name for path in (*back.glob("*.ipynb"), *back.glob("repeats/*.ipynb"))}
        wanted = {f"{name}{f'-{repeat}' if repeat else ''}.ipynb" for name in notebooks for repeat in range(REPEATS)}
        lab.wants(files == wanted, f"{run}: {machine.name}: notebooks {sorted(files)}")
    text = lab.said(run).read_text(errors="replace")
    for bad in BAD:
        lab.wants(bad not in text, f"{run}: said {bad}, see {lab.said(run)}")
    return counts


class Growing:
    """Journals may only grow, on the machines and here."""

    def __init__(self, lab: Lab, run: str):
        self.lab, self.run, self.before = lab, run, {}
        self.checks = 0

    def look(self) -> None:
        places = {machine.name: machine.outputs / self.run for machine in self.lab.machines}
        places |= {path.name: path for path in (self.lab.hub.outputs / f"{self.run}-fleet").glob("[!.]*/")}
        for place, folder in places.items():
            for name, data in journals(folder).items():
                before = self.before.get((place, name), b"")
                self.lab.wants(data.startswith(before), f"{self.run}: {place}: {name} has lost something")
                self.before[place, name] = data
                self.checks += 1


# The parts.


def throughput(lab: Lab) -> None:
    """Three machines against one, on notebooks that wait."""
    walls, one, *_ = {}, *lab.machines
    lab.run("scheduler")
    for run, machines in (("alone", [one]), ("three", lab.machines)):
        for machine in machines:
            if machine.name not in lab.processes:
                lab.run(machine.name)
        lab.wants(until(lambda names=machines: all(says(each, "a worker at") for each in names), 60), f"{run}: workers")
        begun_s = time.monotonic()
        status = wait_for(lab.command(run, "long"), LIMITS_S["throughput"] / 2)
        walls[run] = time.monotonic() - begun_s
        lab.wants(status == 0, f"{run}: exit status {status}")
        counts = complete(lab, run, machines, ["long"], Counter())
        print(f"throughput: {run}: {counts['rows']} rows in {walls[run]:.1f} s", flush=True)
    ratio = 3 * walls["alone"] / walls["three"]
    print(f"throughput: {ratio:.2f} times the work of one in the same time", flush=True)
    lab.wants(ratio >= 2.7, f"throughput: {ratio:.2f}, below 2.7")


def says(machine: Place, text: str) -> bool:
    log = machine.folder / "log.txt"
    return log.exists() and text in log.read_text(errors="replace")


class Faults:
    """Kills, cuts and silences at random, each mended after a while."""

    def __init__(self, lab: Lab, chance: random.Random):
        self.lab, self.chance, self.counts = lab, chance, Counter()
        self.mending: dict[str, tuple[float, Callable[[], object]]] = {}  # by what is broken
        self.dropped = lab.hub.folder / "tmp" / "dropped"

    def hit(self, command: subprocess.Popen) -> None:
        """One of `KINDS`, of what is not broken yet."""
        kind, machine = self.chance.choice(KINDS), self.chance.choice(self.lab.machines)
        after_s, target = self.chance.uniform(0.3, 4.0), machine.name
        if kind in ("scheduler", "bucket", "command"):
            target = kind
        if target in self.mending:
            return
        again = lambda: self.lab.run(target)  # noqa: E731
        if kind == "command":
            command.kill()
            again = lambda: None  # noqa: E731
        elif kind in ("scheduler", "worker"):
            self.lab.end(target)
        elif kind == "machine":
            self.lab.processes.pop(target)
            machine.signal(signal.SIGKILL)
        elif kind == "sleep":
            machine.signal(signal.SIGSTOP)
            again = lambda: machine.signal(signal.SIGCONT)  # noqa: E731
        elif kind == "link":
            machine.link("down")
            again = lambda: machine.link("up")  # noqa: E731
        elif self.chance.random() < 0.5:  # the bucket's answers end in silence
            self.dropped.touch()
            again = lambda: self.dropped.unlink()  # noqa: E731
        else:
            self.lab.processes["bucket"].send_signal(signal.SIGSTOP)
            again = lambda: self.lab.processes["bucket"].send_signal(signal.SIGCONT)  # noqa: E731
        self.counts[kind] += 1
        self.mending[target] = time.monotonic() + after_s, again

    def mend(self, all_of_it: bool = False) -> None:
        for target, (due_s, again) in list(self.mending.items()):
            if all_of_it or time.monotonic() > due_s:
                del self.mending[target]
                again()


def kills(lab: Lab, count: int, chance: random.Random) -> None:
    """So many faults, over as many runs as it takes; after each run the checks of `complete`."""
    for name in ("scheduler", "bucket", *(machine.name for machine in lab.machines)):
        if name not in lab.processes:
            lab.run(name)
    lab.wants(until(lambda: says(lab.hub, "a bucket is there"), 60), "kills: no bucket")
    faults, totals, number, next_s = Faults(lab, chance), Counter(), 0, time.monotonic() + 8
    end_s = time.monotonic() + LIMITS_S["kills"]
    while faults.counts.total() < count and time.monotonic() < end_s:
        run, number, before = f"kills-{number}", number + 1, faults.counts.copy()
        growing, status = Growing(lab, run), None
        while status != 0 and time.monotonic() < end_s + 90:
            command = lab.command(run, " ".join(SHORT), "--store=s3://lab/kept", **AWS)
            totals["commands"] += 1
            while command.poll() is None and time.monotonic() < end_s + 90:
                faults.mend()
                if time.monotonic() > next_s and faults.counts.total() < count and time.monotonic() < end_s:
                    faults.hit(command)
                    next_s = time.monotonic() + chance.uniform(0.5, 5.0)
                    growing.look()
                time.sleep(0.1)
            status = wait_for(command, 1)
            totals[f"exit {status}"] += 1
            # 1: not all is done; 2: who it needs is not there when it begins; 3: the store failed; -9: it was killed.
            last = lab.said(run).read_text(errors="replace").splitlines()[-1:]
            absent = any(text in line for line in last for text in ("no scheduler answers", "no worker is", "STORE="))
            lab.wants(status in (0, 1, 3, -9) or (status == 2 and absent), f"{run}: exit status {status}: {last}")
            growing.look()
        lab.wants(status == 0, f"{run}: was not complete in time")
        faults.mend(all_of_it=True)
        hits = faults.counts - before
        totals += complete(lab, run, lab.machines, SHORT, hits)
        totals["looks at a journal"] += growing.checks
        totals["runs"] += 1
        kept(lab, run)
        print(f"kills: {run}: {dict(hits)}; {faults.counts.total()} so far", flush=True)
    totals["processes that measured"] = never_two(lab)
    print(f"kills: {faults.counts.total()}: {dict(sorted(faults.counts.items()))}", flush=True)
    print(f"kills: {dict(sorted(totals.items()))}", flush=True)
    lab.wants(faults.counts.total() == count, f"kills: {faults.counts.total()} of {count} in the time that there is")


def kept(lab: Lab, run: str) -> None:
    """What the bucket has of a run is what came back."""
    answer = lab.folder / f"{run}-kept.json"
    status = wait_for(lab.hub.own("kept", f"--to={answer}", f"--run={run}", **AWS), 60)
    there = json.loads(answer.read_text()) if status == 0 else {}
    folders = {path.parent for path in (lab.hub.outputs / f"{run}-fleet").glob("[!.]*/machine.json")}
    sums = sorted(sorted(hashlib.sha256(data).hexdigest() for data in journals(folder).values()) for folder in folders)
    lab.wants(sorted(sorted(each) for each in there.values()) == sums, f"{run}: the bucket has something else")


def only_one(lab: Lab) -> Place:
    """The first machine, whose worker alone is there now."""
    lab.end(*(machine.name for machine in lab.machines[1:] if machine.name in lab.processes))
    for name in ("scheduler", lab.machines[0].name):
        if name not in lab.processes:
            lab.run(name)
    return lab.machines[0]


def beside(lab: Lab) -> None:
    """`make reproduce` on a machine whose worker measures, and then the other way round."""
    one = only_one(lab)
    before = len(stretches(one))
    command = lab.command("beside", "middle", "--repeats=1")
    lab.wants(until(lambda: len(stretches(one)) > before, 60), "beside: the fleet never began")
    words = ("reproduce", "--profile=quick", "--run=alone-beside", "--only=first")
    own = one.kit(*words, say=lab.said("reproduce"))
    text = "another run measures on this machine"
    lab.wants(until(lambda: text in lab.said("reproduce").read_text(), 60), "beside: reproduce does not wait")
    lab.wants(wait_for(command, 90) == 0, "beside: the fleet did not end well")
    command = lab.command("behind", "first", "--repeats=1")
    statuses = wait_for(own, LIMITS_S["beside"]), wait_for(command, 90)
    lab.wants(statuses == (0, 0), f"beside: exit statuses {statuses}")
    lab.wants(text in lab.said("behind").read_text(), "beside: the fleet did not wait")
    lab.wants({"alone-beside", "beside", "behind"} <= {run for *_, run in stretches(one)}, "beside: who measured")
    print(f"beside: {never_two(lab)} processes, never two at a time; {text!r} was said", flush=True)


LIES = {  # kind -> what the command says of it, once
    "climbs": "which is no file of a run",
    "absolute": "which is no file of a run",
    "many": "lists what no run has: too large",
    "drips": "in another size than it said",
    "other": "another machine's machine.json",
    "nothing": "describes no machine",
    "chip": "of another notebook, profile or machine",
    "schema": "schema 999 is newer",
    "lines": "more than 100,000 lines",
    "code": "whose code is not this kit's",
    "page": "which is no file of a run",
    "pickle": "sent a pickle",
    "about": "sent a pickle",
    "types": "is malformed",
    "flood": "is malformed",
    "deep": "describes no machine",
    "twin": "if its checkout is a copy",
    "bomb": "sent a compressed message",
    "big": "lost (no answer)",
    "silent": "no answer",
    "kit": "runs another kit",
}


def hostile(lab: Lab) -> None:
    """A worker for each of `LIES`, two that are accepted (malformed lines, escapes), and an honest machine."""
    one = only_one(lab)
    until((one.outputs / ".fleet").exists, 30)
    drawn = (one.outputs / ".fleet").read_text() if (one.outputs / ".fleet").exists() else "0" * 12
    liar = lab.stranger.own("liar", f"--run={drawn}")
    lab.wants(until(lambda: says(lab.stranger, "all lies are told"), 60), "hostile: the liar did not start")
    before = tree(lab.hub.folder / "kit")
    # A machine that is lost is waited for two minutes: here less.
    program = "import sys; from pomology import __main__; from pomology.runner import fleet; fleet.LOST_S = 15.0; "
    program += "fleet.wire.CALL_S = 8.0; sys.exit(__main__.main(sys.argv[1:]))"
    words = ("fleet", "--profile=smoke", "--run=hostile", "--only=first", f"--scheduler={SCHEDULER}")
    command = lab.hub.start(sys.executable, "-c", program, *words, f"--repeats={REPEATS}", say=lab.said("hostile"))
    status = wait_for(command, LIMITS_S["hostile"])
    lab.wants(status == 1, f"hostile: exit status {status}")
    text = lab.said("hostile").read_text(errors="replace")
    lines = text.splitlines()
    for number, (kind, why) in enumerate(LIES.items()):
        name = f"pretended-stranger-{number:012x}:"
        # Some are left out before they have a name.
        where = [line for line in lines if why in line and (line.startswith(name) or "://" in line.split(": ")[0])]
        whole = [line for line in where if line.startswith(name)] or where
        lab.wants(whole, f"hostile: {kind}: no line says {why!r}")
        print(f"hostile: {kind}: {whole[0] if whole else 'NOTHING'}", flush=True)
        lab.wants(len([line for line in lines if line.startswith(name)]) <= 4, f"hostile: {kind}: more than its lines")
    lab.wants(all(line.isprintable() for line in lines), "hostile: a line is not printable")
    lab.wants(not any(bad in text for bad in BAD), f"hostile: see {lab.said('hostile')}")
    changed = {path for path, about in tree(lab.hub.folder / "kit").items() if before.get(path) != about}
    folders = {f"outputs/hostile-fleet/pretended-stranger-{number:012x}/" for number in range(len(LIES) + 2)}
    folders |= {f"outputs/hostile-fleet/pretended-one-{drawn}/"}
    allowed = (*folders, "outputs/hostile-fleet/compare.", "outputs/hostile-fleet/.lock")
    outside = {path for path in changed if not path.startswith(allowed)}
    lab.wants(not outside, f"hostile: written outside: {sorted(outside)[:5]}")
    evil = [path for path in lab.folder.rglob("*evil*") if lab.stranger.folder not in path.parents]
    lab.wants(not evil, f"hostile: {evil[:5]}")
    came = {path.name: sum(each.stat().st_size for each in path.rglob("*") if each.is_file()) for path in
            (lab.hub.outputs / "hostile-fleet").glob("pretended-stranger-*")}
    print(f"hostile: {len(changed)} files changed, none outside; strangers' folders: {came}", flush=True)
    back = lab.hub.outputs / "hostile-fleet" / f"pretended-one-{drawn}"
    lab.wants(journals(back) and journals(back) == journals(one.outputs / "hostile"), "hostile: the honest one's rows")
    lab.wants(lab.processes["scheduler"].poll() is None, "hostile: the scheduler is gone")
    liar.kill()
    liar.wait()


def tree(folder: Path) -> dict[str, tuple]:
    """Every file and folder with its size and time, but for what Python compiles."""
    paths = [path for path in folder.rglob("*") if "__pycache__" not in path.parts and path.is_file()]
    return {path.relative_to(folder).as_posix(): (path.stat().st_size, path.stat().st_mtime_ns) for path in paths}


def tls(lab: Lab) -> None:
    """Who is let in, and who may listen."""
    one = only_one(lab)
    clear, free = "tcp://10.77.0.1", "tcp://10.77.0.1:8799"

    def answer(place: Place, what: str, *words: str, **environment: str) -> tuple[int | None, str]:
        file = lab.folder / f"tls-{what}.txt"
        status = wait_for(place.kit("fleet", *words, say=file, **environment), 40)
        return status, file.read_text(errors="replace").strip()

    wants = {
        "another authority": (lab.others, (f"--scheduler={SCHEDULER}",), "no scheduler answers there"),
        "no TLS": ({}, (f"--scheduler={clear}:8786", "--insecure"), "no scheduler answers there"),
        "no files": (dict.fromkeys(lab.certificates, ""), (f"--scheduler={SCHEDULER}",), "tls:// needs certificates"),
        "a file is missing": ({"POMOLOGY_TLS_KEY": "/none"}, (f"--scheduler={SCHEDULER}",), "POMOLOGY_TLS_KEY=/none"),
        "listens in the clear": ({}, (f"--listen={free}",), "or say INSECURE=1"),
        "listens everywhere": ({}, ("--listen=tcp://0.0.0.0:8799",), "or say INSECURE=1"),
        "works in the clear": ({}, (f"--worker={free}",), "or say INSECURE=1"),
        "asks in the clear": ({}, (f"--scheduler={free}",), "or say INSECURE=1"),
    }
    for number, (what, (environment, words, why)) in enumerate(wants.items()):
        status, line = answer(lab.hub, str(number), *words, "--profile=smoke", "--run=tls", **environment)
        last = line.splitlines()[-1] if line else ""
        lab.wants(status == 2 and why in last and "Traceback" not in line, f"tls: {what}: {status}, {line[-300:]}")
        print(f"tls: {what}: {last[:150]}", flush=True)
    file = lab.folder / "tls-insecure.txt"
    process = lab.hub.kit("fleet", f"--listen={free}", "--insecure", say=file)
    lab.wants(until(lambda: file.exists() and "a scheduler listens at" in file.read_text(), 30), "tls: insecure")
    process.kill()
    process.wait()
    until(lambda: says(one, "a worker at"), 30)
    answered = lab.folder / "tls-ports.json"
    for place in (lab.hub, one):
        ports = listening(place)
        status = wait_for(lab.stranger.own("knock", f"--to={answered}", f"--run={place.address}", *map(str, ports)), 40)
        answers = json.loads(answered.read_text()) if status == 0 else {}
        lab.wants(answers and not any(answers.values()), f"tls: {place.name}: {answers}")
        print(f"tls: {place.name} listens on {len(ports)} ports; without a certificate: {answers}", flush=True)


def listening(place: Place) -> list[int]:
    """TCP ports that are open beyond a machine itself, but for the bucket's."""
    ports = set()
    for kind in ("tcp", "tcp6"):
        for line in system("ip", "netns", "exec", place.netns, "cat", f"/proc/net/{kind}").splitlines()[1:]:
            address, state = line.split()[1], line.split()[3]
            if state == "0A" and not address.startswith(("0100007F", "00000000000000000000000001000000")):
                ports.add(int(address.partition(":")[2], 16))
    return sorted(ports - {9000})


def by_ssh(lab: Lab) -> None:
    """HOSTS, by an sshd on each machine, and one that is not there."""
    server = shutil.which("sshd") or "/usr/sbin/sshd"
    if not Path(server).exists():
        lab.wants(False, "ssh: no sshd here: apt-get install openssh-server")
        return
    Path("/run/sshd").mkdir(exist_ok=True)
    lab.end(*(machine.name for machine in lab.machines if machine.name in lab.processes))
    home = lab.hub.folder / "home" / ".ssh"
    home.mkdir(mode=0o700)
    system("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", home / "id_ed25519")
    known = ""
    for machine in lab.machines:
        key = machine.folder / "host_key"
        system("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key)
        known += f"{machine.address} {key.with_suffix('.pub').read_text()}"
        settings = f"ListenAddress {machine.address}\nHostKey {key}\nAuthorizedKeysFile {home}/id_ed25519.pub\n"
        settings += "StrictModes no\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin yes\nPidFile none\n"
        settings += f"SetEnv PYTHONPATH={machine.folder}/kit/lib JUPYTER_RUNTIME_DIR={machine.folder}/home/runtime\n"
        (machine.folder / "sshd_config").write_text(settings)
        machine.start(server, "-D", "-e", "-f", machine.folder / "sshd_config")
    (home / "known_hosts").write_text(known)
    time.sleep(1)
    names = " ".join(f"root@{address}" for address in (*(machine.address for machine in lab.machines), "10.77.0.99"))
    status = wait_for(lab.command("ssh", "first", f"--hosts={names}"), LIMITS_S["ssh"])
    lab.wants(status == 0, f"ssh: exit status {status}")
    counts = complete(lab, "ssh", lab.machines, ["first"], Counter())
    text = lab.said("ssh").read_text(errors="replace")
    lab.wants("HOSTS: 10.77.0.99: " in text and "left out" in text, "ssh: the host that is not there")
    left = lambda: [pid for each in lab.machines for pid in each.pids() if b"fleet_worker" in command_of(pid)]  # noqa: E731
    lab.wants(until(lambda: not left(), 20), f"ssh: processes are left: {left()}")
    print(f"ssh: {counts['rows']} rows from {len(lab.machines)} machines; no process is left", flush=True)


def command_of(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


# What runs inside the machines.


def bucket(_: argparse.Namespace) -> None:
    """S3, whose answers end in silence while the file /tmp/dropped is there, also half way."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(HUB, 9000, verbose=False)
    server.start()
    app, dropped = server._server.app, Path("/tmp/dropped")

    def perhaps(environ, start_response):
        line = environ["werkzeug.socket"]
        answer = [] if dropped.exists() else app(environ, start_response)
        if dropped.exists():  # perhaps only now: then it was carried out
            line.shutdown(socket.SHUT_RDWR)
            raise ConnectionResetError
        return answer

    server._server.app = perhaps
    import boto3

    boto3.client("s3", endpoint_url=BUCKET, region_name="us-east-1").create_bucket(Bucket="lab")
    print("a bucket is there", flush=True)
    signal.pause()


def kept_there(given: argparse.Namespace) -> None:
    """The sums of the journals of each run of this name in the bucket."""
    from pomology.results import store

    names = [name for name in store.Store("s3://lab/kept").runs() if name.startswith(f"{given.run}@")]
    sums = {}
    for name in names:
        held = journals(store.fetch(name, "s3://lab/kept"))
        sums[name] = [hashlib.sha256(data).hexdigest() for data in held.values()]
    given.to.write_text(json.dumps(sums))


def knock(given: argparse.Namespace) -> None:
    """What a peer without a certificate gets from ports: nothing, or something."""
    answers = {}
    for port in map(int, given.words):
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        got = b""
        with contextlib.suppress(OSError), socket.create_connection((given.run, port), 5) as line:
            with context.wrap_socket(line) as secure:
                secure.settimeout(5)
                secure.sendall(b"\0" * 64)
                got = secure.recv(64)
        answers[port] = len(got)
        with contextlib.suppress(OSError), socket.create_connection((given.run, port), 5) as line:
            line.settimeout(5)
            line.sendall(b"\0" * 64)
            got = line.recv(64)
            answers[port] += len(got) * (got[:1] != b"\x15")  # an alert of TLS
    given.to.write_text(json.dumps(answers))


class Evil:
    def __reduce__(self):
        return os.mkdir, ("/tmp/evil-pickle",)


def liar(given: argparse.Namespace) -> None:
    """A worker for each lie, all in this process; given.run: what the honest machine has drawn."""
    from distributed.comm.core import Comm
    from distributed.protocol import to_serialize

    from pomology.machine import snapshot
    from pomology.results.archive import Entry
    from pomology.runner import fleet_wire as wire
    from pomology.runner import fleet_worker

    machine = snapshot.snapshot()
    about = json.dumps(machine | {"profile": "smoke"}).encode()
    other = json.dumps(machine | {"profile": "smoke", "chip": "Apple M9"}).encode()
    start = {"event": "start", "schema": 1, "experiment": "first", "article": "003", "case": "x", "config": {}}
    start |= {"framework": "x", "framework_version": "1", "backend": "cpu", "device": None, "precision": "fp32"}
    start |= {"profile": "smoke", "data": "none", "scaled": False, "repeat": 0, "threads": 1, "power_source": None}
    start |= {"started": "2026-01-01T00:00:00Z", "chip": machine["chip"]}
    lines = {"chip": json.dumps(start | {"chip": "Apple M9"}).encode(), "schema": b'{"schema":999}', "lines": b"x\n" * 100_001}
    lines["garbage"] = b"[" * 50_000 + b'\n\xff\xfe\n{"event":"end"}\n\0\0\n' + json.dumps(start).encode()[:-9]
    stand_in = {"cells": [{"cell_type": "code", "source": "evil()", "metadata": {}, "outputs": []}], "nbformat": 4}
    big = (2**26, "0" * 64)
    files = {
        "climbs": {"../../evil.jsonl": b"x"},
        "absolute": {"/tmp/evil.jsonl": b"x"},
        "other": {"machine.json": other},
        "nothing": {"machine.json": b"[]"},
        "code": {"machine.json": about, "first.ipynb": json.dumps(stand_in | {"metadata": {}}).encode()},
        "page": {"machine.json": about, "evil.html": b"<script>"},
        **{kind: {"machine.json": about, "first.jsonl": text + b"\n"} for kind, text in lines.items()},
    }

    class Liar(fleet_worker.Machine):
        def __init__(self, kind: str, number: int):
            super().__init__()
            self.kind, self.drawn, self.begun = kind, f"{number:012x}", 0
            self.data = files.get(kind, {"machine.json": about})

        async def answer(self, ask: str, **asked: object) -> object:
            if self.kind == "silent":
                await asyncio.sleep(3600)
            if self.kind == "twin":  # behind the honest one: who comes first is that machine
                await asyncio.sleep(5)
            return getattr(self, f"to_{ask}")(**asked)

        def to_about(self) -> object:
            if self.kind == "about":
                return to_serialize(Evil())
            known = {"kit": fleet_worker.kit(), "version": "0", "drawn": self.drawn, "machine": json.dumps(machine)}
            known |= {"kit": "0" * 64} if self.kind == "kit" else {}
            known |= {"machine": "[" * 100_000} if self.kind == "deep" else {}
            chip = {"chip": CHIPS[0]}
            return known | ({"drawn": given.run, "machine": json.dumps(machine | chip)} if self.kind == "twin" else {})

        def to_files(self, run: str) -> object:
            if self.kind == "pickle":
                return {"files": to_serialize(Evil())}
            if self.kind == "bomb":
                return {"files": to_serialize(bytes(2**28))}
            sums = {name: (len(data), Entry.of(data).sha256) for name, data in self.data.items()}
            if self.kind == "many":
                sums = {f"first-{number}.jsonl": big for number in range(5)}
            return {"files": sums | ({"first.jsonl": big} if self.kind in ("drips", "big") else {})}

        def to_take(self, run: str, name: str, start: int, size: int) -> object:
            if name in self.data:
                return {"data": self.data[name][start : start + size]}
            return {"data": b"x" if self.kind == "drips" else bytes(2**26)}

        def to_begin(self, **_: object) -> object:
            if self.kind == "types":
                return {"job": ["evil"], "busy": None, "missing": 5}
            self.begun += 1
            job = "evil\x1b[2J" if self.kind in ("flood", "escapes") and self.begun == 1 else ""
            return {"job": job, "busy": False, "missing": []}

        def to_look(self, start: int) -> object:
            text = "  \x1b]0;evil\x07\x1b[2J\u202e" if self.kind == "escapes" else "x" * 2**20
            return {"job": "evil\x1b[2J", "text": text[start:], "status": 0}

    async def lie() -> None:
        workers = []
        for number, kind in enumerate((*LIES, "garbage", "escapes")):
            worker = await fleet_worker.Worker(SCHEDULER, Liar(kind, number), wire.security("tls"))
            worker.batched_stream.send({"op": "log-event", "topic": "evil", "msg": to_serialize(Evil())})
            workers.append(worker)
        print("all lies are told", flush=True)
        await asyncio.gather(*(worker.finished() for worker in workers))

    packed = lambda local, remote: {"pickle-protocol": 5, "compression": "zlib"}  # noqa: E731
    with wire.nothing_unpickled():
        Comm.handshake_configuration = staticmethod(packed)
        asyncio.run(lie())


PARTS = {"bucket": bucket, "kept": kept_there, "knock": knock, "liar": liar}


def main() -> int:
    option = (parser := argparse.ArgumentParser()).add_argument
    option("--kills", type=int, default=100)
    option("--seed", type=int, default=1)
    option("--wait", type=float, default=60.0, help="seconds that each notebook of the throughput waits")
    option("--only", default=" ".join(LIMITS_S), help=f"of {', '.join(LIMITS_S)}")
    option("--keep", action="store_true", help="the folders, to look at")
    option("--part", choices=PARTS, help=argparse.SUPPRESS)
    option("--to", type=Path, help=argparse.SUPPRESS)
    option("--run", default="", help=argparse.SUPPRESS)
    option("words", nargs="*", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.part:
        PARTS[given.part](given)
        return 0
    if sys.platform != "linux" or os.geteuid() or not shutil.which("ip"):
        print("inject_fleet: needs root on Linux, and iproute2 (apt-get install iproute2)")
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    parts = {"throughput": throughput, "beside": beside, "hostile": hostile, "tls": tls, "ssh": by_ssh}
    parts["kills"] = lambda lab: kills(lab, given.kills, random.Random(given.seed))
    begun_s, folder = time.monotonic(), Path(tempfile.mkdtemp(prefix="fleet-", dir="/var/tmp"))
    with contextlib.ExitStack() as stack:
        if given.keep:
            print(f"in {folder}")
        else:
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
        lab = Lab(folder, given.wait, stack)
        for name in LIMITS_S:
            if name in given.only.split():
                part_s = time.monotonic()
                parts[name](lab)
                print(f"{name}: took {time.monotonic() - part_s:.0f} s", flush=True)
    print(f"seed {given.seed}, {time.monotonic() - begun_s:.0f} s in all")
    print("\n".join(lab.wrong) or "nothing wrong")
    return bool(lab.wrong)


if __name__ == "__main__":
    sys.exit(main())
