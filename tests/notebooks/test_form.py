"""The files of notebooks and their parameters, before anything runs, and the one without a run."""

import ast
import json
import re

import nbformat
import papermill
import pytest
import yaml
from declared import call
from nbformat import writes
from notebook_code import PATHS, code

from pomology.articles import published
from pomology.paths import notebook_paths, root
from pomology.results.record import PROFILES
from pomology.runner import notebooks

CELL_LINES = 25  # at most: a cell shows one idea
# What decides how much work a step is.
SHAPES = re.compile(
    r"(\w+_)?(batch_sizes?|shapes|rows|columns|samples|image_size|tokens|models|networks)$"
)

every_notebook = pytest.mark.parametrize("path", PATHS, ids=[path.stem for path in PATHS])


@pytest.mark.parametrize("path", notebook_paths(root() / "notebooks"), ids=lambda path: path.stem)
def test_it_is_as_jupyterlab_saves_it_without_what_a_run_leaves(path):
    text = path.read_text(encoding="utf-8")
    document = nbformat.from_dict(json.loads(text))
    assert (document.nbformat, document.nbformat_minor) == (4, 5)
    nbformat.validate(document)
    assert text == nbformat.writes(document) + "\n"
    assert set(document.metadata) == {"kernelspec", "language_info", "pomology"}
    about = document.metadata["pomology"]
    for variant in about.get("variants", [about]):
        assert set(variant["seconds"]) == set(PROFILES)
    for cell in document.cells:
        assert set(cell.metadata) <= {"tags", "jupyter"}, cell.id
        assert not cell.get("outputs") and cell.get("execution_count") is None, cell.id


@every_notebook
def test_it_has_a_title_short_cells_and_the_experiment_of_its_name(path):
    document = nbformat.read(path, 4)
    about = document.metadata["pomology"]
    words = "\n".join(cell.source for cell in document.cells if cell.cell_type == "markdown")
    (title,) = re.findall(r"^# .+", words, re.MULTILINE)
    assert words.startswith(title)
    for article in (each for each in published.articles() if each.id == about["article"]):
        assert path.parent.name == article.slug
        assert all(each in document.cells[0].source for each in (article.title, article.author))
    assert not re.search(r"<\w+[^>]*>", words), "HTML in Markdown breaks in the page"
    assert max(source.count("\n") + 1 for source in code(document)) <= CELL_LINES
    experiment = call(path)
    assert experiment.args[0].value == path.stem
    taken = {keyword.arg: ast.unparse(keyword.value) for keyword in experiment.keywords}
    assert taken["article"] == repr(about["article"])
    declared = notebooks.declared(path).__struct_fields__
    for name in {"devices", "profile", "budget_s", "out", "repeat"} & set(declared):
        assert taken[name] == name, f"{name} must come from the parameters"


@every_notebook
def test_it_has_its_parameters_in_every_profile(path):
    inspected = notebooks.inspect(path)
    defaults = {name: ast.literal_eval(each.default) for name, each in inspected.items()}
    # Whoever just opens the notebook gets these.
    assert (defaults["profile"], defaults["out"], defaults.get("repeat", 0)) == ("quick", "", 0)
    assert all(re.search("[a-z]{3}", each.help) for each in inspected.values())
    values = {}
    for profile in PROFILES:
        file = root() / "params" / profile / f"{path.stem}.yaml"
        values[profile] = yaml.safe_load(file.read_text(encoding="utf-8"))
        assert "budget_s" in values[profile] or "budget_s" not in defaults
        # These are the command line's: a profile that set them would win over it.
        assert not values[profile].keys() & {"devices", "data", "data_folder", "out", "repeat"}
    assert values["smoke"].get("budget_s", 0) <= 1
    quick, article = (defaults | values[profile] for profile in ("quick", "article"))
    differ = {key for key in defaults if SHAPES.match(key) and quick[key] != article[key]}
    assert not differ or "case.scaled = " in "\n".join(code(nbformat.read(path, 4))), (
        "no case says it is scaled"
    )


def test_nothing_but_mlx_twins_stands_next_to_notebooks():
    """What notebooks share, and what a loader's spawned workers import, is in the package.

    A twin is named after its notebook, or as several notebooks begin: `whisper_mlx.py`.
    """
    for place in (root() / "notebooks").rglob("*.py"):
        name = place.stem.removesuffix("_mlx")
        own = [*place.parent.glob(f"{name}.ipynb"), *place.parent.glob(f"{name}_*.ipynb")]
        assert place.stem == f"{name}_mlx" and own, place.name


def test_it_shows_measured_and_published_devices(tmp_path, monkeypatch):
    monkeypatch.setenv("JUPYTER_PREFER_ENV_PATH", "1")
    path = root() / "notebooks" / "explore.ipynb"
    text = writes(papermill.execute_notebook(path, tmp_path / "x.ipynb", cwd=path.parent))
    assert text.count('"image/png"') == 4 and "M1 Ultra GPU" in text and "AMD EPYC CPU" in text


def test_versus_answers_in_its_first_output(tmp_path, monkeypatch):
    monkeypatch.setenv("JUPYTER_PREFER_ENV_PATH", "1")
    path = root() / "notebooks" / "versus.ipynb"
    document = papermill.execute_notebook(path, tmp_path / "x.ipynb", cwd=path.parent)
    first = next(cell.outputs[0] for cell in document.cells if cell.get("outputs"))
    assert first.text.startswith(
        "M3 Max GPU (40 cores) is 1.68× faster than T4 in fp32: 2 configurations"
    )
    assert writes(document).count('"image/png": "') == 1
