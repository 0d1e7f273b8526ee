"""Wrong parameters: each gives one line that names the file, the parameter, its value, and what would be right."""

from __future__ import annotations

import json
import re

import pytest

from pomology.errors import PomologyError
from pomology.paths import root
from pomology.results.record import PROFILES
from pomology.runner import notebooks, parameters, plan
from pomology.runner.parameters import Parameter, declared, merge, read_yaml
from pomology.workloads import pretrained

WHERE = "params/quick/thing.yaml"
CELL = """\
profile: str = "quick"  # smoke, quick or article
devices: str = "auto"  # auto, or one
data: str = "auto"  # real or not
data_folder: str = ""  # a local copy
batch_sizes: list[int] = [64, 1024]  # images per step
models: list[list[int]] = [[20, 200, 2, 200]]  # batch size, embedding size, layers, hidden size
rates: list[float] = [0.5, 1]  # of nothing in particular
fused: bool = False  # one kernel
samples: int = 0  # 0 is all
budget_s: float = 10.0  # seconds
cuda_workers: int = 1  # processes that load data
lr: float = 1e-3  # learning rate
seed: int = 1  # of everything
repeat: int = 0  # which repetition
out: str = ""  # the run's folder
"""


def notebook(path, *cells: str, tags=("parameters",), kind: str = "code"):
    first = {"cell_type": "markdown", "metadata": {}, "source": ["# Thing"]}
    others = [
        {"cell_type": kind, "metadata": {"tags": list(tags)}, "source": cell.splitlines(keepends=True)}
        for cell in cells
    ]
    path.write_text(json.dumps({"cells": [first, *others], "metadata": {}}), encoding="utf-8")
    return path


@pytest.fixture
def known(tmp_path) -> dict[str, Parameter]:
    return declared(notebook(tmp_path / "thing.ipynb", CELL))


def refusal(function, *arguments) -> str:
    """The one line that a PomologyError says; any other exception is a bug."""
    with pytest.raises(PomologyError) as error:
        function(*arguments)
    message = str(error.value)
    assert "\n" not in message
    assert len(message) < 400
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
        models: [[20, 200, 2, 200], [200, 500, 10, 1024]]
        rates: [1, 2.5, 1.0e-3]
        fused: true
        budget_s: 0.5
        lr: 1.0e-4
        seed: 4294967295
        data_folder: "a#b: c"
    """
    assert given(known, tmp_path, text) == {
        "profile": "article",
        "batch_sizes": [128, 5120],
        "models": [[20, 200, 2, 200], [200, 500, 10, 1024]],
        "rates": [1, 2.5, 0.001],
        "fused": True,
        "budget_s": 0.5,
        "lr": 0.0001,
        "seed": 4294967295,
        "data_folder": "a#b: c",
    }
    assert given(known, tmp_path, "# nothing but a comment\n") == {}


WRONG = {
    # name of the case: (YAML, what the line must say, in this order)
    "unknown name": ("batch_size: 64", ["'batch_size'", "profile, devices, data", "batch_sizes"]),
    "text for a whole number": ('seed: "1"', ["seed is '1'", "a whole number", "a text", "write 1"]),
    "word for a whole number": ("seed: one", ["seed is 'one'", "a whole number"]),
    "an exponent without a point": ("lr: 1e-3", ["lr is '1e-3'", "a number", "a text", "write 0.001"]),
    "an exponent without a point or digits": ("lr: 1e-7", ["lr is '1e-7'", "write 1.0e-07"]),
    "an exponent for a whole number": ("samples: 6e4", ["samples is '6e4'", "a whole number", "write 60000"]),
    "text that Python reads as infinite": ("lr: 1e999", ["lr is '1e999'", "a number"]),
    "fraction for a whole number": ("repeat: 1.0", ["repeat is 1.0", "a whole number"]),
    "boolean for a whole number": ("repeat: true", ["repeat is True", "a whole number"]),
    "number for a boolean": ("fused: 1", ["fused is 1", "true or false"]),
    "null": ("budget_s: null", ["budget_s is null", "a number"]),
    "list for a number": ("lr: [0.1]", ["lr is [0.1]", "a number"]),
    "number for a list": ("batch_sizes: 64", ["batch_sizes is 64", "a list"]),
    "list too flat": ("models: [20, 200, 2, 200]", ["models is [20, 200, 2, 200]", "a list", "20 is not"]),
    "empty list": ("batch_sizes: []", ["batch_sizes is an empty list", "at least one"]),
    "twice in a list": ("batch_sizes: [64, 128, 64]", ["batch_sizes has 64 twice", "once"]),
    "fraction in a nested list": ("models: [[20, 2.5, 2, 200]]", ["models is [[20, 2.5, 2, 200]]", "2.5", "is not"]),
    "too small": ("batch_sizes: [0]", ["batch_sizes is 0", "from 1 to 1,048,576"]),
    "zero seconds": ("budget_s: 0", ["budget_s is 0", "above 0"]),
    "seed that no generator takes": ("seed: 4294967296", ["seed is 4294967296", "from 0 to 4,294,967,295"]),
    "not a number": ("lr: .nan", ["lr is nan", "a finite number"]),
    "unknown profile": ("profile: Quick", ["profile is 'Quick'", "one of smoke, quick, article"]),
    "unknown device": ("devices: tpu", ["devices is 'tpu'", "one of auto, cpu, gpu, cuda, mps"]),
    "long text": ("seed: " + "x" * 5000, ["seed is 'xxx", "a whole number"]),
}


@pytest.mark.parametrize(("text", "words"), WRONG.values(), ids=WRONG)
def test_a_wrong_value_is_named_in_one_line(known, tmp_path, text, words):
    message = refusal(given, known, tmp_path, text)
    assert message.startswith(f"{WHERE}: ")
    place = 0
    for word in words:
        place = message.find(word, place)
        assert place >= 0, f"{word!r} is not said, or not in its place: {message}"


UNREADABLE = {
    "the same name twice": ("seed: 1\nlr: 1.0\nseed: 2", "'seed' stands twice"),
    "no YAML": ("batch_sizes: [64, 128", "line 1: not valid YAML"),
    "text alone": ("just words", "not str"),
    "name that is a number": ("1: 2", "1 is no name of a parameter"),
    "name that is a list": ("? [seed]\n: 2", "not valid YAML"),
    "not UTF-8": (b"out: caf\xe9", "not a text file in UTF-8"),
    "Python object": ("out: !!python/object/apply:os.system [touch escaped]", "python/object/apply:os.system"),
    "impossible date": ("seed: 2022-99-99", "not valid YAML"),
    "number of too many digits": ("seed: " + "9" * 5000, "not valid YAML"),
    "nested bomb": ("batch_sizes: " + "[" * 20_000, "not valid YAML"),
}


@pytest.mark.parametrize(("text", "words"), UNREADABLE.values(), ids=UNREADABLE)
def test_a_file_that_is_no_list_of_parameters_is_refused_in_one_line(known, tmp_path, monkeypatch, text, words):
    monkeypatch.chdir(tmp_path)
    message = refusal(given, known, tmp_path, text)
    assert message.startswith((f"{WHERE}: ", f"{WHERE}, line "))
    assert words in message
    assert not (tmp_path / "escaped").exists()


def test_a_few_lines_that_stand_for_billions_of_items_are_refused_at_once(known, tmp_path):
    laughs = "".join(f"  - &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12))
    message = refusal(given, known, tmp_path, f"models:\n  - &a0 [1]\n{laughs}")
    assert message.startswith(f"{WHERE}: models is [")
    itself = refusal(given, known, tmp_path, "models: &m [*m]")
    assert itself.startswith(f"{WHERE}: models is [")


def test_a_file_that_is_missing_or_a_folder_is_named(tmp_path):
    assert refusal(read_yaml, tmp_path / "none.yaml", WHERE) == f"{WHERE}: cannot be read (No such file or directory)"
    assert refusal(read_yaml, tmp_path, WHERE).startswith(f"{WHERE}: cannot be read (")


# The parameters cell --------------------------------------------------------------------------------------------------


def test_a_cell_declares_names_types_defaults_and_help(known):
    assert list(known) == [line.split(":")[0] for line in CELL.splitlines()]
    assert known["lr"] == Parameter("lr", "float", 0.001, "learning rate")
    assert known["models"] == Parameter(
        "models", "list[list[int]]", [[20, 200, 2, 200]], "batch size, embedding size, layers, hidden size"
    )


def test_a_default_may_span_lines_and_a_text_may_hold_a_hash(tmp_path):
    cell = 'sizes: list[int] = [\n    1,  # one\n    2,\n]  # sizes of things\nname: str = "µ # é"  # a name'
    found = declared(notebook(tmp_path / "thing.ipynb", cell))
    assert found["sizes"] == Parameter("sizes", "list[int]", [1, 2], "sizes of things")
    assert found["name"] == Parameter("name", "str", "µ # é", "a name")


BAD_CELLS = {
    "no annotation": ("seed = 1  # seed", "`seed = 1  # seed` must read `name: type = literal  # help`"),
    "a call": ("seed: int = hash(1)  # seed", "seed must be a literal"),
    "an expression": ("seed: int = 2**10  # seed", "seed must be a literal"),
    "no help": ("seed: int = 1", "seed needs a comment"),
    "help in a text only": ('out: str = "#1 folder"', "out needs a comment"),
    "unknown annotation": ("seed: complex = 1  # seed", "seed is declared as 'complex'; it must be str, bool, int"),
    "bare list": ("sizes: list = [1]  # sizes", "sizes is declared as 'list'; it must be str, bool, int"),
    "default of another type": ("seed: int = 1.5  # seed", "seed is 1.5; it must be a whole number"),
    "default out of range": ("seed: int = -1  # seed", "seed is -1; it must be from 0"),
    "name twice": ("seed: int = 1  # seed\nseed: int = 2  # seed", "seed stands twice"),
    "no Python": ("seed: int = = 1  # seed", "parameters cell: not Python"),
}


@pytest.mark.parametrize(("cell", "words"), BAD_CELLS.values(), ids=BAD_CELLS)
def test_a_parameters_cell_that_breaks_the_rules_is_named_in_one_line(tmp_path, cell, words):
    message = refusal(declared, notebook(tmp_path / "thing.ipynb", cell))
    assert message.startswith("thing.ipynb: ")
    assert words in message


def test_exactly_one_cell_is_tagged(tmp_path):
    path = tmp_path / "thing.ipynb"
    assert "0 cells are tagged" in refusal(declared, notebook(path))
    assert "2 cells are tagged" in refusal(declared, notebook(path, "a: int = 1  # a", "b: int = 1  # b"))
    assert "0 cells are tagged" in refusal(declared, notebook(path, "a: int = 1  # a", tags=("Parameters",)))
    assert "0 cells are tagged" in refusal(declared, notebook(path, "a: int = 1  # a", kind="markdown"))


@pytest.mark.parametrize("content", [b"", b"{}", b'{"cells": [{}]}', b"[" * 100_000])
def test_a_file_that_is_no_notebook_is_refused_in_one_line(tmp_path, content):
    path = tmp_path / "thing.ipynb"
    path.write_bytes(content)
    assert refusal(declared, path).startswith("thing.ipynb: ")
    path.unlink()
    assert refusal(declared, path).startswith("thing.ipynb: ")


# What the kit ships ---------------------------------------------------------------------------------------------------

NOTEBOOKS = notebooks.notebook_paths(root() / "notebooks")
NAMES = [path.stem for path in NOTEBOOKS]


def shipped(profile: str, name: str) -> dict:
    return read_yaml(root() / "params" / profile / f"{name}.yaml", f"params/{profile}/{name}.yaml")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=NAMES)
def test_a_notebook_of_the_kit_has_its_parameters_in_every_profile(path):
    known = declared(path)
    reads_only = bool(notebooks.read_notebook(path)["metadata"]["pomology"].get("after"))
    measures = set() if reads_only else {"devices", "repeat"}
    assert {"profile", "out", *measures} <= known.keys()
    # Whoever just opens the notebook gets these.
    expected = {"profile": "quick", "out": "", "repeat": 0}
    assert {name: known[name].default for name in expected if name in known}.items() <= expected.items()
    assert all(re.search("[a-z]{3}", parameter.help) for parameter in known.values())
    for profile in PROFILES:
        values = merge(known, shipped(profile, path.stem), f"params/{profile}/{path.stem}.yaml")
        assert values["profile"] == profile
        assert "budget_s" in values or "budget_s" not in known
        # These are the command line's: a profile that set them would win over it, or hide what a run did.
        assert not values.keys() & {"devices", "data", "data_folder", "out", "repeat"}


# What decides how much work a step is.
SHAPES = re.compile(r"(\w+_)?(batch_sizes?|shapes|rows|columns|samples|image_size|tokens|models|networks)$")


@pytest.mark.parametrize("name", NAMES)
def test_quick_has_the_shapes_of_the_article_or_its_cases_are_marked_as_scaled(name):
    (path,) = [path for path in NOTEBOOKS if path.stem == name]
    defaults = {key: parameter.default for key, parameter in declared(path).items()}
    quick, article = (defaults | shipped(profile, name) for profile in ("quick", "article"))
    differ = {key for key in defaults if SHAPES.match(key) and quick[key] != article[key]}
    code = "\n".join("".join(cell["source"]) for cell in notebooks.read_notebook(path)["cells"])
    assert not differ or "case.scaled = " in code, f"{sorted(differ)} differ, and nothing says that the case is scaled"


@pytest.mark.parametrize("name", NAMES)
def test_smoke_is_short(name):
    smoke, quick = shipped("smoke", name), shipped("quick", name)
    assert smoke.get("budget_s", 0) <= 1
    if "samples" in smoke:
        assert 0 < smoke["samples"] <= 10_000 and "samples" not in quick


@pytest.mark.parametrize("profile", PROFILES)
def test_a_run_of_all_notebooks_can_be_planned(profile):
    planned = plan.jobs(profile, {"devices": "cpu", "data": "stand-in", "out": "x"})
    assert sorted(job.notebook.name for job in planned) == sorted(NAMES)


def test_the_names_of_models_are_those_that_the_workloads_know():
    assert {*parameters.GPT2, *parameters.WHISPER} == set(pretrained.SIZES)
    assert all(parameters.LIMITS["weights"].test(name) for name in pretrained.WEIGHTS)
