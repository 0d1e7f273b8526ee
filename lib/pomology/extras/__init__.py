"""What pomology can do beyond measuring, in folders that the core does without.

Each can be removed. An extra has its commands in `COMMANDS`: a name -> a function, whose docstring
is the help, and its arguments, each by `command_line.argument`.
"""

import pkgutil


def names() -> list[str]:
    """Return the names of the extras that are there."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))
