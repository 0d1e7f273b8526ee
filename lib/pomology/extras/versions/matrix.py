"""Benchmark versions of a package, interleaved: each notebook as A B, then B A, in new processes.

A version is a requirement such as `torch==2.13.0`. Each has its own run in outputs/, which all
other commands read, and its own environment: a copy of .venv in which uv replaces the package.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from pomology.articles import published
from pomology.errors import PomologyError
from pomology.extras.compare import load, write
from pomology.format import one_line
from pomology.paths import redact, root
from pomology.runner import batch, plan

REQUIREMENT = re.compile(r"[a-z0-9][a-z0-9-]*==[0-9][A-Za-z0-9.+]*")


def run(options: argparse.Namespace, say: Callable[[str], None]) -> int:
    """Run the unfinished notebooks of all versions, then compare them; return the exit status.

    Raises PomologyError for a wrong option, or a version that cannot be installed.
    """
    versions = parse(options.versions)
    # setup/environment.sh installs uv into .venv-uv if it is not on PATH.
    uv = shutil.which("uv") or shutil.which(root() / ".venv-uv" / "bin" / "uv")
    if not uv:
        raise PomologyError("VERSIONS: uv is not installed; `pipx install uv` installs it")
    if options.repeats < 2:
        raise PomologyError(f"REPEATS={options.repeats}: expected 2 or more")
    package = versions[0].partition("==")[0]
    name = options.run or f"matrix-{package}-{options.profile}"
    runs = {version: f"{name}-{folder_name(version)}" for version in versions}
    _, jobs = plan.prepare(options, runs[versions[0]])
    jobs = [job for job in jobs if job.notebook.article != published.KIT and not job.notebook.after]
    if not jobs:
        skipped = "a notebook about this machine, or that shows the results of others, is skipped"
        raise PomologyError(f"ONLY={options.only}: {skipped}; expected another one, such as vae")
    for version in versions:
        say(f"{version}: preparing its environment in .venv-matrix/")
        make_environment(version, uv)
    status = _measure(runs, jobs, options, say)
    if status <= 1:
        places = [root() / "outputs" / run_name for run_name in runs.values()]
        say(str(write(load(*places), root() / "outputs" / name, in_turn=True)))
        say(f"wrote outputs/{name}/compare.csv and compare.html")
    return status


def _measure(
    runs: dict[str, str], jobs: list[plan.Job], options: argparse.Namespace, say: Callable
) -> int:
    """Run the notebooks with all versions interleaved, as A B, then B A; return the exit status.

    A steady drift of the machine then affects all versions alike. Finished jobs are skipped.
    """
    status = 0
    with batch.stopped_by_signals() as stop:
        for repeat, name in dict.fromkeys((job.repeat, job.notebook.name) for job in jobs):
            for version in reversed(runs) if repeat % 2 else runs:
                say(f"{name}, {version}, repeat {repeat + 1} of {options.repeats}")
                python = environment(version) / "bin" / "python"
                command = [python, "-P", "-m", "pomology", "reproduce"]
                command += [f"--profile={options.profile}", f"--device={options.device}"]
                command += [f"--data={options.data}", f"--run={runs[version]}"]
                command += [f"--only={name}", f"--repeats={repeat + 1}"]
                # The child stays in this process group, so that Ctrl-C reaches it, too.
                ended = subprocess.run(command, cwd=root(), env=variables())
                if stop.is_set():
                    return 130
                if ended.returncode > 1:
                    return ended.returncode
                status = max(status, ended.returncode)
    return status


# An environment for each version ------------------------------------------------------------------


def parse(text: str) -> list[str]:
    """Return the versions that VERSIONS names.

    Raises PomologyError unless these are at least two versions of one installed package.
    """
    versions = text.split()
    packages = list(dict.fromkeys(version.partition("==")[0] for version in versions))
    malformed = [version for version in versions if not REQUIREMENT.fullmatch(version)]
    repeated = [version for version in versions if versions.count(version) > 1]
    example = "such as torch==2.13.0 torch==2.14.1"
    if malformed:
        form = "PACKAGE==VERSION in small letters, such as torch==2.14.1 or mlx-lm==0.32.2"
        problem = f"got {one_line(malformed[0])!r}; expected {form}"
    elif len(packages) > 1:
        names = " and ".join(packages[:2])
        problem = f"got versions of {names}; expected those of one package, {example}"
    elif packages and packages[0] not in installed():
        problem = f"{packages[0]} is not among the packages that pomology installs"
        problem += "; expected one of these, such as mlx, numpy, tensorflow or torch"
    elif repeated:
        problem = f"got {repeated[0]} twice; expected different versions, {example}"
    elif len(versions) < 2:
        problem = f"got {len(versions) or 'no'} version; expected two or more, {example}"
    else:
        return versions
    raise PomologyError(f"VERSIONS={one_line(text)}: {problem}")


def installed() -> dict[str, str]:
    """Return the packages of .venv without pomology: name -> version number."""
    packages = metadata.distributions()
    versions = {canonicalize_name(package.name): package.version for package in packages}
    versions.pop("pomology", None)
    return dict(sorted(versions.items()))


def folder_name(version: str) -> str:
    """Return a version as part of a folder's name: `torch-2.13.0`."""
    return version.replace("==", "-").replace("+", "-")


def environment(version: str) -> Path:
    """Return the folder of a version's environment."""
    return root() / ".venv-matrix" / folder_name(version)


def variables() -> dict[str, str]:
    """Return environment variables for a process that uses packages of one environment only."""
    kept = {name: os.environ[name] for name in os.environ if not name.startswith("PYTHON")}
    return kept | {"PYTHONPATH": str(root() / "lib")}


def parts(package: str) -> dict[str, str]:
    """Return the packages that are parts of an installed package: its extra -> name of the part.

    A part is installed, and an extra pins it to the package's own version. On Linux `mlx[cpu]` is
    such an extra: MLX computes in mlx-cpu, which must therefore change with the version of mlx.
    """
    about = metadata.distribution(package)
    own = SpecifierSet(f"=={about.version}")
    needed = [Requirement(text) for text in about.requires or ()]
    # What is needed without an extra, too, uv changes by itself: on a Mac mlx-metal.
    optional = [each for each in needed if each.marker and not each.marker.evaluate({"extra": ""})]
    known = installed()
    found = {}
    for extra in about.metadata.get_all("Provides-Extra") or ():
        for each in optional:
            name = canonicalize_name(each.name)
            part = name in known and each.specifier == own
            if part and each.marker.evaluate({"extra": extra}):
                found[extra] = name
    return found


def make_environment(version: str, uv: str) -> None:
    """Make the environment of a version, unless it exists.

    uv keeps installed packages if the version allows it, so other packages change only if they
    must, for example torchvision with torch. Raises PomologyError with uv's last words if the
    version cannot be installed.
    """
    folder = environment(version)
    package, _, number = version.partition("==")
    own_parts = parts(package)
    wanted = f"{package}[{','.join(own_parts)}]=={number}" if own_parts else version
    own = {package, *own_parts.values()}
    others = {name: number for name, number in installed().items() if name not in own}
    kept = list(map("==".join, others.items()))
    complete = folder / "complete.txt"  # written last
    if complete.exists() and complete.read_text(encoding="utf-8").split() == kept:
        return
    shutil.rmtree(folder, ignore_errors=True)
    install = [uv, "pip", "install", "--quiet", "--no-build", "--python", folder]
    if "+cpu" in metadata.version("torch"):
        install += ["--torch-backend", "cpu"]
    make = [uv, "venv", "--quiet", "--python", sys.executable, folder]
    for command in (make, [*install, "--no-deps", *kept], [*install, wanted, *others]):
        ended = subprocess.run(command, env=variables(), capture_output=True, text=True)
        if ended.returncode:
            reason = " ".join(redact(ended.stderr).split())[-700:]
            raise PomologyError(f"VERSIONS: {version} cannot be installed: {reason}")
    complete.write_text("\n".join(kept), encoding="utf-8")
