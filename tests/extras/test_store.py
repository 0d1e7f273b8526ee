"""Remote storage of runs: atomic, also after lost connections, and one zip per run."""

import os
import re
import urllib.request
import zipfile
from pathlib import Path
from unittest import mock

import aiohttp
import fsspec
import pytest
import records
from fsspec.asyn import get_loop, sync
from fsspec.implementations.local import LocalFileSystem
from moto.server import ThreadedMotoServer

from pomology import __main__, command_line
from pomology.errors import PomologyError
from pomology.extras import compare, store
from pomology.results.run import Run
from pomology.runner import batch, plan

asyncssh = pytest.importorskip("asyncssh", reason="`make env EXTRAS=store` installs it (CI does)")
pytest.importorskip("s3fs", reason="`make env EXTRAS=store` installs it (CI does)")
MACHINE = {"chip": "Apple M9", "cpu_cores": 8, "python": "3.11.9"}
KEYS = {"AWS_ACCESS_KEY_ID": "AKIAPOMOLOGY", "AWS_SECRET_ACCESS_KEY": "nobody/knows"}
KEYS |= {"AWS_DEFAULT_REGION": "eu-west-1", "AWS_EC2_METADATA_DISABLED": "true"}


def run(folder, *experiments, **fields):
    """Write a run with a case of each of these, or add one."""
    metrics = {"epoch_s": records.metric(7.9, 7.5, 8.3, "s")}
    cases = [records.record(experiment, metrics, **fields) for experiment in experiments]
    return records.write(folder, cases, MACHINE)


@pytest.fixture
def s3(monkeypatch):
    """Start an S3 endpoint on this machine; yield the address of a prefix."""
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    url = "http://{}:{}".format(*server.get_host_and_port())
    urllib.request.urlopen(urllib.request.Request(f"{url}/lab", method="PUT"))
    for name, value in (KEYS | {"AWS_ENDPOINT_URL": url}).items():
        monkeypatch.setenv(name, value)
    yield "s3://lab/prefix"
    server.stop()


@pytest.fixture
def own(tmp_path):
    """Return the folder of a run with journals, a report and a table."""
    folder = run(tmp_path / "outputs" / "a", "vae", "siamese")
    for name in ("index.html", "tables/vae.csv", ".partial/vae.ipynb", ".lock", "index.html.part"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(name)
    return folder


@pytest.fixture
def lab(tmp_path):
    """Return the path of a store that is an empty folder."""
    (tmp_path / "lab").mkdir()
    return str(tmp_path / "lab")


def line(call, *arguments) -> str:
    """Return the error of a call, one line."""
    with pytest.raises(PomologyError) as refused:
        call(*arguments)
    return str(refused.value)


def names(address: str) -> list[str]:
    """Return all files of a store."""
    files, root = fsspec.url_to_fs(address)
    files.invalidate_cache()
    return [path.removeprefix(f"{root}/") for path in files.find(root)]


def cases_of(place: Path) -> list[tuple]:
    return sorted((each.experiment, each.case, each.status) for each in Run(place).records)


@pytest.mark.parametrize("kind", ["lab", "s3"])
def test_a_run_is_stored_unchanged_and_replaced_after_it_has_grown(kind, own, request):
    address = request.getfixturevalue(kind)
    address = address if "://" in address else f"file://{address}"
    store.check(address)
    name = store.put(own, address)
    assert re.fullmatch(r"a@[a-z0-9-]+-[0-9a-f]{12}", name) and names(address) == [f"{name}.zip"]
    with zipfile.ZipFile(store.fetch("a", address)) as archive:
        packed = set(archive.namelist())
    assert packed == {"machine.json", "vae.jsonl", "siamese.jsonl", "index.html", "tables/vae.csv"}
    run(own, "vae", case="more")
    assert store.put(own, address) == name and names(address) == [f"{name}.zip"]
    assert cases_of(store.fetch(name, address)) == cases_of(own)
    assert cases_of(store.fetch(f"{address}/a")) == cases_of(own)


def test_s3_gets_no_checksums_that_other_stores_refuse(own, s3):
    real = aiohttp.ClientSession._request
    spy = mock.patch.object(aiohttp.ClientSession, "_request", autospec=True, side_effect=real)
    with spy as sent:
        store.fetch(store.put(own, s3), s3)
    headers = [str(each.kwargs["headers"]) for each in sent.mock_calls]
    assert headers and not re.search("checksum|trailer", "".join(headers), re.I)


def test_two_runs_with_the_same_name_are_both_stored(tmp_path, own, lab):
    other = run(tmp_path / "elsewhere" / "a", "vae")
    first, second = store.put(own, lab), store.put(other, lab)
    assert first != second and len(names(lab)) == 2
    said = line(store.fetch, "a", lab)
    assert "several runs have this name" in said and first in said and second in said
    assert "no such run; the store has" in line(store.fetch, "b", lab)
    assert cases_of(store.fetch(second, lab)) == cases_of(other)
    assert store.put(other, lab, "lab7").startswith("lab7@")


def test_a_put_that_fails_half_way_leaves_the_earlier_zip(own, lab, monkeypatch):
    store.put(own, lab)
    before = cases_of(own)
    run(own, "vae", case="more")

    def full(self, source, target):
        Path(target).write_bytes(Path(source).read_bytes()[:100])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(LocalFileSystem, "put_file", full)
    assert "No space left" in line(store.put, own, lab)
    assert cases_of(store.fetch("a", lab)) == before


def test_a_missing_store_is_a_line_and_no_folder_is_made(tmp_path, s3, own):
    missing = "no such folder or bucket"
    assert missing in line(store.put, own, str(tmp_path / "mount" / "lab"))
    assert missing in line(store.put, own, "s3://no-such-bucket/x")
    assert "Protocol not known" in line(store.check, "nothing://x/y")
    assert "a file; expected a folder" in line(store.check, str(own / "machine.json"))
    assert not (tmp_path / "mount").exists()


def test_a_run_is_stored_at_its_end_or_if_that_fails_by_the_same_command(
    tmp_path, own, lab, monkeypatch, capsys
):
    statuses = iter([0, 1, 130])
    monkeypatch.setattr(plan, "prepare", lambda *_, **__: (own, []))
    monkeypatch.setattr(batch, "reproduce", lambda *_, **__: next(statuses))
    command = ["reproduce", "--profile=smoke", "--store"]
    assert __main__.main([*command, str(tmp_path / "none")]) == 2  # before anything runs
    with monkeypatch.context() as patch:
        patch.setattr(store, "check", lambda _: Path(lab).rmdir())  # and then it is gone
        assert __main__.main([*command, lab]) == 2
    assert "no such folder" in capsys.readouterr().err
    Path(lab).mkdir()
    assert __main__.main([*command, lab]) == 1  # a case ended in error
    assert cases_of(store.fetch("a", lab)) == cases_of(own)
    os.remove(Path(lab, os.listdir(lab)[0]))
    assert __main__.main([*command, lab]) == 130 and not os.listdir(lab)


def test_compare_and_report_read_from_a_store(tmp_path, own, lab, monkeypatch, capsys):
    monkeypatch.setattr(compare, "root", lambda: tmp_path)
    other = run(tmp_path / "b", "vae", chip="Apple M10")
    name = [store.put(folder, lab) for folder in (own, other)][1]
    assert __main__.main(["compare", "--runs", f"{own} file://{lab}/b"]) == 0
    assert name in capsys.readouterr().out
    (place,) = command_line.run_paths("WITH", ["b"], lab, store.fetch)
    assert [run.name for run in compare.load(place)] == [name]


@pytest.fixture
def ssh(tmp_path, monkeypatch):
    """Start an SSH server for this user; yield its address and its line of known_hosts."""
    monkeypatch.setenv("HOME", str(tmp_path))
    user, host = (asyncssh.generate_private_key("ssh-ed25519") for _ in range(2))
    (tmp_path / ".ssh").mkdir()
    user.write_private_key(tmp_path / ".ssh" / "id_ed25519")
    user.write_public_key(tmp_path / ".ssh" / "authorized")
    options = {"authorized_client_keys": str(tmp_path / ".ssh" / "authorized")}
    options |= {"server_host_keys": [host], "sftp_factory": True, "allow_scp": False}
    server = sync(get_loop(), asyncssh.listen, "127.0.0.1", 0, **options)
    port = server.get_port()
    yield f"ssh://jo@127.0.0.1:{port}", f"[127.0.0.1]:{port} {host.export_public_key().decode()}"
    server.close()


def test_ssh_connects_to_known_hosts_only(tmp_path, own, lab, ssh):
    address, known = f"{ssh[0]}{lab}", ssh[1]
    assert "not trusted" in line(store.put, own, address)
    (tmp_path / ".ssh" / "known_hosts").write_text(known)
    assert "no such folder" in line(store.check, f"{address}/none")
    name = store.put(own, address)
    run(own, "vae", case="more")
    assert store.put(own, address) == name and names(lab) == [f"{name}.zip"]
    assert cases_of(store.fetch("a", address)) == cases_of(own)
