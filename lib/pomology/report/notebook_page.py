"""An executed notebook as one HTML file that opens anywhere."""

import contextlib
import json
import re
import signal
import threading
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pomology.paths import redact
from pomology.report.table import PAGE
from pomology.results.notebook_file import read_notebook

MOST_S = 10  # of computing, for a notebook; parsers of HTML take the square of the depth of what is nested
PICTURE = "data:image/svg+xml,"
SHOWN = ("text/html", "image/svg+xml", "image/png", "image/jpeg", "text/markdown", "text/latex", "text/plain")

# What may stand in a notebook's own HTML
TAGS = """br caption col colgroup dd del details div dl dt figcaption figure h1 h2 h3 h4 h5 h6 hr img mark p pre s samp
small span sub summary sup table tbody td tfoot th thead tr u"""
ATTRIBUTES = "align alt class colspan data-main height id open rowspan scope start title width"
STYLES = "background margin min-width overflow-x padding"
# Scripts and styles with their text, which would be left standing; an endless one to the end, as a browser reads it.
CODE = re.compile(r"<(script|style)\b.*?(?:</\1\s*>|\Z)", re.IGNORECASE | re.DOTALL)


def address(svg: str) -> str:
    """A drawing as an address: as a picture it can neither load nor run anything, nor touch the rest of the page."""
    # Not in base64, which is a third longer. With single quotes only, so that it can stand between double ones.
    single = _classed(svg.replace("'", "&#39;").replace('"', "'"))
    for number, name in enumerate(dict.fromkeys(re.findall(r" id='([^']+)'", single))):  # of 40 digits, some
        single = re.sub(rf"(?<=[#']){re.escape(name)}(?=[)'])", f"i{number}", single)
    return PICTURE + quote(single, safe=" '=/:;,.()-+*!?@$[]~_{}<>")


def _classed(svg: str) -> str:
    """A drawing whose repeated looks have names: matplotlib writes them to each mark, which is half of its text."""
    counts = Counter(re.findall(r" style='([^']*)'", svg))
    names = {look: f"c{number}" for number, (look, count) in enumerate(counts.items()) if count > 2}
    if not names or " class='" in svg:
        return svg
    sheet = "".join(f".{name}{{{look}}}" for look, name in names.items())
    svg = re.sub(r" style='([^']*)'", lambda look: f" class='{names[look[1]]}'" if look[1] in names else look[0], svg)
    return re.sub(r"<svg\b[^<>]*>", lambda tag: f"{tag[0]}<style>{sheet}</style>", svg, count=1)


def render(notebook: Path, tables: dict[str, Any] | None = None, note: str = "") -> str:
    """An executed notebook as one HTML page: code folded, parameters open, pictures inside, no scripts.

    tables: what stands in place of the outputs of cells that end with these methods of the experiment, as `table()`.
    note: what stands above it.
    Raises PomologyError for a file that is no notebook or a huge one, TimeoutError for one that takes too long, and
    what nbconvert raises.
    """
    import nbformat
    from nbconvert import HTMLExporter
    from nbconvert.preprocessors.sanitize import SanitizeHTML

    document = nbformat.v4.reads(redact(json.dumps(read_notebook(notebook), ensure_ascii=False)))
    headings: list[str] = []
    for cell in document.cells:
        if cell.cell_type == "markdown":
            headings += re.findall(r"^#+ +(.+)$", cell.source, re.MULTILINE)
        last = re.search(r"^(?:experiment|report)\.(\w+)\(\)\s*\Z", cell.source, re.MULTILINE)
        for output in cell.get("outputs", ()):
            if last and last[1] in (tables or {}) and output.output_type == "execute_result":
                output.data = {"text/html": tables[last[1]]._repr_html_()}
            if "data" in output:
                shown = {kind: value for kind, value in output.data.items() if kind in SHOWN}
                output.data = shown or {"text/plain": "(An output that only a script could show.)"}
                alt = f"Picture under the heading “{headings[-1] if headings else ''}”"
                output.metadata = {**output.get("metadata", {}), "alt": alt}
    known = SanitizeHTML()  # leaves nothing that could run, load or cover something
    tags, styles = [*known.tags, *TAGS.split()], [*known.styles, *STYLES.split()]
    safe = SanitizeHTML(tags=tags, attributes=_allowed, styles=styles, strip=True)
    # Marks in highlighted code that have no colour in the style sheet would be most of the page.
    coloured = "|".join(re.findall(r"\.highlight \.(\w+)", (PAGE / "style.css").read_text(encoding="utf-8")))
    plain = re.compile(rf'<span class="(?!(?:{coloured})")\w+">([^<]*)</span>')
    filters = {"safe_html": lambda text: safe.sanitize_html_tags(CODE.sub("", str(text))), "address": address}
    exporter = HTMLExporter(
        template_name=PAGE.name,
        extra_template_basedirs=[str(PAGE.parent)],
        exclude_anchor_links=True,
        filters=filters | {"coloured": lambda code: plain.sub(r"\1", str(code))},
        config={"NbConvertBase": {"display_data_priority": list(SHOWN)}},
    )
    with _at_most(MOST_S), warnings.catch_warnings(action="ignore"):  # as of languages that it does not know
        about = {"metadata": {"name": (headings or [notebook.stem])[0], "note": note}}
        return exporter.from_notebook_node(document, about)[0]


@contextlib.contextmanager
def _at_most(seconds: float) -> Iterator[None]:
    """Raises TimeoutError after so many seconds of computing, as long as this is the main thread."""

    def late(*_):
        raise TimeoutError(f"it takes more than {seconds:g} s")

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, seconds, 1)  # again and again, as a parser may pass over one
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _allowed(tag: str, name: str, value: str) -> bool:
    if name == "style":  # a background may name a file to load, in more than one spelling
        return not re.search(r"url|image|\\|@|/\*", value, re.IGNORECASE)
    return value.startswith(("https://", "http://", "#")) if name == "href" else name in ATTRIBUTES.split()
