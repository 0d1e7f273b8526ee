"""The collection: lies are refused or marked, honest runs are not refused, and one page has all."""

import json
import re
import shutil
import zipfile

import pandas
import pytest
import records
from shared_runs import copied, every, honest, retime, zipped

from pomology.__main__ import main
from pomology.extras.collection import check, page
from pomology.extras.compare.many import compare
from pomology.extras.share import share
from pomology.measure.estimate import Estimate
from pomology.paths import root

IGNORED = shutil.ignore_patterns("*.html", "*.ipynb", "shown", "*.parquet")


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """Return the files of the shared reference run: name -> parsed lines."""
    folder = tmp_path_factory.mktemp("shared") / "reference"
    shutil.copytree(root() / "outputs" / "reference-cpu", folder, ignore=IGNORED)
    with zipfile.ZipFile(share.write(folder)) as archive:
        parts = {name: archive.read(name).decode() for name in archive.namelist()}
    machine = parts.pop("machine.json")
    lines = {name: [json.loads(line) for line in part.splitlines()] for name, part in parts.items()}
    return {"machine.json": json.loads(machine)} | lines


def scaled(name, factor, ends=("value", "low", "high")):
    """Return a lie about one metric."""

    def lie(record):
        metric = record["metrics"].get(name, {})
        metric |= {end: metric[end] * factor for end in ends if metric.get(end)}

    return lie


def faster(factor, steps=True):
    """Return a lie about raw times, and all that follows from them."""
    return lambda each: each["experiment"] == "instrument_check" or retime(each, factor, steps)


def loop(change):
    """Return a lie about the raw times of a loop."""
    return lambda each: change(each["blocks"]["training"])


def update(**fields):
    return lambda each: each.update(fields)


def swapped(*names):
    def lie(files, _):
        one, other = every(files, "dcgan")[:2]
        for name in names:
            one[name], other[name] = other[name], one[name]

    return lie


def of_another(*names):
    """Return a lie that has journals of another run, under this machine's name."""

    def lie(files, other):
        for name in names or files.keys() - {"machine.json"}:
            files[name] = copied(other)[name]
            for each in files[name]:
                each["chip"] = files["machine.json"]["chip"]

    return lie


def checks(change):
    """Return a lie that keeps the instrument's checks for which `change` is true."""
    return lambda files, _: files.update({CHECKS: list(filter(change, files[CHECKS]))})


def best_repeat(files, _):
    for each in every(files, "dcgan"):
        first = next(one for one in every(files, "dcgan") if one["case"] == each["case"])
        each |= {"metrics": first["metrics"], "blocks": first["blocks"]}


def renamed(files, _):
    files["machine.json"]["chip"] = "Apple M4 Max"
    for each in every(files, ok=False):
        each["chip"] = "Apple M4 Max"


CHECKS = "instrument_check.jsonl"
SOME = ("dcgan", "device_check", "gpt2_pretraining", "instrument_check", "peaks", "transformer_lm")
# Of a GPU: TF32 as fp32, and a slower GPU.
GPU_LIES = [("peaks", faster(6)), ("peaks", faster(1 / 20)), {"gpus": [{"name": "NVIDIA L4"}]}]
LIES = [
    *(("dcgan", scaled(f"{name}_s", 0.5)) for name in ("step", "epoch", "compute_epoch")),
    *(("dcgan", scaled(name, 2)) for name in ("flops_per_s", "first_step_s")),
    *(("device_check", scaled(name, 0.8)) for name in ("step_s", "forward_s", "throughput")),
    *(("peaks", scaled(name, 1.3)) for name in ("flops_per_s", "bytes_per_s", "kernel_s")),
    *(("gpt2", scaled(name, 0.7)) for name in ("update_s", "forward_flops_per_s")),
    *(("dcgan", faster(factor)) for factor in (4, 6)),
    *((name, faster(1.6, steps=False)) for name in ("", "dcgan", "gpt2", "device_check")),
    lambda files, _: retime(every(files, "transformer")[0], 2.5),
    lambda files, _: retime(every(files, "gpt2")[1], 4),
    ("dcgan", loop(lambda raw: raw.update(steady=[[n, s / 2] for n, s in raw["steady"]]))),
    ("dcgan", loop(lambda raw: raw.update(steady=[[2 * n, s] for n, s in raw["steady"]]))),
    ("dcgan", loop(lambda raw: raw.update(steady=sorted(raw["steady"])[:2]))),
    ("dcgan", loop(lambda raw: raw.update(ready=[[n, s / 3] for n, s in raw["ready"]]))),
    ("dcgan", update(blocks={})),
    {"chip": "AMD EPYC 9654"},
    ("dcgan", update(chip="AMD EPYC 9654")),
    renamed,
    {"gpus": [{"name": "NVIDIA A100-SXM4-80GB"}], "os": "macOS"},
    ("dcgan", update(backend="cuda")),
    *map(swapped, ("metrics", "config", "blocks")),
    swapped("metrics", "blocks"),
    swapped("config", "case"),
    ("", lambda each: each.pop("canary", None)),
    {"profile": "smoke"},
    ("", update(profile="smoke")),
    of_another(),
    of_another("dcgan.jsonl"),
    best_repeat,
    lambda files, _: files.pop(CHECKS),
    *(checks(lambda each, n=name: each["config"]["check"] != n) for name in check.NEEDED),
    ("instrument", update(status="mismatch")),
    ("dcgan", lambda each: each.update(flops_per_step=2 * each["flops_per_step"])),
    ("dcgan", update(parameters=1)),
    ("transformer", scaled("step_s", 0.98, ("high",))),
    ("dcgan", update(note="the fastest machine of all")),
    ("dcgan", update(framework_version="2.14.1 by Jane")),
    {"owner": "Jane Doe"},
    {"os_version": "see example.org/buy"},
    {"git": {"commit": "74a8e5004dbcc4c3c0d56351c45d719197a7ca24", "dirty": True}},
    {"git": None},
    lambda files, _: files.update({"page.html": ["<script>"]}),
]


def told(lie, files, other):
    """Return a run's files with a lie: of the machine, of every record of an experiment, or any."""
    files = copied(files)
    if isinstance(lie, dict):
        files["machine.json"] |= lie
    elif isinstance(lie, tuple):
        for each in every(files, lie[0]):
            lie[1](each)
    else:
        lie(files, other)
    return files


@pytest.mark.long
def test_lies_are_refused_or_marked_and_no_honest_run_is_refused(reference, tmp_path):
    some = copied(reference, SOME)
    runs = [honest(some, number, gpu=number % 5 == 4) for number in range(20)]
    zips = [zipped(tmp_path / f"{number}.zip", files) for number, files in enumerate(runs)]
    found = [check.check(place) for place in zips]
    for one, broken in zip(found, compare([one.traits for one in found]), strict=True):
        one.broken.extend(broken)
        assert not one.refused, one.lines()
    lies = [(4 + 5 * (n % 4), lie) for n, lie in enumerate(GPU_LIES)]
    lies += [(n % 20 - (n % 5 == 4), lie) for n, lie in enumerate(LIES)]
    missed = []
    for n, (number, lie) in enumerate(lies):
        one = check.check(zipped(tmp_path / "lie.zip", told(lie, runs[number], runs[number - 1])))
        others = [other.traits for place, other in enumerate(found) if place != number]
        before = {rule for rule, _ in found[number].broken}
        broken = one.broken + compare([*others, one.traits])[-1]
        if not {rule for rule, _ in broken} - before:
            missed.append(n)
    assert len(lies) >= 50 and len(missed) <= 3, missed


@pytest.mark.parametrize(
    ("watts", "joules", "words"),
    [
        (60.0, 30.0, None),
        (60.0, None, None),
        (None, 30.0, None),
        (404_020.0, None, "power_w is 4.04e+05; expected 0.1 to 2,500"),
        (0.001, None, "power_w is 0.001"),
        (60.0, 3.0, "energy_j_per_step is 3; its power and its steps give 30"),
    ],
)
def test_energy_has_bounds_and_fits_the_power(watts, joules, words):
    stated = {"power_w": (watts, "W"), "energy_j_per_step": (joules, "J")}
    metrics = {
        name: records.metric(value, unit=unit)
        for name, (value, unit) in stated.items()
        if value is not None
    }
    case = check.CheckedCase(records.record(metrics=metrics), {}, [], 0.5, 0.5, 1.0)
    said = [text for rule, text in check._values(case) if rule == "energy"]
    assert len(said) == bool(words) and all(words in text for text in said)


def test_a_page_of_all_accepted_runs_and_what_was_refused(reference, tmp_path, capsys):
    some = copied(reference, ("instrument_check", "transformer_lm"))
    runs = [some, honest(some, 1), honest(some, 1), told({"git": None}, honest(some, 2), None)]
    for name, files in zip(("0", "1", f"2{'-' * 90}", "3"), runs, strict=True):
        zipped(tmp_path / f"{name}.zip", files)
    assert main(["collect", "--folder", str(tmp_path)]) == 1
    assert "Runs accepted: 2, refused: 2" in capsys.readouterr().out
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "AMD EPYC CPU" in page and "machines: 1, runs: 1" in page
    assert "predicted" in page and not re.search("<script|https?:|src=", page)
    assert 'href="framework-pytorch.html"' in page and (tmp_path / "year-2026.html").exists()
    assert "…: refused: copy" in page and "3.zip: refused: not reproducible" in page


def test_submitting_says_what_the_zip_holds_and_asks(tmp_path, capsys):
    folder = tmp_path / "mine"
    shutil.copytree(root() / "outputs" / "reference-cpu", folder, ignore=IGNORED)
    assert main(["submit", str(folder)]) == 1  # there is no terminal to ask in
    assert not list(tmp_path.glob("*.zip"))
    assert main(["submit", str(folder), "--yes"]) == 0
    said = capsys.readouterr().out
    assert "names of chips" in said and "Nothing was sent" in said and "amd-epyc-2026-" in said
    machine = json.loads((folder / "machine.json").read_text())
    (folder / "machine.json").write_text(json.dumps(machine | {"profile": "smoke"}))
    assert main(["submit", str(folder), "--yes"]) == 2
    assert "profile smoke" in capsys.readouterr().err


def time_of(device, experiment):
    common = {"framework": "PyTorch", "precision": "fp32", "version": "2.14.1", "year": "2026"}
    common |= {"case": "step, batch size 64", "machine": device, "work": (1e12, 1e10)}
    return common | {"device": device, "experiment": experiment, "repeats": [Estimate(1.0, "s")]}


def test_a_measured_device_is_predicted_by_the_data_sheet_that_its_name_means():
    measured = [time_of("Apple M1 GPU", "vae"), time_of("A100-SXM4-80GB CUDA", "vae")]
    measured += [time_of("AMD EPYC CPU", "dcgan")]
    rows = dict(page._table(pandas.DataFrame(measured))["rows"])
    # Of an M1 with an unknown number of cores the smallest is predicted.
    ((_, what),) = rows["Apple M1 GPU"]["dcgan"]
    assert what == "predicted for M1 GPU (7 cores), fp32"
    ((_, what),) = rows["A100-SXM4-80GB CUDA"]["dcgan"]
    assert what == "predicted for A100 80 GB SXM, fp32"
    ((_, what),) = rows["A100 40 GB SXM"]["dcgan"]
    assert what == "predicted, fp32"
    assert {"M1 GPU (8 cores)", "A100 80 GB SXM"}.isdisjoint(rows)
    assert rows["AMD EPYC CPU"].keys() == {"dcgan"}
