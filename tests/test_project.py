"""The project around the code: layers, imports, Makefile, lock, and what may not be in a public repository."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "lib" / "pomology"

# Ground floor first; each imports from those before it only.
ORDER = (
    *("published", "machine", "device", "statistics", "timing", "telemetry", "data", "models", "results", "tables"),
    *("figures", "experiment", "parameters", "report", "batch", "operators", "__main__"),
)
FRAMEWORKS = ("torch", "tensorflow", "keras", "mlx", "lightning", "transformers", "peft", "datasets", "jax", "sklearn")


# Layers ---------------------------------------------------------------------------------------------------------------


def imports_of(path: Path) -> set[str]:
    """Modules of this package that a file imports, wherever in it the import stands."""
    modules = {file.stem for file in PACKAGE.glob("*.py")}
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name.startswith("pomology.")]
            found |= {name.split(".")[1] for name in names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path.name}, line {node.lineno}: relative imports hide what is imported"
            if node.module == "pomology":
                found |= {alias.name for alias in node.names} & modules
            elif (node.module or "").startswith("pomology."):
                found.add(node.module.split(".")[1])
    return found


def test_every_module_has_its_place_in_the_order():
    assert {path.stem for path in PACKAGE.glob("*.py")} == {*ORDER, "__init__"}


@pytest.mark.parametrize("module", ["__init__", *ORDER])
def test_a_module_imports_only_from_floors_below(module):
    below = set(ORDER[: ORDER.index(module)]) if module in ORDER else set()
    assert imports_of(PACKAGE / f"{module}.py") <= below


def test_importing_loads_no_framework_and_no_plotting():
    """One process, all modules, the heaviest last; pandas and matplotlib are for calls, not for imports."""
    program = f"""
import importlib, sys
for module in {["pomology", *(f"pomology.{name}" for name in ORDER if name != "__main__"), "pomology.__main__"]}:
    importlib.import_module(module)
    loaded = [name for name in {[*FRAMEWORKS, "pandas", "matplotlib", "papermill"]} if name in sys.modules]
    assert not loaded, f"{{module}} imports {{loaded}}"
print("all")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == "all\n", done.stderr


def test_only_the_device_module_speaks_to_torch_cuda():
    """Notebooks have a test of their own; `torch.backends` may be set anywhere."""
    for path in sorted(PACKAGE.glob("*.py")):
        if path.stem == "device":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            text = ast.unparse(node) if isinstance(node, ast.Attribute) else ""
            assert not re.match(r"(self\._?)?torch\.(cuda|mps|accelerator)\b", text), f"{path.name}: {text}"


# Makefile -------------------------------------------------------------------------------------------------------------

TARGETS = ("reproduce", "test", "lab", "env", "lint", "bench", "report", "compare", "clean", "help")
# What GNU make 3.81, or the tools of macOS, do not have or do differently.
NOT_ON_A_MAC = {
    r"\.ONESHELL": "make 3.82",
    r"\.SHELLFLAGS": "make 3.82",
    r"&\s*:": "make 4.3: grouped targets",
    r"^\w+\s*!=": "make 4.0: shell assignment",
    r":{2,3}=": "make 4.0: POSIX assignment",
    r"\$\((file|let|intcmp) ": "make 4",
    r"\bundefine\b": "make 3.82",
    r"\bsed\s+(-\w+\s+)*-i": "BSD sed wants a suffix",
    r"\b(sed|grep)\s.*\\(t|s|w|\+|\|)": "BSD sed knows no such escapes",
    r"\bgrep\s+-\w*P": "BSD grep",
    r"\bsed\s+-r": "BSD sed",
    r"\b(realpath|timeout|nproc|tac|shuf|sha256sum|md5sum|free|gsed)\b": "not on macOS",
    r"\breadlink\s+-f": "not on older macOS",
    r"\bxargs\s+-\w*r": "BSD xargs",
    r"\bdate\s+-(d|-date)": "BSD date",
    r"\bcp\s+--|\brm\s+--|\bmkdir\s+--|\btouch\s+--": "long options",
    r"\[\[|\bsource\s|<<<": "bash; make runs sh",
}

needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
needs_git = pytest.mark.skipif(
    shutil.which("git") is None or not (ROOT / ".git").exists(), reason="not a checkout with git"
)


def make(*arguments: str) -> subprocess.CompletedProcess:
    """Run make as from a fresh shell, even if these tests run under make."""
    mine = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES")
    mine += ("PROFILE", "DEVICE", "ONLY", "RUN", "RUNS", "DATA", "REPEATS", "PYTHON", "ENV", "PY")
    env = {name: value for name, value in os.environ.items() if name not in mine}
    return subprocess.run(["make", *arguments], cwd=ROOT, capture_output=True, text=True, env=env, check=False)


def rules() -> dict[str, str]:
    """Target -> its prerequisites."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    return dict(re.findall(r"^([a-z$(][^:=\n]*):(?![=:])([^#\n]*)", text, re.MULTILINE))


def test_makefile_keeps_to_make_3_81_and_to_the_tools_of_macos():
    for number, line in enumerate((ROOT / "Makefile").read_text(encoding="utf-8").splitlines(), start=1):
        code = line if line.startswith("\t") else line.split("#")[0]
        for pattern, why in NOT_ON_A_MAC.items():
            assert not re.search(pattern, code), f"Makefile, line {number}: {line.strip()} ({why})"


def test_every_documented_target_exists_is_phony_and_has_help():
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    phony = re.search(r"^\.PHONY:(.*)$", text, re.MULTILINE)[1].split()
    assert set(TARGETS) <= set(rules()) & set(phony)
    # Recipes that could run at once would measure each other.
    assert re.search(r"^\.NOTPARALLEL:\s*$", text, re.MULTILINE)
    assert re.search(r"^\.DEFAULT_GOAL := help$", text, re.MULTILINE)


def test_targets_that_need_the_environment_make_it():
    for target in ("reproduce", "test", "lab", "env", "lint", "bench", "report", "compare"):
        assert "$(ENV)/.ready" in rules()[target], target
    # What is installed follows from these two.
    assert {"pyproject.toml", "constraints.txt"} <= set(rules()["$(ENV)/.ready"].split())


@needs_make
def test_make_help_lists_every_target():
    for arguments in ((), ("help",)):
        done = make(*arguments)
        assert done.returncode == 0, done.stderr
        assert set(TARGETS) <= {line.split()[0] for line in done.stdout.splitlines() if line.strip()}


@pytest.fixture
def recorded(tmp_path):
    """A command that takes Python's place in the Makefile and notes the arguments that the shell gave it."""
    env = tmp_path / "env"
    env.mkdir()
    (env / ".ready").touch()
    place = tmp_path / "arguments.json"
    program = tmp_path / "python"
    program.write_text(
        f"#!{sys.executable}\nimport json, sys\njson.dump(sys.argv[1:], open({str(place)!r}, 'w'))\n", encoding="utf-8"
    )
    program.chmod(0o755)

    def run(*arguments: str) -> list[str]:
        done = make(f"ENV={env}", f"PY={program}", *arguments)
        assert done.returncode == 0, done.stderr
        return json.loads(place.read_text())

    return run


@needs_make
def test_make_hands_its_variables_to_the_command(recorded):
    from pomology.__main__ import _arguments

    plain = _arguments(recorded("reproduce")[2:])
    assert vars(plain) | {"limit_minutes": None} == {
        "command": "reproduce",
        **{"profile": "quick", "device": "auto", "only": "", "run": "", "data": "auto", "repeats": "1"},
        "limit_minutes": None,
    }
    given = recorded(
        *("reproduce", "PROFILE=smoke", "ONLY=vae dc*", "DEVICE=cpu", "RUN=my-run", "DATA=stand-in", "REPEATS=3")
    )
    assert given[:3] == ["-m", "pomology", "reproduce"]
    options = _arguments(given[2:])
    assert options.only == "vae dc*"  # one argument, and no files of that name
    assert (options.profile, options.device, options.run) == ("smoke", "cpu", "my-run")
    assert (options.data, options.repeats) == ("stand-in", "3")
    assert _arguments(recorded("report", "RUN=my-run")[2:]).run == "my-run"
    assert _arguments(recorded("compare", "RUNS=one two")[2:]).runs == ["one", "two"]


@needs_make
def test_make_n_shows_the_command_and_runs_nothing():
    before = sorted((ROOT / "outputs").glob("*")) if (ROOT / "outputs").exists() else []
    done = make("-n", "reproduce", "PROFILE=smoke", "ONLY=vae dcgan")
    assert done.returncode == 0, done.stderr
    assert re.search(r"-m pomology reproduce .*--profile='smoke'.*--only='vae dcgan'", done.stdout)
    assert before == (sorted((ROOT / "outputs").glob("*")) if (ROOT / "outputs").exists() else [])


def test_ci_runs_make_test():
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert re.search(r"^make test$", script.read_text(), re.MULTILINE)


# Dependencies and their lock ------------------------------------------------------------------------------------------

COMMON = {
    "implementation_name": "cpython",
    "implementation_version": "3.11.9",
    "os_name": "posix",
    "platform_python_implementation": "CPython",
    "platform_release": "",
    "platform_version": "",
    "python_full_version": "3.11.9",
    "python_version": "3.11",
}
PLATFORMS = {
    "mac": COMMON | {"sys_platform": "darwin", "platform_system": "Darwin", "platform_machine": "arm64"},
    "linux": COMMON | {"sys_platform": "linux", "platform_system": "Linux", "platform_machine": "x86_64"},
}
UNWANTED = {
    "zeus": "pulls in packages of which the kit needs none",
    "scikit-learn": "a second OpenMP beside PyTorch's",
    "torchvision": "does not import beside a PyTorch for CPUs only",
}


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def wanted(environment: dict[str, str]) -> list[Requirement]:
    """What pyproject.toml asks for on a platform, development included."""
    lines = project()["dependencies"] + project()["optional-dependencies"]["dev"]
    requirements = [Requirement(line) for line in lines]
    return [item for item in requirements if not item.marker or item.marker.evaluate(environment)]


def lock_lines() -> list[Requirement]:
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    return [Requirement(line) for line in text.splitlines() if line.strip() and not line.startswith("#")]


def lock(environment: dict[str, str]) -> dict[str, Version]:
    pins: dict[str, Version] = {}
    for line in lock_lines():
        if line.marker and not line.marker.evaluate(environment):
            continue
        (clause,) = line.specifier
        assert clause.operator == "==" and "*" not in clause.version, f"{line}: not one version"
        assert canonicalize_name(line.name) not in pins, f"{line.name}: two versions on one platform"
        pins[canonicalize_name(line.name)] = Version(clause.version)
    return pins


@pytest.mark.parametrize("platform", PLATFORMS)
def test_lock_pins_all_that_is_installed_on_a_platform(platform):
    """Followed through what the packages that are installed here say of themselves, for that platform."""
    environment = PLATFORMS[platform]
    pins = lock(environment)
    waiting = [(item, "pyproject.toml") for item in wanted(environment)]
    seen = set()
    while waiting:
        item, source = waiting.pop()
        name = canonicalize_name(item.name)
        assert name in pins, f"{source} needs {item}; constraints.txt does not pin it for {platform}"
        assert item.specifier.contains(pins[name], prereleases=True), f"{source} needs {item}, not {pins[name]}"
        if (name, *sorted(item.extras)) in seen:
            continue
        seen.add((name, *sorted(item.extras)))
        try:
            lines = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue  # the other platform's
        for line in map(Requirement, lines):
            extras = ["", *item.extras]
            if not line.marker or any(line.marker.evaluate(environment | {"extra": extra}) for extra in extras):
                waiting.append((line, name))
    assert len(seen) > 80


def test_lock_has_each_platforms_own_packages():
    mac, linux = lock(PLATFORMS["mac"]), lock(PLATFORMS["linux"])
    assert mac["tensorflow-macos"] == linux["tensorflow"] == Version("2.16.2")
    assert mac["tensorflow-metal"] == Version("1.2.0")
    assert mac["torch"] == linux["torch"] == Version("2.13.0")
    assert mac["mlx-metal"] == mac["mlx"] == linux["mlx-cpu"] == linux["mlx"]
    assert mac["pyarrow"] == linux["pyarrow"] and linux["pyarrow"].major == 25
    assert "zeus-apple-silicon" in mac and "nvidia-ml-py" in linux
    assert not {"tensorflow-macos", "tensorflow-metal", "mlx-metal", "zeus-apple-silicon"} & set(linux)
    assert not {name for name in mac if name.startswith(("nvidia-", "cuda-", "triton"))}


def test_unwanted_packages_are_nowhere():
    names = {canonicalize_name(item.name) for item in lock_lines()}
    for environment in PLATFORMS.values():
        names |= {canonicalize_name(item.name) for item in wanted(environment)}
    assert not names & set(UNWANTED)


def test_what_is_installed_here_is_what_the_lock_says():
    pins = lock(default_environment())
    wrong = {
        name: (installed.version, str(pins[name]))
        for installed in importlib.metadata.distributions()
        if (name := canonicalize_name(installed.metadata["Name"])) in pins
        and Version(installed.version).public != str(pins[name])
    }
    assert not wrong


def test_conda_takes_its_packages_from_the_same_list():
    import yaml

    conda = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    *names, pip = conda["dependencies"]
    assert names == ["python=3.11", "pip"]
    assert pip == {"pip": ["-c constraints.txt", "-e ."]}
    assert Version("3.11.0") in Requirement(f"python{project()['requires-python']}").specifier
    assert Version("3.12.0") not in Requirement(f"python{project()['requires-python']}").specifier


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
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    return [name for name in listed.stdout.decode().split("\0") if name and (ROOT / name).is_file()]


@needs_git
def test_no_two_files_differ_only_by_case():
    names = repository_files()
    folders = {str(parent) for name in names for parent in Path(name).parents}
    folded: dict[str, str] = {}
    for name in {*names, *folders}:
        other = folded.setdefault(name.casefold(), name)
        assert other == name, f"{name} and {other} are one file on a Mac"


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
    assert ignored(".venv/bin/python") and ignored("notebooks/m1_ultra_vs_rtx_2070/.ipynb_checkpoints/vae.ipynb")
