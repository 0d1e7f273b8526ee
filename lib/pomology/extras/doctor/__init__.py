"""What this machine can train with, and what to do about what is missing: `pomology doctor`."""

import argparse


def _run(_: argparse.Namespace) -> None:
    """What this machine can train with, and why not."""
    from pomology.extras.doctor import doctor
    from pomology.machine import snapshot as machine_snapshot

    snapshot = machine_snapshot.snapshot()
    print(machine_snapshot.describe(snapshot))
    print("Asking each framework in a process of its own; this can take a minute.\n")
    print(str(doctor.examine(snapshot)))


COMMANDS = {"doctor": (_run,)}
