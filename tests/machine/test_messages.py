"""Messages of faults of the installation, with what is needed."""

import sys
from types import SimpleNamespace

from pomology.machine import messages

OTHER_GPU = "CUDA error: no kernel image is available for execution on the device"
NEEDS = "needs a build for this GPU; PyTorch's builds for CUDA 12.6 (cu126) have sm_50 to sm_90"


def test_a_build_for_other_gpus_names_both(monkeypatch):
    cuda = SimpleNamespace(is_available=lambda: True, get_arch_list=lambda: ["sm_80", "sm_90"])
    cuda.get_device_capability = lambda: (12, 0)
    torch = SimpleNamespace(__version__="2.14.1+cu130", cuda=cuda)
    monkeypatch.setitem(sys.modules, "torch", torch)
    both = "; PyTorch 2.14.1+cu130 has sm_80, sm_90; this GPU is sm_120"
    assert messages.fault(OTHER_GPU) == f"{OTHER_GPU}; {NEEDS}{both}"
    assert messages.explain(OTHER_GPU, {"RuntimeError"}) == (
        "unsupported",
        f"{OTHER_GPU}; {NEEDS}{both}",
    )
    monkeypatch.delitem(sys.modules, "torch")
    assert messages.fault(OTHER_GPU) == f"{OTHER_GPU}; {NEEDS}"


def test_a_bug_is_no_fault_and_has_no_status():
    assert messages.fault("list index out of range") is None
    assert messages.explain("list index out of range", {"IndexError"}) is None
