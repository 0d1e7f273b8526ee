"""Remote storage of runs for several machines: one zip per run, at an address of fsspec."""

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
from pomology.paths import expanded, redact

DRAWN = ".store"  # a file in a run's folder with random digits for its name in a store
OBJECTS = ("s3", "s3a", "gs", "gcs", "az", "abfs")  # object stores, which have no folders
# `()` selects the user's known_hosts; by default sshfs trusts every host.
SSH = {"known_hosts": ()}
# Other stores than S3 refuse the checksums that botocore adds since 1.36 (boto/boto3#4392).
CHECKSUMS = ("request_checksum_calculation", "response_checksum_validation")
S3 = {"config_kwargs": dict.fromkeys(CHECKSUMS, "when_required")}
OPTIONS = {"ssh": SSH, "sftp": SSH, "s3": S3, "s3a": S3}


def check(address: str) -> None:
    """Raise PomologyError if a store does not exist or cannot be reached."""
    with _connected(address):
        pass


def put(folder: Path, address: str, run: str = "") -> str:
    """Put a run into a store as a zip, which replaces an earlier one; return its name there.

    The name has the form `a@apple-m2-max-0123456789ab`. run: the part before `@`, by default the
    folder's name. Hidden and unfinished files are excluded.
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
        # S3 shows whole files only. Elsewhere a rename at the end hides a partial zip from readers.
        target = f"{root}/{name}.zip"
        draft = target if address.startswith(("s3:", "s3a:")) else f"{target}.part"
        files.put_file(str(packed), draft)
        if draft != target:
            files.mv(draft, target)
    return name


def fetch(name: str, address: str = "") -> Path:
    """Download a run's zip; return its path, which exists until this process ends.

    name: of the run, with or without the part after `@`, or a whole address. Raises PomologyError
    for a missing store or run, and for several runs of that name.
    """
    if "://" in name:
        address, _, name = name.rstrip("/").rpartition("/")
    with _connected(address) as (files, root):
        stored = sorted(Path(path).stem for path in files.glob(f"{root}/*@*.zip"))
        chosen = [run for run in stored if name in (run, run.partition("@")[0])]
        if len(chosen) != 1:
            which = "several runs have this name;" if chosen else "no such run; the store has"
            raise PomologyError(f"{name}: {which} {', '.join(chosen or stored) or 'none'}")
        scratch = tempfile.mkdtemp(prefix="pomology-")
        atexit.register(shutil.rmtree, scratch, ignore_errors=True)
        packed = Path(scratch, f"{chosen[0]}.zip")
        files.get_file(f"{root}/{packed.name}", str(packed))
    return packed


@contextlib.contextmanager
def _connected(address: str) -> Iterator[tuple[Any, str]]:
    """Yield fsspec's file system of an address, and the path in it. Raises PomologyError."""
    protocol, separator, _ = address.partition("://")
    location = address if separator else str(expanded(address).absolute())
    try:
        import fsspec  # takes half a second with its backends, so only stores import it

        files, root = fsspec.url_to_fs(
            location, skip_instance_cache=True, **OPTIONS.get(protocol, {})
        )
        root = root.rstrip("/")
        # Users must create the folder or bucket: creating a folder below a missing mount would put
        # it on another disk.
        entry = files.info(root.partition("/")[0] if protocol in OBJECTS else root)
        if entry["type"] == "file":
            raise PomologyError(f"STORE={redact(address)}: a file; expected a folder or a bucket")
        yield files, root
    except FileNotFoundError:
        raise PomologyError(f"STORE={redact(address)}: no such folder or bucket; make it") from None
    except ImportError as error:
        raise PomologyError(f"STORE: {error}; `make env EXTRAS=store` installs it") from None
    except PomologyError:
        raise
    except Exception as error:  # each backend raises its own types
        why = one_line(redact(f"{address}: {type(error).__name__}: {error}"), 400)
        raise PomologyError(f"STORE={why}") from error
