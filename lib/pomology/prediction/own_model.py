"""A user's own model, `file.py:build`, counted in a process of its own: its code may do anything there."""

from __future__ import annotations

import contextlib
import difflib
import importlib.util
import math
import os
import re
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, TypeVar

from pomology import format
from pomology.errors import PomologyError
from pomology.format import one_line
from pomology.measure.estimate import Estimate
from pomology.prediction import operators
from pomology.prediction.operators import Counted
from pomology.workloads import isolated

LIMIT_S = 120.0  # for all that the process does, with the import of PyTorch
# Nothing is downloaded for a count, and torch.compile leaves a model as it is: what is counted is eager.
SETTINGS = {"HF_HUB_OFFLINE": "1", "TORCH_COMPILE_DISABLE": "1"}
_INPUT = re.compile(r"(?:([A-Za-z_]\w*)=)?([1-9]\d{0,11}(?:x[1-9]\d{0,11})*)(:int)?", re.ASCII)
_BETWEEN = re.compile(r"[\\/](torch|pomology)[\\/]|importlib|contextlib")  # files between the error and who made it

Known = TypeVar("Known")


class Input(NamedTuple):
    """A tensor that the model is given: by its place, or by a name."""

    name: str | None
    sizes: tuple[int, ...]
    whole: bool  # of int64, as tokens are; else of fp32


def parse_inputs(text: str) -> list[Input]:
    """`32x3x224x224`, `16x512:int`; several parted by commas, by place, or by name as `x=16x512:int,y=16:int`."""
    parts = [_INPUT.fullmatch(part.strip()) for part in text.split(",")]
    names = [part[1] for part in parts if part]
    if None in parts or (any(names) and (None in names or len(set(names)) < len(names))):
        right = "sizes as 32x3x224x224, or 16x512:int for tokens; several parted by commas, all with a name= or none"
        raise PomologyError(f"--input {one_line(text)}: must be {right}")
    return [Input(part[1], tuple(map(int, part[2].split("x"))), part[3] is not None) for part in parts]


def chosen(name: str, known: Mapping[str, Known], option: str = "--on") -> Known:
    """What is known by this name, of a device. Raises PomologyError, which names the closest."""
    if name not in known:
        close = (
            difflib.get_close_matches(name, known, 3, 0.4) or sorted(known)[:3] or ["none, as no ceilings are known"]
        )
        raise PomologyError(f"{option} {one_line(name)}: no such device; close to it: {', '.join(close)}")
    return known[name]


def steps_per_epoch(samples: int, inputs: list[Input]) -> int:
    """Steps of an epoch of so many samples; the first size of the first input is the batch."""
    if samples < 1:
        raise PomologyError(f"--epoch {samples}: must be a number of samples, 1 or more")
    return math.ceil(samples / inputs[0].sizes[0])


def count(
    target: str,
    inputs: str,
    precision: str = "fp32",
    optimizer: str = "adam",
    backend: str = "mps",
) -> Counted:
    """Count a training step of the model that a user's function makes; nothing is trained.

    target: `path/to/file.py:build`, where `build()` returns a torch.nn.Module. A function `loss(output)` in that file
    makes the loss; without one see `operators.default_loss`. inputs: see `parse_inputs`. The rest: see
    `operators.count`. Raises PomologyError in one line for whatever is wrong with these, or with that code, or if it
    takes longer than LIMIT_S seconds; no process is left behind.
    """
    path, _, function = target.rpartition(":")
    if not path or not function.isidentifier():
        raise PomologyError(f"{one_line(target)}: must be a file and a function in it, as path/to/model.py:build")
    place, name = Path(path), one_line(Path(path).name)
    if place.suffix != ".py" or not place.is_file():
        raise PomologyError(f"{one_line(path)}: no such file of Python (.py)")
    given = parse_inputs(inputs)
    operators.check(precision, optimizer)
    try:
        what = f"{name}: the process that counts it"
        asked = (str(place.resolve()), function, given, precision, optimizer, backend)
        answer = isolated.call(what, f"{__name__}:_answer", *asked, limit_s=LIMIT_S, foreign=True)
    except subprocess.TimeoutExpired:
        raise PomologyError(f"{name}: it was not counted within {LIMIT_S:g} s; build() must do no more") from None
    if isinstance(answer, str):
        raise PomologyError(f"{name}: {answer}")
    return answer


class Device(Protocol):
    """What is predicted for."""

    backend: str  # as `cost.workload` takes it
    source: str  # from which ceilings


class Predicted(Protocol):
    step_s: Estimate  # with its 90 % interval
    bound: str  # what most of a step is spent on


def answer(
    target: str,
    inputs: str,
    precision: str = "fp32",
    optimizer: str = "adam",
    on: str = "",
    epoch: int | None = None,
    devices: Mapping[str, Device] = MappingProxyType({}),
    predict: Callable[[list[operators.Operator], Any], Predicted] | None = None,
) -> list[str]:
    """The lines that `pomology predict file.py:build` prints: what was counted and, for a device, what is predicted.

    on: a name in devices; empty: none, and the step is counted as MPS does it. Errors: see `count`.
    """
    device, given = chosen(on, devices) if on else None, parse_inputs(inputs)
    steps = None if epoch is None else steps_per_epoch(epoch, given)
    counted = count(target, inputs, precision, optimizer, device.backend if device else "mps")
    what = f"{one_line(Path(target).name)}, --input {inputs}, {precision}, {optimizer}"
    return described(what, counted, on, device, predict, epoch, steps)


def described(
    what: str,
    counted: Counted,
    on: str,
    device: Device | None,
    predict: Callable[[list[operators.Operator], Any], Predicted] | None,
    epoch: int | None,
    steps: int | None,
) -> list[str]:
    """The lines of `answer`, for anything that was counted."""
    flops, moved, launches = (sum(each[place] for each in counted.operators) for place in (1, 2, 3))
    amounts = f"{flops / 1e9:,.4g} GFLOP, {format.quantity(moved, 'B')} read and written, {launches:,} launches"
    memory = counted.memory._asdict()
    peak = format.quantity(memory.pop("peak"), "B")
    parts = [f"{name} {format.quantity(size, 'B')}" for name, size in memory.items()]
    lines = [
        f"{what}; counted of a step: {amounts}",
        f"memory at its highest point, counted: {peak}, without work space of operators ({', '.join(parts)})",
    ]
    if device:
        predicted = predict(counted.operators, device)
        step = f"a step takes {_shown(predicted.step_s)}, most of it {predicted.bound}"
        lines.append(f"predicted for {on} from {device.source}: {step}")
        if steps:
            whole = _shown(predicted.step_s * steps)
            lines.append(f"predicted: {epoch:,} samples, {steps:,} steps, take {whole}; loading data is not in it")
    return lines


def _shown(duration: Estimate) -> str:
    """With the bounds of its interval, which is no measured one: it covers 9 of 10 devices that were left out."""
    return f"{format.seconds(duration.value)} (90 %: {format.span(*duration.bounds, format.seconds)})"


# In that process ------------------------------------------------------------------------------------------------------


def _answer(*asked: Any) -> Counted | str:
    """What was counted, or why not."""
    os.environ.update(SETTINGS)
    socket.getaddrinfo = socket.socket.connect = _no_network
    try:
        return _count(*asked)
    except PomologyError as error:
        return str(error)


def _no_network(*_: Any, **__: Any) -> None:
    raise PomologyError("it asks the network; give the model without trained weights, of which only the shapes count")


@contextlib.contextmanager
def _said(what: str, path: str) -> Iterator[None]:
    """What the user's code raises, in one line, with its place there. It may also exit."""
    try:
        yield
    except BaseException as error:
        kind = "" if isinstance(error, PomologyError) else f"{type(error).__name__}: "
        text = one_line(" ".join(str(error).split()), 300)
        steps = [step for step in traceback.extract_tb(error.__traceback__) if not _BETWEEN.search(step.filename)]
        own = [step for step in steps if step.filename == path] or steps  # or a library's that makes the model
        place = f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""
        raise PomologyError(f"{what}: {kind}{text}".rstrip(": ") + place) from None


def _count(path: str, function: str, given: list[Input], precision: str, optimizer: str, backend: str) -> Counted:
    sys.path.insert(0, str(Path(path).parent))  # as where Python runs that file
    with _said("it does not import", path):
        spec = importlib.util.spec_from_file_location("own_model", path)
        file = sys.modules["own_model"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(file)
    build = getattr(file, function, None)
    if not callable(build):
        names = [name for name, value in vars(file).items() if callable(value) and not name.startswith("_")]
        close = ", ".join(difflib.get_close_matches(function, names) or names[:5]) or "none"
        raise PomologyError(f"no function {function} in it; it has {one_line(close)}")
    import torch

    with _said(f"{function}()", path):
        try:
            with torch.device("meta"):
                module = build()
        except Exception:  # meta has no values, which some read while they build; on the CPU the shapes are the same
            module = build()
    if not isinstance(module, torch.nn.Module):
        raise PomologyError(f"{function}() gives a {type(module).__name__}, not a torch.nn.Module")
    text = ", ".join("x".join(map(str, one_input.sizes)) for one_input in given)
    with _said(f"a step with --input {text}", path):
        dtypes = {True: torch.int64, False: torch.float32}
        tensors = [torch.empty(each.sizes, dtype=dtypes[each.whole], device="meta") for each in given]
        named = {each.name: tensor for each, tensor in zip(given, tensors, strict=True)}
        step = operators.step(tensors if None in named else named, getattr(file, "loss", None))
        return operators.count(module, step, precision, optimizer, backend)
