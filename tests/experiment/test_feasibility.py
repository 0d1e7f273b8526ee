"""What cannot fit or end in time is not tried."""

from types import SimpleNamespace

import pytest
import records
from small_model import WORK, fit, run

from pomology.devices.torch import TorchDevice as Device
from pomology.errors import PomologyError, TooBig
from pomology.experiment import feasibility
from pomology.measure.clock import Block
from pomology.models.cost import Workload


@pytest.mark.parametrize("free", [WORK.bytes, WORK.bytes - 1])
def test_what_cannot_fit_is_not_tried(make, monkeypatch, free):
    monkeypatch.setattr(Device, "free_memory", lambda self: free)
    built = []

    def body(case):
        case.require_memory(WORK)
        built.append(fit(case))

    record = run(make(), body)
    assert bool(built) == (record.status == "ok") == (free == WORK.bytes)
    if not built:
        assert (record.status, record.parameters, record.metrics) == ("too-big", 5, {})
        assert record.reason.startswith("needs 0.0 GB at the least (weights, gradients and")


@pytest.mark.parametrize(("teraflops", "refused"), [(9.0, False), (11.0, True)])
def test_what_surely_cannot_end_is_refused_with_the_arithmetic(
    make, monkeypatch, teraflops, refused
):
    monkeypatch.setattr(feasibility, "peak_matmul_rate", lambda *_: 1e12)
    work = Workload(parameters=1, flops=int(teraflops * 1e12), state_bytes=1, saved_bytes=1)

    def body(case):
        case.require_memory(work)
        case.require_time(30.0, steps=3)
        case.metric("step_s", 1.0, "s")

    record = run(make(), body, precision=["fp16"])
    assert record.status == ("too-slow" if refused else "ok")
    if refused:
        assert record.reason == (
            "a step of 11 TFLOP would take 11.0 s at the least, at 1,000 GFLOP/s, the most that a "
            "product in fp16 reaches here; 3 steps must end within 30.0 s"
        )


def test_the_peak_is_this_runs_ceiling_or_the_fastest_product(make, monkeypatch):
    sizes = []
    times_s = {512: 0.001, 1024: 0.004, 2048: 0.080}  # the last is long, so none longer is tried
    timed = 2 * 1024**3 / 0.004
    monkeypatch.setattr(Device, "product", lambda self, precision, size: sizes.append(size))
    monkeypatch.setattr(
        feasibility.calls,
        "measure",
        lambda *_, **__: SimpleNamespace(blocks=[Block(1, times_s[sizes[-1]])]),
    )

    def ceiling(rate, framework="torch", precision="fp16", flags=()):
        return records.product(rate, precision, framework=framework, flags=list(flags))

    doubtful = ["contended"]
    for kept, expected, is_timed in (
        ([ceiling(timed / 2)], timed / 2, False),
        ([ceiling(2 * timed, flags=doubtful)], 2 * timed, True),
        ([ceiling(timed / 2, flags=doubtful)], timed, True),
        ([ceiling(9e15, "mlx"), ceiling(9e15, precision="fp32")], timed, True),
        ([], timed, True),
    ):
        experiment = make()
        experiment.run = SimpleNamespace(records=kept)
        sizes.clear()
        for _ in range(2):
            rate = feasibility.peak_matmul_rate(experiment, experiment.devices[0], "fp16")
            assert rate == pytest.approx(expected)
        assert sizes == ([512, 1024, 2048] if is_timed else [])  # once in a process


@pytest.mark.parametrize(
    ("free", "wanted"), [(100e9, 90e9), (20e9, 18e9), (8e9, 6.5e9), (2e9, 0.5e9)]
)
def test_a_case_near_the_limit_spares_the_machine(make, monkeypatch, free, wanted):
    case = next(make().cases(load=["near"]))
    monkeypatch.setattr(case.backend, "free_memory", lambda: int(free))
    assert feasibility.fill(case, lambda count: count, "byte") == pytest.approx(
        wanted / feasibility.HOLES
    )
    monkeypatch.setattr(case.backend, "kind", "gpu")
    assert feasibility.fill(case, lambda count: count, "byte") == pytest.approx(wanted)
    assert not case.scaled
    # 100 bytes each, and 50 of whatever is there only once.
    parts = feasibility.fill(case, lambda count: 50 + 100 * count, "part", most_bytes=1000)
    assert parts == 9 and case.scaled
    with pytest.raises(TooBig, match="one part needs at least 2"):
        feasibility.fill(case, lambda count: 2000 * count, "part", most_bytes=1000)
    monkeypatch.setattr(case.backend, "free_memory", lambda: int(1.4e9))
    with pytest.raises(TooBig, match="one part needs"):
        feasibility.fill(case, lambda count: 100 * count, "part")
    with pytest.raises(PomologyError, match=r"near is 1\.5"):
        feasibility.fill(case, lambda count: 100 * count, "part", 1.5)


def test_tf32_is_another_way_only_where_the_device_has_it(make, monkeypatch):
    record = run(make(), lambda case: case.require_tf32(), number=[1])
    assert record.status == "unsupported"
    monkeypatch.setattr(Device, "tf32", True)

    def body(case):
        case.require_tf32()
        fit(case)

    record = run(make(), body, number=[2])
    assert record.note == "fp32 as PyTorch ships it, which here is TF32"
    assert "other-way" in record.flags
