"""A notebook's smoke run in a kernel of its own, on a pretended machine and without a network."""

import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apart
import conftest
import nbformat
import pytest
import rehearsal
import yaml
from notebook_code import code

from pomology.paths import root
from pomology.results import journal
from pomology.results.record import Record
from pomology.runner import notebooks

# Before a notebook's first cell and after its last one; no name is left that it might use.
FIRST = """
import sys
sys.path.insert(0, {tests!r})
__import__("rehearsal")
{measure}
sys.modules["rehearsal"].begin({own!r}, {machine!r})
{gpu}
sys.path.remove({tests!r})
del sys
"""
LAST = "import sys; sys.modules['rehearsal'].end({folder!r})"
# A pretended machine -> the backend of its GPU in PyTorch; see `rehearsal.begin`.
GPUS = {"mac": "mps", "mac-mlx": "mps", "nvidia": "cuda"}
# Parameters of the long runs, by machine and notebook: they reach what the quick ones leave out.
MORE: dict[str, dict[str, dict[str, Any]]] = {
    "mac-mlx": {
        "gpt2_pretraining": {
            "fused": True,
            "bias_correction": True,
            "cases": ["gpt2-micro 1x16", "gpt2-micro 2x16"],
        },
        "simclr": {"smaller_batch_size": 2},
    },
    "nvidia": {
        "blas": {"matmul_shapes": ["1x512x512"]},
        "capabilities": {
            "features": ["fp16", "torch.compile", "fused optimizer"],
            "compile_on_cpu": False,
        },
        "dcgan": {"saved_pictures": 1},
        "energy": {"energy_models": ["whisper-medium", "small transformer"]},
        "gpt2_finetuning": {"larger": "gpt2-smoke"},
        "gpt2_small": {"smaller_shapes": [[1, 2]]},
        "model_sizes": {"networks": ["resnet18"]},
        "peaks": {"sizes": [64, 512]},
        "resnet50": {"smaller_batch_sizes": [1]},
    },
}
# MLX compiles each kernel on a CPU with a C++ compiler, for a second: only here.
COMPILED = {"vae", "memory"}


@dataclass
class Execution:
    """What a run has left: the notebook with outputs, its folder `out`, and what was noticed.

    parameters: in place of the smoke ones. cells: a file for `rehearsal.measure`, "" if nothing is
    measured. environment: variables of the kernel.
    """

    path: Path
    parameters: dict[str, Any]
    folder: Path
    machine: str = "mac"
    cells: str = ""
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self):
        self.document = nbformat.read(self.path, 4)

    @property
    def out(self) -> Path:
        return self.folder / "run"

    @property
    def about(self) -> dict:
        return self.document.metadata["pomology"]

    @property
    def noticed(self) -> dict:
        return json.loads((self.folder / "end.json").read_text(encoding="utf-8"))

    @property
    def outputs(self) -> list[nbformat.NotebookNode]:
        return [output for cell in self.document.cells for output in cell.get("outputs", ())]

    @property
    def records(self) -> list[Record]:
        (path,) = self.out.glob("*.jsonl")
        return journal.read(path).records

    @property
    def framework(self) -> str:
        """The one that it imports or names, else PyTorch; `none` if it only reads results."""
        if "framework" in self.parameters:
            return self.parameters["framework"]
        source = "\n".join(code(self.document))
        packages = re.findall(r"^ *(?:import|from) (\w+)", source, re.MULTILINE)
        names = [rehearsal.FRAMEWORKS[name] for name in packages if name in rehearsal.FRAMEWORKS]
        names += re.findall(r"framework=[\"'](\w+)", source)
        without = self.about.get("after") or not self.about.get("run", True)
        return next(iter(names), "none" if without else "torch")

    @property
    def gpu(self) -> str | None:
        """The backend on which it computes with PyTorch itself, and not in other processes."""
        imports = any("import torch" in source for source in code(self.document))
        return GPUS[self.machine] if self.framework == "torch" and imports else None

    def prepare(self) -> None:
        """Add the parameters, and what makes its kernel that of the machine."""
        cells = self.document.cells
        file = root() / "params" / "smoke" / f"{self.path.stem}.yaml"
        values = yaml.safe_load(file.read_text(encoding="utf-8")) if file.exists() else {}
        values |= {"out": str(self.out), "data": "stand-in"} | self.parameters
        lines = "\n".join(f"{name} = {value!r}" for name, value in values.items())
        tags = [cell.metadata.get("tags", []) for cell in cells]
        place = next(number for number, tag in enumerate(tags) if "parameters" in tag)
        called = 'sys.modules["rehearsal"].'
        begin = {"own": self.framework, "machine": self.machine, "gpu": "", "measure": ""}
        if self.gpu:  # notebooks of the kit look at the processor, too
            lightning = any("lightning" in source for source in code(self.document))
            cpu = self.about["article"] == "kit"
            cpu |= self.machine == "nvidia" and self.path.stem in ("device_check", "energy")
            begin["gpu"] = f"{called}add_gpu({self.machine!r}, {lightning}, {cpu})"
        if self.cells:
            begin["measure"] = f"{called}measure({self.cells!r})"
        first = FIRST.format(tests=str(root() / "tests"), **begin)
        cells.insert(place + 1, nbformat.v4.new_code_cell(lines))
        cells.insert(0, nbformat.v4.new_code_cell(first))
        cells.append(nbformat.v4.new_code_cell(LAST.format(folder=str(self.folder))))

    def run(self) -> None:
        """Execute the notebook. Raises nbclient's error if a cell fails."""
        from nbclient import NotebookClient
        from traitlets.config import Config

        self.prepare()
        hidden = set(rehearsal.HIDES)
        if self.path.stem == "instrument_check":  # which asks whether memory follows a tensor
            hidden |= set(conftest.KEEP_MEMORY)
        env = {key: value for key, value in os.environ.items() if key not in hidden}
        # One thread: two that meet after every operator crawl where somebody else has a core.
        env |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        env |= {"HF_HOME": str(self.folder / "hub"), "IPYTHONDIR": str(self.folder / "ipython")}
        if self.path.stem not in COMPILED:
            env["MLX_DISABLE_COMPILE"] = "1"
        env |= self.environment
        options = {"timeout": 300, "kernel_name": "python3", "shutdown_kernel": "immediate"}
        options["resources"] = {"metadata": {"path": str(self.path.parent)}}
        with pytest.MonkeyPatch.context() as patch, conftest.sockets_in_a_folder() as sockets:
            patch.setenv("JUPYTER_PREFER_ENV_PATH", "1")  # this environment's kernel
            apart.fork_kernels(patch, apart.LOADED if self.framework == "torch" else apart.PLAIN)
            config = Config(KernelManager=sockets)
            NotebookClient(self.document, config=config, **options).execute(env=env)


def runs(machine: str = "mac") -> Iterator[tuple[str, Path, dict[str, Any]]]:
    """Yield each notebook that a machine runs, and each of its variants: its name and parameters.

    TF32 is no difference on this machine's CPU, so it is left to the long runs. So are the machine
    with a GPU of MLX, and the one with CUDA, where only PyTorch is looked at.
    """
    long = machine != "mac"
    for notebook in notebooks.notebooks(skipped={}):
        for variant in notebook.variants:
            if variant.only == "tf32" and not long:
                continue
            parameters = MORE.get(machine, {}).get(notebook.name, {}) | variant.parameters
            if machine == "nvidia":
                ran = Execution(notebook.path, parameters, Path(), machine)
                if not ran.gpu:
                    continue
            elif long and parameters.get("framework") == "mlx":
                parameters |= {"devices": "gpu"}
            name = "-".join([notebook.name, *map(str, variant.parameters.values())])
            yield name, notebook.path, parameters


# What `make test-all` runs besides; NVIDIA's library of Python is installed on Linux only.
LONG = ("mac-mlx", "nvidia") if sys.platform != "darwin" else ("mac-mlx",)
