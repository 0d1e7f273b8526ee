"""Where an article's data comes from: a folder, Hugging Face's cache, its hub, or a stand-in; and what is said of it.

Says in one line what is wrong with a folder or a file. Nothing is downloaded but what the hub answers for within some
seconds; nothing damaged is replaced silently. Imports no framework: `datasets` only where its cache or the hub is read.
"""

from __future__ import annotations

import contextlib
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pomology.errors import PomologyError

SOURCES = ("auto", "real", "stand-in")

_UNFINISHED = {".incomplete", ".part", ".partial", ".crdownload", ".download", ".tmp"}

Folder = str | Path | None


class Unobtainable(Exception):
    """The real data is neither here nor to be had; the text says why."""


def obtain(
    names: tuple[str, str | None, str],
    request: tuple[str, Folder, int | None],
    from_folder: Callable[[Path], Any],
    from_tables: Callable[[dict[str, Any]], Any] | None,
    stand_in: Callable[[], Any],
    tables: Callable[[str, str], tuple[dict[str, Any], str]] | None = None,
    nowhere: str = "no folder was named, and no hub has it",
) -> tuple[Any, str, str]:
    """(data, kind, origin) of `names` (dataset, hub id, hub configuration) for `request` (source, folder, size).

    `from_folder` gets the folder, or its subfolder named as the configuration; `from_tables` pyarrow tables by split,
    from `tables` (`hub_tables` if None). Each may raise Unobtainable. `nowhere`: what to say where the hub id is None.
    """
    (name, hub, config), (source, folder, size) = names, request
    if source not in SOURCES:
        raise PomologyError(f"{name} source: {source!r} should be one of {', '.join(SOURCES)}")
    if size is not None and size < 1:
        raise PomologyError(f"{name} size: {size} should be at least 1, or None for all")
    first = "" if size is None else f"; the first {size:,} only"
    if source == "stand-in":
        return stand_in(), "stand-in", f"stand-in for {name}: asked for{first}"
    try:
        if folder:
            return from_folder(_folder(name, folder, config)), "real", f"{name}, real: local folder{first}"
        if hub is None or from_tables is None:
            raise Unobtainable(nowhere)
        found, how = (tables or hub_tables)(hub, config)
        return from_tables(found), "real", f"{name}, real: {hub} ({config}), {how}{first}"
    except Unobtainable as error:
        if source == "real":
            remedy = "name a local folder that holds it, or set the source to auto or stand-in"
            raise PomologyError(f"{name}: no real data: {error}; {remedy}") from error
        return stand_in(), "stand-in", f"stand-in for {name}: {error}{first}"


def _folder(name: str, folder: Folder, config: str) -> Path:
    """The folder that holds the data: the one that was named, or its subfolder named as the configuration."""
    root = Path(folder).expanduser()
    if not root.is_dir():
        raise PomologyError(f"{name} folder: {shown(root)} is not a folder")
    root = root / config if (root / config).is_dir() else root
    for file in root.iterdir():
        if file.suffix in _UNFINISHED:
            raise damaged(file, "a download that did not end")
    return root


def hub_tables(hub: str, config: str) -> tuple[dict[str, Any], str]:
    """Every split of a Hugging Face dataset as a pyarrow table, and whether it was "cached" or "downloaded".

    The cache is read first and without network: `datasets` by itself would try to connect for 23 s where there is none.
    Raises Unobtainable if the dataset is neither cached nor reachable, PomologyError if what there is is damaged.
    """
    from huggingface_hub import constants

    cache = Path(os.environ.get("HF_DATASETS_CACHE") or Path(constants.HF_HOME) / "datasets")
    found = sorted((cache / hub.replace("/", "___") / config).glob("*/*/"))  # version / hash
    if any(path.suffix != ".incomplete" for path in found):
        return _load(hub, config, cache, offline=True, blame=found[-1]), "cached"
    problem = hub_problem(hub)
    if problem is None:
        return _load(hub, config, cache, offline=False, blame=cache), "downloaded"
    if found:
        raise damaged(found[-1], f"a download that did not end, and {problem}")
    raise Unobtainable(f"not in the cache, and {problem}")


def _load(hub: str, config: str, cache: Path, offline: bool, blame: Path) -> dict[str, Any]:
    with without_bars():
        import datasets
    import pyarrow
    from huggingface_hub.errors import HTTPError

    datasets.disable_progress_bars()  # they and the warnings would stand in the rendered notebook
    datasets.logging.set_verbosity_error()
    was_offline, datasets.config.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE, offline
    try:
        splits = datasets.load_dataset(hub, config, cache_dir=str(cache))
        return {name: split.with_format("arrow")[:] for name, split in splits.items()}
    except (HTTPError, ConnectionError, TimeoutError, datasets.exceptions.DatasetNotFoundError) as error:
        raise Unobtainable(f"not in the cache, and the download failed ({type(error).__name__})") from error
    except (datasets.exceptions.DatasetsError, pyarrow.ArrowException, OSError, ValueError, KeyError) as error:
        raise damaged(blame, error) from error
    finally:
        datasets.config.HF_HUB_OFFLINE = was_offline


def hub_file(hub: str, file: str, dataset: bool = False, revision: str = "main") -> tuple[Path, str]:
    """One file of a model's or a dataset's repository, and whether it was "cached" or "downloaded".

    Raises Unobtainable if it is neither cached nor to be downloaded.
    """
    with without_bars():
        import huggingface_hub
        from huggingface_hub import utils
    from huggingface_hub.errors import HTTPError

    where = {"repo_id": hub, "filename": file, "repo_type": "dataset" if dataset else "model", "revision": revision}
    cached = huggingface_hub.try_to_load_from_cache(**where)
    if isinstance(cached, str):  # else None, or an object that says that there is no such file
        return Path(cached), "cached"
    if problem := hub_problem(hub, dataset):
        raise Unobtainable(f"{file} of {hub} is not in the cache, and {problem}")
    utils.disable_progress_bars()  # they would stand in the rendered notebook
    try:
        return Path(huggingface_hub.hf_hub_download(**where)), "downloaded"
    except (HTTPError, OSError, ValueError) as error:
        name = type(error).__name__
        raise Unobtainable(f"{file} of {hub} is not in the cache, and the download failed ({name})") from error


@contextlib.contextmanager
def without_bars() -> Iterator[None]:
    """Import Hugging Face's packages inside: tqdm, which they draw bars with, warns in a notebook that has no widgets
    for them; nobody draws one here."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="IProgress not found")
        yield


def hub_problem(hub: str, dataset: bool = True, timeout_s: float = 3.0) -> str | None:
    """Why the hub cannot be asked now, or None. Through its own client, which knows the proxy and the certificates."""
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        if os.environ.get(name, "").upper() in {"1", "ON", "YES", "TRUE"}:
            return f"{name} is set"
    from huggingface_hub import constants, get_session
    from huggingface_hub.errors import HTTPError

    answers: list[str | None] = []

    def ask() -> None:
        try:
            url = f"{constants.ENDPOINT}/{'datasets/' if dataset else ''}{hub}/resolve/main/README.md"
            status = get_session().head(url, timeout=timeout_s).status_code
            answers.append(None if status < 400 else f"the Hugging Face hub answered {status}")
        except (HTTPError, OSError, ValueError) as error:
            answers.append(f"no connection to the Hugging Face hub ({type(error).__name__})")

    thread = threading.Thread(target=ask, daemon=True)  # because looking up a name has no time limit of its own
    thread.start()
    thread.join(timeout_s + 0.5)
    return answers[0] if answers else f"no answer from the Hugging Face hub within {timeout_s:g} s"


def parquet_names(split: str) -> list[str]:
    return [f"{split}*.parquet", f"*-{split}*.parquet", f"{split}*/*.parquet"]


def find(root: Path, patterns: list[str], name: str) -> list[Path]:
    """The files below `root` that match the first pattern that any match; all of them in one folder, in order."""
    for pattern in patterns:
        if found := sorted(path for path in root.rglob(pattern) if path.is_file()):
            if len({path.parent for path in found}) > 1:
                raise PomologyError(f"{name}: {pattern} is in several folders below {shown(root)}: name one of them")
            return found
    raise PomologyError(f"{name}: nothing to read in {shown(root)}: expected one of {', '.join(patterns)}")


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


def shown(path: Path) -> str:
    """A path that may stand in a shared notebook: without the name of the person whose home it is in."""
    path, home = path.absolute(), Path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)


def one_line(error: Exception | str) -> str:
    text = " ".join(str(error).split()).replace(str(Path.home()), "~") or type(error).__name__
    return text if len(text) <= 200 else text[:200] + "…"


def damaged(path: Path, why: Exception | str) -> PomologyError:
    return PomologyError(f"{shown(path)}: damaged or half downloaded ({one_line(why)}): delete it and get it again")
