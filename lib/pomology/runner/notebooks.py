"""The notebooks of the kit: where they are, their titles and times, and the order in which they run."""

import fnmatch
import importlib.util
import math
import re
from pathlib import Path
from typing import NamedTuple

import msgspec

from pomology.errors import PomologyError
from pomology.format import one_line
from pomology.paths import notebook_paths, root
from pomology.results.notebook_file import Form, read_notebook

KERNEL = "python3"  # that of the environment in which the kit runs


class Notebook(NamedTuple):
    """One experiment. `seconds` is what each profile takes on two CPU cores without a GPU, roughly.

    after: notebooks whose numbers it shows, so that it comes behind them; in a notebook's metadata `*` is all. again:
    likewise of its second run, with `moment="end"`, when all others have measured; only of one that has such. first:
    its first cell. extras: the folders of lib/pomology/extras/ that it needs. order: below 0 it runs before those that
    say none, above 0 after them, as what leaves the machine hot does. soon: with MINUTES it is among the first, in the
    order of these numbers; 0 for none. closing: with MINUTES it always runs, as the last.
    """

    name: str
    path: Path
    title: str
    article: str
    seconds: dict[str, float]
    after: tuple[str, ...] = ()
    again: dict[str, float] = {}  # noqa: RUF012
    first: str = ""
    extras: tuple[str, ...] = ()
    order: int = 0
    soon: int = 0
    closing: bool = False

    def missing_extras(self) -> list[str]:
        """Return the extras that it needs and that were removed from this copy."""
        return [name for name in self.extras if importlib.util.find_spec(f"pomology.extras.{name}") is None]


def notebooks(folder: Path | None = None) -> list[Notebook]:
    """All notebooks in the order in which they run: by their `order`, then the cheapest first; each behind those
    it needs. Raises PomologyError if two have one name."""
    folder = folder or root() / "notebooks"
    paths = {path.stem: path for path in notebook_paths(folder)}
    if not paths:
        raise PomologyError(f"{folder.name}/: no notebooks here; run pomology from its checkout")
    known: dict[str, Notebook] = {}
    for path in notebook_paths(folder):
        name, document = path.stem, read_notebook(path)
        about = document.get("metadata", {}).get("pomology", {})
        first = "".join(document["cells"][0]["source"])
        title = first.split("\n")[0].lstrip("# ").strip()
        after = [other for other in paths if other != name] if about.get("after") == ["*"] else about.get("after", ())
        if name in known:
            raise PomologyError(f"{path.name}: stands in two folders; a notebook's name is its experiment's")
        if missing := [other for other in after if other not in paths]:
            raise PomologyError(f"{path.name}: comes after {missing[0]!r}, and no notebook has this name")
        costs = about.get("seconds", {}), tuple(after), about.get("again", {}), first, tuple(about.get("extras", ()))
        places = about.get("order", 0), about.get("soon", 0), about.get("closing", False)
        known[name] = Notebook(name, path, title, about.get("article", ""), *costs, *places)

    def place(notebook: Notebook) -> tuple:
        late = max(known[name].order for name in (notebook.name, *notebook.after)) > 0
        cost = max(known[name].seconds.get("quick", math.inf) for name in (notebook.name, *notebook.after))
        return min(notebook.order, 0), late, cost, len(notebook.after), notebook.name

    return sorted(known.values(), key=place)


def select(all_notebooks: list[Notebook], only: str = "") -> list[Notebook]:
    """Those that `only` names: names or globs, separated by spaces; all if it is empty."""
    names = [notebook.name for notebook in all_notebooks]
    chosen: set[str] = set()
    for pattern in only.split() or ["*"]:
        if not (matches := fnmatch.filter(names, pattern)):
            raise PomologyError(f"ONLY={pattern}: no notebook is named so; there are {', '.join(sorted(names))}")
        chosen |= set(matches)
    return [notebook for notebook in all_notebooks if notebook.name in chosen]


def check_runnable(notebook: Notebook) -> None:
    """Raise PomologyError, in a line, for a notebook that asks for another kernel, or shows a picture that it lacks."""
    form = msgspec.convert(read_notebook(notebook.path), Form)
    kernel = form.metadata.kernelspec and form.metadata.kernelspec.name
    if kernel != KERNEL:
        named = f"is {one_line(kernel, 60)!r}" if kernel else "is missing"
        remedy = f"it must be {KERNEL!r} (JupyterLab: Kernel, Change Kernel)"
        raise PomologyError(f"{notebook.path.name}: its kernel {named}; {remedy}")
    for cell in form.cells:
        for name in re.findall(r"\(attachment:([^)\s]+)\)", "".join(cell.source)):
            if cell.cell_type == "markdown" and name not in cell.attachments:
                raise PomologyError(f"{notebook.path.name}: shows the attachment {one_line(name, 60)}, which it lacks")
