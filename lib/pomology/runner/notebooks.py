"""The notebooks of the kit: where they are, their titles and times, and the order of a run."""

import fnmatch
import importlib.util
import json
import math
from pathlib import Path
from typing import Any, NamedTuple

from pomology.devices import find
from pomology.errors import PomologyError
from pomology.format import one_line
from pomology.paths import notebook_paths, read_file, root


class Variant(NamedTuple):
    """One execution of a notebook, in a kernel of its own: its framework, or another setting of it.

    parameters: in place of the profile's. only: the feature that the machine must have, see
    `devices.find.has`. seconds: what each profile takes on two CPU cores without a GPU, roughly.
    """

    parameters: dict[str, Any]
    only: str
    seconds: dict[str, float]

    @property
    def name(self) -> str:
        """The ending of its file: `-mlx-tf32`, of `{"framework": "mlx", "tf32": true}`."""
        words = []
        for name, value in self.parameters.items():
            words.append({True: name, False: f"no-{name}"}.get(value, str(value)))
        return "".join(f"-{word}" for word in words)


class Notebook(NamedTuple):
    """One experiment, as its file's metadata describe it.

    after: the notebooks whose numbers it shows; `*` in the metadata is all others.
    one_case_per_kernel: the backends that keep what a case compiled in their process.
    extras: the folders of lib/pomology/extras/ that it needs. order: below 0 it runs before those
    that say none, above 0 after them. priority: its place in a run with MINUTES, 0 is the last.
    """

    name: str
    path: Path
    title: str
    article: str
    variants: tuple[Variant, ...]
    after: tuple[str, ...]
    one_case_per_kernel: tuple[str, ...]
    extras: tuple[str, ...]
    order: int
    priority: int

    def seconds(self, profile: str) -> float:
        """What its variants take on any machine; infinite where the metadata do not say."""
        everywhere = [variant for variant in self.variants if not variant.only]
        return sum(variant.seconds.get(profile, math.inf) for variant in everywhere)

    def missing_extras(self) -> list[str]:
        """Return the extras that it needs and that were removed from this copy."""
        modules = {name: f"pomology.extras.{name}" for name in self.extras}
        return [name for name, module in modules.items() if not importlib.util.find_spec(module)]


def notebooks(folder: Path | None = None) -> list[Notebook]:
    """Return all notebooks in the order of a run: by `order`, the cheapest first, sources before.

    Raises PomologyError if there is none, or two have one name.
    """
    folder = folder or root() / "notebooks"
    paths = notebook_paths(folder)
    if not paths:
        raise PomologyError(f"{folder.name}/: no notebooks here; run pomology from its checkout")
    names = [path.stem for path in paths]
    found = {path.stem: _notebook(path, names) for path in paths}

    def place(notebook: Notebook) -> tuple:
        group = [notebook, *(found[name] for name in notebook.after)]
        late = max(each.order for each in group) > 0
        seconds = max(each.seconds("quick") for each in group)
        return min(notebook.order, 0), late, seconds, len(notebook.after), notebook.name

    return sorted(found.values(), key=place)


def read_notebook(path: Path) -> dict[str, Any]:
    """Return a notebook as JSON. Raises PomologyError for a file that is none."""
    try:
        document = json.loads(read_file(path))
        if not (document["cells"] and isinstance(document["metadata"], dict)):
            raise ValueError("it has no cells")
    except (ValueError, LookupError, TypeError) as error:
        raise PomologyError(f"{path.name}: not a notebook: {one_line(error)}") from None
    return document


def _notebook(path: Path, names: list[str]) -> Notebook:
    """Read a notebook. names: of all notebooks."""
    document = read_notebook(path)
    metadata = document["metadata"].get("pomology", {})
    after = metadata.get("after", [])
    if after == ["*"]:
        after = [name for name in names if name != path.stem]
    if names.count(path.stem) > 1:
        raise PomologyError(f"{path.name}: two folders have one; its name is its experiment's")
    for name in after:
        if name not in names:
            raise PomologyError(f"{path.name}: comes after {name!r}, and no notebook is named so")
    variants = []
    for values in metadata.get("variants", [{"seconds": metadata.get("seconds", {})}]):
        others = {key: value for key, value in values.items() if key not in ("only", "seconds")}
        only = values.get("only", "")
        if only not in ("", *find.FEATURES):
            allowed = ", ".join(find.FEATURES)
            raise PomologyError(f"{path.name}: only is {only!r}; it must be one of {allowed}")
        variants.append(Variant(others, only, values.get("seconds", {})))
    return Notebook(
        name=path.stem,
        path=path,
        title="".join(document["cells"][0]["source"]).split("\n")[0].lstrip("# ").strip(),
        article=metadata.get("article", ""),
        variants=tuple(variants),
        after=tuple(after),
        one_case_per_kernel=tuple(metadata.get("one_case_per_kernel", ())),
        extras=tuple(metadata.get("extras", ())),
        order=metadata.get("order", 0),
        priority=metadata.get("priority", 0),
    )


def select(all_notebooks: list[Notebook], only: str = "") -> list[Notebook]:
    """Return those that `only` names: names or globs with spaces between; all if it is empty."""
    names = [notebook.name for notebook in all_notebooks]
    chosen: set[str] = set()
    for pattern in only.split() or ["*"]:
        matches = fnmatch.filter(names, pattern)
        if not matches:
            listed = ", ".join(sorted(names))
            raise PomologyError(f"ONLY={pattern}: no notebook is named so; there are {listed}")
        chosen.update(matches)
    return [notebook for notebook in all_notebooks if notebook.name in chosen]
