"""Writes wheels-macos.txt and hashes.txt for `make lock`. Needs uv and Python 3.11, nothing else.

wheels-macos.txt has a line for every pin of the Mac, `name==version  the wheel that it gets`: uv resolves the pins for
macOS 14 on Apple silicon, the oldest that PyTorch runs on, from wheels alone, and fails in its own words if a pin has
none. File names only, since registries differ. hashes.txt has what `make env` installs, with the hashes of all wheels
that fit a platform of the lock; without PyTorch on Linux and its CUDA, of which a build for CPUs only has other hashes,
and without the extra `offload`, whose DeepSpeed has no wheel.
"""

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable

PYTHONS = ("3.11.0", "3.11.99")  # the first and the last: some pins hold for later releases of 3.11 only
UNHASHED = re.compile(r"torch$|triton$|cuda-|nvidia-(?!ml-py)")
FITS = re.compile(r"-(py2\.py3-none|py3\d*-none|cp311-cp311|cp3([6-9]|1[01])-abi3)-(any|macosx|manylinux)[^-]*\.whl$")


def rank(wheel: str) -> tuple:
    """The lower, the sooner pip takes it, among wheels that all fit."""
    return wheel.endswith("-any.whl"), "universal2" in wheel, not re.search(r"-(cp|py)311-", wheel)


def lines(pylock: str) -> list[str]:
    """A line for every package of a pylock.toml."""
    found = []
    for package in tomllib.loads(pylock)["packages"]:
        names = [wheel["url"].rsplit("/", 1)[-1] for wheel in package["wheels"]]
        found.append(f"{package['name']}=={package['version']}  {min(names, key=rank)}")
    return found


def hashed(pylock: str, names: set[str]) -> list[str]:
    """A line for pip's hash-checking mode for every package of these names in a pylock.toml for all platforms."""
    found = []
    for package in tomllib.loads(pylock)["packages"]:
        name, marker = package["name"], package["marker"]
        if name in names and not (UNHASHED.match(name) and "darwin" not in marker):
            digests = [each["hashes"]["sha256"] for each in package["wheels"] if FITS.search(each["url"])]
            hashes = " ".join(f"--hash=sha256:{digest}" for digest in sorted(digests))
            found.append(f"{name}=={package['version']} ; {marker} {hashes}")
    return found


def uv(*arguments: str) -> str:
    """What `uv pip compile` prints."""
    command = ["uv", "pip", "compile", "--quiet", *arguments]
    environment = os.environ | {"MACOSX_DEPLOYMENT_TARGET": "14.0"}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} found nothing that fits; uv says why")
    return done.stdout


def write(path: str, lines: Iterable[str]) -> None:
    with open(path, "w", encoding="utf-8", newline="") as file:
        file.write("".join(f"{line}\n" for line in sorted(lines)))


if __name__ == "__main__":
    pins = ("constraints.txt", "--no-deps", "--format", "pylock.toml")
    mac = ("--only-binary", ":all:", "--python-platform", "aarch64-apple-darwin", "--python-version")
    write("wheels-macos.txt", {line for python in PYTHONS for line in lines(uv(*pins, *mac, python))})
    every = ("--universal", "--python-version", "3.11")
    plain = ("--extra", "dev", "-c", "constraints.txt", "--no-header", "--no-annotate", "--no-emit-index-url")
    names = {line.split("==")[0] for line in uv("pyproject.toml", *every, *plain).splitlines()}
    write("hashes.txt", hashed(uv(*pins, *every), names))
