"""An environment for each version of a package: the kit's own, with that one line replaced.

They are in `.venv-matrix/`, each under the hash of what is asked of it. The others get what the kit's own environment
has, to the build (`2.13.0+cpu`), so that a build for CPUs is not replaced by another one.
"""

import difflib
import hashlib
import json
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import threading
import time
import tomllib
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import filelock
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from pomology.errors import PomologyError
from pomology.format import one_line
from pomology.paths import redact, root

FOLDER, READY, PYTHON = ".venv-matrix", ".ready", "python"
EXAMPLE = "as torch==2.13.0 torch==2.14.1"
MOST = 20  # versions

# Run by an environment's own Python: imports what a package has, and says what is installed.
CHECK = """
import importlib, json, platform, re, sys
from importlib import metadata
spelt = lambda name: re.sub(r"[-_.]+", "-", name).lower()
had = {spelt(each.metadata["Name"]): each.version for each in metadata.distributions()}
modules = [top for top, owners in metadata.packages_distributions().items() if sys.argv[1] in map(spelt, owners)]
for module in [top for top in modules if spelt(top) == sys.argv[1]] or [top for top in modules if top.isidentifier()]:
    importlib.import_module({"mlx": "mlx.core"}.get(module, module))
print(json.dumps(had | {"python": platform.python_version()}))
"""

Run = Callable[[Sequence[str | Path]], tuple[int, list[str]]]  # a command -> its status, and the lines that it printed


class Wanted(NamedTuple):
    """A version of a package, or of `python`. arm: its number where it is asked for twice, which measures nothing but
    how much two of a kind differ."""

    package: str
    version: str
    arm: int = 1

    @property
    def label(self) -> str:
        return f"{self.package} {self.version}" + (f" ({self.arm})" if self.arm > 1 else "")

    @property
    def name(self) -> str:
        """Of its run's folder."""
        return f"{self.package}-{self.version.replace('+', '-')}" + (f"-{self.arm}" if self.arm > 1 else "")


class Unusable(Exception):
    """Why a version cannot be measured: it cannot be installed, or does not import."""


def parse(versions: str) -> list[Wanted]:
    """What VERSIONS asks for. Raises PomologyError, in one line, before anything is installed."""
    own, wanted = installed(), []
    for word in versions.split():
        match = re.fullmatch(r"([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)==([A-Za-z0-9.+!]+)", word)
        try:
            name, version = canonicalize_name(match[1]), Version(match[2])
        except (TypeError, InvalidVersion):
            raise PomologyError(f"VERSIONS: {one_line(word)!r} must read package==version, {EXAMPLE}") from None
        if name not in own:
            near = " or ".join(difflib.get_close_matches(name, own)) or "torch, tensorflow, mlx, numpy or python"
            raise PomologyError(f"VERSIONS: {word}: the kit has no package {name!r}; perhaps {near}")
        if name == PYTHON and len(version.release) != 3:
            raise PomologyError(f"VERSIONS: {word}: must name a release of Python, as python==3.12.1")
        build = Version(own[name]).local
        text = f"{version}+{build}" if build and not version.local else str(version)
        wanted.append(Wanted(name, text, 1 + sum(each[:2] == (name, text) for each in wanted)))
    if not 2 <= len(wanted) <= MOST:
        raise PomologyError(f"VERSIONS={one_line(versions)}: must name from 2 to {MOST} versions, {EXAMPLE}")
    if len(names := {each.package for each in wanted}) > 1:
        raise PomologyError(f"VERSIONS: names {' and '.join(sorted(names))}; must be versions of one package")
    return wanted


def installed() -> dict[str, str]:
    """What the kit's own environment has, Python included: name -> version."""
    places = list(dict.fromkeys(map(sysconfig.get_path, ("purelib", "platlib"))))
    packages = {canonicalize_name(each.name): each.version for each in metadata.distributions(path=places)}
    packages.pop("pomology", None)  # every environment runs the kit of this checkout
    return packages | {PYTHON: platform.python_version()}


def lines(wanted: Wanted, free: Sequence[str] = ()) -> tuple[list[str], list[str]]:
    """Requirements and constraints of an environment: what pyproject.toml names, as the kit's own has it, but for the
    version that is wanted; and the rest of what the kit's own has. free: packages of which any version will do."""
    own = installed() | {wanted.package: wanted.version}
    with open(root() / "pyproject.toml", "rb") as file:
        named = map(Requirement, tomllib.load(file)["project"]["dependencies"])
    here = [each for each in named if each.marker is None or each.marker.evaluate()]
    extras = {canonicalize_name(each.name): f"[{','.join(sorted(each.extras))}]" * bool(each.extras) for each in here}
    extras = {wanted.package: ""} | extras  # also what only another package requires
    pins = {name: "" if name in free else f"=={version}" for name, version in sorted(own.items()) if name != PYTHON}
    asked = [f"{name}{extras[name]}{pin}" for name, pin in pins.items() if name in extras]
    return asked, [f"{name}{pin}" for name, pin in pins.items() if pin and name not in extras]


def key(wanted: Wanted) -> str:
    """The name of its environment: 12 digits, others where anything in it would be another version."""
    python = wanted.version if wanted.package == PYTHON else platform.python_version()
    asked = [python, platform.machine(), *lines(wanted)]
    return hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:12]


def python_of(wanted: Wanted) -> Path:
    return root() / FOLDER / key(wanted) / "bin" / "python"


def make(wanted: Wanted, run: Run, say: Callable[[str], None]) -> dict[str, str]:
    """Make its environment, unless it is there; returns what is installed in it. By uv where that is there, else, or
    where uv fails, as it does not ask where pip looks, by venv and pip. Raises Unusable, with the reason."""
    folder = python_of(wanted).parents[1]
    folder.parent.mkdir(exist_ok=True)
    try:
        with filelock.FileLock(folder.parent / ".lock", blocking=False):
            if not (folder / READY).exists():
                say(f"{wanted.label}: making its environment in {FOLDER}/: a few minutes, up to 4 GB")
                _install(wanted, folder, run, say)
                (folder / READY).touch()
            return _checked(wanted, folder, run)
    except filelock.Timeout:
        raise PomologyError(f"{FOLDER}/: another `pomology matrix` makes an environment there") from None


def _install(wanted: Wanted, folder: Path, run: Run, say: Callable[[str], None]) -> None:
    """What the package itself requires may be another version than the kit's only where it cannot be otherwise."""
    free = () if wanted.package == PYTHON else metadata.requires(wanted.package) or ()
    python, why = folder / "bin" / "python", ""
    for uv in (path for path in (shutil.which("uv"), "") if path is not None):
        if why:
            say(f"{wanted.label}: uv: {why}; trying pip")
        shutil.rmtree(folder, ignore_errors=True)
        base = sys.executable
        if wanted.package == PYTHON:
            base = wanted.version if uv else _python(wanted.version)
        made = [uv, "venv", "--quiet", "--python", base, folder] if uv else [base, "-m", "venv", folder]
        install = [uv, "pip", "install", "--quiet", "--compile-bytecode", "--python", python]
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
        status, printed = run(made)
        for names in ((), [canonicalize_name(Requirement(each).name) for each in free]) if not status else ():
            for name, text in zip(("requirements", "constraints"), lines(wanted, names), strict=True):
                (folder / f"{name}.txt").write_text("\n".join(text) + "\n", encoding="utf-8")
            what = ["-r", folder / "requirements.txt", "-c", folder / "constraints.txt", "--only-binary", ":all:"]
            status, printed = run([*(install if uv else pip), *what])
            if not status:
                return
        why = _reason(printed)
    raise Unusable(f"cannot be installed: {why}")


def _python(version: str) -> str:
    """An interpreter of this release, which is on the PATH or pyenv's. Raises Unusable."""
    short = "python" + ".".join(version.split(".")[:2])
    for place in (shutil.which(short), Path.home() / ".pyenv" / "versions" / version / "bin" / "python"):
        if place and Path(place).is_file():
            ask = [place, "-I", "-c", "import platform; print(platform.python_version())"]
            if subprocess.run(ask, capture_output=True, text=True, check=False).stdout.strip() == version:
                return str(place)
    raise Unusable(f"there is no Python {version} here (as {short}), and no uv that could bring it")


def _reason(printed: list[str]) -> str:
    """One line of what an installer printed: pip's first that says what is missing, or all that uv says."""
    errors = [line.removeprefix("ERROR: ") for line in printed if line.startswith("ERROR: ")]
    missing = [line for line in errors if line.startswith("No matching")]
    text = " ".join((missing or errors)[:1] or printed[-8:]) or "no message"
    return one_line(redact(" ".join(re.sub(r"[^\x20-\x7e]+", " ", text).split())), 250)


def _checked(wanted: Wanted, folder: Path, run: Run) -> dict[str, str]:
    """What is installed, when the package imports and is the version that was asked for."""
    status, printed = run([folder / "bin" / "python", "-I", "-c", CHECK, wanted.package])
    if status:
        raise Unusable(f"does not import: {_reason(printed[-1:])}")
    have = json.loads(next(line for line in reversed(printed) if line.startswith("{")))  # others may print, too
    if Version(have.get(wanted.package, "0")) != Version(wanted.version):
        raise Unusable(f"is not what was installed: that is {wanted.package} {have.get(wanted.package)}")
    return have


def command(words: Sequence[str | Path], stop: threading.Event, hear: Callable[[str], None], **more) -> int:
    """Run a command in a session of its own, and hear each line that it prints; its status. It is asked to end when
    `stop` is set, and reads the end of its input where this process ends."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    text = {"text": True, "encoding": "utf-8", "errors": "replace"}
    with subprocess.Popen([*map(str, words)], start_new_session=True, **pipes, **text, **more) as process:
        reader = threading.Thread(target=lambda: [hear(line.rstrip("\n")) for line in process.stdout], daemon=True)
        reader.start()
        asked = False
        while process.poll() is None:
            time.sleep(0.1)
            if stop.is_set() and not asked:
                asked = True
                process.terminate()
        reader.join()
        return process.returncode
