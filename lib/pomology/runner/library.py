"""The files of this package on which the numbers of a notebook's cases depend.

They are those that its kernel imports from the folders of COMPUTING. The others show results, or
run notebooks: with other ones, a stopped run goes on.
"""

import re
from collections.abc import Iterable
from pathlib import Path

import pomology
from pomology.paths import read_text

LIBRARY = Path(pomology.__file__).parent
COMPUTING = ("checks", "data", "devices", "experiment", "machine", "measure", "models")
# `from pomology.models import (cost, verify)`, and a module's name anywhere, as in `_MODULES`.
IMPORT = re.compile(r"^ *from (pomology[\w.]*) import (\([^)]*\)|.*)|(pomology(?:\.\w+)+)", re.M)


def files(texts: Iterable[str]) -> list[Path]:
    """Return the files that code imports, directly or not. texts: the code of cells and files."""
    # `devices.find` imports all frameworks of its folder, whose names are in no text.
    imported = set((LIBRARY / "devices").glob("*.py"))
    unread = [*texts, *map(read_text, imported)]
    while unread:
        for path in _imported(unread.pop()) - imported:
            imported.add(path)
            unread.append(read_text(path))
    return sorted(imported)


def _imported(text: str) -> set[Path]:
    """Return the files that a text names: of the folders of COMPUTING, or the package's own."""
    modules = set()
    for package, names, module in IMPORT.findall(text):
        modules |= {package or module, *(f"{package}.{name}" for name in re.findall(r"\w+", names))}
    paths = set()
    for module in modules:
        path = LIBRARY.joinpath(*module.split(".")[1:])
        paths |= {path.with_suffix(".py"), path / "__init__.py"}
    computing = {LIBRARY / "__init__.py"} | {LIBRARY / folder for folder in COMPUTING}
    return {path for path in paths if {path, path.parent} & computing and path.is_file()}
