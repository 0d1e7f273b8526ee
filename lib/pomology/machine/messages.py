"""Messages of frameworks and vendors' libraries: the status of a case, and what is needed."""

import re
import sys
from collections.abc import Set
from typing import NamedTuple


class Message(NamedTuple):
    """A kind of message.

    status: of a case that it ends. exceptions: names of the classes that carry it, separated by
    spaces. says: patterns of its words, one of which must match; none matches every text. needs:
    what the installation lacks, if that is at fault and no program.
    """

    status: str
    exceptions: str
    says: tuple[str, ...] = ()
    needs: str = ""

    def matches(self, text: str) -> bool:
        return re.search("|".join(self.says), text, re.IGNORECASE) is not None


# The first one that matches decides.
MESSAGES = (
    # The case's own requirements, which nothing has started.
    Message("too-big", "TooBig"),
    Message("too-slow", "TooSlow"),
    # The step is another one than declared, or differs from the CPU's.
    Message("mismatch", "Mismatch"),
    Message("not-learning", "NotLearning"),
    # A framework or a meter that this machine lacks.
    Message("unsupported", "Unsupported Absent"),
    # MPS in a virtual machine: nothing is allocated, and not even the first bytes are granted.
    Message(
        "unsupported",
        "RuntimeError",
        says=(
            r"MPS allocated: 0 bytes, other allocations: [\d.]+ (bytes|Ki?B).*Tried to allocate "
            r"[\d.]+ (bytes|Ki?B|[01]\.\d+ Mi?B)",
            # With 1 GB of 7 or more in use, nobody runs out of memory by some bytes.
            r"MPS allocated: (\d{1,4} bytes|[\d.]+ Ki?B|\d{1,3}\.\d+ Mi?B|1024\.00 Mi?B), other "
            r"allocations: [\d.]+ (bytes|Ki?B), max allowed: \d+\.\d+ Gi?B\)\. Tried to allocate "
            r"\d+ bytes",
        ),
        needs="a GPU of its own; that of a virtual machine may refuse its first bytes",
    ),
    # Memory: classes of Python, PyTorch and TensorFlow.
    Message("out-of-memory", "MemoryError OutOfMemoryError ResourceExhaustedError"),
    # Memory, told by a message only: the C library, Metal, MLX, cuBLAS.
    Message(
        "out-of-memory",
        "RuntimeError OpError OSError",
        says=(
            "out of memory",
            # Memory by its name, or by an amount of it.
            "(can't|cannot|unable to|failed to) allocate (a |the )?(device |host |pinned )?(memory"
            "|request|scratch|workspace|buffer|storage|space|tensor)",
            r"(can't|cannot|unable to|failed to) allocate\b.*\d ?([KMGT]i?)?(B|bytes)\b",
            "not enough memory: you tried to allocate",
            "Dst tensor is not initialized",
            "std::bad_alloc",
            "out of shared memory",
            # By the kernel, which ends what takes the last memory.
            "DataLoader worker .* is killed by signal: Killed",
            "Invalid buffer size",
            "Insufficient Memory",
            r"\[metal::malloc\] (Attempting to allocate|Resource limit)",
            r"NDArray > 2\*\*32",
            "(CUBLAS|CUDNN)_STATUS_ALLOC_FAILED",
        ),
    ),
    # A GPU that gave up work it had been given: what it computed until then is no result.
    Message(
        "mismatch",
        "RuntimeError OpError",
        says=(
            r"Command buffer execution failed",
            "kIO(GPU|Accel)CommandBufferCallbackError",
            "GPU is lost",
            "fallen off the bus",
            "the launch timed out and was terminated",
            "uncorrectable (ECC|NVLink) error",
        ),
    ),
    # Operators and data types that PyTorch lacks on a device, such as float64 on MPS.
    Message(
        "unsupported",
        "RuntimeError TypeError ValueError OpError",
        says=(
            "(unsupported|not (currently |yet )?(supported|implemented)) (on|for|at) (the )?MPS",
            "MPS (doesn't|does not) support",
            "to the MPS backend but it does not have support",
            "only supported on (MPS|MacOS|CUDA devices)",
            "only strided tensors are supported on MPS",
            r"MPS: \w+ op with \w+ input is supported natively starting from macOS",
            "MPS supports tensors with dimensions <=",
            "only works on .* types on MPS for pre MacOS",
            "MPSGr?aph does not support",  # PyTorch writes "MPSGaph"
            "(doesn't|does not) support (float64|complex128|bfloat16)",
            r"not implemented for '(Half|BFloat16|Float8_\w+)'",
            "Could not run '[^']+' with arguments from the",
            "only supports Ampere GPUs or newer",
            "cutlassF: no kernel found to launch",
            "FlashAttention .*only supports head dimension",
            "Unable to find a valid cuDNN algorithm",
        ),
    ),
    # The same of Triton: data types, and blocks that exceed a GPU's shared memory.
    Message(
        "unsupported",
        "ValueError TritonError RuntimeError",
        says=(
            r"type \w+ not supported in this architecture",
            "out of resource: .*Hardware limit",
        ),
    ),
    # The same of TensorFlow, its plugins and MLX, and operations that a virtual GPU forbids.
    Message(
        "unsupported",
        "RuntimeError TypeError ValueError OpError",
        says=(
            "No OpKernel was registered to support",
            "no supported kernel for [GC]PU devices",
            "Could not find (registered )?(compiler for )?platform",
            "not (yet )?supported on the GPU",
            "has no (CUDA|GPU) implementation",
            "No (Metal|CUDA) back-end",
            "CUDA error: (operation not supported|OS call failed)",
            "CU(BLAS|DNN)_STATUS_NOT_SUPPORTED(?!_)",
            "No (valid )?execution plans (built|support)",
            r"No available kernel\. Aborting execution",
            "too many resources requested for launch",
            r"(torch\.compile|Dynamo) is not supported on Python",
            "Cannot set gpu device without gpu backend",
            r"\[gpu::init\] No GPU backend",
            r"\bNYI on CUDA",
        ),
    ),
    # CUDA: kernels for other architectures than this GPU's.
    Message(
        "unsupported",
        "RuntimeError OpError TritonError PomologyError",
        says=(
            "no kernel image is available",
            "named symbol not found",
            "invalid device function",
            "device kernel image is invalid",
            "CUDA_ERROR_(NO_BINARY_FOR_GPU|INVALID_IMAGE)",
            r"STATUS_\w*ARCH_MISMATCH",
            "is not defined for option 'gpu-name'",
            "invalid value for --gpu-architecture",
            "nvcc fatal *: Unsupported gpu architecture",
        ),
        needs=(
            "a build for this GPU; PyTorch's builds for CUDA 12.6 (cu126) have sm_50 to "
            "sm_90{architectures}"
        ),
    ),
    # CUDA: a driver older than the framework's libraries.
    Message(
        "unsupported",
        "RuntimeError OpError PomologyError",
        says=(
            "driver (on your system )?is too old",
            "driver version is insufficient",
            "not supported in the installed CUDA driver",
            "unsupported toolchain",
            "PTX JIT compil",
            r"CUDA_ERROR_(UNSUPPORTED_PTX_VERSION|INVALID_PTX|JIT_\w+)",
            "INCOMPATIBLE_CUDA_DRIVER",
        ),
        needs=(
            "a newer NVIDIA driver (CUDA 13 needs 580 or later, CUDA 12 needs 525), or a "
            "build for an older CUDA"
        ),
    ),
    # CUDA: libraries that do not fit the driver, as after an update without a restart.
    Message(
        "unsupported",
        "RuntimeError OpError PomologyError",
        says=(
            "unsupported display driver",
            "forward compatibility was attempted",
            "Driver/library version mismatch",
            "CUDA driver is a stub",
            "system not yet initialized",
            "incorrectly set up environment",
            "CUDA driver initialization failed",
            r"CUDA_ERROR_(SYSTEM_\w+|COMPAT_\w+|STUB_LIBRARY)",
        ),
        needs=(
            "CUDA libraries that fit the NVIDIA driver: restart after an update of the "
            "driver, and take other CUDA libraries out of LD_LIBRARY_PATH"
        ),
    ),
    # CUDA: a build without it.
    Message(
        "unsupported",
        "AssertionError",
        says=(
            "Torch not compiled with CUDA enabled",
            "libcudart functions unavailable",
        ),
        needs="PyTorch's build with CUDA, and an NVIDIA GPU",
    ),
    # CUDA: no GPU, or a hidden one.
    Message(
        "unsupported",
        "RuntimeError AssertionError OpError PomologyError",
        says=(
            "no CUDA-capable device is detected",
            "CUDA_ERROR_NO_DEVICE",
            "Found no NVIDIA driver",
            "No CUDA GPUs are available",
            r"libcuda\.so cannot (be )?found",
        ),
        needs="an NVIDIA GPU with its driver, which CUDA_VISIBLE_DEVICES does not hide",
    ),
    # CUDA: a GPU that another program holds exclusively.
    Message(
        "unsupported",
        "RuntimeError OpError PomologyError",
        says=(
            r"CUDA-capable device\S* (is/)?are busy",
            "MPS client failed to connect",
            "CUDA_ERROR_DEVICE_UNAVAILABLE",
        ),
        needs=(
            "a GPU that no other program holds: `nvidia-smi` lists the programs and shows "
            "whether its compute mode is exclusive"
        ),
    ),
    # CUDA: a virtual GPU without a license.
    Message(
        "unsupported",
        "RuntimeError OpError PomologyError",
        says=(
            "doesn't have (a )?valid Grid license",
            "CUDA_ERROR_DEVICE_NOT_LICENSED",
            r"CU\w+_STATUS_LICENSE_ERROR",
        ),
        needs="a license of the virtual GPU",
    ),
    # cuDNN and cuBLAS: another version, or too little memory to start.
    Message(
        "unsupported",
        "RuntimeError OpError PomologyError",
        says=(
            r"CU\w+_STATUS_\w*(NOT_INITIALIZED|VERSION_MISMATCH|INCOMPATIBLE_CUDART|PREREQUISITE_MISSING|SUBLIBRARY_\w+)",
            "DNN library (initialization failed|is not found)",
            "cuDNN failed to initialize",
            "cuDNN version incompatibility",
            "Could not create cudnn handle",
            "(GET|FIND) was unable to find an engine",
        ),
        needs=(
            "the cuDNN and cuBLAS of requirements.txt (run `make env`, and take others "
            "out of LD_LIBRARY_PATH), and free memory of the GPU"
        ),
    ),
    # The loader: libraries that are missing or of another version.
    Message(
        "unsupported",
        "RuntimeError ImportError OSError OpError PomologyError",
        says=(
            "cannot open shared object file",
            "undefined symbol: ",
            "Symbol not found: ",
            "Library not loaded: ",
            "Could not load (dynamic )?library",
            r"Unable to load any of \{?lib",
            r"libdevice(\.10\.bc)? not found",
            "Couldn't (invoke|get) ptxas",
            "^JIT compilation failed",
            "Can not find locations of CUDA headers",
        ),
        needs=(
            "the libraries of requirements.txt: remove .venv, run `make env`, and take "
            "others out of LD_LIBRARY_PATH"
        ),
    ),
    # The loader: a system whose C or C++ library is older than the one of the build.
    Message(
        "unsupported",
        "ImportError OSError OpError PomologyError",
        says=(r"version `GLIBC(XX)?_[\d.]+' not found",),
        needs=(
            "a newer Linux, whose C and C++ libraries are those of the build or later; take older "
            "ones out of LD_LIBRARY_PATH"
        ),
    ),
    # torch.compile and MLX on the CPU: no C++ compiler, OpenMP or headers.
    Message(
        "unsupported",
        "RuntimeError OSError SubprocessError PomologyError",
        says=(
            r"No working C\+\+ compiler",
            "Failed to find C compiler",
            r"No such file or directory: '(/(usr|opt|Applications|Library)/\S*/)?"
            r"(g\+\+|gcc|c\+\+|cc|clang(\+\+)?|xcrun)'",
            "xcrun: error",
            "No developer tools were found",
            r"fatal error: '?(Python|omp)\.h",
            "OpenMP support not found",
            "unsupported option '-fopenmp'",
            "ld: ?(cannot find -l|library .*not found)",
            "unrecognized command[- ]line option",
            r"need C\+\+\d+ to compile",
            r"Command '?\['\S*(g\+\+|gcc|c\+\+|cc|clang)'.*non-zero exit status",
        ),
        needs=(
            "a C++ compiler of today with OpenMP and Python's headers: `apt install g++ "
            "python3-dev`, or `xcode-select --install` on a Mac"
        ),
    ),
    # torch.compile on CUDA: Triton.
    Message(
        "unsupported",
        "RuntimeError PomologyError",
        says=(
            "Cannot find a working triton installation",
            "too old to be supported by the triton",
        ),
        needs="Triton and an NVIDIA GPU of capability 7.0 or later",
    ),
    # torch.compile on CUDA: an assembler that refuses what Triton wrote.
    Message(
        "unsupported",
        "RuntimeError TritonError PomologyError",
        says=("PTXAS error: ",),
        needs=(
            "the Triton of requirements.txt with the assembler in it, and a GPU that both know; "
            "TRITON_PTXAS_PATH must name no other one"
        ),
    ),
    # Metal: no GPU, an old macOS, or a compiler that does not answer.
    Message(
        "unsupported",
        "RuntimeError ImportError OpError PomologyError",
        says=(
            "No Metal device available",
            r"metal::\w+\] (Failed to load|Unable to (load|build))",
            "Failed to load the (default )?metallib",
            "Failed to created? (pipeline state object|function state object|metal library)",
            "Failed to find function .* in library",
            "no NAX kernel",
            r"using language version [\d.]+ which is",
            "MTLCompiler",
            "XPC_ERROR_CONNECTION",
            "MPS backend is supported on MacOS",
            "not (linked with support for mps|compiled with MPS enabled)",
        ),
        needs=(
            "a Metal GPU, and a macOS for which the framework is built; restart the Mac "
            "if Metal's compiler does not answer"
        ),
    ),
    # torch.compile: whatever else its backend failed on. The class says so, not the words; an
    # error of the compiled function itself has another class.
    Message("unsupported", "BackendCompilerFailed"),
)


def explain(message: str, kinds: Set[str]) -> tuple[str, str | None] | None:
    """Return the status for an exception of these classes, and its `fault`; None for a bug."""
    for entry in MESSAGES:
        if kinds & {*entry.exceptions.split()} and entry.matches(message):
            return entry.status, _with_needs(entry, message) if entry.needs else None
    return None


def fault(message: str) -> str | None:
    """Return the sentence about a fault of the installation, with what is needed; None without."""
    for entry in MESSAGES:
        if entry.needs and entry.matches(message):
            return _with_needs(entry, message)
    return None


def _with_needs(entry: Message, message: str) -> str:
    """Return the sentence of the message that matches, or all of its line, and what is needed."""
    sentences = re.split(r"\n|(?<=[.?]) (?=[A-Z])", message)
    lines = message.split("\n")
    sentence = next(text for text in (*sentences, *lines, message) if entry.matches(text))
    needs = entry.needs
    if "{architectures}" in needs:
        needs = needs.format(architectures=_architectures())
    return f"{sentence.strip().rstrip('.')}; needs {needs}"


def _architectures() -> str:
    """Return what this process's PyTorch is built for, and its GPU; "" without PyTorch or CUDA."""
    torch = sys.modules.get("torch")
    if not (torch and torch.cuda.is_available()):
        return ""
    built = ", ".join(torch.cuda.get_arch_list())
    major, minor = torch.cuda.get_device_capability()
    return f"; PyTorch {torch.__version__} has {built}; this GPU is sm_{major}{minor}"
