"""Tests that need TensorFlow, which must not share a process with PyTorch: `test_callbacks.py` runs them in their own.

python -m pytest tests/keras_side.py
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
import types

import apart
import fakes
import numpy as np
import pytest

from pomology.devices import failures, find, tensorflow
from pomology.errors import PomologyError
from pomology.experiment import trainers
from pomology.experiment.experiment import Experiment
from pomology.machine import snapshot
from pomology.workloads import parity
from pomology.workloads.cost import Workload, keras_workload

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


def mlp(kind="cpu", activation="relu"):
    hidden = [layers.Dense(512, activation=activation), layers.Dropout(0.2), layers.Dense(64, activation="relu")]
    return keras.Sequential([layers.Input((28, 28)), layers.Flatten(), *hidden, layers.Dense(10, "softmax")])


def cnn(kind="cpu", pool=layers.MaxPooling2D):
    stack = [layers.Conv2D(32, 3, activation="relu"), pool(2), layers.Conv2D(64, 3, activation="relu"), pool(2)]
    stack += [layers.Conv2D(64, 3, activation="relu"), layers.Flatten(), layers.Dense(64, activation="relu")]
    return keras.Sequential([layers.Input((28, 28, 1)), *stack, layers.Dense(10, "softmax")])


def lstm(kind="cpu", activation="tanh"):
    return keras.Sequential([layers.Input((28, 28)), layers.LSTM(128, activation), layers.Dense(10, "softmax")])


BUILD = {"mlp": mlp, "cnn": cnn, "lstm": lstm}


def pixels(count, twin="mlp"):
    """Pictures that tell their class by which tenth of them is bright."""
    generator = np.random.default_rng(1)
    labels = generator.integers(0, 10, count)
    images = generator.random((count, 28, 28), dtype=np.float32)
    images[np.arange(count), 2 * labels] += 2
    return (images[..., None] if twin == "cnn" else images), labels


@pytest.fixture(autouse=True)
def quiet_machine(monkeypatch):
    state = {"power_source": "ac", "low_power_mode": False, "thermal_level": None, "load": 0.1, "flags": []}
    monkeypatch.setattr(snapshot, "conditions", lambda: state)


@pytest.fixture(autouse=True)
def twins_start_soon(monkeypatch, tmp_path):
    apart.start_with_torch(monkeypatch, tmp_path)


@pytest.fixture
def make(tmp_path):
    def make(**changes):
        settings = {"article": "004", "framework": "tensorflow", "devices": "cpu", "budget_s": 0.1}
        return Experiment("mlp", **settings | {"out": str(tmp_path)} | changes)

    return make


def fit(case, model, count=640, held_out=160, batch_size=32, epochs=3, labels=None, optimizer="adam", more=(), **named):
    """`fit` as in the notebooks. Returns Keras's history and the seconds around the call."""
    x, y = pixels(count + held_out)
    y = y if labels is None else labels
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"], jit_compile=False)
    began = time.perf_counter()
    times = trainers.keras(case, samples=count, batch_size=batch_size, validation_samples=held_out, epochs=epochs)
    held = (x[count:], y[count:]) if held_out else None
    history = model.fit(
        *(x[:count], y[:count], batch_size, epochs), verbose=0, validation_data=held, callbacks=[times, *more], **named
    )
    return history.history, time.perf_counter() - began


def run(experiment, body):
    (case,) = experiment.cases(batch_size=[32])
    with case:
        case.found = body(case)
    (record,) = experiment.records
    return record, getattr(case, "found", None)


def steps_of(blocks):
    alone = sum(blocks[key] is not None for key in ("first_step_s", "last_step_s"))
    return alone + sum(count for count, _ in blocks["warmup"] + blocks["steady"])


# The device -----------------------------------------------------------------------------------------------------------


def test_the_cpu_works_for_real():
    (cpu,) = find.find("cpu", "tensorflow")
    assert (cpu.backend, cpu.kind, cpu.handle, cpu.framework) == ("cpu", "cpu", "/CPU:0", "tensorflow")
    assert cpu.framework_version == tf.__version__ and cpu.threads >= 1 and cpu.name == snapshot.chip()
    cpu.reset_peak_memory()
    cpu.synchronize()
    assert cpu.peak_memory() == {} and cpu.free_memory() > 0
    assert {name for name, reason in cpu.precisions().items() if reason is None} >= {"fp32", "fp16", "bf16", "fp64"}
    batch = cpu.to_device({"x": np.ones(3, np.float32), "pair": (np.zeros(2), [tf.ones(1)])})
    assert isinstance(batch["pair"], tuple) and cpu.device_of(batch["x"]) == "cpu"
    model = mlp()
    assert cpu.device_of(model) == "cpu" and cpu.count(model) == 435_402
    before = cpu.weight_sample(model)
    model.trainable_weights[-1].assign_add(np.full(10, 0.5, np.float32))
    assert len(before) > 100 and cpu.weight_sample(model) != before
    with pytest.raises(ValueError, match="no weights"):
        cpu.device_of(layers.Flatten())
    for precision in ("fp32", "fp16", "bf16"):
        product = cpu.dispatch(cpu.product(precision, 8))()
        assert product.shape == (8, 8) and cpu.device_of(product) == "cpu" and float(product[0, 0]) > 0
    launch, words = cpu.smallest_kernel()
    assert float(launch()[0]) == 2 and words == "adding 1 to one number"
    with cpu.watch_fallbacks() as seen:
        assert seen == set()


def test_a_case_that_surely_takes_too_long_is_not_tried(make):
    """By the best rate of TensorFlow's own products."""

    def body(case):
        case.require_memory(Workload(10, 10**18, state_bytes=40, saved_bytes=0))
        case.require_time(60)

    record, _ = run(make(), body)
    assert record.status == "too-big" and "TFLOP would take" in record.reason


@pytest.mark.skipif(bool(tf.config.list_physical_devices("GPU")), reason="there is a GPU")
def test_without_a_gpu_the_reason_is_said_in_one_line():
    assert [one.backend for one in find.find("auto", "tensorflow")] == ["cpu"]
    for wanted, word in (("gpu", "cuda: "), ("metal", "metal: "), ("mps", "metal: "), ("cuda", "cuda: ")):
        with pytest.raises(PomologyError) as error:
            find.find(wanted, "tensorflow")
        assert word in str(error.value) and "it has cpu" in str(error.value) and "\n" not in str(error.value)


def test_what_tensorflow_raises_is_told_apart():
    assert (
        failures.failure(tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")) == "out-of-memory"
    )
    assert failures.failure(tf.errors.InternalError(None, None, "failed to allocate memory")) == "out-of-memory"
    missing = "No OpKernel was registered to support Op 'CudnnRNNV3' used by node x"
    assert failures.failure(tf.errors.InvalidArgumentError(None, None, missing)) == "unsupported"
    xla = 'Could not find registered platform with name: "METAL"'
    assert failures.failure(tf.errors.NotFoundError(None, None, xla)) == "unsupported"
    assert failures.failure(tf.errors.InvalidArgumentError(None, None, "shapes must be equal")) is None


def test_loading_says_nothing_and_true_fp32_is_on():
    program = "from pomology.devices import find; print(find.find('cpu', 'tensorflow')); import keras"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr == "" and "cpu" in done.stdout
    assert not tf.config.experimental.tensor_float_32_execution_enabled()


# The clock inside fit -------------------------------------------------------------------------------------------------


class Calls(keras.callbacks.Callback):
    """Counts what fit really did."""

    def __init__(self):
        super().__init__()
        self.train, self.test, self.epochs = [], [], 0

    def on_epoch_begin(self, epoch, logs=None):
        self.epochs += 1
        self.train.append(0)

    def on_train_batch_end(self, batch, logs=None):
        self.train[-1] += 1

    def on_test_batch_end(self, batch, logs=None):
        self.test.append(batch)


def test_a_whole_training_is_measured_with_its_smaller_last_batch(make):
    calls = Calls()

    def body(case):
        return fit(case, case.watch_model(mlp()), count=650, held_out=100, more=[calls])

    record, (_, around_s) = run(make(profile="article"), body)
    assert record.status == "ok" and record.device == "cpu" and record.parameters is None
    training, validation = record.blocks["training"], record.blocks["validation"]
    assert calls.train == [21] * 3 and len(calls.test) == 3 * 4
    assert steps_of(training) == 21 and training["epoch_steps"] == 650 / 32 and training["last_step_s"] > 0
    assert steps_of(validation) == 4 and validation["epoch_steps"] == 100 / 32
    assert training["stopped"] == validation["stopped"] == "whole epoch"
    assert training["ready"] == [], "Keras takes its batches itself"
    total, epoch = record.metrics["fit_s"], record.metrics["epoch_s"]
    assert (total.how, total.n, epoch.how) == ("measured", 3, "measured")
    assert epoch.value < total.value <= around_s
    assert around_s - total.value < 0.2 * around_s, "nothing of fit is left out"


def test_fit_trains_as_it_does_without_the_callback(make):
    def body(case):
        keras.utils.set_random_seed(1)
        return fit(case, case.watch_model(mlp()))[0]

    _, clocked = run(make(profile="article"), body)
    keras.utils.set_random_seed(1)
    model, (x, y) = mlp(), pixels(800)
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"], jit_compile=False)
    bare = model.fit(x[:640], y[:640], 32, 3, verbose=0, validation_data=(x[640:], y[640:])).history
    assert clocked.keys() == bare.keys()
    for name in bare:
        assert clocked[name] == pytest.approx(bare[name], rel=1e-4), name


@pytest.mark.parametrize("epochs", [1, 5])
def test_an_epoch_that_does_not_fit_is_stopped_and_the_rest_is_estimated(make, epochs):
    calls = Calls()

    def body(case):
        return fit(case, case.watch_model(mlp()), count=32 * 4000, held_out=32 * 2000, epochs=epochs, more=[calls])

    record, _ = run(make(budget_s=0.2), body)
    assert record.status == "ok", record.reason
    training, validation = record.blocks["training"], record.blocks["validation"]
    assert calls.epochs == 1 and calls.train[0] == steps_of(training) + 1 < 3000, "one more step runs, untimed"
    assert len(calls.test) == steps_of(validation) + 1 < 1500
    total, epoch = record.metrics["fit_s"], record.metrics["epoch_s"]
    assert total.how == epoch.how == "estimated"
    assert total.low < total.value < total.high
    assert 0.6 * epochs * epoch.value < total.value < (epochs + 1) * epoch.value


def test_a_training_that_fits_the_budget_is_measured_also_in_quick(make):
    calls = Calls()
    record, _ = run(make(budget_s=20), lambda case: fit(case, case.watch_model(mlp()), epochs=4, more=[calls]))
    assert calls.train == [20] * 4 and record.metrics["fit_s"].how == "measured"


def test_later_epochs_run_within_twice_the_budget_and_stand_for_the_rest(make, monkeypatch):
    """Every epoch but the first takes 15 s outside of its steps, which take no time for the callback."""
    calls, clock = Calls(), fakes.Clock()
    monkeypatch.setattr(trainers, "time", types.SimpleNamespace(perf_counter=clock))

    class Slow(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            clock.pass_s(15 if epoch else 0)

    def body(case):
        return fit(case, case.watch_model(mlp()), held_out=0, epochs=100, more=[Slow(), calls])

    record, _ = run(make(budget_s=60), body)
    total = record.metrics["fit_s"]
    assert calls.epochs == 1 + 120 // 15 and calls.train == [20] * calls.epochs
    assert total.how == "estimated"
    assert total.value >= 99 * 15, "what an epoch does outside of its steps is in the estimate"


def test_without_validation_there_is_no_such_part(make):
    record, _ = run(make(profile="article"), lambda case: fit(case, case.watch_model(mlp()), held_out=0))
    assert list(record.blocks) == ["training"] and record.metrics["fit_s"].how == "measured"


def test_losses_are_those_of_single_steps(make):
    """Weights stand still at a learning rate of 0, so every batch's loss can be computed apart."""
    noted = []

    def body(case):
        note, case.loss = case.loss, lambda value: (noted.append(value), note(value))
        model = case.watch_model(
            keras.Sequential([layers.Input((28, 28)), layers.Flatten(), layers.Dense(10, "softmax")])
        )
        fit(case, model, count=100, held_out=0, epochs=2, optimizer=keras.optimizers.SGD(0.0), shuffle=False)
        x, y = pixels(100)
        probabilities = model.predict(x, verbose=0)
        each = -np.log(probabilities[np.arange(100), y])
        return [each[start : start + 32].mean() for start in range(0, 100, 32)]

    record, apart = run(make(profile="article"), body)
    assert noted == pytest.approx(apart * 2, rel=1e-4)
    assert record.status == "not-learning" and record.reason == "no step changed the weights"


def test_an_exception_in_fit_ends_the_case_and_keeps_what_was_timed(make):
    class Broken(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 12:
                raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")

    # An hour: the clock must not have enough before.
    record, _ = run(make(budget_s=3600), lambda case: fit(case, case.watch_model(mlp()), more=[Broken()]))
    assert record.status == "out-of-memory"
    assert record.metrics["first_step_s"].value > 0 and "fit_s" not in record.metrics


# Whether it learned ---------------------------------------------------------------------------------------------------


def test_frozen_weights_are_not_learning(make):
    def body(case):
        model = mlp()
        model.trainable = False
        fit(case, case.watch_model(model))

    record, _ = run(make(), body)
    assert (record.status, record.reason) == ("not-learning", "no step changed the weights")


@pytest.mark.parametrize(("labels", "status"), [("right", "ok"), ("random", "not-learning")])
def test_a_model_that_guesses_is_not_learning(make, labels, status):
    def body(case):
        case.experiment.expects_learning = False  # the loss alone would say it too
        y = pixels(4640)[1] if labels == "right" else np.random.default_rng(2).integers(0, 10, 4640)
        model = case.watch_model(mlp())
        fit(case, model, count=640, held_out=4000, epochs=2, labels=y)
        _, accuracy = model.evaluate(pixels(4640)[0][640:], y[640:], verbose=0)
        case.accuracy(accuracy, 4000, classes=10)

    record, _ = run(make(profile="article"), body)
    assert record.status == status, record.reason
    if status == "ok":
        assert record.metrics["accuracy"].value > 0.5
    else:
        assert "guessing gives 10.0%" in record.reason and record.metrics["fit_s"].value > 0


# The same computation twice -------------------------------------------------------------------------------------------


def check(case, model, build, twin):
    parity.check_keras(case, model, build, twin)
    case.metric("step_s", 1.0, "s")  # a case must time something


@pytest.mark.parametrize("twin", sorted(BUILD))
def test_the_articles_models_are_their_pytorch_twins(make, twin):
    keras.utils.set_random_seed(1)
    record, _ = run(make(), lambda case: check(case, case.watch_model(BUILD[twin]()), BUILD[twin], twin))
    assert record.status == "ok", record.reason
    assert 0 < record.metrics["max_abs_error"].value < 1e-5


DIFFERENT = {
    "another activation": ("mlp", lambda: mlp(activation="elu")),
    "another pooling": ("cnn", lambda: cnn(pool=layers.AveragePooling2D)),
    "another activation of a state": ("lstm", lambda: lstm(activation="sigmoid")),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_another_model_of_the_same_size_is_refused(make, name):
    keras.utils.set_random_seed(1)
    twin, build = DIFFERENT[name]
    record, _ = run(make(), lambda case: check(case, case.watch_model(build()), BUILD[twin], twin))
    assert record.status == "mismatch" and "TensorFlow against PyTorch: outputs [" in record.reason
    assert record.metrics["max_abs_error"].value > 1e-3 and "step_s" not in record.metrics


def transposed(weights):
    weights[2] = np.ascontiguousarray(weights[2].reshape(64, 512).T)  # as many numbers in another order
    return weights


def other_gates(weights):
    """Input, cell, forget, output in place of input, forget, cell, output."""
    order = np.r_[0:128, 256:384, 128:256, 384:512]
    return [weights[0][:, order], weights[1][:, order], weights[2][order], *weights[3:]]


@pytest.mark.parametrize(("twin", "change"), [("mlp", transposed), ("lstm", other_gates)])
def test_the_same_weights_in_another_order_are_refused(make, twin, change, monkeypatch):
    honest = parity.in_torch
    monkeypatch.setattr(parity, "in_torch", lambda name, weights, *data: honest(name, change(weights), *data))
    record, _ = run(make(), lambda case: check(case, case.watch_model(BUILD[twin]()), BUILD[twin], twin))
    assert record.status == "mismatch", record.reason


@pytest.mark.parametrize(("times", "status"), [(1, "ok"), (2, "mismatch")])
def test_gradients_that_differ_alone_are_refused_if_they_differ_again(make, monkeypatch, times, status):
    """Once may be a tie in a pooling, which rounding decides; what is wrong is wrong with other pictures too."""
    honest, asked = parity.in_torch, []

    def off(*given):
        asked.append(given)
        found = honest(*given)
        return found | {"gradient 3": found["gradient 3"] * (1.01 if len(asked) <= times else 1)}

    monkeypatch.setattr(parity, "in_torch", off)
    record, _ = run(make(), lambda case: check(case, case.watch_model(mlp()), mlp, "mlp"))
    assert record.status == status and len(asked) == 2
    assert not np.array_equal(asked[0][2], asked[1][2]), "other pictures"
    assert status == "ok" or "gradient 3 [" in record.reason


@pytest.mark.parametrize("wrong", [False, True])
def test_a_gpu_that_computes_wrong_values_is_a_mismatch_before_anything_is_timed(make, monkeypatch, wrong):
    honest, scope, inside = tf.nn.bias_add, tf.device, []

    @contextlib.contextmanager
    def on(name):
        inside.append(name)
        with scope(name):
            yield
        inside.pop()

    def bias_add(value, bias, **named):
        found = honest(value, bias, **named)
        return found + 0.1 if wrong and inside[-1] == "/CPU:1" else found

    monkeypatch.setattr(tf, "device", on)
    monkeypatch.setattr(tf.nn, "bias_add", bias_add)
    experiment = make(budget_s=0.2)
    experiment.devices = [PretendedGPU()]

    def body(case):
        model = case.watch_model(mlp("gpu"))
        assert case.backend.device_of(model) == "metal"
        check(case, model, mlp, "mlp")
        fit(case, model)

    record, _ = run(experiment, body)
    if wrong:
        assert record.status == "mismatch" and record.reason.startswith("GPU against CPU: outputs [")
        assert record.blocks == {} and "fit_s" not in record.metrics
    else:
        assert record.status == "ok", record.reason
        assert record.device == "gpu" and "fit_s" in record.metrics


def test_a_gpu_without_the_kernels_that_leaves_its_work_to_the_cpu_is_a_fallback(make):
    experiment = make()
    experiment.devices = [PretendedGPU()]
    record, _ = run(experiment, lambda case: fit(case, case.watch_model(on_cpu(mlp))))
    assert (record.status, record.device) == ("fallback", "cpu")


def test_weights_here_and_results_there_are_a_fallback_too(make, monkeypatch):
    experiment = make()
    experiment.devices = [PretendedGPU()]

    honest = parity.keras_pass

    def elsewhere(*given):
        with tf.device("/CPU:0"):
            return honest(*given)

    def body(case):
        model = case.watch_model(mlp())
        monkeypatch.setattr(parity, "keras_pass", elsewhere)
        check(case, model, mlp, "mlp")
        fit(case, model)

    record, _ = run(experiment, body)
    assert (record.status, record.reason) == ("fallback", "asked for metal, computed on cpu")


def on_cpu(build):
    with tf.device("/CPU:0"):
        return build()


def test_a_twin_that_fails_says_why_in_one_line():
    x, y = pixels(4)
    with pytest.raises(PomologyError, match=r"the reference in PyTorch, 'mlp', ended with status 1: .*Error") as error:
        parity.in_torch("mlp", lstm().get_weights(), x, y)
    assert "\n" not in str(error.value)


# On paper -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("twin", "parameters", "mflop"), [("mlp", 435_402, 1.806), ("cnn", 93_322, 16.376), ("lstm", 81_674, 12.492)]
)
def test_workload_of_the_articles_models(twin, parameters, mflop):
    work = keras_workload(BUILD[twin](), 128)
    assert work.parameters == parameters
    assert work.flops / 128 / 1e6 == pytest.approx(mflop, abs=0.0005)
    assert work.state_bytes == 16 * parameters  # weights, gradients and two of Adam, four bytes each
    assert keras_workload(BUILD[twin](), 256).saved_bytes == 2 * work.saved_bytes


def test_a_layer_without_a_formula_is_named():
    with pytest.raises(PomologyError, match="GRU"):
        keras_workload(keras.Sequential([layers.Input((4, 3)), layers.GRU(2)]), 1)
