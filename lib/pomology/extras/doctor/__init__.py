"""What this machine can train with, and what to do about what is missing: `pomology doctor`."""

import argparse

from pomology.command_line import Command, say


def _run(_: argparse.Namespace) -> None:
    from pomology.extras.doctor import doctor
    from pomology.machine import snapshot as machine_snapshot

    snapshot = machine_snapshot.snapshot()
    say(machine_snapshot.describe(snapshot))
    say("Asking each framework in a process of its own; this can take a minute.\n")
    say(str(doctor.examine(snapshot)))


COMMANDS = {"doctor": Command("what this machine can train with, and why not", _run)}
