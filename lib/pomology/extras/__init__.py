"""Optional features beyond measuring, each in a folder that can be removed.

An extra declares its commands in `COMMANDS`: the name -> a function, whose docstring is the help
text, and its arguments, each made by `command_line.argument`.
"""

import importlib
import pkgutil
from typing import Any


def names() -> list[str]:
    """Return the names of the existing extras; copies such as `store 2` are none."""
    folders = [module.name for module in pkgutil.iter_modules(__path__) if module.ispkg]
    return sorted(filter(str.isidentifier, folders))


def commands() -> dict[str, tuple[Any, ...]]:
    """Return the commands of all existing extras, in the form of `COMMANDS`."""
    by_name = {}
    for name in names():
        by_name |= getattr(importlib.import_module(f"{__name__}.{name}"), "COMMANDS", {})
    return by_name
