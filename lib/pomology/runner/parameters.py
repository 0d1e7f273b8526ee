"""What a notebook's parameters may be: read from its `parameters` cell, and checked before anything runs.

A parameter is a line `name: type = literal  # help` of the cell tagged `parameters`. A YAML file of a profile gives
other values; papermill itself would take unknown names, and texts for numbers, without a word.
"""

from __future__ import annotations

import ast
import json
import math
import re
import reprlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from pomology.devices import find
from pomology.errors import PomologyError
from pomology.results.record import PROFILES
from pomology.runner.notebooks import read_notebook

DATA = ("auto", "real", "stand-in")
DEVICES = find.choices()


@dataclass(frozen=True)
class Limit:
    """What a parameter of some name may be, whichever notebook has it."""

    test: Callable[[Any], bool]
    words: str


def _one_of(*names: str) -> Limit:
    return Limit(lambda value: value in names, f"one of {', '.join(names)}")


def _between(low: float, high: float) -> Limit:
    return Limit(lambda value: low <= value <= high, f"from {low:,} to {high:,}")


def _above(low: float, high: float) -> Limit:
    return Limit(lambda value: low < value <= high, f"above {low:,} and at most {high:,}")


SIZE, TIME, WORKERS = _between(1, 2**20), _above(0, 7 * 86400), _between(0, 128)

# Names that the workloads know; to import them here would load the workloads at each command.
GPT2 = ("gpt2-smoke", "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")
WHISPER = ("whisper-smoke", "whisper-tiny", "whisper-small", "whisper-medium", "whisper-large")

LIMITS: dict[str, Limit] = {
    # what every notebook has
    "profile": _one_of(*PROFILES),
    "devices": _one_of(*DEVICES),
    "data": _one_of(*DATA),
    "budget_s": TIME,
    "repeat": _between(0, 999),
    "seed": _between(0, 2**32 - 1),
    # sizes of batches, pictures and models; of `models`, a list of rows, every number
    **dict.fromkeys(("batch_size", "batch_sizes", "large_batch_size", "cpu_batch_divisor", "gpu_batch_divisor"), SIZE),
    **dict.fromkeys(("vgg16_batch_size", "resnet18_batch_size", "resnet50_batch_size"), SIZE),
    **dict.fromkeys(("image_size", "tokens", "sizes", "clips", "near_steps", "models"), SIZE),
    "image_sizes": _between(64, 1024),
    "text_tokens": _between(1, 1024),  # what GPT-2 has positions for
    "label_tokens": _between(1, 448),  # and Whisper
    "vocabulary": _between(0, 2**20),
    "samples": _between(0, 2**40),
    "epochs": _between(1, 10_000),
    "warmup": _between(1, 2**40),
    "proof_steps": _between(1, 1000),
    "pairs": _between(3, 1000),
    "megabytes": _between(16, 65_536),
    # how it trains
    "lr": _above(0, 1000),
    **dict.fromkeys(("workers", "cuda_workers", "loaders"), WORKERS),
    "precisions": _one_of("fp32", "fp16", "bf16"),
    "weights": _one_of("auto", "random"),
    "task": _one_of("classification", "language-model"),
    "offload": _one_of("none", "zero", "fsdp"),
    # which models
    "networks": _one_of("vgg16", "resnet18", "resnet50"),
    "chart_networks": _one_of("resnet50", "bert", "vgg16"),
    "architecture": _one_of("transformer_lm", "true_gpt2"),
    "siblings": _one_of(*GPT2),
    "larger": _one_of("none", *GPT2),
    **dict.fromkeys(("whisper_sizes", "large_size"), _one_of(*WHISPER)),
    "energy_models": _one_of("whisper-medium", "small transformer"),
    "loads": _one_of("easy", "near"),
    # limits and tolerances
    **dict.fromkeys(("limit_s", "near_budget_s", "cpu_limit_s"), TIME),
    "near": _above(0, 1),
    "near_most_gb": _between(0, 100_000),
    "margin": _above(0, 100),
    "tolerance": _above(0, 1),
    # prices
    "price_usd": _between(0, 10_000_000),
    "electricity_usd_per_kwh": _between(0, 100),
    "years_of_use": _above(0, 100),
}


@dataclass(frozen=True)
class Parameter:
    """One line of a notebook's parameters cell."""

    name: str
    type: str
    default: Any
    help: str


def declared(path: Path) -> dict[str, Parameter]:
    """The parameters that a notebook declares, by name. Raises PomologyError if the cell breaks the rules."""
    sources = [
        "".join(cell["source"])
        for cell in read_notebook(path)["cells"]
        if cell.get("cell_type") == "code" and "parameters" in cell.get("metadata", {}).get("tags", [])
    ]
    if len(sources) != 1:
        raise PomologyError(f"{path.name}: {len(sources)} cells are tagged `parameters`; there must be exactly one")
    where, lines = f"{path.name}: parameters cell", sources[0].split("\n")
    parameters: dict[str, Parameter] = {}
    try:
        statements = ast.parse(sources[0]).body
    except (SyntaxError, ValueError) as error:
        raise PomologyError(f"{where}: not Python ({' '.join(str(error).split())})") from None
    for statement in statements:
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            raise PomologyError(f"{where}: `{lines[statement.lineno - 1]}` must read `name: type = literal  # help`")
        name = statement.target.id
        try:
            default = ast.literal_eval(statement.value)
        except (ValueError, TypeError):
            raise PomologyError(f"{where}: {name} must be a literal, so that it can be given") from None
        rest = lines[statement.end_lineno - 1].encode()[statement.end_col_offset :].decode()
        comment = re.fullmatch(r"\s*#\s*(\S.*)", rest)
        if not comment:
            raise PomologyError(f"{where}: {name} needs a comment that says what it is")
        if name in parameters:
            raise PomologyError(f"{where}: {name} stands twice; each parameter may stand once")
        parameters[name] = Parameter(name, ast.unparse(statement.annotation), default, comment[1])
        check(parameters[name], default, path.name)
    return parameters


def check(parameter: Parameter, value: Any, where: str) -> None:
    """Raise PomologyError, in one line, if a value does not suit a parameter. `where` names the file it comes from."""
    name, limit = parameter.name, LIMITS.get(parameter.name)
    if not re.fullmatch(r"(list\[)*(str|bool|int|float)\]*", parameter.type):
        kinds = "str, bool, int, float or a list of these"
        raise PomologyError(f"{where}: {name} is declared as {parameter.type!r}; it must be {kinds}")
    if wrong := _wrong_type(parameter.type, value):
        raise PomologyError(f"{where}: {name} is {_show(value)}; it must be {wrong}")
    if value == []:
        raise PomologyError(f"{where}: {name} is an empty list; it must name at least one")
    texts = [json.dumps(item) for item in value] if isinstance(value, list) else []
    if twice := [text for text in texts if texts.count(text) > 1]:
        raise PomologyError(f"{where}: {name} has {twice[0]} twice; each may stand once")
    for item in _flat(value):
        if isinstance(item, float) and not math.isfinite(item):
            raise PomologyError(f"{where}: {name} is {_show(item)}; it must be a finite number")
        if limit and not limit.test(item):
            raise PomologyError(f"{where}: {name} is {_show(item)}; it must be {limit.words}")


def _flat(value: Any) -> list:
    return [part for item in value for part in _flat(item)] if isinstance(value, list) else [value]


def _wrong_type(kind: str, value: Any) -> str | None:
    """What a value of this annotation must be, if this one is not; None if it is."""
    if match := re.fullmatch(r"list\[(.+)\]", kind):
        if not isinstance(value, list):
            return f"a list ({kind})"
        wrong = [(item, words) for item in value if (words := _wrong_type(match[1], item))]
        return f"a list of which each is {wrong[0][1]}, and {_show(wrong[0][0])} is not" if wrong else None
    types = {"str": (str,), "bool": (bool,), "int": (int,), "float": (int, float)}
    if isinstance(value, types[kind]) and isinstance(value, bool) == (kind == "bool"):
        return None
    words = {"str": "a text", "bool": "true or false", "int": "a whole number", "float": "a number"}[kind]
    if isinstance(value, str) and kind in ("int", "float"):
        try:
            number = float(value)
        except ValueError:
            return words
        if not math.isfinite(number) or (kind == "int" and number != int(number)):
            return words
        # YAML reads 1e-3 as a text: it wants a point before the exponent.
        return f"{words}, and this is a text; write {_yaml_number(number, kind)}"
    return words


def _yaml_number(number: float, kind: str) -> str:
    if kind == "int":
        return str(int(number))
    text = repr(number)
    return text.replace("e", ".0e") if "e" in text and "." not in text else text


def _show(value: Any) -> str:
    text = "null" if value is None else _SHORT.repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


_SHORT = reprlib.Repr()  # a few lines of YAML can stand for a value of billions of items
_SHORT.maxstring = _SHORT.maxother = 60


class _StrictLoader(yaml.SafeLoader):
    """YAML in which a key may stand once; the usual loader takes the last of two without a word."""

    def construct_mapping(self, node, deep=False):
        keys = [self.construct_object(key, deep=deep) for key, _ in node.value]
        twice = [key for key in keys if keys.count(key) > 1]
        if twice:
            raise PomologyError(f"{_show(twice[0])} stands twice; each parameter may stand once")
        return super().construct_mapping(node, deep)


def read_yaml(path: Path, where: str) -> dict[str, Any]:
    """A profile's parameters for one notebook. Raises PomologyError in one line that begins with `where`."""
    try:
        values = yaml.load(path.read_text(encoding="utf-8"), _StrictLoader)
    except OSError as error:
        raise PomologyError(f"{where}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise PomologyError(f"{where}: not a text file in UTF-8") from None
    except PomologyError as error:
        raise PomologyError(f"{where}: {error}") from None
    # A value that is not of the type its tag or form claims (as 2022-99-99) makes the loader raise what it will.
    except (yaml.YAMLError, TypeError, ValueError, LookupError, AttributeError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f", line {mark.line + 1}" if mark else ""
        words = " ".join(str(getattr(error, "problem", None) or error).split())
        raise PomologyError(f"{where}{place}: not valid YAML ({words})") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise PomologyError(f"{where}: must be lines `name: value`, not {type(values).__name__}")
    for name in values:
        if not isinstance(name, str):
            raise PomologyError(f"{where}: {_show(name)} is no name of a parameter; it must be a text")
    return values


def merge(declared: dict[str, Parameter], values: dict[str, Any], where: str) -> dict[str, Any]:
    """Check given values against what a notebook declares. Raises PomologyError for the first that is wrong."""
    for name, value in values.items():
        if name not in declared:
            raise PomologyError(f"{where}: no parameter is named {_show(name)}; there are {', '.join(declared)}")
        check(declared[name], value, where)
    return values
