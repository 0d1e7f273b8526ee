"""requirements.txt pins the dependencies of pyproject.toml on macOS and Linux."""

import itertools
import re
import sys
import tomllib

import pytest
from packaging.requirements import Requirement

from pomology.paths import root

sys.path.insert(0, str(root() / "setup"))
import lock

PROJECT = tomllib.loads((root() / "pyproject.toml").read_text(encoding="utf-8"))["project"]
TEXT = (root() / "requirements.txt").read_text(encoding="utf-8")
LOCK = [line for line in TEXT.splitlines() if line[0] != "#"]
LINE = re.compile(r"\S+==\S+( ; [^#]+?)?( --hash=sha256:[0-9a-f]{64})+")
SYSTEMS = {"darwin": ("Darwin", "arm64"), "linux": ("Linux", "x86_64")}


@pytest.mark.parametrize(
    ("system", "python"), [*itertools.product(SYSTEMS, ("3.11", "3.12", "3.13"))]
)
def test_it_pins_all_dependencies(system, python):
    """One version of each package in six environments, with the right packages per system."""
    platform, machine = SYSTEMS[system]
    values = {"sys_platform": system, "platform_system": platform, "platform_machine": machine}
    values |= {"python_version": python, "python_full_version": f"{python}.9", "extra": ""}
    values |= {"implementation_name": "cpython", "platform_python_implementation": "CPython"}

    def wanted(lines: list[str]) -> list[Requirement]:
        found = [Requirement(line.split(" --hash")[0]) for line in lines]
        return [item for item in found if not item.marker or item.marker.evaluate(values)]

    locked = {item.name: str(item.specifier).removeprefix("==") for item in wanted(LOCK)}
    assert all(LINE.fullmatch(line) for line in LOCK)
    for item in wanted(PROJECT["dependencies"] + PROJECT["optional-dependencies"]["run"]):
        assert item.specifier.contains(locked[item.name]), item
    mac, old = system == "darwin", python != "3.13"
    assert locked["tensorflow"] == ("2.16.2" if old else "2.21.0")
    assert ("tensorflow-metal" in locked, "mlx-metal" in locked) == (mac and old, mac)
    assert ("nvidia-ml-py" in locked) is not mac
    assert not mac or not [name for name in locked if name.startswith(("nvidia-", "cuda-"))]
    # Packages with a second OpenMP library next to PyTorch's, and packages of extras.
    for name in ("scikit-learn", "zeus", "distributed", "asyncssh", "s3fs", "mlx-cuda-13"):
        assert name not in locked


def test_it_has_the_hashes_of_matching_wheels_and_a_missing_wheel_ends_it():
    fitting = ["cp311-cp311-macosx_14_0_arm64", "cp312-cp312-macosx_14_0_arm64"]
    fitting += ["cp312-abi3-macosx_14_0_arm64", "py3-none-any"]
    fitting += ["cp38-abi3-manylinux_2_17_x86_64.manylinux2014_x86_64"]

    def package(ends: list[str]) -> dict:
        wheels = [{"url": f"https://x/x-1.0-{end}.whl", "hashes": {"sha256": end}} for end in ends]
        return {"name": "x", "version": "1.0", "wheels": wheels}

    hashes = " ".join(f"--hash=sha256:{end}" for end in sorted(fitting))
    too_new = "cp313-cp313-macosx_26_0_arm64"
    assert lock.line(package([*fitting, too_new]), []) == f"x==1.0 {hashes}"
    with pytest.raises(SystemExit, match=r"^x==1.0 has no wheel for "):
        lock.line(package(fitting[:2]), [])
