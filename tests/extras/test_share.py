"""A shared run: it has all numbers, and no free text."""

import json
import shutil
import zipfile

import fakes
import pytest
import records
from pandas.testing import assert_frame_equal

import pomology
from pomology.__main__ import main
from pomology.extras import compare
from pomology.extras.share import share
from pomology.paths import root
from pomology.results.run import Run

GPU = {"name": "Apple M9", "memory_bytes": None, "cores": 10}
MACHINE = {"chip": "Apple M9", "cpu_cores": 8, "memory_bytes": 2**34, "gpus": [GPU], "os": "macOS"}
MACHINE |= {"os_version": "26.1", "python": "3.11.9", "packages": {"torch": "2.14.1"}}
MACHINE |= {"unknown": {}, "git": {"commit": "c0ffee42" * 5, "dirty": True}}
SECRETS = {
    "key": "hf_AbCdEfGhIjKlMnOpQrStUvWxYz01234567",
    "key of AWS": "AKIAIOSFODNN7EXAMPLE",
    "hex": "9f86d081884c7d659a2feaa0c55ad015",
    "password": "correct!horse7",
    "path": "/Users/jane/data",
    "host": "janes-mac.fritz.box",
    "address": "192.168.3.4",
    "variable": "WANDB_API_KEY=a1b2c3d4",
    "person": "jane@example.org",
}


def run(folder, machine=MACHINE, **fields):
    metrics = {"epoch_s": records.metric(7.9, 7.5, 8.3, "s")}
    return records.write(folder, [fakes.record(metrics=metrics, **fields)], machine)


def members(place):
    with zipfile.ZipFile(place) as archive:
        return {name: archive.read(name).decode() for name in archive.namelist()}


def places(text):
    """Return free texts of a run: place -> changed fields of its record and of machine.json."""
    trace = {"columns": ["t_s"], "rows": [[1.0]], "absent": {"footprint_bytes": text}, "warmup": 0}
    return {
        "reason": ({"status": "error", "reason": text}, {}),
        "note": ({"note": text}, {}),
        "traceback": ({"traceback": text}, {}),
        "data": ({"data_origin": text}, {}),
        "absent": ({"absent": {"power_w": text}}, {}),
        "memory trace": ({"memory_trace": trace}, {}),
        "setting": ({"config": {"model": text}}, {}),
        "nested setting": ({"config": {"shape": [1, {"size": text}]}}, {}),
        "name of a setting": ({"config": {text: 1}}, {}),
        "case": ({"case": text}, {}),
        "flag": ({"flags": [text]}, {}),
        "block": ({"blocks": {text: {"steady": [[1, 0.1]]}}}, {}),
        "rail": ({"rails": [text]}, {}),
        "chip": ({"chip": text}, {"chip": text, "gpus": [GPU | {"name": text}]}),
        "version": ({"framework_version": text}, {"packages": {"torch": text}, "python": text}),
        "key": ({}, {text: 1, "packages": {text: "1"}}),
        "host": ({}, {"host": text, "os": text, "git": {"commit": text, "remote": text}}),
        "unknown": ({}, {"unknown": {"gpus": text}}),
        "environment": ({}, {"software": {"c0ffee123456": {"environment": {"OMP_PLACES": text}}}}),
    }


@pytest.mark.parametrize("secret", SECRETS.values(), ids=SECRETS)
def test_no_secret_passes_from_any_place(tmp_path, secret):
    for name, (fields, facts) in places(secret).items():
        out = run(tmp_path / name, MACHINE | facts, **fields)
        (out / "notes.txt").write_text(secret)
        packed = share.write(out)
        assert secret not in json.dumps(members(packed)), name
        assert not Run(packed).problems, name


def test_the_reference_run_loads_unchanged_but_for_its_reasons(tmp_path):
    folder = shutil.copytree(root() / "outputs" / "reference-cpu", tmp_path / "run")
    (folder / "results.parquet").unlink(missing_ok=True)
    packed = share.write(folder)
    shared, own = pomology.load(packed), pomology.load(folder)
    texts = ["reason", "note", "data_origin"]
    assert_frame_equal(shared.drop(columns=texts), own.drop(columns=texts))
    machine, shared = Run(folder).machine, Run(packed).machine
    assert machine["packages"].items() >= shared.pop("packages").items()
    assert {key: machine[key] for key in shared} == shared
    assert machine.keys() - shared.keys() >= {"left_out", "software"}


def test_a_shared_zip_can_be_compared_and_is_not_replaced(tmp_path, capsys):
    out = run(tmp_path / "mine")
    packed = share.write(out)
    assert packed == tmp_path / "mine.zip"
    assert members(packed).keys() == {"machine.json", "vae.jsonl"}
    assert list(compare.load(packed).batch_size) == list(compare.load(out).batch_size)
    before = packed.read_bytes()
    assert main(["share", str(out)]) == 2
    assert packed.read_bytes() == before
    assert capsys.readouterr().err.startswith("pomology: mine.zip: already exists")


CHIPS = """Apple M2 Ultra|VirtualApple @ 2.50GHz|Apple Paravirtual device|Intel(R) Xeon(R) Processor
Intel(R) Core(TM) i7-8750H CPU @ 2.20GHz|11th Gen Intel(R) Core(TM) i7-1165G7 @ 2.80GHz
AMD EPYC 7B13|Intel Xeon Processor (Skylake, IBRS, no TSX)
AMD Ryzen Threadripper PRO 5995WX 64-Cores|Neoverse-N1|NVIDIA A100-SXM4-80GB
NVIDIA GeForce RTX 4080 Laptop GPU|QEMU Virtual CPU version 2.5+|NVIDIA H100 80GB HBM3"""
VERSIONS = "2.14.1|2.13.0+cpu|2.14.0+cu126|26.1|2.13.0rc1|0.1.0.dev1|2.15.0a0+git9f86d08"
SETTINGS = "to fill 90 % of free memory|8x1024x2048|gpt2-xl|batch_norm|autocast bf16|512 MB"


@pytest.mark.parametrize(
    ("field", "texts"),
    [("chip", CHIPS.replace("\n", "|")), ("python", VERSIONS), ("model", SETTINGS)],
)
def test_names_of_chips_versions_and_settings_are_shared(field, texts):
    assert [text for text in texts.split("|") if share.is_free(text, field)] == []


def test_rendered_notebooks_are_added_on_request_unless_one_has_a_name_or_key(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(share.getpass, "getuser", lambda: "zebedee")
    monkeypatch.setenv("LAB_TOKEN", "q1w2e3r4")
    out = run(tmp_path / "mine")
    for text in ("at <b>zeb</b>edee", "&#122;ebedee", "q1w2e3r4", SECRETS["key of AWS"]):
        (out / "vae.html").write_text(f"<h1>VAE</h1><pre>{text}</pre>")
        assert main(["share", "--notebooks", str(out)]) == 2, text
        assert capsys.readouterr().err.startswith("pomology: vae.html: contains ")
        assert not (tmp_path / "mine.zip").exists()
    (out / "vae.html").write_text("<pre>loss 0.1, <ConvolutionBackward0>, 4,111,111 B</pre>")
    assert main(["share", "--notebooks", str(out)]) == 0
    assert "loss 0.1" in members(tmp_path / "mine.zip")["vae.html"]
