"""Faults planted in the steps of all notebooks are named, by what their workloads declare."""

import dataclasses
import re

import pytest
import torch
from notebook_code import definitions
from notebook_workloads import IN_HALF, SAMPLES, WORKLOADS, of_notebook
from torch.utils._pytree import tree_map_only

from pomology.models import workload
from pomology.models.workload import Workload


def skipped_group(planted: Workload) -> Workload:
    """The optimizer misses the last weight of its last group."""

    def optimizer(model):
        made = planted.optimizer(model)
        last = workload.updates(made)[-1]
        # A notebook's own optimizer lists its weights itself.
        weights = last.param_groups[-1]["params"] if hasattr(last, "param_groups") else last.weights
        weights.pop()
        return made

    return dataclasses.replace(planted, optimizer=optimizer)


def trains(module: torch.nn.Module) -> bool:
    return any(weight.requires_grad for weight in module.parameters(recurse=False))


def detached(planted: Workload) -> Workload:
    """No gradient passes the module in the middle of those that have trained weights."""

    def detach(_module, _inputs, output):
        return tree_map_only(torch.Tensor, torch.Tensor.detach, output)

    def build():
        model = planted.build()
        own = [each for each in model.modules() if trains(each)]
        own[len(own) // 2].register_forward_hook(detach)
        return model

    return dataclasses.replace(planted, build=build)


def other_optimizer(planted: Workload) -> Workload:
    def optimizer(model):
        made = planted.optimizer(model)
        made = list(made) if isinstance(made, (tuple, list)) else [made]
        for number, each in enumerate(made):
            if each in workload.updates(made):  # a gradient scaler stays
                made[number] = torch.optim.RMSprop(workload.weights_of(each, model))
        return made if len(made) > 1 else made[0]

    return dataclasses.replace(planted, optimizer=optimizer)


def other_mode(planted: Workload) -> Workload:
    """The model is in evaluation mode, or in training mode if it should be in the other."""

    def build():
        model = planted.build()
        return model.train(not model.training)

    return dataclasses.replace(planted, build=build)


def half_of_the_batch(planted: Workload) -> Workload:
    """The step leaves half of its samples out, on whichever dimension of a tensor they are."""

    def batch(size):
        return planted.batch(size), planted.batch(size // 2)

    def step(model, optimizer, _whole, half):
        return planted.step(model, optimizer, *half)

    return dataclasses.replace(planted, batch=batch, step=step)


def autocast(planted: Workload) -> Workload:
    def step(*arguments):
        with torch.autocast("cpu", torch.bfloat16):
            return planted.step(*arguments)

    return dataclasses.replace(planted, step=step)


PLANTED = {
    skipped_group: r"a step does not update [\w.]+",
    detached: r"a step does not update [\w.]+",
    other_optimizer: r"the optimizer is RMSprop, not \w+",
    other_mode: r"the module [\w.]+ is in (evaluation|training) mode",
    half_of_the_batch: r"a step has [\d.,e+-]+ GFLOP, not [\d.,e+-]+ as declared .*",
    autocast: "the forward pass runs in autocast",
}


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_step_does_what_its_workload_declares(name):
    declared, batch_size = of_notebook(name)
    assert list(workload.differences(declared, workload.count(declared, batch_size))) == []
    undeclared = ("parameters", "flops_per_sample", "optimizer_class", "slots")
    assert None not in [getattr(declared, each) for each in undeclared]


@pytest.mark.parametrize("name", IN_HALF)
def test_a_step_of_half_precision_runs_in_autocast(name):
    scope = definitions(name, **SAMPLES)
    half, full = (eval(expression, scope) for expression in IN_HALF[name])
    assert list(workload.differences(half, workload.count(half, 2))) == []
    planted = dataclasses.replace(half, step=full.step)
    texts = list(workload.differences(planted, workload.count(planted, 2)))
    assert texts == ["the forward pass does not run in autocast"]


# A second of a core for each plant, or more: `make test-all` has them.
LARGE = {"bert_base", "gpt2_small", "resnet50", "simclr", "whisper_pretraining", "siamese"}
LARGE |= {"device_check-chart", "capabilities-article", "whisper_finetuning", "sustained_load"}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.long if name in LARGE else ()) for name in WORKLOADS],
)
@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_named(name, plant):
    declared, batch_size = of_notebook(name)
    planted = plant(dataclasses.replace(declared, with_layers=None))  # and count all layers
    texts = list(workload.differences(planted, workload.count(planted, batch_size)))
    assert any(re.fullmatch(PLANTED[plant], text) for text in texts), texts
