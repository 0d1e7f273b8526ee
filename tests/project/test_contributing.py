"""CONTRIBUTING.md: its files make an experiment that runs, a GPU of PyTorch, and a framework."""

import csv
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
import torch
from notebook_code import notebook_text

from pomology.devices import find
from pomology.devices import torch as devices_torch
from pomology.paths import root

TEXT = (root() / "CONTRIBUTING.md").read_text(encoding="utf-8")
EXPERIMENT, DEVICE = TEXT.split("\n## Add a")[1:3]
FLAGS = re.MULTILINE | re.DOTALL
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", FLAGS)


def add_files(checkout: Path) -> None:
    """Copy pomology into a folder, and write the files of the page into it."""
    for name in ("lib", "notebooks", "params", "setup", "tests"):
        ignored = shutil.ignore_patterns("__pycache__", ".ipynb*")
        shutil.copytree(root() / name, checkout / name, ignore=ignored)
    blocks = BLOCK.findall(EXPERIMENT)
    (twin,) = re.findall(r"^`(notebooks/\S+_mlx\.py)`.*?```python\n(.*?)^```$", EXPERIMENT, FLAGS)
    (checkout / twin[0]).write_text(twin[1], encoding="utf-8")
    python = [text.strip() for kind, text in blocks if kind == "python" and text != twin[1]]
    of_kind = dict(blocks)
    about = json.loads("{" + re.search(r'`"pomology": (.*?)`', EXPERIMENT)[1][1:])
    (place,) = re.findall(r"^`(notebooks/\S+\.ipynb)`", EXPERIMENT, re.MULTILINE)
    document = nbformat.reads(notebook_text(of_kind["markdown"], *python, **about), 4)
    document.metadata["language_info"] = {"name": "python"}  # which JupyterLab writes
    (checkout / place).write_text(f"{nbformat.writes(document)}\n")
    params = r"`(params/\S+\.yaml)`\n\n```yaml\n(.*?)```"
    for path, text in re.findall(params, EXPERIMENT, re.DOTALL):
        (checkout / path).write_text(text)
    published = checkout / "lib" / "pomology" / "articles" / "data" / "published.csv"
    with open(published, "a", newline="") as file:
        file.write(of_kind["csv"])


@pytest.mark.long
def test_the_twin_of_the_page_makes_the_same_step(tmp_path):
    add_files(tmp_path)
    line = dict(BLOCK.findall(EXPERIMENT))["text"]
    place = tmp_path / "tests" / "references" / "test_twins.py"
    text = place.read_text(encoding="utf-8").replace("TWINS = {\n", f"TWINS = {{\n{line}", 1)
    place.write_text(text.replace("QUICK = (", 'QUICK = ("perceptron", ', 1), encoding="utf-8")
    shutil.copy(root() / "pyproject.toml", tmp_path)
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "lib")}
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += ["tests/references/test_twins.py", "-k", "same_step and perceptron"]
    said = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert said.returncode == 0 and said.stdout.startswith(". "), said.stdout


@pytest.mark.long
def test_an_experiment_runs_and_the_report_shows_it_with_its_published_rows(tmp_path):
    add_files(tmp_path)
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "lib")}
    command = [
        sys.executable,
        "-m",
        "pomology",
        "reproduce",
        "--profile=smoke",
        "--only=perceptron",
    ]
    command += ["--device=cpu", "--data=synthetic", "--run=a"]
    options = {"cwd": tmp_path, "env": environment, "capture_output": True, "text": True}
    done = subprocess.run(command, check=False, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "cpu, width 16" in done.stdout and "MLX, cpu, width 16" in done.stdout, done.stdout
    out = tmp_path / "outputs" / "a"
    records = [json.loads(line) for line in (out / "perceptron.jsonl").read_text().splitlines()]
    ended = {each["framework"]: each for each in records if each["event"] == "end"}
    assert {name: each["status"] for name, each in ended.items()} == {"torch": "ok", "mlx": "ok"}
    assert ended["torch"]["flops_per_step"] == ended["mlx"]["flops_per_step"]
    page = (out / "index.html").read_text(encoding="utf-8").replace("\N{NO-BREAK SPACE}", " ")
    assert ">A perceptron on digits</span>" in page and "4.1 s" in page and ">Width</th>" in page
    with open(out / "shown" / "perceptron" / "01-article.csv", newline="") as file:
        rows = [(row["width"], float(row["epoch_s"])) for row in csv.DictReader(file)]
    assert rows == [("1024", 4.1), ("1024", 3.5)]
    # The form of its files, by the command of the page.
    shutil.copy(root() / "pyproject.toml", tmp_path)
    (typed,) = re.findall(r"`\.venv/bin/python -P -m (pytest \S+ -k) NAME`", EXPERIMENT)
    checks = [sys.executable, "-P", "-m", *typed.split(), "perceptron", "-p", "no:xdist"]
    done = subprocess.run(checks, check=False, **options)
    assert done.returncode == 0, done.stdout + done.stderr


LINE, FILE = [text for kind, text in BLOCK.findall(DEVICE) if kind == "python"]


def test_a_new_backend_of_pytorch_is_one_line(monkeypatch):
    monkeypatch.setitem(devices_torch.GPUS, "xpu", "")  # which takes it out after the test
    exec(LINE, vars(devices_torch))
    monkeypatch.setattr(torch.xpu, "is_available", lambda: True)
    monkeypatch.setattr(torch.xpu, "get_device_name", lambda: "Intel Arc B580")
    for other in (torch.cuda, torch.mps):
        monkeypatch.setattr(other, "is_available", lambda: False)
    cpu, xpu = find.find("auto")
    assert [device.backend for device in find.find("xpu")] == ["xpu"] and "xpu" in find.choices()
    assert (xpu.kind, xpu.name, xpu.handle) == ("gpu", "Intel Arc B580", torch.device("xpu"))
    assert cpu.unified_memory and not xpu.unified_memory


PROGRAM = """
import sys
import numpy
from pomology import devices
devices.__path__.append(sys.argv[1])
from pomology.devices import find
from pomology.experiment.experiment import Experiment
from pomology.models.cost import Cost

assert list(find.frameworks()) == ["torch", "tensorflow", "numpy", "mlx"]
(cpu,) = find.find("auto", "numpy")
bf16 = "data type 'bfloat16' not understood"
assert cpu.precisions() == {"fp32": None, "fp16": None, "bf16": bf16, "fp64": None}
experiment = Experiment("vae", article="003", framework="numpy", out=sys.argv[2], profile="smoke",
                        expects_learning=False)
(case,) = experiment.cases(batch_size=[8])
with case:
    weights = case.watch_model([numpy.zeros((4, 4))])
    case.require_memory(Cost(16, 100, state_bytes=64, saved_bytes=0))
    case.require_time(10)
    for (batch,) in case.steps([[numpy.ones(2)]] * 30):
        assert case.backend.to_device(batch).dtype == "float32"
        weights[0] += 1
assert not {"torch", "tensorflow", "mlx"} & set(sys.modules)
(record,) = experiment.records
assert record.framework_version == numpy.__version__
print(record.status, record.reason, record.framework)
"""


def test_a_new_framework_is_one_file(tmp_path):
    (tmp_path / "numpy_.py").write_text(FILE)
    command = [sys.executable, "-c", PROGRAM, tmp_path, tmp_path / "run"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "ok None numpy"
