"""The notebooks of the kit: where they are, their titles and parameters."""

from __future__ import annotations

import fnmatch
import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pomology.articles import published
from pomology.errors import PomologyError
from pomology.paths import root
from pomology.report import roofline
from pomology.runner import notebooks as runner_notebooks


@dataclass(frozen=True)
class Notebook:
    """One experiment. `seconds` is what each profile takes on two CPU cores without a GPU, roughly.

    after: notebooks whose numbers it lays together, so that it comes behind them; in a notebook's metadata `*` is all.
    """

    name: str
    path: Path
    title: str
    article: str
    seconds: dict[str, float]
    after: tuple[str, ...] = ()


def paths(folder: Path) -> list[Path]:
    """The files of all notebooks: those of an article in a folder of its own, what is about all of them beside these.

    JupyterLab keeps copies in hidden folders, which are none.
    """
    found = [*folder.glob("*.ipynb"), *folder.glob("*/*.ipynb")]
    return sorted(path for path in found if not path.parent.name.startswith("."))


def notebooks(folder: Path | None = None) -> list[Notebook]:
    """All notebooks, the check of the kit first, then the machine's ceilings, then the cheapest. Raises PomologyError
    if two have one name."""
    folder = folder or root() / "notebooks"
    found: dict[str, Notebook] = {}
    for path in paths(folder):
        document = runner_notebooks.read_notebook(path)
        about = document.get("metadata", {}).get("pomology", {})
        title = "".join(document["cells"][0]["source"]).split("\n")[0].lstrip("# ").strip()
        if path.stem in found:
            raise PomologyError(f"{path.name}: stands in two folders; a notebook's name is its experiment's")
        after = tuple(about.get("after", ()))
        found[path.stem] = Notebook(path.stem, path, title, about.get("article", ""), about.get("seconds", {}), after)
    if not found:
        raise PomologyError(f"{folder.name}/: no notebooks here; run pomology from its checkout")
    for notebook in list(found.values()):
        if notebook.after == ("*",):
            others = tuple(name for name in found if name != notebook.name)
            found[notebook.name] = notebook = replace(notebook, after=others)
        for name in notebook.after:
            if name not in found:
                raise PomologyError(f"{notebook.path.name}: comes after {name!r}, and no notebook has this name")

    def place(notebook: Notebook) -> tuple:
        cost = max(found[name].seconds.get("quick", math.inf) for name in (notebook.name, *notebook.after))
        # The check of the kit itself goes first: it tells which of the others' numbers may be trusted. Then the
        # ceilings, which the others' numbers are held against.
        ceilings = 1 + roofline.CEILINGS.index(notebook.name) if notebook.name in roofline.CEILINGS else 0
        # What lays others' numbers together comes behind them, also where it is the kit's own.
        late = notebook.article != published.KIT or bool(notebook.after)
        return late, ceilings, cost, bool(notebook.after), len(notebook.after), notebook.name

    return sorted(found.values(), key=place)


def select(all_notebooks: list[Notebook], only: str = "") -> list[Notebook]:
    """Those that `only` names: names or globs, separated by spaces; all if it is empty."""
    patterns = only.split()
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(notebook.name, pattern) for notebook in all_notebooks):
            names = ", ".join(sorted(notebook.name for notebook in all_notebooks))
            raise PomologyError(f"ONLY={pattern}: no notebook is named so; there are {names}")
    return [
        notebook
        for notebook in all_notebooks
        if not patterns or any(fnmatch.fnmatchcase(notebook.name, pattern) for pattern in patterns)
    ]


def read_notebook(path: Path) -> dict[str, Any]:
    """The notebook as JSON. Raises PomologyError if the file is not one."""
    try:
        notebook = json.loads(path.read_text(encoding="utf-8"))
        notebook["cells"][0]["source"]
    except (OSError, ValueError, KeyError, IndexError, TypeError, RecursionError) as error:
        raise PomologyError(f"{path.name}: not a notebook ({type(error).__name__}: {error})") from None
    return notebook
