"""A user's own model, `file.py:build`, counted in a process of its own: its code may do anything there."""

from __future__ import annotations

import contextlib
import difflib
import importlib.util
import os
import re
import socket
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from pomology.errors import PomologyError
from pomology.extras.prediction import operators
from pomology.extras.prediction.operators import Counted
from pomology.format import one_line
from pomology.models import isolated

LIMIT_S = 120.0  # for all that the process does, with the import of PyTorch
# Nothing is downloaded for a count, and torch.compile leaves a model as it is: what is counted is eager.
SETTINGS = {"HF_HUB_OFFLINE": "1", "TORCH_COMPILE_DISABLE": "1"}
_INPUT = re.compile(r"(?:([A-Za-z_]\w*)=)?([1-9]\d{0,11}(?:x[1-9]\d{0,11})*)(:int)?", re.ASCII)
_BETWEEN = re.compile(r"[\\/](torch|pomology)[\\/]|importlib|contextlib")  # files between the error and who made it


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


def count(target: str, inputs: str, precision: str = "fp32", optimizer: str = "adam", backend: str = "mps") -> Counted:
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
