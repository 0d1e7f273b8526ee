"""Parameters: what a notebook declares, and one line for each value that does not suit."""

import json
import re

import pytest

from pomology.errors import PomologyError
from pomology.paths import notebook_paths, root
from pomology.results.record import PROFILES
from pomology.runner.notebooks import read_notebook
from pomology.runner.parameters import Parameter, declared, read_yaml

WHERE = "params/quick/thing.yaml"
CELL = """\
profile: str = "quick"  # smoke, quick or article
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


def notebook(path, cell: str):
    tagged = {
        "id": "a",
        "cell_type": "code",
        "metadata": {"tags": ["parameters"]},
        "source": cell,
        "outputs": [],
    }
    kernel = {"name": "python3", "language": "python", "display_name": "Python 3"}
    document = {
        "cells": [tagged],
        "metadata": {"kernelspec": kernel},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def test_a_cell_declares_names_types_defaults_and_help(tmp_path):
    found = declared(notebook(tmp_path / "thing.ipynb", CELL))
    assert list(found) == re.findall(r"^(\w+):", CELL, re.MULTILINE)
    assert found["batch_sizes"] == Parameter(
        "batch_sizes", "list[int]", [64, 1024], "images per step (> 0)"
    )
    for wrong in ("seed: int = hash(1)", "seed: int = 1.5", "seed: whole = 1", "seed = 1"):
        with pytest.raises(PomologyError, match=r"^thing.ipynb: .*seed.*$"):
            declared(notebook(tmp_path / "thing.ipynb", wrong))


def test_a_right_file_is_taken_as_it_is(tmp_path):
    path, known = tmp_path / "thing.yaml", declared(notebook(tmp_path / "thing.ipynb", CELL))
    path.write_text(
        "batch_sizes: [128, 5_120]\nshapes: [[2, 3]]\nmodels: [{layers: 1}]\nfused: true\nbudget_s: 1\n"
    )
    values = {
        "batch_sizes": [128, 5120],
        "shapes": [[2, 3]],
        "models": [{"layers": 1}],
        "fused": True,
        "budget_s": 1,
    }
    assert read_yaml(path, known, WHERE) == values
    path.write_text("# nothing but a comment\n")
    assert read_yaml(path, known, WHERE) == {}


WRONG = {  # YAML -> what the line must say
    "batch_size: 64": "no parameter is named batch_size; there are profile, batch_sizes",
    'samples: "1"': "samples is '1'; it must be int",
    "samples: true": "samples is True; it must be int",
    "budget_s: null": "budget_s is None; it must be float",
    "batch_sizes: 64": "batch_sizes is 64; it must be list[int]",
    "models: [20]": "models is [20]; it must be list[dict]",
    "budget_s: 0": "budget_s is 0; it must be above 0",
    "shapes: [[20, 0]]": "shapes is [[20, 0]]; it must be above 0",
    "batch_sizes: [64, 128": "while parsing",
    "just words": "must be lines `name: value`",
    b"profile: caf\xe9": "",
    "profile: !!python/object/apply:os.system [exit]": "python/object/apply:os.system",
    "samples: 2022-99-99": "",
}


@pytest.mark.parametrize(("text", "words"), WRONG.items(), ids=lambda value: str(value)[:40])
def test_a_wrong_file_is_refused_in_one_line(tmp_path, text, words):
    path, known = tmp_path / "thing.yaml", declared(notebook(tmp_path / "thing.ipynb", CELL))
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(PomologyError) as error:
        read_yaml(path, known, WHERE)
    message = str(error.value)
    assert (
        message.startswith(f"{WHERE}: ")
        and words in message
        and "\n" not in message
        and len(message) < 400
    )


# What decides how much work a step is.
SHAPES = re.compile(
    r"(\w+_)?(batch_sizes?|shapes|rows|columns|samples|image_size|tokens|models|networks)$"
)


@pytest.mark.parametrize("path", notebook_paths(root() / "notebooks"), ids=lambda path: path.stem)
def test_a_notebook_of_the_kit_has_its_parameters_in_every_profile(path):
    known, document = declared(path), read_notebook(path)
    defaults = {name: parameter.default for name, parameter in known.items()}
    measures = set() if document["metadata"]["pomology"].get("after") else {"devices", "repeat"}
    assert {"profile", "out", *measures} <= known.keys()
    # Whoever just opens the notebook gets these.
    assert (defaults["profile"], defaults["out"], defaults.get("repeat", 0)) == ("quick", "", 0)
    assert all(re.search("[a-z]{3}", parameter.help) for parameter in known.values())
    values = {}
    for profile in PROFILES:
        where = f"params/{profile}/{path.stem}.yaml"
        values[profile] = read_yaml(root() / where, known, where)
        assert values[profile]["profile"] == profile
        assert "budget_s" in values[profile] or "budget_s" not in known
        # These are the command line's: a profile that set them would win over it, or hide what a run did.
        assert not values[profile].keys() & {"devices", "data", "data_folder", "out", "repeat"}
    assert values["smoke"].get("budget_s", 0) <= 1
    quick, article = (defaults | values[profile] for profile in ("quick", "article"))
    differ = {key for key in defaults if SHAPES.match(key) and quick[key] != article[key]}
    code = "\n".join("".join(cell["source"]) for cell in document["cells"])
    assert not differ or "case.scaled = " in code, (
        f"{sorted(differ)} differ, and nothing says that the case is scaled"
    )
