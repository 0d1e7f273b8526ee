"""The project around the code: layers, imports, Makefile, lock, and what may not be in a public repository."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import house
import lint
import make_map
import pytest
import wheels
from packaging import tags
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "lib" / "pomology"

FRAMEWORKS = ("torch", "tensorflow", "keras", "mlx", "lightning", "transformers", "peft", "datasets", "jax", "sklearn")


# What takes longer to import than an answer may take.
HEAVY = (*FRAMEWORKS, "numpy", "pandas", "matplotlib", "papermill", "nbformat", "nbclient", "IPython", "jinja2")


# Imports --------------------------------------------------------------------------------------------------------------


def test_importing_loads_no_framework_and_answers_load_little():
    """One process, all modules; pandas and matplotlib are for calls, not for imports, and so are frameworks, but for
    workloads that are of one framework only."""
    commands = ["--help", "list", "reproduce --profile=x", "reproduce --only=x --run=r", "reproduce --repeats=0"]
    commands += ["report gone", "share gone", "frobnicate"]
    places = [place for place in sorted(PACKAGE.rglob("*.py")) if place.name not in ("__init__.py", "__main__.py")]
    own = {
        place: re.findall(rf"^(?:import|from) ({'|'.join(FRAMEWORKS)})\b", place.read_text(), re.M) for place in places
    }
    torch_only = PACKAGE / "data" / "transforms.py"  # the steps of torchvision, for its loaders
    own_places = {place for place, names in own.items() if names} - {torch_only}
    assert all(place.parent.name == "workloads" and len({*own[place]}) == 1 for place in own_places)
    places = [place for place in places if not own[place] and place.name != "client.py"]  # what runs papermill
    modules = [".".join(("pomology", *place.relative_to(PACKAGE).with_suffix("").parts)) for place in places]
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
    loaded = [name for name in {[*FRAMEWORKS, "pandas", "matplotlib", "papermill"]} if name in sys.modules]
    assert not loaded, f"{{module}} imports {{loaded}}"
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stderr.splitlines()) == len(commands) - 2  # a line each, but for the help and the list


def test_nothing_in_a_module_breaks_on_a_mac():
    texts = {path.relative_to(PACKAGE).as_posix(): path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")}
    del texts["devices/known_faults.py"]  # which does what breaks there, to see whether it does
    assert [line for name, text in sorted(texts.items()) for line in lint.source(text, name)] == []


def test_each_package_imports_from_the_floors_below_it_only():
    """The contracts are in pyproject.toml."""
    command = [Path(sys.executable).with_name("lint-imports"), "--no-cache", "--no-logo"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_module_is_too_long_and_none_has_more_words_of_old_than_before():
    """House.py says how to write down that it has fewer."""
    assert house.too_long() + house.too_many_words() == []


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ('"""It lays them aside."""', ["lays", "aside"]),
        ("x = 1  # nobody told us", ["told"]),
        ("for one in items:\n    one.step()", ["the name `one`"]),
        ("def f(found, lies): ...", ["the name `found`", "the name `lies`"]),
        ('print(f"the twin of {name} is not told")', ["twin", "told"]),
        ('case["aside"] = "cannot be told here"', []),
        ("text = 'to tell rows apart, the device must be available'  # a playroom, layers", []),
    ],
)
def test_words_that_the_kit_no_longer_uses_are_named(source, words):
    assert sorted(word for _, word in house.in_module(source)) == sorted(words)
    cells = [{"cell_type": kind, "source": ["The device\n", "saw it."]} for kind in ("code", "markdown")]
    assert list(house.in_notebook({"cells": cells})) == [(1, "saw")]


def test_the_map_is_that_of_the_files():
    assert make_map.PAGE.read_text(encoding="utf-8") == make_map.page(), "run: python tests/make_map.py"


# Makefile -------------------------------------------------------------------------------------------------------------

TARGETS = (
    "reproduce",
    "test",
    "lab",
    "env",
    "lint",
    "bench",
    "report",
    "share",
    "compare",
    "matrix",
    "audit",
    "clean",
    "help",
)
# What GNU make 3.81, or the tools of macOS, do not have or do differently.
NOT_ON_A_MAC = {
    r"\.ONESHELL|\.SHELLFLAGS|\bundefine\b": "make 3.82",
    r"&\s*:": "make 4.3: grouped targets",
    r"^\w+\s*!=": "make 4.0: shell assignment",
    r":{2,3}=": "make 4.0: POSIX assignment",
    r"\$\((file|let|intcmp) ": "make 4",
    r"\bsed\s+(-\w+\s+)*-i": "BSD sed wants a suffix",
    r"\b(sed|grep)\s.*\\(t|s|w|\+|\|)": "BSD sed knows no such escapes",
    r"\bgrep\s+-\w*P|\bsed\s+-r": "BSD grep and sed",
    r"\b(realpath|timeout|nproc|tac|shuf|sha256sum|md5sum|free|gsed)\b": "not on macOS",
    r"\breadlink\s+-f": "not on older macOS",
    r"\bxargs\s+-\w*r": "BSD xargs",
    r"\bdate\s+-(d|-date)": "BSD date",
    r"\bcp\s+--|\brm\s+--|\bmkdir\s+--|\btouch\s+--": "long options",
    r"\[\[|\bsource\s|<<<": "bash; make runs sh",
}

needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
needs_git = pytest.mark.skipif(not (shutil.which("git") and (ROOT / ".git").exists()), reason="no checkout with git")


def make(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess:
    """Run make as from a fresh shell, even if these tests run under make."""
    mine = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES")
    mine += ("PROFILE", "DEVICE", "ONLY", "RUN", "RUNS", "DATA", "REPEATS", "VERSIONS", "PYTHON", "ENV", "PY")
    env = {name: value for name, value in os.environ.items() if name not in mine}
    return subprocess.run(["make", *arguments], cwd=cwd, capture_output=True, text=True, env=env, check=False)


def makefile_faults(text: str) -> list[str]:
    lines = [line if line.startswith("\t") else line.split("#")[0] for line in text.splitlines()]
    return [
        f"Makefile, line {number}: {line.strip()} ({why})"
        for number, line in enumerate(lines, start=1)
        for pattern, why in NOT_ON_A_MAC.items()
        if re.search(pattern, line)
    ]


PLANTED = {
    ".ONESHELL:": "make 3.82",
    "a b &: c": "grouped targets",
    "\tsed -i s/a/b/ file": "suffix",
    "\tsed -E 's/a\\+/b/' file": "BSD sed",
    "\tmake -j $$(nproc)": "not on macOS",
    "\t[[ -d a ]] && rm -r a": "make runs sh",
}


def test_makefile_keeps_to_make_3_81_and_to_the_tools_of_macos():
    assert makefile_faults((ROOT / "Makefile").read_text(encoding="utf-8")) == []
    for line, why in PLANTED.items():
        (fault,) = makefile_faults(f"# timeout\nall:\n{line}\n")
        assert fault.startswith("Makefile, line 3: ") and why in fault


def test_every_target_is_phony_and_what_needs_the_environment_makes_it():
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    rules = dict(re.findall(r"^([a-z$(][^:=\n]*):(?![=:])([^#\n]*)", text, re.MULTILINE))
    phony = re.search(r"^\.PHONY:(.*)$", text, re.MULTILINE)[1].split()
    assert set(TARGETS) <= set(rules) & set(phony)
    # Recipes that could run at once would measure each other.
    assert re.search(r"^\.NOTPARALLEL:\s*$", text, re.MULTILINE)
    assert [target for target in TARGETS if "$(ENV)/.ready" not in rules[target]] == ["audit", "clean", "help"]
    # What is installed follows from these.
    assert {"pyproject.toml", "constraints.txt", "hashes.txt"} <= set(rules["$(ENV)/.ready"].split())
    assert re.search(r"^make test$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)


@needs_make
def test_make_alone_lists_every_target():
    done = make()
    assert done.returncode == 0, done.stderr
    assert set(TARGETS) <= {line.split()[0] for line in done.stdout.splitlines() if line.strip()}


@needs_make
@pytest.mark.parametrize(
    ("program", "said"),
    [
        (
            "echo Traceback; echo 'ConnectionError: no network'; exit 1",
            "looked up: ConnectionError: no network",
        ),
        ("echo 'Found 1 known vulnerability in 1 package'; exit 1", "Found 1 known vulnerability"),
        ("echo 'No known vulnerabilities found'", "No known vulnerabilities found"),
    ],
)
def test_an_audit_without_network_is_a_line(tmp_path, monkeypatch, program, said):
    (tmp_path / "uv").write_text(f"#!/bin/sh\n{program}\n")
    (tmp_path / "uv").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    done = make("audit")
    assert said in done.stdout and done.stdout.count("\n") == 1 and (done.returncode != 0) == ("exit 1" in program)


# Dependencies and their lock ------------------------------------------------------------------------------------------

COMMON = {"implementation_name": "cpython", "platform_python_implementation": "CPython", "os_name": "posix"}
COMMON |= dict.fromkeys(("implementation_version", "python_full_version"), "3.11.9") | {"python_version": "3.11"}
COMMON |= {"platform_release": "", "platform_version": ""}
PLATFORMS = {
    "mac": COMMON | {"sys_platform": "darwin", "platform_system": "Darwin", "platform_machine": "arm64"},
    "linux": COMMON | {"sys_platform": "linux", "platform_system": "Linux", "platform_machine": "x86_64"},
}


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WANTED = [Requirement(line) for line in PROJECT["dependencies"] + PROJECT["optional-dependencies"]["dev"]]
LOCK = [Requirement(line) for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines() if line]


def of(requirements: list[Requirement], environment: dict[str, str]) -> list[Requirement]:
    return [item for item in requirements if not item.marker or item.marker.evaluate(environment)]


def lock(environment: dict[str, str]) -> dict[str, Version]:
    pins: dict[str, Version] = {}
    for line in of(LOCK, environment):
        (clause,) = line.specifier
        assert clause.operator == "==" and "*" not in clause.version, f"{line}: not one version"
        assert canonicalize_name(line.name) not in pins, f"{line.name}: two versions on one platform"
        pins[canonicalize_name(line.name)] = Version(clause.version)
    return pins


@pytest.mark.parametrize("platform", PLATFORMS)
def test_lock_pins_all_that_is_installed_on_a_platform(platform):
    """Followed through what the packages that are installed here say of themselves, for that platform."""
    environment, seen = PLATFORMS[platform], set()
    pins, waiting = lock(environment), [(item, "pyproject.toml") for item in of(WANTED, environment)]
    while waiting:
        item, source = waiting.pop()
        name = canonicalize_name(item.name)
        assert name in pins, f"{source} needs {item}; constraints.txt does not pin it for {platform}"
        assert item.specifier.contains(pins[name], prereleases=True), f"{source} needs {item}, not {pins[name]}"
        if (name, *sorted(item.extras)) not in seen:
            seen.add((name, *sorted(item.extras)))
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # the other platform's
                lines = list(map(Requirement, importlib.metadata.requires(name) or []))
                for extra in ("", *item.extras):
                    waiting += [(line, name) for line in of(lines, environment | {"extra": extra})]
    assert len(seen) > 80


MACS_OWN = {"tensorflow-macos", "tensorflow-metal", "mlx-metal", "zeus-apple-silicon"}


def test_lock_has_each_platforms_own_packages_and_none_that_is_unwanted():
    mac, linux = lock(PLATFORMS["mac"]), lock(PLATFORMS["linux"])
    assert mac["tensorflow-macos"] == linux["tensorflow"] == Version("2.16.2")
    assert mac["mlx-metal"] == mac["mlx"] == linux["mlx-cpu"] == linux["mlx"]
    assert (mac["torch"], linux["torch"]) == (Version("2.14.1"), Version("2.13.0"))  # pyproject.toml says why
    assert mac["pyarrow"] == linux["pyarrow"]
    assert set(mac) >= MACS_OWN and "nvidia-ml-py" in linux
    assert not MACS_OWN & (set(linux) | {canonicalize_name(item.name) for item in of(WANTED, PLATFORMS["linux"])})
    assert not {name for name in mac if name.startswith(("nvidia-", "cuda-", "triton"))}
    # A second OpenMP beside PyTorch's, what brings that, and what does not import beside a PyTorch for CPUs only.
    assert not {"scikit-learn", "zeus", "torchvision"} & {canonicalize_name(item.name) for item in LOCK}


# The oldest macOS that PyTorch's wheel runs on, with the Python of this project.
MAC_TAGS = {
    *tags.cpython_tags((3, 11), platforms=list(tags.mac_platforms((14, 0), "arm64"))),
    *tags.compatible_tags((3, 11), "cp311", list(tags.mac_platforms((14, 0), "arm64"))),
}


def wheel_faults(pins: set[tuple[str, Version]], text: str) -> list[str]:
    """What of wheels-macos.txt is missing, too much, or does not install on macOS 14 arm64."""
    listed: dict[tuple[str, Version], str] = {}
    faults = []
    for line in text.splitlines():
        pin, _, wheel = line.partition("  ")
        name, _, version = pin.partition("==")
        if listed.setdefault((canonicalize_name(name), Version(version)), wheel) != wheel:
            faults.append(f"wheels-macos.txt: {pin}: two wheels")
    for name, version in sorted(listed.keys() - pins):
        faults.append(f"wheels-macos.txt: {name}=={version}: constraints.txt has no such pin for a Mac; run make lock")
    for name, version in sorted(pins):
        try:
            *built, _, fits = parse_wheel_filename(listed.get((name, version), ""))
        except InvalidWheelFilename:
            built, fits = [], frozenset()
        if built[:2] != [name, version] or not fits & MAC_TAGS:
            faults.append(f"no wheel for macOS 14 arm64: {name}=={version}")
    return faults


def test_every_pin_of_the_mac_has_a_wheel_for_it():
    """The file names come from the registry, by `make lock`; some pins hold for one release of Python 3.11 only."""
    releases = [PLATFORMS["mac"] | {"python_full_version": release} for release in wheels.PYTHONS]
    pins = {pin for environment in releases for pin in lock(environment).items()}
    assert wheel_faults(pins, (ROOT / "wheels-macos.txt").read_text(encoding="utf-8")) == []


def test_a_pin_without_a_wheel_for_the_mac_is_refused():
    pins = {("mlx-metal", Version("0.32.4"))}
    assert wheel_faults(pins, "mlx-metal==0.32.4  mlx_metal-0.32.4-py3-none-macosx_14_0_arm64.whl\n") == []
    for end in ("4-py3-none-macosx_15_0_arm64.whl", "3-py3-none-any.whl", "4-cp312-cp312-any.whl", "4.tar.gz"):
        line = f"mlx-metal==0.32.4  mlx_metal-0.32.{end}\n"
        assert wheel_faults(pins, line) == ["no wheel for macOS 14 arm64: mlx-metal==0.32.4"], line
    (fault, _) = wheel_faults(pins, "mlx-metal==0.32.3  mlx_metal-0.32.3-py3-none-any.whl\n")
    assert fault == "wheels-macos.txt: mlx-metal==0.32.3: constraints.txt has no such pin for a Mac; run make lock"


@pytest.mark.parametrize("platform", PLATFORMS)
def test_all_that_is_installed_has_a_hash(platform):
    """But PyTorch on Linux with what it brings, and the extra `offload`."""
    pins, hashed = lock(PLATFORMS[platform]), {}
    for line in (ROOT / "hashes.txt").read_text(encoding="utf-8").splitlines():
        assert re.search("( --hash=sha256:[0-9a-f]{64})+$", line), line
        if of([item := Requirement(line.partition(" --hash")[0])], PLATFORMS[platform]):
            hashed[canonicalize_name(item.name)] = Version(next(iter(item.specifier)).version)
    offload = {"deepspeed", "einops", "hjson", "ninja", "py-cpuinfo"}
    linux = {name for name in pins if wheels.UNHASHED.match(name)} | offload if platform == "linux" else set()
    assert hashed == {name: version for name, version in pins.items() if name not in linux}
    assert not {"numpy", "setuptools", "nvidia-ml-py", "tqdm"} & linux


def test_what_builds_the_kit_is_the_lock_s(tmp_path):
    """Its one build requirement is installed before, by its hash; nothing else builds in `make env`."""
    (build,) = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["build-system"]["requires"]
    for environment in PLATFORMS.values():
        assert f"setuptools=={lock(environment)['setuptools']}" == build
    for name in ("Makefile", "pyproject.toml", "constraints.txt", "hashes.txt"):
        shutil.copyfile(ROOT / name, tmp_path / name)
    recipe = make("-n", f"PYTHON={sys.executable}", "env", cwd=tmp_path).stdout
    first, second = [line for line in recipe.splitlines() if " pip install " in line]
    assert "--no-deps --require-hashes -r hashes.txt" in first
    assert "--no-build-isolation" in second and "-c constraints.txt" in second


def test_a_lock_of_all_platforms_gives_the_hashes_of_the_wheels_that_fit():
    ends = {"a": "cp311-cp311-macosx_14_0_arm64", "b": "cp311-cp311-macosx_26_0_arm64", "d": "py3-none-any"}
    ends |= {"c": "cp38-abi3-manylinux_2_17_x86_64.manylinux2014_x86_64", "e": "cp312-cp312-macosx_14_0_arm64"}
    ends |= {"f": "cp311-cp311-musllinux_1_2_x86_64", "g": "cp312-abi3-macosx_14_0_arm64", "h": "cp313-cp313t-win32"}
    files = [f'{{url = "https://x/x-1.0-{end}.whl", hashes = {{sha256 = "{key}"}}}}' for key, end in ends.items()]
    asked = (("fast", "m"), ("unasked", "m"), ("torch", "linux"), ("torch", "darwin"), ("nvidia-nccl", "linux"))
    about = 'name = "{}"\nversion = "1.0"\nmarker = "{}"\nwheels = [{}]\n'
    text = "".join("[[packages]]\n" + about.format(*each, ", ".join(files)) for each in asked)
    hashes = " ".join(f"--hash=sha256:{digest}" for digest in "abcd")
    lines = [f"fast==1.0 ; m {hashes}", f"torch==1.0 ; darwin {hashes}"]
    assert wheels.hashed(text, {"fast", "torch", "nvidia-nccl"}) == lines


def test_what_is_installed_here_is_what_the_lock_says():
    pins, here = lock(default_environment()), sysconfig.get_path("purelib")
    # Not those inside setuptools, which puts a folder of its own on the path once it is imported.
    installed = {canonicalize_name(one.metadata["Name"]): one for one in importlib.metadata.distributions(path=[here])}
    versions = {name: Version(installed[name].version).public for name in installed.keys() & pins.keys()}
    assert versions == {name: str(pins[name]) for name in versions}


def test_conda_takes_its_packages_from_the_same_list():
    import yaml

    conda = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    *names, pip = conda["dependencies"]
    assert names == ["python=3.11", "pip"]
    assert pip == {"pip": ["-c constraints.txt", "-e ."]}
    fits = Requirement(f"python{PROJECT['requires-python']}").specifier
    assert Version("3.11.0") in fits and Version("3.12.0") not in fits


# The repository -------------------------------------------------------------------------------------------------------

# Spelt so that this file does not hold them itself.
FORBIDDEN = {
    r"\.\./" + "shared": "a folder beside the repository",
    # But for people whom tests invent.
    r"/(?:home|Users|work|root|opt(?!/homebrew))/(?!(?:jo|john|jane|you)\b)\w": "a path of somebody's machine",
    r"https?://[^/\s\"'<>)]*(?:pypi|pythonhosted|registry|mirror|artifactory|nexus|devpi)": "a package registry",
    r"(?<!no-emit-)\bindex-" + r"url|find-" + "links|trusted-" + "host": "a package registry",
}


def repository_files() -> list[str]:
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    return [name for name in listed.stdout.decode().split("\0") if name and (ROOT / name).is_file()]


@needs_git
def test_no_two_files_differ_only_by_case():
    """On a Mac they would be one, and so would folders."""
    names = repository_files()
    places = {*names, *(str(parent) for name in names for parent in Path(name).parents)}
    assert len({place.casefold() for place in places}) == len(places)


@needs_git
def test_no_file_names_this_machine_or_a_registry():
    for name in repository_files():
        text = (ROOT / name).read_bytes().decode("utf-8", errors="replace")
        for pattern, what in FORBIDDEN.items():
            found = re.search(pattern, text)
            line = text.count("\n", 0, found.start()) + 1 if found else 0
            assert not found, f"{name}, line {line}: {found[0]!r} ({what})"


@needs_git
def test_git_ignores_runs_but_not_the_reference_run():
    def ignored(name: str) -> bool:
        return subprocess.run(["git", "check-ignore", "-q", name], cwd=ROOT, check=False).returncode == 0

    assert ignored("outputs/20300101-quick/vae.jsonl")
    assert not ignored("outputs/reference-quick/index.html")
    assert ignored(".venv") and ignored("notebooks/m1_ultra_vs_rtx_2070/.ipynb_checkpoints/vae.ipynb")
