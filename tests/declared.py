"""What a notebook gives to `Experiment` or `Report`, without running it."""

import ast
from pathlib import Path

import nbformat
from notebook_code import code

from pomology.paths import notebook_paths, root
from pomology.report import article
from pomology.report.article import Declaration
from pomology.report.table import Table
from pomology.results.record import Record
from pomology.views import community_results


def call(path: Path) -> ast.Call:
    nodes = ast.walk(ast.parse("\n".join(code(nbformat.read(path, 4)))))
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    (made,) = [node for node in calls if ast.unparse(node.func) in ("Experiment", "Report")]
    return made


def of(name: str) -> Declaration:
    """The declaration of a notebook of the kit, or what can be derived of another name."""
    paths = {path.stem: path for path in notebook_paths(root() / "notebooks")}
    return declaration(paths[name]) if name in paths else Declaration(name)


def article_table(name: str, records: list[Record], **more) -> Table:
    """The table of a notebook with these cases as this machine's."""
    return article.article_table(of(name), records, **more)


def declaration(path: Path) -> Declaration:
    fields = Declaration.__dataclass_fields__
    words = {word.arg: word.value for word in call(path).keywords if word.arg in fields}
    beside = community_results.rows if words.pop("beside", None) else None
    values = {name: ast.literal_eval(value) for name, value in words.items()}
    return Declaration(path.stem, beside=beside, **values)
