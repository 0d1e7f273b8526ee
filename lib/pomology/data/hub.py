"""Where an article's data comes from: a local folder, Hugging Face's cache, its hub, or a stand-in.

A wrong or damaged file is an error of one line that names it; only unavailable data makes "auto" take the stand-in.
pyarrow and huggingface_hub are imported only where they read something.
"""

import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pomology.errors import PomologyError
from pomology.format import one_line
from pomology.paths import redact

SOURCES = ("auto", "real", "stand-in")

Folder = str | Path | None
Request = tuple[str, Folder, int | None]  # source, folder, size

# By tqdm, the progress bar of Hugging Face's packages, when it is imported in a notebook that has no widgets.
warnings.filterwarnings("ignore", message="IProgress not found")


class Unavailable(Exception):
    """The real data is not available; the text says why."""


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """Where a dataset is published: its configuration on the hub, and the file and the columns of a split there.
    revision: a commit of the hub's, so that what is published later under the same name is not taken for it."""

    name: str
    config: str
    hub: str = ""
    no_hub: str = ""  # why it is on none
    columns: tuple[str, ...] = ()
    file: str = "{}-00000-of-00001.parquet"
    revision: str = "main"


@dataclass(frozen=True, eq=False, kw_only=True)
class Obtained:
    """Data for a notebook, which says where it is from: `kind` is "real" or "stand-in", `origin` one line."""

    name: str
    kind: str
    origin: str


def obtain(dataset: Dataset, request: Request, read: Callable, stand_in: Callable[[], Any]) -> tuple[Any, str, str]:
    """(data, "real" or "stand-in", where it is from in one line) for a request of (source, folder, size).

    read: of the folder, or its subfolder named as the configuration, or of the hub (None), gives the first and the last
    of the three, or raises Unavailable.
    """
    source, folder, size = request
    if source not in SOURCES:
        raise PomologyError(f"{dataset.name} source: {source!r} should be one of {', '.join(SOURCES)}")
    if size is not None and size < 1:
        raise PomologyError(f"{dataset.name} size: {size} should be at least 1, or None for all")
    first = "" if size is None else f"; the first {size:,} only"
    root = Path(folder).expanduser() if folder and source != "stand-in" else None
    if root and not root.is_dir():
        raise PomologyError(f"{dataset.name} folder: {shown(root)} is not a folder")
    if root and (root / dataset.config).is_dir():
        root = root / dataset.config
    try:
        if source == "stand-in":
            raise Unavailable("asked for")
        if not root and dataset.no_hub:
            raise Unavailable(f"no folder was named, and {dataset.no_hub}")
        data, origin = read(root)
        return data, "real", f"{dataset.name}, real: {origin}{first}"
    except Unavailable as error:
        if source == "real":
            remedy = "name a local folder that holds it, or set the source to auto or stand-in"
            raise PomologyError(f"{dataset.name}: no real data: {error}; {remedy}") from error
        return stand_in(), "stand-in", f"stand-in for {dataset.name}: {error}{first}"


def split_files(dataset: Dataset, root: Path | None, split: str, *own: str) -> tuple[list[Path], str]:
    """The files of a split, all in one folder and in order, and where they are from: the hub if `root` is None.
    Below `root`: parquet files, else the author's `own`, which are text; the first pattern with any match decides."""
    if root is None:
        file = f"{dataset.config}/{dataset.file.format(split)}"
        path, how = hub_file(dataset.hub, file, dataset.revision, "dataset")
        return [path], f"{dataset.hub} ({dataset.config}), {how}"
    patterns = (f"{split}*.parquet", f"*-{split}*.parquet", f"{split}*/*.parquet", *own)
    for pattern in patterns:
        if paths := sorted(path for path in root.rglob(pattern) if path.is_file()):
            if len({path.parent for path in paths}) > 1:
                raise PomologyError(f"{dataset.name}: {pattern} is in several folders below {shown(root)}: name one")
            return paths, "local folder"
    expected = f"the parquet files of huggingface.co/datasets/{dataset.hub} or one of {', '.join(patterns)}"
    raise PomologyError(f"{dataset.name}: nothing to read in {shown(root)}: expected {expected}")


def hub_file(hub: str, file: str, revision: str, kind: str = "model") -> tuple[Path, str]:
    """A file of a repository, and whether it was "cached" or "downloaded". Raises Unavailable if it is neither."""
    where = {"filename": file, "repo_type": kind, "revision": revision}
    if path := cached_file(hub, **where):
        return path, "cached"
    import huggingface_hub
    from huggingface_hub.errors import HTTPError

    missing = f"{file} of {hub} is not in the cache, and"
    if problem := hub_problem(f"{'datasets/' if kind == 'dataset' else ''}{hub}"):
        raise Unavailable(f"{missing} {problem}")
    huggingface_hub.utils.disable_progress_bars()  # they would stand in the rendered notebook
    try:
        return Path(huggingface_hub.hf_hub_download(hub, **where)), "downloaded"
    except (HTTPError, OSError, ValueError) as error:
        raise Unavailable(f"{missing} the download failed ({type(error).__name__})") from error


def cached_file(hub: str, filename: str, **where: str) -> Path | None:
    """A file in Hugging Face's cache, which is where `HF_HOME` or `HF_HUB_CACHE` says. Asks no network."""
    from huggingface_hub import try_to_load_from_cache

    path = try_to_load_from_cache(hub, filename, **where)
    return Path(path) if isinstance(path, str) else None  # else None, or an object that says: there is no such file


def hub_problem(repository: str, timeout_s: float = 3.0) -> str | None:
    """Why the hub cannot be asked now, or None. A download by itself would try to connect for 24 s."""
    from huggingface_hub import constants, get_session
    from huggingface_hub.errors import HTTPError

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    answers: list[str | None] = []

    def ask() -> None:
        try:  # by its own client, which knows the proxy and the certificates
            url = f"{constants.ENDPOINT}/{repository}/resolve/main/README.md"
            status = get_session().head(url, timeout=timeout_s).status_code
            answers.append(None if status < 400 else f"the Hugging Face hub answered {status}")
        except (HTTPError, OSError, ValueError) as error:
            answers.append(f"no connection to the Hugging Face hub ({type(error).__name__})")

    thread = threading.Thread(target=ask, daemon=True)  # because looking up a name has no time limit of its own
    thread.start()
    thread.join(timeout_s + 0.5)
    return answers[0] if answers else f"no answer from the Hugging Face hub within {timeout_s:g} s"


def read_parquet(paths: list[Path], columns: tuple[str, ...]) -> Any:
    import pyarrow
    from pyarrow.parquet import ParquetFile

    tables = []
    for path in paths:
        try:
            table = ParquetFile(path).read()
        except (pyarrow.ArrowException, OSError) as error:
            raise damaged(path, error) from error
        if not {*columns} <= {*table.column_names}:
            raise PomologyError(f"{shown(path)}: columns {table.column_names}: expected {' and '.join(columns)}")
        tables.append(table.select(list(columns)))
    return pyarrow.concat_tables(tables)


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise damaged(path, error) from error


def shown(path: Path) -> str:
    """A path that may stand in a shared notebook: without the name of the person whose home it is in."""
    return redact(str(path.absolute()))


def reason(error: Exception | str) -> str:
    return one_line(redact(" ".join(str(error).split())) or type(error).__name__, 200)


def damaged(path: Path, why: Exception | str) -> PomologyError:
    return PomologyError(f"{shown(path)}: damaged or half downloaded ({reason(why)}): delete it and get it again")
