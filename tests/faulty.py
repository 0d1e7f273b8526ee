"""Known silent faults of GPUs, planted in the pretended MPS.

`python tests/faulty.py NOTEBOOK PROFILE RESULT.json PLANT...`: a notebook runs to its results on devices with a fault
each; the result has every row's status, reason and metrics, by plant.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pretended_mps
import torch

from pomology.results import journal

aten = torch.ops.aten


def _long(result: Any, *given: Any, **_: Any) -> Any:
    """Something is added to sums of 32,767 numbers and more."""
    return result + 0.2 * result.abs().max() if given[-2].shape[-1] >= 32_767 else result


def _past_the_end(result: Any, a: Any, b: Any) -> Any:
    """What PyTorch 2.13 does on M1 and M2: such a sum takes in what is behind the numbers in memory."""
    memory = torch.empty(0).set_(b.untyped_storage())
    behind = memory[b.storage_offset() + b.numel() :][: b.shape[-1]]
    return result + behind.sum() if a.shape[-1] >= 32_767 else result


# Each gets what an operator gives, and what it was given, and gives what a fault makes of it.
def _of_weights(result: Any, grad: Any, *_: Any, **__: Any) -> Any:
    return (result[0], result[1] / 2, *result[2:]) if len(grad) >= 2**16 else result


def _behind_65536(result: Any, *_: Any, **__: Any) -> Any:
    return result.index_fill(0, torch.tensor([2**16 + 7]), 0.0) if len(result) > 2**16 else result


def _permuted(result: Any, grad: Any, x: Any, weight: Any, *_: Any, **__: Any) -> Any:
    return (
        result if x.is_contiguous() and weight.is_contiguous() else (result[0] + 0.1, *result[1:])
    )


LONG, BATCHED = "products over 32,767 numbers or more", "the same in a batch of products"
# Name of a plant -> the fault's in the bank, and the operators that it is in.
PLANTS: dict[str, tuple[str, dict[Any, Callable]]] = {
    "long products": (LONG, dict.fromkeys((aten.mm.default, aten.addmm.default), _long)),
    "past the end": (LONG, {aten.mm.default: _past_the_end}),
    "long products in a batch": (
        BATCHED,
        dict.fromkeys((aten.bmm.default, aten.baddbmm.default), _long),
    ),
    "weights of 65,536 pictures": (
        "batches of 65,536 or more",
        {aten.convolution_backward.default: _of_weights},
    ),
    "65,536 pictures": ("batches of 65,536 or more", {aten.convolution.default: _behind_65536}),
    "a linear layer of 65,536": ("batches of 65,536 or more", {aten.addmm.default: _behind_65536}),
    "permuted": (
        "gradients of what is not contiguous",
        {aten.native_batch_norm_backward.default: _permuted},
    ),
}


@contextmanager
def planted(name: str) -> Iterator[None]:
    """The block in which the pretended device has a fault."""

    def spoiled(function: Any, wrong: Callable) -> Callable:
        right = pretended_mps.BY_HAND.get(function, function)
        return lambda *given, **named: wrong(right(*given, **named), *given, **named)

    changes = {function: spoiled(function, wrong) for function, wrong in PLANTS[name][1].items()}
    with mock.patch.dict(pretended_mps.BY_HAND, changes):
        yield


def rows(notebook: Path, profile: str, plant: str) -> dict[str, list]:
    """What the journal has of each row."""
    with tempfile.TemporaryDirectory() as scratch, planted(plant):
        pretended_mps.run_cells(notebook, profile, Path(scratch))
        records = journal.read(Path(scratch, f"{notebook.stem}.jsonl")).records
    return {each.case: [each.status, each.reason, sorted(each.metrics)] for each in records}


if __name__ == "__main__":
    made = {plant: rows(Path(sys.argv[1]), sys.argv[2], plant) for plant in sys.argv[4:]}
    Path(sys.argv[3]).write_text(json.dumps(made), encoding="utf-8")
    sys.stdout.flush()
    os._exit(0)  # as `pretended_mps` ends its process, and for the same reason
