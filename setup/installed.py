"""Check installed packages against pins: python setup/installed.py REQUIREMENTS.

Prints the first difference as one line and exits with 1, or with 0 if there is none. A release with
a local label, such as PyTorch's 2.14.1+cpu, satisfies the pin of 2.14.1.
"""

import sys
from importlib import metadata
from pathlib import Path


def differences(lines: list[str]) -> list[str]:
    """Return the pinned packages that are missing or have another version, as sentences."""
    from packaging.requirements import Requirement

    texts = []
    for line in lines:
        if "==" not in line:
            continue
        pin = Requirement(line.split(" --hash")[0])
        if pin.marker and not pin.marker.evaluate():
            continue
        try:
            version = metadata.version(pin.name)
        except metadata.PackageNotFoundError:
            texts.append(f"{pin.name} is missing")
            continue
        if version not in pin.specifier:
            texts.append(f"{pin.name} is {version} in place of {pin.specifier}")
    return texts


def main(path: str) -> None:
    """Exit with 1 after a line about the first difference, if there is any."""
    try:
        texts = differences(Path(path).read_text(encoding="utf-8").splitlines())
    except ImportError as error:
        texts = [f"{error.name} is missing"]
    if texts:
        others = f", and {len(texts) - 1} other packages differ" if len(texts) > 1 else ""
        sys.exit(texts[0] + others)


if __name__ == "__main__":
    main(sys.argv[1])
