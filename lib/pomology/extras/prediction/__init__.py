"""What a training would take on a device, from its operators and that device's ceilings."""

import argparse

from pomology.command_line import Command, add_store_option, places, say


def _arguments(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    option("target", help="path/to/file.py:build, which makes a torch.nn.Module; or the kit's: 'vae 128'")
    option("--input", default="", help="sizes, the batch first: 32x3x224x224, 16x512:int; several parted by commas")
    option("--precision", default="fp32", help="fp32, bf16 or fp16 (default: fp32)")
    option("--optimizer", default="adam", help="adam, adamw, sgd, momentum, adadelta or rmsprop (default: adam)")
    option("--on", default="", help="a device with published peaks, as 'RTX 3090'; with --from cpu or gpu")
    option("--from", default="", dest="source", metavar="RUN", help="a run whose own ceilings are taken, or its zip")
    option("--epoch", type=int, help="how many samples an epoch has")
    add_store_option(parser)


def _run(options: argparse.Namespace) -> None:
    from pomology.extras.prediction import predict

    given = vars(options)
    place = places("--from", [options.source], options.store) if options.source else [None]
    asked = {name: given[name] for name in ("target", "input", "precision", "optimizer", "on", "epoch", "source")}
    say("\n".join(predict.answer(**asked, place=place[0])))


COMMANDS = {"predict": Command("predict the time of a training step without running it", _arguments, _run)}
