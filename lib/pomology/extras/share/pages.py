"""Pages of notebooks for a shared zip: their text and code as in git, and the shared numbers.

Of an executed notebook only the parameters are taken, and those of a known form. So whatever else
it has (printed texts, errors, edited cells, attachments, metadata) need not be looked through.
"""

import json
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from pomology.errors import PomologyError
from pomology.extras.share import results
from pomology.format import one_line
from pomology.machine.snapshot import run_command
from pomology.paths import read_file, root
from pomology.report.page import rendered
from pomology.results.record import PROFILES
from pomology.results.run import Run
from pomology.runner.notebooks import ON_TOP, answered, declared, default_values, inspect, relinked

COMMIT = re.compile("[0-9a-f]{40}")
NEVER = ("out", "data_folder")  # parameters that name a folder of the machine
INJECTED = "injected-parameters"
ADDED = {INJECTED, ON_TOP}  # tags of cells that a run adds
Known = Callable[[Any, str], bool]


class _CellMetadata(msgspec.Struct):
    tags: list[str] = []


class _Cell(msgspec.Struct):
    cell_type: str
    source: str | list[str] = ""
    metadata: _CellMetadata = msgspec.field(default_factory=_CellMetadata)


class _Papermill(msgspec.Struct):
    parameters: dict[str, Any] = {}


class _Metadata(msgspec.Struct):
    papermill: _Papermill = msgspec.field(default_factory=_Papermill)


class _Executed(msgspec.Struct):
    """What is read of an executed notebook."""

    cells: list[_Cell]
    metadata: _Metadata

    @property
    def code(self) -> list[str]:
        """The cells of code, without those that a run adds."""
        cells = [cell for cell in self.cells if cell.cell_type == "code"]
        return ["".join(cell.source) for cell in cells if ADDED.isdisjoint(cell.metadata.tags)]


def pages(run: Run, files: Mapping[str, str], known: Known, left_out: list[str]) -> dict[str, str]:
    """Return the pages of a run's notebooks: file name -> HTML.

    files: of the shared zip, from whose records the results are made. known: whether the value of a
    parameter may be shared. left_out: receives a line for each notebook without a page, and for
    each cell without its results. Raises PomologyError if git has no commit of the run.
    """
    commits = _commits(run)
    if not commits:
        raise PomologyError("NOTEBOOKS=1: git does not have the commit of this run; omit it")
    made = {}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        out.mkdir()
        for name, text in files.items():
            (out / name).write_text(text, encoding="utf-8")
        for path in sorted(run.path.glob("[!.]*.ipynb")):
            try:
                page, failed = _page(path, commits, known, out)
            except PomologyError as error:
                left_out.append(f"{one_line(error, 300)}; left out")
                continue
            left_out += [
                f"{path.name}, {one_line(why, 200)}; its results left out" for why in failed
            ]
            made[f"{path.stem}.html"] = page
    return made


def _commits(run: Run) -> list[str]:
    """Return the commits of a run that git has: that of its start, and of what was run later."""
    facts = [run.machine, *run.machine.get("software", {}).values()]
    named = [str((each.get("git") or {}).get("commit")) for each in facts]
    valid = dict.fromkeys(filter(COMMIT.fullmatch, named))
    return [commit for commit in valid if _git("cat-file", "-t", commit) == "commit\n"]


def _git(*arguments: str) -> str | None:
    """Return what git says in the checkout; None if it has no answer."""
    return run_command("git", "--no-optional-locks", "-C", str(root()), *arguments)


def _page(path: Path, commits: list[str], known: Known, out: Path) -> tuple[str, list[str]]:
    """Return the page of an executed notebook, and a text for each cell without its results.

    Raises PomologyError for a file that is no notebook, or whose code no commit has.
    """
    try:
        executed = msgspec.json.decode(read_file(path), type=_Executed)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise PomologyError(f"{path.name}: not a notebook: {error}") from None
    commit, place, document = _source(path, executed, commits)
    copy = out / path.name
    copy.write_text(json.dumps(document), encoding="utf-8")
    used = executed.metadata.papermill.parameters
    in_git = [*_file(commit, used.get("profile"), path.stem), *_variants(document)]
    values = dict(_parameters(used, copy, in_git, known))
    outputs, failed = results.outputs(document["cells"], values, out)
    cells = []
    for number, cell in enumerate(document["cells"]):
        if cell["cell_type"] == "code":
            cell = cell | {"execution_count": None, "outputs": outputs.get(number, [])}
        cells.append(cell)
        if "parameters" in cell["metadata"].get("tags", ()):
            names = [name for name in inspect(copy) if name in used and name not in NEVER]
            texts = {name: repr(values[name]) if name in values else "unknown" for name in names}
            cells.append(_injected(texts))
    # The links of a page go from the folder of a run.
    text = relinked(answered(document | {"cells": cells}), root() / place, root() / "outputs/run")
    page = rendered(text, path.stem, drawings=out / "shown" / path.stem, shared=True)
    return page, failed


def _source(path: Path, executed: _Executed, commits: list[str]) -> tuple[str, str, dict]:
    """Return the commit that has the notebook whose code was executed, its path there, and itself.

    Raises PomologyError if no commit has it.
    """
    for commit in commits:
        named = _git("ls-tree", "-r", "-z", "--name-only", commit, "notebooks/") or ""
        for place in named.split("\0"):
            text = Path(place).name == path.name and _git("cat-file", "blob", f"{commit}:{place}")
            if text and msgspec.json.decode(text, type=_Executed).code == executed.code:
                return commit, place, json.loads(text)
    raise PomologyError(f"{path.name}: its code is not that of the run's commit")


def _file(commit: str, profile: object, name: str) -> Iterator[dict[str, Any]]:
    """Yield the parameters that git has for a notebook in a profile."""
    text = profile in PROFILES and _git(
        "cat-file", "blob", f"{commit}:params/{profile}/{name}.yaml"
    )
    if text:
        yield msgspec.yaml.decode(text) or {}


def _variants(document: dict) -> Iterator[dict[str, Any]]:
    """Yield the parameters of each variant of a notebook."""
    yield from document["metadata"].get("pomology", {}).get("variants", ())


def _parameters(
    used: dict[str, Any], path: Path, in_git: list[dict[str, Any]], known: Known
) -> Iterator[tuple[str, Any]]:
    """Yield the parameters of a run that may be shared, with their values.

    Each is of its declared type, and a value of a known form, or one that git has. used: the values
    of the run. path: of the notebook.
    """
    kind = declared(path)
    own = default_values(path)
    for name in kind.__struct_fields__:
        value = used.get(name, own[name])
        try:
            msgspec.convert({name: value}, kind)
        except msgspec.ValidationError:
            continue
        usual = [values[name] for values in (own, *in_git) if name in values]
        if name not in NEVER and (value in usual or known(value, name)):
            yield name, value


def _injected(texts: dict[str, str]) -> dict[str, Any]:
    """Return the cell that says the parameters of a run."""
    lines = ["# Parameters", *(f"{name} = {text}" for name, text in texts.items())]
    return {
        "cell_type": "code",
        "execution_count": None,
        "id": "parameters",
        "metadata": {"tags": [INJECTED]},
        "outputs": [],
        "source": "\n".join(lines),
    }
