"""Optional features beyond measuring, each in a folder that can be removed.

An extra declares its commands in `COMMANDS`: the name -> a function, whose docstring is the help
text, and its arguments, each made by `command_line.argument`.
"""

import pkgutil


def names() -> list[str]:
    """Return the names of the existing extras; copies such as `store 2` are none."""
    folders = [module.name for module in pkgutil.iter_modules(__path__) if module.ispkg]
    return sorted(filter(str.isidentifier, folders))
