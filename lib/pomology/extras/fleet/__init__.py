"""Run notebooks on several machines at a time, and compare the machines: `pomology fleet`."""

import argparse

from pomology.command_line import SELECTION, STORE, Command, argument, extra, say
from pomology.errors import PomologyError


def _run(options: argparse.Namespace) -> int:
    try:
        from pomology.extras.fleet import fleet
    except ModuleNotFoundError as error:
        install = "`make env EXTRAS=fleet` installs it"
        raise PomologyError(f"fleet needs {error.name}: {install}") from None
    if options.store:
        extra("store").check(options.store)
    status, run, machines = fleet.run(options, say)
    if options.store:
        for folder in machines:
            say(f"put into the store as {extra('store').put(folder, options.store, run)}")
    return status


ARGUMENTS = (
    *SELECTION,
    STORE,
    argument("--scheduler", "of dask, whose workers are the machines: tls://host:port"),
    argument("--hosts", "where ssh starts the workers: user@host:port, separated by spaces"),
    argument("--insecure", "do without TLS", False, action="store_true"),
)
HELP = "run every notebook on many machines, and compare them"
COMMANDS = {"fleet": Command(HELP, _run, ARGUMENTS)}
