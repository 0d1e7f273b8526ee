"""Source of a dataset: a local folder, Hugging Face's cache or hub, or synthetic data."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pomology.errors import PomologyError
from pomology.format import one_line
from pomology.paths import expanded, redact

# An environment variable with the folder of all datasets, for a whole run.
FOLDER = "POMOLOGY_DATA_FOLDER"


class Unavailable(Exception):
    """The real data is not available; the text is the reason."""


class Missing(PomologyError):
    """A folder does not have the dataset. expected: what it would have, without its path."""

    def __init__(self, message: str, expected: str = "") -> None:
        super().__init__(f"{message}; expected {expected}" if expected else message)
        self.expected = expected


@dataclass(frozen=True)
class Dataset:
    """A dataset on Hugging Face's hub at a commit; `file` has {} in place of the split."""

    name: str
    repository: str
    revision: str
    folder: str
    file: str = "{}-00000-of-00001.parquet"


@dataclass(frozen=True, eq=False, kw_only=True)
class Obtained:
    """Data with its source: `kind` is "real" or "stand-in", `origin` describes it in one line.

    part: so many samples of it only; 0 is all.
    """

    name: str
    kind: str
    origin: str
    part: int = 0


def obtain(
    name: str,
    source: str,
    folder: str,
    size: int,
    read: Callable[..., Any],
    stand_in: Callable[[], Any],
) -> tuple[Any, dict[str, str]]:
    """Return the data, and the fields of `Obtained`.

    folder: "" is none, unless `FOLDER` is set. size: 0 is all. read: takes the folder, or None for
    the hub, and returns the data and their location. It raises Unavailable if "auto" shall use
    synthetic data, Missing if the folder lacks the dataset, and PomologyError for a bad file.
    """
    if size < 0:
        raise PomologyError(f"{name}: {size:,} samples; expected a number above 0, or 0 for all")
    if source == "stand-in":  # the name in older scripts, and of this kind in records
        source = "synthetic"
    if source not in ("auto", "real", "synthetic"):
        raise PomologyError(f"{name} source: {source!r} is not one of auto, real, synthetic")
    shared = "" if folder else os.environ.get(FOLDER, "")
    root = expanded(folder or shared) if folder or shared else None
    if root and source != "synthetic" and not root.is_dir():
        setting = FOLDER if shared else f"{name} folder"
        raise PomologyError(f"{setting}: {redacted(root)} is not a folder")
    first = f"; the first {size:,} only" if size else ""
    try:
        if source == "synthetic":
            raise Unavailable("as requested")
        data, location = _read(read, root, bool(shared))
        kind, origin = "real", f"{name}, real: {location}"
    except Unavailable as error:
        if source == "real":
            remedy = "name a local folder, or set the source to auto or synthetic"
            raise PomologyError(f"{name}: no real data: {error}; {remedy}") from error
        data = stand_in()
        kind, origin = "stand-in", f"synthetic data in place of {name}: {error}"
    return data, {"name": name, "kind": kind, "origin": origin + first, "part": size}


def _read(read: Callable[..., Any], root: Path | None, shared: bool) -> Any:
    """Return what `read` does. shared: the folder is for all datasets, so it may lack this one."""
    if root is None:
        return read(None)
    # A folder that was named for this dataset must have it. One for all datasets may lack it.
    try:
        return read(root)
    except Missing as error:
        if not shared:
            raise
        # The origin of data is published, so it has no path.
        lacks = f"{FOLDER} lacks it" + (f", expected {error.expected}" if error.expected else "")
    except OSError as error:  # macOS can deny a program to look into ~/Documents, for example
        raise PomologyError(f"{redacted(root)}: cannot be read: {error.strerror}") from error
    try:
        return read(None)
    except Unavailable as error:
        raise Unavailable(f"{error}; {lacks}") from error


def find(dataset: Dataset, split: str, root: Path | None) -> tuple[Path, str]:
    """Return a split's file in a local folder or from the hub, and a description of its origin."""
    if root is None:
        file = f"{dataset.folder}/{dataset.file.format(split)}"
        path, origin = _from_hub(dataset.repository, file, dataset.revision)
        return path, f"{dataset.repository}, {origin}"
    path = in_folder(dataset, split, root)
    if path is None:
        raise missing(dataset, split, root)
    return path, "local folder, Parquet files"


def in_folder(dataset: Dataset, split: str, root: Path) -> Path | None:
    """Return a split's Parquet file in a local folder, or None."""
    file = dataset.file.format(split)
    paths = (root / dataset.folder / file, root / file)
    return next((path for path in paths if path.is_file()), None)


def missing(dataset: Dataset, split: str, root: Path, other: str = "") -> Missing:
    """Return the error for a folder without the dataset. other: another layout that would do."""
    file = f"{dataset.file.format(split)} of huggingface.co/datasets/{dataset.repository}"
    expected = ", or ".join(filter(None, (other, file)))
    return Missing(f"{dataset.name}: {redacted(root)} lacks it", expected)


def _from_hub(repository: str, file: str, revision: str) -> tuple[Path, str]:
    """Return a dataset's file, and "cached" or "downloaded". Raises Unavailable."""
    import huggingface_hub
    from huggingface_hub import constants

    address = {"filename": file, "repo_type": "dataset", "revision": revision}
    # The cache answers with another object where it knows that the hub lacks the file.
    path = huggingface_hub.try_to_load_from_cache(repository, **address)
    if isinstance(path, str):
        return Path(path), "cached"
    missing = f"{file} of {repository} is not in the cache, and"
    if constants.HF_HUB_OFFLINE:
        raise Unavailable(f"{missing} HF_HUB_OFFLINE is set")
    problem = connection_problem()
    if problem:
        usual = constants.ENDPOINT == "https://huggingface.co"
        hub = "huggingface.co" if usual else "the address in HF_ENDPOINT"
        raise Unavailable(f"{missing} {hub} does not answer ({problem})")
    huggingface_hub.utils.disable_progress_bars()  # these would remain in the rendered notebook
    reasons: list[str] = []
    for token in (None, False):  # None: HF_TOKEN, or the one that `hf auth login` has stored
        try:
            path = huggingface_hub.hf_hub_download(repository, token=token, **address)
            note = f" without the Hugging Face token ({reasons[0]} with it)" if reasons else ""
            return Path(path), f"downloaded{note}"
        except Exception as error:  # the client's libraries raise many types
            reason, of_token = _failure(error)
            reasons.append(reason)
            if not (of_token and huggingface_hub.get_token()):
                break
    why = "; without the Hugging Face token: ".join(reasons)
    raise Unavailable(f"{missing} its download failed ({why})")


def _failure(error: BaseException) -> tuple[str, bool]:
    """Return why a download failed, and whether that can be due to the token."""
    # The client wraps the error of HTTP, which has the hub's answer, in its own.
    while error.__cause__ and getattr(error, "response", None) is None:
        error = error.__cause__
    kind = type(error).__name__
    code = getattr(getattr(error, "response", None), "status_code", None)
    if code:
        hint = ": too many requests, try later" if code == 429 else ""
        return f"{kind}, HTTP {code}{hint}", code in (401, 403)
    if kind == "FileMetadataError":
        kind += ": no answer of the hub, perhaps the login page of a network"
    # A client cannot send a token with spaces or with letters outside of ASCII.
    return kind, kind in ("LocalProtocolError", "UnicodeEncodeError")


def connection_problem(timeout_s: float = 3.0) -> str:
    """Return why the hub does not answer, or "". Without a network a download retries for 24 s."""
    from huggingface_hub import constants, get_session

    try:
        get_session().head(constants.ENDPOINT, timeout=timeout_s)
        return ""
    except Exception as error:  # the client's libraries raise many types
        return type(error).__name__


def read_parquet(path: Path, *columns: str) -> list[list]:
    """Return columns of a Parquet file as lists. Raises PomologyError for a damaged file."""
    import pyarrow
    from pyarrow.parquet import read_table

    try:
        table = read_table(path, columns=list(columns))
        return [table.column(name).to_pylist() for name in columns]
    except (pyarrow.ArrowException, OSError, KeyError) as error:
        raise damaged(path, error) from error


def redacted(path: Path) -> str:
    """Return a path without the name of a user's home folder."""
    return redact(str(path.absolute()))


def damaged(path: Path, why: Exception | str) -> PomologyError:
    """Return the error for a file that is damaged, or another one, or cannot be opened."""
    if isinstance(why, OSError) and why.errno:  # the system's answer, not a library's
        return PomologyError(f"{redacted(path)}: cannot be read: {why.strerror}")
    reason = one_line(redact(" ".join(str(why).split())) or type(why).__name__, 200)
    return PomologyError(f"{redacted(path)}: damaged or another file ({reason}); download it again")
