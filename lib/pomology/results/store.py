"""A store of runs, which several machines share: at any address that fsspec knows, as a folder, `s3://` or `ssh://`.

    <store>/<run>@<chip>-<12 digits>/files/<number>-<drawn>/   a generation: the files of the run's folder, as they are
    <store>/<run>@<chip>-<12 digits>/<number>-<drawn>.json     its manifest, written last: their sizes and SHA-256

A generation without a manifest does not count, and of those with one the last does: so a reader gets a run whole or not
at all, as one writer has put it. Nothing is ever written over: no two writers draw one name, and a store needs neither
locks nor a rename over what exists, nor names that differ by case alone. Whoever may write there may be a stranger:
a reader takes what the manifest names, with the limits of `archive`, once its size and SHA-256 are right."""

import fcntl
import functools
import hashlib
import json
import os
import posixpath
import re
import secrets
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from pomology.errors import PomologyError
from pomology.format import one_line
from pomology.paths import read_file, redact
from pomology.results import archive
from pomology.results.archive import Entry
from pomology.results.cases import chip_word
from pomology.results.folders import noted
from pomology.results.run import IDENTITY

NOTES = ".store"  # in a run's folder: what was drawn for it, then a line for each generation that was begun
TRIES, PAUSE_S = 3, 0.5  # of each request; the second pause is twice as long
READS = 10  # of a run, while others put it again
MOST_MANIFEST, MOST_ENTRIES = 8 * 2**20, 20_000
RUN = r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}"
KEPT = re.compile(rf"{RUN}@[a-z0-9-]{{1,60}}")
MANIFEST = re.compile(r"(\d{6}-[0-9a-f]{12})\.json")
FILE = rf"^{archive.WORD}(/{archive.WORD}){{0,3}}\Z"
OBJECTS = ("s3", "s3a", "gs", "gcs", "az", "abfs", "memory")  # here a put is whole, and folders are not made
BOUNDED = {"connect_timeout": 5, "read_timeout": 30, "retries": {"total_max_attempts": 1}}
SSH = {"known_hosts": (), "connect_timeout": 10, "login_timeout": 20, "keepalive_interval": 10}  # (): the user's own
OPTIONS = {"s3": {"config_kwargs": BOUNDED}, "s3a": {"config_kwargs": BOUNDED}, "ssh": SSH, "sftp": SSH}
LASTING = (PermissionError, NotADirectoryError, ImportError, NotImplementedError, TypeError, ValueError)
SECRETS = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_ACCESS_KEY_ID")

_scratch: list[tempfile.TemporaryDirectory] = []  # what was fetched; it goes with this process


class Manifest(msgspec.Struct, forbid_unknown_fields=True):
    schema: Literal[1]
    files: Annotated[
        dict[Annotated[str, msgspec.Meta(pattern=FILE, max_length=300)], Entry],
        msgspec.Meta(min_length=1, max_length=MOST_ENTRIES),
    ]

    @property
    def read(self) -> dict[str, Entry]:
        """Of the files those that are read of a run: machine.json and the journals."""
        return {name: entry for name, entry in self.files.items() if archive.READ.fullmatch(name)}


class Missing(PomologyError):
    """A file or folder is not in the store."""


def check(address: str) -> None:
    """Raises PomologyError, in a line, for a store that cannot be reached, or is not there."""
    Store(address).runs()


def put(folder: Path, address: str, say: Callable[[str], Any] = print, run: str = "") -> str:
    """Put a run's whole folder into a store; returns the name that it has there, the same each time. run: its own,
    where that is not the folder's."""
    return _opened(address).put(folder, say, run)


def fetch(name: str, address: str = "") -> Path:
    """A run of a store as a local folder with its machine.json and its journals, checked, until this process ends.

    name: the run's, alone or with what follows in the store (`a`, `a@apple-m2-0123456789ab`); or a whole address.
    Raises PomologyError, in a line, for a store or run that is not there, several runs of that name, or one of which
    anything is not as its manifest says, or larger than a run may be."""
    if "://" in name:
        address, _, name = name.rstrip("/").rpartition("/")
    return _opened(address).fetch(name)


class Store:
    """Where runs are kept. Raises PomologyError for an address with a key or password in it, which it does not show."""

    def __init__(self, address: str):
        protocol, named, rest = address.partition("://")
        user, at, _ = rest.partition("/")[0].rpartition("@")
        if named and (":" in user or (at and protocol in OBJECTS)):
            where = "those of AWS are in its environment or ~/.aws, those of ssh in ~/.ssh or its agent"
            raise PomologyError(f"STORE: an address with a key or password in it is refused; {where}")
        self.protocol, self.address = protocol if named else "file", address
        if self.protocol == "file":
            self.address = os.path.abspath(os.path.expanduser(rest if named else address))
        self.shown = f"STORE={one_line(redact(address), 200)}"
        nowhere = not address.strip() or (named and protocol not in OBJECTS and "/" not in rest)
        if nowhere or not address.isprintable() or "::" in address or (named and re.search(r"[?#]", address)):
            example = "a folder, s3://bucket/prefix or ssh://host/folder"
            raise PomologyError(f"{self.shown}: must be an address as fsspec has it, without options: {example}")
        self._files: Any = None  # fsspec's, connected when it is first asked
        self._root = ""

    def runs(self) -> list[str]:
        """The names of all runs in it."""
        try:
            entries = self._ask(lambda files: files.ls(self._root or "/", detail=False, refresh=True))
        except Missing as error:
            # A folder is the user's to make: below a mount that is gone, one of that name would be another disk's.
            # A prefix needs no making, but the bucket must be there.
            code = getattr(getattr(error.__cause__, "__cause__", None), "response", {}).get("Error", {}).get("Code")
            if self.protocol not in OBJECTS or code == "NoSuchBucket":
                what = "bucket" if self.protocol in OBJECTS else "folder"
                raise PomologyError(f"{self.shown}: no such {what}; make it first") from None
            return []
        return sorted(filter(KEPT.fullmatch, map(posixpath.basename, (entry.rstrip("/") for entry in entries))))

    def put(self, folder: Path, say: Callable[[str], Any], run: str = "") -> str:
        """As the function `put`. What it leaves unfinished, its next call for this folder removes."""
        self.runs()
        with open(folder / NOTES, "a+", encoding="utf-8") as notes:
            try:
                fcntl.flock(notes, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise PomologyError(f"RUN={folder.name}: another process is putting it into a store") from None
            notes.seek(0)
            if not (lines := notes.read().splitlines()):
                notes.write(f"{(lines := [secrets.token_hex(8)])[0]}\n")
            drawn, *begun = lines
            name = name_of(folder, drawn, run)
            last = max(self._finished(name), default="0")
            generation = f"{int(last.partition('-')[0]) + 1:06d}-{secrets.token_hex(6)}"
            notes.write(f"{generation}\n")
            notes.flush()
            self._write(f"{name}/files/{generation}", f"{name}/{generation}.json", folder, say)
            if max(self._finished(name)) != generation:
                again = "the same command puts this one behind it"
                raise PomologyError(f"{self.shown}: {name}: was put by another process meanwhile; {again}")
            try:
                self._remove(name, begun)
            except PomologyError as error:
                say(f"note: what was put before is still there: {error}")
        return name

    def fetch(self, name: str) -> Path:
        """As the function `fetch`."""
        runs = self.runs()
        chosen = [kept for kept in runs if name in (kept, kept.partition("@")[0])]
        if len(chosen) != 1:
            which = "several runs have this name, name one of" if chosen else "no such run; it has"
            several = ", ".join((chosen or runs)[:20]) or "none"
            raise PomologyError(f"{self.shown}: {one_line(name)}: {which} {several}")
        for _ in range(READS):
            try:
                return self._taken(chosen[0])
            except Missing as error:  # perhaps since the next generation has taken its place
                missing = error
        raise missing

    def _write(self, target: str, manifest: str, folder: Path, say: Callable[[str], Any]) -> None:
        """A generation's files, then the manifest that names them."""
        entries, left = {}, 0
        for path in sorted(folder.rglob("*")):
            name = path.relative_to(folder).as_posix()
            if (path.is_dir() and not path.is_symlink()) or name.endswith(".part") or re.search(r"(^|/)\.", name):
                continue  # what is unfinished, and what the kit notes for itself
            if path.is_symlink() or not path.is_file() or not re.match(FILE, name):
                left += 1
                continue
            data = read_file(path)
            entries[name] = Entry.of(data)
            self._create(f"{target}/{name}", data)
        if left:
            say(f"note: {left} files are not put into the store: links, or of names that no file of a run has")
        data = msgspec.json.encode(Manifest(1, entries))
        self._checked(folder.name, data)  # what readers would refuse is not put
        self._create(manifest, data)

    def _taken(self, name: str) -> Path:
        """The last generation of a run, in a new folder of this machine."""
        if not (finished := self._finished(name)):
            raise Missing(f"{self.shown}: {name}: no generation of it is whole")
        generation = max(finished)
        manifest = f"{name}/{generation}.json"
        files = self._checked(manifest, self._read(manifest, finished[generation], MOST_MANIFEST)).read
        there = self._listed(target := f"{name}/files/{generation}")
        _scratch.append(tempfile.TemporaryDirectory(prefix="pomology-"))
        (place := Path(_scratch[-1].name, name)).mkdir()
        for file, entry in files.items():
            if file not in there:
                raise Missing(f"{self.shown}: {target}/{one_line(file)}: is missing, and its manifest names it")
            data = self._read(f"{target}/{file}", there[file], entry.size)
            if Entry.of(data) != entry:
                raise PomologyError(f"{self.shown}: {target}/{one_line(file)}: is not what its manifest says: damaged")
            (place / file).write_bytes(data)
        return place

    def _checked(self, name: str, data: bytes) -> Manifest:
        try:
            manifest = msgspec.json.decode(data, type=Manifest)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise PomologyError(f"{self.shown}: {name}: no manifest of a run: {one_line(error, 200)}") from None
        read = manifest.read
        nothing = "" if read else "neither machine.json nor a journal is in it"
        if wrong := archive.refused(manifest.files, read.values()) or nothing:
            raise PomologyError(f"{self.shown}: {name}: {wrong}")
        return manifest

    def _finished(self, name: str) -> dict[str, dict]:
        """What the store says of each manifest of a run, by generation."""
        return {match[1]: about for entry, about in self._listed(name).items() if (match := MANIFEST.fullmatch(entry))}

    def _listed(self, path: str) -> dict[str, dict]:
        """What is in a folder, by name; nothing where it is not there."""
        try:
            entries = self._ask(lambda files: files.ls(f"{self._root}/{path}", detail=True, refresh=True))
        except Missing:
            return {}
        return {posixpath.basename(entry["name"].rstrip("/")): entry for entry in entries}

    def _read(self, path: str, about: dict, most: int) -> bytes:
        """A file of at most so many bytes, of which the store says this: neither a link nor a pipe."""
        size = about["size"] if about["type"] == "file" and not about.get("islink") else None
        if size is None or not 0 <= size <= most:
            raise PomologyError(f"{self.shown}: {path}: is no file of at most {most:,} bytes")

        def read(files: Any) -> bytes:
            with files.open(f"{self._root}/{path}", "rb") as file:
                return file.read(size + 1)

        return self._ask(read) if size else b""

    def _create(self, path: str, data: bytes) -> None:
        """Write a new file, whole or not at all."""
        path = f"{self._root}/{path}"

        def create(files: Any) -> None:
            if self.protocol in OBJECTS:
                files.pipe_file(path, data)
                return
            files.makedirs(posixpath.dirname(path), exist_ok=True)
            files.pipe_file(f"{path}.part", data)
            files.mv(f"{path}.part", path)

        self._ask(create)

    def _remove(self, name: str, generations: Iterable[str]) -> None:
        """Generations, their manifests first."""
        for path, ending in ((name, ".json"), (name, ".json.part"), (f"{name}/files", "")):
            there = self._listed(path)
            for entry in (f"{generation}{ending}" for generation in generations):
                if entry in there:
                    target = f"{self._root}/{path}/{entry}"
                    self._ask(lambda files, target=target: files.rm(target, recursive=True))

    def _ask(self, call: Callable[[Any], Any]) -> Any:
        """What a call of the file system returns, tried again where it fails. Raises Missing for what is not there,
        PomologyError for all else that its backends raise."""
        for attempt in range(TRIES):
            time.sleep(PAUSE_S * attempt)
            try:
                self._files = self._files or self._connected()
                return call(self._files)
            except FileNotFoundError as error:
                raise Missing(f"{self.shown}: {self._said(error)}") from error
            except Exception as error:  # each backend has its own
                failed = error
                if self.protocol not in OBJECTS:  # whose clients connect anew by themselves, and take long to make
                    self._files = None
                if isinstance(error, LASTING):
                    break
        raise PomologyError(f"{self.shown}: {self._said(failed)}") from failed

    def _connected(self) -> Any:
        import fsspec  # with its backends half a second, which only a store needs

        options = OPTIONS.get(self.protocol, {})
        try:
            files, root = fsspec.url_to_fs(self.address, skip_instance_cache=True, **options)
        except ImportError as error:
            raise ImportError(f"{error}; `make env EXTRAS=store` does") from None
        self._root = root.rstrip("/")
        if self.protocol in ("s3", "s3a"):
            files.retries = 1  # `_ask` tries again
        return files

    def _said(self, error: Exception) -> str:
        """What a backend says, without keys and passwords."""
        text = re.sub(r"//[^/\s\"'@]*@", "//…@", redact(str(error)))
        for secret in (os.environ.get(name, "") for name in SECRETS):
            text = text.replace(secret, "…") if len(secret) > 7 else text
        return f"{type(error).__name__}: {one_line(' '.join(text.split()), 300)}"


_opened = functools.cache(Store)  # a client of S3 takes half a second to make


def name_of(folder: Path, drawn: str, run: str = "") -> str:
    """A run's name in a store: with its chip, and digits of what its machine is and what was drawn for its folder, so
    that two runs of one name never meet, be it on two machines of one kind."""
    machine, run = noted(folder), run or folder.resolve().name
    if not re.fullmatch(RUN, run):
        raise PomologyError(f"RUN={one_line(run)}: must be of letters, digits, points, dashes and underscores")
    identity = json.dumps([drawn, *(machine.get(key) for key in (*IDENTITY, "processor"))], sort_keys=True)
    return f"{run}@{chip_word(machine.get('chip'))}-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"
