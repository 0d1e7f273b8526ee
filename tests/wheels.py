"""Writes wheels-macos.txt for `make lock`: a line for every pin of the Mac, `name==version  the wheel that it gets`.

uv resolves the pins for macOS 14 on Apple silicon, the oldest that PyTorch runs on, from wheels alone, and fails in its
own words if a pin has none. File names only, since registries differ. Needs uv and Python 3.11, nothing else.
"""

import os
import re
import subprocess
import sys
import tomllib

PYTHONS = ("3.11.0", "3.11.99")  # the first and the last: some pins hold for later releases of 3.11 only


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


def resolve(constraints: str, python: str) -> str:
    command = ["uv", "pip", "compile", constraints, "--no-deps", "--only-binary", ":all:", "--format", "pylock.toml"]
    command += ["--python-platform", "aarch64-apple-darwin", "--python-version", python]
    environment = os.environ | {"MACOSX_DEPLOYMENT_TARGET": "14.0"}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"{constraints} does not resolve for macOS 14 arm64 with Python {python}; uv says why")
    return done.stdout


if __name__ == "__main__":
    found = {line for python in PYTHONS for line in lines(resolve("constraints.txt", python))}
    with open("wheels-macos.txt", "w", encoding="utf-8", newline="") as file:
        file.write("".join(f"{line}\n" for line in sorted(found)))
