"""A file that is no notebook is refused in a line, before anything runs."""

import json

import pytest

from pomology.errors import PomologyError
from pomology.runner import notebooks

CELL = {"cell_type": "markdown", "metadata": {}, "source": ["# A title"], "id": "a"}
GOOD = {"cells": [CELL], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
MALFORMED = {
    "torn": json.dumps(GOOD).encode()[:-9],
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
