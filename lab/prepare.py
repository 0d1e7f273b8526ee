"""What JupyterLab shows first: what each notebook finds out, how long it takes, and its picture; beside their folders
and a table of contents."""

import html
import os
import re
from pathlib import Path
from urllib.parse import quote, unquote

from jupyterlab_server.workspaces_handler import WorkspacesManager

from pomology import format
from pomology.articles import published
from pomology.errors import PomologyError
from pomology.paths import root, write_atomic
from pomology.report.notebook_page import PICTURE
from pomology.results import folders
from pomology.results.run import Run
from pomology.runner import notebooks

HERE = Path(__file__).resolve().parent
LAB = root() / "outputs" / "lab"
REFERENCE = root() / "outputs" / "reference-cpu" / "index.html"

PAGE = """# Notebooks

Open one, change its parameters if you like, and choose *Run*, *Run All Cells*. Run one at a time: two would share the
processor and the memory that they measure.

**Times** are with the `quick` parameters: what the notebook took on this machine, where `make reproduce` has run it
here; else roughly what it takes on two CPU cores. **Pictures** are of your last run, else of the run that comes with
the kit.

**Numbers** go to `outputs/lab-<date>-<time>/`, one folder for all notebooks of a day. To run the set-up cell again is
to measure anew; the earlier numbers move to `earlier/` there. **Notebooks** are saved without outputs, so that git
shows your own changes only. With their outputs they are in `outputs/lab/`.
"""


def picture(name: str, runs: list[Run]) -> tuple[str, str]:
    """A notebook's figure, and whose it is: of the latest of these runs that has one, else of the kit's own run."""
    for run in runs:
        if (drawn := run.path / "figures" / f"{name}-epoch.svg").is_file():
            return drawn.read_text(encoding="utf-8"), f"of your run {run.name}"
    page = REFERENCE.read_text(encoding="utf-8") if REFERENCE.is_file() else ""
    section = re.search(rf'<section id="{re.escape(name)}">(.*?)</section>', page, re.DOTALL)
    drawn = re.search(rf'src="{re.escape(PICTURE)}([^"]*)"', section[1]) if section else None
    return (unquote(drawn[1]), "of the run that comes with the kit") if drawn else ("", "")


def entry(notebook: notebooks.Notebook, runs: list[Run], known: dict[str, tuple[float, Run]]) -> str:
    """A notebook's part of the page: its title as a link, what it finds out, how long it takes, its picture."""
    link = Path(os.path.relpath(notebook.path, LAB)).as_posix()
    lines = [f"### [{plain(notebook.title)}]({quote(link)})", "", plain(notebook.about)]
    if notebook.name in known:
        took_s, run = known[notebook.name]
        lines += ["", f"**{format.clock_time(took_s)}** on this machine, in run {plain(run.name)}"]
    elif "quick" in notebook.seconds:
        lines += [
            "",
            f"**{format.clock_time(notebook.seconds['quick'])}** on two CPU cores; not run on this machine yet",
        ]
    lines[-1] += "; shows what other notebooks have measured" if notebook.after else ""
    drawn, whose = picture(notebook.name, runs)
    if drawn:
        write_atomic(LAB / "pictures" / f"{notebook.name}.svg", drawn)
        size = re.search(r'<svg\b[^>]*? height=["\']([\d.]+)pt["\'][^>]*? viewBox=["\']0 0 ([\d.]+) ', drawn)
        wide = not size or float(size[1]) < float(size[2])
        shape = 'width="560"' if wide else 'height="480"'  # of dozens of panels: as a look, not to read
        address = f"pictures/{quote(notebook.name)}.svg"
        lines += ["", f'<img src="{address}" {shape} alt="Its figure, {html.escape(whose)}">', "", f"*{plain(whose)}*"]
    return "\n".join([*lines, ""])


def plain(text: str) -> str:
    """A text of a notebook or a folder's name as Markdown that shows it, and does nothing."""
    return re.sub(r"([\\`*_\[\]#|~$])", r"\\\1", html.escape(text, quote=False))


def contents() -> str:
    """The page, in Markdown: a section per article, and in it a part per notebook. Writes the pictures beside it."""
    try:
        found = notebooks.notebooks()
    except PomologyError as error:  # it may take JupyterLab to put it right
        return f"{PAGE}\n**{error}**\n"
    runs = folders.here("quick", "article")
    known = folders.durations(run for run in runs if run.machine["profile"] == "quick")
    titles = {article.id: article.title for article in published.articles()}
    parts = []
    for article, title in {published.KIT: "This machine", **titles}.items():
        parts.append(f"\n## {title}\n")
        parts += [entry(notebook, runs, known) for notebook in found if notebook.article == article]
    return PAGE + "\n".join(parts)


if __name__ == "__main__":
    write_atomic(LAB / "notebooks.md", contents())
    if not (LAB / ".layouts").exists():  # from the second time on as the user has left it
        WorkspacesManager(str(LAB / ".layouts")).save("default", (HERE / "layout.json").read_text(encoding="utf-8"))
