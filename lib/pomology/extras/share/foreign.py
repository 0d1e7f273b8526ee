"""What a zip holds that `pomology share` would not have written."""

import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from pomology.extras.share import share
from pomology.paths import require_regular
from pomology.results.record import RENAMED, Record, case_name
from pomology.results.run import MACHINE, Run

# A shared line. Older journals have one field more.
_LINE = msgspec.defstruct(
    "Line",
    [("foreign_load", float | None, None)],
    bases=(Record,),
    tag="end",
    kw_only=True,
    forbid_unknown_fields=True,
)
_DECODER = msgspec.json.Decoder(_LINE)
NAME = re.compile(r"machine\.json|(\w+)\.jsonl")
MOST_FILES = 200  # more than there are experiments
MOST_BYTES = 64 * 2**20  # unpacked: a run of three repeats has 6 MB
MOST_PACKED_BYTES = 50_000_000  # what the collection takes
COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
ENCRYPTED = 1  # bit of a member's flags
OTHERWISE = "written in another way than `pomology share` does"
# Numbers of machine.json, whose other numbers have a few digits.
MEMORY = "memory_bytes"
MEMORY_BYTES = (2**28, 2**50)
MOST_OF_MACHINE = 100_000


def unreadable(path: Path) -> str:
    """Return why a zip is refused before any of its bytes are unpacked, "" for one that is read.

    Raises PomologyError for what is no file, and what zipfile raises for a file that is no zip.
    """
    require_regular(path)  # to open a pipe would wait for its other end
    if path.stat().st_size > MOST_PACKED_BYTES:
        return f"{path.stat().st_size:,} bytes; expected {MOST_PACKED_BYTES:,} at most"
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        comments = [text for text in (archive.comment, *(info.comment for info in members)) if text]
    names = [info.filename for info in members]
    size = sum(info.file_size for info in members)
    wrong = [name for name in names if not is_name(name)]
    packed_again = any(name.endswith(f"/{MACHINE}") for name in names)
    if packed_again:
        return "it was packed again; attach the zip as `pomology submit` wrote it"
    if any(name.endswith(".html") for name in names):
        return "it has rendered notebooks; `pomology submit` writes a zip without them"
    if wrong or comments:
        return f"{wrong[0] if wrong else 'comments'}: not as `pomology share` writes it"
    if len(set(names)) < len(names) or not MOST_FILES >= len(names) > 1:
        return f"{len(names):,} files; expected {MACHINE} and journals, each once"
    if size > MOST_BYTES:
        return f"{size:,} bytes when unpacked; expected {MOST_BYTES:,} at most"
    for info in members:
        if info.flag_bits & ENCRYPTED or info.compress_type not in COMPRESSIONS:
            return f"{info.filename}: encrypted, or not packed as `pomology share` does"
    return ""


def is_name(name: str) -> bool:
    """Return whether a file of a shared zip may have a name: of words of experiments' names."""
    match = NAME.fullmatch(name)
    return bool(match) and (not match[1] or share.plain(match[1]) == match[1])


def foreign(run: Run) -> Iterator[str]:
    """Yield texts, numbers, names of cases, and repeated cases that are foreign to a shared run.

    run: of a zip that is not `unreadable`. Raises ValueError for a field outside the schema, or a
    number that JSON lacks.
    """
    files = run.files
    yield from run.problems
    if not run.records:
        yield "no cases"
        return
    machine = msgspec.json.decode(files[MACHINE])
    yield from _numbers(machine)
    if json.dumps(machine, indent=1).encode() != files[MACHINE]:
        yield f"{MACHINE}: {OTHERWISE}"
    lines = {name: files[name].splitlines() for name in files if name != MACHINE}
    count = sum(map(len, lines.values()))
    if count != len(run.records):
        yield f"{count:,} lines for {len(run.records):,} cases"
    cases = {"unknown"}
    for name, of_journal in lines.items():
        stem = name.removesuffix(".jsonl")
        experiment = RENAMED.get(stem, (stem,))[0]
        for line in of_journal:
            record = _DECODER.decode(line)
            # A line may say a thing twice, or in another form, which the record does not show.
            if json.dumps(msgspec.json.decode(line)).encode() != line:
                yield f"{name}: {OTHERWISE}"
            if RENAMED.get(record.experiment, (record.experiment,))[0] != experiment:
                yield f"{name}: cases of {record.experiment}"
            if record.case != case_name(record.framework, record.backend, record.config):
                yield f"{record.case} with the settings {record.config}"
            digits = str(record.config.get("unknown"))  # of a case whose settings are not all known
            own = {record.case, digits} if re.fullmatch("[0-9a-f]{8}", digits) else {record.case}
            cases |= own
    # A quote inside of a text makes the rest of the file unknown.
    texts = {text for data in files.values() for text in data.decode().split('"')[1::2]}
    # A text does not tell its field, so it may have the form of any.
    for text in sorted(texts - cases):
        if not any(share.is_known(text, field) for field in ("", "chip", *share.CHECKS)):
            yield text


def _numbers(value: Any, name: str = "") -> Iterator[str]:
    """Yield the numbers of machine.json that no machine has."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _numbers(inner, key)
    elif isinstance(value, list):
        for inner in value:
            yield from _numbers(inner, name)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        least, most = MEMORY_BYTES if name == MEMORY else (0, MOST_OF_MACHINE)
        if not least <= value <= most:
            yield f"machine.json: {name} is {value}; expected {least:,} to {most:,}"
