"""What an exception of a framework means: out of memory, or not supported."""

import re
from typing import Literal

from pomology.errors import Unsupported

# MPS and the CPU allocator raise plain RuntimeErrors; only CUDA has a class of its own, which its
# libraries do not use.
OUT_OF_MEMORY = re.compile(
    r"out of memory|(can't|cannot|unable to|failed to) allocate"
    r"|Invalid buffer size"  # one buffer of MPS, larger than Metal allows
    r"|Insufficient Memory"  # what Metal notices while it runs a command buffer
    r"|\[metal::malloc\] Attempting to allocate"  # MLX
    r"|(CUBLAS|CUDNN)_STATUS_ALLOC_FAILED",
    re.IGNORECASE,
)
UNSUPPORTED = re.compile(
    r"(unsupported|not (currently |yet )?(supported|implemented)) (on|for) (the )?MPS"
    r"|MPS (doesn't|does not) support|(doesn't|does not) support (float64|complex128)"
    r"|not implemented for '(Half|BFloat16)'|Could not run '[^']+' with arguments from the"
    # TensorFlow: an operator without a kernel, and XLA, which knows no Metal
    r"|No OpKernel was registered to support|no supported kernel for [GC]PU devices"
    r"|Could not find registered platform"
    r"|not (yet )?supported on the GPU",  # MLX
    re.IGNORECASE,
)


def failure(exception: BaseException) -> Literal["out-of-memory", "unsupported"] | None:
    """The status of a case that an exception stands for, or None for a bug."""
    text = str(exception)
    kinds = {kind.__name__ for kind in type(exception).__mro__}
    if kinds & {"MemoryError", "OutOfMemoryError", "ResourceExhaustedError"}:
        return "out-of-memory"
    if kinds & {"RuntimeError", "OpError"} and OUT_OF_MEMORY.search(text):
        return "out-of-memory"
    # MPS raises NotImplementedError (a RuntimeError) for a missing operator and TypeError for
    # float64; MLX raises ValueError.
    may_be = kinds & {"RuntimeError", "TypeError", "ValueError", "OpError"}
    if isinstance(exception, Unsupported) or (may_be and UNSUPPORTED.search(text)):
        return "unsupported"
    return None
