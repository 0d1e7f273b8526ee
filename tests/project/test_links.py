"""Links and anchors of pages, notebooks, and of the committed report lead somewhere."""

import html
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from pomology.paths import notebook_paths, root
from pomology.runner.notebooks import relinked

REFERENCE = root() / "outputs" / "reference-cpu"
# Not docs/log: its entries name files that have gone since.
PAGES = [root() / "README.md", root() / "CONTRIBUTING.md", root() / "CHANGELOG.md"]
PAGES += [root() / "collection" / "README.md", *sorted((root() / "docs").glob("*.md"))]
PAGES += sorted((root() / "docs" / "how-to").glob("*.md"))
NOTEBOOKS = [*notebook_paths(root() / "notebooks"), *notebook_paths(REFERENCE)]
REPORT = REFERENCE / "index.html"
MARKDOWN = re.compile(r"\]\(([^)\s]+)\)")
HTML = re.compile(r"""\b(?:href|src)=["']([^"']+)["']""")
DRAWING = re.compile(r'src="data:[^"]*"')  # has links to its own parts
ELSEWHERE = re.compile(r"(?:https?|data|attachment|mailto):")


@cache
def anchors(path: Path) -> set[str]:
    """Return the targets of anchors in a file: ids in HTML, headings in Markdown, as GitHub's."""
    text = path.read_text(encoding="utf-8")
    names = set(re.findall(r'\b(?:id|name)="([^"]+)"', text))
    without_code = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    for heading in re.findall(r"^#+ +(.*)", without_code, re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        names.add(re.sub(r"[^\w\- ]", "", words).replace(" ", "-"))
    return names


def links(path: Path) -> Iterator[str]:
    """Yield the targets of all links in a page, or in the texts and results of a notebook."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".html":
        yield from map(html.unescape, HTML.findall(DRAWING.sub("", text)))
        return
    if path.suffix == ".md":
        yield from MARKDOWN.findall(text)
        return
    for cell in json.loads(text)["cells"]:
        if cell["cell_type"] == "markdown":
            yield from MARKDOWN.findall("".join(cell["source"]))
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            yield from HTML.findall("".join(data.get("text/html", "")))
            yield from MARKDOWN.findall("".join(data.get("text/markdown", "")))


def dead(path: Path) -> Iterator[str]:
    """Yield the links of a file whose file or anchor does not exist."""
    for link in links(path):
        if ELSEWHERE.match(link):
            continue
        name, _, anchor = link.partition("#")
        target = path.parent / name if name else path
        if not target.exists() or (anchor and anchor not in anchors(target)):
            yield link


@pytest.mark.parametrize("path", [*PAGES, *NOTEBOOKS, REPORT], ids=lambda path: path.name)
def test_all_links_and_anchors_exist(path):
    assert list(dead(path)) == []


def test_a_dead_link_and_a_dead_anchor_are_seen(tmp_path):
    (tmp_path / "b.md").write_text("## What *this* shows: 3 `x`\n")
    page = tmp_path / "a.md"
    page.write_text("# Title\n[1](b.md) [2](b.md#what-this-shows-3-x) [3](#title) [4](https://x)\n")
    assert list(dead(page)) == []
    other = tmp_path / "c.md"
    other.write_text("[1](d.md) [2](b.md#what) [3](#title)\n")
    assert list(dead(other)) == ["d.md", "b.md#what", "#title"]


@pytest.mark.parametrize("path", notebook_paths(root() / "notebooks"), ids=lambda path: path.name)
def test_the_links_of_an_executed_notebook_exist(path, tmp_path):
    for folder in (root() / "outputs" / "a", root() / "outputs" / "a" / "repeats"):
        text = relinked(json.loads(path.read_text(encoding="utf-8")), path, folder)
        cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown"]
        for link in MARKDOWN.findall("\n".join("".join(cell["source"]) for cell in cells)):
            target = link.partition("#")[0]
            assert ELSEWHERE.match(link) or not target or (folder / target).resolve().exists()
