"""What a notebook defines, without its data and its runs."""

import ast
import contextlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat
import numpy as np
import yaml

from pomology.data.text import WIKITEXT2
from pomology.paths import notebook_paths, root
from pomology.runner.notebooks import TAGS

DEFINITIONS = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)


def code(document: nbformat.NotebookNode) -> list[str]:
    """Return the sources of a notebook's code cells."""
    return [cell.source for cell in document.cells if cell.cell_type == "code"]


def parameters(document: nbformat.NotebookNode) -> str:
    """Return the source of the cells with parameters: those of the study, and all others."""
    tagged = [cell for cell in document.cells if TAGS.intersection(cell.metadata.get("tags", ()))]
    assert [tag for cell in tagged for tag in cell.metadata.tags] in (
        ["parameters"],
        ["study", "parameters"],
    )
    return "\n".join(cell.source for cell in tagged)


def is_definition(node: ast.stmt) -> bool:
    """Return whether a statement defines a name without running the experiment."""
    if isinstance(node, ast.If):  # what a notebook defines for one framework
        return ast.unparse(node.test).startswith("framework == ")
    if not isinstance(node, (ast.Assign, ast.AugAssign)):
        return isinstance(node, DEFINITIONS)
    target = node.targets[0] if isinstance(node, ast.Assign) else node.target
    names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    return not isinstance(target, ast.Attribute) and "experiment" not in names


@contextlib.contextmanager
def importing_from(folder: Path) -> Iterator[None]:
    """Let code import the files of a folder, as a kernel lets that of a notebook."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def definitions(name: str, profile: str = "article", **values: Any) -> dict[str, Any]:
    """Return a notebook's names after its imports, functions and classes, with a profile's values.

    values: what the notebook computes and its functions use. It has a corpus as long as the
    article's.
    """
    (path,) = [path for path in notebook_paths(root() / "notebooks") if path.stem == name]
    file = root() / "params" / profile / f"{name}.yaml"
    document = nbformat.read(path, 4)
    scope: dict[str, Any] = {}
    exec(parameters(document), scope)
    scope |= yaml.safe_load(file.read_text(encoding="utf-8"))
    parts = {part: np.zeros(count, np.int64) for part, count in WIKITEXT2.tokens.items()}
    scope["corpus"] = SimpleNamespace(**parts, vocabulary=WIKITEXT2.vocabulary)
    scope |= values
    for source in code(document):
        tree = ast.parse(source)
        defines = any(isinstance(node, (*DEFINITIONS, ast.If)) for node in tree.body)
        constants = re.match(r"[A-Z_]+ = ", source)
        if defines or constants or "Workload(" in source:
            tree.body = [node for node in tree.body if is_definition(node)]
            with importing_from(path.parent):
                exec(compile(tree, f"{name}.ipynb", "exec"), scope)
    return scope
