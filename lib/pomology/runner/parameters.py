"""A notebook's parameters, and the check of the values that a profile gives them.

papermill itself takes unknown names, and a text for a number, without a word.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import yaml

from pomology.errors import PomologyError
from pomology.format import one_line
from pomology.paths import read_file

ABOVE_ZERO = "(> 0)"  # in the comment of a parameter whose numbers must be


class Parameter(NamedTuple):
    """A line `name: type = default  # help` of the cell that is tagged `parameters`."""

    name: str
    type: str
    default: Any
    help: str


def declared(path: Path) -> dict[str, Parameter]:
    """Return a notebook's parameters, by name. Raises PomologyError for a default that does not suit its type."""
    import papermill  # takes half a second

    try:
        inspected = papermill.inspect_notebook(path)
    except ValueError as error:  # it says neither its kernel nor its language
        raise PomologyError(f"{path.name}: {error}") from None
    parameters = {}
    for name, found in inspected.items():
        try:
            default = ast.literal_eval(found["default"])
        except (SyntaxError, ValueError):
            raise PomologyError(
                f"{path.name}: parameter {name}: its default must be a literal"
            ) from None
        parameters[name] = Parameter(name, found["inferred_type_name"], default, found["help"])
        check(parameters[name], default, path.name)
    return parameters


def check(parameter: Parameter, value: Any, where: str) -> None:
    """Raise PomologyError where a value is not of its parameter's type, or not above 0 as its comment says."""
    name, kind, _, help = parameter
    try:
        msgspec.convert(value, eval(kind))
    except (NameError, SyntaxError, TypeError):
        raise PomologyError(f"{where}: parameter {name}: no type `{kind}` is known") from None
    except msgspec.ValidationError:
        raise PomologyError(
            f"{where}: {name} is {one_line(repr(value), 60)}; it must be {kind}"
        ) from None
    if ABOVE_ZERO in help and not all(number > 0 for number in _numbers(value)):
        raise PomologyError(f"{where}: {name} is {one_line(repr(value), 60)}; it must be above 0")


def _numbers(value: Any) -> Iterator[float]:
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, list):
            yield from _numbers(item)
        else:
            yield item


def read_yaml(path: Path, declared: dict[str, Parameter], where: str) -> dict[str, Any]:
    """Return a file's values for declared parameters. Raises PomologyError in one line that begins with `where`."""
    try:
        values = yaml.safe_load(read_file(path)) or {}
    except (PomologyError, yaml.YAMLError, ValueError) as error:
        raise PomologyError(f"{where}: {one_line(' '.join(str(error).split()), 250)}") from None
    if not isinstance(values, dict):
        raise PomologyError(f"{where}: must be lines `name: value`")
    for name, value in values.items():
        if name not in declared:
            raise PomologyError(
                f"{where}: no parameter is named {name}; there are {', '.join(declared)}"
            )
        check(declared[name], value, where)
    return values
