"""Answer whether a fine-tuning fits a device, and how long it takes, without training anything."""

import argparse

from pomology.command_line import argument, extra

ARGUMENTS = (
    argument("model", "a model such as llama-3.2-1b, or the path of a config.json"),
    argument("--method", "default: lora", "lora", choices=("full", "lora", "qlora")),
    argument("--rank", "rank of LoRA's matrices (default: 8)", 8, type=int),
    argument("--sequence", "tokens (default: 2048, or the most that it takes)", 0, type=int),
    argument("--batch", "sequences of a step (default: 1)", 1, type=int),
    argument("--precision", "default: bf16", "bf16", choices=("fp32", "bf16", "fp16")),
    argument("--optimizer", "default: adamw", "adamw", choices=("adamw", "sgd")),
    argument("--checkpointing", "recompute activations", False, action="store_true"),
    argument("--on", "a device with a data sheet, such as 'M4 Max GPU' (default: this machine's)"),
    argument("--memory", "of the device or Mac, such as 36GB (default: the data sheet's)"),
    argument("--tokens", "tokens of the whole training, such as 10M"),
    argument("--framework", "default: torch", "torch", choices=("torch", "mlx")),
    argument("--observed", "a measured speed to judge, such as '93 s/it' or '475 tokens/s'"),
)


def _run(options: argparse.Namespace) -> None:
    """Say whether fine-tuning a model fits a device, and how long it takes."""
    extra("prediction")  # this extra uses it
    from pomology.extras.fit import answer

    print("\n".join(answer.answer(options)))


COMMANDS = {"fit": (_run, *ARGUMENTS)}
