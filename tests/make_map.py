"""Writes docs/map.md, the file tree with one comment a file: `python tests/make_map.py`. A test compares the two. Also
by which digests `share` knows the kit's own notebooks, after one of them was changed.

A module's comment is its docstring's first sentence, a package's too; a notebook's is its title.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "lib"))

from pomology.extras.share import own_texts  # noqa: E402
from pomology.paths import notebook_paths  # noqa: E402

PAGE = ROOT / "docs" / "map.md"
HEAD = """# Map

Every file of the kit, with what it is for. `python tests/make_map.py` writes this page out of the files themselves.

Start at `notebooks/`: each is an experiment, and talks to `lib/pomology/experiment/`. `lib/pomology/__main__.py` runs
them all. A package imports from those below it only: `experiment runner` > `workloads report` > `devices results` >
`machine articles data` > `measure format paths errors`.

From a step to the page: `case.steps` (`experiment/case.py`) times it with `StepClock` (`measure/clock.py`). When the
case ends, `epoch_metrics` (`measure/epochs.py`) makes Estimates of its blocks (`measure/intervals.py`), and the journal
keeps them (`results/journal.py`). `Run` (`results/run.py`) reads it, `article_table` (`report/article.py`) makes the
rows, and `build` (`report/page.py`) joins the tables.
"""
FOLDERS = {
    "lib/pomology": "The library.",
    "lib/pomology/resources": "What the articles print, the page's templates, and pictures for stand-ins.",
    "notebooks": "The experiments, a folder an article.",
    "params": "The parameters of each notebook: a folder a profile, a file a notebook.",
    "docs": "Pages to read.",
    "lab": "What `make lab` sets up for JupyterLab.",
    "tests": "The tests, and what they share.",
    "tests/fixtures": "What Macs have printed, and the reference run's verdicts.",
}
WHOLE = ("params", "tests/fixtures", "lib/pomology/resources", "lab")  # folders that are one line


def comment(path: Path) -> str:
    """What a file says of itself; empty if it has no words for it."""
    if path.suffix == ".py":
        words = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    elif path.suffix == ".ipynb":
        words = "".join(json.loads(path.read_text(encoding="utf-8"))["cells"][0]["source"]).lstrip("# ")
    elif path.suffix == ".md":
        words = path.read_text(encoding="utf-8").lstrip("# ")
    else:
        words = ""
    paragraph = " ".join(re.split(r"\n\s*\n|\n(?=#)", words.strip())[0].split())
    return re.split(r"(?<=[.:?!]) (?=[A-Z`])", paragraph)[0].rstrip(".:")


def files() -> list[Path]:
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    command += ["lib", "notebooks", "params", "docs", "lab", "tests"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    names = {name for name in listed.stdout.decode().split("\0") if name and (ROOT / name).is_file()}
    return [Path(name) for name in sorted(names)]


def page() -> str:
    """The page in Markdown."""
    tree: dict[Path, list[Path]] = {}
    for path in files():
        whole = next((Path(name) for name in WHOLE if path.is_relative_to(name)), None)
        tree.setdefault(whole or path.parent, [])
        if whole is None and path.name != "__init__.py":
            tree[path.parent].append(path)
    lines = [HEAD]
    for folder, paths in sorted(tree.items()):
        package = ROOT / folder / "__init__.py"
        about = FOLDERS.get(folder.as_posix()) or (comment(package) + "." if package.exists() else "")
        lines.append(f"\n## {folder.as_posix()}/\n" + (f"\n{about}\n" if about else ""))
        rows = [(f"`{path.name}`", comment(ROOT / path)) for path in paths]
        lines += [f"* {name}" + (f" {words}" if words else "") for name, words in rows]
    return "\n".join(lines).replace("\n\n\n", "\n\n").rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    code = [*notebook_paths(ROOT / "notebooks"), *ROOT.glob("notebooks/*/*.py")]
    digests = "".join(f"{path.stem} {own_texts.digest(path)}\n" for path in sorted(code, key=lambda path: path.stem))
    own_texts.NOTEBOOKS.write_text(digests, encoding="utf-8")
