"""Verification of MLX's steps in blocks: correct devices pass, wrong ones do not."""

import zlib

import numpy as np
import pytest

from pomology.devices import find
from pomology.devices.mlx import MLXDevice
from pomology.errors import Mismatch
from pomology.models import verify

pytestmark = [pytest.mark.process("mlx")]
find.prepare("mlx")
import mlx.core as mx  # noqa: E402
import mlx.nn as nn  # noqa: E402
import mlx.optimizers as optim  # noqa: E402
import mlx_devices  # noqa: E402
from mlx.utils import tree_flatten  # noqa: E402
from mlx_devices import CORRECT, SHAPES, Case, Device, planted, verified  # noqa: E402

from pomology import Workload  # noqa: E402
from pomology.models import blocks_mlx, verify_mlx, workload_mlx  # noqa: E402

SHARE = {"fp32": 0.025, "bf16": 0.06, "fp16": 0.06}  # of the norm of a wrong gradient
# Of the trainings, a step takes the CPU less than 0.3 s; of the large ones, seconds.
SMALL = ["gpt2_pretraining", "gpt2_pretraining, transformer_lm", "transformer_lm", "vae"]
LARGE = ["gpt2_finetuning", "siamese", "model_sizes", "whisper"]
ALL = [(name, precision) for name in ["lora", *SMALL, *LARGE] for precision in SHARE]
# Without a gradient scaler sums of pixels of up to 255 overflow in fp16, and Whisper's gradients at
# queries and keys are subnormal: their rounding is absolute, which relative errors do not explain.
ALL.remove(("siamese", "fp16"))
ALL.remove(("whisper", "fp16"))


# Wrong devices.


def seen(name, precision, shape, number=0):
    """Verify a step with one wrong weight, which is drawn by its size. Raises if it is not seen."""
    sizes = mlx_devices.trained_weights(name, precision)
    draw = np.random.default_rng([zlib.crc32(f"{name} {precision} {shape}".encode()), number])
    shares = np.array(list(sizes.values())) / sum(sizes.values())
    weight = list(sizes)[int(draw.choice(len(sizes), p=shares))]
    wrong = planted(weight, shape, SHARE[precision])
    with pytest.raises(Mismatch, match=weight):
        verified(name, precision, gradient=wrong, seed=1 + number)
        pytest.fail(f"{shape} in {weight}")


@pytest.mark.parametrize("shape", SHAPES)
def test_a_wrong_gradient_is_seen_in_every_shape(shape):
    seen("lora", "bf16", shape)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_wrong_gradient_is_seen_in_every_precision(precision):
    for shape in ("too large", "the largest"):
        seen("lora", precision, shape)


def test_a_wrong_gradient_of_a_pretraining_is_seen():
    seen("gpt2_pretraining", "bf16", "too large")


@pytest.mark.long
@pytest.mark.parametrize("precision", SHARE)
@pytest.mark.parametrize("name", SMALL)
def test_a_wrong_gradient_of_any_weight_is_seen(name, precision):
    for shape in ("noise", "the largest", "too small"):
        seen(name, precision, shape)


@pytest.mark.machines
@pytest.mark.parametrize(("name", "precision"), ALL)
def test_a_wrong_gradient_of_any_weight_is_seen_in_every_shape(name, precision):
    for shape in SHAPES:
        seen(name, precision, shape)


def test_a_wrong_operator_is_told_by_its_block():
    right = mx.fast.scaled_dot_product_attention
    attend = lambda *arrays, **options: 1.06 * right(*arrays, **options)  # noqa: E731
    wrong = [(mx.fast, "scaled_dot_product_attention", attend)]
    with pytest.raises(Mismatch, match=r"the output of layers\.\d\.self_attn"):
        verified("lora", "bf16", wrong)


def test_a_wrong_gradient_of_words_that_come_often_is_seen():
    def look_up(embedding, words):
        rows = embedding.weight[words]
        _, numbers, counts = np.unique(np.array(words), return_inverse=True, return_counts=True)
        often = mx.array(counts[numbers] >= 4).reshape(words.shape)[..., None]
        return mx.where(often, 0.5 * rows + mx.stop_gradient(0.5 * rows), rows)

    with pytest.raises(Mismatch, match=r"the gradient of embedding\.weight"):
        verified("transformer_lm", operators=[(nn.Embedding, "__call__", look_up)])


def test_only_inputs_of_words_get_a_frequent_word():
    classes, images = mx.arange(900), mx.random.normal((30, 30))
    words = mx.arange(900).reshape(30, 30)
    changed = [verify_mlx._with_a_frequent_word(each) for each in (classes, images, words)]
    assert changed[0] is classes and changed[1] is images
    first = int((changed[2] == 0).sum())
    assert 60 < first < 170 and int((changed[2] == words).sum()) == 901 - first


# Correct devices.


def accepted(name, precision, device, seeds=(1,)):
    for seed in seeds:
        operators = mlx_devices.correct(device, seed)
        done = verified(name, precision, operators, seed=seed, tf32=device == "TF32", seeds=(seed,))
        assert done.unseen_weights <= verify.UNSEEN_WEIGHTS


@pytest.mark.parametrize("device", CORRECT[1:])
@pytest.mark.parametrize("precision", SHARE)
def test_a_device_that_rounds_otherwise_is_accepted(precision, device):
    accepted("lora", precision, device)


@pytest.mark.parametrize("fault", [None, "before the timing", "after it"])
def test_a_case_is_verified_before_its_timing_and_after_it(fault):
    training, model, size = mlx_devices.prepared("lora", "bf16")
    wrong = planted("layers.1.self_attn.q_proj.lora_A", "odd places", SHARE["bf16"])
    device = Device(mlx_devices.correct("sixteen parts"))
    device.gradient = wrong if fault == "before the timing" else None
    case = Case("bf16", device)
    optimizer = training.optimizer(model)

    def case_of_a_run():
        verify.workload(case, model, training, size, optimizer)
        for _ in range(3):
            mx.eval(training.step(model, optimizer, *training.batch(size)), model.parameters())
        device.gradient = wrong if fault else None
        for check in case.checks:
            check(10.0)

    if fault is None:
        case_of_a_run()
        assert case.notes[-1][0].startswith("verified after the timing in ")
        return
    with pytest.raises(Mismatch, match=r"q_proj\.lora_A differs by"):
        case_of_a_run()
    assert bool(case.notes) == (fault == "after it")


def in_bf16(left, right):
    product = mlx_devices.MATMUL(left.astype(mx.bfloat16), right.astype(mx.bfloat16))
    return product.astype(mx.float32)


@pytest.mark.parametrize(("tf32", "called"), [(False, "fp32"), (True, "TF32")])
def test_a_matmul_in_bf16_is_seen_whatever_it_is_called(tf32, called):
    operators = mlx_devices.matmuls(in_bf16)
    with pytest.raises(Mismatch, match=rf"a matmul of 512 × 512 in {called} \(matmul\) differs by"):
        verified("lora", "fp32", operators, tf32=tf32)


def test_only_tf32_that_was_asked_for_is_tf32(monkeypatch):
    """A matmul in bf16 drops the bits of the probe, too; it must not be taken for TF32."""
    monkeypatch.setattr(mx.array, "__matmul__", in_bf16)
    answers = {}
    for asked in ("0", "1"):
        monkeypatch.setattr(MLXDevice, "_tf32", asked)
        monkeypatch.setenv("MLX_ENABLE_TF32", asked)
        device = MLXDevice("cpu")
        answers[asked] = (device.tf32, device.tf32_products)
    assert answers == {"0": (False, False), "1": (True, True)}


@pytest.mark.parametrize("name", ["lora", "gpt2_pretraining"])
def test_a_device_with_tf32_is_accepted(name):
    accepted(name, "fp32", "TF32")


@pytest.mark.long
@pytest.mark.parametrize("precision", SHARE)
@pytest.mark.parametrize("name", SMALL)
def test_a_correct_device_is_never_refused(name, precision):
    for device in ("sixteen parts", "fast mathematics"):
        accepted(name, precision, device)


@pytest.mark.machines
@pytest.mark.parametrize("device", CORRECT[1:])
@pytest.mark.parametrize(("name", "precision"), ALL)
def test_a_correct_device_is_refused_in_no_training(name, precision, device):
    accepted(name, precision, device, (2,) if name in LARGE else (2, 3, 4))


# Blocks.


class Several(nn.Module):
    """Two arrays and a number, of which none is an output alone."""

    def __init__(self):
        super().__init__()
        self.weight = mx.ones(3)

    def __call__(self, x):
        return {"pair": (self.weight * x, mx.arange(3)), "sum": (self.weight * x).sum(), "count": 3}


class Child(nn.Linear):
    """A class that calls the method of its parent."""

    def __call__(self, x):
        return 2 * super().__call__(x)


class Network(nn.Module):
    """A shared module, several outputs, a child of another class, a container, and a table."""

    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))
        self.shared = nn.LayerNorm(3)
        self.several = Several()
        self.child = Child(3, 2)
        self.tables = [mx.ones(2), mx.ones(2)]

    def __call__(self, x):
        x = self.shared(self.first(self.shared(x)))
        outputs = self.several(x)
        return self.child(outputs["pair"][0]) * self.tables[1] + outputs["sum"]


def loss_function(model, x):
    return model(x).square().mean()


def step_of(loss_function=loss_function, build=Network, device=None):
    """Return the step of a small training. device: by default it computes as the CPU."""
    mx.random.seed(3)
    training = Workload(
        build=build,
        batch=lambda size: (mx.random.normal((size, 3)),),
        optimizer=lambda model: workload_mlx.initialized(optim.SGD(0.1), model),
        step=workload_mlx.one_update(loss_function),
    )
    model = training.build()
    case = Case("fp32", device or Device())
    return verify_mlx.StepOnBothDevices(case, model, training, training.optimizer(model))


OUTPUTS = [
    *("first", "first.layers.0", "first.layers.2", "shared", "shared, call 2"),
    *("several", "several, part 3", "child", "the model"),
]


def test_all_that_passes_between_modules_is_compared():
    with step_of() as step:
        deviations = step.in_blocks(step.reference(4, 0))
        gradients = set(step.deviations(step.reference(4, 0)))
    # A container's output is that of its last layer.
    outputs = [name for name in OUTPUTS if name != "first"]
    expected = {f"the output of {name}" for name in outputs}
    expected |= {f"the gradient at the output of {name}" for name in outputs}
    assert set(deviations) == expected | gradients
    weights = ["first.layers.0.weight", "several.weight", "child.bias", "tables.1", "shared.bias"]
    assert gradients > {f"the gradient of {name}" for name in weights} | {"the loss"}
    assert all(each.difference == 0 for each in deviations.values())
    assert max(each.norm for each in deviations.values()) > 0.1
    assert "__call__" in vars(nn.LayerNorm) and "blocks" not in nn.LayerNorm.__call__.__module__


def test_a_wrong_block_leaves_the_others_right():
    right = mx.fast.layer_norm
    double = [(mx.fast, "layer_norm", lambda *arguments: 2 * right(*arguments))]
    with step_of(device=Device(double)) as step:
        deviations = step.in_blocks(step.reference(4, 0))
    wrong = {name for name, each in deviations.items() if each.difference > 1e-6 * each.norm}
    assert wrong == {
        *("the output of shared", "the output of shared, call 2"),
        *("the gradient of shared.weight", "the gradient of shared.bias"),
        *("the gradient at the output of first.layers.2",),
    }


def test_gradients_are_those_without_boundaries():
    with step_of() as step:
        model = step.model
        x = mx.random.normal((5, 3))
        found = []
        for noise in (None, 0.0, 0.1):
            errors = blocks_mlx.Noise(noise or 0.0, 1)
            change = lambda _, array, errors=errors: errors.on(array)  # noqa: E731
            function = nn.value_and_grad(model, loss_function)
            if noise is None:
                found.append(function(model, x))
            else:
                with blocks_mlx.boundaries(model, change, change):
                    found.append(function(model, x))
    plain, same, other = (dict(tree_flatten(gradients)) for _, gradients in found)
    for name, gradient in plain.items():
        assert mx.allclose(gradient, same[name], rtol=1e-6).item(), name
    assert not mx.allclose(plain["child.weight"], other["child.weight"], rtol=1e-3).item()


def test_the_cpus_errors_are_between_modules_too():
    """The gradient of the last bias is the number of samples, whatever the weights are."""
    with step_of(lambda model, x: model(x).sum(), lambda: Child(3, 2)) as step:
        reference = step.reference(4, 0)
        for compare in (step.deviations, step.in_blocks):
            first, again, other = (compare(reference, 2.0**-8, draw) for draw in (0, 0, 1))
            name = "the gradient of bias"
            assert 1e-4 < first[name].difference / first[name].norm < 1e-2
            assert first[name] == again[name] != other[name]


@pytest.mark.parametrize("fault", [False, True])
def test_what_a_checkpoint_computes_again_is_compared(fault):
    def loss_function(model, x):
        def passed(weights, x):
            model.update(weights)
            return model(x)

        return mx.checkpoint(passed)(model.trainable_parameters(), x).square().mean()

    wrong = planted("child.weight", "noise", 0.025) if fault else None
    with step_of(loss_function, device=Device(gradient=wrong)) as step:
        deviations = step.in_blocks(step.reference(4, 0))
    assert "the gradient at the output of child, call 2" in deviations
    off = {name for name, each in deviations.items() if each.difference > 1e-3 * each.norm}
    assert off == ({"the gradient of child.weight"} if fault else set())


def test_a_large_step_is_compared_in_blocks_of_fewer_samples(monkeypatch):
    with step_of() as step:
        whole = step.reference(64, 0)
        monkeypatch.setattr(verify, "BLOCKS_BYTES", whole.bytes // 2)
        reference = step.reference(64, 0)
        assert not reference.outputs and not reference.gradients_of
        deviations = step.in_blocks(reference)
        assert "the output of child" in deviations
        # A sum over all samples takes as much for half of them, so half of them take too much.
        half, kept = reference.smaller, reference.smaller.smaller
        assert (half.size, kept.size) == (32, 16) and not half.outputs
        assert kept.bytes <= verify.BLOCKS_BYTES and len(kept.outputs) == 8
        monkeypatch.setattr(verify, "BLOCKS_BYTES", 1)
        reference = step.reference(64, 0)
        assert "the output of child" in step.in_blocks(reference)  # two samples are always kept


@pytest.mark.parametrize("kept", ["outputs", "gradients_of"])
def test_what_the_cpu_did_not_pass_is_refused(kept):
    with step_of() as step:
        reference = step.reference(4, 0)
        getattr(reference, kept).pop(("child", 0, 0))
        with pytest.raises(Mismatch, match="output of child is none of the CPU's"):
            step.in_blocks(reference)
