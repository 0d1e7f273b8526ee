"""A notebook's parameters, and the check of the values that a profile or a variant gives them.

papermill itself takes unknown names, and a text for a number, without a word.
"""

import ast
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
    """Return a notebook's parameters, by name.

    Raises PomologyError for a default that is no literal, or does not suit its type.
    """
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
            where = f"{path.name}: parameter {name}"
            raise PomologyError(f"{where}: its default must be a literal") from None
        parameters[name] = Parameter(name, found["inferred_type_name"], default, found["help"])
        _check(parameters[name], default, path.name)
    return parameters


def check_all(values: dict[str, Any], declared: dict[str, Parameter], where: str) -> None:
    """Raise PomologyError, beginning with `where`, for an unknown name or a wrong value."""
    for name, value in values.items():
        if name not in declared:
            names = ", ".join(declared)
            raise PomologyError(f"{where}: no parameter is named {name}; there are {names}")
        _check(declared[name], value, where)


def _check(parameter: Parameter, value: Any, where: str) -> None:
    name, kind, _, help = parameter
    shown = one_line(repr(value), 60)
    try:
        msgspec.convert(value, eval(kind))
    except (NameError, SyntaxError, TypeError):
        raise PomologyError(f"{where}: parameter {name}: no type `{kind}` is known") from None
    except msgspec.ValidationError:
        raise PomologyError(f"{where}: {name} is {shown}; it must be {kind}") from None
    numbers = [value]
    while isinstance(numbers[0], list):  # of a list, or of a list of rows
        numbers = [number for part in numbers for number in part] or [1]
    if ABOVE_ZERO in help and not all(number > 0 for number in numbers):
        raise PomologyError(f"{where}: {name} is {shown}; it must be above 0")


def read_yaml(path: Path, declared: dict[str, Parameter], where: str) -> dict[str, Any]:
    """Return a file's values for declared parameters. Raises PomologyError as `check_all` does."""
    try:
        values = yaml.safe_load(read_file(path)) or {}
    except (PomologyError, yaml.YAMLError, ValueError) as error:
        raise PomologyError(f"{where}: {one_line(' '.join(str(error).split()), 250)}") from None
    if not isinstance(values, dict):
        raise PomologyError(f"{where}: must be lines `name: value`")
    check_all(values, declared, where)
    return values
