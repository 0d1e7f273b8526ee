"""What an exception of a framework means."""

import builtins

import numpy as np
import pytest
import torch

from pomology.devices.failures import failure
from pomology.errors import Unsupported

FAILURES = [
    (
        "RuntimeError: MPS backend out of memory (MPS allocated: 13.50 GB, max allowed: 18.13 GB)",
        "out-of-memory",
    ),
    ("RuntimeError: Invalid buffer size: 23.27 GiB", "out-of-memory"),
    (
        "RuntimeError: Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)",
        "out-of-memory",
    ),
    (
        "RuntimeError: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "out-of-memory",
    ),
    (
        "RuntimeError: [metal::malloc] Attempting to allocate 48736917632 bytes which is greater than",
        "out-of-memory",
    ),
    ("OutOfMemoryError: no such words", "out-of-memory"),
    (
        "NotImplementedError: The operator 'x' is not currently implemented for the MPS device.",
        "unsupported",
    ),
    (
        "TypeError: the MPS framework doesn't support float64. Please use float32 instead.",
        "unsupported",
    ),
    (
        "RuntimeError: ConvTranspose 3D with BF16 or FP16 types is not supported on MPS",
        "unsupported",
    ),
    ("RuntimeError: MPS does not support cumsum op with int64 input", "unsupported"),
    (
        "RuntimeError: Non-divisible input sizes are not implemented on MPS device yet.",
        "unsupported",
    ),
    ("RuntimeError: \"binary_cross_entropy\" not implemented for 'Half'", "unsupported"),
    (
        "NotImplementedError: Could not run 'x' with arguments from the 'SparseMPS' backend.",
        "unsupported",
    ),
    (
        "ValueError: [linalg::svd] This op is not yet supported on the GPU. Explicitly pass a CPU stream",
        "unsupported",
    ),
    ("Unsupported: no such precision", "unsupported"),
    (
        "RuntimeError: Expected all tensors to be on the same device, but found at least two, mps:0 and cpu!",
        None,
    ),
    ("RuntimeError: [METAL] Command buffer execution failed: Caused GPU Timeout Error", None),
    ("ValueError: out of memory", None),
    ("AssertionError: not supported on MPS", None),
    ("KeyboardInterrupt: ", None),
]


def test_failures_are_told_apart():
    known = vars(builtins) | {
        "OutOfMemoryError": torch.OutOfMemoryError,
        "Unsupported": Unsupported,
    }
    for exception, status in FAILURES:
        kind, text = exception.split(": ", 1)
        assert failure(known[kind](text)) == status, exception
    for make in (lambda: torch.empty(10**15), lambda: np.empty(10**15)):
        with pytest.raises((RuntimeError, MemoryError)) as error:
            make()
        assert failure(error.value) == "out-of-memory"
