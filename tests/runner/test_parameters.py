"""Wrong parameters: each gives one line that names the file, the parameter, its value, and what would be right."""

import importlib.metadata
import json
import re
import sys
import time
from types import SimpleNamespace

import pytest

from pomology.errors import PomologyError
from pomology.machine import snapshot
from pomology.models import pretrained
from pomology.paths import root
from pomology.results.record import PROFILES
from pomology.runner import notebooks, parameters, plan
from pomology.runner.parameters import Parameter, declared, merge, read_yaml

WHERE = "params/quick/thing.yaml"
CELL = """\
profile: str = "quick"  # smoke, quick or article
devices: str = "auto"  # auto, or one
data_folder: str = ""  # a local copy
batch_sizes: list[int] = [
    64,  # one
    1024,
]  # images per step
shapes: list[list[int]] = [[20, 200]]  # rows and columns
models: list[dict] = [{"batch_size": 20, "embedding_size": 200, "layers": 2, "hidden_size": 200}]  # one
rates: list[float] = [0.5, 1]  # of nothing in particular
fused: bool = False  # one kernel
budget_s: float = 10.0  # seconds
lr: float = 1e-3  # learning rate
seed: int = 1  # of everything
out: str = "µ # é"  # the run's folder
"""


def notebook(path, *cells: str, tag: str = "parameters"):
    cells = [{"cell_type": "code", "metadata": {"tags": [tag]}, "source": cell.splitlines(True)} for cell in cells]
    title = {"cell_type": "markdown", "metadata": {}, "source": ["# Thing"]}
    path.write_text(json.dumps({"cells": [title, *cells], "metadata": {}, "nbformat": 4}), encoding="utf-8")
    return path


@pytest.fixture
def known(tmp_path) -> dict[str, Parameter]:
    return declared(notebook(tmp_path / "thing.ipynb", CELL))


def refusal(function, *arguments) -> str:
    """The one line that a PomologyError says; any other exception is a bug."""
    with pytest.raises(PomologyError) as error:
        function(*arguments)
    message = str(error.value)
    assert "\n" not in message and len(message) < 400
    return message


def given(known, tmp_path, text: str | bytes) -> dict:
    """What a YAML file gives, all the way that a run takes it."""
    path = tmp_path / "thing.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return merge(known, read_yaml(path, WHERE), WHERE)


def test_a_right_file_is_taken_as_it_is(known, tmp_path):
    text = """
        profile: article   # a comment
        batch_sizes: [128, 5_120]
        shapes: [[20, 200], [500, 10]]
        models: [{layers: 2, batch_size: 20, embedding_size: 200, hidden_size: 200}]
        rates: [1, 2.5, 1.0e-3]
        fused: true
        lr: 1e-4
        seed: 4294967295
        data_folder: "a#b: c"
    """
    values = {"profile": "article", "batch_sizes": [128, 5120], "shapes": [[20, 200], [500, 10]]}
    named = {"batch_size": 20, "embedding_size": 200, "layers": 2, "hidden_size": 200}
    values |= {"models": [named]}
    values |= {"rates": [1, 2.5, 0.001], "fused": True, "lr": 0.0001, "seed": 4294967295, "data_folder": "a#b: c"}
    assert given(known, tmp_path, text) == values
    assert given(known, tmp_path, "# nothing but a comment\n") == {}


WRONG = {  # YAML -> what the line must say
    "batch_size: 64": "'batch_size'; there are profile, devices, data_folder, batch_sizes",
    'seed: "1"': "seed is '1'; it must be a whole number",
    "lr: 1e999": "lr is inf; it must be a finite number",
    "seed: true": "seed is True; it must be a whole number",
    "fused: 1": "fused is 1; it must be true or false",
    "budget_s: null": "budget_s is null; it must be a number",
    "batch_sizes: 64": "batch_sizes is 64; it must be a list (list[int])",
    "shapes: [[20, 2.5]]": "shapes is [[20, 2.5]]; it must be a list (list[list[int]])",
    "models: [20]": "models is [20]; it must be a list (list[dict])",
    "models: [{batch_size: 20, layers: 2}]": "it must be batch_size from 1 to 1,048,576, embed",
    "models: [{batch_size: 20, embedding_size: 200, layers: 0, hidden_size: 200}]": "it must be batch_size from 1",
    "batch_sizes: []": "batch_sizes is an empty list; it must name at least one",
    "batch_sizes: [64, 128, 64]": "batch_sizes has 64 twice; each may stand once",
    "batch_sizes: [0]": "batch_sizes is 0; it must be from 1 to 1,048,576",
    "budget_s: 0": "budget_s is 0; it must be above 0",
    "seed: 4294967296": "seed is 4294967296; it must be from 0 to 4,294,967,295",
    "profile: Quick": "profile is 'Quick'; it must be one of smoke, quick, article",
    "seed: " + "x" * 5000: "seed is 'xxx",
    "1: 2": "no parameter is named 1",
    "seed: 1\nlr: 1.0\nseed: 2": "'seed' stands twice",
    "batch_sizes: [64, 128": "cannot be read as YAML in UTF-8 (while parsing",
    "just words": "must be lines `name: value`, not str",
    b"out: caf\xe9": "cannot be read as YAML in UTF-8",
    "out: !!python/object/apply:os.system [touch escaped]": "python/object/apply:os.system",
    "seed: 2022-99-99": "cannot be read as YAML",
    "seed: " + "9" * 5000: "cannot be read as YAML",
    "seed: 0x" + "f" * 5000: "seed is a number of thousands of digits",
    "seed: 1\n" * 100_000: "no file of at most",
    "shapes: " + "[" * 5000: "cannot be read as YAML",
    "models:\n  - &a0 [1]\n"  # a few lines that stand for billions of items
    + "".join(f"  - &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)): "models is [",
}


@pytest.mark.parametrize(("text", "words"), WRONG.items(), ids=lambda value: str(value)[:40])
def test_a_wrong_file_is_refused_in_one_line_at_once(known, tmp_path, monkeypatch, text, words):
    monkeypatch.chdir(tmp_path)
    begun_s = time.process_time()
    message = refusal(given, known, tmp_path, text)
    assert time.process_time() - begun_s < 2
    assert message.startswith(f"{WHERE}: ") and words in message
    assert not (tmp_path / "escaped").exists()


def test_a_cell_declares_names_types_defaults_and_help(known):
    assert list(known) == re.findall(r"^(\w+):", CELL, re.MULTILINE)
    assert known["lr"] == Parameter("lr", "float", 0.001, "learning rate")
    assert known["batch_sizes"] == Parameter("batch_sizes", "list[int]", [64, 1024], "images per step")
    assert known["out"] == Parameter("out", "str", "µ # é", "the run's folder")


FORM = "must read `name: type = literal  # help`"
BAD_CELLS = {
    "seed = 1  # seed": f"`seed = 1  # seed` {FORM}",
    "seed: int = hash(1)  # seed": FORM,
    'out: str = "#1 folder"': FORM,
    "seed: complex = 1  # seed": "declared as 'complex'; it must be str, bool, int, float, dict or a list of these",
    "seed: int = -1  # seed": "seed is -1; it must be from 0",
    "seed: int = 1  # seed\nseed: int = 2  # seed": "seed stands twice",
    "seed: int = = 1  # seed": "parameters cell: not Python",
    f"seed: int = {'-' * 50_000}1  # seed": "parameters cell: not Python",
}


@pytest.mark.parametrize(("cell", "words"), BAD_CELLS.items(), ids=lambda value: value[:40])
def test_a_parameters_cell_that_breaks_the_rules_is_named_in_one_line(tmp_path, cell, words):
    message = refusal(declared, notebook(tmp_path / "thing.ipynb", cell))
    assert message.startswith("thing.ipynb: ") and words in message


def test_exactly_one_cell_is_tagged(tmp_path):
    path, cell = tmp_path / "thing.ipynb", "a: int = 1  # a"
    assert "2 cells are tagged" in refusal(declared, notebook(path, cell, cell))
    assert "0 cells are tagged" in refusal(declared, notebook(path, cell, tag="Parameters"))


NOTEBOOKS = notebooks.notebook_paths(root() / "notebooks")
# What decides how much work a step is.
SHAPES = re.compile(r"(\w+_)?(batch_sizes?|shapes|rows|columns|samples|image_size|tokens|models|networks)$")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_of_the_kit_has_its_parameters_in_every_profile(path):
    known, document = declared(path), notebooks.read_notebook(path)
    defaults = {name: parameter.default for name, parameter in known.items()}
    measures = set() if document["metadata"]["pomology"].get("after") else {"devices", "repeat"}
    assert {"profile", "out", *measures} <= known.keys()
    # Whoever just opens the notebook gets these.
    assert (defaults["profile"], defaults["out"], defaults.get("repeat", 0)) == ("quick", "", 0)
    assert all(re.search("[a-z]{3}", parameter.help) for parameter in known.values())
    values = {}
    for profile in PROFILES:
        where = f"params/{profile}/{path.stem}.yaml"
        values[profile] = merge(known, read_yaml(root() / where, where), where)
        assert values[profile]["profile"] == profile
        assert "budget_s" in values[profile] or "budget_s" not in known
        # These are the command line's: a profile that set them would win over it, or hide what a run did.
        assert not values[profile].keys() & {"devices", "data", "data_folder", "out", "repeat"}
    assert values["smoke"].get("budget_s", 0) <= 1
    if "samples" in values["smoke"]:
        assert 0 < values["smoke"]["samples"] <= 10_000 and "samples" not in values["quick"]
    quick, article = (defaults | values[profile] for profile in ("quick", "article"))
    differ = {key for key in defaults if SHAPES.match(key) and quick[key] != article[key]}
    code = "\n".join("".join(cell["source"]) for cell in document["cells"])
    assert not differ or "case.scaled = " in code, f"{sorted(differ)} differ, and nothing says that the case is scaled"


def test_the_names_of_models_are_those_that_the_workloads_know():
    assert {*parameters.GPT2, *parameters.WHISPER} == set(pretrained.SIZES)
    assert all(parameters.LIMITS["weights"][0](name) for name in pretrained.WEIGHTS)


KERAS = [f"{name}-unfused" for name in ("mlp", "lstm", "cnn")]
MLX = [f"{name}-tf32" for name in ("ceilings_mlx", "blas_mlx", "model_sizes_mlx", "gpt2_pretraining_mlx")]


@pytest.mark.parametrize(
    ("platform", "chip", "package", "devices", "others"),
    [
        ("darwin", "Apple M2 Max", "mlx", "auto", KERAS),
        ("darwin", "Apple M5 Pro", "mlx", "auto", KERAS + MLX),
        ("darwin", None, "mlx", "gpu", KERAS + MLX),
        ("darwin", "Apple M5 Pro", "mlx", "cpu", []),
        ("linux", "AMD EPYC 7B13", "mlx-cpu", "auto", []),
        ("linux", "AMD EPYC 7B13", "mlx-cuda-12", "auto", MLX),
    ],
)
def test_what_a_process_starts_with_is_run_in_both_ways_where_a_gpu_may_differ(
    monkeypatch, tmp_path, platform, chip, package, devices, others
):
    """Metal's fusion under Keras, and fp32 as MLX ships it; the kit's own way is every notebook's last job."""
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(snapshot, "chip", lambda: chip)
    found = []
    monkeypatch.setattr(importlib.metadata, "distributions", lambda: found.append(1) or [SimpleNamespace(name=package)])
    jobs = plan.jobs("quick", {"devices": devices, "out": "x"}, repeats=3)
    ways = [job for job in jobs if job.way not in ("", plan.END)]
    assert sorted(job.label for job in ways if not job.repeat) == sorted(others) and len(ways) == 3 * len(others)
    assert len(found) == (platform == "linux")  # looked up once, not for each notebook and repeat
    for job in ways:
        keras = job.way == "-unfused"
        assert job.parameters["devices"] == ("metal" if keras else "mlx-gpu")
        assert job.parameters["fusion" if keras else "tf32"] is not keras
        own = next(one for one in jobs if (one.notebook, one.repeat, one.way) == (job.notebook, job.repeat, ""))
        assert jobs.index(job) < jobs.index(own) and own.parameters["devices"] == devices
        assert own.parameters.get("fusion", True) and not own.parameters.get("tf32", False)
    assert len({job.output(tmp_path) for job in jobs}) == len(jobs)
