"""Which of two devices is faster, and at what: `pomology versus`."""

from __future__ import annotations

import argparse

from pomology.command_line import argument, name_and_kind, stated
from pomology.errors import PomologyError
from pomology.results import run

_EXPECTED = "devices, such as 'M3 Max' T4, or runs"
ARGUMENTS = (
    argument("names", _EXPECTED, None, type=stated(_EXPECTED), nargs="*"),
    argument("--all", "all pairs of published times", False, action="store_true"),
)


def _run(options: argparse.Namespace) -> None:
    """Say which device is faster, at what, and how that is known: two devices or more, or runs."""
    from pomology.extras.versus import answer

    first, *others = options.names or ("",)
    if not others:
        raise PomologyError("versus: expected two devices or more, such as: versus 'M3 Max' T4")
    are_runs = [run.locate(name_and_kind(name)[0]) is not None for name in options.names]
    if any(are_runs):
        from pomology.extras.versus import runs

        print("\n".join(runs.lines(options.names, are_runs)))
        return
    texts = ["\n".join(answer.lines(answer.answer(first, other), options.all)) for other in others]
    print("\n\n".join(texts))


COMMANDS = {"versus": (_run, *ARGUMENTS)}
