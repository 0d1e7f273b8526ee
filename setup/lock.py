"""Write requirements.txt for `make lock`: all packages of pyproject.toml with pins and hashes.

uv resolves all extras together for CPython 3.11 to 3.13 on macOS 14 (arm64) and Linux (x86-64).
Each line has the hashes of the wheels that fit these six environments. The packages of every
installation, and those of `run`, which the notebooks need, have no extra in their markers. A
package that only another extra needs has `extra == 'name'`. pip and uv read that as false, so that
`pip install -r requirements.txt` installs the packages of the notebooks only. setup/environment.sh
enables these lines for the requested extras. The script stops with one line if a pin has no wheel.
"""

import subprocess
import sys
import tomllib
from itertools import product
from pathlib import Path

from packaging.markers import Marker
from packaging.tags import compatible_tags, cpython_tags, mac_platforms
from packaging.utils import parse_wheel_filename

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements.txt"
NOTEBOOKS = "run"  # the extra of pyproject.toml that every environment for notebooks has
PYTHONS = ("3.11", "3.12", "3.13")
SYSTEMS = {
    "darwin": {"platform_machine": "arm64", "platform_system": "Darwin"},
    "linux": {"platform_machine": "x86_64", "platform_system": "Linux"},
}
HEADER = "# Written by `make lock`: Python 3.11 to 3.13 on macOS arm64 and Linux x86-64.\n"
GLIBC = (17, 28, 31, 34, 35)  # minor versions in the manylinux tags of the pinned wheels


def pylock(*arguments: str) -> list[dict]:
    """Return the packages that `uv pip compile` resolves, as PEP 751 describes them."""
    command = [
        *("uv", "pip", "compile", "--quiet", "--universal", "--python-version", "3.11"),
        *("--format", "pylock.toml", "--no-header", *arguments, "pyproject.toml"),
    ]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit("uv found no compatible set of versions; its message is above")
    return tomllib.loads(done.stdout)["packages"]


def tags(system: str, python: str) -> set:
    """Return the wheel tags of CPython on macOS 14 arm64, or on Linux x86-64 with glibc 2.35."""
    version = tuple(int(part) for part in python.split("."))
    if system == "darwin":
        platforms = list(mac_platforms((14, 0), "arm64"))
    else:
        platforms = [
            *(f"manylinux_2_{minor}_x86_64" for minor in range(5, GLIBC[-1] + 1)),
            *("manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64"),
        ]
    interpreter = "cp" + python.replace(".", "")
    fitting = set(cpython_tags(version, platforms=platforms))
    return fitting | set(compatible_tags(version, interpreter, platforms))


TAGS = {(system, python): tags(system, python) for system, python in product(SYSTEMS, PYTHONS)}


def holds(marker: Marker, system: str, python: str, release: str) -> bool:
    """Return whether a marker is true for a release of CPython such as "3.11.99"."""
    values = {
        **SYSTEMS[system],
        "sys_platform": system,
        "os_name": "posix",
        "python_version": python,
        "python_full_version": release,
        "platform_python_implementation": "CPython",
        "implementation_name": "cpython",
    }
    return marker.evaluate(values)


def environments(package: dict) -> tuple[set[tuple[str, str]], bool]:
    """Return the (system, Python) pairs of a package, and whether patch releases differ."""
    if "marker" not in package:
        return set(TAGS), False
    # A marker may name a patch release, so that the first and the last one of a Python differ.
    marker = Marker(package["marker"])
    first = {
        (system, python) for system, python in TAGS if holds(marker, system, python, f"{python}.0")
    }
    last = {
        (system, python) for system, python in TAGS if holds(marker, system, python, f"{python}.99")
    }
    return first | last, first != last


def python_marker(pythons: set[str]) -> str:
    """Return the marker that is true for these Pythons, "" for all of them."""
    if pythons == set(PYTHONS):
        return ""
    return " or ".join(f"python_version == '{python}'" for python in sorted(pythons))


def system_marker(pairs: set[tuple[str, str]]) -> str:
    """Return the shortest marker that is true in these environments only, "" for all six."""
    pythons = {system: {python for name, python in pairs if name == system} for system in SYSTEMS}
    if pythons["darwin"] == pythons["linux"]:
        return python_marker(pythons["linux"])
    parts = []
    for system in sorted(SYSTEMS):
        if not pythons[system]:
            continue
        part = f"sys_platform == '{system}'"
        rest = python_marker(pythons[system])
        if rest:
            part += f" and ({rest})"
        parts.append(part)
    if len(parts) == 1:
        return parts[0]
    return " or ".join(f"({part})" for part in parts)


def hashes(package: dict, pairs: set[tuple[str, str]]) -> list[str]:
    """Return the hashes of the matching wheels. Exits if an environment has none."""
    name, version = package["name"], package["version"]
    digests = set()
    missing = set(pairs)
    for wheel in package.get("wheels", []):
        wheel_tags = parse_wheel_filename(wheel["url"].rsplit("/", 1)[-1])[3]
        for pair in pairs:
            if wheel_tags & TAGS[pair]:
                digests.add(wheel["hashes"]["sha256"])
                missing.discard(pair)
    if missing:
        sys.exit(f"{name}=={version} has no wheel for {sorted(missing)}")
    return sorted(digests)


def line(package: dict, extras: list[str]) -> str:
    """Return a requirement with marker and hashes. extras: those that need it; [] for all users."""
    pairs, patch_release_decides = environments(package)
    marker = package["marker"] if patch_release_decides else system_marker(pairs)
    if extras:
        extra_marker = " or ".join(f"extra == '{extra}'" for extra in extras)
        marker = f"({extra_marker}) and ({marker})" if marker else extra_marker
    digests = " ".join(f"--hash=sha256:{digest}" for digest in hashes(package, pairs))
    requirement = f"{package['name']}=={package['version']}"
    if marker:
        requirement += f" ; {marker}"
    return f"{requirement} {digests}"


def main() -> None:
    """Resolve the dependencies with and without each optional extra, and write the lock."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"].keys() - {NOTEBOOKS}
    # All extras are resolved together, so that each set of them has the same versions. These are
    # constraints of the further calls, which only say what an extra needs.
    everything = pylock("--all-extras")
    pins = ROOT / ".pins.txt"
    constraints = []
    for package in everything:
        marker = package.get("marker", "python_version > '3'")
        constraints.append(f"{package['name']}=={package['version']} ; {marker}\n")
    pins.write_text("".join(constraints), encoding="utf-8")
    try:
        needed = {
            extra: {package["name"] for package in pylock("-c", pins.name, "--extra", extra)}
            for extra in sorted(extras)
        }
        base = {package["name"] for package in pylock("-c", pins.name, "--extra", NOTEBOOKS)}
    finally:
        pins.unlink()
    lines = []
    for package in everything:
        name = package["name"]
        if name == "pomology":
            continue
        if name in base:
            lines.append(line(package, []))
        else:
            lines.append(line(package, [extra for extra in needed if name in needed[extra]]))
    text = "".join(f"{requirement}\n" for requirement in sorted(lines))
    LOCK.write_text(HEADER + text, encoding="utf-8")
    print(f"{LOCK.name}: {len(lines)} packages")


if __name__ == "__main__":
    main()
