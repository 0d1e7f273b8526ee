"""Statuses of exceptions, and drift."""

import builtins

import numpy as np
import pytest
import torch

from pomology.errors import Unsupported
from pomology.experiment.outcome import drift, of_exception

OUT_OF_MEMORY = (
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
    "RuntimeError: \"binary_cross_entropy\" not implemented for 'Half'",
    "NotImplementedError: Could not run 'x' with arguments from the 'SparseMPS' backend.",
    "ValueError: [linalg::svd] This op is not yet supported on the GPU. Explicitly pass a CPU",
    "Unsupported: no such precision",
    "NoNumbers: of a notebook's own",
)
BUGS = (
    "RuntimeError: Expected all tensors to be on the same device, but found two, mps:0 and cpu!",
    "RuntimeError: [METAL] Command buffer execution failed: Caused GPU Timeout Error",
    "ValueError: out of memory",
    "AssertionError: not supported on MPS",
    "KeyError: it is not there",
)
STATUSES = dict.fromkeys(OUT_OF_MEMORY, "out-of-memory") | dict.fromkeys(UNSUPPORTED, "unsupported")
STATUSES |= dict.fromkeys(BUGS, "error") | {"KeyboardInterrupt: ": "interrupted"}


@pytest.mark.parametrize("exception", STATUSES)
def test_exceptions_have_their_statuses(exception):
    own = type("NoNumbers", (Unsupported,), {})
    kinds = {"Unsupported": Unsupported, "NoNumbers": own}
    kind, text = exception.split(": ", 1)
    kinds |= vars(builtins)
    raised = kinds.get(kind, torch.OutOfMemoryError)(text)
    assert of_exception(raised)[0] == STATUSES[exception]


@pytest.mark.parametrize("allocate", [torch.empty, np.empty])
def test_the_cpu_s_error_for_too_much_memory_is_out_of_memory(allocate):
    with pytest.raises((RuntimeError, MemoryError)) as error:
        allocate(10**15)
    assert of_exception(error.value)[0] == "out-of-memory"


def test_drift_is_the_change_between_thirds_above_their_noise():
    assert drift([1.0] * 17) is drift([0.0] * 18) is None
    assert drift([1.0] * 12 + [2.0] * 6) == pytest.approx(1.0)
    assert drift([2.0] * 7 + [1.0] * 14) == pytest.approx(-0.5)
    assert drift([2.0] * 6 + [9.0] * 6 + [2.0] * 6) == pytest.approx(3.5)  # and came back
    generator = np.random.default_rng(3)
    noise = generator.normal(1.0, 0.1, (400, 60))
    assert np.mean([abs(drift(times)) > 0.1 for times in noise]) <= 0.01
    slower = noise * np.where(np.arange(60) < 30, 1.0, 1.2)
    assert np.mean([abs(drift(times)) > 0.1 for times in slower]) >= 0.95
