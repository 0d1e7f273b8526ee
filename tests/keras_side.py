"""Tests that need TensorFlow, which must not share a process with PyTorch: `test_callbacks.py` runs them in their own.

python -m pytest tests/keras_side.py
"""

from __future__ import annotations

import contextlib
import functools
import time
import types

import apart
import fakes
import numpy as np
import pytest
from formulas import keras_workload

from pomology.devices import failures, find, tensorflow
from pomology.errors import PomologyError
from pomology.experiment.experiment import Experiment
from pomology.models import trainers, verify
from pomology.models.definitions import definitions

find.prepare("tensorflow")
tf = tensorflow.load()
# Two CPUs, of which the second plays a GPU.
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)
import keras  # noqa: E402
from keras import layers  # noqa: E402


class PretendedGPU(tensorflow.TensorFlowDevice):
    def __init__(self):
        super().__init__("metal")
        self.handle = "/CPU:1"

    def device_of(self, item):
        tensors = [weight.value for weight in item.weights] if hasattr(item, "weights") else [item]
        found = {tensor.device[-5:] for tensor in tensors}
        return {"CPU:0": "cpu", "CPU:1": "metal"}[found.pop()] if len(found) == 1 else "mixed"


build = definitions("mlp_cnn_lstm", "build").build
BUILD = {name: functools.partial(build, name) for name in ("mlp", "cnn", "lstm")}
mlp, lstm = BUILD["mlp"], BUILD["lstm"]


def pixels(count):
    """Pictures that tell their class by which tenth of them is bright."""
    generator = np.random.default_rng(1)
    labels = generator.integers(0, 10, count)
    images = generator.random((count, 28, 28), dtype=np.float32)
    images[np.arange(count), 2 * labels] += 2
    return images, labels


@pytest.fixture(autouse=True)
def quick_and_quiet(monkeypatch, tmp_path):
    fakes.quiet_machine(monkeypatch)
    apart.start_with_torch(monkeypatch, tmp_path)


@pytest.fixture
def run(tmp_path):
    """Runs `body` in one case: its record, and what the body returns."""

    def run(body, backend=None, **changes):
        settings = {"article": "004", "framework": "tensorflow", "devices": "cpu", "budget_s": 0.1}
        experiment = Experiment("mlp_cnn_lstm", **settings | {"out": str(tmp_path)} | changes)
        experiment.devices = [backend] if backend else experiment.devices
        (case,), found = experiment.cases(batch_size=[32]), []
        with case:
            found.append(body(case))
        (record,) = experiment.records
        return record, found[0] if found else None

    return run


class Calls(keras.callbacks.Callback):
    """Counts what fit really did."""

    def __init__(self):
        super().__init__()
        self.train, self.test = [], []

    def on_epoch_begin(self, epoch, logs=None):
        self.train.append(0)
        self.test.append(0)

    def on_train_batch_end(self, batch, logs=None):
        self.train[-1] += 1

    def on_test_batch_end(self, batch, logs=None):
        self.test[-1] += 1


class Paced(keras.callbacks.Callback):
    """What passes on a fake clock: in a step of each kind, and in each epoch beside them, of the first one 3 s more."""

    def __init__(self, clock, train_s=0.0, test_s=0.0, beside_s=0.0):
        super().__init__()
        self.on_train_batch_begin = lambda batch, logs=None: clock.pass_s(train_s)
        self.on_test_batch_begin = lambda batch, logs=None: clock.pass_s(test_s)
        self.on_epoch_begin = lambda epoch, logs=None: clock.pass_s(beside_s if epoch else 3.0)


def fit(case, model=None, count=640, held_out=160, epochs=3, optimizer="adam", more=(), **named):
    """`fit` as in the notebooks, on the case's clock if there is a case. Returns Keras's history."""
    model = case.watch_model(mlp("cpu")) if model is None else model
    x, y = pixels(count + held_out)
    model.compile(
        optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"], jit_compile=False
    )
    sizes = {"samples": count, "batch_size": 32, "validation_samples": held_out, "epochs": epochs}
    named |= {"validation_data": (x[count:], y[count:]) if held_out else None, "verbose": 0}
    callbacks = [*([trainers.keras(case, **sizes)] if case else []), *more]
    return model.fit(x[:count], y[:count], 32, epochs, callbacks=callbacks, **named).history


def steps_of(blocks):
    alone = sum(blocks[key] is not None for key in ("first_step_s", "last_step_s"))
    return alone + sum(count for count, _ in blocks["warmup"] + blocks["steady"])


def test_the_cpu_works_for_real():
    (cpu,) = find.find("cpu", "tensorflow")
    assert cpu.threads >= 1
    assert not tf.config.experimental.tensor_float_32_execution_enabled()
    cpu.reset_peak_memory()
    cpu.synchronize()
    assert cpu.peak_memory() == {} and cpu.free_memory() > 0
    assert {name for name, reason in cpu.precisions().items() if reason is None} >= {
        "fp32",
        "fp16",
        "bf16",
        "fp64",
    }
    batch = cpu.to_device({"x": np.ones(3, np.float32), "pair": (np.zeros(2), [tf.ones(1)])})
    assert isinstance(batch["pair"], tuple) and cpu.device_of(batch["x"]) == "cpu"
    model = mlp("cpu")
    assert cpu.device_of(model) == "cpu" and cpu.count(model) == 435_402
    before = cpu.weight_sample(model)
    model.trainable_weights[-1].assign_add(np.full(10, 0.5, np.float32))
    assert len(before) > 100 and cpu.weight_sample(model) != before
    with pytest.raises(ValueError, match="no parameters"):
        cpu.device_of(layers.Flatten())
    for precision in ("fp32", "fp16", "bf16"):
        product = cpu.dispatch(cpu.product(precision, 8))()
        assert (
            product.shape == (8, 8) and cpu.device_of(product) == "cpu" and float(product[0, 0]) > 0
        )


@pytest.mark.parametrize(
    ("kind", "words", "status"),
    [
        ("ResourceExhaustedError", "OOM when allocating tensor", "out-of-memory"),
        (
            "InvalidArgumentError",
            "No OpKernel was registered to support Op 'CudnnRNNV3' used by x",
            "unsupported",
        ),
        ("InvalidArgumentError", "shapes must be equal", None),
    ],
)
def test_what_tensorflow_raises_is_told_apart(kind, words, status):
    assert failures.failure(getattr(tf.errors, kind)(None, None, words)) == status


def test_a_whole_training_is_measured_with_its_smaller_last_batch_and_is_the_same_as_without_the_clock(
    run, monkeypatch
):
    calls, given = Calls(), {"count": 650, "held_out": 100}

    def body(case):
        keras.utils.set_random_seed(1)
        model = case.watch_model(mlp("cpu"))
        began = time.perf_counter()
        return fit(case, model, more=[calls], **given), time.perf_counter() - began

    record, (clocked, around_s) = run(body, profile="article")
    assert record.status == "ok" and record.device == "cpu" and record.parameters is None
    training, validation = record.blocks["training"], record.blocks["validation"]
    assert calls.train == [21] * 3 and calls.test == [4] * 3
    assert (
        steps_of(training) == 21
        and training["epoch_steps"] == 650 / 32
        and training["last_step_s"] > 0
    )
    assert steps_of(validation) == 4 and validation["epoch_steps"] == 100 / 32
    assert training["stopped"] == validation["stopped"] == "whole epoch"
    assert training["ready"] == [], "Keras takes its batches itself"
    total, epoch = record.metrics["fit_s"], record.metrics["epoch_s"]
    assert (total.how, total.n, epoch.how) == ("measured", 3, "measured")
    assert epoch.value < total.value <= around_s < total.value + 0.3 * around_s, (
        "nothing of fit is left out"
    )
    keras.utils.set_random_seed(1)
    bare = fit(None, mlp("cpu"), **given)
    assert clocked.keys() == bare.keys()
    for name in bare:
        assert clocked[name] == pytest.approx(bare[name], rel=1e-4), name


@pytest.mark.parametrize(
    ("budget_s", "trained", "tested"),
    [
        (2.0, [31, 1, 1, 1], [15, 4, 4, 4]),  # the first is stopped, all others are shortened
        (11.0, [50, 50, 50, 3], [15] * 4),  # the last would not end within twice the budget
    ],
)
def test_a_training_of_which_steps_are_left_out_takes_what_all_of_them_take(
    run, monkeypatch, budget_s, trained, tested
):
    """On a fake clock: 0.1 s a step, 40 ms one of validation, and in each epoch 0.4 s beside."""
    calls, clock, callbacks = Calls(), fakes.Clock(), []
    make = trainers.keras
    monkeypatch.setattr(trainers, "time", types.SimpleNamespace(perf_counter=clock))
    monkeypatch.setattr(
        trainers, "keras", lambda *a, **k: callbacks.append(make(*a, **k)) or callbacks[0]
    )

    def body(case):
        case.clock.clock = clock
        fit(case, None, 50 * 32, 15 * 32, 4, more=[Paced(clock, 0.1, 0.04, 0.4), calls])

    record, _ = run(body, budget_s=budget_s)
    total, whole = record.metrics["fit_s"], 4 * (50 * 0.1 + 15 * 0.04 + 0.4) + 2.6
    assert (calls.train, calls.test) == (trained, tested)
    assert (total.how, total.value) == ("estimated", pytest.approx(whole, rel=1e-6))
    assert callbacks[0].epochs_done == pytest.approx(sum(trained) / 50)


def test_an_exception_in_fit_ends_the_case_and_keeps_what_was_timed(run):
    class Broken(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 12:
                raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")

    # An hour: the clock must not have enough before.
    record, _ = run(lambda case: fit(case, held_out=0, more=[Broken()]), budget_s=3600)
    assert record.status == "out-of-memory"
    assert record.metrics["first_step_s"].value > 0 and "fit_s" not in record.metrics


def test_losses_are_those_of_single_steps_and_no_validation_is_no_such_part(run):
    """Weights stand still at a learning rate of 0, so every batch's loss can be computed apart."""
    noted = []

    def body(case):
        note, case.loss = case.loss, lambda value: (noted.append(value), note(value))
        stack = [layers.Input((28, 28)), layers.Flatten(), layers.Dense(10, "softmax")]
        model = case.watch_model(keras.Sequential(stack))
        fit(
            case,
            model,
            count=100,
            held_out=0,
            epochs=2,
            optimizer=keras.optimizers.SGD(0.0),
            shuffle=False,
        )
        x, y = pixels(100)
        each = -np.log(model.predict(x, verbose=0)[np.arange(100), y])
        return [each[start : start + 32].mean() for start in range(0, 100, 32)]

    record, single = run(body, profile="article")
    assert noted == pytest.approx(single * 2, rel=1e-4)
    assert list(record.blocks) == ["training"] and record.metrics["fit_s"].how == "measured"
    assert record.status == "not-learning" and record.reason == "no step changed the weights"


def check(case, model):
    verify.step(case, model, None, twin=lambda: mlp("cpu"))
    case.metric("step_s", 1.0, "s")  # a case must time something


@pytest.mark.parametrize("wrong", ["never", "always", "in a batch as large as a step's"])
def test_a_gpu_that_computes_wrong_values_is_a_mismatch_before_anything_is_timed(
    run, monkeypatch, wrong
):
    honest, scope, inside = tf.nn.bias_add, tf.device, []

    @contextlib.contextmanager
    def on(name):
        inside.append(name)
        with scope(name):
            yield
        inside.pop()

    def bias_add(value, bias, **named):
        found = honest(value, bias, **named)
        least = {"never": 1000, "always": 1}.get(wrong, 32)
        return found + 0.1 if value.shape[0] >= least and inside[-1] == "/CPU:1" else found

    monkeypatch.setattr(tf, "device", on)
    monkeypatch.setattr(tf.nn, "bias_add", bias_add)

    def body(case):
        model = case.watch_model(mlp("gpu"))
        assert case.backend.device_of(model) == "metal"
        check(case, model)

    record, _ = run(body, PretendedGPU(), budget_s=10.0)
    assert record.device == "gpu"
    if wrong != "never":
        assert record.status == "mismatch" and record.reason.startswith("the ")
        assert "step_s" not in record.metrics
    else:
        assert record.status == "ok" and "step_s" in record.metrics, record.reason


def test_work_that_is_left_to_the_cpu_is_a_fallback(run, monkeypatch):
    backend = PretendedGPU()
    monkeypatch.setattr(backend, "context", lambda strict=False: tf.device("/CPU:0"))
    record, _ = run(lambda case: check(case, case.watch_model(mlp("gpu"))), backend)
    assert (record.status, record.reason) == ("fallback", "asked for metal, computed on cpu")


@pytest.mark.parametrize(
    ("twin", "parameters", "mflop"),
    [("mlp", 435_402, 1.806), ("cnn", 93_322, 16.376), ("lstm", 81_674, 12.492)],
)
def test_workload_of_the_articles_models(twin, parameters, mflop):
    work = keras_workload(BUILD[twin]("cpu"), 128)
    assert work.parameters == parameters
    assert work.flops / 128 / 1e6 == pytest.approx(mflop, abs=0.0005)
    assert (
        work.state_bytes == 16 * parameters
    )  # weights, gradients and two of Adam, four bytes each
    assert keras_workload(BUILD[twin]("cpu"), 256).saved_bytes == 2 * work.saved_bytes


def test_a_layer_without_a_formula_is_named():
    with pytest.raises(PomologyError, match="GRU"):
        keras_workload(keras.Sequential([layers.Input((4, 3)), layers.GRU(2)]), 1)
