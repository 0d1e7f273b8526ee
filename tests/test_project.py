"""The project around the code: imports, Makefile, lock, and what may not be in a public repository."""

from __future__ import annotations

import importlib.util
import itertools
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "lib" / "pomology"
sys.path.insert(0, str(ROOT / "setup"))
import lock  # noqa: E402

FRAMEWORKS = (
    "torch",
    "tensorflow",
    "keras",
    "mlx",
    "lightning",
    "transformers",
    "peft",
    "datasets",
    "jax",
    "sklearn",
)
# What takes longer to import than an answer may take.
HEAVY = (
    *FRAMEWORKS,
    "numpy",
    "pandas",
    "matplotlib",
    "papermill",
    "nbformat",
    "nbclient",
    "IPython",
    "jinja2",
)


# Imports --------------------------------------------------------------------------------------------------------------


def test_answers_load_little_and_modules_load_no_framework():
    """Frameworks are for calls, not for imports, but for shared models, each of which is of one framework."""
    commands = [
        "--help",
        "list",
        "reproduce --profile=x",
        "reproduce --only=x --run=r",
        "reproduce --repeats=0",
    ]
    commands += ["report gone", "share gone", "frobnicate"]
    modules = []
    for place in sorted(PACKAGE.rglob("*.py")):
        own = re.findall(rf"^(?:import|from) ({'|'.join(FRAMEWORKS)})\b", place.read_text(), re.M)
        assert not own or ({"models", "data", "extras"} & {*place.parts} and len({*own}) == 1), (
            place
        )
        if place.name not in ("__init__.py", "__main__.py") and not own:
            modules.append(
                ".".join(("pomology", *place.relative_to(PACKAGE).with_suffix("").parts))
            )
    if importlib.util.find_spec("distributed") is None:  # `make env EXTRAS=fleet` installs it
        modules = [name for name in modules if ".fleet" not in name]
    program = f"""
import contextlib, importlib, sys
from pomology.__main__ import main
for command in {commands}:
    with contextlib.suppress(SystemExit):
        main(command.split())
    loaded = [name for name in {HEAVY} if name in sys.modules]
    assert not loaded, f"{{command}} imports {{loaded}}"
for module in {modules}:
    importlib.import_module(module)
    loaded = [name for name in {FRAMEWORKS} if name in sys.modules]
    assert not loaded, f"{{module}} imports {{loaded}}"
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr


# Makefile -------------------------------------------------------------------------------------------------------------

# What GNU make 3.81, or the tools of macOS, do not have or do differently.
NOT_ON_A_MAC = {
    r"\.ONESHELL|\.SHELLFLAGS|\bundefine\b": "make 3.82",
    r"&\s*:|^\w+\s*!=|:{2,3}=|\$\((file|let|intcmp) ": "make 4",
    r"\bsed\s+(-\w+\s+)*-i|\b(sed|grep)\s.*\\(t|s|w|\+|\|)|\bgrep\s+-\w*P|\bsed\s+-r": "BSD grep and sed",
    r"\b(realpath|timeout|nproc|tac|shuf|sha256sum|md5sum|free|gsed)\b|\breadlink\s+-f": "not on macOS",
    r"\bxargs\s+-\w*r|\bdate\s+-(d|-date)|\bcp\s+--|\brm\s+--|\bmkdir\s+--|\btouch\s+--": "BSD tools",
    r"\[\[|\bsource\s|<<<": "bash; make runs sh",
}


def test_makefile_keeps_to_make_3_81_and_to_the_tools_of_macos():
    def faults(text: str) -> list[str]:
        lines = [
            line if line.startswith("\t") else line.split("#")[0] for line in text.splitlines()
        ]
        return [
            why
            for line in lines
            for pattern, why in NOT_ON_A_MAC.items()
            if re.search(pattern, line)
        ]

    assert faults((ROOT / "Makefile").read_text(encoding="utf-8")) == []
    assert faults("all:\n\tsed -E 's/a\\+/b/' file\n\tmake -j $$(nproc)") == [
        "BSD grep and sed",
        "not on macOS",
    ]


def test_every_target_is_phony_and_what_workflows_call_is_there():
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z]+):.*## ", text, re.MULTILINE))
    assert targets <= set(re.search(r"^\.PHONY:(.*)$", text, re.MULTILINE)[1].split())
    workflows = "\n".join(
        path.read_text(encoding="utf-8") for path in (ROOT / ".github/workflows").glob("*.yml")
    )
    assert set(re.findall(r"run: make (\w+)", workflows)) <= targets
    extras = {
        extra for words in re.findall(r'EXTRAS="([^"]+)"', workflows) for extra in words.split()
    }
    assert extras <= set(PROJECT["optional-dependencies"])


# Dependencies and their lock ------------------------------------------------------------------------------------------

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
LOCK = [
    line
    for line in (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    if line[0] != "#"
]


@pytest.mark.parametrize(
    ("system", "python"), [*itertools.product(("darwin", "linux"), ("3.11", "3.12", "3.13"))]
)
def test_lock_pins_what_the_project_asks_for(system, python):
    """One version each, on six environments; and of two systems' packages the right one."""
    names = {"darwin": ("Darwin", "arm64"), "linux": ("Linux", "x86_64")}[system]
    values = {
        "sys_platform": system,
        "platform_system": names[0],
        "platform_machine": names[1],
        "extra": "",
    }
    values |= {
        "python_version": python,
        "python_full_version": f"{python}.9",
        "implementation_name": "cpython",
    }
    values |= {"platform_python_implementation": "CPython", "os_name": "posix"}

    def of(lines: list[str]) -> list[Requirement]:
        found = [Requirement(line.split(" --hash")[0]) for line in lines]
        return [item for item in found if not item.marker or item.marker.evaluate(values)]

    locked = {item.name: str(item.specifier).removeprefix("==") for item in of(LOCK)}
    for item in of(PROJECT["dependencies"]):
        assert item.specifier.contains(locked[item.name]), item
    mac, old = system == "darwin", python != "3.13"
    assert locked["tensorflow"] == ("2.16.2" if old else "2.21.0")
    assert ("tensorflow-metal" in locked, "mlx-metal" in locked) == (mac and old, mac)
    assert ("nvidia-ml-py" in locked) is not mac
    assert not (
        mac and {name for name in locked if name.startswith(("nvidia-", "cuda-", "triton"))}
    )
    # A second OpenMP next to PyTorch's, and what brings it; what only an extra needs.
    assert (
        not {"scikit-learn", "zeus", "distributed", "asyncssh", "s3fs", "mlx-cuda-13"}
        & locked.keys()
    )


def test_every_line_of_the_lock_has_hashes_and_nothing_else():
    for line in LOCK:
        assert re.fullmatch(r"\S+==\S+( ; [^#]+?)?( --hash=sha256:[0-9a-f]{64})+", line), line


WHEELS = (
    "cp311-cp311-macosx_14_0_arm64",
    "cp312-cp312-macosx_14_0_arm64",
    "cp312-abi3-macosx_14_0_arm64",
)
WHEELS += (
    "cp313-cp313-macosx_26_0_arm64",
    "cp38-abi3-manylinux_2_17_x86_64.manylinux2014_x86_64",
    "py3-none-any",
)


def package(*ends: str) -> dict:
    wheels = [{"url": f"https://x/x-1.0-{end}.whl", "hashes": {"sha256": end}} for end in ends]
    return {"name": "x", "version": "1.0", "wheels": wheels}


def test_the_lock_takes_the_hashes_of_the_wheels_that_fit_and_a_missing_one_ends_it():
    hashes = " ".join(f"--hash=sha256:{end}" for end in sorted(WHEELS[:3] + WHEELS[4:6]))
    assert lock.line(package(*WHEELS), []) == f"x==1.0 {hashes}"
    with pytest.raises(SystemExit, match=r"^x==1.0 has no wheel for "):
        lock.line(package(*WHEELS[:2]), [])


# The repository -------------------------------------------------------------------------------------------------------

# Spelt so that this file does not hold them itself.
FORBIDDEN = {
    r"\.\./" + "shared": "a folder beside the repository",
    # But for people whom tests invent.
    r"/(?:home|Users|work|root|opt(?!/homebrew))/(?!(?:jo|john|jane|you)\b)\w": "a path of somebody's machine",
    r"https?://[^/\s\"'<>)]*(?:pypi|pythonhosted|registry|mirror|artifactory|nexus|devpi)": "a package registry",
    r"(?<!no-emit-)\bindex-" + r"url|find-" + "links|trusted-" + "host": "a package registry",
}


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no checkout with git")
def test_no_file_names_this_machine_or_a_registry_and_no_two_differ_only_by_case():
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    names = [
        name for name in listed.stdout.decode().split("\0") if name and (ROOT / name).is_file()
    ]
    for name in names:
        text = (ROOT / name).read_bytes().decode("utf-8", errors="replace")
        found = [why for pattern, why in FORBIDDEN.items() if re.search(pattern, text)]
        assert not found, f"{name}: {found}"
    places = {*names, *(str(parent) for name in names for parent in Path(name).parents)}
    assert len({place.casefold() for place in places}) == len(places)  # on a Mac they would be one
