"""What a training would take on a device, from its work and that device's peaks."""

import argparse

from pomology.command_line import STORE, argument, places

ARGUMENTS = (
    argument("target", "file.py:build, which returns a torch.nn.Module; or 'vae 128'"),
    argument("--input", "sizes of a batch: 32x3x224x224, 16x512:int; or several"),
    argument("--precision", "fp32, bf16 or fp16 (default: fp32)", "fp32"),
    argument("--on", "a device, as 'RTX 3090'; with --from cpu or gpu"),
    argument("--from", "a run with measured peaks", dest="source", metavar="RUN"),
    STORE,
)


def _run(options: argparse.Namespace) -> None:
    """Predict the time of a training step."""
    from pomology.extras.prediction import predict

    run = places("--from", [options.source], options.store)[0] if options.source else None
    lines = predict.answer(options.target, options.input, options.precision, options.on, run)
    print("\n".join(lines))


COMMANDS = {"predict": (_run, *ARGUMENTS)}
