"""The results of a notebook, made again from shared records.

Of the notebook's code, those statements run that show a result, such as `experiment.table()`, and
what they need: imports, declarations and names. Nothing is measured or loaded, and nothing but
tables, figures and answers of pomology's own is kept.
"""

import ast
import base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from IPython.display import Image, Markdown

from pomology.report.article import Declaration
from pomology.report.display import Report
from pomology.report.table import Table
from pomology.runner.notebooks import TAGS

SHOWING = ("answer", "claims", "details", "figure", "machine", "printed", "show", "table")
OWNERS = {"experiment", "report"}  # names of a notebook for what shows
DECLARING = ("Experiment", "Report")
CHANGING = ("add", "append", "extend", "insert", "sort", "update")  # methods of lists and more
SCOPES = (
    *(ast.FunctionDef, ast.ClassDef, ast.Lambda),
    *(ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp),
)


class Statement(NamedTuple):
    """A statement of a notebook: the names that it needs and sets. cell: number of its cell."""

    cell: int
    code: ast.stmt
    needs: set[str]
    sets: set[str]
    shows: bool


def outputs(
    cells: Sequence[Mapping], parameters: Mapping[str, Any], out: Path
) -> tuple[dict[int, list[dict]], list[str]]:
    """Return the outputs of cells by number, and a text for each cell that could not be made.

    cells: of a notebook as JSON. parameters: their values; the names of others are unknown. out:
    the folder of the shared records.
    """
    shown: dict[int, list[Any]] = {}
    failed: dict[int, str] = {}
    found = [each for number, cell in enumerate(cells) for each in statements(number, cell)]
    received: list[Any] = []
    names = dict(parameters) | _stand_ins(out, received.append)
    for number in sorted(_needed(found)):
        statement = found[number]
        received.clear()
        try:
            value = _run(statement, names)
        except Exception as error:  # whatever a name or a view raises that lacks a record
            failed.setdefault(statement.cell, f"{type(error).__name__}: {error}")
            continue
        # As in Jupyter, the value of a cell's last statement is displayed.
        last = number + 1 == len(found) or found[number + 1].cell != statement.cell
        if statement.shows:
            shown.setdefault(statement.cell, []).extend([*received, *([value] if last else [])])
    made = {
        cell: [output for value in values for output in _output(value)]
        for cell, values in shown.items()
    }
    return made, [f"cell {cell}: {why}" for cell, why in failed.items()]


def _stand_ins(out: Path, receive: Callable[[Any], Any]) -> dict[str, Any]:
    """Return what takes the place of `Experiment` and `Report`: they only show the records."""

    def report(name: str, **fields: Any) -> Report:
        return Report(name, declaration=Declaration(name, **fields), out=out, receive=receive)

    def experiment(name: str, **fields: Any) -> SimpleNamespace:
        of_name = report(name, **fields)
        shows = {each: getattr(of_name, each) for each in SHOWING}
        return SimpleNamespace(name=name, report=of_name, records=of_name.records, **shows)

    return {"Experiment": experiment, "Report": report}


def statements(number: int, cell: Mapping) -> Iterator[Statement]:
    """Yield the top statements of a cell of code that sets no parameters."""
    if cell["cell_type"] != "code" or TAGS.intersection(cell["metadata"].get("tags", ())):
        return
    for code in ast.parse("".join(cell["source"])).body:
        for part in _parts(code):
            yield Statement(number, part, *_names(part), _shows(part))


def _parts(code: ast.stmt) -> Iterator[ast.stmt]:
    """Yield a statement; of an import a statement for each name, but for the stand-ins'."""
    if not isinstance(code, ast.Import | ast.ImportFrom):
        for call in filter(_declares, ast.walk(code)):
            fields = Declaration.__dataclass_fields__
            call.keywords = [keyword for keyword in call.keywords if keyword.arg in fields]
        yield code
        return
    for name in code.names:
        if name.name not in DECLARING:
            fields = dict(ast.iter_fields(code)) | {"names": [name]}
            yield ast.copy_location(type(code)(**fields), code)


def _declares(node: ast.AST) -> bool:
    """Return whether a node is the call of a stand-in."""
    return isinstance(node, ast.Call) and getattr(node.func, "id", "") in DECLARING


def _shows(code: ast.stmt) -> bool:
    """Return whether a statement shows a result, such as `experiment.table()`."""
    call = code.value if isinstance(code, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return False
    return getattr(call.func.value, "id", "") in OWNERS and call.func.attr in SHOWING


def _names(code: ast.stmt) -> tuple[set[str], set[str]]:
    """Return the names that a statement needs and sets, without those of its functions."""
    used = [node for node in ast.walk(code) if isinstance(node, ast.Name)]
    needs = {node.id for node in used if isinstance(node.ctx, ast.Load)}
    sets: set[str] = set()
    for node in _outside(code):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            sets.add(node.id)
        elif isinstance(node, ast.alias):
            sets.add(node.asname or node.name.partition(".")[0])
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            sets.add(node.name)
        elif isinstance(node, ast.Attribute) and node.attr in CHANGING:
            sets |= {node.value.id} if isinstance(node.value, ast.Name) else set()
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            needs.add(node.target.id)
    if isinstance(code, ast.If | ast.Try):  # may leave the earlier value
        needs |= sets
    return needs - _local(code), sets


def _outside(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a statement without what is inside of its functions and classes."""
    yield node
    if not isinstance(node, SCOPES):
        for child in ast.iter_child_nodes(node):
            yield from _outside(child)


def _local(code: ast.stmt) -> set[str]:
    """Return the names that functions and comprehensions of a statement set for themselves."""
    names: set[str] = set()
    for scope in (node for node in ast.walk(code) if isinstance(node, SCOPES)):
        for node in ast.walk(scope):
            if isinstance(node, ast.arg):
                names.add(node.arg)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
    return names


def _needed(statements: Sequence[Statement]) -> set[int]:
    """Return the numbers of statements that show a result, and of all that these need."""
    needed: set[int] = set()
    open_ones = [number for number, each in enumerate(statements) if each.shows]
    while open_ones:
        number = open_ones.pop()
        if number in needed:
            continue
        needed.add(number)
        for name in statements[number].needs:
            before = [each for each in range(number) if name in statements[each].sets]
            open_ones += before[-1:]
    return needed


def _run(statement: Statement, names: dict[str, Any]) -> Any:
    """Run a statement among names; return the value of one that shows something."""
    if statement.shows:
        return eval(compile(ast.Expression(statement.code.value), "notebook", "eval"), names)
    exec(compile(ast.Module([statement.code], []), "notebook", "exec"), names)
    return None


def _output(shown: Any) -> Iterator[dict[str, Any]]:
    """Yield the output of a table, a figure as PNG, or an answer; nothing for others."""
    data, metadata = {}, {}
    if isinstance(shown, Table):
        data = {"text/html": shown.html(styled=True)}
    elif isinstance(shown, Image):
        data = {"image/png": base64.b64encode(shown.data).decode()}
        size = {"width": shown.width, "alt": shown.alt}
        metadata = {"image/png": size | (shown.metadata or {})}
    elif isinstance(shown, Markdown):
        data = {"text/markdown": shown.data}
        metadata = {"text/markdown": shown.metadata} if shown.metadata else {}
    if data:
        yield {"output_type": "display_data", "metadata": metadata, "data": data}
