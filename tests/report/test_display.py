"""What a notebook displays of the modules that it imports."""

import functools
from pathlib import Path

import pytest

import pomology
from pomology import errors
from pomology.report import display


def whole(number):
    """Return a number in ```backticks```."""
    return f"```{number}```"


OWN, ERRORS = (Path(place).read_text(encoding="utf-8") for place in (__file__, errors.__file__))
SOURCES = {
    "function": (whole, OWN[OWN.index("def whole") : OWN.index("\n\n\nOWN")]),
    "cached function": (
        functools.cache(whole),
        OWN[OWN.index("def whole") : OWN.index("\n\n\nOWN")],
    ),
    "module": (errors, ERRORS.rstrip()),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_the_source_of_what_a_notebook_imports_is_shown(kind, monkeypatch):
    item, source = SOURCES[kind]
    shown = []
    monkeypatch.setattr(display, "display", shown.append)
    pomology.show(item, item)
    assert [each.data for each in shown] == 2 * [f"````python\n{source}\n````"]
