"""The same computation twice: by two devices or two frameworks, from the same weights and inputs, and compared.

One process holds one framework, so the reference in PyTorch is computed in a process of its own, from arrays.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from pomology.devices import tensorflow as devices_tensorflow
from pomology.workloads import isolated, torch_reference
from pomology.workloads.cost import Workload

CHANCES = 5  # sets of pictures for gradients of a network with ReLU
PYTORCH = "the reference in PyTorch, {!r},"


def difference(
    values: Any, reference: Any, tolerance: float, relative: bool = False
) -> tuple[float | None, str | None]:
    """The largest absolute difference of two arrays, or dicts of arrays by name, and what is wrong, if anything.

    tolerance: the largest absolute difference allowed; with `relative`, as a share of each reference array's largest
    absolute element. The difference is None where there is none (other names, shapes or types of elements,
    values that are not finite).
    """
    if not isinstance(reference, dict):
        values, reference = {"": values}, {"": reference}
    if list(values) != list(reference):
        return None, f"gives {', '.join(values)}; the reference gives {', '.join(reference)}"
    worst, complaint, excess = 0.0, None, 1.0
    for name in reference:
        value, expected = _array(values[name]), _array(reference[name])
        label = f"{name} " if name else ""
        if value.shape != expected.shape:
            return None, f"{label}has shape {value.shape}; the reference has {expected.shape}"
        if value.dtype != expected.dtype:
            return None, f"{label}has elements of {value.dtype}; the reference has {expected.dtype}"
        if not value.size:
            continue
        if not (np.isfinite(value).all() and np.isfinite(expected).all()):
            return None, f"{label}has values that are not finite"
        apart = np.abs(value.astype(np.float64) - expected.astype(np.float64))
        allowed = tolerance * (float(np.abs(expected.astype(np.float64)).max()) if relative else 1.0)
        place = np.unravel_index(int(apart.argmax()), apart.shape)
        worst = max(worst, float(apart[place]))
        if apart[place] > allowed and (share := apart[place] / max(allowed, 1e-300)) > excess:
            excess = share
            complaint = (
                f"{label}[{', '.join(map(str, place))}] is {value[place]:.6g}, the reference has "
                f"{expected[place]:.6g}: {apart[place]:.2g} apart, where {allowed:.2g} is allowed"
            )
    return worst, complaint


def _array(item: Any) -> np.ndarray:
    return item.detach().cpu().numpy() if hasattr(item, "detach") else np.asarray(item)


# Keras ----------------------------------------------------------------------------------------------------------------


def keras_pass(
    model: Any, images: np.ndarray, labels: np.ndarray, saw: Callable[[Any], None] = lambda outputs: None
) -> dict[str, np.ndarray]:
    """One forward and backward pass of a Keras classifier on TensorFlow, compiled into a graph as training is.

    Dropout is off. Returns `outputs` (probabilities) and the gradient of the mean cross-entropy for every weight,
    `gradient 0` and on. It runs on the device of the `tf.device` around it; saw: gets the outputs as the tensor that
    they are, which knows where it was computed.
    """
    import keras

    tensorflow = devices_tensorflow.load()
    weights = [weight.value for weight in model.trainable_variables]

    @tensorflow.function(jit_compile=False)
    def both(images, labels):
        with tensorflow.GradientTape() as tape:
            outputs = model(images, training=False)
            loss = tensorflow.reduce_mean(keras.losses.sparse_categorical_crossentropy(labels, outputs))
        return outputs, tape.gradient(loss, weights)

    outputs, gradients = both(tensorflow.constant(images), tensorflow.constant(labels))
    saw(outputs)
    arrays = {f"gradient {number}": gradient.numpy() for number, gradient in enumerate(gradients)}
    return {"outputs": outputs.numpy()} | arrays


def check_keras(
    case: Any, model: Any, build: Callable[[str], Any], reference: str, classes: int = 10, tolerance: float = 1e-3
) -> None:
    """Compare a Keras model on the case's device, before anything is timed, with two references for the same weights.

    The model that has the name `reference` in `torch_reference.MODELS`, in a process of its own on the CPU, always;
    and on a GPU the model of `build("cpu")` on TensorFlow's CPU, which shows whether framework or device is to blame.
    tolerance: of the outputs (probabilities) the largest absolute difference, of each gradient the same as a share of
    its largest element. Raises what `case.check` raises.

    The pictures are 16 of uniform noise: in real ones whole areas are of one grey, and where two values tie in a
    pooling, rounding decides which way the gradient goes. Noise may tie too, so gradients that disagree (after outputs
    that agree) get a second chance with other pictures; what is wrong is so with any.
    """

    def passes(seed: int) -> dict[str, tuple[dict, dict]]:
        generator = np.random.default_rng(seed)
        images = generator.random((16, *model.input_shape[1:]), dtype=np.float32)
        labels = generator.integers(0, classes, 16)
        values, references = keras_pass(model, images, labels, case.ran_on), {}
        if case.backend.kind == "gpu":
            with case.backend.on_cpu():
                same = build("cpu")
                same.set_weights(model.get_weights())
                references["GPU against CPU"] = keras_pass(same, images, labels)
        references["TensorFlow against PyTorch"] = in_torch(reference, model.get_weights(), images, labels)
        return {what: (values, other) for what, other in references.items()}

    _check_twice(case, passes, 2, {}, tolerance, tolerance)


def _check_twice(
    case: Any, passes: Callable[[int], dict], chances: int, forward: dict, tolerance: float, gradient_tolerance: float
) -> None:
    """Check pairs of passes by what they compare: all but gradients each time, gradients until they agree.

    passes: gives them for the number of the chance. forward: options of the checks of what is no gradient.
    """
    for chance in range(chances):
        pairs = passes(chance)
        for what, pair in pairs.items():
            case.check(*_split(pair, False), tolerance, what, **forward)
        gradients = {what: _split(pair, True) for what, pair in pairs.items()}
        agree = all(difference(*pair, gradient_tolerance, relative=True)[1] is None for pair in gradients.values())
        if agree or chance == chances - 1:
            for what, pair in gradients.items():
                case.check(*pair, gradient_tolerance, what, relative=True)
            return


def _split(passes: tuple[dict, dict], gradients: bool) -> list[dict[str, np.ndarray]]:
    """The gradients of two passes, or what else they gave."""
    return [
        {name: arrays[name] for name in sorted(arrays) if name.startswith("gradient") == gradients} for arrays in passes
    ]


# MLX ------------------------------------------------------------------------------------------------------------------


def mlx_pass(model: Any, images: np.ndarray, labels: np.ndarray, compiled: bool = False) -> dict[str, np.ndarray]:
    """One forward and backward pass of a classifier in MLX, as training does it: in training mode.

    images: N x H x W x 3, or whatever the model takes. compiled: by `mx.compile`. Returns the logits as `outputs`; the
    gradient of the mean cross-entropy for every weight, `gradient NAME`; and what each batch normalisation keeps of the
    pass, `after NAME`. Names and layouts are PyTorch's. The model is left as it was.
    """
    import mlx.core as mx
    import mlx.nn as nn
    from mlx.utils import tree_flatten

    kept = model.parameters()

    def loss(images, labels):
        logits = model(images)
        return nn.losses.cross_entropy(logits, labels, reduction="mean"), logits

    both = nn.value_and_grad(model.train(), loss)
    if compiled:
        both = mx.compile(both, inputs=model.state, outputs=model.state)
    (_, outputs), gradients = both(mx.array(images), mx.array(labels))
    after = model.parameters()
    mx.eval(outputs, gradients, after)
    model.update(kept)
    arrays = {"outputs": np.array(outputs)}
    for word, tree in (("gradient", gradients), ("after", after)):
        for name, array in tree_flatten(tree):
            if word == "gradient" or "running" in name:
                arrays[f"{word} {torch_name(name)}"] = _torch_layout(np.array(array))
    return arrays


def torch_name(name: str) -> str:
    """`4.layers.0.weight` of MLX's `layers.4.layers.layers.0.weight`: there `nn.Sequential` is seen in the name."""
    return re.sub(r"\blayers\.(?=\d)", "", name)


def _torch_layout(array: np.ndarray) -> np.ndarray:
    # Convolutions are outputs x height x width x inputs in MLX, outputs x inputs x height x width in PyTorch.
    return np.ascontiguousarray(array.transpose(0, 3, 1, 2)) if array.ndim == 4 else array


def _mlx_layout(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array.transpose(0, 2, 3, 1)) if array.ndim == 4 else array


def seeded_weights(shapes: dict[str, tuple[int, ...]], seed: int) -> dict[str, np.ndarray]:
    """Weights for a network of convolutions, batch normalisations and linear layers, made by no framework.

    shapes: by PyTorch's names, in its layouts. Every number is another, so that none can be taken for another; and each
    bias of a normalisation is 2.5 of its weights away from zero, up in one channel and down in the next, so that few
    values lie where ReLU bends: there rounding alone decides whether a gradient is let through.
    """
    generator, weights = np.random.default_rng(seed), {}
    for name, shape in shapes.items():
        if len(shape) == 4:
            outputs, _, height, width = shape
            array = generator.normal(0, math.sqrt(2 / (outputs * height * width)), shape)
        elif len(shape) == 2:
            array = generator.uniform(-1, 1, shape) / math.sqrt(shape[1])
        elif name.endswith("running_mean"):
            array = generator.normal(0, 0.1, shape)
        elif name.endswith("bias") and weights[name[:-4] + "weight"].ndim == 1:
            array = 2.5 * weights[name[:-4] + "weight"] * np.where(np.arange(shape[0]) % 2, -1, 1)
        elif name.endswith("bias"):
            array = generator.uniform(-0.1, 0.1, shape)
        else:  # weights and running variances of normalisations
            array = generator.uniform(0.2, 0.4, shape)
        weights[name] = array.astype(np.float32)
    return weights


def check_mlx(
    case: Any,
    model: Any,
    reference: str,
    seed: int,
    image_size: int = 64,
    batch_size: int = 2,
    tolerance: float = 3e-4,
    gradient_tolerance: float = 1e-2,
    compiled: bool = False,
) -> None:
    """Compare a network in MLX, before anything is timed, with `vision.VISION[reference]` of PyTorch on the CPU.

    Both get the weights of `seeded_weights`, which the model keeps, and the same pictures of noise, `image_size` high
    and wide. tolerance: of outputs and running statistics the largest difference, as a share of the largest element of
    each; gradient_tolerance: the same of every gradient. Where the results of all convolutions err by one part in
    100,000, a hundred times fp32's rounding, outputs shift by as little, and gradients by up to one part in a thousand:
    a tenth of what is allowed at the most.
    Raises what `case.check` raises.

    It shifts gradients by more where it takes a value across the bend of a ReLU. So gradients that disagree, after
    outputs that agree, get more chances with other pictures; what is wrong is so with any.
    """
    weights = _seed(model, seed)

    def passes(chance: int) -> dict[str, tuple[dict, dict]]:
        generator = np.random.default_rng([seed, chance])
        images = generator.normal(size=(batch_size, image_size, image_size, 3)).astype(np.float32)
        labels = generator.integers(0, 1000, batch_size)
        pair = mlx_pass(model, images, labels, compiled), in_torch(reference, weights, images, labels)
        return {"MLX against PyTorch": pair}

    _check_twice(case, passes, CHANCES, {"relative": True}, tolerance, gradient_tolerance)


def check_residual_mlp(case: Any, model: Any, seed: int, batch_size: int = 64, tolerance: float = 1e-4) -> None:
    """Compare the memory notebooks' network in MLX, before anything is timed, with PyTorch's on the CPU.

    Probabilities and all gradients, from the weights of `seeded_weights` and the same random numbers; the model's own
    weights come back afterwards. tolerance: the largest difference allowed, as a share of the largest element of each.
    Raises what `case.check` raises.
    """
    import mlx.core as mx

    kept = model.parameters()
    weights = _seed(model, seed)
    generator = np.random.default_rng(seed)
    inputs = generator.normal(size=(batch_size, weights["0.linear.weight"].shape[1])).astype(np.float32)
    labels = generator.integers(0, len(list(weights.values())[-1]), batch_size)
    values = mlx_pass(model, inputs, labels)
    model.update(kept)
    values["outputs"] = np.array(mx.softmax(mx.array(values["outputs"]), axis=1))
    expected = in_torch("residual_mlp", weights, inputs, labels)
    case.check(values, expected, tolerance, "MLX against PyTorch", relative=True)


def _seed(model: Any, seed: int) -> dict[str, np.ndarray]:
    """Load the weights of `seeded_weights` into a model of MLX; returns them by PyTorch's names, in its layouts."""
    import mlx.core as mx
    from mlx.utils import tree_flatten

    arrays = {name: _torch_layout(np.array(array)) for name, array in tree_flatten(model.parameters())}
    weights = seeded_weights({torch_name(name): array.shape for name, array in arrays.items()}, seed)
    model.load_weights([(name, mx.array(_mlx_layout(weights[torch_name(name)]))) for name in arrays])
    return weights


# PyTorch --------------------------------------------------------------------------------------------------------------


def in_torch(
    reference: str, weights: list[np.ndarray] | dict[str, np.ndarray], images: np.ndarray, labels: np.ndarray
) -> dict[str, np.ndarray]:
    """What `torch_reference.torch_pass` gives, from a process of its own. weights: by name, or in Keras's order.

    Raises PomologyError in one line if that process fails.
    """
    named = weights if isinstance(weights, dict) else {str(number): array for number, array in enumerate(weights)}
    key = hashlib.sha256(reference.encode())
    for array in (*named.values(), images, labels):
        key.update(np.ascontiguousarray(array).tobytes())
    if key.hexdigest() not in _known:
        what, given = PYTORCH.format(reference), (reference, named, images, labels)
        _known[key.hexdigest()] = isolated.call(what, torch_reference.torch_pass, *given)
    return dict(_known[key.hexdigest()])


_known: dict[str, dict[str, np.ndarray]] = {}  # every batch size of a notebook asks for the same


def torch_workloads(reference: str, shapes: list[tuple[int, int]]) -> list[tuple[Workload, int]]:
    """What `vision.VISION[reference]` costs, counted by PyTorch in a process of its own, for each (pictures, pixels a
    side).

    Of a training step with SGD and momentum; and the multiply-adds of one picture's forward pass. Raises PomologyError
    in one line if that process fails.
    """
    return isolated.call(PYTORCH.format(reference), torch_reference.vision_workloads, reference, shapes)
