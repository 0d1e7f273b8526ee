"""A run as one zip for others: numbers, versions, names of chips, and settings in plain words.

What people and programs write freely stays out: reasons, notes, messages, paths, the environment.
"""

import contextlib
import getpass
import html
import io
import json
import os
import re
import socket
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pomology.errors import PomologyError
from pomology.machine.snapshot import PACKAGES
from pomology.paths import read_file, write_atomic
from pomology.results.record import Record
from pomology.results.run import Run

FREE = ("reason", "note", "traceback", "data_origin", "absent", "software")
MACHINE = {*PACKAGES, "packages", "gpus", "name", "cores", "memory_bytes"}
MACHINE |= {"chip", "cpu_cores", "cpu_threads", "performance_cores", "efficiency_cores", "python"}
MACHINE |= {"os", "os_version", "architecture", "translated", "virtual_machine", "present_mhz"}
MACHINE |= {"git", "commit", "dirty", "profile", "power_source"}

WORD = r"([A-Za-z]{1,14}\d{0,4}[a-z]{0,2}|\d{1,5}(x\d{1,5})*[a-z]{0,2}|%)"
WORDS = rf"{WORD}((, |[ _-]){WORD}){{0,7}}"
NAME = r"(?=\w)([A-Za-z]{0,14}\d{0,5}[A-Za-z]{0,3}\d{0,2}|\d{1,6}\.\d{1,4}(GHz)?)"
CHIP = rf"{NAME}([ _,()@+-]{{1,3}}{NAME}){{0,20}}[)+]?"
VERSION = r"\d{1,8}(\.\d{1,5}){0,2}((a|b|rc|\.dev|\.post)\d{1,8})?(\+(cpu|cu\d+|git[0-9a-f]+))?"
FORMS = {  # of texts, by field; all others are WORDS
    **dict.fromkeys(("chip", "name"), CHIP),
    **dict.fromkeys(("framework_version", "python", "os_version", *PACKAGES), VERSION),
    "commit": "[0-9a-f]{40}",
    "started": r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ",
    "unit": "[A-Za-z]{0,8}(/s)?|%",
}
SECRET = re.compile("TOKEN(?!IZERS)|SECRET|PASSW|_KEY$")  # of environment variables
USUAL = ("root", "/root", "user", "admin", "runner", "ubuntu", "jovyan", "localhost")


def is_free(value: Any, field: str) -> bool:
    """Whether a value is a text of another form than this field's, or than plain words."""
    return isinstance(value, str) and not re.fullmatch(FORMS.get(field, WORDS) + "|", value)


def plain(value: Any, field: str = "") -> Any:
    """Return a value without the fields in `FREE`. Raises ValueError for a text of another form."""
    if isinstance(value, dict):
        return {plain(name): plain(item, name) for name, item in value.items() if name not in FREE}
    if isinstance(value, list):
        return [plain(item, field) for item in value]
    if is_free(value, field):
        raise ValueError(field)
    return value


def shared_record(record: Record) -> dict[str, Any]:
    """Return a record as others get it. Raises ValueError for free text in its settings."""
    shared = plain(record.line() | {"case": ""})
    settings = " ".join(f"{name}={value}" for name, value in record.config.items())
    case = f"{record.framework}-{record.backend} {settings}".strip()
    return shared | {"case": case, "reason": None}


def shared_machine(facts: dict[str, Any]) -> dict[str, Any]:
    """Return what others get of machine.json: the keys in `MACHINE`, "unknown" for free text."""
    shared = {}
    for name in sorted(MACHINE & facts.keys()):
        if isinstance(facts[name], dict):
            shared[name] = shared_machine(facts[name])
        elif name == "gpus":
            shared[name] = [shared_machine(gpu) for gpu in facts[name]]
        else:
            shared[name] = "unknown" if is_free(facts[name], name) else facts[name]
    return shared


def write(folder: Path, notebooks: bool = False, say: Callable[[str], Any] = print) -> Path:
    """Pack a run into a zip next to its folder; return its path. notebooks: with the rendered ones.

    Raises PomologyError where a notebook has a name or key in it, or where there is another zip.
    """
    run = Run(folder)
    files = {"machine.json": json.dumps(shared_machine(run.machine), indent=1)}
    left_out = 0
    for name, journal in run.journals.items():
        lines = []
        for record in journal.records:
            try:
                lines.append(json.dumps(shared_record(record), allow_nan=False) + "\n")
            except ValueError:
                left_out += 1
        if lines:
            files[f"{name}.jsonl"] = "".join(lines)
    if left_out:
        say(f"{left_out} cases are left out: a name or setting of theirs is not in plain words")
    if notebooks:
        say("with what notebooks printed: no search finds all names and keys, so read them first")
        files |= rendered(run.path)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, text in files.items():
            archive.writestr(zipfile.ZipInfo(name), text, zipfile.ZIP_DEFLATED)  # dated 1980
    target = run.path.resolve().parent / f"{run.name}.zip"
    if target.exists() and target.read_bytes() != packed.getvalue():
        raise PomologyError(f"{target.name}: is there already and differs; move it away first")
    write_atomic(target, packed.getvalue())
    return target


def rendered(folder: Path) -> dict[str, str]:
    """Return a run's rendered notebooks. Raises PomologyError for one with a name or key in it."""
    pages = {}
    for path in sorted(folder.glob("*.html")):
        if path.name != "index.html" and re.fullmatch(WORDS, path.stem):
            pages[path.name] = read_file(path).decode()
            if found := found_in(pages[path.name]):
                raise PomologyError(f"{path.name}: holds {found}; share without NOTEBOOKS=1")
    return pages


def found_in(page: str) -> str:
    """Say what in a page names this machine or its user, or looks like a key; empty for nothing."""
    page = re.sub(r"data:image/(png|jpeg);base64,[\w+/=\s]*", "", html.unescape(page))
    text = re.sub(r"<[^<>]*>", "", page)
    if any(name.lower() in f"{page}{text}".lower() for name in own_names()):
        return "a name or secret of this machine"
    from detect_secrets.core.scan import scan_line
    from detect_secrets.settings import default_settings

    with default_settings() as settings:
        # Numbers and commits look like these.
        settings.disable_plugins("Base64HighEntropyString", "HexHighEntropyString")
        for line in re.findall(r".{1,300}", text):  # a longer one takes minutes
            for secret in scan_line(line):
                return f"what may be a key ({secret.type})"
    return ""


def own_names() -> list[str]:
    """Return the names of this machine, its user and home, and secrets of the environment."""
    names = [os.path.expanduser("~"), socket.gethostname().partition(".")[0]]
    names += [value for name, value in os.environ.items() if SECRET.search(name)]
    with contextlib.suppress(KeyError, OSError):  # an account without a name
        names.append(getpass.getuser())
    return [name for name in names if len(name) > 3 and name not in USUAL]
