"""Tests of the memory notebook in MLX, which must not share a process with PyTorch: `test_in_mlx.py` runs them.

python -m pytest tests/mlx_memory_side.py
"""

from __future__ import annotations

import apart
import pytest
from test_memory import notebook_scope

from pomology.devices import find
from pomology.models import parity
from pomology.results.record import Record

find.prepare("mlx")
import mlx.core as mx  # noqa: E402
import mlx.nn as nn  # noqa: E402

pytestmark = pytest.mark.usefixtures("quiet_machine")


@pytest.fixture
def scope(tmp_path, monkeypatch) -> dict:
    apart.start_with_torch(monkeypatch, tmp_path)
    return notebook_scope("memory_mlx", tmp_path, batch_size=256, steps=12, profile="article")


def run(scope: dict) -> Record:
    scope["peaks"] = lambda case: [2 * 10**8, 3 * 10**8]
    (case,) = scope["experiment"].cases(load=["easy"])
    with case:
        scope["train"](case)
    return scope["experiment"].records[0]


def test_it_is_pytorch_s_network_and_keeps_its_own_weights(scope):
    record = run(scope)
    assert record.status == "ok", record.reason
    assert 0 < record.metrics["max_abs_error"].value < 1e-5
    assert record.metrics["allocated_slope_bytes"].value == 0
    assert all(row[2] > 0 and row[3] >= row[2] for row in record.memory_trace["rows"])
    assert record.memory_trace["absent"] == {}
    case, model = next(scope["experiment"].cases(load=["near"])), scope["build"]()
    before = case.backend.weight_sample(model)
    parity.check_residual_mlp(case, model, seed=1)
    assert case.backend.weight_sample(model) == before


def test_a_network_that_bends_otherwise_is_refused(scope):
    scope["Block"].__call__ = lambda self, numbers: numbers + nn.relu(self.linear(self.norm(numbers)))
    record = run(scope)
    assert record.status == "mismatch" and record.reason.startswith("MLX against PyTorch"), record.reason


def test_the_plan_is_what_mlx_then_takes(scope):
    """From its own count: what three parts are planned to take, they take, within a tenth."""
    (case,) = scope["experiment"].cases(load=["near"])
    case.backend.free_memory = lambda: 10**10
    one, two = scope["peaks"](case)
    scope["near_most_gb"] = (one + 2.2 * (two - one)) / 1e9
    count, work = scope["planned"](case)
    assert count == 3 * scope["PART"] and work.parameters == 18_250 and case.scaled
    assert work.flops == 6 * count * (16 * 32 * 32 + 32 * 10)
    step = scope["training"](scope["build"](), count)
    case.backend.reset_peak_memory()
    step()
    assert mx.get_peak_memory() == pytest.approx(work.bytes, rel=0.1)
