"""One run on many machines: each runs every notebook, one at a time, and what they finish comes back as it ends.

The machines are workers of a dask.distributed cluster. Here is who asks them: begin what is missing, show its rows,
take its files. A machine's journals and notebooks stand in its own run folder, there and here, as
`outputs/<run>-fleet/<machine>/`. What a machine sends is a stranger's: bytes with the limits of a shared zip, checked
as a whole before any of it is written, and pages are made here out of them."""

import asyncio
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import distributed
import msgspec

from pomology import format
from pomology.errors import PomologyError
from pomology.extras.fleet import fleet_answers, fleet_cluster, fleet_worker
from pomology.extras.fleet import fleet_wire as wire
from pomology.extras.fleet.fleet_answers import Refused
from pomology.format import one_line
from pomology.machine import snapshot as machine_snapshot
from pomology.paths import root
from pomology.report import compare
from pomology.results import cases, folders
from pomology.runner import batch, plan

LOOK_S = 1.0  # between two looks at a job, and at who is there
LOST_S = 120.0  # a machine that is silent so long is waited for no more, once all others are done
TRIES = 5  # of a job that does not come to its end, in one command, and of a machine that is lost in a row


class Lost(Exception):
    """A worker, or the scheduler, does not answer."""


@dataclass
class Machine:
    """workers: addresses that answer for it, of which the first is asked. heard_s: when it last did. begun: how often
    each job was; ended: exit statuses of jobs. left_s: what the others will take. page_s: when its page may be made."""

    name: str = ""
    known: dict = field(default_factory=dict)
    workers: list[str] = field(default_factory=list)
    heard_s: float = field(default_factory=time.monotonic)
    begun: Counter = field(default_factory=Counter)
    ended: dict[str, int] = field(default_factory=dict)
    failed: bool = True  # until it has done what it can
    left_s: float = 0.0
    page_s: float = 0.0
    stale: bool = False  # its page
    task: asyncio.Task | None = None

    @property
    def past(self) -> set[str]:
        """The jobs that this command does not begin again."""
        return {*self.ended} | {job for job, count in self.begun.items() if count >= TRIES}


@dataclass
class Fleet:
    """A run on all machines of a cluster. folder: where what comes back stands, a folder for each machine."""

    settings: dict
    planned: dict[str, plan.Job]
    folder: Path
    limit_minutes: float | None
    say: Callable[[str], None]
    scheduler: Any = None
    machines: dict[str, Machine] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)  # addresses of workers
    silent: set[str] = field(default_factory=set)
    meeting: dict[str, asyncio.Task] = field(default_factory=dict)  # by address
    away: str = ""  # why the scheduler does not answer
    kit: str = field(default_factory=fleet_worker.kit)

    async def ask(self, machine: Machine, kind: type, question: str, **given: Any) -> Any:
        """A machine's answer of this kind. Raises Lost where it gives none in time, and asks that worker no more until
        it is met again; Refused for any other answer."""
        if not machine.workers:
            raise Lost("none of its workers is there")
        address, message = machine.workers[0], {"op": "fleet", "ask": question, **given}
        try:
            async with asyncio.timeout(wire.CALL_S):
                answers = await self.scheduler.broadcast(msg=message, workers=[address], on_error="ignore")
            answer = dict(answers)[address]
        except wire.Unread as error:
            raise Refused(str(error)) from None
        except Exception as error:  # of a cluster that others run: whatever it is, this call gave nothing
            machine.workers = [other for other in machine.workers if other != address]
            known = isinstance(error, (KeyError, TimeoutError))
            raise Lost("no answer" if known else one_line(error or type(error).__name__)) from None
        machine.heard_s = time.monotonic()
        if isinstance(answer, dict) and set(answer) == {"refused"}:
            raise Refused(one_line(answer["refused"], 500))
        try:
            return msgspec.convert(answer, kind)
        except (msgspec.ValidationError, RecursionError) as error:
            raise Refused(f"its answer to {question!r} is malformed ({one_line(error, 120)})") from None

    async def look_around(self) -> None:
        """Meet workers that are new, and forget those that are gone; each machine is served by one task."""
        there, before = [], self.away
        try:
            async with asyncio.timeout(wire.WAIT_S):
                known = (await self.scheduler.identity())["workers"]
            there = [address for address, about in known.items() if about["resources"].get(wire.RESOURCE)]
            self.away = ""
        except Exception as error:  # as in `ask`
            self.away = one_line(str(error) or type(error).__name__)
        if self.away and not before and self.machines:
            self.say(f"the scheduler does not answer ({self.away}); it is waited for, at most {LOST_S:g} s")
        met = {address for machine in self.machines.values() for address in machine.workers}
        for address in {*there} - met - self.refused - self.meeting.keys():
            self.meeting[address] = asyncio.create_task(self.meet(address))
        for machine in self.machines.values():
            machine.workers = [address for address in machine.workers if address in there]
            machine.task = machine.task or asyncio.create_task(self.serve(machine))

    async def meet(self, address: str) -> None:
        """Find out which machine a worker is on."""
        try:
            about = await self.ask(Machine(workers=[address]), fleet_answers.About, "about")
            if about.kit != self.kit:
                kits = f"pomology {one_line(about.version, 80)}; here {fleet_worker.version()}"
                raise Refused(f"runs another kit ({kits}): bring both to one state, then restart it")
            known = fleet_answers.machine_of(about.machine.encode())
            name = f"{cases.chip_word(known.get('chip'))}-{about.drawn}"
            machine = self.machines.get(name) or Machine(name, known)
            if differ := folders.of_another_machine(machine.known, known):
                raise Refused(f"says that it is {name}, and differs in {'; '.join(differ)}")
            other = next(iter(machine.workers), address)
            if other.rpartition(":")[0] != address.rpartition(":")[0]:
                copied = "if its checkout is a copy of the other's, remove outputs/.fleet in one"
                raise Refused(f"says that it is {name}, which {one_line(other)} is; {copied}")
            if name not in self.machines:
                self.say(f"{name}: {machine_snapshot.describe(known)}")
            self.machines[name] = machine
            machine.workers.append(address)
        except Lost as error:  # asked again at the next look
            if address not in self.silent:
                self.say(f"{one_line(address)}: {error}")
            self.silent.add(address)
        except Refused as error:
            self.refused.add(address)
            self.say(f"{one_line(address)}: {error}; left out")
        finally:
            del self.meeting[address]

    async def serve(self, machine: Machine) -> None:
        """All jobs of one machine, in turn, behind whatever it is doing already."""
        about, lost, lost_s = (machine.known, self.settings["run"], self.settings["profile"]), 0, 0.0
        while True:
            while not machine.workers:
                await asyncio.sleep(LOOK_S)
            job = ""
            try:
                taken = await fleet_answers.take(partial(self.ask, machine), *about, self.folder / machine.name)
                machine.stale |= bool(taken)
                if time.monotonic() > machine.page_s:
                    await self.page(machine)
                given = {"settings": self.settings, "past": [*machine.past], "limit_minutes": self.limit_minutes}
                begun = await self.ask(machine, fleet_answers.Begun, "begin", **given)
                if not begun.job:
                    await self.page(machine)
                    machine.failed = any(machine.ended.values()) or not {*begun.missing} <= machine.ended.keys()
                    machine.left_s = 0.0
                    return
                if not begun.busy:
                    job = begun.job
                    machine.begun[job] += 1
                    self.announce(machine, job, [name for name in begun.missing if name not in machine.past | {job}])
                status = await self.follow(machine, begun.job)
                if job and status in (0, 1, 2):
                    machine.ended[job] = status  # also of a notebook that lacks its device there
                lost = 0
            except Lost as error:
                lost, lost_s = 1 + lost * (time.monotonic() - lost_s < LOST_S), time.monotonic()
                what = f"lost{f' in {one_line(job)}' if job else ''} ({error})"
                if lost > TRIES:
                    self.say(f"{machine.name}: {what} again and again; left out")
                    return
                if lost == 1:
                    self.say(f"{machine.name}: {what}; it goes on once it is back")
                await asyncio.sleep(min(LOOK_S * 2**lost, LOST_S / 4))
            except Refused as error:
                self.say(f"{machine.name}: {error}; left out")
                return

    def announce(self, machine: Machine, job: str, later: list[str]) -> None:
        """Say what begins, and when all is expected to end."""
        stated = {name: each.notebook.seconds.get(self.settings["profile"], 0) for name, each in self.planned.items()}
        own_s = stated.get(job, 0)
        machine.left_s = own_s + sum(stated.get(name, 0) for name in later)
        last_s = max(each.left_s for each in self.machines.values())
        ends = f"ends about {format.time_of_day(machine.left_s)}, all about {format.time_of_day(last_s)}"
        label = self.planned[job].label if job in self.planned else one_line(job)
        place = f"[{max(1, len(self.planned) - len(later))}/{len(self.planned)}]"
        self.say(f"{machine.name}: {place} {label}{f': about {format.clock_time(own_s)}; {ends}' if own_s else ''}")

    async def follow(self, machine: Machine, job: str) -> int:
        """Show what a job says until it ends; returns its exit status."""
        start = 0
        while True:
            seen = await self.ask(machine, fleet_answers.Seen, "look", start=start)
            if seen.job != job:
                raise Lost("it was started again meanwhile")
            start += len(seen.text)
            for line in seen.text.splitlines():
                if line.startswith(("  ", "error", "note")) or seen.status not in (None, 0, 1, 130):
                    self.say(f"{machine.name}: {one_line(line.rstrip(), 300)}")
            if seen.status is not None:
                return seen.status
            await asyncio.sleep(LOOK_S)

    async def page(self, machine: Machine) -> None:
        """A machine's page anew, if it has to be; not again soon if that took long."""
        if not machine.stale:
            return
        begun_s, command = time.monotonic(), (sys.executable, "-m", "pomology", "report", self.folder / machine.name)
        try:
            await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True, timeout=300)
        except subprocess.SubprocessError as error:
            why = (error.stderr or b"").decode("utf-8", "replace").strip() or error
            self.say(f"{machine.name}: no page: {one_line(why, 300)}")
        machine.page_s, machine.stale = time.monotonic() + batch.PAGES * (time.monotonic() - begun_s), False

    async def run(self, where: str) -> int:
        """Serve all machines until each has done what it can, or is gone. Returns the exit status. Raises PomologyError
        where there is none."""
        begun_s = time.monotonic()
        while True:
            await self.look_around()
            now_s, waited = time.monotonic(), self.meeting.keys() - self.silent
            going = [each for each in self.machines.values() if not (each.task and each.task.done())]
            if self.machines and not waited and all(now_s - each.heard_s > LOST_S for each in going):
                break
            if not (self.machines or waited) and (self.refused or now_s - begun_s > wire.WAIT_S):
                line = "no worker is there; `pomology fleet --worker-command` prints the line that starts one"
                line = f"no scheduler answers there within {wire.WAIT_S:g} s" if self.away else line
                raise PomologyError(f"{where}: {'every worker there is left out' if self.refused else line}")
            await asyncio.sleep(LOOK_S if self.machines else 0.2)
        for task in (*self.meeting.values(), *(machine.task for machine in going)):
            task.cancel()
        status, machines = 0, sorted(self.machines.values(), key=lambda machine: machine.name)
        ends = await asyncio.gather(*(machine.task for machine in machines), return_exceptions=True)
        for machine, end in zip(machines, ends, strict=True):
            if isinstance(end, Exception) and not isinstance(end, (OSError, PomologyError)):
                raise end
            if end or machine.failed:
                why = one_line(end, 300) if isinstance(end, Exception) else "did not finish everything"
                self.say(f"{machine.name}: {why}; the same command completes what is missing")
                status = 1
        return status


def gathered(folder: Path) -> list[Path]:
    """The folders of all machines, of which a fleet's is made."""
    return sorted(path.parent for path in folder.glob("[!.]*/machine.json"))


def run(
    asked: plan.Asked,
    scheduler: str,
    names: str,
    limit_minutes: float | None,
    insecure: bool,
    say: Callable[[str], None],
) -> tuple[int, str, list[Path]]:
    """Run what is missing everywhere. Returns the exit status, 0, or 1 where something is missing or ended in error;
    the run's name; and the folders of all machines.

    Raises PomologyError as `plan.prepare`."""
    if scheduler and names:
        raise PomologyError("SCHEDULER and HOSTS: give one of them")
    plan.check_choices(asked.profile, asked.devices, asked.data)
    name = plan.run_folder(asked.run, asked.profile).name
    given = {"devices": asked.devices, "data": asked.data, "out": ""}
    jobs = plan.jobs(asked.profile, given, asked.only, asked.repeats)
    planned = {job.name: job for job in jobs}
    folder = root() / "outputs" / f"{name}-fleet"
    folder.mkdir(parents=True, exist_ok=True)

    async def serve() -> int:
        async with fleet_cluster.cluster(scheduler, names, insecure, say) as (address, secure):
            fleet = Fleet(asked._replace(run=name)._asdict(), planned, folder, limit_minutes, say)
            arguments = secure.get_connection_args("client")
            async with distributed.rpc(address, connection_args=arguments) as fleet.scheduler:
                there = f"outputs/{name}/ there and outputs/{folder.name}/ here"
                say(f"{len(planned)} notebooks to run on each machine, into {there}")
                where = f"SCHEDULER={scheduler}" if scheduler else f"HOSTS={names}" if names else "the local worker"
                status = await fleet.run(where)
                for place in gathered(folder):
                    if place.name not in fleet.machines:
                        left = sum(not batch.finished(job, place) for job in jobs)
                        say(f"{place.name}: is not here now; of {len(jobs)} notebooks {left} are missing")
                        status = 1 if left else status
                return status

    with folders.locked(folder, name, "fleet"):
        for left in folder.glob(".partial-*"):  # of a command that was killed
            shutil.rmtree(left)
        with wire.nothing_unpickled():
            status = asyncio.run(serve())
        sides = []
        for machine in gathered(folder):
            try:
                sides.append(compare.load(machine))
            except PomologyError as error:
                say(f"not compared: {error}")
        if len(sides) > 1:
            *_, page = compare.write(sides, folder)
            say(f"compared: {page.relative_to(root())}")
    return status, name, gathered(folder)
