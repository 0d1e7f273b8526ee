"""A store of runs: whole or not at all, whoever writes and whatever breaks; and what strangers put there is refused."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import urllib.request
import uuid
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem
from moto.server import ThreadedMotoServer
from test_report import MACHINE, record, run

from pomology import __main__
from pomology.errors import PomologyError
from pomology.report import compare
from pomology.results import store
from pomology.results.run import Run
from pomology.runner import batch, plan

asyncssh = pytest.importorskip("asyncssh", reason="`make env EXTRAS=store` installs it (CI does)")
pytest.importorskip("s3fs", reason="`make env EXTRAS=store` installs it (CI does)")
KEYS = {"AWS_ACCESS_KEY_ID": "AKIAPOMOLOGY", "AWS_SECRET_ACCESS_KEY": "nobody/knows", "AWS_DEFAULT_REGION": "eu-west-1"}
LINE = 700  # characters, of which an error line has fewer


class Endpoint:
    """S3 on this machine, and the cutting of its line: every answer from a request on, and perhaps all that follow."""

    def __init__(self):
        self.server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        self.server.start()
        self.url = "http://{}:{}".format(*self.server.get_host_and_port())
        self.app, self.server._server.app = self.server._server.app, self
        self.cut(None)

    def cut(self, left: int | None, method: str = "PUT", heard: bool = False) -> None:
        """left: how many requests of this method are answered, before all of any method end in silence; None: all.
        heard: the first of these is carried out, and half of its answer lost."""
        self.left, self.method, self.heard, self.dead, self.count = left, method, heard, False, 0

    def __call__(self, environ, start_response):
        counts = environ["REQUEST_METHOD"] == self.method
        line = environ["werkzeug.socket"]
        if self.dead or (counts and self.count == self.left):
            first, self.dead = not self.dead, True
            if first and self.heard:
                return self.torn(b"".join(self.app(environ, start_response)), line)
            line.shutdown(socket.SHUT_RDWR)
            raise ConnectionResetError
        self.count += counts
        return self.app(environ, start_response)

    def torn(self, answer, line):
        if len(answer) > 1:
            yield answer[: len(answer) // 2]
        line.shutdown(socket.SHUT_RDWR)


@pytest.fixture(scope="module")
def endpoint():
    endpoint = Endpoint()
    urllib.request.urlopen(urllib.request.Request(f"{endpoint.url}/lab", method="PUT"))
    yield endpoint
    endpoint.server.stop()


@pytest.fixture
def s3(endpoint, monkeypatch):
    """The address of a new prefix there."""
    endpoint.cut(None)
    for name, value in (KEYS | {"AWS_ENDPOINT_URL": endpoint.url, "AWS_EC2_METADATA_DISABLED": "true"}).items():
        monkeypatch.setenv(name, value)
    return f"s3://lab/{uuid.uuid4()}"


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(store, "PAUSE_S", 0.01)


@pytest.fixture
def own(tmp_path):
    """A run with journals, a page and a table."""
    folder = run(tmp_path / "outputs" / "a", record(), record("siamese"))
    for name in ("index.html", "tables/vae.csv", ".partial/vae.ipynb", ".lock", "index.html.part"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(name)
    return folder


def journals(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.json*")}


def line(call, *arguments) -> str:
    """The one line in which a call is refused."""
    with pytest.raises(PomologyError) as refused:
        call(*arguments)
    text = str(refused.value)
    assert text.isprintable() and len(text) < LINE and "nobody/knows" not in text, text
    return text


def names(address: str) -> list[str]:
    """Of all files of a store."""
    files, root = fsspec.url_to_fs(address)
    files.invalidate_cache()
    return [path.removeprefix(f"{root}/") for path in files.find(root)]


def kept(address: str) -> dict[str, bytes]:
    """Every file of a store."""
    files, root = fsspec.url_to_fs(address)
    return {name: files.cat_file(f"{root}/{name}") for name in names(address)}


@pytest.mark.parametrize("kind", ["folder", "memory", "s3"])
def test_a_run_is_put_and_read_as_it_is_and_replaced_once_it_has_grown(kind, tmp_path, own, request, monkeypatch):
    def without_replacing(_, draft, path, **__):  # as network drives rename
        assert not os.path.lexists(path)
        os.rename(draft, path)

    monkeypatch.setattr(LocalFileSystem, "mv", without_replacing)
    (lab := tmp_path / "lab").mkdir()
    address = {"folder": str(lab), "memory": f"memory://{uuid.uuid4()}"}.get(kind) or request.getfixturevalue("s3")
    name = store.put(own, address)
    assert re.fullmatch(r"a@apple-m9-[0-9a-f]{12}", name)
    (own / "blas_torch.jsonl.gz").write_bytes(b"packed")
    run(own, record("vae", case="more"))
    assert store.put(own, address) == name
    files = {path.relative_to(own).as_posix(): path.read_bytes() for path in own.rglob("*") if path.is_file()}
    whole = {file: data for file, data in files.items() if not re.search(r"(^|/)\.|\.part$", file)}
    assert {"machine.json", "vae.jsonl", "blas_torch.jsonl.gz", "index.html", "tables/vae.csv"} < whole.keys()
    there = kept(address)
    (manifest,) = (file for file in there if file.endswith(".json") and "/files/" not in file)
    generation = manifest.removesuffix(".json").replace("/", "/files/")
    assert there == {f"{generation}/{file}": data for file, data in whole.items()} | {manifest: there[manifest]}
    sums = {file: [len(data), hashlib.sha256(data).hexdigest()] for file, data in whole.items()}
    assert json.loads(there[manifest]) == {"schema": 1, "files": sums}
    for named in ("a", name):
        assert journals(fetched := store.fetch(named, address)) == journals(own)
    assert fetched.name == name
    assert journals(store.fetch(f"{'file://' * (kind == 'folder')}{address}/a")) == journals(own)


def test_two_runs_of_one_name_never_meet(tmp_path, own):
    (lab := tmp_path / "lab").mkdir()
    machines = [MACHINE, MACHINE, MACHINE | {"chip": "Intel(R) Core(TM) i7-8700B CPU @ 3.20GHz"}]
    names = [store.put(run(tmp_path / str(n) / "a", record(), machine=m), str(lab)) for n, m in enumerate(machines)]
    names.append(store.put(run(tmp_path / "A", record()), str(lab)))
    assert len({name.casefold() for name in names}) == 4 and names[2].startswith("a@intel-core-i7-8700b-")
    several = line(store.fetch, "a", str(lab))
    assert all((name in several) == (name != names[3]) for name in names)
    assert store.fetch(names[1], str(lab)).name == names[1]
    assert line(store.fetch, "b", str(lab)).endswith(", ".join(sorted(names)))


@pytest.mark.parametrize("heard", [False, True])
def test_an_endpoint_that_drops_at_any_put_leaves_the_run_as_it_was(own, s3, endpoint, heard):
    store.put(own, s3)
    puts, steps = endpoint.count, []
    assert puts == 6
    for left in range(puts):
        before, after = journals(own), journals(run(own, record("vae", case=f"more {left}")))
        endpoint.cut(left, heard=heard)
        assert s3 in line(store.put, own, s3)
        endpoint.cut(None)
        read = journals(store.fetch("a", s3))
        steps.append(read == before)
        assert steps[-1] or read == after
        store.put(own, s3)  # the same command, later
        assert len(names(s3)) == puts, "nothing unfinished is left"
    assert journals(store.fetch("a", s3)) == after
    assert steps == [True] * (puts - 1) + [not heard], "only a manifest that was put makes the next one stand"
    for left in range(7):  # three listings, the manifest, three files
        endpoint.cut(left, "GET", heard)
        assert s3 in line(store.fetch, "a", s3)


WRITER = """
import sys
from pathlib import Path
from pomology.errors import PomologyError
from pomology.results import store
folder, address, letter, behind = Path(sys.argv[1]), sys.argv[2], sys.argv[3], 0
store.check(address)
print("ready", flush=True)
sys.stdin.readline()
for number in range(20):
    for name in ("vae", "siamese"):
        (folder / f"{name}.jsonl").write_text(f"{letter} {number}" * 99)
    try:
        store.put(folder, address, print)
    except PomologyError as error:
        assert "by another process meanwhile" in str(error), error
        behind += 1
print(behind)
"""


@pytest.mark.parametrize("kind", ["folder", "s3"])
def test_two_writers_never_mix(kind, tmp_path, own, request):
    (lab := tmp_path / "lab").mkdir()
    address = str(lab) if kind == "folder" else request.getfixturevalue("s3")
    shutil.rmtree(own / "tables")
    for name in ("vae", "siamese"):
        (own / f"{name}.jsonl").write_text("first")
    name = store.put(own, address)
    shutil.copytree(own, tmp_path / "b" / "a")  # with what was drawn for it: the same run to the store
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, folder, address, letter], stdin=-1, stdout=-1, stderr=-1, text=True
        )
        for folder, letter in ((own, "x"), (tmp_path / "b" / "a", "y"))
    ]
    for writer in writers:
        assert writer.stdout.readline() == "ready\n", writer.communicate()
    for writer in writers:
        writer.stdin.write("go\n")
        writer.stdin.flush()
    seen = set()
    while any(writer.poll() is None for writer in writers) or not seen:
        texts = {data for file, data in journals(store.fetch("a", address)).items() if file != "machine.json"}
        assert len(texts) == 1, "of two generations"
        seen |= texts
    ended = [writer.communicate() for writer in writers]
    assert [error for _, error in ended] == ["", ""]
    assert sum(int(said) for said, _ in ended) < 40 and len(seen) > 2
    store.put(own, address)
    assert journals(store.fetch(name, address)) == journals(own)


def test_a_writer_that_comes_in_behind_another_one_is_told(tmp_path, own, monkeypatch):
    (lab := tmp_path / "lab").mkdir()
    store.put(own, str(lab))
    other = run(Path(shutil.copytree(own, tmp_path / "b" / "a")), record("vae", case="more"))
    create = store.Store._create

    def late(self, path, data):
        if "/files/" not in path:
            monkeypatch.setattr(store.Store, "_create", create)
            store.put(other, str(lab))
            store.put(other, str(lab))
        create(self, path, data)

    monkeypatch.setattr(store.Store, "_create", late)
    assert "by another process meanwhile" in line(store.put, own, str(lab))
    assert journals(store.fetch("a", str(lab))) == journals(other)
    store.put(own, str(lab))
    assert journals(store.fetch("a", str(lab))) == journals(own)


def entries(**files: tuple) -> bytes:
    """A manifest of these beside a machine.json of no bytes."""
    nothing = (0, hashlib.sha256(b"").hexdigest())
    return json.dumps({"schema": 1, "files": {"machine.json": nothing, **files}}).encode()


HASH = "0" * 64
MANIFESTS = {  # what the line must say of it
    b'{"schema": 1, "files"': "no manifest of a run",
    b"\xff\xfe": "no manifest of a run",
    b"[" * 100_000: "no manifest of a run",
    b"[]": "no manifest of a run",
    b'{"schema": 2, "files": {}}': "schema",
    entries(**{"../../x.jsonl": (1, HASH)}): "no manifest of a run",
    entries(**{"/etc/x.jsonl": (1, HASH)}): "no manifest of a run",
    entries(**{".x.jsonl": (1, HASH)}): "no manifest of a run",
    entries(**{"x\n.jsonl": (1, HASH)}): "no manifest of a run",
    entries(**{"vae.jsonl": (2**60, HASH)}): "no manifest of a run",
    entries(**{"vae.jsonl": (-1, HASH)}): "no manifest of a run",
    entries(**{"vae.jsonl": (5, "x" * 64)}): "no manifest of a run",
    entries(**{"vae.jsonl": (1, HASH, 3)}): "no manifest of a run",
    entries(**{"vae.jsonl": (3, HASH)}): "no file of at most 3 bytes",
    entries(**{"siamese.jsonl": (1, HASH)}): "is missing",
    entries(**{"vae.jsonl": (5, HASH), "VAE.jsonl": (5, HASH)}): "one on a Mac",
    entries(**{"vae.jsonl": (5, HASH)}): "damaged",
    entries(**{f"{n}.jsonl": (1, HASH) for n in range(2000)}): "too large",
    entries(**{f"{n}.jsonl": (2**26, HASH) for n in range(5)}): "too large",
    entries(**{f"{n}.csv": (1, HASH) for n in range(20_000)}): "no manifest of a run",
    b" " * (8 * 2**20 + 1): "no file of at most 8,388,608 bytes",
    b'{"schema": 1, "files": {"x.html": [1, "%s"]}}' % HASH.encode(): "neither machine.json nor a journal",
}


def test_what_strangers_put_there_is_refused_in_a_line(tmp_path):
    place = tmp_path / "lab" / "a@m-0"
    manifest, target = place / "000001-0123456789ab.json", place / "files" / "000001-0123456789ab"
    target.mkdir(parents=True)
    (target / "machine.json").touch()
    (tmp_path / "secret.jsonl").write_text("12345")

    def refused() -> str:
        return line(store.fetch, "a", str(tmp_path / "lab"))

    for data, why in MANIFESTS.items():
        manifest.write_bytes(data)
        (target / "vae.jsonl").write_text("12345")
        assert why in refused(), data[:99]
    good = entries(**{"vae.jsonl": (5, hashlib.sha256(b"12345").hexdigest())})
    manifest.write_bytes(good)
    assert journals(store.fetch("a", str(tmp_path / "lab"))) == {"machine.json": b"", "vae.jsonl": b"12345"}
    for path in (target / "vae.jsonl", manifest):
        path.unlink()
        path.symlink_to(tmp_path / "secret.jsonl")
        assert "is no file of at most" in refused()
        path.unlink()
        os.mkfifo(path)
        assert "is no file of at most" in refused()
    manifest.unlink()
    assert "no generation of it is whole" in refused()
    assert not [*Path("/etc").glob("x.jsonl"), *tmp_path.parent.glob("x.jsonl")]


SECRET = ("s3://AKIA:hunter2@lab/x", "s3://hunter2@lab", "ssh://jo:hunter2@nas/lab", "https://:hunter2@nas/lab")


def test_a_key_in_an_address_is_refused_and_never_shown(capsys, monkeypatch):
    for address in SECRET:
        for arguments in (["--runs", f"{address}/a b"], ["--store", address, "--runs", "a b"]):
            assert __main__.main(["compare", *arguments]) == 2
            said = "".join(capsys.readouterr())
            assert "key or password in it is refused" in said and "hunter2" not in said
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://jo:hunter2@127.0.0.1:9")
    assert "hunter2" not in line(store.check, "s3://lab")
    said = store.Store("s3://lab")._said(OSError(f"no {os.environ['AWS_ENDPOINT_URL']}, Credential=AKIAPOMOLOGY/eu"))
    assert said == "OSError: no http://…@127.0.0.1:9, Credential=…/eu"
    for address in ("", "nothing://x/y", "s3://lab/x?version=1", "zip://a::s3://lab/b.zip", "ssh://nas", "s3://lab\n"):
        line(store.check, address)


def test_a_store_that_is_not_there_or_silent_is_a_line_and_no_folder_is_made(tmp_path, s3, own, monkeypatch):
    assert "no such folder; make it first" in line(store.put, own, str(tmp_path / "mount" / "lab"))
    assert "no such bucket; make it first" in line(store.put, own, "s3://no-such-bucket/x")
    assert not (tmp_path / "mount").exists()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setitem(store.BOUNDED, "read_timeout", 0.1)
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        assert "timeout" in line(store.put, own, s3).lower()


def test_a_run_is_put_when_it_ends_and_where_the_store_fails_by_the_same_command(tmp_path, own, monkeypatch, capsys):
    (lab := tmp_path / "lab").mkdir()
    reproduced = []
    monkeypatch.setattr(plan, "prepare", lambda *_, **__: (own, []))
    monkeypatch.setattr(batch, "reproduce", lambda *_, **__: reproduced.append(1) or 0)
    command = ["reproduce", "--store", str(lab)]
    assert __main__.main([*command[:-1], str(tmp_path / "none")]) == 2 and not reproduced
    before = journals(own)
    monkeypatch.setattr(store, "check", lambda _: lab.rmdir())  # and then it is gone
    capsys.readouterr()
    assert __main__.main(command) == 3 and journals(own) == before
    (said,) = capsys.readouterr().err.splitlines()
    assert "no such folder" in said and "the same command puts it later" in said
    assert (own / plan.GOING).exists(), "by which the same command knows it on another day"
    monkeypatch.undo()
    monkeypatch.setattr(plan, "prepare", lambda *_, **__: (own, []))
    monkeypatch.setattr(batch, "reproduce", lambda *_, **__: 1)
    lab.mkdir()
    assert __main__.main(command) == 1, "a case ended in error"
    assert not (own / plan.GOING).exists() and journals(store.fetch("a", str(lab))) == before
    monkeypatch.setattr(batch, "reproduce", lambda *_, **__: 130)
    shutil.rmtree(lab / os.listdir(lab)[0])
    assert __main__.main(command) == 130 and not os.listdir(lab)


def test_compare_and_report_read_from_a_store(tmp_path, own, monkeypatch, capsys):
    (lab := tmp_path / "lab").mkdir()
    monkeypatch.setattr(__main__, "root", lambda: tmp_path)
    names = [store.put(folder, str(lab)) for folder in (own, run(tmp_path / "b", record(chip="Apple M10")))]
    assert __main__.main(["compare", "--store", str(lab), "--runs", "a b"]) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in names) and "Runs side by side" in said
    assert __main__.main(["compare", "--runs", f"{own} file://{lab}/b"]) == 0
    assert names[1] in capsys.readouterr().out
    (place,) = __main__._places("WITH", ["b"], str(lab))
    assert [other.name for other in compare.beside([place], Run(own))] == [names[1][:39] + "…" * (len(names[1]) > 40)]
    assert compare.load(place).name == names[1]


def test_fsspec_is_loaded_for_a_store_only():
    code = "import sys, pomology.results.store, pomology.report.compare; sys.exit('fsspec' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


class Server(asyncssh.SFTPServer):
    """Whose line is cut at one of its calls, and stays so; or which cannot replace what exists, as OpenSSH can."""

    left, old = 10**9, False

    def __init__(self, channel):
        super().__init__(channel)
        self.line = channel.get_connection()

    def counted(self) -> None:
        Server.left -= 1
        if Server.left < 0:
            self.line.abort()
            raise asyncssh.SFTPConnectionLost("cut")

    def open(self, *arguments):
        self.counted()
        return super().open(*arguments)

    def posix_rename(self, *arguments):
        self.counted()
        if Server.old:
            raise asyncssh.SFTPOpUnsupported("not here")
        return super().posix_rename(*arguments)


@contextlib.contextmanager
def ssh_server(home: Path):
    """An SSH server for the user of this home, whose key and known hosts are in it; its port."""
    (home / ".ssh").mkdir(parents=True, exist_ok=True)
    keys = [asyncssh.generate_private_key("ssh-ed25519") for _ in range(2)]
    keys[0].write_private_key(home / ".ssh" / "id_ed25519")
    keys[0].write_public_key(home / ".ssh" / "authorized")
    ready, started = threading.Event(), []

    async def serve():
        options = {"server_host_keys": [keys[1]], "authorized_client_keys": str(home / ".ssh" / "authorized")}
        listener = await asyncssh.listen("127.0.0.1", 0, sftp_factory=Server, allow_scp=False, **options)
        started.extend((asyncio.get_running_loop(), asyncio.Event(), listener.get_port()))
        ready.set()
        await started[1].wait()

    thread = threading.Thread(target=asyncio.run, args=[serve()])
    thread.start()
    assert ready.wait(10)
    loop, ended, port = started
    try:
        yield port, f"[127.0.0.1]:{port} {keys[1].export_public_key().decode()}"
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()


def test_over_ssh_only_to_hosts_that_are_known_and_whole_wherever_the_line_is_cut(tmp_path, own, monkeypatch):
    monkeypatch.setenv("HOME", str(home := tmp_path / "home"))
    (lab := tmp_path / "lab").mkdir()
    with ssh_server(home) as (port, known):
        address = f"ssh://jo@127.0.0.1:{port}{lab}"
        assert "not trusted" in line(store.put, own, address)
        (home / ".ssh" / "known_hosts").write_text(known)
        assert "no such folder" in line(store.check, f"{address}/none")
        assert store.put(own, address) == store.put(own, address) and len(names(str(lab))) == 6
        before, after = journals(own), journals(run(own, record("vae", case="more")))
        for left in (0, 1, 5, 10, 11):  # each of six files is opened, and moved
            monkeypatch.setattr(Server, "left", left)
            line(store.put, own, address)
            assert journals(store.fetch("a", str(lab))) == before
        monkeypatch.setattr(Server, "left", 10**9)
        monkeypatch.setattr(Server, "old", True)
        line(store.put, own, address)
        assert journals(store.fetch("a", str(lab))) == before
        monkeypatch.setattr(Server, "old", False)
        store.put(own, address)
        assert journals(store.fetch("a", address)) == after and len(names(str(lab))) == 6
