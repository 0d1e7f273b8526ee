"""Messages of frameworks and vendors' libraries: the status of a case, and what is needed."""

import re
import sys
from collections.abc import Set

from pomology.paths import RESOURCES, read_csv

# By classes of exceptions and a pattern. With `needs` the installation is at fault, no program.
MESSAGES = read_csv(RESOURCES / "messages.csv")


def explain(message: str, kinds: Set[str]) -> tuple[str, str | None] | None:
    """Return the status for an exception of these classes, and its `fault`; None for a bug."""
    for known in MESSAGES:
        if kinds & {*known["exceptions"].split()} and re.search(known["says"], message, re.I):
            return known["status"], fault(message) if known["needs"] else None
    return None


def fault(message: str) -> str | None:
    """Return the sentence about a fault of the installation, with what is needed; None without."""
    for known in MESSAGES:
        for sentence in re.split(r"\n|(?<=[.?]) (?=[A-Z])", message):
            if known["needs"] and re.search(known["says"], sentence, re.I):
                needs = known["needs"]
                if "{architectures}" in needs:
                    needs = needs.format(architectures=_architectures())
                return f"{sentence.strip().rstrip('.')}; needs {needs}"
    return None


def _architectures() -> str:
    """Return what this process's PyTorch is built for, and its GPU; "" without PyTorch or CUDA."""
    torch = sys.modules.get("torch")
    if not (torch and torch.cuda.is_available()):
        return ""
    built = ", ".join(torch.cuda.get_arch_list())
    major, minor = torch.cuda.get_device_capability()
    return f"; PyTorch {torch.__version__} has {built}; this GPU is sm_{major}{minor}"
