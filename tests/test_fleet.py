"""The fleet: addresses and hosts that are refused, pickles too, and what a machine sends that must not be taken."""

import asyncio
import hashlib
import json
import os
import pickle

import pytest
import records

from pomology.errors import PomologyError
from pomology.machine import snapshot
from pomology.runner import fleet_answers, fleet_cluster
from pomology.runner import fleet_wire as wire


@pytest.mark.parametrize(
    "text", ["localhost:1", "tcp://a b:1", "tcp://a:99999", "tcp://a;b:1", "tcp://[1:::2]:1", "http://a:1", "tcp://-a:1"]
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
            with pytest.raises(wire.Pickled):
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
            return kind([(name, len(data), hashlib.sha256(data).hexdigest()) for name, data in files.items()])
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
        taken(tmp_path, known, good | more, lambda data: b"")
    assert taken(tmp_path, known, good | more) == ["vae.jsonl"]
