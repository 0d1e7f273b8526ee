"""Read and validate the notebooks: their metadata, parameters and order in a run.

papermill itself accepts unknown parameters and values of a wrong type without an error.
"""

import ast
import contextlib
import fnmatch
import hashlib
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec

from pomology.devices import find
from pomology.errors import PomologyError
from pomology.format import one_line
from pomology.paths import (
    RESOURCES,
    in_checkout,
    notebook_paths,
    read_csv,
    read_file,
    read_text,
    root,
)
from pomology.results.record import PROFILES
from pomology.runner import library

LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)#\s]+)")  # the relative target of a link in Markdown
LISTED = RESOURCES / "notebooks.csv"  # written by `make docs`
ANSWER, ON_TOP = "answer", "answer-on-top"  # tags of cells with the answer, and of its place
# The place in a title cell before which an answer is put, and a sentence that it replaces.
FINDING = "\n\n**Finding.**"
PENDING = re.compile(
    r" The answer of this machine follows when all cells have run"
    r"(; \[[^]]*\]\([^)]*\) is in the repository)?\."
)
# How a notebook announces its answer -> the same words once the answer is at the top.
ANNOUNCED = {
    "The answer of this run, and its figures": (
        "The answer of this run, with figures, is at the top"
    ),
    "The answer of this run, and its figure": "The answer of this run, with figure, is at the top",
    "The answer of this run": "The answer of this run is at the top",
}
TAGS = {"study", "parameters"}  # tags of the cells with parameters
# The types of parameters whose comment has `(> 0)`.
ABOVE_0 = {kind.__name__: Annotated[kind, msgspec.Meta(gt=0)] for kind in (int, float)}


class Variant:
    """One execution of a notebook in its own kernel, for example with one of its frameworks.

    only: the feature that the machine must have, see `devices.find.has`. seconds: approximate time
    on two CPU cores without a GPU, by profile. parameters: these replace the profile's.
    """

    def __init__(self, only: str = "", seconds: dict[str, float] | None = None, **parameters: Any):
        if only not in ("", *find.FEATURES):
            raise ValueError(f"only is {only!r}; expected one of {', '.join(find.FEATURES)}")
        self.only = only
        self.seconds = msgspec.convert(seconds or {}, dict[str, float])
        self.parameters = parameters

    @property
    def name(self) -> str:
        """The suffix of a variant's file: `-mlx-tf32` for `{"framework": "mlx", "tf32": true}`."""
        words = []
        for name, value in self.parameters.items():
            words.append({True: name, False: f"no-{name}"}.get(value, value))
        return "".join(f"-{word}" for word in words)


class Notebook(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A notebook with the metadata of its file.

    after: the notebooks whose results it shows; `*` means all others. one_case_per_kernel: the
    backends that keep compiled code in their process. extras: the folders of lib/pomology/extras/
    that it needs. order: place in a run, ascending (default 0). priority: place in a run with
    MINUTES, ascending. run: whether a run executes it.
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
        """The stem of the notebook's file, which is also the name of the experiment."""
        return self.path.stem

    def seconds(self, profile: str) -> float:
        """Return the stated time of the variants that run on any machine; infinity if none."""
        everywhere = [variant for variant in self.variants if not variant.only]
        return sum(variant.seconds.get(profile, math.inf) for variant in everywhere)

    def values(self, profile: str, options: dict[str, Any]) -> dict[str, Any]:
        """Return the parameters of a run: those of a profile's file, replaced by options.

        options: values of a command; `auto` and names of no parameter are ignored. Raises
        PomologyError for an error in the parameters' cell, the variants or the file.
        """
        parameters = declared(self.path)
        names = parameters.__struct_fields__
        # A notebook that only shows other notebooks' results measures nothing.
        for name in ("profile", "out") if self.after else ("profile", "out", "devices", "repeat"):
            if name not in names:
                raise PomologyError(f"{self.path.name}: parameters cell: add `{name}`")
        for variant in self.variants:
            with _naming(f"{self.path.name}: variants"):
                msgspec.convert(variant.parameters, parameters)
        file = f"params/{profile}/{self.name}.yaml"
        with _naming(file):
            values = msgspec.yaml.decode(read_file(root() / file)) or {}
            msgspec.convert(values, parameters)
        if values.get("profile") != profile:
            raise PomologyError(f"{file}: expected profile: {profile}")
        # `auto` leaves the choice to the profile's file, and is the value where that has none.
        defaults = {name: value for name, value in options.items() if name in names}
        chosen = {name: value for name, value in defaults.items() if value != "auto"}
        return defaults | values | chosen


def notebooks(run: bool = True, skipped: dict[str, str] | None = None) -> list[Notebook]:
    """Return all notebooks in the order of a run: by `order`, by time, those with `after` last.

    run: False returns those that no run executes. skipped: receives the reason for each file that
    is no valid notebook of an experiment, by name; without it such a file raises PomologyError.
    """
    paths: dict[str, list[Path]] = {}
    for path in notebook_paths(root() / "notebooks"):
        paths.setdefault(path.stem, []).append(path)
    if not paths:
        raise PomologyError("notebooks/: no notebook found; run pomology in its checkout")
    valid = []
    for name, copies in paths.items():
        try:
            valid.append(_notebook(*copies))
        except PomologyError as error:
            if skipped is None:
                raise
            skipped[name] = one_line(error, 300)

    def position(notebook: Notebook) -> tuple:
        # What shows other notebooks' results follows them, and what shows all of them comes last.
        shows = bool(notebook.after), "*" in notebook.after
        return *shows, notebook.order, notebook.seconds("quick"), notebook.name

    return sorted((notebook for notebook in valid if notebook.run == run), key=position)


def select(only: str = "") -> list[Notebook]:
    """Return the notebooks that `only` names by names or globs with spaces between; "" is all.

    Prints a line for each that is skipped. Raises PomologyError for a glob without another one.
    """
    skipped: dict[str, str] = {}
    valid = {notebook.name: notebook for notebook in notebooks(skipped=skipped)}
    chosen: set[str] = set()
    for pattern in only.split() or ["*"]:
        names = fnmatch.filter([*valid, *skipped], pattern)
        # A pattern that means skipped files only fails with the reason of the first one.
        if valid.keys().isdisjoint(names):
            expected = f"no notebook matches; expected some of {', '.join(sorted(valid))}"
            raise PomologyError(skipped[names[0]] if names else f"ONLY={pattern}: {expected}")
        chosen.update(names)
    for name in sorted(chosen & skipped.keys()):
        print(f"skipping {skipped[name]}")
    return [notebook for name, notebook in valid.items() if name in chosen]


def listed() -> list[dict[str, str]]:
    """Return name, title and the seconds in each profile of all notebooks, in the order of a run.

    An installed package has no notebooks, so it reads these from its table.
    """
    if not in_checkout():
        return read_csv(LISTED)
    rows = []
    for notebook in select():
        times = {name: f"{notebook.seconds(name):g}" for name in PROFILES}
        rows.append({"name": notebook.name, "title": notebook.title} | times)
    return rows


def read_notebook(path: Path) -> dict[str, Any]:
    """Return a notebook as JSON. Raises PomologyError if the file is not a notebook."""
    data = read_file(path)
    with _naming(f"{path.name}: not a notebook"):
        document = json.loads(data)
        if not (document["cells"] and isinstance(document["metadata"], dict)):
            raise ValueError("it has no cells")
    return document


def missing_twins(path: Path) -> Iterator[str]:
    """Yield which of the twins that a notebook names, as `vae_mlx.py:vae`, are not next to it."""
    sources = "\n".join(_sources(path))
    for file, name in re.findall(r"""["'](\w+\.py):(\w+)["']""", sources):
        twin = path.parent / file
        if not twin.is_file():
            yield f"there is no {file} next to it, which its twin names"
        elif not re.search(rf"^(def|class) {name}\b|^{name}\b.*=", read_text(twin), re.MULTILINE):
            yield f"{file} defines no {name}, which its twin names"


def code_digits(path: Path) -> str:
    """Return digits that tell the code of a notebook's cells from any other.

    They are of its cells, and of the Python files next to it that these name, such as its twin.
    Raises PomologyError if one cannot be read.
    """
    return _digits(_code(path))


def library_digits(path: Path) -> str:
    """Return digits that tell the package's own code that a notebook measures with from any other.

    Raises PomologyError if a file cannot be read.
    """
    files = library.files(_code(path))
    return _digits(f"{file.relative_to(library.LIBRARY)}\0{read_text(file)}" for file in files)


def _sources(path: Path) -> list[str]:
    """Return the code of a notebook's cells."""
    cells = read_notebook(path)["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def _code(path: Path) -> list[str]:
    """Return the code of a notebook's cells, and of the Python files next to it that they name."""
    texts = _sources(path)
    words = set(re.findall(r"\w+", " ".join(texts)))
    return texts + [
        read_text(file) for file in sorted(path.parent.glob("*.py")) if file.stem in words
    ]


def _digits(texts: Iterable[str]) -> str:
    """Return the first hexadecimal digits of a hash of texts."""
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:12]


def relinked(document: dict[str, Any], source: Path, folder: Path) -> str:
    """Return an executed notebook as text, whose relative links work in another folder.

    document: the notebook as JSON. source: the notebook's own path, from which its links go.
    """

    def moved(target: re.Match) -> str:
        path = source.parent / target[1]
        return Path(os.path.relpath(path, folder)).as_posix()

    cells = []
    for cell in document["cells"]:
        if cell["cell_type"] == "markdown":
            cell = cell | {"source": LINK.sub(moved, "".join(cell["source"])).splitlines(True)}
        cells.append(cell)
    return json.dumps(document | {"cells": cells}, indent=1, ensure_ascii=False) + "\n"


def answered(document: dict[str, Any]) -> dict[str, Any]:
    """Return an executed notebook whose answer is at its top.

    The outputs of the cells with the tag `answer` move into a cell without code. It comes after the
    title and the question, and before the article's finding; the text in their old place says so.
    document: the notebook as JSON; one without an answer is returned as it is.
    """
    cells = document["cells"]
    of_answer = [cell for cell in cells if ANSWER in cell["metadata"].get("tags", ())]
    outputs = [output for cell in of_answer for output in cell.get("outputs", ())]
    if not outputs:
        return document
    top = {
        "cell_type": "code",
        "execution_count": None,
        "id": "answer",
        "metadata": {"jupyter": {"source_hidden": True}, "tags": [ON_TOP]},
        "outputs": outputs,
        "source": "",
    }
    rest = [cell | {"outputs": []} if cell in of_answer else _announced(cell) for cell in cells]
    title, finding, more = PENDING.sub("", "".join(rest[0]["source"])).partition(FINDING)
    question = rest[0] | {"source": title}
    below = rest[0] | {"id": "finding", "source": f"{finding}{more}".strip()}
    return document | {"cells": [question, top, *([below] if finding else []), *rest[1:]]}


def _announced(cell: dict[str, Any]) -> dict[str, Any]:
    """Return a cell of text that announces the answer with the place of it, others unchanged."""
    text = "".join(cell["source"])
    words = next((words for words in ANNOUNCED if words in text), None)
    if not words or cell["cell_type"] != "markdown":
        return cell
    moved = text.replace(words, ANNOUNCED[words], 1)
    return cell | {"source": f"{moved[:-1]}." if moved.endswith(":") else moved}


def _notebook(path: Path, *copies: Path) -> Notebook:
    """Return a notebook, which must be the only one of its name. copies: others of this name."""
    if copies:
        raise PomologyError(f"{path.name}: two folders have this notebook; rename one")
    if path.stem.split() != [path.stem]:
        raise PomologyError(f"{path.name}: a name with spaces cannot be selected; rename it")
    document = read_notebook(path)
    with _naming(f"{path.name}: metadata"):  # unknown keys are errors, too
        title = "".join(document["cells"][0]["source"]).split("\n")[0].lstrip("# ").strip()
        metadata = dict(document["metadata"].get("pomology", {}))
        # A notebook without variants has one, of which `seconds` are.
        seconds = metadata.pop("seconds", {})
        declared_variants = metadata.pop("variants", [{"seconds": seconds}])
        if not declared_variants:
            raise ValueError("variants has none; leave it out")
        variants = [Variant(**variant) for variant in declared_variants]
        fields = {"path": path, "title": title, "variants": variants}
        notebook = msgspec.convert(metadata | fields, Notebook)
    files = [root() / "params" / profile / f"{path.stem}.yaml" for profile in PROFILES]
    if notebook.run and not any(file.exists() for file in files):
        raise PomologyError(f"{path.name}: no experiment, since it has no file in params/")
    return notebook


def declared(path: Path) -> type[msgspec.Struct]:
    """Return a struct type with the parameters of a notebook. Raises PomologyError for others."""
    fields = []
    defaults = {}
    for name, parameter in inspect(path).items():
        types = dict(ABOVE_0 if "(> 0)" in parameter.help else {})
        with _naming(f"{path.name}: parameter {name}"):
            if name.startswith("__"):
                raise ValueError("expected a name without underscores before it")
            # An annotation is Python, such as `list[int]`. ABOVE_0 replaces int and float in it.
            fields.append((name, eval(parameter.inferred_type_name, types), None))
            defaults[name] = ast.literal_eval(parameter.default)
    parameters = msgspec.defstruct("Parameters", fields, forbid_unknown_fields=True)
    with _naming(f"{path.name}: parameters"):
        msgspec.convert(defaults, parameters)
    return parameters


def default_values(path: Path) -> dict[str, Any]:
    """Return the values that a notebook itself gives its parameters, by name."""
    return {name: ast.literal_eval(each.default) for name, each in inspect(path).items()}


def inspect(path: Path) -> dict[str, Any]:
    """Return the parameters of a notebook as papermill reads them, by name.

    Each is a line `name: type = literal  # help`. Those of the study are in the cell tagged
    `study`, the others in the cell tagged `parameters`, after which papermill inserts its own.
    """
    import nbformat  # takes half a second, with papermill
    from papermill.translators import PythonTranslator

    with _naming(path.name):
        cells = nbformat.read(path, 4).cells
        tagged = [cell for cell in cells if TAGS.intersection(cell.metadata.get("tags", ()))]
        parameters = [parameter for cell in tagged for parameter in PythonTranslator.inspect(cell)]
        return {parameter.name: parameter for parameter in parameters}


@contextlib.contextmanager
def _naming(subject: str) -> Iterator[None]:
    """Turn any exception into a PomologyError of one line that begins with `subject`."""
    try:
        yield
    except Exception as error:
        line = one_line(" ".join(str(error).split()), 250)
        raise PomologyError(f"{subject}: {line}") from None
