"""What this machine is, and whether it is fit to measure now.

What the system does not say is None, never a guess. Results hold no user or host name, home path,
address, serial number or UUID: macOS's system_profiler prints serial numbers beside what is wanted,
so single fields are picked.
"""

import contextlib
import ctypes
import json
import os
import platform
import plistlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any
from xml.parsers.expat import ExpatError

import psutil

from pomology.paths import redact

PACKAGES = (
    *(
        "torch",
        "lightning",
        "transformers",
        "peft",
        "tensorflow",
        "tensorflow-macos",
        "tensorflow-metal",
        "keras",
    ),
    *(
        "mlx",
        "mlx-metal",
        "mlx-cpu",
        "pyarrow",
        "numpy",
        "pandas",
        "jupyterlab",
        "papermill",
        "psutil",
    ),
    *("zeus-apple-silicon", "nvidia-ml-py", "pomology"),
)
# Variables of the environment that bear on threads, memory and how frameworks compute. (Others of
# TF_ are secrets.)
VARIABLES = re.compile(
    r"(?!.*_(DIR|HOME)$)"  # folders; torch sets some itself
    r"(OMP|KMP|GOMP|MKL|OPENBLAS|BLIS|VECLIB|ONEDNN|DNNL|MALLOC|GLIBC|PYTORCH|TORCH|TORCHINDUCTOR|MPS|MTL|METAL|MLX|XLA"
    r"|TF_(CPP|NUM|XLA|ENABLE|DISABLE|FORCE|GPU|CUDNN|USE)|KERAS|CUDA|CUDNN|CUBLAS|NVIDIA|ATEN)_"
    r"|(LD_PRELOAD|DYLD_INSERT_LIBRARIES|TURN_OFF_REMAPPER)$"
)
# What sets processors of one name apart, as lscpu and sysctl call it. On x86, 2 BogoMIPS are 1 MHz
# of nominal clock.
LSCPU = (
    "CPU family",
    "Model",
    "Stepping",
    "Thread(s) per core",
    "L1d cache",
    "L2 cache",
    "L3 cache",
)
LSCPU += ("Hypervisor vendor", "CPU max MHz", "BogoMIPS")
SYSCTL = (
    "hw.model",
    "hw.cpufamily",
    "hw.cpufrequency_max",
    "hw.l1dcachesize",
    "hw.l2cachesize",
    "hw.optional.avx2_0",
)
SYSCTL += (
    *(f"hw.perflevel{level}.l2cachesize" for level in (0, 1)),
    "machdep.cpu.model",
    "machdep.cpu.stepping",
)
SYSCTL += tuple(f"hw.optional.arm.FEAT_{name}" for name in ("BF16", "I8MM", "SME", "SME2"))
INSTRUCTIONS = (
    r"(?<!\S)(?:fma|avx2|avx512(?:f|_bf16|_fp16|_vnni)|avx_vnni|amx_\w+|"
    r"asimdhp|bf16|i8mm|sve2?|sme2?)(?!\S)"
)
REPOSITORY = Path(__file__).resolve().parents[3]
CPUINFO = Path("/proc/cpuinfo")
PLATFORM_PROFILE = Path("/sys/firmware/acpi/platform_profile")
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
MPSGRAPH = Path("/System/Library/Frameworks/MetalPerformanceShadersGraph.framework/Resources/Info.plist")


def snapshot() -> dict[str, Any]:
    """Hardware and software of this machine, ready for JSON.

    cpu_cores are physical. gpus: a list of name, memory_bytes (None where the GPU shares the
    machine's) and cores (of Apple's only). translated: x86-64 Python under Rosetta. packages: those
    of `PACKAGES` that are installed -> version. git: commit and whether dirty. An unknown key is
    None, and `unknown[key]` says why; also why `gpus` is empty.
    """
    mac = sys.platform == "darwin"
    gpus, no_gpus = _apple_gpus() if mac else _nvidia_gpus()
    performance, efficiency = _cores_by_kind() if mac else (None, None)
    git, no_git = _git()
    # Of Linux's version the numbers only: builders put words of their own behind them.
    version = platform.mac_ver()[0] if mac else re.match(r"[\d.]*\d|", platform.release())[0]
    # Asked twice, as the sysctl command may itself run natively; Intel Macs lack the first name and
    # have another brand.
    apple_chip = mac and "Apple" in str(_sysctl("machdep.cpu.brand_string"))
    translated = mac and (_sysctl("sysctl.proc_translated") == 1 or (apple_chip and platform.machine() == "x86_64"))
    facts: dict[str, Any] = {
        "chip": chip(),
        "cpu_cores": _sysctl("hw.physicalcpu") if mac else psutil.cpu_count(logical=False),
        "cpu_threads": _sysctl("hw.logicalcpu") if mac else psutil.cpu_count(),
        "performance_cores": performance,
        "efficiency_cores": efficiency,
        "memory_bytes": _sysctl("hw.memsize") if mac else psutil.virtual_memory().total,
        "gpus": gpus,
        "os": "macOS" if mac else platform.system() or None,
        "os_version": version or None,
        "architecture": platform.machine() or None,
        "translated": translated,
        "virtual_machine": virtual_machine(),
        "processor": processor() or None,
        "python": platform.python_version(),
        "packages": _packages(),
        "git": git,
    }
    alike = "the cores are not told apart here"
    silent = "the operating system does not tell"
    why = {"performance_cores": alike, "efficiency_cores": alike, "gpus": no_gpus, "git": no_git}
    return facts | {"unknown": {key: why.get(key, silent) for key, value in facts.items() if value in (None, [])}}


def software() -> dict[str, Any]:
    """What results depend on beside the machine: git's commit and whether dirty, the versions of
    Python and `PACKAGES`, and the environment's `VARIABLES`, without the folders of this machine;
    on a Mac those of macOS and its MPSGraph, in which the kernels of PyTorch are.
    """
    matter = {name: redact(value) for name, value in sorted(os.environ.items()) if VARIABLES.match(name)}
    about = {"git": _git()[0], "python": platform.python_version(), "packages": _packages()}
    if sys.platform == "darwin":
        about["packages"] |= {"macOS": platform.mac_ver()[0], **mpsgraph()}
    return about | {"environment": matter}


def mpsgraph() -> dict[str, str]:
    """The version of macOS's library of GPU kernels; empty where it cannot be read."""
    try:
        return {"MPSGraph": str(plistlib.loads(MPSGRAPH.read_bytes())["CFBundleVersion"])}
    except (OSError, ValueError, KeyError, TypeError, ExpatError):  # not there, or in another form
        return {}


def _packages() -> dict[str, str]:
    from importlib import metadata  # slow to import, seldom needed

    return {each: had.version for each in PACKAGES for had in list(metadata.distributions(name=each))[:1]}


def conditions(watch_s: float = 0.25) -> dict[str, Any]:
    """Return what would spoil a measurement that began now.

    power_source: "ac", "battery" or None. load: the 1-minute load average, with one's own earlier
    work. others: cores that other processes used in `watch_s` seconds. flags: those of
    "on-battery", "low-power" and "busy" (others used over a quarter of a core and 5 % of all) that
    hold.
    """
    power_source, low_power = _power()
    flags = []
    if power_source == "battery":
        flags.append("on-battery")
    if low_power:
        flags.append("low-power")
    others = None
    if watch_s > 0:
        start_s = time.perf_counter()
        busy_s = cpu_busy_s()
        own_s = time.process_time()
        time.sleep(watch_s)
        others_s = cpu_busy_s() - busy_s - (time.process_time() - own_s)
        others = max(0.0, others_s / (time.perf_counter() - start_s))
        if others > max(0.25, 0.05 * (psutil.cpu_count() or 1)):
            flags.append("busy")
    return {
        "power_source": power_source,
        "low_power_mode": low_power,
        "thermal_level": thermal_level(),
        "load": os.getloadavg()[0],
        "others": others,
        "flags": flags,
    }


def describe(snapshot: dict[str, Any]) -> str:
    """Return one line, as `Apple M2 Ultra, 24 cores (16P+8E), 192 GB, macOS 15.5, Python 3.11.9`."""
    known = {key: value for key, value in snapshot.items() if value is not None}
    kinds = [f"{known[key]}{key[0].upper()}" for key in ("performance_cores", "efficiency_cores") if known.get(key)]
    cores = f"{known.get('cpu_cores')} cores" + (f" ({'+'.join(kinds)})" if len(kinds) == 2 else "")
    cards = [gpu for gpu in known.get("gpus", []) if gpu["name"] != known.get("chip")]
    counts = Counter(f"{gpu['name']} {_gigabytes(gpu['memory_bytes'])}".strip() for gpu in cards)
    parts = [known.get("chip", "unknown chip"), cores if "cpu_cores" in known else ""]
    parts.append(_gigabytes(known.get("memory_bytes")))
    parts += [name if count == 1 else f"{count} × {name}" for name, count in counts.items()]
    parts.append(" ".join(known[key] for key in ("os", "os_version") if key in known))
    parts.append(f"Python {known['python']}" + (" under Rosetta" if known.get("translated") else ""))
    return ", ".join(part for part in parts if part)


def chip() -> str | None:
    """The processor's name as its maker prints it, such as `Apple M2 Ultra` or `AMD EPYC 7B13`."""
    if sys.platform == "darwin":
        name = _sysctl("machdep.cpu.brand_string")
        if name is None or "VirtualApple" in name:
            # Rosetta hides the chip behind an invented processor; the GPU is on the same chip and
            # carries its name.
            return next((gpu["name"] for gpu in _apple_gpus()[0]), None)
    else:
        # Arm kernels print no model name there; lscpu knows it from the part number.
        name = _line_value(file_text(CPUINFO), "model name") or _line_value(run_command("lscpu") or "", "Model name")
    return " ".join(name.split()) if name else None


def processor() -> dict[str, Any]:
    """What the system knows of `LSCPU` or `SYSCTL`, and on Linux those of its `Flags` that matter
    to training.
    """
    if sys.platform == "darwin":
        known: dict[str, Any] = {name: _sysctl(name) for name in SYSCTL}
    else:
        text = run_command("lscpu") or ""
        known = {name: _line_value(text, name) for name in LSCPU}
        known["Flags"] = " ".join(sorted(re.findall(INSTRUCTIONS, _line_value(text, "Flags") or ""))) or None
    clocks = {name: float(value) for name, value in known.items() if re.fullmatch(r"\d+\.\d+", str(value))}
    return {name: value for name, value in (known | clocks).items() if value is not None}


def virtual_machine() -> bool | None:
    """Whether this is a virtual machine; None if the system does not say."""
    if sys.platform == "darwin":
        return {0: False, 1: True}.get(_sysctl("kern.hv_vmm_present"))
    flags = _line_value(file_text(CPUINFO), "flags")
    return None if flags is None else "hypervisor" in flags.split()


def available_memory_bytes() -> int:
    """Memory that new work can take without swapping."""
    return psutil.virtual_memory().available


def thermal_level() -> int | None:
    """macOS's thermal pressure: 0 nominal, 1 moderate, 2 heavy, 3 trapping, 4 sleeping.

    None if unknown.
    """
    if sys.platform != "darwin":
        return None
    system = ctypes.CDLL(None)
    token, level = ctypes.c_int(), ctypes.c_uint64()
    if system.notify_register_check(b"com.apple.system.thermalpressurelevel", ctypes.byref(token)) != 0:
        return None
    failed = system.notify_get_state(token, ctypes.byref(level))
    system.notify_cancel(token)
    return None if failed else level.value


def cpu_busy_s() -> float:
    """CPU seconds of all processes and cores since this machine started: stolen time is, waiting
    for disks is not.
    """
    not_busy = (
        "idle",
        "iowait",
        "guest",
        "guest_nice",
    )  # Linux counts guests within user and nice already
    return sum(seconds for name, seconds in psutil.cpu_times()._asdict().items() if name not in not_busy)


def run_command(*command: str, timeout: float = 10) -> str | None:
    """Return what a command of the system prints; None if it is missing, fails or takes too long.

    timeout: in seconds.
    """
    program = shutil.which(command[0])
    if not program:
        return None
    # Git's own variables, set inside its hooks, would point git at another repository.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        # Into a file: what the command leaves running could keep the reader of a pipe waiting.
        with tempfile.TemporaryFile() as printed:
            done = subprocess.run(
                (program, *command[1:]),
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=subprocess.DEVNULL,
                env=kept | {"LC_ALL": "C"},
                # With a full path and this, Python spawns instead of forking. A fork would
                # write-protect all memory of this process for a moment, and a model in training
                # would fault on every page that it writes.
                close_fds=False,
                timeout=timeout,
                check=False,
            )
            printed.seek(0)
            text = printed.read().decode("utf-8", errors="replace")
    except (OSError, subprocess.TimeoutExpired):
        return None
    return text if done.returncode == 0 else None


def _sysctl(name: str) -> int | str | None:
    text = (run_command("sysctl", "-n", name) or "").strip()
    return int(text) if text.isdecimal() else text or None


def _cores_by_kind() -> tuple[int, int] | tuple[None, None]:
    """Performance and efficiency cores of an Apple chip, by its own names: an M5 calls its fastest
    `Super`.
    """
    kinds: Counter[Any] = Counter()
    for level in range(_sysctl("hw.nperflevels") or 0):
        kinds[_sysctl(f"hw.perflevel{level}.name")] += _sysctl(f"hw.perflevel{level}.physicalcpu") or 0
    if not kinds or kinds.keys() - {"Super", "Performance", "Efficiency"}:
        return None, None
    return kinds["Super"] + kinds["Performance"], kinds["Efficiency"]


def _apple_gpus() -> tuple[list[dict[str, Any]], str]:
    text = run_command("system_profiler", "SPDisplaysDataType", "-json", timeout=30)
    try:
        cards = [card for card in json.loads(text or "")["SPDisplaysDataType"] if card.get("sppci_model")]
    except (ValueError, KeyError, TypeError):
        return [], "system_profiler did not answer"
    counts = [str(card.get("sppci_cores")) for card in cards]
    cores = [int(count) if count.isdecimal() else None for count in counts]
    pairs = zip(cards, cores, strict=True)
    return [{"name": card["sppci_model"], "memory_bytes": None, "cores": n} for card, n in pairs], "macOS lists no GPU"


def _nvidia_gpus() -> tuple[list[dict[str, Any]], str]:
    try:
        import pynvml
    except ImportError:
        return [], "nvidia-ml-py is not installed"
    gpus = []
    try:
        pynvml.nvmlInit()
        for handle in map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount())):
            # CUDA cores are another unit than Apple's GPU cores: not counted.
            gpus.append({"name": pynvml.nvmlDeviceGetName(handle), "memory_bytes": None, "cores": None})
            with contextlib.suppress(pynvml.NVMLError_NotSupported):  # a GPU that shares the machine's memory
                gpus[-1]["memory_bytes"] = pynvml.nvmlDeviceGetMemoryInfo(handle).total
    except pynvml.NVMLError as error:
        return [], f"no NVIDIA driver answers: {error}"
    return gpus, "the NVIDIA driver lists no GPU"


def _git() -> tuple[dict[str, Any] | None, str]:
    # Looked for first: git would search the folders above, and a Mac without git opens a window
    # that offers it.
    if not (REPOSITORY / ".git").exists():
        return None, "the kit is not run from a git checkout"
    git = ("git", "--no-optional-locks", "-C", str(REPOSITORY))
    kit = (
        "--",
        ".",
        ":(exclude)outputs",
    )  # what was measured before changes nothing that is measured now
    commit = run_command(*git, "rev-parse", "HEAD", timeout=5)
    changes = run_command(*git, "status", "--porcelain", *kit) if commit else None  # not asked of a git that hangs
    if changes is None:
        return None, "git is missing, or has no commit to name"
    return {"commit": commit.strip(), "dirty": bool(changes.strip())}, ""


def _power() -> tuple[str | None, bool | None]:
    if sys.platform == "darwin":
        source = re.search(r"drawing from '(AC|Battery) Power'", run_command("pmset", "-g", "batt") or "")
        # One or the other, by model: `powermode` is 0 automatic, 1 low, 2 high.
        modes = re.findall(r"^\s*(?:lowpowermode|powermode)\s+(\d)", run_command("pmset", "-g") or "", re.MULTILINE)
        return source[1].lower() if source else None, "1" in modes if modes else None
    battery, profile = psutil.sensors_battery(), file_text(PLATFORM_PROFILE).strip()
    source = {True: "ac", False: "battery"}.get(battery.power_plugged) if battery else None
    return source, profile == "low-power" if profile else None


def file_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _line_value(text: str, key: str) -> str | None:
    """The value of the first `key : value` line."""
    match = re.search(rf"^{re.escape(key)}\s*:[ \t]*(\S.*)$", text, re.MULTILINE)
    return match[1].strip() if match else None


def _gigabytes(count: int | None) -> str:
    return f"{round(count / 2**30)} GB" if count else ""  # as memory is sold: 206158430208 bytes are "192 GB"


def cache_bytes() -> int | None:
    """The last-level cache of this processor, where the system lists it (Linux); None elsewhere, as
    on a Mac.
    """
    sizes = [file.read_text().strip() for file in CACHES.glob("index*/size")]
    return max((int(size[:-1]) * 1024 for size in sizes if re.fullmatch(r"\d+K", size)), default=None)
