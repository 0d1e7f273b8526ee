"""Where an article's data comes from: a local folder, Hugging Face's cache, its hub, or a stand-in.

A wrong or damaged file is an error of one line that names it; only unavailable data makes "auto" take the stand-in.
`datasets` and pyarrow are imported only where they read something.
"""

from __future__ import annotations

import contextlib
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pomology.errors import PomologyError
from pomology.format import one_line
from pomology.paths import redact

SOURCES = ("auto", "real", "stand-in")

Folder = str | Path | None


class Unavailable(Exception):
    """The real data is not available; the text says why."""


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """Where a dataset is published: its id and configuration on the hub, and the columns of its tables there."""

    name: str
    config: str
    hub: str | None = None
    columns: tuple[str, ...] = ()


def obtain(
    dataset: Dataset,
    request: tuple[str, Folder, int | None],
    from_folder: Callable[[Path], Any],
    from_hub: Callable[[], tuple[Any, str]],
    stand_in: Callable[[], Any],
) -> tuple[Any, str, str]:
    """(data, "real" or "stand-in", where the data is from in one line) for a request of (source, folder, size).

    `from_folder` gets the folder, or its subfolder named as the configuration. `from_hub` returns the data and whether
    they were "cached" or "downloaded". Both may raise Unavailable.
    """
    source, folder, size = request
    if source not in SOURCES:
        raise PomologyError(f"{dataset.name} source: {source!r} should be one of {', '.join(SOURCES)}")
    if size is not None and size < 1:
        raise PomologyError(f"{dataset.name} size: {size} should be at least 1, or None for all")
    first = "" if size is None else f"; the first {size:,} only"
    reason = "asked for"
    if source != "stand-in":
        try:
            if folder:
                root = Path(folder).expanduser()
                if not root.is_dir():
                    raise PomologyError(f"{dataset.name} folder: {shown(root)} is not a folder")
                inner = root / dataset.config
                data, origin = from_folder(inner if inner.is_dir() else root), "local folder"
            else:
                data, how = from_hub()
                origin = f"{dataset.hub} ({dataset.config}), {how}"
            return data, "real", f"{dataset.name}, real: {origin}{first}"
        except Unavailable as error:
            if source == "real":
                remedy = "name a local folder that holds it, or set the source to auto or stand-in"
                raise PomologyError(f"{dataset.name}: no real data: {error}; {remedy}") from error
            reason = str(error)
    return stand_in(), "stand-in", f"stand-in for {dataset.name}: {reason}{first}"


def hub_tables(dataset: Dataset) -> tuple[dict[str, Any], str]:
    """Every split of a dataset on the hub as a pyarrow table, and whether it was "cached" or "downloaded".

    The cache is read first and without network: `datasets` by itself would try to connect for 23 s where there is none.
    Raises Unavailable if the dataset is neither cached nor reachable, PomologyError if the cache is damaged.
    """
    from huggingface_hub import constants

    cache = Path(os.environ.get("HF_DATASETS_CACHE") or Path(constants.HF_HOME) / "datasets")
    folder = cache / dataset.hub.replace("/", "___") / dataset.config
    cached = any(path.suffix != ".incomplete" for path in folder.glob("*/*/"))
    if not cached and (problem := hub_problem(dataset.hub)):
        raise Unavailable(f"not in the cache, and {problem}")

    with without_bars():
        import datasets
    import pyarrow
    from huggingface_hub.errors import HTTPError

    datasets.disable_progress_bars()  # they and the warnings would stand in the rendered notebook
    datasets.logging.set_verbosity_error()
    was_offline, datasets.config.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE, cached
    try:
        splits = datasets.load_dataset(dataset.hub, dataset.config, cache_dir=str(cache))
        tables = {name: split.with_format("arrow")[:] for name, split in splits.items()}
    except (HTTPError, ConnectionError, TimeoutError, datasets.exceptions.DatasetNotFoundError) as error:
        raise Unavailable(f"not in the cache, and the download failed ({type(error).__name__})") from error
    except (datasets.exceptions.DatasetsError, pyarrow.ArrowException, OSError, ValueError, KeyError) as error:
        raise damaged(folder, error) from error
    finally:
        datasets.config.HF_HUB_OFFLINE = was_offline
    return tables, "cached" if cached else "downloaded"


def hub_file(hubs: Sequence[str], file: str, dataset: bool = False, revision: str = "main") -> tuple[Path, str]:
    """A file that each of these repositories has, and whether it was "cached" or "downloaded" (from the first).

    Raises Unavailable if it is neither cached nor to be downloaded.
    """
    with without_bars():
        import huggingface_hub
        from huggingface_hub import utils
    from huggingface_hub.errors import HTTPError

    where = {"filename": file, "repo_type": "dataset" if dataset else "model", "revision": revision}
    for hub in hubs:
        path = huggingface_hub.try_to_load_from_cache(hub, **where)
        if isinstance(path, str):  # else None, or an object that says that there is no such file
            return Path(path), "cached"
    missing = f"{file} of {hubs[0]} is not in the cache, and"
    if problem := hub_problem(hubs[0], dataset):
        raise Unavailable(f"{missing} {problem}")
    utils.disable_progress_bars()  # they would stand in the rendered notebook
    try:
        return Path(huggingface_hub.hf_hub_download(hubs[0], **where)), "downloaded"
    except (HTTPError, OSError, ValueError) as error:
        raise Unavailable(f"{missing} the download failed ({type(error).__name__})") from error


@contextlib.contextmanager
def without_bars() -> Iterator[None]:
    """Import Hugging Face's packages inside: tqdm, their progress bar, warns in a notebook that has no widgets."""
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


def find_files(root: Path, dataset: Dataset, split: str, *own: str) -> list[Path]:
    """A split's parquet files below `root`, else those of the author's own form; all of them in one folder, in order.

    The first pattern with any match decides.
    """
    patterns = (f"{split}*.parquet", f"*-{split}*.parquet", f"{split}*/*.parquet", *own)
    for pattern in patterns:
        if paths := sorted(path for path in root.rglob(pattern) if path.is_file()):
            if len({path.parent for path in paths}) > 1:
                raise PomologyError(f"{dataset.name}: {pattern} is in several folders below {shown(root)}: name one")
            return paths
    expected = f"the parquet files of huggingface.co/datasets/{dataset.hub} or one of {', '.join(patterns)}"
    raise PomologyError(f"{dataset.name}: nothing to read in {shown(root)}: expected {expected}")


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
