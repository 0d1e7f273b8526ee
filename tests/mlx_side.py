"""Tests that need MLX, which must not share a process with PyTorch: `test_in_mlx.py` runs them in their own.

python -m pytest tests/mlx_side.py
"""

from __future__ import annotations

import contextlib
import itertools

import apart
import fakes
import numpy as np
import pytest

from pomology.devices import find
from pomology.devices.mlx import MLXDevice
from pomology.experiment.experiment import Experiment
from pomology.measure import calls
from pomology.models import parity

find.prepare("mlx")
import mlx.core as mx  # noqa: E402
import mlx.nn as nn  # noqa: E402
import mlx.optimizers as optim  # noqa: E402
from mlx.utils import tree_flatten  # noqa: E402

from pomology.models import vision_mlx  # noqa: E402


@pytest.fixture(autouse=True)
def quiet_machine(monkeypatch, tmp_path):
    fakes.quiet_machine(monkeypatch)
    apart.start_with_torch(monkeypatch, tmp_path)


def test_the_cpu_works_for_real():
    (cpu,) = find.find("cpu", "mlx")
    cpu.reset_peak_memory()
    model = nn.Linear(30, 4)
    before = cpu.weight_sample(model)
    model.update({"weight": model.weight + 1})
    assert cpu.weight_sample(model) != before and (cpu.count(model), cpu.device_of(model)) == (124, "cpu")
    moved = cpu.to_device({"x": [np.zeros(3), (1.0, mx.ones(2))]})["x"]
    assert moved[0].dtype == mx.float32 and moved[1][1].tolist() == [1.0, 1.0]
    with cpu.context():
        a = mx.ones((512, 512))
        mx.eval(a)
        once = {"calls_per_block": 1, "repeats": 3, "budget_s": 0.01}
        honest, bare = (calls.measure(f, cpu.synchronize, **once) for f in (cpu.dispatch(lambda: a @ a), lambda: a @ a))
        for kind, dtype in {"fp32": mx.float32, "tf32": mx.float32, "fp16": mx.float16, "bf16": mx.bfloat16}.items():
            product = cpu.product(kind, 16)()
            assert (product.dtype, product.shape) == (dtype, (16, 16)) and float(product.max()) > 1
        assert cpu.smallest_kernel()[0]().item() == 2.0
    # A quarter of a billion operations against writing down that they are wanted.
    assert min(block.seconds for block in honest.blocks) > 20 * min(block.seconds for block in bare.blocks)
    with pytest.raises(ValueError, match="ReLU has no parameters"):
        cpu.device_of(nn.ReLU())
    peak = cpu.peak_memory()
    assert peak["reserved_peak_bytes"] >= peak["allocated_peak_bytes"] >= 2 * 512 * 512 * 4
    assert cpu.precisions() == dict.fromkeys(("fp32", "fp16", "bf16", "fp64")) and not cpu.tf32
    assert cpu.free_memory() > 10**7


def run(folder, model, step=lambda model: None, precision="fp32", **named):
    """A case that checks a model and then times a step; returns its record."""
    about = {"framework": "mlx", "devices": "cpu", "budget_s": 0.01, "expects_learning": False}
    experiment = Experiment("model_sizes_mlx", article="000", out=str(folder), **about)
    (case,) = experiment.cases([{"model": "resnet18", "precision": precision}])
    with case:
        if precision == "tf32":
            case.require_tf32()
        case.watch_model(model)
        parity.check_mlx(case, model, "resnet18", seed=1, **named)
        case.measure("step_s", lambda: step(model), warmup_calls=0, repeats=1)
    (record,) = experiment.records
    return record


def train(model):
    optimizer = optim.SGD(0.01, momentum=0.9)
    loss = nn.value_and_grad(model, lambda x: nn.losses.cross_entropy(model(x), mx.array([1, 2]), reduction="mean"))
    found, gradients = loss(mx.ones((2, 32, 32, 3)))
    optimizer.update(model, gradients)
    mx.eval(found, model.parameters(), optimizer.state)


def test_outputs_gradients_and_running_statistics_are_those_of_pytorch(tmp_path):
    model = vision_mlx.resnet18()
    (cpu,) = find.find("cpu", "mlx")
    assert cpu.count(model) == 11_689_512  # running statistics are none
    assert sum(array.size for _, array in tree_flatten(model.parameters())) == 11_689_512 + 2 * 4_800
    record = run(tmp_path, model, train)
    assert record.status == "ok", record.reason
    # fp32 differs in its last digits, and is hardly ever the same in all.
    assert 0 < record.metrics["max_abs_error"].value < 1e-4 and "step_s" in record.metrics


@pytest.mark.parametrize("compiled", [False, True])
def test_a_pass_leaves_the_model_as_it_was(compiled):
    layers = [nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm(4), nn.ReLU(), nn.Conv2d(4, 5, 6)]
    model = nn.Sequential(*layers, lambda images: images.mean((1, 2)))
    before = [(name, np.array(array)) for name, array in tree_flatten(model.parameters())]
    images, labels = np.random.default_rng(1).random((2, 8, 8, 3), np.float32), np.array([1, 2])
    for _ in range(2):  # a second pass finds what the first did
        found = parity.mlx_pass(model, images, labels, compiled)
        expected = 0.1 * np.array(layers[0](mx.array(images)).mean((0, 1, 2)))
        assert found["after 1.running_mean"] == pytest.approx(expected, abs=1e-6)
        assert found["gradient 0.weight"].shape == (4, 3, 3, 3) and np.abs(found["gradient 3.bias"]).max() > 0
    for (name, old), (_, new) in zip(before, tree_flatten(model.parameters()), strict=True):
        assert (old == np.array(new)).all(), name


class PadsAsTensorFlow(nn.Conv2d):
    """With stride 2, `same` there is one row less at the top and left; the shape of the result is the same."""

    def __call__(self, x):
        return mx.conv2d(mx.pad(x, [(0, 0), (2, 3), (2, 3), (0, 0)]), self.weight, self.stride)


class BiasedVariance(nn.BatchNorm):
    def _calc_stats(self, x, ddof=0):
        return super()._calc_stats(x)


class NoGradientForTheBias(nn.Linear):
    def __call__(self, x):
        return x @ self.weight.T + mx.stop_gradient(self.bias)


CHANGES = {
    "after": lambda model: setattr(model.conv1, "__class__", PadsAsTensorFlow),
    "after bn1.running_": lambda model: setattr(model.bn1, "momentum", 0.01),
    "after layer4.0.bn2.running_var": lambda model: setattr(model.layer4.layers[0].bn2, "__class__", BiasedVariance),
    "gradient fc.bias": lambda model: setattr(model.fc, "__class__", NoGradientForTheBias),
}


@pytest.mark.parametrize("where", CHANGES)
def test_a_different_model_is_refused_before_it_is_timed(tmp_path, monkeypatch, where):
    monkeypatch.setattr(parity, "CHANCES", 2)
    model = vision_mlx.resnet18()
    CHANGES[where](model)
    record = run(tmp_path, model)
    assert record.status == "mismatch"
    assert record.reason.startswith(f"MLX against PyTorch: {where}"), record.reason
    assert record.metrics["max_abs_error"].value > 1e-4 and "step_s" not in record.metrics


@pytest.mark.parametrize(
    ("tf32", "precision", "error", "status"),
    [
        (False, "tf32", 0.0, "unsupported"),
        (True, "tf32", 3e-3, "ok"),
        (True, "tf32", 3e-2, "mismatch"),
        (True, "fp32", 3e-3, "mismatch"),
    ],
)
def test_fp32_as_mlx_ships_it_may_err_as_tf32_does_and_stands_apart(
    tmp_path, monkeypatch, tf32, precision, error, status
):
    ones = {"gradient x": np.ones(2, np.float32), "outputs": np.ones(2, np.float32)}
    monkeypatch.setattr(MLXDevice, "tf32", tf32)
    monkeypatch.setattr(parity, "in_torch", lambda *given: ones)
    monkeypatch.setattr(parity, "mlx_pass", lambda *given: ones | {"outputs": np.float32(1 + error) * ones["outputs"]})
    record = run(tmp_path, nn.Sequential(nn.Linear(2, 2)), precision=precision)
    assert (record.status, record.precision, record.config["precision"]) == (status, precision, precision)
    apart = tf32 and precision == "tf32"
    assert ("other-way" in record.flags) is apart is ("which here is TF32" in (record.note or ""))
    assert ("step_s" in record.metrics) is (status == "ok")


@pytest.mark.parametrize(("wrong", "status"), [(4, "ok"), (5, "mismatch")])
def test_a_gradient_that_rounding_turned_gets_more_chances_and_an_output_none(tmp_path, monkeypatch, wrong, status):
    asked = []

    def in_torch(twin, weights, images, labels):
        asked.append(images)
        return {"gradient x": np.ones(2, np.float32), "outputs": np.ones(2, np.float32)}

    def mlx_pass(model, images, labels, compiled):
        error = np.float32(0.5 if len(asked) < wrong else 0)
        return {"gradient x": np.ones(2, np.float32) + error, "outputs": np.ones(2, np.float32)}

    monkeypatch.setattr(parity, "in_torch", in_torch)
    monkeypatch.setattr(parity, "mlx_pass", mlx_pass)
    record = run(tmp_path, nn.Sequential(nn.Linear(2, 2)))
    assert record.status == status, record.reason
    assert len(asked) == min(wrong + 1, parity.CHANCES)
    assert all((one != two).any() for one, two in itertools.pairwise(asked))
    monkeypatch.setattr(parity, "mlx_pass", lambda *given: in_torch(*given) | {"outputs": np.zeros(2, np.float32)})
    asked.clear()
    other = run(tmp_path / "outputs", nn.Sequential(nn.Linear(2, 2)))
    assert other.status == "mismatch" and " outputs [0] is 0" in other.reason
    assert len(asked) == 2  # once by each


@pytest.mark.parametrize("wrong", [False, True])
def test_a_gpu_is_held_against_mlx_s_own_cpu_with_a_step_s_pictures(tmp_path, monkeypatch, wrong):
    """Right for the 2 small pictures that PyTorch gets too, wrong for the 6 of a step; article-size batches are cut."""
    on, seen = [], []

    def mlx_pass(model, images, labels, compiled=False):
        seen.append((*images.shape, *on))
        error = np.float32(0.5 if wrong and len(images) == 6 and not on else 0)
        return {"gradient x": np.ones(2, np.float32), "outputs": np.ones(2, np.float32) + error}

    monkeypatch.setattr(
        parity, "in_torch", lambda *given: {name: np.ones(2, np.float32) for name in ("gradient x", "outputs")}
    )
    monkeypatch.setattr(parity, "mlx_pass", mlx_pass)
    about = {"framework": "mlx", "devices": "cpu", "budget_s": 0.01, "expects_learning": False}
    experiment = Experiment("model_sizes_mlx", article="000", out=str(tmp_path), **about)
    (device,) = experiment.devices
    monkeypatch.setattr(device, "kind", "gpu")
    real = device.on_cpu

    @contextlib.contextmanager
    def on_cpu():
        on.append("on the CPU")
        with real():
            yield
        on.clear()

    monkeypatch.setattr(device, "on_cpu", on_cpu)
    for case in experiment.cases([{"batch_size": 6, "image_size": 96}, {"batch_size": 128, "image_size": 224}]):
        with case:
            model = case.watch_model(nn.Sequential(nn.Linear(2, 2)))
            parity.check_mlx(case, model, "resnet18", 1, 64, 2)
            case.metric("step_s", 1.0, "s")
    small, large = experiment.records
    assert (2, 64, 64, 3) in seen and (6, 96, 96, 3) in seen and (6, 96, 96, 3, "on the CPU") in seen
    if wrong:
        assert small.status == "mismatch" and small.reason.startswith("GPU against CPU: outputs [0] is 1.5")
        assert "step_s" not in small.metrics
    else:
        assert "unproved" not in small.flags and small.status == "ok", small.reason
    assert large.flags.count("unproved") == 1 and "with 6 of the 128 pictures of a step" in large.note
