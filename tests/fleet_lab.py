"""The machines of inject_fleet.py: network namespaces of this one, each with a checkout of its own; and what is true of
a run that they have completed."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from nbformat import v4

ROOT, INSIDE = Path(__file__).resolve().parents[1], Path(__file__).with_name("fleet_inside.py")
HUB, BUCKET, SCHEDULER = "10.77.0.1", "http://10.77.0.1:9000", "tls://10.77.0.1:8786"
AWS = {"AWS_ACCESS_KEY_ID": "pomology", "AWS_SECRET_ACCESS_KEY": "pomology-pomology", "AWS_ENDPOINT_URL": BUCKET}
AWS |= {"AWS_DEFAULT_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true"}
CHIPS = ("Pretended One", "Pretended Two", "Pretended Three", "Pretended Stranger")
BAD = ("Traceback", "Exception ignored", "never retrieved", "was destroyed", "BrokenPipe")  # what no command may say
TICK_S, REPEATS = 0.1, 2
SHORT = {"first": (3.0, 2.0), "second": (2.0, 4.0)}  # notebooks: seconds of their cases

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
ON_IT = 'mount --bind "$1/tmp" /tmp && mount --bind "$1/cpuinfo" /proc/cpuinfo && cd "$1/kit" && shift && exec "$@"'


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
        inside = ("ip", "netns", "exec", self.netns, "sh", "-c", ON_IT, "sh", self.folder)
        with open(say or self.folder / "log.txt", "ab") as log:
            streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": subprocess.STDOUT}
            return subprocess.Popen([*map(str, (*inside, *words))], env=environment, start_new_session=True, **streams)

    def kit(self, *words: object, **more) -> subprocess.Popen:
        return self.start(sys.executable, "-m", "pomology", *words, **more)

    def inside(self, what: str, *words: object, **more) -> subprocess.Popen:
        """What fleet_inside.py has by this name."""
        return self.start(sys.executable, INSIDE, what, *words, **more)

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
        self.machines = [
            self.place(name, 11 + n, chip) for n, (name, chip) in enumerate(zip(names, CHIPS, strict=True))
        ]
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
            process = self.hub.inside("bucket", **AWS)
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
        where = (
            () if any(word.startswith(("--scheduler", "--hosts")) for word in more) else (f"--scheduler={SCHEDULER}",)
        )
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


def sums_of(folder: Path) -> list[str]:
    """Of its journals."""
    return sorted(hashlib.sha256(data).hexdigest() for data in journals(folder).values())


def ticks(machine: Place) -> Iterator[list[str]]:
    """What the cases on a machine have noted, but for what was torn: time, process, run, notebook, repeat, part."""
    lines = machine.ticks.read_text().splitlines() if machine.ticks.exists() else ()
    return (words for words in map(str.split, lines) if len(words) == 6)


def stretches(machine: Place) -> list[tuple[float, float, int, str]]:
    """First and last tick of each process on a machine, with its number and run, by time."""
    known: dict[tuple[int, str], list[float]] = defaultdict(list)
    for words in ticks(machine):
        known[int(words[1]), words[2]].append(float(words[0]))
    return sorted((min(times), max(times), *key) for key, times in known.items())


def never_two(lab: Lab) -> int:
    """Whether no two processes measured on one machine at a time, by what they noted; returns how many there were."""
    count = 0
    for machine in lab.machines:
        known = stretches(machine)
        count += len(known)
        for before, after in itertools.pairwise(known):
            lab.wants(before[1] < after[0], f"{machine.name}: two at a time: {before} and {after}")
    return count


def complete(
    lab: Lab, run: str, machines: list[Place], notebooks: Iterable[str], hits: Counter, repeats: int = REPEATS
) -> Counter:
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
        noted = {tuple(words[2:]) for words in ticks(machine)}
        spans = []
        for name in notebooks:
            held = journal.read(out / f"{name}.jsonl")
            lab.wants(hits["machine"] or not held.problems, f"{run}: {machine.name}: {held.problems}")
            records = {(record.config["part"], record.repeat): record for record in held.records}
            wanted = {(part, repeat) for part in range(len(lab.notebooks[name])) for repeat in range(repeats)}
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
        for before, after in itertools.pairwise(begun):  # stamps are to the second
            lab.wants(before[0] + before[1] < after[0] + 1, f"{run}: {machine.name}: by stamps {before} and {after}")
        files = {path.name for path in (*back.glob("*.ipynb"), *back.glob("repeats/*.ipynb"))}
        wanted = {f"{name}{f'-{repeat}' if repeat else ''}.ipynb" for name in notebooks for repeat in range(repeats)}
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
