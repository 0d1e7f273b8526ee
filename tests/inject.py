"""Faults at random moments of smoke runs: signals to the runner or its kernel, and a reader that goes away.

    python tests/inject.py 200 1 "vae blas_torch"      so many faults, a seed, and the notebooks

Each run is of a few notebooks. The same command is started again, each time with another fault, until one ends by
itself; then a last one has to find nothing left to do. After each fault: no traceback, no process left, every line of
every journal still there, and nothing that needs no further attempt begun again. Prints a line for each fault, then how
often each kind was injected, how many of them after the first finished case, and what was not as it should be. Each
notebook's own time is a second or so: starting it is what takes long. Not part of `make test`.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil

from pomology.paths import root
from pomology.results import journal

KINDS = ["INT runner", "TERM runner", "INT twice", "TERM twice", "KILL runner", "KILL kernel", "INT kernel"]
KINDS += ["STOP runner", "STOP kernel", "reader gone", "clean"]
# What a run may not say.
BAD = ("Traceback", "Exception ignored", "BrokenPipe", "never retrieved", "pending", "Kernel died")
LATE = 0.7  # of the faults wait for a finished case
LIMIT_S = 400


def processes(mark: str) -> list[psutil.Process]:
    """Those that have this text in their environment, as all that a run starts."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("INJECTED") == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def held(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (*out.glob("*.jsonl"), *out.glob("*.ipynb"))}


def ended(out: Path) -> int:
    return sum(data.count(b'"event":"end"') for name, data in held(out).items() if name.endswith(".jsonl"))


def finished(out: Path) -> set[tuple[str, str, int]]:
    """The cases that need no further attempt."""
    journals = {path.stem: journal.read(path) for path in out.glob("*.jsonl")}
    records = [(name, record) for name, contents in journals.items() for record in contents.records]
    return {(name, r.case, r.repeat) for name, r in records if journals[name].done(r.case, r.repeat)}


def begun(name: str, data: bytes) -> set[tuple[str, str, int]]:
    lines = [json.loads(line) for line in data.splitlines() if line.endswith(b"}")]
    return {(name, line["case"], line["repeat"]) for line in lines if line["event"] == "start"}


class Run:
    """Starts of one command, each but the last with a fault."""

    def __init__(self, name: str, only: str, chance: random.Random):
        self.name, self.only, self.chance, self.out = name, only, chance, root() / "outputs" / name
        shutil.rmtree(self.out, ignore_errors=True)

    def start(self, kind: str) -> tuple[str, bool, int, list[str]]:
        """Run the command with a fault of this kind. Returns what came of it: the kind, or `none` if the command ended
        before; whether a case had finished; the exit status; and what is wrong."""
        mark, said = f"{self.name} {time.monotonic()}", root() / "outputs" / f"{self.name}.txt"
        before, done, cases = held(self.out), finished(self.out), ended(self.out)
        command = [sys.executable, "-m", "pomology", "reproduce", "--profile=smoke", f"--only={self.only}"]
        command += [f"--run={self.name}", "--device=cpu", "--data=stand-in"]
        with open(said, "w") as log:
            piped = {"stdout": subprocess.PIPE if kind == "reader gone" else log, "stderr": log}
            runner = psutil.Popen(command, env=os.environ | {"INJECTED": mark}, start_new_session=True, **piped)
        hit = kind != "none" and self._hit(kind, runner, mark, cases)
        try:
            status = runner.wait(LIMIT_S)
        except psutil.TimeoutExpired:
            status = None
        time.sleep(0.1 if status in (0, 1, 130) else 5)  # a kernel looks every second whether its runner lives
        left = processes(mark)
        for process in left:
            process.kill()
        wrong = [f"left: {process.pid}" for process in left]
        text = said.read_text().replace("its kernel died", "")
        if 'File "<frozen runpy>"' in text and "pomology" not in text:  # a signal before Python reads a line of the kit
            text = ""
        wrong += [f"said {bad}" for bad in BAD if bad in text]
        after = held(self.out)
        for name, data in before.items():
            if not after.get(name, b"").startswith(data):
                wrong.append(f"{name} has lost something")
            elif again := begun(Path(name).stem, after[name][len(data) :]) & done:
                wrong.append(f"measured again: {again}")
        allowed = {"INT": (130, 0, -2), "TERM": (130, 0, -15), "KILL": (-9,), "none": (0,)}
        allowed |= {"reader": (0,), "STOP": (0,), "clean": (0, 1)}
        expected = allowed[kind.split()[0]] if not kind.endswith("kernel") or "STOP" in kind else (0, 1)
        if status not in (expected if hit or kind == "none" else (0,)):
            wrong.append(f"exit status {status}")
        if wrong:
            print(said.read_text())
        return (kind if hit else "none"), ended(self.out) > 0 and (hit == "late" or cases > 0), status, wrong

    def _hit(self, kind: str, runner: psutil.Popen, mark: str, cases: int) -> str:
        """Wait for a moment, and do it. Returns `late` behind the first finished case, `early`, or "": too late."""
        late, begun_s = self.chance.random() < LATE, time.monotonic()
        while late and ended(self.out) == cases and runner.poll() is None and time.monotonic() - begun_s < LIMIT_S:
            time.sleep(0.02)
        time.sleep(self.chance.choice([0.05, 0.5, 2, 8] if late else [0.3, 3, 12]) * self.chance.random())
        target = runner
        if kind.endswith("kernel"):
            kernels = [process for process in processes(mark) if "ipykernel_launcher" in " ".join(process.cmdline())]
            if not kernels:
                return ""
            target = kernels[0]
        if runner.poll() is not None:
            return ""
        what = kind.split()[0]
        if what == "clean":
            shutil.rmtree(self.out / ".partial", ignore_errors=True)
        elif what == "reader":
            runner.stdout.close()
        else:
            try:
                target.send_signal(getattr(signal, f"SIG{what}"))
                if what == "STOP":
                    time.sleep(3 * self.chance.random())
                    target.send_signal(signal.SIGCONT)
                if kind.endswith("twice"):
                    time.sleep(self.chance.choice([0.02, 0.5, 3]) * self.chance.random())
                    target.send_signal(getattr(signal, f"SIG{what}"))
            except psutil.NoSuchProcess:
                return ""
        return "late" if ended(self.out) else "early"


def main(count: int, seed: int, only: str) -> int:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # else ignored, as in what a shell starts behind it
    chance, counts, behind, wrongs, run, number = random.Random(seed), Counter(), 0, [], None, 0
    while counts.total() < count or run:
        if run is None:
            run, number = Run(f"inject-{seed}-{number}", only, chance), number + 1
        kind = chance.choice(KINDS) if counts.total() < count else "none"
        found, after, status, wrong = run.start(kind)
        print(
            f"{counts.total()} {run.name}: {found}, {'behind' if after else 'before'} a case -> {status} {wrong}",
            flush=True,
        )
        wrongs += [f"{run.name}, {found}: {each}" for each in wrong]
        if found != "none":
            counts[found] += 1
            behind += after
        if status == 0:
            *_, wrong = run.start("none")
            wrongs += [f"{run.name}, at the end: {each}" for each in wrong]
            run = shutil.rmtree(run.out)
    print(dict(sorted(counts.items())), f"{behind} of {counts.total()} after the first finished case")
    print("\n".join(wrongs) or "nothing wrong")
    return bool(wrongs)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
