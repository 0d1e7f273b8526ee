"""What a notebook defines, without its data and its runs; and notebooks that tests write."""

import ast
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat
import numpy as np
import yaml
from nbformat import v4

from pomology.data.text import WIKITEXT2
from pomology.paths import notebook_paths, root
from pomology.results.record import PROFILES

PATHS = [path for path in notebook_paths(root() / "notebooks") if path.stem != "explore"]  # no run
DEFINITIONS = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)


def code(document: nbformat.NotebookNode) -> list[str]:
    return [cell.source for cell in document.cells if cell.cell_type == "code"]


def parameters(document: nbformat.NotebookNode) -> str:
    """The source of the cells with parameters: those of the study, and all others."""
    tagged = [cell for cell in document.cells if cell.metadata.get("tags")]
    assert [tag for cell in tagged for tag in cell.metadata.tags] in (
        ["parameters"],
        ["study", "parameters"],
    )
    return "\n".join(cell.source for cell in tagged)


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
    exec(parameters(document), scope)
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


def notebook_text(title: str, parameters: str, *code: str, **about: Any) -> str:
    """A notebook of these cells. about: what it says of itself in its metadata."""
    cells = [v4.new_markdown_cell(title), v4.new_code_cell(parameters.strip())]
    cells[1].metadata["tags"] = ["parameters"]
    cells += [v4.new_code_cell(source) for source in code]
    kernel = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "pomology": about}
    return nbformat.writes(v4.new_notebook(cells=cells, metadata=metadata))


def write_notebook(kit: Path, name: str, text: str, values: str = "") -> None:
    """Put a notebook into a checkout, with these values of parameters in every profile."""
    path = kit / "notebooks" / "an_article" / f"{name}.ipynb"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    for profile in PROFILES:
        file = kit / "params" / profile / f"{name}.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"profile: {profile}\n{values}")
