"""Notebooks and their parameter files: parsing, and one line for each error."""

import json

import pytest
from notebook_code import notebook_text

from pomology.errors import PomologyError
from pomology.runner import notebooks

PLACE = "params/quick/thing.yaml"
PARAMETERS = """\
profile: str = "quick"  # smoke, quick or article
out: str = ""  # the run's folder
batch_sizes: list[int] = [
    64,  # one
    1024,
]  # images per step (> 0)
shapes: list[list[int]] = [[20, 200]]  # rows and columns (> 0)
models: list[dict] = [{"layers": 2}]  # each by its settings
fused: bool = False  # one kernel
budget_s: float = 10.0  # seconds (> 0)
samples: int = 0  # 0 is all
"""
GOOD = json.loads(notebook_text("# A title", PARAMETERS))
MALFORMED = {
    "no UTF-8": b"\xff\xfe",
    "nbformat 3": json.dumps({"worksheets": [], "metadata": {}, "nbformat": 3}).encode(),
    "no cells": json.dumps(GOOD | {"cells": []}).encode(),
}


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_notebook_is_a_line(tmp_path, data):
    (tmp_path / "x.ipynb").write_text(json.dumps(GOOD))
    assert notebooks.read_notebook(tmp_path / "x.ipynb") == GOOD
    (tmp_path / "x.ipynb").write_bytes(data)
    with pytest.raises(PomologyError, match=r"^x\.ipynb: not a notebook: ") as refusal:
        notebooks.read_notebook(tmp_path / "x.ipynb")
    assert str(refusal.value).isprintable() and len(str(refusal.value)) < 300


WRONG_METADATA = {
    "orders": (1, "unexpected keyword argument 'orders'"),
    "after": (["gone"], "after: no notebook is named 'gone'"),
    "variants": ([{"only": "tf23"}], "only is 'tf23'; expected one of metal, tf32"),
}


@pytest.mark.parametrize(("name", "value", "words"), [(k, *v) for k, v in WRONG_METADATA.items()])
def test_wrong_metadata_are_a_line(monkeypatch, tmp_path, name, value, words):
    monkeypatch.setattr(notebooks, "root", lambda: tmp_path)
    (tmp_path / "notebooks").mkdir()
    document = GOOD | {"metadata": {"pomology": {name: value}}}
    (tmp_path / "notebooks" / "x.ipynb").write_text(json.dumps(document))
    with pytest.raises(PomologyError, match=r"^x\.ipynb: ") as refusal:
        notebooks.notebooks()
    assert words in str(refusal.value)


@pytest.fixture
def values(monkeypatch, tmp_path):
    """Return a function that reads the parameters of a notebook from a cell and a YAML file."""

    def read(text: str, cell: str = PARAMETERS) -> dict:
        (tmp_path / "thing.ipynb").write_text(notebook_text("# A thing", cell))
        (tmp_path / PLACE).parent.mkdir(parents=True)
        (tmp_path / PLACE).write_text(text)
        thing = notebooks.Notebook(tmp_path / "thing.ipynb", "A thing", [], after=["*"])
        return thing.values("quick", {})

    monkeypatch.setattr(notebooks, "root", lambda: tmp_path)
    return read


@pytest.mark.parametrize(
    "wrong", ["seed: int = hash(1)", "seed: int = 1.5", "seed: whole = 1", "seed = 1"]
)
def test_an_invalid_declaration_is_one_line(values, wrong):
    with pytest.raises(PomologyError, match=r"^thing.ipynb: .*seed.*$"):
        values("profile: quick", wrong)


def test_a_right_file_is_taken_as_it_is(values):
    right = "batch_sizes: [128, 5_120]\nmodels: [{layers: 1}]\nfused: true\nbudget_s: 1\n"
    taken = {"batch_sizes": [128, 5120], "models": [{"layers": 1}], "fused": True, "budget_s": 1}
    assert values(f"# a comment\nprofile: quick\n{right}") == {"profile": "quick"} | taken


WRONG = {  # YAML -> words that the error must contain
    "batch_size: 64": "Object contains unknown field `batch_size`",
    "samples: true": "Expected `int`, got `bool` - at `$.samples`",
    "shapes: [[20, 0]]": "Expected `int` >= 1 - at `$.shapes[0][1]`",
    "batch_sizes: [64, 128": "while parsing",
    "just words": "Expected `object`, got `str`",
    "# nothing but a comment": "expected profile: quick",
    "profile: !!python/object/apply:os.system [exit]": "python/object/apply:os.system",
}


@pytest.mark.parametrize(("text", "words"), WRONG.items(), ids=lambda value: str(value)[:40])
def test_a_wrong_file_is_refused_in_one_line(values, text, words):
    with pytest.raises(PomologyError) as error:
        values(text)
    message = str(error.value)
    assert message.startswith(f"{PLACE}: ") and words in message and "\n" not in message
