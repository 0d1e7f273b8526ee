"""A shared run: that it holds nothing but what the kit itself says; and that what strangers send is refused."""

import contextlib
import html
import io
import json
import os
import random
import re
import string
import struct
import tracemalloc
import zipfile
from pathlib import Path
from urllib.parse import unquote

import nbformat
import pytest
from nbformat import v4
from test_report import MACHINE, record, run

from pomology.__main__ import main
from pomology.errors import PomologyError
from pomology.extras.share import own_texts, share
from pomology.report import compare
from pomology.results import archive as results_archive
from pomology.results.record import checked

DRAWN = random.Random(7)


def drawn(count: int, letters: str = string.ascii_letters + string.digits) -> str:
    return "".join(DRAWN.choices(letters, k=count))


# What nobody would share: keys as they are made up, names, places, addresses, in forms in which they turn up.
LETTERS, HEX, UPPER = string.ascii_letters + string.digits, string.hexdigits[:16], string.ascii_uppercase + "0123456789"
TOKENS = (
    "hf_|ghp_|gho_|ghs_|github_pat_11A|glpat-|xoxb-2-|xoxp-|xapp-1-|sk-|sk-proj-|sk-ant-api03-|sk_live_|rk_live_|pk_test_|"
    "AIza|ya29.|npm_|pypi-AgEI|SG.|dop_v1_|r8_|gsk_|nvapi-|lin_api_|secret_|whsec_|shpat_|EAAC|Bearer |Basic |token |"
    "tskey-auth-|dapi|key-|sq0atp-|AccountKey=|sig=|?token=|password=|passwd: |api_key = |pwd=|client_secret=|"
    "WANDB_API_KEY=|AWS_SECRET_ACCESS_KEY=|export OPENAI_API_KEY=|KAGGLE_KEY: "
)
PEM = "|".join(f"-----BEGIN {kind} PRIVATE " + f"KEY{block}-----\n" for kind, block in (("RSA", ""), ("PGP", " BLOCK")))
MADE = [  # how they begin, how many letters of which follow, and how they end
    (TOKENS, 36, LETTERS, ""),
    ("AKIA|ASIA|AGE-SECRET-KEY-1|C02|serial F2L|FVF|SHA256:", 16, UPPER, ""),
    ("|GPU-|MIG-|uuid |commit |0x|machine-id ", 40, HEX, ""),
    ("eyJhbGciOiJIUzI1NiJ9.eyJ", 40, string.ascii_letters, ".x"),
    (PEM, 60, string.ascii_letters, ""),
    ("-----BEGIN OPENSSH PRIVATE " + "KEY-----\n", 60, string.ascii_letters, ""),
    ("https://jane:", 12, string.ascii_letters, "@nas/"),
    ("postgres://u:", 12, string.ascii_letters, "@db:5432/x"),
    ("4", 15, string.digits, ""),
    ("+49 170 ", 8, string.digits, ""),
    ("IBAN DE", 20, string.digits, ""),
]
KEYS = [start + drawn(count, letters) + end for starts, count, letters, end in MADE for start in starts.split("|")]
NAMES = (
    r"""zebedee zebedee_lab zebedee2 w:\nzebedee USER=zebedee \"USER\":\"zebedee\" =zebedee >zebedee <b>zebedee</b>
pippin.orchard.example Zebedees-MacBook-Pro.local zebedee@example.org /USERS/zebedee/x /HOME/zebedee C:\Users\zebedee
~zebedee/x /data/zebedee /mnt/nas/zebedee \\nas\zebedee file:///HOME/zebedee /HOME/max/data 192.168.3.4
MASTER_ADDR=192.168.3.4 host='192.168.3.4' 10.0.0.7:8786 fe80::1c2d:3e4f fd00::1 2001:db8::7:1 a4:83:e7:01:02:03
3C-22-FB-AA-BB-CC 3c22.fbaa.bbcc j&#97;nezebedee zeb\u0065dee %2FUsers%2Fzebedee hunter2zeb ssid:FRITZBox7zeb
""".replace("USERS", "Users")
    .replace("HOME", "home")
    .split()
)
KINDS = [*dict.fromkeys([*KEYS, *NAMES])]


TEXTS = "experiment article case framework framework_version backend device chip precision profile data data_origin"
TEXTS += " power_source started software reason note traceback"


def planted(text: str) -> dict[str, tuple[dict, dict]]:
    """A text in every place of a record and of machine.json: by place, both."""
    line, machine = record().line(), MACHINE | {"gpus": [{"name": "Apple M9", "memory_bytes": None, "cores": 10}]}
    machine |= {"architecture": "arm64", "profile": "quick", "power_source": "ac", "processor": {"Model": "17"}}
    about = {"python": "3.11.9", "packages": {"torch": "2.13.0"}, "environment": {}, "threads": 2}
    about |= {"git": MACHINE["git"]}
    machine |= {"software": {"c0ffee123456": about}, "unknown": {}}
    line |= {"software": "c0ffee123456"}
    metrics, config = line["metrics"], line["config"]
    first = next(iter(metrics))
    of_record = {name: {name: text} for name in TEXTS.split()} | {
        "a key of config": {"config": config | {text: 1}},
        "config": {"config": config | {"model": text}},
        "config, within": {"config": config | {"shape": [1, text]}},
        "config, a dict": {"config": config | {"shape": {"a": text}}},
        "a metric": {"metrics": metrics | {text: metrics[first]}},
        "a unit": {"metrics": metrics | {first: metrics[first] | {"unit": text}}},
        "flags": {"flags": [text]},
        "blocks": {"blocks": {text: {"steady": [[1, 0.1]]}}},
        "blocks, within": {"blocks": {"training": {"steady": [[1, 0.1]], "stopped": text}}},
        "asides": {"asides": {text: [0.1]}},
        "absent": {"absent": {"power_w": text}},
        "a key of absent": {"absent": {text: "no meter"}},
        "rails": {"rails": ["cpu", text]},
        "trace": {"trace": [[0.1, text]]},
        "memory_trace": {"memory_trace": {"columns": [text], "rows": [[1]], "warmup": 0}},
        "thermal": {"thermal": {"before": {text: 1}}},
    }
    of_machine = {f"machine, {name}": {name: text} for name in ("chip", "os", "os_version", "python")} | {
        "a key of machine": {text: 1},
        "packages": {"packages": {"torch": text}},
        "a key of packages": {"packages": {text: "2.13.0"}},
        "git": {"git": {"commit": text, "dirty": False}},
        "gpus": {"gpus": [{"name": text}]},
        "processor": {"processor": {"Model": text}},
        "a key of processor": {"processor": {text: "17"}},
        "unknown": {"unknown": {"gpus": text}},
        "environment": {"software": {"c0ffee123456": about | {"environment": {"OMP_PLACES": text}}}},
        "a variable": {"software": {"c0ffee123456": about | {"environment": {text: "1"}}}},
        "a key of software": {"software": {text: about}},
        "packages of software": {"software": {"c0ffee123456": about | {"packages": {"torch": text}}}},
        "machine, more": dict.fromkeys(("architecture", "profile", "power_source"), text),
    }
    places = {name: (line | more, machine) for name, more in of_record.items()}
    return places | {name: (line, machine | more) for name, more in of_machine.items()}


def secret_of(text: str) -> str:
    """The part of it that must not be there: its longest run of letters and digits, or all of it if that is short."""
    longest = max(re.findall(r"[A-Za-z0-9]+", text), key=len)
    return longest if len(longest) >= 6 else text


def test_no_secret_passes_in_any_place():
    passed, places = [], list(planted("x"))
    assert len(KINDS) >= 105 and len(places) >= 50
    for text in KINDS:
        for place, (line, machine) in planted(text).items():
            shared, names = share.shared_machine(machine)
            kept = {}  # what is not to be shared is left out, whole
            with contextlib.suppress(ValueError):
                kept = share.shared_record(checked(line), names).line()
            if secret_of(text).lower() in json.dumps([shared, kept], ensure_ascii=False).lower():
                passed.append((place, text))
    assert passed == []


# What nobody minds: what the kit prints of itself, and what machines, versions and settings are called.
SAID = """
this machine shows no RAPL energy counters
only macOS tells a thermal level
told only where a GPU is timed
the block took 0.41 s; 0.5 s are needed
1x1024x1024 is too big already
a step of 3.958 TFLOP would take 11.0 s at the least, at 360.5 GFLOP/s, the most that a product in fp32 reaches here; \
4 steps must end within 20.0 s; in every precision the same model is trained
needs 54.4 GB at the least (weights, gradients and optimiser 11.7, kept for the backward pass 42.7); 24.2 GB are free
one clip needs at least 25.1 GB; 14.0 GB may be filled
one part of 16,384 samples needs at least 106 MB; 40.0 MB may be filled
93.0 % of the stand-in right after 0.91 of 5 epochs
random weights: the same work as the checkpoint
would take about 25.2 s a call, and 5 calls are the least, in 12.0 s: 8x500x500 took 0.394 s, and 8x2000x2000 has 64 \
times its operations
planned for 14 GB of 19.5 GB that were free: holes between tensors may take 25 % more; batch size 66
float32 of 8x1024x128
fp32, fp16, bf16, fp64 multiply
2 requirements met, 7 concern Macs only
fits: 99 % of what is free
stand-in for LSUN classroom: no folder was named, and no hub has it
began and never ended: its process was killed
stand-in for Common Voice: no folder was named, and only the Mozilla Data Collective gives it, by hand
PyTorch counts nothing on this device; footprint (resident memory) grew by 256 MB for 256 MB, and 0 % of it \
stayed behind
""".strip().splitlines()
CHIPS = (
    """
Apple M1|Apple M2 Ultra|Apple M5 Max|VirtualApple @ 2.50GHz|Apple Paravirtual device|Intel(R) Xeon(R) Processor
Intel(R) Core(TM) i7-8750H CPU @ 2.20GHz|11th Gen Intel(R) Core(TM) i7-1165G7 @ 2.80GHz|Intel(R) Core(TM) Ultra 7 155H
Intel(R) Xeon(R) Platinum 8488C|Intel(R) Xeon(R) Gold 6248R CPU @ 3.00GHz|Intel Xeon Processor (Skylake, IBRS, no TSX)
AMD EPYC 7763 64-Core Processor|AMD Ryzen 9 7950X 16-Core Processor|AMD Ryzen Threadripper PRO 5995WX 64-Cores
NVIDIA GeForce RTX 4090|NVIDIA GeForce RTX 2070 SUPER|NVIDIA GeForce RTX 4080 Laptop GPU|NVIDIA H100 80GB HBM3
NVIDIA A100-SXM4-80GB|NVIDIA RTX 6000 Ada Generation|Tesla T4|Tesla V100-SXM2-16GB|NVIDIA GH200 480GB|Neoverse-N1
QEMU Virtual CPU version 2.5+|Common KVM processor|NVIDIA RTX PRO 6000 Blackwell Server Edition|Quadro RTX 5000
AMD EPYC 7B13|Cortex-A72|NVIDIA H200|Apple M3 Pro|NVIDIA GeForce GTX 1080 Ti|Apple M4|NVIDIA TITAN RTX
NVIDIA L40S|AMD Ryzen 7 5800H with Radeon Graphics|Apple M1 Max|NVIDIA GB10
""".strip()
    .replace("\n", "|")
    .split("|")
)
VERSIONS = "2.13.0|2.13.0+cpu|2.14.1|2.14.0+cu126|0.32.4|3.11.9|26.1|15.5|6.18.44|13.615.71|2.13.0rc1|1.2.0|0.1.0.dev1"
SETTINGS = "fp32|bf16|none|512 MB|8x1024x2048|gpt2-xl|to fill 90 % of free memory|against another clock|resnet50|zero"
SETTINGS += "|torch.compile"


def test_a_passphrase_of_the_kit_s_own_words_is_none_of_its_texts():
    source = own_texts.names()
    words = sorted({word for text in source for word in re.findall(r"[A-Za-z]{3,}", text)})
    names = sorted(text for text in source if re.fullmatch(r"[A-Za-z]{3,}", text))
    assert len(words) > 2000 and len(names) > 500
    draw, passed = random.Random(3), []
    for number in range(600):
        parts = draw.choices((words, names)[number % 2], k=draw.choice((3, 4, 5)))
        sign = draw.choice((" ", "-", "_", ".", "; ", ", ", ": ", " and ", " of "))
        text = sign.join(parts) + "7241" * (number % 3 == 0)
        keys = ("reason", "note", "model", "chip", "unit")
        passed += [text for key in keys if text in share._tried(text, key, "config")]
        passed += [text] if share._is_key(text, "config") or share._is_key(text, "metrics") else []
    assert passed == []


def test_a_secret_behind_the_kit_s_own_phrases_is_left_out():
    forms = (
        "stand-in for MNIST: {}",
        "Lightning says: {}",
        "{} is not in the cache, and no connection",
        "{}; 1x2 took 3 s",
    )
    texts = {form.format(text): secret_of(text).lower() for form in forms for text in KINDS}
    assert [text for text, secret in texts.items() if secret in (own_texts.own(text) or "").lower()] == []


def test_a_number_of_16_digits_is_shared_in_7_wherever_it_stands():
    card = 4111111111111111
    line, machine = planted("x")["a metric"]
    line["metrics"] = {
        "step_s": {**line["metrics"]["step_s"], "value": card, "n": card, "low": float(card), "high": card}
    }
    line |= dict.fromkeys(("seconds", "flops_per_step", "parameters", "threads", "repeat", "foreign_load"), card)
    line |= {"blocks": {"training": {"steady": [[1, card]]}}}
    sizes = ("cpu_cores", "memory_bytes", "present_mhz")
    shared, names = share.shared_machine(machine | dict.fromkeys(sizes, card))
    kept = share.shared_record(checked(line), names).line()
    assert kept["flops_per_step"] == 4111111000000000 and kept["metrics"]["step_s"]["value"] == 4111111000000000
    assert str(card) not in f"{shared}{kept}" and "41111111" not in f"{shared}{kept}"
    with pytest.raises(ValueError, match="vae"):  # a setting is told exactly, or its row is not
        share.shared_record(checked(line | {"config": {"batch_size": card}}), names)


@pytest.fixture
def m9(tmp_path) -> Path:
    """A finished run, with things beside it that are nobody else's business."""
    out = run(tmp_path / "m9", record(profile="smoke"), record("siamese", profile="smoke"), machine=MACHINE)
    nbformat.write(v4.new_notebook(cells=[v4.new_markdown_cell("# VAE")]), out / "vae.ipynb")
    for name, text in (("tables/own.csv", "zebedee"), ("notes.txt", "zebedee"), (".partial/dcgan.ipynb", "{}")):
        (out / name).parent.mkdir(exist_ok=True)
        (out / name).write_text(text)
    return out


def members(place: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(place) as archive:
        assert archive.testzip() is None
        return {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}


def told(place: Path) -> str:
    """All that a zip says, as whoever looks for something could read it, in small letters."""
    with zipfile.ZipFile(place) as archive:
        names = " ".join(archive.namelist())
    texts = [names, *(data.decode() for data in members(place).values())]
    texts += [unquote(html.unescape(text)) for text in texts]
    texts += [
        str(json.loads(line)) for line in "\n".join(texts).splitlines() if line.startswith("{") and line.endswith("}")
    ]
    return "\n".join(texts).lower()


def test_a_run_becomes_a_zip_that_compares_and_is_the_same_each_time(m9, tmp_path):
    before = {path: path.read_bytes() for path in m9.rglob("*") if path.is_file()}
    place = share.write(m9)
    assert {path: path.read_bytes() for path in m9.rglob("*") if path.is_file()} == before, "a run stays as it is"
    packed = members(place)
    assert {"index.html", "machine.json", "vae.jsonl", "siamese.jsonl", "tables/vae-article.csv"} <= packed.keys()
    assert not [name for name in packed if "own" in name or name.endswith(("ipynb", "txt")) or name == "vae.html"]
    ours, theirs = compare.load(m9), compare.load(place)
    assert place == tmp_path / "m9.zip" and theirs.cases.keys() == ours.cases.keys() and not theirs.problems
    assert b"No finished notebook" not in packed["index.html"] and b"zebedee" not in b"".join(packed.values())
    first = place.read_bytes()
    for path in m9.rglob("*"):
        os.utime(path, (2**31, 2**31))
    assert share.write(m9).read_bytes() == first and not list(tmp_path.glob("*.part"))


def test_all_secrets_in_all_places_of_one_run_are_in_no_file_of_its_zip(tmp_path):
    out = run(tmp_path / "zebedee", machine=MACHINE | {"chip": KINDS[3]})
    for number, (line, _) in enumerate(each for text in KINDS[::9] for each in planted(text).values()):
        with open(out / f"{'vae' if number % 2 else KINDS[number % 40].replace('/', '_')[:60]}.jsonl", "a") as file:
            config = line["config"] | {"batch_size": number}
            file.write(json.dumps(line | {"config": config, "profile": "smoke"}) + "\n")  # which needs no figures
    (out / "tables").mkdir()
    (out / "tables" / f"{KINDS[0]}.csv").write_text(KINDS[1])
    everything = told(share.write(out, say=lambda text: None))
    assert not [text for text in KINDS if secret_of(text).lower() in everything]


def test_another_s_zip_is_not_replaced(m9, tmp_path, capsys):
    assert main(["share", str(m9)]) == 0
    (tmp_path / "other").mkdir()
    (m9.rename(tmp_path / "mine") / "machine.json").write_text(json.dumps(MACHINE | {"cpu_cores": 12}))
    (tmp_path / "mine").rename(m9)
    before = (tmp_path / "m9.zip").read_bytes()
    capsys.readouterr()
    assert main(["share", str(m9)]) == 2 and (tmp_path / "m9.zip").read_bytes() == before
    assert (
        capsys.readouterr().err == "pomology: m9.zip: is there already, with something else in it; move it away first\n"
    )
    assert main(["share", str(tmp_path / "nowhere")]) == 2


def test_a_page_that_cannot_be_made_again_stays(m9, capsys):
    (m9 / "vae.ipynb").unlink()
    (m9 / ".partial" / "dcgan.ipynb").unlink()
    assert main(["report", str(m9)]) == 0
    page = (m9 / "index.html").read_text()
    assert "Made of the journals alone" in page and '<section id="summary">' in page
    (m9 / "index.html").write_text(lost := page.replace('id="summary"', 'id="of-mine"'))
    capsys.readouterr()
    assert main(["report", str(m9)]) == 2 and (m9 / "index.html").read_text() == lost
    assert capsys.readouterr().err == "pomology: index.html stays as it is: of-mine cannot be made without a notebook\n"


def page(text: str) -> str:
    return f"<h1>VAE</h1><pre>{text}</pre>"


def test_rendered_notebooks_go_along_only_when_asked_and_named_and_without_names_and_keys(m9, monkeypatch, capsys):
    monkeypatch.setattr(share.getpass, "getuser", lambda: "zebedee")
    (m9 / "vae.html").write_text(page("loss 0.1"))
    assert main(["share", "--notebooks", str(m9)]) == 0
    said = capsys.readouterr().out
    assert "with what these notebooks printed, as it is: vae" in said and "no search knows them all: read them" in said
    place = m9.with_name("m9.zip")
    assert members(place)["vae.html"].decode() == page("loss 0.1")
    before = place.read_bytes()
    (m9 / "vae.html").write_text(page("at zebedee"))
    assert main(["share", "--notebooks", str(m9)]) == 2 and place.read_bytes() == before
    said = capsys.readouterr().err
    assert said.startswith("pomology: vae.html: holds ") and "nothing was written" in said and "zebedee" not in said
    for hidden in ("<b>zebedee</b>s", "at \\u007aebedee", "&#122;ebedee", "AKIAIOSFODNN7EXAMPLE"):
        assert share.found_in(page(hidden)), hidden


def test_what_the_search_of_a_rendered_notebook_does_not_find(monkeypatch):
    """No list of forms is complete: these pass, of which the user is warned. Clean texts are not refused."""
    monkeypatch.setattr(share, "own_names", lambda: {"zebedee": "this machine's user name"})
    passed = [text for text in KINDS if not share.found_in(page(text))]
    starts = ("+49 170 ", "pippin.orchard", "3c22.fbaa", "hunter2zeb", "ssid:FRITZ")
    assert [text for text in passed if not text.startswith(starts)] == []
    for text in (*SAID, *CHIPS, *SETTINGS.split("|"), "<ConvolutionBackward0>", "2026-11-21T09:05:07Z", "4,111,111 B"):
        assert share.found_in(page(text)) is None, text


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
