"""What a zip holds that `pomology share` would not have written."""

import re
import zipfile
from collections.abc import Iterator

import msgspec

from pomology.extras.share import share
from pomology.results.record import Record, case_name
from pomology.results.run import Run

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


def foreign(run: Run) -> Iterator[str]:
    """Yield files, texts, names of cases, and repeated cases that are foreign to a shared run.

    Raises ValueError for a field outside the schema.
    """
    with zipfile.ZipFile(run.path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
        comments = {archive.comment, *(info.comment for info in archive.infolist())} - {b""}
    wrong = [name for name in files if not re.fullmatch(r"machine\.json|\w+\.jsonl", name)]
    if wrong or comments or not run.records:
        yield f"{wrong[0] if wrong else 'comments, or no cases'}: not as `pomology share` writes it"
        return
    yield from run.problems
    lines = [line for name in files if name != "machine.json" for line in files[name].splitlines()]
    if len(lines) != len(run.records):
        yield f"{len(lines):,} lines for {len(run.records):,} cases"
    cases = {"unknown"}
    for record in map(_DECODER.decode, lines):
        if record.case != case_name(record.framework, record.backend, record.config):
            yield f"{record.case} with the settings {record.config}"
        digits = str(record.config.get("unknown"))  # of a case whose settings are not all known
        cases |= {record.case, digits} if re.fullmatch("[0-9a-f]{8}", digits) else {record.case}
    # A quote inside of a text makes the rest of the file unknown.
    texts = {text for data in files.values() for text in data.decode().split('"')[1::2]}
    # A text does not tell its field, so it may have the form of any.
    for text in sorted(texts - cases):
        if not any(share.is_known(text, field) for field in ("", "chip", *share.CHECKS)):
            yield text
