"""What JupyterLab shows first: a page that lists the notebooks, beside their folders and a table of contents."""

import os
from pathlib import Path

from jupyterlab_server.workspaces_handler import WorkspacesManager

from pomology import format
from pomology.articles import published
from pomology.errors import PomologyError
from pomology.paths import root, write_atomic
from pomology.runner import notebooks

HERE = Path(__file__).resolve().parent
LAB = root() / "outputs" / "lab"

PAGE = """# Notebooks

Open one, change its parameters if you like, and choose *Run*, *Run All Cells*. One at a time: two would share the
time and the memory that they measure.

What is measured stands in `outputs/lab-<date>-<time>/`, one folder for all notebooks of a day, so that those which lay
others together find their numbers. A set-up cell that is run again measures anew, and moves what its notebook has
measured before into `earlier/` there. Notebooks are saved without what running them leaves, so that git shows your own
changes only; as they were last saved with it, they are in `outputs/lab/`.

The times are rough, for the `quick` parameters on two CPU cores.
"""


def contents() -> str:
    """The page, in Markdown: a section per article, a line per notebook."""
    try:
        found = notebooks.notebooks()
    except PomologyError as error:  # it may take JupyterLab to put it right
        return f"{PAGE}\n**{error}**\n"
    lines = []
    titles = {article.id: article.title for article in published.articles()}
    for article, title in {published.KIT: "This machine", **titles}.items():
        lines += [f"\n## {title}\n"]
        for notebook in found:
            if notebook.article == article:
                link = Path(os.path.relpath(notebook.path, LAB)).as_posix()
                time = f", {format.clock_time(notebook.seconds['quick'])}" if "quick" in notebook.seconds else ""
                after = "; lays together what others have measured" if notebook.after else ""
                lines.append(f"- [{notebook.title}]({link}){time}{after}")
    return PAGE + "\n".join(lines) + "\n"


if __name__ == "__main__":
    write_atomic(LAB / "notebooks.md", contents())
    if not (LAB / ".layouts").exists():  # from the second time on as the user has left it
        WorkspacesManager(str(LAB / ".layouts")).save("default", (HERE / "layout.json").read_text(encoding="utf-8"))
