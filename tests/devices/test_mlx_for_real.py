"""MLX on a real CPU: also the plan of the notebook `memory`, and a mocked GPU that is wrong."""

import contextlib

import fakes
import numpy as np
import pytest

from pomology.devices import find
from pomology.experiment.experiment import Experiment
from pomology.models import verify

pytestmark = [pytest.mark.process("mlx"), pytest.mark.usefixtures("quiet_machine")]
find.prepare("mlx")
import mlx.core as mx  # noqa: E402
import mlx.nn as nn  # noqa: E402
import mlx.optimizers as optim  # noqa: E402
from mlx.utils import tree_flatten  # noqa: E402


def test_the_real_cpu_works():
    (cpu,) = find.find("cpu", "mlx")
    cpu.reset_peak_memory()
    model = nn.Linear(30, 4)
    before = cpu.weight_sample(model)
    model.update({"weight": model.weight + 1})
    assert cpu.weight_sample(model) != before
    assert (cpu.count(model), cpu.device_of(model)) == (124, "cpu")
    moved = cpu.to_device({"x": [np.zeros(3), (1.0, mx.ones(2))]})["x"]
    assert moved[0].dtype == mx.float32 and moved[1][1].tolist() == [1.0, 1.0]
    half = {"fp16": mx.float16, "bf16": mx.bfloat16}
    for precision in ("fp32", "tf32", "fp16", "bf16"):
        product = cpu.product(precision, 16)()
        assert product.dtype == half.get(precision, mx.float32) and float(product.max()) > 1
    with pytest.raises(ValueError, match="ReLU has no parameters"):
        cpu.device_of(nn.ReLU())
    assert cpu.precisions() == dict.fromkeys(("fp32", "fp16", "bf16", "fp64")) and not cpu.tf32
    assert cpu.free_memory() > 10**7


@pytest.mark.parametrize(
    ("wrong", "wrong_update", "status"),
    [(1.0, 1.0, "ok"), (1.01, 1.0, "mismatch"), (1.0, 1.01, "mismatch")],
)
def test_a_gpu_that_computes_wrong_values_is_a_mismatch(
    tmp_path, monkeypatch, wrong, wrong_update, status
):
    settings = {"framework": "mlx", "devices": "cpu", "budget_s": 0.1, "expects_learning": False}
    experiment = Experiment("memory", article="001", out=str(tmp_path), **settings)
    (device,) = experiment.devices
    on_the_cpu = []
    right = mx.stream

    @contextlib.contextmanager
    def stream(place):
        if isinstance(place, mx.DeviceType):  # as the verification asks for the CPU
            on_the_cpu.append(True)
        with right(place):
            yield
        on_the_cpu.clear()

    def loss(model, inputs):
        return (model(inputs) * (1.0 if on_the_cpu else wrong)).square().mean()

    def one_step(model, count):
        inputs = mx.random.normal((count, 8))
        return nn.value_and_grad(model, loss)(model, inputs)

    class Optimizer(optim.Adam):
        def apply_single(self, gradient, parameter, state):
            updated = super().apply_single(gradient, parameter, state)
            return updated * (1.0 if on_the_cpu else wrong_update)

    monkeypatch.setattr(device, "kind", "gpu")
    monkeypatch.setattr(mx, "stream", stream)
    (case,) = experiment.cases(batch_size=[6])
    with case:
        model = case.watch_model(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm(8), nn.Linear(8, 3)))
        before = [(name, np.array(array)) for name, array in tree_flatten(model.parameters())]
        verify.step(case, model, one_step, Optimizer(1e-3))
        for (name, old), (_, new) in zip(before, tree_flatten(model.parameters()), strict=True):
            assert (old == np.array(new)).all(), name
        case.metric("step_s", 1.0, "s")
    (record,) = experiment.records
    assert record.status == status, record.reason
    assert ("step_s" in record.metrics) is (status == "ok")


@pytest.fixture
def memory(tmp_path) -> dict:
    """The names of the notebook `memory` up to its cases."""
    scope: dict = {}
    settings = {"framework": "mlx", "devices": "cpu", "out": str(tmp_path), "batch_size": 256}
    settings |= {"steps": 12, "profile": "article"}
    for number, source in enumerate(fakes.cells("memory")):
        exec(source.split("\n\n\nfor case in")[0], scope)
        if number == 1:  # after both cells with parameters
            scope |= settings
        if "def prepare(case)" in source:
            break
    return scope


def test_the_planned_memory_is_what_mlx_then_takes(memory):
    """From its own count: what three parts are planned to take, they take, within a tenth."""
    (backend,) = memory["experiment"].devices
    count = 3 * memory["PART"]
    work = memory["work"](backend, count)
    assert work.parameters == 18_250 and work.flops == 6 * count * (16 * 32 * 32 + 32 * 10)
    step = memory["training"](None, memory["build"](), memory["optim"].AdamW(1e-3), count)
    backend.reset_peak_memory()
    step()
    assert mx.get_peak_memory() == pytest.approx(work.bytes, rel=0.1)
