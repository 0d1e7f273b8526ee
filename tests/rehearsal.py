"""A notebook's kernel in the tests: it behaves as on a Mac or an NVIDIA machine, without a network.

`begin` goes before the notebook's first cell and `end` behind its last one, in the kernel itself.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.machinery
import json
import multiprocessing
import os
import pickle
import socket
import subprocess
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pretended_mps import Rehearsal

# A package that belongs to a framework -> the framework. No process may hold two.
OF_TORCH = ("torch", "lightning", "pytorch_lightning", "torchmetrics", "transformers", "peft")
FRAMEWORKS = dict.fromkeys((*OF_TORCH, "accelerate"), "torch")
FRAMEWORKS |= dict.fromkeys(("tensorflow", "keras", "tf_keras"), "tensorflow")
FRAMEWORKS |= dict.fromkeys(("mlx", "mlx_lm"), "mlx") | dict.fromkeys(("jax", "flax"), "jax")
UNWANTED = ("sklearn", "zeus")  # each brings a second OpenMP
# What would hide two OpenMPs in one process, and computing on the CPU what MPS lacks.
HIDES = ("KMP_DUPLICATE_LIB_OK", "PYTORCH_ENABLE_MPS_FALLBACK")
# What PyTorch, Lightning and transformers call on a Mac, too, where it answers or does nothing.
HARMLESS = {"is_available", "is_initialized", "device_count", "empty_cache", "manual_seed", "seed"}
HARMLESS |= {"is_current_stream_capturing", "manual_seed_all", "seed_all"}
HARMLESS |= {"get_rng_state_all", "set_rng_state_all"}

refused: list[str] = []  # what would have failed on a Mac, whether or not anybody caught the error
attempts: list[str] = []  # imports of a second framework
loaders: list[tuple] = []  # what each DataLoader would hand to a worker
remapper: list[str | None] = []  # TURN_OFF_REMAPPER when TensorFlow was loaded
measured: list[Any] = []  # coverage.py's, if it notes the lines that run
_until_the_end = contextlib.ExitStack()
played: list[Rehearsal] = []  # the pretended MPS or CUDA
TESTS = Path(__file__).parent
# A program that runs a module as `python -P -m` does, where MLX is not installed.
WITHOUT_MLX = """
import runpy, sys
sys.modules["mlx"], sys.argv = None, sys.argv[1:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


def refuse_cuda() -> None:
    """Make the functions of torch.cuda raise, but for those that answer on a Mac; and `.cuda()`."""
    import torch

    def refusal(name: str) -> Callable:
        def refuse(*_: Any, **__: Any) -> None:
            refused.append(f"{name} was called: it does not exist on a Mac")
            raise AssertionError(refused[-1])

        return refuse

    for name, item in list(vars(torch.cuda).items()):
        function = callable(item) and not isinstance(item, type)
        if function and not name.startswith("_") and name not in HARMLESS:
            setattr(torch.cuda, name, refusal(f"torch.cuda.{name}"))
    torch.Tensor.cuda = refusal("Tensor.cuda")
    torch.nn.Module.cuda = refusal("Module.cuda")


def note_loaders() -> None:
    import torch.utils.data

    plain = torch.utils.data.DataLoader.__init__

    def init(self: Any, *arguments: Any, **named: Any) -> None:
        plain(self, *arguments, **named)
        loaders.append((self.dataset, self.collate_fn, self.worker_init_fn))

    torch.utils.data.DataLoader.__init__ = init


def hide_other_frameworks(own: str) -> None:
    """As if no other framework were installed, nor what must not stand beside it.

    Who imports one is noted, and gets the error of a missing package. Packages that only look
    whether one is there find that it is not.
    """
    hidden = {package for package, framework in FRAMEWORKS.items() if framework != own}

    class Alone(importlib.machinery.PathFinder):
        @classmethod
        def find_spec(cls, name: str, path: Any = None, target: Any = None) -> Any:
            package = name.split(".")[0]
            if package == own == "tensorflow" and not remapper:
                remapper.append(os.environ.get("TURN_OFF_REMAPPER"))
            if package not in hidden and package not in UNWANTED:
                return super().find_spec(name, path, target)
            asker, only_looks = _asker()
            ours = asker.split(".")[0] in ("__main__", "pomology")
            # Others may try what the kit does not install (Keras scikit-learn, for one).
            installed = FRAMEWORKS.get(package) in ("torch", "tensorflow", "mlx")
            if not only_looks and (ours or installed):
                attempts.append(f"{package} beside {own}, imported by {asker}")
            return None

    finders = [Alone if each is importlib.machinery.PathFinder else each for each in sys.meta_path]
    sys.meta_path[:] = finders


def _asker() -> tuple[str, bool]:
    """The module that an import goes out from, and whether it only looks if a package is there."""
    only_looks = False
    frame = sys._getframe(2)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if not module.split(".")[0].startswith(("importlib", "_frozen_importlib", "pkgutil")):
            return module, only_looks
        only_looks |= module in ("importlib.util", "pkgutil")
        frame = frame.f_back
    return "", only_looks


def refuse_network() -> None:
    connect = socket.socket.connect

    def local_only(self: socket.socket, address: Any) -> Any:
        if self.family == socket.AF_UNIX or address[0] in ("127.0.0.1", "::1", "localhost"):
            return connect(self, address)
        raise OSError(f"these tests have no network: {address}")

    socket.socket.connect = socket.socket.connect_ex = local_only


def ask_no_framework(auto: str) -> None:
    """Leave out what takes long: the doctor's questions to each framework.

    auto: the device that Lightning takes by itself.
    """
    from pomology.extras.doctor import doctor

    answer = {"version": None, "reason": "was not asked", "devices": [], "auto": auto}
    doctor.probe = lambda framework: dict(answer)


def add_gpu(machine: str, lightning: bool, cpu: bool) -> None:
    """Let PyTorch have the machine's pretended GPU, beside the CPU where asked."""
    import pretended_cuda
    import pretended_mps

    device = pretended_cuda if machine == "nvidia" else pretended_mps
    gpu = device.become(lightning, beside_the_cpu=cpu)
    played.append(gpu)
    _until_the_end.enter_context(gpu.entered())


IDLE_W, CPU_W = 5, 20  # of each power domain: always, and for each busy core


def add_meter() -> None:
    """Give every device a Mac's energy counters, which follow the CPU time."""
    from pomology.machine import energy

    class AppleEnergyMonitor:
        def get_cumulative_energy(self) -> types.SimpleNamespace:
            used_j = IDLE_W * time.perf_counter() + CPU_W * time.process_time()
            used_mj = dict.fromkeys(energy.APPLE_RAILS.values(), int(1e3 * used_j))
            return types.SimpleNamespace(**used_mj)

    library = types.ModuleType("zeus_apple_silicon")
    library.AppleEnergyMonitor = AppleEnergyMonitor
    sys.modules["zeus_apple_silicon"] = library
    energy.meter = functools.cache(lambda kind: energy._apple_meter())


def start_modules_by(*command: str) -> None:
    """Let another command start modules of pomology, in place of `python -P -m MODULE`."""
    start = subprocess.Popen.__init__

    def popen(self: Any, arguments: Any, *more: Any, **named: Any) -> None:
        words = list(arguments) if isinstance(arguments, (list, tuple)) else []
        if words[1:2] == ["-P"]:
            del words[1]
        if words[:2] == [sys.executable, "-m"] and words[2].startswith("pomology."):
            arguments = [*command, *words[2:]]
        start(self, arguments, *more, **named)

    subprocess.Popen.__init__ = popen


def begin(own: str, machine: str = "mac") -> None:
    """own: the notebook's framework; `none` if it has none.

    machine: `mac`, whose MLX has no GPU, `mac-mlx`, whose MLX has one, or `nvidia`, which has no
    MLX.
    """
    refuse_network()
    hide_other_frameworks(own)
    if own == "torch":
        note_loaders()
    if machine == "nvidia":
        start_modules_by(sys.executable, "-P", "-c", WITHOUT_MLX)
        return
    from pomology.machine import snapshot

    multiprocessing.set_start_method("spawn", force=True)
    add_meter()
    snapshot.thermal_level = lambda: 0  # nominal
    if own == "torch":
        refuse_cuda()
    if machine == "mac-mlx":
        import pretended_mlx

        pretended_mlx.become()
        start_modules_by(sys.executable, "-P", str(TESTS / "pretended_mlx.py"))


def measure(cells: str) -> None:
    """Note which lines run from here on, also in the processes that this one starts.

    cells: a file with the notebook's cells, by source: the files that have the same lines.
    """
    import coverage
    from IPython import get_ipython

    coverage.process_startup()  # unless it was started with this process
    measured.append(coverage.process_startup.coverage)
    names = json.loads(Path(cells).read_text(encoding="utf-8"))
    compiler = get_ipython().compile
    usual = compiler.get_code_name

    def name_of(raw: str, code: str, number: int) -> str:
        return names.get(raw) or usual(raw, code, number)

    compiler.get_code_name = name_of


def end(folder: str) -> None:
    """Write what was noticed: `loaders.pickle` and `end.json`."""
    _until_the_end.close()
    sent = []
    for loader in loaders:
        try:
            pickle.dumps(loader)
            sent.append(loader)
        except Exception as error:
            words = "a DataLoader's worker, which macOS starts by spawn, cannot get its data"
            refused.append(f"{words}: {error}")
    Path(folder, "loaders.pickle").write_bytes(pickle.dumps(sent))
    noticed = {
        "modules": sorted(name for name in sys.modules if "." not in name),
        "start_method": multiprocessing.get_start_method(),
        "refused": refused,
        "attempts": attempts,
        "remapper": remapper,
        "played": [{"operators": mps.operators, "faults": mps.faults} for mps in played],
        "environment": {name: os.environ.get(name) for name in HIDES},
    }
    Path(folder, "end.json").write_text(json.dumps(noticed), encoding="utf-8")
    for each in measured:
        each.stop()
        each.save()  # now, since a kernel is killed at its end
