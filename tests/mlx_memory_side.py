"""Tests of the memory notebook in MLX, which must not share a process with PyTorch: `test_in_mlx.py` runs them.

python -m pytest tests/mlx_memory_side.py
"""

from __future__ import annotations

import apart
import fakes
import pytest

from pomology.devices import find

find.prepare("mlx")
import mlx.core as mx  # noqa: E402

pytestmark = pytest.mark.usefixtures("quiet_machine")


@pytest.fixture
def scope(tmp_path, monkeypatch) -> dict:
    apart.start_with_torch(monkeypatch, tmp_path)
    given = {"batch_size": 256, "steps": 12, "profile": "article"}
    names = {"devices": "cpu", "out": str(tmp_path)} | given
    scope: dict = {}
    for number, source in enumerate(fakes.cells("memory_mlx")):
        exec(source.split("\n\n\nfor case in")[0], scope)
        if number == 0:  # the parameters
            scope |= names
        if "def train(case)" in source:
            break
    return scope


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
