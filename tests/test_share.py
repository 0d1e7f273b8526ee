"""A shared run: that it names nobody and is the same each time; and that what strangers send is bounded and refused."""

from __future__ import annotations

import base64
import io
import json
import os
import re
import stat
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


@pytest.fixture(autouse=True)
def janes(monkeypatch):
    """The machine of an invented person, by every name that it has."""
    account = SimpleNamespace(pw_name="jane", pw_gecos="Jane Roe,,,", pw_dir="/Users/jane")
    monkeypatch.setattr(share, "pwd", SimpleNamespace(getpwuid=lambda _: account))
    monkeypatch.setattr(share.Path, "home", lambda: Path("/Users/jane"))
    monkeypatch.setenv("USER", "jroe")
    monkeypatch.setenv("ORCHARD_TOKEN", "open sesame 7")
    host = SimpleNamespace(gethostname=lambda: "pippin.orchard.example", getfqdn=lambda: "pippin.orchard.example")
    monkeypatch.setattr(share, "socket", host)
    monkeypatch.setattr(share, "root", lambda: Path("/Volumes/seeds/pomology"))
    card = [SimpleNamespace(address=one) for one in ("10.11.12.13", "fe80::1c2d:3e4f%en0", "a4:83:e7:01:02:03")]
    loop = [SimpleNamespace(address=one) for one in ("127.0.0.1", "::1", "00:00:00:00:00:00")]
    monkeypatch.setattr(share, "psutil", SimpleNamespace(net_if_addrs=lambda: {"en0": card, "lo0": loop}))
    monkeypatch.setattr(share, "uuid", SimpleNamespace(getnode=lambda: 0xA483E7010203))
    monkeypatch.setattr(share, "sys", SimpleNamespace(platform="darwin"))
    said = {"ComputerName": "Jane’s Pippin\n", "LocalHostName": "Janes-Pippin\n"}
    said["IOPlatformExpertDevice"] = '"IOPlatformSerialNumber" = "C02XL0GYJGH5"\n"IOPlatformUUID" = "5A1B-77"\n'
    monkeypatch.setattr(snapshot, "run_command", lambda *words: snapshot.Answer(said.get(words[-1]), None))


def finished(folder: Path, **more) -> Path:
    out = run(folder, record(**more), record("siamese"), machine=MACHINE)
    nbformat.write(v4.new_notebook(cells=[v4.new_markdown_cell("# VAE")]), out / "vae.ipynb")
    for name, text in (("tables/own.csv", "a,b\n1,2\n"), ("figures/own.svg", SVG.format("VAE"))):
        (out / name).parent.mkdir(exist_ok=True)
        (out / name).write_text(text)
    (out / ".partial").mkdir(exist_ok=True)
    (out / ".partial" / "dcgan.ipynb").write_text("{}")
    (out / "notes.txt").write_text("for me alone")
    return out


def names(place: Path) -> list[str]:
    with zipfile.ZipFile(place) as archive:
        return archive.namelist()


# What is written ------------------------------------------------------------------------------------------------------


def test_a_run_becomes_a_zip_that_opens_and_compares(tmp_path):
    out = finished(tmp_path / "m9")
    place = share.write(out)
    assert place == tmp_path / "m9.zip"
    files = ["figures/own.svg", "index.html", "machine.json", "siamese.jsonl"]
    files += ["tables/own.csv", "vae.html", "vae.jsonl"]
    packed = [name.removeprefix("m9/") for name in names(place)]
    assert set(files) <= set(packed) and not {"notes.txt", "vae.ipynb"} & set(packed)
    assert all(re.fullmatch(r"[^/]+|(tables/[^/]+\.csv|figures/[^/]+\.svg)", name) for name in packed)
    with zipfile.ZipFile(place) as archive:
        assert archive.testzip() is None
        for name in files:
            assert archive.read(f"m9/{name}") == (out / name).read_bytes()
    assert compare.load(place) == compare.load(out)
    assert not list(tmp_path.glob("*.part"))


def test_the_same_run_makes_the_same_bytes(tmp_path):
    out = finished(tmp_path / "m9")
    first = share.write(out).read_bytes()
    for path in out.rglob("*"):
        os.utime(path, (2**31, 2**31))
    assert share.write(out).read_bytes() == first
    with zipfile.ZipFile(io.BytesIO(first)) as archive:
        assert {about.date_time for about in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        assert {about.external_attr >> 16 for about in archive.infolist()} == {stat.S_IFREG | 0o644}


SECRETS = {
    "user name": ("run by jane.", "this machine's user name"),
    "other user name": ("~jroe", "this machine's user name"),
    "full name": ("by JANE ROE", "the name of this machine's user"),
    "host": ("on Pippin,", "this machine's name"),
    "full host": ("pippin.orchard.example", "this machine's name"),
    "name of the Mac": ("Jane’s Pippin", "this machine's name"),
    "name on the net": ("janes-pippin.local", "this machine's name"),
    "checkout": ("in /Volumes/seeds/pomology/lib", "a folder of this machine"),
    "home": ("in /Users/jane/data", "this machine's user name"),
    "somebody's home": ("in /Users/jo/data", "a home folder"),
    "somebody's home on Linux": ("file:///home/john", "a home folder"),
    "somebody's home on Windows": (r"C:\Users\jo\data", "a home folder"),
    "Windows in JSON": (r"c:\\Users\\jo", "a home folder"),
    "somebody's disk": ("/Volumes/Jos disk", "a home folder"),
    "temporary folder": ("/private/var/folders/x1/ab12cd/T", "a home folder"),
    "own address": ("10.11.12.13:80", "an address of this machine"),
    "own card": ("A4:83:E7:01:02:03", "an address of this machine"),
    "own card, plain": ("a483e7010203", "a serial number of this machine"),
    "serial number": ("C02XL0GYJGH5", "a serial number of this machine"),
    "identifier": ("5a1b-77", "a serial number of this machine"),
    "address": ("from 192.168.4.7", "an IP address"),
    "newer address": ("[2001:db8::7:1]", "an IP address"),
    "local address": ("fe80::aede:48ff:fe00:1122", "an IP address"),
    "card": ("at 3c:22:fb:aa:bb:cc", "the address of a network card"),
    "card with dashes": ("3C-22-FB-AA-BB-CC", "the address of a network card"),
    "e-mail": ("to john.doe+x@example.org", "an e-mail address"),
    "somebody's serial": ("Serial Number (system): F2LXJ0ABCD", "a serial number"),
    "token": ("hf_" + "aB3" * 12, "an access token"),
    "card of a switch": ("at a483.e712.3456", "the address of a network card"),
    "graphics card": ("GPU-8f4ae7a1-3c1b-9c1d-1b1a-0c8f2b9e1234", "a serial number of a device"),
    "hardware": ("Hardware UUID: 4C4C4544-0042-3510-8051-B4C04F4E3432", "a serial number of a device"),
    "somebody's Mac": ("on Johns-iMac.local", "a computer's name"),
    "environment": ("environ({'LOGNAME': 'john'})", "an environment variable"),
    "environment of a shell": ("HOSTNAME=box7", "an environment variable"),
    "key": ("WANDB_API_KEY=0123456789abcdef", "an environment variable"),
    "secret of this environment": ("open sesame 7", "a secret of this machine's environment"),
    "share": ("open(/mnt/johns-nas/train.bin)", "a folder"),
    "disk": ("No such file: /data/johndoe/imagenet", "a folder"),
    "client": ("in /srv/client-x/model.py", "a folder"),
    "temporary": ("in /tmp/john-x/y", "a folder"),
}


def placed(text: str) -> dict[str, str]:
    """A text in every kind of file of a run."""
    good = record().line()
    return {
        "vae.jsonl": f"{json.dumps(good)}\n{json.dumps(good | {'reason': text}, ensure_ascii=False)}\n",
        "machine.json": json.dumps(MACHINE | {"unknown": {"gpus": text}}),
        "tables/own.csv": f"a,b\n1,{text}\n",
        "figures/own.svg": SVG.format(text),
    }


@pytest.mark.parametrize("name", SECRETS)
def test_what_names_somebody_is_seen_in_every_kind_of_file(name):
    text, what = SECRETS[name]
    known = share.secrets()
    for place, content in placed(text).items():
        said = share.finding(place, content.encode(), known)
        assert said.startswith(place) and what in said and "\n" not in said
        assert text not in said and text.lower()[-5:] not in said.lower()  # never the secret itself


def test_a_run_that_names_somebody_is_not_packed(tmp_path):
    out = finished(tmp_path / "m9")
    before = share.write(out).read_bytes()
    for place, content in placed("in /Users/jo/data").items():
        kept = (out / place).read_text()
        (out / place).write_text(content, encoding="utf-8")
        # In which file, or in a page made of it.
        with pytest.raises(PomologyError, match=rf"^({place}|index.html).*a home folder[^\n]*; nothing was written$"):
            share.write(out)
        (out / place).write_text(kept)
    assert (tmp_path / "m9.zip").read_bytes() == before
    assert share.write(out).read_bytes() == before


def test_what_stands_in_pictures_and_in_other_spellings_is_seen(tmp_path):
    known = share.secrets()

    def found(text):
        return share.finding("vae.html", text.encode(), known)

    def picture(kind, data):
        return f'<img src="data:image/{kind};base64,{base64.b64encode(data).decode()}">'

    drawing = picture("svg+xml", SVG.format("at pippin").encode())
    assert found(drawing) == "vae.html, in a picture: this machine's name ('pip'…)"
    assert "a folder of this machine" in found(picture("jpeg", b"\xff\xd8\0\xff/Users/jane/data\0"))
    # Among the bytes of a photograph, and in how a picture is written, a short name turns up by accident.
    assert found(picture("png", b"\0 jane \0")) is None
    assert found('<img src="data:image/png;base64,AAAA/jane+jroe/AAAA=">') is None
    assert found("j&#97;ne") == "vae.html: this machine's user name ('ja'…)"
    assert "this machine's user name" in found(r"\u006aane")
    assert "its name holds this machine's user name" in share.finding("tables/jane.csv", b"", known)
    assert found("a\nb\nat jane") == "vae.html, line 3: this machine's user name ('ja'…)"


def chunk(what: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + what + data + struct.pack(">I", zlib.crc32(what + data))


def test_what_stands_beside_the_pixels_of_a_picture_is_read():
    """Software, comments and the like of a PNG, packed or not; the pixels themselves are no text."""
    known, home = share.secrets(), b"by jane in /home/jo/x"

    def found(*chunks, kind="image/png", wrapped=lambda data: data):
        size = chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0))
        data = share.PNG + size + b"".join(chunk(*one) for one in chunks) + chunk(b"IEND", b"")
        text = f'<img src="data:{kind};base64,{base64.b64encode(wrapped(data)).decode()}">'
        return share.finding("vae.html", text.encode(), known)

    user = "vae.html, in a picture: this machine's user name ('ja'…)"
    assert found((b"tEXt", b"Author\0jane")) == user
    assert found((b"zTXt", b"Comment\0\0" + zlib.compress(home))) == user
    assert found((b"iTXt", b"XML\0\1\0\0\0" + zlib.compress(home))) == user
    assert found((b"eXIf", b"II*\0jane\0")) == user
    assert "an IP address" in found((b"tEXt", b"Source\0http://192.168.7.7/x"))
    assert found((b"tEXt", b"Software\0Matplotlib version3.10.7, https://matplotlib.org/")) is None
    assert found((b"IDAT", b"\0jane\0")) is None
    inside = lambda data: SVG.format(f"data:image/png;base64,{base64.b64encode(data).decode()}").encode()  # noqa: E731
    assert found((b"tEXt", b"Author\0jane"), kind="image/svg+xml", wrapped=inside) == user
    # After the end of the picture, in another kind of thing, and with words between the type and the data.
    assert found((b"IDAT", b"\0"), wrapped=lambda data: data + home) == user
    assert found(kind="text/html;charset=utf-8", wrapped=lambda _: home) == user
    assert "a home folder" in found(kind="application/octet-stream", wrapped=lambda _: b"\xff" + home)


def test_other_spellings_are_the_same_words():
    known = share.secrets()
    for text in (
        *(r"\/Users\/jo\/x", "%2FUsers%2Fjo%2Fx", "<span>/Users/</span><span>jo</span>", "Jane\u00a0Roe"),
        *("data:image/svg+xml,%3Csvg%3E%2FUsers%2Fjo%2Fx", "&#47;home&#47;jo", r"\u002fhome\u002fjo"),
    ):
        assert share.finding("vae.html", text.encode(), known), text
    # Numbers of two cells are not one text.
    assert share.finding("vae.html", b"<td>12.4.</td><td>99.1</td>", known) is None


def test_what_is_no_text_is_not_shared():
    for data in ("jane".encode("utf-16"), b"J\0ane", b"\xff"):
        told = share.finding("tables/a.csv", data, [])
        assert told.startswith("tables/a.csv: it ") and ("no file of a run" in told or "every file" in told)


NOBODY = """
janet Jane pippins 127.0.0.1 0.0.0.0 ::1 torch==2.13.0.1 v1.2.3.4 x[::2] a[1::2] 12:30:45 2026-05-04T03:02:01Z 1.2.3
300.1.2.3 1.2.3.4.5 std::vector ~/data ./.venv/lib /usr/lib/python3.11 https://example.org/home/jo /opt/homebrew/x
/tmp/ipykernel_123/456.py https://example.org/data/x/y <td>1</td>/data/x DEEPSPEED_KEY USER torch.mps.local /home/you/x
@torch.no_grad() images@weights.to(device) a::b::c details::details-content /opt/homebrew/bin u/home/jo
00:00:00:00:00:0g
""".split()  # noqa: SIM905


def test_what_names_nobody_passes():
    known = share.secrets()
    phrases = ["version 12.4.127.1", "tokenizer: bert", "one @ other.T", "serial: no", "color: #aabbcc"]
    for text in NOBODY + phrases:
        assert share.finding("vae.html", text.encode(), known) is None, text
    # Four numbers that machine.json gives as a version are one.
    assert share.finding("vae.html", b"driver: 12.4.99.1, 12.4.99.1", known, frozenset(["12.4.99.1"])) is None
    assert share.finding("vae.html", b"at 12.4.99.1", known)


def test_names_that_every_machine_has_name_nobody(monkeypatch):
    account = SimpleNamespace(pw_name="root", pw_gecos="", pw_dir="/")
    monkeypatch.setattr(share, "pwd", SimpleNamespace(getpwuid=lambda _: account))
    monkeypatch.setenv("USER", "runner")
    monkeypatch.setattr(share.Path, "home", lambda: Path("/"))
    host = SimpleNamespace(gethostname=lambda: "MacBook-Pro.local", getfqdn=lambda: "MacBook-Pro.local")
    monkeypatch.setattr(share, "socket", host)
    known = {one.text for one in share.secrets()}
    assert not known & {"root", "runner", "", "/", "MacBook-Pro", "127.0.0.1", "::1", "00:00:00:00:00:00"}


def test_what_this_machine_truly_is_called_is_known(monkeypatch):
    monkeypatch.undo()
    known = {one.text for one in share.secrets()}
    assert str(pomology.paths.root()) in known
    assert any(one.what == "an address of this machine" for one in share.secrets()) or not share.psutil.net_if_addrs()


def test_never_half_a_zip(tmp_path, monkeypatch):
    out = finished(tmp_path / "m9")
    share.write(out)
    before = (tmp_path / "m9.zip").read_bytes()
    results = out / "vae.jsonl"
    results.write_text(results.read_text() * 2)
    replaced = []

    def replace(draft, place):
        if str(place).endswith(".zip"):
            replaced.append(zipfile.ZipFile(draft).testzip())
            raise KeyboardInterrupt
        return os.rename(draft, place)

    monkeypatch.setattr(share.os, "replace", replace)
    with pytest.raises(KeyboardInterrupt):
        share.write(out)
    assert replaced == [None] and (tmp_path / "m9.zip").read_bytes() == before


def test_links_out_of_the_folder_are_not_shared(tmp_path):
    out = finished(tmp_path / "m9")
    (tmp_path / "private.jsonl").write_text("{}")
    (out / "other.jsonl").symlink_to(tmp_path / "private.jsonl")
    (out / "tables" / "large.csv").write_bytes(b"1," * share.SMALL)
    assert not {"m9/other.jsonl", "m9/tables/large.csv"} & set(names(share.write(out)))


def test_the_command(tmp_path, capsys, monkeypatch):
    out = finished(tmp_path / "m9")
    assert main(["share", str(out)]) == 0
    assert "m9.zip (0.0 MB)" in capsys.readouterr().out
    (out / "tables" / "vae-article.csv").write_text("jane")
    assert main(["share", str(out)]) == 2
    assert capsys.readouterr().err == (
        "pomology: tables/vae-article.csv, line 1: this machine's user name ('ja'…): "
        "a shared run must not hold that; nothing was written\n"
    )
    assert main(["share", str(tmp_path / "nowhere")]) == 2


# What strangers send --------------------------------------------------------------------------------------------------

JOURNAL = (json.dumps(record().line()) + "\n").encode()


def member(name: str, mode: int = 0o100644, method: int = zipfile.ZIP_DEFLATED) -> zipfile.ZipInfo:
    about = zipfile.ZipInfo(name)
    about.external_attr, about.compress_type, about.create_system = mode << 16, method, 3
    return about


def zipped(*files: tuple[str | zipfile.ZipInfo, bytes], comment: bytes = b"") -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in (("vae.jsonl", JOURNAL), *files):
            archive.writestr(name, data)
        archive.comment = comment
    return packed.getvalue()


def patched(data: bytes, place: int, value: bytes) -> bytes:
    """With some bytes of the last entry in the list of contents, and of its own head, replaced."""
    listed = data.rindex(b"PK\1\2")
    found = bytearray(data)
    found[listed + place : listed + place + len(value)] = value
    return bytes(found)


def bomb() -> bytes:
    """A small zip that says truly that it has 100 files of 60 MB."""
    zeros = b"\0" * (60 * 2**20)
    press = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = press.compress(zeros) + press.flush()
    crc, sizes = zlib.crc32(zeros), (len(packed), len(zeros))
    body, listed = io.BytesIO(), io.BytesIO()
    for number in range(100):
        name = f"x{number}.jsonl".encode()
        head = struct.pack("<HHHHHIIIHH", 20, 0, 8, 0, 33, crc, *sizes, len(name), 0)
        listed.write(b"PK\1\2" + struct.pack("<H", 20) + head + struct.pack("<HHHII", 0, 0, 0, 0, body.tell()) + name)
        body.write(b"PK\3\4" + head + name + packed)
    end = struct.pack("<HHHHIIH", 0, 0, 100, 100, listed.tell(), body.tell(), 0)
    return body.getvalue() + listed.getvalue() + b"PK\5\6" + end


def hostile() -> dict[str, tuple[bytes, str]]:
    link, device = member("b.jsonl", 0o120777), member("b.jsonl", 0o020666)
    plain = zipped(("b.jsonl", b"x" * 1000))
    body = bytearray(zipped((member("b.jsonl", method=zipfile.ZIP_STORED), b"x" * 1000)))
    body[body.index(b"x" * 1000)] = ord("y")
    many = [(f"{number}.jsonl", b"") for number in range(results_archive.MOST_FILES)]
    list_bomb = b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, 7, 7, 2**31, 0, 0)
    return {
        "nothing": (b"", "not a zip that can be read"),
        "text": (b"hello " * 100, "not a zip that can be read"),
        "torn": (plain[:-30], "not a zip that can be read"),
        "torn at its head": (plain[40:], "vae.jsonl cannot be unpacked"),
        "list of gigabytes": (b"\0" * 100 + list_bomb, "it lists more than a run has"),
        "end within a comment": (zipped(comment=b"PK\5\6" + bytes(18)), "not a run"),
        "bomb": (bomb(), "bytes unpacked; a run has at most"),
        "large file": (patched(plain, 24, struct.pack("<I", 2**27)), "bytes unpacked; at most"),
        "more than it says": (patched(plain, 24, struct.pack("<I", 10)), "b.jsonl cannot be unpacked"),
        "less than it says": (patched(plain, 24, struct.pack("<I", 9_999)), "b.jsonl"),
        "too many files": (zipped(*many), "files; a run has at most"),
        "climbs": (zipped(("../b.jsonl", b"x")), "../b.jsonl has a path that leads out of its folder"),
        "climbs from within": (zipped(("a/../../b.jsonl", b"x")), "leads out of its folder"),
        "absolute": (zipped(("/etc/b.jsonl", b"x")), "leads out of its folder"),
        "double slash": (zipped(("a//b.jsonl", b"x")), "leads out of its folder"),
        "drive": (zipped(("C:/b.jsonl", b"x")), "has a name that no file of a run has"),
        "backslash": (zipped(("..\\b.jsonl", b"x")), "has a name that no file of a run has"),
        "zero byte": (zipped(("b.jsonlX.html", b"x")).replace(b"b.jsonlX", b"b.jsonl\0"), "has a name that no file"),
        "new line": (zipped(("b\nc.jsonl", b"x")), "has a name that no file of a run has"),
        "escape": (zipped(("b\x1b[2J.jsonl", b"x")), "has a name that no file of a run has"),
        "right to left": (zipped(("b\u202elnosj.jsonl", b"x")), "has a name that no file of a run has"),
        "deep": (zipped(("a/" * 40 + "b.jsonl", b"x")), "lies deeper than any file of a run"),
        "long": (zipped(("b" * 400 + ".jsonl", b"x")), "lies deeper than any file of a run"),
        "link": (zipped((link, b"/etc/passwd")), "b.jsonl is a link or another special file"),
        "device": (zipped((device, b"")), "b.jsonl is a link or another special file"),
        "by case": (zipped(("VAE.jsonl", b"x")), "VAE.jsonl and vae.jsonl are one file on a Mac"),
        "by spelling": (zipped(("ｖae.jsonl", b"x")), "are one file on a Mac"),
        "encrypted": (patched(plain, 8, b"\1\0"), "b.jsonl is encrypted"),
        "encrypted strongly": (patched(plain, 8, b"\x40\0"), "b.jsonl is encrypted"),
        "other method": (zipped((member("b.jsonl", method=zipfile.ZIP_LZMA), b"x")), "is packed in another way"),
        "unknown method": (patched(plain, 10, b"\x63\0"), "is packed in another way"),
        "damaged": (bytes(body), "b.jsonl cannot be unpacked: Bad CRC-32"),
        "archive in it": (zipped(("more.ZIP", plain)), "more.ZIP is an archive inside the archive"),
        "tar in it": (zipped(("a/b.tar.gz", plain)), "is an archive inside the archive"),
        "no run": (zipped().replace(b"vae.jsonl", b"vae.jsonX"), "not a run: neither machine.json nor a journal"),
    }


HOSTILE = hostile()


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_name_that_is_twice_in_a_zip_is_refused(tmp_path):
    (tmp_path / "b.zip").write_bytes(zipped(("vae.jsonl", b"other")))
    with pytest.raises(PomologyError, match=r"b\.zip: vae\.jsonl is in it twice"):
        compare.load(tmp_path / "b.zip")


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_zip_is_refused_in_a_line_and_leaves_nothing(tmp_path, name, capsys, monkeypatch):
    data, why = HOSTILE[name]
    good = run(tmp_path / "good", record())
    place = tmp_path / "bad.zip"
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
    assert said.startswith("bad.zip: ") and why in said
    assert said.isprintable() and len(said) < 300
    assert main(["compare", str(good), str(place)]) == 2
    assert capsys.readouterr().err == f"pomology: {said}\n"
    assert sorted(tmp_path.rglob("*")) == before


def test_a_zip_too_large_is_not_even_opened(tmp_path):
    with open(tmp_path / "bad.zip", "wb") as file:
        file.truncate(results_archive.MOST_ZIP_BYTES + 1)
    with pytest.raises(PomologyError, match=r"bad\.zip: 134,217,729 bytes; at most"):
        compare.load(tmp_path / "bad.zip")


def test_zips_of_other_hands_are_read(tmp_path):
    """As the Finder packs a folder, and as one packs what is in it."""
    beside = [("m9/", b""), ("__MACOSX/m9/._vae.jsonl", b"\0\5"), ("m9/.DS_Store", b"x"), ("m9/notes.txt", b"x")]
    beside += [("m9/vae.ipynb", b"x"), ("m9/tables/a.csv", b"x")]
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, data in (*beside, ("m9/vae.jsonl", JOURNAL), ("m9/machine.json", json.dumps(MACHINE).encode())):
            archive.writestr(name, data)
    (tmp_path / "m9.zip").write_bytes(packed.getvalue())
    (tmp_path / "flat.zip").write_bytes(zipped(("machine.json", json.dumps(MACHINE).encode())))
    for name in ("m9", "flat"):
        loaded = compare.load(tmp_path / f"{name}.zip")
        assert loaded.name == name and len(loaded.cases) == 1 and loaded.machine == MACHINE and not loaded.problems


@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "large"])
def test_a_hostile_file_in_a_folder_is_not_read(tmp_path, kind, monkeypatch):
    folder = run(tmp_path / "b", record())
    place = folder / "x.jsonl"
    if kind == "link":
        (tmp_path / "private.jsonl").write_bytes(JOURNAL)
        place.symlink_to(tmp_path / "private.jsonl")
    elif kind == "pipe":
        os.mkfifo(place)
    elif kind == "folder":
        place.mkdir()
    else:
        with open(place, "wb") as file:
            file.truncate(results_archive.MOST_BYTES + 1)
    side = compare.load(folder)
    (problem,) = side.problems
    assert re.match(r"b/x\.jsonl: (not a file of its own|too large)", problem) and len(side.cases) == 1
