"""An environment for each version of a package: the kit's own, where uv replaces that package.

A version is a requirement, as `torch==2.13.0`.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from pomology.errors import PomologyError
from pomology.format import one_line
from pomology.paths import redact, root

LEFT_OUT = ("pomology",)  # it comes from the checkout


def parse(text: str) -> list[str]:
    """Return the versions that VERSIONS names.

    Raises:
        PomologyError: unless these are at least two versions of one package that the kit has.
    """
    versions = []
    for word in text.split():
        match = re.fullmatch(r"([A-Za-z0-9][\w.-]*)==([0-9][A-Za-z0-9.+]*)", word)
        if not match:
            raise PomologyError(f"VERSIONS: {one_line(word)}: must read package==version")
        versions.append(f"{canonicalize_name(match[1])}=={match[2]}")
    packages = {version.partition("==")[0] for version in versions}
    if len(packages) != 1 or len(set(versions)) < max(2, len(versions)):
        raise PomologyError("VERSIONS: must name two or more different versions of one package")
    if not packages <= installed().keys():
        raise PomologyError(f"VERSIONS: the kit does not install {packages.pop()}")
    return versions


def find_uv() -> str:
    """Return the path of uv: on PATH, or where setup/environment.sh installs it."""
    place = shutil.which("uv") or shutil.which(root() / ".venv-uv" / "bin" / "uv")
    if not place:
        raise PomologyError("VERSIONS: needs uv, which is not installed; pipx install uv")
    return place


def installed() -> dict[str, str]:
    """Return what the kit's own environment has: package -> number of its version."""
    found = {canonicalize_name(each.name): each.version for each in metadata.distributions()}
    return {name: found[name] for name in sorted(found) if name not in LEFT_OUT}


def requirements(version: str) -> tuple[list[str], list[str]]:
    """Return what is installed first, as the kit has it, and what is resolved then.

    uv keeps what is installed wherever the version allows it. So other packages change only
    where they must, as torchvision does with torch.
    """
    package, _, number = version.partition("==")
    own = installed()
    own_number = own.pop(package)
    kept = [f"{name}=={own[name]}" for name in own]
    # Some packages come in parts, all of one version: mlx with mlx-metal.
    parts = [Requirement(text) for text in metadata.requires(package) or ()]
    parts = [canonicalize_name(part.name) for part in parts if part.specifier == f"=={own_number}"]
    return kept, [version, *(f"{name}=={number}" if name in parts else name for name in own)]


def python_of(version: str) -> Path:
    """Return the interpreter of a version's environment."""
    return root() / ".venv-matrix" / folder_name(version) / "bin" / "python"


def folder_name(version: str) -> str:
    return version.replace("==", "-").replace("+", "-")


def variables() -> dict[str, str]:
    """Return the variables of a process that takes packages from one environment alone."""
    kept = {name: os.environ[name] for name in os.environ if not name.startswith("PYTHON")}
    return kept | {"PYTHONPATH": str(root() / "lib")}


def make(version: str, uv: str) -> None:
    """Make the environment of a version, unless it is there.

    Raises:
        PomologyError: where it cannot be installed, with the last words of uv.
    """
    python = python_of(version)
    folder = python.parents[1]
    kept, resolved = requirements(version)
    complete = folder / "complete.json"  # written last
    required = json.dumps([kept, resolved])
    if complete.exists() and complete.read_text(encoding="utf-8") == required:
        return
    shutil.rmtree(folder, ignore_errors=True)
    install = [uv, "pip", "install", "--quiet", "--no-build", "--python", python]
    if "+cpu" in installed()["torch"]:
        install += ["--torch-backend", "cpu"]
    make_folder = [uv, "venv", "--quiet", "--python", sys.executable, folder]
    for command in (make_folder, [*install, "--no-deps", *kept], [*install, *resolved]):
        ended = subprocess.run(command, env=variables(), capture_output=True, text=True)
        if ended.returncode:
            reason = re.sub(r"[^\x21-\x7e]+", " ", redact(ended.stderr))[-700:]
            raise PomologyError(f"VERSIONS: {version} cannot be installed:{reason}")
    complete.write_text(required, encoding="utf-8")
