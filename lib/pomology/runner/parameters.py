"""What a notebook's parameters may be: read from its `parameters` cell, and checked before anything runs.

A parameter is a line `name: type = literal  # help` of the cell tagged `parameters`. A YAML file of a profile gives
other values; papermill itself would take unknown names, and texts for numbers, without a word.
"""

import ast
import math
import re
import reprlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from pomology.devices import find
from pomology.errors import PomologyError
from pomology.format import one_line
from pomology.paths import read_file
from pomology.results.record import PROFILES
from pomology.runner.notebooks import read_notebook

DATA = ("auto", "real", "stand-in")
MOST_BYTES = 2**18  # of a file of parameters
DEVICES = find.choices()
KINDS = {"str": (str, "a text"), "bool": (bool, "true or false")}
KINDS |= {"int": (int, "a whole number"), "float": ((int, float), "a number")}
KINDS |= {"dict": (dict, "settings by name")}
Limit = tuple[Callable[[Any], bool], str]  # a test of a value, and its words


def _one_of(*names: str) -> Limit:
    return lambda value: value in names, f"one of {', '.join(names)}"


def _between(low: float, high: float, above: bool = False) -> Limit:
    words = f"above {low:,} and at most {high:,}" if above else f"from {low:,} to {high:,}"
    return lambda value: low <= value <= high and not (above and value == low), words


def _settings(**limits: Limit) -> Limit:
    def suit(row: dict) -> bool:
        known = row.keys() == limits.keys()
        return known and all(isinstance(row[name], int) and limits[name][0](row[name]) for name in limits)

    return suit, ", ".join(f"{name} {words}" for name, (_, words) in limits.items())


# Names that the workloads know; to import them here would load the workloads at each command.
GPT2 = ("gpt2-smoke", "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")
WHISPER = ("whisper-smoke", "whisper-tiny", "whisper-small", "whisper-medium", "whisper-large")
# What parameters of these names may be, whichever notebook has them; of a list, every number.
_LIMITS: dict[str, Limit] = {
    "profile": _one_of(*PROFILES),
    "devices": _one_of(*DEVICES),
    "data": _one_of(*DATA),
    "budget_s limit_s near_budget_s cpu_limit_s": _between(0, 7 * 86400, above=True),
    "minutes window_s": _between(0, 1440, above=True),
    "repeat": _between(0, 999),
    "seed": _between(0, 2**32 - 1),
    "batch_size batch_sizes large_batch_size cpu_batch_divisor gpu_batch_divisor vgg16_batch_size resnet18_batch_size "
    "resnet50_batch_size image_size tokens sizes clips near_steps "
    "smaller_batch_sizes shapes smaller_shapes layers steps": _between(1, 2**20),
    "models": _settings(**dict.fromkeys(("batch_size", "embedding_size", "layers", "hidden_size"), _between(1, 2**20))),
    "image_sizes": _between(64, 1024),
    "text_tokens": _between(1, 1024),  # what GPT-2 has positions for
    "label_tokens": _between(1, 448),  # and Whisper
    "vocabulary": _between(0, 2**20),
    "samples saved_pictures": _between(0, 2**40),
    "epochs": _between(1, 10_000),
    "warmup": _between(1, 2**40),
    "proof_steps": _between(1, 1000),
    "pairs": _between(3, 1000),
    "megabytes": _between(16, 65_536),
    "lr": _between(0, 1000, above=True),
    "cuda_workers": _between(0, 128),
    "loaders": _settings(workers=_between(0, 128), persistent=_between(0, 1), augment_on_device=_between(0, 1)),
    "precisions": _one_of("fp32", "fp16", "bf16"),
    "weights": _one_of("auto", "random"),
    "task": _one_of("classification", "language-model"),
    "offload": _one_of("none", "zero", "fsdp"),
    "networks": _one_of("vgg16", "resnet18", "resnet50"),
    "chart_networks": _one_of("resnet50", "bert", "vgg16"),
    "architecture": _one_of("transformer_lm", "true_gpt2"),
    "siblings": _one_of(*GPT2),
    "larger": _one_of("none", *GPT2),
    "whisper_sizes large_size": _one_of(*WHISPER),
    "energy_models": _one_of("whisper-medium", "small transformer"),
    "loads": _one_of("easy", "near"),
    "near tolerance": _between(0, 1, above=True),
    "near_most_gb": _between(0, 100_000),
    "margin years_of_use": _between(0, 100, above=True),
    "price_usd": _between(0, 10_000_000),
    "electricity_usd_per_kwh": _between(0, 100),
}
LIMITS = {name: limit for names, limit in _LIMITS.items() for name in names.split()}


class Parameter(NamedTuple):
    """One line of a notebook's parameters cell."""

    name: str
    type: str
    default: Any
    help: str


def declared(path: Path) -> dict[str, Parameter]:
    """The parameters that a notebook declares, by name. Raises PomologyError if the cell breaks the rules."""
    cells = [cell for cell in read_notebook(path)["cells"] if cell.get("cell_type") == "code"]
    tagged = [cell for cell in cells if "parameters" in cell.get("metadata", {}).get("tags", [])]
    sources = ["".join(cell["source"]) for cell in tagged]
    if len(sources) != 1:
        raise PomologyError(f"{path.name}: {len(sources)} cells are tagged `parameters`; there must be exactly one")
    where, lines = f"{path.name}: parameters cell", sources[0].split("\n")
    parameters: dict[str, Parameter] = {}
    try:
        statements = ast.parse(sources[0]).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise PomologyError(f"{where}: not Python ({' '.join(str(error).split())})") from None
    for statement in statements:
        behind = lines[statement.end_lineno - 1].encode()[statement.end_col_offset :].decode()
        comment = re.fullmatch(r"\s*#\s*(\S.*)", behind)
        try:
            name, default = statement.target.id, ast.literal_eval(statement.value)
            parameter = Parameter(name, ast.unparse(statement.annotation), default, comment[1])
        except (AttributeError, ValueError, TypeError):
            line = lines[statement.lineno - 1]
            raise PomologyError(f"{where}: `{line}` must read `name: type = literal  # help`") from None
        if name in parameters:
            raise PomologyError(f"{where}: {name} stands twice; each parameter may stand once")
        parameters[name] = parameter
        check(parameter, default, path.name)
    return parameters


def check(parameter: Parameter, value: Any, where: str) -> None:
    """Raise PomologyError, in one line, if a value does not suit a parameter. `where` names the file it comes from."""
    name, kind = parameter.name, parameter.type
    if not re.fullmatch(rf"(list\[)*({'|'.join(KINDS)})\]*", kind):
        kinds = ", ".join(KINDS)
        raise PomologyError(f"{where}: {name} is declared as {kind!r}; it must be {kinds} or a list of these")
    if not _suits(kind, value):
        words = KINDS[kind][1] if kind in KINDS else f"a list ({kind})"
        raise PomologyError(f"{where}: {name} is {_show(value)}; it must be {words}")
    if value == []:
        raise PomologyError(f"{where}: {name} is an empty list; it must name at least one")
    if isinstance(value, list) and (twice := [item for place, item in enumerate(value) if item in value[:place]]):
        raise PomologyError(f"{where}: {name} has {_show(twice[0])} twice; each may stand once")
    test, words = LIMITS.get(name, (lambda _: True, ""))
    for item in value if kind == "list[dict]" else _flat(value):
        if isinstance(item, float) and not math.isfinite(item):
            raise PomologyError(f"{where}: {name} is {item}; it must be a finite number")
        if not test(item):
            raise PomologyError(f"{where}: {name} is {_show(item)}; it must be {words}")


def _suits(kind: str, value: Any) -> bool:
    """Whether a value is of an annotation's type. A truth value is no number here."""
    if kind.startswith("list["):
        return isinstance(value, list) and all(_suits(kind[5:-1], item) for item in value)
    return isinstance(value, KINDS[kind][0]) and isinstance(value, bool) == (kind == "bool")


def _flat(value: Any) -> list:
    return [part for item in value for part in _flat(item)] if isinstance(value, list) else [value]


def _show(value: Any) -> str:
    """A value in a few words, of which a few lines of YAML can stand for billions."""
    try:
        return "null" if value is None else one_line(reprlib.repr(value), 60)
    except ValueError:  # Python writes no number of so many digits
        return "a number of thousands of digits"


class _StrictLoader(yaml.SafeLoader):
    """YAML in which a key may stand once, where the usual loader takes the last of two; and `1e-3` is a number."""

    def construct_mapping(self, node, deep=False):
        keys = [self.construct_object(key, deep=deep) for key, _ in node.value]
        if twice := [key for key in keys if keys.count(key) > 1]:
            raise ValueError(f"{_show(twice[0])} stands twice; each parameter may stand once")
        return super().construct_mapping(node, deep)


NUMBER = re.compile(r"[-+]?\d+[eE][-+]?\d+$")
_StrictLoader.add_implicit_resolver("tag:yaml.org,2002:float", NUMBER, list("-+0123456789"))


def read_yaml(path: Path, where: str) -> dict[str, Any]:
    """A profile's parameters for one notebook. Raises PomologyError in one line that begins with `where`."""
    try:
        values = yaml.load(read_file(path, MOST_BYTES).decode("utf-8"), _StrictLoader)
    # A value that is not of the type its tag or form claims (as 2022-99-99) makes the loader raise what it will.
    except (PomologyError, yaml.YAMLError, TypeError, ValueError, LookupError, AttributeError, RecursionError) as error:
        words = one_line(" ".join(str(error).split()), 250)
        raise PomologyError(f"{where}: cannot be read as YAML in UTF-8 ({words})") from None
    if not isinstance(values, dict | None):
        raise PomologyError(f"{where}: must be lines `name: value`, not {type(values).__name__}")
    return values or {}


def merge(declared: dict[str, Parameter], values: dict[str, Any], where: str) -> dict[str, Any]:
    """Check given values against what a notebook declares. Raises PomologyError for the first that is wrong."""
    for name, value in values.items():
        if name not in declared:
            raise PomologyError(f"{where}: no parameter is named {_show(name)}; there are {', '.join(declared)}")
        check(declared[name], value, where)
    return values
