"""Predict the time of a training step on a device from its FLOPs and bytes and the peaks."""

import argparse

from pomology.command_line import STORE, argument, places

ARGUMENTS = (
    argument("target", "file.py:build, a function that returns a torch.nn.Module; or 'vae 128'"),
    argument("--input", "shapes of a batch: 32x3x224x224, or 16x512:int for integers"),
    argument("--precision", "fp32, bf16 or fp16 (default: fp32)", "fp32"),
    argument("--on", "a device, for example 'RTX 3090'; with --from cpu or gpu"),
    argument("--from", "a run with measured peaks", dest="source", metavar="RUN"),
    STORE,
)


def _run(options: argparse.Namespace) -> None:
    """Predict a training step's time on a device without running it."""
    from pomology.extras.prediction import predict

    run = places("--from", [options.source], options.store)[0] if options.source else None
    lines = predict.answer(options.target, options.input, options.precision, options.on, run)
    print("\n".join(lines))


COMMANDS = {"predict": (_run, *ARGUMENTS)}
