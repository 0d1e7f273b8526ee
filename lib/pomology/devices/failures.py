"""What an exception of a framework means: out of memory, or not supported."""

import re
from typing import Literal

from pomology.errors import Unsupported

# MPS and the CPU allocator raise plain RuntimeErrors; only CUDA has a class of its own, which its libraries do not use.
# A single MPS buffer larger than the Metal limit is an "Invalid buffer size"; what Metal itself notices while it runs a
# command buffer is "Insufficient Memory". MLX names its allocator.
OUT_OF_MEMORY = re.compile(
    r"out of memory|Invalid buffer size|(can't|cannot) allocate memory|Unable to allocate|Insufficient Memory|"
    r"(CUBLAS|CUDNN)_STATUS_ALLOC_FAILED|failed to allocate memory|\[metal::malloc\] Attempting to allocate",
    re.IGNORECASE,
)
UNSUPPORTED = re.compile(
    r"not currently (implemented|supported) (for|on) the MPS|(doesn't|does not) support (float64|complex128)|"
    r"(unsupported|not (yet )?(supported|implemented)) (on|for) (the )?MPS|MPS (doesn't|does not) support|"
    r"not implemented for '(Half|BFloat16)'|Could not run '[^']+' with arguments from the|"
    # TensorFlow: an operator without a kernel, and XLA, which knows no Metal
    r"No OpKernel was registered to support|no supported kernel for [GC]PU devices|Could not find registered platform|"
    r"not (yet )?supported on the GPU",  # MLX
    re.IGNORECASE,
)


def failure(exception: BaseException) -> Literal["out-of-memory", "unsupported"] | None:
    """The status of a case that an exception stands for, or None for a bug."""
    # MPS raises NotImplementedError for a missing operator and TypeError for float64; MLX raises ValueError.
    text, kinds = str(exception), {kind.__name__ for kind in type(exception).__mro__}
    if kinds & {"MemoryError", "OutOfMemoryError", "ResourceExhaustedError"}:
        return "out-of-memory"
    if kinds & {"RuntimeError", "OpError"} and OUT_OF_MEMORY.search(text):
        return "out-of-memory"
    may_be = kinds & {"NotImplementedError", "RuntimeError", "TypeError", "ValueError", "OpError"}
    if isinstance(exception, Unsupported) or (may_be and UNSUPPORTED.search(text)):
        return "unsupported"
    return None
