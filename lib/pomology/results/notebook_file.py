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
    """What a notebook's metadata say of it to the kit, under `pomology`; see
    `runner.notebooks.Notebook`.
    """

    article: str = ""
    seconds: Seconds = {}
    one_case_per_kernel: list[str] = []
    after: list[str] = []


class Tags(msgspec.Struct):
    tags: list[str] = []


class Cell(msgspec.Struct):
    cell_type: Literal["code", "markdown", "raw"]
    source: str | list[str]
    metadata: Tags
    attachments: dict[str, Any] = {}
    outputs: list[dict[str, Any]] = []


class Kernel(msgspec.Struct):
    name: str
    display_name: str


class Metadata(msgspec.Struct):
    kernelspec: Kernel | None = None
    pomology: About = msgspec.field(default_factory=About)


class Form(msgspec.Struct):
    cells: Annotated[list[Cell], msgspec.Meta(min_length=1)]
    metadata: Metadata
    nbformat: Literal[4]


def read_notebook(path: Path) -> dict[str, Any]:
    """The notebook as JSON.

    Raises PomologyError, in a line, if the file is none that can be run and rendered.
    """
    try:
        notebook = json.loads(read_file(path).decode("utf-8"))
        msgspec.convert(notebook, Form)
        json.dumps(
            notebook, ensure_ascii=False
        ).encode()  # half a sign can be read, and not written
    except (ValueError, RecursionError) as error:
        raise PomologyError(
            f"{one_line(path.name)}: not a notebook ({one_line(error, 250)})"
        ) from None
    return notebook
