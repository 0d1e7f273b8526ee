"""Predict the time of a training step on a device from its FLOPs and bytes and the peaks."""

import argparse
from collections.abc import Callable

from pomology.articles import names
from pomology.command_line import STORE, argument, run_paths, stated
from pomology.errors import PomologyError
from pomology.format import one_line

TARGET = "'vae 128', or file.py:build, which returns a torch.nn.Module"
INPUT = "shapes of a batch, such as 32x3x224x224, or 16x512:int for integers"
DEVICE = "a device, such as 'RTX 3090' or 'M2 Max'"
RUN = "a run with measured peaks"
ARGUMENTS = (
    argument("target", TARGET, nargs="+", type=stated(TARGET)),
    argument("--input", INPUT, None, type=stated(INPUT)),
    argument("--precision", "fp32, bf16 or fp16 (default: fp32)", "fp32"),
    argument("--on", f"{DEVICE}; with --from cpu or gpu", None, type=stated(DEVICE)),
    argument("--from", RUN, None, type=stated(RUN), dest="source", metavar="RUN"),
    STORE,
)


def _run(options: argparse.Namespace) -> None:
    """Predict a training step's time on a device without running it."""
    from pomology.extras.prediction import predict

    run = None
    if options.source:
        run = run_paths("--from", [options.source], options.store, options.fetch)[0]
    target = " ".join(options.target)
    _refuse_model(target, options.fit_command)
    on, shapes = options.on or "", options.input or ""
    lines = predict.answer(target, shapes, options.precision, on, run)
    print("\n".join(lines))


def _refuse_model(target: str, fit_command: Callable[..., str]) -> None:
    """Raise PomologyError, with the command of `fit`, if a target begins with a model of `fit`.

    fit_command: returns that command, or "" for a name that `fit` does not know.
    """
    from pomology.extras.prediction import workloads

    words = target.split()
    beginnings = [" ".join(words[:count]) for count in range(len(words), 0, -1)]
    workload_names = [row["workload"] for row in workloads.rows()]
    spellings = set(map(names.spelling, workload_names))
    is_workload = any(names.spelling(beginning) in spellings for beginning in beginnings)
    if ":" in target or target.endswith(".py") or is_workload:
        return
    for beginning in beginnings:
        sizes = target.split()[len(beginning.split()) :]
        command = fit_command(beginning, *filter(str.isdecimal, sizes[:2]))
        if command:
            instead = f"is no workload of `predict`; for this model type `{command}`"
            hint = names.hint(beginning, workload_names)
            raise PomologyError(f"{one_line(beginning)}: {instead}{hint}")


def _devices(options: argparse.Namespace) -> None:
    """List devices: data sheets, and numbers of published results."""
    from pomology.extras.prediction import listing

    print(listing.table(" ".join(options.filter)))


FILTER = argument("filter", "words of a name, such as 'm3 max' (default: all)", (), nargs="*")
COMMANDS = {"predict": (_run, *ARGUMENTS), "devices": (_devices, FILTER)}
