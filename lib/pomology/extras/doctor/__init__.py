"""Diagnose a machine: `pomology doctor`."""

import argparse


def _run(_: argparse.Namespace) -> None:
    """Diagnose this machine: chip, frameworks, GPUs, and how to fix what is missing."""
    from pomology.extras.doctor import doctor
    from pomology.machine import snapshot as machine_snapshot

    snapshot = machine_snapshot.snapshot()
    print(machine_snapshot.describe(snapshot))
    print("Loading each framework in its own process; this can take a minute.\n")
    print(doctor.examine(snapshot))


COMMANDS = {"doctor": (_run,)}
