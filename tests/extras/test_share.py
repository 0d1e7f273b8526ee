"""A shared run: it has all numbers, and no text that pomology does not write itself."""

import json
import re
import shutil
import zipfile

import msgspec
import pytest
import records
from pandas.testing import assert_frame_equal

import pomology
from pomology.__main__ import main
from pomology.extras import compare
from pomology.extras.share import share
from pomology.machine import snapshot
from pomology.measure.estimate import Estimate
from pomology.paths import root
from pomology.results import cases, metrics
from pomology.results.record import PROFILES, STATUSES, Record, checked
from pomology.results.run import Run
from pomology.runner import notebooks

GPU = {"name": "Apple M9", "memory_bytes": None, "cores": 10}
MACHINE = {"chip": "Apple M9", "cpu_cores": 8, "memory_bytes": 2**34, "gpus": [GPU], "os": "macOS"}
MACHINE |= {"os_version": "26.1", "python": "3.11.9", "packages": {"torch": "2.14.1"}}
MACHINE |= {"unknown": {}, "git": {"commit": "c0ffee42" * 5, "dirty": True}, "profile": "quick"}
MACHINE |= {"left_out": {"vae": "later"}, "software": {"c0ffee": {"environment": {"A_B": "c"}}}}
SECRETS = """hf_AbCdEfGhIjKlMnOpQrStUvWxYz01234567|9f86d081884c7d659a2feaa0c55ad015|correct!horse7
/Users/jane/data|janes-mac.fritz.box|192.168.3.4|WANDB_API_KEY=a1b2c3d4|jane@example.org|Jane Doe
4323 9158 6212 8474|+49 932 6779 4229|932 6779|48.1371, 11.5754|48.1371|4711 0815 1234
NVIDIA 10.215.49.114|Apple 932 6779|NVIDIA 4711|NVIDIA RTX 4323-9158-6212|memory 4323 of 9158"""


def run(folder, machine=MACHINE, **fields):
    metrics = {"epoch_s": records.metric(7.9, 7.5, 8.3, "s")}
    return records.write(folder, [records.record(metrics=metrics, **fields)], machine)


def members(place):
    with zipfile.ZipFile(place) as archive:
        return {name: archive.read(name).decode() for name in archive.namelist()}


def planted(value, text):
    """Yield copies of a value with a text as a further key or item, or instead of a text."""
    if isinstance(value, dict):
        yield value | {text: 1}
        for name, each in value.items():
            yield from (value | {name: new} for new in planted(each, text))
    elif isinstance(value, list):
        yield [*value, text]
        for place, each in enumerate(value):
            yield from ([*value[:place], new, *value[place + 1 :]] for new in planted(each, text))
    elif value is None or isinstance(value, str):
        yield text


def filled():
    """Return the line of a record with a value in each field."""
    trace = {"columns": ["t_s"], "rows": [[1.0]], "absent": {"footprint_bytes": "a"}, "warmup": 0}
    fields = {"metrics": {"epoch_s": records.metric(7.9, 7.5, 8.3, "s")}, "memory_trace": trace}
    fields |= {"config": {"model": "mlp", "shape": "2x2", "size": "8", "batch_size": [1, "mlp"]}}
    fields |= {"blocks": {"training": {"steady": [[1, 0.1]], "stopped": "budget"}}, "note": "a"}
    fields |= {"asides": {"test": [1.0]}, "absent": {"power_w": "a"}, "rails": ["cpu"]}
    fields |= {"trace": [[]], "traceback": "a", "canary": {"before_s": 1.0}, "software": "c0ffee"}
    fields |= {"thermal": {"before": {"level": 0}}, "data_origin": "a"}
    return records.record(**fields).line()


@pytest.mark.parametrize("secret", re.split(r"[|\n]", SECRETS))
def test_no_secret_passes_from_any_place(tmp_path, secret):
    lines = [filled()]
    for number, line in enumerate(planted(filled(), secret), start=1):
        try:
            lines.append(checked(line | {"repeat": number}).line())
        except msgspec.ValidationError:  # such as a status: a journal cannot have it
            continue
    out = records.write(tmp_path / "run", [], MACHINE | {secret: secret})
    (out / "vae.jsonl").write_text("\n".join(map(json.dumps, lines)))
    if "/" not in secret:
        (out / f"{secret}.jsonl").write_text(json.dumps(lines[0]))
    (out / "shown").mkdir()
    for ending in ("csv", "html", "svg", "ipynb", "parquet"):
        (out / "shown" / f"a.{ending}").write_text(secret)
    packed = share.write(out)
    text = json.dumps([members(packed), [share.plain(each) for each in planted(MACHINE, secret)]])
    assert secret not in text and text.count("unknown") > 40
    assert not Run(packed).problems and len(Run(packed).records) == len(Run(out).records) > 40


@pytest.mark.parametrize("value", [4323915862128474, [4323, 9158], 48.137154])
def test_a_setting_that_is_not_all_known_keeps_its_case_apart(tmp_path, value):
    out = run(tmp_path / "run", config={"batch_size": value})
    records.write(out, [records.record(config={"batch_size": value, "jane": 1})])
    (tmp_path / "again").mkdir()
    again = shutil.copytree(out, tmp_path / "again" / "run")
    found = [record.config for place in (out, again) for record in Run(share.write(place)).records]
    assert {config["batch_size"] for config in found} == {"unknown"} and len(found) == 4
    assert len({config["unknown"] for config in found}) == 4


def test_the_reference_run_loads_unchanged_but_for_its_reasons(tmp_path):
    folder = shutil.copytree(root() / "outputs" / "reference-cpu", tmp_path / "run")
    (folder / "results.parquet").unlink(missing_ok=True)
    packed = share.write(folder)
    shared, own = pomology.load(packed), pomology.load(folder)
    texts = ["reason", "note", "data_origin"]
    assert_frame_equal(shared.drop(columns=texts), own.drop(columns=texts))
    hidden = dict.fromkeys((*texts, "software", "absent"))
    for one, other in zip(Run(packed).records, Run(folder).records, strict=True):
        assert one.line() | hidden == other.line() | hidden
    machine, shared = Run(folder).machine, Run(packed).machine
    # Three parts of a version are shared, since four could be an address of a network.
    versions = {
        name: ".".join(version.split(".")[:3]) if version.count(".") == 3 else version
        for name, version in machine["packages"].items()
    }
    assert {key: machine[key] for key in shared} | {"packages": versions} == shared
    internal = {"code", "library", "environment", "left_out", "software"}
    assert machine.keys() - shared.keys() == internal


def test_a_shared_zip_can_be_compared_and_is_not_replaced(tmp_path, capsys):
    out = run(tmp_path / "mine")
    packed = share.write(out)
    assert packed == tmp_path / "mine.zip"
    assert members(packed).keys() == {"machine.json", "vae.jsonl"}
    (shared,), (own,) = compare.load(packed), compare.load(out)
    assert [each.config for each in shared.records] == [each.config for each in own.records]
    before = packed.read_bytes()
    assert main(["share", str(out)]) == 2
    assert packed.read_bytes() == before
    assert capsys.readouterr().err.startswith("pomology: mine.zip: already exists")


CHIPS = """Apple M2 Ultra|VirtualApple @ 2.50GHz|Apple Paravirtual device|Intel(R) Xeon(R) Processor
Intel(R) Core(TM) i7-8750H CPU @ 2.20GHz|11th Gen Intel(R) Core(TM) i7-1165G7 @ 2.80GHz
AMD EPYC 7B13|AMD EPYC|Intel Xeon Processor (Skylake, IBRS, no TSX)|Apple M1 (Virtual)|Tesla T4
AMD Ryzen Threadripper PRO 5995WX 64-Cores|Neoverse-N1|NVIDIA A100-SXM4-80GB|NVIDIA GB10
NVIDIA GeForce RTX 4080 Laptop GPU|QEMU Virtual CPU version 2.5+|NVIDIA H100 80GB HBM3
AMD Ryzen 9 5950X 16-Core Processor|AMD Ryzen 7 7840HS w/ Radeon 780M Graphics|Cortex-A72
Intel(R) Xeon(R) CPU E5-2690 v4 @ 2.60GHz|INTEL(R) XEON(R) PLATINUM 8570|Radeon Pro 555
NVIDIA RTX PRO 6000 Blackwell Workstation Edition|Intel(R) Core(TM) Ultra 9 185H|AMD EPYC 9V33X
Tesla V100-SXM2-16GB|NVIDIA RTX 6000 Ada Generation|Intel Iris Plus Graphics 655|NVIDIA L40S"""
VERSIONS = "2.14.1|2.13.0+cpu|2.14.0+cu126|26.1|2.13.0rc1|0.1.0.dev1|2.15.0a0+git9f86d08|6.18.44"
SETTINGS = "to fill 90 % of free memory|8x1024x2048|gpt2-xl|batch_norm|autocast bf16|512 MB|fsdp"
SETTINGS += "|qwen2.5-0.5b/2|LoRA"
SETTINGS += "|torch.compile|work not waited for|product, by PyTorch|mlx-gpu|tokens/s|GradScaler|off"


@pytest.mark.parametrize(
    ("field", "texts"), [("chip", CHIPS), ("python", VERSIONS), ("size", SETTINGS)]
)
def test_names_of_chips_versions_and_settings_are_shared(field, texts):
    unknown = [text for text in re.split(r"[|\n]", texts) if not share.is_known(text, field)]
    assert unknown == [] and not share.is_known("4711")


def test_what_decides_a_gpus_speed_is_shared():
    packages = {"nvidia-cudnn-cu13": "9.21.0.82", "triton": "3.6.0", "mlx-metal": "0.32.4"}
    packages |= {"nvidia-cuda-runtime": "13.0.96", "secret-package": "1.0"}
    gpu = {"name": "NVIDIA GeForce RTX 4090", "power_limit_w": 450.0}
    machine = {"driver": "580.95.05", "packages": packages, "gpus": [gpu]}
    shared = share.plain(machine)
    assert shared["driver"] == "580.95.05" and shared["gpus"] == [gpu]
    # Of four parts, which an address of a network has too, three are kept.
    assert shared["packages"] == {
        "nvidia-cudnn-cu13": "9.21.0",
        "triton": "3.6.0",
        "mlx-metal": "0.32.4",
        "nvidia-cuda-runtime": "13.0.96",
    }
    assert share.plain({"driver": "10.0.0.1"}) == {"driver": "unknown"}
    assert share.plain({"python": "10.0.0.1"}) == {"python": "unknown"}


def test_pomologys_own_names_are_shared():
    names = [*STATUSES, *PROFILES, *cases.FLAGS, *metrics.TABLE]
    names += [
        *snapshot.PACKAGES,
        *Record.__struct_fields__,
        *Estimate.__struct_fields__,
        *cases.TIMES,
    ]
    for notebook in notebooks.notebooks():
        names.append(notebook.name)
        for place in (notebook.path, *notebook.path.parent.glob("*.py")):
            text = place.read_text()
            names += re.findall(r'(?:metric|phase|occasional)\(\\?"(.+?)\\?"', text)
            settings = re.findall(r"settings=\[(.*?)\]", text, re.DOTALL)
            names += re.findall(r'\\"([a-z_]+)\\"', "".join(settings))
    assert {name for name in names if not share.is_known(name)} < {*share.FREE}


SMOKE = MACHINE | {"profile": "smoke", "packages": {}}
CLEAN = {"git": {"commit": "c0ffee42" * 5, "dirty": False}, "profile": "quick", "packages": {}}


@pytest.mark.parametrize(("machine", "is_refused"), [(SMOKE, True), (MACHINE | CLEAN, False)])
def test_sharing_says_whether_submit_would_refuse_the_run(tmp_path, capsys, machine, is_refused):
    out = run(tmp_path / "run", machine)
    assert main(["share", str(out)]) == 0
    first, *rest = capsys.readouterr().out.splitlines()
    assert first.endswith("MB)") and len(rest) == is_refused
    assert main(["submit", str(out)]) == (2 if is_refused else 1)  # 1: nobody answers
    if is_refused:
        reasons = rest[0].partition("`pomology submit` refuses this run: ")[2]
        assert "profile smoke, not quick or article" in reasons
        assert reasons in capsys.readouterr().err
