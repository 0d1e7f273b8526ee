"""Answer whether a fine-tuning fits a device, and how long it takes, without training anything."""

import argparse
import shlex
from typing import Any

from pomology.command_line import argument, stated
from pomology.errors import PomologyError


def _text(name: str, expected: str, rest: str = "", **settings: Any) -> tuple[str, dict]:
    """Return an argument that is no empty text. rest: of its help."""
    return argument(name, f"{expected}{rest}", None, type=stated(expected), **settings)


ARGUMENTS = (
    _text("model", "a model, such as 'Llama 3.1 8B'", ", or the path of a config.json", nargs="+"),
    argument("--method", "default: lora", "lora", choices=("full", "lora", "qlora")),
    argument("--rank", "rank of LoRA's matrices (default: 8)", 8, type=int),
    argument("--sequence", "tokens (default: 2048, or the most that it takes)", None, type=int),
    argument("--batch", "sequences of a step (default: 1)", 1, type=int),
    argument("--precision", "default: bf16", "bf16", choices=("fp32", "bf16", "fp16")),
    argument("--optimizer", "default: adamw", "adamw", choices=("adamw", "sgd")),
    argument("--checkpointing", "recompute activations", False, action="store_true"),
    _text("--on", "a device with a data sheet, such as 'M4 Max'", " (default: this machine's)"),
    _text("--memory", "memory of the device or Mac, such as 36GB", " (default: the data sheet's)"),
    _text("--tokens", "tokens of the whole training, such as 10M"),
    argument("--framework", "default: torch", "torch", choices=("torch", "mlx")),
    _text("--observed", "a measured speed, such as '93 s/it' or '475 tokens/s'"),
)


def _run(options: argparse.Namespace) -> None:
    """Say whether fine-tuning a model fits a device, and how long it takes."""
    from pomology.extras.fit import answer

    options.model = " ".join(options.model)
    print("\n".join(answer.answer(options)))


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
