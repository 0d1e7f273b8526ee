"""Parameters: what a notebook declares, and one line for each value that does not suit."""

import msgspec
import nbformat
import pytest
from nbformat import v4

from pomology.errors import PomologyError
from pomology.runner.parameters import declared, read_yaml

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


@pytest.fixture
def declare(tmp_path):
    """Read what a notebook with this parameters cell declares."""

    def declare(cell: str = CELL) -> type[msgspec.Struct]:
        tagged = v4.new_code_cell(cell, metadata={"tags": ["parameters"]})
        kernel = {"name": "python3", "language": "python", "display_name": "Python 3"}
        document = v4.new_notebook(cells=[tagged], metadata={"kernelspec": kernel})
        nbformat.write(document, tmp_path / "thing.ipynb")
        return declared(tmp_path / "thing.ipynb")

    return declare


@pytest.mark.parametrize(
    "wrong", ["seed: int = hash(1)", "seed: int = 1.5", "seed: whole = 1", "seed = 1"]
)
def test_a_cell_that_declares_something_else_is_one_line(declare, wrong):
    with pytest.raises(PomologyError, match=r"^thing.ipynb: .*seed.*$"):
        declare(wrong)


def test_a_right_file_is_taken_as_it_is(declare, tmp_path):
    path = tmp_path / WHERE
    path.parent.mkdir(parents=True)
    path.write_text("batch_sizes: [128, 5_120]\nmodels: [{layers: 1}]\nfused: true\nbudget_s: 1\n")
    values = {"batch_sizes": [128, 5120], "models": [{"layers": 1}], "fused": True, "budget_s": 1}
    assert read_yaml(path, declare()) == values
    path.write_text("# nothing but a comment\n")
    assert read_yaml(path, declare()) == {}


WRONG = {  # YAML -> what the line must say
    "batch_size: 64": "Object contains unknown field `batch_size`",
    "samples: true": "Expected `int`, got `bool` - at `$.samples`",
    "budget_s: null": "Expected `float`, got `null` - at `$.budget_s`",
    "models: [20]": "Expected `object`, got `int` - at `$.models[0]`",
    "shapes: [[20, 0]]": "Expected `int` >= 1 - at `$.shapes[0][1]`",
    "batch_sizes: [64, 128": "while parsing",
    "just words": "Expected `object`, got `str`",
    "profile: !!python/object/apply:os.system [exit]": "python/object/apply:os.system",
}


@pytest.mark.parametrize(("text", "words"), WRONG.items(), ids=lambda value: str(value)[:40])
def test_a_wrong_file_is_refused_in_one_line(declare, tmp_path, text, words):
    path = tmp_path / WHERE
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(PomologyError) as error:
        read_yaml(path, declare())
    message = str(error.value)
    assert message.startswith(f"{WHERE}: ") and words in message and "\n" not in message
