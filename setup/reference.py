"""Publish a finished run as outputs/reference-cpu: `python setup/reference.py outputs/NAME`.

It has the executed notebooks, the report, the journals (packed), the CSV files that the notebooks
have saved, and a figure of each notebook, to which its answer links. Images are made smaller.
"""

import base64
import gzip
import io
import json
import re
import shutil
import sys
from pathlib import Path

import PIL.Image

from pomology.paths import root
from pomology.runner.notebooks import relinked

TARGET = root() / "outputs" / "reference-cpu"
WIDTH = 800  # pixels of an image, at most
COLOURS = 16  # the most different ones, so that those of devices stay
RENDERED = re.compile(r'href="(\w+)\.html">\1\.html')  # the executed notebooks replace these
DETAILS = re.compile(r' · <a href="([^"]+-details\.csv)">[^<]*</a>')
DRAWING = re.compile(r'data:image/svg[^"]*')
SECTION = re.compile(r'(?=<section id="(\w+)">)')
SHOWN = (".figure(", ".show(")


def smaller(image: str) -> str:
    """Return a PNG in base64 with fewer pixels and colours."""
    figure = PIL.Image.open(io.BytesIO(base64.b64decode(image))).convert("RGBA")
    figure.thumbnail((WIDTH, 100 * WIDTH))
    # A palette of RGB colours cannot have the figure's transparent ground.
    paper = PIL.Image.new("RGBA", figure.size, "white")
    paper.alpha_composite(figure)
    reduced = paper.convert("RGB").quantize(COLOURS, PIL.Image.Quantize.MAXCOVERAGE)
    data = io.BytesIO()
    reduced.save(data, format="png", optimize=True)
    return base64.b64encode(data.getvalue()).decode()


def publish_notebook(path: Path) -> list[str]:
    """Copy an executed notebook; return the figures that it has shown, as PNG in base64.

    Its texts are those of now, whose answers quote this run.
    """
    (source,) = root().glob(f"notebooks/**/{path.name}")
    cells = json.loads(source.read_text(encoding="utf-8"))["cells"]
    texts = {cell["id"]: cell["source"] for cell in cells if cell["cell_type"] == "markdown"}
    notebook = json.loads(path.read_text(encoding="utf-8"))
    figures = []
    for cell in notebook["cells"]:
        cell["source"] = texts.get(cell["id"], cell["source"])
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "text/html" in data:
                data.pop("text/plain", None)
            if "image/png" in data:
                data["image/png"] = smaller("".join(data["image/png"]))
                if any(word in "".join(cell["source"]) for word in SHOWN):
                    figures.append(data["image/png"])
    (TARGET / path.name).write_text(relinked(notebook, source, TARGET), encoding="utf-8")
    if figures:
        folder = TARGET / "shown" / path.stem
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "figure.png").write_bytes(base64.b64decode(figures[0]))
    return figures


def without_dead_links(page: str) -> str:
    """Return the report without its links to files that are not published."""

    def link_or_nothing(link: re.Match) -> str:
        return link[0] if (TARGET / link[1]).exists() else ""

    return DETAILS.sub(link_or_nothing, page)


def main(run: Path) -> None:
    """Publish a run's folder in place of the earlier reference."""
    shutil.rmtree(TARGET, ignore_errors=True)
    TARGET.mkdir()
    shutil.copy(run / "machine.json", TARGET)
    for journal in run.glob("*.jsonl"):
        packed = gzip.compress(journal.read_bytes(), mtime=0)  # equal bytes for equal journals
        (TARGET / f"{journal.name}.gz").write_bytes(packed)
    for table in run.glob("shown/*/*.csv"):
        if table.stem.endswith("-details"):  # the journals have these values
            continue
        copy = TARGET / table.relative_to(run)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(table, copy)
    figures = {path.stem: publish_notebook(path) for path in run.glob("*.ipynb")}
    index = (run / "index.html").read_text(encoding="utf-8").replace(".jsonl", ".jsonl.gz")
    head, *parts = SECTION.split(index)
    for name, part in zip(parts[::2], parts[1::2], strict=True):
        images = iter(figures[name])
        part = DRAWING.sub(lambda _, images=images: f"data:image/png;base64,{next(images)}", part)
        # They have a white ground, and need no brightness in dark mode.
        head += part.replace('class="drawing"', 'class="drawing" style="filter: none"')
    page = RENDERED.sub(r'href="\1.ipynb">\1.ipynb', head)
    (TARGET / "index.html").write_text(without_dead_links(page), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
