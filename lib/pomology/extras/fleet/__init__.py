"""Run notebooks on several machines at the same time: `pomology fleet`."""

import argparse

from pomology.command_line import SELECTION, STORE, argument, require_checkout
from pomology.errors import PomologyError


def _run(options: argparse.Namespace) -> int:
    """Run notebooks on several machines and collect their results."""
    require_checkout("fleet")
    try:
        from pomology.extras.fleet import fleet
    except ModuleNotFoundError as error:
        install = "`make env EXTRAS=fleet` installs it"
        raise PomologyError(f"fleet: {error.name} is not installed; {install}") from None
    if options.store:
        from pomology.extras.store import check, put

        check(options.store)
    status, run, machines = fleet.run(options, print)
    if options.store:
        for folder in machines:
            print(f"stored the run as {put(folder, options.store, run)}")
    return status


ARGUMENTS = (
    *SELECTION,
    STORE,
    argument("--scheduler", "address of a dask scheduler with the machines: tls://host:port"),
    argument("--hosts", "machines to reach by ssh: user@host:port, separated by spaces"),
    argument("--insecure", "allow connections without TLS", False, action="store_true"),
)
COMMANDS = {"fleet": (_run, *ARGUMENTS)}
