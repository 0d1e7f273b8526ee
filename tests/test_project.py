"""The project around the code: layers, imports, Makefile, lock, and what may not be in a public repository."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import itertools
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "lib" / "pomology"
sys.path.insert(0, str(ROOT / "setup"))
import lock  # noqa: E402

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
    assert all(place.parent.name == "models" and len({*own[place]}) == 1 for place in own_places)
    places = [place for place in places if not own[place] and place.name != "client.py"]  # what runs papermill
    if importlib.util.find_spec("distributed") is None:  # `make env EXTRAS=fleet` installs it
        places = [place for place in places if place.parent.name != "fleet"]
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


def test_each_package_imports_from_the_floors_below_it_only():
    """The contracts are in pyproject.toml."""
    command = [Path(sys.executable).with_name("lint-imports"), "--no-cache", "--no-logo"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


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
    mine += (
        "PROFILE",
        "DEVICE",
        "ONLY",
        "RUN",
        "RUNS",
        "DATA",
        "REPEATS",
        "VERSIONS",
        "PYTHON",
        "ENV",
        "PY",
        "EXTRAS",
        "TORCH",
    )
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
    ready = [target for target in TARGETS if not {"ready", "dev"} & set(rules[target].split())]
    assert ready == ["env", "audit", "clean", "help"]  # `env` makes it itself
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

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
LOCK = [line for line in (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines() if line[0] != "#"]
PYTHONS = ("3.11", "3.12", "3.13")
SYSTEMS = {
    "darwin": {"sys_platform": "darwin", "platform_system": "Darwin", "platform_machine": "arm64"},
    "linux": {"sys_platform": "linux", "platform_system": "Linux", "platform_machine": "x86_64"},
}
MACS_OWN = {"tensorflow-macos", "tensorflow-metal", "mlx-metal", "zeus-apple-silicon"}
environments = pytest.mark.parametrize(("system", "python"), list(itertools.product(SYSTEMS, PYTHONS)))


def environment(system: str, python: str, extra: str = "") -> dict[str, str]:
    values = {"implementation_name": "cpython", "platform_python_implementation": "CPython", "os_name": "posix"}
    values |= dict.fromkeys(("implementation_version", "python_full_version"), f"{python}.9")
    values |= {"python_version": python, "platform_release": "", "platform_version": "", "extra": extra}
    return values | SYSTEMS[system]


def of(lines: list[str], values: dict[str, str]) -> list[Requirement]:
    requirements = [Requirement(line.split(" --hash")[0]) for line in lines]
    return [item for item in requirements if not item.marker or item.marker.evaluate(values)]


def pins(system: str, python: str, *extras: str) -> dict[str, Version]:
    locked: dict[str, Version] = {}
    for extra in ("", *extras):
        for item in of(LOCK, environment(system, python, extra)):
            (clause,) = item.specifier
            assert clause.operator == "==" and "*" not in clause.version, f"{item}: not one version"
            version = Version(clause.version)
            assert locked.setdefault(canonicalize_name(item.name), version) == version, f"{item.name}: two versions"
    return locked


@environments
@pytest.mark.parametrize("extra", ["", "dev", "fleet", "store"])
def test_lock_pins_all_that_is_installed(system, python, extra):
    """Followed through what the packages that are installed here say of themselves, for that environment."""
    values, locked = environment(system, python), pins(system, python, extra)
    asked = PROJECT["dependencies"] + EXTRAS.get(extra, [])
    waiting = [(item, "pyproject.toml") for item in of(asked, values)]
    seen = set()
    while waiting:
        item, source = waiting.pop()
        name = canonicalize_name(item.name)
        assert name in locked, f"{source} needs {item}; requirements.txt does not pin it"
        # Of another version of Python a package may be locked in another release, whose needs are not known here.
        if (name, *sorted(item.extras)) in seen:
            continue
        seen.add((name, *sorted(item.extras)))
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # the other system's
            if Version(importlib.metadata.version(name)).public != str(locked[name]):
                continue
            lines = importlib.metadata.requires(name) or []
            for each in ("", *item.extras):
                waiting += [(line, name) for line in of(lines, values | {"extra": each})]
    assert len(seen) > 80


@environments
def test_lock_has_each_systems_own_packages_and_none_that_is_unwanted(system, python):
    locked = pins(system, python)
    mac, old = system == "darwin", python != "3.13"
    assert locked["tensorflow"] == Version("2.16.2" if old else "2.21.0")
    assert (locked["torch"], locked["torchvision"]) == (Version("2.14.1"), Version("0.29.1"))
    assert locked["mlx"] == locked["mlx-metal" if mac else "mlx-cpu"]
    own = {"mlx-metal", "zeus-apple-silicon"} if mac else set()
    if mac and old:
        own = MACS_OWN
    assert MACS_OWN & locked.keys() == own
    assert ("nvidia-ml-py" in locked) is not mac
    assert not (mac and {name for name in locked if name.startswith(("nvidia-", "cuda-", "triton"))})
    # A second OpenMP next to PyTorch's, and what brings it; what only an extra needs.
    assert not {"scikit-learn", "zeus", "distributed", "asyncssh", "s3fs", "deepspeed", "mlx-cuda-13"} & locked.keys()


def test_every_line_of_the_lock_has_hashes_and_nothing_else():
    for line in LOCK:
        assert re.fullmatch(r"\S+==\S+( ; [^#]+?)?( --hash=sha256:[0-9a-f]{64})+", line), line
    assert len(LOCK) > 200


def test_what_builds_the_kit_is_the_lock_s():
    """Its one build requirement is installed before; nothing else is built."""
    (build,) = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["build-system"]["requires"]
    for system, python in itertools.product(SYSTEMS, PYTHONS):
        assert f"setuptools=={pins(system, python)['setuptools']}" == build


def test_what_is_installed_here_is_what_the_lock_says():
    here = sysconfig.get_path("purelib")
    locked = pins(sys.platform, f"3.{sys.version_info.minor}", *EXTRAS)
    # Not those inside setuptools, which puts a folder of its own on the path once it is imported.
    installed = {canonicalize_name(one.metadata["Name"]): one for one in importlib.metadata.distributions(path=[here])}
    versions = {name: Version(installed[name].version).public for name in installed.keys() & locked.keys()}
    assert versions == {name: str(locked[name]) for name in versions}


WHEELS = ("cp311-cp311-macosx_14_0_arm64", "cp312-cp312-macosx_14_0_arm64", "cp312-abi3-macosx_14_0_arm64")
WHEELS += ("cp313-cp313-macosx_26_0_arm64", "cp38-abi3-manylinux_2_17_x86_64.manylinux2014_x86_64", "py3-none-any")
WHEELS += ("cp311-cp311-musllinux_1_2_x86_64", "cp313-cp313t-manylinux_2_28_x86_64", "cp311-cp311-win_amd64")


def package(*ends: str, marker: str = "") -> dict:
    wheels = [{"url": f"https://x/x-1.0-{end}.whl", "hashes": {"sha256": end}} for end in ends]
    return {"name": "x", "version": "1.0", "wheels": wheels} | ({"marker": marker} if marker else {})


def test_the_lock_takes_the_hashes_of_the_wheels_that_fit():
    text = lock.line(package(*WHEELS), [])
    hashes = " ".join(f"--hash=sha256:{end}" for end in sorted(WHEELS[:3] + WHEELS[4:6]))
    assert text == f"x==1.0 {hashes}"
    old = "python_full_version < '3.13' and sys_platform == 'linux' and platform_machine == 'x86_64'"
    text = lock.line(package(*WHEELS[4:5], marker=old), ["fleet", "store"])
    either = "sys_platform == 'linux' and (python_version == '3.11' or python_version == '3.12')"
    assert text.startswith(f"x==1.0 ; (extra == 'fleet' or extra == 'store') and ({either}) --hash")
    only = "python_full_version >= '3.11.5'"
    assert lock.line(package("py3-none-any", marker=only), []).startswith(f"x==1.0 ; {only} --hash")


def test_a_pin_without_a_wheel_for_one_of_the_six_environments_ends_make_lock():
    for missing in ("cp312-cp312-macosx_14_0_arm64", "cp313-cp313-manylinux_2_28_x86_64"):
        ends = [
            f"cp31{minor}-cp31{minor}-{end}"
            for minor in (1, 2, 3)
            for end in ("macosx_14_0_arm64", "manylinux_2_28_x86_64")
        ]
        ends.remove(missing)
        with pytest.raises(SystemExit, match=r"^x==1.0 has no wheel for .*'3.1[23]'"):
            lock.line(package(*ends), [])


# Hosting --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "pattern"),
    [("github-workflows", ".github/workflows/*.yml"), ("citation-file-format", "CITATION.cff")],
)
def test_workflows_and_citation_follow_their_schemas(schema, pattern):
    files = sorted(ROOT.glob(pattern))
    command = [Path(sys.executable).with_name("check-jsonschema"), "--builtin-schema", f"vendor.{schema}", *files]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert files and done.returncode == 0, done.stdout + done.stderr


def test_workflows_and_hooks_call_what_is_there():
    """Targets of the Makefile, extras of pyproject.toml, notebooks, and tools of the lock."""
    import yaml

    from pomology.runner import notebooks

    text = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / ".github" / "workflows").glob("*.yml"))
    assert set(re.findall(r"run: make (\w+)", text)) <= set(TARGETS)
    assert {extra for words in re.findall(r'EXTRAS="([^"]+)"', text) for extra in words.split()} <= set(EXTRAS)
    default = re.search(r"default: (.*)", text)[1].split()
    assert set(default) <= {notebook.name for notebook in notebooks.notebooks()}
    assert set(re.findall(r'python: "([\d.]+)"', text)) == set(PYTHONS)
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"][0]["hooks"]
    tools = {hook["entry"].split()[0] for hook in hooks}
    assert tools <= {f".venv/bin/{canonicalize_name(Requirement(item).name)}" for item in EXTRAS["dev"]}


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
