"""Hardware and software of this machine, and conditions that would spoil a measurement.

Values that the system does not report are None, never guesses. Only single fields of commands'
output are used, so results hold no user or host name, home path, address, serial number or UUID.
"""

import contextlib
import ctypes
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import psutil

from pomology.machine import cgroups
from pomology.paths import RESOURCES

PACKAGES = [
    "torch",
    "lightning",
    "transformers",
    "peft",
    "tensorflow",
    "tensorflow-metal",
    "keras",
    "mlx",
    "mlx-metal",
    "mlx-cuda",
    "triton",
    "nvidia-cudnn-cu12",
    "nvidia-cudnn-cu13",
    "nvidia-cuda-runtime",
    "nvidia-cuda-runtime-cu12",
    "nvidia-cublas",
    "nvidia-cublas-cu12",
    "pyarrow",
    "numpy",
    "zeus-apple-silicon",
    "pomology",
]
# Variables that affect how frameworks compute. Other TF_ ones may be secrets; folders are private.
VARIABLES = re.compile(
    r"(?!.*_(DIR|HOME)$)"
    r"(OMP|KMP|GOMP|MKL|OPENBLAS|VECLIB|ONEDNN|DNNL|MALLOC|GLIBC|PYTORCH|TORCH|TORCHINDUCTOR|ATEN"
    r"|MPS|MTL|METAL|MLX|XLA|TF_(NUM|XLA|ENABLE|FORCE|GPU|CUDNN|USE|DETERMINISTIC)|KERAS|CUDA|CUDNN"
    r"|CUBLAS|NVIDIA_TF32|TRITON|TORCHDYNAMO|BLIS)_"
    r"|(LD_PRELOAD|LD_LIBRARY_PATH|DYLD_(INSERT_LIBRARIES|LIBRARY_PATH)|TURN_OFF_REMAPPER)$"
)
# What a value of theirs may be. Of another one, which may be a key or a path, is only said that the
# variable is set, with four digits of a hash, which tell two of them apart.
KNOWN_WORDS = set((RESOURCES / "variables.txt").read_text(encoding="utf-8").split())
NUMBER = r"[+-]?\d{1,7}(\.\d{1,6})?([eE]-?\d)?([kKMGT]?[bB]?|%)"
WORD_AND_VALUE = re.compile(rf"(?P<word>[A-Za-z]\w*)([:=](?P<value>\w+|{NUMBER}))?")
# Devices and cores. Longer numbers, or such with spaces, may be of a telephone.
LIST = re.compile(r"\d{1,3}(,\d{1,3})*|\d{1,3}-\d{1,3}([ ,]\d{1,3}-\d{1,3})*")
CPU_KIND = ("family", "model", "stepping")  # what tells CPUs of one name apart
REPOSITORY = Path(__file__).resolve().parents[3]


def snapshot() -> dict[str, Any]:
    """Return hardware and software of this machine, ready for JSON; unknown values are None.

    cpu: see `cpu_kind`. cpu_cores: physical cores. gpus: name, memory_bytes (None if it shares the
    machine's) and cores (Apple's only) of each, of NVIDIA's the limit of power in watts, too.
    performance_cores, efficiency_cores: of a CPU with two kinds. translated: x86-64
    Python under Rosetta.
    """
    mac = sys.platform == "darwin"
    performance, efficiency = _cores_by_kind() if mac else _cores_on_linux()
    # Linux distributions append their own words to the version's numbers.
    version = platform.mac_ver()[0] if mac else re.match(r"[\d.]*\d|", platform.release())[0]
    x86 = platform.machine() == "x86_64"
    return {
        "chip": chip(),
        "cpu": cpu_kind(),
        "cpu_cores": psutil.cpu_count(logical=False),
        "cpu_threads": psutil.cpu_count(),
        "performance_cores": performance,
        "efficiency_cores": efficiency,
        "memory_bytes": psutil.virtual_memory().total,
        "gpus": gpus(),
        "os": "macOS" if mac else platform.system() or None,
        "os_version": version or None,
        "architecture": platform.machine() or None,
        # On an Intel Mac x86-64 is native.
        "translated": mac and x86 and "Apple" in str(sysctl("machdep.cpu.brand_string")),
        "python": platform.python_version(),
        "packages": _packages(),
        "git": _git(),
    }


def software() -> dict[str, Any]:
    """Return commit, Python, packages and environment variables.

    A variable whose value is not made of numbers and known words has a value such as `set 3f2a`.
    """
    packages = _packages()
    if sys.platform == "darwin":
        packages["macOS"] = platform.mac_ver()[0]  # PyTorch uses its kernels
    environment = sorted(os.environ.items())
    values = {name: _known(text) for name, text in environment if VARIABLES.match(name)}
    return {
        "git": _git(),
        "python": platform.python_version(),
        "packages": packages,
        "environment": values,
    }


def _known(text: str) -> str:
    """Return a variable's value if it has numbers or known words and nothing else.

    Else return `set` and a hash of 16 bits, from which nobody learns the value.
    """
    if not text or re.fullmatch(NUMBER, text) or LIST.fullmatch(text):
        return text
    if all(map(_known_part, text.split(","))):
        return text
    return f"set {hashlib.sha256(os.fsencode(text)).hexdigest()[:4]}"


def _known_part(part: str) -> bool:
    """Return whether a part of a value is a short number, a known word, or `word:value` of them."""
    found = WORD_AND_VALUE.fullmatch(part)
    if not found:
        return bool(re.fullmatch(r"\d{1,2}", part))
    value = found["value"]
    known = value is None or re.fullmatch(NUMBER, value) or value.lower() in KNOWN_WORDS
    return found["word"].lower() in KNOWN_WORDS and bool(known)


def _packages() -> dict[str, str]:
    """Return the versions of those of PACKAGES that are installed."""
    from importlib import metadata  # slow to import, rarely needed

    versions = {}
    for name in PACKAGES:
        # Of a package that is installed twice, Python imports the first.
        for package in metadata.distributions(name=name):
            versions.setdefault(name, package.version)
    return versions


def conditions() -> dict[str, Any]:
    """Return the conditions that would spoil a measurement now.

    power_source: "ac", "battery" or None. power_mode: of macOS, "low", "automatic" or "high".
    flags: `on-battery`, `low-power`, `busy` (others used over 0.25 core and 5 % of all in 0.25 s).
    """
    power_source, mode = _power()
    share = psutil.cpu_percent(0.25) / 100  # of all cores, while this process waits
    busy = share > max(0.25 / (psutil.cpu_count() or 1), 0.05)
    applies = {"on-battery": power_source == "battery", "low-power": mode == "low", "busy": busy}
    flags = [flag for flag in applies if applies[flag]]
    return {"power_source": power_source, "power_mode": mode, "flags": flags}


def describe(snapshot: dict[str, Any]) -> str:
    """Return `Apple M2 Ultra, 24 cores (16P+8E), 192 GB, macOS 15.5, Python 3.11.9`."""
    chip_name = snapshot.get("chip") or "unknown chip"
    cores = f"{snapshot['cpu_cores']} cores" if snapshot.get("cpu_cores") else ""
    if snapshot.get("performance_cores") and snapshot.get("efficiency_cores"):
        cores += f" ({snapshot['performance_cores']}P+{snapshot['efficiency_cores']}E)"
    gpus = [gpu for gpu in snapshot.get("gpus") or [] if gpu["name"] != chip_name]
    names = Counter(f"{gpu['name']} {_gigabytes(gpu.get('memory_bytes'))}".strip() for gpu in gpus)
    cards = [name if count == 1 else f"{count} × {name}" for name, count in names.items()]
    system = f"{snapshot.get('os') or ''} {snapshot.get('os_version') or ''}".strip()
    mode = f"power mode {snapshot['power_mode']}" if snapshot.get("power_mode") else ""
    parts = [chip_name, cores, _gigabytes(snapshot.get("memory_bytes")), *cards, system, mode]
    python = f"Python {snapshot['python']}" if snapshot.get("python") else ""
    return ", ".join(filter(None, [*parts, python]))


def chip() -> str | None:
    """Return the CPU's name, such as `Apple M2 Ultra` or `AMD EPYC 7B13`."""
    if sys.platform == "darwin":
        return sysctl("machdep.cpu.brand_string")
    model = re.search(r"Model name:(.*)", run_command("lscpu") or "")
    return " ".join(model[1].split()) or None if model else None


def cpu_kind() -> dict[str, int | None]:
    """Return family, model and stepping of the CPU, and its highest clock in MHz.

    They tell CPUs of one name apart: a virtual machine's `AMD EPYC` may be of any generation. On a
    Mac the family is that of the cores, of which the name says more.
    """
    if sys.platform == "darwin":
        numbers = (sysctl("hw.cpufamily"), sysctl("hw.cpusubfamily"), None)
        kinds = [number if isinstance(number, int) else None for number in numbers]
        return dict(zip(CPU_KIND, kinds, strict=True)) | {"max_mhz": None}
    said = run_command("lscpu") or ""
    titles = dict(zip(CPU_KIND, ("CPU family", "Model", "Stepping"), strict=True))
    numbers = {}
    for name, title in (titles | {"max_mhz": "CPU max MHz"}).items():
        number = re.search(rf"^{title}:\s+(\d+)", said, re.MULTILINE)
        numbers[name] = number and int(number[1])
    return numbers


def gpus() -> list[dict[str, Any]]:
    """Return `name`, `memory_bytes` and `cores` of each GPU, as in `snapshot`."""
    return _apple_gpus() if sys.platform == "darwin" else _nvidia_gpus()


def available_memory_bytes() -> int:
    """Return the memory that new work can use without swapping, within a container's limit."""
    limited = cgroups.free_memory_bytes()
    available = psutil.virtual_memory().available
    return available if limited is None else min(available, limited)


def usable_threads() -> int:
    """Return the number of threads that can run at once, by affinity and a container's limits."""
    # macOS has no affinity.
    on_linux = hasattr(os, "sched_getaffinity")
    allowed = len(os.sched_getaffinity(0)) if on_linux else os.cpu_count() or 1
    limits = (allowed, cgroups.cpus(), cgroups.cpu_quota())
    return max(1, int(min(limit for limit in limits if limit is not None)))


def thermal_level() -> int | None:
    """Return macOS's thermal pressure, from 0 (nominal) to 4 (sleeping); None if unknown."""
    if sys.platform != "darwin":
        return None
    system = ctypes.CDLL(None)
    token = ctypes.c_int()
    level = ctypes.c_uint64()
    if system.notify_register_check(b"com.apple.system.thermalpressurelevel", ctypes.byref(token)):
        return None
    failed = system.notify_get_state(token, ctypes.byref(level))
    system.notify_cancel(token)
    return None if failed else level.value


def run_command(*command: str) -> str | None:
    """Return the output of a system command; None if it is missing, fails or takes over 30 s."""
    program = shutil.which(command[0])
    if not program:
        return None
    try:
        done = subprocess.run(
            (program, *command[1:]),
            env=os.environ | {"LC_ALL": "C"},  # a translated answer would match no pattern
            # With this Python spawns the command. A fork would write-protect this process's memory
            # for a moment, and a model in training would fault on every page.
            close_fds=False,
            timeout=30,
            capture_output=True,
            text=True,
            errors="replace",
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


def sysctl(name: str) -> int | str | None:
    """Return a value of macOS's kernel by its name."""
    text = (run_command("sysctl", "-n", name) or "").strip()
    return int(text) if text.isdecimal() else text or None


def _cores_by_kind() -> tuple[int, int] | tuple[None, None]:
    """Return the numbers of performance and efficiency cores of an Apple chip."""
    kinds: Counter[Any] = Counter()
    for level in range(sysctl("hw.nperflevels") or 0):
        kinds[sysctl(f"hw.perflevel{level}.name")] += sysctl(f"hw.perflevel{level}.physicalcpu")
    # M5 names its fastest cores `Super`.
    if not kinds or kinds.keys() - {"Super", "Performance", "Efficiency"}:
        return None, None
    return kinds["Super"] + kinds["Performance"], kinds["Efficiency"]


def _cores_on_linux(devices: Path = Path("/sys/devices")) -> tuple[int, int] | tuple[None, None]:
    """Return the numbers of fast and of slow cores of a CPU with two kinds.

    Intel's hybrids list each kind; ARM's have a capacity for each core, relative to the fastest.
    """
    threads = [_listed(devices / f"cpu_{kind}" / "cpus") for kind in ("core", "atom")]
    if all(threads):
        cores = [len({_core_of(devices, thread) for thread in kind}) for kind in threads]
        return cores[0], cores[1]
    files = sorted(devices.glob("system/cpu/cpu[0-9]*/cpu_capacity"))
    texts = [(_text(file) or "").strip() for file in files]
    capacities = [int(text) for text in texts if text.isdecimal()]
    if len(set(capacities)) < 2:
        return None, None
    slow = sum(capacity <= max(capacities) / 2 for capacity in capacities)
    return len(capacities) - slow, slow


def _listed(path: Path) -> list[int]:
    """Return the numbers in a list such as `0-7,12`; empty without the file."""
    numbers: list[int] = []
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", _text(path) or ""):
        numbers += range(int(first), int(last or first) + 1)
    return numbers


def _core_of(devices: Path, thread: int) -> str:
    """Return the name of a thread's core, which it may share with another thread."""
    siblings = devices / f"system/cpu/cpu{thread}/topology/thread_siblings_list"
    return (_text(siblings) or str(thread)).strip()


def _text(path: Path) -> str | None:
    with contextlib.suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace")
    return None


def _apple_gpus() -> list[dict[str, Any]]:
    """Return the GPUs that `system_profiler` lists, whose memory is the machine's."""
    text = run_command("system_profiler", "SPDisplaysDataType", "-json")
    gpus = []
    for card in json.loads(text or "{}").get("SPDisplaysDataType", []):
        if "sppci_model" in card:
            count = card.get("sppci_cores", "")
            cores = int(count) if count.isdecimal() else None
            gpus.append({"name": card["sppci_model"], "memory_bytes": None, "cores": cores})
    return gpus


def _nvml() -> Any:
    """Return NVML's module, initialized; None without the package or a driver."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # ImportError or NVMLError
        return None
    return pynvml


def nvidia_driver() -> str | None:
    """Return the version of NVIDIA's driver; None without one."""
    pynvml = None if sys.platform == "darwin" else _nvml()
    if pynvml is None:
        return None
    with contextlib.suppress(pynvml.NVMLError):
        return pynvml.nvmlSystemGetDriverVersion()
    return None


def _nvidia_gpus() -> list[dict[str, Any]]:
    """Return the GPUs that NVML lists, hidden by CUDA_VISIBLE_DEVICES or not."""
    pynvml = _nvml()
    if pynvml is None:
        return []
    gpus = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        name = pynvml.nvmlDeviceGetName(handle)
        memory_bytes = None
        with contextlib.suppress(pynvml.NVMLError):  # refused for a GPU that is split (MIG) or lost
            memory_bytes = pynvml.nvmlDeviceGetMemoryInfo(handle).total
        power_limit_w = None
        with contextlib.suppress(pynvml.NVMLError):  # not every card has one
            power_limit_w = pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000
        # CUDA cores are not comparable with Apple's GPU cores.
        facts = {"name": name, "memory_bytes": memory_bytes, "cores": None}
        gpus.append(facts | {"power_limit_w": power_limit_w})
    return gpus


def _git() -> dict[str, Any] | None:
    """Return the checkout's `commit`, and `dirty`: files differ from it. None outside of one.

    Of an archive of the source it is not known whether files differ.
    """
    # Otherwise git would search the parent folders, and a Mac would open a window to install it.
    if not (REPOSITORY / ".git").exists():
        # In an archive of the source, git has replaced this file's words.
        commit = (_text(RESOURCES / "commit.txt") or "").strip()
        return {"commit": commit, "dirty": None} if re.fullmatch("[0-9a-f]{40}", commit) else None
    git = ("git", "--no-optional-locks", "-C", str(REPOSITORY))
    commit = run_command(*git, "rev-parse", "HEAD")
    # Earlier results in outputs/ do not affect new ones.
    changes = run_command(*git, "status", "--porcelain", "--", ".", ":(exclude)outputs")
    if commit is None or changes is None:
        return None
    return {"commit": commit.strip(), "dirty": bool(changes.strip())}


def _power() -> tuple[str | None, str | None]:
    """Return the power source, and macOS's power mode."""
    if sys.platform != "darwin":
        battery = psutil.sensors_battery()
        source = {True: "ac", False: "battery"}.get(battery.power_plugged) if battery else None
        return source, None
    source = re.search(r"from '(AC|Battery) Power'", run_command("pmset", "-g", "batt") or "")
    # Macs have `powermode`, or `lowpowermode` and some also `highpowermode`, which are 0 or 1.
    modes = dict(re.findall(r"\b(low|high|)powermode\s+(\d)", run_command("pmset", "-g") or ""))
    number = "2" if modes.get("high") == "1" else modes.get("", modes.get("low"))
    mode = {"0": "automatic", "1": "low", "2": "high"}.get(number)
    return source[1].lower() if source else None, mode


def _gigabytes(count: int | None) -> str:
    """Return bytes as `192 GB`; "" if their number is unknown."""
    # Memory is sold in powers of two: 206158430208 bytes are "192 GB".
    return f"{round(count / 2**30)} GB" if count else ""
