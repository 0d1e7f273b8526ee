"""The tests of `mlx_side.py`, in a process of their own: MLX must not share one with PyTorch."""

from __future__ import annotations

from pathlib import Path

import apart
import fakes

from pomology.report import side_by_side
from pomology.workloads import torch_reference

SIDE = Path(__file__).with_name("mlx_side.py")

test_in_mlx = apart.tests_of(SIDE)


def test_pytorch_counts_steps():
    (one, macs), (small, small_macs) = torch_reference.vision_workloads("resnet18", [(2, 224), (3, 64)])
    assert (macs, one.parameters, small.parameters) == (1_814_073_344, 11_689_512, 11_689_512)
    # As much again as forward for the gradients of the weights and of what comes in; of the pictures nobody needs one.
    assert one.flops == 2 * 2 * (3 * 1_814_073_344 - 112 * 112 * 64 * 7 * 7 * 3)
    assert one.state_bytes == 3 * 4 * 11_689_512
    # All layers but the last one have operations as there are pixels.
    assert small_macs == (1_814_073_344 - 512_000) * 64**2 // 224**2 + 512_000


def record(backend, step_s, status="ok", **config):
    metrics = {"step_s": fakes.metric(step_s, 0.9 * step_s, 1.1 * step_s), "max_abs_error": fakes.metric(1e-6)}
    return fakes.record(config={"model": "resnet18"} | config, backend=backend, status=status, metrics=metrics)


def test_only_the_same_step_is_compared_with_pytorchs():
    torch = [record("mps", 3.0, batch_size=8), record("cpu", 8.0, batch_size=8), record("mps", 5.0, batch_size=16)]
    torch.append(record("mps", 1.0, model="vgg16", batch_size=4))
    ours = [record("mlx-gpu", 2.0, image_size=224, batch_size=8), record("mlx-gpu", 2.0, image_size=64, batch_size=8)]
    ours += [record("cpu", 2.0, "too-big", image_size=224, batch_size=8)]
    ours += [record("mlx-gpu", 2.0, image_size=224, batch_size=4)]
    table = side_by_side.beside_pytorch(ours, torch)
    assert [row.cells for row in table.rows] == [
        ("GPU", "224", "8", "3.00 s ± 10 %", "2.00 s ± 10 %", "1.50× (1.23 to 1.83×)", "1.0e-06"),
        ("GPU", "64", "8", "not run", "2.00 s ± 10 %", "", "1.0e-06"),
        ("CPU", "224", "8", "8.0 s ± 10 %", "too-big", "", ""),
        ("GPU", "224", "4", "not run", "2.00 s ± 10 %", "", "1.0e-06"),
    ]
    assert [row["ratio"] for row in table.data] == [1.5, None, None, None]
