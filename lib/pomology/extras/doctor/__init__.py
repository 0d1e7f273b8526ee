"""What this machine can train with, and what to do about what is missing: `pomology doctor`."""

import argparse

from pomology.command_line import Command, say


def _arguments(parser: argparse.ArgumentParser) -> None:
    help = "which operators of a notebook MPS has, on any machine"
    parser.add_argument("--operators", metavar="NOTEBOOK", help=help)


def _run(options: argparse.Namespace) -> None:
    from pomology.extras.doctor import doctor, operators
    from pomology.machine import snapshot as machine_snapshot

    if options.operators is not None:
        say("\n".join(operators.rehearse(options.operators).lines(options.operators)))
        return
    snapshot = machine_snapshot.snapshot()
    asking = "Asking PyTorch, TensorFlow, MLX and Lightning, each in a process of its own; this can take a minute."
    say(f"{machine_snapshot.describe(snapshot)}\n{asking}\n")
    say("\n".join(doctor.examine(snapshot).lines()))
    unknown = [f"  {key.replace('_', ' ')}: {reason}" for key, reason in snapshot["unknown"].items()]
    say("\n".join(["", "Not known of this machine", *unknown]) if unknown else "")


COMMANDS = {"doctor": Command("what this machine is, what it can train with, and why not", _arguments, _run)}
