"""A pretended GPU of MLX: the CPU, by the name of the GPU, with what `device_info` has on a Mac.

`python -P pretended_mlx.py MODULE ARGUMENTS` runs a module as `python -P -m` does, in a process
that has this GPU: the twins of PyTorch's trainings, and what is measured in processes of its own.
"""

from __future__ import annotations

import runpy
import sys
from typing import Any

import psutil

from pomology.devices import mlx

# Keys as on a Mac; MLX for Linux has the first two.
INFO = {"device_name": "pretended GPU of MLX", "architecture": "applegpu_g13s"}


def become() -> None:
    """From here on, MLX has a GPU in this process, as soon as it is loaded."""
    load = mlx.load

    def loaded() -> Any:
        mx = load()
        if mx.gpu is not mx.cpu:
            total = psutil.virtual_memory().total
            info = INFO | {"memory_size": total, "max_recommended_working_set_size": total * 3 // 4}
            mx.gpu = mx.cpu
            mx.device_info = lambda *_: dict(info)
        return mx

    mlx.load = loaded


if __name__ == "__main__":
    become()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
