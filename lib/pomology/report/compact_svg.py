"""Make a drawing of matplotlib small, and give it colours for a light and for a dark page.

Its styles become classes, and its identifiers short. Groups without attributes, metadata and
indentation are left out. Numbers keep two decimals, which is finer than a screen's pixels. Text has
a halo in the background's colour.
"""

from __future__ import annotations

import re
from xml.etree import ElementTree

# The styles of a drawing, after those of its classes. On a dark page text has the page's colours,
# and lines and markers are brighter. The cells of a heat map, which have no outline, keep their
# colours, since their text is dark or light by these.
STYLE = """text {{ font-family: "DejaVu Sans", Verdana, Arial, sans-serif }}
{texts} {{ paint-order: stroke; stroke: #ffffff; stroke-width: {halo}px; stroke-linejoin: round }}
@media screen and (prefers-color-scheme: dark) {{
{texts} {{ fill: #e4e6e9; stroke: #15171a }}
{lines}
}}
"""
BRIGHTER = 1.35  # factor of the colours of lines on a dark page
BRIGHT = 500  # sum of red, green and blue from which on a colour stays
COLOUR = re.compile(r"(?<=#)[0-9a-f]{6}\b")
XLINK = "http://www.w3.org/1999/xlink"
NAMESPACES = {"xmlns": "http://www.w3.org/2000/svg", "xmlns:xlink": XLINK}
NOT_IN_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
REFERENCE = re.compile(r"(?<=#)\w+")
LONG_NUMBER = re.compile(r"-?\d+\.\d{3,}")
FONT = re.compile(r"font-family:[^;]*; ")


def compact(drawing: str, ink: str, halo: float) -> str:
    """Return a drawing of matplotlib, an `svg` element, in less than half of its bytes.

    ink: colour of its text in hexadecimal. halo: width of the line around the text.
    """
    root = ElementTree.fromstring(NOT_IN_XML.sub("", drawing))
    referred = re.findall(r'(?:href="|url\()#(\w+)', drawing)
    names = {name: f"i{number}" for number, name in enumerate(dict.fromkeys(referred))}
    classes: dict[str, str] = {}
    for element in root.iter():
        given = dict(element.items())
        element.tag = element.tag.rpartition("}")[2]
        element.attrib.clear()
        for name, value in given.items():
            value = " ".join(LONG_NUMBER.sub(_short, FONT.sub("", value)).split())
            value = REFERENCE.sub(lambda found: names.get(found[0], found[0]), value)
            if name == "style":
                element.set("class", classes.setdefault(value, f"s{len(classes)}"))
            elif name == "id" and value in names:
                element.set("id", names[value])
            elif name != "id" and not value.startswith("rotate(-0 "):
                element.set(name.replace(f"{{{XLINK}}}", "xlink:"), value)
    _flatten(root)
    texts = ", ".join(f"text.{name}" for style, name in classes.items() if f"fill: {ink}" in style)
    rules = [f".{name} {{ {style} }}" for style, name in classes.items()]
    lines = [_brighter(name, style) for style, name in classes.items() if "stroke: #" in style]
    style = root.find("defs/style")
    added = STYLE.format(texts=texts or "text", halo=halo, lines="\n".join(lines))
    style.text = "\n".join([style.text, *rules, added])
    root.attrib.update(NAMESPACES)
    return ElementTree.tostring(root, encoding="unicode")


def _brighter(name: str, style: str) -> str:
    """Return the rule for the colours of a class on a dark page."""

    def brighter(colour: re.Match) -> str:
        parts = bytes.fromhex(colour[0])
        factor = BRIGHTER if sum(parts) < BRIGHT else 1
        return bytes(min(255, round(factor * part)) for part in parts).hex()

    colours = [COLOUR.sub(brighter, part) for part in style.split("; ") if COLOUR.search(part)]
    return f".{name} {{ {'; '.join(colours)} }}"


def _short(number: re.Match) -> str:
    return f"{float(number[0]):.2f}".rstrip("0").rstrip(".")


def _flatten(element: ElementTree.Element) -> None:
    """Leave out the groups without attributes inside an element, metadata and indentation."""
    children: list[ElementTree.Element] = []
    for child in element:
        _flatten(child)
        child.tail = None
        bare = child.tag == "g" and not child.attrib
        if child.tag != "metadata":
            children += list(child) if bare else [child]
    element[:] = children
    if children:
        element.text = None
    # The markers of a line have one style.
    styles = {(child.tag, child.get("class")) for child in children}
    if element.tag == "g" and len(styles) == 1 and "class" not in element.attrib:
        [(tag, style)] = styles
        if tag == "use" and style:
            element.set("class", style)
            for child in children:
                del child.attrib["class"]
