"""What the pages tell people to type is run in a copy of the checkout, or at least parsed.

Every line of a code block and every command in the text counts. A line is only parsed if it needs
what EXCEPTED names. A command of `make` is parsed with a mock Python, which notes its arguments.
`open` and `xdg-open` are mocks that look whether the file exists.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pomology import __main__ as command_line
from pomology.errors import PomologyError
from pomology.paths import root

PAGES = [root() / "README.md", root() / "CONTRIBUTING.md", root() / "collection" / "README.md"]
PAGES += [root() / "environment.yml", *sorted((root() / "docs").glob("*.md"))]
PAGES += sorted((root() / "docs" / "how-to").glob("*.md"))
PROGRAMS = r"make|\.venv/bin/[\w-]+|pomology|python|pip|conda|git|openssl|jupyter|open|xdg-open"
PROGRAMS += "|caffeinate|while|pre-commit|xcode-select"
COMMAND = re.compile(rf"(?:[A-Z_]+=\S+ )*(?:{PROGRAMS}) +\S")
# Pattern of a line that is not run -> what it needs.
EXCEPTED = {
    r"git clone|pip install|conda |pre-commit|make (env|lock|audit)": "the network",
    r"make matrix|s3://|EXTRAS=|TORCH=": "the network",
    r"make fleet|dask|HOST|while sleep": "a second machine",
    r"DEVICE=mps|caffeinate|xcode-select": "a Mac",
    r"DEVICE=(xpu|cuda)": "a GPU",
    r"make (test|test-all|test-machines|lab|site)$|jupyter lab|setup/fit.py": "over a minute",
    r"make quickcheck": "over a minute",
    r"tests/models/unseen.py": "over a minute",
    r"pomology fit .*--measure": "over a minute",
    r"make reproduce(?!.*PROFILE=smoke)": "over a minute",
}
NEEDS = {"the network", "a second machine", "a Mac", "a GPU", "over a minute"}
# In place of names that the reader replaces.
PLACEHOLDERS = {"ONLY=NAME": "ONLY=vae", "<date>": "20261128", "…": "tls://host:8786"}
# Without a terminal `submit` writes nothing; the others are named without their arguments.
STATUS = {"pomology submit mac": 1, "pomology submit mine": 1}
STATUS |= {"make compare": 2, "make report": 2, "make share": 2, "pomology fit": 2}
RUNS = {"mac": 1.0, "linux": 1.3, "mine": 1.1, "a": 1.0, "b": 0.8, "c d": 1.2}
RUNS |= {"check": 1.0, "first": 1.0, "power": 1.0}  # name -> factor of the times of a real run
MODEL = """
import torch


def build():
    layers = torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten(), torch.nn.Linear(4 * 222 * 222, 10)
    return torch.nn.Sequential(*layers)
"""


def blocks(text: str) -> Iterator[list[str]]:
    """Yield the code blocks of a page: fenced, or indented by four spaces after an empty line."""
    lines = [line.removeprefix("#") for line in text.splitlines()] + [""]
    block: list[str] | None = None
    fenced = False
    for before, line in zip(["", *lines], lines, strict=False):
        if line.startswith("```"):
            if fenced:
                yield block
            fenced, block = not fenced, None if fenced else []
        elif fenced:
            block.append(line)
        elif line.startswith("    ") and (block is not None or not before.strip()):
            block = [*(block or []), line.strip()]
        elif block is not None:
            yield block
            block = None


def commands(page: Path) -> Iterator[str]:
    """Yield the shell commands of a page, each without its comment."""
    text = page.read_text(encoding="utf-8")
    spans = re.findall(r"(?<!`)`([^`\n]+)`(?!`)", text)
    lines = [line for block in blocks(text) for line in block]
    for line in [*lines, *spans]:
        if COMMAND.match(line):
            for part in re.split(r"\s+#\s", line)[0].split(" && "):
                if not part.startswith("cd "):
                    yield part.strip()


TYPED = sorted({line for page in PAGES for line in commands(page)})
NOT_RUN = {
    line: need
    for line in TYPED
    for pattern, need in reversed(EXCEPTED.items())
    if re.search(pattern, line)
}
SNIPPETS = [
    "\n".join(block)
    for page in PAGES
    for block in blocks(page.read_text(encoding="utf-8"))
    if any(line.startswith("import pomology") for line in block)
]


def filled(line: str) -> str:
    for name, value in PLACEHOLDERS.items():
        line = line.replace(name, value)
    return line.replace("pomology ", ".venv/bin/pomology ", line.startswith("pomology "))


def slowed(line: str, factor: float) -> str:
    """Return a line of a journal with times that are longer by a factor."""
    record = json.loads(line)
    for metric in record["metrics"].values():
        if metric["unit"] == "s":
            metric["value"] *= factor
    return json.dumps(record)


def environment_script() -> str:
    """Return a script in place of environment.sh, which installs nothing and checks the extras."""
    project = tomllib.loads((root() / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = "|".join(project["optional-dependencies"])
    return f'for each; do case $each in {names}) ;; *) echo "EXTRAS=$each"; exit 2 ;; esac; done\n'


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """Return a copy of the checkout with runs, a model, and the environment of this test."""
    folder = tmp_path_factory.mktemp("a checkout") / "pomology"
    ignored = shutil.ignore_patterns(".venv*", ".git", "outputs", "__pycache__", "*.egg-info")
    shutil.copytree(root(), folder, ignore=ignored)
    (folder / ".venv").symlink_to(sys.prefix)
    (folder / "setup" / "environment.sh").write_text(environment_script())
    outputs = folder / "outputs"
    outputs.mkdir()
    (outputs / "reference-cpu").symlink_to(root() / "outputs" / "reference-cpu")
    with zipfile.ZipFile(sorted((root() / "collection").glob("*.zip"))[0]) as archive:
        names = ("machine.json", "vae.jsonl", "instrument_check.jsonl")
        files = {name: archive.read(name).decode() for name in names}
    for run, factor in RUNS.items():
        (outputs / run).mkdir()
        for name, text in files.items():
            if name.endswith(".jsonl"):
                text = "\n".join(slowed(line, factor) for line in text.splitlines())
            (outputs / run / name).write_text(text)
        with zipfile.ZipFile(outputs / f"{run}.zip", "w") as archive:
            for path in (outputs / run).iterdir():
                archive.write(path, path.name)
    (outputs / "a-fleet").mkdir()
    for run in ("a", "b"):
        shutil.copy(outputs / f"{run}.zip", outputs / "a-fleet")
    report = outputs / "20261128-quick" / "index.html"
    report.parent.mkdir()
    report.touch()
    for name in ("open", "xdg-open"):
        program = folder / "mocks" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text('#!/bin/sh\ntest $# = 1 && test -f "$1"\n')
        program.chmod(0o755)
    # A zip of the collection would be a copy of itself.
    sorted((folder / "collection").glob("*.zip"))[0].rename(folder / "FILE.zip")
    (folder / "path" / "to").mkdir(parents=True)
    (folder / "path" / "to" / "file.py").write_text(MODEL.lstrip())
    return folder


def shell(checkout: Path, line: str) -> subprocess.CompletedProcess:
    """Run a line in the copied checkout, as a user without a configuration."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("PYTEST")}
    environment = kept | {"PYTHONPATH": str(checkout / "lib"), "HF_HUB_OFFLINE": "1"}
    environment["PATH"] = f"{checkout / 'mocks'}:{kept['PATH']}"
    options = {"cwd": checkout, "env": environment, "capture_output": True, "text": True}
    return subprocess.run(["bash", "-c", line], stdin=subprocess.DEVNULL, check=False, **options)


def test_every_command_of_the_pages_is_found_and_exceptions_have_a_reason():
    assert "make reproduce" in TYPED and ".venv/bin/pomology doctor" in TYPED
    assert len(TYPED) > 60 and set(NOT_RUN.values()) <= NEEDS
    assert len(SNIPPETS) >= 2


@pytest.mark.parametrize("line", [line for line in TYPED if "make " in line])
def test_the_arguments_of_make_are_parsed(line, tmp_path):
    noted = tmp_path / "noted.json"
    program = f"import json, sys; json.dump(sys.argv[1:], open({str(noted)!r}, 'w'))"
    python = f'#!/bin/sh\nexec "{sys.executable}" -S -c "{program}" "$@"\n'
    files = {".venv/bin/python": python, "setup/environment.sh": environment_script()}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    shutil.copy(root() / "Makefile", tmp_path)
    makes_files = re.search(r"make (lint|lock|audit)", line)
    typed = filled(line[line.index("make ") :]) + (" --dry-run" if makes_files else "")
    variables = line[: line.index("make ")] if "=" in line[: line.index("make ")] else ""
    done = shell(tmp_path, variables + typed)
    assert done.returncode == 0, done.stdout + done.stderr
    if noted.exists():
        arguments = json.loads(noted.read_text())
        if arguments[:2] == ["-m", "pomology"]:
            command_line._arguments(arguments[2:])


@pytest.mark.parametrize("line", [line for line in TYPED if "pomology " in line])
def test_the_arguments_of_pomology_are_parsed(line):
    words = shlex.split(filled(line))
    if not lacks_arguments(filled(line)):
        command_line._arguments(words[1 + words.index(".venv/bin/pomology") :])


def lacks_arguments(line: str) -> bool:
    """Return whether a line only names a command of pomology, whose arguments stand elsewhere."""
    words = shlex.split(line)
    if len(words) != 2 or not words[0].endswith("pomology"):
        return False
    try:
        command_line._arguments(words[1:])
    except PomologyError:
        return True
    return False


RUN = {line.removeprefix(".venv/bin/"): line for line in TYPED if line not in NOT_RUN}
# `make docs` counts every workload again, whose counts `make test-all` compares. Of the others a
# shorter form of the same command runs there.
SLOW = (
    "make docs",
    ".venv/bin/pomology doctor --submit",
    '.venv/bin/pomology fit "Llama 3.2 1B" --on "M4 Max" --memory 36GB --tokens 10M',
)


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(line, marks=pytest.mark.machines if line in SLOW else pytest.mark.long)
        for line in RUN.values()
        if not lacks_arguments(filled(line))
    ],
)
def test_commands_run(line, checkout):
    if "make share RUN=" in line:  # refuses to replace a zip
        (checkout / "outputs" / f"{line.partition('RUN=')[2]}.zip").unlink(missing_ok=True)
    done = shell(checkout, filled(line))
    output = done.stdout + done.stderr
    assert done.returncode == STATUS.get(line.removeprefix(".venv/bin/"), 0), output
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("code", SNIPPETS, ids=range(len(SNIPPETS)))
def test_python_runs(code, checkout):
    done = shell(checkout, f".venv/bin/python -W error - <<'CODE'\n{code}\nCODE")
    assert done.returncode == 0, done.stderr
