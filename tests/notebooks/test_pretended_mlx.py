"""What plays a Mac's GPU for MLX in the notebooks."""

import pretended_mlx
import psutil
import pytest

from pomology.devices import find

pytestmark = pytest.mark.process("mlx")


def test_mlx_finds_a_gpu_that_computes():
    pretended_mlx.become()
    cpu, gpu = find.find("auto", "mlx")
    assert (cpu.backend, gpu.backend, gpu.kind) == ("cpu", "mlx-gpu", "gpu")
    assert gpu.name == "pretended GPU of MLX"
    assert gpu.precisions() == dict.fromkeys(("fp32", "fp16", "bf16", "fp64"))
    recommended = psutil.virtual_memory().total * 3 // 4
    assert 0 < gpu.free_memory() <= recommended - gpu.memory()["reserved_bytes"]
