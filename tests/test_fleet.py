"""The fleet: what is refused of addresses, hosts, messages and files, and who is waited for.

`inject_fleet.py` has it for real, on machines in network namespaces.
"""

import asyncio
import hashlib
import json
import os
import pickle
import threading

import pytest
import records

pytest.importorskip("distributed", reason="`make env EXTRAS=fleet` installs it (CI does)")
pytest.importorskip("asyncssh", reason="`make env EXTRAS=fleet` installs it (CI does)")

from pomology.errors import PomologyError
from pomology.extras.fleet import fleet, fleet_answers, fleet_cluster, fleet_worker
from pomology.extras.fleet import fleet_wire as wire
from pomology.machine import quiet, snapshot


@pytest.mark.parametrize(
    "text",
    ["localhost:1", "tcp://a b:1", "tcp://a:99999", "tcp://a;b:1", "tcp://[1:::2]:1", "http://a:1", "tcp://-a:1"],
)
def test_an_address_of_another_form_is_refused(text):
    with pytest.raises(PomologyError, match="must be tcp://host:port"):
        wire.address(text, "SCHEDULER", True)


def test_beyond_this_machine_only_tls_or_what_is_named_insecure():
    assert wire.address("tcp://127.0.0.1:1", "SCHEDULER", False).port == 1
    for text in ("tcp://10.0.0.1:1", "tcp://0.0.0.0:1", "tcp://mini1:1"):
        with pytest.raises(PomologyError, match="INSECURE=1"):
            wire.address(text, "SCHEDULER", False)
        assert wire.address(text, "SCHEDULER", True).geturl() == text
        assert wire.address(text.replace("tcp", "tls"), "SCHEDULER", False).scheme == "tls"


def test_certificates_that_are_missing_are_named(monkeypatch):
    monkeypatch.setenv("POMOLOGY_TLS_CA", "/no/such/file")
    with pytest.raises(PomologyError, match="POMOLOGY_TLS_CA=/no/such/file"):
        wire.security("tls")


@pytest.mark.parametrize(
    "text", ["a;b", "$(x)", "user@", "-oProxyCommand=x", "a@b@c", "u@h:0", "u@h:70000", "a`b`", "a'b"]
)
def test_hosts_hold_no_shell_text(text):
    with pytest.raises(PomologyError, match="HOSTS"):
        fleet_cluster.hosts(f"user@good {text}")
    assert fleet_cluster.hosts("anna@mini1 studio-2.local:2222") == [
        ("anna", "mini1", 22),
        ("", "studio-2.local", 2222),
    ]


class Evil:
    def __reduce__(self):
        return os.mkdir, (self.place,)


def test_no_pickle_that_names_a_function_is_read(tmp_path):
    from distributed import protocol

    evil = Evil()
    evil.place = str(tmp_path / "ran")
    pickled = pickle.dumps(evil)
    frames = list(map(bytes, protocol.dumps({"x": protocol.to_serialize(evil)})))
    with wire.nothing_unpickled():
        for read in (lambda: pickle.loads(pickled), lambda: protocol.loads(frames), lambda: pickle._loads(pickled)):
            with pytest.raises(wire.Unread):
                read()
        assert pickle.loads(pickle.dumps({"a": [1, b"2"]})) == {"a": [1, b"2"]}
    assert not (tmp_path / "ran").exists()
    pickle.loads(pickled)  # else the refusal would show nothing
    assert (tmp_path / "ran").exists()


MACHINE = {"profile": "smoke"}


@pytest.fixture
def known() -> dict:
    return snapshot.snapshot()


def taken(tmp_path, known, files, lie=lambda data: data):
    """Take files of a run, by name; `lie` changes what is sent of them."""

    async def ask(kind, question, **given):
        if question == "files":
            return kind({name: fleet_worker.Entry.of(data) for name, data in files.items()})
        data = files[given["name"]][given["start"] : given["start"] + given["size"]]
        return kind(lie(data))

    return asyncio.run(fleet_answers.take(ask, known, "r", "smoke", tmp_path / "m"))


def journal_of(tmp_path, known, **more) -> bytes:
    one = records.record(**{"chip": known["chip"], "profile": "smoke"} | more)
    return (records.write(tmp_path / hashlib.sha256(repr(more).encode()).hexdigest(), [one]) / "vae.jsonl").read_bytes()


def test_what_a_machine_sends_is_taken_whole_or_not_at_all(tmp_path, known):
    machine = json.dumps(known | MACHINE).encode()
    journal = journal_of(tmp_path, known)
    good = {"machine.json": machine, "vae.jsonl": journal}
    assert sorted(taken(tmp_path, known, good)) == sorted(good) and taken(tmp_path, known, good) == []
    assert (tmp_path / "m" / "vae.jsonl").read_bytes() == journal
    other = json.dumps(known | MACHINE | {"chip": "Apple M9"}).encode()
    wrong = {
        "no file of a run": {"../vae.jsonl": journal},
        "is no file": {"index.html": b"<script>"},
        "another machine's": {"machine.json": other},
        "describes no machine": {"machine.json": b"[" * 100_000},
        "without lines that are here": {"vae.jsonl": journal_of(tmp_path, known, status="error")},
        "of another notebook, profile or machine": {
            "vae.jsonl": journal + journal_of(tmp_path, known, chip="Apple M9"),
        },
        "no notebook of this kit": {"invented.jsonl": journal},
        "not a notebook": {"vae.ipynb": pickle.dumps(Evil)},
    }
    for why, files in wrong.items():
        before = {path: path.read_bytes() for path in (tmp_path / "m").rglob("*") if path.is_file()}
        with pytest.raises(fleet_answers.Refused, match=why.replace("is no file", "which is no file")):
            taken(tmp_path, known, good | files)
        assert before == {path: path.read_bytes() for path in (tmp_path / "m").rglob("*") if path.is_file()}
    more = {"vae.jsonl": journal + journal}
    with pytest.raises(fleet_answers.Refused, match="another content"):
        taken(tmp_path, known, good | more, lambda data: data[::-1])
    with pytest.raises(fleet_answers.Refused, match="another size"):
        taken(tmp_path, known, good | more, lambda data: data[:1])
    assert taken(tmp_path, known, good | more) == ["vae.jsonl"]


def test_no_message_is_read_that_is_too_large_or_packed():
    from distributed import comm, protocol

    async def sent(message: object) -> object:
        """What a peer's message is on this side; as of a peer that packs what it sends."""
        got = asyncio.Queue()

        async def hear(line) -> None:
            try:
                got.put_nowait(await line.read())
            except Exception as error:
                got.put_nowait(error)

        async with comm.listen("tcp://127.0.0.1:0", hear) as listener:
            line = await comm.connect(listener.contact_address)
            line.handshake_options["compression"] = "zlib"
            await line.write(message)
            answer = await asyncio.wait_for(got.get(), 10)
            await line.close()
            return answer

    zeros = bytes(2**20)
    assert asyncio.run(sent({"x": protocol.to_serialize(zeros)}))["x"] == zeros  # else the refusal would show nothing
    with wire.nothing_unpickled():
        assert asyncio.run(sent({"x": zeros}))["x"] == zeros
        for message in ({"x": protocol.to_serialize(zeros)}, {"x": bytes(wire.MOST)}):
            assert isinstance(asyncio.run(sent(message)), wire.Unread), len(message)


def test_who_measures_waits_for_who_does():
    begun, end, heard, order = threading.Event(), threading.Event(), [], []

    def first() -> None:
        with quiet.alone(heard.append):
            begun.set()
            end.wait(10)
            order.append("first")

    def say(line: str) -> None:
        heard.append(line)
        end.set()

    thread = threading.Thread(target=first)
    thread.start()
    assert begun.wait(10)
    with quiet.alone(say):
        order.append("second")
    thread.join()
    assert order == ["first", "second"] and len(heard) == 1 and str(quiet.LOCK) in heard[0]


class Pretended:
    """A scheduler, and machines that have two notebooks to run; away: how often it does not answer when it is asked."""

    def __init__(self, *drawn: str, away: int = 0):
        self.left = {f"tcp://10.0.0.{number}:1": ["a", "b"] for number in range(len(drawn))}
        self.drawn, self.away, self.job = dict(zip(self.left, drawn, strict=True)), away, dict.fromkeys(self.left, "")
        self.looks = 0

    async def identity(self) -> dict:
        if self.away and any(self.job.values()):
            self.away -= 1
            raise OSError("gone")
        return {"workers": {address: {"resources": {wire.RESOURCE: 1}} for address in self.left}}

    async def broadcast(self, msg: dict, workers: list[str], on_error: str) -> dict:
        (address,) = workers
        if self.drawn[address] == "silent":
            return {}
        return {address: getattr(self, msg["ask"])(address, msg)}

    def about(self, address: str, _: dict) -> dict:
        machine = json.dumps(snapshot.snapshot())
        return {"kit": fleet_worker.kit(), "version": "1", "drawn": self.drawn[address], "machine": machine}

    def files(self, address: str, _: dict) -> dict:
        return {"files": {"../x.jsonl": [1, "0" * 64]} if self.drawn[address] == "f" * 12 else {}}

    def begin(self, address: str, msg: dict) -> dict:
        missing = self.left[address]
        self.job[address] = next((job for job in missing if job not in msg["past"]), "")
        return {"job": self.job[address], "busy": False, "missing": missing}

    def look(self, address: str, _: dict) -> dict:
        self.looks += 1
        ended = self.looks % 4 == 0
        if ended:
            self.left[address] = [job for job in self.left[address] if job != self.job[address]]
        text = "  a row\x1b[2J\nnot shown\n" if ended else ""
        return {"job": self.job[address], "text": text, "status": 0 if ended else None}


@pytest.fixture
def fleet_of(tmp_path, monkeypatch):
    """Run a fleet of pretended machines; returns the exit status and what it said."""
    monkeypatch.setattr(fleet, "LOOK_S", 0.01)

    def run(cluster: Pretended) -> tuple[int, list[str]]:
        said = []
        settings = {"run": "r", "profile": "smoke"}
        ran = fleet.Fleet(settings, {}, tmp_path / "r-fleet", None, said.append, cluster)
        return asyncio.run(ran.run("here")), said

    return run


def test_a_fleet_waits_for_its_scheduler_and_leaves_out_who_is_hostile_or_silent(fleet_of, monkeypatch):
    cluster = Pretended("0" * 12, "f" * 12, "silent", away=3)
    status, said = fleet_of(cluster)
    honest, hostile = [[line for line in said if f"-{digit * 12}: " in line] for digit in "0f"]
    assert status == 1 and cluster.left["tcp://10.0.0.0:1"] == []
    shown = {line.partition(": ")[2] for line in honest[1:] if "lost in" not in line}
    assert shown == {"[1/0] a", "[1/0] b", "  a row\N{REPLACEMENT CHARACTER}[2J"}
    assert "no file of a run; left out" in hostile[1] and "did not finish everything" in hostile[2] and not hostile[3:]
    assert [line for line in said if "the scheduler does not answer (gone)" in line] and cluster.away == 0
    assert said.count("tcp://10.0.0.2:1: no answer") == 1
    assert fleet_of(Pretended("0" * 12))[0] == 0
    monkeypatch.setattr(wire, "WAIT_S", 0.1)
    for empty, why in ((Pretended("silent"), "no worker is there"), (Pretended(), "no worker is there")):
        with pytest.raises(PomologyError, match=why):
            fleet_of(empty)
    monkeypatch.setattr(fleet, "LOST_S", 0.3)
    gone = Pretended("0" * 12, away=10**9)  # and never comes back
    status, said = fleet_of(gone)
    assert status == 1 and "did not finish everything; the same command completes what is missing" in said[-1]
