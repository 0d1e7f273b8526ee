"""A run as one file for others.

What it holds is written anew from the run's records: numbers, names of the kit's own, versions, and texts made of the
kit's own words. Whatever else is in a record, as a folder, a name or a key in an error's message, is left out: a list
of what must not be shared would never be complete. Pages, tables and figures are made from these records.
"""

import contextlib
import functools
import getpass
import hashlib
import html
import io
import json
import os
import re
import socket
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pomology.errors import PomologyError
from pomology.paths import RESOURCES, notebook_paths, root
from pomology.report import page as report_page
from pomology.results import record as results_record
from pomology.results import run as results_run
from pomology.results.archive import KINDS, open_zip
from pomology.results.record import Record

LEFT_OUT = "(left out)"  # in place of a setting
MOST = 4_000  # characters of a text
# What chips and what they run under are called, beside the kit's own words and short model numbers.
CHIPS = frozenset(
    """
    amd ampere apple arm athlon atom broadwell bronze cascade cascadelake celeron cooper core corporation cortex cpu
    duo epyc ferrocarril gb generation geforce genuine genuineintel ghz gold gpu graphics graviton haswell hygon ice
    icelake intel kvm laptop max mhz microsoft milan mobile naples neoverse nvidia parallels pcie pentium phenom
    platinum premium pro processor quad quadro radeon rapids rome rtx ryzen sapphire silver skylake super sxm tesla
    threadripper ti titan turion ultra vmware with xen xeon
    """.split()  # noqa: SIM905
)
MODEL = re.compile(r"[a-z]{0,3}\d{1,5}[a-z]{0,3}|[rtm]|\d{1,4}(?:[kmg]i?b|[gm]hz)", re.IGNORECASE)
NUMBER = re.compile(r"\d{1,6}|\d{1,4}(?:x\d{1,5})+")
# An address, a folder, a variable, or letters that no text of the kit has.
SUSPECT = re.compile(r"\d\.\d+\.\d|(?:[0-9A-Fa-f]{0,4}:){3}|(?:^|[^\w)])/|[\\=@$~`#]|\.\.|://|[^\x20-\x7e×·±→−–’“”²³°µ≥≤…é]")
FORMS = {
    "started": r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ",
    "version": r"\d{1,5}(?:\.\d{1,5}){0,2}(?:\.?(?:a|b|rc|dev|post)\d{1,3})?(?:\+(?:cpu|cu\d{2,3}))?",
    "commit": r"[0-9a-f]{40}",
}
VERSIONS = ("framework_version", "python", "os_version")
VALUE = re.compile(r"\d{1,4}(?:[.,:]\d{1,4})*|true|false|yes|no|on|off|auto|", re.IGNORECASE)  # of a variable


@functools.cache
def words() -> frozenset[str]:
    """The words of the kit's own texts, in small letters: of its modules, notebooks, parameters and published values."""
    package = Path(__file__).parents[1]
    files = [*package.rglob("*.py"), *package.rglob("*.csv"), *RESOURCES.rglob("*.j2")]
    files += [*notebook_paths(root() / "notebooks"), *(root() / "params").glob("[!.]*/[!.]*.yaml")]
    texts = (file.read_text(encoding="utf-8", errors="replace") for file in files if file != Path(__file__))
    return frozenset(word for text in texts for word in re.findall(r"[a-z0-9]+", text.lower()))


def plain(text: str, chip: bool = False) -> bool:
    """Whether a text is made of the kit's own words and of numbers. chip: also of what chips are called."""
    tokens = re.findall(r"[A-Za-z0-9é]+", text)
    if len(text) > MOST or SUSPECT.search(text.replace("@", "") if chip else text):
        return False

    def known(token: str) -> bool:
        if NUMBER.fullmatch(token) or token.lower() in words():
            return True
        return chip and (token.lower() in CHIPS or bool(MODEL.fullmatch(token)))

    return (not chip or len(tokens) <= 16) and all(map(known, tokens))


def cleaned(value: Any, key: str = "") -> Any:
    """Of a record's or machine's value what may be shared; raises ValueError where that is nothing.

    Of a list or dict the rest stays without what may not; a dict has no key that is no plain text.
    """
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        form = FORMS.get("version" if key in VERSIONS else key)
        if re.fullmatch(form, value) if form else plain(value, chip=key in ("chip", "name", "processor")):
            return value[:12] if key == "commit" else value
        raise ValueError(key)
    if isinstance(value, list):
        return [item for item in _kept(((None, item) for item in value), key)]
    if isinstance(value, dict):
        inner = {"packages": "python", "processor": "processor"}.get(key)
        pairs = {name: (inner or name, item) for name, item in value.items() if plain(name, key == "processor")}
        return dict(_items(pairs))
    raise ValueError(key)


def _kept(items: Iterator[tuple[None, Any]], key: str) -> Iterator[Any]:
    for _, item in items:
        with contextlib.suppress(ValueError):
            yield cleaned(item, key)


def _items(pairs: dict[str, tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    for name, (key, item) in pairs.items():
        with contextlib.suppress(ValueError):
            yield name, cleaned(item, key)


def shared_machine(machine: dict) -> tuple[dict, dict[str, str]]:
    """machine.json as it may be shared, and the new name of each of its software."""
    software, names = {}, {}
    for name, about in (machine.get("software") or {}).items():
        if not isinstance(about, dict):
            continue
        environment = about.get("environment") if isinstance(about.get("environment"), dict) else {}
        known = cleaned({**about, "environment": {}})
        kept = {key: value for key, value in environment.items() if plain(key) and VALUE.fullmatch(str(value))}
        known["environment"] = kept | {key: LEFT_OUT for key in environment if plain(key) and key not in kept}
        names[name] = hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:12]
        software[names[name]] = known
    rest = cleaned({key: value for key, value in machine.items() if key not in ("software", "unknown")})
    return {"chip": "another processor", "unknown": {}} | rest | {"software": software}, names


def shared_record(record: Record, names: dict[str, str]) -> Record:
    """A record as it may be shared. Raises ValueError where too little of it is left to be one."""
    line = record.line()
    config = {key: value for key, value in line["config"].items() if plain(key)}
    kept = cleaned({key: value for key, value in line.items() if key not in ("config", "case", "software", "traceback")})
    kept["config"] = {key: next(_kept(iter([(None, value)]), key), LEFT_OUT) for key, value in config.items()}
    settings = " ".join(f"{key}={value}" for key, value in kept["config"].items())
    kept |= {"case": f"{kept.get('framework')}-{kept.get('backend')} {settings}".strip()}
    kept |= {"software": names[line["software"]]} if line.get("software") in names else {}
    if "chip" not in kept:
        kept["chip"] = "another processor"
    if "framework_version" not in kept:
        kept["framework_version"] = "0"
    if "reason" not in kept:
        kept["reason"] = None
    return results_record.checked(kept)


def own_names() -> dict[str, str]:
    """What this machine is called, and who uses it: text -> what it is. For pages that are shared as they are."""
    named: dict[str, str] = {}
    for what, ask in (("user name", getpass.getuser), ("name", socket.gethostname)):
        with contextlib.suppress(KeyError, OSError):  # an account without a name
            named[ask()] = f"this machine's {what}"
    named |= {str(folder): "a folder of this machine" for folder in (Path(os.path.expanduser("~")), root())}
    hidden = (value for name, value in os.environ.items() if re.search(r"TOKEN|SECRET|PASSWORD|_KEY$", name))
    named |= dict.fromkeys(hidden, "a secret of this machine's environment")
    return {text: what for text, what in named.items() if len(text) > 2 and text.lower() not in words()}


def found_in(page: str) -> str | None:
    """What names this machine or looks like a key in a rendered page, decoded as a reader sees it; None for nothing."""
    text = html.unescape(re.sub(r"<[^<>]*>", " ", page))
    for decoded in (text, text.encode().decode("unicode_escape", errors="replace")):
        for secret, what in own_names().items():
            if re.search(rf"(?<![A-Za-z0-9]){re.escape(secret)}(?![A-Za-z0-9])", decoded, re.IGNORECASE):
                return what
    from detect_secrets.core import scan
    from detect_secrets.settings import default_settings

    with default_settings():
        for line in text.splitlines():
            for secret in scan.scan_line(line):
                return f"what may be a key ({secret.type})"
    return None


def write(folder: str | Path, notebooks: bool = False, say: Callable[[str], Any] = print) -> Path:
    """Pack what may be shared of a run into a zip beside its folder; returns where that is.

    notebooks: with the rendered notebooks as they are, after a look for names and keys. The same run makes the same
    bytes. Raises PomologyError, and writes nothing, where such a page holds something, or where another's zip is there.
    """
    folder = Path(folder)
    run = results_run.Run(folder)
    machine, names = shared_machine(run.machine)
    files: dict[str, bytes] = {"machine.json": (json.dumps(machine, indent=1, ensure_ascii=False) + "\n").encode()}
    left_out = 0
    for journal in run.journals.values():
        for record in journal.records:
            try:
                kept = shared_record(record, names)
            except ValueError:
                left_out += 1
                continue
            line = json.dumps(kept.line(), allow_nan=False, ensure_ascii=False, separators=(",", ":"))
            name = f"{kept.experiment}.jsonl"
            files[name] = files.get(name, b"") + f"{line}\n".encode()
    if left_out:
        say(f"{left_out} cases are left out: their notebook or device has a name that is not the kit's")
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch, "run")
        place.mkdir()
        for name, data in files.items():
            (place / name).write_bytes(data)
        report_page.build(place, notebooks=False)
        made = (path for pattern in ("*", "tables/*", "figures/*") for path in place.glob(pattern) if path.is_file())
        made = {path.relative_to(place).as_posix(): path.read_bytes() for path in sorted(made)}
    files |= {name: data for name, data in made.items() if KINDS.fullmatch(name)}
    if notebooks:
        files |= _rendered(folder, say)
    for name in [name for name in files if name.endswith(".html")]:  # of what is not sent, no link is left
        files[name] = report_page.links_into(files[name].decode(), files).encode()
    name = folder.resolve().name if plain(folder.resolve().name) else "run"
    target = folder.resolve().with_name(f"{name}.zip")
    if target.exists() and results_run.Run(target).machine != machine:
        raise PomologyError(f"{target.name}: is there already, and of another machine; move it away first")
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for member, data in sorted(files.items()):
            # Dated 1980, as all of them: when it was packed is nobody's business.
            about = zipfile.ZipInfo(f"{name}/{member}")
            about.create_system, about.external_attr = 3, 0o100644 << 16
            archive.writestr(about, data, zipfile.ZIP_DEFLATED, 9)
    open_zip(target.name, packed)  # what others would refuse is not sent to them
    draft = target.with_name(f"{target.name}.part")
    draft.write_bytes(packed.getvalue())
    os.replace(draft, target)
    return target


def _rendered(folder: Path, say: Callable[[str], Any]) -> dict[str, bytes]:
    """The rendered notebooks of a run, by name."""
    pages = {page.name: page for page in sorted(folder.glob("*.html")) if page.name != "index.html"}
    say(f"with what these notebooks printed, as it is: {', '.join(page.stem for page in pages.values()) or 'none'}")
    for name, page in pages.items():
        if not KINDS.fullmatch(name) or page.is_symlink():
            raise PomologyError(f"{name}: has a name that no file of a run has; nothing was written")
        if what := found_in(page.read_text(encoding="utf-8", errors="replace")):
            raise PomologyError(f"{name}: holds {what}; share the run without notebooks; nothing was written")
    return {name: page.read_bytes() for name, page in pages.items()}
