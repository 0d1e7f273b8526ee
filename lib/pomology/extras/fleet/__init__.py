"""Run notebooks on several machines at a time, and compare the machines: `pomology fleet`."""

import argparse

from pomology import command_line
from pomology.errors import PomologyError


def _arguments(parser: argparse.ArgumentParser) -> None:
    command_line.add_run_options(parser)
    scheduler = "of dask, whose workers are the machines: tls://host:port or tcp://host:port"
    parser.add_argument("--scheduler", default="", metavar="ADDRESS", help=scheduler)
    hosts = "where ssh starts the scheduler and workers: user@host:port, separated by spaces"
    parser.add_argument("--hosts", default="", help=hosts)
    insecure = "do without TLS: whoever reaches a machine's port can run programs there"
    parser.add_argument("--insecure", action="store_true", help=insecure)


def _run(options: argparse.Namespace) -> int:
    try:
        from pomology.extras.fleet import fleet
    except ModuleNotFoundError as error:
        install = "`make env EXTRAS=fleet` installs it"
        raise PomologyError(f"fleet needs {error.name}: {install}") from None
    if options.store:
        command_line.extra("store").check(options.store)
    status, run, machines = fleet.run(options, command_line.say)
    if options.store:
        for folder in machines:
            status = command_line.put_into_store(folder, options.store, run) or status
    return status


HELP = "run every notebook on many machines, and compare them"
COMMANDS = {"fleet": command_line.Command(HELP, _arguments, _run)}
