"""Timing of Keras, and device, model counts and verification with the real TensorFlow."""

import contextlib
import dataclasses
import functools
import types

import fakes
import numpy as np
import pytest
from notebook_code import definitions

from pomology.devices import find, tensorflow
from pomology.experiment.experiment import Experiment
from pomology.models import trainers, workload_keras
from pomology.models.cost_keras import keras_workload

pytestmark = pytest.mark.process("tensorflow")
find.prepare("tensorflow")
tf = tensorflow.load()
# Two logical CPUs; the second one acts as a GPU.
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)
import keras  # noqa: E402
from keras import layers  # noqa: E402


class FakeGPU(tensorflow.TensorFlowDevice):
    def __init__(self):
        super().__init__("metal")
        self.handle = "/CPU:1"

    def device_of(self, item):
        tensors = [weight.value for weight in item.weights] if hasattr(item, "weights") else [item]
        found = {tensor.device[-5:] for tensor in tensors}
        return {"CPU:0": "cpu", "CPU:1": "metal"}[found.pop()] if len(found) == 1 else "mixed"


NOTEBOOK = definitions("mlp_cnn_lstm")
build, network = NOTEBOOK["build"], NOTEBOOK["network"]
mlp = functools.partial(build, "mlp")


def pixels(count):
    """Return images whose bright rows show their class."""
    generator = np.random.default_rng(1)
    labels = generator.integers(0, 10, count)
    images = generator.random((count, 28, 28), dtype=np.float32)
    images[np.arange(count), 2 * labels] += 2
    return images, labels


@pytest.fixture
def run(tmp_path, quiet_machine):
    """Function that runs `body` in one case, and returns its record and the body's result."""

    def run(body, backend=None, **changes):
        settings = {"article": "004", "framework": "tensorflow", "devices": "cpu"}
        settings |= {"budget_s": 0.1, "out": str(tmp_path)} | changes
        experiment = Experiment("mlp_cnn_lstm", **settings)
        experiment.devices = [backend] if backend else experiment.devices
        (case,) = experiment.cases(batch_size=[32])
        answer = None
        with case:
            answer = body(case)
        return experiment.records[0], answer

    return run


def counter(trained, tested):
    """Return a callback that counts the steps of `fit` in each epoch."""

    def one_more(counts):
        counts[-1] += 1

    return keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: [counts.append(0) for counts in (trained, tested)],
        on_train_batch_end=lambda batch, logs: one_more(trained),
        on_test_batch_end=lambda batch, logs: one_more(tested),
    )


def paced(clock):
    """Return a callback that advances a fake clock in each step and at each epoch's begin."""
    return keras.callbacks.LambdaCallback(
        on_train_batch_begin=lambda batch, logs: clock.pass_s(0.1),
        on_test_batch_begin=lambda batch, logs: clock.pass_s(0.04),
        on_epoch_begin=lambda epoch, logs: clock.pass_s(0.4 if epoch else 3.0),
    )


def fit(case, model=None, count=640, held_out=160, epochs=3, optimizer="adam", more=(), **named):
    """Call `fit` as the notebooks do, with the case's clock if there is a case."""
    model = case.watch_model(mlp("cpu")) if model is None else model
    x, y = pixels(count + held_out)
    loss = "sparse_categorical_crossentropy"
    model.compile(optimizer, loss, metrics=["accuracy"], jit_compile=False)
    sizes = {"samples": count, "batch_size": 32, "validation_samples": held_out, "epochs": epochs}
    named |= {"validation_data": (x[count:], y[count:]) if held_out else None, "verbose": 0}
    clock = trainers.keras(case, **sizes) if case else keras.callbacks.Callback()
    trained = model.fit(x[:count], y[:count], 32, epochs, callbacks=[clock, *more], **named)
    return types.SimpleNamespace(history=trained.history, clock=clock)


def steps_of(blocks):
    alone = sum(blocks[key] is not None for key in ("first_step_s", "last_step_s"))
    return alone + sum(count for count, _ in blocks["warmup"] + blocks["steady"])


def test_the_real_cpu_works():
    (cpu,) = find.find("cpu", "tensorflow")
    assert not tf.config.experimental.tensor_float_32_execution_enabled()
    assert cpu.threads >= 1 and cpu.peak_memory() == {} and cpu.free_memory() > 0
    possible = {name for name, reason in cpu.precisions().items() if reason is None}
    assert possible >= {"fp32", "fp16", "bf16", "fp64"}
    batch = cpu.to_device({"x": np.ones(3, np.float32), "pair": (np.zeros(2), [tf.ones(1)])})
    assert isinstance(batch["pair"], tuple) and cpu.device_of(batch["x"]) == "cpu"
    model = mlp("cpu")
    assert cpu.device_of(model) == "cpu" and cpu.count(model) == 435_402
    before = cpu.weight_sample(model)
    model.trainable_weights[-1].assign_add(np.full(10, 0.5, np.float32))
    assert len(before) > 100 and cpu.weight_sample(model) != before
    product = cpu.dispatch(cpu.product("bf16", 8))()
    assert product.shape == (8, 8) and float(product[0, 0]) > 0


def test_a_whole_training_has_its_smaller_last_batch_and_is_the_same_without_the_clock(run):
    trained, tested = [], []
    sizes = {"count": 650, "held_out": 100}

    def body(case):
        keras.utils.set_random_seed(1)
        return fit(case, more=[counter(trained, tested)], **sizes).history

    record, clocked = run(body, profile="article")
    assert (record.status, record.device) == ("ok", "cpu")
    training, validation = record.blocks["training"], record.blocks["validation"]
    assert trained == [21] * 3 and tested == [4] * 3
    assert (steps_of(training), training["epoch_steps"]) == (21, 650 / 32)
    assert (steps_of(validation), validation["epoch_steps"]) == (4, 100 / 32)
    assert training["last_step_s"] > 0 and training["stopped"] == "whole epoch"
    total, epoch = record.metrics["fit_s"], record.metrics["epoch_s"]
    assert (total.how, total.n, epoch.how) == ("measured", 3, "measured")
    assert epoch.value < total.value
    keras.utils.set_random_seed(1)
    bare = fit(None, mlp("cpu"), **sizes).history
    assert clocked.keys() == bare.keys()
    for name in bare:
        assert clocked[name] == pytest.approx(bare[name], rel=1e-4), name


# budget_s, and the training and validation steps of each epoch. All epochs after the first are
# shortened, or only the last one, which would not end within twice the budget.
SHORTENED = [(2.0, [31, 1, 1, 1], [15, 4, 4, 4]), (11.0, [50, 50, 50, 3], [15] * 4)]


@pytest.mark.parametrize(("budget_s", "trained", "tested"), SHORTENED)
def test_the_estimated_time_of_a_shortened_training_is_that_of_all_its_steps(
    run, monkeypatch, budget_s, trained, tested
):
    done, clock = ([], []), fakes.Clock()
    fake = types.SimpleNamespace(perf_counter=clock, process_time=clock)
    monkeypatch.setattr(trainers, "time", fake)

    def body(case):
        case.clock.clock = clock
        return fit(case, None, 50 * 32, 15 * 32, 4, more=[paced(clock), counter(*done)]).clock

    record, callback = run(body, budget_s=budget_s)
    total = record.metrics["fit_s"]
    assert done == (trained, tested)
    whole_s = 4 * (50 * 0.1 + 15 * 0.04 + 0.4) + 2.6
    assert (total.how, total.value) == ("estimated", pytest.approx(whole_s, rel=1e-6))
    assert callback.epochs_done == pytest.approx(sum(trained) / 50)


def test_losses_are_those_of_single_steps_and_without_validation_there_is_no_such_part(run):
    """At a learning rate of 0 weights are constant, so the test can compute each batch's loss."""
    losses = []

    def body(case):
        case.loss = losses.append
        stack = [layers.Input((28, 28)), layers.Flatten(), layers.Dense(10, "softmax")]
        model = case.watch_model(keras.Sequential(stack))
        frozen = {"optimizer": keras.optimizers.SGD(0.0), "shuffle": False}
        fit(case, model, count=100, held_out=0, epochs=2, **frozen)
        x, y = pixels(100)
        each = -np.log(model.predict(x, verbose=0)[np.arange(100), y])
        return [each[start : start + 32].mean() for start in range(0, 100, 32)]

    record, single = run(body, profile="article")
    assert losses == pytest.approx(single * 2, rel=1e-4)
    assert list(record.blocks) == ["training"] and record.metrics["fit_s"].how == "measured"
    assert record.status == "not-learning" and record.reason == "no step changed the weights"


def check(case):
    case.prepare(network("mlp", "gpu"), reference=network("mlp", "cpu"))
    case.metric("step_s", 1.0, "s")  # a case must time something


@pytest.mark.parametrize(("wrong_from", "status"), [(1000, "ok"), (32, "mismatch")])
def test_a_gpu_that_computes_wrong_values_is_a_mismatch_before_anything_is_timed(
    run, monkeypatch, wrong_from, status
):
    """wrong_from: smallest batch size with a wrong bias."""
    right, scope, inside = tf.nn.bias_add, tf.device, []

    @contextlib.contextmanager
    def on(name):
        inside.append(name)
        with scope(name):
            yield
        inside.pop()

    def bias_add(value, bias, **named):
        result = right(value, bias, **named)
        wrong = value.shape[0] >= wrong_from and inside[-1] == "/CPU:1"
        return result + 0.1 if wrong else result

    monkeypatch.setattr(tf, "device", on)
    monkeypatch.setattr(tf.nn, "bias_add", bias_add)
    record, _ = run(check, FakeGPU(), budget_s=10.0)
    assert (record.device, record.status) == ("gpu", status), record.reason
    assert ("step_s" in record.metrics) is (status == "ok")


def frozen(model):
    model.layers[-1].trainable = False
    return {}


def detached(model):
    call = model.layers[1].call
    model.layers[1].call = lambda inputs, **named: tf.stop_gradient(call(inputs, **named))
    return {}


def other_optimizer(model):
    model.compile(optimizer="rmsprop", loss="sparse_categorical_crossentropy")
    return {}


def evaluation_mode(model):
    call = model.call
    model.call = lambda inputs, training=None, mask=None: call(inputs, training=False, mask=mask)
    return {}


def half_of_the_batch(model):
    def step(model, optimizer, inputs, labels):
        return workload_keras.train_step(model, optimizer, inputs[:1], labels[:1])

    return {"step": step}


def in_bf16(model):
    model.dtype_policy = keras.DTypePolicy("mixed_bfloat16")
    return {}


PLANTED = {
    frozen: "parameters are trained, not 435,402",
    detached: "a step does not update",
    other_optimizer: "the optimizer is RMSprop, not Adam",
    evaluation_mode: "is in evaluation mode",
    half_of_the_batch: "gets 1 samples, not 2",
    in_bf16: "runs in autocast",
}


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_fault_in_the_step_of_fit_is_named(plant):
    declared, model = network("mlp", "cpu"), mlp("cpu")
    small = workload_keras.observe(dataclasses.replace(declared, **plant(model)), model)
    assert any(PLANTED[plant] in text for text in workload_keras.differences(declared, small))


@pytest.mark.parametrize("name", ["mlp", "cnn", "lstm"])
def test_the_step_of_fit_does_what_is_declared_and_changes_nothing(name):
    declared, model = network(name, "cpu"), build(name, "cpu")
    before = model.get_weights()
    assert list(workload_keras.differences(declared, workload_keras.observe(declared, model))) == []
    assert all(map(np.array_equal, before, model.get_weights()))


@pytest.mark.parametrize(
    ("name", "parameters", "mflop"),
    [("mlp", 435_402, 1.806), ("cnn", 93_322, 16.376), ("lstm", 81_674, 12.492)],
)
def test_workload_of_the_articles_models(name, parameters, mflop):
    """The state has weights, gradients and two moments of Adam, with four bytes per element."""
    work = keras_workload(build(name, "cpu"), 128)
    assert work.parameters == parameters and work.state_bytes == 16 * parameters
    assert work.flops / 128 / 1e6 == pytest.approx(mflop, abs=0.0005)
    assert keras_workload(build(name, "cpu"), 256).saved_bytes == 2 * work.saved_bytes
