"""The notebooks of the kit: their metadata and parameters, and their order in a run.

All is checked here: papermill takes unknown names, and a text for a number, without a word.
"""

import ast
import contextlib
import fnmatch
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec

from pomology.devices import find
from pomology.errors import PomologyError
from pomology.format import one_line
from pomology.paths import notebook_paths, read_file, root

TAGS = {"study", "parameters"}  # of cells with parameters
# The types of parameters that have `(> 0)` in their comment.
ABOVE_0 = {kind.__name__: Annotated[kind, msgspec.Meta(gt=0)] for kind in (int, float)}


class Variant:
    """One execution of a notebook, in a kernel of its own: its framework, or another setting of it.

    only: the feature that the machine must have, see `devices.find.has`. seconds: what each profile
    takes on two CPU cores without a GPU, roughly. parameters: in place of the profile's.
    """

    def __init__(self, only: str = "", seconds: dict[str, float] | None = None, **parameters: Any):
        if only not in ("", *find.FEATURES):
            raise ValueError(f"only is {only!r}; it must be one of {', '.join(find.FEATURES)}")
        self.only = only
        self.seconds = seconds or {}
        self.parameters = parameters

    @property
    def name(self) -> str:
        """The ending of its file: `-mlx-tf32`, of `{"framework": "mlx", "tf32": true}`."""
        words = []
        for name, value in self.parameters.items():
            words.append({True: name, False: f"no-{name}"}.get(value, value))
        return "".join(f"-{word}" for word in words)


@dataclass(frozen=True)
class Notebook:
    """One experiment, as its file's metadata describe it.

    after: the notebooks whose numbers it shows; `*` is all others.
    one_case_per_kernel: the backends that keep what a case compiled in their process.
    extras: the folders of lib/pomology/extras/ that it needs. order: below 0 it runs before those
    that say none, above 0 after them. priority: its place with MINUTES. run: if a run executes it.
    """

    path: Path
    title: str
    variants: Sequence[Variant]
    after: Sequence[str] = ()
    article: str = ""
    one_case_per_kernel: Sequence[str] = ()
    extras: Sequence[str] = ()
    order: int = 0
    priority: float = math.inf
    run: bool = True

    @property
    def name(self) -> str:
        """The name of its file, and of its experiment."""
        return self.path.stem

    def seconds(self, profile: str) -> float:
        """Return what its variants take on any machine; infinite where the metadata do not say."""
        everywhere = [variant for variant in self.variants if not variant.only]
        return sum(variant.seconds.get(profile, math.inf) for variant in everywhere)

    def values(self, profile: str, asked: dict[str, Any]) -> dict[str, Any]:
        """Return its parameters as a profile's file has them, and as a command asks for them.

        asked: values of those that it has; `auto` leaves what the file says. Raises PomologyError
        for what is wrong in its parameters' cell, its variants, or that file.
        """
        parameters = declared(self.path)
        names = parameters.__struct_fields__
        # What only shows others' numbers measures nothing.
        for name in ("profile", "out") if self.after else ("profile", "out", "devices", "repeat"):
            if name not in names:
                raise PomologyError(f"{self.path.name}: parameters cell: {name} is missing")
        for variant in self.variants:
            with _naming(f"{self.path.name}: variants"):
                msgspec.convert(variant.parameters, parameters)
        place = f"params/{profile}/{self.name}.yaml"
        with _naming(place):
            values = msgspec.yaml.decode(read_file(root() / place)) or {}
            msgspec.convert(values, parameters)
        if values.get("profile") != profile:
            raise PomologyError(f"{place}: profile must be {profile!r}")
        known = {name: value for name, value in asked.items() if name in names}
        return known | values | {name: known[name] for name in known if known[name] != "auto"}


def notebooks(run: bool = True) -> list[Notebook]:
    """Return all notebooks in the order of a run: by `order`, the cheapest first, sources before.

    run: False returns those that no run executes. Raises PomologyError for metadata that are wrong,
    and for two notebooks of one name.
    """
    found: dict[str, Notebook] = {}
    for path in notebook_paths(root() / "notebooks"):
        if path.stem in found:
            raise PomologyError(f"{path.name}: two folders have one; its name is its experiment's")
        found[path.stem] = _notebook(path)
    if not found:
        raise PomologyError("notebooks/: no notebooks here; run pomology from its checkout")
    for each in found.values():
        for name in each.after:
            if name not in (*found, "*"):
                raise PomologyError(f"{each.path.name}: after {name!r}, and no notebook is that")

    def place(each: Notebook) -> tuple:
        shows = bool(each.after), "*" in each.after
        return *shows, each.order, each.seconds("quick"), each.name

    return sorted((each for each in found.values() if each.run == run), key=place)


def select(only: str = "") -> list[Notebook]:
    """Return those that `only` names: names or globs with spaces between; all if it is empty."""
    known = notebooks()
    patterns = only.split() or ["*"]
    names = sorted(notebook.name for notebook in known)
    for pattern in patterns:
        if not fnmatch.filter(names, pattern):
            listed = ", ".join(names)
            raise PomologyError(f"ONLY={pattern}: no notebook is named so; there are {listed}")
    return [each for each in known if any(fnmatch.fnmatch(each.name, one) for one in patterns)]


def read_notebook(path: Path) -> dict[str, Any]:
    """Return a notebook as JSON. Raises PomologyError for a file that is none."""
    with _naming(f"{path.name}: not a notebook"):
        document = json.loads(read_file(path))
        if not (document["cells"] and isinstance(document["metadata"], dict)):
            raise ValueError("it has no cells")
    return document


def _notebook(path: Path) -> Notebook:
    document = read_notebook(path)
    title = "".join(document["cells"][0]["source"]).split("\n")[0].lstrip("# ").strip()
    metadata = dict(document["metadata"].get("pomology", {}))
    seconds = metadata.pop("seconds", {})
    with _naming(f"{path.name}: metadata"):  # also for a word that is none of theirs
        variants = [Variant(**each) for each in metadata.pop("variants", [{"seconds": seconds}])]
        return Notebook(path, title, variants, **metadata)


def declared(path: Path) -> type[msgspec.Struct]:
    """Return a struct with the parameters of a notebook, see `inspect`.

    Raises PomologyError for a line that is none.
    """
    fields = []
    defaults = {}
    for name, found in inspect(path).items():
        types = dict(ABOVE_0 if "(> 0)" in found.help else {})
        with _naming(f"{path.name}: parameter {name}"):
            fields.append((name, eval(found.inferred_type_name, types), None))
            defaults[name] = ast.literal_eval(found.default)
    parameters = msgspec.defstruct("Parameters", fields, forbid_unknown_fields=True)
    with _naming(f"{path.name}: parameters"):
        msgspec.convert(defaults, parameters)
    return parameters


def inspect(path: Path) -> dict[str, Any]:
    """Return the parameters of a notebook as papermill reads them, by name.

    Each is a line `name: type = literal  # help`. Those of the study are in a cell of the tag
    `study`, all others in the one of the tag `parameters`, after which papermill puts its own.
    """
    import nbformat  # takes half a second, with papermill
    from papermill.translators import PythonTranslator

    with _naming(path.name):
        cells = nbformat.read(path, 4).cells
        chosen = [cell for cell in cells if TAGS.intersection(cell.metadata.get("tags", ()))]
        return {each.name: each for cell in chosen for each in PythonTranslator.inspect(cell)}


@contextlib.contextmanager
def _naming(what: str) -> Iterator[None]:
    """Raise whatever is wrong with a file as a PomologyError, in a line that begins with `what`."""
    try:
        yield
    except Exception as error:
        line = one_line(" ".join(str(error).split()), 250)
        raise PomologyError(f"{what}: {line}") from None
