"""The command line: `pomology reproduce`, `check`, `doctor`, `list`, `report`, `share`, `compare`, `predict`, `matrix`,
`fleet`.

Exit status 0: all went well; 1: a case ended in `error`, or a notebook did not finish; 2: arguments or parameters are
wrong, said in one line before anything ran; 3: the run is at its end, and the store did not take it; 130: interrupted.
"""

import argparse
import contextlib
import errno
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from pomology import __version__, format
from pomology.errors import PomologyError
from pomology.extras import extra
from pomology.paths import foreign_paths, redact, root

# Each command imports what it needs, so that help and wrong arguments are answered before much is loaded.
COMMANDS = {
    "reproduce": "run every notebook and build the page of results",
    "check": "validate every notebook and parameter file; run nothing",
    "doctor": "what this machine is, what it can train with, and why not",
    "list": "the notebooks",
    "report": "build the page of a run again",
    "share": "pack a run into a zip for others, checked for what names you",
    "compare": "compare runs, side by side",
    "predict": "what a training step would take on a device: counted, not run",
    "matrix": "compare versions of a package, measured in turn",
    "fleet": "run every notebook on many machines, and compare them",
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
    store = "where to put the run at its end: a folder, s3://bucket/prefix, ssh://host/folder"
    for name in ("reproduce", "fleet"):
        option = parsers[name].add_argument
        option("--profile", default="quick", help="smoke, quick or article (default: quick)")
        option("--device", default="auto", help="auto (every device here), cpu, gpu, cuda or mps")
        option("--only", default="", help="names or globs of notebooks, separated by spaces")
        option("--run", default="", help="name of the folder in outputs/ (default: date and profile)")
        option("--data", default="auto", help="auto, real or stand-in")
        option("--repeats", type=int, default=1, help="how often to run each notebook, in fresh kernels")
        option("--limit-minutes", type=float, help="time limit of one notebook (0: none)")
        option("--store", default="", help=store)
    minutes = "choose notebooks so that the run ends in this time (with the profile quick)"
    parsers["reproduce"].add_argument("--minutes", default="", help=minutes)
    address = "tls://host:port or tcp://host:port"
    option("--scheduler", default="", metavar="ADDRESS", help=f"of the scheduler that workers wait at: {address}")
    option("--hosts", default="", help="user@host, separated by spaces: workers are started there by ssh")
    option("--insecure", action="store_true", help="allow tcp:// beyond this machine, in the clear and for anybody")
    option("--listen", default="", metavar="ADDRESS", help=f"be the scheduler: {address}")
    option("--worker", default="", metavar="ADDRESS", help="be a worker of the scheduler there")
    option("--worker-command", action="store_true", help="print the line that starts a worker for --scheduler")
    option = parsers["matrix"].add_argument
    option("--versions", default="", help="two or more of one package, as 'torch==2.13.0 torch==2.14.1'")
    for name, text in (("profile", "quick"), ("device", "auto"), ("only", ""), ("run", ""), ("data", "auto")):
        option(f"--{name}", default=text, help="as of reproduce")
    option("--repeats", type=int, default=5, help="how often to run each notebook with each version (default: 5)")
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
    store = "where those runs are looked for that are not in outputs/"
    for name in ("report", "compare", "predict"):
        parsers[name].add_argument("--store", default="", help=store)
    option = parsers["predict"].add_argument
    option("target", help="path/to/file.py:build, which makes a torch.nn.Module; or the kit's: 'vae 128'")
    option("--input", default="", help="sizes, the batch first: 32x3x224x224, 16x512:int; several parted by commas")
    option("--precision", default="fp32", help="fp32, bf16 or fp16 (default: fp32)")
    option("--optimizer", default="adam", help="adam, adamw, sgd, momentum, adadelta or rmsprop (default: adam)")
    option("--on", default="", help="a device with published peaks, as 'RTX 3090'; with --from cpu or gpu")
    option("--from", default="", dest="source", metavar="RUN", help="a run whose own ceilings are taken, or its zip")
    option("--epoch", type=int, help="how many samples an epoch has")
    return parser.parse_args(arguments)


def _limit(options: argparse.Namespace) -> float | None:
    limit = options.limit_minutes
    if limit is not None and not 0 <= limit <= 10_000:
        raise PomologyError(f"--limit-minutes={limit}: must be from 0 to 10000")
    return limit


def _asked(options: argparse.Namespace):
    """Its `plan.Asked`, of a command that runs notebooks."""
    from pomology.runner.plan import Asked

    return Asked(options.profile, options.device, options.only, options.run, options.data, options.repeats)


def _reproduce(options: argparse.Namespace) -> int:
    from pomology.runner import plan

    limit = _limit(options)
    minutes = plan.minutes_of(options.minutes, options.profile)
    out, jobs = plan.prepare(_asked(options), minutes)
    if options.store:
        extra("store").check(options.store)
    from pomology.machine import quiet
    from pomology.runner import batch

    # The profile smoke measures nothing that counts: it waits for nobody.
    with quiet.alone(_say) if options.profile != "smoke" else contextlib.nullcontext():
        status = batch.reproduce(out, jobs, options.profile, limit, say=_say, minutes=minutes)
    if options.store and status != 130:
        status = _put(out, options.store) or status
    return status


def _put(out: Path, address: str, run: str = "") -> int:
    """Put a run that has come to its end into the store; returns 0, or the exit status for a store that failed. run:
    the name of a fleet's, of which this is a machine's folder."""
    from pomology.runner.plan import GOING

    (out / GOING).parent.mkdir(exist_ok=True)
    (out / GOING).touch()  # until it is there, the same command carries on with this run, also tomorrow
    try:
        _say(f"put into the store as {extra('store').put(out, address, run)}")
    except (PomologyError, OSError) as error:
        place = f"outputs/{run}-fleet/{out.name}" if run else f"outputs/{out.name}"
        kept = f"the run is in {place}/, and the same command puts it later"
        print(f"pomology: {format.one_line(redact(str(error)), 1000)}; {kept}", file=sys.stderr)
        return 3
    (out / GOING).unlink()
    return 0


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

    _say(page.build(folder, beside=_places("WITH", options.beside, options.store)))


def _share(options: argparse.Namespace) -> None:
    folder = _folder(options.run)
    from pomology.runner import share

    place = share.write(folder, options.notebooks)
    _say(f"{redact(str(place))} ({place.stat().st_size / 2**20:.1f} MB)")


def _compare(options: argparse.Namespace) -> None:
    from pomology.report import compare

    places = _places("RUNS", [*options.places, options.runs], options.store)
    if len(places) < 2:
        raise PomologyError("RUNS: name at least two different runs")
    table, *written = compare.write([compare.load(place) for place in places], root() / "outputs")
    _say(f"{table}\nwritten to {' and '.join(redact(str(place)) for place in written)}")


def _predict(options: argparse.Namespace) -> None:
    from pomology.prediction import predict

    given = vars(options)
    place = _places("--from", [options.source], options.store) if options.source else [None]
    asked = {name: given[name] for name in ("target", "input", "precision", "optimizer", "on", "epoch", "source")}
    _say("\n".join(predict.answer(**asked, place=place[0])))


def _fleet(options: argparse.Namespace) -> int:
    try:
        from pomology.runner import fleet, fleet_wire, fleet_worker
    except ModuleNotFoundError as error:
        raise PomologyError(f"fleet needs {error.name}: `make env EXTRAS=fleet` installs it") from None

    if options.worker_command:
        where = fleet_wire.address(options.scheduler or "tls://HOST:8786", "SCHEDULER", options.insecure)
        more = " --insecure" if options.insecure else ""
        _say(f".venv/bin/python -m pomology fleet --worker={where.geturl()}{more}")
        return 0
    if options.listen:
        return fleet_wire.listen(options.listen, options.insecure, _say)
    if options.worker:
        return fleet_worker.work(options.worker, options.insecure, _say)
    if options.store:
        extra("store").check(options.store)
    where = options.scheduler, options.hosts, _limit(options), options.insecure
    status, run, machines = fleet.run(_asked(options), *where, _say)
    for folder in machines if options.store else ():
        status = _put(folder, options.store, run) or status
    return status


def _matrix(options: argparse.Namespace) -> int:
    from pomology.runner import matrix

    return matrix.run(options.versions, _asked(options), _say)


def _places(variable: str, texts: Sequence[str], address: str) -> list[Path]:
    """Of runs by texts, each of which names one, or several, those with spaces in quotes; address: of a store."""
    from pomology.report import compare
    from pomology.results.run import locate

    there = [text for text in texts if text and (locate(text) or Path(text).exists())]
    try:
        names = [name for text in texts for name in ([text] if text in there else shlex.split(text))]
    except ValueError as error:
        raise PomologyError(f"{variable}={' '.join(texts)}: {error}") from None
    places = []
    for name in names:
        if address or "://" in name:
            here = locate(name) or (name and Path(name).exists())
            places.append(name if here else str(extra("store").fetch(name, address)))
        else:
            places.append(name)
    return compare.find(places, variable)


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


def run() -> int:
    """Run the command of this process, without packages that PYTHONPATH takes from other environments."""
    foreign = foreign_paths()
    if foreign:
        entries = os.environ["PYTHONPATH"].split(os.pathsep)
        os.environ["PYTHONPATH"] = os.pathsep.join(entry for entry in entries if entry not in foreign)
        os.execv(sys.executable, [sys.executable, "-m", "pomology", *sys.argv[1:]])
    return main()


if __name__ == "__main__":
    sys.exit(run())
