"""What a training would take on a device, from its work and that device's peaks."""

import argparse

from pomology.command_line import Command, add_store_option, places, say


def _arguments(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    option("target", help="file.py:build, which returns a torch.nn.Module; or 'vae 128'")
    option("--input", default="", help="sizes of a batch: 32x3x224x224, 16x512:int; or several")
    option("--precision", default="fp32", help="fp32, bf16 or fp16 (default: fp32)")
    option("--on", default="", help="a device, as 'RTX 3090'; with --from cpu or gpu")
    option("--from", default="", dest="source", metavar="RUN", help="a run with measured peaks")
    add_store_option(parser)


def _run(options: argparse.Namespace) -> None:
    from pomology.extras.prediction import predict

    run = places("--from", [options.source], options.store)[0] if options.source else None
    say(
        "\n".join(predict.answer(options.target, options.input, options.precision, options.on, run))
    )


COMMANDS = {"predict": Command("predict the time of a training step", _arguments, _run)}
