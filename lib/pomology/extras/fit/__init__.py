"""Answer whether a fine-tuning fits a device, and how long it takes."""

import argparse
import atexit
import contextlib
import gc
import shlex
from typing import Any

from pomology.command_line import argument, stated
from pomology.errors import PomologyError
from pomology.extras.fit import plan


def _text(name: str, expected: str, rest: str = "", **settings: Any) -> tuple[str, dict]:
    """Return an argument that is no empty text. rest: of its help."""
    return argument(name, f"{expected}{rest}", None, type=stated(expected), **settings)


_MODEL = "a model, such as 'Llama 3.1 8B'"
ARGUMENTS = (
    _text("model", _MODEL, ", or the path of a config.json or its folder", nargs="*"),
    argument("--method", "default: lora", "lora", choices=plan.METHODS),
    argument("--rank", "rank of LoRA's matrices (default: 8)", 8, type=int),
    _text("--targets", "LoRA's matrices, such as 'q_proj,v_proj' or all-linear"),
    argument("--layers", "blocks with LoRA, from the last one on", 0, type=int),
    argument("--dropout", "of LoRA (default: 0)", 0.0, type=float),
    argument("--sequence", "tokens (default: 2048, or the most that it takes)", None, type=int),
    argument("--batch", "sequences of a pass (default: 1; mlx: 4)", None, type=int),
    argument("--accumulation", "passes before an update (default: 1)", 1, type=int),
    argument("--precision", "default: bf16", "bf16", choices=plan.PRECISIONS),
    argument("--amp", "weights in fp32, passes in --precision", False, action="store_true"),
    argument("--optimizer", "default: adamw", "adamw", choices=plan.OPTIMIZERS),
    argument("--loss", "default: the model's own", "default", choices=plan.LOSSES),
    argument("--checkpointing", "recompute activations", False, action="store_true"),
    argument("--no-upcast", "QLoRA without peft's casts to fp32", False, action="store_true"),
    _text("--on", "a device with a data sheet, such as 'M4 Max'", " (default: this machine's)"),
    _text("--memory", "memory of the device or Mac, such as 36GB", " (default: the data sheet's)"),
    _text("--tokens", "tokens of the whole training, such as 10M"),
    argument("--framework", "default: torch; mlx is mlx-lm", "torch", choices=("torch", "mlx")),
    argument("--table", "all models by methods, with checkpointing", False, action="store_true"),
    argument("--measure", "time a few of its blocks here", False, action="store_true"),
    _text("--observed", "a measured speed, such as '93 s/it' or '475 tokens/s'"),
)


def _run(options: argparse.Namespace) -> int:
    """Say whether fine-tuning a model fits a device, and how long it takes.

    Returns the exit status, 1 if nothing fits.
    """
    from pomology.extras.fit import answer, counts

    options.model = " ".join(options.model or ())
    if options.table:
        print("\n".join(answer.table(options)))
        return 0
    if not options.model:
        raise PomologyError("MODEL: expected one, such as 'Llama 3.1 8B', or --table")
    # Little of what is imported and counted is garbage. To look for it takes a seventh of the time,
    # and two seconds more at the exit, where all of it is frozen instead.
    atexit.unregister(gc.freeze)
    atexit.register(gc.freeze)
    with contextlib.nullcontext() if options.measure else counts.without_garbage():
        said = answer.answer(options)
    print("\n".join(said.lines))
    return int(said.nothing_fits)


def _models(options: argparse.Namespace) -> None:
    """List the models of `fit` and the workloads of `predict`."""
    from pomology.extras.fit import listing

    print(listing.answer(" ".join(options.filter)))


def instead(name: str, batch: str = "", sequence: str = "") -> str:
    """Return the command of `fit` for a model that `predict` was asked for, or "" for no model."""
    from pomology.extras.fit import networks

    try:
        model = networks.resolve(name).name
        longest = networks.longest(networks.find(model))
    except PomologyError:
        return ""
    options = f" --batch {batch}" if batch else ""
    options += f" --sequence {sequence}" if sequence and longest < networks.UNLIMITED else ""
    return f"pomology fit {shlex.quote(model)}{options}"


FILTER = argument("filter", "words of a name, such as 'qwen' (default: all)", (), nargs="*")
COMMANDS = {"fit": (_run, *ARGUMENTS), "models": (_models, FILTER)}
