"""pomology: reproducible training benchmarks for Apple Silicon, NVIDIA GPUs and CPUs.

The main names are here: `from pomology import Experiment, load, Estimate, workload, TooBig`. The
function that times a call is `pomology.measure.calls.measure`, since `measure` is a package. Names
are imported at their first use, so importing pomology loads neither numpy nor a framework.
"""

import importlib
import warnings

# transformers warns on import if notebooks cannot show progress bars.
warnings.filterwarnings("ignore", message="IProgress not found")

__version__ = "0.2.0"

# Name -> its module, which is imported at the first use of the name.
_MODULES = {
    "Experiment": "pomology.experiment.experiment",
    **dict.fromkeys(("load", "published"), "pomology.results.frame"),
    "Run": "pomology.results.run",
    "read_runs": "pomology.results.run",
    "show": "pomology.report.display",
    "Estimate": "pomology.measure.estimate",
    "Workload": "pomology.models.workload",
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
