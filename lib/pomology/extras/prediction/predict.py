"""Answer `pomology predict` for a user's model or a workload of pomology."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

from pomology.articles import devices as names
from pomology.errors import PomologyError
from pomology.extras.prediction import devices, model, times, work, workloads
from pomology.extras.prediction.work import Work
from pomology.format import one_line, quantity, seconds, span
from pomology.machine import snapshot
from pomology.results.run import Run


def answer(target: str, input: str, precision: str, on: str, run: Path | None) -> list[str]:
    """Return the output of the command as lines.

    target: `file.py:build`, or `WORKLOAD BATCH [SIZE]` of pomology. run: folder of a run with
    measured peaks. input, precision, on: see the command. Raises PomologyError for wrong arguments.
    """
    choice, backend = None, "mps"
    source = Run(run) if run else None
    records = source.records if source else []
    if source:
        source.print_problems()
        choice = devices.of_run(on, run.name, records)
    elif on.lower() in ("cpu", "gpu"):
        raise PomologyError(f"--on {on}: needs --from, the name of a run with measured peaks")
    elif names.is_cpu(on):
        measured = "--from RUN --on cpu takes the peaks that a run measured"
        raise PomologyError(f"--on {one_line(on)}: no CPU has a data sheet; {measured}")
    elif on:
        choice = devices.with_data_sheet(on, snapshot.gpus(), "--on")
    if choice:
        choice.device.peak(precision)  # raises if a run has no peak in this precision
        backend = choice.device.backend
    if ":" in target or target.endswith(".py"):
        workload = ""
        counted = count_file(target, input, precision, backend)
        title = f"{one_line(Path(target).name)}, --input {input}, {precision}, Adam"
    else:
        if input:
            raise PomologyError(f"--input {one_line(input)}: expected with file.py:build only")
        step = workloads.parse(target)
        workload = step.workload
        counted = workloads.count(step, precision, backend)
        title = f"{step}, {precision}"
    flops = counted.flops / 1e9
    moved, memory = (quantity(size, "B") for size in (counted.bytes, counted.memory_bytes))
    lines = [f"{title}; per step: {flops:,.4g} GFLOP, {moved} read and written, {memory} of memory"]
    if not choice:
        return lines
    device, measured = choice.device, times.published()
    if run:
        measured = times.of_run(records, devices.measured_devices(records, run.name))
        counted = Work(0, counted.flops, counted.bytes, 0)  # as a run's records have it
    fitted = model.fitted().calibrated(device, measured, workload)
    step_s, bound = fitted.predict(counted, device, precision)
    interval = span(*step_s.bounds, seconds)
    text = f"{seconds(step_s.value)} per step (90 % interval: {interval}), mostly {bound}"
    lines.append(f"predicted for {choice.name} from {device.source}: {text}")
    errors = fitted.errors(precision, device.maker)
    return [*lines, *filter(None, [choice.note]), *errors]


def parse_inputs(text: str) -> list[Any]:
    """Return tensors on `meta` from shapes such as `32x3x224x224`, or `16x512:int`."""
    import torch

    inputs = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*([1-9]\d*(?:x[1-9]\d*)*)(:int)?\s*", part)
        if not match:
            example = "shapes such as 32x3x224x224, or 16x512:int for tokens, separated by commas"
            option = f"--input {one_line(text)}" if text else "--input"
            raise PomologyError(f"{option}: expected {example}")
        kind = torch.int64 if match[2] else torch.float32
        inputs.append(torch.empty(*map(int, match[1].split("x")), dtype=kind, device="meta"))
    return inputs


def count_file(target: str, text: str, precision: str, backend: str) -> Work:
    """Count a step, with Adam, of the model that a function of a user's file returns.

    A function `loss(output)` of the file computes the loss; the default is that of `work.step`.
    """
    import torch

    inputs = parse_inputs(text)
    file_name, _, name = target.rpartition(":")
    path = Path(file_name)
    if not path.is_file() or path.suffix != ".py":
        raise PomologyError(f"{one_line(target)}: expected a file and function, model.py:build")
    try:
        sys.path.insert(0, str(path.parent))
        spec = importlib.util.spec_from_file_location("own_model", path)
        file = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(file)
        build = getattr(file, name)
        try:
            with torch.device("meta"):
                module = build()
        except Exception:  # some models read values while they build, which meta does not have
            module = build()
        step = work.step(inputs, getattr(file, "loss", None))
        return work.count(module, step, precision=precision, backend=backend)
    except Exception as error:
        kind = "" if isinstance(error, PomologyError) else f"{type(error).__name__}: "
        reason = one_line(f"{kind}{' '.join(str(error).split())}", 300)
        raise PomologyError(f"{one_line(path.name)}: {reason}") from error
