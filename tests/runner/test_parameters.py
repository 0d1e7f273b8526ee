"""Parameters: what a notebook declares, and one line for each value that does not suit."""

import nbformat
import pytest
from nbformat import v4

from pomology.errors import PomologyError
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


@pytest.fixture
def declare(tmp_path):
    """Read what a notebook with this parameters cell declares."""

    def declare(cell: str = CELL) -> dict[str, Parameter]:
        tagged = v4.new_code_cell(cell, metadata={"tags": ["parameters"]})
        kernel = {"name": "python3", "language": "python", "display_name": "Python 3"}
        document = v4.new_notebook(cells=[tagged], metadata={"kernelspec": kernel})
        nbformat.write(document, tmp_path / "thing.ipynb")
        return declared(tmp_path / "thing.ipynb")

    return declare


def test_a_cell_declares_names_types_defaults_and_help(declare):
    found = declare()
    names = "profile batch_sizes shapes models fused budget_s samples"
    assert list(found) == names.split()
    sizes = Parameter("batch_sizes", "list[int]", [64, 1024], "images per step (> 0)")
    assert found["batch_sizes"] == sizes


@pytest.mark.parametrize(
    "wrong", ["seed: int = hash(1)", "seed: int = 1.5", "seed: whole = 1", "seed = 1"]
)
def test_a_cell_that_declares_something_else_is_one_line(declare, wrong):
    with pytest.raises(PomologyError, match=r"^thing.ipynb: .*seed.*$"):
        declare(wrong)


def test_a_right_file_is_taken_as_it_is(declare, tmp_path):
    path = tmp_path / "thing.yaml"
    path.write_text("batch_sizes: [128, 5_120]\nmodels: [{layers: 1}]\nfused: true\nbudget_s: 1\n")
    values = {"batch_sizes": [128, 5120], "models": [{"layers": 1}], "fused": True, "budget_s": 1}
    assert read_yaml(path, declare(), WHERE) == values
    path.write_text("# nothing but a comment\n")
    assert read_yaml(path, declare(), WHERE) == {}


WRONG = {  # YAML -> what the line must say
    "batch_size: 64": "no parameter is named batch_size; there are profile, batch_sizes",
    "samples: true": "samples is True; it must be int",
    "budget_s: null": "budget_s is None; it must be float",
    "models: [20]": "models is [20]; it must be list[dict]",
    "shapes: [[20, 0]]": "shapes is [[20, 0]]; it must be above 0",
    "batch_sizes: [64, 128": "while parsing",
    "just words": "must be lines `name: value`",
    "profile: !!python/object/apply:os.system [exit]": "python/object/apply:os.system",
}


@pytest.mark.parametrize(("text", "words"), WRONG.items(), ids=lambda value: str(value)[:40])
def test_a_wrong_file_is_refused_in_one_line(declare, tmp_path, text, words):
    path = tmp_path / "thing.yaml"
    path.write_text(text)
    with pytest.raises(PomologyError) as error:
        read_yaml(path, declare(), WHERE)
    message = str(error.value)
    assert message.startswith(f"{WHERE}: ") and words in message and "\n" not in message
