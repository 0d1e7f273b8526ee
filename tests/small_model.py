"""A linear model that trains on the CPU inside a case."""

import fakes
import torch
from torch import nn

from pomology.models.cost import Cost

FEATURES = 4
WORK = Cost(parameters=FEATURES + 1, flops=1_000_000, state_bytes=40, saved_bytes=2_000)


def batches(count):
    inputs = torch.randn(count, 8, FEATURES, generator=torch.Generator().manual_seed(1))
    return [(x, x.sum(1, keepdim=True)) for x in inputs]


def fit(case, count=60, *, lr=0.02, losses=None, at=lambda number: None, step_s=0.0):
    """Train for an epoch of `count` steps; return of each whether it was on a ready batch.

    losses: replaces the loss of a step. at: is called in every step. step_s: what a step takes, in
    simulated time, where it is given.
    """
    torch.manual_seed(1)
    clock = fakes.Clock()
    if step_s:
        case.clock.clock = clock
    model = case.watch_model(nn.Linear(FEATURES, 1).to(case.device))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    ready = []
    for number, (inputs, targets) in enumerate(case.steps(batches(count))):
        ready.append(case.clock.on_ready)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        case.loss(loss.item() if losses is None else losses(number))
        at(number)
        clock.pass_s(step_s)
    return ready


def run(experiment, body=fit, **axes):
    """Return the record of the only case of an experiment, as it is in the journal."""
    (case,) = experiment.cases(**axes)
    with case:
        body(case)
    return experiment.records[-1]
