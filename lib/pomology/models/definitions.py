"""Import of functions and classes from another notebook, without running it."""

import ast
import json
from types import SimpleNamespace
from typing import Any

from pomology.errors import PomologyError
from pomology.paths import notebook_paths, root


def definitions(notebook: str, *names: str, **values: Any) -> SimpleNamespace:
    """Return a notebook's definitions of these names, without running the notebook.

    They can use the notebook's imports, functions, classes and literals, but no computed values.
    values: values of other names, which replace the notebook's own; `framework` selects the branch
    of `if framework == ...`. Raises PomologyError for an unknown notebook or name.
    """
    statements: dict[str, ast.stmt] = {}
    for path in notebook_paths(root() / "notebooks"):
        if path.stem == notebook:
            cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
            code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
            body = ast.parse("\n".join(code)).body
            for statement in _chosen(body, values.get("framework", "")):
                statements |= dict.fromkeys(_defined(statement), statement)
    unknown = set(names) - statements.keys()
    if unknown:
        missing = ", ".join(sorted(unknown))
        raise PomologyError(f"{notebook}.ipynb in notebooks/ defines no {missing}")
    needed: set[str] = set()
    open_names = list(names)
    while open_names:
        name = open_names.pop()
        if name in statements and name not in needed and name not in values:
            needed.add(name)
            used = ast.walk(statements[name])
            open_names += [node.id for node in used if isinstance(node, ast.Name)]
    body = dict.fromkeys(statement for name, statement in statements.items() if name in needed)
    scope = dict(values)
    exec(compile(ast.Module(list(body), []), f"{notebook}.ipynb", "exec"), scope)
    return SimpleNamespace(**{name: scope[name] for name in names})


def _chosen(body: list[ast.stmt], framework: str) -> list[ast.stmt]:
    """Return statements, with each `if framework == ...` replaced by the framework's branch."""
    chosen = []
    for statement in body:
        test = ast.unparse(statement.test) if isinstance(statement, ast.If) else ""
        if test.startswith("framework == "):
            branch = statement.body if test.endswith(repr(framework)) else statement.orelse
            chosen += _chosen(branch, framework)
        else:
            chosen.append(statement)
    return chosen


def _defined(statement: ast.stmt) -> list[str]:
    """Return the names that a statement defines; none if it computes a value."""
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return [alias.asname or alias.name.partition(".")[0] for alias in statement.names]
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
        return [statement.name]
    if not isinstance(statement, (ast.Assign, ast.AnnAssign)):
        return []
    try:
        ast.literal_eval(statement.value)
    except (ValueError, TypeError):  # not a literal
        return []
    names = [node for node in ast.walk(statement) if isinstance(node, ast.Name)]
    return [node.id for node in names if isinstance(node.ctx, ast.Store)]
