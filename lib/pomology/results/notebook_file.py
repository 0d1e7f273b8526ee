"""A notebook's file: what of its form the kit, papermill and nbconvert rely on."""

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from pomology.errors import PomologyError
from pomology.format import one_line
from pomology.paths import read_file

Seconds = dict[str, Annotated[float, msgspec.Meta(ge=0, lt=1e7)]]


class About(msgspec.Struct):
    """What a notebook's metadata say under `pomology`; see `runner.notebooks.Notebook`."""

    article: str = ""
    seconds: Seconds = {}
    one_case_per_kernel: list[str] = []
    after: list[str] = []


class Metadata(msgspec.Struct):
    pomology: About = msgspec.field(default_factory=About)


class Tags(msgspec.Struct):
    tags: list[str] = []


class Cell(msgspec.Struct):
    cell_type: Literal["code", "markdown", "raw"]
    source: str | list[str]
    metadata: Tags
    outputs: list[dict[str, Any]] = []


class Form(msgspec.Struct):
    cells: Annotated[list[Cell], msgspec.Meta(min_length=1)]
    metadata: Metadata
    nbformat: Literal[4]


def read_notebook(path: Path) -> dict[str, Any]:
    """Return the notebook as JSON.

    Raises PomologyError, in a line, for a file that cannot be run and rendered.
    """
    data = read_file(path)
    try:
        msgspec.json.decode(data, type=Form)
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        why = one_line(error, 250)
        raise PomologyError(f"{one_line(path.name)}: not a notebook ({why})") from None
