"""A store of runs that several machines share: one zip per run, at any address that fsspec knows."""

import atexit
import contextlib
import re
import secrets
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pomology.errors import PomologyError
from pomology.format import one_line
from pomology.paths import redact

NOTES = ".store"  # in a run's folder: what was drawn for its name in a store
RUN = r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}"
KEPT = re.compile(rf"(?:.*/)?({RUN}@[a-z0-9-]{{1,60}})\.zip")
OBJECTS = (
    "s3:",
    "s3a:",
    "gs:",
    "gcs:",
    "az:",
    "abfs:",
    "memory:",
)  # a put is whole, and a prefix no folder
# An endpoint that does not answer must not keep a run waiting: two attempts of at most 30 s.
S3 = {
    "config_kwargs": {
        "connect_timeout": 5,
        "read_timeout": 30,
        "retries": {"total_max_attempts": 2},
    }
}
SSH = {
    "known_hosts": (),
    "connect_timeout": 10,
    "login_timeout": 20,
}  # (): the user's own known_hosts
OPTIONS = {"s3": S3, "s3a": S3, "ssh": SSH, "sftp": SSH}


def check(address: str) -> None:
    """Raise PomologyError for a store that cannot be reached, or is not there."""
    runs(address)


def runs(address: str) -> list[str]:
    """Return the names of all runs in a store, as `a@apple-m2-max-0123456789ab`."""
    with _connected(address) as (files, root):
        return _names(files, root)


def put(folder: Path, address: str, run: str = "") -> str:
    """Put a run's folder into a store as a zip, in place of an earlier one; return its name there.

    run: its name in the store, where that is not the folder's. Hidden and unfinished files stay out.
    """
    name = name_of(folder, run)
    with tempfile.TemporaryDirectory(prefix="pomology-") as scratch:
        packed = Path(scratch, "run.zip")
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(folder.rglob("*")):
                member = path.relative_to(folder).as_posix()
                if path.is_file() and not re.search(r"(^|/)\.|\.part$", member):
                    archive.write(path, member)
        with _connected(address) as (files, root):
            _names(files, root)  # raises for a store that is not there
            target = f"{root}/{name}.zip"
            if files.unstrip_protocol(root).startswith(OBJECTS):
                files.put_file(str(packed), target)
            else:  # a reader sees the earlier zip or this one, whole
                files.put_file(str(packed), f"{target}.part")
                files.mv(f"{target}.part", target)
    return name


def fetch(name: str, address: str = "") -> Path:
    """Download a run's zip, and return its path until this process ends.

    name: of the run, with or without what follows in the store, or a whole address.
    Raises PomologyError for a store or run that is not there, or several runs of that name.
    """
    if "://" in name:
        address, _, name = name.rstrip("/").rpartition("/")
    with _connected(address) as (files, root):
        stored = _names(files, root)
        chosen = [each for each in stored if name in (each, each.partition("@")[0])]
        if len(chosen) != 1:
            which = "several runs have this name, name one of" if chosen else "no such run; it has"
            raise PomologyError(f"{name}: {which} {', '.join(chosen or stored) or 'none'}")
        scratch = tempfile.mkdtemp(prefix="pomology-")
        atexit.register(shutil.rmtree, scratch, ignore_errors=True)
        place = Path(scratch, f"{chosen[0]}.zip")
        files.get_file(f"{root}/{place.name}", str(place))
    return place


def name_of(folder: Path, run: str = "") -> str:
    """Return a run's name in a store, the same each time: with its chip, and digits drawn for its folder."""
    from pomology.results.cases import chip_word
    from pomology.results.run import Run

    run = run or folder.resolve().name
    if not re.fullmatch(RUN, run):
        raise PomologyError(
            f"RUN={one_line(run)}: must be of letters, digits, points, dashes and underscores"
        )
    notes = folder / NOTES
    if not notes.exists():
        notes.write_text(secrets.token_hex(6) + "\n")
    return f"{run}@{chip_word(Run(folder).machine.get('chip'))}-{notes.read_text()[:12]}"


@contextlib.contextmanager
def _connected(address: str) -> Iterator[tuple[Any, str]]:
    """Give fsspec's file system of an address, and the path in it. Raises PomologyError, in a line."""
    protocol, named, rest = address.partition("://")
    user = rest.partition("/")[0].rpartition("@")[0]
    if ":" in user or (user and f"{protocol}:" in OBJECTS):
        where = "those of AWS are in its environment or ~/.aws, those of ssh in ~/.ssh or its agent"
        raise PomologyError(f"STORE: an address with a key or password in it is refused; {where}")
    place = address if named else str(Path(address).expanduser().absolute())
    try:
        import fsspec  # with its backends half a second, which only a store needs

        files, root = fsspec.url_to_fs(place, skip_instance_cache=True, **OPTIONS.get(protocol, {}))
        yield files, root.rstrip("/")
    except Exception as error:  # each backend has its own
        known = isinstance(error, PomologyError)
        text = redact(
            f"{address}: {error}" if known else f"{address}: {type(error).__name__}: {error}"
        )
        text = re.sub(
            r"//[^/\s]*:[^/\s]*@", "//…@", " ".join(text.split())
        )  # an endpoint's password
        hint = "; `make env EXTRAS=store` installs it" if isinstance(error, ImportError) else ""
        raise PomologyError(f"STORE={one_line(text, 500)}{hint}") from error


def _names(files: Any, root: str) -> list[str]:
    """Return the names of the runs in a store. Raises PomologyError where its folder or bucket is missing.

    That is the user's to make: below a mount that is gone, a new folder would be on another disk.
    """
    objects = files.unstrip_protocol(root).startswith(OBJECTS)
    if not objects and not files.isdir(root):
        raise PomologyError("no such folder; make it first")
    try:
        paths = files.ls(root, detail=False, refresh=True)
    except FileNotFoundError as error:
        if "NoSuchBucket" in repr(error.__cause__):
            raise PomologyError("no such bucket; make it first") from None
        return []
    return sorted(found[1] for found in map(KEPT.fullmatch, paths) if found)
