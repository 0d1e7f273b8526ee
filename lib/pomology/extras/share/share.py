"""A run as one zip for others: numbers, versions, names of chips, and settings in plain words.

What people and programs write freely stays out: reasons, notes, messages, paths, the environment.
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
# Words, also with a number, as in names of chips: `Intel(R) Xeon(R) CPU @ 2.20GHz`.
NAME = r"(?=[\w%])([A-Za-z]{0,14}\d{0,5}[A-Za-z]{0,3}\d{0,2}|\d{1,6}\.\d{1,4}(GHz)?|\d+(x\d+)+|%)"
WORDS = rf"{NAME}([ _,()@+-]{{1,3}}{NAME}){{0,20}}[)+]?"
VERSION = r"\d{1,8}(\.\d{1,5}){0,2}((a|b|rc|\.dev|\.post)\d{1,8})?(\+(cpu|cu\d+|git[0-9a-f]+))?"
UNIT = "[A-Za-z]{0,8}(/s)?"
FORMS = {"commit": "[0-9a-f]{40}", "started": r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"}
SECRET = re.compile("TOKEN(?!IZERS)|SECRET|PASSW|_KEY$")  # of environment variables
USUAL = ("root", "/root", "user", "admin", "runner", "ubuntu", "jovyan", "localhost")


def is_free(text: str, field: str = "") -> bool:
    """Whether a text has another form than this field's: words, a version or a unit."""
    return not re.fullmatch(FORMS.get(field, f"{WORDS}|{VERSION}|{UNIT}"), text)


def plain(value: Any, field: str = "") -> Any:
    """Return a value with "unknown" for free text, and without names that are free or in `FREE`."""
    if isinstance(value, dict):
        names = [name for name in value if not is_free(name)]
        return {name: plain(value[name], name) for name in names if name not in FREE}
    if isinstance(value, list):
        return [plain(item, field) for item in value]
    return "unknown" if isinstance(value, str) and is_free(value, field) else value


def shared_record(record: Record) -> dict[str, Any]:
    """Return a record as others get it: its case is called by its settings."""
    shared = plain(record.line() | {"case": ""})
    settings = " ".join(f"{name}={value}" for name, value in shared["config"].items())
    case = f"{shared['framework']}-{shared['backend']} {settings}".strip()
    return shared | {"case": case, "reason": None}


def write(folder: Path, notebooks: bool = False) -> Path:
    """Pack a run into a zip next to its folder; return its path. notebooks: with the rendered ones.

    Raises PomologyError where a notebook has a name in it, or where there is another zip.
    """
    run = Run(folder)
    target = run.path.resolve().parent / f"{run.name}.zip"
    if target.exists():
        raise PomologyError(f"{target.name}: is there already; move it away first")
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
    """Return a run's rendered notebooks.

    Raises PomologyError for one with the name of this machine, of its user or home, with a secret
    of the environment, or with what looks like a key.
    """
    names = [name.lower() for name in own_names()]
    pages = {}
    for path in sorted(set(folder.glob("*.html")) - {folder / "index.html"}):
        page = path.read_text(encoding="utf-8")
        text = html.unescape(re.sub(r"data:image/[a-z]+;base64,[\w+/=\s]*", "", page))
        words = re.sub(r"<[^<>]*>", "", text)
        named = any(name in text.lower() or name in words.lower() for name in names)
        if named or holds_key(words):
            raise PomologyError(f"{path.name}: holds a name or key; share without NOTEBOOKS=1")
        pages[path.name] = page
    return pages


def holds_key(text: str) -> bool:
    """Whether a text holds what looks like a key or password, by detect-secrets."""
    from detect_secrets.core.scan import scan_line
    from detect_secrets.settings import default_settings

    with default_settings() as settings:
        # Numbers and commits look like these.
        settings.disable_plugins("Base64HighEntropyString", "HexHighEntropyString")
        lines = re.findall(r".{1,300}", text)  # a longer one takes minutes
        return any(True for line in lines for _ in scan_line(line))


def own_names() -> list[str]:
    """Return the names of this machine, its user and home, and secrets of the environment."""
    names = [os.path.expanduser("~"), socket.gethostname().partition(".")[0]]
    names += [value for name, value in os.environ.items() if SECRET.search(name)]
    with contextlib.suppress(KeyError, OSError):  # an account without a name, as in a container
        names.append(getpass.getuser())
    return [name for name in names if len(name) > 3 and name not in USUAL]
