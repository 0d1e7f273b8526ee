"""A notebook's functions and classes for another one."""

import json
import math

import pytest

from pomology.errors import PomologyError
from pomology.models import definitions


def test_definitions_of_a_notebook_come_without_what_it_computes(monkeypatch, tmp_path):
    lines = [
        "import math\nsize: int = 3  # of it\ndata = 1 / 0\n",
        "def area(r):\n    return scale() * r**size\n",
        "def scale():\n    return math.pi * factor\n",
        "def unused():\n    return data\n",
    ]
    cells = [{"cell_type": "code", "source": [line]} for line in lines]
    cells.append({"cell_type": "markdown", "source": ["1 /"]})
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks" / "circle.ipynb").write_text(json.dumps({"cells": cells}))
    monkeypatch.setattr(definitions, "root", lambda: tmp_path)
    circle = definitions.definitions("circle", "area", factor=2.0)
    assert circle.area(2) == pytest.approx(2 * math.pi * 8)
    own = definitions.definitions("circle", "area", "size", factor=1.0, scale=lambda: 5)
    assert own.area(2) == 40 and own.size == 3 and not hasattr(own, "scale")
    for notebook, name in (("circle", "data"), ("square", "area")):
        words = f"^{notebook}.ipynb in notebooks/ defines no {name}$"
        with pytest.raises(PomologyError, match=words):
            definitions.definitions(notebook, name)
