"""Damaged files, drawn by hypothesis: a sound one with other values, or cut; or junk."""

import copy
import json
import math
import os
from collections.abc import Callable, Iterator
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as some

# What arithmetic, tables and pages end on, more often than an arbitrary number would be drawn.
NUMBERS = (0, -1, 1, 2**63, -(2**63) - 1, 10**30, 1e308, 5e-324, -0.0, math.nan, math.inf)
TEXTS = (
    "",
    " ",
    "\n",
    "\0",
    "\x1b[2J",
    "../..",
    "/",
    "*",
    "<b>",
    "é",
    "\ud800",
    "{{ run }}",
    "a" * 300,
)
LEAVES = some.one_of(
    some.none(),
    some.booleans(),
    some.sampled_from(NUMBERS),
    some.integers(),
    some.floats(),
    some.sampled_from(TEXTS),
    some.text(max_size=8),
)
VALUES = some.recursive(
    LEAVES,
    lambda inner: (
        some.lists(inner, max_size=3) | some.dictionaries(some.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
GONE = object()


def places(document: Any) -> Iterator[tuple[Any, Any]]:
    """Every container with each of its keys or positions."""
    keys = range(len(document)) if isinstance(document, list) else document
    for key in keys:
        yield document, key
        if isinstance(document[key], (dict, list)):
            yield from places(document[key])


@some.composite
def documents(draw: Callable, sound: Any) -> Any:
    """A document of one to three other values than a sound one has."""
    document = copy.deepcopy(sound)
    for _ in range(draw(some.integers(1, 3))):
        container, key = draw(some.sampled_from(list(places(document))))
        # Another value of the same type passes the check of types.
        alike = some.sampled_from(NUMBERS if isinstance(container[key], (int, float)) else TEXTS)
        value = draw(alike if draw(some.booleans()) else some.just(GONE) | VALUES)
        if value is not GONE:
            container[key] = value
        elif isinstance(container, dict):
            del container[key]
        else:
            container[:] = container[:key]
        if not document:
            break
    return document


@some.composite
def files(draw: Callable, sound: Any) -> bytes:
    """A document as a file, which is sometimes cut, or no JSON."""
    kind = draw(some.sampled_from(["document"] * 8 + ["cut", "junk"]))
    if kind == "junk":
        return draw(some.binary(max_size=30))
    data = json.dumps(draw(documents(sound))).encode()
    return data[: draw(some.integers(0, len(data)))] if kind == "cut" else data


def try_all(strategy: some.SearchStrategy, use: Callable[[Any], None], examples: int) -> None:
    """Call a function with so many drawn values, the same ones in each run."""

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize="DAMAGE_AT_RANDOM" not in os.environ,
        phases=[Phase.generate],  # to look for a smaller failure takes minutes
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def run(value: Any) -> None:
        use(value)

    run()
