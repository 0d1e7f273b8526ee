"""Files that editors, crashes and strangers leave: each is a line, and costs nothing but itself."""

from __future__ import annotations

import json
import os
import time

import pytest

from pomology import paths
from pomology.errors import PomologyError
from pomology.report import notebook_page
from pomology.runner import notebooks, parameters

CELL = {"cell_type": "markdown", "metadata": {}, "source": ["# A title"], "id": "a"}
GOOD = {"cells": [CELL], "metadata": {"kernelspec": {"name": "python3"}}, "nbformat": 4, "nbformat_minor": 5}


def changed(**more) -> bytes:
    return json.dumps(GOOD | more).encode()


def of_cell(**more) -> bytes:
    return changed(cells=[CELL | more])


MALFORMED = {
    "empty": b"",
    "torn": changed()[:-9],
    "no UTF-8": b"\xff\xfe",
    "deep": b"[" * 200_000,
    "a list": b"[1]",
    "nbformat 99": changed(nbformat=99),
    "nbformat 3": changed(nbformat=3),
    "nbformat a text": changed(nbformat="4"),
    "no nbformat": json.dumps({key: GOOD[key] for key in ("cells", "metadata")}).encode(),
    "no cells": changed(cells=[]),
    "cells a text": changed(cells="x"),
    "a cell is a text": changed(cells=["x"]),
    "source a number": of_cell(source=3),
    "source of numbers": of_cell(source=[3]),
    "no cell_type": changed(cells=[{"metadata": {}, "source": ""}]),
    "another cell_type": of_cell(cell_type="heading"),
    "tags a number": of_cell(metadata={"tags": 3}),
    "a cell's metadata null": of_cell(metadata=None),
    "metadata null": changed(metadata=None),
    "metadata a list": changed(metadata=[]),
    "pomology null": changed(metadata={"pomology": None}),
    "after a number": changed(metadata={"pomology": {"after": 5}}),
    "seconds a text": changed(metadata={"pomology": {"seconds": {"quick": "long"}}}),
    "seconds NaN": changed(metadata={"pomology": {"seconds": {"quick": float("nan")}}}),
    "seconds infinite": changed(metadata={"pomology": {"seconds": {"quick": float("inf")}}}),
    "seconds below 0": changed(metadata={"pomology": {"seconds": {"quick": -1}}}),
    "half a sign": b'{"cells": [{"cell_type": "markdown", "metadata": {}, "source": "\\ud800"}], '
    b'"metadata": {"kernelspec": {"name": "python3"}}, "nbformat": 4}',
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_notebook_is_a_line(tmp_path, name):
    (tmp_path / "x.ipynb").write_bytes(MALFORMED[name])
    with pytest.raises(PomologyError) as refusal:
        notebooks.read_notebook(tmp_path / "x.ipynb")
    said = str(refusal.value)
    assert said.startswith("x.ipynb: not a notebook (") and said.isprintable() and len(said) < 300


def test_a_notebook_that_is_a_pipe_or_too_large_is_not_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe.ipynb")
    with open(tmp_path / "large.ipynb", "wb") as file:
        file.truncate(paths.MOST_BYTES + 1)
    for name in ("pipe", "large"):
        with pytest.raises(PomologyError, match=f"{name}.ipynb: no file of at most"):
            notebooks.read_notebook(tmp_path / f"{name}.ipynb")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"metadata": {"kernelspec": {"name": "my-venv"}}}, "x.ipynb: its kernel is 'my-venv'; it must be 'python3'"),
        ({"metadata": {}}, "x.ipynb: its kernel is missing; it must be 'python3'"),
        (
            {"cells": [CELL | {"source": "![](attachment:a.png)"}]},
            "x.ipynb: shows the attachment a.png, which it lacks",
        ),
    ],
)
def test_check_refuses_what_could_not_be_run_or_rendered(tmp_path, change, words):
    (tmp_path / "x.ipynb").write_bytes(changed(**change))
    (notebook,) = notebooks.notebooks(tmp_path)
    with pytest.raises(PomologyError, match="^" + words.replace("'", ".").replace("(", ".")):
        notebooks.check_runnable(notebook)
    attached = CELL | {"source": "![](attachment:a.png)", "attachments": {"a.png": {"image/png": "x"}}}
    (tmp_path / "x.ipynb").write_bytes(changed(cells=[attached]))
    notebooks.check_runnable(*notebooks.notebooks(tmp_path))


YAML = {
    "thousands of digits": "seed: 0x" + "f" * 5000,
    "too large": "a: 1\n" * 100_000,
    "many aliases": "a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\nseed: [*c, *c]\n",
}


@pytest.mark.parametrize("name", YAML)
def test_a_hostile_parameter_file_is_a_line_at_once(tmp_path, name):
    place = tmp_path / "x.yaml"
    place.write_text(YAML[name])
    declared = {"seed": parameters.Parameter("seed", "int", 1, "x")}
    begun_s = time.monotonic()
    with pytest.raises(PomologyError) as refusal:
        parameters.merge(declared, parameters.read_yaml(place, "x.yaml"), "x.yaml")
    assert len(str(refusal.value)) < 300 and time.monotonic() - begun_s < 2
    os.mkfifo(tmp_path / "pipe.yaml")
    with pytest.raises(PomologyError, match="no file of at most"):
        parameters.read_yaml(tmp_path / "pipe.yaml", "pipe.yaml")


def test_a_parameters_cell_of_a_thousand_signs_is_a_line(tmp_path):
    cell = {"cell_type": "code", "metadata": {"tags": ["parameters"]}, "source": "x: int = " + "-" * 50_000 + "1"}
    (tmp_path / "x.ipynb").write_bytes(changed(cells=[cell]))
    with pytest.raises(PomologyError, match="not Python"):
        parameters.declared(tmp_path / "x.ipynb")


def test_scripts_go_in_time_that_grows_as_the_text():
    def seconds(text: str) -> float:
        begun_s = time.process_time()
        notebook_page._without_code(text)
        return time.process_time() - begun_s

    assert seconds("<script " * 40_000) < 1 and seconds("<script></script" * 20_000) < 1
    for text, rest in (
        ("a<script>b</script>c", "ac"),
        ("a<STYLE x>b</style\n>c<script>d</SCRIPT>e", "ace"),
        ("a<script>b<script>c</script>d</script>e", "ad</script>e"),
        ("a<script>b", "a<script>b"),
        ("a<scripted>b</script>", "a<scripted>b</script>"),
        ("a<style><script></style>b</script>c", "ab</script>c"),
    ):
        assert notebook_page._without_code(text) == rest
