"""What pomology can do beyond measuring, in folders that the core does without.

Each can be removed. An extra has its commands in `COMMANDS`, by name, each a `command_line.Command`.
"""

import pkgutil


def names() -> list[str]:
    """Return the names of the extras that are there."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))
