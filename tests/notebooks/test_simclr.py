"""The notebook `simclr`: its loss against the definition, and what it says of waiting for data."""

import math
import re
from types import SimpleNamespace

import breakdown
import pytest
import torch
from fakes import Clock
from test_notebooks import definitions
from torch.nn import functional as F

from pomology.measure import clock, epochs


def test_an_epoch_has_one_and_a_half_feature_banks():
    """Once an epoch, and once more before the first of two."""
    now = Clock()
    steps = clock.StepClock(whole=True, clock=now)
    for part, per_epoch, step_s in (("training", 1.0, 0.2), ("bank", 1.5, 0.1), ("kNN", 1.0, 0.05)):
        for _ in steps.steps(range(10), part, per_epoch=per_epoch):
            now.pass_s(step_s)
    parts = {name: part.value for name, part in epochs.part_metrics(steps).items()}
    assert parts == pytest.approx({"training": 2.0, "bank": 1.5, "kNN": 0.5})
    epoch = epochs.epoch_metrics(steps)["epoch_s"]
    assert epoch.value == pytest.approx(4.0)
    assert epoch.how == "estimated"  # no epoch was seen to have 1.5


def test_loss_is_nt_xent():
    """Compared with its definition, view by view: Chen et al. 2020, equation 1."""
    n, temperature = 5, 0.5
    halves = torch.randn(2, n, 128, generator=torch.Generator().manual_seed(3))
    views = F.normalize(halves.flatten(0, 1), dim=1)
    similar = torch.exp(views @ views.T / temperature).fill_diagonal_(0)
    losses = [-math.log(similar[i, (i + n) % (2 * n)] / similar[i].sum()) for i in range(2 * n)]
    found = definitions("simclr")["nt_xent"](*halves)
    assert float(found) == pytest.approx(sum(losses) / (2 * n), rel=1e-5)


@pytest.mark.parametrize(
    ("loop_s", "waiting"), [(5.0, r"100 s ± .+ %"), (4.02, r"not told apart \(20 steps\)")]
)
def test_waiting_for_data_is_shown_where_it_is_resolved(loop_s, waiting):
    noise = [0.1, -0.1] * 10
    part = clock.Part("training", 100.0, first_step_s=loop_s)
    part.blocks = [clock.Block(1, loop_s + off) for off in noise]
    part.ready_blocks = [clock.Block(1, 4.0 + off) for off in noise]
    steps = clock.StepClock()
    steps.parts = dict.fromkeys(("training", "feature bank", "kNN"), part)
    metrics = {}
    breakdown.record_split(SimpleNamespace(clock=steps, metric=metrics.__setitem__))
    config = {"batch_size": 128, "workers": 8}
    case = SimpleNamespace(metrics=metrics, status="ok", backend="mps", config=config)
    (row,) = breakdown.table([case]).rows
    assert re.fullmatch(r"400 s ± .+ %", row.cells[3])
    assert re.fullmatch(waiting, row.cells[4])
    assert row.cells[6] == "not measured"
