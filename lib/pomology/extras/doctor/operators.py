"""Which operators of a notebook MPS has, on any machine: the notebook runs on the pretended MPS of the tests."""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from pomology.errors import PomologyError
from pomology.paths import redact, root
from pomology.report.table import Row, Table
from pomology.runner import notebooks

PRETENDED_MPS = Path("tests", "pretended_mps.py")
# What MPS may have for an operator.
KERNEL, COMPOSITE, MISSING, SILENT = "kernel", "made of others", "no kernel", "kernel that runs on the CPU"


@dataclass
class Use:
    """What one workload asked of the device: each operator, how often, and what MPS has for it (`KERNEL` and so on);
    each fault, once, that a Mac would refuse, compute on the CPU, or get wrong; and [status, reason] of each case."""

    operators: dict[str, int] = field(default_factory=dict)
    support: dict[str, str] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    cases: dict[str, list] = field(default_factory=dict)

    def missing(self) -> list[str]:
        """The operators that would run on the CPU, or fail."""
        return [name for name, has in sorted(self.support.items()) if has in (MISSING, SILENT)]

    def lines(self, name: str) -> list[str]:
        """For a terminal: a line for each operator, each case that did not end well and each fault; a sum last."""
        width = max(map(len, self.operators), default=0)
        by_support = sorted(self.operators.items(), key=lambda item: (self.support[item[0]], item[0]))
        missing = f" ({', '.join(self.missing())})" if self.missing() else ""
        return [
            f"{'operator':{width}} {'calls':>7}  MPS has",
            *(f"{operator:{width}} {calls:7,}  {self.support[operator]}" for operator, calls in by_support),
            *(f"{case}: {status}; {reason}" for case, (status, reason) in self.cases.items() if status != "ok"),
            *(f"would go wrong on a Mac: {fault}" for fault in self.faults),
            f"{name}: {len(by_support)} operators, {len(self.missing())} of them without a kernel for MPS{missing}",
        ]


def rehearse(name: str) -> Use:
    """Run a notebook up to its results on the pretended MPS, with the parameters of `smoke` and stand-ins for its data.
    In a process of its own, since PyTorch keeps such a device once it has one. Raises PomologyError in one line if
    there is no such notebook or no checkout, if the notebook is not PyTorch's, or if it does not get as far."""
    known, program = {notebook.name: notebook for notebook in notebooks.notebooks()}, root() / PRETENDED_MPS
    if name not in known:
        raise PomologyError(f"--operators {name}: no notebook is named so; there are {', '.join(sorted(known))}")
    if not uses_torch(known[name]):
        raise PomologyError(f"--operators {name}: not a PyTorch notebook; only PyTorch says which operators MPS has")
    if not program.is_file():
        raise PomologyError(f"--operators {name}: needs a checkout of the kit, for {PRETENDED_MPS}; there is none here")
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, "use.json")
        command = [sys.executable, str(program), str(known[name].path), "smoke", str(place)]
        texts = {"capture_output": True, "encoding": "utf-8", "errors": "replace"}
        done = subprocess.run(command, env=os.environ | {"HF_HUB_OFFLINE": "1"}, check=False, **texts)
        if not place.exists():
            last = redact((done.stderr.strip() or f"exit status {done.returncode}").split("\n")[-1])
            raise PomologyError(f"{name}: its rehearsal did not get to its end: {last}")
        return Use(**json.loads(place.read_text(encoding="utf-8")))


def uses_torch(notebook: notebooks.Notebook) -> bool:
    cells = notebooks.read_notebook(notebook.path)["cells"]
    return any("import torch" in "".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")


def table(only: str) -> Table:
    """Which operators MPS lacks in the workloads of PyTorch notebooks: a row each, after some seconds each.

    only: names or globs of notebooks, separated by spaces; empty is none. What stops a rehearsal stands in its row.
    Raises PomologyError for a name that no notebook has.
    """
    rows, data = [], []
    chosen = notebooks.select(notebooks.notebooks(), only) if only.split() else []
    for name in [notebook.name for notebook in chosen if uses_torch(notebook)]:
        try:
            use = rehearse(name)
        except PomologyError as error:
            rows.append(Row((name, "", "", "", "", str(error))))
            data.append({"notebook": name, "error": str(error)})
            continue
        has, missing, faults = list(use.support.values()), use.missing(), "; ".join(use.faults) or "nothing"
        counts = map(str, (len(has), has.count(KERNEL), has.count(COMPOSITE)))
        rows.append(Row((name, *counts, ", ".join(missing) or "none", faults)))
        data.append({"notebook": name, "operators": len(has), "missing": " ".join(missing), "faults": faults})
    columns = ("Notebook", "Operators", "with a kernel", "made of others", "MPS lacks", "What a Mac would not do")
    note = (
        "Looked up in the list of kernels that the PyTorch of Macs was built from, on every machine. An operator that "
        "MPS lacks fails there, or runs on the CPU where PYTORCH_ENABLE_MPS_FALLBACK allows it."
    )
    return Table("Operators of the workloads on MPS", columns, tuple(rows), (note,), tuple(data))
