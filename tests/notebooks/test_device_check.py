"""The notebook `device_check`: what each machine gets to do, and Lightning's step."""

import itertools
from types import SimpleNamespace

import lightning_steps
import pytest
from notebook_code import definitions

from pomology.models import workload

SMALL = {"resnet50": 4, "bert": 2, "vgg16": 2}
FULL = {"resnet50": 128, "bert": 64, "vgg16": 64}


def planned(notebook: dict, auto: str, **free: float) -> dict[str, tuple[dict, list]]:
    """Return training batches and accelerators by kind of device, with so many bytes free.

    auto: the device that Lightning takes by itself.
    """
    devices = []
    for kind, count in free.items():
        device = SimpleNamespace(kind=kind, backend="cpu" if kind == "cpu" else "mps")
        device.free_memory = lambda count=count: count
        devices.append(device)
    cases = SimpleNamespace(devices=devices, cases=lambda rows, on: itertools.product(rows, on))
    notebook |= {"experiment": cases, "examination": SimpleNamespace(auto=auto)}
    plan = {kind: ({}, []) for kind in free}
    for row, device in notebook["chart_cases"]():
        if row["mode"] == "training":
            plan[device.kind][0][row["model"]] = row["batch_size"]
    for row, device in notebook["accelerator_cases"]():
        plan[device.kind][1].append(row["accelerator"])
    return plan


def test_a_gpu_gets_the_charts_batches_and_a_small_mac_halves_of_them():
    notebook = definitions("device_check", "quick")
    plan = planned(notebook, "mps", cpu=0, gpu=100e9)
    assert plan == {"cpu": (SMALL, ["cpu"]), "gpu": (FULL, ["gpu", "auto", "mps"])}
    # Lightning is asked for a GPU even where it takes none.
    assert planned(notebook, "cpu", cpu=0) == {"cpu": (SMALL, ["cpu", "gpu", "auto"])}
    # Weights, gradients and momentum of ResNet-50 take 0.3 GB, 32 images 2.75 GB.
    assert planned(notebook, "mps", gpu=5e9)["gpu"][0] == {"resnet50": 32, "bert": 8, "vgg16": 16}


@pytest.mark.parametrize("name", FULL)
@pytest.mark.parametrize("mode", ["training", "inference"])
def test_a_network_of_the_chart_does_what_is_declared(name, mode):
    declared = definitions("device_check")["network"](name, mode)
    assert list(workload.differences(declared, workload.count(declared, 2))) == []
    assert None not in (declared.parameters, declared.flops_per_sample)


def test_lightning_makes_the_step_that_is_verified():
    perceptron = definitions("device_check")["perceptron"]
    batch = perceptron.batch(4)
    lightning_steps.compare(perceptron, batch, batch)
