"""The MLX twin of a notebook's training, timed in a process of its own.

`Experiment.twin` starts `python -m pomology.experiment.twin` and writes a `Request` to its stdin.
A process uses one framework only, so the notebook's kernel cannot import MLX itself. The records go
to the notebook's own journal, and stand in its table next to those of PyTorch.
"""

from __future__ import annotations

import importlib.util
import math
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from pomology.errors import NoSuchDevice, PomologyError
from pomology.format import quantity
from pomology.machine import driver_reports
from pomology.measure import epochs
from pomology.measure.estimate import total
from pomology.results import cases
from pomology.results.record import Record

BATCHES = 4  # different ones, used in rotation
MOST_STEPS = 1000  # of a case
# Seconds for three steps at the rate of a matmul; a case that needs longer is not tried. On a CPU
# without Apple's BLAS, MLX is some ten times slower than PyTorch.
LIMIT_S = {"gpu": 12.0, "cpu": 1.0}
FLOPS_UNLIKE = 0.01  # relative difference of a twin's FLOPs that is told
NO_DEVICE = 3  # exit status: this machine has no device for MLX
READY = "compute only: random batches that are on the device already"


class TwinCase(msgspec.Struct):
    """A case of a twin.

    epoch_steps: steps of an epoch; 0 for a training without epochs. steps: of a whole training; 0
    if only an epoch is estimated. kind: of its devices; "" for all. scaled: whether the model is
    smaller than the article's.
    """

    config: dict[str, Any]
    epoch_steps: float = 0
    steps: int = 0
    kind: str = ""
    scaled: bool = False


class Request(msgspec.Struct):
    """What a twin trains: `file.py:name` of a workload, or of a function of a case's settings.

    experiment: arguments of `Experiment`. part: see `Experiment.dataset`. Others: see
    `Experiment.twin`.
    """

    source: str
    experiment: dict[str, Any]
    cases: list[TwinCase]
    part: dict[str, int] = {}
    seed: int = 1
    epochs: int = 1
    throughput: str = ""
    options: dict[str, Any] = {}


def of_case(case: dict[str, Any] | Record, samples: int, drop_last: bool = False) -> TwinCase:
    """Return the twin of a case, which is given by its settings, or by PyTorch's record.

    samples: of an epoch. drop_last: whether an epoch leaves out a smaller last batch.
    """
    if isinstance(case, dict):
        twin_case = TwinCase(case)
    else:
        kind = cases.kind(case.backend)
        twin_case = TwinCase(case.config, kind=kind, scaled=case.scaled)
    rounded = math.floor if drop_last else math.ceil
    twin_case.epoch_steps = rounded(samples / twin_case.config["batch_size"])
    return twin_case


def unlike(records: Iterable[Record]) -> Iterator[str]:
    """Yield how twins differ from PyTorch's cases of the same settings in parameters and FLOPs."""
    by_settings: dict[str, dict[str, Record]] = {}
    for record in records:
        if record.parameters and record.framework in ("torch", "mlx"):
            by_settings.setdefault(str(record.config), {})[record.framework] = record
    for of_settings in by_settings.values():
        if len(of_settings) < 2:
            continue
        own, torch = of_settings["mlx"], of_settings["torch"]
        if own.parameters != torch.parameters:
            counts = f"{own.parameters:,} parameters, and PyTorch's model {torch.parameters:,}"
            yield f"{own.case}: the twin has {counts}"
        flops = own.flops_per_step or 0, torch.flops_per_step or 0
        if all(flops) and abs(flops[0] / flops[1] - 1) > FLOPS_UNLIKE:
            counts = " and PyTorch's ".join(quantity(count, "FLOP") for count in flops)
            yield f"{own.case}: a step of the twin has {counts}"


def run(request: msgspec.Struct, module: str = "pomology.experiment.twin") -> tuple[int, str, str]:
    """Run a twin, print its lines, and return its exit status and what it said of its end.

    Between the two is the status of a case that it left open. module: reads the request.
    """
    # -P: a file `random.py` next to the notebook is no module of Python's.
    command = [sys.executable, "-P", "-m", module]
    # Not as the user's locale has it, which may lack `×` or `→`.
    environment = os.environ | {"PYTHONIOENCODING": "utf-8:replace"}
    options = {"encoding": "utf-8", "errors": "replace", "env": environment}
    # A file keeps what a driver writes before it aborts, and never fills up as a pipe does.
    with tempfile.NamedTemporaryFile("w+", encoding="utf-8", errors="replace") as said:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": said}
        process = subprocess.Popen(command, **options, **pipes)
        try:
            process.stdin.write(msgspec.json.encode(request).decode())
            process.stdin.close()
            for line in process.stdout:
                print(line, end="")
            code = process.wait()
        finally:  # also after an interruption of the notebook
            process.kill()
            process.wait()
        said.seek(0)
        aborted = code == -signal.SIGABRT
        return code, *driver_reports.death(said.read().splitlines(), aborted)


def load(source: str) -> Any:
    """Return what `file.py:name` names. Raises PomologyError for an unknown file or name."""
    file, _, name = source.partition(":")
    path = Path(file).resolve()
    if not path.is_file():
        raise PomologyError(f"{path.name}: no such file; expected an MLX twin, such as vae_mlx.py")
    sys.path.append(str(path.parent))  # twins share files
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not hasattr(module, name):
        raise PomologyError(f"{path.name}: defines no {name}")
    return getattr(module, name)


def train(case: Any, workload: Any, twin_case: TwinCase, request: Request) -> None:
    """Train a workload on a few random batches in rotation, and time its steps and passes."""
    import mlx.core as mx

    from pomology.models import workload_mlx

    case.count(workload)
    case.require_time(LIMIT_S[case.backend.kind])
    mx.random.seed(request.seed)
    model, optimizer = case.prepare(workload)
    step = workload_mlx.compiled(case, workload, model, optimizer)
    # Without a number of steps there is no epoch that could run whole.
    runs_whole = bool(twin_case.steps)
    case.clock.whole &= runs_whole
    repeated = in_rotation(workload.batch, case["batch_size"], twin_case.steps or MOST_STEPS)
    for batch in case.steps(repeated, ready=False, per_epoch=int(runs_whole)):
        case.loss(step(*batch))
    for part in workload.passes:
        run_pass(case, model, part, request.epochs)
    case.note(READY)
    if workload.differs:
        case.note(workload.differs)
    record_metrics(case, len(workload.passes), twin_case, request)


def run_pass(case: Any, model: Any, part: Any, repeats: int) -> None:
    """Time a `workload_mlx.Pass` of an epoch so many times, with the model in evaluation mode."""
    from pomology.models import workload_mlx

    model.eval()
    call = workload_mlx.compiled_pass(case, model, part.call)
    repeated = in_rotation(part.batch, part.batch_size, part.steps * repeats)
    for batch in case.steps(repeated, part.name):
        call(*batch)
    model.train()  # as it was verified


def in_rotation(batch: Any, batch_size: int, steps: int) -> list[tuple]:
    """Return the inputs of so many steps: `BATCHES` different ones, which repeat."""
    import mlx.core as mx

    batches = [batch(batch_size) for _ in range(BATCHES)]
    mx.eval(batches)
    return [batches[number % BATCHES] for number in range(steps)]


def record_metrics(case: Any, passes: int, twin_case: TwinCase, request: Request) -> None:
    """Record what follows from the times of steps and of so many passes of an epoch."""
    timed = epochs.epoch_metrics(case.clock)
    step_s = timed.get("step_s")
    if step_s is None:
        return
    parts = epochs.part_metrics(case.clock)
    others = [part for name, part in parts.items() if name != "training"]
    if twin_case.epoch_steps and len(others) == passes:
        # `compute_epoch_s` has no slow first step, as in `epochs.epoch_metrics`.
        first_s = timed["first_step_s"].value if twin_case.steps else step_s.value
        training = epochs.epoch_estimate(first_s, step_s, twin_case.epoch_steps)
        epoch = total([training, *(other * (1 / request.epochs) for other in others)])
        case.metric("epoch_s" if twin_case.steps else "compute_epoch_s", epoch)
    if twin_case.steps and "epoch_s" in timed:
        case.metric("fit_s", timed["epoch_s"])
    if request.throughput:
        units = case["sequence"] if request.throughput == "tokens/s" else 1
        rate = epochs.rate(case["batch_size"] * units, step_s, request.throughput)
        case.metric("throughput", rate)


def main() -> int:
    """Train the cases of the request on stdin; return the exit status."""
    from pomology.experiment.experiment import Experiment

    request = msgspec.json.decode(sys.stdin.read(), type=Request)
    try:
        experiment = Experiment(framework="mlx", **request.experiment)
    except NoSuchDevice as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        return NO_DEVICE
    # After MLX's settings, which it reads when it is imported.
    declared = load(request.source)
    experiment.part = request.part
    for twin_case in request.cases:
        alike = [device for device in experiment.devices if device.kind == twin_case.kind]
        for case in experiment.cases([twin_case.config], on=alike or None):
            with case:
                case.scaled = twin_case.scaled
                workload = declared
                if callable(declared):
                    workload = declared(case.config, **request.options)
                train(case, workload, twin_case, request)
    return 0


if __name__ == "__main__":
    sys.exit(main())
