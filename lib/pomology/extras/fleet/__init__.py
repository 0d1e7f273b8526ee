"""Run every notebook on many machines, and compare them: `pomology fleet`."""

import argparse

from pomology.command_line import Command, add_run_options, extra, limit_minutes, put_into_store, request, say
from pomology.errors import PomologyError


def _arguments(parser: argparse.ArgumentParser) -> None:
    add_run_options(parser)
    option = parser.add_argument
    address = "tls://host:port or tcp://host:port"
    option("--scheduler", default="", metavar="ADDRESS", help=f"of the scheduler that workers wait at: {address}")
    option("--hosts", default="", help="user@host, separated by spaces: workers are started there by ssh")
    option("--insecure", action="store_true", help="allow tcp:// beyond this machine, in the clear and for anybody")
    option("--listen", default="", metavar="ADDRESS", help=f"be the scheduler: {address}")
    option("--worker", default="", metavar="ADDRESS", help="be a worker of the scheduler there")
    option("--worker-command", action="store_true", help="print the line that starts a worker for --scheduler")


def _run(options: argparse.Namespace) -> int:
    try:
        from pomology.extras.fleet import fleet, fleet_wire, fleet_worker
    except ModuleNotFoundError as error:
        raise PomologyError(f"fleet needs {error.name}: `make env EXTRAS=fleet` installs it") from None

    if options.worker_command:
        where = fleet_wire.address(options.scheduler or "tls://HOST:8786", "SCHEDULER", options.insecure)
        more = " --insecure" if options.insecure else ""
        say(f".venv/bin/python -m pomology fleet --worker={where.geturl()}{more}")
        return 0
    if options.listen:
        return fleet_wire.listen(options.listen, options.insecure, say)
    if options.worker:
        return fleet_worker.work(options.worker, options.insecure, say)
    if options.store:
        extra("store").check(options.store)
    where = options.scheduler, options.hosts, limit_minutes(options), options.insecure
    status, run, machines = fleet.run(request(options), *where, say)
    for folder in machines if options.store else ():
        status = put_into_store(folder, options.store, run) or status
    return status


COMMANDS = {"fleet": Command("run every notebook on many machines, and compare them", _arguments, _run)}
