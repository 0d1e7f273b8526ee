"""A shared run: that it names nobody and is the same each time; and that what strangers send is bounded and refused."""

import base64
import io
import json
import os
import re
import struct
import tracemalloc
import zipfile
import zlib
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
from nbformat import v4
from test_report import MACHINE, record, run

import pomology
from pomology.__main__ import main
from pomology.errors import PomologyError
from pomology.machine import snapshot
from pomology.report import compare
from pomology.results import archive as results_archive
from pomology.runner import share

SVG = '<svg xmlns="http://www.w3.org/2000/svg"><text>{}</text></svg>'


def name_machine(monkeypatch, account: tuple, user: str, host: str, root: str):
    account = SimpleNamespace(**dict(zip(("pw_name", "pw_gecos", "pw_dir"), account, strict=True)))
    monkeypatch.setattr(share, "pwd", SimpleNamespace(getpwuid=lambda _: account))
    monkeypatch.setattr(share.Path, "home", lambda: Path(account.pw_dir))
    monkeypatch.setenv("USER", user)
    monkeypatch.setattr(share, "socket", SimpleNamespace(gethostname=lambda: host, getfqdn=lambda: host))
    monkeypatch.setattr(share, "root", lambda: Path(root))


@pytest.fixture(autouse=True)
def janes(monkeypatch):
    """The machine of an invented person, by every name that it has."""
    janes = ("jane", "Jane Roe,,,", "/Users/jane"), "jroe", "pippin.orchard.example", "/Volumes/seeds/pomology"
    name_machine(monkeypatch, *janes)
    monkeypatch.setenv("ORCHARD_TOKEN", "open sesame 7")
    card = [SimpleNamespace(address=text) for text in ("10.11.12.13", "fe80::1c2d:3e4f%en0", "a4:83:e7:01:02:03")]
    loop = [SimpleNamespace(address=text) for text in ("127.0.0.1", "::1", "00:00:00:00:00:00")]
    monkeypatch.setattr(share, "psutil", SimpleNamespace(net_if_addrs=lambda: {"en0": card, "lo0": loop}))
    monkeypatch.setattr(share, "uuid", SimpleNamespace(getnode=lambda: 0xA483E7010203))
    monkeypatch.setattr(share, "sys", SimpleNamespace(platform="darwin"))
    said = {"ComputerName": "Jane’s Pippin\n", "LocalHostName": "Janes-Pippin\n"}
    said["IOPlatformExpertDevice"] = '"IOPlatformSerialNumber" = "C02XL0GYJGH5"\n"IOPlatformUUID" = "5A1B-77"\n'
    monkeypatch.setattr(snapshot, "run_command", lambda *words: said.get(words[-1]))


@pytest.fixture
def m9(tmp_path) -> Path:
    """A finished run, with things beside it that are nobody else's business."""
    out = run(tmp_path / "m9", record(), record("siamese"), machine=MACHINE)
    nbformat.write(v4.new_notebook(cells=[v4.new_markdown_cell("# VAE")]), out / "vae.ipynb")
    for name, text in (("tables/own.csv", "a,b\n1,2\n"), ("figures/own.svg", SVG.format("VAE"))):
        (out / name).parent.mkdir(exist_ok=True)
        (out / name).write_text(text)
    (out / ".partial").mkdir()
    (out / ".partial" / "dcgan.ipynb").write_text("{}")
    (out / "notes.txt").write_text("for me alone")
    (out / "tables" / "large.csv").write_bytes(b"1," * share.SMALL)
    return out


def test_a_run_becomes_a_zip_that_opens_and_compares_and_is_the_same_each_time(m9, tmp_path, monkeypatch):
    place = share.write(m9)
    files = {
        "index.html",
        "vae.html",
        "machine.json",
        "vae.jsonl",
        "siamese.jsonl",
        "tables/own.csv",
        "figures/own.svg",
    }
    with zipfile.ZipFile(place) as archive:
        assert archive.testzip() is None
        packed = {name.removeprefix("m9/") for name in archive.namelist()}
        assert all(archive.read(f"m9/{name}") == (m9 / name).read_bytes() for name in files)
    assert files <= packed and not {"notes.txt", "vae.ipynb", "tables/large.csv"} & packed
    assert place == tmp_path / "m9.zip" and compare.load(place) == compare.load(m9)
    first = place.read_bytes()
    for path in m9.rglob("*"):
        os.utime(path, (2**31, 2**31))
    assert share.write(m9).read_bytes() == first and not list(tmp_path.glob("*.part"))

    (m9 / "vae.jsonl").write_text((m9 / "vae.jsonl").read_text() * 2)
    replaced, replace = [], os.replace

    def interrupted(draft, place):
        if str(place).endswith(".zip"):
            replaced.append(zipfile.ZipFile(draft).testzip())
            raise KeyboardInterrupt
        return replace(draft, place)

    monkeypatch.setattr(share.os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        share.write(m9)
    assert replaced == [None] and place.read_bytes() == first, "never half a zip"


def picture(kind: str, data: bytes) -> str:
    return f'<img src="data:{kind};base64,{base64.b64encode(data).decode()}">'


def png(*chunks: tuple[bytes, bytes]) -> bytes:
    packed = share.PNG
    for kind, data in ((b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)), *chunks, (b"IEND", b"")):
        packed += struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    return packed


HOME, AUTHOR = b"by jane in /home/jo/x", png((b"tEXt", b"Author\0jane"))
SECRETS = {  # what is said -> texts in which it is
    "this machine's user name": r"run by jane. | in /Users/jane/data | by jroe | j&#97;ne | \u006aane | a/jane/b",
    "the name of this machine's user": "by JANE ROE | Jane\u00a0Roe",
    "this machine's name": "on Pippin, | Jane’s Pippin",
    "a folder of this machine": "in /Volumes/seeds/pomology/lib",
    "a home folder": r"in /Users/jo/data | C:\Users\jo\data | c:\\Users\\jo | /Volumes/Jos disk | \/Users\/jo\/x"
    r" | /root/jo | /private/var/folders/x1/ab12cd/T | %2FUsers%2Fjo%2Fx | <span>/Users/</span><span>jo</span>"
    r" | &#47;home&#47;jo | data:image/svg+xml,%3Csvg%3E%2FUsers%2Fjo%2Fx | \u002fhome\u002fjo",
    "an address of this machine": "10.11.12.13:80 | A4:83:E7:01:02:03 | fe80::1c2d:3e4f",
    "a serial number of this machine": "C02XL0GYJGH5 | 5a1b-77 | a483e7010203",
    "an IP address": "from 192.168.4.7 | [2001:db8::7:1]",
    "the address of a network card": "at 3c:22:fb:aa:bb:cc | 3C-22-FB-AA-BB-CC | 3c22.fbaa.bbcc",
    "an e-mail address": "to john.doe+x@example.org",
    "a serial number": "Serial Number (system): F2LXJ0ABCD | serial=F2LXJ0ABCD",
    "an access token": f"hf_{'aB3' * 12} | ghp_{'aB3' * 12} | AKIA{'Z9' * 8}",
    "a serial number of a device": "GPU-8f4ae7a1-3c1b-9c1d-1b1a-0c8f2b9e1234"
    " | Hardware UUID: 4C4C4544-0042-3510-8051-B4C04F4E3432",
    "a computer's name": "on Johns-iMac.local | johns-nas.lan",
    "an environment variable": "environ({'LOGNAME': 'john'}) | WANDB_API_KEY=0123456789abcdef | SSH_CLIENT=john",
    "a secret of this machine's environment": "open sesame 7",
    "a folder": "open(/mnt/johns-nas/train.bin) | in /tmp/john-x/y | in /data/johns | '/data/john/x.bin' | =/srv/john/x"
    " | /srv/johns | /scratch/john | /work/john | /nfs/john | /export/john | /opt/john | /run/user/john | /media/john",
}
PLANTED = [(text, what) for what, texts in SECRETS.items() for text in texts.split(" | ")]
PLANTED += [
    (picture(kind, data), what)
    for kind, data, what in (
        ("image/png", AUTHOR, "user name"),
        ("image/png", png((b"zTXt", b"Comment\0\0" + zlib.compress(HOME))), "user name"),
        ("image/png", png((b"iTXt", b"XML\0\1\0\0\0" + zlib.compress(HOME))), "user name"),
        ("image/png", png((b"eXIf", b"II*\0jane\0")), "user name"),
        ("image/png", png((b"IDAT", b"\0")) + HOME, "user name"),
        ("image/png", png((b"tEXt", b"Source\0http://192.168.7.7/x")), "an IP address"),
        ("image/svg+xml", SVG.format(picture("image/png", AUTHOR)).encode(), "user name"),
        ("image/svg+xml", SVG.format("at pippin").encode(), "this machine's name"),
        ("text/html;charset=utf-8", HOME, "user name"),
        ("application/octet-stream", b"\xff" + HOME, "a home folder"),
        ("image/jpeg", b"\xff\xd8\0/Users/jane/data\0", "a folder of this machine"),
    )
]


def placed(text: str) -> dict[str, str]:
    """A text in every kind of file of a run."""
    good, machine = record().line(), MACHINE | {"unknown": {"gpus": "HERE"}}
    files = {"vae.jsonl": f"{json.dumps(good)}\n{json.dumps(good | {'reason': 'HERE'})}\n"}
    files |= {"machine.json": json.dumps(machine), "tables/own.csv": "a,b\n1,HERE\n"}
    files |= {"figures/own.svg": SVG.format("HERE"), "vae.html": "<p>a</p>\n<pre>b\nHERE</pre>"}
    return {name: content.replace("HERE", text) for name, content in files.items()}


@pytest.mark.parametrize(("text", "what"), PLANTED, ids=lambda text: text[:50])
def test_what_names_somebody_is_seen_in_every_kind_of_file(text, what):
    for place, content in placed(text).items():
        said = share.finding(place, content.encode(), share.secrets())
        assert said.startswith(place) and what in said and "\n" not in said
        assert text not in said and text.lower()[-5:] not in said.lower()  # never the secret itself


def test_where_it_stands_is_said():
    known = share.secrets()
    assert share.finding("a.csv", b"a\nb\nat jane", known) == "a.csv, line 3: this machine's user name ('ja'…)"
    drawing = picture("image/svg+xml", SVG.format("at pippin").encode()).encode()
    assert share.finding("a.html", drawing, known) == "a.html, in a picture: this machine's name ('pip'…)"
    assert "its name holds this machine's user name" in share.finding("tables/jane.csv", b"", known)
    for data in ("jane".encode("utf-16"), b"J\0ane", b"\xff"):  # what is no text is not shared
        said = share.finding("tables/a.csv", data, [])
        assert said.startswith("tables/a.csv: it ") and ("no file of a run" in said or "every file" in said)


NOBODY = """
janet Jane pippins 127.0.0.1 0.0.0.0 ::1 torch==2.13.0.1 v1.2.3.4 x[::2] a[1::2] 12:30:45 2026-05-04T03:02:01Z 1.2.3
300.1.2.3 1.2.3.4.5 std::vector ~/data ./.venv/lib /usr/lib/python3.11 https://example.org/home/jo /opt/homebrew/x
/tmp/ipykernel_123/456.py https://example.org/data/x/y <td>1</td>/data/x DEEPSPEED_KEY USER torch.mps.local /home/you/x
@torch.no_grad() images@weights.to(device) a::b::c details::details-content /opt/homebrew/bin u/home/jo
00:00:00:00:00:0g <td>12.4.</td><td>99.1</td>
""".split()  # noqa: SIM905
NOBODY += ["version 12.4.127.1", "tokenizer: bert", "one @ other.T", "serial: no", "color: #aabbcc"]
NOBODY += [  # among the bytes of a photograph, and in how a picture is written, a short name turns up by accident
    *(picture("image/png", b"\0 jane \0"), '<img src="data:image/png;base64,AAAA/jane+jroe/AAAA=">'),
    *(picture("image/png", png((b"IDAT", b"\0jane\0"))), '<img src="data:image/png;base64,A">'),
    picture("image/png", png((b"tEXt", b"Software\0Matplotlib version3.10.7, https://matplotlib.org/"))),
]


def test_what_names_nobody_passes(monkeypatch):
    known = share.secrets()
    assert {text: hit for text in NOBODY if (hit := share.finding("vae.html", text.encode(), known))} == {}
    # Four numbers that machine.json gives as a version are one.
    assert share.finding("vae.html", b"driver: 12.4.99.1, 12.4.99.1", known, frozenset(["12.4.99.1"])) is None
    assert share.finding("vae.html", b"at 12.4.99.1", known)
    name_machine(monkeypatch, ("root", "", "/"), "runner", "MacBook-Pro.local", "/")
    texts = {secret.text for secret in share.secrets()}
    assert not texts & {"root", "runner", "", "/", "MacBook-Pro", "127.0.0.1", "::1", "00:00:00:00:00:00"}
    monkeypatch.undo()
    known = share.secrets()  # of the machine that this truly is
    assert str(pomology.paths.root()) in {secret.text for secret in known}
    assert "an address of this machine" in {secret.what for secret in known} or not share.psutil.net_if_addrs()


def test_a_run_that_names_somebody_is_not_packed(m9, tmp_path, capsys):
    (m9 / "other.jsonl").symlink_to(__file__)
    assert main(["share", str(m9)]) == 0 and b"other.jsonl" not in (tmp_path / "m9.zip").read_bytes()
    assert re.search(r"m9\.zip \(\d\.\d MB\)", capsys.readouterr().out)
    before = (tmp_path / "m9.zip").read_bytes()
    for place in ("vae.jsonl", "tables/own.csv"):
        kept = (m9 / place).read_text()
        (m9 / place).write_text(placed("in /Users/jo/data")[place], encoding="utf-8")
        assert main(["share", str(m9)]) == 2
        # In which file, or in a page made of it.
        line = rf"pomology: ({place}|index.html), line \d+: a home folder.*must not hold that; nothing was written\n"
        assert re.fullmatch(line, capsys.readouterr().err)
        (m9 / place).write_text(kept)
    assert (tmp_path / "m9.zip").read_bytes() == before
    assert main(["share", str(tmp_path / "nowhere")]) == 2


# What strangers send --------------------------------------------------------------------------------------------------

JOURNAL = (json.dumps(record().line()) + "\n").encode()


def member(name: str, mode: int = 0o100644, method: int = zipfile.ZIP_DEFLATED) -> zipfile.ZipInfo:
    about = zipfile.ZipInfo(name)
    about.external_attr, about.compress_type, about.create_system = mode << 16, method, 3
    return about


def zipped(*files: tuple[str | zipfile.ZipInfo, bytes]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in (("vae.jsonl", JOURNAL), *files):
            archive.writestr(name, data)
    return packed.getvalue()


def patched(data: bytes, place: int, value: bytes) -> bytes:
    """With some bytes of each entry in the list of contents replaced."""
    entry = re.compile(rb"(PK\x01\x02.{%d}).{%d}" % (place - 4, len(value)), re.DOTALL)
    return entry.sub(lambda found: found[1] + value, data)


PLAIN = zipped(("b.jsonl", b"x" * 1000))
STORED = zipped((member("b.jsonl", method=zipfile.ZIP_STORED), b"x" * 1000))
MANY = [zipped(*((f"{n}.jsonl", b"") for n in range(number))) for number in (99, results_archive.MOST_FILES)]
HOSTILE = {  # what is wrong -> the zip, and what is said
    "nothing": (b"", "not a zip that can be read"),
    "torn": (PLAIN[:-30], "not a zip that can be read"),
    "list of gigabytes": (bytes(100) + b"PK\5\6" + struct.pack("<QIIH", 0, 2**31, 0, 0), "it lists more than"),
    "bomb": (patched(MANY[0], 24, struct.pack("<I", 60 * 2**20)), "bytes unpacked; a run has at most"),
    "large file": (patched(PLAIN, 24, struct.pack("<I", 2**27)), "bytes unpacked; at most"),
    "more than it says": (patched(PLAIN, 24, struct.pack("<I", 10)), "vae.jsonl cannot be unpacked"),
    "too many files": (MANY[1], "files; a run has at most"),
    "climbs": (zipped(("../b.jsonl", b"x")), "../b.jsonl has a path that leads out of its folder"),
    "drive": (zipped(("C:/b.jsonl", b"x")), "has a name that no file of a run has"),
    "zero byte": (zipped(("b.jsonlX.html", b"x")).replace(b"b.jsonlX", b"b.jsonl\0"), "has a name that no file"),
    "deep": (zipped(("a/" * 40 + "b.jsonl", b"x")), "lies deeper than any file of a run"),
    "link": (zipped((member("b.jsonl", 0o120777), b"/etc/passwd")), "b.jsonl is a link or another special file"),
    "by case": (zipped(("VAE.jsonl", b"x")), "VAE.jsonl and vae.jsonl are one file on a Mac"),
    "twice": (zipped(("vaf.jsonl", b"x")).replace(b"vaf.jsonl", b"vae.jsonl"), "vae.jsonl is in it twice"),
    "encrypted": (patched(PLAIN, 8, b"\1\0"), "vae.jsonl is encrypted"),
    "other method": (zipped((member("b.jsonl", method=zipfile.ZIP_LZMA), b"x")), "is packed in another way"),
    "damaged": (STORED.replace(b"x" * 1000, b"y" * 1000), "b.jsonl cannot be unpacked: Bad CRC-32"),
    "archive in it": (zipped(("more.ZIP", PLAIN)), "more.ZIP is an archive inside the archive"),
    "no run": (zipped().replace(b"vae.jsonl", b"vae.jsonX"), "not a run: neither machine.json nor a journal"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_zip_is_refused_in_a_line_and_leaves_nothing(tmp_path, name, capsys, monkeypatch):
    data, why = HOSTILE[name]
    good, place = run(tmp_path / "good", record()), tmp_path / "bad.zip"
    place.write_bytes(data)
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    tracemalloc.start()
    try:
        with pytest.raises(PomologyError) as refusal:
            compare.load(place)
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()
    said = str(refusal.value)
    assert said.startswith("bad.zip: ") and why in said and said.isprintable() and len(said) < 300
    assert main(["compare", str(good), str(place)]) == 2
    assert capsys.readouterr().err == f"pomology: {said}\n"
    assert sorted(tmp_path.rglob("*")) == before


def test_zips_of_other_hands_are_read(tmp_path):
    """As the Finder packs a folder, and as one packs what is in it."""
    beside = ("m9/", "__MACOSX/m9/._vae.jsonl", "m9/.DS_Store", "m9/notes.txt", "m9/vae.ipynb", "m9/tables/a.csv")
    machine = json.dumps(MACHINE).encode()
    with zipfile.ZipFile(tmp_path / "m9.zip", "w") as archive:
        for name in beside:
            archive.writestr(name, b"" if name.endswith("/") else b"\0\5")
        archive.writestr("m9/vae.jsonl", JOURNAL)
        archive.writestr("m9/machine.json", machine)
    (tmp_path / "flat.zip").write_bytes(zipped(("machine.json", machine)))
    for name in ("m9", "flat"):
        loaded = compare.load(tmp_path / f"{name}.zip")
        assert loaded.name == name and len(loaded.cases) == 1 and loaded.machine == MACHINE and not loaded.problems


def large(place: Path, size: int = results_archive.MOST_BYTES + 1) -> None:
    with open(place, "wb") as file:
        file.truncate(size)


def test_hostile_files_in_a_folder_are_not_read_nor_a_zip_too_large_opened(tmp_path):
    folder = run(tmp_path / "b", record())
    for number, make in enumerate((lambda place: place.symlink_to(__file__), os.mkfifo, os.mkdir, large)):
        make(folder / f"x{number}.jsonl")
    side = compare.load(folder)
    assert len(side.problems) == 4 and len(side.cases) == 1
    assert all(re.match(r"b/x\d\.jsonl: (not a file of its own|too large)", problem) for problem in side.problems)
    large(tmp_path / "bad.zip", results_archive.MOST_ZIP_BYTES + 1)
    with pytest.raises(PomologyError, match=r"bad\.zip: 134,217,729 bytes; at most"):
        compare.load(tmp_path / "bad.zip")
