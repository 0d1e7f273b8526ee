"""A whole case in a process that believes to be on a Mac, and a search for calls that only Linux has.

What Linux has and macOS has not breaks there first: files under /proc and /sys, some functions of `os` and of psutil,
some commands. See `macs.become` for what is changed.
"""

from __future__ import annotations

import ast
import getpass
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import lint
import nbformat
import pytest
from macs import IOREG, MACS, NOT_A_COMMAND, NOT_IN_OS, NOT_IN_PSUTIL, NOT_OF_A_PROCESS, install_commands, secrets_in

from pomology.results import record as results_record
from pomology.runner import notebooks

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "lib" / "pomology"
NOTEBOOKS = notebooks.notebook_paths(ROOT / "notebooks")

CASE = """
import json, sys, time
import IPython, matplotlib.pyplot, pandas, psutil, torch, torch.utils.data
import macs

macs.become()
from pomology.devices import find
from pomology.experiment.experiment import Experiment
from pomology.machine.sampler import Telemetry

generator = torch.Generator().manual_seed(1)
inputs = torch.randn(1600, 4, generator=generator)
data = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))
experiment = Experiment("vae", article="003", devices="cpu", profile="quick", budget_s=30, out=sys.argv[1])
for case in experiment.cases(batch_size=[8]):
    with case:
        torch.manual_seed(1)
        model = case.watch_model(torch.nn.Linear(4, 1).to(case.device))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
        for inputs, targets in case.steps(torch.utils.data.DataLoader(data, case.batch_size)):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            case.loss(loss.item())
            time.sleep(0.006)
for table in (experiment.table(), experiment.details(), experiment.claims()):
    print(table)
experiment.figure()

# A GPU is not timed here, but what a GPU's case would ask can be.
with Telemetry(interval_s=0.3, device="gpu") as telemetry:
    time.sleep(1.8)
told = {"busy": telemetry.metrics()["gpu_busy"].value, "absent": telemetry.absent, "samples": telemetry.samples}
json.dump(told | {"free": find.find("cpu")[0].free_memory()}, open(sys.argv[1] + "/told.json", "w"))
"""


def run(program: str, *arguments: object, path: Path | None = None) -> str:
    """What a Python of its own prints, if given, with only the commands of that folder."""
    environment = os.environ | {"PYTHONPATH": f"{PACKAGE.parent}:{Path(__file__).parent}", "OMP_NUM_THREADS": "1"}
    environment |= {"PATH": str(path)} if path else {}
    command = [sys.executable, "-c", program, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory):
    """CASE on the M4 Max: the folder, the record's line, what else was told, what was asked, and what was printed."""
    folder = tmp_path_factory.mktemp("mac")
    log = install_commands("m4-max", folder / "bin")
    printed = run(CASE, folder / "run", path=folder / "bin")
    lines = (folder / "run" / "vae.jsonl").read_text(encoding="utf-8").splitlines()
    told = json.loads((folder / "run" / "told.json").read_text())
    return folder / "run", json.loads(lines[-1]), told, log.read_text().splitlines(), printed


def test_a_whole_case_runs_as_on_a_mac(rehearsed):
    folder, line, told, _, printed = rehearsed
    record = results_record.checked(line)
    assert (record.status, record.reason) == ("ok", None)
    assert (record.chip, record.backend, record.device) == ("Apple M4 Max", "cpu", "cpu")
    assert (record.power_source, record.thermal_level) == ("ac", 1)
    assert record.rails == ["cpu", "gpu", "dram"]
    # Nothing else is missing: a source that failed on something that macOS lacks would be here with its error.
    no_sensor = {"temperature_c": "macOS has no public temperature sensor"}
    assert record.absent == no_sensor | {"gpu_busy": "told only where a GPU is timed"}
    metrics = {name: metric.value for name, metric in record.metrics.items()}
    assert metrics["power_w"] == pytest.approx(15, rel=0.01)
    assert metrics["footprint_peak_bytes"] == 3 * 10**9
    # psutil's form of these counts all page-ins of a Mac; the vm_stat of this one says that it did not swap.
    assert (metrics["swapped_bytes"], metrics["swap_bytes"]) == (0, 0)
    assert (metrics["compressed_bytes"], metrics["compressor_bytes"]) == (70_000 * 16384, 17_000 * 16384)
    assert "compressing" in record.flags and "swapping" not in record.flags
    assert 0 <= metrics["cpu_busy"] <= 100 and metrics["page_faults"] > 0
    assert "Apple M4 Max CPU" in printed and "compressing: memory was short" in printed
    assert told["free"] == 96 * 2**30
    # There is no git among the commands. The chip and its cores are in test_machine.py.
    snapshot = json.loads((folder / "machine.json").read_text())
    assert (snapshot["chip"], snapshot["os"], snapshot["unknown"].keys()) == ("Apple M4 Max", "macOS", {"git"})
    # Of a GPU's telemetry:
    assert (told["busy"], told["absent"]) == (93, no_sensor)


def test_nothing_private_is_in_any_file(rehearsed):
    run_folder, _, told, _, printed = rehearsed
    files = [path for path in run_folder.rglob("*") if path.is_file()]
    assert {"machine.json", "vae.jsonl", "vae-article.csv", "vae-epoch.svg"} <= {path.name for path in files}
    names = {socket.gethostname(), getpass.getuser(), str(Path.home()), str(ROOT), str(run_folder)}
    ioreg = set(re.findall(r"\w{9,}", (MACS / "m4-max" / f"{'_'.join(IOREG)}.txt").read_text()))
    assert {"AGXAcceleratorG16X", "0x100000482", "SchedulerState"} <= ioreg
    texts = {path.name: path.read_text(encoding="utf-8") for path in files} | {"the terminal": printed}
    for name, text in texts.items():
        # A figure may have the number of a process by chance.
        assert not [secret for secret in secrets_in(text) if "json" in name or not secret.isdecimal()], name
        assert not (names | ioreg) & set(re.findall(r"[\w./-]+", text)), name
        assert not [secret for secret in names if len(secret) > 4 and secret in text], name
    assert secrets_in(told) == []


def test_only_what_needs_no_rights_and_prints_no_serial_number_is_asked(rehearsed):
    asked = rehearsed[3]
    sysctls = {line.split()[-1] for line in asked if line.startswith("sysctl")}
    assert sysctls and not [name for name in sysctls if re.search(r"uuid|hostname|serial|bootsession", name)]
    rest = {line.strip() for line in asked if not line.startswith("sysctl")}
    displays = "system_profiler SPDisplaysDataType -json"
    assert rest == {"vm_stat", "pmset -g", "pmset -g batt", displays, " ".join(IOREG)}
    assert asked.count("vm_stat ") == 4  # the edges of two blocks


# What the process above refuses: telemetry goes on without a source that fails, and its record says so ----------------

PLANTS = {  # what a module may do on Linux: words of the error that it gets on a Mac
    **{f"os.{name}": name for name in NOT_IN_OS},
    **{f"psutil.{name}()": name for name in NOT_IN_PSUTIL},
    **{f"psutil.Process().{name}()": name for name in NOT_OF_A_PROCESS},
    "open('/proc/meminfo')": "/proc/meminfo",
    "Path('/proc/self/status').read_text()": "/proc/self/status",
    "os.listdir('/sys/class/net')": "/sys/class/net",
    "list(os.scandir('/proc'))": "/proc",
    "os.open('/proc/stat', os.O_RDONLY)": "/proc/stat",
    **{f"subprocess.run(['{name}'])": name for name in NOT_A_COMMAND},
    "subprocess.check_output('/usr/bin/nproc', shell=True)": "nproc",
    "resource.prlimit": "prlimit",
}
PLANTED = """
import json, os, resource, subprocess, sys
from pathlib import Path
import psutil
import macs

macs.become()
errors = {}
for plant in json.loads(sys.argv[1]):
    try:
        eval(plant)
    except (AttributeError, FileNotFoundError) as error:
        errors[plant] = str(error)
assert not Path("/proc/cpuinfo").exists() and not os.path.exists("/sys")
assert Path("/etc").exists() and open(os.devnull).read() == ""  # the rest of the machine is there
assert psutil.Process().memory_info()._fields == ("rss", "vms", "pfaults", "pageins")
assert psutil.Process(os.getpid()).cpu_times().user > 0
print(json.dumps(errors))
"""


def test_the_process_lacks_what_macos_lacks():
    errors = json.loads(run(PLANTED, json.dumps(list(PLANTS))))
    assert {plant: errors.get(plant) for plant, words in PLANTS.items() if words not in errors.get(plant, "")} == {}


NAMES = {
    *(f"os.{name}" for name in NOT_IN_OS),
    *(f"os.sched_{name}" for name in ("getparam", "setparam", "getscheduler", "setscheduler", "rr_get_interval")),
    *(f"os.{name}" for name in ("getresuid", "getresgid", "setresuid", "setresgid")),
    *(f"os.{name}" for name in ("getxattr", "setxattr", "listxattr", "removexattr", "eventfd_read", "eventfd_write")),
    *(f"os.{name}" for name in ("O_DIRECT", "O_TMPFILE", "O_NOATIME", "O_PATH", "MFD_CLOEXEC")),
    *(f"psutil.{name}" for name in (*NOT_IN_PSUTIL, "PROCFS_PATH")),
    *(f"signal.{name}" for name in ("sigwaitinfo", "sigtimedwait", "SIGPWR", "SIGSTKFLT")),
    *(f"resource.{name}" for name in ("prlimit", "RLIMIT_SIGPENDING", "RUSAGE_THREAD")),
    *(f"time.{name}" for name in ("CLOCK_BOOTTIME", "CLOCK_TAI", "pthread_getcpuclockid")),
    *("select.epoll", "platform.freedesktop_os_release"),
}
# Constants that name files of Linux; who reads them must bear that they are missing, as the case above proves.
LISTED = {
    "snapshot.py": {"CPUINFO", "PLATFORM_PROFILE", "CACHES"},
    "energy.py": {"POWERCAP"},
    "sources.py": {"HWMON", "VMSTAT"},
}
RUNS = re.compile(
    r"(subprocess\.\w+|os\.(system|popen|posix_spawnp?|exec\w+)|shutil\.which|(.*\.)?(run_command|run|_output))$"
)


def linux_only(code: lint.Code) -> list[str]:
    """A line for everything that Linux has and macOS lacks, outside of a function that asks which one it is on.

    Asking is `sys.platform`, `platform.system()` or `hasattr`. A cell of a notebook must leave it to the library.
    """
    lines = []
    for node in code.of(ast.Attribute, ast.Constant, ast.Call, ast.ImportFrom):
        function = None if code.notebook else code.function(node)
        asks = function is not None and re.search(r"sys\.platform|platform\.system|hasattr\(", ast.unparse(function))
        lines += [] if asks else [f"{code.where(node)}: Linux only: {words}" for words in only_on_linux(code, node)]
    return lines


def only_on_linux(code: lint.Code, node: ast.AST) -> Iterator[str]:
    missing = "{} does not exist on macOS; ask hasattr or sys.platform first".format
    if isinstance(node, ast.ImportFrom):
        names = {f"{node.module}.{alias.name}" for alias in node.names}
        yield from map(missing, sorted(names & NAMES))
    elif isinstance(node, ast.Attribute):
        if code.full(node) in NAMES:
            yield missing(code.full(node))
        elif node.attr in NOT_OF_A_PROCESS:
            yield missing(f"psutil.Process.{node.attr}")
        elif node.attr == "ru_maxrss":
            yield "ru_maxrss as KiB; on macOS it counts bytes: let sys.platform choose the factor"
    elif isinstance(node, ast.Constant):
        value = node.value if isinstance(node.value, str) else ""
        if re.match(r"/(proc|sys)(/|$)", value) and not is_listed(code, node):
            yield missing(value)
        elif re.match(r"lib(c|m|rt|dl|pthread)\.so", value):
            yield f"{value} does not exist on macOS; ctypes.CDLL(None) is the C library on both"
    elif RUNS.match(code.full(node.func)) and node.args:
        listed = isinstance(node.args[0], (ast.List, ast.Tuple))
        words = lint.text(node.args[0].elts if listed else node.args).split()
        if words and Path(words[0]).name in NOT_A_COMMAND:
            yield missing(f"the command {Path(words[0]).name}")


def is_listed(code: lint.Code, node: ast.AST) -> bool:
    statement = code.statement(node)
    names = {target.id for target in getattr(statement, "targets", []) if isinstance(target, ast.Name)}
    return code.function(node) is None and bool(names) and names <= LISTED.get(code.name, set())


def of_module(name: str, text: str) -> list[str]:
    return linux_only(lint.Code(name, [("", text)], notebook=False))


def test_nothing_calls_what_only_linux_has():
    codes = [lint.Code(path.name, [("", path.read_text())], notebook=False) for path in sorted(PACKAGE.rglob("*.py"))]
    for path in NOTEBOOKS:
        cells = [(cell.id, cell.source) for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"]
        codes.append(lint.Code(path.name, cells, notebook=True))
    assert len(codes) > 90 and [line for code in codes for line in linux_only(code)] == []


LINUX_CODE = {  # what somebody might write: words that the finding must have
    "threads = len(os.sched_getaffinity(0))": "os.sched_getaffinity does not exist on macOS; ask hasattr",
    "from os import sched_getaffinity as affinity": "Linux only: os.sched_getaffinity does not exist on macOS",
    "psutil.Process().io_counters()": "Linux only: psutil.Process.io_counters does not exist on macOS",
    "GOVERNOR = Path('/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor')": "Linux only: /sys/devices/system/cpu",
    "subprocess.check_output('/usr/bin/nproc --all', shell=True)": "Linux only: the command nproc does not exist",
    "snapshot.run_command('lscpu')": "Linux only: the command lscpu does not exist",
    "peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024": "ru_maxrss as KiB; on macOS it counts bytes",
    "ctypes.CDLL('libc.so.6')": "Linux only: libc.so.6 does not exist on macOS",
}


@pytest.mark.parametrize("code", LINUX_CODE)
def test_a_planted_call_is_found_and_named(code):
    imports = "import os, psutil, subprocess, shutil, resource, ctypes\nfrom pathlib import Path\n"
    imports += "from pomology.machine import snapshot\n"
    cell = lint.Code("vae.ipynb", [("planted", f"{imports}{code}\n")], notebook=True)
    for lines, place in (
        (of_module("clock.py", f"{imports}def other():\n    return sys.platform\n\n{code}\n"), "clock.py, line 7: "),
        (linux_only(cell), "vae.ipynb, cell planted, line 4: "),
    ):
        (line,) = lines
        assert line.startswith(place) and LINUX_CODE[code] in line


def test_what_asks_first_and_what_only_sounds_alike_is_left_alone():
    for code in (
        "def count():\n    return len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else 1",
        "def peak(usage):\n    return usage.ru_maxrss * (1 if sys.platform == 'darwin' else 1024)",
        "sizes = {'free': device.free_memory()}\nprint('free', 'what /proc holds')",
    ):
        assert of_module("module.py", f"import os, sys\n{code}\n") == []
