"""Export a run as an anonymized zip: `pomology share`."""

import argparse

from pomology.command_line import RUN, argument, require_checkout, run_folder
from pomology.paths import redact


def _run(options: argparse.Namespace) -> None:
    """Export the numbers of a run as an anonymized zip."""
    require_checkout("share")
    folder = run_folder(options.run)
    from pomology.extras.share import share

    left_out: list[str] = []
    packed = share.write(folder, left_out if options.notebooks else None)
    print("\n".join(left_out), end="\n" * bool(left_out))
    print(f"{redact(str(packed))} ({packed.stat().st_size / 2**20:.1f} MB)")
    reasons = options.obstacles(share.Run(folder).machine)
    if reasons:
        print(f"for comparisons only: `pomology submit` refuses this run: {'; '.join(reasons)}")


NOTEBOOKS = argument("--notebooks", "add the rendered notebooks", False, action="store_true")
COMMANDS = {"share": (_run, RUN, NOTEBOOKS)}
