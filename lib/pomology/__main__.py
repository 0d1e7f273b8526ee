"""The command line: `pomology reproduce`, `check`, `doctor`, `list`, `report`, `share`, `compare`.

Exit status 0: all went well; 1: a case ended in `error`, or a notebook did not finish; 2: arguments or parameters are
wrong, said in one line before anything ran; 130: interrupted.
"""

import argparse
import errno
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from pomology import __version__, format
from pomology.errors import PomologyError
from pomology.paths import redact, root

# Each command imports what it needs, so that help and wrong arguments are answered before much is loaded.
COMMANDS = {
    "reproduce": "run every notebook and build the page of results",
    "check": "validate every notebook and parameter file; run nothing",
    "doctor": "what this machine is, what it can train with, and why not",
    "list": "the notebooks",
    "report": "build the page of a run again",
    "share": "pack a run into a zip for others, checked for what names you",
    "compare": "compare runs, side by side",
}


class _Parser(argparse.ArgumentParser):
    """Says what is wrong with arguments in one line."""

    def error(self, message: str):
        raise PomologyError(f"{self.prog}: {message}")


def _arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = _Parser(prog="pomology", description="How fast does this machine train neural networks, and why?")
    parser.add_argument("--version", action="version", version=f"pomology {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)
    parsers = {name: commands.add_parser(name, help=text) for name, text in COMMANDS.items()}
    option = parsers["reproduce"].add_argument
    option("--profile", default="quick", help="smoke, quick or article (default: quick)")
    option("--device", default="auto", help="auto (every device here), cpu, gpu, cuda or mps")
    option("--only", default="", help="names or globs of notebooks, separated by spaces")
    option("--run", default="", help="name of the folder in outputs/ (default: date and profile)")
    option("--data", default="auto", help="auto, real or stand-in")
    option("--repeats", type=int, default=1, help="how often to run each notebook, in fresh kernels")
    option("--minutes", default="", help="choose notebooks so that the run ends in this time (with the profile quick)")
    option("--limit-minutes", type=float, help="time limit of one notebook (0: none)")
    option = parsers["doctor"].add_argument
    option("--operators", metavar="NOTEBOOK", help="which operators of a notebook MPS has, on any machine")
    for name in ("report", "share"):
        parsers[name].add_argument("run", help="name of the folder in outputs/")
    beside = "other people's runs, shown beside it: names in outputs/, folders, or shared zips"
    parsers["report"].add_argument("--with", nargs="+", default=(), dest="beside", metavar="RUN", help=beside)
    parsers["share"].add_argument("--notebooks", action="store_true", help="with the rendered notebooks, as they are")
    runs = "two or more: names in outputs/, paths of folders, or shared zips"
    parsers["compare"].add_argument("places", nargs="*", metavar="run", help=runs)
    parsers["compare"].add_argument("--runs", default="", help="the same in one text, those with spaces in quotes")
    return parser.parse_args(arguments)


def _reproduce(options: argparse.Namespace) -> int:
    from pomology.runner import plan

    limit = options.limit_minutes
    if limit is not None and not 0 <= limit <= 10_000:
        raise PomologyError(f"--limit-minutes={limit}: must be from 0 to 10000")
    minutes = plan.minutes_of(options.minutes, options.profile)
    choices = (options.only, options.run, options.data, options.repeats)
    out, jobs = plan.prepare(options.profile, options.device, *choices, minutes=minutes)
    from pomology.runner import batch

    return batch.reproduce(out, jobs, options.profile, limit, say=_say, minutes=minutes)


def _say(line: str) -> None:
    """Print a line; where nobody reads any more, as behind `| head`, or it has no space, go on in silence."""
    try:
        print(line, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _check(options: argparse.Namespace) -> None:
    from pomology.runner import plan

    _say(f"{len(plan.check())} notebooks and their parameters are as they should be")


def _doctor(options: argparse.Namespace) -> None:
    from pomology.machine import snapshot as machine_snapshot
    from pomology.runner import doctor, operators

    if options.operators is not None:
        _say("\n".join(operators.rehearse(options.operators).lines(options.operators)))
        return
    snapshot = machine_snapshot.snapshot()
    asking = "Asking PyTorch, TensorFlow, MLX and Lightning, each in a process of its own; this can take a minute."
    _say(f"{machine_snapshot.describe(snapshot)}\n{asking}\n")
    _say("\n".join(doctor.examine(snapshot).lines()))
    unknown = [f"  {key.replace('_', ' ')}: {reason}" for key, reason in snapshot["unknown"].items()]
    _say("\n".join(["", "Not known of this machine", *unknown]) if unknown else "")


def _list(options: argparse.Namespace) -> None:
    from pomology.results.record import PROFILES
    from pomology.runner import notebooks

    for notebook in notebooks.notebooks():
        about = [f"{name} {format.clock_time(notebook.seconds[name])}" for name in PROFILES if name in notebook.seconds]
        _say(f"{notebook.name:20} {notebook.title} ({', '.join(about)})")


def _report(options: argparse.Namespace) -> None:
    folder = _folder(options.run)
    from pomology.report import page

    _say(page.build(folder, beside=_places("WITH", options.beside)))


def _share(options: argparse.Namespace) -> None:
    folder = _folder(options.run)
    from pomology.runner import share

    place = share.write(folder, options.notebooks)
    _say(f"{redact(str(place))} ({place.stat().st_size / 2**20:.1f} MB)")


def _compare(options: argparse.Namespace) -> None:
    from pomology.report import compare

    places = _places("RUNS", [*options.places, options.runs])
    if len(places) < 2:
        raise PomologyError("RUNS: name at least two different runs")
    table, *written = compare.write([compare.load(place) for place in places], root() / "outputs")
    _say(f"{table}\nwritten to {' and '.join(redact(str(place)) for place in written)}")


def _places(variable: str, texts: Sequence[str]) -> list[Path]:
    """Of runs by texts, each of which names one, or several, those with spaces in quotes."""
    from pomology.report import compare
    from pomology.results.run import locate

    there = [text for text in texts if text and (locate(text) or Path(text).exists())]
    try:
        names = [name for text in texts for name in ([text] if text in there else shlex.split(text))]
    except ValueError as error:
        raise PomologyError(f"{variable}={' '.join(texts)}: {error}") from None
    return compare.find(names, variable)


def _folder(run: str) -> Path:
    """A run's folder: a name in outputs/, or a path."""
    from pomology.results import run as results_run

    place = results_run.locate(run)
    if place is None or not place.is_dir():
        raise results_run.unknown(f"RUN={run}")
    return place


def main(arguments: list[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    if hasattr(sys.stdout, "reconfigure"):  # a terminal without a sign must not cost a line
        sys.stdout.reconfigure(errors="replace")
    try:
        options = _arguments(arguments)
        return globals()[f"_{options.command}"](options) or 0
    except PomologyError as error:
        print("pomology:", format.one_line(" ".join(str(error).splitlines()), 1000), file=sys.stderr)
        return 2
    except OSError as error:  # a full disk, a folder that may not be written
        where = format.one_line(redact(str(error.filename or "")), 300)
        print(f"pomology: {error.strerror or error}: {where}".rstrip(": "), file=sys.stderr)
        return 2 if error.errno == errno.ENAMETOOLONG else 1
    except KeyboardInterrupt:
        print("pomology: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
