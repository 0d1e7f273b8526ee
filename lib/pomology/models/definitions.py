"""Functions and classes of a notebook for another one: an article's model is written once, where it is explained."""

from __future__ import annotations

import ast
import contextlib
import json
from types import SimpleNamespace
from typing import Any

from pomology.errors import PomologyError
from pomology.paths import notebook_paths, root


def definitions(notebook: str, *wanted: str, **given: Any) -> SimpleNamespace:
    """What a notebook defines by these names, without running it.

    Defined with them is what they use of its imports, functions, classes and literal values, its parameters among
    these; nothing that it computes. given: values of other names that they use, or in place of its own; `framework`
    chooses between what a notebook defines for several. Raises PomologyError if there is no such notebook or name.
    """
    nodes, needed, sought = {}, set(), [*wanted]
    for path in notebook_paths(root() / "notebooks"):
        if path.stem == notebook:
            cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
            code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
            nodes = {
                name: node
                for source in code
                for node in _statements(ast.parse(source).body, given.get("framework", ""))
                for name in _names(node)
            }
    if unknown := set(wanted) - nodes.keys():
        raise PomologyError(
            f"{notebook}.ipynb in notebooks/ defines no {', '.join(sorted(unknown))}"
        )
    while sought:
        name = sought.pop()
        if name in nodes and name not in needed and name not in given:
            needed.add(name)
            sought += [each.id for each in ast.walk(nodes[name]) if isinstance(each, ast.Name)]
    body, scope = dict.fromkeys(node for name, node in nodes.items() if name in needed), dict(given)
    exec(compile(ast.Module([*body], []), f"{notebook}.ipynb", "exec"), scope)
    return SimpleNamespace(**{name: scope[name] for name in wanted})


def _statements(body: list[ast.stmt], framework: str) -> list[ast.stmt]:
    """Return statements, with those of `if framework == "torch":` in place of it for this one."""
    found = []
    for node in body:
        if isinstance(node, ast.If) and ast.unparse(node.test).startswith("framework == "):
            chosen = node.body if ast.unparse(node.test).endswith(repr(framework)) else node.orelse
            found += _statements(chosen, framework)
        else:
            found.append(node)
    return found


def _names(node: ast.stmt) -> list[str]:
    """The names that a line of a notebook defines, unless it computes something."""
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return [each.asname or each.name.partition(".")[0] for each in node.names]
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return [node.name]
    with contextlib.suppress(AttributeError, ValueError, TypeError):  # neither a literal value
        ast.literal_eval(node.value)
        return [
            each.id
            for each in ast.walk(node)
            if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
        ]
    return []
