"""Run notebooks on several machines at a time, and compare the machines: `pomology fleet`."""

import argparse

from pomology.command_line import SELECTION, STORE, argument, extra
from pomology.errors import PomologyError


def _run(options: argparse.Namespace) -> int:
    """Run every notebook on many machines, and compare them."""
    try:
        from pomology.extras.fleet import fleet
    except ModuleNotFoundError as error:
        install = "`make env EXTRAS=fleet` installs it"
        raise PomologyError(f"fleet needs {error.name}: {install}") from None
    if options.store:
        extra("store").check(options.store)
    status, run, machines = fleet.run(options, print)
    if options.store:
        for folder in machines:
            print(f"put into the store as {extra('store').put(folder, options.store, run)}")
    return status


ARGUMENTS = (
    *SELECTION,
    STORE,
    argument("--scheduler", "of dask, whose workers are the machines: tls://host:port"),
    argument("--hosts", "where ssh starts the workers: user@host:port, separated by spaces"),
    argument("--insecure", "do without TLS", False, action="store_true"),
)
COMMANDS = {"fleet": (_run, *ARGUMENTS)}
