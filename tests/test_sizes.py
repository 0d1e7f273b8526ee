"""What fits a machine and what does not: the articles' workloads on pretended machines.

The memory that each takes was worked out by hand from the articles' sizes; the kit must count the same. Larger models
are counted in `test_model_memory.py` and `test_gpt2_finetuning.py`.
"""

from __future__ import annotations

import pytest
import torch
from test_notebooks import definitions

from pomology import errors
from pomology.devices.torch import TorchDevice
from pomology.experiment.case import Case
from pomology.machine import snapshot
from pomology.models.cost import Workload

GIB = 2**30
SHARE = 0.75  # of the memory: what Metal recommends


@pytest.fixture
def mac(monkeypatch):
    """MPS on a Mac with that many GB, of which nothing is used."""

    def of(gigabytes: int) -> TorchDevice:
        total = gigabytes * GIB
        monkeypatch.setattr(torch.mps, "recommended_max_memory", lambda: int(SHARE * total))
        monkeypatch.setattr(torch.mps, "driver_allocated_memory", lambda: 0)
        monkeypatch.setattr(snapshot, "available_memory_bytes", lambda: total)
        made = TorchDevice("cpu")
        made.backend, made.kind = "mps", "gpu"
        return made

    return of


class Nobody:
    """As much of an experiment as a case asks for before it is entered."""

    precision = "fp32"


@pytest.mark.parametrize(
    ("notebook", "row", "state_mib", "saved_mib"),
    [("vae", 1, 10, 48), ("siamese", 1, 175, 729), ("transformer_lm", 0, 105, 107), ("transformer_lm", 4, 409, 3395)],
)
def test_memory_is_counted_as_by_hand(notebook, row, state_mib, saved_mib):
    """At batch 5120, at batch 1024, and with 2 and 10 layers."""
    scope = definitions(notebook)
    work = scope["work"]((scope["rows"] if "rows" in scope else scope["batch_sizes"])[row])
    assert work.state_bytes * 1024 / GIB == pytest.approx(state_mib, rel=0.01)
    assert work.saved_bytes * 1024 / GIB == pytest.approx(saved_mib, rel=0.02)


def test_memory_that_others_use_counts(mac, monkeypatch):
    case, work = Case(Nobody(), mac(8), {}), Workload(1, 1, state_bytes=3 * GIB, saved_bytes=2 * GIB)
    case.require_memory(work)
    monkeypatch.setattr(snapshot, "available_memory_bytes", lambda: 4 * GIB)
    with pytest.raises(errors.TooBig, match=r"5\.4 GB .* 4\.3 GB are free"):
        case.require_memory(work)
