"""Export a run as an anonymized zip: numbers, versions, names of chips, and settings.

Free text of people and programs is removed: reasons, notes, messages, paths, the environment.
"""

import contextlib
import getpass
import html
import json
import os
import re
import socket
import zipfile
from pathlib import Path
from typing import Any

from pomology.errors import PomologyError
from pomology.results.record import Record
from pomology.results.run import Run

FREE = ("reason", "note", "traceback", "data_origin", "absent", "software", "unknown", "left_out")
# Words, also with numbers as in names of chips: `Intel(R) Xeon(R) CPU @ 2.20GHz`.
NAME = r"(?=[\w%])([A-Za-z]{0,14}\d{0,5}[A-Za-z]{0,3}\d{0,2}|\d{1,6}\.\d{1,4}(GHz)?|\d+(x\d+)+|%)"
WORDS = rf"{NAME}([ _,()@+-]{{1,3}}{NAME}){{0,20}}[)+]?"
VERSION = r"\d{1,8}(\.\d{1,5}){0,2}((a|b|rc|\.dev|\.post)\d{1,8})?(\+(cpu|cu\d+|git[0-9a-f]+))?"
UNIT = "[A-Za-z]{0,8}(/s)?"
FORMS = {"commit": "[0-9a-f]{40}", "started": r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"}
SECRET = re.compile("TOKEN(?!IZERS)|SECRET|PASSW|_KEY$")  # names of environment variables
USUAL = ("root", "/root", "user", "admin", "runner", "ubuntu", "jovyan", "localhost")


def is_free(text: str, field: str = "") -> bool:
    """Return whether a text is free text: neither words, a version, a unit nor the field's form."""
    return not re.fullmatch(FORMS.get(field, f"{WORDS}|{VERSION}|{UNIT}"), text)


def plain(value: Any, field: str = "") -> Any:
    """Return a value with "unknown" for free text, without keys that are free text or in `FREE`."""
    if isinstance(value, dict):
        names = [name for name in value if not is_free(name)]
        return {name: plain(value[name], name) for name in names if name not in FREE}
    if isinstance(value, list):
        return [plain(item, field) for item in value]
    return "unknown" if isinstance(value, str) and is_free(value, field) else value


def shared_record(record: Record) -> dict[str, Any]:
    """Return the anonymized form of a record, whose case is named by its settings."""
    shared = plain(record.line() | {"case": ""})
    settings = " ".join(f"{name}={value}" for name, value in shared["config"].items())
    case = f"{shared['framework']}-{shared['backend']} {settings}".strip()
    return shared | {"case": case, "reason": None}


def write(folder: Path, notebooks: bool = False) -> Path:
    """Export a run as a zip next to its folder; return its path. notebooks: add rendered ones.

    Raises PomologyError if a notebook contains a name or key, or if the zip exists.
    """
    run = Run(folder)
    target = run.path.resolve().parent / f"{run.name}.zip"
    if target.exists():
        raise PomologyError(f"{target.name}: already exists; move or delete it")
    files = {"machine.json": json.dumps(plain(run.machine), indent=1)}
    for name, journal in run.journals.items():
        lines = [json.dumps(shared_record(record), allow_nan=False) for record in journal.records]
        files[f"{name}.jsonl"] = "".join(f"{line}\n" for line in lines)
    if notebooks:
        files |= rendered(run.path)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return target


def rendered(folder: Path) -> dict[str, str]:
    """Return a run's rendered notebooks: file name -> HTML.

    Raises PomologyError for a notebook with the name of this machine, its user or home folder, with
    a secret of the environment, or with text that looks like a key.
    """
    names = [name.lower() for name in own_names()]
    pages = {}
    for path in sorted(set(folder.glob("*.html")) - {folder / "index.html"}):
        page = path.read_text(encoding="utf-8")
        text = html.unescape(re.sub(r"data:image/[a-z]+;base64,[\w+/=\s]*", "", page))
        words = re.sub(r"<[^<>]*>", "", text)
        named = any(name in text.lower() or name in words.lower() for name in names)
        if named or holds_key(words):
            raise PomologyError(f"{path.name}: contains a name or key; omit NOTEBOOKS=1")
        pages[path.name] = page
    return pages


def holds_key(text: str) -> bool:
    """Return whether detect-secrets finds a key or password in a text."""
    from detect_secrets.core.scan import scan_line
    from detect_secrets.settings import default_settings

    with default_settings() as settings:
        # These detectors match numbers and commits.
        settings.disable_plugins("Base64HighEntropyString", "HexHighEntropyString")
        lines = re.findall(r".{1,300}", text)  # longer lines take minutes
        return any(True for line in lines for _ in scan_line(line))


def own_names() -> list[str]:
    """Return the names of this machine, its user and home folder, and the environment's secrets."""
    names = [os.path.expanduser("~"), socket.gethostname().partition(".")[0]]
    names += [value for name, value in os.environ.items() if SECRET.search(name)]
    with contextlib.suppress(KeyError, OSError):  # accounts in containers may have no name
        names.append(getpass.getuser())
    return [name for name in names if len(name) > 3 and name not in USUAL]
