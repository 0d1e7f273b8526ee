"""A store of runs that machines share: one zip per run, at any address that fsspec knows."""

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

NOTES = ".store"  # in a run's folder: digits that were drawn for its name in a store
RUN = r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}"
OBJECTS = ("s3", "s3a", "gs", "gcs", "az", "abfs")  # buckets, in which a prefix is no folder
# An endpoint that does not answer must not keep a run waiting: two attempts of at most 30 s.
S3 = {"connect_timeout": 5, "read_timeout": 30, "retries": {"total_max_attempts": 2}}
# `()` is the user's own known_hosts; by default sshfs would trust every host.
SSH = {"known_hosts": (), "connect_timeout": 10, "login_timeout": 20}
OPTIONS = {"s3": {"config_kwargs": S3}, "ssh": SSH, "sftp": SSH}


def check(address: str) -> None:
    """Raise PomologyError for a store that cannot be reached, or is not there."""
    with _connected(address):
        pass


def put(folder: Path, address: str, run: str = "") -> str:
    """Put a run's folder into a store as a zip, in place of an earlier one; return its name there.

    run: its name in the store, where that is not the folder's. Hidden files stay out, and
    unfinished ones.
    """
    name = _name(folder, run)
    with tempfile.TemporaryDirectory() as scratch, _connected(address) as (files, root):
        packed = Path(scratch, "run.zip")
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(folder.rglob("*")):
                member = path.relative_to(folder).as_posix()
                if path.is_file() and not re.search(r"(^|/)\.|\.part$", member):
                    archive.write(path, member)
        target = f"{root}/{name}.zip"  # a reader sees the earlier zip or this one, whole
        files.put_file(str(packed), f"{target}.part")
        files.mv(f"{target}.part", target)
    return name


def fetch(name: str, address: str = "") -> Path:
    """Download a run's zip, and return its path until this process ends.

    name: of the run, with or without what follows `@` in the store, or a whole address.
    Raises PomologyError for a store or run that is not there, or several runs of that name.
    """
    if "://" in name:
        address, _, name = name.rstrip("/").rpartition("/")
    with _connected(address) as (files, root):
        stored = sorted(Path(path).stem for path in files.glob(f"{root}/*@*.zip"))
        chosen = [each for each in stored if name in (each, each.partition("@")[0])]
        if len(chosen) != 1:
            which = "several runs have this name, name one of" if chosen else "no such run; it has"
            raise PomologyError(f"{name}: {which} {', '.join(chosen or stored) or 'none'}")
        scratch = tempfile.mkdtemp(prefix="pomology-")
        atexit.register(shutil.rmtree, scratch, ignore_errors=True)
        place = Path(scratch, f"{chosen[0]}.zip")
        files.get_file(f"{root}/{place.name}", str(place))
    return place


def _name(folder: Path, run: str) -> str:
    """Return a run's name in a store, as `a@apple-m2-max-0123456789ab`: its digits are drawn once."""
    from pomology.results.cases import chip_word
    from pomology.results.run import Run

    run = run or folder.resolve().name
    if not re.fullmatch(RUN, run):
        raise PomologyError(f"RUN={one_line(run)}: must be of letters, digits and . _ -")
    notes = folder / NOTES
    if not notes.exists():
        notes.write_text(secrets.token_hex(6))
    return f"{run}@{chip_word(Run(folder).machine.get('chip'))}-{notes.read_text().strip()}"


@contextlib.contextmanager
def _connected(address: str) -> Iterator[tuple[Any, str]]:
    """Give fsspec's file system of an address, and the path in it; raise PomologyError."""
    protocol, separator, rest = address.partition("://")
    user = rest.partition("/")[0].rpartition("@")[0]
    if ":" in user or (user and protocol in OBJECTS):
        where = "AWS's are in ~/.aws or its environment, those of ssh in ~/.ssh or its agent"
        raise PomologyError(f"STORE: an address with a key or password in it is refused; {where}")
    place = address if separator else str(Path(address).expanduser().absolute())
    try:
        import fsspec  # with its backends half a second, which only a store needs

        files, root = fsspec.url_to_fs(place, skip_instance_cache=True, **OPTIONS.get(protocol, {}))
        root = root.rstrip("/")
        # The folder or bucket is the user's to make: below a mount that is gone, a new one would be
        # on another disk.
        files.info(root.partition("/")[0] if protocol in OBJECTS else root)
        yield files, root
    except Exception as error:  # each backend has its own
        text = str(error)
        hint = ""
        if isinstance(error, FileNotFoundError):
            text = "no such folder or bucket; make it first"
        elif not isinstance(error, PomologyError):
            text = f"{type(error).__name__}: {error}"
        if isinstance(error, ImportError):
            hint = "; `make env EXTRAS=store` installs it"
        text = re.sub(r"//[^/\s]*:[^/\s]*@", "//…@", text)  # an endpoint's password
        line = one_line(redact(f"{address}: {' '.join(text.split())}"), 500)
        raise PomologyError(f"STORE={line}{hint}") from error
