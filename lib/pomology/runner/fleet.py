"""One run on many machines: each runs every notebook, one at a time, and what they finish comes back as it ends.

The machines are workers of a dask.distributed cluster. Here is who asks them: which machine has what left, begin the
next, show its rows, take its files. A machine's journals and notebooks stand in its own run folder, there and here, as
`outputs/<run>-fleet/<machine>/`. What a machine sends is a stranger's: bytes with the limits of a shared zip, checked
as a whole before any of it is written, and pages are made here out of them."""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import distributed
import filelock
import msgspec

from pomology import format
from pomology.errors import PomologyError
from pomology.format import one_line
from pomology.machine import snapshot as machine_snapshot
from pomology.paths import root
from pomology.report import compare
from pomology.results import cases, folders
from pomology.runner import batch, fleet_answers, fleet_cluster, fleet_worker, plan
from pomology.runner import fleet_wire as wire
from pomology.runner import parameters as rules
from pomology.runner.fleet_answers import Refused

LOOK_S = 1.0  # between two looks at a job, and at who is there
LOST_S = 60.0  # a machine that is gone so long is waited for no more, once all others are done
TRIES = 5  # of a job whose machine was lost meanwhile, in one command


class Lost(Exception):
    """A worker does not answer."""


@dataclass
class Machine:
    """workers: addresses that answer for it, of which the first is asked. gone_s: since when there is none. past: jobs
    that this command does not begin again; failed: those that did not end well. left_s: what the others will take."""

    name: str
    known: dict
    workers: list[str] = field(default_factory=list)
    gone_s: float | None = None
    past: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    tries: Counter = field(default_factory=Counter)
    left_s: float = 0.0
    page_s: float = 0.0
    task: asyncio.Task | None = None


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
    refused: dict[str, str] = field(default_factory=dict)  # workers by address, with why
    kit: str = field(default_factory=fleet_worker.kit)

    async def ask(self, address: str, kind: type, question: str, **given: Any) -> Any:
        """A worker's answer of this kind. Raises Lost where it gives none in time, Refused for any other."""
        message = {"op": "fleet", "ask": question, **given}
        try:
            async with asyncio.timeout(wire.CALL_S):
                answers = await self.scheduler.broadcast(msg=message, workers=[address], on_error="ignore")
            answer = answers[address]
        except wire.Pickled as error:
            raise Refused(str(error)) from None
        except Exception as error:  # of a cluster that others run: whatever it is, this call gave nothing
            raise Lost(one_line(str(error) or type(error).__name__)) from None
        if isinstance(answer, dict) and set(answer) == {"refused"}:
            raise Refused(one_line(answer["refused"], 500))
        try:
            return msgspec.convert(answer, kind)
        except (msgspec.ValidationError, RecursionError) as error:
            raise Refused(f"its answer to {question!r} is malformed ({one_line(error, 120)})") from None

    async def workers(self) -> list[str]:
        """Addresses of the fleet's workers. Raises Lost."""
        try:
            async with asyncio.timeout(wire.WAIT_S):
                known = (await self.scheduler.identity())["workers"]
            own = {address: about["resources"].get(wire.RESOURCE) for address, about in known.items()}
            return [address for address, count in own.items() if count]
        except Exception as error:
            raise Lost(one_line(str(error) or type(error).__name__)) from None

    async def meet(self, address: str) -> None:
        """Find out which machine a worker is on. Raises Lost, Refused."""
        about = await self.ask(address, fleet_answers.About, "about")
        if about.kit != self.kit:
            its, own = one_line(about.version, 80), fleet_worker.version()
            raise Refused(f"runs another kit (pomology {its}; here {own}): bring both to one state, then restart it")
        known = fleet_answers.machine_of(about.machine.encode())
        chip = re.sub(r"[^a-z0-9]+", "-", cases.short_chip(known.get("chip")).lower()).strip("-")[:40]
        name = f"{chip or 'machine'}-{about.drawn}"
        machine = self.machines.get(name) or Machine(name, known)
        if differ := folders.of_another_machine(machine.known, known):
            raise Refused(f"says that it is {name}, and differs in {'; '.join(differ)}")
        hosts = {_host(other) for other in machine.workers}
        if hosts and _host(address) not in hosts:
            raise Refused(
                f"says that it is {name}, which {one_line(machine.workers[0])} is; if its checkout is a copy "
                "of the other's, remove outputs/.fleet in one"
            )
        if name not in self.machines:
            self.say(f"{name}: {machine_snapshot.describe(known)}")
        self.machines[name] = machine
        machine.workers.append(address)

    async def look_around(self) -> None:
        """Meet workers that are new, and forget those that are gone; each machine is served by one task."""
        there = await self.workers()
        met = {address for machine in self.machines.values() for address in machine.workers}
        for address in sorted(set(there) - met - set(self.refused)):
            try:
                await self.meet(address)
            except Lost:
                continue  # asked again at the next look
            except Refused as error:
                self.refused[address] = str(error)
                self.say(f"{one_line(address)}: {error}; left out")
        for machine in self.machines.values():
            machine.workers = [address for address in machine.workers if address in there]
            machine.gone_s = None if machine.workers else machine.gone_s or time.monotonic()

    async def serve(self, machine: Machine) -> None:
        """All jobs of one machine, in turn, behind whatever it is doing already."""
        job = ""
        while True:
            while not machine.workers:
                await asyncio.sleep(LOOK_S)
            address = machine.workers[0]
            try:
                if (await self.ask(address, fleet_answers.Seen, "look", start=0)).status is None:
                    await self.follow(machine, address, "")
                await self.take(machine, address)
                while waiting := await self.waiting(machine, address):
                    job = waiting[0]
                    await self.one(machine, address, job, waiting)
                machine.left_s = 0.0
                return
            except Lost as error:
                self.say(f"{machine.name}: lost{f' in {job}' if job else ''} ({error}); it goes on once it is back")
                self.tried(machine, job)
                with contextlib.suppress(ValueError):
                    machine.workers.remove(address)  # met again if the scheduler still has it
            except Refused as error:
                self.say(f"{machine.name}: {job or 'left out'}: {error}")
                machine.past.add(job)
                machine.failed.add(job)
                if not job:
                    return

    def tried(self, machine: Machine, job: str) -> None:
        machine.tries[job] += 1
        if job and machine.tries[job] >= TRIES:
            machine.past.add(job)
            machine.failed.add(job)

    async def waiting(self, machine: Machine, address: str) -> list[str]:
        """The jobs that a machine has yet to do, in their order."""
        answer = await self.ask(address, fleet_answers.Missing, "missing", settings=self.settings)
        return [job for job in self.planned if job in {*answer.missing} - machine.past]

    async def one(self, machine: Machine, address: str, job: str, waiting: list[str]) -> None:
        """Run one job to its end, and take what it has left."""
        expected = {name: self.planned[name].notebook.seconds.get(self.settings["profile"], 0) for name in waiting}
        machine.left_s = sum(expected.values())
        given = {"settings": self.settings, "job": job, "limit_minutes": self.limit_minutes}
        if busy := (await self.ask(address, fleet_answers.Begun, "begin", **given)).busy:
            await self.follow(machine, address, busy)
            return
        about = f" about {format.clock_time(expected[job])};" if expected[job] else ""
        last_s = max(each.left_s for each in self.machines.values())
        ends = f"ends about {batch._clock(machine.left_s)}, all about {batch._clock(last_s)}" if last_s else ""
        left = f"{len(self.planned) - len(waiting) + 1}/{len(self.planned)}"
        self.say(f"{machine.name}: [{left}] {self.planned[job].label}:{about} {ends}".rstrip(": "))
        status = await self.follow(machine, address, job)
        await self.take(machine, address)
        if status in (0, 1, 2):
            machine.past.add(job)  # also of a notebook that lacks its device there
            machine.failed |= {job} if status else set()
        else:
            self.tried(machine, job)

    async def follow(self, machine: Machine, address: str, job: str) -> int:
        """Show what a job says until it ends; returns its exit status."""
        start = 0
        while True:
            seen = await self.ask(address, fleet_answers.Seen, "look", start=start)
            if job and seen.job != job:
                raise Lost("it was started again meanwhile")
            start += len(seen.text)
            for line in seen.text.splitlines():
                if line.startswith(("  ", "error", "note")) or seen.status not in (None, 0, 1, 130):
                    self.say(f"{machine.name}: {one_line(line.rstrip(), 300)}")
            if seen.status is not None:
                return seen.status
            await asyncio.sleep(LOOK_S)

    async def take(self, machine: Machine, address: str) -> None:
        """What has changed in a machine's folder, and its page anew, unless the last one took long and is fresh."""

        async def ask(kind: type, question: str, **given: Any) -> Any:
            return await self.ask(address, kind, question, **given)

        about = machine.known, self.settings["run"], self.settings["profile"]
        taken = await fleet_answers.take(ask, *about, self.folder / machine.name)
        if taken and (begun_s := time.monotonic()) > machine.page_s:
            await self.page(machine)
            machine.page_s = time.monotonic() + batch.PAGES * (time.monotonic() - begun_s)

    async def page(self, machine: Machine) -> None:
        command = (sys.executable, "-m", "pomology", "report", str(self.folder / machine.name))
        pipes = {"stdin": asyncio.subprocess.DEVNULL, "stdout": asyncio.subprocess.DEVNULL}
        process = await asyncio.create_subprocess_exec(*command, **pipes, stderr=asyncio.subprocess.PIPE)
        try:
            async with asyncio.timeout(300):
                _, errors = await process.communicate()
            if process.returncode:
                self.say(f"{machine.name}: no page: {one_line(errors.decode('utf-8', 'replace').strip(), 300)}")
        except TimeoutError:
            self.say(f"{machine.name}: no page: it takes more than 300 s")
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    async def first(self, where: str) -> None:
        """Wait for the first worker. Raises PomologyError where none comes, or one must be left out."""
        end_s = time.monotonic() + wire.WAIT_S
        while not self.machines:
            try:
                await self.look_around()
            except Lost:
                raise PomologyError(f"{where}: no scheduler answers there within {wire.WAIT_S:g} s") from None
            if self.refused:
                raise PomologyError("; ".join(f"{one_line(worker)}: {why}" for worker, why in self.refused.items()))
            if time.monotonic() > end_s:
                line = "`pomology fleet --worker-command` prints the line that starts one"
                raise PomologyError(f"{where}: no worker is there; {line}")
            await asyncio.sleep(0.2)

    async def run(self) -> int:
        """Serve all machines until each has done what it can, or is gone. Returns the exit status."""
        while True:
            for machine in self.machines.values():
                machine.task = machine.task or asyncio.create_task(self.serve(machine))
            now_s, going = time.monotonic(), [each for each in self.machines.values() if not each.task.done()]
            if all(each.gone_s and now_s - each.gone_s > LOST_S for each in going):
                break
            await asyncio.sleep(LOOK_S)
            try:
                await self.look_around()
            except Lost as error:
                self.say(f"the scheduler does not answer ({error}); the same command goes on once it does")
                break
        for machine in going:
            machine.task.cancel()
            await asyncio.wait([machine.task])
        status = 0
        for name, machine in sorted(self.machines.items()):
            broken = None if machine.task.cancelled() else machine.task.exception()
            if machine.task.cancelled() or machine.failed or broken:
                why = one_line(broken, 300) if broken else "did not finish everything"
                self.say(f"{name}: {why}; the same command completes what is missing")
                status = 1
            if broken and not isinstance(broken, (OSError, PomologyError)):
                raise broken
        for folder in sorted(self.folder.glob("[!.]*/machine.json")):
            if folder.parent.name not in self.machines:
                self.say(f"{folder.parent.name}: is not here now; its numbers are of before")
        return status


def _host(address: str) -> str:
    return address.rpartition(":")[0]


def prepare(
    profile: str, devices: str, only: str, run: str, data: str, repeats: int
) -> tuple[dict, dict[str, plan.Job], Path]:
    """Settings as workers get them, the jobs by name, and the folder here. Raises PomologyError as `plan.prepare`."""
    choices = {"PROFILE": (profile, rules.PROFILES), "DEVICE": (devices, rules.DEVICES), "DATA": (data, rules.DATA)}
    for name, (value, allowed) in choices.items():
        if value not in allowed:
            raise PomologyError(f"{name}={value}: must be one of {', '.join(allowed)}")
    out = plan.run_folder(run, profile)
    jobs = plan.jobs(profile, {"devices": devices, "data": data, "out": ""}, only, repeats)
    settings = dict(zip(fleet_worker.SETTINGS, (profile, devices, only, out.name, data, repeats), strict=True))
    return settings, {fleet_worker.job_name(job): job for job in jobs}, out.with_name(f"{out.name}-fleet")


def run(
    given: tuple[dict, dict[str, plan.Job], Path],
    scheduler: str,
    names: str,
    limit_minutes: float | None,
    insecure: bool,
    say: Callable[[str], None],
) -> int:
    """Run what is missing everywhere. Returns the exit status: 0, or 1 where something is missing or ended in error."""
    if scheduler and names:
        raise PomologyError("SCHEDULER and HOSTS: give one of them")
    fleet_cluster.hosts(names)
    settings, planned, folder = given
    folder.mkdir(parents=True, exist_ok=True)
    try:
        lock = filelock.FileLock(folder / folders.LOCK, blocking=False).acquire()
    except filelock.Timeout:
        raise PomologyError(f"RUN={settings['run']}: another `pomology fleet` is running there") from None

    async def serve() -> int:
        async with fleet_cluster.cluster(scheduler, names, insecure) as (address, secure):
            fleet = Fleet(settings, planned, folder, limit_minutes, say)
            arguments = secure.get_connection_args("client")
            async with distributed.rpc(address, connection_args=arguments) as fleet.scheduler:
                where = f"SCHEDULER={scheduler}" if scheduler else f"HOSTS={names}" if names else "the local worker"
                await fleet.first(where)
                say(
                    f"{len(planned)} notebooks to run on each machine, into outputs/{settings['run']}/ there and "
                    f"outputs/{folder.name}/ here"
                )
                return await fleet.run()

    with lock:
        with wire.nothing_unpickled():
            status = asyncio.run(serve())
        machines = sorted(path.parent for path in folder.glob("[!.]*/machine.json"))
        if len(machines) > 1:
            *_, page = compare.write([compare.load(each) for each in machines], folder)
            say(f"compared: {page.relative_to(root())}")
    return status
