"""The notebooks of the kit: where they are, their titles and times, and the order in which they run."""

import fnmatch
import importlib.util
import math
from pathlib import Path
from typing import Any, NamedTuple

from pomology.errors import PomologyError
from pomology.paths import notebook_paths, root
from pomology.results.notebook_file import read_notebook


class Variant(NamedTuple):
    """One execution of a notebook, in a kernel of its own: its framework, or another setting of it.

    parameters: in place of the profile's. only: the feature that the machine must have, see
    `devices.find.has`. seconds: as of a notebook.
    """

    parameters: dict[str, Any]
    only: str
    seconds: dict[str, float]

    @property
    def name(self) -> str:
        """The ending of its file: `-mlx-tf32`, of `{"framework": "mlx", "tf32": true}`."""
        parts = []
        for name, value in self.parameters.items():
            if isinstance(value, bool):
                parts.append(name if value else f"no-{name}")
            else:
                parts.append(str(value))
        return "".join(f"-{part}" for part in parts)


class Notebook(NamedTuple):
    """One experiment, as its file's metadata describe it.

    seconds: what each profile takes on two CPU cores without a GPU, roughly, all variants together.
    after: the notebooks whose numbers it shows, which come before it; `*` in the metadata is all others.
    one_case_per_kernel: the backends that keep what a case compiled, so that each case has a kernel of its own.
    extras: the folders of lib/pomology/extras/ that it needs.
    order: below 0 it runs before those that say none, above 0 after them, as what leaves the machine hot does.
    priority: its place in a run with MINUTES; 0 comes behind all others.
    """

    name: str
    path: Path
    title: str
    article: str
    seconds: dict[str, float]
    after: tuple[str, ...]
    one_case_per_kernel: tuple[str, ...]
    extras: tuple[str, ...]
    order: int
    priority: int
    variants: tuple[Variant, ...]

    def missing_extras(self) -> list[str]:
        """Return the extras that it needs and that were removed from this copy."""
        return [
            name
            for name in self.extras
            if importlib.util.find_spec(f"pomology.extras.{name}") is None
        ]


def notebooks(folder: Path | None = None) -> list[Notebook]:
    """Return all notebooks in the order in which they run: by `order`, the cheapest first, each behind those it needs.

    Raises PomologyError if there is none, or two have one name.
    """
    folder = folder or root() / "notebooks"
    paths = notebook_paths(folder)
    if not paths:
        raise PomologyError(f"{folder.name}/: no notebooks here; run pomology from its checkout")
    names = [path.stem for path in paths]
    known = {path.stem: _notebook(path, names) for path in paths}

    def place(notebook: Notebook) -> tuple:
        group = [notebook, *(known[name] for name in notebook.after)]
        late = max(each.order for each in group) > 0
        cost = max(each.seconds.get("quick", math.inf) for each in group)
        return min(notebook.order, 0), late, cost, len(notebook.after), notebook.name

    return sorted(known.values(), key=place)


def _notebook(path: Path, names: list[str]) -> Notebook:
    """Read a notebook. names: of all notebooks."""
    document = read_notebook(path)
    metadata = document["metadata"].get("pomology", {})
    title = "".join(document["cells"][0]["source"]).split("\n")[0]
    after = metadata.get("after", ())
    if after == ["*"]:
        after = [name for name in names if name != path.stem]
    if names.count(path.stem) > 1:
        raise PomologyError(
            f"{path.name}: stands in two folders; a notebook's name is its experiment's"
        )
    variants = tuple(
        map(_variant, metadata.get("variants", [{"seconds": metadata.get("seconds", {})}]))
    )
    seconds: dict[str, float] = {}
    for variant in variants:
        for profile, value in variant.seconds.items():
            seconds[profile] = seconds.get(profile, 0) + value
    for name in after:
        if name not in names:
            raise PomologyError(f"{path.name}: comes after {name!r}, and no notebook has this name")
    return Notebook(
        name=path.stem,
        path=path,
        title=title.lstrip("# ").strip(),
        article=metadata.get("article", ""),
        seconds=seconds,
        after=tuple(after),
        one_case_per_kernel=tuple(metadata.get("one_case_per_kernel", ())),
        extras=tuple(metadata.get("extras", ())),
        order=metadata.get("order", 0),
        priority=metadata.get("priority", 0),
        variants=variants,
    )


def _variant(values: dict[str, Any]) -> Variant:
    parameters = {key: value for key, value in values.items() if key not in ("only", "seconds")}
    return Variant(parameters, values.get("only", ""), values.get("seconds", {}))


def select(all_notebooks: list[Notebook], only: str = "") -> list[Notebook]:
    """Those that `only` names: names or globs, separated by spaces; all if it is empty."""
    names = [notebook.name for notebook in all_notebooks]
    chosen: set[str] = set()
    for pattern in only.split() or ["*"]:
        if not (matches := fnmatch.filter(names, pattern)):
            raise PomologyError(
                f"ONLY={pattern}: no notebook is named so; there are {', '.join(sorted(names))}"
            )
        chosen |= set(matches)
    return [notebook for notebook in all_notebooks if notebook.name in chosen]
