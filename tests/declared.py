"""What a notebook gives to `Experiment` or `Report`, without running it."""

from __future__ import annotations

import ast
from pathlib import Path

import nbformat

from pomology.report.declaration import Declaration


def call(path: Path) -> ast.Call:
    cells = [cell.source for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"]
    nodes = [node for source in cells for node in ast.walk(ast.parse(source))]
    (made,) = [
        node for node in nodes if isinstance(node, ast.Call) and ast.unparse(node.func) in ("Experiment", "Report")
    ]
    return made


def declaration(path: Path) -> Declaration:
    fields = Declaration.__dataclass_fields__
    words = {word.arg: word.value for word in call(path).keywords if word.arg in fields}
    literals = {name: ast.literal_eval(value) for name, value in words.items() if name != "framework"}
    if ast.unparse(call(path).func) == "Report":
        literals["framework"] = None
    return Declaration(path.stem, **literals)
