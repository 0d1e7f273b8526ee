"""What pomology can do beyond measuring: each folder here can be removed, and nothing else imports it."""

import importlib
from types import ModuleType

from pomology.errors import PomologyError


def extra(name: str) -> ModuleType:
    """Import an extra by the name of its folder. Raises PomologyError where that was removed."""
    try:
        return importlib.import_module(f"{__name__}.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"{__name__}.{name}":
            raise
        raise PomologyError(f"this copy of pomology has no lib/pomology/extras/{name}") from None
