"""pomology: how fast does this machine train neural networks, and why?

What most users need is here: `from pomology import Experiment, load, Estimate, workload, TooBig`.
`measure` is a package: what times a call is `from pomology.measure.calls import measure`.
Importing this takes no numpy and no framework: a name is imported when it is first asked for.
"""

import importlib
import warnings

# Of a progress bar that a notebook without widgets does not draw, as transformers is imported.
warnings.filterwarnings("ignore", message="IProgress not found")

__version__ = "0.1.0"

_MODULES = {
    "Experiment": "pomology.experiment.experiment",
    **dict.fromkeys(("load", "published"), "pomology.results.frame"),
    "Run": "pomology.results.run",
    "Estimate": "pomology.measure.estimate",
    "workload": "pomology.models.cost",
    **dict.fromkeys(("PomologyError", "NoSuchDevice", "Unsupported"), "pomology.errors"),
    **dict.fromkeys(("TooBig", "TooSlow", "Mismatch"), "pomology.errors"),
}
__all__ = ["__version__", *_MODULES]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
