"""Files that editors, crashes and strangers leave: each is a line, and costs nothing but itself."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import time

import pytest
from test_report import record, run

from pomology import paths
from pomology.errors import PomologyError
from pomology.report import declaration, notebook_page
from pomology.report import page as report_page
from pomology.results import notebook_file
from pomology.runner import client, notebooks, parameters

CELL = {"cell_type": "markdown", "metadata": {}, "source": ["# A title"], "id": "a"}
KERNEL = {"name": "python3", "display_name": "Python 3"}
GOOD = {"cells": [CELL], "metadata": {"kernelspec": KERNEL}, "nbformat": 4, "nbformat_minor": 5}


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
    "a kernel without its name": changed(metadata={"kernelspec": {"name": "python3"}}),
    "pomology null": changed(metadata={"pomology": None}),
    "after a number": changed(metadata={"pomology": {"after": 5}}),
    "seconds a text": changed(metadata={"pomology": {"seconds": {"quick": "long"}}}),
    "seconds NaN": changed(metadata={"pomology": {"seconds": {"quick": float("nan")}}}),
    "seconds infinite": changed(metadata={"pomology": {"seconds": {"quick": float("inf")}}}),
    "seconds below 0": changed(metadata={"pomology": {"seconds": {"quick": -1}}}),
    "half a sign": b'{"cells": [{"cell_type": "markdown", "metadata": {}, "source": "\\ud800"}], '
    b'"metadata": {"kernelspec": {"name": "python3", "display_name": "x"}}, "nbformat": 4}',
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_notebook_is_a_line(tmp_path, name):
    (tmp_path / "x.ipynb").write_bytes(MALFORMED[name])
    with pytest.raises(PomologyError) as refusal:
        notebook_file.read_notebook(tmp_path / "x.ipynb")
    said = str(refusal.value)
    assert said.startswith("x.ipynb: not a notebook (") and said.isprintable() and len(said) < 300


def test_a_notebook_that_is_a_pipe_or_too_large_is_not_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe.ipynb")
    with open(tmp_path / "large.ipynb", "wb") as file:
        file.truncate(paths.MOST_BYTES + 1)
    for name in ("pipe", "large"):
        with pytest.raises(PomologyError, match=f"{name}.ipynb: no file of at most"):
            notebook_file.read_notebook(tmp_path / f"{name}.ipynb")
    os.mkfifo(tmp_path / "pipe.yaml")
    with pytest.raises(PomologyError, match="no file of at most"):
        parameters.read_yaml(tmp_path / "pipe.yaml", "pipe.yaml")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"metadata": {"kernelspec": KERNEL | {"name": "my-venv"}}},
            "x.ipynb: its kernel is 'my-venv'; it must be 'python3'",
        ),
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


def test_a_cell_of_a_thousand_signs_declares_nothing_and_what_is_no_declaration_is_a_line(
    tmp_path, monkeypatch, undrawn
):
    place = tmp_path / "x.ipynb"
    code = {"cell_type": "code", "metadata": {}, "id": "b", "outputs": [], "execution_count": None}
    for source in ("-" * 50_000 + "1", "x = '\0'", "a" + ".a" * 200_000):
        place.write_bytes(changed(cells=[CELL, code | {"source": source}]))
        os.utime(place, ns=(0, len(source)))
        assert declaration.read(place) == declaration.Declaration("x")
    for given in ("settings=5", "combines=5", "article=5", "article='001', columns=COLUMNS", "figure=['x']"):
        place.write_bytes(changed(cells=[CELL, code | {"source": f"experiment = Experiment('x', {given})"}]))
        os.utime(place, ns=(0, len(given)))
        with pytest.raises(PomologyError, match=r"^x\.ipynb: "):
            declaration.read(place)
    # Its numbers are shown all the same, though it is in the kit's own folder, where somebody may be editing it.
    monkeypatch.setattr(declaration, "_notebooks", lambda: {"x": place})
    out = run(tmp_path / "run", record("x"), record("vae"))
    page = report_page.build(out).read_text(encoding="utf-8")
    assert 'id="x"' in page and 'id="vae"' in page


def test_a_notebook_that_takes_for_ever_to_render_is_a_line_and_costs_no_other(tmp_path, monkeypatch, undrawn):
    monkeypatch.setattr(notebook_page, "MOST_S", 0.5)
    out = run(tmp_path, record())
    shows = {"output_type": "display_data", "metadata": {}, "data": {"text/html": "<div>" * 30_000}}
    code = {"cell_type": "code", "metadata": {}, "id": "b", "source": "x", "outputs": [shows], "execution_count": None}
    attached = CELL | {"source": "![](attachment:a.png)"}  # nbconvert raises for it
    for name, cells in {"slow": [CELL, code], "lacks": [attached], "good": [CELL]}.items():
        (out / f"{name}.ipynb").write_bytes(changed(cells=cells))
    begun_s, handler = time.process_time(), signal.getsignal(signal.SIGPROF)
    page = report_page.build(out).read_text(encoding="utf-8")
    assert "The notebook cannot be rendered: TimeoutError: it takes more than 0.5 s." in page
    assert page.count("The notebook cannot be rendered") == 2 and (out / "good.html").exists()
    assert time.process_time() - begun_s < 10 and signal.getsignal(signal.SIGPROF) is handler
    assert signal.getitimer(signal.ITIMER_PROF) == (0, 0)


def test_what_a_cell_prints_is_joined_as_nbclient_does_in_time_that_grows_as_the_text():
    rng = random.Random(3)
    for _ in range(300):
        parts = ["".join(rng.choices("ab\r\n", k=rng.randrange(9))) for _ in range(5)]
        shown = ""
        for part in parts:
            shown = client.joined(shown, part)
        assert shown == re.sub(r".*\r(?=[^\n])", "", "".join(parts)), parts
    begun_s = time.process_time()
    shown = client.joined("", "\b" * 5_000_000)
    assert time.process_time() - begun_s < 1
    assert shown == "\b" * client.MOST_PRINTED + client.CUT == client.joined(shown, "more")
    bar = ""
    for step in range(20_000):  # as of a download
        bar = client.joined(bar, f"\rstep {step:,}")
    assert bar == "step 19,999"


def test_scripts_go_in_time_that_grows_as_the_text():
    def seconds(text: str) -> float:
        begun_s = time.process_time()
        notebook_page.CODE.sub("", text)
        return time.process_time() - begun_s

    assert seconds("<script " * 40_000) < 1 and seconds("<script></script" * 20_000) < 1
    for text, rest in (
        ("a<script>b</script>c", "ac"),
        ("a<STYLE x>b</style\n>c<script>d</SCRIPT>e", "ace"),
        ("a<script>b<script>c</script>d</script>e", "ad</script>e"),
        ("a<script>b", "a"),
        ("a<scripted>b</script>", "a<scripted>b</script>"),
        ("a<style><script></style>b</script>c", "ab</script>c"),
    ):
        assert notebook_page.CODE.sub("", text) == rest
