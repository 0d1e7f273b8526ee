"""An executed notebook as one HTML file that opens anywhere."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import Any

from pomology.paths import RESOURCES, redact

PAGE = RESOURCES / "page"

MOST_BYTES = 64 * 2**20  # of a notebook

MOST_PAGE_BYTES = 1_900_000  # of a page: what is largest in it stays out, and it says so


def lean(markup: str) -> str:
    """A table of this package without what each cell repeats for Jupyter's sake: the style sheet says it once."""
    for long, short in LEAN.items():
        markup = markup.replace(long, short)
    return re.sub(r"<td>([^<]{30,})</td>", r'<td class="long">\1</td>', markup)


# Texts in a table are escaped: what has these quotation marks is markup.
LEAN = {
    ' style="text-align:left"': "",
    ' style="text-align:left;min-width:30em"': ' class="remark"',
    ' style="font-weight:600;background:rgba(213,94,0,.10)"': "",
    ' style="margin:.2em 0;font-size:90%"': "",
    '<p style="font-weight:600"></p>': "",
    '<p style="font-weight:600">': '<p class="title">',
    '<div style="overflow-x:auto"><table>': '<div class="scroll"><table>',
}

SHOWN = ("text/html", "image/svg+xml", "image/png", "image/jpeg", "text/markdown", "text/latex", "text/plain")

TAGS = """br caption col colgroup dd del details div dl dt figcaption figure h1 h2 h3 h4 h5 h6 hr img mark p pre s samp
small span sub summary sup table tbody td tfoot th thead tr u"""

ATTRIBUTES = "align alt class colspan height id open rowspan scope start title width"

STYLES = "background margin min-width overflow-x padding"


def render(notebook: Path) -> str:
    """An executed notebook as one HTML page: code folded, parameters open, pictures inside, no scripts.

    Where it would be longer than MOST_PAGE_BYTES, its largest outputs are left out, with a sentence in their places.
    Raises ValueError for a file that is no notebook, or is longer than that by its text and code alone.
    """
    import nbformat
    from nbconvert import HTMLExporter

    if notebook.stat().st_size > MOST_BYTES:
        raise ValueError(f"{notebook.stat().st_size:,} bytes; at most {MOST_BYTES:,} are rendered")
    try:
        document = nbformat.reads(redact(notebook.read_text(encoding="utf-8")), as_version=4)
    except nbformat.ValidationError as error:
        raise ValueError(f"not a notebook: {error.message}") from None
    title = _prepare(document) or notebook.stem
    exporter = HTMLExporter(
        template_name=PAGE.name,
        extra_template_basedirs=[str(PAGE.parent)],
        exclude_anchor_links=True,
        filters={"safe_html": _safe_html, "coloured": _coloured},
        config={"NbConvertBase": {"display_data_priority": list(SHOWN)}},
    )
    _leave_out_outputs(document, notebook.stem)  # cleaning what is not shown may take minutes
    while True:
        page, _ = exporter.from_notebook_node(document, {"metadata": {"name": title}})
        excess = len(page.encode()) - MOST_PAGE_BYTES
        if excess <= 0:
            return page
        _leave_out_outputs(document, notebook.stem, excess)


def _leave_out_outputs(document: Any, name: str, excess: int | None = None) -> None:
    """Put a sentence in the place of the largest outputs, until these many bytes are saved, or all go on a page."""
    from nbformat import v4

    places = [(cell.outputs, n) for cell in document.cells if "outputs" in cell for n in range(len(cell.outputs))]
    texts = (json.dumps(outputs[n], ensure_ascii=False).replace(r"\"", '"') for outputs, n in places)
    sizes = {number: len(lean(text).encode(errors="replace")) for number, text in enumerate(texts)}
    excess = sum(sizes.values()) - MOST_PAGE_BYTES if excess is None else excess
    for number in sorted(sizes, key=lambda number: -sizes[number]):
        if excess <= 0:
            return
        if sizes[number] < 2000:  # what is left is text and code
            raise ValueError(f"over {MOST_PAGE_BYTES:,} bytes even without its large outputs")
        words = (
            f"Left out here, so that this page stays under 2 MB: an output of {sizes[number] / 1e6:,.1f} MB. The "
            f"notebook itself, {name}.ipynb, has it; the numbers are in the journal, {name}.jsonl."
        )
        outputs, place = places[number]
        outputs[place] = v4.new_output("stream", text=words)
        excess -= sizes[number]
    if excess > 0:
        raise ValueError(f"over {MOST_PAGE_BYTES:,} bytes even without its outputs")


def _prepare(document: Any) -> str:
    """Drop outputs that only a script could show and give each picture a text instead; returns the first heading."""
    title = heading = ""
    for cell in document.cells:
        if cell.cell_type == "markdown":
            headings = re.findall(r"^#+ +(.+)$", cell.source, re.MULTILINE)
            heading = headings[-1] if headings else heading
            title = title or heading
        for output in cell.get("outputs", ()):
            if "data" in output:
                shown = {kind: value for kind, value in output.data.items() if kind in SHOWN}
                output.data = shown or {"text/plain": "(An output that only a script could show.)"}
                output.metadata = {**output.get("metadata", {}), "alt": f"Picture under the heading “{heading}”"}
    return title


def _coloured(code: Any) -> str:
    """Highlighted code without marks of what has no colour in the style sheet, which would be most of the page."""
    kinds = _coloured_kinds()
    return re.sub(
        r'<span class="(\w+)">([^<]*)</span>', lambda mark: mark[0] if mark[1] in kinds else mark[2], str(code)
    )


@functools.cache  # asked for every cell
def _coloured_kinds() -> frozenset[str]:
    return frozenset(re.findall(r"\.highlight \.(\w+)", (PAGE / "style.css").read_text(encoding="utf-8")))


def _safe_html(text: Any) -> str:
    """HTML from a notebook with nothing in it that could run, load or cover something."""
    # Only for looks: their text would be left standing.
    text = re.sub(r"<(script|style)\b.*?</\1\s*>", "", str(text), flags=re.DOTALL | re.IGNORECASE)
    return _cleaner().clean(lean(text))


@functools.cache
def _cleaner() -> Any:
    from bleach import ALLOWED_TAGS, Cleaner
    from bleach.css_sanitizer import ALLOWED_CSS_PROPERTIES, CSSSanitizer

    styles = CSSSanitizer(allowed_css_properties=ALLOWED_CSS_PROPERTIES | set(STYLES.split()))
    tags = ALLOWED_TAGS | set(TAGS.split())
    return Cleaner(tags, _allowed, protocols=("http", "https", "data"), strip=True, css_sanitizer=styles)


def _allowed(tag: str, name: str, value: str) -> bool:
    if name == "style":  # a background may name a file to load, in more than one spelling
        return not re.search(r"url|image|\\|@|/\*", value, re.IGNORECASE)
    if name == "href":
        return value.startswith(("https://", "http://", "#"))
    return name in ATTRIBUTES.split() or (name == "src" and value.startswith("data:image/"))
