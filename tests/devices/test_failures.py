"""What an exception of a framework means."""

import builtins

import numpy as np
import pytest
import torch

from pomology.devices.failures import failure
from pomology.errors import Unsupported

OUT_OF_MEMORY = (
    "RuntimeError: MPS backend out of memory (MPS allocated: 13.50 GB, max allowed: 18.13 GB)",
    "RuntimeError: Invalid buffer size: 23.27 GiB",
    "RuntimeError: Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)",
    "RuntimeError: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "RuntimeError: [metal::malloc] Attempting to allocate 48736917632 bytes which is greater than",
    "OutOfMemoryError: no such words",
)
UNSUPPORTED = (
    "NotImplementedError: The operator 'x' is not currently implemented for the MPS device.",
    "TypeError: the MPS framework doesn't support float64. Please use float32 instead.",
    "RuntimeError: ConvTranspose 3D with BF16 or FP16 types is not supported on MPS",
    "RuntimeError: MPS does not support cumsum op with int64 input",
    "RuntimeError: Non-divisible input sizes are not implemented on MPS device yet.",
    "RuntimeError: \"binary_cross_entropy\" not implemented for 'Half'",
    "NotImplementedError: Could not run 'x' with arguments from the 'SparseMPS' backend.",
    "ValueError: [linalg::svd] This op is not yet supported on the GPU. Explicitly pass a CPU",
    "Unsupported: no such precision",
)
BUGS = (
    "RuntimeError: Expected all tensors to be on the same device, but found two, mps:0 and cpu!",
    "RuntimeError: [METAL] Command buffer execution failed: Caused GPU Timeout Error",
    "ValueError: out of memory",
    "AssertionError: not supported on MPS",
    "KeyboardInterrupt: ",
)
FAILURES = dict.fromkeys(OUT_OF_MEMORY, "out-of-memory") | dict.fromkeys(UNSUPPORTED, "unsupported")
FAILURES |= dict.fromkeys(BUGS)


@pytest.mark.parametrize("exception", FAILURES)
def test_failures_are_told_apart(exception):
    kinds = {"OutOfMemoryError": torch.OutOfMemoryError, "Unsupported": Unsupported}
    kind, text = exception.split(": ", 1)
    assert failure((vars(builtins) | kinds)[kind](text)) == FAILURES[exception]


@pytest.mark.parametrize("allocate", [torch.empty, np.empty])
def test_what_the_cpu_raises_for_too_much_memory(allocate):
    with pytest.raises((RuntimeError, MemoryError)) as error:
        allocate(10**15)
    assert failure(error.value) == "out-of-memory"
