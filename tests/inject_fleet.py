"""A fleet of three machines in network namespaces of this one, and all that may happen to it; needs root on Linux.

    python tests/inject_fleet.py --kills=100 --seed=1        or a part: --only="throughput kills"

Each machine has a checkout, a /tmp, an address and a processor's name of its own. Its notebooks wait: what is measured
is what the runner itself takes. While they wait they note the time every 0.1 s, apart from the journals, which are
compared with that.

throughput: three machines against one. kills: workers, whole machines, the scheduler, the command and the bucket (of
moto) are killed or silenced, links cut, at random; the same command until all is complete. beside: `make reproduce`
beside a worker. hostile: a worker that lies. tls: who is let in. ssh: HOSTS by an sshd on each machine. local: none of
these. Each part has a limit of time; all of it takes some 15 minutes on two cores. Exit status 1 if anything was not as
it should be.

Needs iproute2, for ssh also openssh-server. Not part of `make test`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from fleet_inside import LIES
from fleet_lab import (
    AWS,
    BAD,
    REPEATS,
    SCHEDULER,
    SHORT,
    TICK_S,
    Growing,
    Lab,
    Place,
    complete,
    journals,
    never_two,
    stretches,
    sums_of,
    system,
    until,
    wait_for,
)

KINDS = ("worker", "worker", "machine", "sleep", "link", "link", "scheduler", "command", "bucket")
LIMITS_S = {"throughput": 400, "kills": 480, "beside": 150, "hostile": 150, "tls": 90, "ssh": 120, "local": 60}


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
        status = wait_for(lab.command(run, "long", "--repeats=1"), LIMITS_S["throughput"] / 2)
        walls[run] = time.monotonic() - begun_s
        lab.wants(status == 0, f"{run}: exit status {status}")
        counts = complete(lab, run, machines, ["long"], Counter(), 1)
        own_s = walls[run] - sum(lab.notebooks["long"])
        print(
            f"throughput: {run}: {counts['rows']} rows in {walls[run]:.1f} s, {own_s:.1f} s of it the runner's",
            flush=True,
        )
    ratio = 3 * walls["alone"] / walls["three"]
    print(f"throughput: {ratio:.2f} times the work of one in the same time", flush=True)
    lab.wants(ratio >= 2.7, f"throughput: {ratio:.2f}, below 2.7")


def measures(machine: Place) -> bool:
    """Whether a case is under way there."""
    return machine.ticks.exists() and time.time() - machine.ticks.stat().st_mtime < 3 * TICK_S


def says(machine: Place, text: str) -> bool:
    log = machine.folder / "log.txt"
    return log.exists() and text in log.read_text(errors="replace")


class Faults:
    """Kills, cuts and silences at random, each mended after a while."""

    def __init__(self, lab: Lab, chance: random.Random):
        self.lab, self.chance, self.counts = lab, chance, Counter()
        self.mending: dict[str, tuple[float, Callable[[], object]]] = {}  # by what is broken
        self.inside = 0  # how many hit a machine while a case was under way
        self.dropped = lab.hub.folder / "tmp" / "dropped"

    def hit(self, command: subprocess.Popen, kind: str = "") -> None:
        """One of `KINDS`, of what is not broken yet; most of the machines that are hit are measuring."""
        kind, machines = kind or self.chance.choice(KINDS), self.lab.machines
        if self.chance.random() < 0.8:
            machines = [each for each in machines if measures(each)] or machines
        machine = self.chance.choice(machines)
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
        self.inside += target == machine.name and measures(machine)
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
        back = lab.hub.outputs / f"{run}-fleet"
        # A machine that the command has never met is not waited for by it.
        while (
            status != 0 or len([*back.glob("[!.]*/machine.json")]) < len(lab.machines)
        ) and time.monotonic() < end_s + 90:
            command = lab.command(run, " ".join(SHORT), "--store=s3://lab/kept", **AWS)
            totals["commands"] += 1
            putting, put = lab.said(run).read_text(errors="replace").count("compared: "), False
            while command.poll() is None and time.monotonic() < end_s + 90:
                faults.mend()
                if time.monotonic() > next_s and faults.counts.total() < count and time.monotonic() < end_s:
                    faults.hit(command)
                    next_s = time.monotonic() + chance.uniform(0.5, 5.0)
                    growing.look()
                text = lab.said(run).read_text(errors="replace")
                if not put and text.count("compared: ") > putting and faults.counts.total() < count:
                    put = True
                    time.sleep(chance.uniform(0, 2))
                    faults.hit(command, "bucket")
                    totals["bucket, while it is written to"] += 1
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
    totals["hit in a case"] = faults.inside
    print(f"kills: {faults.counts.total()}: {dict(sorted(faults.counts.items()))}", flush=True)
    print(f"kills: {dict(sorted(totals.items()))}", flush=True)
    lab.wants(faults.counts.total() == count, f"kills: {faults.counts.total()} of {count} in the time that there is")


def kept(lab: Lab, run: str) -> None:
    """What the bucket has of a run is what came back."""
    answer = lab.folder / f"{run}-kept.json"
    status = wait_for(lab.hub.inside("kept", run, answer, **AWS), 60)
    there = json.loads(answer.read_text()) if status == 0 else {}
    folders = {path.parent for path in (lab.hub.outputs / f"{run}-fleet").glob("[!.]*/machine.json")}
    sums = sorted(map(sums_of, folders))
    lab.wants(sorted(there.values()) == sums, f"{run}: the bucket has something else")


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


def hostile(lab: Lab) -> None:
    """A worker for each of `LIES`, two that are accepted (malformed lines, escapes), and an honest machine."""
    one = only_one(lab)
    if not (place := one.outputs / ".fleet").exists():
        place.write_text("0a" * 6)
    drawn = place.read_text()
    liar = lab.stranger.inside("liar", drawn)
    lab.wants(until(lambda: says(lab.stranger, "all lies are told"), 60), "hostile: the liar did not start")
    before = tree(lab.hub.folder / "kit")
    # A machine that is lost is waited for two minutes: here less.
    program = (
        "import sys; from pomology import __main__; from pomology.extras.fleet import fleet; fleet.LOST_S = 15.0; "
    )
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
    came = {
        path.name: sum(each.stat().st_size for each in path.rglob("*") if each.is_file())
        for path in (lab.hub.outputs / "hostile-fleet").glob("pretended-stranger-*")
    }
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
        status = wait_for(lab.stranger.inside("knock", place.address, answered, *ports), 40)
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
        settings += f"SetEnv PYTHONPATH={machine.folder}/kit/lib JUPYTER_RUNTIME_DIR={machine.folder}/runtime\n"
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


def local(lab: Lab) -> None:
    """Neither SCHEDULER nor HOSTS: one worker, which ends with the command."""
    command = lab.hub.kit("fleet", "--profile=smoke", "--run=local", "--only=first", say=lab.said("local"))
    lab.wants(wait_for(command, LIMITS_S["local"]) == 0, "local: exit status")
    counts = complete(lab, "local", [lab.hub], ["first"], Counter(), 1)
    left = [pid for pid in lab.hub.pids() if b"fleet_worker" in command_of(pid)]
    lab.wants(not left, f"local: processes are left: {left}")
    print(f"local: {counts['rows']} rows; no process is left", flush=True)


def command_of(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def main() -> int:
    option = (parser := argparse.ArgumentParser()).add_argument
    option("--kills", type=int, default=100)
    option("--seed", type=int, default=1)
    option("--wait", type=float, default=120.0, help="seconds that the notebook of the throughput waits")
    option("--only", default=" ".join(LIMITS_S), help=f"of {', '.join(LIMITS_S)}")
    option("--keep", action="store_true", help="the folders, to look at")
    given = parser.parse_args()
    if sys.platform != "linux" or os.geteuid() or not shutil.which("ip"):
        print("inject_fleet: needs root on Linux, and iproute2 (apt-get install iproute2)")
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    parts = {"throughput": throughput, "beside": beside, "hostile": hostile, "tls": tls, "ssh": by_ssh, "local": local}
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
