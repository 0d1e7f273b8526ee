"""A notebook's parameters, and the check of the values that a profile or a variant gives them.

papermill itself takes unknown names, and a text for a number, without a word.
"""

import ast
from pathlib import Path
from typing import Annotated, Any

import msgspec
import yaml

from pomology.errors import PomologyError
from pomology.format import one_line
from pomology.paths import read_file

# The types of parameters that have `(> 0)` in their comment.
ABOVE_0 = {kind.__name__: Annotated[kind, msgspec.Meta(gt=0)] for kind in (int, float)}


def declared(path: Path) -> type[msgspec.Struct]:
    """Return a struct with the parameters of a notebook, which are in its cell of that tag.

    Each is a line `name: type = literal  # help`. Raises PomologyError for any other line.
    """
    import papermill  # takes half a second

    fields = []
    defaults = {}
    name = "parameters"
    try:
        for name, found in papermill.inspect_notebook(path).items():
            types = dict(ABOVE_0 if "(> 0)" in found["help"] else {})
            fields.append((name, eval(found["inferred_type_name"], types), None))
            defaults[name] = ast.literal_eval(found["default"])
    except (NameError, SyntaxError, TypeError, ValueError) as error:
        line = "`name: type = literal`"
        raise PomologyError(f"{path.name}: {name}: must be {line}; {one_line(error)}") from None
    struct = msgspec.defstruct("Parameters", fields, forbid_unknown_fields=True)
    check(defaults, struct, path.name)
    return struct


def check(values: Any, declared: type[msgspec.Struct], where: str) -> None:
    """Raise PomologyError, beginning with `where`, for an unknown name or a wrong value."""
    try:
        msgspec.convert(values, declared)
    except (msgspec.ValidationError, TypeError) as error:
        raise PomologyError(f"{where}: {error}") from None


def read_yaml(path: Path, declared: type[msgspec.Struct]) -> dict[str, Any]:
    """Return a file's values for declared parameters. Raises PomologyError as `check` does."""
    where = "/".join(path.parts[-3:])
    try:
        values = yaml.safe_load(read_file(path)) or {}
    except (PomologyError, yaml.YAMLError, ValueError) as error:
        raise PomologyError(f"{where}: {one_line(' '.join(str(error).split()), 250)}") from None
    check(values, declared, where)
    return values
