"""A run as one file for others.

What it holds is written anew from named fields of the run's records: numbers in seven digits, versions, names of chips,
and texts that the kit itself makes. All else is left out: a list of what must not be shared would never be complete.
Pages, tables and figures are made from these records.
"""

import contextlib
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
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from pomology.errors import PomologyError
from pomology.extras.share.own_texts import is_value, names, own
from pomology.machine.snapshot import INSTRUCTIONS, LSCPU, PACKAGES, SYSCTL
from pomology.paths import read_file, root, write_atomic
from pomology.report import declaration
from pomology.report import page as report_page
from pomology.results import record as results_record
from pomology.results import run as results_run
from pomology.results.archive import KINDS, open_zip
from pomology.results.cases import FLAGS, FRAMEWORKS
from pomology.results.record import PROFILES, Record

MACHINE = ("chip", "cpu_cores", "cpu_threads", "performance_cores", "efficiency_cores", "memory_bytes", "gpus", "os")
MACHINE += ("os_version", "architecture", "translated", "virtual_machine", "processor", "present_mhz", "python")
MACHINE += ("packages", "git", "profile", "power_source")
SOFTWARE = ("git", "python", "packages", "environment", "threads")
KEYS = {  # of those dicts
    "packages": "|".join(map(re.escape, (*PACKAGES, "macOS", "MPSGraph"))),
    "processor": "|".join(map(re.escape, (*LSCPU, *SYSCTL, "Flags"))),
    "environment": r"(OMP|MKL|OPENBLAS|VECLIB_MAXIMUM|BLIS|NUMEXPR)_(NUM_)?THREADS|OMP_(WAIT_POLICY|PLACES)"
    r"|PYTORCH_(ENABLE_MPS_FALLBACK|MPS_(PREFER_METAL|FAST_MATH|(HIGH|LOW)_WATERMARK_RATIO))|MLX_ENABLE_TF32"
    r"|TF_(ENABLE_ONEDNN_OPTS|CPP_MIN_LOG_LEVEL|FORCE_GPU_ALLOW_GROWTH|XLA_FLAGS)|TURN_OFF_REMAPPER|KERAS_BACKEND"
    r"|CUDA_VISIBLE_DEVICES|CUBLAS_WORKSPACE_CONFIG|MALLOC_ARENA_MAX|PYTORCH_(CUDA_)?ALLOC_CONF",
}
CHIPS = """Apple Intel AMD NVIDIA ARM Ampere AWS Qualcomm QEMU KVM VirtualApple Tesla Quadro GeForce Radeon Genuine
    Neoverse Cortex Altra Graviton Ultra Max Pro Core Duo Atom Celeron Pentium Xeon Bronze Silver Gold Platinum Phi EPYC
    Ryzen Threadripper Athlon Opteron GTX RTX Ti Super Laptop Titan Ada Generation Gen GPU CPU Processor Common Virtual
    version with Graphics Paravirtual device Mobile Skylake Cascadelake Icelake Sapphire Rapids Haswell Broadwell Rome
    Milan Genoa Naples IBRS TSX no PCIe NVL HBM R TM C Grace Hopper Superchip Blackwell Edition Workstation Server
    Family Six Q Black Cores""".lower().split()
MAKERS = re.compile(rf"\b({'|'.join(CHIPS[:20])})\b", re.IGNORECASE)
MODEL = re.compile(r"[a-z]{0,4}\d{1,5}[a-z]{0,3}\d{0,2}", re.IGNORECASE)
# In pages that are shared as they are, beside what detect-secrets knows; and names that many machines have.
PRIVATE = {
    "an address": r"(?<![\w.])(?!127\.|0\.0\.)(\d{1,3}\.){3}\d{1,3}(?![\w.])|(?<!\w)([0-9a-f]{2}[:-]){5}[0-9a-f]{2}"
    r"(?!\w)|(?<![\w:])(fe80|fd[0-9a-f]{2}|2[0-9a-f]{3}):[0-9a-f:]*:|(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,64}\.[a-z]{2}",
    "a person's folder": r"(/|\\)(Users|home)[/\\]+(?!Shared)\w",
    "what may be a key": r"\b(hf_|gh[pousr]_|github_pat_|glpat-|sk-|xox[a-z]-|npm_|pypi-|AIza|Bearer )[\w-]{12}"
    r"|(passw(or)?d|pwd|secret|token|key|sig)\"?\s?[=:]\s?[\"']?(?-i:(?=\w*\d)(?=\w*[A-Z])[\w/+-]{12})"
    # and whatever looks drawn at random: long, of digits and letters, with two digits as no `ConvolutionBackward0` has
    r"|(?-i:(?<![\w/+-])(?=[\w-]*\d[\w-]*\d)((?=[\w-]*[a-z])(?=[\w-]*[A-Z])[\w-]{20,}|(0x)?[0-9a-f]{32,}"
    r"|(?=[\d-]*[A-Z])[A-Z\d-]{16,}|\d{13,19})(?![\w-]))",
}
NOBODY = ("root", "user", "admin", "runner", "ubuntu", "jovyan", "localhost", "/root")
FLAG = INSTRUCTIONS.replace(r"amx_\w+", "amx_(?:tile|int8|bf16|fp16)")
KIND_OF = {  # of a text: by field, and by those that hold dicts of them
    "started": r"20\d\d-[01]\d-[0-3]\dT[0-2]\d:[0-5]\d:[0-5]\dZ",
    "version": r"\d{1,5}(\.\d{1,5}){0,2}(\.?(a|b|rc|dev|post)\d{1,3})?(\+(cpu|cu\d{2,3}))?",
    "commit": r"[0-9a-f]{40}",
    "experiment": r"[a-z][a-z0-9_]{0,39}",
    "os": r"macOS|Linux|Windows|Darwin",
    "architecture": r"arm64|aarch64|x86_64|AMD64",
    "power_source": r"ac|battery",
    "profile": "|".join(PROFILES),
    "framework": "|".join(FRAMEWORKS),
    "environment": r"\d{1,4}(\.\d{1,3})?|true|false|yes|no|on|off|active|passive|close|spread|cores|threads|sockets|"
    r"torch|tensorflow|:4096:8|:16:8",
    "processor": rf"\d{{1,6}}(\.\d{{1,2}})?|\d{{1,4}}(\.\d)? [KMG]iB( \(\d{{1,3}} instances?\))?|({FLAG} ?)*|"
    r"KVM|Microsoft|VMware|Xen|Parallels|Apple|Oracle|(i?Mac|MacBook(Pro|Air)|Macmini|i?MacPro)\d{1,2},\d{1,2}",
}
KIND_OF |= dict.fromkeys(("framework_version", "python", "os_version", "packages"), KIND_OF["version"])


def is_chip(text: str) -> bool:
    """Whether a text is a name that chips have: a maker's, words that makers use, and few digits."""
    few = re.fullmatch(r"[A-Za-z0-9 ()@.,+-]{1,80}", text) and sum(map(str.isdigit, text)) <= 11
    others = [token for token in re.findall(r"\w+", text) if token.lower() not in CHIPS]
    return bool(few and MAKERS.search(text)) and len(others) <= 6 and all(map(MODEL.fullmatch, others))


def kept(value: Any, key: str = "", within: str = "") -> Any:
    """Of a field's value what may be shared; raises ValueError where that is nothing. within: the field that it stands
    in. Of a list or dict the rest stays without what may not."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, (int, float)):
        exact = key in ("value", "parameters") and isinstance(value, int) and abs(value) < 2**32  # as a checksum
        return value if exact else type(value)(float(f"{value:.7g}"))  # ValueError for infinity in place of an integer
    if isinstance(value, str):
        form, config = KIND_OF.get(key) or KIND_OF.get(within), "config" in (key, within)
        if form:
            good = value if re.fullmatch(form, value, re.IGNORECASE if within == "environment" else 0) else None
        elif key in ("chip", "name", "device") and is_chip(value):
            good = value
        elif key in ("reason", "note", "data_origin", "absent") or within == "absent":
            good = own(value)
        else:
            good = value if value in names() or (config and (is_value(value) or own(value) == value)) else None
        if good is None:
            raise ValueError(key)
        return good[:10] if key == "commit" else good  # as the page shows it
    if isinstance(value, list):
        return [item for each in value for item in _tried(each, key, within)]
    if isinstance(value, dict):
        pairs = {name: item for name, item in value.items() if _is_key(name, key)}
        return {name: good for name, item in pairs.items() for good in _tried(item, name, within or key)}
    raise ValueError(key)


def _is_key(name: str, of: str) -> bool:
    """Whether a dict in this field has such a key: a name of the source's, or one that it makes of two."""
    if of in KEYS:
        return bool(re.fullmatch(KEYS[of], name))
    known, halves = names(), [(name[: sign.start()], name[sign.end() :]) for sign in re.finditer("_", name)]
    made = (known & {start, start.replace("_", " ")} and known & {end, f"_{end}"} for start, end in halves)
    return name.isidentifier() and (name in known or any(made))


def _tried(value: Any, key: str, within: str = "") -> list:
    try:
        return [kept(value, key, within)]
    except (ValueError, OverflowError, RecursionError):
        return []


def shared_machine(machine: dict) -> tuple[dict, dict[str, str]]:
    """machine.json as it may be shared, and the new name of each of its software."""
    software, names = {}, {}
    noted = machine.get("software") if isinstance(machine.get("software"), dict) else {}
    for name, about in noted.items():
        known = {key: good for key in SOFTWARE if key in about for good in _tried(about[key], key)}
        names[name] = hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:12]
        software[names[name]] = known
    rest = {key: good for key in MACHINE if key in machine for good in _tried(machine[key], key)}
    gpus = [{"name": "GPU", "memory_bytes": None} | gpu for gpu in rest.get("gpus", ())]
    return {"python": "not known"} | rest | {"gpus": gpus, "software": software, "unknown": {}}, names


def shared_record(record: Record, names: dict[str, str]) -> Record:
    """A record as it may be shared. Raises ValueError for one of another's notebook, or with settings of its own."""
    line = record.line()
    good = {"chip": None, "framework_version": "", "reason": None, "power_source": None, "device": None, "data": ""}
    good |= {key: known for key, value in line.items() if key != "case" for known in _tried(value, key)}
    if "experiment" not in good or good["config"] != line["config"]:
        raise ValueError(line["experiment"])
    settings = " ".join(f"{key}={value}" for key, value in good["config"].items())  # as `Case` names it
    good["case"] = f"{good.get('framework')}-{good.get('backend')} {settings}".strip()
    good["flags"] = [flag for flag in line["flags"] if flag in FLAGS]
    good |= {"software": names[line["software"]]} if line.get("software") in names else {}
    good.pop("traceback", None)
    return results_record.checked(good)


def write(folder: str | Path, notebooks: bool = False, say: Callable[[str], Any] = print) -> Path:
    """Pack what may be shared of a run into a zip beside its folder; returns where that is.

    notebooks: with the rendered notebooks as they are, after a look for names and keys. The same run makes the same
    bytes. Raises PomologyError, and writes nothing, where such a page holds something, or another zip is there.
    """
    run = results_run.Run(Path(folder))
    machine, names = shared_machine(run.machine)
    journals: dict[str, bytes] = {}
    left_out = 0
    for record in run.records:
        try:
            good = shared_record(record, names)
        except ValueError:
            left_out += 1
            continue
        line = json.dumps(good.line(), allow_nan=False, ensure_ascii=False, separators=(",", ":"))
        journals[good.experiment] = journals.get(good.experiment, b"") + f"{line}\n".encode()
    if left_out:
        say(f"{left_out} cases are left out: of a notebook or with settings that are not the kit's")
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch, "run")
        place.mkdir()
        (place / "machine.json").write_text(json.dumps(machine, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        for name, data in journals.items():
            (place / f"{name}.jsonl").write_bytes(data)
        # No text of a notebook, which its user may have changed.
        report_page.build(place, [declaration.Declaration(name) for name in sorted(journals)])
        made = {path.relative_to(place).as_posix(): path for path in place.rglob("*") if path.is_file()}
        files = {name: path.read_bytes() for name, path in made.items() if KINDS.fullmatch(name)}
    files |= _pages(run, say) if notebooks else {}
    for name in [name for name in files if name.endswith(".html")]:  # of what is not sent, no link is left
        files[name] = report_page.links_into(files[name].decode(), files).encode()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, data in sorted(files.items()):
            # Dated 1980, as all of them: when it was packed is nobody's business, nor what the run is named.
            about = zipfile.ZipInfo(f"run/{name}")
            about.create_system, about.external_attr = 3, 0o100644 << 16
            archive.writestr(about, data, zipfile.ZIP_DEFLATED, 9)
    target = run.path.resolve().with_name(f"{run.path.resolve().name}.zip")
    open_zip(target.name, packed)  # what others would refuse is not sent to them
    if target.exists() and target.read_bytes() != packed.getvalue():
        raise PomologyError(f"{target.name}: is there already, with something else in it; move it away first")
    write_atomic(target, packed.getvalue())
    return target


def _pages(run: results_run.Run, say: Callable[[str], Any]) -> dict[str, bytes]:
    """The rendered notebooks of a run, by name."""
    pages = [page for page in sorted(run.path.glob("*.html")) if page.name != "index.html"]
    say(f"with what these notebooks printed, as it is: {', '.join(page.stem for page in pages) or 'none'}")
    say("they are searched for names and keys, and no search knows them all: read them before you send this zip")
    for page in pages:
        if not KINDS.fullmatch(page.name) or page.is_symlink() or not page.is_file():
            raise PomologyError(f"{page.name}: is no file of a run; nothing was written")
        if what := found_in(read_file(page).decode("utf-8", "replace")):
            raise PomologyError(f"{page.name}: holds {what}; share the run without notebooks; nothing was written")
    return {page.name: page.read_bytes() for page in pages}


def own_names() -> dict[str, str]:
    """What this machine is called, and who uses it: text -> what it is. For pages that are shared as they are."""
    named: dict[str, str] = {}
    for what, ask in (("user name", getpass.getuser), ("name", socket.gethostname)):
        with contextlib.suppress(KeyError, OSError):  # an account without a name
            named[ask().partition(".")[0]] = f"this machine's {what}"
    named |= {str(folder): "a folder of this machine" for folder in (Path(os.path.expanduser("~")), root())}
    hidden = (value for name, value in os.environ.items() if re.search(r"TOKEN(?!IZERS)|SECRET|PASSW|_KEY$", name))
    named |= dict.fromkeys(hidden, "a secret of this machine's environment")
    return {text: what for text, what in named.items() if len(text) > 3 and text not in NOBODY}


def found_in(page: str) -> str | None:
    """What names this machine or looks like a key in a rendered page, decoded as a reader sees it; None for nothing."""
    page = unquote(html.unescape(re.sub(r"data:image/(?:png|jpeg);base64,[\w+/=\s]*", "", page)))
    escaped = re.sub(r"\\u([0-9a-f]{4})|\\x([0-9a-f]{2})", lambda of: chr(int(of[1] or of[2], 16)), page)
    text = re.sub(r"<[^<>]*>", "", page)
    for name, what in own_names().items():
        if any(name.lower() in reading.lower() for reading in (page, escaped, text)):
            return what
    for what, pattern in PRIVATE.items():
        if any(re.search(pattern, reading, re.IGNORECASE) for reading in (escaped, re.sub(r"<[^<>]*>", " ", page))):
            return what
    from detect_secrets.core.scan import scan_line
    from detect_secrets.settings import default_settings

    with default_settings() as settings:
        settings.disable_plugins("Base64HighEntropyString", "HexHighEntropyString")  # numbers and commits
        for line in dict.fromkeys(re.findall(r".{1,300}", text)):  # of a longer one it would take minutes
            for secret in scan_line(line):
                return f"what may be a key ({secret.type})"
    return None
