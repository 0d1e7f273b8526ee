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

DRAWN = ".store"  # in a run's folder: digits that were drawn for its name in a store
OBJECTS = ("s3", "s3a", "gs", "gcs", "az", "abfs")  # buckets, in which a prefix is no folder
# `()` is the user's own known_hosts; by default sshfs would trust every host.
SSH = {"known_hosts": ()}
OPTIONS = {"ssh": SSH, "sftp": SSH}


def check(address: str) -> None:
    """Raise PomologyError for a store that cannot be reached, or is not there."""
    with _connected(address):
        pass


def put(folder: Path, address: str, run: str = "") -> str:
    """Put a run's folder into a store as a zip, in place of an earlier one; return its name there.

    It is called as `a@apple-m2-max-0123456789ab`. run: its name, where that is not the folder's.
    Hidden files stay out, and unfinished ones.
    """
    from pomology.results.cases import chip_word
    from pomology.results.run import Run

    drawn = folder / DRAWN
    if not drawn.exists():
        drawn.write_text(secrets.token_hex(6))
    chip = chip_word(Run(folder).machine.get("chip"))
    name = f"{run or folder.resolve().name}@{chip}-{drawn.read_text()}"
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


@contextlib.contextmanager
def _connected(address: str) -> Iterator[tuple[Any, str]]:
    """Give fsspec's file system of an address, and the path in it; raise PomologyError."""
    protocol, separator, _ = address.partition("://")
    place = address if separator else str(Path(address).expanduser().absolute())
    try:
        import fsspec  # with its backends half a second, which only a store needs

        files, root = fsspec.url_to_fs(place, skip_instance_cache=True, **OPTIONS.get(protocol, {}))
        root = root.rstrip("/")
        # The folder or bucket is the user's to make: below a mount that is gone, a new one would be
        # on another disk.
        files.info(root.partition("/")[0] if protocol in OBJECTS else root)
        yield files, root
    except FileNotFoundError:
        raise PomologyError(f"STORE={redact(address)}: no such folder or bucket") from None
    except ImportError as error:
        raise PomologyError(f"STORE: {error}; `make env EXTRAS=store` installs it") from None
    except PomologyError:
        raise
    except Exception as error:  # each backend has its own
        why = one_line(redact(f"{address}: {type(error).__name__}: {error}"), 400)
        raise PomologyError(f"STORE={why}") from error
