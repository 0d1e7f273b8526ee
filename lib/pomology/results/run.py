"""Runs: reading their folders and zips, and choosing the folder for new results."""

import contextlib
import errno
import fcntl
import hashlib
import itertools
import json
import math
import os
import re
import tempfile
import zipfile
import zlib
from codecs import BOM_UTF8
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import msgspec

from pomology.errors import PomologyError
from pomology.format import one_line
from pomology.machine import snapshot as machine_snapshot
from pomology.machine.snapshot import CPU_KIND
from pomology.paths import (
    make_folder,
    name_of,
    read_file,
    require_regular,
    root,
    write_atomic,
)
from pomology.results import journal
from pomology.results.cases import kind as kind_of
from pomology.results.record import MOST, RENAMED, Record

MACHINE = "machine.json"
# Lock file, which remains. Neither git nor `share` includes it, so a folder without it is a copy.
LOCK = ".lock"
MAX_FILES = 10_000  # in a zip
MAX_UNPACKED_BYTES = 256 * 2**20
MAX_JOURNAL_BYTES = 64 * 2**20  # of an unpacked `.gz` file
# Checks of how this machine measures, on which all its times rest: settings `check` of cases.
REFUTES = ("clock", "fence", "work not waited for", "against another clock")
# Files of a run that are read. macOS's Finder puts those of a zip in a folder, next to `__MACOSX`.
READ = re.compile(r"((?!__MACOSX|\.)[^/]+/)?(machine\.json|\w[\w.+-]*\.jsonl(\.gz)?)")


Count = Annotated[int, msgspec.Meta(ge=0, le=MOST - 1)]


class _Gpu(msgspec.Struct):
    name: str
    memory_bytes: Count | None = None
    cores: Count | None = None
    power_limit_w: float | None = None


class _Git(msgspec.Struct):
    commit: str = ""
    dirty: bool | None = None


class _Software(msgspec.Struct):
    """The types of what is read of a state of a machine's software, see `note_software`."""

    python: str | None = None
    packages: dict[str, str] = {}
    git: _Git | None = None
    environment: dict[str, str] = {}


class _Machine(_Software):
    """The types of what is read of machine.json, so that a damaged file stops no page."""

    chip: str | None = None
    cpu: dict[str, int | None] = {}
    cpu_cores: Count | None = None
    cpu_threads: Count | None = None
    performance_cores: Count | None = None
    efficiency_cores: Count | None = None
    usable_threads: Count | None = None
    driver: str | None = None
    memory_bytes: Count | None = None
    gpus: list[_Gpu] = []
    os: str | None = None
    os_version: str | None = None
    architecture: str | None = None
    power_source: str | None = None
    power_mode: str | None = None
    software: dict[str, _Software] = {}
    left_out: dict[str, str] = {}
    code: dict[str, str] = {}
    library: dict[str, str] = {}
    profile: str | None = None


class Run:
    """A run in a folder or zip, read at the first access, which may raise PomologyError.

    kind: `cpu` or `gpu`, if only the cases of such devices are wanted, see `of_kind`.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.name = name_of(self.path).removesuffix(".zip")
        self.kind = ""

    def of_kind(self, kind: str) -> "Run":
        """Return the run with the cases of its CPU, or of its GPU, alone."""
        selected = Run(self.path)
        selected.name, selected.kind = f"{self.name} ({kind.upper()})", kind
        selected.records = [record for record in self.records if kind_of(record.backend) == kind]
        return selected

    @cached_property
    def machine(self) -> dict:
        """Contents of machine.json; empty if it is missing or malformed."""
        file = self.path / MACHINE  # in a folder, readable without the journals
        try:
            data = read_file(file) if file.is_file() else self.files[MACHINE]
            data = data.removeprefix(BOM_UTF8)
            msgspec.json.decode(data, type=_Machine)  # has no NaN, and no number beyond 64 bits
            return json.loads(data)
        except (KeyError, ValueError, RecursionError, PomologyError):
            return {}

    @cached_property
    def journals(self) -> dict[str, journal.Contents]:
        """Contents of the journals by experiment, of which older runs may have several each."""
        parts = defaultdict(list)
        for file, data in self.files.items():
            if file != MACHINE:
                name = file.split(".jsonl")[0]
                parts[RENAMED.get(name, (name,))[0]].append(data)
        return {
            name: journal.contents(f"{name}.jsonl", b"\n".join(data))
            for name, data in parts.items()
        }

    @cached_property
    def records(self) -> list[Record]:
        """Records of all journals; the flag `refuted` where a check of the measurement failed."""
        records = [record for contents in self.journals.values() for record in contents.records]
        return _with_refuted(records)

    @cached_property
    def problems(self) -> list[str]:
        """A sentence for each file that could not be used."""
        sentences = [
            problem for contents in self.journals.values() for problem in contents.problems
        ]
        journals = {*self.path.glob("[!.]*.jsonl"), *self.path.glob("[!.]*.jsonl.gz")}
        paths = sorted(journals.difference(run_files(self.path)))
        sentences += [f"{one_line(path.name)} is not read: no journal." for path in paths]
        sentences += self._unread
        sentences += [
            f"{one_line(name)} is empty."
            for name, data in self.files.items()
            if name != MACHINE and not data.strip()
        ]
        if not self.machine:
            there = MACHINE in self.files or os.path.lexists(self.path / MACHINE)
            problem = "cannot be read" if there else "is missing"
            sentences.append(f"machine.json {problem}, so the machine is unknown.")
        return sentences

    def print_problems(self) -> None:
        """Print a line for each file that could not be used."""
        for problem in self.problems:
            print(f"note: {one_line(self.name)}: {problem}")

    @cached_property
    def files(self) -> dict[str, bytes]:
        """Bytes of machine.json and the journals that can be read, by name."""
        files, _ = self._read
        return files

    @property
    def _unread(self) -> list[str]:
        """A sentence for each file that cannot be read."""
        _, sentences = self._read
        return sentences

    @cached_property
    def _read(self) -> tuple[dict[str, bytes], list[str]]:
        if not self.path.is_dir():
            return _unzipped(self.path), []
        files, sentences = {}, []
        for path in run_files(self.path):
            try:
                files[path.name] = _decompressed(path.name, read_file(path))
            except PomologyError as error:
                if path.name != MACHINE:  # of which `problems` speaks
                    sentences.append(f"{one_line(error)}.")
        return files, sentences


def _with_refuted(records: list[Record]) -> list[Record]:
    """Return records, with a flag where a check on which all times rest has failed."""
    failed = [
        record
        for record in records
        if record.status == "mismatch" and record.config.get("check") in REFUTES
    ]
    if not failed:
        return records
    # The clock is that of the process; another failed check speaks of one device alone.
    of_all = any(record.config["check"] == "clock" for record in failed)
    devices = {(record.framework, record.backend) for record in failed}
    flagged = []
    for record in records:
        refuted = of_all or (record.framework, record.backend) in devices
        if refuted and "check" not in record.config:
            record = msgspec.structs.replace(record, flags=[*record.flags, "refuted"])
        flagged.append(record)
    return flagged


def _unzipped(path: Path) -> dict[str, bytes]:
    """Return machine.json and the journals of a zip by name, unpacked, without its other files.

    Raises PomologyError for a file that is not the zip of one run, or exceeds a limit.
    """
    files = {}
    try:
        require_regular(path)
        with zipfile.ZipFile(path) as archive:
            members = [info for info in archive.infolist() if READ.fullmatch(info.filename)]
            # A small zip of somebody else may unpack to more than the memory (a zip bomb).
            remaining_bytes = MAX_UNPACKED_BYTES
            for info in members:
                if info.file_size > remaining_bytes or len(members) > MAX_FILES:
                    raise ValueError(f"over {MAX_FILES:,} files or {MAX_UNPACKED_BYTES:,} bytes")
                name = info.filename.rpartition("/")[2]
                # A member may unpack to more than it states: no more of it is read.
                with archive.open(info) as member:
                    data = member.read(info.file_size + 1)
                if len(data) != info.file_size:
                    raise ValueError(f"{name} has another size than it states")
                files[name] = _decompressed(name, data)
                remaining_bytes -= len(files[name])
            # Fewer files than members: two folders of the zip have one of the same name.
            if not 0 < len(files) == len(members):
                raise ValueError(f"expected journals, each once; found {archive.namelist()}")
    except Exception as error:  # zipfile raises many types for an invalid file
        name, reason = one_line(path.name, 80), getattr(error, "strerror", None) or error
        raise PomologyError(f"{name}: not the zip of a run: {one_line(reason)}") from None
    return files


def _decompressed(name: str, data: bytes) -> bytes:
    """Return a file's bytes, unpacked for a `.gz`; beyond a limit they end in a torn line."""
    if not name.endswith(".gz"):
        return data
    if not data:
        raise PomologyError(f"{name}: cannot be read: it is empty")
    try:
        return zlib.decompressobj(wbits=zlib.MAX_WBITS | 16).decompress(data, MAX_JOURNAL_BYTES)
    except zlib.error as error:
        raise PomologyError(f"{name}: cannot be read: {error}") from None


def locate(name: str) -> Path | None:
    """Return the path of a run from its name in outputs/ or its path; None if there is none."""
    outputs = root() / "outputs"
    candidates = (outputs / name, outputs / f"{name}.zip", Path(name))
    return next(filter(is_run, candidates), None)


def find(names: Iterable[str], variable: str) -> list[Path]:
    """Return the paths of runs from their names or paths; a folder of runs means all its runs.

    Raises PomologyError, with a message that begins with `variable`, for a name that is not a run.
    """
    paths = []
    for name in names:
        run = locate(name)
        # The folder of somebody's runs may have other zips, too.
        inside = sorted(filter(is_run, Path(name).glob("[!.]*")))
        inside = [path for path in inside if path.is_dir() or zipfile.is_zipfile(path)]
        runs = [run] if run else inside
        if not runs:
            raise unknown(f"{variable}: {one_line(name, 200)}")
        paths += runs
    return list(dict.fromkeys(paths))


def read_runs(*names: str | Path) -> list[Run]:
    """Return runs with their records.

    names: of folders in outputs/, or paths of folders, zips, or folders that contain them. Raises
    PomologyError for what is no run.
    """
    return [Run(path) for path in find(map(str, names), "runs")]


def run_files(folder: Path) -> list[Path]:
    """Return machine.json and the journals in a folder, without hidden and foreign files."""
    paths = sorted(folder.glob("[!.]*"))
    return [path for path in paths if READ.fullmatch(path.name) and path.is_file()]


def unknown(subject: str) -> PomologyError:
    """Return the error for an unknown run, `subject`, with the names of those in outputs/."""
    names = sorted(path.parent.name for path in (root() / "outputs").glob("[!.]*/machine.json"))
    return PomologyError(f"{subject}: no such run; outputs/ has {', '.join(names) or 'none'}")


def is_run(path: Path) -> bool:
    """Return whether a path is a folder with files of a run, or a zip, whatever is in that."""
    return bool(run_files(path)) or (path.suffix == ".zip" and path.is_file())


def note_machine(out: Path, profile: str, begins: bool = False) -> dict:
    """Write `machine.json` into a run's folder, unless it exists, and return its contents.

    begins: whether a command begins here. Until a case has begun, it notes anew what cases compute
    with; a notebook's own process may have more variables.
    """
    if not (out / MACHINE).exists():
        make_folder(out)
        now = machine_snapshot.conditions()
        facts = {"profile": profile} | {name: now[name] for name in ("power_source", "power_mode")}
        note(out, **machine_snapshot.snapshot() | facts | _computes_with())
        (out / LOCK).touch()
    elif begins and not _journals(out):
        note(out, **_computes_with())
    return Run(out).machine


def _computes_with() -> dict[str, Any]:
    """Return what a run's cases must have in common: Python, packages, variables and threads."""
    software = machine_snapshot.software()
    facts = {name: software.get(name) for name in ("python", "packages", "environment")}
    facts["usable_threads"] = machine_snapshot.usable_threads()
    facts["driver"] = machine_snapshot.nvidia_driver()
    # PyTorch uses macOS's kernels.
    facts["os_version"] = (facts["packages"] or {}).pop("macOS", None)
    return {name: fact for name, fact in facts.items() if fact is not None}


def _journals(out: Path) -> list[Path]:
    """Return the journals in a run's folder."""
    return [path for path in run_files(out) if path.name != MACHINE]


@contextlib.contextmanager
def locked(out: Path) -> Iterator[None]:
    """Hold a folder's lock. Raises PomologyError if another process has it.

    Where no lock can be had, a note says why.
    """
    with contextlib.ExitStack() as closed:
        try:
            # To open a pipe would wait for its other end.
            file = os.open(out / LOCK, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK, 0o644)
            closed.callback(os.close, file)
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            text = f"RUN={out.name}: another `pomology reproduce` is running there"
            raise PomologyError(text) from None
        except OSError as error:
            place, reason = f"outputs/{out.name}/{LOCK}", error.strerror
            # Some file systems say so of a lock that another process has.
            if error.errno == errno.EACCES and _has_locks(out):
                why = "another `pomology reproduce` is running there, or the file is another user's"
                raise PomologyError(f"{place}: cannot be locked: {reason}; {why}") from None
            # The folder itself can be written, as `make_folder` has tried.
            print(f"note: {place} cannot be locked: {reason}; start no second run there")
        yield


def _has_locks(folder: Path) -> bool:
    """Return whether a new file in a folder can be locked."""
    with contextlib.suppress(OSError), tempfile.TemporaryFile(dir=folder) as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def check_machine(out: Path) -> None:
    """Raise PomologyError if a run's folder is a copy, or has results of another machine.

    Results of other packages, variables or threads are refused, too: tables never mix them.
    """
    problem = ""
    if _journals(out) and not (out / LOCK).exists():
        problem = "is a copy of a run, not one of this checkout"
    elif (out / MACHINE).exists():
        before, now = Run(out).machine, machine_snapshot.snapshot()
        kinds = [cpu_kind(machine) for machine in (before, now)]
        if all(kinds) and kinds[0] != kinds[1]:
            was, is_now = (dict(zip(CPU_KIND, kind, strict=True)) for kind in kinds)
            problem = f"has a CPU of {was}, but this machine's is of {is_now}"
        for name in ("chip", "cpu_cores", "memory_bytes", "gpus", "os"):
            was, is_now = (_identity(machine, name) for machine in (before, now))
            # The operating system reserves slightly different amounts of memory.
            close = name == "memory_bytes" and math.isclose(was or 0, is_now or 0, rel_tol=0.01)
            if was != is_now and not close:
                problem = f"has {name} {was}, but this machine has {is_now}"
        if not before:
            problem = "has a machine.json that cannot be read"
        elif not problem and _journals(out):
            problem = _other_software(before, _computes_with())
    if problem:
        raise PomologyError(f"RUN={out.name}: {one_line(problem, 200)}; choose another RUN")


def _identity(machine: Mapping[str, Any], name: str) -> Any:
    """Return a fact about a machine that never changes; of its GPUs that are not their settings."""
    if name != "gpus":
        return machine.get(name)
    fields = ("name", "memory_bytes", "cores")
    return [{field: gpu.get(field) for field in fields} for gpu in machine.get("gpus") or ()]


def _other_software(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return what a run's cases computed with that is another now; "" if nothing is."""
    for name, is_now in now.items():
        was = before.get(name)
        if was is None or was == is_now:  # older runs have not noted all
            continue
        name = name.replace("_", " ")
        if isinstance(was, dict):
            name = next(key for key in {**was, **is_now} if was.get(key) != is_now.get(key))
            was, is_now = was.get(name), is_now.get(name)
        was, is_now = ("none" if value is None else value for value in (was, is_now))
        return f"has cases with {name} {was}, and this command has {is_now}"
    return ""


def cpu_kind(machine: Mapping[str, Any]) -> tuple:
    """Return family, model and stepping of a machine's CPU; empty if none of them is known."""
    cpu = machine.get("cpu") or {}
    kind = tuple(cpu.get(name) for name in CPU_KIND)
    return kind if any(number is not None for number in kind) else ()


def note(out: Path, **facts: Any) -> None:
    """Write facts about a run into its `machine.json`, while none of its notebooks runs."""
    text = json.dumps(Run(out).machine | facts, indent=1, ensure_ascii=False)
    write_atomic(out / MACHINE, text + "\n")


def note_software(out: Path, threads: int | None) -> str:
    """Write the current software into a run's `machine.json`; return its name, from a hash."""
    software = machine_snapshot.software() | {"threads": threads}
    name = _digits(software, 12)
    note(out, software=Run(out).machine.get("software", {}) | {name: software})
    return name


def _digits(facts: Any, count: int) -> str:
    """Return the first hexadecimal digits of a hash of facts."""
    text = json.dumps(facts, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:count]


def by_hand(experiment: str, profile: str, framework: str = "") -> Path:
    """Return the folder for notebooks that are run by hand, and prepare it for this notebook.

    All share `outputs/lab-<digits>`, so that notebooks can combine each other's results. The digits
    depend on the profile, this machine, its software and pomology's commit. The notebook's earlier
    results move to `earlier/`, except those of other frameworks, which its tables need.
    """
    snapshot = machine_snapshot.snapshot()
    commit = (snapshot.pop("git", None) or {}).get("commit")
    folder = root() / "outputs" / f"lab-{_digits([snapshot, commit, profile], 6)}"
    set_aside(folder / f"{experiment}.jsonl", framework)
    return folder


def set_aside(path: Path, framework: str) -> None:
    """Move a notebook's results to `earlier/`; those of other frameworks are kept, too.

    path: of its journal. framework: "" moves all. Nothing happens without results to move.
    """
    lines = read_file(path).splitlines(keepends=True) if path.exists() else []
    replaced = f'"framework":"{framework}"'.encode()
    of_others = [line for line in lines if framework and replaced not in line]
    if len(of_others) == len(lines):
        return
    earlier = path.parent / "earlier"
    earlier.mkdir(exist_ok=True)
    targets = (earlier / f"{path.stem}-{number}.jsonl" for number in itertools.count(1))
    path.rename(next(target for target in targets if not target.exists()))
    if of_others:
        write_atomic(path, b"".join(of_others))


def of_software(name: str) -> Path:
    """Return the folder `outputs/<name>-<digits>` of this machine and its present software.

    A run has cases of one machine and one state of its software; see `check_machine`.
    """
    snapshot = machine_snapshot.snapshot()
    machine = {fact: snapshot.get(fact) for fact in ("chip", "cpu_cores", "memory_bytes", "gpus")}
    return root() / "outputs" / f"{name}-{_digits([machine, _computes_with()], 6)}"


def latest(names: Iterable[str], profile: str) -> Path | None:
    """Return the run's folder that has the latest results of one of these notebooks, if any."""
    runs = root() / "outputs"
    paths = [path for name in names for path in runs.glob(f"[!.]*/{name}.jsonl") if path.is_file()]
    for path in sorted(paths, key=lambda path: path.stat().st_mtime, reverse=True):
        if Run(path.parent).machine.get("profile") == profile:
            return path.parent
    return None
