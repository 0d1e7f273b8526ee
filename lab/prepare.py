"""What JupyterLab shows first: what each notebook finds out, how long it takes, and its picture; beside their folders
and a table of contents."""

import contextlib
import html
import os
import re
import textwrap
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote, unquote

from jupyterlab_server.workspaces_handler import WorkspacesManager
from pomology.report.notebook_page import PICTURE, address

from pomology import format
from pomology.articles import published
from pomology.errors import PomologyError
from pomology.machine import snapshot as machine_snapshot
from pomology.paths import root, write_atomic
from pomology.results import folders
from pomology.results.notebook_file import read_notebook
from pomology.results.run import MALFORMED, Run
from pomology.runner import notebooks

HERE = Path(__file__).resolve().parent
LAB = root() / "outputs" / "lab"
MOST_LETTERS = 240  # of what a notebook says of itself
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


def here(*profiles: str) -> list[Run]:
    """The runs of these profiles on this machine, the latest first; also of notebooks that were run by hand."""
    places = (root() / "outputs").glob("*/machine.json")
    runs = [Run(place.parent) for place in sorted(places, key=lambda place: place.stat().st_mtime, reverse=True)]
    now = machine_snapshot.snapshot()
    runs = [run for run in runs if run.machine.get("profile") in profiles]
    return [run for run in runs if not folders.of_another_machine(run.machine, now)]


def durations(runs: Iterable[Run]) -> dict[str, tuple[float, Run]]:
    """How many seconds each notebook took in the first of these runs that has finished it, and which run that is."""
    known: dict[str, tuple[float, Run]] = {}
    for run in runs:
        for place in run.path.glob("*.ipynb"):
            with contextlib.suppress(*MALFORMED):  # a notebook that somebody has put there
                took_s = read_notebook(place)["metadata"]["papermill"]["duration"]
                known.setdefault(place.stem, (float(took_s), run))
    return known


def answers(first: str) -> str:
    """Of a notebook's first cell what is timed, counted or asked; of one that times nothing what it shows."""
    paragraphs = [re.sub(r"[*`]", "", text).split() for text in re.split(r"\n\s*\n", first)[1:]]
    texts = [" ".join(words) for words in paragraphs]
    asked = [text for text in texts if re.match("What is (?!checked first)", text) and "nothing here" not in text]
    shown = [text[text.index("This notebook") :] for text in texts if re.search("This notebook .{30}", text)]
    sentences = re.split(r"(?<=[.?!]) (?=[A-Z])", (*asked, *shown, *texts, "")[0])
    fitting = [text for n, text in enumerate(sentences) if n == 0 or sum(map(len, sentences[: n + 1])) <= MOST_LETTERS]
    return textwrap.shorten(" ".join(fitting), MOST_LETTERS + 20, placeholder=" …")


def picture(name: str, runs: list[Run]) -> tuple[str, str]:
    """A notebook's figure, and whose it is: of the latest of these runs that has one, else of the kit's own run."""
    for run in runs:
        if (drawn := run.path / "figures" / f"{name}-epoch.svg").is_file():
            return address(drawn.read_text(encoding="utf-8")), f"of your run {run.name}"
    page = REFERENCE.read_text(encoding="utf-8") if REFERENCE.is_file() else ""
    section = re.search(rf'<section id="{re.escape(name)}">(.*?)</section>', page, re.DOTALL)
    drawn = re.search(rf'src="({re.escape(PICTURE)}[^"]*)"', section[1]) if section else None
    return (drawn[1], "of the run that comes with the kit") if drawn else ("", "")


def entry(notebook: notebooks.Notebook, runs: list[Run], known: dict[str, tuple[float, Run]]) -> str:
    """A notebook's part of the page: its title as a link, what it finds out, how long it takes, its picture."""
    link = Path(os.path.relpath(notebook.path, LAB)).as_posix()
    lines = [f"### [{plain(notebook.title)}]({quote(link)})", "", plain(answers(notebook.first))]
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
        # Inside the page: JupyterLab first asks for a file at a wrong place, which is not there.
        size = re.search(r"<svg\b[^>]*? height='([\d.]+)pt'[^>]*? viewBox='0 0 ([\d.]+) ", unquote(drawn))
        wide = not size or float(size[1]) < float(size[2])
        shape = 'width="560"' if wide else 'height="480"'  # of dozens of panels: as a look, not to read
        lines += ["", f'<img src="{drawn}" {shape} alt="Its figure, {html.escape(whose)}">', "", f"*{plain(whose)}*"]
    return "\n".join([*lines, ""])


def plain(text: str) -> str:
    """A text of a notebook or a folder's name as Markdown that shows it, and does nothing."""
    return re.sub(r"([\\`*_\[\]#|~$])", r"\\\1", html.escape(text, quote=False))


def contents() -> str:
    """The page, in Markdown: a section per article, and in it a part per notebook."""
    try:
        found = notebooks.notebooks()
    except PomologyError as error:  # it may take JupyterLab to put it right
        return f"{PAGE}\n**{error}**\n"
    runs = here("quick", "article")
    known = durations(run for run in runs if run.machine["profile"] == "quick")
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
