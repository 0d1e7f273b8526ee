"""Checks of what a notebook declares, before anything runs."""

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, get_origin

import msgspec

from pomology.errors import PomologyError
from pomology.results import metrics

# Settings that are a size of a step, so that 0 and less are no training.
SIZES = ("batch_size", "context_size", "embedding_size", "hidden_size", "image_size", "sequence")
PLAIN = (bool, int, float, str)  # types of parameters; others are lists of them
MISSPELT = 2  # characters that differ at most; a notebook may have metrics of its own


def check_parameters(experiment: str, names: Mapping[str, Any]) -> None:
    """Raise PomologyError for a parameter of another type than its notebook declares.

    Papermill's `-p` makes a text of a list. names: those of the notebook, with its annotations.
    """
    for name, wanted in names.get("__annotations__", {}).items():
        if name not in names or not (wanted in PLAIN or get_origin(wanted) is list):
            continue
        try:
            msgspec.convert(names[name], wanted)
        except msgspec.ValidationError:
            words = wanted.__name__ if wanted in PLAIN else wanted
            raise PomologyError(
                f"{experiment}: {name} is {names[name]!r}; it must be {words}"
            ) from None


def check_columns(experiment: str, columns: Iterable[str | tuple[str, str]]) -> None:
    """Raise PomologyError for a column that is nearly the name of a metric."""
    for column in columns:
        _check("columns", experiment, _name(column), metrics.TABLE)


def check_settings(
    experiment: str, settings: Iterable[str | tuple[str, str]], config: Mapping[str, Any]
) -> None:
    """Raise PomologyError for a declared setting that is nearly one of a case, and for a size of 0.

    config: the settings of a case.
    """
    names = [_name(each) for each in settings]
    others = [name for name in config if name not in names]
    for name in names:
        if name not in config:
            _check("settings", experiment, name, others)
    for name in SIZES:
        value = config.get(name)
        if isinstance(value, int | float) and value <= 0:
            raise PomologyError(f"{experiment}: {name} is {value}; it must be above 0")


def _name(declared: str | tuple[str, str]) -> str:
    """Return a name that is declared alone or with its heading."""
    return declared if isinstance(declared, str) else declared[0]


def _check(argument: str, experiment: str, name: str, known: Iterable[str]) -> None:
    """Raise PomologyError for an unknown name that is nearly a known one."""
    if name in known:
        return
    nearest = difflib.get_close_matches(name, known, n=1)
    if nearest and _differing(name, nearest[0]) <= MISSPELT:
        text = f"{experiment}: {argument} has {name!r}; did you mean {nearest[0]!r}?"
        raise PomologyError(text)


def _differing(one: str, other: str) -> int:
    """Return how many characters two names do not share."""
    changes = difflib.SequenceMatcher(None, one, other, autojunk=False).get_opcodes()
    return sum(max(i - h, k - j) for tag, h, i, j, k in changes if tag != "equal")
