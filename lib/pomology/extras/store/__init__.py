"""A store of runs that several machines share: one zip per run, at any address that fsspec knows."""

import functools
import hashlib
import json
import os
import posixpath
import re
import secrets
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pomology.errors import PomologyError
from pomology.format import one_line
from pomology.paths import redact

NOTES = ".store"  # in a run's folder: what was drawn for its name in a store
RUN = r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}"
KEPT = re.compile(rf"({RUN})@[a-z0-9-]{{1,60}}\.zip")
OBJECTS = ("s3", "s3a", "gs", "gcs", "az", "abfs", "memory")  # where a put is whole, and folders are not made
SECRETS = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_ACCESS_KEY_ID")
# An endpoint that does not answer must not keep a run waiting: two attempts of at most 30 s.
S3 = {"config_kwargs": {"connect_timeout": 5, "read_timeout": 30, "retries": {"total_max_attempts": 2}}}
SSH = {"known_hosts": (), "connect_timeout": 10, "login_timeout": 20}  # (): the user's own known_hosts
OPTIONS = {"s3": S3, "s3a": S3, "ssh": SSH, "sftp": SSH}

_downloads: list[tempfile.TemporaryDirectory] = []  # removed when this process ends


def check(address: str) -> None:
    """Raise PomologyError for a store that cannot be reached, or is not there."""
    runs(address)


def runs(address: str) -> list[str]:
    """Return the names of all runs in a store, as `a@apple-m2-max-0123456789ab`."""

    objects = _protocol(address) in OBJECTS
    paths = _ask(address, lambda files, root: _listed(files, root, objects))
    names = (posixpath.basename(path.rstrip("/")) for path in paths)
    return sorted(name.removesuffix(".zip") for name in names if KEPT.fullmatch(name))


def put(folder: Path, address: str, run: str = "") -> str:
    """Put a run's whole folder into a store as a zip, in place of an earlier one; return its name there.

    Args:
        folder: the run's. Hidden and unfinished files stay out.
        run: its name in the store, where that is not the folder's.
    """
    runs(address)  # before anything is packed
    name = name_of(folder, run)
    with tempfile.TemporaryDirectory(prefix="pomology-") as scratch:
        packed = Path(scratch, "run.zip")
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(folder.rglob("*")):
                place = path.relative_to(folder).as_posix()
                if path.is_file() and not path.is_symlink() and not re.search(r"(^|/)\.|\.part$", place):
                    archive.write(path, place)

        def placed(files: Any, root: str) -> None:
            target = f"{root}/{name}.zip"
            if _protocol(address) in OBJECTS:
                files.put_file(str(packed), target)
            else:
                files.put_file(str(packed), f"{target}.part")
                files.mv(f"{target}.part", target)  # a reader sees the earlier zip or this one, whole

        _ask(address, placed)
    return name


def fetch(name: str, address: str = "") -> Path:
    """Download a run's zip, and return its path until this process ends.

    Args:
        name: the run's, alone or with what follows in the store (`a`, `a@apple-m2-0123456789ab`), or a whole address.

    Raises:
        PomologyError: for a store or run that is not there, or several runs of that name.
    """
    if "://" in name:
        address, _, name = name.rstrip("/").rpartition("/")
    known = runs(address)
    chosen = [each for each in known if name in (each, each.partition("@")[0])]
    if len(chosen) != 1:
        which = "several runs have this name, name one of" if chosen else "no such run; it has"
        several = ", ".join((chosen or known)[:20]) or "none"
        raise PomologyError(f"{_shown(address)}: {one_line(name)}: {which} {several}")
    _downloads.append(tempfile.TemporaryDirectory(prefix="pomology-"))
    place = Path(_downloads[-1].name, f"{chosen[0]}.zip")
    _ask(address, lambda files, root: files.get_file(f"{root}/{place.name}", str(place)))
    return place


def name_of(folder: Path, run: str = "") -> str:
    """Return a run's name in a store: with its chip, and digits of its machine and of what was drawn for its folder.

    So two runs of one name never meet, even on two machines of one kind, and a run has the same name each time.
    """
    from pomology.results.cases import chip_word
    from pomology.results.run import IDENTITY, Run

    machine = Run(folder).machine
    run = run or folder.resolve().name
    if not re.fullmatch(RUN, run):
        raise PomologyError(f"RUN={one_line(run)}: must be of letters, digits, points, dashes and underscores")
    notes = folder / NOTES
    if not notes.exists():
        notes.write_text(secrets.token_hex(8) + "\n")
    drawn = notes.read_text().split()[0]
    identity = json.dumps([drawn, *(machine.get(key) for key in (*IDENTITY, "processor"))], sort_keys=True)
    return f"{run}@{chip_word(machine.get('chip'))}-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"


def _protocol(address: str) -> str:
    protocol, named, _ = address.partition("://")
    return protocol if named else "file"


def _shown(address: str) -> str:
    return f"STORE={one_line(redact(address), 200)}"


@functools.cache  # a client of S3 takes half a second to make
def _connected(address: str) -> tuple[Any, str]:
    """Return fsspec's file system of an address, and the path in it."""
    protocol, named, rest = address.partition("://")
    user, at, _ = rest.partition("/")[0].rpartition("@")
    if named and (":" in user or (at and protocol in OBJECTS)):
        where = "those of AWS are in its environment or ~/.aws, those of ssh in ~/.ssh or its agent"
        raise PomologyError(f"STORE: an address with a key or password in it is refused; {where}")
    nowhere = not address.strip() or (named and protocol not in OBJECTS and "/" not in rest)
    if nowhere or not address.isprintable() or "::" in address or (named and re.search(r"[?#]", address)):
        example = "a folder, s3://bucket/prefix or ssh://host/folder"
        raise PomologyError(f"{_shown(address)}: must be an address as fsspec has it, without options: {example}")
    import fsspec  # with its backends half a second, which only a store needs

    place = address if named and protocol != "file" else os.path.abspath(os.path.expanduser(rest if named else address))
    try:
        files, root = fsspec.url_to_fs(place, skip_instance_cache=True, **OPTIONS.get(protocol, {}))
    except ImportError as error:
        raise PomologyError(f"{_shown(address)}: {error}; `make env EXTRAS=store` does") from None
    except Exception as error:  # each backend has its own
        raise PomologyError(f"{_shown(address)}: {_said(error)}") from error
    return files, root.rstrip("/")


def _ask(address: str, call: Callable[[Any, str], Any]) -> Any:
    """Return what a call with the file system and the path of an address returns. Raises PomologyError, in a line."""
    files, root = _connected(address)
    try:
        return call(files, root)
    except PomologyError as error:
        raise PomologyError(f"{_shown(address)}: {error}") from None
    except Exception as error:  # each backend has its own
        _connected.cache_clear()  # a line that was cut stays so
        raise PomologyError(f"{_shown(address)}: {_said(error)}") from error


def _listed(files: Any, root: str, objects: bool) -> list[str]:
    """Return the paths in a store. objects: whether it has buckets in place of folders.

    Raises PomologyError where its folder or bucket is missing, which is the user's to make: below a mount that is
    gone, a new folder of that name would be on another disk. A prefix needs no making.
    """
    try:
        if not objects and files.info(root or "/")["type"] == "file":
            raise PomologyError("is a file; must be a folder")
        return files.ls(root or "/", detail=False, refresh=True)
    except FileNotFoundError as error:
        code = getattr(error.__cause__, "response", {}).get("Error", {}).get("Code")
        if objects and code != "NoSuchBucket":
            return []
        raise PomologyError(f"no such {'bucket' if objects else 'folder'}; make it first") from None


def _said(error: Exception) -> str:
    """Return what a backend says, without keys and passwords."""
    text = re.sub(r"//[^/\s\"'@]*@", "//…@", redact(str(error)))
    for secret in (os.environ.get(name, "") for name in SECRETS):
        if len(secret) > 7:
            text = text.replace(secret, "…")
    return f"{type(error).__name__}: {one_line(' '.join(text.split()), 300)}"
