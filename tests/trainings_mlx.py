"""Trainings in MLX with a mistake in each, which the comparison with PyTorch has to see. `test_in_mlx.py` runs these
tests in a process of their own: MLX must not share one with PyTorch.

python -m pytest tests/trainings_mlx.py
"""

from __future__ import annotations

from types import SimpleNamespace

import fakes
import pytest

from pomology.devices import find
from pomology.experiment.experiment import Experiment
from pomology.machine import snapshot
from pomology.models import trainings
from pomology.models.cost import Workload
from pomology.models.trainings import reference

find.prepare("mlx")
import mlx.core as mx  # noqa: E402
import mlx.nn as nn  # noqa: E402

ROWS = {"transformer_lm": "transformer_lm 3 16x2x16x101", "whisper": "whisper 1 whisper-smoke", "vae": "vae 4"}


CASES = trainings.rows([*ROWS.values()])
COMPARED = reference.Reference(CASES, [Workload(1, 1, 0, 0)] * len(CASES), seed=1, most_flops=1e9)


def status(monkeypatch, folder, workload: str) -> tuple[str, str]:
    """How a case ends that is compared as it stands now, and why."""
    fakes.quiet_machine(monkeypatch)
    COMPARED._done.clear()
    about = {"framework": "mlx", "devices": "cpu", "profile": "smoke", "expects_learning": False}
    experiment = Experiment("trainings_mlx", article="kit", out=str(folder), **about)
    (case,) = experiment.cases(trainings.rows([ROWS[workload]]))
    with case:
        COMPARED.check(case, hooks(workload).build(**case.config))
    (record,) = experiment.records
    return record.status, record.reason or ""


def hooks(workload: str):
    return trainings.load(f"{workload}_mlx")


def norm_first(layer, x, mask):
    x = x + layer.self_attn(layer.norm1(x), mask)
    return x + layer.linear2(nn.relu(layer.linear1(layer.norm2(x))))


def always_drops(layer, x):
    return x * (mx.random.uniform(shape=x.shape) > 0.2) / 0.8


class Coarse(nn.LayerNorm):
    def __init__(self, size):
        super().__init__(size, eps=1e-3)


def turned(layer, x):
    return x @ layer.weight + layer.bias if layer.weight.shape[0] == layer.weight.shape[1] else LINEAR(layer, x)


LINEAR, ADAMW = nn.Linear.__call__, hooks("whisper").Clipped
UNMASKED = staticmethod(lambda length: mx.zeros((length, length)))
LOSS = hooks("vae").loss
MISTAKES = {
    "activation": ("transformer_lm", nn, "relu", nn.gelu),
    "normalisation": ("transformer_lm", hooks("transformer_lm").Layer, "__call__", norm_first),
    "epsilon": ("transformer_lm", nn, "LayerNorm", Coarse),
    "weight decay": ("whisper", hooks("whisper"), "optimizer", lambda lr, decay: ADAMW(lr, bias_correction=True)),
    "learning rate": (
        "whisper",
        hooks("whisper"),
        "optimizer",
        lambda lr, decay: ADAMW(0.5 * lr, weight_decay=decay, bias_correction=True),
    ),
    "mask": ("whisper", nn.MultiHeadAttention, "create_additive_causal_mask", UNMASKED),
    "transposed weights": ("transformer_lm", nn.Linear, "__call__", turned),
    "reduction": ("vae", hooks("vae"), "loss", lambda outputs, images: LOSS(outputs, images) / len(images)),
    "dropout left on": ("transformer_lm", nn.Dropout, "__call__", always_drops),
    "rate of dropout": ("transformer_lm", hooks("transformer_lm"), "DROPOUT", 0.1),
    "no correction of Adam's bias": (
        "vae",
        hooks("vae"),
        "optimizer",
        lambda lr, decay: hooks("vae").optim.Adam(lr, bias_correction=False),
    ),
}


@pytest.mark.parametrize("workload", ROWS)
def test_a_training_in_mlx_is_that_in_pytorch(workload, monkeypatch, tmp_path):
    assert status(monkeypatch, tmp_path, workload) == ("ok", "")


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_ends_as_a_mismatch(mistake, monkeypatch, tmp_path):
    workload, *where = MISTAKES[mistake]
    monkeypatch.setattr(*where)
    ended, why = status(monkeypatch, tmp_path, workload)
    assert ended == "mismatch" and why.startswith("against PyTorch in float64: ")


def test_batches_in_another_order_end_as_a_mismatch(monkeypatch, tmp_path):
    (first, *later), compared = trainings.batches(1, CASES[-1]), COMPARED._reference(("vae", "", 4))
    monkeypatch.setattr(trainings, "batches", lambda *_: [first, *reversed(later)])
    ended, why = status(monkeypatch, tmp_path, "vae")
    assert compared.exists() and ended == "mismatch" and "losses" in why


def test_a_row_says_what_of_it_was_not_compared(monkeypatch, tmp_path):
    notes = []
    case = fakes.FakeCase(workload="vae", batch_size=64, config={}, backend=SimpleNamespace(backend="cpu"))
    case.backend.framework, case.metric = "mlx", lambda *_: None
    case.note = lambda *said: notes.append(said)
    row, work = {"workload": "vae", "batch_size": 64}, Workload(1, 64, 10**9, 0)
    limited = reference.Reference([row], [work], seed=1, most_flops=4)
    case.config = row
    limited.check(case, hooks("vae").build())
    monkeypatch.setattr(snapshot, "available_memory_bytes", lambda: 10**9)
    limited.check(case)
    about = "not compared: its reference in float64 takes 2.0 GB, of which 1.0 are free"
    samples = "compared with the reference with 4 of the 64 samples of a step"
    assert notes == [(samples, "unproved"), (about, "unproved")]
