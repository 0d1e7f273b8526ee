"""MLX on a real CPU: also the plan of the notebook `memory`, and a mocked GPU that is wrong."""

import contextlib
import shutil
from types import SimpleNamespace
from typing import ClassVar

import fakes
import numpy as np
import pytest

from pomology.devices import find
from pomology.errors import Mismatch
from pomology.experiment.experiment import Experiment
from pomology.models import verify
from pomology.paths import root

pytestmark = [pytest.mark.process("mlx"), pytest.mark.usefixtures("quiet_machine")]
find.prepare("mlx")
import mlx.core as mx  # noqa: E402
import mlx.nn as nn  # noqa: E402
import mlx.optimizers as optim  # noqa: E402
from mlx.utils import tree_flatten, tree_map  # noqa: E402

from pomology import Workload  # noqa: E402
from pomology.models import losses_mlx, workload_mlx  # noqa: E402


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

    class Optimizer(optim.Adam):
        def apply_single(self, gradient, parameter, state):
            updated = super().apply_single(gradient, parameter, state)
            return updated * (1.0 if on_the_cpu else wrong_update)

    monkeypatch.setattr(device, "kind", "gpu")
    monkeypatch.setattr(mx, "stream", stream)
    (case,) = experiment.cases(batch_size=[6])
    training = Workload(
        build=lambda: nn.Sequential(nn.Linear(8, 8), nn.BatchNorm(8), nn.Linear(8, 3)),
        batch=lambda size: (mx.random.normal((size, 8)),),
        optimizer=lambda model: workload_mlx.initialized(Optimizer(1e-3), model),
        step=workload_mlx.one_update(loss),
    )
    with case:
        model = case.watch_model(training.build())
        before = [(name, np.array(array)) for name, array in tree_flatten(model.parameters())]
        verify.workload(case, model, training, 6, training.optimizer(model))
        for (name, old), (_, new) in zip(before, tree_flatten(model.parameters()), strict=True):
            assert (old == np.array(new)).all(), name
        case.metric("step_s", 1.0, "s")
    (record,) = experiment.records
    assert record.status == status, record.reason
    assert ("step_s" in record.metrics) is (status == "ok")


@pytest.fixture
def memory(tmp_path, monkeypatch) -> dict:
    """The names of the notebook `memory` up to its cases."""
    monkeypatch.syspath_prepend(root() / "notebooks" / "profiling_apple_silicon")
    scope: dict = {}
    settings = {"framework": "mlx", "devices": "cpu", "out": str(tmp_path), "batch_size": 256}
    settings |= {"steps": 12, "profile": "article"}
    for number, source in enumerate(fakes.cells("memory")):
        exec(source.split("\n\n\nfor case in")[0], scope)
        if number == 1:  # after both cells with parameters
            scope |= settings
        if "memory_mlx.workload" in source:  # MLX's functions have taken PyTorch's names
            break
    return scope


def test_the_planned_memory_is_what_mlx_then_takes(memory):
    """From its own count: what three parts are planned to take, they take, within a tenth."""
    (backend,) = memory["experiment"].devices
    count = 3 * memory["PART"]
    training = memory["workload"](backend, count)
    cost = workload_mlx.declared_cost(training, count)
    assert cost.parameters == 18_250 and cost.flops == 6 * count * (16 * 32 * 32 + 32 * 10)
    model = training.build()
    optimizer = training.optimizer(model)
    numbers, labels = training.batch(count)
    mx.eval(model.parameters(), numbers, labels)
    backend.reset_peak_memory()
    training.step(model, optimizer, numbers, labels)
    assert mx.get_peak_memory() == pytest.approx(cost.bytes, rel=0.1)


def classifier():
    return Workload(
        build=lambda: nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)),
        batch=lambda size: (mx.random.normal((size, 8)), mx.random.randint(0, 3, (size,))),
        optimizer=lambda model: workload_mlx.initialized(optim.Adam(1e-2), model),
        step=workload_mlx.one_update(losses_mlx.cross_entropy),
    )


class TimedCase:
    """What a compiled step needs of a case. checks: those at its end."""

    config: ClassVar[dict] = {}
    precision = "fp32"

    def __init__(self, kind):
        self.backend = SimpleNamespace(kind=kind)
        self.checks, self.notes = [], []
        self.at_end, self.note = self.checks.append, self.notes.append

    def __getitem__(self, name):
        return {"batch_size": 4}[name]


@pytest.mark.skipif(not shutil.which("c++"), reason="on a CPU MLX compiles with a C++ compiler")
@pytest.mark.parametrize("fault", [None, "the first inputs", "no update", "half an update"])
def test_a_compiled_step_is_compared_with_the_plain_one(monkeypatch, fault):
    """Faults that a tracing makes, which the plain step does not have."""
    right = mx.compile

    def wrong(function, inputs, outputs):
        kept = []

        def first_inputs(*batch):
            kept.append(batch)
            return function(*kept[0])

        def without_update(*batch):
            weights = model.parameters()
            loss = function(*batch)
            if fault == "no update":
                model.update(weights)
            else:
                mean = tree_map(lambda new, old: (new + old) / 2, model.parameters(), weights)
                model.update(mean)
            return loss

        if fault is None:
            return right(function, inputs=inputs, outputs=outputs)
        return first_inputs if fault == "the first inputs" else without_update

    monkeypatch.setattr(mx, "compile", wrong)
    mx.random.seed(1)
    training = classifier()
    model = training.build()
    case = TimedCase("gpu")
    step = workload_mlx.compiled(case, training, model, training.optimizer(model))
    for _ in range(3):
        step(*training.batch(4))
    before = [np.array(array) for _, array in tree_flatten(model.parameters())]
    (check,) = case.checks
    if fault:
        said = "a loss of" if fault == "the first inputs" else r"update of layers\..* differs by"
        with pytest.raises(Mismatch, match=said):
            check(1.0)
    else:
        check(1.0)
        assert case.notes == ["the compiled step agreed with the plain one in 2 batches"]
    after = [np.array(array) for _, array in tree_flatten(model.parameters())]
    assert all(map(np.array_equal, before, after))


@pytest.mark.skipif(not shutil.which("c++"), reason="on a CPU MLX compiles with a C++ compiler")
def test_a_step_and_a_pass_compiled_as_on_a_gpu_compute_what_they_do_without(monkeypatch):
    """The optimizer's state and the weights are inputs and outputs of the compiled graph."""
    evaluate = mx.eval
    losses = {}
    for kind in ("cpu", "gpu"):
        case = TimedCase(kind)
        mx.random.seed(1)
        training = classifier()
        model = training.build()
        step = workload_mlx.compiled(case, training, model, training.optimizer(model))
        run_pass = workload_mlx.compiled_pass(case, model, losses_mlx.cross_entropy)
        batches = [training.batch(4) for _ in range(3)]
        evaluate(batches)
        losses[kind] = trained = [step(*batch) for batch in batches * 4]
        passes: list[float] = []
        with monkeypatch.context() as patched:  # a pass returns nothing, but evaluates its loss
            patched.setattr(mx, "eval", lambda loss, seen=passes: seen.append(loss.item()))
            run_pass(*batches[0])
        trained.append(*passes)
        step(*batches[0])
        with monkeypatch.context() as patched:
            patched.setattr(mx, "eval", lambda loss, seen=passes: seen.append(loss.item()))
            run_pass(*batches[0])
        assert passes[1] < passes[0]  # with the new weights
    assert losses["gpu"] == pytest.approx(losses["cpu"], rel=1e-5)
    assert losses["cpu"][-2] < losses["cpu"][0]
