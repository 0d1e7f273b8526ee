"""Write the start page of JupyterLab: links to the notebooks with their questions and times."""

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


def link(path: Path) -> str:
    """Return the address of a file from the folder of the page."""
    return quote(Path(os.path.relpath(path, LAB)).as_posix())


VAE = link(root() / "notebooks" / "m1_ultra_vs_rtx_2070" / "vae.ipynb")
HOW = link(root() / "docs" / "how-a-notebook-works.md")
PAGE = f"""# Notebooks

Open a notebook, change its parameters if you like, and choose *Run*, *Run All Cells*. Run one
notebook at a time, because two would share the CPU and the memory that they measure. **Time** is
the approximate time with the `quick` parameters on two CPU cores. Begin with [the VAE]({VAE}),
the shortest to read; [how a notebook works]({HOW}) explains its helpers.

- **Results** go to `outputs/lab-<digits>/`, one folder for all notebooks until the machine, its
  software or the profile changes. The set-up cell starts a new measurement when it runs again, and
  moves earlier results to `earlier/` in that folder.
- **Notebooks** are saved without outputs, so that git shows only your changes. Copies with outputs
  are in `outputs/lab/`.
"""


def entry(notebook: notebooks.Notebook) -> str:
    """Return a notebook's part of the page: its title as a link, its question, and its time."""
    first = "".join(notebooks.read_notebook(notebook.path)["cells"][0]["source"])
    question = (*re.split(r"\n\s*\n", first)[1:], "")[0]
    time = format.clock_time(notebook.seconds("quick"))
    return (
        f"### [{plain(notebook.title)}]({link(notebook.path)})\n\n{question}\n\n**Time:** {time}\n"
    )


def plain(text: str) -> str:
    """Return a text as Markdown without links, markup or HTML."""
    return re.sub(r"([\\`*_\[\]#|~$])", r"\\\1", html.escape(text, quote=False))


def contents() -> str:
    """Return the page in Markdown: a section per article, and in it a part per notebook."""
    skipped: dict[str, str] = {}
    try:
        first = notebooks.notebooks(run=False, skipped=skipped)
        found = notebooks.notebooks(skipped=skipped)
    except PomologyError as error:  # users may need JupyterLab to correct the error
        return f"{PAGE}\n**{error}**\n"
    titles = {published.KIT: "This machine"} | {
        article.id: article.title for article in published.articles()
    }
    # A notebook without a source, such as one's own, comes last.
    titles[""] = "Others"
    with_notebooks = {notebook.article for notebook in found}
    titles = {article: title for article, title in titles.items() if article in with_notebooks}
    parts = [PAGE, *map(entry, first)]
    for article, title in titles.items():
        parts.append(f"## {title}\n")
        parts += [entry(notebook) for notebook in found if notebook.article == article]
    parts += [f"Skipped: {plain(reason)}\n" for reason in skipped.values()]
    return "\n".join(parts)


if __name__ == "__main__":
    write_atomic(LAB / "notebooks.md", contents())
    if not (LAB / ".layouts").exists():  # keeps the user's layout
        layout = (HERE / "layout.json").read_text(encoding="utf-8")
        WorkspacesManager(str(LAB / ".layouts")).save("default", layout)
