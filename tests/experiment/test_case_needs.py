"""Cases that cannot fit or end in time are not tried."""

from types import SimpleNamespace

import pytest
from small_model import WORK, fit, run

from pomology.devices.torch import TorchDevice as Device
from pomology.errors import TooBig
from pomology.experiment import case as experiment_case
from pomology.machine import snapshot
from pomology.measure.clock import Block
from pomology.models.cost import Workload


@pytest.mark.parametrize("free", [WORK.bytes, WORK.bytes - 1])
def test_a_case_that_cannot_fit_is_not_tried(make, monkeypatch, free):
    monkeypatch.setattr(Device, "free_memory", lambda self: free)
    built = []

    def body(case):
        case.require_memory(WORK)
        built.append(fit(case))

    record = run(make(), body)
    assert bool(built) == (record.status == "ok") == (free == WORK.bytes)
    if not built:
        assert (record.status, record.parameters, record.metrics) == ("too-big", 5, {})
        assert record.reason.startswith("needs 0.0 GB at least (weights, gradients and")


@pytest.mark.parametrize(("teraflops", "refused"), [(9.0, False), (11.0, True)])
def test_a_case_that_cannot_end_in_time_has_the_estimate_in_its_reason(
    make, monkeypatch, teraflops, refused
):
    monkeypatch.setattr(experiment_case, "peak_matmul_rate", lambda *_: 1e12)
    work = Workload(parameters=1, flops=int(teraflops * 1e12), state_bytes=1, saved_bytes=1)

    def body(case):
        case.require_memory(work)
        case.require_time(30.0, steps=3)
        case.metric("step_s", 1.0, "s")

    record = run(make(), body, precision=["fp16"])
    assert record.status == ("too-slow" if refused else "ok")
    if refused:
        words = "a step of 11 TFLOP takes about 11.0 s at 1,000 GFLOP/s"
        assert record.reason.startswith(words)


def test_the_peak_is_that_of_the_fastest_matmul_and_is_timed_once(make, monkeypatch):
    sizes = []
    times_s = {512: 0.001, 1024: 0.004, 2048: 0.080}  # after a slow one no larger one is tried
    monkeypatch.setattr(Device, "product", lambda self, precision, size: sizes.append(size))
    monkeypatch.setattr(
        experiment_case.calls,
        "measure",
        lambda *_, **__: SimpleNamespace(blocks=[Block(1, times_s[sizes[-1]])]),
    )
    (device,) = make().devices
    for _ in range(2):
        rate = experiment_case.peak_matmul_rate(device, "fp16")
        assert rate == pytest.approx(2 * 1024**3 / 0.004)
    assert sizes == [512, 1024, 2048]


@pytest.mark.parametrize(("unified", "needed_gb"), [(False, "20.0"), (True, "25.0")])
def test_offloaded_state_must_fit_the_host(make, monkeypatch, unified, needed_gb):
    """On a CPU the device uses the host's memory, too."""
    needed = Workload(10, 100, state_bytes=4 * 10**9, saved_bytes=10**9, host_bytes=20 * 10**9)
    (case,) = make().cases()
    case.backend = SimpleNamespace(unified_memory=unified, free_memory=lambda: 10**11)
    free = int(25.1e9 if unified else 20.1e9)
    monkeypatch.setattr(snapshot, "available_memory_bytes", lambda: free)
    case.require_memory(needed)
    monkeypatch.setattr(snapshot, "available_memory_bytes", lambda: int(19.9e9))
    with pytest.raises(TooBig, match=rf"^needs {needed_gb} GB of the host's memory"):
        case.require_memory(needed)


def test_tf32_is_another_method_on_devices_that_have_it(make, monkeypatch):
    record = run(make(), lambda case: case.require_tf32(), number=[1])
    assert record.status == "unsupported"
    monkeypatch.setattr(Device, "tf32", True)

    def body(case):
        case.require_tf32()
        fit(case)

    record = run(make(), body, number=[2])
    assert record.note == "fp32 by the default of PyTorch, which is TF32 on this device"
    assert "other-way" in record.flags
