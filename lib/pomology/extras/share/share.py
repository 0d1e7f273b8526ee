"""Export a run as an anonymized zip: numbers, versions, names of chips, settings, and pages.

A text is shared if it passes the check of its field (CHECKS): the name of a chip, a form such as a
version's, or words that pomology itself writes (words.txt, chips.txt) and one number at most.
Others read "unknown", and entries with other names are left out.
"""

import functools
import json
import re
import secrets
import zipfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pomology.errors import PomologyError
from pomology.results.record import Record, case_name
from pomology.results.run import Run

FREE = ("reason", "note", "traceback", "data_origin", "absent", "software", "unknown", "left_out")
WORDS, CHIP_WORDS = (
    set(Path(__file__).with_name(name).read_text(encoding="utf-8").split())
    for name in ("words.txt", "chips.txt")
)
BETWEEN_WORDS = re.compile(r"\d{1,3}-Core|[ _,()@-]+")
NUMBER = re.compile(r"\d{1,4}(\.\d{1,3})?")
# Behind a maker alone there is no number: `NVIDIA A100`.
MAKER = re.compile(
    r"(1\dth Gen )?(?!\w+(\(R\))? \d)(AMD|Apple|Intel|NVIDIA|GeForce|Quadro|Tesla|TITAN|Radeon"
    "|Neoverse|Cortex|VirtualApple|QEMU|Common)",
    re.IGNORECASE,
)
# What is no word in a chip's name, in this order, with a space behind each.
CHIP_NUMBERS = re.compile(
    r"""
    (\d\ )?  # the class of a Ryzen: 9
    ([A-Z]{0,2}\d{1,5}([A-Z]{1,3}(\d{1,2}[A-Z]?)?)?\ )?  # the model: 5950X, 185H, 7B13
    ((
        \d{1,3}(GB|M)  # memory: 80GB
        |\d\.\d\dGHz  # the clock
        |v\d  # the revision of a Xeon
        |2\.5\+  # of QEMU
    )\ ){0,2}
    """,
    re.VERBOSE,
)
VERSION = re.compile(
    r"""
    \d{1,2}\.\d{1,2}(\.\d{1,3})?
    ((a|b|rc)\d{1,2})?
    (\.post\d)?
    (\.dev(20\d{6}|\d{1,2}))?  # of a day, or numbered
    (\+(cpu|cu\d{2,3}|git[0-9a-f]{7}))?  # PyTorch's build
    """,
    re.VERBOSE,
)
DRIVER = re.compile(r"\d{3}\.\d{1,3}(\.\d{1,3})?")  # NVIDIA's
# A version of cuDNN has a fourth part, by which it has the form of an address of a network.
FOUR_PARTS = re.compile(r"(\d{1,2}\.\d{1,3}\.\d{1,3})\.\d{1,3}")
SIZES = re.compile(r"\d{1,5}(x\d{1,5}){0,3}")
ARTICLE = re.compile(r"00\d")
COMMIT = re.compile("[0-9a-f]{40}")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
IDENTITY = ("experiment", "framework", "backend", "config")


def own_words(text: str) -> bool:
    """Return whether a text has only words of pomology, and with a word one number at most."""
    words = list(filter(None, BETWEEN_WORDS.split(text)))
    others = [word for word in words if word not in WORDS]
    if len(others) == 1 < len(words):
        return bool(NUMBER.fullmatch(others[0]))
    return not others


def chip_name(text: str) -> bool:
    """Return whether a text is a maker, words of chips' names, and the numbers of one chip."""
    words = list(filter(None, BETWEEN_WORDS.split(text)))
    others = [word for word in words if word not in CHIP_WORDS]
    # Without any word of a chip these numbers may be anything, such as a telephone's.
    if others and len(others) == len(words):
        return False
    numbers = "".join(f"{word} " for word in others)
    return bool(MAKER.match(text) and CHIP_NUMBERS.fullmatch(numbers))


def formed(form: re.Pattern[str]) -> Callable[[str], bool]:
    """Return the check of a field whose texts have a form, or are pomology's: `none`, `small`."""
    return lambda text: own_words(text) or bool(form.fullmatch(text))


# Field of a record or of a machine -> the check of its texts. Those of others are `own_words`:
# statuses, flags, units, names of metrics, and settings.
CHECKS: dict[str, Callable[[str], bool]] = {
    "chip": chip_name,
    "name": chip_name,  # of a GPU
    "framework_version": formed(VERSION),
    "python": formed(VERSION),
    "os_version": formed(VERSION),
    "package": formed(VERSION),
    "driver": formed(DRIVER),
    "shape": formed(SIZES),
    "size": formed(SIZES),
    "article": formed(ARTICLE),
    "commit": formed(COMMIT),
    "started": formed(TIME),
}


@functools.lru_cache(maxsize=4096)
def is_known(text: str, field: str = "") -> bool:
    """Return whether a text passes the check of its field."""
    return CHECKS.get(field, own_words)(text)


def plain(value: Any, field: str = "") -> Any:
    """Return a value with "unknown" for an unknown text, and without entries of unknown names."""
    if isinstance(value, dict):
        names = [name for name in value if is_known(name) and name not in FREE]
        kinds = {name: "package" if field == "packages" else name for name in names}
        return {name: plain(value[name], kind) for name, kind in kinds.items()}
    if isinstance(value, list):
        return [plain(item, field) for item in value]
    if field == "package" and isinstance(value, str):
        value = FOUR_PARTS.sub(r"\1", value)
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
        key = (record.experiment, record.case)
        config["unknown"] = apart.setdefault(key, secrets.token_hex(4))
    return shared | {"case": case_name(shared["framework"], shared["backend"], config)}


def known_parameter(value: Any, name: str) -> bool:
    """Return whether the value of a parameter may be shared: as that of a setting."""
    return setting(value, name) == value


def write(folder: Path, left_out: list[str] | None = None, target: Path | None = None) -> Path:
    """Export a run as a zip, by default next to its folder; return its path.

    It prints a line for each file that cannot be used.
    left_out: adds the pages of the notebooks, and receives a line for what they lack. target: path
    of the zip. Raises PomologyError if the zip exists, or if git has no commit of the run with
    these pages.
    """
    run = Run(folder)
    target = target or run.path.resolve().parent / f"{run.name}.zip"
    run.print_problems()
    files = defaultdict(str, {"machine.json": json.dumps(plain(run.machine), indent=1)})
    apart: dict[tuple[str, str], str] = {}
    for name, journal in run.journals.items():
        for record in journal.records:
            line = json.dumps(shared_record(record, apart), allow_nan=False)
            files[f"{plain(name)}.jsonl"] += f"{line}\n"
    if left_out is not None:
        from pomology.extras.share.pages import pages  # with Jupyter, which checking zips lacks

        files |= pages(run, files, known_parameter, left_out)
    try:
        with zipfile.ZipFile(target, "x", zipfile.ZIP_DEFLATED) as archive:
            for name, text in files.items():
                archive.writestr(name, text)
    except FileExistsError:
        raise PomologyError(f"{target.name}: already exists; move or delete it") from None
    return target
