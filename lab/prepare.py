"""What JupyterLab shows first: a page of links to the notebooks, with what each finds out and how long it takes."""

import html
import os
import re
from pathlib import Path
from urllib.parse import quote

from jupyterlab_server.workspaces_handler import WorkspacesManager

from pomology import format
from pomology.articles import published
from pomology.errors import PomologyError
from pomology.paths import root, write_atomic
from pomology.runner import notebooks

HERE = Path(__file__).resolve().parent
LAB = root() / "outputs" / "lab"

PAGE = """# Notebooks

Open one, change its parameters if you like, and choose *Run*, *Run All Cells*. Run one at a time: two would share the
CPU and the memory that they measure. **Times** are approximate, for the `quick` parameters on two CPU cores.

**Numbers** go to `outputs/lab-<digits>/`, one folder for all notebooks while the machine, its software and the profile
stay the same. To run the set-up cell again is to measure anew; the earlier numbers move to `earlier/` there.
**Notebooks** are saved without outputs, so that git shows your own changes only. With their outputs they are in
`outputs/lab/`.
"""


def entry(notebook: notebooks.Notebook) -> str:
    """A notebook's part of the page: its title as a link, the first paragraph that says what it does, and its time."""
    link = quote(Path(os.path.relpath(notebook.path, LAB)).as_posix())
    first = "".join(notebooks.read_notebook(notebook.path)["cells"][0]["source"])
    paragraphs = re.split(r"\n\s*\n", first)[1:]
    about = next((text for text in paragraphs if re.match(r"\*\*What", text)), (*paragraphs, "")[0])
    time = format.clock_time(notebook.seconds("quick"))
    return f"### [{plain(notebook.title)}]({link})\n\n{about}\n\n**How long:** {time}\n"


def plain(text: str) -> str:
    """A text as Markdown that shows it, and does nothing."""
    return re.sub(r"([\\`*_\[\]#|~$])", r"\\\1", html.escape(text, quote=False))


def contents() -> str:
    """The page, in Markdown: a section per article, and in it a part per notebook."""
    try:
        first, found = notebooks.notebooks(run=False), notebooks.notebooks()
    except PomologyError as error:  # it may take JupyterLab to put it right
        return f"{PAGE}\n**{error}**\n"
    titles = {published.KIT: "This machine"} | {
        article.id: article.title for article in published.articles()
    }
    parts = [PAGE, *map(entry, first)]
    for article, title in titles.items():
        parts.append(f"## {title}\n")
        parts += [entry(notebook) for notebook in found if notebook.article == article]
    return "\n".join(parts)


if __name__ == "__main__":
    write_atomic(LAB / "notebooks.md", contents())
    if not (LAB / ".layouts").exists():  # from the second time on as the user has left it
        WorkspacesManager(str(LAB / ".layouts")).save(
            "default", (HERE / "layout.json").read_text(encoding="utf-8")
        )
