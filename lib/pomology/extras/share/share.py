"""Export a run as an anonymized zip: numbers, versions, names of chips, and settings.

A text is shared if it has the form of its field, or words that pomology itself writes (words.txt,
chips.txt) and one number at most. Others read "unknown", and entries with other names are left out.
"""

import functools
import json
import re
import secrets
import zipfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from pomology.errors import PomologyError
from pomology.extras.share.scan import rendered
from pomology.results.record import Record, case_name
from pomology.results.run import Run

FREE = ("reason", "note", "traceback", "data_origin", "absent", "software", "unknown", "left_out")
WORDS, CHIP_WORDS = (
    set(Path(__file__).with_name(name).read_text(encoding="utf-8").split())
    for name in ("words.txt", "chips.txt")
)
BETWEEN_WORDS = re.compile(r"\d{1,3}-Core|[ _,()@-]+")
NUMBER = r"(\d{1,4}(\.\d{1,3})? )?"
# Behind a maker alone there is no number: `NVIDIA A100`.
MAKER = re.compile(
    r"(1\dth Gen )?(?!\w+(\(R\))? \d)(AMD|Apple|Intel|NVIDIA|GeForce|Quadro|Tesla|TITAN|Radeon"
    "|Neoverse|Cortex|VirtualApple|QEMU|Common)",
    re.IGNORECASE,
)
# What is no word in a chip's name: `9` and `5950X` of a Ryzen, `80GB`, the clock.
MODEL = r"[A-Z]{0,2}\d{1,5}([A-Z]{1,3}(\d{1,2}[A-Z]?)?)?"
CHIP = rf"(\d )?({MODEL} )?((\d{{1,3}}(GB|M)|\d\.\d\dGHz|v\d|2\.5\+) ){{0,2}}"
VERSION = r"\d{1,2}\.\d{1,2}(\.\d{1,3})?((a|b|rc)\d{1,2})?(\.post\d)?(\.dev(20\d{6}|\d{1,2}))?"
VERSION += r"(\+(cpu|cu\d{2,3}|git[0-9a-f]{7}))?"
SIZES = r"\d{1,5}(x\d{1,5}){0,3}"
FORMS = dict.fromkeys(("framework_version", "python", "os_version", "package"), VERSION)
FORMS |= {"shape": SIZES, "size": SIZES, "article": r"00\d", "commit": "[0-9a-f]{40}"}
FORMS |= {"started": r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"}
IDENTITY = ("experiment", "framework", "backend", "config")


@functools.lru_cache(maxsize=4096)
def is_known(text: str, field: str = "") -> bool:
    """Return whether a text has the form of its field, or words of pomology and a number."""
    chip = field in ("chip", "name")
    words = list(filter(None, BETWEEN_WORDS.split(text)))
    rest = [word for word in words if word not in (CHIP_WORDS if chip else WORDS)]
    known = re.fullmatch(CHIP if chip else NUMBER, "".join(f"{word} " for word in rest))
    worded = known and (not rest or len(rest) < len(words)) and (MAKER.match(text) or not chip)
    return bool(worded or re.fullmatch(FORMS.get(field, "-"), text))


def plain(value: Any, field: str = "") -> Any:
    """Return a value with "unknown" for an unknown text, and without entries of unknown names."""
    if isinstance(value, dict):
        names = [name for name in value if is_known(name) and name not in FREE]
        kinds = {name: "package" if field == "packages" else name for name in names}
        return {name: plain(value[name], kind) for name, kind in kinds.items()}
    if isinstance(value, list):
        return [plain(item, field) for item in value]
    return "unknown" if isinstance(value, str) and not is_known(value, field) else value


def setting(value: Any, name: str) -> Any:
    """Return a setting: a known text, or a number of up to seven characters; else "unknown"."""
    short = isinstance(value, str) or len(json.dumps(value)) < 8
    return plain(value, name) if short else "unknown"


def shared_record(record: Record, apart: dict[tuple[str, str], str]) -> dict[str, Any]:
    """Return the anonymized form of a record, whose case is named by its settings.

    apart: case -> random digits, a setting by which a case that is not all known differs from all
    others, here and in other runs.
    """
    shared = plain(record.line()) | {"reason": None}
    config = {name: setting(record.config[name], name) for name in shared["config"]}
    shared["config"] = config
    if any(shared[name] != getattr(record, name) for name in IDENTITY):
        place = (record.experiment, record.case)
        config["unknown"] = apart.setdefault(place, secrets.token_hex(4))
    return shared | {"case": case_name(shared["framework"], shared["backend"], config)}


def write(folder: Path, notebooks: bool = False) -> Path:
    """Export a run as a zip next to its folder; return its path. notebooks: add rendered ones.

    Raises PomologyError if a notebook contains a name or key, or if the zip exists.
    """
    run = Run(folder)
    target = run.path.resolve().parent / f"{run.name}.zip"
    if target.exists():
        raise PomologyError(f"{target.name}: already exists; move or delete it")
    files = defaultdict(str, {"machine.json": json.dumps(plain(run.machine), indent=1)})
    apart: dict[tuple[str, str], str] = {}
    for name, journal in run.journals.items():
        for record in journal.records:
            line = json.dumps(shared_record(record, apart), allow_nan=False)
            files[f"{plain(name)}.jsonl"] += f"{line}\n"
    if notebooks:
        files |= rendered(run.path)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return target
