"""What a notebook defines, without its data and its runs."""

from __future__ import annotations

import ast
from types import SimpleNamespace
from typing import Any

import nbformat
import numpy as np
import yaml

from pomology.data.text import WIKITEXT2
from pomology.paths import notebook_paths, root

PATHS = notebook_paths(root() / "notebooks")
DEFINITIONS = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)


def code(document: nbformat.NotebookNode) -> list[str]:
    return [cell.source for cell in document.cells if cell.cell_type == "code"]


def parameters_cell(document: nbformat.NotebookNode) -> str:
    (cell,) = [cell for cell in document.cells if "parameters" in cell.metadata.get("tags", [])]
    return cell.source


def is_definition(node: ast.stmt) -> bool:
    if isinstance(node, ast.If):  # what a notebook defines for one framework
        return ast.unparse(node.test).startswith("framework == ")
    if not isinstance(node, (ast.Assign, ast.AugAssign)):
        return isinstance(node, DEFINITIONS)
    target = node.targets[0] if isinstance(node, ast.Assign) else node.target
    names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    return not isinstance(target, ast.Attribute) and "experiment" not in names


def definitions(name: str, profile: str = "article", **values: Any) -> dict[str, Any]:
    """Return a notebook's names after its imports, functions and classes, with a profile's values.

    values: what the notebook computes and its functions use. It has a corpus as long as the
    article's.
    """
    (path,) = [path for path in PATHS if path.stem == name]
    file = root() / "params" / profile / f"{name}.yaml"
    document = nbformat.read(path, 4)
    scope: dict[str, Any] = {}
    exec(parameters_cell(document), scope)
    scope |= yaml.safe_load(file.read_text(encoding="utf-8"))
    parts = {part: np.zeros(count, np.int64) for part, count in WIKITEXT2.tokens.items()}
    scope["corpus"] = SimpleNamespace(**parts, vocabulary=WIKITEXT2.vocabulary)
    scope |= values
    for source in code(document):
        tree = ast.parse(source)
        if any(isinstance(node, (*DEFINITIONS, ast.If)) for node in tree.body):
            tree.body = [node for node in tree.body if is_definition(node)]
            exec(compile(tree, f"{name}.ipynb", "exec"), scope)
    return scope
